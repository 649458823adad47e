"""From a study to its cells, and what one run came to."""

import gc
import itertools
import json
import math
import platform
import re
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from statistics import fmean, quantiles
from tempfile import TemporaryDirectory
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lemma.data.files import write_atomically
from lemma.data.splits import Splits
from lemma.data.store import TokenArray
from lemma.errors import RunError, SpecError, unknown
from lemma.models.base import LanguageModel
from lemma.models.build import parameters_of
from lemma.report.progress import Observer
from lemma.report.statistics import Estimate, estimate
from lemma.runs.folder import SPEC, RunFolder, is_begun
from lemma.spec.base import Spec, distribute
from lemma.spec.choose import Choice, choose
from lemma.spec.data import DataSpec
from lemma.spec.models import Decoder, ModelSpec
from lemma.spec.positions import PositionsSpec
from lemma.spec.recipe import Recipe
from lemma.spec.studies import Budget, Contender, StudySpec
from lemma.tasks.language import stretch_of
from lemma.training.loop import train
from lemma.training.session import Session

# From a study to its cells: contenders × grid × seeds.


Words = Mapping[str, Any]

FROM_TOKENIZER = "It comes from the tokenizer, the same for every run: set data.tokenizer.vocabulary."
RESERVED = {
    "vocabulary": FROM_TOKENIZER,
    "V": FROM_TOKENIZER,
    "seed": "Give the study `seeds`, as in seeds=[1,2,3].",
    "family": "Name another contender, as in model = 'lstm'.",
}


@dataclass(frozen=True)
class Cell:
    """One run of a study before its budget is spent: who, where in the grid, with which seed."""

    contender: str
    point: Words
    """The grid words of this cell and their values, as the study writes them."""
    seed: int
    model: ModelSpec
    recipe: Recipe
    fixed: frozenset[str] = field(default=frozenset())
    """Words of the model that the study sets itself, so that no budget may change them."""

    @property
    def row_name(self) -> str:
        """The name of its row, which all its seeds share: `lstm-depth-2`."""
        parts = [self.contender, *(f"{word}-{plain(value)}" for word, value in self.point.items())]
        return "-".join(re.sub(r"[^\w.]+", "-", part).strip("-.") for part in parts)

    @property
    def name(self) -> str:
        """A stable, readable name for the run's folder: `lstm-depth-2-seed-1`."""
        return f"{self.row_name}-seed-{self.seed}"

    @property
    def place(self) -> str:
        """Where in the grid it stands, in words: `depth=2, context=5`."""
        return ", ".join(f"{word}={plain(value)}" for word, value in self.point.items())

    def with_model(self, model: ModelSpec) -> Self:
        """Return the same cell with a model of other sizes."""
        return replace(self, model=model)

    def __str__(self) -> str:
        return ", ".join(part for part in (self.contender, self.place, f"seed {self.seed}") if part)


def open_grid(study: StudySpec) -> tuple[Cell, ...]:
    """Open a study into its cells: seeds run fastest, contenders slowest.

    >>> from lemma.spec import read_study
    >>> [cell.name for cell in open_grid(read_study("table-a5", {"seeds": [1], "grid.context": [3], "claims": []}))]
    ['table-a5-depth-2-context-3-seed-1', 'table-a5-depth-4-context-3-seed-1']
    """
    bases = {contender.title: choose(contender.model) for contender in study.contenders}
    _refuse_foreign_words(study, bases)
    cells = tuple(
        _cell(study, contender, bases[contender.title], dict(zip(study.grid, values, strict=True)), seed)
        for contender in study.contenders
        for values in itertools.product(*study.grid.values())
        for seed in study.seeds
    )
    _refuse_equal_names(cells)
    return cells


