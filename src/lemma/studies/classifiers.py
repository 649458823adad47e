"""The study of classifiers (problem C3): the same labels and recipe for every body, quality and cost compared.

Its first half, what is measured of a classifier and how one is trained on labels, serves the study of pretraining too.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
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
from lemma.report.progress import Observer
from lemma.report.statistics import Estimate, PairedTest, estimate, holm_correct, item_standard_error
from lemma.runs.load import Run, load
from lemma.spec.base import Spec, distribute
from lemma.spec.choose import choose
from lemma.spec.data import LabelsSpec
from lemma.spec.models import Classifier
from lemma.spec.recipe import AdaptationSpec, Recipe
from lemma.spec.studies import ClassifiersStudy, ComparedModel, LabelStudy
from lemma.studies.budget import describe_hardware, device_of, fit_schedule, time_in_turns, time_ratio
from lemma.studies.experiment import (
    CellOutcome,
    RunPlan,
    StudyCell,
    StudyRow,
    TrainingExperiment,
    compare_rows,
    describe_seeds,
    group_rows,
    read_json,
    validation_rows,
    write_json,
)
from lemma.studies.grid import RESERVED_SETTINGS, Verdict, check_reserved, has_setting
from lemma.studies.result import NO_VALUE, StudyResult, StudyTable
from lemma.tasks.base import absolute_path, report_skipped
from lemma.tasks.classification import ClassificationScore, classify, load_labels, score_classes

FROM_TOKENIZER = "It comes from the tokenizer, the same for every run: set tokenizer.vocabulary."
RESERVED_CLASSIFIER_SETTINGS = {
    **RESERVED_SETTINGS,
    "vocabulary": FROM_TOKENIZER,
    "V": FROM_TOKENIZER,
    "classes": "They come from the labels.",
    "K": "They come from the labels.",
    "body": "Name another body, as in models=['rnn','lstm'].",
}
WARM_UP = 10
"""One step in ten warms up, unless warm_up is given."""
TEST = "test"
SCORES = {"accuracy": "accuracy", "precision": "precision", "recall": "recall", "f1": "F1"}
"""Scores on the test data, by their names in measures and in tables."""


class LearningPoint(NamedTuple):
    """One validation: after how many steps and seconds, its loss and accuracy."""

    step: int
    seconds: float
    loss: float
    accuracy: float


@dataclass(frozen=True)
class ClassifierMeasures:
    """All that was measured of a trained classifier, and what it was."""

    model: Mapping[str, Any]
    recipe: Mapping[str, Any]
    parameters: int
    layers: int
    """Parameters of the body without its embeddings: what the recurrent or attention layers have."""
    learned: int
    """Those that training changed."""
    steps: int
    seconds: float
    accuracy: float
    precision: float
    recall: float
    f1: float
    """On the test texts; precision, recall and F1 are means over the classes."""
    low: float | None
    high: float | None
    """The bootstrap's interval of this run's accuracy, over the test texts."""
    right: str
    """One digit per test text, in the order of the split: 1 where the class is right."""
    curve: tuple[LearningPoint, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "curve": [list(point) for point in self.curve]}


LabelRow = StudyRow[ClassifierMeasures]
LabelOutcome = CellOutcome[ClassifierMeasures]


def make_measures(run: Run, score: ClassificationScore, right: np.ndarray, layers: int) -> ClassifierMeasures:
    """What a run was, what it took, and how well it did."""
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
        right="".join(str(int(one)) for one in right),
        curve=tuple(LearningPoint(*map(row.__getitem__, names)) for row in validation_rows(run)),
    )


def count_layer_parameters(model: ClassifierModel) -> int:
    """The parameters of the body without its embeddings."""
    embeddings = (part for part in model.body.modules() if isinstance(part, nn.Embedding))
    return count_parameters(model.body) - sum(map(count_parameters, embeddings))


def accuracy_differences(ones: LabelRow, others: LabelRow) -> list[float]:
    """The difference of accuracies on each test text, its seeds averaged."""
    both = sorted(ones.measures.keys() & others.measures.keys())
    digits = [zip(*(row.measures[seed].right for seed in both), strict=True) for row in (ones, others)]
    shares = [[fmean(map(int, of_text)) for of_text in texts] for texts in digits]
    return [one - other for one, other in zip(*shares, strict=True)]


def estimate_over_texts(row: LabelRow, baseline: LabelRow) -> Estimate | None:
    """The difference of accuracies with its interval over the test texts."""
    gaps = accuracy_differences(row, baseline)
    return estimate(gaps) if gaps else None


def accuracy_test(row: LabelRow, baseline: LabelRow) -> PairedTest | None:
    """Accuracies compared seed by seed; the standard error is never below that of the test texts."""
    return compare_rows(row, baseline, "accuracy", False, item_standard_error(accuracy_differences(row, baseline)))


def row_record(row: LabelRow) -> dict[str, Any]:
    """A row's unrounded figures: shares as they are, not in per cent."""
    figures: dict[str, Any] = {}
    for name in (*SCORES, "seconds"):
        found = row.estimate(name)
        figures |= {name: found and found.mean, f"{name}_margin": found and found.margin}
    counts = {name: row.count(name) for name in ("parameters", "layers", "learned", "steps")}
    place = {"model": row.condition, **row.point, "seeds": len(row.measures)}
    return {**place, **figures, **counts, "notes": "; ".join(row.missing_seeds)}


