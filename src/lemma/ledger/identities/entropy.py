"""Problem D2: the cross-entropy of a text is the logarithm of its perplexity.

Perplexity is the geometric mean of 1/p over the tokens, (Π 1/p_t)^(1/T); its logarithm is −(1/T) Σ log p_t.
"""

import math

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from lemma.ledger.identities.identity import Identity, filled
from lemma.ledger.identities.report import Finding, IdentityReport, residual
from lemma.models import build
from lemma.objectives import causal
from lemma.spec import Decoder, FeedForward, Lstm, ModelSpec, Spec


class Sizes(Spec):
    """How many words, how long a text."""

    V: int = Field(default=50, ge=2, le=5000)
    """Words of the vocabulary."""
    T: int = Field(default=64, ge=2, le=500)
    """Tokens that are predicted."""
    seed: int = Field(default=1, ge=0)
    """Fixes the text and the weights."""


def run(sizes: Sizes) -> IdentityReport:
    """Predict one text by three models, and take the perplexity and the cross-entropy apart from each other."""
    text = torch.randint(sizes.V, (1, sizes.T + 1), generator=torch.Generator().manual_seed(sizes.seed))
    measured = {spec.family: _measure(spec, text, sizes.seed) for spec in _specs(sizes)}
    uniform = torch.zeros(1, sizes.T, sizes.V, dtype=torch.float64)
    findings = [
        residual(f"{name}: log of the geometric mean of 1/p − cross-entropy", abs(math.log(mean) - entropy))
        for name, (entropy, mean) in measured.items()
    ]
    ignorant = geometric_mean(uniform, text[:, 1:])
    return IdentityReport(
        "d2",
        IDENTITY.title,
        "The cross-entropy of a text is the logarithm of its perplexity.",
        sizes.to_dict(),
        (
            *findings,
            Finding("a model that knows nothing: perplexity beside V", ignorant, sizes.V, sizes.V * 1e-12),
        ),
        ("model", "cross-entropy", "exp of it", "perplexity"),
        tuple((name, entropy, math.exp(entropy), mean) for name, (entropy, mean) in measured.items()),
        ("In nats; in bits, cross-entropy is the logarithm to base 2 of the same perplexity.",),
    )


def geometric_mean(logits: Float[Tensor, "1 T V"], targets: Tensor) -> float:
    """(Π 1/p_t)^(1/T), by products of probabilities: no logarithm is taken of any of them."""
    chances = logits[0].softmax(-1).gather(1, targets[0, :, None]).flatten()
    return float((1 / chances).pow(1 / len(chances)).prod())


def _specs(sizes: Sizes) -> list[ModelSpec]:
    decoder = Decoder(vocabulary=sizes.V, width=16, depth=1, heads=2, context=sizes.T)
    window = FeedForward(vocabulary=sizes.V, width=8, hidden=16, context=3)
    return [window, Lstm(vocabulary=sizes.V, width=8, hidden=16), decoder]


def _measure(spec: ModelSpec, text: Tensor, seed: int) -> tuple[float, float]:
    model = filled(lambda: build(spec), seed)
    with torch.no_grad():
        logits, _ = model(text[:, :-1])
    return float(causal(logits, text[:, 1:])), geometric_mean(logits, text[:, 1:])


IDENTITY = Identity("d2", ("perplexity", "cross-entropy"), "Cross-entropy is log perplexity", Sizes, run)
