"""A model's weights on their way to a file and back.

The file says in its header which spec the weights belong to and what their SHA-256 is, so that a flipped bit, or a
spec changed afterwards, is met with an error and not with a model that talks nonsense.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lemma.data.atomic import replacing
from lemma.errors import RunError
from lemma.runs.tensors import read_header, read_tensors, write_tensors
from lemma.spec import Method, ModelSpec


def weights_of(model: nn.Module, frozen: bool = False) -> dict[str, Tensor]:
    """Return what a model learns by name, not copied; a tied tensor stands once, under its first name.

    Frozen parameters are those of a base, and only named if asked for.
    """
    first: dict[int, str] = {}
    tensors = model.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        if frozen or tensor.requires_grad or not isinstance(tensor, nn.Parameter):
            first.setdefault(id(tensor), name)
    return {name: tensors[name].detach() for name in first.values()}


def put_weights(model: nn.Module, weights: Mapping[str, Tensor], where: Path, frozen: bool = False) -> None:
    """Copy weights into a model; tensors it does not expect, in name or shape, are a RunError about `where`."""
    own = weights_of(model, frozen)
    expected, got = ({name: tuple(tensor.shape) for name, tensor in some.items()} for some in (own, weights))
    if expected != got:
        raise RunError(f"{where} does not fit its spec: {_first_difference(expected, got)}.")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])


def write_weights(path: Path, weights: Mapping[str, Tensor], spec: ModelSpec, method: Method | None = None) -> None:
    """Write weights atomically, with their spec, how they were adapted, and their sum in the header."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    with replacing(path) as temporary:
        write_tensors(temporary, on_cpu, {"spec": words_of(spec, method), "sha256": _sum(on_cpu)})


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read weights and the words of the spec they were trained for; damage is a RunError that names the file."""
    weights, about = read_tensors(path)
    if about.get("sha256") != _sum(weights):
        raise RunError(f"{path} is damaged: its numbers do not have the SHA-256 written in its header.")
    return weights, about["spec"]


def hash_of(path: Path) -> str:
    """The SHA-256 of the weights in a file, as its header has it; the weights themselves are not read."""
    return str(read_header(path).get("sha256", ""))


def words_of(spec: ModelSpec, method: Method | None = None) -> dict[str, Any]:
    """The words that weights belong to: the spec's, and if they were adapted, how."""
    return {**spec.to_dict(), **({"method": method.to_dict()} if method else {})}


def refuse_other_spec(where: Path, trained: Mapping[str, Any], spec: ModelSpec, method: Method | None = None) -> None:
    """Refuse weights trained for another spec, naming the word that differs; shapes alone would not tell heads."""
    said = words_of(spec, method)
    for word in {**trained, **said}:
        if trained.get(word) != said.get(word):
            file = "adaptation.toml" if word == "method" else "spec.toml"
            raise RunError(
                f"{where} holds {word} {trained.get(word)}, {file} says {said.get(word)}. "
                f"Put the word back in {file}, or train anew."
            )


def _sum(weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(f"{name} {weights[name].dtype} {tuple(weights[name].shape)}\n".encode())
        digest.update(weights[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _first_difference(expected: Mapping[str, tuple[int, ...]], got: Mapping[str, tuple[int, ...]]) -> str:
    for name in sorted({*expected, *got}):
        if expected.get(name) != got.get(name):
            return f"{name} is {got.get(name, 'missing')}, expected {expected.get(name, 'no such tensor')}"
    raise AssertionError("asked for a difference where there is none")
