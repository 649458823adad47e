"""All ways to adapt one base to one task: what each costs, what it gains, and which is best for whom (problem E5)."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lemma.adaptation.adapt import merge_lora
from lemma.counting.count import trainable_formula
from lemma.data.labels import LabelledExamples
from lemma.data.pairs import TokenPairs
from lemma.errors import SpecError
from lemma.report.progress import Observer
from lemma.report.result import Result, Text
from lemma.runs.folder import RunFolder, check_run_target
from lemma.runs.load import build_initial_model, load
from lemma.spec.base import distribute
from lemma.spec.models import ClassifierHead, ModelSpec
from lemma.spec.recipe import METHODS, Recipe
from lemma.studies.budget import (
    Quartiles,
    describe_hardware,
    device_of,
    peak_step_bytes,
    quartiles,
    time_in_turns,
    time_ratio,
)
from lemma.studies.experiment import CellOutcome, Experiment, StudyCell, run_experiment
from lemma.studies.result import NO_VALUE, StudyResult, StudyTable
from lemma.tasks.base import DataArgs, Headline
from lemma.tasks.translation import teacher_forcing
from lemma.training.adapt import (
    AdaptationPlan,
    AdaptResult,
    BaseEvaluation,
    Forgetting,
    adapt_or_resume,
    has_same_plan,
    plan_adaptation,
)
from lemma.training.distributed import Distributed
from lemma.training.loop import TrainingResult
from lemma.training.precision import fork_random
from lemma.training.session import Session

MEGA = 1e6
MAX_TEXTS = 32
"""Texts that are read at once when inference is timed, or as many as a step of training takes if these are fewer."""
MAX_LENGTH = 64
"""Tokens of each of them, where they are cut from running text and the context allows it."""
MAX_ROUNDS, MAX_SECONDS = 15, 20.0
"""Rounds in which inference is timed, and the seconds after which there are no more."""
TIE_RATIO = 1.05
"""Costs within this ratio of the least count as alike: the noise of a shared machine is larger than less."""
TABLE_NOTE = (
    "Memory: all tensors at the peak of one training step. Inference: one pass over the same batch, all methods in "
    "turns in one process, median of the rounds; merged: updates folded into plain weights. Forgetting: perplexity of "
    "the base's own validation data with the base's weights and with the adapted ones."
)


def compare_methods(
    run: Path | str,
    data_args: DataArgs,
    settings: Mapping[str, Any],
    out: Path,
    observer: Observer,
    overwrite: bool = False,
) -> "StudyResult | UnfinishedComparison":
    """Adapt a base by every method into a folder of its own below `out`, measure each, and compare them."""
    if data_args.option == "images":
        raise SpecError("adapt: methods are compared on labels, text or pairs. Name one method for images.")
    kinds = {"recipe": Recipe, "model": ClassifierHead, **METHODS}
    distribute(
        {word: value for word, value in settings.items() if word != "epochs"}, kinds, ("epochs",)
    )  # refuses a setting that nothing knows
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SpecError("adapt: --method all measures time and memory of one process. Run it without torchrun.")
    plans: dict[str, AdaptationPlan] = {}
    for name in METHODS:
        ready = next((plan.data for plan in plans.values()), None)
        others = {word for other, kind in METHODS.items() if other != name for word in kind.setting_names()}
        known = METHODS[name].setting_names()  # a setting that only another method has is left to that one
        own = {word: value for word, value in settings.items() if word in known or word not in others}
        plans[name] = plan_adaptation(run, data_args, name, own, observer, ready)
    experiment = MethodsExperiment(plans, out, observer, overwrite)
    try:
        return run_experiment(experiment)
    except UnfinishedMethod as stopped:
        return UnfinishedComparison(stopped.training, stopped.method)


@dataclass(frozen=True)
class MethodRow:
    """One method: what came of it, and what it cost."""

    adapted: AdaptResult
    peak_bytes: int
    unmerged: Quartiles
    """Milliseconds of a pass as the run is loaded."""
    merged: Quartiles | None
    """The same with updates folded in, where there are any that can be."""
    time_ratio: Quartiles
    """The pass's time against that of the fully tuned model, which has nothing added."""
    forgetting: Forgetting | None

    @property
    def method(self) -> str:
        """The method's name."""
        return self.adapted.method.kind

    @property
    def headline(self) -> Headline:
        """The score it is judged by."""
        return self.adapted.score.headline

    @property
    def fastest_ms(self) -> float:
        """The milliseconds of a pass in its quickest form."""
        return min(self.unmerged.median, self.merged.median if self.merged else self.unmerged.median)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            **self.adapted.to_dict(),
            "peak_bytes": self.peak_bytes,
            "inference_ms": self.unmerged.median,
            "inference_merged_ms": self.merged.median if self.merged else None,
            "inference_against_full": asdict(self.time_ratio),
            "forgetting": self.forgetting.to_dict() if self.forgetting else None,
        }

    def cells(self) -> dict[str, str]:
        """What a person reads of it, by the names of the table's lines."""
        guess = {"  by guessing": self.headline.baseline_text} if self.headline.baseline is not None else {}
        before, after = (self.forgetting.before, self.forgetting.after) if self.forgetting else (None, None)
        return {
            "learned parameters": f"{self.adapted.learned:,}",
            "share of all": f"{100 * self.adapted.learned / self.adapted.parameters:.2f} %",
            "bytes per task": f"{self.adapted.stored_bytes:,}",
            "peak memory, MB": f"{self.peak_bytes / MEGA:,.1f}",
            "training, s": f"{self.adapted.training.seconds:,.1f}",
            "inference, ms": f"{self.unmerged.median:.3g}",
            "  against full": f"{self.time_ratio.median:.2f}",
            "  quartiles": f"{self.time_ratio.low:.2f}–{self.time_ratio.high:.2f}",
            "inference merged, ms": f"{self.merged.median:.3g}" if self.merged else NO_VALUE,
            self.headline.name: self.headline.text,
            "  95 % interval": self.headline.interval,
            **guess,
            "base perplexity": NO_VALUE if before is None else f"{before:,.2f}",
            "  after adapting": NO_VALUE if after is None else f"{after:,.2f}",
        }


