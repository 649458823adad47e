"""From what a person asks for to three specs: presets by name, spec files and settings."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from lemma.errors import SpecError, describe_unknown
from lemma.spec.base import Spec, distribute, exists, letter_of, nest_settings, read_toml, short_repr
from lemma.spec.data import DATA_SPECS, TOKENIZER_SPECS, AnyDataSpec, BytePairs, Characters, Words
from lemma.spec.models import (
    FAMILIES,
    PLUGIN_FAMILIES,
    Attentive,
    BodySpec,
    Classifier,
    CrossAttention,
    Decoder,
    DualEncoder,
    Encoder,
    EncoderDecoder,
    FeedForward,
    Graph,
    Gru,
    LanguageSpec,
    Lstm,
    ModelSpec,
    NewFamily,
    Parser,
    Rnn,
    TableA5,
    TextReader,
    Tree,
    family_names,
    find_family,
)
from lemma.spec.positions import NewPositions, Sinusoidal
from lemma.spec.recipe import Recipe
from lemma.spec.settings import MODEL_SYNONYMS

# Models by name: the families with good defaults, those of the problems, and those of other packages.


@dataclass(frozen=True)
class Preset:
    """A named model, with its recipe settings and tokenizer."""

    model: ModelSpec
    description: str
    recipe: dict[str, Any] = field(default_factory=dict)
    tokenizer: Characters | Words | BytePairs | None = None


PRESETS: dict[str, Preset] = {
    "feed-forward": Preset(FeedForward(), "Bengio's feed-forward model over a window of words"),
    "attentive": Preset(Attentive(), "the same window read by one attention head"),
    "rnn": Preset(Rnn(), "simple recurrent network", {"learning_rate": 1e-3}),
    "lstm": Preset(Lstm(), "long short-term memory", {"learning_rate": 4e-3}),
    "gru": Preset(Gru(), "gated recurrent unit", {"learning_rate": 4e-3}),
    "decoder": Preset(Decoder(), "pre-norm decoder-only Transformer"),
    "encoder": Preset(
        Encoder(),
        "Transformer that sees all tokens and learns masked ones",
        {"learning_rate": 1e-3, "warm_up": 200},  # with a higher rate it long predicts only token frequencies
    ),
    "encoder-decoder": Preset(
        EncoderDecoder(),
        "Transformer that reads a source and writes its target; learns --pairs",
        {
            "steps": 2000,
            "batch": 64,
            "learning_rate": 1e-3,
            "warm_up": 200,
            "beta2": 0.98,
            "dropout": 0.1,
            "label_smoothing": 0.1,
        },
        BytePairs(vocabulary=4096),
    ),
    "transformer-c5": Preset(
        EncoderDecoder(
            vocabulary=30_000,
            width=1024,
            heads=4,
            attention_width=768,
            feed_forward=512,
            context=2048,
            encoder_depth=12,
            decoder_depth=8,
            positions=Sinusoidal(),
            norm_place="post",
            activation="relu",
        ),
        "problem C5: 139,994,112 parameters, attention width 768 in a stream of 1,024",
        {"batch": 32, "learning_rate": 5e-4, "warm_up": 1000, "beta2": 0.98, "dropout": 0.1, "label_smoothing": 0.1},
        BytePairs(vocabulary=30_000 - 3),
    ),
    "tree": Preset(
        Tree(),
        "graph convolution over a sentence's dependency tree; a body: learns --labels with --parser",
        {"learning_rate": 4e-3, "dropout": 0.3},
        Words(minimum_count=2),
    ),
    "dual-encoder": Preset(
        DualEncoder(),
        "images and texts in one space, by a patch Transformer and a text body; learns --images",
        {
            "steps": 5000,
            "batch": 128,
            "learning_rate": 2e-3,
            "final_rate": 0.01,
            "warm_up": 100,
            "weight_decay": 0.05,
            "beta2": 0.98,
            "label_smoothing": 0.1,
            "keep": "last",  # held-out captions do not measure how well seen ones are learned
        },
    ),
    "graph": Preset(
        Graph(),
        "problem D4: two layers of graph convolution that classify nodes; learns a --graph",
        {
            "steps": 400,
            "learning_rate": 0.01,
            "warm_up": 0,
            "final_rate": 1.0,
            "beta2": 0.999,
            "weight_decay": 1.0,  # few labels, many weights: chosen with dropout among six on Cora's splits 1 to 6
            "dropout": 0.8,
            "evaluate_every": 10,
            "checkpoint_every": 100,
            "precision": "float32",
        },
    ),
    "penn-rnn": Preset(
        Rnn(vocabulary=10_000, width=256, hidden=512),
        "problem D5: word-level RNN, embedding 256, hidden 512",
        {
            "steps": 6000,  # eight epochs of Penn Treebank's 930,000 words; twice as many overfit such a text
            "batch": 128,
            "sequence_length": 10,
            "learning_rate": 1e-3,
            "dropout": 0.1,
            "evaluate_every": 500,
            "patience": 3,
        },
        Words(vocabulary=10_000),
    ),
    "table-a5": Preset(
        TableA5(),
        "problem A5: 9,721,596 parameters at two layers, 14,980,860 at four",
        {"learning_rate": 5e-4, "warm_up": 100},
        Words(vocabulary=7676),
    ),
    "parser": Preset(
        Parser(),
        "problem B1: one attention head per relation, over a BiLSTM; learns a --treebank",
        {
            "steps": 3600,
            "learning_rate": 2e-3,
            "final_rate": 0.02,
            "warm_up": 200,
            "weight_decay": 0.01,
            "beta2": 0.9,
            "clip": 5.0,
            "dropout": 0.33,
            "keep": "last",  # the validation loss rises before the validation scores fall
            "precision": "float32",
        },
    ),
}


RESERVED_NAMES = {*PRESETS, *FAMILIES}
"""Names that other packages cannot give to a family."""


def preset(name: str) -> Preset:
    """Return the preset of that name, or say which names there are."""
    found = find_preset(name)
    if found is None:
        raise SpecError(describe_unknown("model", name, preset_names(), MODEL_SYNONYMS.get(name.lower())))
    return found


def find_preset(name: str) -> Preset | None:
    """The preset of that name, Lemma's own or another package's; None for an unknown name."""
    if name in PRESETS:
        return PRESETS[name]
    family = PLUGIN_FAMILIES.find(name)
    if family is None:
        return None
    about = (family.__doc__ or "").strip().partition("\n")[0]
    with PLUGIN_FAMILIES.attribute_errors(name):
        return Preset(family.model_validate({}), about, dict(family.recipe), family.tokenizer)


def preset_names() -> list[str]:
    """All models known by name, Lemma's own first."""
    return [*PRESETS, *PLUGIN_FAMILIES.names()]


