"""The body that a study of pretraining begins with: trained on the texts without labels, as a run of its own."""

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lemma.data.corpora import LABELLED
from lemma.data.files import Progress, exists, write_atomically
from lemma.data.labels import TEXTS, Labelled, read_label_file
from lemma.data.splits import Splits, normalise, shuffled
from lemma.data.store import TokenArray
from lemma.data.tables import SUFFIXES, Column, read_table
from lemma.data.text import decode, open_text
from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError, LemmaError, SpecError, unknown
from lemma.report.curves import Curve, Plot
from lemma.report.progress import Observer, Silent, watched_reading
from lemma.report.statistics import Estimate
from lemma.runs.folder import RunFolder, is_begun, remove_unbegun
from lemma.runs.load import adaptation_of
from lemma.spec.data import DataSpec
from lemma.spec.models import EncoderDecoder, ModelSpec
from lemma.spec.recipe import Recipe
from lemma.spec.studies import ClassifiersStudy, Contender, LabelStudySpec, PretrainingStudy
from lemma.studies.cells import Announcing, Cell, Plan, describe_hardware, refuse_other_run, tokens_a_step
from lemma.studies.classifiers import (
    Described,
    LabelOutcome,
    LabelResult,
    LabelRow,
    LabelTable,
    Task,
    caption_of,
    cell_of,
    curve_of,
    describe_classifier,
    describe_labels,
    finish_all,
    gather,
    labels_of,
    over_texts,
    paced,
    paired,
    percent,
    points,
    refuse_unknown_words,
    study_classifiers,
)
from lemma.studies.result import NONE
from lemma.studies.run import device_of
from lemma.tasks.base import say_skipped
from lemma.tasks.classification import load_labels
from lemma.tasks.registry import task_for
from lemma.training.loop import resume, train

TEXTS_FILE = "texts.txt"
HELD_OUT = 0.05
"""The share of the texts without labels on which pretraining is validated."""
SHARED = ("device", "precision", "compile")
"""Words of the classifiers' recipe that hold for pretraining too, unless it has its own."""


def text_of(study: PretrainingStudy, path: Path) -> DataSpec:
    """The texts without labels as data; their tokenizer is that of both arms."""
    return DataSpec(text=(str(path.resolve()),), tokenizer=study.tokenizer, held_out=HELD_OUT)


def prepared_text(study: PretrainingStudy, described: Described, path: Path, watcher: Observer) -> Splits[TokenArray]:
    """The texts as tokens."""
    body = described.model.body
    if isinstance(body, EncoderDecoder):
        raise SpecError("study pretraining: an encoder-decoder learns pairs of texts. Take body=encoder, or decoder.")
    if "seed" in study.pretraining:
        raise SpecError(
            "study.pretraining: 'seed' is no word for single runs. Give the study `seeds`, as in seeds=[1,2]."
        )
    recipe = Recipe.read(study.pretraining, "study.pretraining")
    return task_for(body).load(text_of(study, path), body, recipe, watcher)


