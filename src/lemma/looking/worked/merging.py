"""Byte-pair encoding as it is learned: count all pairs of neighbours, merge the most frequent, again and again.

Sennrich, Haddow and Birch, Neural Machine Translation of Rare Words with Subword Units, 2016.
"""

from collections import defaultdict
from collections.abc import Mapping
from heapq import nsmallest
from itertools import pairwise

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
