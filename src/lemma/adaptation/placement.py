"""Where adapters stand: behind what a person names, or behind what the families have."""

from collections.abc import Iterator, Sequence

from torch import nn

from lemma.adaptation.bottleneck import NAME, Adapter, stand_behind
from lemma.adaptation.matrices import READ_BY_OTHERS, is_conv1d
from lemma.adaptation.patterns import fitted, listed
from lemma.errors import SpecError
from lemma.models.attentive import AttentiveModel
from lemma.models.feed_forward import FeedForwardModel
from lemma.parts import Attention, FeedForwardPart
from lemma.spec import Adapters

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