@dataclass(frozen=True)
class Scenario:
    """A person with a need, and the cost that counts for them."""

    title: str
    metric: str
    cost: Callable[[MethodRow], float]
    unit: str
    scale: float = 1.0


SCENARIOS = (
    Scenario("Many tasks on one base", "stored bytes per task", lambda row: row.adapted.stored_bytes, "kB", 1e3),
    Scenario("Little memory to train in", "peak training memory", lambda row: row.peak_bytes, "MB", MEGA),
    Scenario("Fast answers", "inference time, merged where possible", lambda row: row.fastest_ms, "ms"),
)


def describe_winner(scenario: Scenario, rows: Sequence[MethodRow]) -> str:
    """Name the method that costs least among those that do the task about as well as the best."""
    best = max(rows, key=lambda row: row.headline.signed_value)
    good = [row for row in rows if row.headline.is_on_par_with(best.headline)]
    least = min(scenario.cost(row) for row in good)
    alike = [row for row in good if scenario.cost(row) <= TIE_RATIO * least]
    chosen = min(alike, key=lambda row: (-row.headline.signed_value, scenario.cost(row)))
    cost = f"{scenario.cost(chosen) / scenario.scale:,.4g} {scenario.unit}"
    others = [row.method for row in alike if row is not chosen]
    same = f" ({' and '.join(others)}: about the same)" if others else ""
    said = f"{scenario.title}: {chosen.method}, by {scenario.metric} ({cost}){same}."
    cheaper = [row.method for row in rows if row not in good and scenario.cost(row) < least]
    return f"{said} Cheaper, but worse at the task: {' and '.join(cheaper)}." if cheaper else said


class UnfinishedMethod(Exception):
    """The training of a method was interrupted."""

    def __init__(self, training: TrainingResult, method: str) -> None:
        super().__init__(method)
        self.training, self.method = training, method


@dataclass(frozen=True)
class UnfinishedComparison(Result):
    """A comparison that was interrupted, and how far it came."""

    training: TrainingResult
    method: str
    interrupted: bool = True
    title: str = "Ways to adapt"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"interrupted": self.method, "training": self.training.to_dict()}

    def blocks(self) -> list[Text]:
        """Where it stopped."""
        where = f"step {self.training.steps:,} of {self.training.planned_steps:,}"
        return [Text(f"Interrupted in {self.method}, at {where}. The same command goes on where it stopped.")]


