"""Adapting a trained model to labels, text, pairs or pictures of one's own: base, recipe, training and score."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemma.errors import SpecError, unknown
from lemma.runs import RunFolder, adaptation_of, load
from lemma.runs.based import always_learned, refuse_adapters, refuse_unfinished
from lemma.runs.folder import SPEC
from lemma.spec import (
    METHODS,
    AnyDataSpec,
    BytePairs,
    Choice,
    Classifier,
    CrossAttention,
    DualEncoder,
    Graph,
    GraphSpec,
    Method,
    ModelSpec,
    Parser,
    Pooling,
    Reading,
    Recipe,
    Reranking,
    Spec,
    TreebankSpec,
    distribute,
    refuse_idle,
)
from lemma.studies.adapted import Adapted, stored_bytes
from lemma.studies.asking import Asked
from lemma.studies.judged import judge_run
from lemma.studies.lessons import AnyLesson, LabelsLesson, lesson_for_data
from lemma.studies.measuring import device_of
from lemma.training import Observer, Silent, TrainingResult, resume, train

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
