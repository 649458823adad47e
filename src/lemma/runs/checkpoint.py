"""Tensors, weights and checkpoints on disk, with checksums."""

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from lemma.errors import RunError, SpecError
from lemma.files import (
    atomic_replace,
    file_checksum,
    parse_json,
    read_checked_json,
    read_json,
    remove_atomically,
    remove_stale_temp_files,
    text_hash,
    unreadable_error,
    verify_file,
    with_checksum,
)
from lemma.models.weights import named_weights, save_tensors
from lemma.spec.choose import read_model
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import Method

METADATA_KEY = "lemma"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> None:
    """Write tensors, from whatever device, with a few plain values about them in the file's header.

    The header's own entries come in any order, so these are one entry: equal tensors then give equal files.
    """
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_tensors(path, on_cpu, {METADATA_KEY: json.dumps(metadata or {})})


def read_header(path: Path) -> dict[str, Any]:
    """Read what is said about the tensors of a file, without them."""
    try:
        path.open("rb").close()  # the library takes a file that it may not read for a missing one
        with safe_open(path, framework="pt") as file:
            about = parse_json((file.metadata() or {}).get(METADATA_KEY, "{}"))
            if not isinstance(about, dict):
                raise ValueError("what its header says of the tensors is not a JSON object")
            return about
    except FileNotFoundError:
        raise RunError(f"{path} is missing.") from None
    except OSError as error:
        raise unreadable_error(path, error) from None
    except (SafetensorError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}.") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors in their order by name, and what is said about them; a damaged file is a RunError that names it.

    Each is copied: where safetensors puts one in memory depends on the file's header, and kernels round misaligned
    numbers differently.
    """
    about = read_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in sorted(file.keys())}, about
    except OSError as error:
        raise unreadable_error(path, error) from None
    except (SafetensorError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}.") from None


# A model's weights on their way to a file and back.
#
# The file says in its header which spec the weights belong to and what their SHA-256 is, so that a flipped bit, or a
# spec changed afterwards, is met with an error and not with a model that talks nonsense. The header has a sum itself.


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path, frozen: bool = False) -> None:
    """Copy weights into a model; tensors it does not expect, in name or shape, are a RunError about `where`."""
    own = named_weights(model, frozen)
    expected, got = ({name: tuple(tensor.shape) for name, tensor in some.items()} for some in (own, weights))
    if expected != got:
        raise RunError(f"{path} does not fit its spec: {_first_difference(expected, got)}.")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])


def write_weights(path: Path, weights: Mapping[str, Tensor], spec: ModelSpec, method: Method | None = None) -> None:
    """Write weights atomically, with their spec, how they were adapted, and their sum in the header."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    with atomic_replace(path) as temporary:
        about = {"spec": weights_settings(spec, method), "sha256": _digest(on_cpu)}
        write_tensors(temporary, on_cpu, {**about, "header": text_hash(json.dumps(about, sort_keys=True))})


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read weights and the words of the spec they were trained for; damage is a RunError that names the file."""
    weights, about = read_tensors(path)
    if about.get("sha256") != _digest(weights):
        raise RunError(f"{path} is damaged: its numbers do not have the SHA-256 written in its header.")
    spec, whole = about.get("spec"), about.pop("header", None)
    if not isinstance(spec, dict) or whole not in (None, text_hash(json.dumps(about, sort_keys=True))):
        raise RunError(f"{path} is damaged: what its header says of the model was changed.")
    return weights, spec


def weights_hash(path: Path) -> str:
    """The SHA-256 of the weights in a file, as its header has it; the weights themselves are not read."""
    return str(read_header(path).get("sha256", ""))


def weights_settings(spec: ModelSpec, method: Method | None = None) -> dict[str, Any]:
    """The words that weights belong to: the spec's, and if they were adapted, how."""
    return {**spec.to_dict(), **({"method": method.to_dict()} if method else {})}


