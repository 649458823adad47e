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
    """Return a new model of a spec, with initial weights drawn from torch's random state.

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
    """Return a new model of a spec whose weights are uninitialised memory, to be overwritten by the caller.

    Memory that is not written to takes none, so that a model can be filled tensor by tensor.
    """
    with SkipInitialization():
        model = construct(spec, dropout)
        for module in model.modules():
            if isinstance(module, LanguageModel) and isinstance(module.spec, NewFamily):
                _init_weights(module)  # may also fill buffers
    return model


def count_spec_parameters(spec: ModelSpec) -> int:
    """Return the number of parameters of a spec's model, built on the meta device: without memory for weights."""
    with torch.device("meta"), SkipInitialization():  # filling a tensor there imports torch._dynamo, a second and more
        return count_parameters(construct(spec, 0.0))


def check_memory(spec: ModelSpec) -> None:
    """Raise an error if a spec's weights alone are larger than this machine's memory; build nothing."""
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
    """Return a new model of a spec with weights as torch's constructors draw them, before any `init_weights`."""
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
    """Return the backbone of a classifier or another model, without the output layer that would follow its vectors."""
    backbone = construct(spec, dropout)
    assert isinstance(backbone, Backbone)
    for name in backbone.output_modules:
        delattr(backbone, name)
    return backbone


def _init_weights(model: Model) -> None:
    """Draw a model's initial weights in place by its `init_weights`, after those of the models inside it."""
    if not isinstance(model, LanguageModel):
        for inner in model.children():
            if isinstance(inner, Model):
                _init_weights(inner)
        model.init_weights()
        return
    spec = model.spec
    with PLUGIN_FAMILIES.attribute_errors(spec.family, spec.model) if isinstance(spec, NewFamily) else nullcontext():
        model.init_weights()
