"""From a study of classifiers to its cells: a body, one recipe for all, and how many steps that makes."""

import math
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, Self

import numpy as np
from torch import nn

from lemma.data.corpora import LABELLED
from lemma.data.labels import Labelled
from lemma.data.splits import Splits
from lemma.errors import LemmaError, RunError, SpecError, unknown
from lemma.models.base import count_parameters
from lemma.models.classifier import ClassifierModel
from lemma.report.curves import Curve, Plot
from lemma.report.page import (
    csv_text,
    escape_cell,
    facts,
    grid,
    html_paragraph,
    json_text,
    markdown_table,
    page,
    plots_section,
    section,
    write_files,
)
from lemma.report.progress import Observer
from lemma.report.statistics import Estimate, estimate
from lemma.report.text import paragraph, table
from lemma.runs.folder import RunFolder, is_begun, remove_unbegun
from lemma.runs.load import Run, load
from lemma.spec.base import Spec, distribute, to_toml
from lemma.spec.choose import choose
from lemma.spec.data import LabelsSpec
from lemma.spec.models import Classifier
from lemma.spec.recipe import AdaptationSpec, Recipe
from lemma.spec.studies import ClassifiersStudy, Contender, GraphStudy, LabelStudy, LabelStudySpec
from lemma.studies.cells import (
    RESERVED,
    Announcing,
    Cell,
    Outcome,
    Plan,
    describe_hardware,
    keep_failure,
    kept_failure,
    race,
    ratio,
    read_plain,
    refuse_other_run,
    spread_validations,
    write_plain,
)
from lemma.studies.result import NONE, Verdict
from lemma.studies.run import device_of
from lemma.tasks.base import rooted, say_skipped
from lemma.tasks.classification import ClassificationScore, classify, load_labels, score_classes
from lemma.training.loop import resume, train

Words = Mapping[str, Any]
NOT_TO_SET = {
    **RESERVED,
    "vocabulary": "It comes from the tokenizer, the same for every run: set tokenizer.vocabulary.",
    "V": "It comes from the tokenizer, the same for every run: set tokenizer.vocabulary.",
    "classes": "They come from the labels.",
    "K": "They come from the labels.",
    "body": "Name another body, as in contenders=['rnn','lstm'].",
}
WARM_UP = 10
"""One step in so many warms up, unless warm_up is given."""


@dataclass(frozen=True)
class Described:
    """A classifier before its data are known, and the words of its recipe."""

    title: str
    model: Classifier
    recipe: Words


def describe_classifier(contender: Contender, shared: Words) -> Described:
    """Make a body the body of a classifier; of the shared words it takes those it knows, of its own all.

    The recipe is the study's alone, whatever the preset has, so that it is the same for every body.
    """
    model = choose(contender.model, classify=True).model
    assert isinstance(model, Classifier)
    kinds = _kinds(model)
    known = {word: value for word, value in shared.items() if _knows(kinds, word)}
    for word in (*known, *contender.words):
        if word in NOT_TO_SET:
            raise SpecError(f"study: '{word}' is no word for single runs. {NOT_TO_SET[word]}")
    shares = [distribute(words, kinds) for words in (known, contender.words)]
    body, own, recipe = ({**shares[0][kind], **shares[1][kind]} for kind in kinds)
    model = model.replace(**own, body=model.body.replace(**body).to_dict())
    return Described(contender.title, model, recipe)


def refuse_unknown_words(shared: Words, described: Iterable[Classifier]) -> None:
    """Refuse a shared word that no body knows."""
    kinds = [_kinds(model) for model in described]
    for word in shared:
        if not any(_knows(one, word) for one in kinds):
            words = dict.fromkeys(name for one in kinds for kind in one.values() for name in kind.known_words())
            raise SpecError(unknown("study.words: the word", word, [name for name in words if name not in NOT_TO_SET]))


def _kinds(model: Classifier) -> dict[str, type[Spec]]:
    return {"body": type(model.body), "model": Classifier, "recipe": Recipe}


def _knows(kinds: Mapping[str, type[Spec]], word: str) -> bool:
    return any(word.partition(".")[0] in kind.known_words() for kind in kinds.values())


def cell_of(study: LabelStudy, described: Described, point: Words, seed: int, texts: int) -> Cell:
    """One run: the described classifier with the study's recipe for so many labelled texts."""
    recipe = recipe_of(study, described.recipe, texts).replace(seed=seed)
    return Cell(described.title, point, seed, described.model, recipe)


def recipe_of(study: LabelStudy, words: Words, texts: int) -> Recipe:
    """The recipe for so many labelled texts: read `epochs` times, but for `least_steps` at least.

    >>> from lemma.spec import ClassifiersStudy
    >>> recipe_of(ClassifiersStudy(name="a", epochs=4, least_steps=10), {"batch": 8}, 100).steps
    50
    """
    recipe = Recipe.read(words, "study.words")
    if "steps" not in words:
        recipe = recipe.replace(steps=max(study.least_steps, math.ceil(study.epochs * texts / recipe.batch)))
    return paced(recipe, words, study.validations)


