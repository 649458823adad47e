"""Adapting a trained model to labels, text, pairs or images of your own."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lemma.adaptation.adapt import merge_lora
from lemma.data.splits import Splits
from lemma.errors import DataError, SpecError, describe_unknown
from lemma.models.classifier import ClassifierModel
from lemma.report.progress import Observer, SilentObserver
from lemma.report.result import Block, Heading, Result, Table
from lemma.report.text import label_line
from lemma.runs.folder import ADAPTATION, LABELS, RECIPE, SPEC, SUMMARY, WEIGHTS, RunFolder
from lemma.runs.load import Run, always_trainable, check_finished, check_no_adapters, load, make_adaptation_spec
from lemma.spec.base import Spec, assign_settings
from lemma.spec.choose import Choice, check_recipe_settings
from lemma.spec.data import DATA_SPECS, AnyDataSpec, BytePairs, PretrainedData
from lemma.spec.models import (
    BodySpec,
    Classifier,
    ClassifierHead,
    CrossAttention,
    Decoder,
    DualEncoder,
    ModelSpec,
    Reranking,
    TextReader,
    max_text_tokens,
)
from lemma.spec.recipe import METHODS, Method, Recipe
from lemma.tasks.base import LoadContext, Score, epochs_to_steps, evaluate_run
from lemma.tasks.registry import LANGUAGE, DataArgs, check_epochs, task_for
from lemma.training.devices import choose_device
from lemma.training.loop import TrainingResult, fit_recipe, resume, train

Describe = Callable[[ModelSpec, Method, tuple[str, ...]], str]
"""Formula of the trained parameters from a spec, a method and the patterns that are always trained. It is passed in,
since `lemma.counting` comes later in the order of packages."""
STORED_FILES = (SPEC, RECIPE, ADAPTATION, LABELS, WEIGHTS, SUMMARY)
"""Files that an adapted run needs; the others are logs."""


@dataclass(frozen=True)
class AdaptResult(Result):
    """An adapted run: trained and stored parameters, and its score on the held-out data."""

    title = "Adapted model"
    json_names = ("path", "base", "method", "formula", "learned", "parameters", "stored_bytes", "training", "score")

    path: Path
    base: Path
    spec: ModelSpec
    method: Method
    always_trained: tuple[str, ...]  # patterns of the parameters that are trained with every method
    learned: int
    parameters: int
    stored_bytes: int
    training: TrainingResult
    score: Score
    describe: Describe  # returns the formula of the trained parameters

    @cached_property
    def formula(self) -> str:
        """Formula of the number of trained parameters, read off the adapted module and proved against it."""
        return self.describe(self.spec, self.method, self.always_trained)

    def __str__(self) -> str:
        head = "\n".join(label_line(name, value, 11) for name, value in self._lines())
        return f"{head}\n\nOn the held-out data:\n{self.score}\n\nThe run is in {self.path}"

    def blocks(self) -> Iterator[Block]:
        """Yield a table of the adaptation's figures, and the blocks of the score."""
        yield Table(("", ""), self._lines(), is_text=True)
        yield Heading("On the held-out data")
        yield from self.score.blocks()

    def _lines(self) -> list[tuple[str, str]]:
        """Return (name, value) pairs for the table: method, base, trained parameters, time, warnings."""
        settings = {name: value for name, value in self.method.to_dict().items() if name != "kind" and value != []}
        listed = ", ".join(f"{name} {value}" for name, value in settings.items())
        percent = 100 * self.learned / self.parameters
        return [
            ("method", self.method.kind + (f" ({listed})" if listed else "")),
            ("base", str(self.base)),
            ("learned", f"{self.learned:,} of {self.parameters:,} parameters ({percent:.2f} %)"),
            ("formula", self.formula),
            ("stored", f"{self.stored_bytes:,} bytes next to the base"),
            ("time", f"{self.training.seconds:.1f} s, {self.training.steps:,} steps"),
            *(("warning", warning) for warning in self.training.warnings),
        ]


