"""How many numbers learn when a model is adapted, as a formula of its sizes and of the rank r or the bottleneck m.

It is read off the adapted module like any other: the module is built and adapted at small sizes, what does not learn
is taken out of it, and the ledger accounts for what is left.
"""

from collections.abc import Sequence

import torch

from lemma.adaptation import adapt_model
from lemma.ledger.adapted import adapted_subject
from lemma.ledger.counting import count
from lemma.ledger.quantity import Figure
from lemma.models import build
from lemma.spec import Method, ModelSpec


def trainable_formula(spec: ModelSpec, method: Method, learn: Sequence[str] = ()) -> Figure:
    """The parameters that learn: their formula in the sizes of the spec and of the method, and their number.

    >>> from lemma.spec import Decoder, Lora
    >>> figure = trainable_formula(Decoder(width=64, depth=2), Lora(rank=4, targets=("*.attention.output",)))
    >>> figure.formula, figure.total
    ('L*r*(d + d_h)', 1024)
    """
    with torch.device("meta"):
        adapt_model(build(spec), method, learn)  # at the very sizes asked for: refuses what cannot be
    return count(adapted_subject(spec, method, learn), ["parameters"]).parameters


def trainable_text(spec: ModelSpec, method: Method, learn: Sequence[str] = ()) -> str:
    """The same formula as `lemma count` writes it: 2·L·r·(2·d + 2·d_h + d_ff)."""
    account = count(adapted_subject(spec, method, learn), ["parameters"])
    return account.quantities["parameters"].formula(account.order, "unicode")
