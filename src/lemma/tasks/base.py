"""What every kind of task has in common: the Task itself, its batches, its loss, its score, and what a person named."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from glob import glob
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, distributed, nn
from torch.nn import functional

from lemma.data.batches import BucketedExamples, ExampleSet
from lemma.data.splits import Item, Splits, split_files
from lemma.errors import DataError, RunError, SpecError, describe_unknown
from lemma.layers.state import State
from lemma.report.progress import Observer
from lemma.report.result import Block, Pre, Result, Table
from lemma.report.statistics import NamedValues
from lemma.runs.load import Run
from lemma.spec.base import exists, short_repr
from lemma.spec.choose import Choice
from lemma.spec.data import AnyDataSpec
from lemma.spec.recipe import Recipe

IGNORE_INDEX = -1
"""The target where nothing is to be predicted."""


@dataclass(frozen=True)
class Worker:
    """One of the processes that train a model together: its device, and its share of every batch."""

    device: torch.device
    rank: int = 0
    size: int = 1

    def local_rows(self, batch_size: int) -> slice:
        """The rows of the global batch that this process takes."""
        own = batch_size // self.size
        return slice(self.rank * own, (self.rank + 1) * own)

    def to_device(self, array: np.ndarray) -> Tensor:
        """Move numbers to this process's device, without waiting for them."""
        tensor = torch.from_numpy(array)
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def gather(self, tensor: Tensor) -> Tensor:
        """Join the tensors of all processes along their first dimension, in the order of ranks."""
        if self.size == 1:
            return tensor
        own = tensor.to(self.device).contiguous()
        every = [torch.empty_like(own) for _ in range(self.size)]
        distributed.all_gather(every, own)
        return torch.cat(every).to(tensor.device)


class Batches:
    """The batches of a run on its device. Each is a pure function of its step."""

    fixed_shape: ClassVar[bool] = True
    """Whether all batches are of one shape, so that compiling pays."""
    note: str | None = None
    """What the user should know about these batches."""

    def __init__(self, recipe: Recipe, worker: Worker, length: int, tokens_per_step: int) -> None:
        self.recipe, self.worker, self.rows = recipe, worker, worker.local_rows(recipe.batch)
        self.length, self.tokens_per_step = length, tokens_per_step

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and the targets of a step: this process's rows of both."""
        raise NotImplementedError

    def weight(self, targets: Tensor, num_parts: int) -> float | Tensor:
        """How much one of the parts of a batch counts; equal parts unless a task says otherwise."""
        return 1 / num_parts

    def resets_state(self, step: int) -> bool:
        """Whether a carried state is dropped before this step: always, if batches are unrelated."""
        return True

    def close(self) -> None:
        """Free what was taken."""


class ExampleBatches(Batches):
    """Batches of examples (trees, pairs, labelled texts), those of similar length together."""

    fixed_shape = False

    def __init__(self, examples: ExampleSet, recipe: Recipe, worker: Worker) -> None:
        mean = float(examples.lengths.mean())
        super().__init__(recipe, worker, max(1, round(mean)), max(1, round(mean * recipe.batch)))
        self.examples = examples
        self.order = BucketedExamples(examples.lengths, recipe.batch, recipe.seed)
        self.num_targets = 0  # targets of the last batch, the rows of all processes together

    def predicted_targets(self, targets: Any) -> Any:
        """The targets that are predicted, one for each prediction."""
        return targets

    def batch(self, step: int) -> tuple[Int[Tensor, "rows ..."], Int[Tensor, "rows ..."]]:
        """Return the examples of a step and their targets."""
        inputs, targets = self.examples.batch(self.order.examples(step))
        self.num_targets = int((self.predicted_targets(targets) >= 0).sum())
        return self.worker.to_device(inputs[self.rows]), self.worker.to_device(targets[self.rows])

    def weight(self, targets: Int[Tensor, "rows ..."], num_parts: int) -> Float[Tensor, ""]:
        """How much a part counts: by its targets, so that the whole batch's mean comes out.

        Gradients are averaged over the processes, so each process counts as many times as there are processes.
        """
        return (self.predicted_targets(targets) >= 0).sum().double() * (self.worker.size / max(1, self.num_targets))


LossTerms = tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...], State | None]
"""What is minimised, the terms that are reported, and the state where training carries it on."""