def check_weights_spec(path: Path, trained: Mapping[str, Any], spec: ModelSpec, method: Method | None = None) -> None:
    """Refuse weights trained for another spec, naming the word that differs; shapes alone would not tell heads.

    A setting that is newer than the file has its default there.
    """
    said = weights_settings(spec, method)
    with suppress(SpecError):
        plain = read_model({word: value for word, value in trained.items() if word != "method"}, str(path))
        trained = {**trained, **plain.to_dict()}
    for word in {**trained, **said}:
        if trained.get(word) != said.get(word):
            file = "adaptation.toml" if word == "method" else "spec.toml"
            raise RunError(
                f"{path} holds {word} {trained.get(word)}, {file} says {said.get(word)}. "
                f"Put it back in {file}, or train again."
            )


def _digest(weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(f"{name} {weights[name].dtype} {tuple(weights[name].shape)}\n".encode())
        digest.update(weights[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _first_difference(expected: Mapping[str, tuple[int, ...]], got: Mapping[str, tuple[int, ...]]) -> str:
    for name in sorted({*expected, *got}):
        if expected.get(name) != got.get(name):
            return f"{name} is {got.get(name, 'missing')}, expected {expected.get(name, 'no such tensor')}"
    raise AssertionError("asked for a difference where there is no difference")


# Checkpoints: everything a run needs to resume bit for bit, with a checksum of every file.
#
#     checkpoints/step-200/
#       GROUP.safetensors   tensors by name: model, best, optimizer, random, carried
#       state.json          step, losses, counters
#       manifest.json       SHA-256 and size of each of the others
#
# A checkpoint appears by one rename. One whose files do not have their checksums is skipped with a warning.


MAX_CHECKPOINTS = 2
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stood after a step: tensors in named groups, and plain values."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any] = field(default_factory=dict)


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Save a checkpoint as `folder/step-N` and keep the last two."""
    folder.mkdir(exist_ok=True)
    path = folder / f"step-{checkpoint.step}"
    with atomic_replace(path) as temporary:
        temporary.mkdir()
        for group, tensors in checkpoint.tensors.items():
            write_tensors(temporary / f"{group}.safetensors", tensors)
        state = {"step": checkpoint.step, **checkpoint.state}
        (temporary / "state.json").write_text(json.dumps(state, indent=1))
        sums = {file.name: file_checksum(file) for file in sorted(temporary.iterdir())}
        (temporary / MANIFEST).write_text(json.dumps(with_checksum({"files": sums}), indent=1))
    for old in list_checkpoints(folder)[:-MAX_CHECKPOINTS]:
        remove_atomically(old)
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a run, oldest first, good or not."""
    found = [path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdigit()]
    return sorted(found, key=_step)


def read_latest_checkpoint(folder: Path, warn: Callable[[str], None] = warnings.warn) -> Checkpoint | None:
    """Read the newest checkpoint whose files all have their sums; None if none was ever saved."""
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
    """Read one checkpoint; a missing or damaged file is a RunError that names it."""
    sums = read_checksums(path)
    for name, expected in sums.items():
        verify_file(path / name, expected, MANIFEST)
    state = read_json(path / "state.json")
    if type(state.get("step")) is not int:
        raise RunError(f"{path / 'state.json'} is damaged: it does not say its step.")
    groups = [Path(name) for name in sums if name.endswith(".safetensors")]
    return Checkpoint(state["step"], {name.stem: read_tensors(path / name)[0] for name in groups}, state)


def read_checksums(folder: Path) -> dict[str, Any]:
    """The checksums of a folder's files by name; those of version 0.1 had none themselves."""
    plain = read_json(folder / MANIFEST)
    sums = read_checked_json(folder / MANIFEST).get("files") if "sha256" in plain else plain
    if not isinstance(sums, dict) or any(Path(name).name != name for name in sums):
        raise RunError(f"{folder / MANIFEST} is damaged: it does not list the files of its folder.")
    return sums


def remove_checkpoints_after(folder: Path, step: int) -> None:
    """Remove checkpoints later than a step: those a run that resumes there has passed over."""
    remove_stale_temp_files(folder)
    for path in list_checkpoints(folder):
        if _step(path) > step:
            remove_atomically(path)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))
