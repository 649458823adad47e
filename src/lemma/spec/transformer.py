"""The Transformers that read a whole text at once: the encoder, and the encoder–decoder (problem C5)."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from lemma.spec.base import Letter
from lemma.spec.family import Family, Size, check_heads
from lemma.spec.positions import Learned, Positions, Rotary, Sinusoidal

MARKS = ("<start>", "<end>", "<mask>")
"""Tokens that no text holds; they come after the tokenizer's own, so that V counts both."""


class Transformer(Family):
    """What both share."""

    vocabulary: Annotated[int, Field(ge=len(MARKS) + 1), Letter("V")] = 256
    """Number of different tokens and marks; training takes it from the tokenizer."""
    width: Annotated[Size, Letter("d")] = 128
    """Width of the residual stream."""
    heads: Annotated[Size, Letter("h")] = 4
    """Attention heads a layer."""
    attention_width: Annotated[Size | None, Letter("d_h")] = None
    """Width of all heads together; the width itself if unset."""
    feed_forward: Annotated[Size | None, Letter("d_ff")] = None
    """Units of each feed-forward layer; four times the width if unset."""
    context: Annotated[int, Field(ge=4), Letter("T")] = 64
    """The longest stretch of tokens seen at once, marks included."""
    positions: Positions = Learned()
    """How a token's place enters: none, learned, sinusoidal, rotary or alibi."""
    norm: Literal["layer", "rms"] = "layer"
    """Layer norm (with shift if bias is on) or root-mean-square norm."""
    norm_place: Literal["pre", "post"] = "pre"
    """pre: x + f(norm(x)), and a last norm; post: norm(x + f(x)), as in the source."""
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
        return super().sizes() | {"d_h": self.attention, "d_ff": self.inner}

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        family = getattr(self, "family", "transformer")
        name = "attention_width" if self.attention_width else "width"
        check_heads(f"{family}.{name}", self.attention, f"{family}.heads", self.heads)
        if self.positions.paired and (width := self.attention // self.heads) % 2:
            raise ValueError(
                f"{family}.positions = '{self.positions.kind}' turns pairs, so that a head's width must be even; it is "
                f"{width} ({self.attention} over {self.heads} heads)."
            )
        return self


class Encoder(Transformer):
    """A Transformer in which every token sees all tokens; it learns by what is hidden from it (problem E3)."""

    family: Literal["encoder"] = "encoder"
    positions: Positions = Rotary()
    """How a token's place enters: none, learned, sinusoidal, rotary or alibi."""
    depth: Annotated[Size, Letter("L")] = 4
    """Number of layers."""
    objective: Literal["masked", "next-sentence", "both"] = "masked"
    """What it learns: tokens that were hidden, whether one stretch of text follows another, or both together."""

    def sized(self, sizes: Mapping[str, int]) -> Self:
        """Return a copy for a text of so many different tokens; the marks come beside them."""
        return self.replace(vocabulary=sizes["vocabulary"] + len(MARKS))


class EncoderDecoder(Transformer):
    """A Transformer that reads a source both ways and writes a target from left to right, looking at the source.

    Source and target share one embedding.
    """

    family: Literal["encoder-decoder"] = "encoder-decoder"
    positions: Positions = Sinusoidal()
    """How a token's place enters: none, learned, sinusoidal, rotary or alibi; nowhere in attention to the source."""
    encoder_depth: Annotated[Size, Letter("L_enc")] = 3
    """Layers that read the source."""
    decoder_depth: Annotated[Size, Letter("L_dec")] = 3
    """Layers that write the target."""
