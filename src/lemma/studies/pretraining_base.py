"""The body that a study of pretraining begins with: trained on the texts without labels, as a run of its own."""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemma.errors import LemmaError, SpecError
from lemma.runs import RunFolder
from lemma.runs.folder import is_begun, remove_unbegun
from lemma.spec import DataSpec, EncoderDecoder, ModelSpec, PretrainingStudy, Recipe
from lemma.studies.clock import tokens_a_step
from lemma.studies.grid import Cell
from lemma.studies.label_cells import Described, paced
from lemma.studies.lessons import AnyLesson, lesson_for_data
from lemma.studies.plan import Plan, refuse_other_run
from lemma.training import Observer, resume, train

TEXTS_FILE = "texts.txt"
HELD_OUT = 0.05
"""The share of the texts without labels on which pretraining is validated."""
SHARED = ("device", "precision", "compile")
"""Words of the classifiers' recipe that hold for pretraining too, unless it has its own."""


def text_of(study: PretrainingStudy, path: Path) -> DataSpec:
    """The texts without labels as data; their tokenizer is that of both arms."""
    return DataSpec(text=(str(path.resolve()),), tokenizer=study.tokenizer, held_out=HELD_OUT)


def prepared_text(study: PretrainingStudy, described: Described, path: Path, watcher: Observer) -> AnyLesson:
    """The texts as tokens, with how a body that learns them is validated."""
    body = described.model.body
    if isinstance(body, EncoderDecoder):
        raise SpecError("study pretraining: an encoder-decoder learns pairs of texts. Take body=encoder, or decoder.")
    if "seed" in study.pretraining:
        raise SpecError(
            "study.pretraining: 'seed' is no word for single runs. Give the study `seeds`, as in seeds=[1,2]."
        )
    return lesson_for_data(text_of(study, path), body, Recipe.read(study.pretraining, "study.pretraining"), watcher)


@dataclass(frozen=True)
class Base:
    """A body that is pretrained with one seed."""

    study: PretrainingStudy
    described: Described
    lesson: AnyLesson
    seed: int
    out: Path

    @property
    def model(self) -> ModelSpec:
        """The body, with the vocabulary of the texts."""
        return self.described.model.body.sized(self.lesson.dataset.sizes())

    @property
    def recipe(self) -> Recipe:
        """The recipe of pretraining: the texts read `passes` times unless it says how many steps."""
        shared = {word: self.described.recipe[word] for word in SHARED if word in self.described.recipe}
        words: dict[str, Any] = {**shared, **self.study.pretraining, "seed": self.seed}
        recipe = Recipe.read(words, "study.pretraining")
        if "steps" not in words:
            tokens = self.study.passes * len(self.lesson.dataset.tokens("train"))
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
        refuse_other_run(Plan(self.cell, self.model, self.recipe, self.path, self.lesson.dataset.hash))

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
        lesson = self.lesson
        given: dict[str, Any] = {"evaluate": lesson.evaluate, "sample": lambda model: [], "observer": watcher}
        if not is_begun(self.path):
            remove_unbegun(self.path)
            data = text_of(self.study, self.out / TEXTS_FILE)
            result = train(self.model, self.recipe, data, lesson.dataset, self.path, **given)
        elif self.finished:
            return
        else:
            result = resume(self.path, lesson.dataset, **given)
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
