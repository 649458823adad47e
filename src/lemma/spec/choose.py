"""From what a person asks for to three specs: a model, a recipe and the data."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from lemma.errors import SpecError, unknown
from lemma.spec.base import Spec, distribute, letter_of, read_toml
from lemma.spec.data import (
    KINDS,
    BytePairs,
    Characters,
    DataSpec,
    GraphSpec,
    ImagesSpec,
    LabelsSpec,
    PairsSpec,
    TreebankSpec,
    Words,
)
from lemma.spec.models import (
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
    Lstm,
    ModelSpec,
    NewFamily,
    Parser,
    Reading,
    Rnn,
    TableA5,
    family_names,
    family_of,
)
from lemma.spec.presets import PRESETS, find_preset, preset_names
from lemma.spec.recipe import Recipe


@dataclass(frozen=True)
class Choice:
    """A model and the recipe and tokenizer words that go with it, before data are known."""

    model: ModelSpec
    recipe: Recipe
    tokenizer: Characters | Words | BytePairs
    held_out: float | None = None
    """What the kind of data has for it, if unset."""
    graph_words: Mapping[str, Any] = field(default_factory=dict)
    """The words that say how a graph is divided, and how large a generated one is."""

    def data(self, text: Sequence[str]) -> DataSpec:
        """The data spec of this choice for these texts."""
        if self.model.family in LEARNS:
            raise SpecError(f"{LEARNS[self.model.family]}, not plain text.")
        return DataSpec.read({"text": tuple(text), **self._cut()}, "data")

    def trees(self, treebank: str, dev: str | None = None) -> TreebankSpec:
        """The data spec of this choice for a treebank; only a parser learns one."""
        if not isinstance(self.model, Parser):
            raise SpecError(f"--treebank is for a parser; a model of the family {self.model.family} learns --text.")
        return TreebankSpec.read({"treebank": treebank, "dev": dev, **self._held_out()}, "data")

    def pairs(self, pairs: str, **columns: Any) -> PairsSpec:
        """The data spec of this choice for pairs of texts; only an encoder–decoder learns them."""
        if not isinstance(self.model, EncoderDecoder):
            raise SpecError(f"--pairs is for an encoder-decoder; a model of the family {self.model.family} is none.")
        return PairsSpec.read({"pairs": pairs, **self._cut(), **columns}, "data")

    def labels(self, labels: str, **columns: Any) -> LabelsSpec:
        """The data spec of this choice for labelled texts; only a classifier learns them."""
        if not isinstance(self.model, Classifier):
            raise SpecError(f"--labels is for a classifier; a model of the family {self.model.family} is none.")
        return LabelsSpec.read({"labels": labels, **self._cut(), **columns}, "data")

    def images(self, images: str, **columns: Any) -> ImagesSpec:
        """The data spec of this choice for images with captions; only a dual encoder and its re-ranker learn them."""
        if not isinstance(self.model, DualEncoder | CrossAttention):
            raise SpecError(f"--images is for a dual-encoder; a model of the family {self.model.family} is none.")
        return ImagesSpec.read({"images": images, **self._cut(), **columns}, "data")

    def graph(self, graph: str, **words: Any) -> GraphSpec:
        """The data spec of this choice for a graph; only a model of the family graph learns one."""
        if not isinstance(self.model, Graph):
            raise SpecError(f"--graph is for a graph model; a model of the family {self.model.family} is none.")
        return GraphSpec.read({"split": self.recipe.seed, **self.graph_words, **words, "graph": graph}, "data")

    def classified(self) -> "Choice":
        """The classifier that has this choice's model for its body."""
        if isinstance(self.model, Classifier):
            return self
        if not isinstance(self.model, BodySpec):
            raise SpecError(f"a model of the family {self.model.family} cannot be the body of a classifier.")
        return replace(self, model=Classifier(body=self.model))

    def _cut(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer.to_dict(), **self._held_out()}

    def _held_out(self) -> dict[str, float]:
        return {} if self.held_out is None else {"held_out": self.held_out}


