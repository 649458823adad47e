"""Adapters: bottlenecks behind modules of a frozen body, x + W_up σ(W_down x) (Houlsby et al. 2019)."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lemma.errors import InputError
from lemma.parts.gelu import gelu

NAME = "adapter"


class Adapter(nn.Module):
    """x + W_up σ(W_down x + b) + c with σ the gelu: 2dm + m + d numbers.

    It starts as the identity, W_up and c being zero.
    """

    def __init__(self, width: int, bottleneck: int, like: Tensor | None = None) -> None:
        super().__init__()
        half = like is not None and like.dtype in (torch.float16, torch.bfloat16)
        kind = {} if like is None else {"device": like.device, "dtype": torch.float32 if half else like.dtype}
        self.down = nn.Linear(width, bottleneck, **kind)
        self.up = nn.Linear(bottleneck, width, **kind)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, given: Any) -> Any:
        """Adapt what a module gives: a tensor, or the first of several things."""
        if isinstance(given, Tensor):
            return self.adapt(given)
        if isinstance(given, Mapping):  # as Hugging Face's outputs are
            changed = dict(given)
            first = next(iter(changed))
            return type(given)(**{**changed, first: self(changed[first])})
        if hasattr(given, "_fields"):  # named tuples, packed sequences among them
            return given._replace(**{given._fields[0]: self(given[0])})
        if isinstance(given, (tuple, list)) and given:
            return type(given)([self(given[0]), *given[1:]])
        raise InputError(f"an adapter stands behind a module that gives a {type(given).__name__}; expected a tensor.")

    def adapt(self, vectors: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Add what the bottleneck makes of vectors."""
        if vectors.shape[-1] != self.down.in_features:
            raise InputError(
                f"an adapter of width {self.down.in_features} stands behind a module that gives vectors of "
                f"{vectors.shape[-1]}. Place it behind a part that says its own width, such as a linear map."
            )
        made = self.up(gelu(self.down(vectors.to(self.down.weight.dtype))))
        return vectors + made.to(vectors.dtype)


def stand_behind(module: nn.Module, adapter: Adapter) -> None:
    """Let an adapter change what a module gives.

    The module keeps its place, class and names. A sequence of modules simply has one more; anything else gets a hook,
    which finds the adapter in the module itself, so that copies of the module have their own.
    """
    module.add_module(NAME, adapter.train(module.training))
    if type(module).forward is not nn.Sequential.forward:
        module.register_forward_hook(_adapt)


def has_adapter(module: nn.Module) -> bool:
    """Whether an adapter stands behind a module."""
    return isinstance(module._modules.get(NAME), Adapter)


def _adapt(module: nn.Module, given: tuple[Any, ...], made: Any) -> Any:
    adapter: Any = module._modules[NAME]
    return adapter(made)
