"""Problem A2: one attention head over the window, asked by its last word only.

score(e_last, e_i) = (W^q e_last)·(W^k e_i)/√d_k, α = softmax of the scores, a = Σ α_i W^v e_i.
"""

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from lemma.ledger.identities.identity import Identity, drawn, filled, gap
from lemma.ledger.identities.report import Finding, IdentityReport, residual
from lemma.parts import WindowHead, overhear
from lemma.spec import Spec


class Sizes(Spec):
    """Of which widths, over how many words."""

    d: int = Field(default=8, ge=1, le=1024)
    """Width of the embedded words."""
    d_k: int = Field(default=5, ge=1, le=1024)
    """Width of query and keys."""
    d_v: int = Field(default=6, ge=1, le=1024)
    """Width of values."""
    N: int = Field(default=5, ge=2, le=512)
    """The window has N−1 words."""
    seed: int = Field(default=1, ge=0)
    """Fixes words and weights."""


def run(sizes: Sizes) -> IdentityReport:
    """Run our head on one window, and set its output beside the formulas word by word."""
    words = drawn(sizes.N - 1, sizes.d, seed=sizes.seed)
    head = filled(lambda: WindowHead(sizes.d, sizes.d_k, sizes.d_v), sizes.seed)
    with torch.no_grad(), overhear() as records:
        output = head(words[None], 1, sizes.N - 1)[0, 0]
    scores, alpha, written = by_hand(head, words)
    return IdentityReport(
        "a2",
        IDENTITY.title,
        "With the query of the last word only, a = Σ α_i W^v e_i, α = softmax((W^q e_last)·(W^k e_i)/√d_k).",
        sizes.to_dict(),
        (
            residual("the head − the sum written out, largest entry", gap(output, written)),
            residual("its weights − softmax of the scores", gap(records[0].weights()[0, 0, 0], alpha)),
            Finding("outputs for a window: one, of width", output.numel(), sizes.d_v, 0, "a count"),
        ),
        ("word", "score", "α"),
        tuple((str(place + 1), float(scores[place]), float(alpha[place])) for place in range(min(8, sizes.N - 1))),
    )


def by_hand(
    head: WindowHead, words: Float[Tensor, "window d"]
) -> tuple[Float[Tensor, "window"], Float[Tensor, "window"], Float[Tensor, "d_v"]]:
    """Scores, weights and output, one word after the other."""
    with torch.no_grad():
        query = head.query.weight @ words[-1]
        scores = torch.stack([query @ (head.key.weight @ word) for word in words]) / len(query) ** 0.5
        alpha = scores.exp() / scores.exp().sum()
        terms = [share * (head.value.weight @ word) for share, word in zip(alpha, words, strict=True)]
    return scores, alpha, torch.stack(terms).sum(0)


IDENTITY = Identity("a2", ("window-head",), "One head over the window, asked by its last word", Sizes, run)