@dataclass(frozen=True)
class Base:
    """A body that is pretrained with one seed."""

    study: PretrainingStudy
    described: Described
    dataset: Splits[TokenArray]
    seed: int
    out: Path

    @property
    def model(self) -> ModelSpec:
        """The body, with the vocabulary of the texts."""
        return self.described.model.body.sized(self.dataset.sizes())

    @property
    def recipe(self) -> Recipe:
        """The recipe of pretraining: the texts read `passes` times unless it says how many steps."""
        shared = {word: self.described.recipe[word] for word in SHARED if word in self.described.recipe}
        words: dict[str, Any] = {**shared, **self.study.pretraining, "seed": self.seed}
        recipe = Recipe.read(words, "study.pretraining")
        if "steps" not in words:
            tokens = self.study.passes * len(self.dataset.tokens("train"))
            recipe = recipe.replace(steps=max(1, math.ceil(tokens / tokens_a_step(self.model, recipe))))
        return paced(recipe, words, self.study.validations)

    @property
    def cell(self) -> Cell:
        """The run, as a study names it."""
        return Cell("pretraining", {}, self.seed, self.model, self.recipe)

    @property
    def path(self) -> Path:
        """Where it is kept."""
        return self.out / "runs" / self.cell.name

    def refuse_other(self) -> None:
        """Refuse a folder in which another run stands."""
        refuse_other_run(Plan(self.cell, self.model, self.recipe, self.path, self.dataset.hash))

    def finish(self, watcher: Observer) -> str | None:
        """Bring it to its end; return why that failed, if it did."""
        try:
            self._train(watcher)
        except Exception as error:
            reason = str(error) if isinstance(error, LemmaError) else f"{type(error).__name__}: {error}"
            watcher.say(f"failed: {reason}")
            return f"pretraining failed: {reason}"
        shutil.rmtree(self.folder().checkpoints, ignore_errors=True)
        return None

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return is_begun(self.path) and self.folder().finished

    def folder(self) -> RunFolder:
        """Its run folder."""
        return RunFolder.open(self.path)

    def _train(self, watcher: Observer) -> None:
        given: dict[str, Any] = {"sample": lambda model: [], "observer": watcher}
        if not is_begun(self.path):
            remove_unbegun(self.path)
            data = text_of(self.study, self.out / TEXTS_FILE)
            result = train(self.model, self.recipe, data, self.dataset, self.path, **given)
        elif self.finished:
            return
        else:
            result = resume(self.path, self.dataset, **given)
        if result.stopped == "interrupted":
            raise KeyboardInterrupt


# What a study of pretraining came to, shown: the gain at each number of labels, the table, the curves.


SCRATCH, PRETRAINED = ARMS = ("scratch", "pretrained")
SHOWN = ("batch", "learning_rate", "weight_decay", "dropout", "keep")
FIGURES = {"accuracy": "accuracy", "f1": "F1"}
PROTOCOL = {
    "arms": "the same body, tokenizer (that of pretraining), labels, recipe and steps for both; only the first weights "
    "of the body differ",
    "pretraining": "no text of validation or test is among the texts without labels, nor any that shares ten words in "
    "a row with one",
    "labels": "fewer labels are always among more; validation and test texts are the same at every number",
    "scores": "on the test texts; F1 is the mean over the classes",
    "intervals": "mean ± half the 95 % interval over the seeds (Student's t): what training anew changes, on these "
    "test texts; gains are taken seed by seed, since a seed fixes the batches of both arms alike",
}


@dataclass(frozen=True)
class Gain:
    """What pretraining brought at one number of labels."""

    labels: int
    scratch: LabelRow
    pretrained: LabelRow

    def of(self, name: str) -> Estimate | None:
        """The gain in some score, seed by seed."""
        return paired(self.pretrained, self.scratch, name)

    @property
    def verdict(self) -> str:
        """Whether the gain in accuracy is beyond the noise of the seeds."""
        return beyond(self.of("accuracy"))

    def __str__(self) -> str:
        found = self.of("accuracy")
        said = "nothing yet" if found is None else points(found)
        return f"{said} at {self.labels:,} labels ({self.verdict})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        plain: dict[str, Any] = {"labels": self.labels}
        for name in FIGURES:
            for arm, row in ((SCRATCH, self.scratch), (PRETRAINED, self.pretrained)):
                found = row.estimate(name)
                plain |= {f"{arm}_{name}": found and found.mean, f"{arm}_{name}_margin": found and found.margin}
            gap = self.of(name)
            plain |= {f"{name}_gain": gap and gap.mean, f"{name}_gain_margin": gap and gap.margin}
        texts = over_texts(self.pretrained, self.scratch)
        plain["accuracy_gain_margin_over_texts"] = texts and texts.margin
        seeds = {f"{row.contender}_seeds": len(row.measured) for row in (self.scratch, self.pretrained)}
        return {**plain, **seeds, "verdict": self.verdict}


