"""The study of classifiers' bodies (problem C3): the same labels and recipe for all, quality and cost side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemma.evaluation import classify
from lemma.runs import load
from lemma.spec import ClassifiersStudy
from lemma.studies.classifiers_shown import show_classifiers
from lemma.studies.hardware import describe_hardware
from lemma.studies.keeping import read_plain, write_plain
from lemma.studies.label_cells import Described, cell_of, describe_classifier, refuse_unknown_words
from lemma.studies.label_data import describe_labels, labels_of
from lemma.studies.label_outcome import LabelOutcome
from lemma.studies.label_result import LabelResult
from lemma.studies.label_runs import TEST, Task, finish_all
from lemma.studies.lessons import LabelsLesson, prepared_labels, told
from lemma.studies.measuring import device_of
from lemma.studies.timing import race
from lemma.training import Observer

Seconds = dict[str, list[float]]


def study_classifiers(spec: ClassifiersStudy, out: Path, watcher: Observer) -> LabelResult:
    """Train every body with every seed, time them in turns, and judge each against the first."""
    described = [describe_classifier(contender, spec.words) for contender in spec.contenders]
    refuse_unknown_words(spec.words, [one.model for one in described])
    work = Work(spec, out, _lessons(spec, described, watcher))
    tasks = [work.task(one, seed) for seed in spec.seeds for one in described]
    for task in tasks:
        task.refuse_other()
    out.mkdir(parents=True, exist_ok=True)
    outcomes, interrupted = finish_all(tasks, watcher)
    device = device_of(tasks[0].cell.recipe)
    hardware = describe_hardware(device)
    seconds = {} if interrupted else work.inference(tasks, outcomes, hardware, device)
    data = describe_labels(tasks[0].lesson.dataset)
    result = show_classifiers(spec, outcomes, seconds, data, hardware, out, interrupted)
    result.save()
    return result


def _lessons(spec: ClassifiersStudy, described: Sequence[Described], watcher: Observer) -> dict[str, LabelsLesson]:
    """The same labelled texts as each body reads them; the tokenizer, learned from the same texts, is the same."""
    lessons: dict[str, LabelsLesson] = {}
    for place, one in enumerate(described):
        dataset = prepared_labels(labels_of(spec, spec.limit), one.model.body, None, (), watcher)
        lessons[one.title] = LabelsLesson(dataset if place else told(dataset, watcher))
    return lessons


@dataclass(frozen=True)
class Work:
    """A study with its texts and its folder."""

    spec: ClassifiersStudy
    out: Path
    lessons: Mapping[str, LabelsLesson]

    def task(self, described: Described, seed: int) -> Task:
        """The run of a body and a seed."""
        lesson = self.lessons[described.title]
        cell = cell_of(self.spec, described, {}, seed, len(lesson.dataset.texts("train")))
        return Task(cell, labels_of(self.spec, self.spec.limit), lesson, self.out / "runs" / cell.name)

    def inference(
        self, tasks: Sequence[Task], outcomes: Sequence[LabelOutcome], hardware: Mapping[str, str], device: str
    ) -> Seconds:
        """Seconds in which one run of each body classifies the test texts, taken in turns; kept if they are known."""
        done = {
            task.cell.contender: task for task, one in reversed(list(zip(tasks, outcomes, strict=True))) if one.measures
        }
        order = [title for title in self.lessons if title in done]
        of = {"runs": {title: _model(done[title]) for title in order}, "hardware": dict(hardware)}
        of |= {"repetitions": self.spec.repetitions, "data": next(iter(self.lessons.values())).dataset.hash}
        kept = read_plain(self.out / "inference.json") or {}
        if kept.get("of") == of:
            return kept["seconds"]
        seconds = race({title: _classifying(done[title], device) for title in order}, self.spec.repetitions, device)
        write_plain(self.out / "inference.json", {"of": of, "seconds": seconds})
        return seconds


def _model(task: Task) -> dict[str, Any]:
    return task.model.to_dict()


def _classifying(task: Task, device: str) -> Any:
    model, examples = load(task.path, device).classifier, task.lesson.dataset.tokens(TEST)
    return lambda: classify(model, examples)
