"""Texts with labels divided into training, validation and test, no text in two of them."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from lemma.data.grouping import SPLITS, divide_groups, in_drawn_order, nested, plain
from lemma.data.label_table import LabelledText, LabelTable
from lemma.errors import DataError

Texts = tuple[LabelledText, ...]
Groups = dict[str, list[LabelledText]]
"""Texts that are the same but for case and white space, by what they have in common."""
LEAST = 2
"""Texts of each label that training needs."""


def divide_labelled(read: LabelTable, held_out: float, limit: int | None) -> tuple[dict[str, Texts], list[str]]:
    """Divide texts by label, with what was left out said; `limit` takes only some of the training texts."""
    _refuse_one_label(read)
    groups, said = _groups(read)
    labels = {key: texts[0].label for key, texts in groups.items()}
    split = divide_groups({key: len(texts) for key, texts in groups.items()}, labels, held_out)
    splits: dict[str, list[LabelledText]] = {name: [] for name in SPLITS}
    for key in in_drawn_order(groups, "order"):
        splits[split[key]] += groups[key]
    _refuse_few(read, splits)
    if limit is not None:
        splits["train"] = _limited(read, splits["train"], limit, said)
    return {name: tuple(texts) for name, texts in splits.items()}, said


def _groups(read: LabelTable) -> tuple[Groups, list[str]]:
    groups: Groups = defaultdict(list)
    for text, label in zip(read.texts, read.labels, strict=True):
        groups[plain(text)].append(LabelledText(text, label))
    settled = {key: _agreed(texts) for key, texts in groups.items()}
    dropped = len(read.texts) - sum(map(len, settled.values()))
    said = (
        [f"{dropped:,} texts were left out: the same text bears another label as often or oftener"] if dropped else []
    )
    return {key: sorted(texts) for key, texts in settled.items() if texts}, said


def _agreed(texts: list[LabelledText]) -> list[LabelledText]:
    """Of equal texts those of the label that most of them have; none if no label has most."""
    ranked = Counter(text.label for text in texts).most_common(2)
    if len(ranked) == 1:
        return texts
    (first, most), (_, second) = ranked
    return [text for text in texts if text.label == first] if most > second else []


def _limited(read: LabelTable, texts: Sequence[LabelledText], limit: int, said: list[str]) -> list[LabelledText]:
    labels = {text.label for text in texts}
    if limit < len(labels):
        raise DataError(f"limit={limit} leaves no text for some of the {len(labels)} labels. Set limit={len(labels)}.")
    if limit > len(texts):
        said.append(f"limit={limit:,} is more than the {len(texts):,} training texts of {read.about}: all are taken")
    return [texts[place] for place in nested([text.label for text in texts])[:limit]]


def _refuse_one_label(read: LabelTable) -> None:
    if len(set(read.labels)) == 1:
        raise DataError(
            f"{read.about}: all {len(read.labels):,} texts bear one label, {read.labels[0][:40]!r}; at least two are "
            "needed. Name another column with --label-column, or give texts of other labels too."
        )


def _refuse_few(read: LabelTable, splits: Mapping[str, Sequence[LabelledText]]) -> None:
    learned = Counter(text.label for text in splits["train"])
    few = sorted({label for label in read.labels if learned[label] < LEAST})
    if few and len(few) > len(learned) / 2:
        raise DataError(
            f"{read.about}: {len(few):,} of {len(set(read.labels)):,} labels have fewer than {LEAST} texts to learn "
            f"from, such as {few[0][:40]!r}. Give more texts of each, or name another column with --label-column."
        )
    if few:
        line = read.table.where(list(read.labels).index(few[0]))
        raise DataError(
            f"{line}: the label {few[0][:40]!r} has {learned[few[0]]} text to learn from; each needs {LEAST}. "
            f"Give more texts of it, or take its texts out. Such labels: {len(few)}."
        )
    if empty := [name for name, texts in splits.items() if not texts]:
        raise DataError(
            f"{read.about}: {len(read.texts):,} texts, {len(set(map(plain, read.texts))):,} of them different, "
            f"leave none for {' and '.join(empty)}. Give at least four different texts of a label."
        )
