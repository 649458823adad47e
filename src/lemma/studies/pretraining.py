"""The study of pretraining (problem E4): a classifier from scratch, and one whose body read all texts first."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from lemma.data.corpora import LABELLED_CORPORA
from lemma.data.labels import TEXT_ALIASES, LabelledExamples, read_label_file
from lemma.data.splits import Splits, normalise_text, shuffle_keys
from lemma.data.tables import TABLE_SUFFIXES, Column, read_table
from lemma.data.text import decode_span, open_text
from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError, RunError, SpecError, describe_unknown
from lemma.files import Progress, write_atomically
from lemma.report.curves import Plot
from lemma.report.progress import Observer, SilentObserver, reading_progress
from lemma.report.statistics import Estimate, PairedTest
from lemma.runs.folder import RunFolder
from lemma.runs.load import Run, make_adaptation_spec
from lemma.spec.base import exists
from lemma.spec.data import DataSpec
from lemma.spec.models import EncoderDecoder
from lemma.spec.recipe import Recipe
from lemma.spec.studies import ComparedModel, PretrainingStudy
from lemma.studies.budget import tokens_per_step
from lemma.studies.cells import StudyCell, check_reserved, compare_rows, correct_tests, group_rows
from lemma.studies.claims import format_percent, format_points
from lemma.studies.classifiers import (
    SCORE_INTERVALS,
    SCORE_TESTS,
    SCORES,
    ClassifierExperiment,
    ClassifierMeasures,
    LabelOutcome,
    LabelRow,
    accuracy_test,
    choose_classifiers,
    describe_labels,
    estimate_difference_over_texts,
    make_cell,
    make_labels_spec,
    percent_curve,
    plan_classifier,
    schedule_recipe,
    table_caption,
)
from lemma.studies.experiment import RunPlan
from lemma.studies.result import NO_VALUE, StudyResult, StudyTable
from lemma.studies.timing import device_of
from lemma.tasks.base import LoadContext
from lemma.tasks.classification import ClassificationTask
from lemma.tasks.registry import task_for

TEXTS_FILE = "texts.txt"
HELD_OUT = 0.05  # fraction of the texts without labels on which pretraining is validated
SHARED_SETTINGS = ("device", "precision", "compile")
"""Settings of the classifiers' recipe that hold for pretraining too, unless it has its own."""
SCRATCH, PRETRAINED = CONDITIONS = ("scratch", "pretrained")


@dataclass(frozen=True)
class BaseMeasures:
    """Costs and best validation score of a pretraining run."""

    steps: int
    tokens: int
    seconds: float
    parameters: int
    best_loss: float | None
    best_perplexity: float | None

    def __str__(self) -> str:
        perplexity = self.best_perplexity
        score = "" if perplexity is None else f", validation perplexity {perplexity:,.2f}"
        work = f"{self.steps:,} steps, {self.tokens:,} tokens, {self.seconds:,.0f} s"
        return f"{self.parameters:,} parameters, {work}{score}"


