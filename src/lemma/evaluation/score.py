"""The result of a measurement: a loss, what follows from it, and how it came about."""

import math
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from lemma.typeset import label


@dataclass(frozen=True)
class Source:
    """Where the tokens came from; the caller knows."""

    tokenizer: str | None = None
    data_hash: str | None = None
    split: str | None = None
    unknown_characters: int = 0
    """Characters of the text that the tokenizer could not express."""


@dataclass(frozen=True)
class Protocol:
    """All that has to be known to repeat a measurement, or to compare two."""

    tokenizer: str | None
    data_hash: str | None
    split: str | None
    context: int | None
    """The most tokens a token is predicted from; None if all before it."""
    stride: int | None
    """Tokens scored a window: 1 if each has the full context; None where the context has no bound."""
    streams: int | None
    """Stretches of the text read side by side, each with a state carried through; None where windows are read."""
    warm_up: int
    """Tokens that each stream or window but the first reads before it scores one."""
    precision: str
    left_out: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "left_out": list(self.left_out)}

    def __str__(self) -> str:
        if self.streams is None:
            return f"in windows of {self.context} tokens, stride {self.stride}"
        if self.streams == 1:
            return "in one pass"
        return f"in {self.streams} streams, each warmed up on {self.warm_up} tokens"


@dataclass(frozen=True)
class Score:
    """The mean loss of every token but the first, in nats, and the protocol it belongs to."""

    loss: float
    tokens: int
    bytes: int | None
    protocol: Protocol

    @property
    def perplexity(self) -> float:
        """exp(loss): the geometric mean of 1/p over all tokens (problem D2); infinite where that overflows."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf

    @property
    def bits_per_byte(self) -> float | None:
        """The bits of all predicted tokens over the bytes of the whole text; None if its bytes are not known.

        The first token is not predicted, so its bits are missing above while its bytes count below.
        """
        return self.loss * self.tokens / (math.log(2) * self.bytes) if self.bytes else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON: None stands for what is infinite or no number."""
        figures = {"perplexity": self.perplexity, "loss": self.loss, "bits_per_byte": self.bits_per_byte}
        finite = {name: value if value is None or math.isfinite(value) else None for name, value in figures.items()}
        return {**finite, "tokens": self.tokens, "protocol": self.protocol.to_dict()}

    def __str__(self) -> str:
        return "\n".join(label(name, value, 14) for name, value in self._lines())

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._lines())
        return f"<table>{''.join(rows)}</table>"

    def _lines(self) -> list[tuple[str, str]]:
        bits, protocol = self.bits_per_byte, self.protocol
        lines = [
            ("perplexity", f"{self.perplexity:,.4f}"),
            ("loss", f"{self.loss:.4f} nats/token"),
            ("bits per byte", None if bits is None else f"{bits:.4f}"),
            ("tokens", f"{self.tokens:,}"),
            ("tokenizer", protocol.tokenizer),
            ("split", protocol.split),
            ("data hash", protocol.data_hash),
            ("read", str(protocol)),
            *(("left out", sentence) for sentence in protocol.left_out),
        ]
        return [(name, value) for name, value in lines if value is not None]
