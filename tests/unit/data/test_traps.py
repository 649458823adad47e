"""Processes started by Lemma do not execute code of the current folder."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from faults.traps import set_traps
from lemma.data.corpora import download_package
from lemma.data.encoding import encode_batches
from lemma.data.tokenizers import train_tokenizer
from lemma.errors import DataError
from lemma.spec.data import Words
from lemma.studies.workers import LocalWorkers


@pytest.fixture
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder of modules that write their names to the returned file when imported."""
    monkeypatch.chdir(set_traps(tmp_path / "traps", tmp_path / "executed"))
    return tmp_path / "executed"


def test_trap_modules_detect_imports(executed: Path) -> None:
    subprocess.run([sys.executable, "-c", "import tokenizers"], check=False, capture_output=True)
    assert "tokenizers" in executed.read_text()


@pytest.mark.parametrize("source", [False, True])
def test_pip_does_not_import_from_the_current_folder(
    executed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: bool
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "into").mkdir()
    with pytest.raises(DataError, match="No matching distribution"):
        download_package("no-such-package==1.0", tmp_path / "into", source=source)
    assert not executed.exists()


def test_tokenizing_processes_do_not_import_from_the_current_folder(executed: Path) -> None:
    tokenizer = train_tokenizer(Words(), ["the cat sat"])
    [encoded] = encode_batches(tokenizer, [[("the cat", 0)]], processes=1)
    assert not executed.exists() and np.array_equal(encoded.ids, tokenizer.encode("the cat"))


def test_study_workers_do_not_import_from_the_current_folder(executed: Path, tmp_path: Path) -> None:
    workers = LocalWorkers()
    workers.start(tmp_path / "no-order.json", 1, 1)  # without an order file a worker imports Lemma and exits
    assert workers.processes[0].wait(60) == 0, workers.failure_message()
    assert not executed.exists()
