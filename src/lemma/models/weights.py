"""The weights of a model: by name, in a file, and in the memory layout that decodes fastest."""

import math
import re
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

LARGE_MATRIX = 2**18  # numbers; smaller ones stay in the processor's cache, where their order matters little


def named_weights(model: nn.Module, include_frozen: bool = False) -> dict[str, Tensor]:
    """Return the trainable tensors and buffers of a model by name, not copied; a tied tensor under its first name.

    Frozen parameters are those of a base, and only included if asked for.
    """
    first_names: dict[int, str] = {}
    tensors = model.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        if include_frozen or tensor.requires_grad or not isinstance(tensor, nn.Parameter):
            first_names.setdefault(id(tensor), name)
    return {name: tensors[name].detach() for name in first_names.values()}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write a safetensors file with the rights that the umask gives; a disk that refuses is an OSError."""
    path.touch()
    mode = path.stat().st_mode  # the library itself lets nobody else read its files
    try:
        save_file(dict(tensors), path, dict(header))
    except SafetensorError as error:
        if number := re.search(r"os error (\d+)", str(error)):  # such as a full disk
            raise OSError(int(number[1]), str(error), str(path)) from None
        raise
    path.chmod(mode)


def weight_versions(model: nn.Module) -> tuple[Any, ...]:
    """Return a key that changes when a weight or a buffer of a model is replaced, moved or written to in place.

    Writes through `.data` and by fused optimizers do not change it.
    """
    tensors = chain(model.parameters(), model.buffers())
    return tuple((tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in tensors)


def store_column_major(model: nn.Module, copy_values: bool = True) -> None:
    """Store large matrices on a CPU that have no fewer rows than columns in column-major order.

    Multiplying one vector, as in decoding, takes the time of reading the matrix. With MKL that is 1.1 to 2 times faster
    along columns unless rows are longer; for many vectors the order hardly matters.

    Args:
        copy_values: False for weights that are not filled in yet.
    """
    for module in model.modules():
        if not isinstance(module, nn.Linear) or module.weight.device.type != "cpu":
            continue
        weight = module.weight.data
        rows, columns = weight.shape
        if rows >= columns and weight.numel() >= LARGE_MATRIX and weight.stride(0) != 1:
            column_major = weight.new_empty(columns, rows).t()
            module.weight.data = column_major.copy_(weight) if copy_values else column_major


def benefits_from_threads(weight: Tensor) -> bool:
    """Return whether reading a matrix takes longer than starting the threads."""
    is_dense = weight.is_contiguous() or weight.t().is_contiguous()
    return weight.device.type == "cpu" and weight.numel() >= LARGE_MATRIX and is_dense


def threaded_linear(
    weight: Float[Tensor, "rows columns"], bias: Float[Tensor, " rows"] | None, vectors: Float[Tensor, "*batch columns"]
) -> Float[Tensor, "*batch rows"]:
    """Apply a linear map with all threads also to a single vector, for which MKL uses one of them.

    Each thread multiplies its part of the inputs, and the results are added; row-major, each has its part of outputs.
    """
    rows, columns = weight.shape
    is_column_major = weight.stride(0) == 1
    parts = math.gcd(torch.get_num_threads(), columns if is_column_major else rows)
    if parts == 1 or vectors.numel() != columns:
        return functional.linear(vectors, weight, bias)
    if is_column_major:
        output = torch.bmm(vectors.reshape(parts, 1, -1), weight.t().view(parts, -1, rows)).sum(0)
    else:
        output = torch.bmm(vectors.reshape(1, 1, -1).expand(parts, 1, -1), weight.view(parts, -1, columns).mT)
    output = output.view(*vectors.shape[:-1], rows)
    return output if bias is None else output + bias
