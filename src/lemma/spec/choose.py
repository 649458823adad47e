"""Choice of a model, a recipe and a tokenizer: presets by name, spec files, and settings that change them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from lemma.errors import SpecError, describe_unknown
from lemma.spec.base import Spec, assign_settings, exists, letter_of, nest_settings, read_toml, short_repr
from lemma.spec.data import DATA_SPECS, TOKENIZER_SPECS, AnyDataSpec, BytePairs, TrainedTokenizer
from lemma.spec.models import (
    FAMILIES,
    PLUGIN_FAMILIES,
    BodySpec,
    Classifier,
    CrossAttention,
    Decoder,
    DualEncoder,
    Encoder,
    EncoderDecoder,
    Graph,
    LanguageSpec,
    ModelSpec,
    NewFamily,
    TextReader,
    family_names,
    find_family,
)
from lemma.spec.positions import NewPositions
from lemma.spec.recipe import Recipe
from lemma.spec.settings import MODEL_SYNONYMS

# Presets: the families with good defaults, those of the problems, and those of plugins


@dataclass(frozen=True)
class Preset:
    """A named model spec with its description, recipe settings and tokenizer."""

    model: ModelSpec
    description: str
    recipe: dict[str, Any] = field(default_factory=dict)
    tokenizer: TrainedTokenizer | None = None


def read_model(settings: Mapping[str, Any], source: str) -> ModelSpec:
    """Return the model spec of these settings, of which `family` selects the class; `source` begins error messages."""
    family = settings.get("family")
    if family is None:
        raise SpecError(f"{source}: 'family' is missing. Choices: {', '.join(family_names())}.")
    spec_class = find_family(str(family))
    if spec_class is None:
        raise SpecError(f"{source}: " + describe_unknown("family", str(family), family_names()))
    return spec_class.read(settings, f"{source}: {family}")


def read_tokenizer(value: Any, source: str, default_kind: str) -> TrainedTokenizer:
    """Return the tokenizer spec of a kind, or of a table of settings; one without kind gets `default_kind`.

    `source` begins error messages.
    """
    table = {"kind": default_kind, **value} if isinstance(value, Mapping) else {"kind": value}
    if not isinstance(table["kind"], str) or table["kind"] not in TOKENIZER_SPECS:
        raise SpecError(describe_unknown(source, short_repr(table["kind"]).strip("'"), TOKENIZER_SPECS))
    return TOKENIZER_SPECS[table["kind"]].read(table, source)


def _read_preset(name: str, table: Mapping[str, Any]) -> Preset:
    """Build the preset `name` from its table in presets.toml."""
    model = read_model({"family": name, **table.get("model", {})}, name)
    tokenizer = read_tokenizer(table["tokenizer"], name, "byte-pairs") if "tokenizer" in table else None
    return Preset(model, table["description"], table.get("recipe", {}), tokenizer)


PRESETS = {
    name: _read_preset(name, table) for name, table in read_toml(Path(__file__).with_name("presets.toml")).items()
}
RESERVED_NAMES = {*PRESETS, *FAMILIES}
"""Names that plugins cannot give to a family."""


def preset(name: str) -> Preset:
    """Return the preset of that name; an unknown name is a SpecError that lists all."""
    match = find_preset(name)
    if match is None:
        raise SpecError(_explain_unknown_model(name))
    return match


def find_preset(name: str) -> Preset | None:
    """Return the preset of that name, built in or of a plugin; None for an unknown name."""
    if name in PRESETS:
        return PRESETS[name]
    family = PLUGIN_FAMILIES.find(name)
    if family is None:
        return None
    description = (family.__doc__ or "").strip().partition("\n")[0]
    with PLUGIN_FAMILIES.attribute_errors(name):
        return Preset(family.model_validate({}), description, dict(family.recipe), family.tokenizer)


def preset_names() -> list[str]:
    """Return the names of all presets, built-in ones first."""
    return [*PRESETS, *PLUGIN_FAMILIES.names()]


def uses_plugins(spec: Spec) -> bool:
    """Return whether a spec, or a spec nested in it, is of a plugin's class.

    >>> from lemma.spec.models import Decoder
    >>> uses_plugins(Decoder())
    False
    """
    values = (getattr(spec, name) for name in type(spec).model_fields)
    is_plugin = isinstance(spec, NewFamily | NewPositions)
    return is_plugin or any(uses_plugins(value) for value in values if isinstance(value, Spec))


def _explain_unknown_model(name: str) -> str:
    """Return the error message for an unknown preset."""
    return describe_unknown("model", name, preset_names(), MODEL_SYNONYMS.get(name.lower()))


# Choices


@dataclass(frozen=True)
class Choice:
    """A model with its recipe and tokenizer, before the data are known."""

    model: ModelSpec
    recipe: Recipe
    tokenizer: TrainedTokenizer
    data_settings: Mapping[str, Any] = field(default_factory=dict)  # held_out, or how to split a graph
    reference_recipe: Recipe | None = None  # of the preset or spec file, before settings
    has_own_warm_up: bool = False  # the warm-up is among the settings, and so may be as long as the training

    def data_spec(self, kind: str, source: Any, **settings: Any) -> AnyDataSpec:
        """Return the data spec of a training with this model.

        `kind`, such as "text", must be what the model learns from; `source` is the name or path of the data, `settings`
        are further fields of the spec.
        """
        expected = self.model.data_kind
        if kind != expected:
            raise SpecError(
                f"--{kind} is not for a model of the family {self.model.family}: it learns --{expected}. "
                f"{DATA_SPECS[expected].model_fields[expected].description}"
            )
        spec_class = DATA_SPECS[kind]
        defaults: dict[str, Any] = {"split": self.recipe.seed} if kind == "graph" else {}
        if "tokenizer" in spec_class.model_fields:
            defaults["tokenizer"] = self.tokenizer.to_dict()
        return spec_class.read({**defaults, **self.data_settings, **settings, kind: source}, "data")

    def as_classifier(self) -> "Choice":
        """Return a copy whose model is a classifier with this model as its body."""
        if isinstance(self.model, Classifier):
            return self
        if not isinstance(self.model, BodySpec):
            raise SpecError(f"a model of the family {self.model.family} cannot be the body of a classifier.")
        # Without a bias, as in transformers' classifiers made of decoders, the run can be exported as one.
        return replace(self, model=Classifier(body=self.model, head_bias=not isinstance(self.model, Decoder)))


def choose(
    model: str | Path | ModelSpec | Choice, settings: Mapping[str, Any] | None = None, *, classify: bool = False
) -> Choice:
    """Return a model, its recipe and its tokenizer, from a preset, a spec file or a spec, with settings changed.

    Args:
        model: name of a preset, path of a spec file, spec, or an earlier choice.
        settings: values by name or letter, of the model, the recipe, the tokenizer or the data.
        classify: whether the model becomes the body of a classifier; settings then reach both.

    >>> choose("lstm", {"D": 64, "steps": 10}).model.hidden
    64
    """
    base, settings = resolve_choice(model), dict(settings or {})
    reference_recipe = base.reference_recipe or base.recipe
    base = base.as_classifier() if classify else base
    if isinstance(model, Choice) and not settings:
        return replace(base, reference_recipe=reference_recipe)
    spec, tokenizer, data_settings = base.model, base.tokenizer, dict(base.data_settings)
    kind = spec.data_kind
    data_class = DATA_SPECS[kind]
    if "tokenizer" not in data_class.model_fields:
        parts = assign_settings(settings, {"model": type(spec), "recipe": Recipe, "data": data_class}, ("epochs",))
        data_class.read({kind: kind, **parts["data"]}, "data")  # reports a mistake before the recipe is read
        data_settings |= parts["data"]
    else:
        tokenizer = _choose_tokenizer(tokenizer, settings)
        data_settings |= {"held_out": settings.pop("held_out")} if "held_out" in settings else {}
        body = {"body": type(spec.body)} if isinstance(spec, TextReader) else {}
        spec_classes = {"tokenizer": type(tokenizer), "model": type(spec), **body, "recipe": Recipe}
        parts = assign_settings(settings, spec_classes, ("tokenizer", "held_out", "validation", "test", "epochs"))
        tokenizer = tokenizer.replace(**parts["tokenizer"])
    if isinstance(spec, TextReader) and parts["body"]:
        parts["model"]["body"] = spec.body.replace(**parts["body"]).to_dict()
    check_recipe_settings(parts["recipe"], spec)
    recipe = base.recipe.replace(**parts["recipe"])
    recipe.objective.resolve()  # reports an objective that is not installed
    has_own_warm_up = base.has_own_warm_up or "warm_up" in parts["recipe"]
    return Choice(spec.replace(**parts["model"]), recipe, tokenizer, data_settings, reference_recipe, has_own_warm_up)


ONLY_FOR: dict[str, tuple[Any, str]] = {
    "mask_rate": (Encoder, "it is for an encoder, which learns masked tokens"),
    "label_smoothing": (
        EncoderDecoder | Classifier | Graph | DualEncoder,
        "it is for translators, classifiers and dual encoders",
    ),
    "augment": (DualEncoder | CrossAttention, "it is for dual encoders, which learn images"),
    "sequence_length": (LanguageSpec | Classifier, "it is for language models and for classifiers of texts"),
    "objective": (LanguageSpec, "it is for language models, which learn running text"),
}
"""Settings of the recipe that only some families use."""
NOT_FOR_GRAPHS = {
    "batch": "it learns all labelled nodes at every step",
    "accumulate": "a graph is read as a whole, and cannot be cut into parts",
    "entropy_penalty": "it has no attention",
    "distance_penalty": "it has no attention",
    "distance_max": "it has no attention",
}
"""Settings of the recipe that a graph model does not use."""


def reason_unused(setting: str, model: ModelSpec) -> str | None:
    """Return the reason why a recipe setting has no effect on a model; None if it has an effect."""
    if setting in ONLY_FOR and not isinstance(model, ONLY_FOR[setting][0]):
        return ONLY_FOR[setting][1]
    return NOT_FOR_GRAPHS.get(setting) if isinstance(model, Graph) else None


def check_recipe_settings(settings: Iterable[str], model: ModelSpec) -> None:
    """Raise a SpecError if any of these recipe settings has no effect on a model."""
    for name in settings:
        if reason := reason_unused(name, model):
            raise SpecError(
                f"recipe.{name} has no effect on a model of the family {model.family}: {reason}. Leave it out."
            )


def _choose_tokenizer(default: TrainedTokenizer, settings: dict[str, Any]) -> TrainedTokenizer:
    """Remove the setting `tokenizer` from `settings` and return the tokenizer that it chooses, or the default."""
    names = [name for name in settings if name.partition(".")[0] == "tokenizer"]
    requested = nest_settings({name: settings.pop(name) for name in names}).get("tokenizer")
    if requested is None or requested == default.kind:
        return default
    if isinstance(requested, Mapping) and requested.get("kind", default.kind) == default.kind:
        requested = {**default.to_dict(), **requested}
    return read_tokenizer(requested, "tokenizer", default.kind)


def resolve_choice(model: str | Path | ModelSpec | Choice) -> Choice:
    """Convert a preset name, the path of a spec file, or a spec to a choice; return a choice as it is."""
    if isinstance(model, Choice):
        return model
    if isinstance(model, ModelSpec):
        return Choice(model, Recipe(), BytePairs())
    if not isinstance(model, (str, Path)):
        raise SpecError(
            f"a {type(model).__name__} is not a model that Lemma can train: give the name of a preset, a spec file, or "
            "a spec such as lemma.spec.models.Decoder(). To train an architecture of your own, make it known by "
            "lemma.register; lemma.count takes any torch module as it is."
        )
    path = Path(model)
    if str(model) not in PRESETS and (path.suffix == ".toml" or (exists(path) and path.is_file())):
        return read_spec_file(path)
    if preset := find_preset(str(model)):
        return Choice(preset.model, Recipe.read(preset.recipe, f"{model}: recipe"), preset.tokenizer or BytePairs())
    hint = "A spec file (name.toml) is possible too."
    if exists(path) and path.is_dir():
        hint = f"To train a run or a pretrained model further: lemma adapt {model} --text FILE --out FOLDER"
    raise SpecError(f"{_explain_unknown_model(str(model))} {hint}")


def read_spec_file(path: Path) -> Choice:
    """Read a TOML file of a model's settings, with optional tables [recipe] and [tokenizer]."""
    settings = read_toml(path)
    recipe = Recipe.read(settings.pop("recipe", {}), f"{path}: recipe")
    tokenizer = read_tokenizer(settings.pop("tokenizer", {}), f"{path}: tokenizer", "byte-pairs")
    return Choice(read_model(settings, str(path)), recipe, tokenizer)


