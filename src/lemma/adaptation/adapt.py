"""Adapt any model: freeze it, then train a part of it or something added (E5)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lemma.adaptation.lora import (
    READ_BY_OTHERS,
    Beside,
    LoraMatrices,
    Update,
    besides,
    chosen_matrices,
    fitted,
    is_conv1d,
    listed,
    put,
    put_updates,
    refuse_rank,
)
from lemma.errors import InputError, SpecError
from lemma.layers.attention import Attention
from lemma.layers.feed_forward import FeedForwardPart, gelu
from lemma.models.feed_forward import AttentiveModel, FeedForwardModel
from lemma.spec.recipe import Adapters, Full, Lora, Method

# Adapters: bottlenecks behind modules of a frozen body, x + W_up σ(W_down x) (Houlsby et al. 2019).


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


# Where adapters stand: behind what a person names, or behind what the families have.


NEVER_CALLED = (nn.ModuleList, nn.ModuleDict, *READ_BY_OTHERS, nn.modules.linear.NonDynamicallyQuantizableLinear)
"""Modules whose owners read what is in them, and do not call them."""


def put_adapters(model: nn.Module, method: Adapters) -> list[str]:
    """Put an adapter behind every module that a method's placement names; return their paths."""
    places = chosen_places(model, method.placement)
    adapters = [_new_adapter(model, path, module, method.bottleneck) for path, module in places]
    for (_, module), adapter in zip(places, adapters, strict=True):
        stand_behind(module, adapter)
    for stack in model.modules():
        if isinstance(stack, nn.TransformerEncoder):
            stack.use_nested_tensor = False  # torch's fast path for padded rows knows no adapters
    return [path for path, _ in places]


def chosen_places(model: nn.Module, placement: Sequence[str]) -> list[tuple[str, nn.Module]]:
    """The modules that patterns name, each once; those of the family if none is named."""
    known = list(model.named_modules())
    if placement:
        return [known[at] for at in fitted("placement", placement, [{path} for path, _ in known])]
    named = dict(known)
    paths = [path for path in _usual_places(model) if path in named]
    if not paths:
        fit = listed(path for path, module in known if path and not _unfit(module) and width_of(module))
        raise SpecError(
            f"{type(model).__name__} has no places for adapters that are known here. Name them, as in "
            f"placement='*.mlp'; there are: {fit}."
        )
    return [(path, named[path]) for path in dict.fromkeys(paths)]


def _new_adapter(model: nn.Module, path: str, module: nn.Module, bottleneck: int) -> Adapter:
    _refuse_unfit(path, module)
    width = width_of(module)
    if width is None:
        raise SpecError(f"placement: {path} does not say how wide what it gives is. Name a linear map inside it.")
    like = [parameter for part in (module, model) for parameter in part.parameters() if parameter.is_floating_point()]
    return Adapter(width, bottleneck, next(iter(like), None))


def width_of(module: nn.Module) -> int | None:
    """The width of the vectors that a module gives: its own, or else that of the last part that has one."""
    widths = (_own_width(part) for part in (module, *reversed(list(module.modules()))))
    return next(filter(None, widths), None)


def _usual_places(model: nn.Module) -> Iterator[str]:
    """Behind attention and feed-forward of each layer, behind recurrent layers, behind a hidden layer."""
    for path, module in model.named_modules():
        match module:
            case Attention():
                yield _below(path, "output")
            case FeedForwardPart() | nn.RNNBase():
                yield path
            case nn.TransformerEncoderLayer() | nn.TransformerDecoderLayer():
                yield from (_below(path, name) for name in ("self_attn", "multihead_attn", "linear2"))
            case FeedForwardModel() | AttentiveModel():
                yield _below(path, "hidden")


def _below(path: str, name: str) -> str:
    return f"{path}.{name}".lstrip(".")


def _own_width(module: nn.Module) -> int | None:
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


def _unfit(module: nn.Module) -> bool:
    return isinstance(module, NEVER_CALLED)


def _refuse_unfit(path: str, module: nn.Module) -> None:
    if _unfit(module):
        raise SpecError(
            f"placement: {path or 'the model'} is never called, its owner reads what is in it: an adapter behind it "
            f"would do nothing. Place it behind {path.rpartition('.')[0] or 'a part of it'}, or behind a part of it."
        )
    if hasattr(module, NAME):
        raise SpecError(f"placement: {path} has an '{NAME}' already. Take the plain model, or another place.")


# Updates folded into the matrices beside which they stand, and taken out again.


Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Fold:
    """One matrix into which an update was folded, and what it was before."""

    weight: Tensor
    original: Tensor
    update: Update


@dataclass(frozen=True)
class Folded(Generic[Module]):
    """A model whose updates are in its matrices, and the way back; also a context that goes back at its end."""

    model: Module
    """The plain model: it has the structure and the names it had before it was adapted."""
    folds: tuple[Fold, ...]
    wrappers: tuple[Beside, ...]

    def unfold(self) -> Module:
        """Take the updates out again, and put them back beside the matrices.

        What a matrix was is known, so that it becomes that again to the last bit; what it learned in between is added.
        """
        with torch.no_grad():
            for fold in self.folds:
                fold.update.to(fold.weight.device)
                original = fold.original.to(fold.weight)
                fold.weight.copy_(original + (fold.weight - _sum(original, fold.update)))
        return put(self.model, {wrapper.base: wrapper.train(wrapper.base.training) for wrapper in self.wrappers})

    def __enter__(self) -> Module:
        return self.model

    def __exit__(self, *failure: object) -> None:
        self.unfold()