class MethodsExperiment(Experiment[AdaptResult]):
    """Adapt a base by every method; all or none, since the table compares them with each other."""

    stores_measures = tolerates_failures = False
    spec = None

    def __init__(self, plans: Mapping[str, AdaptationPlan], out: Path, observer: Observer, overwrite: bool) -> None:
        self.plans, self.out, self.observer, self.overwrite = plans, out, observer, overwrite

    def cells(self) -> list[StudyCell]:
        """The methods."""
        return [StudyCell(name, {}, None) for name in self.plans]

    def path(self, cell: StudyCell) -> Path:
        """A folder for each method."""
        return self.out / cell.condition

    def check(self, cell: StudyCell) -> None:
        """Refuse a folder in which something else is."""
        if not has_same_plan(self.plans[cell.condition], self.path(cell)):  # known now, not after an hour
            check_run_target(self.path(cell), self.overwrite)

    def prepare(self, cells: Sequence[StudyCell]) -> None:
        """Evaluate the base on its own data, before anything is trained."""
        self.base = BaseEvaluation.measure(self.plans["full"])

    def run(self, cell: StudyCell, observer: Observer) -> AdaptResult:
        """Adapt the base by one method, or go on with that."""
        done = adapt_or_resume(self.plans[cell.condition], self.path(cell), observer, trainable_formula, self.overwrite)
        if isinstance(done, TrainingResult):
            raise UnfinishedMethod(done, cell.condition)
        return done

    def report(self, outcomes: tuple[CellOutcome[AdaptResult], ...], interrupted: bool) -> StudyResult:
        """Measure memory, time of inference and forgetting, and name a winner for each scenario."""
        if interrupted:  # not in a method's training, which goes on by itself
            raise KeyboardInterrupt
        adapted = {one.cell.condition: one.measures for one in outcomes if one.measures}
        rows = self.measure(adapted)
        lines = [row.cells() for row in rows]
        header = ["", *adapted]
        table = [[title, *(line[title] for line in lines)] for title in lines[0]]
        plan, note = self.plans["full"], self.base.reason
        about = plan.data.description
        winners = [describe_winner(scenario, rows) for scenario in SCENARIOS]
        if all(row.headline.is_at_baseline for row in rows):
            advice = "give more texts or steps to compare them."
            winners.insert(0, f"No method beats the majority-class baseline: {advice}")
        return StudyResult(
            title=f"{plan.base.path} adapted to {about}",
            kicker="Ways to adapt",
            out=self.out,
            table=StudyTable(
                header, table, [dict(zip(header, line, strict=True)) for line in table], f"{TABLE_NOTE} {note}".strip()
            ),
            conclusion=tuple(winners),
            hardware=describe_hardware(device_of(plan.recipe)),
            rows=tuple(rows),
            formulas={f"learned by {row.method}": row.adapted.formula for row in rows},
            extra={
                "base": str(plan.base.path),
                "data": about,
                "rows": [row.to_dict() for row in rows],
                "winners": winners,
                "note": note,
                "board": str(self.out / "board.html"),
            },
            files=("board.md", "board.csv", "board.json", "board.html"),
        )

    def measure(self, adapted: Mapping[str, AdaptResult]) -> list[MethodRow]:
        """What training does not show of each method: memory, time of inference, what it has forgotten."""
        plan = self.plans["full"]
        device = device_of(plan.recipe)
        self.observer.log("measuring memory, time of inference and forgetting")
        inputs = inference_batch(plan.data, plan.model, min(MAX_TEXTS, plan.recipe.batch), device)

        @torch.no_grad()
        def forward(model: nn.Module) -> Any:
            return model(*inputs)

        calls = {name: partial(forward, load(one.path, device).module) for name, one in adapted.items()}
        if "lora" in adapted:  # also with its updates folded in
            calls["lora, merged"] = partial(forward, merge_lora(load(adapted["lora"].path, device).module))
        times = time_in_turns(calls, MAX_ROUNDS, device, MAX_SECONDS)
        rows = []
        for name, one in adapted.items():
            folded = times.get(f"{name}, merged")
            rows.append(
                MethodRow(
                    adapted=one,
                    peak_bytes=measure_peak_bytes(self.plans[name], one.path, device),
                    unmerged=quartiles(times[name]).scale(1e3),
                    merged=quartiles(folded).scale(1e3) if folded else None,
                    time_ratio=time_ratio(times[name], times["full"]),
                    forgetting=self.base.measure_forgetting(load(one.path, device)) if self.base.run else None,
                )
            )
        return rows


def inference_batch(data: Any, spec: ModelSpec, texts: int, device: str) -> tuple[Tensor, ...]:
    """A batch of the validation or test split, as the model is called with it."""
    match data.item("validation"):
        case LabelledExamples():
            examples = data.item("test")
            inputs, _ = examples.batch(np.arange(min(texts, len(examples.lengths))))
            return (torch.from_numpy(inputs).to(device),)
        case TokenPairs() as examples:
            sources, targets = examples.batch(np.arange(min(texts, len(examples.lengths))))
            fed, _ = teacher_forcing(torch.from_numpy(targets).to(device))
            return torch.from_numpy(sources).to(device), fed
        case text:
            length = min(MAX_LENGTH, getattr(spec, "context", MAX_LENGTH), len(text))
            rows = min(texts, len(text) // length)
            tokens = np.asarray(text[: rows * length], dtype=np.int64).reshape(rows, length)
            return (torch.from_numpy(tokens).to(device),)


def measure_peak_bytes(plan: AdaptationPlan, path: Path, device: str) -> int:
    """The most memory that one step of this method's training holds."""
    folder = RunFolder.open(path)
    recipe = folder.recipe.replace(compile=False)
    tokens: Any = plan.data.item("train")
    processes = Distributed(torch.device(device))
    with fork_random(processes.device):
        session = Session(
            folder.spec, recipe, tokens, processes, lambda message: None, partial(build_initial_model, folder)
        )
        with closing(session.batches):
            return peak_step_bytes(session)
