"""Dividing examples so that no text stands in two splits: by a number drawn from each text itself, not from its place.

The same texts are therefore divided the same way whatever the order of the file, and most keep their split when others
are added.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

SPLITS = ("train", "validation", "test")
FEWEST = 4
"""A class of fewer texts is learned from only: two to learn, one to validate and one to test come first."""


def plain(text: str) -> str:
    """What texts that are the same but for case and white space have in common.

    >>> plain(" So  IT is")
    'so it is'
    """
    return " ".join(text.split()).casefold()


def drawn(key: str, purpose: str) -> int:
    """A number drawn from a text, another one for each purpose."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8, person=purpose.encode()).digest())


def in_drawn_order(keys: Iterable[str], purpose: str) -> list[str]:
    """Keys in an order that has nothing to do with the one in which they came."""
    return sorted(keys, key=lambda key: (drawn(key, purpose), key))


def divide_groups(sizes: Mapping[str, int], strata: Mapping[str, str], share: float) -> dict[str, str]:
    """Say of each group of equal texts which split it belongs to: `share` of each stratum's texts is held out, twice.

    A group that is larger than what is still wanted is learned from.

    >>> split = divide_groups({"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, dict.fromkeys("abcde", "x"), 0.2)
    >>> sorted(split.values())
    ['test', 'train', 'train', 'train', 'validation']
    """
    wanted = _wanted(sizes, strata, share)
    room = {split: dict(wanted) for split in ("test", "validation")}
    return {key: _split(key, strata[key], sizes[key], room) for key in in_drawn_order(sizes, "split")}


def _wanted(sizes: Mapping[str, int], strata: Mapping[str, str], share: float) -> dict[str, int]:
    totals: dict[str, int] = defaultdict(int)
    for key, size in sizes.items():
        totals[strata[key]] += size
    return {stratum: max(1, round(share * total)) if total >= FEWEST else 0 for stratum, total in totals.items()}


def _split(key: str, stratum: str, size: int, room: Mapping[str, dict[str, int]]) -> str:
    for split, left in room.items():
        if size <= left[stratum]:
            left[stratum] -= size
            return split
    return "train"


def nested(labels: Sequence[str]) -> list[int]:
    """Order examples so that the first of them are few of each label, in its share: the first 100 are of the first 300.

    >>> nested(["a", "a", "a", "a", "b", "b"])
    [0, 4, 1, 2, 5, 3]
    """
    counts: dict[str, int] = defaultdict(int)
    ranks: list[int] = []
    for label in labels:
        ranks.append(counts[label])
        counts[label] += 1
    due = [rank and (rank + 0.5) / counts[label] for rank, label in zip(ranks, labels, strict=True)]
    return sorted(range(len(labels)), key=lambda place: (due[place], labels[place], place))
