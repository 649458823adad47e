"""Problem B1: a head as a dependency relation. Head `dobj` attending from `prefer` is 1 on `flight`, else 0."""

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from lemma.ledger.identities.identity import Identity
from lemma.ledger.identities.report import Finding, IdentityReport, residual
from lemma.objectives.parsing import pictures
from lemma.parts.relations import over_dependents, over_governors
from lemma.spec import Spec

WORDS = ["I", "prefer", "the", "morning", "flight", "through", "Denver"]
ARCS = {
    "I": ("prefer", "nsubj"),
    "prefer": ("(top)", "root"),
    "the": ("flight", "det"),
    "morning": ("flight", "nmod"),
    "flight": ("prefer", "dobj"),
    "through": ("Denver", "case"),
    "Denver": ("flight", "nmod"),
}
"""Each word's governor and relation."""
RELATIONS = sorted({relation for _, relation in ARCS.values()})
PLACES = ["(top)", *WORDS]


class Sizes(Spec):
    """How sharp the scores are."""

    sharpness: float = Field(default=60.0, gt=0, le=1000)
    """The score of what is right; all other scores are 0, that of the null place half of it."""


def targets() -> Tensor:
    """Governor and relation of each word, by number."""
    rows = [[PLACES.index(ARCS[word][0]), RELATIONS.index(ARCS[word][1])] for word in WORDS]
    return torch.tensor([rows])


def scores(sharpness: float) -> Float[Tensor, "1 relations governors dependents"]:
    """High where a word depends on another by that relation, 0 elsewhere."""
    made = torch.zeros(1, len(RELATIONS), len(PLACES), len(WORDS), dtype=torch.float64)
    for dependent, (governor, relation) in enumerate(targets()[0].tolist()):
        made[0, relation, governor, dependent] = sharpness
    return made


def run(sizes: Sizes) -> IdentityReport:
    """Let heads with the right scores attend, and read the picture and the tree off them."""
    table, there = scores(sizes.sharpness), torch.ones(1, len(WORDS), dtype=torch.bool)
    null = torch.full((len(RELATIONS),), sizes.sharpness / 2, dtype=torch.float64)
    alpha = over_dependents(table, null, there).exp()[0]
    dobj = alpha[RELATIONS.index("dobj"), PLACES.index("prefer")]
    flight = 1 + WORDS.index("flight")
    best = over_governors(table, there)[0].flatten(0, 1).argmax(0)
    right = targets()[0, :, 1] * len(PLACES) + targets()[0, :, 0]
    wanted = pictures(targets(), len(RELATIONS))[0].double()
    return IdentityReport(
        "b1",
        IDENTITY.title,
        "In 'I prefer the morning flight through Denver' the head dobj attending from prefer is 1 on flight, else 0.",
        sizes.to_dict(),
        (
            Finding("head dobj from prefer, on flight", float(dobj[flight]), 1.0, 1e-9),
            residual("the same head, on everything else together", float(dobj.sum() - dobj[flight]), 1e-9),
            residual("all heads from all words − the picture of the tree", float((alpha - wanted).abs().max()), 1e-9),
            Finding(
                "words whose governor and relation the scores give back", int((best == right).sum()), 7, 0, "a count"
            ),
        ),
        ("word", "governor", "relation"),
        tuple((word, *ARCS[word]) for word in WORDS),
        ("A head whose governor has no such dependent attends to a null place; several dependents share evenly.",),
    )


IDENTITY = Identity("b1", ("relations", "dependency"), "A head as a dependency relation", Sizes, run)
