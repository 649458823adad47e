"""The run folder: created atomically, never over other files, with clear errors."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from faults import forked
from lemma.data.tokenizers import Tokenizer, train_tokenizer
from lemma.errors import RunError
from lemma.runs.folder import Metrics, RunFolder, write_lock
from lemma.runs.verify import verify_folder
from lemma.spec.data import BytePairs, Characters, DataSpec
from lemma.spec.models import Decoder
from lemma.spec.positions import Sinusoidal
from lemma.spec.recipe import Recipe

SPEC = Decoder(vocabulary=3, width=8, heads=2, positions=Sinusoidal(base=500))
DATA = DataSpec(text=("my books/ä.txt", "b.txt"), tokenizer=BytePairs(vocabulary=300), held_out=0.25)


@pytest.fixture
def tokenizer() -> Tokenizer:
    return train_tokenizer(Characters(), ["abc"])


def folder_at(path: Path, recipe: Recipe | None = None) -> RunFolder:
    return RunFolder(path, SPEC, recipe or Recipe(steps=5, patience=2), DATA, "f00d")


def test_run_description_round_trips(tmp_path: Path, tokenizer: Tokenizer) -> None:
    built = folder_at(tmp_path / "deep" / "run").create(tokenizer)
    opened = RunFolder.open(tmp_path / "deep" / "run")
    assert opened == built and opened.tokenizer().hash == tokenizer.hash and not opened.is_finished
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["run"]


def test_existing_run_is_replaced_only_with_overwrite(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "run"
    folder_at(path).create(tokenizer)
    with pytest.raises(RunError, match=f"lemma train --resume {path}.*--overwrite"):
        folder_at(path).create(tokenizer)
    folder_at(path).finish({}, {"old": True})
    with pytest.raises(
        RunError, match=r"holds a run already\. To replace it: --overwrite"
    ):  # no checkpoint to resume from
        folder_at(path).create(tokenizer)
    assert RunFolder.open(path).is_finished
    folder_at(path, Recipe(steps=9)).create(tokenizer, overwrite=True)
    assert RunFolder.open(path).recipe.steps == 9 and not RunFolder.open(path).is_finished


@pytest.mark.parametrize("overwrite", [False, True])
def test_non_run_folder_is_never_modified(tmp_path: Path, tokenizer: Tokenizer, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("ten years of work")
    with pytest.raises(RunError, match="not empty and not a run"):
        folder_at(tmp_path).create(tokenizer, overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_run_with_unrelated_files_is_not_overwritten(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "run"
    folder_at(path).create(tokenizer)
    (path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"notes\.txt"):
        folder_at(path).create(tokenizer, overwrite=True)
    assert (path / "notes.txt").read_text() == "mine"


def test_file_at_the_run_path_is_rejected(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RunError, match="is a file"):
        folder_at(tmp_path / "run").create(tokenizer, overwrite=True)
    with pytest.raises(RunError, match="cannot be made"):
        folder_at(tmp_path / "run" / "below").create(tokenizer)


def test_empty_folder_is_accepted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "run").mkdir()
    assert folder_at(tmp_path / "run").create(tokenizer) == RunFolder.open(tmp_path / "run")


def test_opening_a_non_run_explains_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name, reason in {
        "nowhere": "no such folder",
        "file": "is a file",
        "empty": r"not a run: spec\.toml is missing",
    }.items():
        with pytest.raises(RunError, match=f"{name}.*{reason}"):
            RunFolder.open(tmp_path / name)


@pytest.mark.parametrize("name", ["spec.toml", "recipe.toml", "tokenizer.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"steps = ", b"steps = -1\n[data]\ntext = []"])
def test_damaged_description_file_is_named(tmp_path: Path, tokenizer: Tokenizer, name: str, content: bytes) -> None:
    folder_at(tmp_path / "run").create(tokenizer)
    (tmp_path / "run" / name).write_bytes(content)
    with pytest.raises(RunError, match=name):
        RunFolder.open(tmp_path / "run").tokenizer()


def test_concurrent_writers_are_rejected(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder_at(tmp_path / "run").create(tokenizer)
    with write_lock(tmp_path / "run"):
        with pytest.raises(RunError, match="another process"), write_lock(tmp_path / "run"):
            pass
        with pytest.raises(RunError, match="another process"):
            folder_at(tmp_path / "run").create(tokenizer, overwrite=True)
    with write_lock(tmp_path / "run"):
        assert RunFolder.open(tmp_path / "run").recipe.steps == 5


HOLDS = """
import sys, time
from pathlib import Path
from lemma.runs.folder import write_lock
with write_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_write_lock_excludes_processes_but_not_after_a_kill(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder_at(tmp_path / "run").create(tokenizer)
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        with pytest.raises(RunError, match="another process"), write_lock(tmp_path / "run"):
            pass
    finally:
        holder.kill()
        holder.wait()
    assert (tmp_path / ".run.lock").exists()  # left by the killed process
    with write_lock(tmp_path / "run"):
        pass
    assert not (tmp_path / ".run.lock").exists()


def test_rewinding_drops_later_metrics_and_checkpoints(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = folder_at(tmp_path / "run").create(tokenizer)
    for step in (1, 2, 3):
        folder.metrics.append({"step": step})
        (folder.checkpoints / f"step-{step}").mkdir(parents=True)
    folder.finish({}, {})
    changed = folder_at(folder.path, Recipe(steps=50))
    changed.rewind(2)
    assert [row["step"] for row in folder.metrics.rows()] == [1, 2]
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["step-1", "step-2"]
    assert RunFolder.open(folder.path) == changed
    assert folder.is_finished  # until a new checkpoint is written
    changed.reopen()
    assert not folder.is_finished and not (folder.path / "model.safetensors").exists()


def test_kill_at_any_disk_change_leaves_a_valid_run(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)  # the machine itself is not killed
    folder = folder_at(tmp_path / "run").create(tokenizer)
    for step in (1, 2, 3):
        folder.metrics.append({"step": step})
    folder.finish({}, {"ended": 0})

    def again(number: int) -> None:
        folder.rewind(2)
        folder.finish({}, {"ended": number})

    number = status = -1
    while status:  # −9 until the write finishes without a kill
        number += 1
        status = forked(partial(again, number), kill_at=number + 1)
        assert status in (0, -9)
        opened = RunFolder.open(folder.path)
        ended = (opened.summary() or {})["ended"]
        assert ended in (range(number + 1) if status else [number]) and opened.metrics.rows()[1] == {"step": 2}
        assert verify_folder(folder.path).right
    assert number > 10


def test_incomplete_last_metrics_line_is_ignored_and_overwritten(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    assert metrics.rows() == []
    metrics.append({"step": 1, "loss": 0.1 + 0.2})
    with metrics.path.open("a") as file:
        file.write('{"step": 2, "lo')
    assert metrics.rows() == [{"step": 1, "loss": 0.1 + 0.2}]
    metrics.write(metrics.rows())
    metrics.append({"step": 2, "loss": 1.0})
    assert [row["step"] for row in metrics.rows()] == [1, 2]


def test_damaged_metrics_line_is_named(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(RunError, match="line 2"):
        metrics.rows()