def beyond(gap: Estimate | None) -> str:
    """Say what an interval says of a gain.

    >>> [beyond(Estimate(mean, 0.02, 3)) for mean in (0.05, 0.01, -0.05)]
    ['beyond the noise', 'within the noise', 'a loss, beyond the noise']
    """
    if gap is None:
        return "no seed has both arms"
    if gap.margin is None:
        return "one seed, so that the noise is unknown"
    if gap.low <= 0 <= gap.high:
        return "within the noise"
    return "beyond the noise" if gap.low > 0 else "a loss, beyond the noise"


def show_pretraining(
    spec: PretrainingStudy,
    outcomes: tuple[LabelOutcome, ...],
    bases: Sequence[Base],
    data: Mapping[str, str],
    hardware: Mapping[str, str],
    out: Path,
    interrupted: bool,
) -> LabelResult:
    """Put the findings together."""
    rows = gather(outcomes)
    gains = gains_of(rows)
    return LabelResult(
        spec=spec,
        data={**data, "seeds": ", ".join(map(str, spec.seeds)), "pretraining": "; ".join(map(base_in_words, bases))},
        hardware=hardware,
        protocol={**PROTOCOL, **how(spec), "classifiers": recipes_in_words(rows)},
        table=make_table(gains),
        conclusion=conclude(gains),
        plots=tuple(plots_of(gains)),
        runs=outcomes,
        out=out,
        interrupted=interrupted,
        more={"gains": [gain.to_dict() for gain in gains], "pretraining": [summary_of(base) for base in bases]},
    )


def gains_of(rows: Sequence[LabelRow]) -> list[Gain]:
    """The two arms at each number of labels, fewest first."""
    by_place = {(row.contender, row.point["labels"]): row for row in rows}
    counts = sorted({row.point["labels"] for row in rows})
    return [Gain(count, *(by_place[arm, count] for arm in ARMS)) for count in counts]


def conclude(gains: Sequence[Gain]) -> tuple[str, ...]:
    """One sentence that states the gain at each number of labels, and whether it is beyond the noise."""
    if not any(gain.of("accuracy") for gain in gains):
        return ("No number of labels has both arms yet, so that there is no gain to state.",)
    return (f"Pretraining without labels changes accuracy by {'; '.join(map(str, gains))}.",)


def make_table(gains: Sequence[Gain]) -> LabelTable:
    """One row a number of labels."""
    header = ["labels", *(f"{name} %: {part}" for name in FIGURES.values() for part in (*ARMS, "gain"))]
    rows = [row for gain in gains for row in (gain.scratch, gain.pretrained)]
    notes = tuple(f"{row.title}, {note}" for row in rows for note in row.missing)
    cells = tuple(_cells(gain) for gain in gains)
    return LabelTable(
        tuple(header), cells, tuple(gain.to_dict() for gain in gains), caption_of(rows, "F1 is the mean"), notes
    )


def _cells(gain: Gain) -> tuple[str, ...]:
    cells = [f"{gain.labels:,}"]
    for name in FIGURES:
        gap = gain.of(name)
        scores = [percent(row.estimate(name)) for row in (gain.scratch, gain.pretrained)]
        cells += [*scores, NONE if gap is None else points(gap).removesuffix(" points")]
    return tuple(cells)


def how(spec: PretrainingStudy) -> dict[str, str]:
    """What depends on the study's words."""
    noise = "one base a seed" if spec.base_a_seed else "one base for all seeds, so that its own noise is not counted"
    words = {"full": "every weight learns", "frozen": "only the head learns"}
    means = words.get(spec.method.kind, "the body is frozen but for what the method adds")
    return {
        "method": f"{spec.method.kind}: in the pretrained arm {means}; from scratch every weight learns",
        "bases": noise,
    }