class TaskLoss(nn.Module):
    """A model and its loss in one module, so that they are compiled and wrapped by DDP as one.

    `forward(inputs, targets, state)` returns `LossTerms`; the names of the reported terms are in `terms`.
    """

    compilable: bool = True
    layers: Sequence[nn.Module] = ()
    """Layers of one shape, of which one is compiled for all; empty if the whole must be compiled at once."""
    terms: tuple[str, ...] = ("loss",)
    chance: tuple[int, str, str] | None = None
    """Among how many, and of what, an untrained model guesses; and the symbol of that number."""


class CrossEntropy(NamedTuple):
    """Means over the targets that count, in nats; 0 where none does."""

    objective: Float[Tensor, ""]
    """What is minimised: (1 − ε)(−log p(target)) + ε · mean over all classes of −log p."""
    loss: Float[Tensor, ""]
    """The mean of −log p(target), whatever the smoothing: what is reported."""


def cross_entropy(
    logits: Float[Tensor, "*places classes"], targets: Int[Tensor, "*places"], smoothing: float = 0.0
) -> CrossEntropy:
    """Cross-entropy; a target of −1 does not count (label smoothing ε: Szegedy et al. 2016).

    >>> found = cross_entropy(torch.tensor([[2.0, 2.0], [5.0, 0.0]]), torch.tensor([1, -1]))
    >>> round(found.loss.item(), 6)  # log 2: the second target does not count
    0.693147
    """
    targets = targets.flatten()
    exact = torch.promote_types(logits.dtype, torch.float32)
    log = logits.flatten(0, -2).log_softmax(-1, dtype=exact)
    count = (targets != IGNORE_INDEX).sum().clamp(min=1)
    loss = functional.nll_loss(log, targets, ignore_index=IGNORE_INDEX, reduction="sum") / count
    if not smoothing:
        return CrossEntropy(loss, loss)
    even = -(log.mean(-1) * (targets != IGNORE_INDEX)).sum() / count
    return CrossEntropy((1 - smoothing) * loss + smoothing * even, loss.detach())


class SmoothedLoss(TaskLoss):
    """A model and the cross-entropy of what it predicts, with label smoothing."""

    def __init__(
        self, model: nn.Module, smoothing: float, predict: Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]]
    ) -> None:
        """Take what makes of the model, its inputs and their targets the logits, and the classes that they are for."""
        super().__init__()
        self.model, self.smoothing, self.predict = model, smoothing, predict

    def forward(self, inputs: Tensor, targets: Tensor, state: Any = None) -> LossTerms:
        """Return the smoothed mean loss, to be minimised, and the true one, to be reported."""
        objective, loss = cross_entropy(*self.predict(self.model, inputs, targets), self.smoothing)
        return objective, (loss,), None


NO_VALUE = "–"


@dataclass(frozen=True)
class Headline:
    """The one figure by which scores are compared, with its interval if it has one."""

    name: str
    value: float
    bounds: Sequence[float] | None = None
    more_is_better: bool = True
    baseline: float | None = None
    """What always naming the most frequent class gives."""

    @property
    def baseline_text(self) -> str:
        """What guessing gives, in words."""
        return NO_VALUE if self.baseline is None else f"{self.baseline:.3f}"

    @property
    def is_at_baseline(self) -> bool:
        """Whether it does not differ significantly from guessing."""
        return self.baseline is not None and (self.bounds[0] if self.bounds else self.value) <= self.baseline

    @property
    def signed_value(self) -> float:
        """The figure, turned so that more is better."""
        return self.value if self.more_is_better else -self.value

    @property
    def text(self) -> str:
        """The figure in words."""
        return f"{self.value:.3f}" if self.value <= 1 else f"{self.value:,.2f}"

    @property
    def interval(self) -> str:
        """Its interval in words, or a dash."""
        places = 3 if self.value <= 1 else 1
        return "–".join(f"{bound:.{places}f}" for bound in self.bounds) if self.bounds else NO_VALUE

    def is_on_par_with(self, best: "Headline") -> bool:
        """Whether it may be as good as another: the intervals overlap, or without any it is within two per cent."""
        if not self.bounds or not best.bounds:
            return self.signed_value >= best.signed_value - 0.02 * abs(best.value)
        return self.bounds[1] >= best.bounds[0] if self.more_is_better else self.bounds[0] <= best.bounds[1]