def _cell(study: StudySpec, contender: Contender, base: Choice, point: Words, seed: int) -> Cell:
    kinds = _kinds(base)
    known = {word: value for word, value in study.words.items() if _knows(kinds, word)}
    model: dict[str, Any] = {}
    recipe: dict[str, Any] = {}
    for words in (known, contender.words, point):
        shares = distribute(words, kinds)
        model |= shares["model"]
        recipe |= shares["recipe"]
    return Cell(
        contender=contender.title,
        point=point,
        seed=seed,
        model=base.model.replace(**model),
        recipe=base.recipe.replace(**recipe, seed=seed),
        fixed=frozenset(model),
    )


def _kinds(base: Choice) -> dict[str, type[Spec]]:
    return {"model": type(base.model), "recipe": Recipe}


def _knows(kinds: Mapping[str, type[Spec]], word: str) -> bool:
    return any(word.partition(".")[0] in kind.known_words() for kind in kinds.values())


def _refuse_foreign_words(study: StudySpec, bases: Mapping[str, Choice]) -> None:
    """Refuse words that no model knows, that a contender does not know, or that are not the study's to set."""
    everything = {word: None for base in bases.values() for word in _known_words(base)}
    for word in study.words:
        if not any(_knows(_kinds(base), word) for base in bases.values()):
            raise SpecError(unknown("study.words: the word", word, everything))
    for contender in study.contenders:
        _refuse_unknown(contender, study.grid, "study.grid", bases[contender.title])
        _refuse_unknown(contender, contender.words, "study.contenders", bases[contender.title])
        _refuse_set_twice(contender, study.grid, bases[contender.title])
    for word in [*study.words, *study.grid, *(word for contender in study.contenders for word in contender.words)]:
        _refuse_reserved(word)


def _refuse_unknown(contender: Contender, words: Words, where: str, base: Choice) -> None:
    for word in words:
        if not _knows(_kinds(base), word):
            raise SpecError(unknown(f"{where}: for {contender.title}, the word", word, _known_words(base)))


def _known_words(base: Choice) -> list[str]:
    return [word for kind in _kinds(base).values() for word in kind.known_words() if word not in RESERVED]


def _refuse_reserved(word: str) -> None:
    if word in RESERVED:
        raise SpecError(f"study: '{word}' is no word for single runs. {RESERVED[word]}")


def _refuse_set_twice(contender: Contender, grid: Words, base: Choice) -> None:
    ours, theirs = (distribute(words, _kinds(base)) for words in (grid, contender.words))
    for owner, words in ours.items():
        if both := sorted(words.keys() & theirs[owner].keys()):
            raise SpecError(f"study: {contender.title} sets {both[0]}, which the grid sets too. Take one away.")


def _refuse_equal_names(cells: tuple[Cell, ...]) -> None:
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.name.lower(), cell)
        if other is not cell:
            raise SpecError(
                f"study: '{other}' and '{cell}' would both run in the folder {cell.name}. "
                "Give the contenders or the values names that differ in letters or digits."
            )


def plain(value: Any) -> str:
    """Write a grid value as a person would.

    >>> plain(True), plain(0.001)
    ('true', '0.001')
    """
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


# The solver of a parameter budget: all sizes of a model scaled by one factor until its count fits.


SIZES = ("width", "hidden", "key_width", "value_width", "feed_forward", "attention_width", "embedding")
HALVINGS = 60


@dataclass(frozen=True)
class Fit:
    """A model with the size a budget allows, and how far from it it is."""

    model: ModelSpec
    parameters: int
    budget: int

    @property
    def gap(self) -> float:
        """How much more the model has than the budget, as a share of it."""
        return self.parameters / self.budget - 1

    def __str__(self) -> str:
        """Say the count and its distance.

        >>> from lemma.spec import Rnn
        >>> print(Fit(Rnn(), 100_500, 100_000))
        100,500 parameters, +0.50 % of the budget
        """
        return f"{self.parameters:,} parameters, {100 * self.gap:+.2f} % of the budget"


