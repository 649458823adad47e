"""What an adaptation came to."""

import math
import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from torch import nn

from lemma.adaptation.adapt import merged
from lemma.counting.count import trainable_text
from lemma.errors import DataError, SpecError, unknown
from lemma.models.classifier import ClassifierModel
from lemma.report.text import label
from lemma.runs.folder import ADAPTATION, LABELS, RECIPE, SPEC, SUMMARY, WEIGHTS, RunFolder
from lemma.runs.load import Run, adaptation_of, always_learned, load, refuse_adapters, refuse_unfinished
from lemma.spec.base import Spec, distribute
from lemma.spec.choose import Choice, refuse_idle
from lemma.spec.data import AnyDataSpec, BytePairs, GraphSpec, TreebankSpec
from lemma.spec.models import (
    Classifier,
    CrossAttention,
    DualEncoder,
    Graph,
    ModelSpec,
    Parser,
    Pooling,
    Reading,
    Reranking,
)
from lemma.spec.recipe import METHODS, Method, Recipe
from lemma.studies.data_args import Asked
from lemma.studies.evaluate import AnyScore, judge_run
from lemma.studies.task_data import AnyLesson, LabelsLesson, lesson_for_data
from lemma.studies.timing import device_of
from lemma.training.loop import resume, train
from lemma.training.progress import Observer, Silent
from lemma.training.result import TrainingResult

KEPT = (SPEC, RECIPE, ADAPTATION, LABELS, WEIGHTS, SUMMARY)
"""The files that an adapted run needs; the rest is its diary."""


@dataclass(frozen=True)
class Adapted:
    """An adapted run: what was learned of how much, what is stored, and how well it does on what was held out."""

    path: Path
    base: Path
    spec: ModelSpec
    method: Method
    always: tuple[str, ...]
    """Patterns of what learns whatever the method."""
    learned: int
    parameters: int
    stored_bytes: int
    training: TrainingResult
    score: AnyScore

    @cached_property
    def formula(self) -> str:
        """The parameters that were learned, as a formula read off the adapted module and proved against it."""
        return trainable_text(self.spec, self.method, self.always)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "path": str(self.path),
            "base": str(self.base),
            "method": self.method.to_dict(),
            "formula": self.formula,
            "learned": self.learned,
            "parameters": self.parameters,
            "stored_bytes": self.stored_bytes,
            "training": self.training.to_dict(),
            "score": self.score.to_dict(),
        }

    def __str__(self) -> str:
        head = "\n".join(label(name, value, 11) for name, value in self._lines())
        return f"{head}\n\nOn what was held out:\n{self.score}\n\nThe run is in {self.path}"

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._lines())
        shown = getattr(self.score, "_repr_html_", lambda: f"<pre>{escape(str(self.score))}</pre>")
        return f"<table>{''.join(rows)}</table>{shown()}"

    def _lines(self) -> list[tuple[str, str]]:
        told = {word: value for word, value in self.method.to_dict().items() if word != "kind" and value != []}
        words = ", ".join(f"{word} {value}" for word, value in told.items())
        share = 100 * self.learned / self.parameters
        return [
            ("method", self.method.kind + (f" ({words})" if words else "")),
            ("base", str(self.base)),
            ("learned", f"{self.learned:,} of {self.parameters:,} parameters ({share:.2f} %)"),
            ("formula", self.formula),
            ("stored", f"{self.stored_bytes:,} bytes beside the base"),
            ("time", f"{self.training.seconds:.1f} s, {self.training.steps:,} steps"),
            *(("warning", warning) for warning in self.training.warnings),
        ]


def stored_bytes(folder: RunFolder) -> int:
    """The bytes that must be kept of a run, beside its base."""
    return sum((folder.path / name).stat().st_size for name in KEPT if (folder.path / name).exists())


# Adapting a trained model to labels, text, pairs or pictures of one's own: base, recipe, training and score.