def uses_plugins(spec: Spec) -> bool:
    """Return whether a spec, or one in it, is of a class that another package brings.

    >>> from lemma.spec.models import Decoder
    >>> uses_plugins(Decoder())
    False
    """
    inner = (getattr(spec, name) for name in type(spec).model_fields)
    return isinstance(spec, NewFamily | NewPositions) or any(
        uses_plugins(value) for value in inner if isinstance(value, Spec)
    )


# From what a user asks for to three specs: a model, a recipe and the data.


@dataclass(frozen=True)
class Choice:
    """A model with its recipe and tokenizer, before the data are known."""

    model: ModelSpec
    recipe: Recipe
    tokenizer: Characters | Words | BytePairs
    data_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the data that were given with the model's: held_out, or how a graph is divided."""
    reference_recipe: Recipe | None = None
    """Recipe of the preset or spec file, before settings."""

    def data_spec(self, kind: str, source: Any, **settings: Any) -> AnyDataSpec:
        """The data spec of this choice: `kind` is text, treebank, pairs, labels, images or graph."""
        if kind != (learns := self.model.data_kind):
            about = DATA_SPECS[learns].model_fields[learns].description
            raise SpecError(
                f"--{kind} is not for a model of the family {self.model.family}: it learns --{learns}. {about}"
            )
        spec = DATA_SPECS[kind]
        own: dict[str, Any] = {"split": self.recipe.seed} if kind == "graph" else {}
        if "tokenizer" in spec.model_fields:
            own["tokenizer"] = self.tokenizer.to_dict()
        return spec.read({**own, **self.data_settings, **settings, kind: source}, "data")

    def as_classifier(self) -> "Choice":
        """The classifier that has this choice's model for its body."""
        if isinstance(self.model, Classifier):
            return self
        if not isinstance(self.model, BodySpec):
            raise SpecError(f"a model of the family {self.model.family} cannot be the body of a classifier.")
        # transformers' classifiers made of decoders have no bias, so that the run can leave as one
        return replace(self, model=Classifier(body=self.model, head_bias=not isinstance(self.model, Decoder)))