def fit_parameters(model: ModelSpec, budget: int, fixed: Collection[str] = ()) -> Fit:
    """Scale the sizes of `model` that are not `fixed`, keeping their ratios, until its count is nearest to `budget`.

    Each size is a rounded multiple of one factor, so the count never falls as the factor grows: bisection finds the
    two neighbours between which the budget lies.

    >>> from lemma.spec import FeedForward
    >>> fit = fit_parameters(FeedForward(V=65), 200_000)
    >>> fit.model.width, fit.model.hidden, fit.parameters
    (79, 315, 200120)
    """
    sizes = _free_sizes(model, fixed)
    grains = [_grain(model, name) for name in sizes]

    def at(factor: float) -> tuple[int, ...]:
        return tuple(_round(size * factor, grain) for size, grain in zip(sizes.values(), grains, strict=True))

    def shaped(values: tuple[int, ...]) -> ModelSpec:
        return model.replace(**dict(zip(sizes, values, strict=True)))

    @cache
    def count(values: tuple[int, ...]) -> int:
        return parameters_of(shaped(values))

    _refuse_impossible(shaped(at(0.0)), count(at(0.0)), budget, sizes)
    low, high = _neighbours(lambda factor: count(at(factor)) <= budget)
    nearest = min(at(low), at(high), key=lambda values: abs(count(values) - budget))
    return Fit(shaped(nearest), count(nearest), budget)


def _free_sizes(model: ModelSpec, fixed: Collection[str]) -> dict[str, int]:
    """The sizes that may be scaled, as the model has them; a Transformer's own ones where the width is fixed."""
    sizes = {name: getattr(model, name, None) for name in SIZES if name not in fixed}
    free = {name: size for name, size in sizes.items() if size}
    if not free and isinstance(model, Decoder) and "feed_forward" not in fixed:
        free = {"feed_forward": model.inner}
    if not free:
        held = ", ".join(f"{name}={getattr(model, name)}" for name in SIZES if name in fixed)
        raise SpecError(
            f"study.budget.parameters: {model.family} has no size left to choose, since {held} is fixed. "
            "Leave one of them free, or take the budget away."
        )
    return free


def _grain(model: ModelSpec, name: str) -> int:
    """What a size must be a multiple of: the heads, where they share it, twice that where rotary turns pairs."""
    heads = getattr(model, "heads", 1)
    shared = "attention_width" if getattr(model, "attention_width", None) else "width"
    if name == shared:
        places = getattr(model, "positions", None)
        return 2 * heads if isinstance(places, PositionsSpec) and places.paired else heads
    return heads if name == "value_width" else 1


def _round(size: float, grain: int) -> int:
    return grain * max(1, math.floor(size / grain + 0.5))


def _refuse_impossible(smallest: ModelSpec, parameters: int, budget: int, sizes: dict[str, int]) -> None:
    if parameters > budget:
        at_least = ", ".join(f"{name}={getattr(smallest, name)}" for name in sizes)
        raise SpecError(
            f"study.budget.parameters = {budget:,} is too little for {smallest.family}: at its smallest ({at_least}), "
            f"with a vocabulary of {smallest.sizes()['V']:,}, it has {parameters:,}. "
            "Raise the budget, or shrink the vocabulary."
        )


def _neighbours(fits: Callable[[float], bool]) -> tuple[float, float]:
    """Return two factors as good as equal, the first of which fits and the second does not."""
    low, high = 0.0, 1.0
    while fits(high):
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, high


# From a budget of tokens or seconds to a number of steps.


WARM_UP = 4
TRIAL = 12


@dataclass(frozen=True)
class NoScore:
    """Stands for a validation that a trial of speed does without."""

    loss: float = 0.0
    perplexity: float = 1.0


def tokens_a_step(model: ModelSpec, recipe: Recipe) -> int:
    """How many tokens a step predicts."""
    return recipe.batch * stretch_of(model, recipe)


def spread_validations(recipe: Recipe, validations: int | None) -> Recipe:
    """Let a run be validated so many times, at equal distances; a recipe that says when itself is left alone."""
    if validations is None or recipe.evaluate_every:
        return recipe
    return recipe.replace(evaluate_every=math.ceil(recipe.steps / validations))


