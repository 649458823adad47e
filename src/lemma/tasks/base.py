"""The parts of a task: batches, losses, scores, and `Task`, which joins them; the evaluation of a run."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, distributed, nn
from torch.nn import functional

from lemma.data.batches import BucketedExamples, ExampleSet
from lemma.data.splits import Splits, split_files
from lemma.errors import RunError, SpecError, describe_unknown
from lemma.layers.state import State
from lemma.report.progress import Observer, reading_progress
from lemma.report.result import Block, Pre, Result, Table
from lemma.report.statistics import NamedValues, format_named_values
from lemma.runs.load import Run
from lemma.spec.data import PretrainedData
from lemma.spec.models import EncoderDecoder, Parser
from lemma.spec.recipe import Recipe
from lemma.tasks.registry import TASKS_BY_OPTION, DataArgs, TaskInfo, task_for

# Tasks


@dataclass(frozen=True)
class LoadContext:
    """Context in which data are loaded: the model, the recipe and the run they are for."""

    model: Any  # its spec
    recipe: Recipe
    observer: Observer  # shows progress and messages
    vocabulary: Any = None  # tokenizer or lexicon; learned from the data if None
    labels: tuple[str, ...] = ()  # names of the classes; taken from the data if empty
    run_path: Path | None = None  # folder of the run that the data are to evaluate, where they are not its own
    split: str | None = None  # split of these data that is asked for

    @classmethod
    def of_run(cls, run: Run, observer: Observer, run_path: Path | None = None, split: str | None = None) -> Self:
        """Return the context in which a run reads its own data; given `run_path`, its folder, data to evaluate on."""
        return cls(run.spec, run.recipe, observer, run.vocabulary, run.labels, run_path, split)

    @property
    def progress(self) -> Callable[..., None]:
        """Callback for readers of data, which shows the observer how much has been read."""
        return reading_progress(self.observer)

    @property
    def is_evaluation(self) -> bool:
        """True if a finished run is evaluated on the data, False if it was or is trained on them."""
        return self.run_path is not None


class Task(ABC):
    """Everything that depends on the kind of data: how it is loaded, batched, trained on and scored.

    `task_for` (in `lemma.tasks.registry`) finds the task of a model spec.
    """

    info: ClassVar[TaskInfo]
    trained_on: ClassVar[str] = ""  # the data, for the message if they have changed; by default the option
    if_changed: ClassVar[str] = (
        "its validation and test splits may contain training data. To evaluate on it anyway, name it with --{}."
    )
    note_prefix: ClassVar[str] = ""  # before each note on how the data were read

    @abstractmethod
    def _read(self, data: Any, context: LoadContext) -> Splits[Any]:
        """Return the splits of the data that the data spec `data` names, as the context's model reads them."""

    def load(self, data: Any, context: LoadContext) -> Splits[Any]:
        """Return the splits that `_read` reads, and log how many items were skipped, cut or in several splits."""
        splits = self._read(data, context)
        for message in (*(self.note_prefix + note for note in splits.notes), *splits.overlaps):
            context.observer.log(message)
        return splits

    @abstractmethod
    def batches(self, model: Any, examples: Any, recipe: Recipe, worker: "Worker") -> "Batches":
        """Return the batches of a training split (`examples`) for this process, on its device."""

    @abstractmethod
    def loss(self, model: Any, recipe: Recipe, batches: Any = None) -> "TaskLoss":
        """Return the model and its loss in one module; `batches` are the batches it will be called on."""

    @abstractmethod
    def validate(self, model: Any, data: Any, recipe: Recipe) -> "Score":
        """Return a quick score of a model in training on the validation split of `data` (its splits)."""

    @abstractmethod
    def score(
        self, run: Run, data: Splits[Any], split: str, settings: Mapping[str, Any], observer: Observer
    ) -> "Score":
        """Return a run's score on a split by the full protocol; `settings` are the options of `lemma evaluate`."""

    def steps_per_epoch(self, model: Any, examples: Any, recipe: Recipe) -> float:
        """Return how many training steps read the training split `examples` once; `model` is a spec, not a module."""
        return max(1.0, len(examples.lengths) / recipe.batch)

    def samples(self, model: Any, data: Any) -> list[str]:
        """Return a few texts that the trained model writes for a look, such as translations; none for most tasks."""
        return []

    def _check_settings(self, settings: Mapping[str, Any]) -> None:  # noqa: B027 (most tasks have nothing to check)
        """Raise InputError if a setting (name → value) of an evaluation is wrong, before any data are read."""

    def _load_own(self, run: Run, observer: Observer) -> Splits[Any]:
        """Return the splits of the data that a run was trained on; raise RunError if they have changed since."""
        data = self.load(run.data, LoadContext.of_run(run, observer))
        if data.hash != run.data_hash:
            splits = [files if isinstance(files, tuple) else (files,) for files in split_files(run.data).values()]
            files = [file for files in splits for file in files if isinstance(file, str)]
            raise RunError(
                f"{run.path} was trained on {self.trained_on or self.info.option} with SHA-256 {run.data_hash}, but "
                f"{', '.join([self._data_name(run.data), *files])} now has {data.hash}: "
                f"{self.if_changed.format(self.info.option)}"
            )
        return data

    def _load_other(self, run: Run, args: DataArgs, split: str | None, observer: Observer) -> Splits[Any]:
        """Return the splits of the data in `args`, on which a run is evaluated instead of its own data.

        Data without splits are split in the same fractions as the run's own.
        """
        trained_on: Any = run.data
        own = {"held_out": trained_on.held_out} if isinstance(trained_on, self.info.data_spec) else {}
        data = self.info.data_spec(**{self.info.option: args.name}, **own, **args.settings)
        return self.load(data, LoadContext.of_run(run, observer, run.path, split))

    def _data_name(self, data: Any) -> str:
        """Return the name of what the data spec `data` names, such as a corpus or a file, for messages."""
        return getattr(data, self.info.option)


