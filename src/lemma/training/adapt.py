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
from lemma.spec.base import Spec, distribute
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
from lemma.spec.recipe import METHODS, Method, Recipe, fit_warm_up, warm_up_message
from lemma.tasks.base import DataArgs, Score, check_epochs, epochs_to_steps
from lemma.tasks.classification import ClassificationTask
from lemma.tasks.language import LanguageTask
from lemma.tasks.registry import evaluate_run, task_for
from lemma.training.loop import TrainingResult, resume, train
from lemma.training.precision import choose_device

Describe = Callable[[ModelSpec, Method, tuple[str, ...]], str]
"""From a spec, a method and what is always trained to the formula of the trained parameters; counting comes later in
the order of the rooms, so it is passed in."""
STORED_FILES = (SPEC, RECIPE, ADAPTATION, LABELS, WEIGHTS, SUMMARY)
"""The files that an adapted run needs; the rest are logs."""


@dataclass(frozen=True)
class AdaptResult(Result):
    """An adapted run: what was learned of how much, what is stored, and how well it does on what was held out."""

    title = "Adapted model"

    path: Path
    base: Path
    spec: ModelSpec
    method: Method
    always_trained: tuple[str, ...]
    """Patterns of the parameters that are trained whatever the method."""
    learned: int
    parameters: int
    stored_bytes: int
    training: TrainingResult
    score: Score
    describe: Describe
    """What gives the formula."""

    @cached_property
    def formula(self) -> str:
        """The trained parameters, as a formula read off the adapted module and proved against it."""
        return self.describe(self.spec, self.method, self.always_trained)

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
        head = "\n".join(label_line(name, value, 11) for name, value in self._lines())
        return f"{head}\n\nOn the held-out data:\n{self.score}\n\nThe run is in {self.path}"

    def blocks(self) -> Iterator[Block]:
        """What was trained, and its score."""
        yield Table(("", ""), self._lines(), is_text=True)
        yield Heading("On the held-out data")
        yield from self.score.blocks()

    def _lines(self) -> list[tuple[str, str]]:
        told = {word: value for word, value in self.method.to_dict().items() if word != "kind" and value != []}
        words = ", ".join(f"{word} {value}" for word, value in told.items())
        share = 100 * self.learned / self.parameters
        return [
            ("method", self.method.kind + (f" ({words})" if words else "")),
            ("base", str(self.base)),
            ("learned", f"{self.learned:,} of {self.parameters:,} parameters ({share:.2f} %)"),
            ("formula", self.formula),
            ("stored", f"{self.stored_bytes:,} bytes next to the base"),
            ("time", f"{self.training.seconds:.1f} s, {self.training.steps:,} steps"),
            *(("warning", warning) for warning in self.training.warnings),
        ]


LEARNING_RATES = {"frozen": 5e-3, "full": 5e-4, "adapters": 2e-3, "lora": 2e-3}
"""Learning rates: the fewer weights are trained, the larger."""
PRETRAINED_LEARNING_RATES = {"frozen": 1e-3, "full": 5e-5, "adapters": 5e-4, "lora": 5e-4}
"""Those of pretrained models, which have more to lose."""
PRETRAINED_BATCH = {"batch": 8, "sequence_length": 128}
"""What a pretrained model reads at each step of adapting it to text or to labels: its context would be far more than is
needed, and on two cores a step of a hundred million parameters takes a second."""
EPOCHS, STEPS = 6, (60, 1500)
PRETRAINED_EPOCHS, PRETRAINED_STEPS, PRETRAINED_VALIDATIONS = 2, (60, 200), 3
"""Labelled texts are read so often, within these bounds, unless steps are set; a pretrained model needs fewer."""
DEFAULT_STEPS = 400
"""Steps on text, pairs and images unless they are set."""


