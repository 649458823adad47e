"""Byte-pair encoding traced: every step with all its pair counts, ties named, until no pair occurs often enough."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from lemma.errors import InputError
from lemma.looking.words import counted
from lemma.looking.worked.library import END, library_merges
from lemma.looking.worked.merges import MergeStep, PairCount, Segmented, Trial
from lemma.looking.worked.merging import Merging, Pair
from lemma.looking.worked.naming import Names
from lemma.looking.worked.numerals import printable, shortened, times
from lemma.looking.worked.trace import BytePairTrace
from lemma.looking.worked.words import count_words

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
