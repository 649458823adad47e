"""The result of a training run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from shlex import quote
from typing import Any, Literal, Self

from lemma.data.splits import Splits
from lemma.models.base import count_parameters
from lemma.report.result import Block, Result, Text, to_plain
from lemma.report.text import label_line
from lemma.runs.folder import RunFolder
from lemma.tasks.base import Task
from lemma.tasks.registry import task_of_family
from lemma.training.session import Session

StopReason = Literal["done", "early", "asked", "interrupted"]
STOP_MESSAGES = {
    "done": "done",
    "early": "stopped early, since validation no longer improved",
    "asked": "stopped by on_step",
    "interrupted": "interrupted",
}
STATE_FIELDS = ("tokens", "seconds", "training_loss", "validation_loss", "perplexity", "figures")
STATE_FIELDS += ("best_loss", "best_perplexity", "best_step", "best_figures", "tokenizer_sample")
"""Fields of the result that come from the state of the session."""


@dataclass(frozen=True)
class TrainingResult(Result):
    """Figures of a run that is done, stopped early or interrupted.

    Attributes:
        parameters: All parameters of the model.
        learned: Trained parameters; fewer than all where a base is adapted.
        training_loss: Mean loss of the steps since the last row of metrics.
        validation_loss: Loss of the last validation; `perplexity` and `figures` belong to it.
        seconds: Duration of the training steps, over all sessions of the run.
        setup_seconds: Duration until the first step of this session: building, copying the text, compiling.
        split_hashes: Hash of each split, where some are files of their own.
        overlaps: Sentences on what the splits share.
        figures: Further figures of the last validation, such as UAS and LAS.
        tokenizer_sample: Sentence on the part of the text that the tokenizer was trained on, if not all of it.
        task: Task of the model, by default that of its family.
    """

    title = "Training run"

    path: Path
    family: str
    steps: int
    planned_steps: int
    stopped: StopReason
    parameters: int
    learned: int
    tokens: int
    training_loss: float | None
    validation_loss: float | None
    perplexity: float | None
    best_loss: float | None
    best_perplexity: float | None
    best_step: int | None
    seconds: float
    setup_seconds: float
    tokens_per_second: float | None
    data_hash: str
    split_hashes: dict[str, str] = field(default_factory=dict)
    overlaps: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)
    best_figures: dict[str, float] = field(default_factory=dict)
    tokenizer_sample: str = ""
    task: Task = field(default=None, repr=False, compare=False)  # pyright: ignore[reportAssignmentType]

    def __post_init__(self) -> None:
        if self.task is None:  # pyright: ignore[reportUnnecessaryComparison]
            object.__setattr__(self, "task", task_of_family(self.family))

    @classmethod
    def from_session(
        cls, session: Session, folder: RunFolder, data: Splits[Any], stopped: StopReason, setup_seconds: float
    ) -> Self:
        """Return the figures of a session that has stopped."""
        state, model = session.state, session.model
        return cls(
            path=folder.path,
            family=folder.spec.family,
            steps=state.step,
            planned_steps=folder.recipe.steps,
            stopped=stopped,
            parameters=count_parameters(model),
            learned=sum(tensor.numel() for tensor in model.parameters() if tensor.requires_grad),
            setup_seconds=setup_seconds,
            tokens_per_second=state.tokens / state.seconds if state.seconds else None,
            data_hash=folder.data_hash,
            split_hashes=dict(data.split_hashes),
            overlaps=data.overlaps,
            warnings=tuple(state.warnings.values()),
            task=session.task,
            **{name: getattr(state, name) for name in STATE_FIELDS},
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read the summary of a run, which `to_dict` wrote."""
        names = {item.name for item in fields(cls)} - {"figures", "task"}
        arguments: dict[str, Any] = {name: values.get(name) for name in names}
        arguments |= {"path": Path(str(arguments["path"])), "tokenizer_sample": arguments["tokenizer_sample"] or ""}
        arguments |= {name: dict(arguments[name] or {}) for name in ("best_figures", "split_hashes")}
        arguments |= {name: tuple(arguments[name] or ()) for name in ("warnings", "samples", "overlaps")}
        figures = {name: value for name, value in values.items() if name not in names and isinstance(value, float)}
        return cls(**arguments, figures=figures)

    @property
    def interrupted(self) -> bool:
        """Return whether a signal stopped the run, which can be resumed."""
        return self.stopped == "interrupted"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, further figures next to them; infinite values and NaN become None."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "task"}
        values |= values.pop("figures")
        splits = {"split_hashes": values.pop("split_hashes"), "overlaps": values.pop("overlaps")}
        values |= splits if self.split_hashes else {}
        if not self.tokenizer_sample:
            del values["tokenizer_sample"]
        if not self.task.info.has_perplexity:
            del values["perplexity"], values["best_perplexity"]
        return to_plain(values)

    def blocks(self) -> Iterator[Block]:
        info = self.task.info
        learned = f", of which {self.learned:,} are trained" if self.learned < self.parameters else ""
        steps = f"{self.steps:,} of {self.planned_steps:,} steps, {STOP_MESSAGES[self.stopped]}"
        has_speed = self.tokens_per_second and info.counts == "tokens"  # a step reads a whole graph, not a few nodes
        speed = f" ({self.tokens_per_second:,.0f} tokens/s)" if has_speed else ""
        lines = [
            f"{self.family}, {self.parameters:,} parameters{learned}: {steps}",
            f"time        {self.seconds:.1f} s for {self.tokens:,} {info.counts}{speed}, {self.setup_seconds:.1f} s of "
            "set-up",
        ]
        if self.training_loss is not None:
            lines.append(f"training    loss {self.training_loss:.4f} {info.unit}")
        if self.validation_loss is not None:
            lines.append(f"validation  {self._format_loss(self.validation_loss, self.perplexity)}")
        if self.figures:
            lines.append(f"validation  {', '.join(_format_figure(*figure) for figure in self.figures.items())}")
        if self.best_loss is not None:
            best = self._format_loss(self.best_loss, self.best_perplexity)
            figures = "".join(f", {_format_figure(*figure)}" for figure in self.best_figures.items())
            lines.append(f"best        {best}{figures}, at step {self.best_step:,}")
        lines.append(f"data        {self.data_hash}")
        lines += [f"  {split:<10} {split_hash}" for split, split_hash in self.split_hashes.items()]
        lines += [label_line("tokenizer", self.tokenizer_sample, 11)] if self.tokenizer_sample else []
        lines += [label_line("overlap", overlap, 11) for overlap in self.overlaps]
        lines += [label_line("warning", warning, 11) for warning in self.warnings]
        lines += [label_line("sample", repr(sample), 11, break_anywhere=True) for sample in self.samples]
        path = quote(str(self.path))
        if self.interrupted:
            lines.append(f"To resume: lemma train --resume {path}")
        else:
            lines.append(f"The run is in {self.path}. To evaluate it: lemma evaluate {path}")
        yield Text("\n".join(lines))

    def _format_loss(self, loss: float, perplexity: float | None) -> str:
        if self.task.info.has_perplexity:
            return f"loss {loss:.4f}, perplexity {perplexity:,.2f}"
        return f"loss {loss:.4f} {self.task.info.unit}"


def _format_figure(name: str, value: float) -> str:
    """Format a figure of a validation: fractions with three digits, percentages with two."""
    if name in ("uas", "las"):
        return f"{name.upper()} {value:.2f}"
    return f"{name.replace('_at_', '@').replace('_', ' ')} {value:.3f}"
