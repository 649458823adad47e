"""Byte-pair encoding worked by hand: every step with all its pair counts, until no pair occurs often enough.

Sennrich, Haddow and Birch, Neural Machine Translation of Rare Words with Subword Units, 2016.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import islice, pairwise, zip_longest
from pathlib import Path
from string import ascii_uppercase
from typing import Any, ClassVar, Literal

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from lemma.checking.expected_values import ExpectedValue, Labels, expect_numbers, number_labels
from lemma.data.corpora import CORPORA, fetch_corpus
from lemma.data.store import find_text_files
from lemma.data.text import decode_span, open_text
from lemma.errors import InputError
from lemma.report.numbers import escape_invisible, format_times, pluralize, shorten
from lemma.report.result import Block, Heading, Result, Table, Text

Pair = tuple[int, int]
MAX_ORDERS = 200  # orders of merges that are tried where the claims leave ties open
MAX_MERGES = 2000  # merges of all orders together
MAX_HINTED = 30  # tied pairs, and later claims, that are compared to choose the pair of a step without a claim
MAX_SMALL_CHARS = 1000  # a string this short is traced in full; of a longer text only the beginning is
DEFAULT_MERGES, DEFAULT_PAIRS = 20, 10  # of a long text: merges, and pairs listed at each of them
LIBRARY_END = "\U0010fffd"  # the end of word for the library: a private character numbered after all others


@dataclass(frozen=True)
class PairCount:
    """Two neighbouring symbols and how often they occur."""

    pair: str
    count: int


@dataclass(frozen=True)
class SegmentedWord:
    """A word, how often it occurs, and its symbols by name and by spelling."""

    word: str
    times: int
    symbols: tuple[str, ...]
    spelled: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.symbols) + (f" ×{self.times}" if self.times > 1 else "")


class BytePairMerger:
    """Byte-pair merging of words, each a sequence of numbered symbols, with up-to-date counts of all pairs.

    Symbols are numbered: the characters in the order of their code points, the end of word after them, then every
    merge as it is made. Each different word is held once, with the number of times it occurs.

    Attributes:
        spellings: the spelling of every symbol, by its number.
        names: the name of every symbol: of a merged one A, B, C … if `letters`, while the text leaves letters free.
    """

    def __init__(self, words: Mapping[str, int], end_of_word: str, letters: bool = True) -> None:
        self.alphabet = sorted(set().union(*words))
        self.spellings = [*map(escape_invisible, self.alphabet), *([end_of_word] if end_of_word else [])]
        self.names = list(self.spellings)
        self.free_letters = [letter for letter in ascii_uppercase if letters and letter not in self.alphabet]
        self.merges: list[Pair] = []
        self.word_counts = words
        ids = {character: index for index, character in enumerate(self.alphabet)}
        end = [len(ids)] if end_of_word else []
        self.words = {word: [ids[character] for character in word] + end for word in words}
        self.counts: defaultdict[Pair, int] = defaultdict(int)
        self._words_with_pair: defaultdict[Pair, set[str]] = defaultdict(set)
        for word in words:
            self._update_counts(word, 1)

    @property
    def num_symbols(self) -> int:
        """The number of symbols of the whole text, repeated words included."""
        return sum(len(row) * self.word_counts[word] for word, row in self.words.items())

    def most_frequent(self) -> tuple[int, list[Pair]]:
        """Return the largest count of a pair, and all pairs that occur so often; the first is the next to be merged.

        They are sorted by the number of the left symbol, then of the right one, as in the tokenizers library.
        """
        largest = max(self.counts.values(), default=0)
        return largest, sorted(pair for pair, count in self.counts.items() if count == largest)

    def merge(self, pair: Pair) -> None:
        """Replace a pair of symbols by a new symbol in all words, from left to right, and update the counts."""
        merged = len(self.spellings)
        self.spellings.append(self.spellings[pair[0]] + self.spellings[pair[1]])
        has_letter = len(self.merges) < len(self.free_letters)
        self.names.append(self.free_letters[len(self.merges)] if has_letter else self.spellings[merged])
        self.merges.append(pair)
        for word in list(self._words_with_pair[pair]):
            self._update_counts(word, -1)
            row: list[int] = []
            for symbol in self.words[word]:
                if row and (row[-1], symbol) == pair:
                    row[-1] = merged
                else:
                    row.append(symbol)
            self.words[word] = row
            self._update_counts(word, 1)

    def rank_pairs(self, limit: int | None) -> list[tuple[Pair, int]]:
        """Return the `limit` most frequent pairs with their counts, the next to be merged first; None for all."""
        size = len(self.counts) if limit is None else limit
        return nsmallest(size, self.counts.items(), key=lambda entry: (-entry[1], entry[0]))

    def list_counts(self, limit: int | None) -> tuple[PairCount, ...]:
        """Return the `limit` most frequent pairs with their counts, symbols written by name; None for all."""
        return tuple(PairCount(self.join_names(pair), count) for pair, count in self.rank_pairs(limit))

    def segment(self, words: Iterable[str]) -> tuple[SegmentedWord, ...]:
        """Return each of these words of the text with its count and its present symbols."""
        return tuple(
            SegmentedWord(
                escape_invisible(word),
                self.word_counts[word],
                tuple(self.names[symbol] for symbol in self.words[word]),
                tuple(self.spellings[symbol] for symbol in self.words[word]),
            )
            for word in words
        )

    def join_names(self, symbols: Sequence[int]) -> str:
        """Return the names of numbered symbols separated by blanks, such as "A b"."""
        return " ".join(self.names[symbol] for symbol in symbols)

    def join_spellings(self, symbols: Sequence[int]) -> str:
        """Return the spellings of numbered symbols separated by blanks, such as "ab b"."""
        return " ".join(self.spellings[symbol] for symbol in symbols)

    def list_notations(self, pair: Pair) -> Labels:
        """Return four texts for a pair, such as "A b" by name, "ab b" by spelling, and both closed up: "Ab", "abb"."""
        closed = ("".join(names[symbol] for symbol in pair) for names in (self.names, self.spellings))
        return (self.join_names(pair), self.join_spellings(pair), *closed)

    def _update_counts(self, word: str, sign: Literal[1, -1]) -> None:
        """Add the pairs of a word to the counts, or subtract them with sign −1."""
        for pair in pairwise(self.words[word]):
            self.counts[pair] += sign * self.word_counts[word]
            if sign > 0:
                self._words_with_pair[pair].add(word)
            else:
                self._words_with_pair[pair].discard(word)
            if not self.counts[pair]:
                del self.counts[pair], self._words_with_pair[pair]


def count_words(names: Sequence[str]) -> Counter[str]:
    """Return the count of each word in corpora and files, given by name; a name that is no corpus is a path."""
    counts: Counter[str] = Counter()
    for name in names:
        corpus = CORPORA.get(name)
        sections = map(open_text, fetch_corpus(corpus)) if corpus else find_text_files([name]).splits["text"]
        for section in sections:
            unfinished = ""  # the word at the end of a chunk, continued in the next
            for chunk in decode_span(section):
                # the mark makes the last word the unfinished one, be it empty
                *words, unfinished = f"{unfinished}{chunk}|".split()
                unfinished = unfinished[:-1]
                counts.update(words)
            counts.update([unfinished] if unfinished else [])
    return counts


@dataclass(frozen=True)
class MergeStep:
    """A merge: the counts before it, the pair that was chosen and the words after it."""

    number: int
    symbol: str
    pair: str
    spelled: str
    parts: tuple[str, str]
    count: int
    ties: tuple[str, ...]  # the other pairs that occur as often
    counts: tuple[PairCount, ...]  # the pairs before the merge, the most frequent first; the first few of a long text
    pairs: int  # number of different pairs
    words: tuple[SegmentedWord, ...]  # the words after the merge; none of a long text


@dataclass(frozen=True)
class LibraryComparison:
    """A comparison with the tokenizers library; `first_difference` is the number of the first merge that differs."""

    agrees: bool
    first_difference: int | None


@dataclass(frozen=True)
class BytePairTrace(Result):
    """A report on byte-pair encoding learned step by step: every merge, the counts before it and the final symbols.

    Attributes:
        about: the text, or the names of the files.
        start: the words before the first merge.
        left: the pairs at the end, the most frequent first.
        stopped: why no more pairs were merged.
        letters: whether merged symbols are named by letters.
        small: whether everything is listed.
    """

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
    left_pairs: int
    stopped: str
    segmentation: tuple[SegmentedWord, ...]
    letters: bool
    small: bool
    library: LibraryComparison | None = None

    @property
    def tie_rule(self) -> str:
        """The rule for merging equally frequent pairs, as a clause."""
        end = f", then {self.end_of_word}" if self.end_of_word else ""
        return (
            "of equally frequent pairs, the one whose left symbol comes first, then whose right symbol does; symbols "
            f"are ordered: characters by code point{end}, then merges as they were made "
            "(the rule of the tokenizers library)"
        )

    @property
    def title(self) -> str:
        """The title, such as "Byte-pair encoding of wikitext-2"."""
        return f"Byte-pair encoding of {self.about}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, the tie rule and the spelling of each merged symbol as plain values for JSON."""
        symbols = {step.symbol: step.spelled for step in self.steps}
        return super().to_dict() | {"tie_rule": self.tie_rule, "symbols": symbols}

    def details(self) -> list[Block]:
        """Return the report blocks with a table of pair counts for every step."""
        return self.blocks(with_tables=True)

    def blocks(self, with_tables: bool = False) -> list[Block]:
        """Return report blocks of every step, of the symbols and of the final words; of a long text a table of merges.

        `with_tables` lists the pair counts of each step in a table, otherwise in a line.
        """
        end = f"end of word {self.end_of_word}" if self.end_of_word else "no end-of-word symbol"
        facts = (
            f"{pluralize(self.words, 'word')}, {self.different_words:,} different; {end}; a pair is merged if it "
            f"occurs at least {format_times(self.minimum)} (overlapping occurrences count)."
        )
        blocks: list[Block] = [
            Heading(self.title, 1, underlined=True),
            Text(facts),
            Text(f"Tie rule: {self.tie_rule}."),
            *([Text(f"start: {' | '.join(map(str, self.start))}")] if self.start else []),
        ]
        if not self.small:
            blocks.append(self._merge_table())
        for step in self.steps if self.small or with_tables else ():
            blocks += _step_blocks(step, with_tables)
        blocks.append(Heading(f"Stop: {self.stopped}"))
        if self.left:
            blocks.append(Text(f"counts left: {_format_counts(self.left, self.left_pairs)}"))
        if self.small and self.steps:
            symbols = [(step.symbol, step.pair, step.spelled, f"{step.count:,}") for step in self.steps]
            blocks.append(Table(("", "pair", "spells", "count"), symbols, "Symbols", is_text=True))
        size = f"The text takes {pluralize(self.symbols_after, 'symbol')}, at first {self.symbols_before:,}."
        blocks += [self._segmentation_table(), Text(size)]
        if self.library:
            same = f"makes the same {pluralize(len(self.steps), 'merge')}"
            differs = f"differs from merge {self.library.first_difference} on"
            blocks.append(Text(f"The tokenizers library {same if self.library.agrees else differs}."))
        return blocks

    def _merge_table(self) -> Table:
        """Return a table with a row for each merge: pair, symbol, count, ties and the next most frequent pairs."""
        rows = [
            (
                str(step.number),
                shorten(step.pair),
                shorten(step.spelled),
                f"{step.count:,}",
                " · ".join(map(shorten, step.ties[:3])) + (" …" if len(step.ties) > 3 else ""),
                _format_counts(step.counts[1:4]),
            )
            for step in self.steps
        ]
        return Table(("", "pair", "symbol", "count", "ties with", "next"), rows, "Merges", is_text=True)

    def _segmentation_table(self) -> Table:
        """Return the table of words with their symbols after the last merge."""
        columns = 4 if self.letters else 3  # without letters, symbols are spelled already
        rows = []
        for word in self.segmentation:
            symbols, spelling = shorten(" ".join(word.symbols)), shorten(" ".join(word.spelled))
            rows.append((shorten(word.word), f"{word.times:,}", symbols, spelling)[:columns])
        which = f"the {len(rows)} most frequent words" if len(rows) > 1 else "the only word"
        title = "Segmentation" if self.small else f"Segmentation of {which}"
        return Table(("word", "times", "symbols", "spelled")[:columns], rows, title, is_text=True)


