"""What a trace of byte-pair encoding holds, and how it is shown."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lemma.looking.words import counted
from lemma.looking.worked.blocks import Block, Blocks, Grid, Heading, Words
from lemma.looking.worked.merges import MergeStep, PairCount, Segmented, Trial
from lemma.looking.worked.numerals import shortened, times
from lemma.looking.worked.result import Worked


@dataclass(frozen=True)
class BytePairTrace(Worked):
    """Byte-pair encoding, learned step by step."""

    about: str
    words: int
    different_words: int
    end_of_word: str
    minimum: int
    start: tuple[Segmented, ...]
    symbols_before: int
    symbols_after: int
    steps: tuple[MergeStep, ...]
    left: tuple[PairCount, ...]
    """The pairs at the end, the most frequent first."""
    left_pairs: int
    stopped: str
    segmentation: tuple[Segmented, ...]
    letters: bool
    """Whether symbols are named by letters."""
    small: bool
    """Whether everything is shown."""
    library: Trial | None = None

    @property
    def tie_rule(self) -> str:
        """Which of equally frequent pairs is merged."""
        end = f", then {self.end_of_word}" if self.end_of_word else ""
        return (
            "of equally frequent pairs, the one whose left symbol comes first, then whose right symbol does; symbols "
            f"are ordered: characters by code point{end}, then merges as they were made "
            "(the rule of the tokenizers library)"
        )

    @property
    def heading(self) -> str:
        """What was encoded."""
        return f"Byte-pair encoding of {self.about}"

    def shown(self) -> Blocks:
        """Every step, then the symbols and the words as they end up."""
        steps = self._small_steps() if self.small else [self._steps_grid()]
        return [*self._begin(), *steps, *self._end()]

    def drawn(self) -> Blocks:
        """The same with a table of counts for every step."""
        tables: list[Block] = []
        for step in self.steps:
            tables += [
                Heading(_title(step)),
                *self._ties(step),
                _count_grid(step.counts, step.pairs),
                *([Words("then: " + _joined(step.words))] if step.words else []),
            ]
        return [*self._begin(), *([] if self.small else [self._steps_grid()]), *tables, *self._end()]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"tie_rule": self.tie_rule, "symbols": {one.symbol: one.spelled for one in self.steps}}

    def _begin(self) -> list[Block]:
        end = f"end of word {self.end_of_word}" if self.end_of_word else "no end-of-word symbol"
        facts = (
            f"{counted(self.words, 'word')}, {self.different_words:,} different; {end}; a pair is merged if it occurs "
            f"at least {times(self.minimum)} (overlapping occurrences count)."
        )
        start = [Words(f"start: {_joined(self.start)}")] if self.start else []
        return [Heading(self.heading, 1), Words(facts), Words(f"Tie rule: {self.tie_rule}."), *start]

    def _small_steps(self) -> list[Block]:
        blocks: list[Block] = []
        for step in self.steps:
            blocks += [
                Heading(_title(step)),
                Words("counts: " + _listed(step.counts, step.pairs)),
                *self._ties(step),
                Words("then: " + _joined(step.words)),
            ]
        return blocks

    def _ties(self, step: MergeStep) -> list[Block]:
        if not step.ties:
            return []
        others = " · ".join(map(shortened, step.ties[:10])) + (
            f" and {len(step.ties) - 10} more" if len(step.ties) > 10 else ""
        )
        return [Words(f"tie at {step.count}: {step.pair} comes before {others}")]

    def _steps_grid(self) -> Grid:
        rows = tuple(
            (
                str(step.number),
                shortened(step.pair),
                shortened(step.spelled),
                f"{step.count:,}",
                " · ".join(map(shortened, step.ties[:3])) + (" …" if len(step.ties) > 3 else ""),
                _listed(step.counts[1:4], 0),
            )
            for step in self.steps
        )
        return Grid("Merges", ("", "pair", "symbol", "count", "ties with", "next"), rows, plain=True)

    def _end(self) -> list[Block]:
        left = f": {_listed(self.left, self.left_pairs)}" if self.left else ""
        size = f"The text takes {counted(self.symbols_after, 'symbol')}, at first {self.symbols_before:,}."
        return [
            Heading(f"Stop: {self.stopped}"),
            *([Words(f"counts left{left}")] if left else []),
            *([self._symbols()] if self.small and self.steps else []),
            self._words(),
            Words(size),
            *self._verdict(),
        ]

    def _symbols(self) -> Grid:
        rows = tuple((step.symbol, step.pair, step.spelled, f"{step.count:,}") for step in self.steps)
        return Grid("Symbols", ("", "pair", "spells", "count"), rows, plain=True)

    def _words(self) -> Grid:
        several = f"the {len(self.segmentation)} most frequent words" if len(self.segmentation) > 1 else "the only word"
        title = "Segmentation" if self.small else f"Segmentation of {several}"
        rows = tuple(
            (shortened(one.word), f"{one.times:,}", shortened(" ".join(one.symbols)), shortened(" ".join(one.spelled)))
            for one in self.segmentation
        )
        if self.letters:
            return Grid(title, ("word", "times", "symbols", "spelled"), rows, plain=True)
        return Grid(title, ("word", "times", "symbols"), tuple(row[:3] for row in rows), plain=True)

    def _verdict(self) -> list[Block]:
        if self.library is None:
            return []
        if self.library.agrees:
            return [Words(f"The tokenizers library makes the same {counted(len(self.steps), 'merge')}.")]
        return [Words(f"The tokenizers library differs from merge {self.library.first_difference} on.")]


def _title(step: MergeStep) -> str:
    return f"Step {step.number}: {shortened(step.symbol)} = {shortened(step.pair)}, {times(step.count)}"


def _joined(words: Sequence[Segmented]) -> str:
    return " | ".join(map(str, words))


def _listed(counts: Sequence[PairCount], pairs: int) -> str:
    more = f" · and {pairs - len(counts):,} more" if pairs > len(counts) else ""
    return " · ".join(f"{shortened(one.pair)} {one.count:,}" for one in counts) + more


def _count_grid(counts: Sequence[PairCount], pairs: int) -> Grid:
    most = counts[0].count
    more = ((f"and {pairs - len(counts):,} more", ""),) if pairs > len(counts) else ()
    rows = (*((shortened(one.pair), f"{one.count:,}") for one in counts), *more)
    bars = (*(one.count / most for one in counts), *(0.0 for _ in more))
    return Grid("", ("pair", "count"), rows, bars=bars)
