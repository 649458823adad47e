"""The study of pretraining (problem E4): a classifier from scratch, and one whose body read all texts first."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lemma.data.corpora import LABELLED_CORPORA
from lemma.data.labels import TEXT_ALIASES, LabelledExamples, read_label_file
from lemma.data.splits import Splits, normalise_text, shuffle_keys
from lemma.data.tables import TABLE_SUFFIXES, Column, read_table
from lemma.data.text import decode_span, open_text
from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError, LemmaError, RunError, SpecError, describe_unknown
from lemma.files import Progress, remove_atomically, write_atomically
from lemma.report.curves import Plot
from lemma.report.progress import Observer, reading_progress
from lemma.report.statistics import Estimate, PairedTest, holm_correct
from lemma.runs.folder import RunFolder, is_started
from lemma.runs.load import make_adaptation_spec
from lemma.spec.base import exists
from lemma.spec.data import DataSpec
from lemma.spec.models import EncoderDecoder
from lemma.spec.recipe import AdaptationSpec, Recipe
from lemma.spec.studies import ComparedModel, PretrainingStudy
from lemma.studies.budget import describe_hardware, device_of, tokens_per_step
from lemma.studies.classifiers import (
    SCORES,
    LabelExperiment,
    LabelOutcome,
    LabelRow,
    accuracy_test,
    choose_classifiers,
    describe_labels,
    estimate_over_texts,
    format_percent,
    format_points,
    label_data,
    make_cell,
    percent_curve,
    schedule_recipe,
    table_caption,
)
from lemma.studies.experiment import (
    RunPlan,
    StudyCell,
    TitledObserver,
    check_same_run,
    compare_rows,
    group_rows,
    read_json,
    train_or_resume,
    write_json,
)
from lemma.studies.grid import check_reserved
from lemma.studies.result import NO_VALUE, StudyResult, StudyTable
from lemma.tasks.base import report_skipped
from lemma.tasks.classification import load_labels
from lemma.tasks.registry import task_for

TEXTS_FILE = "texts.txt"
HELD_OUT = 0.05
"""The share of the texts without labels on which pretraining is validated."""
SHARED_SETTINGS = ("device", "precision", "compile")
"""Settings of the classifiers' recipe that hold for pretraining too, unless it has its own."""
SCRATCH, PRETRAINED = CONDITIONS = ("scratch", "pretrained")