LEARNS = {
    "parser": "a parser learns trees (--treebank ewt, or --treebank FILE.conllu)",
    "encoder-decoder": "an encoder-decoder learns pairs of texts (--pairs tatoeba-es, or --pairs FILE.tsv)",
    "classifier": "a classifier learns labelled texts (--labels tweets, or --labels FILE.csv)",
    "tree": "a tree is the body of a classifier (--labels tweets --parser runs/parser)",
    "dual-encoder": "a dual-encoder learns images with captions (--images emoji, or --images FOLDER)",
    "cross-attention": "a re-ranker is made of a dual encoder (lemma adapt RUN --rerank --images emoji)",
    "graph": "a graph model learns a graph (--graph cora, or --graph FILE)",
}
"""What models learn that do not learn plain text."""


def choose(
    model: str | Path | ModelSpec | Choice, words: Mapping[str, Any] | None = None, *, classify: bool = False
) -> Choice:
    """Take a preset, a spec file or a spec, then let `words` change model, recipe and tokenizer.

    To `classify`, the model becomes the body of a classifier; the words reach both.

    >>> choose("lstm", {"D": 64, "steps": 10}).model.hidden
    64
    """
    base, words = _base(model), dict(words or {})
    base = base.classified() if classify else base
    if isinstance(base.model, Graph):
        return _chosen_graph(base, base.model, words)
    tokenizer = _tokenizer(base.tokenizer, words)
    held_out = words.pop("held_out", base.held_out)
    kinds: dict[str, type[Spec]] = {"tokenizer": type(tokenizer), "model": type(base.model)}
    kinds |= {"body": type(base.model.body)} if isinstance(base.model, Reading) else {}
    shares = distribute(words, {**kinds, "recipe": Recipe})
    if isinstance(base.model, Reading) and shares["body"]:
        shares["model"]["body"] = base.model.body.replace(**shares["body"]).to_dict()
    refuse_idle(shares["recipe"], base.model)
    recipe = base.recipe.replace(**shares["recipe"])
    recipe.objective.found()  # one that is not installed is told before all else
    return replace(
        base,
        model=base.model.replace(**shares["model"]),
        recipe=recipe,
        tokenizer=tokenizer.replace(**shares["tokenizer"]),
        held_out=held_out,
    )


def _chosen_graph(base: Choice, model: Graph, words: Mapping[str, Any]) -> Choice:
    """The same for a graph model, which has no tokenizer; some words are its graph's."""
    shares = distribute(words, {"model": Graph, "recipe": Recipe, "data": GraphSpec})
    refuse_idle(shares["recipe"], model)
    GraphSpec.read({"graph": "graph", **shares["data"]}, "data")  # a wrong word is told before all else
    changed, recipe = model.replace(**shares["model"]), base.recipe.replace(**shares["recipe"])
    return replace(base, model=changed, recipe=recipe, graph_words={**base.graph_words, **shares["data"]})


LANGUAGE = (FeedForward, Attentive, Rnn, Lstm, Gru, Decoder, TableA5, NewFamily)
IDLE: dict[str, tuple[tuple[type[Spec], ...], str]] = {
    "mask_rate": ((Encoder,), "it is for an encoder, which learns what is hidden"),
    "label_smoothing": (
        (EncoderDecoder, Classifier, Graph, DualEncoder),
        "it is for translators, classifiers and dual encoders",
    ),
    "augment": ((DualEncoder, CrossAttention), "it is for dual encoders, which learn pictures"),
    "stretch": (LANGUAGE, "it is for language models, which read stretches of running text"),
    "objective": (LANGUAGE, "it is for language models, which learn running text"),
}
"""Words of the recipe that only some families have a use for."""
WHOLE = {
    "batch": "it learns all labelled nodes at every step",
    "accumulate": "a graph is read as a whole, and cannot be cut into parts",
    "focus": "it has no attention to shape",
    "near": "it has no attention to shape",
    "near_max": "it has no attention to shape",
}
"""Words of the recipe that a graph model has no use for."""