def evaluate_run(
    run: Run, args: DataArgs, split: str | None, settings: Mapping[str, Any], observer: Observer
) -> "Score":
    """Return a run's score on the data in `args`, or on its own if `args` name none; the default split is held-out."""
    task, family = task_for(run.spec), run.spec.family
    info = task.info
    if info.option == "graph" and args.option is not None:  # a graph model has weights for its own nodes only
        advice = f", not on {args.option}. Leave --{args.option} out: lemma evaluate {quote(str(run.path))}"
        if args.option == "graph":
            advice = ". Leave --graph out; --split names the split (train, validation, test)."
        raise SpecError(
            "evaluate: a graph model is evaluated on the validation or test nodes of the graph it was trained on"
            f"{advice}"
        )
    if args.option not in (None, info.option):
        hint = ""
        if args.option == "labels" and not isinstance(run.spec, Parser | EncoderDecoder):
            hint = f" To make a classifier of it: lemma adapt {run.path} --labels {args.name} --out RUN"
        raise SpecError(
            f"evaluate: a run of the family {family} is evaluated on {info.option}, not on {args.option}.{hint}"
        )
    if args.option is None and isinstance(run.data, PretrainedData):
        raise SpecError(
            f"evaluate: {run.path} is a pretrained model, whose own data are not known. Name some: "
            f"lemma evaluate {quote(str(run.path))} --{info.option} {info.example}"
        )
    if args.option and split is not None and not info.splits_other_data:
        raise SpecError(f"evaluate: give other {args.option} or a split of the run's own, not both.")
    all_settings = {
        name for other in TASKS_BY_OPTION.values() for name in (*other.evaluation_settings, *other.no_effect)
    }
    for setting in settings:
        if setting in info.evaluation_settings:
            continue
        if setting in info.no_effect:
            raise SpecError(f"evaluate: {info.no_effect[setting]}. Leave {setting} out.")
        if setting in all_settings or not info.evaluation_settings:
            raise SpecError(f"evaluate: {setting} has no effect on a run of the family {family}. Leave it out.")
        raise SpecError(describe_unknown(f"evaluate {family}: setting", setting, info.evaluation_settings))
    task._check_settings(settings)
    data = task._load_other(run, args, split, observer) if args.name is not None else task._load_own(run, observer)
    if split is None:
        split = next((name for name in ("test", "validation") if name in data.split_names), data.split_names[0])
    elif split not in data.split_names:
        raise SpecError(describe_unknown("split", split, data.split_names))
    return task.score(run, data, split, settings, observer)


