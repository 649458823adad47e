"""Prepared data of any kind, one item per split, and the steps that all kinds of examples share.

Examples are split by a hash of their text, not by their position in the file: the same texts are split the same way
whatever the order of the file, and most of them stay in their split when others are added.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import combinations
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from lemma.errors import DataError, describe_unknown
from lemma.files import text_hash
from lemma.spec.base import exists

Item = TypeVar("Item")
Encoded = TypeVar("Encoded")
Example = TypeVar("Example")
DataKind = Literal["text", "treebank", "pairs", "labels", "images", "graph", "model"]
SPLITS = ("train", "validation", "test")
MIN_STRATUM = 4  # texts: a smaller class is only trained on, since two to train, one to validate and one to test remain


@dataclass(frozen=True)
class Splits(Generic[Item]):
    """Prepared data of one kind: an item per split (tokens, examples or nodes), from which batches are made.

    The item is an array of tokens for text (`TokenArray`), a set of examples (`LabelledExamples`, `TokenPairs`,
    `Trees`, `CaptionedImages`), or the nodes of a graph (`GraphNodes`).
    """

    kind: str  # the option that names the data: text, treebank, pairs, labels, images or graph
    items: Mapping[str, Item] = field(repr=False)
    tokenizer: Any  # the tokenizer; the lexicon of a parser; None for data without text
    hash: str  # SHA-256 of the files, or of the parameters of generated data
    description: str  # name or path of the data
    model_sizes: Mapping[str, int]  # sizes of the model that the data determines: the vocabulary, the number of classes
    notes: tuple[str, ...] = ()  # how the data was read, and what was cut or left out
    labels: tuple[str, ...] = ()  # names of the classes, in the order of their numbers
    split_hashes: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of each split, if some were provided
    overlaps: tuple[str, ...] = ()  # sentences on examples of a provided split that are in another split too
    tokenizer_note: str = ""  # on which sample of the text the tokenizer was trained

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits, in order."""
        return tuple(self.items)

    def item(self, split: str) -> Item:
        """Return the data of a split, such as its tokens; an unknown split is a DataError that lists the others."""
        if split not in self.items:
            raise DataError(
                f"there is no split '{split}' in {self.description}. It has: {', '.join(self.split_names)}."
            )
        return self.items[split]

    def sizes(self) -> dict[str, int]:
        """Return sizes of a model that the data determines, such as `vocabulary` and `classes`, by name."""
        return dict(self.model_sizes)

    def select(self, split: str) -> "Splits[Item]":
        """Return a copy with one split only; its name is added to the description."""
        return replace(self, items={split: self.item(split)}, description=f"{self.description} ({split})")

    def with_items(
        self,
        items: Mapping[str, Encoded],
        tokenizer: Any,
        model_sizes: Mapping[str, int],
        notes: Iterable[str] = (),
        labels: tuple[str, ...] = (),
    ) -> "Splits[Encoded]":
        """Return a copy with encoded items by split and what encoding determined; `notes` are appended."""
        notes = (*self.notes, *notes)
        replaced: Any = replace(self, tokenizer=tokenizer, model_sizes=model_sizes, notes=notes, labels=labels)
        return replace(replaced, items=items)


# From files of examples to the examples of each split


def resolve_user_path(kind: DataKind, name: str, known_names: Iterable[str], expected: str) -> Path:
    """Return the path of a user's file; raise a DataError for a bare name that is neither a file nor a data set.

    Args:
        kind: kind of data that is wanted, for the error.
        name: path, or misspelt name of a data set.
        known_names: data sets of this kind, to suggest.
        expected: noun phrase of the error, such as "a text file".
    """
    path = Path(name)
    if not exists(path) and path.name == name and not path.suffix:
        raise DataError(f"{describe_unknown(kind, name, known_names)} Or give the path of {expected}.")
    return path


@dataclass(frozen=True)
class ExampleFile(Generic[Example]):
    """The examples of one file or built-in data set in their original order, with its hash and notes."""

    examples: Sequence[Example] = field(repr=False)
    hash: str
    description: str
    notes: tuple[str, ...] = ()


def prepare_examples(
    kind: str,
    source: ExampleFile[Example],
    provided: Mapping[str, ExampleFile[Any]],
    draw_splits: Callable[[], tuple[Mapping[str, Sequence[Example]], Iterable[str]]],
    *,
    key: Callable[[Example], Hashable],
    noun: str,
    is_builtin: bool,
    evaluation: bool,
    split: str | None,
    name: str,
) -> Splits[Sequence[Example]]:
    """Return the examples of all splits, not tokenized yet; with `evaluation` only those of the split to evaluate on.

    Args:
        kind: the option that names the data, such as "labels".
        source: all examples whose split is not provided.
        provided: the splits that the user provided as files.
        draw_splits: returns the examples of all splits, provided ones included, and notes.
        key: equal for equal examples, to find those that are in two splits.
        noun: what examples are called in notes.
        is_builtin: whether the data is a built-in set, which is evaluated on `split`, by default `test`.
        evaluation: whether to return a single split.
        split: the split to evaluate on.
        name: name of the split that holds a whole file, if that is evaluated on without splits.
    """
    hashes = {part: file.hash for part, file in provided.items()}
    data_hash, split_hashes = combine_split_hashes(source.hash, hashes)
    notes = [*source.notes, *(note for file in provided.values() for note in file.notes)]
    is_unsplit = evaluation and split is None and not is_builtin and not provided
    splits, split_notes = ({name: source.examples}, ()) if is_unsplit else draw_splits()
    keys = {part: map(key, examples) for part, examples in splits.items()}
    read = Splits(
        kind,
        splits,
        tokenizer=None,
        hash=data_hash,
        description=source.description,
        model_sizes={},
        notes=(*notes, *split_notes),
        split_hashes=split_hashes,
        overlaps=describe_overlaps(keys, noun) if provided else (),
    )
    if is_unsplit or not evaluation:
        return read
    split = split or ("validation" if set(provided) == {"validation"} else "test")
    if split not in splits:
        raise DataError(describe_unknown("split", split, splits))
    return read.select(split)


