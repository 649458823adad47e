"""The matrices of a module: every parameter of two dimensions, once, with all the places where it stands."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

READ_BY_OTHERS = (nn.ParameterList, nn.ParameterDict)  # never called: whoever holds them reads what is in them
LOOK_UPS = (nn.Embedding, nn.EmbeddingBag)
BODY = (nn.Linear, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
OUTPUTS = {"output", "head", "lm_head", "score", "classifier", "cls", "qa_outputs"}
"""What output layers are called where they stand directly in a model."""
HEADS = {"lm_head", "score", "classifier", "cls", "qa_outputs"}
"""Those of them that may have several maps, all of which are the output."""


@dataclass(frozen=True)
class Place:
    """Where a matrix stands: the path of its module, that module, and the matrix's name there."""

    path: str
    owner: nn.Module
    name: str

    @property
    def full(self) -> str:
        """The path of the parameter."""
        return ".".join(filter(None, (self.path, self.name)))


@dataclass(frozen=True)
class Matrix:
    """One parameter, and everywhere it stands: a tied one has several places."""

    weight: nn.Parameter
    places: tuple[Place, ...]

    @property
    def names(self) -> list[str]:
        """Every name it goes by: the paths of its modules and of the parameter."""
        return [name for place in self.places for name in (place.path, place.full)]

    @property
    def path(self) -> str:
        """The first path of the parameter."""
        return self.places[0].full

    @property
    def transposed(self) -> bool:
        """Whether it is written inputs × outputs, as GPT-2's are."""
        return any(is_conv1d(place.owner) for place in self.places)


def matrices(model: nn.Module) -> list[Matrix]:
    """All matrices of a module."""
    found: dict[int, tuple[nn.Parameter, list[Place]]] = {}
    for path, owner in model.named_modules(remove_duplicate=False):
        for name, parameter in () if isinstance(owner, READ_BY_OTHERS) else owner._parameters.items():
            if parameter is not None and is_matrix(parameter):
                found.setdefault(id(parameter), (parameter, []))[1].append(Place(path, owner, name))
    return [Matrix(weight, tuple(places)) for weight, places in found.values()]


def body_matrices(model: nn.Module) -> list[Matrix]:
    """The matrices of the body: not what looks up tokens, nor what is tied to it, nor the output layer."""
    outputs = {id(part) for part in output_layers(model)}
    return [matrix for matrix in matrices(model) if all(_in_body(place, outputs) for place in matrix.places)]


def output_layers(model: nn.Module) -> Iterator[nn.Module]:
    """The parts that read a model's vectors out, as far as they can be told by their place."""
    for part in model.modules():
        outward = getattr(type(part), "outward", ())  # a body of ours says what comes after its vectors
        yield from (child for name, child in part.named_children() if name in outward and is_map(child))
    for name, child in model.named_children():
        if name in HEADS:
            yield from child.modules()
        elif name in OUTPUTS and is_map(child):
            yield child
    named = getattr(model, "get_output_embeddings", None)  # as Hugging Face's models have it
    found = named() if callable(named) else None
    if isinstance(found, nn.Module):
        yield found


def is_matrix(parameter: Tensor) -> bool:
    """Whether something is a parameter with rows and columns of real numbers."""
    return not isinstance(parameter, UninitializedParameter) and parameter.dim() == 2 and parameter.is_floating_point()


def is_map(module: Any) -> bool:
    """Whether a module is one linear map: torch.nn's, or the one of GPT-2 in transformers."""
    return isinstance(module, nn.Linear) or is_conv1d(module)


def is_conv1d(module: Any) -> bool:
    """Whether a module is transformers' Conv1D: a linear map whose matrix is written inputs × outputs."""
    return any(
        kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers") for kind in type(module).__mro__
    )


def _in_body(place: Place, outputs: set[int]) -> bool:
    known = isinstance(place.owner, BODY) or is_conv1d(place.owner)
    return known and id(place.owner) not in outputs
