"""Classification of unlabelled texts and invalid sources."""

from typing import Any

import pytest

import lemma
from labelled_tables import random_texts, write_table
from lemma.errors import InputError
from lemma.runs.load import Run, load
from lemma.tasks.classification import classify_texts


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("naming")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEMMA_HOME", str(folder / "home"))
        table = write_table(folder / "texts.csv", random_texts(60))
        words: dict[str, Any] = {
            "steps": 5,
            "batch": 8,
            "width": 6,
            "hidden": 8,
            "device": "cpu",
            "tokenizer": "characters",
        }
        lemma.train("gru", labels=str(table), out=folder / "run", progress=False, **words)
        return load(folder / "run")


def test_empty_list_gives_no_classes(run: Run) -> None:
    assert classify_texts(run, []) == []


@pytest.mark.parametrize(
    ("source", "message"), [(3, r"source 1 is 3 \(int\)"), (None, "None"), (" ", "source 1 is empty")]
)
def test_non_string_source_is_rejected(run: Run, source: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        classify_texts(run, ["a", source])


def test_unknown_characters_are_skipped_and_reported(run: Run) -> None:
    text = random_texts(1)[0][0]
    base, strange = classify_texts(run, [text, f"\u2603{text}\u2604"])
    assert base.note == "" and "2 characters left out" in strange.note
    assert strange.probabilities == pytest.approx(base.probabilities)