class PretrainingExperiment(LabelExperiment):
    """Pretrain, then train both conditions at every number of labels with every seed, and state the gain."""

    spec: PretrainingStudy

    def __init__(self, spec: PretrainingStudy, out: Path, observer: Observer) -> None:
        self.spec, self.out, self.observer = spec, out, observer
        [self.choice] = choose_classifiers([ComparedModel(model=spec.body)], spec.settings)
        body = self.choice.model.body
        if isinstance(body, EncoderDecoder):
            raise SpecError(
                "study pretraining: an encoder-decoder learns pairs of texts. Take body=encoder or decoder."
            )
        check_reserved(list(spec.pretraining), {"seed": "Give the study `seeds`, as in seeds=[1,2]."})
        recipe = Recipe.read(spec.pretraining, "study.pretraining")
        self.labelled = report_skipped(load_labels(label_data(spec), body, None, (), observer), observer)
        out.mkdir(parents=True, exist_ok=True)
        self.texts = write_texts(spec.unlabelled, self.labelled, out / TEXTS_FILE, reading_progress(observer))
        text = DataSpec(text=(str((out / TEXTS_FILE).resolve()),), tokenizer=spec.tokenizer, held_out=HELD_OUT)
        dataset = task_for(body).load(text, body, recipe, observer)
        self.tokenizer: Any = dataset.tokenizer
        assert isinstance(self.tokenizer, Tokenizer)
        counts = sorted({min(count, len(self.labelled.item("train").texts)) for count in spec.counts})
        self.datasets = {  # in the tokens of pretraining; fewer labels are always among more
            count: load_labels(label_data(spec, count), body, self.tokenizer, (), observer) for count in counts
        }
        self.bases = {
            seed: self._plan_base(seed, text, dataset)
            for seed in (spec.seeds if spec.base_per_seed else spec.seeds[:1])
        }
        self.adaptations: dict[str, AdaptationSpec] = {}

    def _plan_base(self, seed: int, data: DataSpec, dataset: Any) -> RunPlan:
        """The pretraining of a body with one seed: the texts read `passes` times unless it says how many steps."""
        model = self.choice.model.body.with_data_sizes(dataset.sizes())
        shared = {word: self.choice.recipe[word] for word in SHARED_SETTINGS if word in self.choice.recipe}
        words: dict[str, Any] = {**shared, **self.spec.pretraining, "seed": seed}
        recipe = Recipe.read(words, "study.pretraining")
        if "steps" not in words:
            tokens = self.spec.passes * len(dataset.item("train"))
            recipe = recipe.replace(steps=max(1, math.ceil(tokens / tokens_per_step(model, recipe))))
        path = self.path(StudyCell("pretraining", {}, seed))
        return RunPlan(path, model, schedule_recipe(recipe, words, self.spec.validations), data, dataset)

    def base_plan(self, cell: StudyCell) -> RunPlan:
        """The base of a run: that of its seed, or the only one."""
        return self.bases.get(cell.seed or 0) or next(iter(self.bases.values()))

    def cells(self) -> list[StudyCell]:
        """Seeds × numbers of labels × conditions."""
        return [
            make_cell(self.spec, replace(self.choice, title=condition), {"labels": count}, seed, count)
            for seed in self.spec.seeds
            for count in self.datasets
            for condition in CONDITIONS
        ]

    def plan(self, cell: StudyCell) -> RunPlan | None:
        """The run of one condition at a number of labels with a seed; None if its base is not finished."""
        count, adaptation = cell.point["labels"], None
        if cell.condition == PRETRAINED:
            base = self.base_plan(cell)
            if not base_summary(base):
                return None
            if cell.name not in self.adaptations:
                self.adaptations[cell.name] = make_adaptation_spec(
                    RunFolder.open(base.path), self.path(cell), self.spec.method
                )
            adaptation = self.adaptations[cell.name]
        return self.plan_labels(cell, label_data(self.spec, count), self.datasets[count], adaptation)

    def check(self, cell: StudyCell) -> None:
        """Refuse a folder that holds another run, of the base too."""
        check_same_run(self.base_plan(cell))
        super().check(cell)

    def prepare(self, cells: Sequence[StudyCell]) -> None:
        """Bring all bases to their end, and refuse folders of runs that were adapted from others."""
        for number, (seed, base) in enumerate(self.bases.items(), start=1):
            title = f"pretraining {number} of {len(self.bases)}: {base.model.family}, seed {seed}"
            observer = TitledObserver(self.observer, title)
            try:
                train_or_resume(base, observer)
            except Exception as error:
                reason = str(error) if isinstance(error, LemmaError) else f"{type(error).__name__}: {error}"
                observer.log(f"failed: {reason}")
                write_json(base.path.with_name(f"{base.path.name}.json"), {"failed": reason})
            else:
                with suppress(OSError):
                    remove_atomically(RunFolder.open(base.path).checkpoints)
        for cell in self.cells():
            super().check(cell)

    def run(self, cell: StudyCell, observer: Observer) -> Any:
        """Train and measure a classifier, if the base it needs is there."""
        if self.plan(cell) is None:
            path = self.base_plan(cell).path
            found = read_json(path.with_name(f"{path.name}.json")) or {}
            raise RunError(f"pretraining failed: {found.get('failed', f'{path} is not finished')}")
        return super().run(cell, observer)

    def report(self, outcomes: tuple[LabelOutcome, ...], interrupted: bool) -> StudyResult:
        """The gain at each number of labels, and whether it is significant."""
        rows = group_rows(outcomes)
        gains = compute_gains(rows)
        bases = {seed: base_summary(base) for seed, base in self.bases.items()}
        based = []
        for seed, found in bases.items():
            if found is None:
                based.append(f"seed {seed} is not finished")
                continue
            score = found["best_perplexity"]
            figures = f"{found['steps']:,} steps, {found['tokens']:,} tokens, {found['seconds']:,.0f} s"
            figures += "" if score is None else f", validation perplexity {score:,.2f}"
            based.append(f"{self.choice.model.body.family}, {found['parameters']:,} parameters, {figures}")
        labels = {row.point["labels"]: row.first for row in rows if row.first}
        classifiers = "none yet"
        if labels:
            recipe = next(iter(labels.values())).recipe
            steps = ", ".join(f"{one.steps:,} at {count:,} labels" for count, one in sorted(labels.items()))
            classifiers = (
                ", ".join(f"{word.replace('_', ' ')} {recipe[word]}" for word in LISTED_SETTINGS) + f"; steps: {steps}"
            )
        learns = {"full": "every weight learns", "frozen": "only the head learns"}
        means = learns.get(self.spec.method.kind, "the body is frozen except for what the method adds")
        one_base = "one base for all seeds, so that its own noise is not counted"
        return StudyResult(
            title=self.spec.name,
            question=self.spec.question,
            spec=self.spec,
            out=self.out,
            data={
                **describe_labels(self.labelled),
                "tokenizer": self.tokenizer.description,
                "texts without labels": str(self.texts),
                "seeds": ", ".join(map(str, self.spec.seeds)),
                "pretraining": "; ".join(based),
            },
            hardware=describe_hardware(device_of(next(iter(self.bases.values())).recipe)),
            protocol={
                **PROTOCOL,
                "method": f"{self.spec.method.kind}: if pretrained, {means}; from scratch every weight learns",
                "bases": "one base per seed" if self.spec.base_per_seed else one_base,
                "classifiers": classifiers,
            },
            table=make_table(gains),
            conclusion=conclude(gains),
            plots=tuple(plot_gains(gains)),
            runs=outcomes,
            rows=tuple(gains),
            extra={
                "gains": [gain.to_dict() for gain in gains],
                "pretraining": [found and {"seed": seed, **found} for seed, found in bases.items()],
            },
            interrupted=interrupted,
        )


