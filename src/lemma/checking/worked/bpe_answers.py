"""What is right about byte-pair encoding done by hand, for every order in which tied pairs may be merged."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from string import ascii_uppercase

import numpy as np

from lemma.checking.worked.bpe import BytePairMerger, Pair, SymbolNames
from lemma.checking.worked.case import ExpectedValue, ExpectedWords, Labels, expect_numbers, number_labels
from lemma.report.numbers import escape_invisible

MAX_ORDERS = 200  # orders of merges that are tried where the claims leave ties open
MAX_MERGES = 2000  # merges of all orders together
MAX_HINTED = 30  # tied pairs, and later claims, that are compared to choose the pair of a step without a claim


def expected_byte_pairs(
    text: str, claimed: Mapping[int, str], count_steps: Collection[int], max_orders: int = MAX_ORDERS
) -> Iterator[tuple[list[ExpectedValue], int]]:
    """Yield what is right and the number of merges for each order of merges, the one that follows the claims first.

    Args:
        claimed: the pairs claimed, by the number of their step.
        count_steps: the steps whose pair counts are expected in full.
    """
    words = Counter(text.split())
    for order in islice(merge_orders(words, claimed), max_orders):
        yield _expected_values(words, order, count_steps), len(order)


def normalize_symbols(text: str) -> str:
    r"""Return symbols as they are compared: separated by single blanks, the end of a word written \w.

    >>> normalize_symbols("est + </w>")
    'est \\w'
    """
    return " ".join(text.replace("</w>", r"\w").replace("+", " ").split())


def merge_orders(words: Counter[str], claimed: Mapping[int, str]) -> Iterator[list[Pair]]:
    """Yield orders of merges that always take a most frequent pair, the one that follows the claims first.

    A step whose claimed pair is a most frequent one follows the claim: a claim for every step leaves one order, in time
    linear in its merges. At the other steps further choices are tried, the last steps first, for MAX_MERGES merges in
    all.
    """
    choices: list[int] = []  # the index of the candidate that each step merges; 0 for the steps after these
    merges = 0
    while not merges or merges < MAX_MERGES:
        order, num_candidates = _follow_claims(words, claimed, choices)
        yield order
        merges += len(order) + 1
        choices += [0] * (len(order) - len(choices))
        while choices and choices[-1] + 1 >= num_candidates[len(choices) - 1]:
            choices.pop()
        if not choices:
            return
        choices[-1] += 1


def _follow_claims(
    words: Counter[str], claimed: Mapping[int, str], choices: Sequence[int]
) -> tuple[list[Pair], list[int]]:
    """Merge until no pair occurs twice; return the merges and the number of candidates at each step."""
    merger = BytePairMerger(words, end_of_word=True)
    spellings = [*map(escape_invisible, merger.alphabet), r"\w"]
    free_letters = iter([letter for letter in ascii_uppercase if letter not in merger.alphabet])
    names = list(spellings)
    claims = {step: normalize_symbols(text) for step, text in claimed.items()}
    num_candidates: list[int] = []
    while True:
        count, ties = merger.most_frequent()
        if count < 2:
            return merger.merges, num_candidates
        step = len(merger.merges) + 1
        claim = claims.pop(step, None)
        candidates = [pair for pair in ties if claim in _pair_spellings(pair, names, spellings)] if claim else []
        if not candidates and claims and len(ties) > 1:
            later = [text.replace(" ", "") for text in islice(claims.values(), MAX_HINTED)]
            ranks = {pair: _rank_tie(spellings[pair[0]], spellings[pair[1]], later) for pair in ties[:MAX_HINTED]}
            ties.sort(key=lambda pair: ranks.get(pair, 1))
        candidates = candidates or ties
        pair = candidates[choices[step - 1] if step <= len(choices) else 0]
        num_candidates.append(len(candidates))
        spellings.append(spellings[pair[0]] + spellings[pair[1]])
        names.append(next(free_letters, spellings[-1]))
        merger.merge(pair)


def _rank_tie(left: str, right: str, later: Sequence[str]) -> int:
    """Rank a pair by what later steps are claimed to merge: parts of these first, what makes them impossible last.

    >>> [_rank_tie(*pair, ["ab", "abc"]) for pair in (("a", "b"), ("x", "y"), ("b", "c"))]
    [2, 1, 3]
    """
    pair_text = left + right
    if any((text.endswith(left) or text.startswith(right)) and pair_text not in text for text in later):
        return 3
    if pair_text in later:
        return 2
    return 0 if any(pair_text in text for text in later) else 1


def _pair_spellings(pair: Pair, names: Sequence[str], spellings: Sequence[str]) -> Labels:
    """Return how a pair may be written: by the names of its symbols or spelled out, with a blank or without."""
    by_name, by_spelling = ([texts[symbol] for symbol in pair] for texts in (names, spellings))
    return (" ".join(by_name), " ".join(by_spelling), "".join(by_name), "".join(by_spelling))


def _expected_values(words: Counter[str], order: list[Pair], count_steps: Collection[int]) -> list[ExpectedValue]:
    """Return everything that may be claimed of one order of merges."""
    merger = BytePairMerger(words, end_of_word=True)
    merger.merges = order  # names all symbols from the beginning
    names = SymbolNames(merger, r"\w", letters=True)
    merger.merges = []
    expected: list[ExpectedValue] = []

    def add_counts(step: int) -> None:
        if step in count_steps:
            ranked = merger.rank_pairs(None)
            labels = tuple(names.join(pair).replace(" ", "") for pair, _ in ranked)
            values = np.array([count for _, count in ranked])
            counts = expect_numbers(f"counts{step}", values, (labels,), f"all pairs before step {step}")
            expected.append(replace(counts, label_aliases=tuple(names.spell(pair) for pair, _ in ranked)))

    merges = tuple(_pair_spellings(pair, names.names, names.spellings) for pair in order)
    for step, pair in enumerate(order, 1):
        symbol = names.names[merger.first_merge_id + step - 1]
        add_counts(step)
        expected.append(ExpectedWords(f"merge{step}", (merges[step - 1],), (), f"the pair of step {step}", (symbol,)))
        expected.append(expect_numbers(f"count{step}", merger.counts[pair], (), "how often it occurs"))
        merger.merge(pair)
    add_counts(len(order) + 1)
    segmentation = tuple((names.join(row), names.spell(row)) for row in merger.words)
    return [
        *expected,
        ExpectedWords("merges", merges, (number_labels(len(order)),), "the pairs in the order of merging"),
        ExpectedWords("segmentation", segmentation, (tuple(words),), "each word in its symbols", ("words",)),
        expect_numbers("steps", len(order), (), "how many merges"),
        expect_numbers("symbols", merger.num_symbols, (), "symbols of the whole text at the end"),
    ]