def epochs_to_steps(epochs: Any, task: Task, model: Any, data: Splits[Any], recipe: Recipe, observer: Observer) -> int:
    """Return the number of training steps in `epochs` passes over the training split, and log it; `model` is a spec."""
    steps = math.ceil(epochs * task.steps_per_epoch(model, data.item("train"), recipe))
    observer.log(f"epochs = {epochs:g}: {steps:,} steps of batch {recipe.batch}.")
    return steps


def check_penalties(task: Task, recipe: Recipe) -> None:
    """Raise SpecError if a recipe penalizes attention and the task does not support that."""
    if task.info.no_penalties and (recipe.entropy_penalty or recipe.distance_penalty):
        raise SpecError(
            f"entropy_penalty and distance_penalty are for a language model's attention; {task.info.no_penalties}. "
            "Leave them out."
        )


def data_protocol(data: Splits[Any], split: str) -> dict[str, Any]:
    """Return the protocol entries (name → value) about the data that a score was measured on."""
    entries = {"tokenizer": data.tokenizer.description, "data": data.description, "split": split}
    return {**entries, "data hash": data.hash, **split_protocol(data, split)}


def split_protocol(data: Splits[Any], split: str) -> dict[str, str]:
    """Return the protocol entries (name → value) about a split: hash of its own file, overlap with other splits."""
    entries = {"split hash": data.split_hashes.get(split), "overlap": "; ".join(data.overlaps)}
    return {name: value for name, value in entries.items() if value}


# Batches


@dataclass(frozen=True)
class Worker:
    """One of the processes that train a model together: its device, and its rows of every batch."""

    device: torch.device
    rank: int = 0
    size: int = 1

    def local_rows(self, batch_size: int) -> slice:
        """Return the slice of a batch of `batch_size` rows that this process reads."""
        count = batch_size // self.size
        return slice(self.rank * count, (self.rank + 1) * count)

    def to_device(self, array: np.ndarray) -> Tensor:
        """Return an array as a tensor on this process's device; the copy may not be finished yet."""
        tensor = torch.from_numpy(array)
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors that all processes pass, concatenated along the first dimension, by rank."""
        if self.size == 1:
            return tensor
        local = tensor.to(self.device).contiguous()
        gathered = [torch.empty_like(local) for _ in range(self.size)]
        distributed.all_gather(gathered, local)
        return torch.cat(gathered).to(tensor.device)


class Batches:
    """The batches of a run on its device, with `length` tokens per row on average; a batch depends only on its step."""

    fixed_shape: ClassVar[bool] = True  # whether all batches have one shape, so that compiling pays
    note: str | None = None  # message for the user about these batches

    def __init__(self, recipe: Recipe, worker: Worker, length: int, tokens_per_step: int) -> None:
        self.recipe, self.worker, self.rows = recipe, worker, worker.local_rows(recipe.batch)
        self.length, self.tokens_per_step = length, tokens_per_step

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return (inputs, targets) of a training step: only this process's rows of the batch."""
        raise NotImplementedError

    def weight(self, targets: Tensor, num_parts: int) -> float | Tensor:
        """Return the weight of a part's loss in the loss of its batch of `num_parts` parts.

        Equal by default.
        """
        return 1 / num_parts

    def resets_state(self, step: int) -> bool:
        """Return whether the recurrent state carried from the previous batch is set to zero before this step."""
        return True

    def close(self) -> None:
        """Stop the threads of the batches, if there are any."""