def recipes_in_words(rows: Sequence[LabelRow]) -> str:
    """The recipe that both arms share, and the steps at each number of labels."""
    found = {row.point["labels"]: one for row in rows for one in list(row.measured.values())[:1]}
    steps = ", ".join(f"{one.steps:,} at {count:,} labels" for count, one in sorted(found.items()))
    words = [(word, one.recipe[word]) for one in list(found.values())[:1] for word in SHOWN]
    said = ", ".join(f"{word.replace('_', ' ')} {value}" for word, value in words)
    return f"{said}; steps: {steps}" if steps else "none yet"


def summary_of(base: Base) -> dict[str, Any] | None:
    """What pretraining came to; None if it is not finished."""
    found = base.folder().summary() if base.finished else None
    names = ("steps", "tokens", "seconds", "parameters", "best_loss", "best_perplexity")
    return found and {"seed": base.seed, **{name: found.get(name) for name in names}}


def base_in_words(base: Base) -> str:
    """The pretrained body, in words."""
    found = summary_of(base)
    if found is None:
        return f"seed {base.seed} is not finished"
    score = "" if found["best_perplexity"] is None else f", validation perplexity {found['best_perplexity']:,.2f}"
    size = f"{base.model.family}, {found['parameters']:,} parameters"
    return f"{size}, {found['steps']:,} steps, {found['tokens']:,} tokens, {found['seconds']:,.0f} s{score}"


def plots_of(gains: Sequence[Gain]) -> list[Plot]:
    """Each score against the number of labels, both arms with their intervals."""
    plots = [_plot(gains, name, title) for name, title in FIGURES.items()]
    return [plot for plot in plots if plot]


def _plot(gains: Sequence[Gain], name: str, title: str) -> Plot | None:
    curves = [_curve(arm, [getattr(gain, arm) for gain in gains], name) for arm in ARMS]
    drawn = tuple(curve for curve in curves if curve)
    named = f"{title[0].upper()}{title[1:]}"
    caption = f"{named} on the test texts against the number of labels: means over the seeds, 95 % intervals."
    return Plot("labels", f"{title}, per cent", drawn, log_x=True, caption=caption) if drawn else None


def _curve(arm: str, rows: Sequence[LabelRow], name: str) -> Curve | None:
    found = [(row.point["labels"], one) for row in rows if (one := row.estimate(name))]
    if len(found) < 2:
        return None
    return curve_of(arm, [float(count) for count, _ in found], [one for _, one in found])


# The text that is learned without labels: all texts but those held out, one a line.


PRETRAINING_TEXT_SHARED = 10
"""A text that has so many words in a row in common with one that is held out is not learned either."""
PRETRAINING_TEXT_HELD_OUT = ("validation", "test")


@dataclass(frozen=True)
class PlainTexts:
    """What was written, and what was left out of it."""

    path: Path
    texts: int
    left_out: int
    """Texts that are, or share ten words in a row with, a text of validation or test."""
    repeated: int

    def __str__(self) -> str:
        return (
            f"{self.texts:,} texts, labels unread; {self.left_out:,} were left out, being one of the validation or "
            f"test texts or sharing {PRETRAINING_TEXT_SHARED} words in a row with one, and "
            f"{self.repeated:,} since they were there twice"
        )


def write_texts(
    names: Sequence[str], labelled: Splits[Labelled], path: Path, progress: Progress | None = None
) -> PlainTexts:
    """Write the training texts of `labelled`, what came with them, and the texts of `names`, without what is held out.

    Texts that are equal but for case and white space stand there once. Their order is drawn, so that the end of the
    file, on which a pretrained model is validated, is of the same kind as the rest.
    """
    own = [*(text for text, _ in labelled.tokens("train").texts), *labelled.tokens("train").unlabelled]
    texts = [
        *(own if labelled.about not in names else ()),
        *(text for name in names for text in read_texts(name, progress)),
    ]
    held_out = [text for split in PRETRAINING_TEXT_HELD_OUT for text, _ in labelled.tokens(split).texts]
    kept = [text for text in texts if text.strip()]
    apart = list(without(kept, held_out))
    unique = {normalise(text): " ".join(text.split()) for text in reversed(apart)}  # the first of equal texts stays
    if len(unique) < 2:
        raise DataError("there are no texts to learn without labels: all are held out. Name others with unlabelled=.")
    write_atomically(path, "".join(f"{unique[key]}\n" for key in shuffled(unique, "order")))
    return PlainTexts(path, len(unique), len(kept) - len(apart), len(apart) - len(unique))