class PretrainingExperiment(ClassifierExperiment):
    """Experiment that pretrains a body, then compares classifiers with and without it at every number of labels."""

    spec: PretrainingStudy
    measures_type = ClassifierMeasures | BaseMeasures
    trial_title = "pretraining"

    def __init__(self, spec: PretrainingStudy, out: Path, observer: Observer) -> None:
        self.spec, self.out, self.observer = spec, out, observer
        [self.choice] = choose_classifiers([ComparedModel(model=spec.body)], spec.settings)
        body = self.choice.model.body
        if isinstance(body, EncoderDecoder):
            raise SpecError(
                "study pretraining: an encoder-decoder learns pairs of texts. Take body=encoder or decoder."
            )
        check_reserved(spec.pretraining, {"seed": "Give the study `seeds`, as in seeds=[1,2]."})
        recipe = Recipe.read(spec.pretraining, "study.pretraining")
        task, context = ClassificationTask(), LoadContext(self.choice.model, Recipe(), observer)
        self.labelled = task.load(make_labels_spec(spec), context)
        out.mkdir(parents=True, exist_ok=True)
        self.texts = write_texts(spec.unlabelled, self.labelled, out / TEXTS_FILE, reading_progress(observer))
        text = DataSpec(text=(str((out / TEXTS_FILE).resolve()),), tokenizer=spec.tokenizer, held_out=HELD_OUT)
        dataset = task_for(body).load(text, LoadContext(body, recipe, observer))
        self.tokenizer: Any = dataset.tokenizer
        assert isinstance(self.tokenizer, Tokenizer)
        counts = sorted({min(count, len(self.labelled.item("train").texts)) for count in spec.counts})
        context = replace(context, vocabulary=self.tokenizer, observer=SilentObserver())
        self.datasets = {  # in the tokens of pretraining; fewer labels are always among more
            count: task.load(make_labels_spec(spec, count), context) for count in counts
        }
        self.text, self.text_dataset = text, dataset
        seeds = spec.seeds if spec.base_per_seed else spec.seeds[:1]
        self.bases = {seed: self._base_cell(seed) for seed in seeds}

    def _base_cell(self, seed: int) -> StudyCell:
        """Return the cell that pretrains the body, reading the texts `passes` times unless the study sets steps."""
        model = self.choice.model.body.with_data_sizes(self.text_dataset.sizes())
        shared = {name: self.choice.recipe[name] for name in SHARED_SETTINGS if name in self.choice.recipe}
        settings: dict[str, Any] = {**shared, **self.spec.pretraining, "seed": seed}
        recipe = Recipe.read(settings, "study.pretraining")
        if "steps" not in settings:
            tokens = self.spec.passes * len(self.text_dataset.item("train"))
            recipe = recipe.replace(steps=max(1, math.ceil(tokens / tokens_per_step(model, recipe))))
        recipe = schedule_recipe(recipe, settings, self.spec.validations)
        return StudyCell("pretraining", {}, seed, model, recipe)

    def base_of(self, cell: StudyCell) -> StudyCell:
        """Return the pretraining cell whose run a cell starts from: that of its seed, or the only one."""
        return self.bases.get(cell.seed or 0) or next(iter(self.bases.values()))

    def trials(self, cells: Sequence[StudyCell]) -> list[StudyCell]:
        """Return the cells that pretrain the body, one per seed or one for all."""
        return list(self.bases.values())

    def cells(self) -> list[StudyCell]:
        """Return a cell for every seed, number of labels and condition ("scratch", "pretrained")."""
        return [
            make_cell(self.spec, replace(self.choice, title=condition), {"labels": count}, seed, count)
            for seed in self.spec.seeds
            for count in self.datasets
            for condition in CONDITIONS
        ]

    def plan_inputs(self, cell: StudyCell) -> tuple[()] | None:
        """Return () once the cell can be planned, None while the pretraining it needs is unfinished."""
        if cell.condition != PRETRAINED:
            return ()
        outcome = self.final_outcome(self.base_of(cell))
        return () if outcome and outcome.measures else None

    def make_plan(self, cell: StudyCell, *inputs: Any) -> RunPlan:
        """Return the plan to pretrain, or to train a cell's classifier from scratch or from the pretrained base."""
        path = self.path(cell)
        if cell.condition not in CONDITIONS:
            assert cell.model is not None
            return RunPlan(path, cell.model, cell.recipe, self.text, self.text_dataset)
        adaptation = None
        if cell.condition == PRETRAINED:
            base = RunFolder.open(self.path(self.base_of(cell)))
            adaptation = make_adaptation_spec(base, path, self.spec.method)
        count = cell.point["labels"]
        return plan_classifier(path, cell, make_labels_spec(self.spec, count), self.datasets[count], adaptation)

    def check(self, cell: StudyCell) -> None:
        """Raise an error if the folder of the cell or of its base holds another run."""
        super().check(self.base_of(cell))
        super().check(cell)

    def run(self, cell: StudyCell, observer: Observer) -> Any:
        """Train a cell; return BaseMeasures if it pretrains, else ClassifierMeasures; raise RunError without a base."""
        if self.plan(cell) is None:
            base = self.base_of(cell)
            reason = self.load_outcome(base).reason or f"{self.path(base)} is not finished"
            raise RunError(f"pretraining failed: {reason}")
        return super().run(cell, observer)

    def measure(self, run: Run, plan: RunPlan) -> Any:
        """Return BaseMeasures of a finished pretraining run, or ClassifierMeasures of a classifier."""
        if plan.data is not self.text:
            return super().measure(run, plan)
        summary: Mapping[str, Any] = run.summary or {}
        values: dict[str, Any] = {field.name: summary.get(field.name) for field in fields(BaseMeasures)}
        return BaseMeasures(**values)

    def report(self, outcomes: tuple[LabelOutcome, ...], interrupted: bool) -> StudyResult:
        """Build the report: scores of both conditions, gains and their tests."""
        rows = group_rows(outcomes)
        gains = compute_gains(rows)
        bases: dict[int, Any] = {seed: self.load_outcome(base).measures for seed, base in self.bases.items()}
        pretraining = "; ".join(
            f"{self.choice.model.body.family}, {base}" if base else f"seed {seed} is not finished"
            for seed, base in bases.items()
        )
        trainable = {"full": "every weight learns", "frozen": "only the head learns"}
        method = trainable.get(self.spec.method.kind, "the body is frozen except for what the method adds")
        one_base = "one base for all seeds, so that its own noise is not counted"
        return self.make_result(
            outcomes,
            interrupted,
            device_of(next(iter(self.bases.values())).recipe),
            data={
                **describe_labels(self.labelled),
                "tokenizer": self.tokenizer.description,
                "texts without labels": str(self.texts),
                "seeds": ", ".join(map(str, self.spec.seeds)),
                "pretraining": pretraining,
            },
            protocol={
                **PROTOCOL,
                "method": f"{self.spec.method.kind}: if pretrained, {method}; from scratch every weight learns",
                "bases": "one base per seed" if self.spec.base_per_seed else one_base,
                "classifiers": describe_recipes(rows),
            },
            table=make_table(gains),
            conclusion=conclude(gains),
            plots=tuple(plot_gains(gains)),
            rows=tuple(gains),
            extra={
                "gains": [gain.to_dict() for gain in gains],
                "pretraining": [base and {"seed": seed, **asdict(base)} for seed, base in bases.items()],
            },
        )


