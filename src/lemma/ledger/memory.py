"""Bytes that a run holds: what autograd saves for the backward pass, and what a state or cache keeps."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from lemma.ledger.inside import followed
from lemma.ledger.parameters import bytes_of
from lemma.ledger.places import Readings
from lemma.ledger.subject import Inputs
from lemma.models import EncoderDecoderModel


def saved_bytes(module: nn.Module, inputs: Inputs) -> Readings:
    """Run a module forward on real tensors; return the bytes autograd saved, under the path that saved them first.

    A storage counts once, however many views of it are saved; parameters and buffers are there anyway and count not.
    """
    known = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    kept: list[Tensor] = []  # as long as they live, no other storage can have their address
    amounts: Counter[str] = Counter()
    with followed(module) as where:

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                known.add(storage.data_ptr())
                kept.append(tensor)
                amounts[where.now] += storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outputs = module(*inputs.positional, **inputs.named)
    del outputs
    return {path: (amount,) for path, amount in amounts.items()}


def state_bytes(module: nn.Module, inputs: Inputs) -> Readings:
    """The bytes of the state or cache that a module gives back beside its output, by name."""
    with torch.no_grad():
        outputs = _stepped(module, inputs)
    return {name: (bytes_of(tensor),) for name, tensor in state_tensors(outputs).items()}


def _stepped(module: nn.Module, inputs: Inputs) -> Any:
    """Call a module; an encoder–decoder reads its source and writes its target, and gives a state only then."""
    if not isinstance(module, EncoderDecoderModel):
        return module(*inputs.positional, **inputs.named)
    source, target = inputs.positional
    return module.step(target, module.begin(source))


def state_tensors(outputs: Any) -> dict[str, Tensor]:
    """The tensors of a state: one of ours, a transformers cache, or what a recurrent torch.nn module returns."""
    cache = getattr(outputs, "past_key_values", None)
    if cache is not None:
        named = [(f"layers.{number}", layer) for number, layer in enumerate(cache.layers)]
        return {f"{path}.{name}": getattr(layer, name) for path, layer in named for name in ("keys", "values")}
    state: Any = outputs[1] if isinstance(outputs, tuple) and len(outputs) > 1 else None
    if hasattr(state, "tensors"):
        return state.tensors()
    vectors = state if isinstance(state, tuple) else (state,)
    names = ("hidden", "cell")
    return {name: vector for name, vector in zip(names, vectors, strict=False) if isinstance(vector, Tensor)}
