"""`lemma look`: what every attention head does, and small cases worked step by step."""

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from lemma.cli.look.heads import heads
from lemma.cli.look.parse import parse
from lemma.cli.look.worked import attention, bpe, cross, graph, lstm
from lemma.errors import SpecError, unknown

RUN = "run"  # the command that a first word which names no other stands for


class RunOrCommand(TyperGroup):
    """A group whose first word is a sub-command or else a run: `lemma look runs/a --text "…"`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `run` before a first word that is no command and no option."""
        if not args or args[0] in self.commands or args[0].startswith("-"):
            return super().parse_args(ctx, args)
        if not (ctx.resilient_parsing or Path(args[0]).exists() or {"--help", "-h"} & set(args)):
            raise SpecError(_neither(args[0], [name for name in self.commands if name != RUN]))
        return super().parse_args(ctx, [RUN, *args])


def _neither(word: str, commands: list[str]) -> str:
    """Say that a first word is nothing that can be looked at."""
    guess = unknown("look", word, commands).rpartition(" is unknown.")[2].removesuffix(".")
    return f"'{word}' is no command and no run folder.{guess}; or give the folder of a run."


app = typer.Typer(
    cls=RunOrCommand,
    help="See what every attention head does, or a case worked by hand.",
    epilog='As in: lemma look runs/a --text "the cat sat on the mat" --out heads.html',
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command(RUN)(heads)
for command in (attention, bpe, cross, graph, lstm, parse):
    app.command()(command)
