"""Labelled texts as data: `prepare_labels` for training, `read_labels` for judging other texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lemma.data.hashing import text_sum
from lemma.data.label_splits import Texts, divide_labelled
from lemma.data.label_table import LabelledText, LabelTable, read_label_table
from lemma.data.labelled import LABELLED
from lemma.data.labelled_rows import Labelled
from lemma.data.labelled_trees import Drawer, Governors, draw_splits, with_trees
from lemma.data.learned import learned_tokenizer
from lemma.data.marking import encode_marked
from lemma.data.progress import Progress
from lemma.data.tokenizer import Tokenizer
from lemma.errors import DataError, unknown
from lemma.spec import MARKS, LabelsSpec

WHOLE = "text"
"""The one split of a file that is judged."""


@dataclass(frozen=True)
class LabelsData:
    """Labelled texts ready for training or judging."""

    tokenizer: Tokenizer
    labels: tuple[str, ...]
    """The names of the classes, in the order of their numbers."""
    hash: str
    """The SHA-256 of the files."""
    about: str
    """What they are, in words."""
    skipped: tuple[str, ...]
    """What was taken, left out or cut, in words."""
    by_split: Mapping[str, Texts] = field(repr=False)
    tokens_by_split: Mapping[str, Labelled] = field(repr=False)
    marked: bool
    """Whether each text stands between `<start>` and `<end>`."""
    unlabelled: tuple[str, ...] = field(default=(), repr=False)
    """Texts of the same kind that have no label, where such came with them."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.by_split)

    def texts(self, split: str) -> Texts:
        """The texts of a split with their labels."""
        return self.by_split[self._known(split)]

    def tokens(self, split: str) -> Labelled:
        """The texts of a split as tokens, in the same order."""
        return self.tokens_by_split[self._known(split)]

    def sizes(self) -> dict[str, int]:
        """What a model has to know of the data's size."""
        marks = len(MARKS) if self.marked else 0
        return {"classes": len(self.labels), "vocabulary": self.tokenizer.vocabulary + marks}

    def _known(self, split: str) -> str:
        if split not in self.by_split:
            raise DataError(f"there is no split '{split}' in {self.about}. It has: {', '.join(self.splits)}.")
        return split


def prepare_labels(
    spec: LabelsSpec,
    *,
    length: int,
    marked: bool,
    tokenizer: Tokenizer | None = None,
    labels: Sequence[str] | None = None,
    drawer: Drawer | None = None,
    progress: Progress | None = None,
) -> LabelsData:
    """Read labelled texts for training, each cut to its first `length` tokens.

    With `marked` a text stands between `<start>` and `<end>`, which count. The tokenizer is learned from the training
    texts unless one is given; so are the labels, which are else those of the model that is trained further. With a
    `drawer` the tokens are the words of trees, and come with their arcs.
    """
    read = read_label_table(spec.labels, spec.text, spec.label, labels, progress)
    splits, said = divide_labelled(read, spec.held_out, spec.limit)
    spoken, governors = draw_splits(splits, drawer) if drawer else (splits, {})
    tokenizer = tokenizer or learned_tokenizer(spec.tokenizer, [text for text, _ in spoken["train"]], progress)
    names = tuple(labels) if labels is not None else tuple(sorted({label for _, label in splits["train"]}))
    encoded, cut = _encoded(spoken, governors, tokenizer, names, length, marked, progress)
    told, joint = (*read.said, *said, *cut), _joint_hash(read, drawer)
    return LabelsData(tokenizer, names, joint, read.about, told, splits, encoded, marked, read.unlabelled)


def read_labels(
    name: str,
    *,
    tokenizer: Tokenizer,
    labels: Sequence[str],
    length: int,
    marked: bool,
    text: str | None = None,
    label: str | None = None,
    held_out: float = LabelsSpec.model_fields["held_out"].default,
    split: str | None = None,
    drawer: Drawer | None = None,
    progress: Progress | None = None,
) -> LabelsData:
    """Read labelled texts to judge, as one split: of those known by name `split` or else their test, of a file all."""
    read = read_label_table(name, text, label, labels, progress)
    said: list[str] = []
    if name in LABELLED or split is not None:
        splits, said = divide_labelled(read, held_out, None)
        chosen = split or "test"
        if chosen not in splits:
            raise DataError(unknown("split", chosen, splits))
        splits, about = {chosen: splits[chosen]}, f"{read.about} ({chosen})"
    else:
        splits, about = {WHOLE: tuple(map(LabelledText, read.texts, read.labels))}, read.about
    spoken, governors = draw_splits(splits, drawer) if drawer else (splits, {})
    encoded, cut = _encoded(spoken, governors, tokenizer, tuple(labels), length, marked, progress)
    told, joint = (*read.said, *said, *cut), _joint_hash(read, drawer)
    return LabelsData(tokenizer, tuple(labels), joint, about, told, splits, encoded, marked, read.unlabelled)


def _joint_hash(read: LabelTable, drawer: Drawer | None) -> str:
    """The hash of the files; of trees that a parser drew, its own too: another parser makes other data."""
    return text_sum(f"{read.hash} {drawer.hash}") if drawer and drawer.hash else read.hash


def _encoded(
    splits: Mapping[str, Texts],
    governors: Mapping[str, Governors],
    tokenizer: Tokenizer,
    labels: Sequence[str],
    length: int,
    marked: bool,
    progress: Progress | None,
) -> tuple[dict[str, Labelled], list[str]]:
    """The splits as tokens, and arcs where there are some, with what had to be cut or left out said."""
    texts = {split: [text for text, _ in some] for split, some in splits.items()}
    rows, told = encode_marked(texts, tokenizer, length, marked, "texts", progress)
    number = {label: place for place, label in enumerate(labels)}
    classes = {split: np.array([number[label] for _, label in some], np.int64) for split, some in splits.items()}
    examples = {split: Labelled(rows[split], classes[split]) for split in splits}
    return examples | {split: with_trees(examples[split], arcs) for split, arcs in governors.items()}, told
