"""The results of comparing translations with right ones, and of predicting the right ones."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from json import loads
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lemma.data.pairs import TokenPairs
from lemma.errors import InputError
from lemma.models.base import by_length, measuring, positions_on
from lemma.report.statistics import BootstrapEstimate, Lines, lay_out, needed, protocol_lines


@dataclass(frozen=True)
class TranslationScore:
    """BLEU and chrF from 0 to 100, each with sacrebleu's interval and its signature, which says how it was measured."""

    sentences: int
    bleu: BootstrapEstimate
    chrf: BootstrapEstimate
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


# How good translations are: BLEU and chrF by sacrebleu, with its signatures; and the loss of the right ones.


SAMPLES = 1000
AT_ONCE = 4_000_000
"""Sentences drawn in all samples together: sacrebleu holds what it knows of each in memory at once."""
IGNORED = -1


def score_translations(
    hypotheses: Sequence[str],
    references: Sequence[str | Sequence[str]],
    protocol: Mapping[str, Any] | None = None,
    *,
    samples: int = SAMPLES,
) -> TranslationScore:
    """Compare translations with one or several right ones each."""
    several = [(one,) if isinstance(one, str) else tuple(one) for one in references]
    _refuse_others(hypotheses, several)
    metrics = needed("sacrebleu.metrics", "sacrebleu", "scoring translations")
    streams = [[one[place] if place < len(one) else None for one in several] for place in range(max(map(len, several)))]
    draws = 0 if samples < 2 else max(2, min(samples, AT_ONCE // len(hypotheses)))
    scored = {name: _scored(metric, hypotheses, streams, draws) for name, metric in _metrics(metrics).items()}
    return TranslationScore(
        sentences=len(hypotheses),
        bleu=scored["bleu"][0],
        chrf=scored["chrf"][0],
        signatures={name: signature.format() for name, (_, signature) in scored.items()},
        protocol=dict(protocol or {}),
        short={name: signature.format(short=True) for name, (_, signature) in scored.items()},
    )


def _metrics(metrics: Any) -> dict[str, Any]:
    return {"bleu": metrics.BLEU(force=True), "chrf": metrics.CHRF()}  # force: no warning of spaces before full stops


def _scored(
    metric: Any, hypotheses: Sequence[str], streams: Sequence[Any], samples: int
) -> tuple[BootstrapEstimate, Any]:
    score = metric.corpus_score(list(hypotheses), streams, n_bootstrap=max(1, samples))
    signature = metric.get_signature()
    if not samples:
        return BootstrapEstimate(score.score), signature
    told = loads(score.format(width=6, signature=signature.format(), is_json=True))
    mean, half = told.get("confidence_mean", 0.0), told.get("confidence_var", 0.0)
    return BootstrapEstimate(score.score, mean - half, mean + half), signature


def score_pairs(model: nn.Module, pairs: TokenPairs, protocol: Mapping[str, Any] | None = None) -> PairsScore:
    """Measure how well a model predicts the right targets of pairs."""
    loss, tokens = loss_of_pairs(model, pairs)
    return PairsScore(loss, tokens, dict(protocol or {}))


def loss_of_pairs(model: nn.Module, pairs: TokenPairs) -> tuple[float, int]:
    """The mean of −log p over all target tokens, `<end>` too, in nats, and how many they are."""
    if not len(pairs):
        raise InputError("no pairs to measure: there are none, or all are longer than the model reads.")
    total, count = 0.0, 0
    with measuring(model) as device:
        sum_of = torch.zeros((), dtype=torch.float64, device=device)
        vocabulary = getattr(getattr(model, "spec", None), "vocabulary", 1)
        for group in by_length(pairs.lengths, positions_on(device, vocabulary)):
            sources, targets = (torch.from_numpy(part).to(device) for part in pairs.batch(group))
            logits = model(sources, targets[:, :-1])
            wanted = targets[:, 1:].flatten()
            losses = functional.cross_entropy(
                logits.float().flatten(0, 1), wanted, ignore_index=IGNORED, reduction="none"
            )
            sum_of += losses.sum(dtype=torch.float64)
            count += int((wanted != IGNORED).sum())
        total = sum_of.item()
    return total / count, count


def _refuse_others(hypotheses: Sequence[str], references: Sequence[tuple[str, ...]]) -> None:
    if not hypotheses:
        raise InputError("no translations to score. Give pairs to translate.")
    if len(hypotheses) != len(references):
        raise InputError(f"{len(hypotheses)} translations cannot be compared with the targets of {len(references)}.")
    if bare := [place for place, several in enumerate(references, start=1) if not several]:
        raise InputError(f"translation {bare[0]} has nothing to be compared with. Give each at least one target.")
