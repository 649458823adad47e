"""A run killed with SIGKILL at any point and resumed equals the uninterrupted run bit for bit."""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

import small_runs
from lemma.runs.checkpoint import list_checkpoints, read_latest_checkpoint, read_weights
from lemma.runs.folder import RunFolder

RECIPE = {"steps": 40, "dropout": 0.2, "evaluate_every": 7, "checkpoint_every": 4, "patience": 50}
CLOCK = {"seconds", "tokens_per_second"}
PROCESSES = multiprocessing.get_context("forkserver")  # a fork server that has imported torch starts them quickly
PROCESSES.set_forkserver_preload(["small_runs", "torch._dynamo"])


def run_child(home: str, order: dict[str, Any]) -> None:
    """Run `small_runs.main` in a child process."""
    os.environ["LEMMA_HOME"] = home
    small_runs.main(order)


def start_child(out: Path, **order: Any) -> BaseProcess:
    process = PROCESSES.Process(target=run_child, args=(str(out.parent), {"out": str(out), **order}))
    process.start()
    return process


def run_to_completion(out: Path, **order: Any) -> None:
    process = start_child(out, **order)
    process.join(120)
    assert process.exitcode == 0


def kill_when(process: BaseProcess, ready: Callable[[], bool]) -> None:
    """Kill the process as soon as `ready()` holds; it must still be running then."""
    while process.is_alive() and not ready():
        time.sleep(0.0002)
    process.kill()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL, "it had ended before it could be killed"


def rows_without_times(out: Path) -> list[dict[str, object]]:
    return [{key: row[key] for key in row if key not in CLOCK} for row in RunFolder.open(out).metrics.rows()]


def half_written(out: Path) -> bool:
    """Return whether a checkpoint is being written at this moment, with something in it."""
    return any((out / "checkpoints").glob(".step-*.partial/*"))


def rows_written(out: Path, number: int) -> bool:
    try:
        return (out / "metrics.jsonl").read_bytes().count(b"\n") >= number
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("family", ["decoder", "lstm"])
def test_repeatedly_killed_run_equals_the_uninterrupted_run(tmp_path: Path, family: str) -> None:
    full, killed = tmp_path / "whole", tmp_path / "killed"
    run_to_completion(full, family=family, recipe=RECIPE)
    source = random.Random(family)
    kill_when(start_child(killed, family=family, recipe=RECIPE), lambda: (killed / "spec.toml").exists())
    for first in (2, 16):  # killed at a random row of metrics, then in the middle of a checkpoint
        number = source.randint(first, first + 8)
        kill_when(start_child(killed, resume=True), lambda number=number: rows_written(killed, number))
        kill_when(start_child(killed, resume=True), lambda: half_written(killed))
    run_to_completion(killed, resume=True)
    item, other = (read_weights(out / "model.safetensors")[0] for out in (full, killed))
    assert item.keys() == other.keys() and all(torch.equal(item[name], other[name]) for name in item)
    assert rows_without_times(killed) == rows_without_times(full)
    last = [read_latest_checkpoint(out / "checkpoints") for out in (full, killed)]
    for group in last[0].tensors:
        assert all(
            torch.equal(last[0].tensors[group][name], last[1].tensors[group][name]) for name in last[0].tensors[group]
        )
    assert not list(killed.rglob("*.partial")) and len(list_checkpoints(killed / "checkpoints")) == 2
