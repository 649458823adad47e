"""Specs of studies: what they compare, over which seeds, at which budget; the built-in ones, and study files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from lemma.errors import SpecError, describe_unknown
from lemma.spec.base import Letter, Spec, exists, read_toml, short_repr
from lemma.spec.data import DataSpec, GraphSource, LabelledTexts
from lemma.spec.models import FAMILIES, check_heads
from lemma.spec.recipe import Full, Method, Recipe


def parse_seeds(value: Any) -> Any:
    """Convert a number to a tuple of that many seeds, from 1 on, and a list to a tuple.

    >>> parse_seeds(3), parse_seeds([7])
    ((1, 2, 3), (7,))
    """
    if isinstance(value, bool) or not isinstance(value, (int, list, tuple)):
        return value
    if not value or (isinstance(value, int) and value < 0):
        raise ValueError(f"study.seeds = {value!r}: at least one seed is needed, as in seeds=3 or seeds=[7].")
    seeds = tuple(range(1, value + 1)) if isinstance(value, int) else tuple(value)
    if len({repr(seed) for seed in seeds}) < len(seeds):
        raise ValueError(f"study: seeds = {list(seeds)} must hold none twice.")
    return seeds


def _as_tuple(value: Any) -> Any:
    """Convert a value, or a list without its duplicates, to a tuple; any other type is returned as it is."""
    if isinstance(value, (int, float, str)):
        return (value,)
    try:
        return tuple(dict.fromkeys(value)) if isinstance(value, (list, tuple)) else value
    except TypeError:  # a list or a table among the values: pydantic says what is expected
        return value


def _read_models(value: Any) -> Any:
    """Convert each name of a model to a table, {"model": name}; return a tuple of tables."""
    models = (value,) if isinstance(value, str) else value
    if not isinstance(models, (list, tuple)):
        return value
    return tuple({"model": model} if isinstance(model, str) else model for model in models)


class ComparedModel(Spec):
    """A model of a study with settings for it alone."""

    renamed: ClassVar[Mapping[str, str]] = {"words": "settings"}

    model: str
    """Preset or spec file."""
    name: str | None = None
    """Name of the row. Default: the model."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the spec or the recipe for this model only; sizes set here are not scaled."""

    @property
    def title(self) -> str:
        """Name of the row."""
        return self.name or self.model


Seeds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(parse_seeds), Field(min_length=1)]
Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple), Field(min_length=1)]
Counts = Annotated[tuple[Annotated[int, Field(ge=2)], ...], BeforeValidator(_as_tuple), Field(min_length=1)]
Models = Annotated[tuple[ComparedModel, ...], BeforeValidator(_read_models), Field(min_length=1)]
Size = Annotated[int, Field(ge=1, le=2**20)]  # whether it fits is asked of the machine; this catches typing mistakes
Sizes = Annotated[tuple[Size, ...], BeforeValidator(_as_tuple), Field(min_length=1)]


class StudySpec(Spec):
    """Base class of studies."""

    renamed: ClassVar[Mapping[str, str]] = {"words": "settings", "contenders": "models", "base_a_seed": "base_per_seed"}

    merges_tables: ClassVar[bool] = False
    """Whether a table of settings overrides only the settings that it names."""
    name: str
    """Name of the study."""
    question: str = ""
    """Question of the study, in a sentence or two; shown at the top of the report."""

    @model_validator(mode="after")
    def _check_titles(self) -> Self:
        """Check that no two models have the same title."""
        models = [model for model in getattr(self, "models", ()) if isinstance(model, ComparedModel)]
        titles = [model.title.lower() for model in models]
        if duplicate := next((model.title for model in models if titles.count(model.title.lower()) > 1), None):
            raise ValueError(f"study.models: '{duplicate}' is there twice. Give each a `name` of its own.")
        return self


# Language models on one text: families, a grid of settings, an equal budget, and claims to test.


class StudyBudget(Spec):
    """Budget of every model of a study."""

    parameters: int | None = Field(default=None, ge=1)
    """Number of parameters: each model's width is chosen to come nearest to it."""
    tokens: int | None = Field(default=None, ge=1)
    """Number of training tokens, which determines the steps of each model."""
    seconds: float | None = Field(default=None, gt=0)
    """Training time in seconds: each model's speed is measured first, then it takes the steps that fit."""

    @model_validator(mode="after")
    def _check_clock(self) -> Self:
        """Check that the budget has tokens or seconds, not both."""
        if self.tokens and self.seconds:
            raise ValueError("study.budget: give tokens or seconds, not both; each fixes the number of steps.")
        return self