def describe_recipes(rows: Sequence[LabelRow]) -> str:
    """Describe the recipe of the classifiers, with their steps at each number of labels."""
    measures = {row.point["labels"]: row.first for row in rows if row.first}
    if not measures:
        return "none yet"
    recipe = next(iter(measures.values())).recipe
    steps = ", ".join(f"{one.steps:,} at {count:,} labels" for count, one in sorted(measures.items()))
    return ", ".join(f"{name.replace('_', ' ')} {recipe[name]}" for name in LISTED_SETTINGS) + f"; steps: {steps}"


# The gain, and how it is shown.


LISTED_SETTINGS = ("batch", "learning_rate", "weight_decay", "dropout", "keep")
FIGURES = {name: SCORES[name] for name in ("accuracy", "f1")}
PROTOCOL = {
    "conditions": "the same body, tokenizer (that of pretraining), labels, recipe and steps for both; only the initial "
    "weights of the body differ",
    "pretraining": "no text of validation or test is among the texts without labels, nor any that shares ten words in "
    "a row with one",
    "labels": "fewer labels are always among more; validation and test texts are the same at every number",
    "scores": "on the test texts; F1 is the mean over the classes",
    "intervals": SCORE_INTERVALS,
    "tests": SCORE_TESTS.format("gains", "both conditions"),
}