def format_percent(estimate: Estimate | None) -> str:
    """A share in per cent.

    >>> format_percent(Estimate(0.8123, 0.0123, 3))
    '81.2 ± 1.2'
    """
    if estimate is None:
        return NO_VALUE
    if estimate.margin is None:
        return " / ".join(f"{100 * value:.1f}" for value in estimate.values or (estimate.mean,))
    return str(Estimate(100 * estimate.mean, 100 * estimate.margin, estimate.count))


def format_points(difference: Estimate) -> str:
    """A difference of shares in points, with its sign.

    >>> format_points(Estimate(-0.0123, 0.02, 3))
    '−1.2 ± 2.0 points'
    """
    return f"{'+' if difference.mean > 0 else ''}{format_percent(difference)} points".replace("-", "−")


def percent_curve(title: str, x: Sequence[float], estimates: Sequence[Estimate]) -> Curve:
    """Shares in per cent over some axis, with their intervals."""
    low, mean, high = (tuple(100 * getattr(one, end) for one in estimates) for end in ("low", "mean", "high"))
    return Curve(title, tuple(x), mean, low, high, dots=True)


def learning_curve(row: LabelRow, axis: str) -> Curve | None:
    """The mean validation accuracy over the seeds, as far as all of them go."""
    validations = list(zip(*(one.curve for one in row.measures.values()), strict=False))
    if len(validations) < 2:
        return None
    found = [estimate([point.accuracy for point in several]) for several in validations]
    return percent_curve(
        row.title, [fmean(getattr(point, axis) for point in several) for several in validations], found
    )


def table_caption(rows: Sequence[LabelRow], means: str) -> str:
    """What the figures of a table are."""
    if not any(row.measures for row in rows):
        return "No run has come to its end."
    return f"On the test texts; {means} over the classes.{describe_seeds(rows)}"


# Classifiers trained on labelled texts.


@dataclass(frozen=True)
class ClassifierChoice:
    """A classifier before its data are known, and the settings of its recipe."""

    title: str
    model: Classifier
    recipe: Mapping[str, Any]


def choose_classifiers(models: Iterable[ComparedModel], shared: Mapping[str, Any]) -> list[ClassifierChoice]:
    """Make each model the body of a classifier; it takes the shared settings that it knows, and all of its own.

    The recipe is the study's alone, whatever the preset has, so that it is the same for every body.
    """
    choices: list[ClassifierChoice] = []
    used: set[str] = set()
    names: dict[str, None] = {}
    for one in models:
        model = choose(one.model, classify=True).model
        assert isinstance(model, Classifier)
        kinds: dict[str, type[Spec]] = {"body": type(model.body), "model": Classifier, "recipe": Recipe}
        known = {word: value for word, value in shared.items() if has_setting(kinds, word)}
        check_reserved([*known, *one.settings], RESERVED_CLASSIFIER_SETTINGS)
        shares = [distribute(words, kinds) for words in (known, one.settings)]
        body, own, recipe = ({**shares[0][kind], **shares[1][kind]} for kind in kinds)
        model = model.replace(**own, body=model.body.replace(**body).to_dict())
        choices.append(ClassifierChoice(one.title, model, recipe))
        used |= known.keys()
        names |= {
            word: None
            for kind in kinds.values()
            for word in kind.setting_names()
            if word not in RESERVED_CLASSIFIER_SETTINGS
        }
    for word in (word for word in shared if word not in used):
        raise SpecError(describe_unknown("study.settings: the setting", word, names))
    return choices