@dataclass(frozen=True)
class SettingRow:
    """A setting of a preset with its default and description; `where` is model, recipe, data or tokenizer."""

    where: str
    word: str
    letter: str | None
    default: Any
    about: str

    @property
    def title(self) -> str:
        """Name, letter and default as text."""
        letter = f" ({self.letter})" if self.letter else ""
        return f"{self.word}{letter} = {'unset' if self.default is None else self.default}"


def describe_settings(model: str) -> list[SettingRow]:
    """List the settings of a preset: of its model, recipe, data and tokenizer, with their defaults.

    >>> [row.title for row in describe_settings("lstm")][1]
    'width (d) = 128'
    """
    choice = choose(model)
    kind = choice.model.data_kind
    data_choice = choice.as_classifier() if kind == "labels" else choice
    data = data_choice.data_spec(kind, ("text",) if kind == "text" else kind)
    model_rows = _setting_rows("model", choice.model)
    tokenizer_rows = _setting_rows("tokenizer", choice.tokenizer) if "tokenizer" in type(data).model_fields else []
    hidden = {row.word for row in model_rows}  # an encoder's objective is the model's
    if not tokenizer_rows:  # a text model may become the body of a classifier, which uses more settings
        hidden |= {name for name in Recipe.model_fields if reason_unused(name, choice.model)}
    recipe_rows = [row for row in _setting_rows("recipe", choice.recipe) if row.word not in hidden]
    data_rows = [row for row in _setting_rows("data", data) if row.word != "nodes_file"]
    return [*model_rows, *recipe_rows, *data_rows, *tokenizer_rows]


def _setting_rows(source: str, spec: Spec) -> list[SettingRow]:
    """List the settings of one spec; `source` is its part of the choice: model, recipe, data or tokenizer."""
    values = {
        name: value["kind"] if isinstance(value, dict) and "kind" in value else value
        for name, value in spec.to_dict().items()
    }
    return [
        SettingRow(source, name, letter_of(field), values.get(name), field.description or "")
        for name, field in type(spec).model_fields.items()
        if name not in {"family", "kind"} and field.default is not PydanticUndefined
    ]