def _step_blocks(step: MergeStep, with_table: bool) -> list[Block]:
    """Return the report blocks of a merge step; its pair counts are in a table if `with_table`, otherwise in a line."""
    title = f"Step {step.number}: {shorten(step.symbol)} = {shorten(step.pair)}, {format_times(step.count)}"
    blocks: list[Block] = [Heading(title)]
    if not with_table:
        blocks.append(Text("counts: " + _format_counts(step.counts, step.pairs)))
    if step.ties:
        ties = " · ".join(map(shorten, step.ties[:10]))
        more = f" and {len(step.ties) - 10} more" if len(step.ties) > 10 else ""
        blocks.append(Text(f"tie at {step.count}: {step.pair} comes before {ties}{more}"))
    if with_table:
        largest, more = step.counts[0].count, step.pairs - len(step.counts)
        rows = [(shorten(entry.pair), f"{entry.count:,}") for entry in step.counts]
        bars = [entry.count / largest for entry in step.counts]
        if more > 0:
            rows, bars = [*rows, (f"and {more:,} more", "")], [*bars, 0.0]
        blocks.append(Table(("pair", "count"), rows, bars=bars))
    if step.words:
        blocks.append(Text("then: " + " | ".join(map(str, step.words))))
    return blocks


def _format_counts(counts: Sequence[PairCount], total: int = 0) -> str:
    """Write counts in a line, as in "a b 4 · b b 3 · and 2 more"; `total` is the number of pairs, listed or not."""
    more = f" · and {total - len(counts):,} more" if total > len(counts) else ""
    return " · ".join(f"{shorten(entry.pair)} {entry.count:,}" for entry in counts) + more


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
    r"""Trace the merges of byte-pair encoding on a string or on a text, with the pair counts of every step.

    At every step all pairs of neighbouring symbols within words are counted and the most frequent becomes a symbol, as
    long as it occurs `minimum` times.

    Args:
        string: traced to the end with all its counts; either this or `text`.
        text: names of corpora, or files; traced for 20 merges with the 10 most frequent pairs by default.
        merges: the largest number of merges.
        end_of_word: a symbol after every word; empty for none.
        show: how many of the most frequent pairs each step lists.
        library: whether to compare the merges with those of the tokenizers library.

    >>> print([f"{step.symbol}={step.pair}" for step in trace_byte_pairs("abbc abb abc abb").steps])
    ['A=a b', 'B=A b', 'C=c \\w', 'D=B \\w']
    """
    words, description, small = _read_words(string, text)
    _check_arguments(words, description, merges, minimum, end_of_word, show)
    max_merges = merges if merges is not None or small else DEFAULT_MERGES
    max_pairs = show if show is not None or small else DEFAULT_PAIRS
    listed = words if small else {}  # words that are listed before and after every merge
    letters = small
    while True:
        merger = BytePairMerger(words, end_of_word, letters)
        symbols_before, start = merger.num_symbols, merger.segment(listed)
        steps = _merge_frequent_pairs(merger, minimum, max_merges, max_pairs, listed)
        if len(steps) <= len(merger.free_letters) or not letters:
            break
        letters = False  # there are not enough to name all merges, so symbols are spelled
    count, _ = merger.most_frequent()
    if count >= minimum:
        stopped = f"after {pluralize(len(merger.merges), 'merge')}, as asked"
    else:
        stopped = f"no pair occurs {format_times(minimum)}" if count else "every word is one symbol"
    return BytePairTrace(
        about=description,
        words=words.total(),
        different_words=len(words),
        end_of_word=end_of_word,
        minimum=minimum,
        start=start,
        symbols_before=symbols_before,
        symbols_after=merger.num_symbols,
        steps=tuple(steps),
        left=merger.list_counts(max_pairs),
        left_pairs=len(merger.counts),
        stopped=stopped,
        # equally frequent words as they first occur
        segmentation=merger.segment(words if small else dict(words.most_common(DEFAULT_PAIRS))),
        letters=letters,
        small=small,
        library=_compare_with_library(merger, end_of_word, minimum) if library else None,
    )


