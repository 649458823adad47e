"""What one run of a study came to: its measures, or the reason why there are none."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from lemma.studies.grid import Cell


class CurvePoint(NamedTuple):
    """One validation on the way: how much had been read, in how long, and the loss."""

    tokens: int
    seconds: float
    loss: float


@dataclass(frozen=True)
class Loop:
    """The loop a greedy generation falls into, counted in generated tokens; `begin` and `end` cut its text."""

    onset: int
    period: int
    proved: bool
    state: str
    begin: int
    end: int


@dataclass(frozen=True)
class Talk:
    """What a model says after a prompt; at temperature 0 with the loop it ends in, if it does."""

    prompt: str
    text: str
    loop: Loop | None = None

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Read what `asdict` wrote."""
        loop = values.get("loop")
        return cls(values["prompt"], values["text"], Loop(**loop) if loop else None)


@dataclass(frozen=True)
class Measures:
    """All that was measured of a trained model, beside what it was."""

    model: Mapping[str, Any]
    recipe: Mapping[str, Any]
    parameters: int
    tokens: int
    seconds: float
    tokens_per_second: float
    loss: float
    perplexity: float
    bits_per_byte: float | None
    protocol: Mapping[str, Any]
    curve: tuple[CurvePoint, ...]
    sample: Talk
    greedy: Talk
    trial_speed: float | None = None
    """Tokens a second in the trial from which a budget of seconds was turned into steps."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What the study's `measures` asked for, by their names, as plain values."""

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote."""
        return cls(
            **{
                **values,
                "curve": tuple(CurvePoint(*point) for point in values["curve"]),
                "sample": Talk.read(values["sample"]),
                "greedy": Talk.read(values["greedy"]),
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "curve": [list(point) for point in self.curve]}


class Measured(Protocol):
    """What is measured of a run, whatever it is."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        ...


Found = TypeVar("Found", bound=Measured)


@dataclass(frozen=True)
class Outcome(Generic[Found]):
    """A cell of the study and what became of it: measures, or a reason, or neither if it was not run yet."""

    cell: Cell
    measures: Found | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "run": self.cell.name,
            "contender": self.cell.contender,
            "point": dict(self.cell.point),
            "seed": self.cell.seed,
            "measures": self.measures.to_dict() if self.measures else None,
            "reason": self.reason,
        }
