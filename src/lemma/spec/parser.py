"""A parser: an encoder over words, and one last attention layer with a head for every relation (problem B1)."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from lemma.errors import unknown
from lemma.spec.base import Letter, Spec

Size = Annotated[int, Field(ge=1)]


class BiLstm(Spec):
    """Layers of two LSTMs, one that reads the sentence forwards and one that reads it backwards."""

    kind: Literal["bilstm"] = "bilstm"
    hidden: Annotated[Size, Letter("D")] = 200
    """Units of each LSTM; a layer's output is twice as wide."""
    depth: Annotated[Size, Letter("L")] = 2
    """Number of layers."""

    @property
    def width(self) -> int:
        """The width of what it gives."""
        return 2 * self.hidden


class TransformerEncoder(Spec):
    """Pre-norm Transformer layers in which every word sees all words, with rotary positions."""

    kind: Literal["transformer"] = "transformer"
    width: Size = 192
    """Width of the stream."""
    depth: Annotated[Size, Letter("L")] = 4
    """Number of layers."""
    heads: Annotated[Size, Letter("h")] = 6
    """Attention heads a layer."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.width % (2 * self.heads):
            near = max(1, round(self.width / (2 * self.heads))) * 2 * self.heads
            raise ValueError(
                f"encoder.width = {self.width} does not give encoder.heads = {self.heads} an even width each, which "
                f"rotary positions need. Nearest width: {near}."
            )
        return self


KINDS = {"bilstm": BiLstm, "transformer": TransformerEncoder}


def _from_name(value: Any) -> Any:
    if isinstance(value, Mapping) and "kind" not in value:  # as in encoder.hidden=100
        return {"kind": "bilstm", **value}
    if not isinstance(value, str):
        return value
    if value not in KINDS:
        raise ValueError(unknown("encoder", value, KINDS))
    return {"kind": value}


Encoder = Annotated[BiLstm | TransformerEncoder, Field(discriminator="kind"), BeforeValidator(_from_name)]


class Parser(Spec):
    """Words in, a dependency tree out: the head of a relation attends from a governor to its dependents."""

    family: Literal["parser"] = "parser"
    vocabulary: Annotated[Size, Letter("V")] = 256
    """Number of different words; training takes it from the treebank."""
    relations: Annotated[Size, Letter("R")] = 40
    """Number of relations, and so of heads; training takes it from the treebank."""
    width: Annotated[Size, Letter("d")] = 100
    """Width of a word's embedding, and of the embedding of its spelling beside it."""
    buckets: Size = 20_000
    """Rows that the pieces of words' spellings are hashed to."""
    minimum_count: Size = 2
    """Words seen less often in the training treebank are known by their spelling only."""
    word_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.15
    """The share of words that training hides, so that spelling and context have to do."""
    encoder: Encoder = BiLstm()
    """What reads the sentence: bilstm or transformer."""
    hidden: Annotated[Size, Letter("d_h")] = 200
    """Units of the layers that make a governor and a dependent of each word."""
    head_width: Annotated[Size, Letter("w")] = 32
    """Width of the queries and keys that a relation has for itself."""
    shared_width: Annotated[int, Field(ge=0), Letter("w_s")] = 128
    """Width of the queries and keys that all relations share; they tell governors whatever the relation."""
    attention_loss: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the loss that makes each head a picture of its relation, beside that of the parser."""

    def sizes(self) -> dict[str, int]:
        """The sizes by their textbook letters."""
        return {letter: getattr(self, name) for letter, name in type(self).letters().items()}

    def at(self, sizes: Mapping[str, int]) -> Self:
        """Return a copy with other sizes, given by their letters."""
        return self.replace(**sizes)


class TreebankSpec(Spec):
    """The trees of a run: where they come from and what is held out."""

    treebank: str
    """A treebank by name, a CoNLL-U file, or a folder of them."""
    dev: str | None = None
    """A CoNLL-U file to validate on; if unset, the treebank's own, or else sentences held out."""
    held_out: float = Field(default=0.1, gt=0, lt=1)
    """The share of one's own sentences held out for validation where no others are given."""