def base_summary(base: RunPlan) -> dict[str, Any] | None:
    """What pretraining came to; None if it is not finished."""
    if not is_started(base.path) or not (folder := RunFolder.open(base.path)).is_finished:
        return None
    found = folder.summary() or {}
    names = ("steps", "tokens", "seconds", "parameters", "best_loss", "best_perplexity")
    return {name: found.get(name) for name in names}


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
    "intervals": "mean ± half the 95 % interval over the seeds (Student's t): what training again changes, on these "
    "test texts",
    "tests": "gains are taken seed by seed, since a seed fixes the batches of both conditions alike, with a t-test; "
    "its standard error is never below that of the test texts (paired by text); p-values are corrected for the "
    "number of comparisons (Holm); d is Cohen's, of pairs",
}


@dataclass(frozen=True)
class PretrainingGain:
    """What pretraining brought at one number of labels."""

    labels: int
    scratch: LabelRow
    pretrained: LabelRow
    test: PairedTest | None = None
    """Of the gain in accuracy; None if no seed has both conditions."""

    def estimate(self, name: str) -> Estimate | None:
        """The gain in some score, seed by seed."""
        found = self.test if name == "accuracy" else compare_rows(self.pretrained, self.scratch, name, log=False)
        return found and found.difference

    @property
    def verdict(self) -> str:
        """Whether the gain in accuracy is significant."""
        if self.test is None:
            return "no seed has both conditions"
        return f"a {self.test.verdict} loss" if self.test.is_significant and self.test.mean < 0 else self.test.verdict

    def __str__(self) -> str:
        said = "nothing yet" if self.test is None else str(self.test)
        return f"{said} at {self.labels:,} labels, {self.verdict}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        plain: dict[str, Any] = {"labels": self.labels}
        conditions = {SCRATCH: self.scratch, PRETRAINED: self.pretrained}
        for name in FIGURES:
            for condition, row in conditions.items():
                found = row.estimate(name)
                plain |= {f"{condition}_{name}": found and found.mean}
                plain |= {f"{condition}_{name}_margin": found and found.margin}
            gap = self.estimate(name)
            plain |= {f"{name}_gain": gap and gap.mean, f"{name}_gain_margin": gap and gap.margin}
        texts = estimate_over_texts(self.pretrained, self.scratch)
        plain["accuracy_gain_margin_over_texts"] = texts and texts.margin
        seeds = {f"{condition}_seeds": len(row.measures) for condition, row in conditions.items()}
        return {**plain, **seeds, "test": self.test and self.test.to_dict(), "verdict": self.verdict}


def compute_gains(rows: Sequence[LabelRow]) -> list[PretrainingGain]:
    """The two conditions at each number of labels, fewest first; p-values corrected for all of them."""
    by_place = {(row.condition, row.point["labels"]): row for row in rows}
    counts = sorted({row.point["labels"] for row in rows})
    pairs = {count: [by_place[condition, count] for condition in CONDITIONS] for count in counts}
    tests = {count: test for count, (scratch, other) in pairs.items() if (test := accuracy_test(other, scratch))}
    corrected = dict(zip(tests, holm_correct(list(tests.values())), strict=True))
    return [PretrainingGain(count, pair[0], pair[1], corrected.get(count)) for count, pair in pairs.items()]


def conclude(gains: Sequence[PretrainingGain]) -> tuple[str, ...]:
    """One sentence that states the gain at each number of labels, and whether it is significant."""
    if not any(gain.estimate("accuracy") for gain in gains):
        return ("No number of labels has both conditions yet, so that there is no gain to state.",)
    return (f"Pretraining without labels changes accuracy by {'; '.join(map(str, gains))}.",)