def paced(recipe: Recipe, words: Words, validations: int) -> Recipe:
    """Let a recipe of so many steps warm up and validate in proportion, unless its words say otherwise."""
    warm_up = recipe.warm_up if "warm_up" in words else recipe.steps // WARM_UP
    return spread_validations(recipe.replace(warm_up=warm_up), min(validations, recipe.steps))


# What the runs of a study of classifiers came to, one by one and gathered over the seeds.


SCORES = ("accuracy", "precision", "recall", "f1")


class LearningPoint(NamedTuple):
    """One validation on the way: after how many steps and seconds, its loss and accuracy."""

    step: int
    seconds: float
    loss: float
    accuracy: float


@dataclass(frozen=True)
class LabelMeasures:
    """All that was measured of a trained classifier, beside what it was."""

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
    """One digit a test text, in the order of the split: 1 where the class is right."""
    curve: tuple[LearningPoint, ...]

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote."""
        return cls(**{**values, "curve": tuple(LearningPoint(*point) for point in values["curve"])})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "curve": [list(point) for point in self.curve]}


LabelOutcome = Outcome[LabelMeasures]
"""A cell of a study of classifiers and what became of it."""


@dataclass(frozen=True)
class LabelRow:
    """What the seeds of one contender at one place came to."""

    contender: str
    point: Mapping[str, Any]
    title: str
    measured: Mapping[int, LabelMeasures]
    """By their seeds."""
    missing: tuple[str, ...] = ()
    """Why seeds are missing, in words."""

    def values(self, name: str) -> dict[int, float]:
        """Something measured, by the seeds."""
        return {seed: float(getattr(one, name)) for seed, one in self.measured.items()}

    def estimate(self, name: str) -> Estimate | None:
        """The mean of something measured with its interval; None if no seed came to an end."""
        return estimate(list(self.values(name).values())) if self.measured else None

    def count(self, name: str) -> int | None:
        """Something that is the same for every seed."""
        return next((int(getattr(one, name)) for one in self.measured.values()), None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: shares as they are, not in per cent."""
        figures: dict[str, Any] = {}
        for name in (*SCORES, "seconds"):
            found = self.estimate(name)
            figures |= {name: found and found.mean, f"{name}_margin": found and found.margin}
        counts = {name: self.count(name) for name in ("parameters", "layers", "learned", "steps")}
        place = {"contender": self.contender, **self.point, "seeds": len(self.measured)}
        return {**place, **figures, **counts, "notes": "; ".join(self.missing)}


def gather(outcomes: Iterable[LabelOutcome]) -> list[LabelRow]:
    """Put the seeds of each contender at each place together, in the order in which they first come."""
    groups: dict[tuple[str, str], list[LabelOutcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.cell.contender, outcome.cell.place), []).append(outcome)
    return [_row(group) for group in groups.values()]


def _row(outcomes: Sequence[LabelOutcome]) -> LabelRow:
    cell = outcomes[0].cell
    return LabelRow(
        contender=cell.contender,
        point=cell.point,
        title=", ".join(filter(None, [cell.contender, cell.place])),
        measured={outcome.cell.seed: outcome.measures for outcome in outcomes if outcome.measures},
        missing=tuple(_why(outcome) for outcome in outcomes if not outcome.measures),
    )


def _why(outcome: LabelOutcome) -> str:
    seed = f"seed {outcome.cell.seed}"
    return f"{seed} failed: {outcome.reason}" if outcome.reason else f"{seed} not run yet"


def paired(ones: LabelRow, others: LabelRow, name: str) -> Estimate | None:
    """One row's figure less another's, over the seeds that both have.

    A seed fixes the order of the batches and the numbers that first weights are drawn from, for both alike; what it
    does to both goes out of the difference.
    """
    mine, theirs = ones.values(name), others.values(name)
    both = sorted(mine.keys() & theirs.keys())
    return estimate([mine[seed] - theirs[seed] for seed in both]) if both else None


def over_texts(ones: LabelRow, others: LabelRow) -> Estimate | None:
    """The same difference of accuracies, its interval over the test texts: seeds are averaged text by text."""
    both = sorted(ones.measured.keys() & others.measured.keys())
    shares = [_shares([row.measured[seed].right for seed in both]) for row in (ones, others)]
    gaps = [one - other for one, other in zip(*shares, strict=True)] if both else []
    return estimate(gaps) if gaps else None


def _shares(rights: Sequence[str]) -> list[float]:
    """How often each test text was classified rightly."""
    return [fmean(map(int, digits)) for digits in zip(*rights, strict=True)]


def percent(found: Estimate | None) -> str:
    """A share in per cent.

    >>> percent(Estimate(0.8123, 0.0123, 3))
    '81.2 ± 1.2'
    """
    if found is None:
        return NONE
    if found.margin is None:
        return f"{100 * found.mean:.1f}"
    return str(Estimate(100 * found.mean, 100 * found.margin, found.count))


# The claim "about the same accuracy, but cheaper", judged: which meaning of cost makes it true (problem C3).