class Score(Result):
    """What a measurement came to: a loss, further figures, and the protocol."""

    title = "Score"

    loss: Any
    """In nats; None where there are no probabilities."""

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite where that overflows."""
        try:
            return math.nan if self.loss is None else math.exp(self.loss)
        except OverflowError:
            return math.inf

    @property
    def figures(self) -> dict[str, float]:
        """The figures that training logs at each validation, next to loss and perplexity."""
        return {}

    @property
    def headline(self) -> Headline:
        """The one figure by which this score is compared with others of its kind."""
        return Headline("perplexity", float(self.perplexity), more_is_better=False)

    def blocks(self) -> Iterator[Block]:
        """Names and values, and a table."""
        yield Table(("", ""), self._lines(), is_text=True)
        if table := self._table():
            yield Pre([("\n".join(table), "")])

    @abstractmethod
    def _lines(self) -> NamedValues: ...

    def _table(self) -> list[str]:
        return []


@dataclass(frozen=True)
class DataArgs:
    """The data that a person named: of one kind at most, with the settings of that kind."""

    task: "type[Task] | None" = None
    """The (first) task that learns this kind of data; None if no data are named."""
    name: Any = None
    """A known name or a file with its full path, so that a run finds it from anywhere; of text a list of them."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Words of the data spec, such as `source` for `source_column`."""

    @property
    def option(self) -> str | None:
        """The option that names the data, such as "labels"."""
        return self.task.option if self.task else None

    def spec(self, choice: Choice) -> AnyDataSpec:
        """The data spec that goes with a choice of model."""
        if self.task is None:
            raise SpecError(
                "nothing to learn from is given: text, a treebank for a parser, pairs of texts, labels, images or a "
                "graph."
            )
        return choice.data_spec(self.task.option, self.name, **self.settings)


def absolute_path(name: Any, names: Collection[str] = ()) -> str:
    """A known name as it is, a file with its full path."""
    said = str(name)
    return str(Path(said).resolve()) if said not in names and exists(Path(said)) else said


def expand_pattern(name: Any, names: Collection[str] = ()) -> list[str]:
    """The files that a pattern such as shard-*.txt.gz names, in the order of their names; else the name itself."""
    said = str(name)
    if said in names or not any(sign in said for sign in "*?[") or exists(Path(said)):
        return [said]
    found = sorted(glob(said, recursive=True))  # noqa: PTH207 (a pattern may begin at the root)
    if not found:
        raise DataError(f"{said}: no file has a name like that. Check the pattern and the folder.")
    return found


class Task(ABC):
    """All that depends on the kind of data: how it is loaded, batched, learned and measured.

    `task_for` (in `lemma.tasks.registry`) finds the task of a model spec.
    """

    name: ClassVar[str]
    option: ClassVar[str]
    """The option and the field of the data spec that name the data: "text", "labels", …"""
    example: ClassVar[str]
    """A value of the option, for messages."""
    learns: ClassVar[str]
    """What it is trained on, in words."""
    unit: ClassVar[str] = "nats/token"
    """The unit of the loss."""
    has_perplexity: ClassVar[bool] = True
    """Whether the perplexity can be compared with that of other models."""
    counts: ClassVar[str] = "tokens"
    """What training counts."""
    answers: ClassVar[str | None] = None
    """What it makes of a text: "prompt" (goes on with it), "translation" or "class"; None if it answers no text."""
    text_checks: ClassVar[bool] = True
    """Whether the sanity checks for text apply: too many epochs, validation far better than training."""
    data_spec: ClassVar[type[Any]]
    """The spec of its data."""
    names: ClassVar[Collection[str]]
    """The data that are known by name."""
    several: ClassVar[bool] = False
    """Whether the option takes several names."""
    settings: ClassVar[tuple[str, ...]] = ()
    """The settings that belong to the option, such as "source_column"."""
    files: ClassVar[tuple[str, ...]] = ()
    """Those of the settings that name files."""
    evaluation_settings: ClassVar[tuple[str, ...]] = ()
    """The settings that `evaluate` takes."""
    no_effect: ClassVar[Mapping[str, str]] = {}
    """Settings of `evaluate` that make no sense here, and why."""
    splits_given_data: ClassVar[bool] = False
    """Whether `evaluate` takes a split of data that are named too."""
    no_penalties: ClassVar[str | None] = None
    """Why the penalties on attention do not apply; None where they do."""
    adaptation_batch: ClassVar[int] = 32
    """The batch of an adaptation, unless it is set."""

    @abstractmethod
    def load(
        self,
        data: Any,
        model: Any,
        recipe: Recipe,
        observer: Observer,
        vocabulary: Any = None,
        labels: tuple[str, ...] = (),
    ) -> Splits[Any]:
        """Read the data of a data spec as the model reads them; vocabulary and labels are learned if not given."""

    @abstractmethod
    def batches(self, model: Any, examples: Any, recipe: Recipe, worker: Worker) -> Batches:
        """The batches of a training split on this process's device."""

    @abstractmethod
    def loss(self, model: Any, recipe: Recipe, batches: Any = None) -> TaskLoss:
        """The model joined with its loss."""

    @abstractmethod
    def validate(self, model: Any, data: Any, recipe: Recipe) -> Score:
        """Measure a model on the validation split during training, quickly."""

    @abstractmethod
    def evaluate(
        self, run: Run, given: DataArgs, split: str | None, settings: Mapping[str, Any], observer: Observer
    ) -> Score:
        """Measure a run on its own held-out data or on other data, with the whole protocol."""

    def steps_per_epoch(self, model: Any, examples: Any, recipe: Recipe) -> float:
        """Return how many steps read a training split once; of a model its spec."""
        return max(1.0, len(examples.lengths) / recipe.batch)

    def samples(self, model: Any, data: Any) -> list[str]:
        """What the trained model writes; nothing for most tasks."""
        return []