class StudyTuning(Spec):
    """Choice of each model's learning rate before its runs: short runs, compared on the validation text."""

    learning_rate: Annotated[tuple[Annotated[float, Field(gt=0)], ...], BeforeValidator(_as_tuple)] = (1e-3, 2e-3, 4e-3)
    """Learning rates to try."""
    share: float = Field(default=0.1, gt=0, le=1)
    """Fraction of a run's steps to try each for."""

    @model_validator(mode="after")
    def _check_rates(self) -> Self:
        """Check that there are at least two different learning rates."""
        if len(set(self.learning_rate)) < max(2, len(self.learning_rate)):
            raise ValueError(
                f"study.tune.learning_rate = {list(self.learning_rate)}: give at least two rates, none twice."
            )
        return self


def _read_tuning(value: Any) -> Any:
    """Convert a list of learning rates, or true for the default ones, to a table; false to None."""
    if isinstance(value, bool):
        return {} if value else None
    return {"learning_rate": value} if isinstance(value, (list, tuple)) else value


class ClaimComparison(Spec):
    """Two points of the grid, and which of them is expected to have the lower perplexity."""

    at: dict[str, Any] = Field(min_length=1)
    """Grid settings that the claim is about, with their values, or `model` with a name."""
    against: dict[str, Any] = Field(min_length=1)
    """Values of the same settings to compare with."""
    expects: Literal["lower", "not lower"] = "lower"
    """Claim about the perplexity of `at`, compared with that of `against`."""

    @model_validator(mode="after")
    def _check_points(self) -> Self:
        """Check that `at` and `against` have the same settings with different values."""
        if self.at.keys() != self.against.keys() or self.at == self.against:
            raise ValueError(
                f"study.claims: at = {self.at} and against = {self.against} "
                "must name the same settings, and differ in at least one value."
            )
        return self


class StudyClaim(Spec):
    """A statement that the measured numbers support or not."""

    says: str
    """Claim in words."""
    comparisons: tuple[ClaimComparison, ...] = Field(min_length=1)
    """Comparisons that must hold at every value of the grid settings that are not named."""


class GridStudy(StudySpec):
    """Language models compared on the same text at the same budget, over seeds."""

    data: DataSpec
    """Text, tokenizer and validation split, the same for every run."""
    models: Models
    """Models to compare."""
    grid: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """Settings with lists of values; every model is run at every combination."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the spec or the recipe for all models that have them."""
    seeds: Seeds = (1, 2)
    """Number of seeds (1, 2, …), or a list of seeds: one run per seed."""
    budget: StudyBudget = StudyBudget()
    """Budget of every model."""
    tune: Annotated[StudyTuning | None, BeforeValidator(_read_tuning)] = None
    """Learning rates to choose from for each model, by short runs that count as cost. Default: no tuning."""
    claims: tuple[StudyClaim, ...] = ()
    """Statements to test against the results."""
    validations: int | None = Field(default=None, ge=1)
    """Validations per run, the points of its learning curve. Default: as in the recipe."""
    measures: Annotated[tuple[Literal["positions", "attention", "steps"], ...], BeforeValidator(_as_tuple)] = ()
    """Additional measurements of trained models: `positions`, loss by position past the trained length; `attention`,
    entropy and distance of each head; `steps`, number of steps that each model needs to reach the final loss of the
    first one, if the grid has numbers of steps."""
    beyond: int = Field(default=4, ge=1)
    """Maximum position at which to measure the loss, as a multiple of the trained length."""
    prompt: str = ""
    """Prompt of the samples in the report. Default: the beginning of a line of the text."""
    sample_tokens: int = Field(default=200, ge=1)
    """Length of the samples in the report, in tokens."""

    @field_validator("data", mode="before")
    @classmethod
    def _wrap_text(cls, data: Any) -> Any:
        """Return data settings in which a single `text` is a tuple of one."""
        is_single = isinstance(data, Mapping) and isinstance(data.get("text"), str)
        return {**data, "text": (data["text"],)} if is_single else data

    @model_validator(mode="after")
    def _check_grid(self) -> Self:
        """Check that each setting of the grid has values, none twice."""
        for name, values in self.grid.items():
            if not values or len({repr(value) for value in values}) < len(values):
                raise ValueError(f"study: {name} = {list(values)} must hold at least one value, and none twice.")
        return self

    @model_validator(mode="after")
    def _check_claims(self) -> Self:
        """Check that the settings and values of all claims are in the grid."""
        axes = {**self.grid, "model": tuple(model.title for model in self.models)}
        for comparison in (comparison for claim in self.claims for comparison in claim.comparisons):
            for name, value in [*comparison.at.items(), *comparison.against.items()]:
                if name not in axes:
                    raise ValueError(describe_unknown("study.claims: setting", name, axes))
                if value not in axes[name]:
                    choices = ", ".join(map(str, axes[name]))
                    raise ValueError(
                        f"study.claims: {name} = {value!r} is not in the grid. Choices: {choices}. Or set claims=[]."
                    )
        return self


