"""`lemma look`: what every attention head does, and small cases worked step by step."""

from typing import Any

import typer
from typer.core import TyperGroup

from lemma.cli.look.heads import heads
from lemma.cli.look.parse import parse
from lemma.cli.look.worked import attention, bpe, cross

RUN = "run"  # the command that a first word which names no other stands for


class RunOrCommand(TyperGroup):
    """A group whose first word is a sub-command or else a run: `lemma look runs/a --text "…"`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `run` before a first word that is no command and no option."""
        given = [RUN, *args] if args and args[0] not in self.commands and not args[0].startswith("-") else args
        return super().parse_args(ctx, given)


app = typer.Typer(
    cls=RunOrCommand,
    help="See what every attention head does, or a small case worked step by step.",
    epilog='As in: lemma look runs/a --text "the cat sat on the mat" --out heads.html',
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command(RUN)(heads)
for command in (attention, bpe, cross, parse):
    app.command()(command)
