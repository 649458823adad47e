"""The pieces of a trace of byte-pair encoding: counts, words in symbols, merges."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import nsmallest
from itertools import pairwise
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from lemma.data.corpora import CORPORA, corpus_files
from lemma.data.store import text_source
from lemma.data.text import TextSpan, decode, open_text
from lemma.errors import InputError
from lemma.report.blocks import Block, Blocks, Grid, Heading, Words, Worked
from lemma.report.numbers import counted, printable, shortened, times


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


# Byte-pair encoding as it is learned: count all pairs of neighbours, merge the most frequent, again and again.
#
# Sennrich, Haddow and Birch, Neural Machine Translation of Rare Words with Subword Units, 2016.


Pair = tuple[int, int]


class Merging:
    """Words as symbols, with the counts of all pairs kept up to date.

    Symbols are numbered: the characters in the order of their code points, the end of word after them, then every
    merge as it is made. Each different word is held once, with the number of times it occurs.
    """

    def __init__(self, words: Mapping[str, int], end_of_word: bool) -> None:
        self.alphabet = sorted(set().union(*words))
        self.end = len(self.alphabet) if end_of_word else None
        self.merged: list[Pair] = []
        self.times = list(words.values())
        number = {character: place for place, character in enumerate(self.alphabet)}
        last = [] if self.end is None else [self.end]
        self.words = [[number[character] for character in word] + last for word in words]
        self.counts: defaultdict[Pair, int] = defaultdict(int)
        self._places: defaultdict[Pair, set[int]] = defaultdict(set)
        for place in range(len(self.words)):
            self._enter(place)

    @property
    def first_merged(self) -> int:
        """The number of the first symbol that is made by a merge."""
        return len(self.alphabet) + (self.end is not None)

    @property
    def symbols(self) -> int:
        """How many symbols the whole text takes now."""
        return sum(len(word) * times for word, times in zip(self.words, self.times, strict=True))

    def most_frequent(self) -> tuple[int, list[Pair]]:
        """The largest count and the pairs that have it; of these the first is merged.

        Of equally frequent pairs that one comes first whose left symbol has the lower number, then whose right symbol
        has: the rule of the tokenizers library.
        """
        most = max(self.counts.values(), default=0)
        return most, sorted(pair for pair, count in self.counts.items() if count == most)

    def merge(self, pair: Pair) -> None:
        """Make one symbol of a pair, from left to right, wherever it stands."""
        symbol = self.first_merged + len(self.merged)
        self.merged.append(pair)
        for place in sorted(self._places[pair]):
            self._leave(place)
            self.words[place] = join_pairs(self.words[place], pair, symbol)
            self._enter(place)

    def ranked(self, most: int | None) -> list[tuple[Pair, int]]:
        """The pairs with their counts in the order in which they would be merged; at most so many."""
        size = len(self.counts) if most is None else most
        return nsmallest(size, self.counts.items(), key=lambda entry: (-entry[1], entry[0]))

    def _enter(self, place: int) -> None:
        times = self.times[place]
        for pair in pairwise(self.words[place]):
            self.counts[pair] += times
            self._places[pair].add(place)

    def _leave(self, place: int) -> None:
        times = self.times[place]
        for pair in pairwise(self.words[place]):
            self.counts[pair] -= times
            self._places[pair].discard(place)
            if not self.counts[pair]:
                del self.counts[pair], self._places[pair]


def join_pairs(word: list[int], pair: Pair, symbol: int) -> list[int]:
    """Put a symbol in the place of every pair, from left to right.

    >>> join_pairs([0, 0, 0, 1], (0, 0), 9)
    [9, 0, 1]
    """
    left, right = pair
    joined: list[int] = []
    place, last = 0, len(word) - 1
    while place <= last:
        if word[place] == left and place < last and word[place + 1] == right:
            joined.append(symbol)
            place += 2
        else:
            joined.append(word[place])
            place += 1
    return joined


# Names for the symbols of byte-pair encoding: letters where there are enough, else what they spell.


class Names:
    """The name and the spelling of every symbol by its number."""

    def __init__(self, merging: Merging, end_of_word: str, letters: bool) -> None:
        ends = [end_of_word] if end_of_word else []
        self.spelled = [*map(printable, merging.alphabet), *ends]
        for left, right in merging.merged:
            self.spelled.append(self.spelled[left] + self.spelled[right])
        free = [letter for letter in ascii_uppercase if letter not in merging.alphabet]
        made = len(merging.merged)
        self.letters = letters and made <= len(free)
        """Whether merged symbols are called A, B, C …, letters that the text does not use."""
        named = free[:made] if self.letters else self.spelled[merging.first_merged :]
        self.names = [*self.spelled[: merging.first_merged], *named]

    def pair(self, pair: Pair) -> str:
        """Two names side by side."""
        return f"{self.names[pair[0]]} {self.names[pair[1]]}"


# The words of a text and how often each occurs; a corpus is counted in a stream.


def count_words(names: Sequence[str]) -> Counter[str]:
    """Count the words of corpora by name, each with all its parts, and of files."""
    counts: Counter[str] = Counter()
    for name in names:
        for section in _sections(name):
            for words in split_stream(decode(section)):
                counts.update(words)
    return counts


def split_stream(pieces: Iterable[str]) -> Iterator[list[str]]:
    """Words between white space; one that a piece breaks off is joined with its rest.

    >>> list(split_stream(["to be o", "r n", "ot "]))
    [['to', 'be'], ['or'], ['not']]
    """
    rest = ""
    for piece in pieces:
        *words, rest = f"{rest}{piece}|".split()  # the mark makes the last word the unfinished one, be it empty
        rest = rest[:-1]
        yield words
    if rest:
        yield [rest]


def _sections(name: str) -> Iterator[TextSpan]:
    if name in CORPORA:
        yield from map(open_text, corpus_files(CORPORA[name]))
    else:
        yield from text_source([name]).splits["text"]


# The same merges learned by the `tokenizers` library, to compare with.


END = "\U0010fffd"
"""Stands for the end of word: a private character that comes after all others, and so is numbered after them."""


def library_merges(words: Mapping[str, int], merges: int, minimum: int, end_of_word: bool) -> list[tuple[str, str]]:
    """The library's first merges, each as the texts of its two parts, with END for the end of word."""
    alphabet = set().union(*words)
    if end_of_word and max(alphabet) >= END:
        raise InputError("the text holds the last private character, which the comparison needs for the end of word.")
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    size = len(alphabet) + end_of_word + merges
    trainer: Any = trainers.BpeTrainer(vocab_size=size, min_frequency=minimum, show_progress=False)
    engine.train_from_iterator(_lines(words, END if end_of_word else ""), trainer)
    return [(left, right) for left, right in json.loads(engine.to_str())["model"]["merges"]]