class TuneStudy(GridStudy):
    """Settings of one model searched by Optuna, within a number of trials; the result is a study like any other."""

    kind: Literal["tune"] = "tune"
    space: dict[str, tuple[Any, ...]] = Field(min_length=1)
    """Settings of the spec or the recipe to search: two numbers are the ends of a range (on a log scale if one is at
    least ten times the other), anything else is a list of choices."""
    trials: int = Field(default=12, ge=1)
    """Number of combinations to try."""
    prune: float = Field(default=0.02, ge=0)
    """Stop a trial that is worse than the best in every seed so far, and by more than this on average."""

    @model_validator(mode="after")
    def _check_search(self) -> Self:
        """Check that there is one model and a search space of settings that are not set elsewhere."""
        if len(self.models) != 1 or self.grid or self.tune:
            raise ValueError("study tune: give one model and a space, and neither grid nor tune.")
        for name, values in self.space.items():
            if len(values) < 2 or name in self.models[0].settings or name in self.settings:
                raise ValueError(
                    f"study.space: {name} = {list(values)} needs two values or more, and no other setting."
                )
        return self


# Classifiers: backbones compared (problem C3), and what pretraining without labels is worth (E4).


class LabelStudy(LabelledTexts, StudySpec):
    """Base class of studies of classifiers: labelled texts, one recipe for every run, seeds."""

    merges_tables: ClassVar[bool] = True
    labels: str = "tweets"
    """Labelled texts by name, or a CSV, TSV or JSONL file of texts and labels."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the body or the recipe for all classifiers whose body has them."""
    seeds: Seeds = (1, 2, 3)
    """Number of seeds (1, 2, …), or a list of seeds: one run per seed."""
    epochs: float = Field(default=8.0, gt=0)
    """Number of epochs over the labelled texts, unless settings.steps is set."""
    least_steps: int = Field(default=100, ge=1)
    """Minimum number of steps, however few labels there are."""
    validations: int = Field(default=5, ge=1)
    """Validations per run, the points of its learning curve."""


class ClassifiersStudy(LabelStudy):
    """Bodies of classifiers compared: how well they do and what they cost, each against the first (problem C3)."""

    kind: Literal["classifiers"] = "classifiers"
    models: Models = (ComparedModel(model="lstm"), ComparedModel(model="gru"))
    """Bodies to compare: presets or spec files, each with optional settings."""
    limit: int | None = Field(default=None, ge=2)
    """Maximum number of labelled texts to train on. Default: all."""
    tolerance: float = Field(default=0.02, gt=0, lt=1)
    """Maximum difference of accuracies that count as about the same."""
    repetitions: int = Field(default=20, ge=1, le=10_000)
    """Number of rounds to time inference; every model is timed once per round."""


