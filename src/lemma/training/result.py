"""What a training run came to."""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, Literal


@dataclass(frozen=True)
class TrainingResult:
    """The figures of a run that is done, stopped early or was interrupted."""

    path: Path
    family: str
    steps: int
    planned_steps: int
    stopped: Literal["done", "early", "interrupted"]
    parameters: int
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON: None stands for what is infinite or no number."""
        plain = {**asdict(self), "path": str(self.path), "warnings": list(self.warnings), "samples": list(self.samples)}
        plain |= plain.pop("figures")
        return {name: None if _no_number(value) else value for name, value in plain.items()}

    def __str__(self) -> str:
        lines = [self._head(), self._speed(), *self._scores(), f"data        {self.data_hash}"]
        lines += [f"warning     {warning}" for warning in self.warnings]
        lines += [f"sample      {sample!r}" for sample in self.samples]
        return "\n".join([*lines, self._next_step()])

    def _head(self) -> str:
        ways = {"done": "done", "early": "stopped early, since validation no longer got better", "interrupted": ""}
        way = ways[self.stopped] or "interrupted"
        return f"{self.family}, {self.parameters:,} parameters: {self.steps:,} of {self.planned_steps:,} steps, {way}"

    def _speed(self) -> str:
        speed = f" ({self.tokens_per_second:,.0f} tokens/s)" if self.tokens_per_second else ""
        return (
            f"time        {self.seconds:.1f} s for {self.tokens:,} tokens{speed}, {self.setup_seconds:.1f} s of set-up"
        )

    def _scores(self) -> list[str]:
        lines = []
        if self.training_loss is not None:
            lines.append(f"training    loss {self.training_loss:.4f} {'nats a word' if self._trees else 'nats/token'}")
        if self.validation_loss is not None:
            lines.append(f"validation  {self._loss(self.validation_loss, self.perplexity)}")
        if self.figures:
            said = ", ".join(f"{name.upper()} {value:.2f}" for name, value in self.figures.items())
            lines.append(f"validation  {said}")
        if self.best_loss is not None:
            best = self._loss(self.best_loss, self.best_perplexity)
            lines.append(f"best        {best}, at step {self.best_step:,}")
        return lines

    @property
    def _trees(self) -> bool:
        return "uas" in self.figures

    def _loss(self, loss: float, perplexity: float | None) -> str:
        """Of trees the loss alone: a perplexity among arcs is comparable with no other."""
        return f"loss {loss:.4f}" + (" nats a word" if self._trees else f", perplexity {perplexity:,.2f}")

    def _next_step(self) -> str:
        if self.stopped == "interrupted":
            return f"To go on: lemma train --resume {quote(str(self.path))}"
        return f"The run is in {self.path}"


def _no_number(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