def epochs_to_steps(epochs: Any, task: Task, model: Any, data: Splits[Any], recipe: Recipe, observer: Observer) -> int:
    """Convert epochs of the training split to steps, and report them; of a model its spec is expected."""
    steps = math.ceil(epochs * task.steps_per_epoch(model, data.item("train"), recipe))
    observer.log(f"epochs = {epochs:g}: {steps:,} steps of batch {recipe.batch}.")
    return steps


def check_epochs(epochs: Any, settings: Mapping[str, Any]) -> None:
    """Refuse epochs that are not a number above 0, and steps next to epochs, before any data are read."""
    if epochs is None:
        return
    if isinstance(epochs, bool) or not isinstance(epochs, Real) or not 0 < float(epochs) < math.inf:
        raise SpecError(f"epochs = {short_repr(epochs)}: a number above 0 is expected, as in epochs=3.")
    if "steps" in settings:
        raise SpecError("steps and epochs are both given. Leave one of them out.")


def check_penalties(task: Task, recipe: Recipe) -> None:
    """Refuse the penalties on attention where they do not apply."""
    if task.no_penalties and (recipe.entropy_penalty or recipe.distance_penalty):
        raise SpecError(
            f"entropy_penalty and distance_penalty are for a language model's attention; {task.no_penalties}. "
            "Leave them out."
        )


def report_skipped(data: Splits[Item], observer: Observer) -> Splits[Item]:
    """Say what was skipped or cut while data were read."""
    for message in (*data.notes, *data.overlaps):
        observer.log(message)
    return data


def check_unchanged(run: Run, data: Splits[Item], name: str, option: str, noun: str | None = None) -> Splits[Item]:
    """Refuse data that have changed since the run was trained; return them if they have not."""
    if data.hash != run.data_hash:
        raise RunError(
            f"{run.path} was trained on {noun or option} with SHA-256 {run.data_hash}, but {describe_files(name, run)} now "
            f"has {data.hash}: its validation and test splits may contain training data. To evaluate on it anyway, "
            f"name it with --{option}."
        )
    return data


def describe_files(name: str, run: Run) -> str:
    """The name of a run's data, and the files of the splits that were given with them."""
    given = [one if isinstance(one, tuple) else (one,) for one in split_files(run.data).values()]
    return ", ".join([name, *(file for some in given for file in some if isinstance(file, str))])


def choose_split(data: Splits[Any], split: str | None) -> str:
    """The split that is asked for; else test if there is one, else validation, else the only one."""
    if split is None:
        return next((part for part in ("test", "validation") if part in data.split_names), data.split_names[0])
    if split not in data.split_names:
        raise SpecError(describe_unknown("split", split, data.split_names))
    return split


def data_protocol(data: Splits[Any], split: str) -> dict[str, Any]:
    """The part of a protocol that tells the data."""
    told = {"tokenizer": data.tokenizer.description, "data": data.description, "split": split, "data hash": data.hash}
    return {**told, **split_protocol(data, split)}


def split_protocol(data: Splits[Any], split: str) -> dict[str, str]:
    """The part of a protocol that tells a split that was given as a file of its own."""
    told = {"split hash": data.split_hashes.get(split), "overlap": "; ".join(data.overlaps)}
    return {name: value for name, value in told.items() if value}