def choose(
    model: str | Path | ModelSpec | Choice, words: Mapping[str, Any] | None = None, *, classify: bool = False
) -> Choice:
    """Take a preset, a spec file or a spec, and change settings of the model, the recipe and the tokenizer.

    To `classify`, the model becomes the body of a classifier; the settings reach both.

    >>> choose("lstm", {"D": 64, "steps": 10}).model.hidden
    64
    """
    base, words = _resolve_model(model), dict(words or {})
    reference_recipe = base.recipe
    base = base.as_classifier() if classify else base
    spec, tokenizer, settings = base.model, base.tokenizer, dict(base.data_settings)
    kind = spec.data_kind
    if "tokenizer" not in DATA_SPECS[kind].model_fields:
        shares = distribute(words, {"model": type(spec), "recipe": Recipe, "data": DATA_SPECS[kind]}, ("epochs",))
        DATA_SPECS[kind].read({kind: kind, **shares["data"]}, "data")  # a wrong setting is reported first
        settings |= shares["data"]
    else:
        tokenizer = _choose_tokenizer(tokenizer, words)
        settings |= {"held_out": words.pop("held_out")} if "held_out" in words else {}
        body = {"body": type(spec.body)} if isinstance(spec, TextReader) else {}
        kinds = {"tokenizer": type(tokenizer), "model": type(spec), **body, "recipe": Recipe}
        shares = distribute(words, kinds, ("tokenizer", "held_out", "validation", "test", "epochs"))
        tokenizer = tokenizer.replace(**shares["tokenizer"])
    if isinstance(spec, TextReader) and shares["body"]:
        shares["model"]["body"] = spec.body.replace(**shares["body"]).to_dict()
    check_recipe_settings(shares["recipe"], spec)
    recipe = base.recipe.replace(**shares["recipe"])
    recipe.objective.resolve()  # one that is not installed is reported first
    return Choice(spec.replace(**shares["model"]), recipe, tokenizer, settings, reference_recipe)


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
    """Why a setting of the recipe has no effect on this model; None if it has one."""
    if setting in ONLY_FOR and not isinstance(model, ONLY_FOR[setting][0]):
        return ONLY_FOR[setting][1]
    return NOT_FOR_GRAPHS.get(setting) if isinstance(model, Graph) else None


def check_recipe_settings(settings: Iterable[str], model: ModelSpec) -> None:
    """Refuse settings of the recipe that have no effect on this model."""
    for word in settings:
        if why := reason_unused(word, model):
            raise SpecError(
                f"recipe.{word} has no effect on a model of the family {model.family}: {why}. Leave it out."
            )


def _choose_tokenizer(
    default: Characters | Words | BytePairs, settings: dict[str, Any]
) -> Characters | Words | BytePairs:
    value = nest_settings(
        {word: settings.pop(word) for word in list(settings) if word.partition(".")[0] == "tokenizer"}
    )
    if value.get("tokenizer") is None:
        return default
    requested = value["tokenizer"]
    if requested == default.kind:
        return default
    if isinstance(requested, Mapping) and requested.get("kind", default.kind) == default.kind:
        requested = {**default.to_dict(), **requested}  # what is not said stays as the preset has it
    return read_tokenizer(requested, "tokenizer", default.kind)