class ExampleBatches(Batches):
    """Batches of examples (trees, pairs, labelled texts), each of examples of similar length."""

    fixed_shape = False

    def __init__(
        self,
        examples: ExampleSet,
        recipe: Recipe,
        worker: Worker,
        predicted_targets: Callable[[Any], Any] = lambda targets: targets,
    ) -> None:
        """Prepare batches; `predicted_targets` returns the part of the targets that the loss counts, if ≥ 0."""
        mean = float(examples.lengths.mean())
        super().__init__(recipe, worker, max(1, round(mean)), max(1, round(mean * recipe.batch)))
        self.examples, self.predicted_targets = examples, predicted_targets
        self.order = BucketedExamples(examples.lengths, recipe.batch, recipe.seed)
        self.num_targets = 0  # of the last batch, over the rows of all processes

    def batch(self, step: int) -> tuple[Int[Tensor, "rows ..."], Int[Tensor, "rows ..."]]:
        """Return (inputs, targets) of a training step: this process's rows, padded to the longest of the batch."""
        inputs, targets = self.examples.batch(self.order.examples(step))
        self.num_targets = int((self.predicted_targets(targets) >= 0).sum())
        return self.worker.to_device(inputs[self.rows]), self.worker.to_device(targets[self.rows])

    def weight(self, targets: Int[Tensor, "rows ..."], num_parts: int) -> Float[Tensor, ""]:
        """Return the part's fraction of the targets of all processes, so that the loss is the mean over these targets.

        Gradients are averaged over the processes; the factor `worker.size` undoes that.
        """
        return (self.predicted_targets(targets) >= 0).sum().double() * (self.worker.size / max(1, self.num_targets))


# Losses

IGNORE_INDEX = -1
"""The target of a position without a prediction."""
LossTerms = tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...], State | None]
"""The objective to minimise, the terms to report, and the state that training carries to the next step."""


class TaskLoss(nn.Module):
    """A model and its loss in one module, which `torch.compile` and DDP wrap.

    `forward(inputs, targets, state)` returns `LossTerms`.
    """

    compilable: bool = True
    layers: Sequence[nn.Module] = ()  # of one shape, of which one is compiled for all; empty to compile all at once
    terms: tuple[str, ...] = ("loss",)  # names of the terms that are reported
    chance: tuple[int, str, str] | None = None  # choices of an untrained model: number, plural, symbol


class CrossEntropy(NamedTuple):
    """Mean cross-entropies over the targets that count (those other than −1), in nats; 0 if there are none."""

    objective: Float[Tensor, ""]  # with label smoothing ε: (1 − ε)(−log p(target)) + ε · mean over classes of −log p
    loss: Float[Tensor, ""]  # −log p(target) without smoothing, to report


def cross_entropy(
    logits: Float[Tensor, "*batch classes"], targets: Int[Tensor, "*batch"], smoothing: float = 0.0
) -> CrossEntropy:
    """Return the mean cross-entropy over targets other than −1 (label smoothing: Szegedy et al. 2016).

    >>> terms = cross_entropy(torch.tensor([[2.0, 2.0], [5.0, 0.0]]), torch.tensor([1, -1]))
    >>> round(terms.loss.item(), 6)  # log 2: the second target does not count
    0.693147
    """
    targets = targets.flatten()
    exact = torch.promote_types(logits.dtype, torch.float32)
    log_probs = logits.flatten(0, -2).log_softmax(-1, dtype=exact)
    count = (targets != IGNORE_INDEX).sum().clamp(min=1)
    loss = functional.nll_loss(log_probs, targets, ignore_index=IGNORE_INDEX, reduction="sum") / count
    if not smoothing:
        return CrossEntropy(loss, loss)
    uniform = -(log_probs.mean(-1) * (targets != IGNORE_INDEX)).sum() / count
    return CrossEntropy((1 - smoothing) * loss + smoothing * uniform, loss.detach())


