import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lemma.data.store import EncodedText, TokenStore, write_store
from lemma.errors import DataError
from lemma.files import machine_id


def store_of(folder: Path, splits: dict[str, list[EncodedText]], vocabulary: int = 100) -> TokenStore:
    return write_store(folder, splits, vocabulary=vocabulary)


def two_splits() -> dict[str, list[EncodedText]]:
    train = [EncodedText(np.array([1, 2, 3]), 10, 0), EncodedText(np.array([4]), 5, 2)]
    return {"train": train, "validation": [EncodedText(np.array([5, 6]), 7, 1)]}


def test_token_store_round_trips_with_counts(tmp_path: Path) -> None:
    store_of(tmp_path / "store", two_splits())
    store = TokenStore(tmp_path / "store")
    assert tuple(store.splits) == ("train", "validation")
    assert (store.splits["train"].tolist(), store.splits["validation"].tolist()) == ([1, 2, 3, 4], [5, 6])
    assert (store.splits["train"].bytes, store.splits["validation"].bytes) == (15, 7)
    assert (store.splits["train"].dropped_characters, store.splits["validation"].dropped_characters) == (2, 1)
    assert isinstance(store.splits["train"].base, np.memmap)
    assert not store.splits["train"].flags.writeable


@pytest.mark.parametrize(("vocabulary", "dtype"), [(65536, np.uint16), (65537, np.uint32)])
def test_token_store_holds_the_largest_token_id(tmp_path: Path, vocabulary: int, dtype: type) -> None:
    store = store_of(tmp_path / "store", {"train": [EncodedText(np.array([vocabulary - 1]))]}, vocabulary)
    assert store.splits["train"].dtype == dtype
    assert store.splits["train"].tolist() == [vocabulary - 1]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, DataError, OSError])
def test_interrupted_token_store_leaves_no_files(tmp_path: Path, failure: type[BaseException]) -> None:
    def failing() -> Iterator[EncodedText]:
        yield EncodedText(np.arange(100_000))
        assert list(tmp_path.rglob("tokens.bin"))
        raise failure("stop")

    with pytest.raises(failure):
        write_store(tmp_path / "store", {"train": failing()}, vocabulary=9)
    assert list(tmp_path.iterdir()) == []


def test_split_without_tokens_is_rejected_without_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the split 'validation' has no tokens"):
        store_of(tmp_path / "store", {**two_splits(), "validation": []})
    assert list(tmp_path.iterdir()) == []


def test_first_of_two_concurrent_store_writers_wins(tmp_path: Path) -> None:
    class Racing(dict[str, list[EncodedText]]):
        def items(self):  # type: ignore[no-untyped-def]
            store_of(tmp_path / "store", {"train": [EncodedText(np.array([7]))]})
            return super().items()

    store = store_of(tmp_path / "store", Racing(two_splits()))
    assert store.splits["train"].tolist() == [7]
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_only_temporary_stores_of_dead_processes_are_removed(tmp_path: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    for process in (killed.pid, os.getppid()):
        (tmp_path / f".store.0.{machine_id()}-{process}.partial").mkdir()
    store_of(tmp_path / "store", two_splits())
    assert {path.name for path in tmp_path.iterdir()} == {"store", f".store.0.{machine_id()}-{os.getppid()}.partial"}


@pytest.mark.parametrize("damage", ["shorter", "longer", "no header", "half a header", "another format", "missing"])
def test_damaged_token_store_is_detected(tmp_path: Path, damage: str) -> None:
    folder = store_of(tmp_path / "store", two_splits()).folder
    header, tokens = folder / "store.json", folder / "tokens.bin"
    if damage == "shorter":
        tokens.write_bytes(tokens.read_bytes()[:-2])
    elif damage == "longer":
        tokens.write_bytes(tokens.read_bytes() + b"\0\0")
    elif damage == "no header":
        header.unlink()
    elif damage == "half a header":
        header.write_text(header.read_text()[:50])
    elif damage == "another format":
        header.write_text(json.dumps({**json.loads(header.read_text()), "format": 0}))
    else:
        tokens.unlink()
    with pytest.raises(DataError, match="Remove the folder"):
        TokenStore(folder)
