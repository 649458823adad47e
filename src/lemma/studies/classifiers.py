"""Classifiers compared on the same labels: bodies that read texts (problem C3), and models of a graph (problem D4)."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from lemma.data.corpora import GRAPHS, LABELLED_CORPORA
from lemma.data.labels import LabelledExamples
from lemma.data.splits import Splits, split_files
from lemma.errors import SpecError, describe_unknown
from lemma.models.base import count_parameters
from lemma.models.classifier import ClassifierModel
from lemma.models.graph import GraphModel
from lemma.report.curves import Curve, Plot
from lemma.report.progress import Observer, SilentObserver
from lemma.report.statistics import Estimate, PairedTest, estimate, item_standard_error
from lemma.runs.load import Run, load
from lemma.spec.base import Spec, assign_settings
from lemma.spec.choose import choose
from lemma.spec.data import GraphSource, GraphSpec, LabelledTexts, LabelsSpec
from lemma.spec.models import Classifier, Graph
from lemma.spec.recipe import AdaptationSpec, Recipe
from lemma.spec.studies import ClassifiersStudy, ComparedModel, GraphStudy, LabelStudy
from lemma.studies.budget import fit_schedule
from lemma.studies.cells import (
    FROM_TOKENIZER,
    RESERVED_SETTINGS,
    CellOutcome,
    StudyCell,
    StudyRow,
    check_reserved,
    compare_rows,
    correct_tests,
    describe_seeds,
    group_rows,
    has_setting,
)
from lemma.studies.claims import CheaperClaim, compare_costs, format_percent
from lemma.studies.experiment import RunPlan, TrainingExperiment, read_json, validation_rows, write_json
from lemma.studies.result import NO_VALUE, NOTHING_FINISHED, NOTHING_TO_COMPARE, StudyResult, StudyTable
from lemma.studies.timing import describe_hardware, device_of, time_in_turns
from lemma.tasks.base import LoadContext
from lemma.tasks.classification import ClassificationTask, classify, score_classes
from lemma.tasks.nodes import NodesTask, classify_nodes
from lemma.tasks.registry import absolute_path

TEST = "test"
SCORES = {"accuracy": "accuracy", "precision": "precision", "recall": "recall", "f1": "F1"}
"""Titles of the scores on the test data, by their names in measures."""
Seconds = Mapping[str, Sequence[float]]
"""Seconds in which one run of each body classifies the test texts, taken in turns, by the titles of rows."""


class LearningPoint(NamedTuple):
    """A validation of a classifier: its loss and accuracy, and after how many steps and seconds of training."""

    step: int
    seconds: float
    loss: float
    accuracy: float


@dataclass(frozen=True)
class ClassifierMeasures:
    """Model, recipe, costs and learning curve of a trained classifier, and its scores on the test items."""

    model: Mapping[str, Any]
    recipe: Mapping[str, Any]
    parameters: int
    layers: int  # parameters of the body without its embeddings: those of the recurrent or attention layers
    learned: int  # trainable parameters
    steps: int
    seconds: float
    accuracy: float
    precision: float  # this and the next two are means over the classes
    recall: float
    f1: float
    low: float | None  # the bootstrap's interval of this run's accuracy, over the test items
    high: float | None
    right: str  # one digit per test item, in the order of the split: 1 where the class is right
    curve: tuple[LearningPoint, ...]


LabelRow = StudyRow[ClassifierMeasures]
LabelOutcome = CellOutcome[ClassifierMeasures]


def count_layer_parameters(model: ClassifierModel) -> int:
    """Count the parameters of a classifier's body without its embeddings."""
    embeddings = (module for module in model.body.modules() if isinstance(module, nn.Embedding))
    return count_parameters(model.body) - sum(map(count_parameters, embeddings))