def _merge_frequent_pairs(
    merger: BytePairMerger, minimum: int, max_merges: int | None, max_pairs: int | None, listed: Collection[str]
) -> list[MergeStep]:
    """Merge the most frequent pairs while they occur `minimum` times, at most `max_merges`; return the steps.

    Each step records the `max_pairs` most frequent pairs before it and the `listed` words after it; None is no limit.
    """
    steps: list[MergeStep] = []
    while max_merges is None or len(steps) < max_merges:
        count, (pair, *tied_pairs) = merger.most_frequent() if merger.counts else (0, [(0, 0)])
        if count < minimum:
            break
        counts, num_pairs = merger.list_counts(max_pairs), len(merger.counts)
        left, right = (merger.spellings[symbol] for symbol in pair)
        merger.merge(pair)
        step = MergeStep(
            number=len(steps) + 1,
            symbol=merger.names[-1],
            pair=merger.join_names(pair),
            spelled=merger.spellings[-1],
            parts=(left, right),
            count=count,
            ties=tuple(map(merger.join_names, tied_pairs)),
            counts=counts,
            pairs=num_pairs,
            words=merger.segment(listed),
        )
        steps.append(step)
    return steps


def _read_words(string: str | None, text: str | Path | Sequence[str | Path] | None) -> tuple[Counter[str], str, bool]:
    """Read a string, or corpora and files; return word counts, a name for the title, and whether to trace in full."""
    if (string is None) == (text is None):
        raise InputError(
            'bpe: give either a string, as in: lemma look bpe "abbc abb abc abb", or --text with a corpus or file.'
        )
    if string is None:
        names = [str(name) for name in ([text] if isinstance(text, str | Path) else text or ())]
        return count_words(names), ", ".join(names), False
    if any("\ud800" <= character <= "\udfff" for character in string):
        raise InputError("bpe: the string holds bytes that are not UTF-8. Save the text in a file, and give --text.")
    description = f'"{shorten(escape_invisible(" ".join(string.split())), 80)}"'
    return Counter(string.split()), description, len(string) <= MAX_SMALL_CHARS


