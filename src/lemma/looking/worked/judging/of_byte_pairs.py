"""The quantities of byte-pair encoding worked by hand, for every order in which ties may be merged."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import numpy as np

from lemma.looking.worked.judging.quantity import AnyQuantity, Labels, WordQuantity, quantity
from lemma.looking.worked.merging import Merging, Pair
from lemma.looking.worked.naming import Names

MOST_ORDERS, MOST_STEPS = 200, 300
END = r"\w"
MINIMUM = 2


def of_byte_pairs(text: str) -> Iterator[list[AnyQuantity]]:
    """The quantities under each order of ties, the rule of Lemma first; at most 200 orders."""
    words = Counter(text.split())
    for order in islice(_orders(words, []), MOST_ORDERS):
        yield _quantities(words, order)


def _replayed(words: Counter[str], order: list[Pair]) -> Merging:
    merging = Merging(words, end_of_word=True)
    for pair in order:
        merging.merge(pair)
    return merging


def _orders(words: Counter[str], begun: list[Pair]) -> Iterator[list[Pair]]:
    """Every order of merges that always takes a most frequent pair."""
    count, ties = _replayed(words, begun).most_frequent()
    if count < MINIMUM or len(begun) >= MOST_STEPS:
        yield begun
        return
    for pair in ties:
        yield from _orders(words, [*begun, pair])


def _quantities(words: Counter[str], order: list[Pair]) -> list[AnyQuantity]:
    merging = _replayed(words, order)
    names = Names(merging, END, letters=True)
    found: list[AnyQuantity] = []
    shown = Merging(words, end_of_word=True)
    for number, pair in enumerate(order, 1):
        found += _step(shown, pair, number, names)
        shown.merge(pair)
    found.append(_counts(shown, len(order) + 1, names))
    merges = tuple(_spellings(pair, names) for pair in order)
    numbers = tuple(map(str, range(1, len(order) + 1)))
    found.append(WordQuantity("merges", merges, (numbers,), "the pairs in the order of merging"))
    cut = tuple((_joined(row, names.names), _joined(row, names.spelled)) for row in merging.words)
    found.append(WordQuantity("segmentation", cut, (tuple(words),), "each word in its symbols", ("words",)))
    found.append(quantity("steps", len(order), None, "how many merges"))
    found.append(quantity("symbols", merging.symbols, None, "symbols of the whole text at the end"))
    return found


def _step(merging: Merging, pair: Pair, number: int, names: Names) -> list[AnyQuantity]:
    symbol = names.names[merging.first_merged + number - 1]
    return [
        _counts(merging, number, names),
        WordQuantity(f"merge{number}", (_spellings(pair, names),), (), f"the pair of step {number}", (symbol,)),
        quantity(f"count{number}", merging.counts[pair], None, "how often it occurs"),
    ]


def _counts(merging: Merging, number: int, names: Names) -> AnyQuantity:
    ranked = merging.ranked(None)
    labels = tuple(_joined(pair, names.names).replace(" ", "") for pair, _ in ranked)
    return quantity(
        f"counts{number}", np.array([count for _, count in ranked]), (labels,), f"all pairs before step {number}"
    )


def _spellings(pair: Pair, names: Names) -> Labels:
    """By letters, spelled out, and by letters without a blank."""
    named = _joined(pair, names.names)
    return (named, _joined(pair, names.spelled), named.replace(" ", ""))


def _joined(symbols: list[int] | Pair, names: list[str]) -> str:
    return " ".join(names[one] for one in symbols)