def make_cell(
    study: LabelStudy, choice: ClassifierChoice, point: Mapping[str, Any], seed: int, texts: int
) -> StudyCell:
    """One run: its recipe reads that many labelled texts `epochs` times, but takes `least_steps` at least.

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
    tenth = recipe if "warm_up" in settings else recipe.replace(warm_up=recipe.steps // WARM_UP)
    return fit_schedule(tenth, settings, min(validations, recipe.steps))[0]


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
        """The run of a classifier on these texts, from these weights."""
        assert isinstance(cell.model, Classifier)
        model = cell.model.with_data_sizes(dataset.sizes())
        return RunPlan(self.path(cell), model, cell.recipe, data, dataset, adaptation=adaptation)

    def measure(self, run: Run, plan: RunPlan) -> ClassifierMeasures:
        """Classify the test texts."""
        examples, model = plan.dataset.item(TEST), run.require(ClassifierModel, "a classifier")
        found = classify(model, examples)
        score = score_classes(examples.classes, found, plan.dataset.labels, {})
        return make_measures(run, score, found.argmax(-1) == examples.classes, count_layer_parameters(model))


def label_data(study: LabelStudy, limit: int | None = None) -> LabelsSpec:
    """The study's labelled texts, a file by its absolute path, so that a run finds it from anywhere."""
    data = study.data(limit)
    files = {split: absolute_path(file) for split, file in split_files(data).items()}
    return data.replace(labels=absolute_path(study.labels, LABELLED_CORPORA), **files)


def describe_labels(dataset: Splits[LabelledExamples]) -> dict[str, str]:
    """What the labelled texts are, in words, and the accuracy of always predicting the most frequent label."""
    names = {"train": "to learn from", "validation": "for validation", TEST: "for the test"}
    sizes = ", ".join(f"{len(dataset.item(split).texts):,} {name}" for split, name in names.items())
    learned = Counter(label for _, label in dataset.item("train").texts)
    guess = max(sorted(learned), key=learned.__getitem__)
    labels = [label for _, label in dataset.item(TEST).texts]
    return {
        "labelled texts": f"{dataset.description}: {sizes}",
        "labels": ", ".join(dataset.labels),
        "always the most frequent label": f"accuracy {100 * labels.count(guess) / len(labels):.1f} %",
        "tokenizer": dataset.tokenizer.description,
        "SHA-256": dataset.hash,
        **({"overlap": "; ".join(dataset.overlaps)} if dataset.overlaps else {}),
    }


# The claim "about the same accuracy, but cheaper", judged: which meaning of cost makes it true.


@dataclass(frozen=True)
class CostRatio:
    """What one model costs compared with another, by one meaning of cost."""

    meaning: str
    value: float
    low: float | None
    high: float | None
    """The interval; None where there are too few seeds for one."""
    exact: bool = False
    """Whether it is counted, not measured."""

    @property
    def verdict(self) -> Verdict:
        """Whether it is cheaper."""
        if self.low is None or self.high is None:
            return "too few seeds"
        if self.exact:
            return "held" if self.value < 1 else "not held"
        return "held" if self.high < 1 else "not held" if self.low > 1 else "not decided"

    def __str__(self) -> str:
        """Write the ratio and its interval.

        >>> print(CostRatio("training time", 1.234, 1.1, 1.4))
        training time 1.23 × (1.10 to 1.40)
        """
        ends = "" if self.exact or self.low is None or self.high is None else f" ({self.low:.2f} to {self.high:.2f})"
        return f"{self.meaning} {self.value:.2f} ×{ends}"


