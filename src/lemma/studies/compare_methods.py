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
from lemma.spec.base import assign_settings
from lemma.spec.models import ClassifierHead, ModelSpec
from lemma.spec.recipe import METHODS, Recipe
from lemma.studies.experiment import TitledObserver, open_study_folder
from lemma.studies.result import NO_VALUE, StudyResult, StudyTable
from lemma.studies.timing import (
    Quartiles,
    describe_hardware,
    device_of,
    peak_step_bytes,
    quartiles,
    time_in_turns,
    time_ratio,
)
from lemma.tasks.base import Headline
from lemma.tasks.registry import DataArgs
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
from lemma.training.devices import Distributed, fork_random
from lemma.training.loop import TrainingResult
from lemma.training.session import Session

MEGA = 1e6
MAX_TEXTS = 32  # read at once when inference is timed, or as many as a step of training takes if these are fewer
MAX_LENGTH = 64  # tokens of each of them, where they are cut from running text and the context allows it
MAX_ROUNDS, MAX_SECONDS = 15, 20.0  # in which inference is timed
TIE_RATIO = 1.05  # costs within this ratio of the least are equal: the noise of a shared machine is larger than less
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
    """Adapt a base run by every method, measure each adapted run, and save and return the comparison.

    A setting that only some methods have is passed to those. `out` is the folder of the report, with a subfolder for
    the run of each method; `overwrite` replaces runs in these.
    """
    if data_args.option == "images":
        raise SpecError("adapt: methods are compared on labels, text or pairs. Name one method for images.")
    specs = {"recipe": Recipe, "model": ClassifierHead, **METHODS}
    # raises an error for a setting that no spec has
    assign_settings({name: value for name, value in settings.items() if name != "epochs"}, specs, ("epochs",))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SpecError("adapt: --method all measures time and memory of one process. Run it without torchrun.")
    plans: dict[str, AdaptationPlan] = {}
    for method in METHODS:
        dataset = next((plan.data for plan in plans.values()), None)  # loaded once for all methods
        own = METHODS[method].setting_names()
        others = {name for other, spec in METHODS.items() if other != method for name in spec.setting_names()}
        # a setting that only another method has is left to that one
        of_method = {name: value for name, value in settings.items() if name in own or name not in others}
        plans[method] = plan_adaptation(run, data_args, method, of_method, observer, dataset)
    for method, plan in plans.items():  # known now, not after an hour
        if not has_same_plan(plan, out / method):
            check_run_target(out / method, overwrite)
    open_study_folder(out)
    base = BaseEvaluation.measure(plans["full"])
    results: dict[str, AdaptResult] = {}
    for number, (method, plan) in enumerate(plans.items(), start=1):
        titled = TitledObserver(observer, f"run {number} of {len(plans)}: {method}")
        done = adapt_or_resume(plan, out / method, titled, trainable_formula, overwrite)
        if isinstance(done, TrainingResult):
            return UnfinishedComparison(done, method)
        results[method] = done
    observer.log("measuring memory, time of inference and forgetting")
    result = report_methods(plans["full"], measure_methods(plans, results, base), base.reason, out)
    result.save()
    return result


@dataclass(frozen=True)
class MethodRow:
    """The result of adapting by one method: its scores and what it cost."""

    adapted: AdaptResult
    peak_bytes: int
    unmerged: Quartiles  # milliseconds of a pass as the run is loaded
    merged: Quartiles | None  # the same with updates folded in, where there are any that can be
    time_ratio: Quartiles  # against the pass of the fully tuned model, which has nothing added
    forgetting: Forgetting | None

    @property
    def method(self) -> str:
        """Return the name of the method, such as "lora"."""
        return self.adapted.method.kind

    @property
    def headline(self) -> Headline:
        """Return the main score of the adapted run."""
        return self.adapted.score.headline

    @property
    def fastest_ms(self) -> float:
        """Return the milliseconds of a forward pass, with updates merged into the weights if that is possible."""
        return min(self.unmerged.median, self.merged.median if self.merged else self.unmerged.median)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of the method's scores and costs."""
        return {
            **self.adapted.to_dict(),
            "peak_bytes": self.peak_bytes,
            "inference_ms": self.unmerged.median,
            "inference_merged_ms": self.merged.median if self.merged else None,
            "inference_against_full": asdict(self.time_ratio),
            "forgetting": self.forgetting.to_dict() if self.forgetting else None,
        }

    def cells(self) -> dict[str, str]:
        """Return the column of the method in the table: its cells by the titles of the lines."""
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
    """A reason to prefer a method, such as little memory, and the cost that counts then."""

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
    """Return a sentence on which method is cheapest for a scenario's cost, among those that score about the best."""
    best = max(rows, key=lambda row: row.headline.signed_value)
    good = [row for row in rows if row.headline.is_on_par_with(best.headline)]
    least = min(scenario.cost(row) for row in good)
    ties = [row for row in good if scenario.cost(row) <= TIE_RATIO * least]
    winner = min(ties, key=lambda row: (-row.headline.signed_value, scenario.cost(row)))
    cost = f"{scenario.cost(winner) / scenario.scale:,.4g} {scenario.unit}"
    others = [row.method for row in ties if row is not winner]
    same = f" ({' and '.join(others)}: about the same)" if others else ""
    sentence = f"{scenario.title}: {winner.method}, by {scenario.metric} ({cost}){same}."
    cheaper = [row.method for row in rows if row not in good and scenario.cost(row) < least]
    return f"{sentence} Cheaper, but worse at the task: {' and '.join(cheaper)}." if cheaper else sentence


