"""What studies of classifiers share: how one is trained on labels, what is measured of it, and how rows are shown."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from lemma.data.corpora import LABELLED_CORPORA
from lemma.data.labels import LabelledExamples
from lemma.data.splits import Splits, split_files
from lemma.errors import SpecError, describe_unknown
from lemma.models.base import count_parameters
from lemma.models.classifier import ClassifierModel
from lemma.report.curves import Curve, Plot
from lemma.report.statistics import Estimate, PairedTest, estimate, item_standard_error
from lemma.runs.load import Run
from lemma.spec.base import Spec, distribute
from lemma.spec.choose import choose
from lemma.spec.data import LabelsSpec
from lemma.spec.models import Classifier
from lemma.spec.recipe import AdaptationSpec, Recipe
from lemma.spec.studies import ComparedModel, LabelStudy
from lemma.studies.budget import fit_schedule
from lemma.studies.cells import (
    FROM_TOKENIZER,
    RESERVED_SETTINGS,
    CellOutcome,
    StudyCell,
    StudyRow,
    check_reserved,
    compare_rows,
    describe_seeds,
    has_setting,
)
from lemma.studies.claims import format_percent
from lemma.studies.experiment import RunPlan, TrainingExperiment, validation_rows
from lemma.studies.result import NO_VALUE, NOTHING_FINISHED, StudyTable
from lemma.tasks.classification import ClassificationScore, classify, score_classes
from lemma.tasks.registry import absolute_path

RESERVED_CLASSIFIER_SETTINGS = {
    **RESERVED_SETTINGS,
    "vocabulary": FROM_TOKENIZER.format(""),
    "V": FROM_TOKENIZER.format(""),
    "classes": "They come from the labels.",
    "K": "They come from the labels.",
    "body": "Name another body, as in models=['rnn','lstm'].",
}
WARM_UP = 10  # one step in ten warms up, unless warm_up is given
TEST = "test"
SCORES = {"accuracy": "accuracy", "precision": "precision", "recall": "recall", "f1": "F1"}
"""Titles of the scores on the test data, by their names in measures."""


class LearningPoint(NamedTuple):
    """Validation: after how many steps and seconds, its loss and accuracy."""

    step: int
    seconds: float
    loss: float
    accuracy: float


@dataclass(frozen=True)
class ClassifierMeasures:
    """Measures of a trained classifier, and what it is.

    Attributes:
        layers: parameters of the body without its embeddings: those of the recurrent or attention layers.
        learned: trainable parameters.
        accuracy, precision, recall, f1: on the test items; the last three are means over the classes.
        low, high: the bootstrap's interval of this run's accuracy, over the test items.
        right: one digit per test item, in the order of the split: 1 where the class is right.
    """

    model: Mapping[str, Any]
    recipe: Mapping[str, Any]
    parameters: int
    layers: int
    learned: int
    steps: int
    seconds: float
    accuracy: float
    precision: float
    recall: float
    f1: float
    low: float | None
    high: float | None
    right: str
    curve: tuple[LearningPoint, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "curve": [list(point) for point in self.curve]}


LabelRow = StudyRow[ClassifierMeasures]
LabelOutcome = CellOutcome[ClassifierMeasures]


def make_measures(run: Run, score: ClassificationScore, right: np.ndarray, layers: int) -> ClassifierMeasures:
    """Collect what a run is, what it cost, and its scores."""
    summary: Mapping[str, Any] = run.summary or {}
    low, high = score.accuracy.interval or (None, None)
    names = ("step", "seconds", "validation_loss", "accuracy")
    return ClassifierMeasures(
        model=run.spec.to_dict(),
        recipe=run.recipe.to_dict(),
        parameters=count_parameters(run.module),
        layers=layers,
        **{name: summary[name] for name in ("learned", "steps", "seconds")},
        **{name: getattr(score, name).value for name in SCORES},
        low=low,
        high=high,
        right="".join(str(int(is_right)) for is_right in right),
        curve=tuple(LearningPoint(*map(row.__getitem__, names)) for row in validation_rows(run)),
    )


def count_layer_parameters(model: ClassifierModel) -> int:
    """Count the parameters of the body without its embeddings."""
    embeddings = (module for module in model.body.modules() if isinstance(module, nn.Embedding))
    return count_parameters(model.body) - sum(map(count_parameters, embeddings))


# Statistics of rows.


def accuracy_differences(row: LabelRow, baseline: LabelRow) -> list[float]:
    """Return the difference of accuracies on each test text, averaged over the seeds that both have."""
    seeds = sorted(row.measures.keys() & baseline.measures.keys())
    accuracies = []
    for measures in (row.measures, baseline.measures):
        digits_of_texts = zip(*(measures[seed].right for seed in seeds), strict=True)
        accuracies.append([fmean(map(int, digits)) for digits in digits_of_texts])
    return [accuracy - base for accuracy, base in zip(*accuracies, strict=True)]


def estimate_over_texts(row: LabelRow, baseline: LabelRow) -> Estimate | None:
    """Return the difference of accuracies with its interval over the test texts."""
    differences = accuracy_differences(row, baseline)
    return estimate(differences) if differences else None


def accuracy_test(row: LabelRow, baseline: LabelRow) -> PairedTest | None:
    """Compare accuracies seed by seed; the standard error is never below that of the test texts."""
    min_error = item_standard_error(accuracy_differences(row, baseline))
    return compare_rows(row, baseline, "accuracy", log=False, min_error=min_error)


# Tables and plots of rows.


def score_table(
    rows: Sequence[LabelRow],
    title: str,
    scores: Collection[str],
    columns: Mapping[str, Callable[[LabelRow], Any]],
    caption: str,
    extra: Callable[[LabelRow], dict[str, Any]] = lambda row: {},
) -> StudyTable:
    """Make a row per model: scores in per cent, then costs.

    Args:
        rows: what is shown.
        title: the header of the first column.
        scores: names of scores.
        columns: further columns, each a function that returns a cell; a missing value is a dash.
        caption: what the figures are.
        extra: values added to the record of a row.
    """
    cells = []
    for row in rows:
        costs = (column(row) for column in columns.values())
        figures = (f"{cost:,.0f}" if isinstance(cost, int | float) else str(cost or NO_VALUE) for cost in costs)
        cells.append((row.title, *(format_percent(row.estimate(name)) for name in scores), *figures))
    return StudyTable(
        header=(title, *(f"{SCORES[name]} %" for name in scores), *columns),
        rows=cells,
        records=[{**row_record(row), **extra(row)} for row in rows],
        caption=caption,
        notes=tuple(note for row in rows for note in row.notes),
    )


def row_record(row: LabelRow) -> dict[str, Any]:
    """Return a row's unrounded figures: fractions as they are, not in per cent."""
    record: dict[str, Any] = {"model": row.condition, **row.point, "seeds": len(row.measures)}
    for name in (*SCORES, "seconds"):
        mean = row.estimate(name)
        record |= {name: mean and mean.mean, f"{name}_margin": mean and mean.margin}
    counts = {name: row.count(name) for name in ("parameters", "layers", "learned", "steps")}
    return {**record, **counts, "notes": "; ".join(row.missing_seeds)}


