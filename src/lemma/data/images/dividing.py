"""Pictures into training, validation and test: each split is one stretch of the list, which has a drawn order."""

from collections.abc import Sequence

from lemma.data.grouping import drawn
from lemma.data.images.listing import Listing
from lemma.errors import DataError

Stretches = dict[str, slice]
FEWEST = 4
"""Different pictures that there must be: two to learn, one to validate, one to test."""


def divide(listing: Listing, kept: Sequence[int], held_out: float) -> Stretches:
    """Divide the pictures that are kept: a set known by name by each name alone, so that another style of it is divided
    the same way whatever it lacks; a folder by number, equal files together.
    """
    keys = [listing.keys[place] for place in kept]
    if (different := len(set(keys))) < FEWEST:
        raise DataError(
            f"{listing.about}: {different} different pictures are too few to learn from some and hold others out. "
            f"Give at least {FEWEST}."
        )
    if listing.named:
        test, validation = (_below(keys, share) for share in (held_out, 2 * held_out))
    else:
        test = _whole_groups(keys, max(1, round(held_out * len(keys))))
        validation = _whole_groups(keys, test + max(1, round(held_out * len(keys))))
    bounds = {"train": (validation, len(keys)), "validation": (test, validation), "test": (0, test)}
    if empty := [split for split, (start, stop) in bounds.items() if start == stop]:
        raise DataError(f"{listing.about}: {different:,} different pictures leave none for {' and '.join(empty)}.")
    return {split: slice(*both) for split, both in bounds.items()}


def _below(keys: Sequence[str], share: float) -> int:
    """How many keys, which come in this order, draw a number in the lowest share of all."""
    return sum(drawn(key, "split") < share * 2**64 for key in keys)


def _whole_groups(keys: Sequence[str], count: int) -> int:
    """The first place from `count` on where another picture begins."""
    while 0 < count < len(keys) and keys[count] == keys[count - 1]:
        count += 1
    return count