@dataclass(frozen=True)
class UnfinishedComparison(Result):
    """A comparison that was interrupted while it trained the run of `method`."""

    training: TrainingResult
    method: str
    interrupted: bool = True
    title: str = "Ways to adapt"

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of the interrupted method and its training."""
        return {"interrupted": self.method, "training": self.training.to_dict()}

    def blocks(self) -> list[Text]:
        """Return a sentence on where the comparison was interrupted."""
        step = f"step {self.training.steps:,} of {self.training.planned_steps:,}"
        return [Text(f"Interrupted in {self.method}, at {step}. The same command goes on where it stopped.")]


def measure_methods(
    plans: Mapping[str, AdaptationPlan], results: Mapping[str, AdaptResult], base: BaseEvaluation
) -> list[MethodRow]:
    """Measure memory, inference time and forgetting of each adapted run; return a row per method.

    `plans` and `results` are by method.
    """
    plan = plans["full"]
    device = device_of(plan.recipe)
    inputs = inference_batch(plan.data, plan.model, min(MAX_TEXTS, plan.recipe.batch), device)

    @torch.no_grad()
    def forward(model: nn.Module) -> Any:
        """Run a model forward on the inputs."""
        return model(*inputs)

    calls = {name: partial(forward, load(result.path, device).module) for name, result in results.items()}
    if "lora" in results:  # also with its updates folded in
        calls["lora, merged"] = partial(forward, merge_lora(load(results["lora"].path, device).module))
    times = time_in_turns(calls, MAX_ROUNDS, device, MAX_SECONDS)
    rows = []
    for name, result in results.items():
        merged_times = times.get(f"{name}, merged")
        rows.append(
            MethodRow(
                adapted=result,
                peak_bytes=measure_peak_bytes(plans[name], result.path, device),
                unmerged=quartiles(times[name]).scale(1e3),
                merged=quartiles(merged_times).scale(1e3) if merged_times else None,
                time_ratio=time_ratio(times[name], times["full"]),
                forgetting=base.measure_forgetting(load(result.path, device)) if base.run else None,
            )
        )
    return rows


def report_methods(plan: AdaptationPlan, rows: Sequence[MethodRow], note: str, out: Path) -> StudyResult:
    """Build the report in the folder `out`: a table of all methods, its caption ending in `note`, and the winners."""
    cells = [row.cells() for row in rows]
    header = ["", *(row.method for row in rows)]
    lines = [[title, *(column[title] for column in cells)] for title in cells[0]]
    records = [dict(zip(header, line, strict=True)) for line in lines]
    data = plan.data.description
    winners = [describe_winner(scenario, rows) for scenario in SCENARIOS]
    if all(row.headline.is_at_or_below_baseline for row in rows):
        advice = "give more texts or steps to compare them."
        winners.insert(0, f"No method beats the majority-class baseline: {advice}")
    return StudyResult(
        title=f"{plan.base.path} adapted to {data}",
        kicker="Ways to adapt",
        out=out,
        table=StudyTable(header, lines, records, f"{TABLE_NOTE} {note}".strip()),
        conclusion=tuple(winners),
        hardware=describe_hardware(device_of(plan.recipe)),
        rows=tuple(rows),
        formulas={f"learned by {row.method}": row.adapted.formula for row in rows},
        extra={
            "base": str(plan.base.path),
            "data": data,
            "rows": [row.to_dict() for row in rows],
            "winners": winners,
            "note": note,
            "board": str(out / "board.html"),
        },
        files=("board.md", "board.csv", "board.json", "board.html"),
    )


def inference_batch(data: Any, spec: ModelSpec, texts: int, device: str) -> tuple[Tensor, ...]:
    """Return the tensors with which to call a model on at most `texts` items of the validation or test split."""
    match data.item("validation"):
        case LabelledExamples():
            examples = data.item("test")
            inputs, _ = examples.batch(np.arange(min(texts, len(examples.lengths))))
            return (torch.from_numpy(inputs).to(device),)
        case TokenPairs() as examples:
            sources, targets = examples.batch(np.arange(min(texts, len(examples.lengths))))
            decoder_inputs, _ = teacher_forcing(torch.from_numpy(targets).to(device))
            return torch.from_numpy(sources).to(device), decoder_inputs
        case text:
            length = min(MAX_LENGTH, getattr(spec, "context", MAX_LENGTH), len(text))
            rows = min(texts, len(text) // length)
            tokens = np.asarray(text[: rows * length], dtype=np.int64).reshape(rows, length)
            return (torch.from_numpy(tokens).to(device),)


def measure_peak_bytes(plan: AdaptationPlan, path: Path, device: str) -> int:
    """Measure the peak bytes of one training step of the adapted run in folder `path`."""
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
