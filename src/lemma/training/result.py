"""What a training run came to."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, Literal, Self

from lemma.report.result import Block, Result, Text
from lemma.report.text import label
from lemma.tasks.base import Task
from lemma.tasks.registry import task_of_family


@dataclass(frozen=True)
class TrainingResult(Result):
    """The figures of a run that is done, stopped early or was interrupted."""

    title = "Training run"

    path: Path
    family: str
    steps: int
    planned_steps: int
    stopped: Literal["done", "early", "interrupted"]
    parameters: int
    """All of the model, trained or not."""
    learned: int
    """Those that are trained; fewer where a base is adapted."""
    tokens: int
    training_loss: float | None
    """Mean loss of the steps since the last row of metrics."""
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
    split_hashes: dict[str, str] = field(default_factory=dict)
    """The hash of each split, where some were given as files of their own."""
    overlaps: tuple[str, ...] = ()
    """How much of a split that was given is in another one too, in words."""
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
        own |= {name: tuple(own[name] or ()) for name in ("warnings", "samples", "overlaps")}
        own["split_hashes"] = dict(own["split_hashes"] or {})
        figures = {name: value for name, value in values.items() if name not in own and isinstance(value, float)}
        return cls(**own, figures=figures)  # pyright: ignore[reportArgumentType]

    @property
    def task(self) -> Task:
        """The task of its family."""
        return task_of_family(self.family)

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped from outside, and can go on."""
        return self.stopped == "interrupted"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON: None for what is infinite or NaN."""
        plain = {**asdict(self), "path": str(self.path), "warnings": list(self.warnings), "samples": list(self.samples)}
        plain |= plain.pop("figures")
        given = {"split_hashes": plain.pop("split_hashes"), "overlaps": list(plain.pop("overlaps"))}
        plain |= given if self.split_hashes else {}
        if not self.task.has_perplexity:
            del plain["perplexity"], plain["best_perplexity"]
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in plain.items()
        }

    def blocks(self) -> Iterator[Block]:
        """All figures, a line each, and what to type next."""
        task = self.task
        ways = {"done": "done", "early": "stopped early, since validation no longer improved"}
        learned = f", of which {self.learned:,} are trained" if self.learned < self.parameters else ""
        steps = f"{self.steps:,} of {self.planned_steps:,} steps, {ways.get(self.stopped, 'interrupted')}"
        shown = self.tokens_per_second and task.counts == "tokens"  # a graph's steps read all of it, not its few nodes
        speed = f" ({self.tokens_per_second:,.0f} tokens/s)" if shown else ""
        lines = [
            f"{self.family}, {self.parameters:,} parameters{learned}: {steps}",
            f"time        {self.seconds:.1f} s for {self.tokens:,} {task.counts}{speed}, {self.setup_seconds:.1f} s of "
            "set-up",
        ]
        if self.training_loss is not None:
            lines.append(f"training    loss {self.training_loss:.4f} {task.unit}")
        if self.validation_loss is not None:
            lines.append(f"validation  {self._loss(self.validation_loss, self.perplexity)}")
        if self.figures:
            lines.append(f"validation  {', '.join(_figure(name, value) for name, value in self.figures.items())}")
        if self.best_loss is not None:
            best = self._loss(self.best_loss, self.best_perplexity)
            figures = "".join(f", {_figure(name, value)}" for name, value in self.best_figures.items())
            lines.append(f"best        {best}{figures}, at step {self.best_step:,}")
        lines.append(f"data        {self.data_hash}")
        lines += [f"  {split:<10} {own}" for split, own in self.split_hashes.items()]
        lines += [label("overlap", overlap, 11) for overlap in self.overlaps]
        lines += [label("warning", warning, 11) for warning in self.warnings]
        lines += [label("sample", repr(sample), 11, anywhere=True) for sample in self.samples]
        path = quote(str(self.path))
        if self.interrupted:
            lines.append(f"To resume: lemma train --resume {path}")
        else:
            lines.append(f"The run is in {self.path}. To evaluate it: lemma evaluate {path}")
        yield Text("\n".join(lines))

    def _loss(self, loss: float, perplexity: float | None) -> str:
        if self.task.has_perplexity:
            return f"loss {loss:.4f}, perplexity {perplexity:,.2f}"
        return f"loss {loss:.4f} {self.task.unit}"


def _figure(name: str, value: float) -> str:
    """A figure of a validation: shares to three places, percentages to two."""
    shown = name.replace("_at_", "@").replace("_", " ")
    return f"{name.upper()} {value:.2f}" if name in ("uas", "las") else f"{shown} {value:.3f}"