def make_table(gains: Sequence[PretrainingGain]) -> StudyTable:
    """One row per number of labels: both conditions and the gain, for each score."""
    cells = []
    for gain in gains:
        line = [f"{gain.labels:,}"]
        for name in FIGURES:
            gap = gain.estimate(name)
            line += [format_percent(row.estimate(name)) for row in (gain.scratch, gain.pretrained)]
            line.append(NO_VALUE if gap is None else format_points(gap).removesuffix(" points"))
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
    """Each score against the number of labels, both conditions with their intervals."""
    for name, title in FIGURES.items():
        curves = []
        for condition in CONDITIONS:
            rows = [getattr(gain, condition) for gain in gains]
            found = [(float(row.point["labels"]), one) for row in rows if (one := row.estimate(name))]
            if len(found) > 1:
                curves.append(percent_curve(condition, [count for count, _ in found], [one for _, one in found]))
        named = f"{title[0].upper()}{title[1:]}"
        caption = f"{named} on the test texts against the number of labels: means over the seeds, 95 % intervals."
        if curves:
            yield Plot("labels", f"{title}, per cent", tuple(curves), log_x=True, caption=caption)


# The text that is learned without labels: all texts but those of validation and test, one a line.


SHARED_WORDS = 10
"""A text that shares that many words in a row with a validation or test text is not learned either."""


@dataclass(frozen=True)
class WrittenTexts:
    """What was written, and what was left out of it."""

    path: Path
    texts: int
    excluded: int
    """Texts that are, or share ten words in a row with, a text of validation or test."""
    repeated: int

    def __str__(self) -> str:
        return (
            f"{self.texts:,} texts, labels unread; {self.excluded:,} were left out, being one of the validation or "
            f"test texts or sharing {SHARED_WORDS} words in a row with one, and {self.repeated:,} since they were "
            "there twice"
        )


def write_texts(
    names: Sequence[str], labelled: Splits[LabelledExamples], path: Path, progress: Progress | None = None
) -> WrittenTexts:
    """Write the training texts of `labelled`, what came with them, and the texts of `names`, without what is held out.

    Texts that are equal but for case and white space are written once. Their order is drawn, so that the end of the
    file, on which a pretrained model is validated, is of the same kind as the rest.
    """
    own = [*(text for text, _ in labelled.item("train").texts), *labelled.item("train").unlabelled]
    texts = [
        *(own if labelled.description not in names else ()),
        *(text for name in names for text in read_texts(name, progress)),
    ]
    held_out = [text for split in ("validation", "test") for text, _ in labelled.item(split).texts]
    kept = [text for text in texts if text.strip()]
    apart = list(exclude_overlaps(kept, held_out))
    unique = {
        normalise_text(text): " ".join(text.split()) for text in reversed(apart)
    }  # the first of equal texts stays
    if len(unique) < 2:
        raise DataError("there are no texts to learn without labels: all are held out. Name others with unlabelled=.")
    write_atomically(path, "".join(f"{unique[key]}\n" for key in shuffle_keys(unique, "order")))
    return WrittenTexts(path, len(unique), len(kept) - len(apart), len(apart) - len(unique))


def read_texts(name: str, progress: Progress | None = None) -> list[str]:
    """The texts of a set known by name, of a table, or of a text file of one text a line; labels are not used."""
    if name in LABELLED_CORPORA:
        read = read_label_file(name, progress=progress)
        return [*read.texts, *read.unlabelled]
    path = Path(name)
    if not exists(path) and not path.suffix:
        raise DataError(
            describe_unknown("unlabelled", name, LABELLED_CORPORA) + " Or give the path of a table or a text file."
        )
    if path.suffix.lower() in TABLE_SUFFIXES:

        def is_header(first: Sequence[str]) -> bool:
            return bool({cell.strip().casefold() for cell in first} & {"text", *TEXT_ALIASES})

        wanted = [Column("text", aliases=TEXT_ALIASES)]
        return read_table(path, wanted, any_width=True, is_header=is_header).cells["text"]
    return "".join(decode_span(open_text(path))).splitlines()


def exclude_overlaps(texts: Iterable[str], held_out: Iterable[str]) -> Iterator[str]:
    """Yield the texts that are not among those held out and share no ten words in a row with one.

    >>> list(exclude_overlaps(["So  it is", "so it was"], ["so it IS"]))
    ['so it was']
    """

    def runs(key: str) -> Iterator[tuple[str, ...]]:
        words = key.split()
        return (tuple(words[start : start + SHARED_WORDS]) for start in range(len(words) - SHARED_WORDS + 1))

    keys = {normalise_text(text) for text in held_out}
    shared = {run for key in keys for run in runs(key)}
    for text in texts:
        key = normalise_text(text)
        if key not in keys and shared.isdisjoint(runs(key)):
            yield text