SAME: dict[Verdict, str] = {
    "held": "about the same",
    "not held": "not about the same",
    "not decided": "the seeds do not decide whether that is about the same",
    "too few seeds": "too few seeds to say whether that is about the same",
    "not measured": "there is no seed that both have",
}


@dataclass(frozen=True)
class SameButCheaper:
    """The claim that a model is as accurate as another and cheaper: the accuracies' difference, the costs' ratios."""

    title: str
    against: str
    gap: PairedTest | None
    """Accuracy minus the other's, seed by seed; None if they have no seed in common."""
    texts: Estimate | None
    """The same, its interval over the test texts."""
    tolerance: float
    costs: tuple[CostRatio, ...]

    @property
    def same(self) -> Verdict:
        """Whether the accuracies are about the same."""
        return judge_equivalence(self.gap and self.gap.difference, self.tolerance)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        costs = {one.meaning: {"ratio": one.value, "low": one.low, "high": one.high} for one in self.costs}
        return {
            "model": self.title,
            "against": self.against,
            "accuracy_difference": self.gap and self.gap.mean,
            "accuracy_difference_margin": self.gap and self.gap.difference.margin,
            "accuracy_test": self.gap and self.gap.to_dict(),
            "accuracy_difference_margin_over_texts": self.texts and self.texts.margin,
            "tolerance": self.tolerance,
            "about_the_same": self.same,
            "costs": costs,
            "cheaper": {one.meaning: one.verdict for one in self.costs},
        }

    def sentences(self) -> tuple[str, ...]:
        """Say in plain words what was found, and whether the claim holds, for which meaning of cost."""
        by_verdict = {
            "cheaper": ("held",),
            "not cheaper": ("not held",),
            "undecided": ("not decided", "too few seeds"),
        }
        named = {
            said: [cost.meaning for verdict in verdicts for cost in self.costs if cost.verdict == verdict]
            for said, verdicts in by_verdict.items()
        }
        cheaper = named["cheaper"]
        match self.same:
            case "held" if cheaper:
                lead = f"holds if cost means {_joined(cheaper, 'or')}"
            case "held":
                lead = "does not hold" if named["not cheaper"] else "is not decided"
            case "not held":
                lead = "does not hold, since the accuracies are not about the same"
            case "not measured":
                lead = "was not measured"
            case _:
                lead = "is not decided, since the noise leaves open whether the accuracies are about the same"
        by_cost = "; ".join(f"{said} by {_joined(some, 'and')}" for said, some in named.items() if some)
        more = f" ({by_cost})" if by_cost and self.same != "not measured" else ""
        claim = f"The claim “about the same accuracy, {self.title} cheaper than {self.against}” {lead}{more}."
        if not self.costs:
            return (claim,)
        accuracy = f"Accuracy: {SAME[self.same]}."
        if self.gap is not None:
            within = f"a difference within ±{100 * self.tolerance:g} points counts as the same"
            texts = f" Over the test texts instead of the seeds: {format_points(self.texts)}." if self.texts else ""
            said = "a significant difference, though " if self.same == "not decided" and self.gap.is_significant else ""
            accuracy = f"Accuracy: {self.gap}: {said}{SAME[self.same]} ({within}).{texts}"
        return claim, accuracy, f"Cost of {self.title} against {self.against}: {', '.join(map(str, self.costs))}."


def _joined(names: Sequence[str], word: str) -> str:
    return f" {word} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def judge_equivalence(difference: Estimate | None, tolerance: float) -> Verdict:
    """Judge a difference by its whole interval: within the tolerance, outside it, or partly both.

    >>> [judge_equivalence(Estimate(mean, 0.01, 3), 0.02) for mean in (0.005, 0.02, -0.04)]
    ['held', 'not decided', 'not held']
    """
    if difference is None:
        return "not measured"
    if difference.margin is None:
        return "too few seeds"
    if max(abs(difference.low), abs(difference.high)) <= tolerance:
        return "held"
    return "not held" if difference.low > tolerance or difference.high < -tolerance else "not decided"


