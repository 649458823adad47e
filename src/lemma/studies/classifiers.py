"""The study of classifiers (problem C3): the same labels and recipe for every body, quality and cost compared."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from lemma.data.labels import LabelledExamples
from lemma.data.splits import Splits
from lemma.models.classifier import ClassifierModel
from lemma.report.curves import Plot
from lemma.report.progress import Observer
from lemma.report.statistics import holm_correct
from lemma.runs.load import load
from lemma.spec.studies import ClassifiersStudy
from lemma.studies.cells import StudyCell, group_rows
from lemma.studies.claims import CheaperClaim, compare_costs, format_percent
from lemma.studies.classifier_runs import (
    SCORES,
    TEST,
    LabelExperiment,
    LabelOutcome,
    LabelRow,
    accuracy_test,
    choose_classifiers,
    describe_labels,
    describe_models,
    estimate_over_texts,
    label_data,
    make_cell,
    percent_curve,
    plot_learning,
    score_table,
    table_caption,
)
from lemma.studies.experiment import RunPlan, read_json, write_json
from lemma.studies.result import NOTHING_TO_COMPARE, StudyResult, StudyTable
from lemma.studies.timing import describe_hardware, device_of, time_in_turns
from lemma.tasks.base import report_skipped
from lemma.tasks.classification import classify, load_labels

ROW_OFFSET = 0.08  # between the marks of two rows at one tick
LEARNING_AXES = {"step": "steps", "seconds": "training seconds"}
PROTOCOL = {
    "recipe": "the same for every body, and the same steps; the recipes of presets are not used",
    "scores": "on the test texts, which neither trained nor chose the weights; precision, recall and F1 are means over "
    "the classes",
    "intervals": "mean ± half the 95 % interval over the seeds (Student's t): what training again changes, on these "
    "test texts",
    "tests": "differences are taken seed by seed, since a seed fixes the batches of all bodies alike, with a t-test; "
    "its standard error is never below that of the test texts (paired by text); p-values are corrected for the "
    "number of comparisons (Holm); d is Cohen's, of pairs",
    "training seconds": "of the training steps alone; bodies take turns, seed by seed",
    "inference": "one run of each body classifies all test texts, tokens ready, in turns; medians and quartiles",
}
Seconds = Mapping[str, Sequence[float]]
"""Seconds in which one run of each body classifies the test texts, taken in turns, by the titles of rows."""


class ClassifiersExperiment(LabelExperiment):
    """Train every body with every seed, time them in turns, and compare each with the first."""

    spec: ClassifiersStudy

    def __init__(self, spec: ClassifiersStudy, out: Path, observer: Observer) -> None:
        self.spec, self.out, self.observer = spec, out, observer
        self.choices = choose_classifiers(spec.models, spec.settings)
        self.data = label_data(spec, spec.limit)
        self.datasets: dict[str, Splits[LabelledExamples]] = {}
        for choice in self.choices:  # each body has its own length; the tokenizer, learned from the same texts, is one
            dataset = load_labels(self.data, choice.model.body, None, (), observer)
            self.datasets[choice.title] = dataset if self.datasets else report_skipped(dataset, observer)

    @property
    def dataset(self) -> Splits[LabelledExamples]:
        """The labelled texts as the first body reads them."""
        return next(iter(self.datasets.values()))

    def cells(self) -> list[StudyCell]:
        texts = {title: len(dataset.item("train").texts) for title, dataset in self.datasets.items()}
        return [
            make_cell(self.spec, choice, {}, seed, texts[choice.title])
            for seed in self.spec.seeds
            for choice in self.choices
        ]

    def make_plan(self, cell: StudyCell, *inputs: Any) -> RunPlan:
        return self.plan_labels(cell, self.data, self.datasets[cell.condition])

    def inference_seconds(
        self, outcomes: Sequence[LabelOutcome], hardware: Mapping[str, str]
    ) -> dict[str, list[float]]:
        """Time in turns how one run of each body classifies the test texts; the times are stored for the next call."""
        cells = {outcome.cell.condition: outcome.cell for outcome in reversed(outcomes) if outcome.measures}
        plans = {title: self.make_plan(cells[title]) for title in self.datasets if title in cells}
        identity = {
            "runs": {title: plan.model.to_dict() for title, plan in plans.items()},
            "hardware": dict(hardware),
            "repetitions": self.spec.repetitions,
            "data": self.dataset.hash,
        }
        stored = read_json(self.out / "inference.json") or {}
        if stored.get("of") == identity:
            return stored["seconds"]

        device = device_of(self.cells()[0].recipe)
        calls = {}
        for title, plan in plans.items():
            model = load(plan.path, device).require(ClassifierModel, "a classifier")
            calls[title] = partial(classify, model, plan.dataset.item(TEST))
        seconds = time_in_turns(calls, self.spec.repetitions, device)
        write_json(self.out / "inference.json", {"of": identity, "seconds": seconds})
        return seconds

    def report(self, outcomes: tuple[LabelOutcome, ...], interrupted: bool) -> StudyResult:
        hardware = describe_hardware(device_of(outcomes[0].cell.recipe))
        seconds = {} if interrupted else self.inference_seconds(outcomes, hardware)
        data = describe_labels(self.dataset)
        return report_classifiers(self.spec, outcomes, seconds, data, hardware, self.out, interrupted)


def report_classifiers(
    spec: ClassifiersStudy,
    outcomes: tuple[LabelOutcome, ...],
    seconds: Seconds,
    data: Mapping[str, str],
    hardware: Mapping[str, str],
    out: Path,
    interrupted: bool = False,
) -> StudyResult:
    """Report scores, costs, and the verdict on each body against the first."""
    rows = group_rows(outcomes)
    claims = compare_with_first(rows, spec.tolerance, seconds)
    sentences = [sentence for claim in claims for sentence in claim.sentences()]
    scores = [f"{row.title}: accuracy {format_percent(row.estimate('accuracy'))} %." for row in rows if row.measures]
    single_runs = []
    for row in rows:
        if row.measures:
            seed, first = next(iter(row.measures.items()))
            if first.low is not None and first.high is not None:
                interval = f"{100 * first.low:.1f} to {100 * first.high:.1f}"
                single_runs.append(f"{row.title}, seed {seed}: accuracy {100 * first.accuracy:.1f} % ({interval})")
    intervals = f"95 % intervals over the test texts (bootstrap): {'; '.join(single_runs)}"
    return StudyResult(
        title=spec.name,
        question=spec.question,
        spec=spec,
        out=out,
        data={**data, "seeds": ", ".join(map(str, spec.seeds))},
        hardware=hardware,
        protocol={
            **PROTOCOL,
            "one run alone": intervals if single_runs else "none yet",
            "models": describe_models(rows, ("steps", "batch", "learning_rate")),
        },
        table=make_table(rows, seconds),
        conclusion=tuple(sentences or scores or [NOTHING_TO_COMPARE]),
        plots=tuple(plot_classifiers([row for row in rows if row.measures])),
        runs=outcomes,
        rows=tuple(rows),
        extra={"claims": [claim.to_dict() for claim in claims], "inference_seconds": dict(seconds)},
        interrupted=interrupted,
    )


def compare_with_first(rows: Sequence[LabelRow], tolerance: float, seconds: Seconds) -> list[CheaperClaim]:
    """Compare accuracy and costs of each row with those of the first, p-values corrected for all of them."""
    claims = []
    first = rows[0]
    for row in rows[1:]:
        test, over_texts = accuracy_test(row, first), estimate_over_texts(row, first)
        costs = compare_costs(row, first, seconds)
        claims.append(CheaperClaim(row.title, first.title, test, over_texts, tolerance, costs))
    tests = iter(holm_correct([claim.test for claim in claims if claim.test]))
    return [replace(claim, test=next(tests)) if claim.test else claim for claim in claims]


def make_table(rows: Sequence[LabelRow], seconds: Seconds) -> StudyTable:
    """Make a row per body: scores in per cent, then costs."""

    def texts_per_second(row: LabelRow) -> float | None:
        times = seconds.get(row.title)
        return len(row.first.right) / median(times) if times and row.first else None

    columns = {
        "parameters": lambda row: row.count("parameters"),
        "of layers": lambda row: row.count("layers"),
        "train s": lambda row: row.estimate("seconds"),
        "texts/s": texts_per_second,
    }
    caption = table_caption(rows, "precision, recall and F1 are means")
    return score_table(rows, "body", SCORES, columns, caption, lambda row: {"texts_per_second": texts_per_second(row)})


def plot_classifiers(rows: Sequence[LabelRow]) -> Iterator[Plot]:
    """Plot the scores next to each other, and accuracy against steps and seconds."""
    if not rows:
        return
    curves = []
    for index, row in enumerate(rows):
        estimates = [score for name in SCORES if (score := row.estimate(name))]
        shift = ROW_OFFSET * (index - (len(rows) - 1) / 2)
        curves.append(percent_curve(row.title, [tick + shift for tick in range(len(estimates))], estimates))
    caption = "Scores on the test texts: means over the seeds (dots) with their 95 % intervals (bars)."
    ticks = tuple(SCORES.values())
    yield Plot("", "per cent", tuple(curves), caption=caption, bars=True, ticks=ticks, joined=False)
    yield from plot_learning(rows, LEARNING_AXES, "texts")