def fold(model: Module) -> Folded[Module]:
    """Fold every update into its matrix, for as long as it takes: the model is plain until it is unfolded."""
    _refuse_adapters(model)
    wrappers = tuple(wrapper for _, wrapper in besides(model))
    folds: dict[int, Fold] = {}
    with torch.no_grad():
        for weight, update in updated(wrappers):
            if id(weight) not in folds:  # a tied matrix stands at several places
                folds[id(weight)] = Fold(weight, weight.clone(), update)
                weight.copy_(_sum(weight, update))
    plain = put(model, {wrapper: wrapper.base for wrapper in wrappers})
    return Folded(plain, tuple(folds.values()), wrappers)


def merged(model: Module) -> Module:
    """Fold every update into its matrix for good, and let everything learn again: a plain model, with equal outputs."""
    plain = fold(model).model
    for parameter in plain.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    return plain


def updated(wrappers: tuple[Beside, ...]) -> Iterator[tuple[Tensor, Update]]:
    """Every matrix that has an update, and the update."""
    for wrapper in wrappers:
        beside: Any = wrapper.updates if isinstance(wrapper, LoraMatrices) else {"weight": wrapper.update}
        for name, update in beside.items():
            yield getattr(wrapper.base, name), update


def _sum(weight: Tensor, update: Update) -> Tensor:
    """The updated matrix, rounded once."""
    delta = update.delta()
    return (weight.to(delta.dtype) + delta).to(weight.dtype)


def _refuse_adapters(model: nn.Module) -> None:
    if any(map(has_adapter, model.modules())):
        raise SpecError(
            "adapters cannot be merged: σ stands between W_down and W_up, so that x + W_up σ(W_down x) is no matrix. "
            "Keep them behind their modules, or adapt with lora."
        )


# Adapt any model: freeze it, then let a part of it, or something beside it, learn (problem E5).


class Learned(NamedTuple):
    """A parameter that learns: its path and its shape."""

    path: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Adaptation(Generic[Module]):
    """An adapted model, and what was done to it."""

    model: Module
    """The model that was given, changed in place (if it was a single matrix or layer, the wrapper now around it)."""
    method: Method
    places: tuple[str, ...]
    """The paths, in the plain model, of what got something beside or behind it."""

    @property
    def learned(self) -> list[Learned]:
        """Every parameter that learns."""
        return trainable(self.model)

    @property
    def number(self) -> int:
        """How many numbers learn."""
        return trainable_number(self.model)

    @property
    def bytes(self) -> int:
        """The bytes a task needs beside its base: those of what learns."""
        return trainable_bytes(self.model)

    def __str__(self) -> str:
        whole = sum(parameter.numel() for parameter in self.model.parameters())
        share = f" ({self.number / whole:.2%})" if whole else ""
        return f"{self.method.kind}: {self.number:,} of {whole:,} numbers learn{share}, {self.bytes:,} bytes"


def adapt_model(
    model: Module, method: Method, learn: Sequence[str] = (), *, any_rank: bool = False
) -> Adaptation[Module]:
    """Freeze a model, and let learn what a method says; `learn` are patterns of parameters that learn whatever it is.

    Everything happens in place, and `requires_grad` says what learns afterwards; if it fails, nothing has changed. With
    `any_rank` a rank may be more than matrices can have: for the ledger, which probes at small sizes.

    >>> adapt_model(nn.Sequential(nn.Linear(200, 50, bias=False)), Lora(rank=5)).number
    1250
    """
    refuse_adapted(model)
    own, learned = list(model.parameters()), named_parameters(model, learn)
    places: list[str] = []
    if isinstance(method, Lora):
        chosen = chosen_matrices(model, method.targets, learned)
        if not any_rank:
            refuse_rank(chosen, method.rank)
        model, places = put_updates(model, method, chosen), [matrix.path for matrix in chosen]
    elif isinstance(method, Adapters):
        places = put_adapters(model, method)
    for parameter in own:
        grows = isinstance(method, Full) or id(parameter) in learned
        parameter.requires_grad_(grows and parameter.is_floating_point())
    return Adaptation(model, method, tuple(places))


def named_parameters(model: nn.Module, patterns: Sequence[str]) -> set[int]:
    """The identities of the parameters whose paths some pattern fits."""
    paths: dict[int, list[str]] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        paths.setdefault(id(parameter), []).append(path)
    known = list(paths)
    return {known[at] for at in fitted("learn", patterns, list(paths.values()))}


def trainable(model: nn.Module) -> list[Learned]:
    """Every parameter that learns, a tied one once."""
    return [Learned(path, tuple(p.shape)) for path, p in model.named_parameters() if p.requires_grad]


def trainable_number(model: nn.Module) -> int:
    """How many numbers learn."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def trainable_bytes(model: nn.Module) -> int:
    """The bytes of what learns, which is what an adapted run stores."""
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


def refuse_adapted(model: nn.Module) -> None:
    """Refuse a model that has something beside or behind its modules already."""
    if besides(model) or any(map(has_adapter, model.modules())):
        raise SpecError("this model is adapted already. Take merged(model) of one with LoRA, or the plain base.")


# LoRA on one matrix, as an example to be counted.


def lora_matrix(W_in: int = 200, W_out: int = 50, R: int = 5) -> nn.Module:
    """One matrix and its LoRA update (problem E5): R(W_in + W_out) numbers learn beside W_in·W_out that do not."""
    return adapt_model(nn.Linear(W_in, W_out, bias=False), Lora(rank=R, targets=("*",))).model