def compare(row: LabelRow, base: LabelRow, tolerance: float, seconds: Mapping[str, Sequence[float]]) -> SameButCheaper:
    """Compare a row with another; `seconds` of inference were taken in turns, by the rows' titles.

    Training time is compared seed by seed: the geometric mean of the ratios with Student's interval of their
    logarithms.
    """
    costs = []
    for name, meaning in (("parameters", "parameters"), ("layers", "parameters of the layers")):
        mine, theirs = row.count(name), base.count(name)
        if mine is not None and theirs:
            costs.append(CostRatio(meaning, mine / theirs, mine / theirs, mine / theirs, exact=True))
    taken, others = row.values("seconds"), base.values("seconds")
    if both := sorted(taken.keys() & others.keys()):
        logs = estimate([math.log(taken[seed] / others[seed]) for seed in both])
        ends = (None, None) if logs.margin is None else (math.exp(logs.low), math.exp(logs.high))
        costs.append(CostRatio("training time", math.exp(logs.mean), *ends))
    if row.title in seconds and base.title in seconds:
        raced = time_ratio(seconds[row.title], seconds[base.title])
        costs.append(CostRatio("inference time", raced.median, raced.low, raced.high))
    gap = accuracy_test(row, base)
    return SameButCheaper(row.title, base.title, gap, estimate_over_texts(row, base), tolerance, tuple(costs))


ROW_OFFSET = 0.08  # between the marks of two rows at one tick
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
        """Seeds × bodies."""
        texts = {title: len(dataset.item("train").texts) for title, dataset in self.datasets.items()}
        return [
            make_cell(self.spec, choice, {}, seed, texts[choice.title])
            for seed in self.spec.seeds
            for choice in self.choices
        ]

    def plan(self, cell: StudyCell) -> RunPlan:
        """The run of a body and a seed."""
        return self.plan_labels(cell, self.data, self.datasets[cell.condition])

    def inference_seconds(
        self, outcomes: Sequence[LabelOutcome], hardware: Mapping[str, str]
    ) -> dict[str, list[float]]:
        """Seconds in which one run of each body classifies the test texts, taken in turns; kept for the next call."""
        firsts = {one.cell.condition: one.cell for one in reversed(outcomes) if one.measures}
        plans = {title: self.plan(firsts[title]) for title in self.datasets if title in firsts}
        of = {
            "runs": {title: plan.model.to_dict() for title, plan in plans.items()},
            "hardware": dict(hardware),
            "repetitions": self.spec.repetitions,
            "data": self.dataset.hash,
        }
        kept = read_json(self.out / "inference.json") or {}
        if kept.get("of") == of:
            return kept["seconds"]

        device = device_of(self.cells()[0].recipe)
        calls = {}
        for title, plan in plans.items():
            model = load(plan.path, device).require(ClassifierModel, "a classifier")
            calls[title] = partial(classify, model, plan.dataset.item(TEST))
        seconds = time_in_turns(calls, self.spec.repetitions, device)
        write_json(self.out / "inference.json", {"of": of, "seconds": seconds})
        return seconds

    def report(self, outcomes: tuple[LabelOutcome, ...], interrupted: bool) -> StudyResult:
        """Scores, costs, and the verdict on each body against the first."""
        hardware = describe_hardware(device_of(outcomes[0].cell.recipe))
        seconds = {} if interrupted else self.inference_seconds(outcomes, hardware)
        data = describe_labels(self.dataset)
        return report_classifiers(self.spec, outcomes, seconds, data, hardware, self.out, interrupted)


