"""How a trained model is adapted to something new (problem E5)."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from lemma.errors import unknown
from lemma.spec.base import Letter, Spec

Patterns = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]


class Frozen(Spec):
    """The body stays as it is; only the head learns."""

    kind: Literal["frozen"] = "frozen"


class Full(Spec):
    """Every weight learns."""

    kind: Literal["full"] = "full"


class Adapters(Spec):
    """Bottlenecks x + W_up σ(W_down x) behind parts of a frozen body (Houlsby et al. 2019)."""

    kind: Literal["adapters"] = "adapters"
    bottleneck: Annotated[int, Field(ge=1), Letter("m")] = 16
    """Width of the bottleneck."""
    placement: Patterns = ()
    """Patterns of the paths of the modules they stand behind, as in *.attention.output; if unset, the family's own:
    behind attention and feed-forward of each layer, behind the recurrent layers, behind a hidden layer."""


class Lora(Spec):
    """Updates of low rank beside frozen matrices: W + (alpha / rank) B A (Hu et al. 2022)."""

    kind: Literal["lora"] = "lora"
    rank: Annotated[int, Field(ge=1), Letter("r")] = 8
    """Rank of the update."""
    alpha: Annotated[float, Field(gt=0)] = 16.0
    """The update is scaled by alpha / rank."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of the inputs dropped on the way to A while training."""
    targets: Patterns = ()
    """Patterns of the paths of the matrices, as in *.attention.*; if unset, all of the body's but the embedding."""


METHODS = {"frozen": Frozen, "full": Full, "adapters": Adapters, "lora": Lora}


def _from_name(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in METHODS:
        raise ValueError(unknown("method", value, METHODS))
    return {"kind": value}


Method = Annotated[Frozen | Full | Adapters | Lora, Field(discriminator="kind"), BeforeValidator(_from_name)]


class AdaptationSpec(Spec):
    """What was adapted, and how: the base that a run needs beside what it changed."""

    method: Method = Lora()
    """frozen, full, adapters or lora."""
    base: str
    """The folder of the base run, seen from the adapted run's own folder where that is possible."""
    base_hash: str
    """The SHA-256 of the base's weights."""