def read_texts(name: str, progress: Progress | None = None) -> list[str]:
    """The texts of a set known by name, of a table, or of a text file of one text a line; labels are not used."""
    if name in LABELLED:
        read = read_label_file(name, progress=progress)
        return [*read.texts, *read.unlabelled]
    path = Path(name)
    if not exists(path) and not path.suffix:
        raise DataError(unknown("unlabelled", name, LABELLED) + " Or give the path of a table or a text file.")
    if path.suffix.lower() in SUFFIXES:
        wanted = [Column("text", aliases=TEXTS)]
        return read_table(path, wanted, any_width=True, is_header=_looks).cells["text"]
    return "".join(decode(open_text(path))).splitlines()


def _looks(first: Sequence[str]) -> bool:
    return bool({cell.strip().casefold() for cell in first} & {"text", *TEXTS})


def without(texts: Iterable[str], held_out: Iterable[str]) -> Iterator[str]:
    """Yield the texts that are none of those held out and share no ten words in a row with one.

    >>> list(without(["So  it is", "so it was"], ["so it IS"]))
    ['so it was']
    """
    keys = {normalise(text) for text in held_out}
    stretches = {stretch for key in keys for stretch in _stretches(key)}
    for text in texts:
        key = normalise(text)
        if key not in keys and stretches.isdisjoint(_stretches(key)):
            yield text


def _stretches(key: str) -> Iterator[tuple[str, ...]]:
    words = key.split()
    return (
        tuple(words[start : start + PRETRAINING_TEXT_SHARED])
        for start in range(len(words) - PRETRAINING_TEXT_SHARED + 1)
    )


# The study of pretraining (problem E4): a classifier from scratch, and one whose body read all texts first.


Place = tuple[str, int, int]
"""An arm, a number of labels and a seed."""


def study_pretraining(spec: PretrainingStudy, out: Path, watcher: Observer) -> LabelResult:
    """Pretrain, then train both arms at every number of labels with every seed, and state the gain."""
    described = describe_classifier(Contender(model=spec.body), spec.words)
    refuse_unknown_words(spec.words, [described.model])
    labelled = say_skipped(load_labels(labels_of(spec), described.model.body, None, (), watcher), watcher)
    out.mkdir(parents=True, exist_ok=True)
    texts = write_texts(spec.unlabelled, labelled, out / TEXTS_FILE, watched_reading(watcher))
    dataset = prepared_text(spec, described, out / TEXTS_FILE, watcher)
    tokenizer = dataset.tokenizer
    assert isinstance(tokenizer, Tokenizer)
    bases = [Base(spec, described, dataset, seed, out) for seed in (spec.seeds if spec.base_a_seed else spec.seeds[:1])]
    work = Work(spec, out, described, limited(spec, described, labelled, tokenizer, watcher))
    work.refuse_other(bases)
    outcomes, interrupted = work.run(bases, watcher)
    data = {**describe_labels(labelled), "tokenizer": tokenizer.about, "texts without labels": str(texts)}
    hardware = describe_hardware(device_of(bases[0].recipe))
    result = show_pretraining(spec, outcomes, bases, data, hardware, out, interrupted)
    result.save()
    return result


def limited(
    spec: PretrainingStudy, described: Described, labelled: Splits[Labelled], tokenizer: Tokenizer, watcher: Observer
) -> dict[int, Splits[Labelled]]:
    """The labelled texts at each number of labels, in the tokens of pretraining; fewer are always among more."""
    most = len(labelled.tokens("train").texts)
    counts = sorted({min(count, most) for count in spec.counts})
    body = described.model.body
    return {count: load_labels(labels_of(spec, count), body, tokenizer, (), watcher) for count in counts}


