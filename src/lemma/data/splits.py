"""Data ready for a model, one item per split; and how examples are split so that no text is in two splits."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import combinations
from typing import Any, Generic, Literal, TypeVar

from lemma.errors import DataError, describe_unknown
from lemma.files import text_hash

Item = TypeVar("Item")
Example = TypeVar("Example")
DataKind = Literal["text", "treebank", "pairs", "labels", "images", "graph", "model"]


@dataclass(frozen=True)
class Splits(Generic[Item]):
    """Data ready for training or evaluation, of any kind: for each split one item that gives its batches.

    The item of a text is an array of tokens (`TokenArray`), of others a set of examples (`Labelled`, `TokenPairs`,
    `Trees`, `Captioned`) or the nodes of a graph (`GraphNodes`).
    """

    kind: str
    """Its option: text, treebank, pairs, labels, images or graph."""
    items: Mapping[str, Item] = field(repr=False)
    tokenizer: Any
    """The tokenizer; a parser's lexicon; None for data without text."""
    hash: str
    """The SHA-256 of the files, or of what generated data was made from."""
    description: str
    """What it is, in words."""
    model_sizes: Mapping[str, int]
    notes: tuple[str, ...] = ()
    """How the data was read, and what was cut or left out, in words."""
    labels: tuple[str, ...] = ()
    """The names of the classes, in the order of their numbers."""
    split_hashes: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of each split, where some were given as files of their own."""
    overlaps: tuple[str, ...] = ()
    """How much of a split that was given is in another one too, in words."""
    tokenizer_note: str = ""
    """On how much of the training text the tokenizer was trained, in words, where that is not all of it."""

    @property
    def split_names(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.items)

    def item(self, split: str) -> Item:
        """What a model reads of a split."""
        if split not in self.items:
            raise DataError(
                f"there is no split '{split}' in {self.description}. It has: {', '.join(self.split_names)}."
            )
        return self.items[split]

    def sizes(self) -> dict[str, int]:
        """What a model has to know of the data's size: the vocabulary, the number of classes."""
        return dict(self.model_sizes)

    def select(self, split: str) -> "Splits[Item]":
        """The same data with one split, which `about` then names."""
        return replace(self, items={split: self.item(split)}, description=f"{self.description} ({split})")


def select_split(
    splits: Mapping[str, Item], split: str | None, description: str, provided: Collection[str] = ()
) -> tuple[dict[str, Item], str]:
    """One split to evaluate on, unless another is named the test split or the only one given, and what to call it."""
    chosen = split or ("validation" if set(provided) == {"validation"} else "test")
    if chosen not in splits:
        raise DataError(describe_unknown("split", chosen, splits))
    return {chosen: splits[chosen]}, f"{description} ({chosen})"


# Splits that are given as files of their own.


def split_files(spec: Any) -> dict[str, Any]:
    """The files that a data spec names for validation and test."""
    files = {split: getattr(spec, split, None) for split in ("validation", "test")}
    return {split: file for split, file in files.items() if file is not None}


def combine_split_hashes(
    data_hash: str, provided: Mapping[str, str], name: str = "train"
) -> tuple[str, dict[str, str]]:
    """The hash of all data, and of each part: `own`, called `name`, and the splits that are given, if any."""
    hashes = {name: data_hash, **provided} if provided else {}
    return text_hash(" ".join(f"{part} {its}" for part, its in hashes.items())) if provided else data_hash, hashes


def count_overlaps(splits: Mapping[str, Iterable[Hashable]], noun: str) -> tuple[str, ...]:
    """Say of every two splits how many items of the later one are in the earlier one too.

    >>> count_overlaps({"train": ["a", "b"], "validation": ["b", "b", "c"], "test": ["d"]}, "texts")
    ('2 of the 3 texts of the validation split are in the train split too',)
    """
    kept = {split: list(splits[split]) for split in SPLITS if split in splits}
    found: list[str] = []
    for earlier, later in combinations(kept, 2):
        known = set(kept[earlier])
        found += overlap_note(sum(item in known for item in kept[later]), len(kept[later]), noun, later, earlier)
    return tuple(found)


def overlap_note(count: int, total: int, noun: str, later: str, earlier: str) -> list[str]:
    """One sentence on what two splits share; none if it is nothing."""
    are = "is" if count == 1 else "are"
    both = f"{count:,} of the {total:,} {noun} of the {later} split {are} in the {earlier} split too"
    return [both] if count else []


# Examples are split by a hash of the text itself, not by its place in the file. The same texts are therefore split the
# same way whatever the order of the file, and most keep their split when others are added.

SPLITS = ("train", "validation", "test")
MIN_STRATUM = 4
"""A class of fewer texts is only trained on: two to train, one to validate and one to test come first."""


def normalise_text(text: str) -> str:
    """What texts that differ only in case and white space have in common.

    >>> normalise(" So  IT is")
    'so it is'
    """
    return " ".join(text.split()).casefold()


def hash_to_int(key: str, purpose: str) -> int:
    """A pseudorandom number of 64 bits from a text, another one for each purpose."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8, person=purpose.encode()).digest())


def shuffle_keys(keys: Iterable[str], purpose: str) -> list[str]:
    """Keys in an order that does not depend on the one in which they came."""
    return sorted(keys, key=lambda key: (hash_to_int(key, purpose), key))


def assign_splits(
    sizes: Mapping[str, int],
    strata: Mapping[str, str],
    fraction: float,
    held_out: Collection[str] = ("test", "validation"),
) -> dict[str, str]:
    """Assign each group of equal texts to a split: `share` of each stratum's texts to validation, as many to test.

    A group that is larger than what a split still needs is trained on. Only the splits `held_out` are drawn.

    >>> split = assign_splits({"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, dict.fromkeys("abcde", "x"), 0.2)
    >>> sorted(split.values())
    ['test', 'train', 'train', 'train', 'validation']
    """
    totals: dict[str, int] = defaultdict(int)
    for key, size in sizes.items():
        totals[strata[key]] += size
    wanted = {
        stratum: max(1, round(fraction * total)) if total >= MIN_STRATUM else 0 for stratum, total in totals.items()
    }
    needed = {split: dict(wanted) for split in ("test", "validation") if split in held_out}
    assigned: dict[str, str] = {}
    for key in shuffle_keys(sizes, "split"):
        split = next((split for split, left in needed.items() if sizes[key] <= left[strata[key]]), "train")
        if split != "train":
            needed[split][strata[key]] -= sizes[key]
        assigned[key] = split
    return assigned


def split_groups(groups: Mapping[str, Sequence[Example]], assigned: Mapping[str, str]) -> dict[str, list[Example]]:
    """The examples of each split, group after group in a shuffled order."""
    splits: dict[str, list[Any]] = {name: [] for name in SPLITS}
    for key in shuffle_keys(groups, "order"):
        splits[assigned[key]] += sorted(groups[key])  # pyright: ignore[reportArgumentType]
    return splits


def stratified_order(labels: Sequence[str]) -> list[int]:
    """Order examples so that any first few hold each label in its share: the first 100 are among the first 300.

    >>> nested_order(["a", "a", "a", "a", "b", "b"])
    [0, 4, 1, 2, 5, 3]
    """
    counts: dict[str, int] = defaultdict(int)
    ranks: list[int] = []
    for label in labels:
        ranks.append(counts[label])
        counts[label] += 1
    due = [rank and (rank + 0.5) / counts[label] for rank, label in zip(ranks, labels, strict=True)]
    return sorted(range(len(labels)), key=lambda place: (due[place], labels[place], place))
