"""Every word a model takes, with its letter, its default and its sentence."""

from dataclasses import asdict, dataclass
from typing import Any

from pydantic_core import PydanticUndefined

from lemma.spec.base import Spec, letter_of
from lemma.spec.choose import IDLE, WHOLE, Choice, choose
from lemma.spec.classifier import Classifier
from lemma.spec.graph import Graph
from lemma.spec.parser import Parser
from lemma.spec.transformer import EncoderDecoder


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
