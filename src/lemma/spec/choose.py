"""From what a user asks for to three specs: a model, a recipe and the data."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from lemma.errors import SpecError, unknown
from lemma.spec.base import Spec, distribute, letter_of, read_toml
from lemma.spec.data import DATA_SPECS, KINDS, AnyDataSpec, BytePairs, Characters, GraphSpec, Words
from lemma.spec.models import (
    BodySpec,
    Classifier,
    CrossAttention,
    DualEncoder,
    Encoder,
    EncoderDecoder,
    Graph,
    LanguageSpec,
    ModelSpec,
    Parser,
    TextReader,
    family_names,
    family_of,
)
from lemma.spec.presets import PRESETS, find_preset, preset_names
from lemma.spec.recipe import Recipe

READERS: dict[str, tuple[Any, str]] = {
    "text": (LanguageSpec | Encoder, "language models and encoders"),
    "treebank": (Parser, "a parser"),
    "pairs": (EncoderDecoder, "an encoder-decoder"),
    "labels": (Classifier, "a classifier"),
    "images": (DualEncoder | CrossAttention, "a dual-encoder"),
    "graph": (Graph, "a graph model"),
}
"""The models that learn each kind of data, as types and in words."""
LEARNS = {
    "parser": "a parser learns trees (--treebank ewt, or --treebank FILE.conllu)",
    "encoder-decoder": "an encoder-decoder learns pairs of texts (--pairs tatoeba-es, or --pairs FILE.tsv)",
    "classifier": "a classifier learns labelled texts (--labels tweets, or --labels FILE.csv)",
    "tree": "a tree is the body of a classifier (--labels tweets --parser runs/parser)",
    "dual-encoder": "a dual-encoder learns images with captions (--images emoji, or --images FOLDER)",
    "cross-attention": "a re-ranker is made of a dual encoder (lemma adapt RUN --rerank --images emoji)",
    "graph": "a graph model learns a graph (--graph cora, or --graph FILE)",
}
"""What the families learn that do not learn running text."""


@dataclass(frozen=True)
class Choice:
    """A model with its recipe and tokenizer, before the data are known."""

    model: ModelSpec
    recipe: Recipe
    tokenizer: Characters | Words | BytePairs
    data_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the data that were given with the model's: held_out, or how a graph is divided."""

    def data(self, kind: str, source: Any, **settings: Any) -> AnyDataSpec:
        """The data spec of this choice: `kind` is text, treebank, pairs, labels, images or graph."""
        readers, names = READERS[kind]
        if not isinstance(self.model, readers):
            family = self.model.family
            learns = LEARNS.get(family, f"{family} learns running text (--text shakespeare, or --text FILE)")
            raise SpecError(f"--{kind} is for {names}; {learns}.")
        spec = DATA_SPECS[kind]
        own: dict[str, Any] = {"split": self.recipe.seed} if kind == "graph" else {}
        if "tokenizer" in spec.model_fields:
            own["tokenizer"] = self.tokenizer.to_dict()
        return spec.read({**own, **self.data_settings, **settings, kind: source}, "data")

    def classified(self) -> "Choice":
        """The classifier that has this choice's model for its body."""
        if isinstance(self.model, Classifier):
            return self
        if not isinstance(self.model, BodySpec):
            raise SpecError(f"a model of the family {self.model.family} cannot be the body of a classifier.")
        return replace(self, model=Classifier(body=self.model))


def choose(
    model: str | Path | ModelSpec | Choice, words: Mapping[str, Any] | None = None, *, classify: bool = False
) -> Choice:
    """Take a preset, a spec file or a spec, and change settings of the model, the recipe and the tokenizer.

    To `classify`, the model becomes the body of a classifier; the settings reach both.

    >>> choose("lstm", {"D": 64, "steps": 10}).model.hidden
    64
    """
    base, words = _base(model), dict(words or {})
    base = base.classified() if classify else base
    spec, tokenizer, settings = base.model, base.tokenizer, dict(base.data_settings)
    if isinstance(spec, Graph):  # it has no tokenizer, and its graph has settings
        shares = distribute(words, {"model": Graph, "recipe": Recipe, "data": GraphSpec})
        GraphSpec.read({"graph": "graph", **shares["data"]}, "data")  # a wrong setting is reported first
        settings |= shares["data"]
    else:
        tokenizer = _tokenizer(tokenizer, words)
        settings |= {"held_out": words.pop("held_out")} if "held_out" in words else {}
        body = {"body": type(spec.body)} if isinstance(spec, TextReader) else {}
        shares = distribute(words, {"tokenizer": type(tokenizer), "model": type(spec), **body, "recipe": Recipe})
        tokenizer = tokenizer.replace(**shares["tokenizer"])
    if isinstance(spec, TextReader) and shares["body"]:
        shares["model"]["body"] = spec.body.replace(**shares["body"]).to_dict()
    refuse_idle(shares["recipe"], spec)
    recipe = base.recipe.replace(**shares["recipe"])
    recipe.objective.found()  # one that is not installed is reported first
    return Choice(spec.replace(**shares["model"]), recipe, tokenizer, settings)