def _lines(words: Mapping[str, int], end: str) -> Iterator[str]:
    for word, number in words.items():
        step = max(1, 10_000 // len(word))  # a frequent word in portions, so that no line is very long
        for done in range(0, number, step):
            yield f"{word}{end} " * min(step, number - done)


# What a trace of byte-pair encoding holds, and how it is shown.


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


# Byte-pair encoding traced: every step with all its pair counts, ties named, until no pair occurs often enough.


SMALL = 1000
"""Up to so many characters given directly, everything is shown; of more the beginning."""
FIRST, SHOWN = 20, 10

Seen = tuple[int, list[Pair], list[tuple[Pair, int]], int, list[list[int]]]
"""Of a step: the largest count, the pairs that have it, the counts shown, how many pairs there are, the words after."""


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
    words, about, small = _words(string, text)
    _check(words, about, merges, minimum, end_of_word, show)
    most = merges if merges is not None or small else FIRST
    shown = show if show is not None or small else SHOWN
    merging = Merging(words, bool(end_of_word))
    start, begun = merging.symbols, [list(word) for word in merging.words[: None if small else 0]]
    seen = _run(merging, most, minimum, shown, keep=small)
    names = Names(merging, end_of_word, letters=small)
    return BytePairTrace(
        about=about,
        words=words.total(),
        different_words=len(words),
        end_of_word=end_of_word,
        minimum=minimum,
        start=_segmented(words, begun, names),
        symbols_before=start,
        symbols_after=merging.symbols,
        steps=tuple(_step(number, merging, names, step, words) for number, step in enumerate(seen)),
        left=_counts(merging.ranked(shown), names),
        left_pairs=len(merging.counts),
        stopped=_reason(merging, minimum),
        segmentation=_final(words, merging, names, None if small else SHOWN),
        letters=names.letters,
        small=small,
        library=_trial(words, merging, minimum) if library else None,
    )


def _words(string: str | None, text: str | Path | Sequence[str | Path] | None) -> tuple[Counter[str], str, bool]:
    """The words, what they are, and whether they are few enough to show everything."""
    if (string is None) == (text is None):
        raise InputError(
            'bpe: give either a string, as in: lemma look bpe "abbc abb abc abb", or --text with a corpus or file.'
        )
    if string is not None:
        if any("\ud800" <= sign <= "\udfff" for sign in string):
            raise InputError(
                "bpe: the string holds bytes that are not UTF-8. Save the text in a file, and give --text."
            )
        about = shortened(printable(" ".join(string.split())), 80)
        return Counter(string.split()), f'"{about}"', len(string) <= SMALL
    names = [str(name) for name in ([text] if isinstance(text, str | Path) else text or ())]
    return count_words(names), ", ".join(names), False


def _check(
    words: Counter[str], about: str, merges: int | None, minimum: int, end_of_word: str, show: int | None
) -> None:
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


def _run(merging: Merging, most: int | None, minimum: int, shown: int | None, keep: bool) -> list[Seen]:
    """Merge to the end, and remember what was seen before each merge."""
    seen: list[Seen] = []
    while most is None or len(seen) < most:
        count, ties = merging.most_frequent()
        if count < minimum:
            break
        ranked, pairs = merging.ranked(shown), len(merging.counts)
        merging.merge(ties[0])
        seen.append((count, ties, ranked, pairs, [list(word) for word in merging.words] if keep else []))
    return seen


def _step(number: int, merging: Merging, names: Names, seen: Seen, words: Mapping[str, int]) -> MergeStep:
    count, ties, ranked, pairs, after = seen
    symbol = merging.first_merged + number
    left, right = merging.merged[number]
    return MergeStep(
        number=number + 1,
        symbol=names.names[symbol],
        pair=names.pair(ties[0]),
        spelled=names.spelled[symbol],
        parts=(names.spelled[left], names.spelled[right]),
        count=count,
        ties=tuple(names.pair(pair) for pair in ties[1:]),
        counts=_counts(ranked, names),
        pairs=pairs,
        words=_segmented(words, after, names),
    )


def _counts(ranked: list[tuple[Pair, int]], names: Names) -> tuple[PairCount, ...]:
    return tuple(PairCount(names.pair(pair), count) for pair, count in ranked)


def _segmented(words: Mapping[str, int], symbols: Sequence[Sequence[int]], names: Names) -> tuple[Segmented, ...]:
    return tuple(
        Segmented(
            printable(word), often, tuple(names.names[one] for one in row), tuple(names.spelled[one] for one in row)
        )
        for (word, often), row in zip(words.items(), symbols, strict=False)
    )


def _final(words: Counter[str], merging: Merging, names: Names, most: int | None) -> tuple[Segmented, ...]:
    """The words as they end up; of a long text the most frequent, equally frequent ones as they first occur."""
    rows = dict(zip(words, merging.words, strict=True))
    chosen = dict(words.most_common(most)) if most else words
    return _segmented(chosen, [rows[word] for word in chosen], names)


def _reason(merging: Merging, minimum: int) -> str:
    count, _ = merging.most_frequent()
    if not count:
        return "every word is one symbol"
    return (
        f"no pair occurs {times(minimum)}"
        if count < minimum
        else f"after {counted(len(merging.merged), 'merge')}, as asked"
    )


def _trial(words: Mapping[str, int], merging: Merging, minimum: int) -> Trial:
    """The library's merges beside ours, spelled the same way."""
    ours = _spelled(merging)
    theirs = library_merges(words, len(ours), minimum, merging.end is not None)
    same = next((place for place, both in enumerate(zip(ours, theirs, strict=False)) if both[0] != both[1]), None)
    agrees = same is None and len(ours) == len(theirs)
    return Trial(agrees, None if agrees else (same if same is not None else min(len(ours), len(theirs))) + 1)


def _spelled(merging: Merging) -> list[tuple[str, str]]:
    spelled = [*merging.alphabet, *([] if merging.end is None else [END])]
    pairs: list[tuple[str, str]] = []
    for left, right in merging.merged:
        pairs.append((spelled[left], spelled[right]))
        spelled.append(spelled[left] + spelled[right])
    return pairs
