"""Labelled texts as data: `prepare_labels` for training, `read_labels` for judging other texts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int64

from lemma.data.encoding import encode_texts, opening, utf8_size
from lemma.data.examples import Indices, Rows
from lemma.data.label_splits import Texts, divide_labelled
from lemma.data.label_table import LabelledText, read_label_table
from lemma.data.labelled import LABELLED
from lemma.data.learned import learned_tokenizer
from lemma.data.progress import Progress, counting
from lemma.data.tokenizer import Tokenizer
from lemma.errors import DataError, unknown
from lemma.spec import MARKS, LabelsSpec

WHOLE = "text"
"""The one split of a file that is judged."""


@dataclass(frozen=True)
class Labelled:
    """Texts as tokens, each with the number of its class."""

    rows: Rows
    classes: Int64[np.ndarray, "texts"]

    @property
    def lengths(self) -> Int64[np.ndarray, "texts"]:
        """The tokens of each text, marks included."""
        return self.rows.lengths

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: Indices) -> tuple[Int64[np.ndarray, "batch longest"], Int64[np.ndarray, "batch one"]]:
        """Some texts side by side, filled up with −1, and the class of each."""
        return self.rows.beside(indices), self.classes[np.asarray(indices, dtype=np.int64)][:, None]


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
    progress: Progress | None = None,
) -> LabelsData:
    """Read labelled texts for training, each cut to its first `length` tokens.

    With `marked` a text stands between `<start>` and `<end>`, which count. The tokenizer is learned from the training
    texts unless one is given; so are the labels, which are else those of the model that is trained further.
    """
    read = read_label_table(spec.labels, spec.text, spec.label, labels, progress)
    splits, said = divide_labelled(read, spec.held_out, spec.limit)
    tokenizer = tokenizer or learned_tokenizer(spec.tokenizer, [text for text, _ in splits["train"]], progress)
    names = tuple(labels) if labels is not None else tuple(sorted({label for _, label in splits["train"]}))
    encoded, cut = _encoded(splits, tokenizer, names, length, marked, progress)
    told = (*read.said, *said, *cut)
    return LabelsData(tokenizer, names, read.hash, read.about, told, splits, encoded, marked, read.unlabelled)


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
    encoded, cut = _encoded(splits, tokenizer, tuple(labels), length, marked, progress)
    told = (*read.said, *said, *cut)
    return LabelsData(tokenizer, tuple(labels), read.hash, about, told, splits, encoded, marked, read.unlabelled)


def _encoded(
    splits: Mapping[str, Texts],
    tokenizer: Tokenizer,
    labels: Sequence[str],
    length: int,
    marked: bool,
    progress: Progress | None,
) -> tuple[dict[str, Labelled], list[str]]:
    """The splits as tokens, with what had to be cut or left out said."""
    room = length - 2 * marked
    if room < 1:
        raise DataError(f"{length} tokens are too few for a text{' and its two marks' if marked else ''}.")
    openings = {split: [opening(text, tokenizer.kind, room) for text, _ in texts] for split, texts in splits.items()}
    advance = counting(progress, "tokenising", sum(utf8_size(text) for texts in openings.values() for text in texts))
    number = {label: place for place, label in enumerate(labels)}
    encoded: dict[str, Labelled] = {}
    counts: Counter[str] = Counter()
    for split, texts in splits.items():
        rows, missing = encode_texts(tokenizer, openings[split], advance)
        counts += _counts(rows, missing, room)
        classes = np.array([number[label] for _, label in texts], dtype=np.int64)
        encoded[split] = Labelled(_finished(rows, tokenizer, length, marked), classes)
    return encoded, _told(counts, length)


def _finished(rows: Rows, tokenizer: Tokenizer, length: int, marked: bool) -> Rows:
    """Cut rows to length; a row of no tokens at all gets one, since every model has to read something."""
    if marked:
        return rows.cut(length - 2).marked([tokenizer.vocabulary], [tokenizer.vocabulary + 1])
    return rows.cut(length).filled(tokenizer.eos or 0)


def _counts(rows: Rows, missing: int, room: int) -> Counter[str]:
    long, empty = int((rows.lengths > room).sum()), int((rows.lengths == 0).sum())
    return Counter({"texts": len(rows.lengths), "long": long, "empty": empty, "characters": missing})


def _told(counts: Counter[str], length: int) -> list[str]:
    long = f"{counts['long']:,} of {counts['texts']:,} texts are longer than {length:,} tokens: their start was kept"
    characters = f"{counts['characters']:,} characters that the tokenizer does not know were left out"
    empty = f"{counts['empty']:,} texts hold nothing that the tokenizer knows"
    told = {"long": long, "characters": characters, "empty": empty}
    return [sentence for what, sentence in told.items() if counts[what]]