@dataclass(frozen=True)
class CostRatio:
    """What one contender costs against another, by one meaning of cost."""

    meaning: str
    value: float
    low: float | None
    high: float | None
    """The interval; None where one seed gives none."""
    exact: bool = False
    """Whether it is counted, not measured."""

    @property
    def verdict(self) -> Verdict:
        """Whether it is cheaper."""
        if self.low is None or self.high is None:
            return "one seed only"
        if self.exact:
            return "held" if self.value < 1 else "not held"
        return "held" if self.high < 1 else "not held" if self.low > 1 else "within noise"

    def __str__(self) -> str:
        """Write the ratio and its interval.

        >>> print(CostRatio("training time", 1.234, 1.1, 1.4))
        training time 1.23 × (1.10 to 1.40)
        """
        ends = "" if self.exact or self.low is None or self.high is None else f" ({self.low:.2f} to {self.high:.2f})"
        return f"{self.meaning} {self.value:.2f} ×{ends}"


@dataclass(frozen=True)
class Compared:
    """A contender against another: the difference of accuracies, and the ratios of costs."""

    title: str
    against: str
    gap: Estimate | None
    """Accuracy less the other's, seed by seed; None if they have no seed in common."""
    texts: Estimate | None
    """The same, its interval over the test texts."""
    tolerance: float
    costs: tuple[CostRatio, ...]

    @property
    def same(self) -> Verdict:
        """Whether the accuracies are about the same."""
        return about_the_same(self.gap, self.tolerance)

    def by_verdict(self, verdict: Verdict) -> list[str]:
        """The meanings of cost by which "cheaper" got this verdict."""
        return [cost.meaning for cost in self.costs if cost.verdict == verdict]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        costs = {one.meaning: {"ratio": one.value, "low": one.low, "high": one.high} for one in self.costs}
        return {
            "contender": self.title,
            "against": self.against,
            "accuracy_difference": self.gap and self.gap.mean,
            "accuracy_difference_margin": self.gap and self.gap.margin,
            "accuracy_difference_margin_over_texts": self.texts and self.texts.margin,
            "tolerance": self.tolerance,
            "about_the_same": self.same,
            "costs": costs,
            "cheaper": {one.meaning: one.verdict for one in self.costs},
        }


def about_the_same(gap: Estimate | None, tolerance: float) -> Verdict:
    """Judge a difference by its whole interval: within the tolerance, outside it, or partly both.

    >>> [about_the_same(Estimate(mean, 0.01, 3), 0.02) for mean in (0.005, 0.02, -0.04)]
    ['held', 'within noise', 'not held']
    """
    if gap is None:
        return "not measured"
    if gap.margin is None:
        return "one seed only"
    if max(abs(gap.low), abs(gap.high)) <= tolerance:
        return "held"
    return "not held" if gap.low > tolerance or gap.high < -tolerance else "within noise"


def compare(row: LabelRow, base: LabelRow, tolerance: float, seconds: Mapping[str, Sequence[float]]) -> Compared:
    """Set a row beside another; `seconds` of inference were taken in turns, by the rows' titles."""
    costs = [_counted("parameters", row, base), _counted("layers", row, base), _trained(row, base)]
    if row.title in seconds and base.title in seconds:
        raced = ratio(seconds[row.title], seconds[base.title])
        costs.append(CostRatio("inference time", raced.median, raced.low, raced.high))
    gap = paired(row, base, "accuracy")
    known = tuple(cost for cost in costs if cost)
    return Compared(row.title, base.title, gap, over_texts(row, base), tolerance, known)


def _counted(name: str, row: LabelRow, base: LabelRow) -> CostRatio | None:
    mine, theirs = row.count(name), base.count(name)
    if mine is None or not theirs:
        return None
    share = mine / theirs
    return CostRatio("parameters of the layers" if name == "layers" else name, share, share, share, exact=True)


def _trained(row: LabelRow, base: LabelRow) -> CostRatio | None:
    """Training time, seed by seed: the geometric mean of the ratios with Student's interval of their logarithms."""
    mine, theirs = row.values("seconds"), base.values("seconds")
    both = sorted(mine.keys() & theirs.keys())
    if not both:
        return None
    logs = estimate([math.log(mine[seed] / theirs[seed]) for seed in both])
    ends = (None, None) if logs.margin is None else (math.exp(logs.low), math.exp(logs.high))
    return CostRatio("training time", math.exp(logs.mean), *ends)


SAME: dict[Verdict, str] = {
    "held": "about the same",
    "not held": "not about the same",
    "within noise": "the seeds do not tell whether that is about the same",
    "one seed only": "one seed has no interval, so that the noise is unknown",
    "not measured": "there is no seed that both have",
}


def sentences(one: Compared) -> tuple[str, ...]:
    """Say in plain words what was found, and whether the claim holds, for which meaning of cost."""
    claim = f"The claim “about the same accuracy, {one.title} cheaper than {one.against}” {_overall(one)}"
    costs = ", ".join(map(str, one.costs))
    return (claim, _accuracy(one), f"Cost of {one.title} against {one.against}: {costs}.") if costs else (claim,)


