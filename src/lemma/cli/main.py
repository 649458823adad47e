"""`lemma`: the verbs as commands. Bad input exits with 2 and one clear message; --debug shows the traceback."""

import os
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lemma.cli.adapt import adapt, export
from lemma.cli.check import app as check
from lemma.cli.common import GroupedCommand, say
from lemma.cli.count import count
from lemma.cli.data import data
from lemma.cli.evaluate import evaluate
from lemma.cli.generate import generate
from lemma.cli.look import app as look
from lemma.cli.search import search
from lemma.cli.serve import serve
from lemma.cli.study import study
from lemma.cli.train import train
from lemma.errors import LemmaError
from lemma.report.text import fit, width_of

VERBS = "count check train evaluate generate look adapt export search study serve data"


class InOrder(TyperGroup):
    """The commands in the order of the docs."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Name them in that order."""
        return sorted(super().list_commands(ctx), key=[*VERBS.split(), *self.commands].index)


app = typer.Typer(
    cls=InOrder,
    name="lemma",
    help="A workbench for language models where the mathematics and the machine agree.",
    epilog="Every command takes --json, and --debug for a traceback. "
    "Try: lemma train lstm --text shakespeare --out runs/a",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (count, train, evaluate, generate, adapt, export, search, study, serve, data):
    app.command(cls=GroupedCommand)(command)
app.add_typer(check, name="check", short_help="Check your own formula, number, gradient or hand computation.")
app.add_typer(look, name="look")


def _show_version(asked: bool) -> None:
    if asked:
        from lemma import __version__

        typer.echo(f"lemma {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None: ...


def _plain_warning(message: Warning | str, category: type[Warning], *where: object) -> str:
    """A warning as a line for people; where in the code it arose is of no use to them."""
    kind = "" if category is UserWarning else f"{category.__name__}: "
    return fit(f"lemma: {kind}{message}\n", width_of(sys.stderr))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors become one message on stderr and an exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    if words[:1] == ["help"]:  # as people type it
        words = [*words[1:], "--help"]
    warnings.formatwarning = _plain_warning
    if os.environ.get("RANK", "0") != "0":  # of torchrun's processes the first one talks
        warnings.simplefilter("ignore")
    try:
        app(args=[word for word in words if word != "--debug"], prog_name="lemma")
    except BrokenPipeError:  # the reader of our output has left: not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (LemmaError, OSError) as error:
        if debug:
            raise
        if os.environ.get("LOCAL_RANK", "0") == "0":  # of each machine: a file may be missing on one only
            say(f"lemma: {error}", aside=True)
        sys.exit(getattr(error, "exit_status", 2))
