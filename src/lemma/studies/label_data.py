"""The labelled texts of a study, said in words."""

from collections import Counter

from lemma.data import LABELLED, LabelsData
from lemma.spec import LabelsSpec, LabelStudy
from lemma.studies.asking import rooted
from lemma.studies.label_runs import TEST


def labels_of(study: LabelStudy, limit: int | None = None) -> LabelsSpec:
    """The study's labelled texts, a file from the root, so that a run finds it from anywhere."""
    return study.data(limit).replace(labels=rooted(study.labels, LABELLED))


def describe_labels(dataset: LabelsData) -> dict[str, str]:
    """What the labelled texts are."""
    sizes = ", ".join(f"{len(dataset.texts(split)):,} {name}" for split, name in SPLITS.items())
    return {
        "labelled texts": f"{dataset.about}: {sizes}",
        "labels": ", ".join(dataset.labels),
        "always the commonest label": f"accuracy {100 * commonest(dataset):.1f} %",
        "tokenizer": dataset.tokenizer.about,
        "SHA-256": dataset.hash,
    }


SPLITS = {"train": "to learn from", "validation": "for validation", TEST: "for the test"}


def commonest(dataset: LabelsData) -> float:
    """The accuracy on the test texts of saying always the label that is commonest among those learned from."""
    learned = Counter(label for _, label in dataset.texts("train"))
    guess = max(sorted(learned), key=learned.__getitem__)
    labels = [label for _, label in dataset.texts(TEST)]
    return labels.count(guess) / len(labels)