RATES = {"frozen": 5e-3, "full": 5e-4, "adapters": 2e-3, "lora": 2e-3}
"""Learning rates: the fewer weights move, the further they have to."""
EPOCHS = 6
STEPS = (60, 1500)
"""Labelled texts are read so often, within these bounds, unless steps are given."""
OTHERWISE = 400
"""Steps on text, pairs and pictures unless they are given."""
BATCHES = {"dual-encoder": 128, "cross-attention": 64}
"""Pictures a batch are each other's wrong answers, so that there must be many; of all else 32 a batch."""


@dataclass(frozen=True)
class Plan:
    """All that is known of an adaptation before it is trained."""

    base: RunFolder
    model: ModelSpec
    method: Method
    recipe: Recipe
    data: AnyDataSpec
    lesson: AnyLesson


def plan_adaptation(
    run: Path | str,
    asked: Asked,
    method: str | Method,
    words: Mapping[str, Any],
    watcher: Observer,
    lesson: AnyLesson | None = None,
    rerank: bool = False,
) -> Plan:
    """Find the base, the data as it reads them, and the recipe; what cannot be adapted is said before any work.

    A `lesson` that is ready already, for another method, is taken as it is. With `rerank` a re-ranker is made of a dual
    encoder.
    """
    base = RunFolder.open(Path(run))
    refuse_unfinished(base)
    model = reranker_spec(base.spec, asked) if rerank else adapted_spec(base.spec, asked)
    refuse_adapters(base)
    chosen = method if isinstance(method, Spec) else method_named(method)
    refuse_words_of_others(words, chosen, base.spec)
    shares = distribute(words, {"method": type(chosen), "recipe": Recipe, **_kinds(model)})
    model = model.replace(**shares.get("model", {}))
    refuse_idle(shares["recipe"], model)
    known = Recipe.read(shares["recipe"], "recipe")
    data = asked.spec(Choice(model, Recipe(), BytePairs()))
    assert not isinstance(base.data, TreebankSpec | GraphSpec)  # what these teach was refused
    data = data.replace(tokenizer=base.data.tokenizer.to_dict())
    lesson = lesson or lesson_for_data(data, model, known, watcher, base.tokenizer())
    recipe = recipe_for(chosen.kind, lesson, shares["recipe"], BATCHES.get(model.family, 32))
    return Plan(base, model, chosen.replace(**shares["method"]), recipe, data, lesson)


def adapted_spec(base: ModelSpec, asked: Asked) -> ModelSpec:
    """The model that is learned: a classifier with the base for its body, or the base itself."""
    if isinstance(base, Parser):
        raise SpecError("a parser reads whole words of a treebank and cannot be adapted. Adapt a language model.")
    if isinstance(base, Graph):
        raise SpecError("a graph model knows the graph that it learned and cannot be adapted. Adapt a language model.")
    if asked.kind is None or asked.kind in ("treebank", "graph"):
        raise SpecError("adapt: give labels, text, pairs or images to adapt to, as in --labels FILE.csv.")
    if asked.kind == "labels" and not isinstance(base, CrossAttention):
        return Classifier(body=base.body if isinstance(base, Reading) else base)
    if isinstance(base, DualEncoder | CrossAttention) and asked.kind != "images":
        raise SpecError(f"adapt: a model of the family {base.family} learns images, as in --images FOLDER.")
    return base


def reranker_spec(base: ModelSpec, asked: Asked) -> ModelSpec:
    """The re-ranker of a dual encoder."""
    if asked.kind != "images":
        raise SpecError("adapt: a re-ranker learns images with captions, as in --rerank --images FOLDER.")
    if not isinstance(base, DualEncoder):
        more = " It is one already: leave --rerank out to let it learn on." if base.family == "cross-attention" else ""
        raise SpecError(f"adapt: a re-ranker is made of a dual-encoder, not of a model of {base.family}.{more}")
    return CrossAttention(towers=base)