def table_caption(rows: Sequence[LabelRow], means: str, items: str = "texts") -> str:
    """Describe what the figures of a table are."""
    if not any(row.measures for row in rows):
        return NOTHING_FINISHED
    return f"On the test {items}; {means} over the classes.{describe_seeds(rows)}"


def percent_curve(title: str, x: Sequence[float], estimates: Sequence[Estimate], cut: bool = False) -> Curve:
    """Make a curve of fractions in per cent with their intervals, `cut` at 0 and 100 if asked for."""
    low, mean, high = (tuple(100 * getattr(one, end) for one in estimates) for end in ("low", "mean", "high"))
    if cut:
        low, high = tuple(max(0.0, end) for end in low), tuple(min(100.0, end) for end in high)
    return Curve(title, tuple(x), mean, low, high, dots=True)


def plot_learning(rows: Sequence[LabelRow], axes: Mapping[str, str], items: str, cut: bool = False) -> Iterator[Plot]:
    """Plot the mean validation accuracy over the seeds against steps or seconds, as far as all seeds go."""
    for axis, title in axes.items():
        curves = []
        for row in rows:
            validations = list(zip(*(measures.curve for measures in row.measures.values()), strict=False))
            if len(validations) > 1:
                x = [fmean(getattr(point, axis) for point in points) for points in validations]
                estimates = [estimate([point.accuracy for point in points]) for points in validations]
                curves.append(percent_curve(row.title, x, estimates, cut))
        if curves:
            caption = (
                f"Accuracy on the validation {items} against {title}: means over the seeds with their 95 % intervals"
            )
            caption += ", cut at 0 and 100 %." if cut else "."
            yield Plot(title, "validation accuracy, per cent", tuple(curves), caption=caption)