LEARNING_RATES = {"frozen": 5e-3, "full": 5e-4, "adapters": 2e-3, "lora": 2e-3}
"""Learning rates by method: larger for fewer trained weights."""
PRETRAINED_LEARNING_RATES = {"frozen": 1e-3, "full": 5e-5, "adapters": 5e-4, "lora": 5e-4}
"""Learning rates for pretrained models, which have more to forget."""
PRETRAINED_BATCH = {"batch": 8, "sequence_length": 128}
"""Batch of a pretrained model that is adapted to text or labels: a step of its whole context would take too long."""
EPOCHS, STEPS = 6, (60, 1500)
PRETRAINED_EPOCHS, PRETRAINED_STEPS, PRETRAINED_VALIDATIONS = 2, (60, 200), 3
"""Default epochs of labelled texts, within bounds of steps; fewer for a pretrained model."""
DEFAULT_STEPS = 400  # on text, pairs and images


@dataclass(frozen=True)
class AdaptationPlan:
    """An adaptation before it is trained: base, spec, method, recipe and data."""

    base: RunFolder
    model: ModelSpec
    method: Method
    recipe: Recipe
    data_spec: AnyDataSpec
    data: Splits[Any]


def plan_adaptation(
    run: Path | str,
    args: DataArgs,
    method: str | Method,
    settings: Mapping[str, Any],
    observer: Observer,
    data: Splits[Any] | None = None,
    rerank: bool = False,
) -> AdaptationPlan:
    """Return the plan of adapting `run` to the data in `args` by a method; raise an error if it cannot be done.

    Args:
        settings: Settings (name → value) of the method, of the recipe and of an added head.
        data: Splits that are loaded already, such as for another method.
        rerank: Make a re-ranker of a dual encoder.
    """
    base = RunFolder.open(Path(run))
    check_finished(base)
    model = adapted_spec(base.spec, args, rerank)
    if isinstance(model, Classifier) and isinstance(model.body, Decoder):
        model = model.replace(head_bias=False)  # like transformers' class, as which the run can be exported
    check_no_adapters(base)
    if not isinstance(method, Spec) and str(method) not in METHODS:
        raise SpecError(describe_unknown("method", str(method), [*METHODS, "all"]))
    method = method if isinstance(method, Spec) else METHODS[method]()
    settings = dict(settings)
    epochs = settings.pop("epochs", None)
    check_epochs(epochs, settings)
    _check_settings(settings, method, base.spec)
    spec_classes: dict[str, type[Spec]] = {"method": type(method), "recipe": Recipe}
    if isinstance(model, CrossAttention | Classifier):  # all other settings of the model are the base's
        spec_classes["model"] = Reranking if isinstance(model, CrossAttention) else ClassifierHead
    by_class = assign_settings(settings, spec_classes, ("epochs",))
    recipe_settings = by_class["recipe"]
    model = model.replace(**by_class.get("model", {}))
    check_recipe_settings(recipe_settings, model)
    task = task_for(model)
    is_pretrained, has_labels = isinstance(base.data, PretrainedData), task.info.option == "labels"
    defaults: dict[str, int] = {}
    if is_pretrained and (has_labels or task.info is LANGUAGE):
        limit = max_text_tokens(model.body) if isinstance(model, Classifier) else getattr(model, "context", None)
        length = PRETRAINED_BATCH["sequence_length"]
        defaults = {**PRETRAINED_BATCH, "sequence_length": min(length, limit or length)}
    reading = Recipe.read({**defaults, **recipe_settings}, "recipe")
    data_spec: Any = args.spec(Choice(model, Recipe(), BytePairs()))
    data_spec = data_spec.replace(tokenizer=base.data.to_dict()["tokenizer"])
    data = data or task.load(data_spec, LoadContext(model, reading, observer, base.tokenizer()))
    batch, steps = recipe_settings.get("batch", defaults.get("batch", task.info.adaptation_batch)), DEFAULT_STEPS
    if epochs is not None:
        steps = epochs_to_steps(epochs, task, model, data, reading.replace(batch=batch), observer)
    elif has_labels:
        default_epochs, (low, high) = (PRETRAINED_EPOCHS, PRETRAINED_STEPS) if is_pretrained else (EPOCHS, STEPS)
        steps = min(max(math.ceil(default_epochs * len(data.item("train").lengths) / batch), low), high)
    steps = recipe_settings.get("steps", steps)
    rate = (PRETRAINED_LEARNING_RATES if is_pretrained else LEARNING_RATES)[method.kind]
    method_defaults = {"learning_rate": rate, "batch": batch, "steps": steps, "warm_up": max(1, steps // 10)}
    if is_pretrained and has_labels:
        method_defaults["evaluate_every"] = math.ceil(steps / PRETRAINED_VALIDATIONS)
    recipe = Recipe.read({**method_defaults, **defaults, "weight_decay": 0.01, **recipe_settings}, "recipe")
    recipe = fit_recipe(recipe, observer, max_steps=recipe.steps)
    return AdaptationPlan(base, model, method.replace(**by_class["method"]), recipe, data_spec, data)


def _check_settings(settings: Mapping[str, Any], method: Method, base: ModelSpec) -> None:
    """Raise SpecError if a setting belongs to another adaptation method, or to the base and cannot be changed."""
    allowed = {*type(method).setting_names(), *Recipe.setting_names()}
    for name in (name for name in settings if name not in allowed):
        owner = next((other for other, spec_class in METHODS.items() if name in spec_class.setting_names()), None)
        if owner is not None:
            raise SpecError(f"adapt: {name} is a setting of the method {owner}, not of {method.kind}.")
        if name in type(base).setting_names():
            raise SpecError(f"adapt: {name} is the base's, and cannot be changed by adapting it.")


def adapted_spec(base: ModelSpec, args: DataArgs, rerank: bool) -> ModelSpec:
    """Return the spec to train: a classifier on the base, a re-ranker of the base, or the base's own spec."""
    if rerank:
        if args.option != "images":
            raise SpecError("adapt: a re-ranker learns images with captions, as in --rerank --images FOLDER.")
        if not isinstance(base, DualEncoder):
            is_reranker = isinstance(base, CrossAttention)
            hint = " It is one already: leave --rerank out to train it further." if is_reranker else ""
            raise SpecError(f"adapt: a re-ranker is made of a dual-encoder, not of a model of {base.family}.{hint}")
        return CrossAttention(towers=base)
    if "tokenizer" not in DATA_SPECS[base.data_kind].model_fields:
        raise SpecError(
            f"a model of the family {base.family} has no tokenizer and cannot be adapted. Adapt a language model."
        )
    if args.option is None or "tokenizer" not in DATA_SPECS[args.option].model_fields:
        raise SpecError("adapt: give labels, text, pairs or images to adapt to, as in --labels FILE.csv.")
    if args.option == "labels" and not isinstance(base, CrossAttention):
        body = base.body if isinstance(base, TextReader) else base
        assert isinstance(body, BodySpec)
        return Classifier(body=body)
    if isinstance(base, DualEncoder | CrossAttention) and args.option != "images":
        raise SpecError(f"adapt: a model of the family {base.family} learns images, as in --images FOLDER.")
    return base


def adapt_run(
    plan: AdaptationPlan, out: Path, observer: Observer, describe: Describe, overwrite: bool = False
) -> AdaptResult | TrainingResult:
    """Train a plan's model into the run folder `out`, which stores only what changed; return its held-out score.

    If training is interrupted, and in processes other than the main one, the result of training is returned. `describe`
    returns the formula of the trained parameters.
    """
    training = train(
        plan.model,
        plan.recipe,
        plan.data_spec,
        plan.data,
        out,
        observer=observer,
        overwrite=overwrite,
        adaptation=make_adaptation_spec(plan.base, out, plan.method),
    )
    if training.interrupted or not is_main_process():
        return training
    return evaluate_adapted(plan, out, training, describe)


def adapt_or_resume(
    plan: AdaptationPlan, out: Path, observer: Observer, describe: Describe, overwrite: bool = False
) -> AdaptResult | TrainingResult:
    """Do as `adapt_run`, but return or resume a run of the same plan if `out` holds one."""
    if overwrite or not has_same_plan(plan, out):
        return adapt_run(plan, out, observer, describe, overwrite)
    folder = RunFolder.open(out)
    if folder.is_finished:
        return evaluate_adapted(plan, out, TrainingResult.from_dict(folder.summary() or {}), describe)
    training = resume(out, plan.data, observer=observer)
    return training if training.interrupted else evaluate_adapted(plan, out, training, describe)


def has_same_plan(plan: AdaptationPlan, out: Path) -> bool:
    """Return whether the folder `out` holds a run made by the same plan, finished or not."""
    if not (out / SPEC).exists():
        return False
    folder = RunFolder.open(out)
    expected = (plan.recipe, plan.data_spec, plan.data.hash, make_adaptation_spec(plan.base, out, plan.method))
    is_same = (folder.recipe, folder.data, folder.data_hash, folder.adaptation) == expected
    return is_same and folder.spec == plan.model.with_data_sizes(plan.data.sizes())


def evaluate_adapted(plan: AdaptationPlan, out: Path, training: TrainingResult, describe: Describe) -> AdaptResult:
    """Return the held-out score of the finished run in `out`, with the figures of its training."""
    loaded = load(out, str(choose_device(plan.recipe)))
    return AdaptResult(
        path=out,
        base=plan.base.path,
        spec=loaded.spec,
        method=plan.method,
        always_trained=always_trainable(loaded.spec, plan.method),
        learned=training.learned,
        parameters=training.parameters,
        stored_bytes=sum((out / name).stat().st_size for name in STORED_FILES if (out / name).exists()),
        training=training,
        score=evaluate_run(loaded, DataArgs(), None, {}, SilentObserver()),
        describe=describe,
    )


def is_main_process() -> bool:
    """Return whether this process is the only one, or the first of several."""
    return os.environ.get("RANK", "0") == "0"


# Forgetting of the base's data


@dataclass(frozen=True)
class Forgetting:
    """Perplexity on the base's held-out data, before and after adaptation."""

    before: float
    after: float

    @property
    def ratio(self) -> float:
        """Perplexity after adaptation over perplexity before; 1 if nothing is forgotten."""
        return self.after / self.before

    def to_dict(self) -> dict[str, float]:
        """Return both perplexities and their ratio by name."""
        return {"before": self.before, "after": self.after, "ratio": self.ratio}


@dataclass(frozen=True)
class BaseEvaluation:
    """Perplexity of a base on its own validation data before adaptation, or the reason why it is unknown."""

    run: Run | None = None
    data: Splits[Any] | None = None
    before: float = math.nan
    reason: str = ""

    @classmethod
    def measure(cls, plan: AdaptationPlan) -> "BaseEvaluation":
        """Return the perplexity of a plan's base on the base's own data, or the reason why it is unknown."""
        if isinstance(plan.base.spec, Classifier):
            return cls(reason="The base is a classifier, of which no perplexity can be forgotten.")
        if isinstance(plan.base.data, PretrainedData):
            return cls(reason="What was forgotten is not known: the base is pretrained, on data that are not here.")
        run = load(plan.base.path, str(choose_device(plan.recipe)))
        task = task_for(run.spec)
        try:
            data = task.load(run.data, LoadContext.of_run(run, SilentObserver()))
        except DataError as error:
            return cls(reason=f"What was forgotten is not known: the base's own data cannot be read ({error})")
        if data.hash != run.data_hash:
            return cls(reason="What was forgotten is not known: the base's own data have changed since training.")
        return cls(run, data, float(task.validate(run.module, data, run.recipe).perplexity))

    def measure_forgetting(self, run: Run) -> Forgetting | None:
        """Return the perplexities of base and adapted run on the base's data; None if the base's is unknown."""
        if self.run is None:
            return None
        can_merge = run.adaptation is not None and run.adaptation.method.kind != "adapters"
        model: Any = merge_lora(run.module) if can_merge else run.module
        if isinstance(model, ClassifierModel):  # its body gets the output layers of the base back
            model = model.body
            for name in type(model).output_modules:
                setattr(model, name, deepcopy(getattr(self.run.module, name)))  # copied, to leave the base as it is
            if getattr(model.spec, "tied", False) and model.output is not None:
                model.output.weight = model.embedding.weight
            model.eval()
        score = task_for(self.run.spec).validate(model, self.data, self.run.recipe)
        return Forgetting(self.before, float(score.perplexity))
