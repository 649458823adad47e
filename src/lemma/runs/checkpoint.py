"""Checkpoints: everything a run needs to go on bit for bit, with a sum over every file.

    checkpoints/step-200/
      GROUP.safetensors   tensors by name: model, best, optimizer, random, carried
      state.json          step, losses, counters
      manifest.json       SHA-256 and size of each of the others

A checkpoint appears by one rename. One whose files do not have their sums is named in a warning and passed over.
"""

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from lemma.data.atomic import replacing, sweep
from lemma.errors import RunError
from lemma.runs.plain import read_json
from lemma.runs.tensors import read_tensors, write_tensors

KEPT = 2
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stood after a step: tensors in named groups, and plain values."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any] = field(default_factory=dict)


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Save a checkpoint as `folder/step-N` and keep the last two."""
    folder.mkdir(exist_ok=True)
    path = folder / f"step-{checkpoint.step}"
    with replacing(path) as temporary:
        temporary.mkdir()
        for group, tensors in checkpoint.tensors.items():
            write_tensors(temporary / f"{group}.safetensors", tensors)
        state = {"step": checkpoint.step, **checkpoint.state}
        (temporary / "state.json").write_text(json.dumps(state, indent=1))
        sums = {file.name: _sum(file) for file in sorted(temporary.iterdir())}
        (temporary / MANIFEST).write_text(json.dumps(sums, indent=1))
    for old in saved(folder)[:-KEPT]:
        shutil.rmtree(old)
    return path


def saved(folder: Path) -> list[Path]:
    """List the checkpoints of a run, oldest first, good or not."""
    found = [path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdigit()]
    return sorted(found, key=_step)


def latest_good(folder: Path, tell: Callable[[str], None] = warnings.warn) -> Checkpoint | None:
    """Read the newest checkpoint whose files all have their sums; None if none was ever saved."""
    reasons: list[str] = []
    for path in reversed(saved(folder)):
        try:
            return read(path)
        except RunError as error:
            reasons.append(str(error))
            tell(f"{error} That checkpoint is passed over.")
    if reasons:
        raise RunError(f"{folder} holds no good checkpoint. {' '.join(reasons)} Train anew with --overwrite.")
    return None


def read(path: Path) -> Checkpoint:
    """Read one checkpoint; a missing or damaged file is a RunError that names it."""
    sums = read_json(path / MANIFEST)
    for name, expected in sums.items():
        if not (path / name).is_file():
            raise RunError(f"{path / name} is missing.")
        if _sum(path / name) != expected:
            raise RunError(f"{path / name} is damaged: its size or SHA-256 is not the one in {MANIFEST}.")
    state = read_json(path / "state.json")
    groups = [Path(name) for name in sums if name.endswith(".safetensors")]
    return Checkpoint(state["step"], {name.stem: read_tensors(path / name)[0] for name in groups}, state)


def drop_after(folder: Path, step: int) -> None:
    """Remove checkpoints later than a step: those a run that resumes there has passed over."""
    sweep(folder)
    for path in saved(folder):
        if _step(path) > step:
            shutil.rmtree(path)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _sum(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return {"sha256": hashlib.file_digest(stream, "sha256").hexdigest(), "bytes": file.stat().st_size}
