"""Build a model with its initial weights from a spec."""

import math
import os
from contextlib import nullcontext
from importlib import import_module
from typing import Any, overload

import torch
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from lemma.errors import PackageError, SpecError
from lemma.models.base import Backbone, LanguageModel, Model, count_parameters
from lemma.spec.models import PLUGIN_FAMILIES, BodySpec, LanguageSpec, ModelSpec, NewFamily

SMALL_MATRIX = 10**8  # numbers, up to which memory is not checked


@overload
def build(spec: LanguageSpec, dropout: float = 0.0) -> LanguageModel: ...
@overload
def build(spec: ModelSpec, dropout: float = 0.0) -> Model: ...
def build(spec: ModelSpec, dropout: float = 0.0) -> Model:
    """Build the model a spec describes, with initial weights drawn from torch's random state.

    >>> from lemma.spec.models import FeedForward
    >>> count_parameters(build(FeedForward(V=10, d=3, d_h=4, N=3)))  # V(d + d_h) + ((N−1)d + 1)d_h
    98
    """
    sizes = sorted(value for value in spec.to_dict().values() if type(value) is int)
    if math.prod(sizes[-2:]) > SMALL_MATRIX and torch.get_default_device().type != "meta":
        check_memory(spec)
    model = construct(spec, dropout)
    _init_weights(model)
    return model


def build_uninitialized(spec: ModelSpec, dropout: float = 0.0) -> Model:
    """Build the model a spec describes without drawing weights: they hold anything until others are put in.

    Memory that is not written to takes none, so that a model can be filled tensor by tensor.
    """
    with SkipInitialization():
        model = construct(spec, dropout)
        for module in model.modules():
            if isinstance(module, LanguageModel) and isinstance(module.spec, NewFamily):
                _init_weights(module)  # may also fill buffers
    return model


def count_spec_parameters(spec: ModelSpec) -> int:
    """Count a spec's parameters on the meta device: no memory, no time."""
    with torch.device("meta"), SkipInitialization():  # filling a tensor there imports torch._dynamo, a second and more
        return count_parameters(construct(spec, 0.0))


def check_memory(spec: ModelSpec) -> None:
    """Refuse a model whose weights alone are larger than the memory of this machine, before any of it is built."""
    try:
        needed = 4 * count_spec_parameters(spec)
    except RuntimeError:  # a tensor of more numbers than 64 bits can count
        needed = 2**63
    if hasattr(os, "sysconf") and needed > (memory := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")):
        raise SpecError(
            f"a model of the family {spec.family} of these sizes has weights of {needed / 1e9:,.0f} GB or more, and "
            f"this machine has {memory / 1e9:,.0f} GB of memory. Choose smaller sizes; lemma count needs no memory."
        )


class SkipInitialization(TorchFunctionMode):
    """A context in which new parameters are not filled, which takes most of the time where nobody reads them.

    Buffers are filled, since no weights replace them.
    """

    SKIPPED = frozenset(
        {"normal_", "uniform_", "fill_", "zero_", "xavier_uniform_", "kaiming_uniform_", "trunc_normal_", "constant_"}
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the tensor of a filling function as it is; call any other."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in self.SKIPPED:
            tensor = args[0] if args else kwargs["tensor"]
            if isinstance(tensor, Parameter):
                return tensor
        return func(*args, **kwargs)


def construct(spec: ModelSpec, dropout: float) -> Model:
    """Build the modules of a model; its weights are those that torch's modules draw."""
    if isinstance(spec, NewFamily):
        with PLUGIN_FAMILIES.attribute_errors(spec.family, spec.model):
            model = PLUGIN_FAMILIES.load_part(spec.family, spec.model)(spec, dropout)
        if not isinstance(model, LanguageModel):
            raise PackageError(
                f"the family '{spec.family}': {spec.model} returns a {type(model).__name__}, where a subclass of "
                "lemma.models.base.LanguageModel is expected."
            )
        return model
    module, _, name = spec.model.partition(":")
    return getattr(import_module(module), name)(spec, dropout)


def build_body(spec: BodySpec, dropout: float) -> Backbone:
    """Build the body of another model, without the modules that come after its vectors."""
    backbone = construct(spec, dropout)
    assert isinstance(backbone, Backbone)
    for name in backbone.output_modules:
        delattr(backbone, name)
    return backbone


def _init_weights(model: Model) -> None:
    """Draw the initial weights as the family does, those of the model inside it first."""
    if not isinstance(model, LanguageModel):
        for inner in model.children():
            if isinstance(inner, Model):
                _init_weights(inner)
        model.init_weights()
        return
    spec = model.spec
    with PLUGIN_FAMILIES.attribute_errors(spec.family, spec.model) if isinstance(spec, NewFamily) else nullcontext():
        model.init_weights()