def describe_models(rows: Sequence[LabelRow], recipe: Sequence[str], sizes: Collection[str] = ()) -> str:
    """Describe what each model is, by its `sizes` or all settings that are whole numbers, and how it was trained."""
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


@dataclass(frozen=True)
class ClassifierChoice:
    """A classifier before its data are known, and the settings of its recipe."""

    title: str
    model: Classifier
    recipe: Mapping[str, Any]


def choose_classifiers(models: Iterable[ComparedModel], shared: Mapping[str, Any]) -> list[ClassifierChoice]:
    """Make each model the body of a classifier; it takes the shared settings that it has, and all of its own.

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
        distributed = [distribute(part, specs) for part in (settings, compared.settings)]
        of_body, of_model, of_recipe = ({**distributed[0][name], **distributed[1][name]} for name in specs)
        model = model.replace(**of_model, body=model.body.replace(**of_body).to_dict())
        choices.append(ClassifierChoice(compared.title, model, of_recipe))
        for spec in specs.values():
            names |= dict.fromkeys(name for name in spec.setting_names() if name not in RESERVED_CLASSIFIER_SETTINGS)
    for setting in shared:
        if setting not in used:
            raise SpecError(describe_unknown("study.settings: the setting", setting, names))
    return choices


def make_cell(
    study: LabelStudy, choice: ClassifierChoice, point: Mapping[str, Any], seed: int, texts: int
) -> StudyCell:
    """Make a cell whose recipe reads that many labelled texts `epochs` times, but takes `least_steps` at least.

    >>> from lemma.spec.studies import ClassifiersStudy
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
    """Warm up over a tenth of the steps and validate so often, unless the settings say otherwise and fit."""
    if "warm_up" not in settings:
        recipe = recipe.replace(warm_up=recipe.steps // WARM_UP)
    return fit_schedule(recipe, settings, min(validations, recipe.steps))[0]


class LabelExperiment(TrainingExperiment[ClassifierMeasures]):
    """An experiment whose runs are classifiers of labelled texts."""

    measures_type = ClassifierMeasures

    def plan_labels(
        self,
        cell: StudyCell,
        data: LabelsSpec,
        dataset: Splits[LabelledExamples],
        adaptation: AdaptationSpec | None = None,
    ) -> RunPlan:
        """Return the run of a classifier on these texts, from the weights of the adaptation's base if there is one."""
        assert isinstance(cell.model, Classifier)
        model = cell.model.with_data_sizes(dataset.sizes())
        return RunPlan(self.path(cell), model, cell.recipe, data, dataset, adaptation=adaptation)

    def measure(self, run: Run, plan: RunPlan) -> ClassifierMeasures:
        """Classify the test texts."""
        examples, model = plan.dataset.item(TEST), run.require(ClassifierModel, "a classifier")
        probabilities = classify(model, examples)
        score = score_classes(examples.classes, probabilities, plan.dataset.labels, {})
        is_right = probabilities.argmax(-1) == examples.classes
        return make_measures(run, score, is_right, count_layer_parameters(model))


def label_data(study: LabelStudy, limit: int | None = None) -> LabelsSpec:
    """Return the study's labelled texts, files by their absolute paths, so that a run finds them from anywhere."""
    data = study.data(limit)
    files = {split: absolute_path(file) for split, file in split_files(data).items()}
    return data.replace(labels=absolute_path(study.labels, LABELLED_CORPORA), **files)


def describe_labels(dataset: Splits[LabelledExamples]) -> dict[str, str]:
    """Describe the labelled texts, and give the accuracy of always predicting the most frequent label."""
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