@dataclass(frozen=True)
class AdaptationPlan:
    """All that is known of an adaptation before it is trained."""

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
    """Find the base, the data as it reads them, and the recipe; what cannot be adapted is refused before any work.

    `data` that are loaded already, for another method, are used as they are. With `rerank` a dual encoder becomes a
    re-ranker.
    """
    base = RunFolder.open(Path(run))
    check_finished(base)
    model = adapted_spec(base.spec, args, rerank)
    if isinstance(model, Classifier) and isinstance(model.body, Decoder):
        model = model.replace(head_bias=False)  # as transformers' class has it, which the run can leave as
    check_no_adapters(base)
    if not isinstance(method, Spec) and str(method) not in METHODS:
        raise SpecError(describe_unknown("method", str(method), [*METHODS, "all"]))
    chosen = method if isinstance(method, Spec) else METHODS[method]()
    settings = dict(settings)
    epochs = settings.pop("epochs", None)
    check_epochs(epochs, settings)
    known_words = {*type(chosen).setting_names(), *Recipe.setting_names()}
    for word in (word for word in settings if word not in known_words):
        owner = next((name for name, kind in METHODS.items() if word in kind.setting_names()), None)
        if owner is not None:
            raise SpecError(f"adapt: {word} is a setting of the method {owner}, not of {chosen.kind}.")
        if word in type(base.spec).setting_names():
            raise SpecError(f"adapt: {word} is the base's, and cannot be changed by adapting it.")
    kinds: dict[str, type[Spec]] = {"method": type(chosen), "recipe": Recipe}
    if isinstance(model, CrossAttention | Classifier):  # all other settings of the model are the base's
        kinds["model"] = Reranking if isinstance(model, CrossAttention) else ClassifierHead
    shares = distribute(settings, kinds, ("epochs",))
    model = model.replace(**shares.get("model", {}))
    check_recipe_settings(shares["recipe"], model)
    task, own = task_for(model), shares["recipe"]
    pretrained, labelled = isinstance(base.data, PretrainedData), isinstance(task, ClassificationTask)
    few: dict[str, int] = {}
    if pretrained and (labelled or type(task) is LanguageTask):
        limit = max_text_tokens(model.body) if isinstance(model, Classifier) else getattr(model, "context", None)
        length = PRETRAINED_BATCH["sequence_length"]
        few = {**PRETRAINED_BATCH, "sequence_length": min(length, limit or length)}
    known = Recipe.read({**few, **own}, "recipe")
    data_spec = args.spec(Choice(model, Recipe(), BytePairs()))
    data_spec = data_spec.replace(tokenizer=base.data.to_dict()["tokenizer"])
    data = data or task_for(model).load(data_spec, model, known, observer, base.tokenizer())
    batch, steps = own.get("batch", few.get("batch", task.adaptation_batch)), DEFAULT_STEPS
    if epochs is not None:
        steps = epochs_to_steps(epochs, task, model, data, known.replace(batch=batch), observer)
    elif labelled:
        usual_epochs, (least, most) = (PRETRAINED_EPOCHS, PRETRAINED_STEPS) if pretrained else (EPOCHS, STEPS)
        steps = min(max(math.ceil(usual_epochs * len(data.item("train").lengths) / batch), least), most)
    steps = own.get("steps", steps)
    rates = PRETRAINED_LEARNING_RATES if pretrained else LEARNING_RATES
    usual = {"learning_rate": rates[chosen.kind], "batch": batch, "steps": steps, "warm_up": max(1, steps // 10)}
    if pretrained and labelled:
        usual["evaluate_every"] = math.ceil(steps / PRETRAINED_VALIDATIONS)
    recipe = Recipe.read({**usual, **few, "weight_decay": 0.01, **own}, "recipe")
    fitted = fit_warm_up(recipe, max_steps=recipe.steps)
    if fitted != recipe:
        observer.log(warm_up_message(fitted, recipe.warm_up))
    recipe = fitted
    return AdaptationPlan(base, model, chosen.replace(**shares["method"]), recipe, data_spec, data)


def adapted_spec(base: ModelSpec, args: DataArgs, rerank: bool) -> ModelSpec:
    """The model that is trained: a classifier with the base for its body, the re-ranker of it, or the base itself."""
    if rerank:
        if args.option != "images":
            raise SpecError("adapt: a re-ranker learns images with captions, as in --rerank --images FOLDER.")
        if not isinstance(base, DualEncoder):
            again = " It is one already: leave --rerank out to train it further."
            more = again if isinstance(base, CrossAttention) else ""
            raise SpecError(f"adapt: a re-ranker is made of a dual-encoder, not of a model of {base.family}.{more}")
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
    """Train a plan into the folder `out`, which keeps only what changed, and evaluate it on the held-out data.

    Where training was interrupted only its result is returned; of several processes only the first evaluates.
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
    return (
        training if training.interrupted or not is_main_process() else evaluate_adapted(plan, out, training, describe)
    )


def adapt_or_resume(
    plan: AdaptationPlan, out: Path, observer: Observer, describe: Describe, overwrite: bool = False
) -> AdaptResult | TrainingResult:
    """The same, but what an earlier call of the same plan has done is not repeated, and what it began is resumed."""
    if overwrite or not has_same_plan(plan, out):
        return adapt_run(plan, out, observer, describe, overwrite)
    folder = RunFolder.open(out)
    if folder.is_finished:
        return evaluate_adapted(plan, out, TrainingResult.from_dict(folder.summary() or {}), describe)
    training = resume(out, plan.data, observer=observer)
    return training if training.interrupted else evaluate_adapted(plan, out, training, describe)


def has_same_plan(plan: AdaptationPlan, out: Path) -> bool:
    """Whether the folder holds a run that was made by the same plan."""
    if not (out / SPEC).exists():
        return False
    folder = RunFolder.open(out)
    ours = (plan.recipe, plan.data_spec, plan.data.hash, make_adaptation_spec(plan.base, out, plan.method))
    same = (folder.recipe, folder.data, folder.data_hash, folder.adaptation) == ours
    return same and folder.spec == plan.model.with_data_sizes(plan.data.sizes())


def evaluate_adapted(plan: AdaptationPlan, out: Path, training: TrainingResult, describe: Describe) -> AdaptResult:
    """Put the figures of a finished run together with its score on the held-out data."""
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
    """Whether this process is the only one, or the first of several."""
    return os.environ.get("RANK", "0") == "0"


# What a model has forgotten of its base's data by being adapted to something else


@dataclass(frozen=True)
class Forgetting:
    """The perplexity of the base's held-out data, with the base's own weights and with the adapted ones."""

    before: float
    after: float

    @property
    def ratio(self) -> float:
        """How many times the perplexity has grown; 1 if nothing is forgotten."""
        return self.after / self.before

    def to_dict(self) -> dict[str, float]:
        """Return plain values."""
        return {"before": self.before, "after": self.after, "ratio": self.ratio}


@dataclass(frozen=True)
class BaseEvaluation:
    """A base on its own held-out data, before anything is trained; or why that cannot be measured."""

    run: Run | None = None
    data: Splits[Any] | None = None
    before: float = math.nan
    reason: str = ""

    @classmethod
    def measure(cls, plan: AdaptationPlan) -> "BaseEvaluation":
        """Measure the base of a plan."""
        if isinstance(plan.base.spec, Classifier):
            return cls(reason="The base is a classifier, of which no perplexity can be forgotten.")
        if isinstance(plan.base.data, PretrainedData):
            return cls(reason="What was forgotten is not known: the base is pretrained, on data that are not here.")
        run = load(plan.base.path, str(choose_device(plan.recipe)))
        task = task_for(run.spec)
        try:
            data = task.load(run.data, run.spec, run.recipe, SilentObserver(), run.vocabulary)
        except DataError as error:
            return cls(reason=f"What was forgotten is not known: the base's own data cannot be read ({error})")
        if data.hash != run.data_hash:
            return cls(reason="What was forgotten is not known: the base's own data have changed since training.")
        return cls(run, data, float(task.validate(run.module, data, run.recipe).perplexity))

    def measure_forgetting(self, run: Run) -> Forgetting | None:
        """What an adapted run has forgotten, where that can be measured."""
        if self.run is None:
            return None
        folds = run.adaptation is not None and run.adaptation.method.kind != "adapters"
        whole: Any = merge_lora(run.module) if folds else run.module
        if isinstance(whole, ClassifierModel):  # its body gets back what it had left out of the base
            whole = whole.body
            for name in type(whole).output_modules:
                setattr(whole, name, deepcopy(getattr(self.run.module, name)))  # a copy: the base is to stay as it is
            if getattr(whole.spec, "tied", False) and whole.output is not None:
                whole.output.weight = whole.embedding.weight  # what was learned of the one holds for the other
            whole.eval()
        score = task_for(self.run.spec).validate(whole, self.data, self.run.recipe)
        return Forgetting(self.before, float(score.perplexity))