def read_tokenizer(value: Any, source: str, default_kind: str) -> Characters | Words | BytePairs:
    """Read a tokenizer: its kind, or a table of its settings, of this `kind` unless it says another."""
    table = {"kind": default_kind, **value} if isinstance(value, Mapping) else {"kind": value}
    if not isinstance(table["kind"], str) or table["kind"] not in TOKENIZER_SPECS:
        raise SpecError(describe_unknown(source, short_repr(table["kind"]).strip("'"), TOKENIZER_SPECS))
    return TOKENIZER_SPECS[table["kind"]].read(table, source)


def _resolve_model(model: str | Path | ModelSpec | Choice) -> Choice:
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
    more = " A spec file (name.toml) is possible too."
    if exists(path) and path.is_dir():
        more = f" To train a run or a pretrained model further: lemma adapt {model} --text FILE --out FOLDER"
    raise SpecError(
        describe_unknown("model", str(model), preset_names(), MODEL_SYNONYMS.get(str(model).lower())) + more
    )


def read_spec_file(path: Path) -> Choice:
    """Read a spec file: the model's settings, and optionally the tables [recipe] and [tokenizer]."""
    words = read_toml(path)
    recipe = Recipe.read(words.pop("recipe", {}), f"{path}: recipe")
    tokenizer = read_tokenizer(words.pop("tokenizer", {}), f"{path}: tokenizer", "byte-pairs")
    return Choice(read_model(words, str(path)), recipe, tokenizer)


def read_model(settings: Mapping[str, Any], source: str) -> ModelSpec:
    """Read a model's settings; `family` says which family they belong to."""
    family = settings.get("family")
    if family is None:
        raise SpecError(f"{source}: 'family' is missing. Known: {', '.join(family_names())}.")
    found = find_family(str(family))
    if found is None:
        raise SpecError(f"{source}: " + describe_unknown("family", str(family), family_names()))
    return found.read(settings, f"{source}: {family}")


@dataclass(frozen=True)
class SettingRow:
    """One setting: its name, its default and what it does."""

    where: str
    word: str
    letter: str | None
    default: Any
    about: str

    @property
    def title(self) -> str:
        """The setting as a user would type it, with its letter."""
        letter = f" ({self.letter})" if self.letter else ""
        return f"{self.word}{letter} = {'unset' if self.default is None else self.default}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def describe_settings(model: str) -> list[SettingRow]:
    """List the settings of a model, its recipe, its data and its tokenizer, with their defaults for this model.

    >>> [row.title for row in describe_settings("lstm")][1]
    'width (d) = 128'
    """
    chosen = choose(model)
    kind = chosen.model.data_kind
    data = (chosen if kind != "labels" else chosen.as_classifier()).data_spec(
        kind, ("text",) if kind == "text" else kind
    )
    own = _setting_rows("model", chosen.model)
    hidden = {row.word for row in own}  # an encoder's objective is the model's
    tokenizer = _setting_rows("tokenizer", chosen.tokenizer) if "tokenizer" in type(data).model_fields else []
    if not tokenizer:  # settings without effect are hidden, unless the model as a body of a classifier has them
        hidden |= {word for word in Recipe.model_fields if reason_unused(word, chosen.model)}
    recipe = [row for row in _setting_rows("recipe", chosen.recipe) if row.word not in hidden]
    return [*own, *recipe, *(row for row in _setting_rows("data", data) if row.word != "nodes_file"), *tokenizer]


def _setting_rows(source: str, spec: Spec) -> list[SettingRow]:
    values = {
        name: value["kind"] if isinstance(value, dict) and "kind" in value else value
        for name, value in spec.to_dict().items()
    }
    return [
        SettingRow(source, name, letter_of(field), values.get(name), field.description or "")
        for name, field in type(spec).model_fields.items()
        if name not in {"family", "kind"} and field.default is not PydanticUndefined
    ]
