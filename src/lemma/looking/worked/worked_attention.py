"""What attention worked by hand holds, and how it is shown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lemma.looking.worked.blocks import Block, Blocks, Heading, Words
from lemma.looking.worked.cases import AttentionCase
from lemma.looking.worked.numerals import printable
from lemma.looking.worked.result import Worked
from lemma.looking.worked.steps import Steps
from lemma.looking.worked.views import describe_maps, matrices, outputs, ranking, row_arithmetic, weights

SHORT = 6
"""Of a sentence of so many words everything is printed, unless some of its words are in focus."""
HINT = "--full prints q, k, v and scores; --word WORD the arithmetic of one row"


@dataclass(frozen=True, eq=False)
class WorkedSentence:
    """One sentence: its words, the places in focus, and every pass over it."""

    text: str
    words: tuple[str, ...]
    focus: tuple[int, ...]
    passes: tuple[Steps, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; α·v for the words in focus."""
        passes = [
            one.to_dict() | {"contributions": {one.rows[row]: one.contributions(row).tolist() for row in self.focus}}
            for one in self.passes
        ]
        return {"text": self.text, "words": list(self.words), "focus": list(self.focus), "passes": passes}


@dataclass(frozen=True, eq=False)
class WorkedAttention(Worked):
    """Attention with every step. Long sentences are printed short unless `full`; files and notebooks show it all."""

    case: AttentionCase
    source: str
    """The case as it was written."""
    sentences: tuple[WorkedSentence, ...]
    notes: tuple[str, ...] = ()
    full: bool = False
    decimals: int = 3

    @property
    def heading(self) -> str:
        """The title of the case."""
        return printable(self.case.title) or "Attention by hand"

    def shown(self) -> Blocks:
        """The arithmetic of the words in focus; without them everything, of a long sentence only if `full`."""
        cut = not self.case.focus and not all(map(self._whole, self.sentences))
        return [*self._blocks(every_matrix=False), *([Heading(HINT)] if cut else [])]

    def drawn(self) -> Blocks:
        """Every matrix, and the arithmetic of the words in focus."""
        return self._blocks(every_matrix=True)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        sentences = [sentence.to_dict() for sentence in self.sentences]
        return {"case": self.case.to_dict(), "notes": list(self.notes), "sentences": sentences}

    def writers(self) -> dict[str, Callable[[], str]]:
        """The usual files, and the case itself to start another from."""
        return super().writers() | {".toml": lambda: self.source}

    def _whole(self, sentence: WorkedSentence) -> bool:
        """Whether every matrix and every row of it is printed."""
        return self.full or (not self.case.focus and len(sentence.words) <= SHORT)

    def _blocks(self, every_matrix: bool) -> list[Block]:
        causal = self.case.mask == "causal"
        blocks: list[Block] = [Heading(self.heading, 1), describe_maps(self.sentences[0].passes[0], causal)]
        blocks += [Words(note) for note in self.notes]
        for sentence in self.sentences:
            whole = self.full if every_matrix else self._whole(sentence)
            rows = tuple(range(len(sentence.words))) if whole else sentence.focus
            for number, steps in enumerate(sentence.passes, 1):
                blocks.append(Heading(f"{sentence.text}: pass {number} of {len(sentence.passes)}"))
                blocks += [*self._tables(steps, every_matrix or whole, bool(rows)), *self._arithmetic(steps, rows)]
        return blocks

    def _tables(self, steps: Steps, every_matrix: bool, focused: bool) -> list[Block]:
        """Every matrix; else the weights and outputs, unless the arithmetic of some rows says enough."""
        if every_matrix:
            return matrices(steps, self.decimals)
        return [] if focused else [weights(steps, self.decimals), outputs(steps, self.decimals)]

    def _arithmetic(self, steps: Steps, rows: Sequence[int]) -> list[Block]:
        return [
            block
            for row in rows
            for block in (*row_arithmetic(steps, row, self.decimals), ranking(steps, row, self.decimals))
        ]
