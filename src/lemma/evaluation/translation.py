"""How good translations are: BLEU and chrF by sacrebleu, with its signatures; and the loss of the right ones."""

from collections.abc import Mapping, Sequence
from json import loads
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lemma.data import Pairs
from lemma.errors import InputError
from lemma.evaluation.estimates import Estimate, needed
from lemma.evaluation.translation_score import PairsScore, TranslationScore
from lemma.models.measuring import by_length, measuring, positions_on

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


def _scored(metric: Any, hypotheses: Sequence[str], streams: Sequence[Any], samples: int) -> tuple[Estimate, Any]:
    score = metric.corpus_score(list(hypotheses), streams, n_bootstrap=max(1, samples))
    signature = metric.get_signature()
    if not samples:
        return Estimate(score.score), signature
    told = loads(score.format(width=6, signature=signature.format(), is_json=True))
    mean, half = told.get("confidence_mean", 0.0), told.get("confidence_var", 0.0)
    return Estimate(score.score, mean - half, mean + half), signature


def score_pairs(model: nn.Module, pairs: Pairs, protocol: Mapping[str, Any] | None = None) -> PairsScore:
    """Measure how well a model predicts the right targets of pairs."""
    loss, tokens = loss_of_pairs(model, pairs)
    return PairsScore(loss, tokens, dict(protocol or {}))


def loss_of_pairs(model: nn.Module, pairs: Pairs) -> tuple[float, int]:
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