def split_files(spec: Any) -> dict[str, Any]:
    """Return the user's files for "validation" and "test" that a data spec names, by split; without missing ones."""
    files = {split: getattr(spec, split, None) for split in ("validation", "test")}
    return {split: file for split, file in files.items() if file is not None}


def combine_split_hashes(
    data_hash: str, provided: Mapping[str, str], name: str = "train"
) -> tuple[str, dict[str, str]]:
    """Return a hash of all data, and the hash of each part: the main files, called `name`, and the provided splits.

    Without provided splits the first is `data_hash` itself, and there are no parts.
    """
    if not provided:
        return data_hash, {}
    parts = {name: data_hash, **provided}
    return text_hash(" ".join(f"{part} {part_hash}" for part, part_hash in parts.items())), parts


def describe_overlaps(splits: Mapping[str, Iterable[Hashable]], noun: str) -> tuple[str, ...]:
    """Return a sentence for every two splits that share items; items are compared by equality, and `noun` names them.

    >>> describe_overlaps({"train": ["a", "b"], "validation": ["b", "b", "c"], "test": ["d"]}, "texts")
    ('2 of the 3 texts of the validation split are in the train split too',)
    """
    items = {split: list(splits[split]) for split in SPLITS if split in splits}
    notes: list[str] = []
    for earlier, later in combinations(items, 2):
        seen = set(items[earlier])
        notes += describe_overlap(sum(item in seen for item in items[later]), len(items[later]), noun, later, earlier)
    return tuple(notes)


def describe_overlap(count: int, total: int, noun: str, later: str, earlier: str) -> list[str]:
    """Return [sentence] that `count` of the `total` items of the `later` split are in the `earlier` one; [] for 0."""
    verb = "is" if count == 1 else "are"
    note = f"{count:,} of the {total:,} {noun} of the {later} split {verb} in the {earlier} split too"
    return [note] if count else []


# Drawing splits by hash


def normalise_text(text: str) -> str:
    """Return a text in lower case with single spaces: equal for texts that differ only in case and white space.

    >>> normalise_text(" So  IT is")
    'so it is'
    """
    return " ".join(text.split()).casefold()


def hash_to_int(key: str, purpose: str) -> int:
    """Return a 64-bit hash of a text and a `purpose`, such as "split" or "order": each has its own random values."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8, person=purpose.encode()).digest())


def shuffle_keys(keys: Iterable[str], purpose: str) -> list[str]:
    """Return keys sorted by their hash for a `purpose`, whatever order they come in."""
    return sorted(keys, key=lambda key: (hash_to_int(key, purpose), key))


def assign_splits(
    sizes: Mapping[str, int],
    strata: Mapping[str, str],
    fraction: float,
    held_out: Collection[str] = ("test", "validation"),
) -> dict[str, str]:
    """Assign groups of equal texts to splits; return the split of each group.

    Args:
        sizes: number of texts of each group.
        strata: class of each group; each class is split in the same proportions.
        fraction: of the texts of a stratum that each held-out split gets.
        held_out: splits to draw; all other texts are `train`, and so are groups too large for what a split still needs.

    >>> splits = assign_splits({"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, dict.fromkeys("abcde", "x"), 0.2)
    >>> sorted(splits.values())
    ['test', 'train', 'train', 'train', 'validation']
    """
    totals: dict[str, int] = defaultdict(int)
    for key, size in sizes.items():
        totals[strata[key]] += size
    quotas = {stratum: max(1, round(fraction * n)) if n >= MIN_STRATUM else 0 for stratum, n in totals.items()}
    remaining = {split: dict(quotas) for split in ("test", "validation") if split in held_out}
    assigned: dict[str, str] = {}
    for key in shuffle_keys(sizes, "split"):
        stratum = strata[key]
        split = next((split for split, quota in remaining.items() if sizes[key] <= quota[stratum]), "train")
        if split != "train":
            remaining[split][stratum] -= sizes[key]
        assigned[key] = split
    return assigned


def split_groups(groups: Mapping[str, Sequence[Example]], assigned: Mapping[str, str]) -> dict[str, list[Example]]:
    """Return the examples of each split, in a pseudorandom order of groups.

    `groups` maps a key to its examples, and `assigned` a key to its split.
    """
    splits: dict[str, list[Any]] = {name: [] for name in SPLITS}
    for key in shuffle_keys(groups, "order"):
        splits[assigned[key]] += sorted(groups[key])  # pyright: ignore[reportArgumentType]
    return splits


def stratified_order(labels: Sequence[str]) -> list[int]:
    """Return indices of examples in an order of which every beginning holds each label in its overall proportion.

    A smaller selection is therefore part of a larger one: the first 100 are among the first 300.

    >>> stratified_order(["a", "a", "a", "a", "b", "b"])
    [0, 4, 1, 2, 5, 3]
    """
    counts: dict[str, int] = defaultdict(int)
    ranks: list[int] = []
    for label in labels:
        ranks.append(counts[label])
        counts[label] += 1
    due = [rank and (rank + 0.5) / counts[label] for rank, label in zip(ranks, labels, strict=True)]
    return sorted(range(len(labels)), key=lambda index: (due[index], labels[index], index))