def refuse_idle(words: Iterable[str], model: ModelSpec) -> None:
    """Refuse words of the recipe that would change nothing for this model."""
    for word in words:
        kinds, why = IDLE.get(word, ((Spec,), ""))
        why = WHOLE.get(word, why) if isinstance(model, Graph) else why
        if not isinstance(model, kinds) or (isinstance(model, Graph) and word in WHOLE):
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
    raise SpecError(unknown("model", str(model), preset_names()) + " A spec file (name.toml) will do too.")


def read_choice(path: Path) -> Choice:
    """Read a spec file: the model's words, and if wanted the tables [recipe] and [tokenizer]."""
    words = read_toml(path)
    recipe = Recipe.read(words.pop("recipe", {}), f"{path}: recipe")
    tokenizer = words.pop("tokenizer", {"kind": "byte-pairs"})
    named = str(tokenizer.get("kind") if isinstance(tokenizer, Mapping) else tokenizer)
    if named not in KINDS:
        raise SpecError(f"{path}: " + unknown("tokenizer", named, KINDS))
    table = tokenizer if isinstance(tokenizer, Mapping) else {"kind": named}
    return Choice(read_model(words, str(path)), recipe, KINDS[named].read(table, f"{path}: tokenizer"))


def read_model(words: Mapping[str, Any], where: str) -> ModelSpec:
    """Read a model's words; `family` says which family they belong to."""
    family = words.get("family")
    if family is None:
        raise SpecError(f"{where}: 'family' is missing. Known: {', '.join(family_names())}.")
    found = family_of(str(family))
    if found is None:
        raise SpecError(f"{where}: " + unknown("family", str(family), family_names()))
    return found.read(words, f"{where}: {family}")


# Every word a model takes, with its letter, its default and its sentence.


@dataclass(frozen=True)
class WordRow:
    """One word: what it is called, what it is set to unless told otherwise, and what it does."""

    where: str
    word: str
    letter: str | None
    default: Any
    about: str

    @property
    def title(self) -> str:
        """The word as a person would type it, its letter beside it."""
        letter = f" ({self.letter})" if self.letter else ""
        return f"{self.word}{letter} = {'unset' if self.default is None else self.default}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def describe_words(model: str) -> list[WordRow]:
    """List the words of a model, its recipe and its tokenizer with the values that model gives them.

    >>> [row.title for row in describe_words("lstm")][1]
    'width (d) = 128'
    """
    chosen = choose(model)
    if isinstance(chosen.model, Parser):  # it learns words as they stand in a treebank
        trees = _rows("data", chosen.trees("treebank"))
        return [*_rows("model", chosen.model), *_rows("recipe", chosen.recipe), *trees]
    if isinstance(chosen.model, Graph):
        graph = [row for row in _rows("data", chosen.graph("graph")) if row.word not in ("graph", "nodes_file")]
        recipe = [row for row in _rows("recipe", chosen.recipe) if row.word not in (*IDLE, *WHOLE)]
        return [*_rows("model", chosen.model), *recipe, *graph]
    data, own = _rows("data", _data(chosen)), _rows("model", chosen.model)
    taken = {row.word for row in own}  # an encoder's objective is the model's
    return [
        *own,
        *(row for row in _rows("recipe", chosen.recipe) if row.word not in taken),
        *data,
        *_rows("tokenizer", chosen.tokenizer),
    ]


def _data(chosen: Choice) -> Spec:
    if isinstance(chosen.model, EncoderDecoder):
        return chosen.pairs("pairs")
    return chosen.labels("labels") if isinstance(chosen.model, Classifier) else chosen.data(["text"])


def _rows(where: str, spec: Spec) -> list[WordRow]:
    values = spec.to_dict()
    return [
        WordRow(where, name, letter_of(field), _plain(values.get(name)), field.description or "")
        for name, field in type(spec).model_fields.items()
        if name not in {"family", "kind"} and field.default is not PydanticUndefined
    ]


def _plain(value: Any) -> Any:
    return value["kind"] if isinstance(value, dict) and "kind" in value else value
