"""Trackers get the rows of metrics.jsonl: read back offline, with the installed packages."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lemma.errors import SpecError
from lemma.runs.folder import RunFolder
from lemma.spec.recipe import Recipe
from small_runs import train_small

Curve = list[tuple[int, float]]


def of_tensorboard(folder: Path) -> Curve:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "run" / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("loss")]


def records_of(log: bytes) -> Iterator[bytes]:
    """Yield the records of a LevelDB log: parts with a header of seven bytes, in blocks of 32 KiB."""
    index, waiting = 7, b""
    while index + 7 <= len(log):
        size, kind = int.from_bytes(log[index + 4 : index + 6], "little"), log[index + 6]
        if 32768 - index % 32768 < 7 or not kind:  # the rest of a block is empty
            index += 32768 - index % 32768
            continue
        waiting += log[index + 7 : index + 7 + size]
        index += 7 + size
        if kind in (1, 4):  # full record or its last part
            yield waiting
            waiting = b""


def of_wandb(folder: Path) -> Curve:
    """Return the rows of the file that wandb writes for a later `wandb sync`."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # its background process has written everything by then
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    result = []
    for content in records_of(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content)
        if record.WhichOneof("record_type") == "history":
            row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            result.append((int(row["_step"]), row["loss"]))
    return result


def of_mlflow(folder: Path) -> Curve:
    import mlflow

    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("lemma").experiment_id])
    assert run.info.run_name == "run" and run.info.status == "FINISHED"
    assert (run.data.params["recipe.steps"], run.data.params["model.hidden"]) == ("4", "12")
    return [(item.step, item.value) for item in client.get_metric_history(run.info.run_id, "loss")]


def of_trackio(folder: Path) -> Curve:
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = SQLiteStorage.get_runs("lemma")
    return [(int(row["step"]), row["loss"]) for row in SQLiteStorage.get_logs("lemma", run)]


READERS: dict[str, Callable[[Path], Curve]] = {
    "tensorboard": of_tensorboard,
    "wandb": of_wandb,
    "mlflow": of_mlflow,
    "trackio": of_trackio,
}


@pytest.mark.parametrize("name", READERS)
def test_trackers_get_metric_rows_without_printing(
    name: str, tmp_path: Path, spec_and_data: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(name, reason=f"pip install {name}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    if name == "trackio":
        for module in ("trackio.utils", "trackio.sqlite_storage"):
            monkeypatch.setattr(f"{module}.TRACKIO_DIR", tmp_path / "trackio")
    train_small(tmp_path / "run", "lstm", spec_and_data, steps=4, tracker=name)
    rows = RunFolder.open(tmp_path / "run").metrics.rows()
    result = READERS[name](tmp_path)
    assert [step for step, _ in result] == [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [loss for _, loss in result] == pytest.approx([row["loss"] for row in rows])
    assert capsys.readouterr().out == ""


def test_missing_tracker_error_says_what_to_install(
    tmp_path: Path, spec_and_data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("wandb", "mlflow", "trackio"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(SpecError, match=rf"pip install 'lemma-lm\[{name}\]'"):
            train_small(tmp_path / "run", "lstm", spec_and_data, tracker=name)
    assert not (tmp_path / "run").exists()


def test_tracker_failure_is_an_error_at_start_and_a_warning_later(
    tmp_path: Path, spec_and_data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*row: object, **named: object) -> None:
        raise OSError("no key\nand more")

    ended: list[int] = []
    run = SimpleNamespace(log=fail, finish=lambda: ended.append(1))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=fail))
    with pytest.raises(SpecError, match=r"wandb does not begin a run \(OSError: no key\)\. Set it up, or leave it out"):
        train_small(tmp_path / "first", "lstm", spec_and_data, tracker="wandb")
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **settings: run))
    with pytest.warns(UserWarning, match="wandb takes no more rows") as caught:
        train_small(tmp_path / "later", "lstm", spec_and_data, steps=4, tracker="wandb")
    assert len(RunFolder.open(tmp_path / "later").metrics.rows()) == 4 and len(caught) == 1 and ended == [1]


def test_recipes_of_earlier_versions_load() -> None:
    assert Recipe.read({"tensorboard": True}, "recipe").tracker == "tensorboard"
    assert Recipe.read({"tensorboard": False}, "recipe").tracker is None
    with pytest.raises(SpecError, match="tracker"):
        Recipe.read({"tracker": "paper"}, "recipe")
