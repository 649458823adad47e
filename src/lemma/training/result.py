"""What a training run came to."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, Literal, Self

from lemma.report.text import fit, label

UNITS = {
    "parser": "nats a word",
    "encoder": "nats a hidden token",
    "classifier": "nats a text",
    "graph": "nats a node",
    "dual-encoder": "nats a pair",
    "cross-attention": "nats a pair",
}
"""What the loss of some families is the mean of."""
ALONE = ("parser", "classifier", "graph", "dual-encoder", "cross-attention")
"""Families of trees, classes and pairs, whose loss makes no perplexity that is comparable with any other."""


@dataclass(frozen=True)
class TrainingResult:
    """The figures of a run that is done, stopped early or was interrupted."""

    path: Path
    family: str
    steps: int
    planned_steps: int
    stopped: Literal["done", "early", "interrupted"]
    parameters: int
    """All that the model has, learned or not."""
    learned: int
    """Those that training changes; fewer where a base is adapted."""
    tokens: int
    training_loss: float | None
    """Mean loss of the last logged stretch of steps, in nats a token."""
    validation_loss: float | None
    perplexity: float | None
    """Of the last validation, as the line above."""
    best_loss: float | None
    best_perplexity: float | None
    best_step: int | None
    seconds: float
    """Of the training steps alone, over all sessions of the run."""
    setup_seconds: float
    """Until the first step of this session: building, moving the text, compiling."""
    tokens_per_second: float | None
    data_hash: str
    warnings: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)
    """What else the last validation came to, such as UAS and LAS."""
    best_figures: dict[str, float] = field(default_factory=dict)
    """The same of the best validation."""

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote into a summary."""
        own = {name: values.get(name) for name in cls.__dataclass_fields__ if name != "figures"}
        own |= {"path": Path(str(own["path"])), "best_figures": dict(own["best_figures"] or {})}
        own |= {name: tuple(own[name] or ()) for name in ("warnings", "samples")}
        figures = {name: value for name, value in values.items() if name not in own and isinstance(value, float)}
        return cls(**own, figures=figures)  # pyright: ignore[reportArgumentType]

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped from outside, and can go on."""
        return self.stopped == "interrupted"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON: None stands for what is infinite or no number."""
        plain = {**asdict(self), "path": str(self.path), "warnings": list(self.warnings), "samples": list(self.samples)}
        plain |= plain.pop("figures")
        if self.family in ALONE:
            del plain["perplexity"], plain["best_perplexity"]
        return {name: None if _no_number(value) else value for name, value in plain.items()}

    def __str__(self) -> str:
        lines = [self._head(), self._speed(), *self._scores(), f"data        {self.data_hash}"]
        lines += [label("warning", warning, 11) for warning in self.warnings]
        lines += [label("sample", repr(sample), 11, anywhere=True) for sample in self.samples]
        return fit("\n".join([*lines, self._next_step()]))

    def _head(self) -> str:
        ways = {"done": "done", "early": "stopped early, since validation no longer got better", "interrupted": ""}
        way = ways[self.stopped] or "interrupted"
        learned = f", of which {self.learned:,} are learned" if self.learned < self.parameters else ""
        steps = f"{self.steps:,} of {self.planned_steps:,} steps"
        return f"{self.family}, {self.parameters:,} parameters{learned}: {steps}, {way}"

    def _speed(self) -> str:
        shown = self.tokens_per_second and self.family != "graph"  # its steps read the whole graph, not its few nodes
        speed = f" ({self.tokens_per_second:,.0f} tokens/s)" if shown else ""
        read = "nodes" if self.family == "graph" else "tokens"
        return (
            f"time        {self.seconds:.1f} s for {self.tokens:,} {read}{speed}, {self.setup_seconds:.1f} s of set-up"
        )

    def _scores(self) -> list[str]:
        lines = []
        if self.training_loss is not None:
            lines.append(f"training    loss {self.training_loss:.4f} {self._unit}")
        if self.validation_loss is not None:
            lines.append(f"validation  {self._loss(self.validation_loss, self.perplexity)}")
        if self.figures:
            said = ", ".join(_figure(name, value) for name, value in self.figures.items())
            lines.append(f"validation  {said}")
        if self.best_loss is not None:
            best = self._loss(self.best_loss, self.best_perplexity)
            said = "".join(f", {_figure(name, value)}" for name, value in self.best_figures.items())
            lines.append(f"best        {best}{said}, at step {self.best_step:,}")
        return lines

    @property
    def _unit(self) -> str:
        return UNITS.get(self.family, "nats/token")

    def _loss(self, loss: float, perplexity: float | None) -> str:
        return (
            f"loss {loss:.4f} {self._unit}"
            if self.family in ALONE
            else f"loss {loss:.4f}, perplexity {perplexity:,.2f}"
        )

    def _next_step(self) -> str:
        if self.stopped == "interrupted":
            return f"To go on: lemma train --resume {quote(str(self.path))}"
        judged = f". To judge it: lemma evaluate {quote(str(self.path))}" if self.family in UNITS else ""
        return f"The run is in {self.path}{judged}"


def _figure(name: str, value: float) -> str:
    """A figure of a validation: shares to three places, percentages to two."""
    said = name.replace("_at_", "@").replace("_", " ")
    return f"{name.upper()} {value:.2f}" if name in ("uas", "las") else f"{said} {value:.3f}"


def _no_number(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
