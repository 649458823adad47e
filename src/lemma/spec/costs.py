"""Studies that train nothing: what a part costs by formula, beside the time it takes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from lemma.spec.base import Letter, Spec
from lemma.spec.model import check_heads
from lemma.spec.named import named_table

Size = Annotated[int, Field(ge=1, le=2**20)]  # what fits is asked of the machine; this keeps slips away


def _several(value: Any) -> Any:
    """One value or several, each once."""
    if isinstance(value, (int, str)):
        return (value,)
    return tuple(dict.fromkeys(value)) if isinstance(value, (list, tuple)) else value


Sizes = Annotated[tuple[Size, ...], BeforeValidator(_several), Field(min_length=1)]
Cell = Literal["rnn", "lstm", "gru", "attention"]
Way = Literal["fused", "explicit"]


class CostStudy(Spec):
    """What all of them share: how often, how many sequences, where."""

    name: str
    """The study's name."""
    question: str = ""
    """What it asks, in a sentence or two; stands at the top of the report."""
    width: Annotated[Size, Letter("d")] = 128
    """Width of the vectors."""
    batch: Annotated[Size, Letter("B")] = 4
    """Sequences at once."""
    repetitions: int = Field(default=20, ge=1, le=10_000)
    """Rounds; in each every contender is timed once."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure; auto takes the GPU if there is one."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Fixes the weights and the inputs."""


class HeadsStudy(CostStudy):
    """One head against many (problem D3): attention without an output map, 3d² parameters."""

    kind: Literal["heads"] = "heads"
    heads: Annotated[Sizes, Letter("h")] = (1, 2, 4, 8, 16)
    """Numbers of heads; each is compared with the first."""
    lengths: Annotated[Sizes, Letter("T")] = (64, 256)
    """Numbers of tokens."""
    paths: Annotated[tuple[Way, ...], BeforeValidator(_several), Field(min_length=1)] = ("fused", "explicit")
    """PyTorch's fused kernel, or explicit T × T weights with every softmax written out."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        for heads in self.heads:
            check_heads("heads.width", self.width, "heads.heads", heads)
        return self


class LengthStudy(CostStudy):
    """Recurrent against attention as the text grows longer (problem C4)."""

    kind: Literal["length"] = "length"
    lengths: Annotated[Sizes, Letter("T")] = (16, 32, 64, 128, 256, 512, 1024)
    """Numbers of tokens."""
    contenders: Annotated[tuple[Cell, ...], BeforeValidator(_several), Field(min_length=1)] = (
        "rnn",
        "lstm",
        "gru",
        "attention",
    )
    """What is compared: one layer of each, of equal width."""
    heads: Annotated[Size, Letter("h")] = 4
    """Attention heads."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        check_heads("length.width", self.width, "length.heads", self.heads)
        return self


CostSpec = HeadsStudy | LengthStudy
KINDS: dict[str, type[CostSpec]] = {"heads": HeadsStudy, "length": LengthStudy}
COSTS: dict[str, CostSpec] = {
    "heads": HeadsStudy(
        name="heads",
        question="Do many heads cost more than one? Without an output map both have 3d² parameters and the same "
        "O(n²d + nd²) operations; many heads pay h softmaxes.",
    ),
    "length": LengthStudy(
        name="length",
        question="Recurrent layers take O(T) steps one after another, an attention layer does not. What does that "
        "cost as the text grows longer?",
    ),
}


def read_cost(name: str | Path, words: Mapping[str, Any] | None = None) -> CostSpec | None:
    """Read a study of costs, built in or from a TOML file with `kind`; None if the name means another study.

    >>> read_cost("heads", {"width": 64, "heads": [1, 2]}).heads
    (1, 2)
    """
    table = named_table(str(name), COSTS, KINDS)
    if table is None:
        return None
    kind = KINDS[table["kind"]]
    letters = kind.letters()
    given = {letters.get(word, word): value for word, value in (words or {}).items()}
    return kind.read({**table, **given}, f"study {table['name']}")