def _overall(one: Compared) -> str:
    cheaper, dearer = one.by_verdict("held"), one.by_verdict("not held")
    open_ = [*one.by_verdict("within noise"), *one.by_verdict("one seed only")]
    costs = [
        f"cheaper by {_and(cheaper)}" if cheaper else "",
        f"not cheaper by {_and(dearer)}" if dearer else "",
        f"undecided by {_and(open_)}" if open_ else "",
    ]
    said = "; ".join(filter(None, costs))
    match one.same:
        case "held":
            lead = f"holds if cost means {_or(cheaper)}" if cheaper else "does not hold" if dearer else "is not decided"
        case "not held":
            lead = "does not hold, since the accuracies are not about the same"
        case "not measured":
            return "was not measured."
        case _:
            lead = "is not decided, since the noise leaves open whether the accuracies are about the same"
    return f"{lead} ({said})." if said else f"{lead}."


def _accuracy(one: Compared) -> str:
    if one.gap is None:
        return f"Accuracy: {SAME[one.same]}."
    within = f"a difference within ±{100 * one.tolerance:g} points counts as the same"
    texts = f" Over the test texts in place of the seeds: {points(one.texts)}." if one.texts else ""
    sure = one.same == "within noise" and not one.gap.low <= 0 <= one.gap.high
    said = "a difference beyond the noise, though " if sure else ""
    return f"Accuracy, seed by seed: {points(one.gap)}: {said}{SAME[one.same]} ({within}).{texts}"