def report_classifiers(
    spec: ClassifiersStudy,
    outcomes: tuple[LabelOutcome, ...],
    seconds: Mapping[str, Sequence[float]],
    data: Mapping[str, str],
    hardware: Mapping[str, str],
    out: Path,
    interrupted: bool = False,
) -> StudyResult:
    """Put the findings together."""
    rows = group_rows(outcomes)
    compared = [compare(row, rows[0], spec.tolerance, seconds) for row in rows[1:]]
    tests = iter(holm_correct([one.gap for one in compared if one.gap]))
    compared = [replace(one, gap=next(tests)) if one.gap else one for one in compared]
    said = [sentence for one in compared for sentence in one.sentences()]
    firsts = [(row.title, *next(iter(row.measures.items()))) for row in rows if row.measures]
    alone = "; ".join(
        f"{title}, seed {seed}: accuracy {100 * one.accuracy:.1f} % ({100 * one.low:.1f} to {100 * one.high:.1f})"
        for title, seed, one in firsts
        if one.low is not None and one.high is not None
    )
    scores = [f"{row.title}: accuracy {format_percent(row.estimate('accuracy'))} %." for row in rows if row.measures]
    return StudyResult(
        title=spec.name,
        question=spec.question,
        spec=spec,
        out=out,
        data={**data, "seeds": ", ".join(map(str, spec.seeds))},
        hardware=hardware,
        protocol={
            **PROTOCOL,
            "one run alone": f"95 % intervals over the test texts (bootstrap): {alone}" if alone else "none yet",
            "models": describe_models(rows, ("steps", "batch", "learning_rate")),
        },
        table=make_table(rows, seconds),
        conclusion=tuple(said or scores or ["No run came to its end, so that there is nothing to compare."]),
        plots=tuple(plot_classifiers([row for row in rows if row.measures])),
        runs=outcomes,
        rows=tuple(rows),
        extra={"claims": [one.to_dict() for one in compared], "inference_seconds": dict(seconds)},
        interrupted=interrupted,
    )


def make_table(rows: Sequence[LabelRow], seconds: Mapping[str, Sequence[float]]) -> StudyTable:
    """One row per body: scores in per cent, then costs."""

    def texts_per_second(row: LabelRow) -> float | None:
        taken = seconds.get(row.title)
        return len(row.first.right) / median(taken) if taken and row.first else None

    def count(value: float | None) -> str:
        return NO_VALUE if value is None else f"{value:,.0f}"

    return StudyTable(
        header=("body", *(f"{name} %" for name in SCORES.values()), "parameters", "of layers", "train s", "texts/s"),
        rows=[
            (
                row.title,
                *(format_percent(row.estimate(name)) for name in SCORES),
                *map(count, (row.count("parameters"), row.count("layers"))),
                str(row.estimate("seconds") or NO_VALUE),
                count(texts_per_second(row)),
            )
            for row in rows
        ],
        records=[{**row_record(row), "texts_per_second": texts_per_second(row)} for row in rows],
        caption=table_caption(rows, "precision, recall and F1 are means"),
        notes=tuple(note for row in rows for note in row.notes),
    )


def describe_models(rows: Sequence[LabelRow], recipe: Sequence[str], sizes: Collection[str] = ()) -> str:
    """What each model is, by some of its settings or all that are whole numbers, and how it was trained."""
    said = []
    for title, one in ((row.title, row.first) for row in rows if row.first):
        settings = one.model.get("body", one.model)
        chosen = sizes or [word for word, value in settings.items() if type(value) is int]
        model = [f"{word} {settings[word]:{',' if type(settings[word]) is int else ''}}" for word in chosen]
        trained = [f"{word.replace('_', ' ')} {one.recipe[word]:,}" for word in recipe]
        said.append(f"{title} ({', '.join(model)}; {', '.join(trained)})")
    return "; ".join(said)


def plot_classifiers(rows: Sequence[LabelRow]) -> Iterable[Plot]:
    """The scores next to each other, and accuracy against steps and seconds."""
    if not rows:
        return
    curves = []
    for place, row in enumerate(rows):
        found = [one for name in SCORES if (one := row.estimate(name))]
        shift = ROW_OFFSET * (place - (len(rows) - 1) / 2)
        curves.append(percent_curve(row.title, [tick + shift for tick in range(len(found))], found))
    caption = "Scores on the test texts: means over the seeds (dots) with their 95 % intervals (bars)."
    ticks = tuple(SCORES.values())
    yield Plot("", "per cent", tuple(curves), caption=caption, bars=True, ticks=ticks, joined=False)
    for axis, title in (("step", "steps"), ("seconds", "training seconds")):
        if learning := tuple(curve for row in rows if (curve := learning_curve(row, axis))):
            caption = (
                f"Accuracy on the validation texts against {title}: means over the seeds with their 95 % intervals."
            )
            yield Plot(title, "validation accuracy, per cent", learning, caption=caption)