class ClassifierExperiment(TrainingExperiment[ClassifierMeasures]):
    """Base class of experiments whose runs classify labelled texts, or the nodes of a graph."""

    measures_type = ClassifierMeasures

    def measure(self, run: Run, plan: RunPlan) -> ClassifierMeasures:
        """Score a finished run on the test split and collect its costs and learning curve."""
        test, labels = plan.dataset.item(TEST), plan.dataset.labels
        if isinstance(plan.model, Graph):
            probabilities = classify_nodes(run.require(GraphModel, "a graph model"), test.graph)[test.nodes]
            layers = count_parameters(run.module)
            score = score_classes(test.classes, probabilities, labels, unit="node")
        else:
            model = run.require(ClassifierModel, "a classifier")
            probabilities = classify(model, test)
            layers = count_layer_parameters(model)
            score = score_classes(test.classes, probabilities, labels, {})
        summary: Mapping[str, Any] = run.summary or {}
        low, high = score.accuracy.interval or (None, None)
        point_fields = ("step", "seconds", "validation_loss", "accuracy")
        return ClassifierMeasures(
            model=run.spec.to_dict(),
            recipe=run.recipe.to_dict(),
            parameters=count_parameters(run.module),
            layers=layers,
            **{name: summary[name] for name in ("learned", "steps", "seconds")},
            **{name: getattr(score, name).value for name in SCORES},
            low=low,
            high=high,
            right="".join(str(int(is_right)) for is_right in probabilities.argmax(-1) == test.classes),
            curve=tuple(LearningPoint(*map(row.__getitem__, point_fields)) for row in validation_rows(run)),
        )


# Statistics, tables and plots of rows.


def accuracy_differences(row: LabelRow, baseline: LabelRow) -> list[float]:
    """Return for each test text the mean accuracy of `row` minus that of `baseline`, over seeds that both have."""
    seeds = sorted(row.measures.keys() & baseline.measures.keys())
    accuracies = []
    for measures in (row.measures, baseline.measures):
        digits_of_texts = zip(*(measures[seed].right for seed in seeds), strict=True)
        accuracies.append([fmean(map(int, digits)) for digits in digits_of_texts])
    return [accuracy - base for accuracy, base in zip(*accuracies, strict=True)]


def estimate_difference_over_texts(row: LabelRow, baseline: LabelRow) -> Estimate | None:
    """Return the mean difference in accuracy with its interval over the test texts; None without common seeds."""
    differences = accuracy_differences(row, baseline)
    return estimate(differences) if differences else None


def accuracy_test(row: LabelRow, baseline: LabelRow) -> PairedTest | None:
    """Return the test of the difference in accuracy by seed, with at least the standard error over the test texts."""
    min_error = item_standard_error(accuracy_differences(row, baseline))
    return compare_rows(row, baseline, "accuracy", log=False, min_error=min_error)


def score_table(
    rows: Sequence[LabelRow],
    title: str,
    scores: Collection[str],
    columns: Mapping[str, Callable[[LabelRow], Any]],
    caption: str,
    record_columns: Mapping[str, Callable[[LabelRow], Any]] | None = None,
) -> StudyTable:
    """Build a table with a line per row: its title, with `title` as header, mean `scores` in per cent, other columns.

    `columns` maps the headers of other columns to functions from a row to its value, of which None is shown as a dash;
    `record_columns` are further values of the CSV and JSON records.
    """
    cells, records = [], []
    for row in rows:
        costs = (column(row) for column in columns.values())
        figures = (f"{cost:,.0f}" if isinstance(cost, int | float) else str(cost or NO_VALUE) for cost in costs)
        cells.append((row.title, *(format_percent(row.estimate(name)) for name in scores), *figures))
        record: dict[str, Any] = {"model": row.condition, **row.point, "seeds": len(row.measures)}
        for name in (*SCORES, "seconds"):
            mean = row.estimate(name)
            record |= {name: mean and mean.mean, f"{name}_margin": mean and mean.margin}
        record |= {name: row.count(name) for name in ("parameters", "layers", "learned", "steps")}
        record["notes"] = "; ".join(row.missing_seeds)
        records.append(record | {name: column(row) for name, column in (record_columns or {}).items()})
    notes = tuple(note for row in rows for note in row.notes)
    return StudyTable((title, *(f"{SCORES[name]} %" for name in scores), *columns), cells, records, caption, notes)


def table_caption(rows: Sequence[LabelRow], means: str, items: str = "texts") -> str:
    """Return the caption of a score table; `means` says which scores are means over the classes: "F1 is the mean"."""
    if not any(row.measures for row in rows):
        return NOTHING_FINISHED
    return f"On the test {items}; {means} over the classes.{describe_seeds(rows)}"


def percent_curve(title: str, x: Sequence[float], estimates: Sequence[Estimate], cut: bool = False) -> Curve:
    """Build a curve of estimated fractions, in per cent, with intervals; `cut` clips the intervals to 0 and 100."""
    low, mean, high = (tuple(100 * getattr(score, end) for score in estimates) for end in ("low", "mean", "high"))
    if cut:
        low, high = tuple(max(0.0, end) for end in low), tuple(min(100.0, end) for end in high)
    return Curve(title, tuple(x), mean, low, high, dots=True)