ONLY_FOR: dict[str, tuple[Any, str]] = {
    "mask_rate": (Encoder, "it is for an encoder, which learns masked tokens"),
    "label_smoothing": (
        EncoderDecoder | Classifier | Graph | DualEncoder,
        "it is for translators, classifiers and dual encoders",
    ),
    "augment": (DualEncoder | CrossAttention, "it is for dual encoders, which learn images"),
    "sequence_length": (LanguageSpec, "it is for language models, which read running text"),
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


def refuse_idle(words: Iterable[str], model: ModelSpec) -> None:
    """Refuse settings of the recipe that have no effect on this model."""
    for word in words:
        why = NOT_FOR_GRAPHS.get(word) if isinstance(model, Graph) else None
        if word in ONLY_FOR and not isinstance(model, ONLY_FOR[word][0]):
            why = ONLY_FOR[word][1]
        if why:
            raise SpecError(
                f"recipe.{word} has no effect on a model of the family {model.family}: {why}. Leave it out."
            )


def _tokenizer(default: Characters | Words | BytePairs, words: dict[str, Any]) -> Characters | Words | BytePairs:
    named = words.pop("tokenizer", None)
    if named is None:
        return default
    if named not in KINDS:
        raise SpecError(unknown("tokenizer", str(named), KINDS))
    return default if default.kind == named else KINDS[named]()


def _base(model: str | Path | ModelSpec | Choice) -> Choice:
    if isinstance(model, Choice):
        return model
    if not isinstance(model, (str, Path)):
        return Choice(model, Recipe(), BytePairs())
    path = Path(model)
    if str(model) not in PRESETS and (path.suffix == ".toml" or path.is_file()):
        return read_choice(path)
    if preset := find_preset(str(model)):
        return Choice(preset.model, Recipe.read(preset.recipe, f"{model}: recipe"), preset.tokenizer or BytePairs())
    raise SpecError(unknown("model", str(model), preset_names()) + " A spec file (name.toml) is possible too.")


def read_choice(path: Path) -> Choice:
    """Read a spec file: the model's settings, and optionally the tables [recipe] and [tokenizer]."""
    words = read_toml(path)
    recipe = Recipe.read(words.pop("recipe", {}), f"{path}: recipe")
    tokenizer = words.pop("tokenizer", {"kind": "byte-pairs"})
    table = tokenizer if isinstance(tokenizer, Mapping) else {"kind": str(tokenizer)}
    named = str(table.get("kind"))
    if named not in KINDS:
        raise SpecError(f"{path}: " + unknown("tokenizer", named, KINDS))
    return Choice(read_model(words, str(path)), recipe, KINDS[named].read(table, f"{path}: tokenizer"))


def read_model(words: Mapping[str, Any], where: str) -> ModelSpec:
    """Read a model's settings; `family` says which family they belong to."""
    family = words.get("family")
    if family is None:
        raise SpecError(f"{where}: 'family' is missing. Known: {', '.join(family_names())}.")
    found = family_of(str(family))
    if found is None:
        raise SpecError(f"{where}: " + unknown("family", str(family), family_names()))
    return found.read(words, f"{where}: {family}")


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
    kind = next((kind for kind, (readers, _) in READERS.items() if isinstance(chosen.model, readers)), "labels")
    data = (chosen if kind != "labels" else chosen.classified()).data(kind, ("text",) if kind == "text" else kind)
    own = _rows("model", chosen.model)
    hidden = {row.word for row in own}  # an encoder's objective is the model's
    hidden |= {*ONLY_FOR, *NOT_FOR_GRAPHS} if kind == "graph" else set()
    recipe = [row for row in _rows("recipe", chosen.recipe) if row.word not in hidden]
    tokenizer = _rows("tokenizer", chosen.tokenizer) if "tokenizer" in type(data).model_fields else []
    return [*own, *recipe, *(row for row in _rows("data", data) if row.word != "nodes_file"), *tokenizer]


def _rows(where: str, spec: Spec) -> list[SettingRow]:
    values = {
        name: value["kind"] if isinstance(value, dict) and "kind" in value else value
        for name, value in spec.to_dict().items()
    }
    return [
        SettingRow(where, name, letter_of(field), values.get(name), field.description or "")
        for name, field in type(spec).model_fields.items()
        if name not in {"family", "kind"} and field.default is not PydanticUndefined
    ]