class PretrainingStudy(LabelStudy):
    """A classifier from scratch against one whose body learned texts without labels first (problem E4)."""

    kind: Literal["pretraining"] = "pretraining"
    body: str = "decoder"
    """Body that reads the texts: preset or spec file. Encoders predict masked tokens, others the next token."""
    unlabelled: Names = ("tweets", "film", "amazon", "news")
    """Texts to pretrain on, without labels: labelled texts by name or as a table, or text files, one text per line."""
    counts: Counts = (100, 300, 1000, 3000)
    """Numbers of labels to compare; a number larger than available means all."""
    method: Method = Full()
    """Adaptation method of the pretrained body: full, frozen, lora or adapters."""
    pretraining: dict[str, Any] = Field(default_factory=dict)
    """Recipe settings of pretraining."""
    passes: float = Field(default=2.0, gt=0)
    """Number of epochs over the texts without labels, unless pretraining.steps is set."""
    base_per_seed: bool = False
    """Whether to pretrain a body per seed, which includes this noise at a multiple of the time."""


# Graph models: what the edges add, over seeds that draw the split and the initial weights (problem D4).


class GraphStudy(GraphSource, StudySpec):
    """Graph models compared on one graph: accuracy over random splits, each against the first."""

    merges_tables: ClassVar[bool] = True
    kind: Literal["graph"] = "graph"
    graph: str = "cora"
    """Graph by name (cora, karate, blocks), folder with nodes and edges, table of edges, or node-link JSON."""
    models: Models = (
        ComparedModel(model="graph", name="two layers"),
        ComparedModel(model="graph", name="rows sum to one", settings={"normalise": "rows"}),
        ComparedModel(model="graph", name="one layer", settings={"depth": 1}),
        ComparedModel(model="graph", name="no edges", settings={"normalise": "alone"}),
    )
    """Models to compare, each with optional settings."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the model or the recipe for all models."""
    seeds: Seeds = tuple(range(1, 11))
    """Number of seeds (1, 2, …), or a list of seeds: each draws a split and initial weights."""


# Studies that train nothing: what a layer costs by formula, and the time it takes.


class CostStudy(StudySpec):
    """Base class of studies of costs."""

    width: Annotated[Size, Letter("d")] = 128
    """Width of the vectors."""
    batch: Annotated[Size, Letter("B")] = 4
    """Batch size in sequences."""
    repetitions: int = Field(default=20, ge=1, le=10_000)
    """Number of rounds; every model is timed once per round."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to measure on; auto uses a GPU if there is one."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Random seed of weights and inputs."""


