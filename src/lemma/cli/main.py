"""`lemma`: the command line. Bad input exits with 2 and one message; --debug shows the traceback."""

import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lemma.cli.adapt import adapt, export
from lemma.cli.check import app as check
from lemma.cli.common import GroupedCommand, print_message
from lemma.cli.count import count
from lemma.cli.data import data
from lemma.cli.evaluate import evaluate
from lemma.cli.generate import generate
from lemma.cli.look import app as look
from lemma.cli.search import search
from lemma.cli.serve import serve
from lemma.cli.study import study
from lemma.cli.train import train
from lemma.cli.verify import verify
from lemma.errors import LemmaError
from lemma.report.text import stream_width, wrap_lines

VERBS = "count check train evaluate generate look adapt export search study serve data verify"


class OrderedGroup(TyperGroup):
    """A group that lists its commands in the order of the docs."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of the docs."""
        return sorted(super().list_commands(ctx), key=[*VERBS.split(), *self.commands].index)


app = typer.Typer(
    cls=OrderedGroup,
    name="lemma",
    help="A workbench for language models where the mathematics and the machine agree.",
    epilog="Every command takes --json, and --debug to show a traceback. "
    "Example: lemma train lstm --text shakespeare --out runs/a",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (count, train, evaluate, generate, adapt, export, search, study, serve, data, verify):
    app.command(cls=GroupedCommand)(command)
app.add_typer(check, name="check", short_help="Check a formula, number, gradient or computation by hand.")
app.add_typer(look, name="look")


def _show_version(value: bool) -> None:
    """Print the version and exit if `value` is true."""
    if value:
        from lemma import __version__

        typer.echo(f"lemma {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


def _format_warning(message: Warning | str, category: type[Warning], *location: object) -> str:
    """Return a warning as one line without its location in the code."""
    kind = "" if category is UserWarning else f"{category.__name__}: "
    return wrap_lines(f"lemma: {kind}{message}\n", stream_width(sys.stderr))


# OpenMP threads of torch spin for each other before they sleep. libgomp's default is thirty times as long, which takes
# most of the time of training where other programs want the cores; to spin much less costs an idle machine up to a
# third of its decoding speed (`python -m benchmarks.threads`).
SPIN_IDLE, SPIN_BUSY = 10_000, 1_000  # values of GOMP_SPINCOUNT


def choose_spin_count(load: str) -> int:
    """Return GOMP_SPINCOUNT for the machine's load, a line of /proc/loadavg.

    >>> choose_spin_count("0.1 0.2 0.3 1/200 42"), choose_spin_count("9.0 9.0 9.0 9999/10000 42"), choose_spin_count("")
    (10000, 1000, 10000)
    """
    running = "".join(load.split()[3:4]).partition("/")[0]
    return SPIN_BUSY if running.isdigit() and int(running) > (os.cpu_count() or 1) else SPIN_IDLE


def set_spin_count() -> None:
    """Set GOMP_SPINCOUNT for this process unless the environment has a choice; libgomp reads it when torch is imported.

    Only the command line does so: `import lemma` leaves the environment of its host alone.
    """
    if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        return
    try:
        load = Path("/proc/loadavg").read_text(encoding="ascii")
    except OSError:  # only Linux has it
        load = ""
    os.environ["GOMP_SPINCOUNT"] = str(choose_spin_count(load))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors become one message on stderr and an exit status."""
    set_spin_count()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    if arguments[:1] == ["help"]:  # as people type it
        arguments = [*arguments[1:], "--help"]
    warnings.formatwarning = _format_warning
    if os.environ.get("RANK", "0") != "0":  # only the first of torchrun's processes warns
        warnings.simplefilter("ignore")
    try:
        app(args=[argument for argument in arguments if argument != "--debug"], prog_name="lemma")
    except BrokenPipeError:  # the reader of our output has left: not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (LemmaError, OSError) as error:
        if debug:
            raise
        if os.environ.get("LOCAL_RANK", "0") == "0":  # one message per machine: a file may be missing on one only
            print_message(f"lemma: {error}", to_stderr=True)
        sys.exit(getattr(error, "exit_status", 2))