def plot_learning(rows: Sequence[LabelRow], axes: Mapping[str, str], items: str, cut: bool = False) -> Iterator[Plot]:
    """Plot the mean validation accuracy of each row, up to the last validation that all its seeds have.

    `axes` maps "step" or "seconds" to the title of that x axis, a plot for each; `items` are "texts" or "nodes"; `cut`
    clips intervals to 0 and 100 %.
    """
    for axis, title in axes.items():
        curves = []
        for row in rows:
            validations = list(zip(*(measures.curve for measures in row.measures.values()), strict=False))
            if len(validations) > 1:
                x = [fmean(getattr(point, axis) for point in points) for points in validations]
                estimates = [estimate([point.accuracy for point in points]) for points in validations]
                curves.append(percent_curve(row.title, x, estimates, cut))
        if curves:
            means = "means over the seeds with their 95 % intervals" + (", cut at 0 and 100 %." if cut else ".")
            caption = f"Accuracy on the validation {items} against {title}: {means}"
            yield Plot(title, "validation accuracy, per cent", tuple(curves), caption=caption)


def describe_models(rows: Sequence[LabelRow], recipe: Sequence[str], sizes: Collection[str] = ()) -> str:
    """Describe the model of each row by its settings `sizes` (default: all integers) and those of its `recipe`."""
    models = []
    for row in rows:
        if row.first:
            settings = row.first.model.get("body", row.first.model)
            names = sizes or [name for name, value in settings.items() if type(value) is int]
            model = [f"{name} {settings[name]:{',' if type(settings[name]) is int else ''}}" for name in names]
            training = [f"{name.replace('_', ' ')} {row.first.recipe[name]:,}" for name in recipe]
            models.append(f"{row.title} ({', '.join(model)}; {', '.join(training)})")
    return "; ".join(models)


# Classifiers trained on labelled texts.


RESERVED_CLASSIFIER_SETTINGS = {
    **RESERVED_SETTINGS,
    **dict.fromkeys(("vocabulary", "V"), FROM_TOKENIZER.format("")),
    **dict.fromkeys(("classes", "K"), "They come from the labels."),
    "body": "Name another body, as in models=['rnn','lstm'].",
}
WARM_UP = 10  # one step in ten warms up, unless warm_up is given


@dataclass(frozen=True)
class ClassifierChoice:
    """A classifier of a study, before its data are known, with its title and the settings of its recipe."""

    title: str
    model: Classifier
    recipe: Mapping[str, Any]


def choose_classifiers(models: Iterable[ComparedModel], shared: Mapping[str, Any]) -> list[ClassifierChoice]:
    """Build a classifier around each model, with those of the study's `shared` settings that it has, and all its own.

    The recipe is the study's alone, whatever the preset has, so that it is the same for every body.
    """
    choices: list[ClassifierChoice] = []
    used: set[str] = set()
    names: dict[str, None] = {}
    for compared in models:
        model = choose(compared.model, classify=True).model
        assert isinstance(model, Classifier)
        specs: dict[str, type[Spec]] = {"body": type(model.body), "model": Classifier, "recipe": Recipe}
        settings = {name: value for name, value in shared.items() if has_setting(specs, name)}
        check_reserved([*settings, *compared.settings], RESERVED_CLASSIFIER_SETTINGS)
        used |= settings.keys()
        distributed = [assign_settings(part, specs) for part in (settings, compared.settings)]
        of_body, of_model, of_recipe = ({**distributed[0][name], **distributed[1][name]} for name in specs)
        model = model.replace(**of_model, body=model.body.replace(**of_body).to_dict())
        choices.append(ClassifierChoice(compared.title, model, of_recipe))
        for spec in specs.values():
            names |= dict.fromkeys(name for name in spec.setting_names() if name not in RESERVED_CLASSIFIER_SETTINGS)
    for setting in shared:
        if setting not in used:
            raise SpecError(describe_unknown("study.settings: setting", setting, names))
    return choices


