"""One classifier of a study brought to its end: trained, gone on with, or left as it is, then measured on the test."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from lemma.errors import LemmaError, RunError
from lemma.evaluation import ClassificationScore, classify, score_classes
from lemma.models import ClassifierModel, count_parameters
from lemma.runs import Run, RunFolder, load
from lemma.runs.folder import is_begun, remove_unbegun
from lemma.spec import AdaptationSpec, Classifier, LabelsSpec
from lemma.studies.announcing import Announcing
from lemma.studies.grid import Cell
from lemma.studies.keeping import keep_failure, kept_failure, read_plain, write_plain
from lemma.studies.label_outcome import LabelMeasures, LabelOutcome, LearningPoint
from lemma.studies.lessons import LabelsLesson
from lemma.studies.measuring import device_of
from lemma.studies.plan import Plan, refuse_other_run
from lemma.training import Observer, resume, train

TEST = "test"


@dataclass(frozen=True)
class Task:
    """A classifier that is to be trained: which, on what, from which weights, and where it is kept."""

    cell: Cell
    data: LabelsSpec
    lesson: LabelsLesson
    path: Path
    adaptation: AdaptationSpec | None = None

    @property
    def model(self) -> Classifier:
        """The classifier with the sizes of its data."""
        assert isinstance(self.cell.model, Classifier)
        return self.cell.model.sized(self.lesson.dataset.sizes())

    @property
    def identity(self) -> dict[str, Any]:
        """What makes two runs the same: the model, the recipe, the labels and what it was adapted from."""
        given = {"data": self.lesson.dataset.hash, "tokenizer": self.lesson.dataset.tokenizer.hash}
        base = (
            {"method": self.adaptation.method.to_dict(), "base": self.adaptation.base_hash} if self.adaptation else {}
        )
        words = _words(self.data.to_dict())
        return {"model": self.model.to_dict(), "recipe": self.cell.recipe.to_dict(), "labels": words, **given, **base}

    def refuse_other(self) -> None:
        """Refuse a folder in which another run stands."""
        refuse_other_run(Plan(self.cell, self.model, self.cell.recipe, self.path, self.lesson.dataset.hash))
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
        return measure(run, self.lesson)

    def _train(self, watcher: Observer) -> None:
        lesson = self.lesson
        given: dict[str, Any] = {"evaluate": lesson.evaluate, "sample": lesson.sample, "observer": watcher}
        if not is_begun(self.path):
            remove_unbegun(self.path)
            cell, dataset = self.cell, lesson.dataset
            result = train(self.model, cell.recipe, self.data, dataset, self.path, adaptation=self.adaptation, **given)
        elif RunFolder.open(self.path).finished:
            return
        else:
            result = resume(self.path, lesson.dataset, **given)
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


def measure(run: Run, lesson: LabelsLesson) -> LabelMeasures:
    """Classify the test texts, and read off what the run was and took."""
    model, examples = run.classifier, lesson.dataset.tokens(TEST)
    found = classify(model, examples)
    score = score_classes(examples.classes, found, lesson.dataset.labels, {})
    right = np.asarray(found).argmax(-1) == examples.classes
    return measures_of(run, score, right, layers_of(model))


def measures_of(run: Run, score: ClassificationScore, right: np.ndarray, layers: int) -> LabelMeasures:
    """What a run was and took, beside how it did."""
    summary: Mapping[str, Any] = run.summary or {}
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
        low=score.accuracy.low,
        high=score.accuracy.high,
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