def points(gap: Estimate) -> str:
    """A difference of shares in points, with its sign.

    >>> points(Estimate(-0.0123, 0.02, 3))
    '−1.2 ± 2.0 points'
    """
    return f"{'+' if gap.mean > 0 else ''}{percent(gap)} points".replace("-", "−")


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _or(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


# One classifier of a study brought to its end: trained, gone on with, or left as it is, then measured on the test.


TEST = "test"


@dataclass(frozen=True)
class Task:
    """A classifier that is to be trained: which, on what, from which weights, and where it is kept."""

    cell: Cell
    data: LabelsSpec
    dataset: Splits[Labelled]
    path: Path
    adaptation: AdaptationSpec | None = None

    @property
    def model(self) -> Classifier:
        """The classifier with the sizes of its data."""
        assert isinstance(self.cell.model, Classifier)
        return self.cell.model.sized(self.dataset.sizes())

    @property
    def identity(self) -> dict[str, Any]:
        """What makes two runs the same: the model, the recipe, the labels and what it was adapted from."""
        given = {"data": self.dataset.hash, "tokenizer": self.dataset.tokenizer.hash}
        base = (
            {"method": self.adaptation.method.to_dict(), "base": self.adaptation.base_hash} if self.adaptation else {}
        )
        words = _words(self.data.to_dict())
        return {"model": self.model.to_dict(), "recipe": self.cell.recipe.to_dict(), "labels": words, **given, **base}

    def refuse_other(self) -> None:
        """Refuse a folder in which another run stands."""
        refuse_other_run(Plan(self.cell, self.model, self.cell.recipe, self.path, self.dataset.hash))
        if not is_begun(self.path):
            return
        held = RunFolder.open(self.path)
        same = _words(held.data.to_dict()) == _words(self.data.to_dict())
        if not same or _origin(held.adaptation) != _origin(self.adaptation):
            what = "other labelled texts" if not same else "another base or method"
            raise RunError(
                f"{self.path} holds a run of {what} than this study asks for. Choose another --out, or remove that "
                "folder."
            )

    def look(self) -> LabelOutcome:
        """What is there of it, without any work."""
        measures = self._kept()
        return LabelOutcome(self.cell, measures, None if measures else kept_failure(self.path))

    def finish(self, watcher: Observer) -> LabelOutcome:
        """Bring it to its end; whatever goes wrong becomes its reason."""
        try:
            return LabelOutcome(self.cell, self._kept() or self._measured(watcher))
        except Exception as error:
            return failed(self, error, watcher)

    def _kept(self) -> LabelMeasures | None:
        kept = read_plain(self.path.with_name(f"{self.path.name}.json")) or {}
        if kept.get("of") != self.identity:
            return None
        try:
            return LabelMeasures.read(kept["measures"])
        except (KeyError, TypeError):  # written by another version of Lemma: measured again
            return None

    def _measured(self, watcher: Observer) -> LabelMeasures:
        self._train(watcher)
        run = load(self.path, device_of(self.cell.recipe))
        if run.note:  # the weights are not those that the run ended with
            raise RunError(run.note)
        measures = self.measure(run)
        kept = {"of": self.identity, "measures": measures.to_dict()}
        write_plain(self.path.with_name(f"{self.path.name}.json"), kept)
        shutil.rmtree(RunFolder.open(self.path).checkpoints, ignore_errors=True)  # a study of many runs is to be small
        return measures

    def measure(self, run: Run) -> LabelMeasures:
        """Classify the test texts, and read off what the run was and took."""
        return measure(run, self.dataset)

    def _train(self, watcher: Observer) -> None:
        if not is_begun(self.path):
            remove_unbegun(self.path)
            recipe, start = self.cell.recipe, self.adaptation
            result = train(self.model, recipe, self.data, self.dataset, self.path, adaptation=start, observer=watcher)
        elif RunFolder.open(self.path).finished:
            return
        else:
            result = resume(self.path, self.dataset, observer=watcher)
        if result.stopped == "interrupted":
            raise KeyboardInterrupt


def failed(task: Task, error: Exception, watcher: Observer) -> LabelOutcome:
    """Keep why a run failed, and say it."""
    reason = str(error) if isinstance(error, LemmaError) else f"{type(error).__name__}: {error}"
    keep_failure(task.path, reason)
    watcher.say(f"failed: {reason}")
    return LabelOutcome(task.cell, reason=reason)


def finish_all(tasks: Sequence[Task], watcher: Observer) -> tuple[tuple[LabelOutcome, ...], bool]:
    """Finish tasks one by one; return the outcomes of all, and whether Ctrl-C came in between."""
    done: dict[str, LabelOutcome] = {}
    interrupted = False
    try:
        for number, task in enumerate(tasks, start=1):
            title = f"run {number} of {len(tasks)}: {task.cell}"
            done[task.cell.name] = task.finish(Announcing(watcher, title))
    except KeyboardInterrupt:
        interrupted = True
    return tuple(done.get(task.cell.name) or task.look() for task in tasks), interrupted


def measure(run: Run, dataset: Splits[Labelled]) -> LabelMeasures:
    """Classify the test texts, and read off what the run was and took."""
    model, examples = run.require(ClassifierModel, "a classifier"), dataset.tokens(TEST)
    found = classify(model, examples)
    score = score_classes(examples.classes, found, dataset.labels, {})
    right = np.asarray(found).argmax(-1) == examples.classes
    return measures_of(run, score, right, layers_of(model))


def measures_of(run: Run, score: ClassificationScore, right: np.ndarray, layers: int) -> LabelMeasures:
    """What a run was and took, beside how it did."""
    summary: Mapping[str, Any] = run.summary or {}
    low, high = score.accuracy.interval or (None, None)
    return LabelMeasures(
        model=run.spec.to_dict(),
        recipe=run.recipe.to_dict(),
        parameters=count_parameters(run.module),
        layers=layers,
        learned=summary["learned"],
        steps=summary["steps"],
        seconds=summary["seconds"],
        accuracy=score.accuracy.value,
        precision=score.precision.value,
        recall=score.recall.value,
        f1=score.f1.value,
        low=low,
        high=high,
        right="".join(str(int(one)) for one in right),
        curve=read_curve(RunFolder.open(run.path)),
    )


def layers_of(model: ClassifierModel) -> int:
    """The parameters of the body without its embeddings: what reads, and not what the tokens are looked up in."""
    looked_up = (part for part in model.body.modules() if isinstance(part, nn.Embedding))
    return count_parameters(model.body) - sum(map(count_parameters, looked_up))


def read_curve(folder: RunFolder) -> tuple[LearningPoint, ...]:
    """The validations of a run on its way."""
    rows = [row for row in folder.metrics.rows() if "validation_loss" in row]
    return tuple(LearningPoint(row["step"], row["seconds"], row["validation_loss"], row["accuracy"]) for row in rows)


def _words(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != "labels"}  # the hash tells which they are


def _origin(adaptation: AdaptationSpec | None) -> Any:
    return adaptation and (adaptation.method, adaptation.base_hash)


# The labelled texts of a study, said in words.


def labels_of(study: LabelStudy, limit: int | None = None) -> LabelsSpec:
    """The study's labelled texts, a file from the root, so that a run finds it from anywhere."""
    return study.data(limit).replace(labels=rooted(study.labels, LABELLED))


def describe_labels(dataset: Splits[Labelled]) -> dict[str, str]:
    """What the labelled texts are."""
    sizes = ", ".join(f"{len(dataset.tokens(split).texts):,} {name}" for split, name in SPLITS.items())
    return {
        "labelled texts": f"{dataset.about}: {sizes}",
        "labels": ", ".join(dataset.labels),
        "always the commonest label": f"accuracy {100 * commonest(dataset):.1f} %",
        "tokenizer": dataset.tokenizer.about,
        "SHA-256": dataset.hash,
    }


SPLITS = {"train": "to learn from", "validation": "for validation", TEST: "for the test"}


def commonest(dataset: Splits[Labelled]) -> float:
    """The accuracy on the test texts of saying always the label that is commonest among those learned from."""
    learned = Counter(label for _, label in dataset.tokens("train").texts)
    guess = max(sorted(learned), key=learned.__getitem__)
    labels = [label for _, label in dataset.tokens(TEST).texts]
    return labels.count(guess) / len(labels)


# What a study of classifiers gives: one table, its sentences and plots, and the files they are saved in.


REPORT = "report.html"
FOOTER = "Made by Lemma. This page needs no network and no script. The figures stand unrounded in results.json."
AGAIN = "Interrupted: the same command goes on where it stopped."


@dataclass(frozen=True)
class LabelTable:
    """A table as people read it, and the same figures unrounded."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    plain: tuple[Mapping[str, Any], ...]
    caption: str
    notes: tuple[str, ...] = ()
    """Why runs are missing."""

    def __str__(self) -> str:
        lines = table([self.header, *self.rows], rule=True)
        return "\n".join([*lines, "", *map(paragraph, (self.caption, *self.notes))])

    def to_markdown(self) -> str:
        """Write the table as Markdown."""
        table = markdown_table(self.header, self.rows)
        notes = "".join(f"- {escape_cell(note)}\n" for note in self.notes)
        return f"{table}\n\n{escape_cell(self.caption)}\n" + (f"\n{notes}" if notes else "")

    def to_csv(self) -> str:
        """Write the table as CSV, figures unrounded."""
        return csv_text(self.plain)

    def to_html(self) -> str:
        """The table of a page, with its caption and notes."""
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        missing = f"<h3>Runs that are missing</h3><ul>{notes}</ul>" if notes else ""
        return grid(self.header, [("", row) for row in self.rows]) + html_paragraph(self.caption, "note") + missing


@dataclass(frozen=True)
class LabelResult:
    """The findings of a study of classifiers in the folder `out`; if it was interrupted, as far as they go."""

    spec: LabelStudySpec | GraphStudy
    data: Mapping[str, str]
    """What the texts are, in words."""
    hardware: Mapping[str, str]
    protocol: Mapping[str, str]
    """How it was measured, in words."""
    table: LabelTable
    conclusion: tuple[str, ...]
    plots: tuple[Plot, ...]
    runs: tuple[LabelOutcome, ...]
    out: Path
    interrupted: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)
    """What else was found, as plain values."""

    @property
    def report(self) -> Path:
        """Where the report is."""
        return self.out / REPORT

    @property
    def failed(self) -> tuple[LabelOutcome, ...]:
        """The runs that failed, each with its reason."""
        return tuple(run for run in self.runs if run.reason)

    def __str__(self) -> str:
        said = "\n".join(map(paragraph, self.conclusion))
        where = paragraph("; ".join(self.hardware.values()))
        again = [AGAIN] if self.interrupted else []
        return "\n".join([self.spec.name, "", str(self.table), "", said, "", where, *again, f"Report: {self.report}"])

    def _repr_html_(self) -> str:
        return self.table.to_html() + "".join(map(html_paragraph, self.conclusion))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "study": self.spec.to_dict(),
            "data": dict(self.data),
            "hardware": dict(self.hardware),
            "protocol": dict(self.protocol),
            "interrupted": self.interrupted,
            "table": {"caption": self.table.caption, "rows": [dict(row) for row in self.table.plain]},
            **self.more,
            "conclusion": list(self.conclusion),
            "runs": [run.to_dict() for run in self.runs],
            "report": str(self.report),
        }

    def save(self, folder: Path | None = None) -> Path:
        """Write the table (Markdown, CSV), everything (JSON) and the report into a folder; return the report's path."""
        place = folder or self.out
        files = {
            "study.toml": to_toml(self.spec.to_dict()),
            "table.md": self.table.to_markdown() + "".join(f"\n- {sentence}" for sentence in self.conclusion) + "\n",
            "table.csv": self.table.to_csv(),
            "results.json": json_text(self.to_dict()),
            REPORT: self._page(),
        }
        write_files(place, files)
        return place / REPORT

    def _page(self) -> str:
        question = html_paragraph(self.spec.question, "question") if self.spec.question else ""
        parts = [
            f"<header>{html_paragraph('A study by Lemma', 'kicker')}"
            f"<h1>{escape(self.spec.name)}</h1>{question}</header>",
            f'<div class="finding">{"".join(map(html_paragraph, self.conclusion))}</div>',
            facts(self.data),
            section("Result", self.table.to_html()),
            plots_section(self.plots),
            section("Protocol and hardware", facts({**self.protocol, **self.hardware})),
            f"<footer>{escape(FOOTER)}</footer>",
        ]
        return page(f"{self.spec.name}: a study", filter(None, parts))


# What a study of classifiers' bodies came to, shown: the table, the verdict, the plots.


ClassifiersShownSeconds = Mapping[str, Sequence[float]]
APART = 0.08  # between the marks of two rows at one tick
NAMES = {"accuracy": "accuracy", "precision": "precision", "recall": "recall", "f1": "F1"}
PROTOCOL = {
    "recipe": "the same for every body, and the same steps; presets' own recipes are not used",
    "scores": "on the test texts, which neither trained nor chose the weights; precision, recall and F1 are means over "
    "the classes",
    "intervals": "mean ± half the 95 % interval over the seeds (Student's t): what training anew changes, on these "
    "test texts; differences are taken seed by seed, since a seed fixes the batches of all bodies alike",
    "training seconds": "of the training steps alone; bodies take turns, seed by seed",
    "inference": "one run of each body classifies all test texts, tokens ready, in turns; medians and quartiles",
}


def show_classifiers(
    spec: ClassifiersStudy,
    outcomes: tuple[LabelOutcome, ...],
    seconds: ClassifiersShownSeconds,
    data: Mapping[str, str],
    hardware: Mapping[str, str],
    out: Path,
    interrupted: bool,
) -> LabelResult:
    """Put the findings together."""
    rows = gather(outcomes)
    compared = [compare(row, rows[0], spec.tolerance, seconds) for row in rows[1:]]
    return LabelResult(
        spec=spec,
        data={**data, "seeds": ", ".join(map(str, spec.seeds))},
        hardware=hardware,
        protocol={**PROTOCOL, "one run alone": alone_in_words(rows), "models": models_in_words(rows)},
        table=make_table(rows, seconds),
        conclusion=conclude(rows, compared),
        plots=tuple(plots_of(rows)),
        runs=outcomes,
        out=out,
        interrupted=interrupted,
        more={"claims": [one.to_dict() for one in compared], "inference_seconds": dict(seconds)},
    )


def conclude(rows: Sequence[LabelRow], compared: Sequence[Compared]) -> tuple[str, ...]:
    """The verdict on each body against the first; of one body alone, what it reached."""
    said = [sentence for one in compared for sentence in sentences(one)]
    alone = [f"{row.title}: accuracy {percent(row.estimate('accuracy'))} %." for row in rows if row.measured]
    return tuple(said or alone or ["No run came to its end, so that there is nothing to compare."])


def make_table(rows: Sequence[LabelRow], seconds: ClassifiersShownSeconds) -> LabelTable:
    """One row a body: scores in per cent, then costs."""
    header = ("body", *(f"{name} %" for name in NAMES.values()), "parameters", "of layers", "train s", "texts/s")
    plain = [{**row.to_dict(), "texts_per_second": texts_a_second(row, seconds)} for row in rows]
    notes = tuple(f"{row.title}, {note}" for row in rows for note in row.missing)
    return LabelTable(header, tuple(_cells(row, seconds) for row in rows), tuple(plain), caption_of(rows), notes)


def _cells(row: LabelRow, seconds: ClassifiersShownSeconds) -> tuple[str, ...]:
    scores = [percent(row.estimate(name)) for name in SCORES]
    counts = [_count(row.count(name)) for name in ("parameters", "layers")]
    trained = row.estimate("seconds")
    speed = texts_a_second(row, seconds)
    return (row.title, *scores, *counts, str(trained) if trained else NONE, _count(speed))


def caption_of(rows: Sequence[LabelRow], means: str = "precision, recall and F1 are means") -> str:
    """What the figures are."""
    counts = {len(row.measured) for row in rows if row.measured}
    if not counts:
        return "No run has come to its end."
    words = f"On the test texts; {means} over the classes."
    if max(counts) > 1:
        seeds = f"{max(counts)} seeds" if len(counts) == 1 else f"up to {max(counts)} seeds"
        words += f" Mean ± half the 95 % interval over {seeds} (Student's t)."
    return words + (" A figure without ± comes from one seed, which has no interval." if min(counts) == 1 else "")


def texts_a_second(row: LabelRow, seconds: ClassifiersShownSeconds) -> float | None:
    """Test texts classified a second: the median of the rounds."""
    taken = seconds.get(row.title)
    one = next(iter(row.measured.values()), None)
    return len(one.right) / median(taken) if taken and one else None


def _count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def models_in_words(rows: Sequence[LabelRow]) -> str:
    """What each body is, and how it was trained."""
    return "; ".join(_in_words(row.title, next(iter(row.measured.values()))) for row in rows if row.measured)


def alone_in_words(rows: Sequence[LabelRow]) -> str:
    """What other test texts might change: the bootstrap's interval of the first run of each row."""
    firsts = [(row, *next(iter(row.measured.items()))) for row in rows if row.measured]
    said = [
        f"{row.title}, seed {seed}: accuracy {100 * one.accuracy:.1f} % ({100 * one.low:.1f} to {100 * one.high:.1f})"
        for row, seed, one in firsts
        if one.low is not None and one.high is not None
    ]
    return "; ".join(["95 % intervals over the test texts (bootstrap): " + said[0], *said[1:]]) if said else "none yet"


def _in_words(title: str, one: LabelMeasures) -> str:
    body: Mapping[str, Any] = one.model["body"]
    sizes = ", ".join(f"{word} {value:,}" for word, value in body.items() if type(value) is int)
    recipe = ", ".join(f"{word.replace('_', ' ')} {one.recipe[word]:,}" for word in ("steps", "batch", "learning_rate"))
    return f"{title} ({sizes}; {recipe})"


def plots_of(rows: Sequence[LabelRow]) -> list[Plot]:
    """The scores side by side, and accuracy as training goes on."""
    measured = [row for row in rows if row.measured]
    if not measured:
        return []
    learning = [_learning(measured, "step", "steps"), _learning(measured, "seconds", "training seconds")]
    return [_scores(measured), *(plot for plot in learning if plot)]


def _scores(rows: Sequence[LabelRow]) -> Plot:
    curves = []
    for place, row in enumerate(rows):
        found = [one for name in SCORES if (one := row.estimate(name))]
        shift = APART * (place - (len(rows) - 1) / 2)
        curves.append(curve_of(row.title, [tick + shift for tick in range(len(found))], found))
    caption = "Scores on the test texts: means over the seeds (dots) with their 95 % intervals (bars)."
    return Plot("", "per cent", tuple(curves), caption=caption, bars=True, ticks=tuple(NAMES.values()), joined=False)


def _learning(rows: Sequence[LabelRow], axis: str, title: str) -> Plot | None:
    curves = tuple(curve for row in rows if (curve := learning_curve(row, axis)))
    caption = f"Accuracy on the validation texts against {title}: means over the seeds with their 95 % intervals."
    return Plot(title, "validation accuracy, per cent", curves, caption=caption) if curves else None


def learning_curve(row: LabelRow, axis: str) -> Curve | None:
    """The mean over the seeds, as far as all of them go."""
    points = list(zip(*(one.curve for one in row.measured.values()), strict=False))
    if len(points) < 2:
        return None
    found = [estimate([point.accuracy for point in several]) for several in points]
    return curve_of(row.title, [fmean(getattr(point, axis) for point in several) for several in points], found)


def curve_of(title: str, x: Sequence[float], found: Sequence[Estimate]) -> Curve:
    """Shares in per cent over some axis, with their intervals."""
    low, mean, high = (tuple(100 * getattr(one, end) for one in found) for end in ("low", "mean", "high"))
    return Curve(title, tuple(x), mean, low, high, dots=True)


# The study of classifiers' bodies (problem C3): the same labels and recipe for all, quality and cost side by side.


Seconds = dict[str, list[float]]


def study_classifiers(spec: ClassifiersStudy, out: Path, watcher: Observer) -> LabelResult:
    """Train every body with every seed, time them in turns, and judge each against the first."""
    described = [describe_classifier(contender, spec.words) for contender in spec.contenders]
    refuse_unknown_words(spec.words, [one.model for one in described])
    work = Work(spec, out, _datasets(spec, described, watcher))
    tasks = [work.task(one, seed) for seed in spec.seeds for one in described]
    for task in tasks:
        task.refuse_other()
    out.mkdir(parents=True, exist_ok=True)
    outcomes, interrupted = finish_all(tasks, watcher)
    device = device_of(tasks[0].cell.recipe)
    hardware = describe_hardware(device)
    seconds = {} if interrupted else work.inference(tasks, outcomes, hardware, device)
    data = describe_labels(tasks[0].dataset)
    result = show_classifiers(spec, outcomes, seconds, data, hardware, out, interrupted)
    result.save()
    return result


def _datasets(spec: ClassifiersStudy, described: Sequence[Described], watcher: Observer) -> dict[str, Splits[Labelled]]:
    """The same labelled texts as each body reads them; the tokenizer, learned from the same texts, is the same."""
    datasets: dict[str, Splits[Labelled]] = {}
    for place, one in enumerate(described):
        dataset = load_labels(labels_of(spec, spec.limit), one.model.body, None, (), watcher)
        datasets[one.title] = dataset if place else say_skipped(dataset, watcher)
    return datasets


@dataclass(frozen=True)
class Work:
    """A study with its texts and its folder."""

    spec: ClassifiersStudy
    out: Path
    datasets: Mapping[str, Splits[Labelled]]

    def task(self, described: Described, seed: int) -> Task:
        """The run of a body and a seed."""
        dataset = self.datasets[described.title]
        cell = cell_of(self.spec, described, {}, seed, len(dataset.tokens("train").texts))
        return Task(cell, labels_of(self.spec, self.spec.limit), dataset, self.out / "runs" / cell.name)

    def inference(
        self, tasks: Sequence[Task], outcomes: Sequence[LabelOutcome], hardware: Mapping[str, str], device: str
    ) -> Seconds:
        """Seconds in which one run of each body classifies the test texts, taken in turns; kept if they are known."""
        done = {
            task.cell.contender: task for task, one in reversed(list(zip(tasks, outcomes, strict=True))) if one.measures
        }
        order = [title for title in self.datasets if title in done]
        of = {"runs": {title: _model(done[title]) for title in order}, "hardware": dict(hardware)}
        of |= {"repetitions": self.spec.repetitions, "data": next(iter(self.datasets.values())).hash}
        kept = read_plain(self.out / "inference.json") or {}
        if kept.get("of") == of:
            return kept["seconds"]
        seconds = race({title: _classifying(done[title], device) for title in order}, self.spec.repetitions, device)
        write_plain(self.out / "inference.json", {"of": of, "seconds": seconds})
        return seconds


def _model(task: Task) -> dict[str, Any]:
    return task.model.to_dict()


def _classifying(task: Task, device: str) -> Any:
    model, examples = load(task.path, device).require(ClassifierModel, "a classifier"), task.dataset.tokens(TEST)
    return lambda: classify(model, examples)
