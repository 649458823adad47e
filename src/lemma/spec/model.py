"""What a language model is made of: one frozen spec a family, told apart by its `family` word.

Every family has `vocabulary` V; training takes it from the tokenizer. Models with a bounded memory have a
`context`: N for the window models, which predict a word from the N−1 words before it, and T for the
Transformer, whose longest stretch it is.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from lemma.spec.base import Letter
from lemma.spec.family import Family, Size, check_heads
from lemma.spec.positions import Learned, Positions


class FeedForward(Family):
    """Bengio's neural language model: embed the N−1 words before, join them, one hidden layer, softmax."""

    family: Literal["feed-forward"] = "feed-forward"
    width: Annotated[Size, Letter("d")] = 64
    """Width of a word's embedding."""
    hidden: Annotated[Size, Letter("d_h")] = 256
    """Units of the hidden layer."""
    context: Annotated[int, Field(ge=2), Letter("N")] = 8
    """Length of the n-gram: a word is predicted from the N−1 words before it."""
    activation: Literal["tanh", "sigmoid", "relu"] = "tanh"
    """The hidden layer's non-linearity."""


class Attentive(Family):
    """A feed-forward model that reads its window through one attention head, asked by the last word only."""

    family: Literal["attentive"] = "attentive"
    width: Annotated[Size, Letter("d")] = 64
    """Width of a word's embedding."""
    key_width: Annotated[Size, Letter("d_k")] = 64
    """Width of the head's queries and keys."""
    value_width: Annotated[Size, Letter("d_v")] = 128
    """Width of the head's values, and so of what the hidden layer reads."""
    hidden: Annotated[Size, Letter("d_h")] = 256
    """Units of the hidden layer."""
    context: Annotated[int, Field(ge=2), Letter("N")] = 8
    """Length of the n-gram: a word is predicted from the N−1 words before it."""
    activation: Literal["tanh", "sigmoid", "relu"] = "tanh"
    """The hidden layer's non-linearity."""


class Recurrent(Family):
    """What the recurrent families share: an embedding, layers of cells, an output layer."""

    width: Annotated[Size, Letter("d")] = 128
    """Width of a word's embedding."""
    hidden: Annotated[Size, Letter("D")] = 256
    """Units of each recurrent layer."""
    depth: Annotated[Size, Letter("L")] = 1
    """Number of recurrent layers."""
    biases: Literal[0, 1, 2] = 1
    """Bias vectors a gate: 1 as in the textbook, 2 as in torch.nn (input and recurrent), 0 for none."""
    tied: bool = False
    """Whether the output layer reuses the embedding; needs hidden = width."""

    @model_validator(mode="after")
    def _tied_fits(self) -> Self:
        if self.tied and self.hidden != self.width:
            where = getattr(self, "family", "recurrent")
            raise ValueError(
                f"{where}.tied needs {where}.hidden = {where}.width, since the output layer reuses the embedding; "
                f"got hidden {self.hidden} and width {self.width}. Set both to {self.hidden}, or tied=false."
            )
        return self


class Rnn(Recurrent):
    """The simple recurrent network: h = σ(x I + h H + b)."""

    family: Literal["rnn"] = "rnn"
    activation: Literal["tanh", "relu"] = "tanh"
    """The hidden layer's non-linearity."""


class Lstm(Recurrent):
    """Long short-term memory: gates for update, forget and output around a cell."""

    family: Literal["lstm"] = "lstm"


class Gru(Recurrent):
    """The gated recurrent unit: gates for reset and update, no separate cell."""

    family: Literal["gru"] = "gru"


