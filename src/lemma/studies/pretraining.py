"""The study of pretraining (problem E4): a classifier from scratch, and one whose body read all texts first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lemma.data import LabelsData, Tokenizer
from lemma.runs import adaptation_of
from lemma.spec import Contender, PretrainingStudy
from lemma.studies.announcing import Announcing
from lemma.studies.hardware import describe_hardware
from lemma.studies.label_cells import Described, cell_of, describe_classifier, refuse_unknown_words
from lemma.studies.label_data import describe_labels, labels_of
from lemma.studies.label_outcome import LabelOutcome
from lemma.studies.label_result import LabelResult
from lemma.studies.label_runs import Task, finish_all
from lemma.studies.lessons import LabelsLesson, prepared_labels, told
from lemma.studies.measuring import device_of
from lemma.studies.pretraining_base import TEXTS_FILE, Base, prepared_text
from lemma.studies.pretraining_shown import ARMS, SCRATCH, show_pretraining
from lemma.studies.pretraining_text import write_texts
from lemma.training import Observer, watched_reading

Place = tuple[str, int, int]
"""An arm, a number of labels and a seed."""


def study_pretraining(spec: PretrainingStudy, out: Path, watcher: Observer) -> LabelResult:
    """Pretrain, then train both arms at every number of labels with every seed, and state the gain."""
    described = describe_classifier(Contender(model=spec.body), spec.words)
    refuse_unknown_words(spec.words, [described.model])
    labelled = told(prepared_labels(labels_of(spec), described.model.body, None, (), watcher), watcher)
    out.mkdir(parents=True, exist_ok=True)
    texts = write_texts(spec.unlabelled, labelled, out / TEXTS_FILE, watched_reading(watcher))
    lesson = prepared_text(spec, described, out / TEXTS_FILE, watcher)
    tokenizer = lesson.dataset.tokenizer
    assert isinstance(tokenizer, Tokenizer)
    bases = [Base(spec, described, lesson, seed, out) for seed in (spec.seeds if spec.base_a_seed else spec.seeds[:1])]
    work = Work(spec, out, described, limited(spec, described, labelled, tokenizer, watcher))
    work.refuse_other(bases)
    outcomes, interrupted = work.run(bases, watcher)
    data = {**describe_labels(labelled), "tokenizer": tokenizer.about, "texts without labels": str(texts)}
    hardware = describe_hardware(device_of(bases[0].recipe))
    result = show_pretraining(spec, outcomes, bases, data, hardware, out, interrupted)
    result.save()
    return result


def limited(
    spec: PretrainingStudy, described: Described, labelled: LabelsData, tokenizer: Tokenizer, watcher: Observer
) -> dict[int, LabelsLesson]:
    """The labelled texts at each number of labels, in the tokens of pretraining; fewer are always among more."""
    most = len(labelled.texts("train"))
    counts = sorted({min(count, most) for count in spec.counts})
    body = described.model.body
    return {
        count: LabelsLesson(prepared_labels(labels_of(spec, count), body, tokenizer, (), watcher)) for count in counts
    }


@dataclass(frozen=True)
class Work:
    """A study with its labelled texts and its folder."""

    spec: PretrainingStudy
    out: Path
    described: Described
    lessons: Mapping[int, LabelsLesson]
    """By the number of labels."""

    @property
    def places(self) -> list[Place]:
        """All runs, in the order in which they are trained."""
        return [(arm, count, seed) for seed in self.spec.seeds for count in self.lessons for arm in ARMS]

    def task(self, place: Place, base: Base | None = None) -> Task:
        """The run of one arm at a number of labels with a seed."""
        arm, count, seed = place
        cell = cell_of(self.spec, replace(self.described, title=arm), {"labels": count}, seed, count)
        path = self.out / "runs" / cell.name
        adaptation = adaptation_of(base.folder(), path, self.spec.method) if base else None
        return Task(cell, labels_of(self.spec, count), self.lessons[count], path, adaptation)

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
