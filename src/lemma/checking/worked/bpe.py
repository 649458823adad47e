"""Byte-pair encoding worked by hand: every step with all its pair counts, until no pair occurs often enough.

Sennrich, Haddow and Birch, Neural Machine Translation of Rare Words with Subword Units, 2016.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import nsmallest
from itertools import pairwise
from pathlib import Path
from string import ascii_uppercase
from typing import Any, ClassVar, Literal

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from lemma.data.corpora import CORPORA, fetch_corpus
from lemma.data.store import find_text_files
from lemma.data.text import decode_span, open_text
from lemma.errors import InputError
from lemma.report.numbers import escape_invisible, format_times, pluralize, shorten
from lemma.report.result import Block, Heading, Result, Table, Text

Pair = tuple[int, int]
MAX_SMALL_CHARS = 1000
"""Of at most this many characters given directly everything is shown; of more the beginning."""
DEFAULT_MERGES, DEFAULT_PAIRS = 20, 10
"""Of a long text: how many merges are made, and how many pairs are shown at each."""
LIBRARY_END = "\U0010fffd"
"""The end of word for the library: a private character that comes after all others, and so is numbered after them."""
MOST_ORDERS, MOST_MERGES = 200, 2000
"""Of a judged text: orders of merges that are tried where claims leave ties open, and the merges of all of them."""
MOST_HINTED = 30
"""Tied pairs, and later claims, that are compared to choose the pair of a step that no line claims."""


class BytePairMerger:
    """Words as symbols, with the counts of all pairs kept up to date.

    Symbols are numbered: the characters in the order of their code points, the end of word after them, then every
    merge as it is made. Each different word is held once, with the number of times it occurs.
    """

    def __init__(self, words: Mapping[str, int], end_of_word: bool) -> None:
        self.alphabet = sorted(set().union(*words))
        self.end_id = len(self.alphabet) if end_of_word else None
        self.merges: list[Pair] = []
        self.word_counts = list(words.values())
        number = {character: place for place, character in enumerate(self.alphabet)}
        last = [] if self.end_id is None else [self.end_id]
        self.words = [[number[character] for character in word] + last for word in words]
        self.counts: defaultdict[Pair, int] = defaultdict(int)
        self._words_with_pair: defaultdict[Pair, set[int]] = defaultdict(set)
        for place in range(len(self.words)):
            self._count(place, 1)

    @property
    def first_merge_id(self) -> int:
        """The number of the first symbol that is made by a merge."""
        return len(self.alphabet) + (self.end_id is not None)

    @property
    def num_symbols(self) -> int:
        """How many symbols the whole text takes now."""
        return sum(len(word) * times for word, times in zip(self.words, self.word_counts, strict=True))

    def most_frequent(self) -> tuple[int, list[Pair]]:
        """The largest count and the pairs that have it; of these the first is merged.

        Of equally frequent pairs that one comes first whose left symbol has the lower number, then whose right symbol
        has: the rule of the tokenizers library.
        """
        most = max(self.counts.values(), default=0)
        return most, sorted(pair for pair, count in self.counts.items() if count == most)

    def merge(self, pair: Pair) -> None:
        """Make one symbol of a pair, from left to right, wherever it occurs."""
        symbol = self.first_merge_id + len(self.merges)
        self.merges.append(pair)
        for place in sorted(self._words_with_pair[pair]):
            self._count(place, -1)
            joined: list[int] = []
            for one in self.words[place]:
                if joined and (joined[-1], one) == pair:
                    joined[-1] = symbol
                else:
                    joined.append(one)
            self.words[place] = joined
            self._count(place, 1)

    def spell(self, first: Iterable[str]) -> list[str]:
        """What every symbol spells, by its number; `first` are those that are not merged."""
        spelled = list(first)
        for left, right in self.merges:
            spelled.append(spelled[left] + spelled[right])
        return spelled

    def rank_pairs(self, most: int | None) -> list[tuple[Pair, int]]:
        """The pairs with their counts in the order in which they would be merged; at most `most` of them."""
        size = len(self.counts) if most is None else most
        return nsmallest(size, self.counts.items(), key=lambda entry: (-entry[1], entry[0]))

    def _count(self, place: int, sign: Literal[1, -1]) -> None:
        """Add the pairs of a word, or take them away."""
        for pair in pairwise(self.words[place]):
            self.counts[pair] += sign * self.word_counts[place]
            if sign > 0:
                self._words_with_pair[pair].add(place)
            else:
                self._words_with_pair[pair].discard(place)
            if not self.counts[pair]:
                del self.counts[pair], self._words_with_pair[pair]


class SymbolNames:
    """The name and the spelling of every symbol by its number."""

    def __init__(self, merger: BytePairMerger, end_of_word: str, letters: bool) -> None:
        self.spellings = merger.spell(
            [*map(escape_invisible, merger.alphabet), *([end_of_word] if end_of_word else [])]
        )
        free = [letter for letter in ascii_uppercase if letter not in merger.alphabet]
        made = len(merger.merges)
        self.letters = letters and made <= len(free)
        """Whether merged symbols are called A, B, C …, letters that the text does not use."""
        named = free[:made] if self.letters else self.spellings[merger.first_merge_id :]
        self.names = [*self.spellings[: merger.first_merge_id], *named]

    def join(self, symbols: Sequence[int]) -> str:
        """The names of symbols side by side."""
        return " ".join(self.names[one] for one in symbols)

    def spell(self, symbols: Sequence[int]) -> str:
        """The spellings of symbols side by side."""
        return " ".join(self.spellings[one] for one in symbols)


def count_words(names: Sequence[str]) -> Counter[str]:
    """Count the words of corpora by name, each with all its parts, and of files, in a stream."""
    counts: Counter[str] = Counter()
    for name in names:
        corpus = CORPORA.get(name)
        for section in map(open_text, fetch_corpus(corpus)) if corpus else find_text_files([name]).splits["text"]:
            rest = ""  # a word that a piece breaks off is joined with its rest
            for piece in decode_span(section):
                *words, rest = f"{rest}{piece}|".split()  # the mark makes the last word the unfinished one, be it empty
                rest = rest[:-1]
                counts.update(words)
            counts.update([rest] if rest else [])
    return counts


@dataclass(frozen=True)
class PairCount:
    """Two neighbouring symbols and how often they occur."""

    pair: str
    count: int


@dataclass(frozen=True)
class SegmentedWord:
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
    words: tuple[SegmentedWord, ...]
    """The words after the merge; of a long text none."""


@dataclass(frozen=True)
class LibraryComparison:
    """Whether the tokenizers library makes the same merges, and if not, from which on they differ."""

    agrees: bool
    first_difference: int | None


@dataclass(frozen=True)
class BytePairTrace(Result):
    """Byte-pair encoding, learned step by step."""

    indent: ClassVar[str] = "  "

    about: str
    words: int
    different_words: int
    end_of_word: str
    minimum: int
    start: tuple[SegmentedWord, ...]
    symbols_before: int
    symbols_after: int
    steps: tuple[MergeStep, ...]
    left: tuple[PairCount, ...]
    """The pairs at the end, the most frequent first."""
    left_pairs: int
    stopped: str
    segmentation: tuple[SegmentedWord, ...]
    letters: bool
    """Whether symbols are named by letters."""
    small: bool
    """Whether everything is shown."""
    library: LibraryComparison | None = None

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
    def title(self) -> str:
        """What was encoded."""
        return f"Byte-pair encoding of {self.about}"

    def blocks(self) -> list[Block]:
        """Every step, then the symbols and the words as they end up; of a long text its merges as a table."""
        return self._shown(tables=False)

    def details(self) -> list[Block]:
        """The same with a table of counts for every step."""
        return self._shown(tables=True)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"tie_rule": self.tie_rule, "symbols": {one.symbol: one.spelled for one in self.steps}}

    def _shown(self, tables: bool) -> list[Block]:
        end = f"end of word {self.end_of_word}" if self.end_of_word else "no end-of-word symbol"
        facts = (
            f"{pluralize(self.words, 'word')}, {self.different_words:,} different; {end}; a pair is merged if it occurs "
            f"at least {format_times(self.minimum)} (overlapping occurrences count)."
        )
        blocks: list[Block] = [
            Heading(self.title, 1, underlined=True),
            Text(facts),
            Text(f"Tie rule: {self.tie_rule}."),
            *([Text(f"start: {' | '.join(map(str, self.start))}")] if self.start else []),
        ]
        if not self.small:
            rows = [
                (
                    str(step.number),
                    shorten(step.pair),
                    shorten(step.spelled),
                    f"{step.count:,}",
                    " · ".join(map(shorten, step.ties[:3])) + (" …" if len(step.ties) > 3 else ""),
                    _listed(step.counts[1:4]),
                )
                for step in self.steps
            ]
            blocks.append(Table(("", "pair", "symbol", "count", "ties with", "next"), rows, "Merges", is_text=True))
        for step in self.steps if self.small or tables else ():
            title = f"Step {step.number}: {shorten(step.symbol)} = {shorten(step.pair)}, {format_times(step.count)}"
            blocks.append(Heading(title))
            if not tables:
                blocks.append(Text("counts: " + _listed(step.counts, step.pairs)))
            if step.ties:
                others = " · ".join(map(shorten, step.ties[:10]))
                more = f" and {len(step.ties) - 10} more" if len(step.ties) > 10 else ""
                blocks.append(Text(f"tie at {step.count}: {step.pair} comes before {others}{more}"))
            if tables:
                most, left = step.counts[0].count, step.pairs - len(step.counts)
                counts = [(shorten(one.pair), f"{one.count:,}") for one in step.counts]
                bars = [one.count / most for one in step.counts]
                if left > 0:
                    counts, bars = [*counts, (f"and {left:,} more", "")], [*bars, 0.0]
                blocks.append(Table(("pair", "count"), counts, bars=bars))
            if step.words:
                blocks.append(Text("then: " + " | ".join(map(str, step.words))))
        blocks.append(Heading(f"Stop: {self.stopped}"))
        if self.left:
            blocks.append(Text(f"counts left: {_listed(self.left, self.left_pairs)}"))
        if self.small and self.steps:
            symbols = [(step.symbol, step.pair, step.spelled, f"{step.count:,}") for step in self.steps]
            blocks.append(Table(("", "pair", "spells", "count"), symbols, "Symbols", is_text=True))
        columns = 4 if self.letters else 3
        segmented = []
        for one in self.segmentation:
            symbols, spelled = shorten(" ".join(one.symbols)), shorten(" ".join(one.spelled))
            segmented.append((shorten(one.word), f"{one.times:,}", symbols, spelled)[:columns])
        several = f"the {len(segmented)} most frequent words" if len(segmented) > 1 else "the only word"
        title = "Segmentation" if self.small else f"Segmentation of {several}"
        size = f"The text takes {pluralize(self.symbols_after, 'symbol')}, at first {self.symbols_before:,}."
        blocks += [Table(("word", "times", "symbols", "spelled")[:columns], segmented, title, is_text=True), Text(size)]
        if self.library:
            same = f"makes the same {pluralize(len(self.steps), 'merge')}"
            differs = f"differs from merge {self.library.first_difference} on"
            blocks.append(Text(f"The tokenizers library {same if self.library.agrees else differs}."))
        return blocks


def _listed(counts: Sequence[PairCount], pairs: int = 0) -> str:
    more = f" · and {pairs - len(counts):,} more" if pairs > len(counts) else ""
    return " · ".join(f"{shorten(one.pair)} {one.count:,}" for one in counts) + more


def trace_byte_pairs(
    string: str | None = None,
    *,
    text: str | Path | Sequence[str | Path] | None = None,
    merges: int | None = None,
    minimum: int = 2,
    end_of_word: str = r"\w",
    show: int | None = None,
    library: bool = False,
) -> BytePairTrace:
    r"""Trace byte-pair encoding of a string, or of `text`: corpora by name, or files.

    At every step all pairs of neighbouring symbols within words are counted and the most frequent becomes a symbol, as
    long as it occurs `minimum` times; `end_of_word` is a symbol after every word, none if empty. A string is traced to
    the end with all its counts, a text for 20 merges with the 10 most frequent pairs, unless `merges` and `show` say
    otherwise. With `library` the merges are compared with those of the tokenizers library.

    >>> print([f"{step.symbol}={step.pair}" for step in trace_byte_pairs("abbc abb abc abb").steps])
    ['A=a b', 'B=A b', 'C=c \\w', 'D=B \\w']
    """
    if (string is None) == (text is None):
        raise InputError(
            'bpe: give either a string, as in: lemma look bpe "abbc abb abc abb", or --text with a corpus or file.'
        )
    if string is not None:
        if any("\ud800" <= sign <= "\udfff" for sign in string):
            raise InputError(
                "bpe: the string holds bytes that are not UTF-8. Save the text in a file, and give --text."
            )
        about = f'"{shorten(escape_invisible(" ".join(string.split())), 80)}"'
        words, small = Counter(string.split()), len(string) <= MAX_SMALL_CHARS
    else:
        names = [str(name) for name in ([text] if isinstance(text, str | Path) else text or ())]
        words, about, small = count_words(names), ", ".join(names), False
    if not words:
        raise InputError(f"bpe: {about} holds no words. Give some text.")
    for name, value, least in (("merges", merges, 0), ("min", minimum, 1), ("show", show, 1)):
        if value is not None and value < least:
            raise InputError(f"bpe: {name} = {value}: it must be at least {least}.")
    if len(end_of_word.split()) > 1 or end_of_word != end_of_word.strip():
        raise InputError(f"bpe: end of word = {end_of_word!r}: it must hold no white space.")
    if len(end_of_word) == 1 and any(end_of_word in word for word in words):
        raise InputError(
            f"bpe: end of word = '{end_of_word}': the text uses it. Give another, as in --end-of-word '</w>'."
        )
    most = merges if merges is not None or small else DEFAULT_MERGES
    shown = show if show is not None or small else DEFAULT_PAIRS
    merger = BytePairMerger(words, bool(end_of_word))
    before, first = merger.num_symbols, [list(word) for word in merger.words] if small else []

    seen: list[tuple[int, list[Pair], list[tuple[Pair, int]], int, list[list[int]]]] = []
    while most is None or len(seen) < most:
        count, ties = merger.most_frequent()
        if count < minimum:
            break
        ranked, pairs = merger.rank_pairs(shown), len(merger.counts)
        merger.merge(ties[0])
        seen.append((count, ties, ranked, pairs, [list(word) for word in merger.words] if small else []))

    names = SymbolNames(merger, end_of_word, letters=small)

    def counts_of(ranked: Iterable[tuple[Pair, int]]) -> tuple[PairCount, ...]:
        return tuple(PairCount(names.join(pair), count) for pair, count in ranked)

    def segmented(some: Mapping[str, int], symbols: Iterable[Sequence[int]]) -> tuple[SegmentedWord, ...]:
        return tuple(
            SegmentedWord(
                escape_invisible(word),
                often,
                tuple(names.names[at] for at in row),
                tuple(names.spellings[at] for at in row),
            )
            for (word, often), row in zip(some.items(), symbols, strict=False)
        )

    steps = [
        MergeStep(
            number=number,
            symbol=names.names[merger.first_merge_id + number - 1],
            pair=names.join(ties[0]),
            spelled=names.spellings[merger.first_merge_id + number - 1],
            parts=(names.spellings[ties[0][0]], names.spellings[ties[0][1]]),
            count=count,
            ties=tuple(names.join(pair) for pair in ties[1:]),
            counts=counts_of(ranked),
            pairs=pairs,
            words=segmented(words, after),
        )
        for number, (count, ties, ranked, pairs, after) in enumerate(seen, 1)
    ]
    last = dict(zip(words, merger.words, strict=True))
    chosen = words if small else dict(words.most_common(DEFAULT_PAIRS))  # equally frequent words as they first occur
    count, _ = merger.most_frequent()
    stopped = f"no pair occurs {format_times(minimum)}" if count else "every word is one symbol"
    return BytePairTrace(
        about=about,
        words=words.total(),
        different_words=len(words),
        end_of_word=end_of_word,
        minimum=minimum,
        start=segmented(words, first),
        symbols_before=before,
        symbols_after=merger.num_symbols,
        steps=tuple(steps),
        left=counts_of(merger.rank_pairs(shown)),
        left_pairs=len(merger.counts),
        stopped=stopped if count < minimum else f"after {pluralize(len(merger.merges), 'merge')}, as asked",
        segmentation=segmented(chosen, [last[word] for word in chosen]),
        letters=names.letters,
        small=small,
        library=_compare_with_library(words, merger, minimum) if library else None,
    )


def _compare_with_library(words: Mapping[str, int], merger: BytePairMerger, minimum: int) -> LibraryComparison:
    """The merges of the tokenizers library next to ours, spelled the same way."""
    end = [] if merger.end_id is None else [LIBRARY_END]
    if end and merger.alphabet[-1] >= LIBRARY_END:
        raise InputError("the text holds the last private character, which the comparison needs for the end of word.")
    spelled = merger.spell([*merger.alphabet, *end])
    ours = [[spelled[left], spelled[right]] for left, right in merger.merges]

    def lines() -> Iterator[str]:
        for word, number in words.items():
            step = max(1, 10_000 // len(word))  # a frequent word in portions, so that no line is very long
            for done in range(0, number, step):
                yield f"{word}{''.join(end)} " * min(step, number - done)

    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer: Any = trainers.BpeTrainer(vocab_size=len(spelled), min_frequency=minimum, show_progress=False)
    engine.train_from_iterator(lines(), trainer)
    theirs = json.loads(engine.to_str())["model"]["merges"]
    if ours == theirs:
        return LibraryComparison(True, None)
    same = next((place for place, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    return LibraryComparison(False, (min(len(ours), len(theirs)) if same is None else same) + 1)