class SmoothedLoss(TaskLoss):
    """A model with its label-smoothed cross-entropy; `predict(model, inputs, targets)` returns logits and classes."""

    def __init__(
        self, model: nn.Module, smoothing: float, predict: Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]]
    ) -> None:
        super().__init__()
        self.model, self.smoothing, self.predict = model, smoothing, predict

    def forward(self, inputs: Tensor, targets: Tensor, state: Any = None) -> LossTerms:
        """Return the loss of a batch as `LossTerms`: the smoothed objective, the plain loss, no state."""
        objective, loss = cross_entropy(*self.predict(self.model, inputs, targets), self.smoothing)
        return objective, (loss,), None


# Scores

NO_VALUE = "–"


@dataclass(frozen=True)
class Headline:
    """The main figure of a score, by which scores are compared, such as accuracy."""

    name: str
    value: float
    bounds: Sequence[float] | None = None  # its 95 % interval, if there is one
    more_is_better: bool = True
    baseline: float | None = None  # value of always naming the most frequent class

    @property
    def baseline_text(self) -> str:
        """The baseline as text with three decimals; a dash without a baseline."""
        return NO_VALUE if self.baseline is None else f"{self.baseline:.3f}"

    @property
    def is_at_or_below_baseline(self) -> bool:
        """True if the figure, or the lower bound of its interval, is not above the baseline."""
        return self.baseline is not None and (self.bounds[0] if self.bounds else self.value) <= self.baseline

    @property
    def signed_value(self) -> float:
        """The figure, negated if smaller is better, for sorting."""
        return self.value if self.more_is_better else -self.value

    @property
    def text(self) -> str:
        """The figure as text: three decimals up to 1, two above."""
        return f"{self.value:.3f}" if self.value <= 1 else f"{self.value:,.2f}"

    @property
    def interval(self) -> str:
        """The confidence interval as text, such as 0.812–0.845; a dash without one."""
        digits = 3 if self.value <= 1 else 1
        return "–".join(f"{bound:.{digits}f}" for bound in self.bounds) if self.bounds else NO_VALUE

    def is_on_par_with(self, best: "Headline") -> bool:
        """Return whether this figure's interval overlaps the best's; without intervals, whether it is within 2 %."""
        if not self.bounds or not best.bounds:
            return self.signed_value >= best.signed_value - 0.02 * abs(best.value)
        return self.bounds[1] >= best.bounds[0] if self.more_is_better else self.bounds[0] <= best.bounds[1]


class Score(Result):
    """Result of an evaluation: a loss in nats (None without probabilities), further figures, and the protocol."""

    title = "Score"

    loss: Any

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite if that overflows."""
        try:
            return math.nan if self.loss is None else math.exp(self.loss)
        except OverflowError:
            return math.inf

    @property
    def figures(self) -> dict[str, float]:
        """Figures (name → value) that training logs at each validation, besides loss and perplexity."""
        return {}

    @property
    def headline(self) -> Headline:
        """The main figure of this score, by which it is compared with others of its kind; by default the perplexity."""
        return Headline("perplexity", float(self.perplexity), more_is_better=False)

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of the printed report: the summary, then the table if there is one."""
        yield Table(("", ""), self._lines(), is_text=True)
        if table := self._table():
            yield Pre([("\n".join(table), "")])

    def __str__(self) -> str:
        return format_named_values(self._lines())

    @abstractmethod
    def _lines(self) -> NamedValues:
        """Return the (name, value) pairs of the summary, one per line."""

    def _table(self) -> list[str]:
        """Return the lines of a table printed below the summary; none by default."""
        return []