def make_cell(
    study: LabelStudy, choice: ClassifierChoice, point: Mapping[str, Any], seed: int, texts: int
) -> StudyCell:
    """Make a cell whose recipe reads `texts` labelled texts `epochs` times, but takes at least `least_steps` steps.

    `point` has the grid settings.

    >>> choice = ClassifierChoice("lstm", Classifier(), {"batch": 8})
    >>> make_cell(ClassifiersStudy(name="a", epochs=4, least_steps=10), choice, {}, 1, 100).recipe.steps
    50
    """
    recipe = Recipe.read(choice.recipe, "study.settings")
    if "steps" not in choice.recipe:
        recipe = recipe.replace(steps=max(study.least_steps, math.ceil(study.epochs * texts / recipe.batch)))
    recipe = schedule_recipe(recipe, choice.recipe, study.validations).replace(seed=seed)
    return StudyCell(choice.title, point, seed, choice.model, recipe)


def schedule_recipe(recipe: Recipe, settings: Mapping[str, Any], validations: int) -> Recipe:
    """Return a recipe with a tenth of its steps as warm-up and `validations` in all, unless `settings` set them."""
    if "warm_up" not in settings:
        recipe = recipe.replace(warm_up=recipe.steps // WARM_UP)
    return fit_schedule(recipe, settings, min(validations, recipe.steps))[0]


def plan_classifier(
    path: Path,
    cell: StudyCell,
    data: LabelsSpec,
    dataset: Splits[LabelledExamples],
    adaptation: AdaptationSpec | None = None,
) -> RunPlan:
    """Return the plan to train a classifier in folder `path`; with an adaptation it starts from the base's weights."""
    assert isinstance(cell.model, Classifier)
    model = cell.model.with_data_sizes(dataset.sizes())
    return RunPlan(path, model, cell.recipe, data, dataset, adaptation=adaptation)


def make_labels_spec(study: LabelStudy, limit: int | None = None) -> LabelsSpec:
    """Return the spec of a study's labelled texts with absolute file paths; `limit` is the number of training texts."""
    values = {name: getattr(study, name) for name in LabelledTexts.model_fields}
    values |= {split: absolute_path(file) for split, file in split_files(study).items()}
    return LabelsSpec(**{**values, "labels": absolute_path(study.labels, LABELLED_CORPORA), "limit": limit})


def describe_labels(dataset: Splits[LabelledExamples]) -> dict[str, str]:
    """Describe the labelled texts, by topic; includes the accuracy of always predicting the most frequent label."""
    purposes = {"train": "to learn from", "validation": "for validation", TEST: "for the test"}
    sizes = ", ".join(f"{len(dataset.item(split).texts):,} {purpose}" for split, purpose in purposes.items())
    counts = Counter(label for _, label in dataset.item("train").texts)
    most_frequent = max(sorted(counts), key=counts.__getitem__)
    labels = [label for _, label in dataset.item(TEST).texts]
    return {
        "labelled texts": f"{dataset.description}: {sizes}",
        "labels": ", ".join(dataset.labels),
        "always the most frequent label": f"accuracy {100 * labels.count(most_frequent) / len(labels):.1f} %",
        "tokenizer": dataset.tokenizer.description,
        "SHA-256": dataset.hash,
        **({"overlap": "; ".join(dataset.overlaps)} if dataset.overlaps else {}),
    }


# Bodies compared: each against the first.


ROW_OFFSET = 0.08  # between the marks of two rows at one tick
LEARNING_AXES = {"step": "steps", "seconds": "training seconds"}
SCORE_TESTS = (
    "{} are taken seed by seed, since a seed fixes the batches of {} alike, with a t-test; its standard error "
    "is never below that of the test texts (paired by text); p-values are corrected for the number of comparisons "
    "(Holm); d is Cohen's, of pairs"
)
SCORE_INTERVALS = (
    "mean ± half the 95 % interval over the seeds (Student's t): what training again changes, on these test texts"
)
PROTOCOL = {
    "recipe": "the same for every body, and the same steps; the recipes of presets are not used",
    "scores": "on the test texts, which neither trained nor chose the weights; precision, recall and F1 are means over "
    "the classes",
    "intervals": SCORE_INTERVALS,
    "tests": SCORE_TESTS.format("differences", "all bodies"),
    "training seconds": "of the training steps alone; bodies take turns, seed by seed",
    "inference": "one run of each body classifies all test texts, tokens ready, in turns; medians and quartiles",
}


class ClassifiersExperiment(ClassifierExperiment):
    """Experiment that trains every body with every seed, times them in turns, and compares each with the first."""

    spec: ClassifiersStudy

    def __init__(self, spec: ClassifiersStudy, out: Path, observer: Observer) -> None:
        self.spec, self.out, self.observer = spec, out, observer
        self.choices = choose_classifiers(spec.models, spec.settings)
        self.data = make_labels_spec(spec, spec.limit)
        self.datasets: dict[str, Splits[LabelledExamples]] = {}
        for choice in self.choices:  # each body has its own length; the tokenizer, learned from the same texts, is one
            context = LoadContext(choice.model, Recipe(), SilentObserver() if self.datasets else observer)
            self.datasets[choice.title] = ClassificationTask().load(self.data, context)  # notes are logged once
        self.dataset = self.datasets[self.choices[0].title]  # the labelled texts as the first body reads them

    def cells(self) -> list[StudyCell]:
        """Return a cell for every seed and classifier."""
        texts = {title: len(dataset.item("train").texts) for title, dataset in self.datasets.items()}
        return [
            make_cell(self.spec, choice, {}, seed, texts[choice.title])
            for seed in self.spec.seeds
            for choice in self.choices
        ]

    def make_plan(self, cell: StudyCell, *inputs: Any) -> RunPlan:
        """Return the plan to train a cell's classifier on the study's texts."""
        return plan_classifier(self.path(cell), cell, self.data, self.datasets[cell.condition])

    def inference_seconds(self, outcomes: Sequence[LabelOutcome], device: str) -> dict[str, list[float]]:
        """Return the seconds of repeated passes over the test texts, bodies in turns, by row title; cached on disk."""
        cells = {outcome.cell.condition: outcome.cell for outcome in reversed(outcomes) if outcome.measures}
        plans = {title: self.make_plan(cells[title]) for title in self.datasets if title in cells}
        identity = {
            "runs": {title: plan.model.to_dict() for title, plan in plans.items()},
            "hardware": describe_hardware(device),
            "repetitions": self.spec.repetitions,
            "data": self.dataset.hash,
        }
        stored = read_json(self.out / "inference.json") or {}
        if stored.get("of") == identity:
            return stored["seconds"]
        calls = {}
        for title, plan in plans.items():
            model = load(plan.path, device).require(ClassifierModel, "a classifier")
            calls[title] = partial(classify, model, plan.dataset.item(TEST))
        seconds = time_in_turns(calls, self.spec.repetitions, device)
        write_json(self.out / "inference.json", {"of": identity, "seconds": seconds})
        return seconds

    def report(self, outcomes: tuple[LabelOutcome, ...], interrupted: bool) -> StudyResult:
        """Build the report: scores and costs of each classifier, and comparisons with the first."""
        device, rows = device_of(outcomes[0].cell.recipe), group_rows(outcomes)
        inference_seconds = {} if interrupted else self.inference_seconds(outcomes, device)
        claims = compare_with_first(rows, self.spec.tolerance, inference_seconds)
        sentences = [sentence for claim in claims for sentence in claim.sentences()]
        scores, single_runs = [], []
        for row in rows:
            for seed, first in list(row.measures.items())[:1]:
                scores.append(f"{row.title}: accuracy {format_percent(row.estimate('accuracy'))} %.")
                if first.low is not None and first.high is not None:
                    interval = f"{100 * first.low:.1f} to {100 * first.high:.1f}"
                    single_runs.append(f"{row.title}, seed {seed}: accuracy {100 * first.accuracy:.1f} % ({interval})")
        intervals = f"95 % intervals over the test texts (bootstrap): {'; '.join(single_runs)}"
        return self.make_result(
            outcomes,
            interrupted,
            device,
            data={**describe_labels(self.dataset), "seeds": ", ".join(map(str, self.spec.seeds))},
            protocol={
                **PROTOCOL,
                "one run alone": intervals if single_runs else "none yet",
                "models": describe_models(rows, ("steps", "batch", "learning_rate")),
            },
            table=make_table(rows, inference_seconds),
            conclusion=tuple(sentences or scores or [NOTHING_TO_COMPARE]),
            plots=tuple(plot_classifiers([row for row in rows if row.measures])),
            rows=tuple(rows),
            extra={"claims": [claim.to_dict() for claim in claims], "inference_seconds": dict(inference_seconds)},
        )


def compare_with_first(rows: Sequence[LabelRow], tolerance: float, inference_seconds: Seconds) -> list[CheaperClaim]:
    """Compare accuracy and costs of each row with the first row's; p-values are corrected for all comparisons.

    `tolerance` is the largest difference in accuracy that counts as equal; `inference_seconds` are by row title.
    """
    first = rows[0]
    tests = correct_tests({row.title: accuracy_test(row, first) for row in rows[1:]})
    claims = []
    for row in rows[1:]:
        costs = compare_costs(row, first, inference_seconds)
        over_texts = estimate_difference_over_texts(row, first)
        claims.append(CheaperClaim(row.title, first.title, tests.get(row.title), over_texts, tolerance, costs))
    return claims


def make_table(rows: Sequence[LabelRow], inference_seconds: Seconds) -> StudyTable:
    """Build a table with a line per body: scores in per cent, then costs.

    `inference_seconds` has the seconds of each pass over the test texts, by row title.
    """

    def texts_per_second(row: LabelRow) -> float | None:
        """Return the median number of test texts that a row's body classifies per second; None if not timed."""
        times = inference_seconds.get(row.title)
        return len(row.first.right) / median(times) if times and row.first else None

    columns = {
        "parameters": lambda row: row.count("parameters"),
        "of layers": lambda row: row.count("layers"),
        "train s": lambda row: row.estimate("seconds"),
        "texts/s": texts_per_second,
    }
    caption = table_caption(rows, "precision, recall and F1 are means")
    return score_table(rows, "body", SCORES, columns, caption, {"texts_per_second": texts_per_second})


def plot_classifiers(rows: Sequence[LabelRow]) -> Iterator[Plot]:
    """Plot the scores of all bodies next to each other, and accuracy against steps and seconds."""
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


# Models of a graph: each against the first, on every random split.


RESERVED_GRAPH_SETTINGS = {
    "seed": "Give the study `seeds`, as in seeds=10.",
    **dict.fromkeys(("features", "F", "classes", "K"), "They come from the graph."),
}
GRAPH_PROTOCOL = {
    "splits": "each seed draws the training, validation and test nodes, and the initial weights; all models of a seed "
    "have the same split",
    "scores": "on the test nodes, which neither trained nor chose the weights; F1 is the mean over the classes",
    "intervals": "mean ± half the 95 % interval over the seeds (Student's t)",
    "tests": "differences are taken seed by seed, with a t-test whose standard error is never below that of the test "
    "nodes (paired by node); p-values are corrected for the number of comparisons (Holm); d is Cohen's, of pairs",
    "training seconds": "of the training steps alone; models take turns, seed by seed",
}


class GraphExperiment(ClassifierExperiment):
    """Experiment that trains every graph model with every seed, which draws the split and the initial weights."""

    spec: GraphStudy

    def __init__(self, spec: GraphStudy, out: Path, observer: Observer) -> None:
        self.spec, self.out, self.observer = spec, out, observer
        choice, self.graphs = choose("graph"), {}
        for seed in spec.seeds:
            context = LoadContext(choice.model, choice.recipe, SilentObserver() if self.graphs else observer)
            self.graphs[seed] = NodesTask().load(self._graph_spec(seed), context)

    def _graph_spec(self, seed: int) -> GraphSpec:
        """Return the data spec of the graph with the split that a seed draws, and with absolute file paths."""
        values = {name: getattr(self.spec, name) for name in GraphSource.model_fields}
        for name in ("nodes_file", "labelled", "validation", "test"):
            if isinstance(values[name], str):
                values[name] = absolute_path(values[name])
        return GraphSpec(**{**values, "graph": absolute_path(self.spec.graph, GRAPHS), "split": seed})

    def cells(self) -> list[StudyCell]:
        """Return a cell for every seed and graph model."""
        choices = {}
        for model in self.spec.models:
            settings = {**self.spec.settings, **model.settings}
            check_reserved(settings, RESERVED_GRAPH_SETTINGS)
            choice = choices[model.title] = choose(model.model, settings)
            if not isinstance(choice.model, Graph):
                raise SpecError(
                    f"study: '{model.title}' is a model of the family {choice.model.family}. Take one of the family "
                    "graph."
                )
        return [
            StudyCell(title, {}, seed, choice.model, choice.recipe.replace(seed=seed))
            for seed in self.spec.seeds
            for title, choice in choices.items()
        ]

    def make_plan(self, cell: StudyCell, *inputs: Any) -> RunPlan:
        """Return the plan to train a cell's model on the graph with its seed's split."""
        assert isinstance(cell.model, Graph) and cell.seed is not None
        graph = self.graphs[cell.seed]
        model = cell.model.with_data_sizes(graph.sizes())
        return RunPlan(self.path(cell), model, cell.recipe, self._graph_spec(cell.seed), graph)

    def report(self, outcomes: tuple[LabelOutcome, ...], interrupted: bool) -> StudyResult:
        """Build the report: scores and costs of each graph model, and comparisons with the first."""
        rows, splits = group_rows(outcomes), self.graphs[self.spec.seeds[0]]
        graph, test_classes = splits.item("train").graph, splits.item(TEST).classes
        num_labelled, num_trained = int((graph.classes >= 0).sum()), len(splits.item("train").classes)
        guessing = 100 * np.bincount(test_classes, minlength=len(splits.labels)).max() / len(test_classes)
        test_nodes = np.unique(np.concatenate([split.item(TEST).nodes for split in self.graphs.values()]))
        sizes = f"{len(graph.classes):,} nodes, {graph.edges.shape[1]:,} edges, {graph.width:,} features"
        labels = f"{num_labelled:,} nodes have a label, {num_trained:,} of them are learned"
        recipe, model = ("steps", "learning_rate", "weight_decay", "dropout"), ("depth", "hidden", "normalise")
        columns = {
            "parameters": lambda row: row.count("parameters"),
            "train s": lambda row: row.estimate("seconds"),
        }
        caption = table_caption(rows, "F1 is the mean", "nodes")
        return self.make_result(
            outcomes,
            interrupted,
            device_of(outcomes[0].cell.recipe),
            data={
                "graph": f"{splits.description}: {sizes}",
                "classes": f"{', '.join(splits.labels)}; {labels}",
                "nodes": ", ".join(f"{len(nodes):,} for {split}" for split, nodes in splits.items.items()),
                "always the most frequent class": f"accuracy {guessing:.1f} % on the first seed's test nodes",
                "SHA-256": splits.hash,
                **({"overlap": "; ".join(splits.overlaps)} if splits.overlaps else {}),
                "seeds": ", ".join(map(str, self.spec.seeds)),
            },
            protocol={**GRAPH_PROTOCOL, "models": describe_models(rows, recipe, model)},
            table=score_table(rows, "model", ("accuracy", "f1"), columns, caption),
            conclusion=tuple(compare_graph_models(rows, len(test_nodes))),
            plots=tuple(plot_graph_models([row for row in rows if row.measures])),
            rows=tuple(rows),
        )


def compare_graph_models(rows: Sequence[LabelRow], nodes: int) -> Iterator[str]:
    """Yield sentences on the first model's accuracy and how the others differ, over `nodes` different test nodes."""
    first = rows[0]
    if not first.measures:
        yield "No run of the first model finished, so that there is nothing to compare."
        return
    splits = f"{len(first.measures)} random splits" if len(first.measures) > 1 else "one split"
    yield f"{first.title}: accuracy {format_percent(first.estimate('accuracy'))} % over {splits}."
    tests = {}
    for row in rows[1:]:
        differences = [
            int(digit) - int(base)
            for seed in sorted(row.measures.keys() & first.measures.keys())
            for digit, base in zip(row.measures[seed].right, first.measures[seed].right, strict=True)
        ]
        min_error = item_standard_error(differences, min(nodes, len(differences)))
        tests[row.title] = compare_rows(row, first, "accuracy", log=False, min_error=min_error)
    for title, test in correct_tests(tests).items():
        yield f"{title} against {first.title}: {test}: {test.verdict}."


def plot_graph_models(rows: Sequence[LabelRow]) -> Iterator[Plot]:
    """Plot the accuracies of all graph models, and accuracy against steps; intervals are clipped to 0 and 100 %."""
    if not rows:
        return
    scores = [(index, row.title, row.estimate("accuracy")) for index, row in enumerate(rows)]
    bars = tuple(percent_curve(title, [index], [score], cut=True) for index, title, score in scores if score)
    caption = (
        "Accuracy on the test nodes: means over the seeds (dots) with their 95 % intervals (bars), cut at 0 and 100 %."
    )
    yield Plot("", "accuracy, per cent", bars, caption=caption, bars=True, ticks=tuple(title for _, title, _ in scores))
    yield from plot_learning(rows, {"step": "steps"}, "nodes", cut=True)