def refuse_words_of_others(words: Mapping[str, Any], method: Method, base: ModelSpec) -> None:
    """Say of a word that another method or the base itself has, whose it is."""
    known = {*type(method).known_words(), *Recipe.known_words()}
    for word in (word for word in words if word not in known):
        owner = next((name for name, kind in METHODS.items() if word in kind.known_words()), None)
        if owner is not None:
            raise SpecError(f"adapt: {word} is a word of the method {owner}, not of {method.kind}.")
        if word in type(base).known_words():
            raise SpecError(f"adapt: {word} is the base's, and cannot be changed by adapting it.")


def method_named(name: str) -> Method:
    """The method of that name, with its own settings."""
    if str(name) not in METHODS:
        raise SpecError(unknown("method", str(name), [*METHODS, "all"]))
    return METHODS[name]()


def recipe_for(method: str, lesson: AnyLesson, words: Mapping[str, Any], usual: int = 32) -> Recipe:
    """The recipe of an adaptation: what was asked for, or else what suits the method and the amount of data."""
    batch = words.get("batch", usual)
    steps = words.get("steps", steps_for(lesson, batch))
    own = {"learning_rate": RATES[method], "batch": batch, "steps": steps, "warm_up": max(1, steps // 10)}
    return Recipe.read({**own, "weight_decay": 0.01, **words}, "recipe")


def steps_for(lesson: AnyLesson, batch: int) -> int:
    """How many steps read the labelled texts a few times over."""
    if not isinstance(lesson, LabelsLesson):
        return OTHERWISE
    texts = len(lesson.dataset.tokens("train").lengths)
    return min(max(math.ceil(EPOCHS * texts / batch), STEPS[0]), STEPS[1])


def adapt_run(plan: Plan, out: Path, watcher: Observer, overwrite: bool = False) -> TrainingResult:
    """Train what the plan says into the folder `out`, which keeps only what changed."""
    lesson: Any = plan.lesson
    return train(
        plan.model,
        plan.recipe,
        plan.data,
        lesson.dataset,
        out,
        evaluate=lesson.evaluate,
        sample=lesson.sample,
        observer=watcher,
        overwrite=overwrite,
        adaptation=adaptation_of(plan.base, out, plan.method),
    )


def _kinds(model: ModelSpec) -> dict[str, type[Spec]]:
    """Of the model's own words only a classifier's and a re-ranker's can be chosen: the rest is the base's."""
    if isinstance(model, CrossAttention):
        return {"model": Reranking}
    return {"model": Pooling} if isinstance(model, Classifier) else {}


def adapted_by(plan: Plan, out: Path, watcher: Observer, overwrite: bool = False) -> Adapted | TrainingResult:
    """Train a plan and measure what came of it on what was held out; where it was interrupted, say only that.

    Of several processes only the leader measures.
    """
    training = adapt_run(plan, out, watcher, overwrite)
    return training if training.stopped == "interrupted" or not leads() else measured_run(plan, out, training)


def finished_by(plan: Plan, out: Path, watcher: Observer, overwrite: bool = False) -> Adapted | TrainingResult:
    """The same, but what an earlier call of the same plan has done is not done again, and what it began goes on."""
    if overwrite or not is_same(plan, out):
        return adapted_by(plan, out, watcher, overwrite)
    folder, lesson = RunFolder.open(out), plan.lesson
    if folder.finished:
        return measured_run(plan, out, TrainingResult.read(folder.summary() or {}))
    given: Any = {"evaluate": lesson.evaluate, "sample": lesson.sample, "observer": watcher}
    training = resume(out, lesson.dataset, **given)
    return training if training.stopped == "interrupted" else measured_run(plan, out, training)


def is_same(plan: Plan, out: Path) -> bool:
    """Whether a run stands there that was made by the same plan."""
    if not (out / SPEC).exists():
        return False
    folder, dataset = RunFolder.open(out), plan.lesson.dataset
    ours = (plan.recipe, plan.data, dataset.hash, adaptation_of(plan.base, out, plan.method))
    same = (folder.recipe, folder.data, folder.data_hash, folder.adaptation) == ours
    return same and folder.spec == plan.model.sized(dataset.sizes())


def measured_run(plan: Plan, out: Path, training: TrainingResult) -> Adapted:
    """Put the figures of a finished run together with its score on what was held out."""
    loaded = load(out, device_of(plan.recipe))
    return Adapted(
        path=out,
        base=plan.base.path,
        spec=loaded.spec,
        method=plan.method,
        always=always_learned(loaded.spec, plan.method),
        learned=training.learned,
        parameters=training.parameters,
        stored_bytes=stored_bytes(RunFolder.open(out)),
        training=training,
        score=judge_run(loaded, Asked(), None, {}, Silent()),
    )


def leads() -> bool:
    """Whether this process is the only one, or the first of several."""
    return os.environ.get("RANK", "0") == "0"


# What a model has forgotten of its base's data by being adapted to something else.


@dataclass(frozen=True)
class Forgetting:
    """The perplexity of the base's held-out data, with the base's own weights and with the adapted ones."""

    before: float
    after: float

    @property
    def ratio(self) -> float:
        """How many times as perplexed it is; 1 if nothing is forgotten."""
        return self.after / self.before

    def to_dict(self) -> dict[str, float]:
        """Return plain values."""
        return {"before": self.before, "after": self.after, "ratio": self.ratio}


def forgetting(run: Run, base: Run, lesson: AnyLesson, before: float) -> Forgetting:
    """Let the adapted model do the base's work again, on the data that the base held out."""
    folds = run.adaptation is not None and run.adaptation.method.kind != "adapters"
    whole = merged(run.module) if folds else run.module
    return Forgetting(before, float(lesson.evaluate(as_base(whole, base.module)).perplexity))


def as_base(whole: nn.Module, base: nn.Module) -> Any:
    """The base's own kind of model with the adapted weights: a classifier's body gets back what it had left out."""
    if not isinstance(whole, ClassifierModel):
        return whole
    body: Any = whole.body
    for name in type(body).outward:
        setattr(body, name, deepcopy(getattr(base, name)))  # a copy: the base is to stay as it is
    if getattr(body.spec, "tied", False) and body.output is not None:
        body.output.weight = body.embedding.weight  # what was learned of the one holds for the other
    return body.eval()


# The base of an adaptation at its own work, before and after: what each method has forgotten of it.


@dataclass(frozen=True)
class Base:
    """The base at its own work: its lesson and its perplexity on what it held out; or why that cannot be had."""

    run: Run | None = None
    lesson: AnyLesson | None = None
    before: float = math.nan
    why_not: str = ""


def base_of(plan: Plan) -> Base:
    """Let the base do its own work once more, before anything is trained."""
    if isinstance(plan.base.spec, Classifier):
        return Base(why_not="The base is a classifier, of which no perplexity can be forgotten.")
    run = load(plan.base.path, device_of(plan.recipe))
    try:
        lesson = lesson_for_data(run.data, run.spec, run.recipe, Silent(), run.vocabulary)
    except DataError as error:
        return Base(why_not=f"What was forgotten is not known: the base's own data cannot be read ({error})")
    if lesson.dataset.hash != run.data_hash:
        return Base(why_not="What was forgotten is not known: the base's own data have changed since it was trained.")
    evaluate: Any = lesson.evaluate
    return Base(run, lesson, float(evaluate(run.module).perplexity))


def lost_by(base: Base, adapted: Mapping[str, Adapted], device: str) -> dict[str, Forgetting]:
    """How much of its base's data each method has forgotten, where that can be known."""
    if base.run is None or base.lesson is None:
        return {}
    return {
        name: forgetting(load(one.path, device), base.run, base.lesson, base.before) for name, one in adapted.items()
    }
