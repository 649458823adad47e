"""The results of comparing translations with right ones, and of predicting the right ones."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from lemma.evaluation.estimates import Estimate, Lines, lay_out, protocol_lines


@dataclass(frozen=True)
class TranslationScore:
    """BLEU and chrF from 0 to 100, each with sacrebleu's interval and its signature, which says how it was measured."""

    sentences: int
    bleu: Estimate
    chrf: Estimate
    signatures: Mapping[str, str]
    protocol: Mapping[str, Any]
    short: Mapping[str, str]
    """The same signatures in sacrebleu's short form."""

    @property
    def figures(self) -> dict[str, float]:
        """The figures by name."""
        return {"bleu": self.bleu.value, "chrf": self.chrf.value}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        intervals = {"bleu": self.bleu.interval, "chrf": self.chrf.interval}
        return {
            **self.figures,
            "intervals": {name: bounds for name, bounds in intervals.items() if bounds},
            "sentences": self.sentences,
            "signatures": dict(self.signatures),
            "protocol": dict(self.protocol),
        }

    def __str__(self) -> str:
        return lay_out(self._lines(self.short))

    def _repr_html_(self) -> str:
        lines = self._lines(self.signatures)
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in lines)
        return f"<table>{''.join(rows)}</table>"

    def _lines(self, signatures: Mapping[str, str]) -> Lines:
        return [
            ("BLEU", self.bleu.shown()),
            ("", signatures["bleu"]),
            ("chrF", self.chrf.shown()),
            ("", signatures["chrf"]),
            ("sentences", f"{self.sentences:,}"),
            *protocol_lines(self.protocol),
        ]


@dataclass(frozen=True)
class PairsScore:
    """The mean loss of the right target tokens, each predicted from the source and the right tokens before it."""

    loss: float
    tokens: int
    protocol: Mapping[str, Any]

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return math.exp(min(self.loss, 700))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON: None stands for what is infinite or no number."""
        loss = self.loss if math.isfinite(self.loss) else None
        return {"perplexity": loss and self.perplexity, "loss": loss, "tokens": self.tokens, **_kept(self.protocol)}

    def __str__(self) -> str:
        lines = [("perplexity", f"{self.perplexity:,.4f}"), ("loss", f"{self.loss:.4f} nats/token")]
        return lay_out([*lines, ("tokens", f"{self.tokens:,}"), *protocol_lines(self.protocol)])


def _kept(protocol: Mapping[str, Any]) -> dict[str, Any]:
    return {"protocol": dict(protocol)} if protocol else {}