class Decoder(Family):
    """A pre-norm decoder-only Transformer."""

    family: Literal["decoder"] = "decoder"
    width: Annotated[Size, Letter("d")] = 128
    """Width of the residual stream."""
    depth: Annotated[Size, Letter("L")] = 4
    """Number of layers."""
    heads: Annotated[Size, Letter("h")] = 4
    """Attention heads a layer."""
    attention_width: Annotated[Size | None, Letter("d_h")] = None
    """Width of all heads together; the width itself if unset."""
    value_width: Annotated[Size | None, Letter("d_v")] = None
    """Width of all heads' values together; that of their queries if unset."""
    key_value_heads: Annotated[Size | None, Letter("h_kv")] = None
    """Heads of keys and values, each serving a group of query heads; as many as heads if unset."""
    key_query: Literal["separate", "merged"] = "separate"
    """Separate key and query maps, or one merged matrix a head (B6): W^QK = W_Qᵀ W_K."""
    value_output: Literal["separate", "merged"] = "separate"
    """Separate value and output maps, or one merged matrix a head (C8): W^(h) = W_V W_O."""
    feed_forward: Annotated[Size | None, Letter("d_ff")] = None
    """Units of each feed-forward layer; four times the width if unset."""
    context: Annotated[Size, Letter("T")] = 64
    """The longest stretch of tokens seen at once."""
    positions: Positions = Learned()
    """How a token's place enters: none, learned, sinusoidal, rotary or alibi."""
    norm: Literal["layer", "rms"] = "layer"
    """Layer norm (with shift if bias is on) or root-mean-square norm."""
    activation: Literal["gelu", "relu"] = "gelu"
    """The feed-forward layers' non-linearity (gelu in its tanh form)."""
    bias: bool = True
    """Whether linear maps and norms have biases; the output layer never has one."""
    tied: bool = True
    """Whether the output layer reuses the embedding."""

    @property
    def attention(self) -> int:
        """The width of all heads together."""
        return self.attention_width or self.width

    @property
    def inner(self) -> int:
        """The units of each feed-forward layer."""
        return self.feed_forward or 4 * self.width

    def sizes(self) -> dict[str, int]:
        """The sizes by their letters, the widths of attention and feed-forward worked out if they are unset."""
        sizes = super().sizes() | {"d_h": self.attention, "d_ff": self.inner}
        return {letter: size for letter, size in sizes.items() if size is not None}

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        name = "attention_width" if self.attention_width else "width"
        check_heads(f"decoder.{name}", self.attention, "decoder.heads", self.heads)
        check_heads("decoder.value_width", self.value_width or self.heads, "decoder.heads", self.heads)
        groups = self.key_value_heads or self.heads
        if self.heads % groups:
            fitting = ", ".join(str(number) for number in range(1, self.heads + 1) if self.heads % number == 0)
            raise ValueError(
                f"decoder.key_value_heads = {groups} does not divide decoder.heads = {self.heads}. Fitting: {fitting}."
            )
        return self

    @model_validator(mode="after")
    def _turning_fits(self) -> Self:
        if self.positions.turning and self.key_query == "merged":
            raise ValueError(
                f"decoder.key_query = 'merged' is not possible with {self.positions.kind} positions: the rotation "
                "stands between the two matrices and differs from pair to pair of tokens. Use positions=alibi, or "
                "key_query=separate."
            )
        if self.positions.paired and (width := self.attention // self.heads) % 2:
            raise ValueError(
                f"decoder.positions = '{self.positions.kind}' turns pairs, so that a head's width must be even; it is "
                f"{width} ({self.attention} over {self.heads} heads). Nearest: {self.heads * (width - 1) or ''} "
                f"{self.heads * (width + 1)}.".replace(":  ", ": ")
            )
        return self


class TableA5(Family):
    """The Transformer of the sources' table: PyTorch decoder layers over a window of N−1 words.

    The layers' cross-attention reads the embedded window itself. Order enters through sinusoidal positions,
    so that the number of parameters does not depend on N.
    """

    family: Literal["table-a5"] = "table-a5"
    vocabulary: Annotated[Size, Letter("V")] = 7676
    """Number of different tokens; training takes it from the tokenizer."""
    embedding: Annotated[Size, Letter("d_e")] = 64
    """Width of a word's embedding, before it is projected to the layers' width."""
    width: Annotated[Size, Letter("d")] = 512
    """Width of the layers."""
    depth: Annotated[Size, Letter("L")] = 2
    """Number of layers."""
    heads: Annotated[Size, Letter("h")] = 8
    """Attention heads a layer."""
    feed_forward: Annotated[Size, Letter("d_ff")] = 512
    """Units of each feed-forward layer."""
    context: Annotated[int, Field(ge=2), Letter("N")] = 5
    """Length of the n-gram: a word is predicted from the N−1 words before it."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        check_heads("table-a5.width", self.width, "table-a5.heads", self.heads)
        return self