@dataclass(frozen=True)
class Work:
    """A study with its labelled texts and its folder."""

    spec: PretrainingStudy
    out: Path
    described: Described
    datasets: Mapping[int, Splits[Labelled]]
    """By the number of labels."""

    @property
    def places(self) -> list[Place]:
        """All runs, in the order in which they are trained."""
        return [(arm, count, seed) for seed in self.spec.seeds for count in self.datasets for arm in ARMS]

    def task(self, place: Place, base: Base | None = None) -> Task:
        """The run of one arm at a number of labels with a seed."""
        arm, count, seed = place
        cell = cell_of(self.spec, replace(self.described, title=arm), {"labels": count}, seed, count)
        path = self.out / "runs" / cell.name
        adaptation = adaptation_of(base.folder(), path, self.spec.method) if base else None
        return Task(cell, labels_of(self.spec, count), self.datasets[count], path, adaptation)

    def refuse_other(self, bases: Sequence[Base]) -> None:
        """Refuse a folder of another study before anything is trained."""
        for base in bases:
            base.refuse_other()
        for place in self.places:
            if place[0] == SCRATCH:
                self.task(place).refuse_other()

    def run(self, bases: Sequence[Base], watcher: Observer) -> tuple[tuple[LabelOutcome, ...], bool]:
        """Pretrain, then finish all runs one by one; return their outcomes, and whether Ctrl-C came in between."""
        reasons, interrupted = pretrain(bases, watcher)
        tasks = {place: task for place in self.places if (task := self._ready(place, bases))}
        for task in tasks.values():
            task.refuse_other()
        if interrupted:
            done = tuple(task.look() for task in tasks.values())
        else:
            done, interrupted = finish_all(list(tasks.values()), watcher)
        found = dict(zip(tasks, done, strict=True))
        return tuple(
            found.get(place) or self._without_base(place, bases, reasons) for place in self.places
        ), interrupted

    def _ready(self, place: Place, bases: Sequence[Base]) -> Task | None:
        """The run of a place, unless its base is missing."""
        base = base_of(place, bases)
        if place[0] == SCRATCH:
            return self.task(place)
        return self.task(place, base) if base.finished else None

    def _without_base(self, place: Place, bases: Sequence[Base], reasons: Mapping[int, str]) -> LabelOutcome:
        return LabelOutcome(self.task(place).cell, reason=reasons.get(base_of(place, bases).seed))


def base_of(place: Place, bases: Sequence[Base]) -> Base:
    """The base of a run: that of its seed, or the only one."""
    return next((base for base in bases if base.seed == place[2]), bases[0])


def pretrain(bases: Sequence[Base], watcher: Observer) -> tuple[dict[int, str], bool]:
    """Bring all bases to their end; return why some failed, by their seeds, and whether Ctrl-C came in between."""
    reasons: dict[int, str] = {}
    try:
        for number, base in enumerate(bases, start=1):
            title = f"pretraining {number} of {len(bases)}: {base.model.family}, seed {base.seed}"
            if reason := base.finish(Announcing(watcher, title)):
                reasons[base.seed] = reason
    except KeyboardInterrupt:
        return reasons, True
    return reasons, False


# Which study of classifiers a spec asks for.


def run_label_study(spec: LabelStudySpec, out: Path, observer: Observer | None = None) -> LabelResult:
    """Train and measure what the spec asks for, save table and report in the folder `out`, and return all of it.

    A finished run is not repeated and an interrupted one goes on, so that a study that was stopped is finished by the
    same call. A run that fails becomes a row with its reason, and is tried again by the next call.
    """
    watcher = observer or Silent()
    if isinstance(spec, ClassifiersStudy):
        return study_classifiers(spec, out, watcher)
    return study_pretraining(spec, out, watcher)