@dataclass(frozen=True)
class PretrainingGain:
    """Both conditions at one number of labels, and the test of the gain in accuracy."""

    labels: int
    scratch: LabelRow
    pretrained: LabelRow
    test: PairedTest | None = None  # None if no seed has both conditions

    def estimate(self, name: str) -> Estimate | None:
        """Return the gain in the score `name` with its interval over the seeds; None if no seed has both conditions."""
        test = self.test if name == "accuracy" else compare_rows(self.pretrained, self.scratch, name, log=False)
        return test and test.difference

    @property
    def verdict(self) -> str:
        """Return the verdict on the gain in accuracy, such as "significant" or "a significant loss"."""
        if self.test is None:
            return "no seed has both conditions"
        return f"a {self.test.verdict} loss" if self.test.is_significant and self.test.mean < 0 else self.test.verdict

    def __str__(self) -> str:
        return f"{self.test or 'nothing yet'} at {self.labels:,} labels, {self.verdict}"

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of scores, gains and the test."""
        values: dict[str, Any] = {"labels": self.labels}
        conditions = {SCRATCH: self.scratch, PRETRAINED: self.pretrained}
        for name in FIGURES:
            estimates = {f"{condition}_{name}": row.estimate(name) for condition, row in conditions.items()}
            estimates[f"{name}_gain"] = self.estimate(name)
            for key, mean in estimates.items():
                values |= {key: mean and mean.mean, f"{key}_margin": mean and mean.margin}
        texts = estimate_difference_over_texts(self.pretrained, self.scratch)
        values["accuracy_gain_margin_over_texts"] = texts and texts.margin
        seeds = {f"{condition}_seeds": len(row.measures) for condition, row in conditions.items()}
        return {**values, **seeds, "test": self.test and self.test.to_dict(), "verdict": self.verdict}


def compute_gains(rows: Sequence[LabelRow]) -> list[PretrainingGain]:
    """Compare the two conditions at each number of labels, fewest first; p-values are corrected for all tests."""
    by_point = {(row.condition, row.point["labels"]): row for row in rows}
    counts = sorted({row.point["labels"] for row in rows})
    pairs = {count: (by_point[SCRATCH, count], by_point[PRETRAINED, count]) for count in counts}
    tests = correct_tests({count: accuracy_test(pretrained, scratch) for count, (scratch, pretrained) in pairs.items()})
    return [PretrainingGain(count, *pair, tests.get(count)) for count, pair in pairs.items()]


def conclude(gains: Sequence[PretrainingGain]) -> tuple[str, ...]:
    """Return a sentence with the gain in accuracy at each number of labels and its significance."""
    if not any(gain.estimate("accuracy") for gain in gains):
        return ("No number of labels has both conditions yet, so that there is no gain to state.",)
    return (f"Pretraining without labels changes accuracy by {'; '.join(map(str, gains))}.",)


def make_table(gains: Sequence[PretrainingGain]) -> StudyTable:
    """Build a table with a line per number of labels: scores of both conditions and the gains."""
    cells = []
    for gain in gains:
        line = [f"{gain.labels:,}"]
        for name in FIGURES:
            difference = gain.estimate(name)
            line += [format_percent(row.estimate(name)) for row in (gain.scratch, gain.pretrained)]
            line.append(NO_VALUE if difference is None else format_points(difference).removesuffix(" points"))
        cells.append(line)
    rows = [row for gain in gains for row in (gain.scratch, gain.pretrained)]
    return StudyTable(
        header=["labels", *(f"{name} %: {part}" for name in FIGURES.values() for part in (*CONDITIONS, "gain"))],
        rows=cells,
        records=[gain.to_dict() for gain in gains],
        caption=table_caption(rows, "F1 is the mean"),
        notes=[note for row in rows for note in row.notes],
    )


def plot_gains(gains: Sequence[PretrainingGain]) -> Iterator[Plot]:
    """Plot each score of both conditions against the number of labels, with intervals."""
    for name, title in FIGURES.items():
        curves = []
        for condition in CONDITIONS:
            scores = {gain.labels: getattr(gain, condition).estimate(name) for gain in gains}
            scores = {count: score for count, score in scores.items() if score}
            if len(scores) > 1:
                curves.append(percent_curve(condition, list(map(float, scores)), list(scores.values())))
        if curves:
            title_case = f"{title[0].upper()}{title[1:]}"
            caption = (
                f"{title_case} on the test texts against the number of labels: means over the seeds, 95 % intervals."
            )
            yield Plot("labels", f"{title}, per cent", tuple(curves), log_x=True, caption=caption)


# The text that is learned without labels: all texts but those of validation and test, one a line.


SHARED_WORDS = 10  # a text that shares that many words in a row with a validation or test text is excluded


@dataclass(frozen=True)
class WrittenTexts:
    """The file of texts without labels, and how many texts it has and lacks."""

    path: Path
    texts: int
    excluded: int  # texts that are, or share ten words in a row with, a text of validation or test
    repeated: int  # texts left out since they came twice

    def __str__(self) -> str:
        return (
            f"{self.texts:,} texts, labels unread; {self.excluded:,} were left out, being one of the validation or "
            f"test texts or sharing {SHARED_WORDS} words in a row with one, and {self.repeated:,} since they were "
            "there twice"
        )


def write_texts(
    names: Sequence[str], labelled: Splits[LabelledExamples], path: Path, progress: Progress | None = None
) -> WrittenTexts:
    """Write texts for pretraining to the file `path`, one per line, without overlaps with validation and test texts.

    Texts that are equal but for case and white space are written once. Their order is random, so that the end of the
    file, on which a pretrained model is validated, is of the same kind as the other texts.

    `names` are sets or files of texts; the training and unlabelled texts of `labelled` are written too.
    """
    texts = [text for name in names for text in read_texts(name, progress)]
    if labelled.description not in names:
        train = labelled.item("train")
        texts = [*(text for text, _ in train.texts), *train.unlabelled, *texts]
    texts = [text for text in texts if text.strip()]
    held_out = [text for split in ("validation", "test") for text, _ in labelled.item(split).texts]
    allowed = list(exclude_overlaps(texts, held_out))
    # of texts that are equal the first one stays
    unique = {normalise_text(text): " ".join(text.split()) for text in reversed(allowed)}
    if len(unique) < 2:
        raise DataError("there are no texts to learn without labels: all are held out. Name others with unlabelled=.")
    write_atomically(path, "".join(f"{unique[key]}\n" for key in shuffle_keys(unique, "order")))
    return WrittenTexts(path, len(unique), len(texts) - len(allowed), len(allowed) - len(unique))


def read_texts(name: str, progress: Progress | None = None) -> list[str]:
    """Read the texts of `name`: a built-in set, a table, or a text file with one text per line; labels are ignored."""
    if name in LABELLED_CORPORA:
        label_file = read_label_file(name, progress=progress)
        return [*label_file.texts, *label_file.unlabelled]
    path = Path(name)
    if not exists(path) and not path.suffix:
        raise DataError(
            describe_unknown("unlabelled: data set", name, LABELLED_CORPORA)
            + " Or give the path of a table or a text file."
        )
    if path.suffix.lower() in TABLE_SUFFIXES:

        def is_header(first: Sequence[str]) -> bool:
            """Return whether a table's first row is a header: it has a name of the text column."""
            return bool({cell.strip().casefold() for cell in first} & {"text", *TEXT_ALIASES})

        columns = [Column("text", aliases=TEXT_ALIASES)]
        return read_table(path, columns, any_width=True, is_header=is_header).cells["text"]
    return "".join(decode_span(open_text(path))).splitlines()


def exclude_overlaps(texts: Iterable[str], held_out: Iterable[str]) -> Iterator[str]:
    """Yield the texts that neither equal a text in `held_out` nor share ten consecutive words with one.

    >>> list(exclude_overlaps(["So  it is", "so it was"], ["so it IS"]))
    ['so it was']
    """

    def word_runs(key: str) -> Iterator[tuple[str, ...]]:
        """Yield every SHARED_WORDS consecutive words of a normalised text; none for a shorter one."""
        words = key.split()
        return (tuple(words[start : start + SHARED_WORDS]) for start in range(len(words) - SHARED_WORDS + 1))

    keys = {normalise_text(text) for text in held_out}
    shared = {run for key in keys for run in word_runs(key)}
    for text in texts:
        key = normalise_text(text)
        if key not in keys and shared.isdisjoint(word_runs(key)):
            yield text
