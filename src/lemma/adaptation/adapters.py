"""Adapters: bottlenecks after modules of a frozen model, x + W_up σ(W_down x) (Houlsby et al. 2019)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lemma.adaptation.lora import PARAMETER_CONTAINERS, format_paths, is_conv1d, match_patterns
from lemma.errors import InputError, SpecError
from lemma.layers.attention import Attention
from lemma.layers.feed_forward import FeedForwardLayer, gelu
from lemma.models.feed_forward import FeedForwardModel
from lemma.spec.recipe import Adapters

ADAPTER_NAME = "adapter"


class Adapter(nn.Module):
    """Bottleneck adapter: x + W_up σ(W_down x + b) + c with σ the gelu: 2dm + m + d numbers.

    It starts as the identity, W_up and c being zero.
    """

    def __init__(self, width: int, bottleneck: int, like: Tensor | None = None) -> None:
        super().__init__()
        half = like is not None and like.dtype in (torch.float16, torch.bfloat16)
        options = {} if like is None else {"device": like.device, "dtype": torch.float32 if half else like.dtype}
        self.down = nn.Linear(width, bottleneck, **options)
        self.up = nn.Linear(bottleneck, width, **options)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, output: Any) -> Any:
        """Return the adapted `output` of the module before; if that is a tuple, its first tensor is adapted."""
        if isinstance(output, Tensor):
            return self.adapt(output)
        if isinstance(output, Mapping):  # such as Hugging Face's outputs
            values = dict(output)
            first = next(iter(values))
            return type(output)(**{**values, first: self(values[first])})
        if hasattr(output, "_fields"):  # named tuples, packed sequences among them
            return output._replace(**{output._fields[0]: self(output[0])})
        if isinstance(output, (tuple, list)) and output:
            return type(output)([self(output[0]), *output[1:]])
        raise InputError(f"an adapter comes after a module that returns a {type(output).__name__}; expected a tensor.")

    def adapt(self, vectors: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Return x + W_up σ(W_down x + b) + c for each vector x."""
        if vectors.shape[-1] != self.down.in_features:
            raise InputError(
                f"an adapter of width {self.down.in_features} comes after a module that returns vectors of "
                f"{vectors.shape[-1]}. Place it after a module whose width is known, such as a linear layer."
            )
        change = self.up(gelu(self.down(vectors.to(self.down.weight.dtype))))
        return vectors + change.to(vectors.dtype)


def has_adapters(model: nn.Module) -> bool:
    """Return whether some module of a model has an adapter."""
    return any(isinstance(module._modules.get(ADAPTER_NAME), Adapter) for module in model.modules())


UNCALLED_MODULES = (
    nn.ModuleList,
    nn.ModuleDict,
    *PARAMETER_CONTAINERS,
    nn.modules.linear.NonDynamicallyQuantizableLinear,
)
"""Modules that are never called: their owners read their contents."""


def _apply_adapter(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
    """Return the module's output changed by its adapter: the forward hook that `add_adapters` registers."""
    adapter: Any = module._modules[ADAPTER_NAME]
    return adapter(output)


def add_adapters(model: nn.Module, method: Adapters) -> list[str]:
    """Add an adapter after every module that matches the method's `placement`; return the paths of these modules.

    A module keeps its class and names. A sequence of modules gets one more; any other module gets a hook that finds the
    adapter in the module itself, so copies of the module have their own.
    """
    targets = select_modules(model, method.placement)
    adapters = [_new_adapter(model, path, module, method.bottleneck) for path, module in targets]  # all or none
    for (_, module), adapter in zip(targets, adapters, strict=True):
        module.add_module(ADAPTER_NAME, adapter.train(module.training))
        if type(module).forward is not nn.Sequential.forward:
            module.register_forward_hook(_apply_adapter)
    for stack in model.modules():
        if isinstance(stack, nn.TransformerEncoder):
            stack.use_nested_tensor = False  # torch's fast path for padded rows ignores adapters
    return [path for path, _ in targets]


def select_modules(model: nn.Module, placement: Sequence[str]) -> list[tuple[str, nn.Module]]:
    """Return (path, module) of each module that matches a pattern in `placement`; by default those of the family."""
    modules = list(model.named_modules())
    if placement:
        return [modules[index] for index in match_patterns("placement", placement, [{path} for path, _ in modules])]
    by_path = dict(modules)
    paths = [path for path in _default_paths(model) if path in by_path]
    if not paths:
        callable_modules = [(path, module) for path, module in modules if not isinstance(module, UNCALLED_MODULES)]
        fit = format_paths(path for path, module in callable_modules if path and output_width(module))
        raise SpecError(
            f"{type(model).__name__} has no default places for adapters. Name them, as in "
            f"placement='*.mlp'; there are: {fit}."
        )
    return [(path, by_path[path]) for path in dict.fromkeys(paths)]


def _new_adapter(model: nn.Module, path: str, module: nn.Module, bottleneck: int) -> Adapter:
    """Return a new adapter of width `bottleneck` for the module at `path`; raise SpecError if it cannot have one."""
    if isinstance(module, UNCALLED_MODULES):
        raise SpecError(
            f"placement: {path or 'the model'} is never called, its owner reads its contents: an adapter after it "
            f"would do nothing. Place it after {path.rpartition('.')[0] or 'a part of it'}, or after a part of it."
        )
    if hasattr(module, ADAPTER_NAME):
        raise SpecError(f"placement: {path} has an '{ADAPTER_NAME}' already. Take the plain model, or another module.")
    width = output_width(module)
    if width is None:
        raise SpecError(f"placement: {path} has no known output width. Name a linear layer inside it.")
    parameters = (parameter for source in (module, model) for parameter in source.parameters())
    return Adapter(width, bottleneck, next((p for p in parameters if p.is_floating_point()), None))


def output_width(module: nn.Module) -> int | None:
    """Return the width of a module's output, or of its last submodule with a known width; None if unknown."""
    widths = (_layer_width(layer) for layer in (module, *reversed(list(module.modules()))))
    return next(filter(None, widths), None)


def _default_paths(model: nn.Module) -> Iterator[str]:
    """Yield the paths of the modules that get adapters by default, such as attention and feed-forward layers."""
    for path, module in model.named_modules():
        match module:
            case Attention():
                yield f"{path}.output".lstrip(".")
            case FeedForwardLayer() | nn.RNNBase():
                yield path
            case nn.TransformerEncoderLayer() | nn.TransformerDecoderLayer():
                yield from (f"{path}.{name}".lstrip(".") for name in ("self_attn", "multihead_attn", "linear2"))
            case FeedForwardModel():
                yield f"{path}.hidden".lstrip(".")


def _layer_width(module: nn.Module) -> int | None:
    """Return the output width of a single torch layer; None for other modules."""
    match module:
        case nn.Linear():
            return module.out_features
        case nn.Embedding():
            return module.embedding_dim
        case nn.LayerNorm() | nn.RMSNorm():
            return module.normalized_shape[-1]
        case nn.MultiheadAttention():
            return module.embed_dim
        case nn.RNNCellBase():
            return module.hidden_size
        case nn.RNNBase():
            return (module.proj_size or module.hidden_size) * (2 if module.bidirectional else 1)
    return int(module.nf) if is_conv1d(module) else None  # pyright: ignore[reportArgumentType]