def _check_arguments(
    words: Mapping[str, int], description: str, merges: int | None, minimum: int, end_of_word: str, show: int | None
) -> None:
    """Raise an InputError for arguments of `trace_byte_pairs` that are out of range; `description` names the text."""
    if not words:
        raise InputError(f"bpe: {description} holds no words. Give some text.")
    for name, value, least in (("merges", merges, 0), ("min", minimum, 1), ("show", show, 1)):
        if value is not None and value < least:
            raise InputError(f"bpe: {name} = {value}: it must be at least {least}.")
    if len(end_of_word.split()) > 1 or end_of_word != end_of_word.strip():
        raise InputError(f"bpe: end of word = {end_of_word!r}: it must hold no white space.")
    if len(end_of_word) == 1 and any(end_of_word in word for word in words):
        raise InputError(
            f"bpe: end of word = '{end_of_word}': the text uses it. Give another, as in --end-of-word '</w>'."
        )


def _compare_with_library(merger: BytePairMerger, end_of_word: str, minimum: int) -> LibraryComparison:
    """Train the tokenizers library on the words of a finished merger, and compare the merges of both as spellings."""
    end = LIBRARY_END if end_of_word else ""
    if end and merger.alphabet[-1] >= LIBRARY_END:
        raise InputError("the text holds the last private character, which the comparison needs for the end of word.")
    spellings = [*merger.alphabet, *end]
    for left, right in merger.merges:
        spellings.append(spellings[left] + spellings[right])
    merges = [[spellings[left], spellings[right]] for left, right in merger.merges]

    def lines() -> Iterator[str]:
        for word, count in merger.word_counts.items():
            portion = max(1, 10_000 // len(word))  # a frequent word in portions: no line becomes very long
            for done in range(0, count, portion):
                yield f"{word}{end} " * min(portion, count - done)

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer: Any = trainers.BpeTrainer(vocab_size=len(spellings), min_frequency=minimum, show_progress=False)
    tokenizer.train_from_iterator(lines(), trainer)
    library_merges = json.loads(tokenizer.to_str())["model"]["merges"]
    pairs = enumerate(zip_longest(merges, library_merges), 1)
    first_difference = next((number for number, (pair, other) in pairs if pair != other), None)
    return LibraryComparison(first_difference is None, first_difference)


# What is right about byte-pair encoding done by hand, for every order in which tied pairs may be merged.


@dataclass(frozen=True)
class MergeRules:
    """Rules for merging pairs by hand.

    Attributes:
        end_of_word: symbol after every word; "" for none.
        minimum: the fewest occurrences of a pair that is merged.
        max_merges: the largest number of merges; None for no limit.
        ties: "any" of the most frequent pairs, the "first" in the words, or the first in "alphabetical" order.
        normalize: returns symbols as written by a person in a standard form.
    """

    end_of_word: str = r"\w"
    minimum: int = 2
    max_merges: int | None = None
    ties: Literal["any", "first", "alphabetical"] = "any"
    normalize: Callable[[str], str] = lambda text: normalize_symbols(text)

    def order_ties(self, merger: "BytePairMerger", ties: list[Pair]) -> list[Pair]:
        """Return the tied pairs that may be merged."""
        if self.ties == "any" or len(ties) < 2:
            return ties
        if self.ties == "alphabetical":
            return [min(ties, key=lambda pair: tuple(merger.spellings[symbol] for symbol in pair))]
        occurrences = (pair for row in merger.words.values() for pair in pairwise(row))
        return [next(pair for pair in occurrences if pair in ties)]


def expected_byte_pairs(
    text: str | Mapping[str, int],
    claimed: Mapping[int, str],
    count_steps: Collection[int],
    max_orders: int = MAX_ORDERS,
    rules: MergeRules | None = None,
) -> Iterator[tuple[list[ExpectedValue], int]]:
    """Yield (right values, number of merges) for each order of merging tied pairs, the claimed order first.

    A step whose claimed pair is a most frequent one follows the claim: a claim for every step leaves one order, in time
    linear in its merges. At the other steps further choices are tried, the last steps first, for MAX_MERGES merges in
    all.

    Args:
        text: the text, or the counts of its words.
        claimed: the pairs that an answer claims to be merged, as written, by the number of the step from 1.
        count_steps: the steps whose pair counts are expected in full.
        max_orders: the largest number of orders.
        rules: how pairs are merged; by default until no pair occurs twice, with any order of tied pairs.
    """
    words, merges = Counter(text.split()) if isinstance(text, str) else Counter(text), 0
    choices: list[int] = []  # the index of the candidate that each step merges; 0 for the steps after these
    for _ in range(max_orders):
        expected, num_candidates = _follow_claims(words, claimed, choices, count_steps, rules or MergeRules())
        yield expected, len(num_candidates)
        merges += len(num_candidates) + 1
        choices += [0] * (len(num_candidates) - len(choices))
        while choices and choices[-1] + 1 >= num_candidates[len(choices) - 1]:
            choices.pop()
        if not choices or merges >= MAX_MERGES:
            return
        choices[-1] += 1


def normalize_symbols(text: str) -> str:
    r"""Return symbols as written by a person in a standard form: single blanks between them, \w as the end of word.

    >>> normalize_symbols("est + </w>")
    'est \\w'
    """
    return " ".join(text.replace("</w>", r"\w").replace("+", " ").split())


def _follow_claims(
    words: Counter[str],
    claimed: Mapping[int, str],
    choices: Sequence[int],
    count_steps: Collection[int],
    rules: MergeRules,
) -> tuple[list[ExpectedValue], list[int]]:
    """Merge by the rules; return the right values, and at each step the number of pairs to choose from.

    A step merges its claimed pair if that is a most frequent one, or else the most frequent pair with the index that
    `choices` holds for the step, 0 past its end. Steps in `count_steps` also give the counts of all pairs.
    """
    merger = BytePairMerger(words, rules.end_of_word)
    claims = {step: rules.normalize(text) for step, text in claimed.items()}
    expected: list[ExpectedValue] = []
    merges: list[Labels] = []
    num_candidates: list[int] = []
    while True:
        step = len(merges) + 1
        if step in count_steps:
            ranked = merger.rank_pairs(None)
            labels = tuple(merger.join_names(pair).replace(" ", "") for pair, _ in ranked)
            values = np.array([count for _, count in ranked])
            counts = expect_numbers(f"counts{step}", values, (labels,), f"all pairs before step {step}")
            expected.append(replace(counts, label_aliases=tuple(merger.join_spellings(pair) for pair, _ in ranked)))
        count, ties = merger.most_frequent()
        if count < rules.minimum or not ties or len(merges) == rules.max_merges:
            break
        ties = rules.order_ties(merger, ties)
        claim = claims.pop(step, None)
        candidates = [pair for pair in ties if claim in merger.list_notations(pair)] if claim else []
        if not candidates and claims and len(ties) > 1:
            later = [text.replace(" ", "") for text in islice(claims.values(), MAX_HINTED)]
            ranks = {
                (left, right): _rank_tie(merger.spellings[left], merger.spellings[right], later)
                for left, right in ties[:MAX_HINTED]
            }
            ties.sort(key=lambda pair: ranks.get(pair, 1))
        candidates = candidates or ties
        pair = candidates[choices[step - 1] if step <= len(choices) else 0]
        num_candidates.append(len(candidates))
        merges.append(merger.list_notations(pair))
        merger.merge(pair)
        names = (merger.names[-1],)
        expected.append(
            ExpectedValue(
                f"merge{step}", (merges[-1],), (), f"the pair of step {step}", names, normalize=rules.normalize
            )
        )
        expected.append(expect_numbers(f"count{step}", count, (), "how often it occurs"))
    segmentation = tuple((merger.join_names(row), merger.join_spellings(row)) for row in merger.words.values())
    expected += [
        ExpectedValue(
            "merges",
            tuple(merges),
            (number_labels(len(merges)),),
            "the pairs in the order of merging",
            normalize=rules.normalize,
        ),
        ExpectedValue(
            "segmentation",
            segmentation,
            (tuple(words),),
            "each word in its symbols",
            ("words",),
            normalize=rules.normalize,
        ),
        expect_numbers("steps", len(merges), (), "how many merges"),
        expect_numbers("symbols", merger.num_symbols, (), "symbols of the whole text at the end"),
    ]
    return expected, num_candidates


def _rank_tie(left: str, right: str, later: Sequence[str]) -> int:
    """Return a rank of the pair of two symbols, given the pairs claimed at later steps, all spelled; 0 is merged first.

    0: a part of a later pair; 1: unrelated; 2: itself a later pair; 3: merging it makes a later pair impossible.

    >>> [_rank_tie(*pair, ["ab", "abc"]) for pair in (("a", "b"), ("x", "y"), ("b", "c"))]
    [2, 1, 3]
    """
    pair_text = left + right
    if any((text.endswith(left) or text.startswith(right)) and pair_text not in text for text in later):
        return 3
    if pair_text in later:
        return 2
    return 0 if any(pair_text in text for text in later) else 1
