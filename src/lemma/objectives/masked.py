"""What an encoder learns from plain text (problem E3): the tokens hidden from it, and whether one text follows another.

The targets of a row are the tokens at the places that were hidden, −1 elsewhere. Its first place is a mark, which is
never hidden: there stands whether the second stretch of the row follows the first (Devlin et al. 2019).
"""

from jaxtyping import Float, Int
from torch import Tensor

from lemma.objectives.entropy import Entropy, cross_entropy

Targets = Int[Tensor, "batch time"]


def masked(logits: Float[Tensor, "batch time vocabulary"], targets: Targets, smoothing: float = 0.0) -> Entropy:
    """Measure the logits at every place that was hidden."""
    return cross_entropy(logits[:, 1:], targets[:, 1:], smoothing)


def next_sentence(follows: Float[Tensor, "batch two"], targets: Targets, smoothing: float = 0.0) -> Entropy:
    """Measure the logits of 0 (does not follow) and 1 (follows)."""
    return cross_entropy(follows, targets[:, 0], smoothing)