def fit_steps(model: ModelSpec, recipe: Recipe, budget: Budget, speed: float | None = None) -> Recipe:
    """Give the recipe as many steps as the budget allows; `speed`, in tokens a second, turns seconds into tokens.

    >>> from lemma.spec import Lstm
    >>> fit_steps(Lstm(), Recipe(batch=10, stretch=20), Budget(tokens=10_100)).steps
    50
    """
    if budget.tokens is None and budget.seconds is None:
        return recipe
    tokens = budget.tokens if budget.tokens else (budget.seconds or 0.0) * (speed or 0.0)
    steps = math.floor(tokens / tokens_a_step(model, recipe))
    if steps < 1 and budget.tokens:
        raise SpecError(
            f"study.budget.tokens = {budget.tokens:,} is less than one step of {model.family}: batch {recipe.batch} × "
            f"stretch {stretch_of(model, recipe)} = {tokens_a_step(model, recipe):,}. Raise it, or lower words.batch."
        )
    return recipe.replace(steps=max(1, steps))


def measure_speed(model: ModelSpec, recipe: Recipe, data: DataSpec, dataset: Splits[TokenArray]) -> float:
    """Train for a few real steps and return the tokens a second of all but the first ones."""
    with TemporaryDirectory(prefix="lemma-trial-") as folder:
        path = Path(folder) / "trial"
        trial = recipe.replace(steps=TRIAL, evaluate_every=TRIAL, tensorboard=False)
        train(model, trial, data, dataset, path, evaluate=_unscored, sample=_silent)
        rows = RunFolder.open(path).metrics.rows()
    first, last = rows[WARM_UP - 1], rows[-1]
    return (last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"])


def _unscored(model: LanguageModel) -> NoScore:
    return NoScore()


def _silent(model: LanguageModel) -> list[str]:
    return []


# The most memory that one step of training holds: weights, gradients, the optimizer's memory and activations.


def peak_of_step(session: Session) -> int:
    """The bytes of all tensors at the fullest moment of a session's second step; the first makes the optimizer's."""
    session.step()
    if session.processes.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        session.step()
        return torch.cuda.max_memory_allocated()
    held = held_bytes(session.model) + _optimizer_bytes(session)
    with LiveBytes() as live:
        session.step()
    return held + live.peak


def held_bytes(module: nn.Module) -> int:
    """The bytes of a module's parameters and buffers, a shared one counted once."""
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return sum(tensor.nbytes for tensor in tensors.values())


def _optimizer_bytes(session: Session) -> int:
    state = session.optimizer.state.values()
    return sum(value.nbytes for known in state for value in known.values() if isinstance(value, Tensor))


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are made within it, from when they are made until nobody holds them.

    >>> with LiveBytes() as live:
    ...     for _ in range(3):
    ...         held = torch.zeros(10)  # one more is made before the one before is let go
    >>> live.peak
    80
    """

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation as it is, and note what storage it made."""
        made = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in given:
                self._note(leaf.untyped_storage())
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.live:
            return
        self.live[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._let_go, key)

    def _let_go(self, key: int) -> None:
        self.now -= self.live.pop(key, 0)


# What one run of a study came to: its measures, or the reason why there are none.


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


# What became of a run, kept as JSON beside its folder, so that a study that goes on later has it.


def keep_measures(run: Path, identity: Mapping[str, Any], measures: Measures) -> None:
    """Write down what was measured of the run in the folder `run`."""
    write_plain(_beside(run), {"of": identity, "measures": measures.to_dict()})


def keep_failure(run: Path, reason: str) -> None:
    """Write down why a run failed; the next call of the study tries it again."""
    write_plain(_beside(run), {"failed": reason})


def kept_measures(run: Path, identity: Mapping[str, Any]) -> Measures | None:
    """Read what was measured of a run of this identity; None if there is nothing, or nothing readable."""
    kept = read_plain(_beside(run))
    if not kept or kept.get("of") != identity:
        return None
    try:
        return Measures.read(kept["measures"])
    except (KeyError, TypeError):  # written by another version of Lemma: measured again
        return None


def kept_failure(run: Path) -> str | None:
    """Read why a run failed when it was last tried."""
    kept = read_plain(_beside(run))
    return kept.get("failed") if kept else None


def read_plain(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if the file is missing or damaged, for all that is kept here can be made again."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def write_plain(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _beside(run: Path) -> Path:
    return run.with_name(f"{run.name}.json")


# From a cell of the grid to a run: its sizes and its steps, as the budget allows them.


@dataclass(frozen=True)
class Plan:
    """A run that is ready to start."""

    cell: Cell
    model: ModelSpec
    recipe: Recipe
    path: Path
    data_hash: str
    trial_speed: float | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """What makes two runs the same: the model, the recipe and the text."""
        return {"model": self.model.to_dict(), "recipe": self.recipe.to_dict(), "data": self.data_hash}


def size_cells(study: StudySpec, vocabulary: int) -> list[Cell]:
    """Open the grid and give each model its vocabulary and the sizes that meet the budget of parameters."""
    return [_sized(study, cell, vocabulary) for cell in open_grid(study)]


def _sized(study: StudySpec, cell: Cell, vocabulary: int) -> Cell:
    model = cell.model.replace(vocabulary=vocabulary)
    if study.budget.parameters:
        model = fit_parameters(model, study.budget.parameters, cell.fixed).model
    return cell.with_model(model)


def plan_run(study: StudySpec, cell: Cell, dataset: Splits[TokenArray], out: Path) -> Plan:
    """Settle the number of steps, if need be by a trial of speed, and refuse a folder that holds another run."""
    plan = known_plan(study, cell, dataset, out)
    if plan is None:
        speed = measure_speed(cell.model, cell.recipe, study.data, dataset)
        write_plain(_speed_file(cell, out), {"of": _speed_of(cell, dataset), "tokens_per_second": speed})
        plan = known_plan(study, cell, dataset, out)
    assert plan is not None
    return plan


def known_plan(study: StudySpec, cell: Cell, dataset: Splits[TokenArray], out: Path) -> Plan | None:
    """The plan as far as it needs no trial: None if there is a budget of seconds and the speed is not known yet."""
    speed = _kept_speed(cell, dataset, out) if study.budget.seconds else None
    if study.budget.seconds and speed is None:
        return None
    recipe = spread_validations(fit_steps(cell.model, cell.recipe, study.budget, speed), study.validations)
    plan = Plan(cell, cell.model, recipe, out / "runs" / cell.name, dataset.hash, speed)
    refuse_other_run(plan)
    return plan


def _kept_speed(cell: Cell, dataset: Splits[TokenArray], out: Path) -> float | None:
    """The speed of a row is measured once: all its seeds, and a study that goes on later, take the same steps."""
    kept = read_plain(_speed_file(cell, out)) or {}
    return float(kept["tokens_per_second"]) if kept.get("of") == _speed_of(cell, dataset) else None


def _speed_file(cell: Cell, out: Path) -> Path:
    return out / "speeds" / f"{cell.row_name}.json"


def _speed_of(cell: Cell, dataset: Splits[TokenArray]) -> dict[str, Any]:
    """What a speed depends on: all of a run but its seed."""
    return {"model": cell.model.to_dict(), "recipe": cell.recipe.replace(seed=0).to_dict(), "data": dataset.hash}


def refuse_other_run(plan: Plan) -> None:
    """Refuse to go on in a folder where a run of another model, recipe or text stands, or what is not a run."""
    if not is_begun(plan.path):
        return
    if plan.path.is_dir() and not (plan.path / SPEC).exists():
        found = ", ".join(sorted(entry.name for entry in plan.path.iterdir()))
        raise RunError(
            f"{plan.path} is not a run, and this study needs that folder for one: {SPEC} is missing, but it holds "
            f"{found}. Move that away, or choose another --out."
        )
    held = RunFolder.open(plan.path)
    for where, got, asked in (
        ("", held.spec.to_dict(), plan.model.to_dict()),
        ("recipe ", held.recipe.to_dict(), plan.recipe.to_dict()),
        ("text ", {"hash": held.data_hash}, {"hash": plan.data_hash}),
    ):
        if word := next((word for word in {**got, **asked} if got.get(word) != asked.get(word)), None):
            raise RunError(
                f"{plan.path} holds a run with {where}{word} {got.get(word)}, this study asks for {asked.get(word)}. "
                "Choose another --out, or remove that folder."
            )


# Which run of a study is under way, said to whoever watches.


class Announcing(Observer):
    """Passes all on to an observer, with the run's name before each phase: "run 3 of 12: lstm, seed 1"."""

    def __init__(self, watcher: Observer, title: str) -> None:
        self.watcher, self.title = watcher, title

    def begin(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """A phase of the run begins."""
        self.watcher.begin(self.title if phase == "training" else f"{self.title}, {phase}", total, unit, done)

    def advance(self, done: int) -> None:
        """So much of the phase is done by now."""
        self.watcher.advance(done)

    def report(self, row: Mapping[str, float]) -> None:
        """A row of metrics has been written."""
        self.watcher.report(row)

    def say(self, message: str) -> None:
        """Something worth reading has happened in this run."""
        self.watcher.say(f"{self.title}: {message}")

    def end(self) -> None:
        """The phase is over."""
        self.watcher.end()


# What a study ran on, in words.


def describe_hardware(device: str = "cpu") -> dict[str, str]:
    """Name the machine, the threads and the versions that figures of speed depend on."""
    gpu = {"GPU": torch.cuda.get_device_name()} if device == "cuda" else {}
    threads = torch.get_num_threads()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, Lemma {lemma_version()}"
    return {
        **gpu,
        "processor": f"{_processor()}, {threads} thread{'' if threads == 1 else 's'}",
        "system": f"{platform.system()} {platform.machine()}, {versions}",
    }


def lemma_version() -> str:
    """The version of Lemma, if it is installed as a package."""
    try:
        return version("lemma")
    except PackageNotFoundError:
        return "not installed as a package"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


# Time measured fairly: all contenders in one process, in turns, many times over.


LEAST = 2e-3  # seconds: what is quicker is repeated within one measurement
MOST = 1000  # repetitions within one measurement
Run = Callable[[], Any]


@dataclass(frozen=True)
class Spread:
    """A median with the quartiles around it."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Write the median and the quartiles.

        >>> print(Spread(1.234, 1.2, 1.301))
        1.23 (1.20–1.30)
        """
        return f"{self.median:.3g} ({self.low:.3g}–{self.high:.3g})" if self.median < 1 else self._decimals()

    def _decimals(self) -> str:
        places = 2 if self.median < 100 else 0
        return f"{self.median:.{places}f} ({self.low:.{places}f}–{self.high:.{places}f})"

    def scaled(self, factor: float) -> "Spread":
        """The same in another unit."""
        return Spread(self.median * factor, self.low * factor, self.high * factor)


def spread(values: Sequence[float]) -> Spread:
    """The median and the quartiles of some measurements.

    >>> spread([1.0, 2.0, 3.0, 4.0, 5.0])
    Spread(median=3.0, low=2.0, high=4.0)
    """
    if len(values) < 2:
        return Spread(values[0], values[0], values[0])
    low, median, high = quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def ratio(ones: Sequence[float], others: Sequence[float]) -> Spread:
    """One contender's time against another's, round by round: what slows a round down slows down both."""
    return spread([one / other for one, other in zip(ones, others, strict=True)])


def race(runs: Mapping[str, Run], repetitions: int, device: str = "cpu") -> dict[str, list[float]]:
    """Time every contender once a round, each round beginning with another one; seconds a call.

    What takes less than two milliseconds is called several times within one measurement, the same number of times in
    every round.
    """
    names = list(runs)
    with _quiet():
        times = {name: _calls(runs[name], device) for name in names}
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(repetitions):
            for place in range(len(names)):
                name = names[(turn + place) % len(names)]
                seconds[name].append(_seconds(runs[name], times[name], device))
    return seconds


def _calls(run: Run, device: str) -> int:
    """How many calls make a measurement; the calls made here warm up."""
    _seconds(run, 1, device)
    return min(MOST, max(1, round(LEAST / max(_seconds(run, 1, device), 1e-7))))


def _seconds(run: Run, calls: int, device: str) -> float:
    _wait(device)
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    _wait(device)
    return (time.perf_counter() - begin) / calls


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the collector of garbage from running in the middle of a measurement."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


# One row of a study's table: what the seeds of a contender at a place of the grid came to.


@dataclass(frozen=True)
class Row:
    """What the seeds of one contender at one place of the grid came to."""

    contender: str
    point: Mapping[str, Any]
    title: str
    """What tells it from the other rows: the contender, its place in the grid, or both."""
    measured: tuple[Measures, ...]
    failed: tuple[tuple[int, str], ...] = ()
    """The seeds that failed, each with its reason."""
    waiting: tuple[int, ...] = ()
    """The seeds that were not run yet."""
    best: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """Why seeds are missing."""
        failed = (f"seed {seed} failed: {reason}" for seed, reason in self.failed)
        return (*failed, *(f"seed {seed} not run yet" for seed in self.waiting))

    @property
    def perplexity(self) -> Estimate | None:
        """Validation perplexity over the seeds; None if no seed came to an end."""
        return self._estimate(lambda measures: measures.perplexity)

    @property
    def bits_per_byte(self) -> Estimate | None:
        """Validation bits per byte over the seeds."""
        return self._estimate(lambda measures: measures.bits_per_byte)

    def mean(self, of: Callable[[Measures], float]) -> float | None:
        """The mean over the seeds of something measured."""
        return fmean(map(of, self.measured)) if self.measured else None

    def _estimate(self, of: Callable[[Measures], float | None]) -> Estimate | None:
        values = [value for value in map(of, self.measured) if value is not None]
        return estimate(values) if values else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        perplexity, bits = self.perplexity, self.bits_per_byte
        return {
            "contender": self.contender,
            **self.point,
            "seeds": len(self.measured),
            "perplexity": perplexity and perplexity.mean,
            "perplexity_margin": perplexity and perplexity.margin,
            "bits_per_byte": bits and bits.mean,
            "bits_per_byte_margin": bits and bits.margin,
            "parameters": self.measured[0].parameters if self.measured else None,
            "tokens": round(self.mean(lambda measures: measures.tokens) or 0) or None,
            "tokens_per_second": self.mean(lambda measures: measures.tokens_per_second),
            "seconds": self.mean(lambda measures: measures.seconds),
            "best": self.best,
            "notes": "; ".join(self.notes),
        }


def gather(outcomes: Iterable[Outcome]) -> list[Row]:
    """Put the seeds of each contender at each place together; they stand side by side."""
    groups = [list(group) for _, group in groupby(outcomes, key=_place)]
    several = len({group[0].cell.contender for group in groups}) > 1
    return [_row(group, several) for group in groups]


def _place(outcome: Outcome) -> tuple[str, str]:
    return outcome.cell.contender, outcome.cell.place


def _row(outcomes: Sequence[Outcome], several: bool) -> Row:
    cell = outcomes[0].cell
    named = [cell.contender] if several or not cell.point else []
    missing = [outcome for outcome in outcomes if not outcome.measures]
    return Row(
        contender=cell.contender,
        point=cell.point,
        title=", ".join(filter(None, [*named, cell.place])),
        measured=tuple(outcome.measures for outcome in outcomes if outcome.measures),
        failed=tuple((outcome.cell.seed, outcome.reason) for outcome in missing if outcome.reason),
        waiting=tuple(outcome.cell.seed for outcome in missing if not outcome.reason),
    )
