"""Problem E3: three tasks that plain text sets itself: the next token, a hidden token, what follows."""

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from lemma.ledger.identities.identity import Identity, filled
from lemma.ledger.identities.report import Finding, IdentityReport, residual
from lemma.models import build
from lemma.objectives import causal, masked, next_sentence
from lemma.spec import Encoder, Lstm, Spec

HIDDEN = 4  # every fourth place is hidden


class Sizes(Spec):
    """How many words, how long a text."""

    V: int = Field(default=30, ge=8, le=5000)
    """Words of the vocabulary."""
    T: int = Field(default=16, ge=4, le=200)
    """Tokens of a text."""
    seed: int = Field(default=1, ge=0)
    """Fixes texts and weights."""


def run(sizes: Sizes) -> IdentityReport:
    """Each loss by the objective that trains, beside −log p of what the text itself says, token by token."""
    draws = torch.Generator().manual_seed(sizes.seed)
    text = torch.randint(sizes.V - 4, (1, sizes.T + 1), generator=draws)
    return IdentityReport(
        "e3",
        IDENTITY.title,
        "Causal, masked and next-sentence pretraining need no labels: each predicts a part of the text from another.",
        sizes.to_dict(),
        (
            residual("causal − mean of −log p(next token), read one prefix at a time", _causal(sizes, text)),
            *_masked(sizes, text),
        ),
    )


def _causal(sizes: Sizes, text: Tensor) -> float:
    """The prefix alone is given for each prediction, so that nothing later can help."""
    model = filled(lambda: build(Lstm(vocabulary=sizes.V, width=8, hidden=12)), sizes.seed)
    with torch.no_grad():
        loss = float(causal(model(text[:, :-1])[0], text[:, 1:]))
        each = [
            -model(text[:, :place])[0][0, -1].log_softmax(-1)[text[0, place]].item() for place in range(1, sizes.T + 1)
        ]
    return abs(loss - sum(each) / len(each))


def _masked(sizes: Sizes, text: Tensor) -> tuple[Finding, ...]:
    spec = Encoder(vocabulary=sizes.V, width=16, depth=1, heads=2, context=sizes.T + 1, objective="both")
    model = filled(lambda: build(spec), sizes.seed)
    hidden = torch.arange(1, sizes.T + 1, HIDDEN)
    targets = torch.full_like(text, -1)
    targets[0, hidden], targets[0, 0] = text[0, hidden], 1
    with torch.no_grad():
        logits, follows = model(text), model.follows(text)
        other = _elsewhere(logits, hidden)
        losses = [masked(one, targets).loss for one in (logits, other)]
        chances = logits[0, hidden].log_softmax(-1).gather(1, text[0, hidden, None])
        second = float(next_sentence(follows, targets).loss + follows[0].log_softmax(-1)[1])
    return (
        residual("masked − mean of −log p over the hidden places", abs(float(losses[0] + chances.mean()))),
        residual(
            "masked: other logits at places that are not hidden change it by", float((losses[0] - losses[1]).abs())
        ),
        residual("next-sentence − (−log p(follows))", abs(second)),
    )


def _elsewhere(logits: Float[Tensor, "1 T V"], hidden: Tensor) -> Float[Tensor, "1 T V"]:
    """The logits with those at all other places turned round."""
    other = -logits
    other[0, hidden] = logits[0, hidden]
    return other


IDENTITY = Identity("e3", ("pretraining",), "What plain text teaches by itself", Sizes, run)
