"""The pieces of a trace of byte-pair encoding: counts, words in symbols, merges."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PairCount:
    """Two neighbouring symbols and how often they occur."""

    pair: str
    count: int

    def __str__(self) -> str:
        return f"{self.pair} {self.count}"


@dataclass(frozen=True)
class Segmented:
    """A word, how often it occurs, and its symbols by name and as they are spelled."""

    word: str
    times: int
    symbols: tuple[str, ...]
    spelled: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.symbols) + (f" ×{self.times}" if self.times > 1 else "")


@dataclass(frozen=True)
class MergeStep:
    """One merge: the counts before it, the pair that was chosen and the words after it."""

    number: int
    symbol: str
    pair: str
    spelled: str
    parts: tuple[str, str]
    count: int
    ties: tuple[str, ...]
    """The other pairs that occur as often."""
    counts: tuple[PairCount, ...]
    """The pairs before the merge, the most frequent first; of a long text the first few."""
    pairs: int
    """How many different pairs there are."""
    words: tuple[Segmented, ...]
    """The words after the merge; of a long text none."""


@dataclass(frozen=True)
class Trial:
    """Whether the tokenizers library makes the same merges, and if not, from which on they differ."""

    agrees: bool
    first_difference: int | None
