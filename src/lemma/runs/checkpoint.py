"""Tensors, weights and checkpoints on disk, with checksums.

A file of weights has in its header the spec that they belong to and their SHA-256, so that a flipped bit, or a spec
changed afterwards, is an error and not a model that talks nonsense. The header has a checksum itself.

A checkpoint has everything that a run needs to resume bit for bit. It appears by one rename; one whose files do not
have their checksums is skipped with a warning.

    checkpoints/step-200/
      GROUP.safetensors   tensors by name: model, best, optimizer, random, carried
      state.json          step, losses, counters
      manifest.json       SHA-256 and size of each of the others
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from lemma.errors import RunError, SpecError
from lemma.files import (
    atomic_replace,
    parse_json,
    read_checked_json,
    read_json,
    remove_atomically,
    remove_stale_temp_files,
    text_hash,
    unreadable_error,
    verify_file,
    write_checksums,
)
from lemma.models.base import named_weights, save_tensors
from lemma.spec.choose import read_model
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import Method

METADATA_KEY = "lemma"
MANIFEST = "manifest.json"
MAX_CHECKPOINTS = 2


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> None:
    """Write tensors to a safetensors file, with JSON-compatible metadata in its header.

    The order of entries in the header varies, so all values are one entry: equal tensors then give equal files.
    """
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_tensors(path, on_cpu, {METADATA_KEY: json.dumps(metadata or {})})


def read_header(path: Path) -> dict[str, Any]:
    """Return the metadata of a safetensors file without reading its tensors."""
    with _explain_damage(path), safe_open(path, framework="pt") as file:
        metadata = parse_json((file.metadata() or {}).get(METADATA_KEY, "{}"))
        if not isinstance(metadata, dict):
            raise ValueError("what its header says of the tensors is not a JSON object")
        return metadata


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a safetensors file, sorted by name, and its metadata; raise RunError if it is damaged.

    Each is copied: where safetensors puts one in memory depends on the file's header, and kernels round misaligned
    numbers differently.
    """
    metadata = read_header(path)
    with _explain_damage(path), safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name).clone() for name in sorted(file.keys())}, metadata


@contextmanager
def _explain_damage(path: Path) -> Iterator[None]:
    """Turn errors of reading a file in the block into RunErrors that name the file."""
    try:
        path.open("rb").close()  # safetensors takes a file that it may not read for a missing one
        yield
    except FileNotFoundError:
        raise RunError(f"{path} is missing.") from None
    except OSError as error:
        raise unreadable_error(path, error) from None
    except (SafetensorError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}.") from None


# Weights


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path, frozen: bool = False) -> None:
    """Copy weights (name → tensor) into a model; raise RunError, which names `path`, unless names and shapes agree.

    `frozen` tells whether the weights include those of frozen parameters.
    """
    targets = named_weights(model, frozen)
    expected, actual = ({name: tuple(tensor.shape) for name, tensor in each.items()} for each in (targets, weights))
    for name in sorted({*expected, *actual}):
        if expected.get(name) != actual.get(name):
            raise RunError(
                f"{path} does not fit its spec: {name} is {actual.get(name, 'missing')}, expected "
                f"{expected.get(name, 'no such tensor')}."
            )
    with torch.no_grad():
        for name, tensor in targets.items():
            tensor.copy_(weights[name])


def write_weights(path: Path, weights: Mapping[str, Tensor], spec: ModelSpec, method: Method | None = None) -> None:
    """Write weights atomically with their spec, adaptation method and checksum in the header."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    with atomic_replace(path) as temporary:
        metadata = {"spec": weights_settings(spec, method), "sha256": _hash_weights(on_cpu)}
        write_tensors(temporary, on_cpu, {**metadata, "header": _header_checksum(metadata)})


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights in a file by name, and their model's settings; raise RunError for a wrong checksum."""
    weights, metadata = read_tensors(path)
    if metadata.get("sha256") != _hash_weights(weights):
        raise RunError(f"{path} is damaged: its numbers do not have the SHA-256 written in its header.")
    settings, checksum = metadata.get("spec"), metadata.pop("header", None)
    if not isinstance(settings, dict) or checksum not in (None, _header_checksum(metadata)):
        raise RunError(f"{path} is damaged: what its header says of the model was changed.")
    return weights, settings