class HeadsStudy(CostStudy):
    """Head against many (problem D3): attention without an output map, 3d² parameters."""

    kind: Literal["heads"] = "heads"
    heads: Annotated[Sizes, Letter("h")] = (1, 2, 4, 8, 16)
    """Numbers of heads to compare with the first."""
    lengths: Annotated[Sizes, Letter("T")] = (64, 256)
    """Sequence lengths, in tokens."""
    paths: Annotated[tuple[Literal["fused", "explicit"], ...], BeforeValidator(_as_tuple), Field(min_length=1)] = (
        "fused",
        "explicit",
    )
    """PyTorch's fused kernel, or explicit T × T weights with every softmax written out."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        """Check that each number of heads divides the width."""
        for heads in self.heads:
            check_heads("heads.width", self.width, "heads.heads", heads)
        return self


class LengthStudy(CostStudy):
    """Recurrent layers against attention as the text grows longer (problem C4)."""

    kind: Literal["length"] = "length"
    lengths: Annotated[Sizes, Letter("T")] = (16, 32, 64, 128, 256, 512, 1024)
    """Sequence lengths, in tokens."""
    models: Annotated[
        tuple[Literal["rnn", "lstm", "gru", "attention"], ...], BeforeValidator(_as_tuple), Field(min_length=1)
    ] = ("rnn", "lstm", "gru", "attention")
    """What is compared: one layer of each, of equal width."""
    heads: Annotated[Size, Letter("h")] = 4
    """Attention heads."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        """Check that the number of heads divides the width."""
        check_heads("length.width", self.width, "length.heads", self.heads)
        return self


STUDY_KINDS: dict[str, type[StudySpec]] = {
    "tune": TuneStudy,
    "classifiers": ClassifiersStudy,
    "pretraining": PretrainingStudy,
    "graph": GraphStudy,
    "heads": HeadsStudy,
    "length": LengthStudy,
}
"""By the `kind` in a study file; a file without one is a grid."""
STUDIES: dict[str, StudySpec] = {
    name: STUDY_KINDS.get(table.get("kind", ""), GridStudy).read({"name": name, **table}, name)
    for name, table in read_toml(Path(__file__).with_suffix(".toml")).items()
}
"""The built-in studies."""
CLOCKS = ("tokens", "seconds")
SET_BY_STUDY = {"seed", "family", "vocabulary", "V", "features", "F", "classes", "K"}
"""Settings of models and recipes that a study sets itself."""


def read_study(name: str | Path, settings: Mapping[str, Any] | None = None) -> StudySpec:
    """Return the spec of a built-in study or of a TOML file, with some settings changed.

    A dotted setting reaches inside and leaves the rest as it was: `budget.tokens`, `data.text`, `settings.batch`.

    >>> read_study("families", {"seeds": [1, 2, 3], "budget.seconds": 20}).budget
    StudyBudget(parameters=208000, tokens=None, seconds=20.0)
    >>> read_study("heads", {"width": 64, "h": [1, 2]}).heads
    (1, 2)
    """
    study_class, table, source = _read_study_table(name)
    fields, letters = study_class.model_fields, study_class.letters()
    run_settings = {key for spec in (*FAMILIES.values(), Recipe) for key in spec.setting_names()} - SET_BY_STUDY
    for key, value in sorted((settings or {}).items(), key=lambda item: item[0].count(".")):
        first, *path = key.split(".")
        first = letters.get(first, first)
        if "settings" in fields and first not in fields and first in run_settings:
            raise SpecError(f"{source}: '{key}' is a setting of the runs. Type settings.{key}={value}")
        inner = getattr(fields.get(first), "annotation", None)
        if path and isinstance(inner, type) and issubclass(inner, Spec) and path[0] not in inner.setting_names():
            choices = [f"{first}.{name}" for name in inner.setting_names()]
            raise SpecError(describe_unknown(f"{source}: setting", key, choices))
        old = table.get(first)
        if first == "budget" and path and path[0] in CLOCKS and isinstance(old, Mapping):
            old = {clock: limit for clock, limit in old.items() if clock not in CLOCKS}  # one clock replaces the other
        table[first] = _set_value(old, path, value, study_class.merges_tables, f"{source}: '{key}'")
    return study_class.read(table, source)


def _read_study_table(name: str | Path) -> tuple[type[StudySpec], dict[str, Any], str]:
    """Return (spec class of a study, its settings, its name in messages) of a built-in name or a TOML file."""
    if not isinstance(name, (str, Path)):
        raise SpecError(f"a {type(name).__name__} is not a study: give the name of a built-in one or a TOML file.")
    path = Path(name)
    if str(name) in STUDIES:
        study = STUDIES[str(name)]
        return type(study), study.to_dict(), f"study {name}"
    if path.suffix != ".toml" and not (exists(path) and path.is_file()):
        raise SpecError(describe_unknown("study", str(name), STUDIES) + " A study file (name.toml) will do too.")
    table = {"name": path.stem, **read_toml(path)}
    if "kind" not in table:
        return GridStudy, table, str(path)
    if table["kind"] not in STUDY_KINDS:
        message = describe_unknown(f"{path}: kind", str(table["kind"]), STUDY_KINDS)
        raise SpecError(f"{message} A study of texts has no kind.")
    return STUDY_KINDS[table["kind"]], table, str(path)


def _set_value(old: Any, path: list[str], value: Any, merges: bool, source: str) -> Any:
    """Return a copy of `old` in which the entry at a path of keys is `value`; `value` itself for an empty path.

    With `merges`, a table as value is merged with the old table; `source` begins error messages.
    """
    if path:
        if not isinstance(old, (str, Mapping)) and old is not None:
            kind = "a list" if isinstance(old, (list, tuple)) else f"{short_repr(old)}"
            raise SpecError(f"{source} cannot be set: it is {kind}, which holds no settings of its own.")
        table = {"kind": old} if isinstance(old, str) else dict(old or {})
        return {**table, path[0]: _set_value(table.get(path[0]), path[1:], value, merges, source)}
    if merges and isinstance(old, Mapping) and isinstance(value, Mapping):
        is_same_kind = value.get("kind", old.get("kind")) == old.get("kind")
        return {**old, **value} if is_same_kind else dict(value)
    return value