def weights_settings(spec: ModelSpec, method: Method | None = None) -> dict[str, Any]:
    """Return the settings that a weights file records: those of the spec and, if adapted, of the method."""
    return {**spec.to_dict(), **({"method": method.to_dict()} if method else {})}


def check_weights_spec(path: Path, trained: Mapping[str, Any], spec: ModelSpec, method: Method | None = None) -> None:
    """Raise RunError unless `trained`, the settings in the weights file `path`, are those of the spec and the method.

    Equal shapes would not tell, for instance, the number of heads. A setting newer than the file has its default there.
    """
    expected = weights_settings(spec, method)
    with suppress(SpecError):
        settings = {name: value for name, value in trained.items() if name != "method"}
        trained = {**trained, **read_model(settings, str(path)).to_dict()}
    for name in {**trained, **expected}:
        if trained.get(name) != expected.get(name):
            file = "adaptation.toml" if name == "method" else "spec.toml"
            raise RunError(
                f"{path} holds {name} {trained.get(name)}, {file} says {expected.get(name)}. "
                f"Put it back in {file}, or train again."
            )


def _header_checksum(metadata: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the metadata in a weights file's header."""
    return text_hash(json.dumps(metadata, sort_keys=True))


def _hash_weights(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of weights: of their names, types, shapes and numbers."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(f"{name} {weights[name].dtype} {tuple(weights[name].shape)}\n".encode())
        digest.update(weights[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# Checkpoints


@dataclass(frozen=True)
class Checkpoint:
    """State of a run after a step: tensors by group and name, and JSON values."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any] = field(default_factory=dict)


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint to `folder/step-N`; return its path; remove all but the newest two."""
    folder.mkdir(exist_ok=True)
    path = folder / f"step-{checkpoint.step}"
    with atomic_replace(path) as temporary:
        temporary.mkdir()
        for group, tensors in checkpoint.tensors.items():
            write_tensors(temporary / f"{group}.safetensors", tensors)
        state = {"step": checkpoint.step, **checkpoint.state}
        (temporary / "state.json").write_text(json.dumps(state, indent=1))
        write_checksums(temporary, MANIFEST)
    for old in list_checkpoints(folder)[:-MAX_CHECKPOINTS]:
        remove_atomically(old)
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the paths of the checkpoints in a folder, oldest first, damaged ones included."""
    paths = [path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdigit()]
    return sorted(paths, key=_parse_step)


def read_latest_checkpoint(folder: Path, warn: Callable[[str], None] = warnings.warn) -> Checkpoint | None:
    """Read the newest undamaged checkpoint in a folder; None if there is no checkpoint.

    `warn` gets a message for each damaged checkpoint; if all are damaged, a RunError is raised.
    """
    reasons: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            return read_checkpoint(path)
        except RunError as error:
            reasons.append(str(error))
            warn(f"{error} That checkpoint is skipped.")
    if reasons:
        raise RunError(f"{folder} holds no good checkpoint. {' '.join(reasons)} Train again with --overwrite.")
    return None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read the checkpoint at a path; a missing or damaged file is a RunError that names it."""
    checksums = read_checksums(path)
    for name, expected in checksums.items():
        verify_file(path / name, expected, MANIFEST)
    state = read_json(path / "state.json")
    if type(state.get("step")) is not int:
        raise RunError(f"{path / 'state.json'} is damaged: it does not say its step.")
    files = [path / name for name in checksums if name.endswith(".safetensors")]
    return Checkpoint(state["step"], {file.stem: read_tensors(file)[0] for file in files}, state)


def read_checksums(folder: Path) -> dict[str, Any]:
    """Return checksum and size of each file of a folder, by the file's name, from the folder's manifest."""
    checksums = read_json(folder / MANIFEST)
    if "sha256" in checksums:
        checksums = read_checked_json(folder / MANIFEST).get("files")
    if not isinstance(checksums, dict) or any(Path(name).name != name for name in checksums):
        raise RunError(f"{folder / MANIFEST} is damaged: it does not list the files of its folder.")
    return checksums


def remove_checkpoints_after(folder: Path, step: int) -> None:
    """Remove the checkpoints in a folder that are later than a step, from which the run resumes."""
    remove_stale_temp_files(folder)
    for path in list_checkpoints(folder):
        if _parse_step(path) > step:
            remove_atomically(path)


def _parse_step(path: Path) -> int:
    """Return the step N of a checkpoint from its path `…/step-N`."""
    return int(path.name.removeprefix("step-"))
