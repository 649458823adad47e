"""The identity of an attention head as a dependency relation."""

import torch

from lemma.checking.identities.base import (
    identity,
    setting_above,
)
from lemma.checking.identity_report import (
    Evidence,
    Finding,
    expect_count,
    expect_zero,
)
from lemma.models.parser import log_arc_probabilities, log_attention
from lemma.tasks.parsing import attention_targets

ARCS = {
    "I": ("prefer", "nsubj"),
    "prefer": ("(top)", "root"),
    "the": ("flight", "det"),
    "morning": ("flight", "nmod"),
    "flight": ("prefer", "dobj"),
    "through": ("Denver", "case"),
    "Denver": ("flight", "nmod"),
}
"""The words of B1's sentence, each with its head and relation."""


@identity(
    "b1 relations dependency",
    title="A head as a dependency relation",
    claim="In 'I prefer the morning flight through Denver' the head dobj attending from prefer is 1 on flight, else 0.",
)
def relation_head(
    sharpness: float = setting_above(0, 60.0, 1000, "the score of what is right; all others are 0"),
) -> Evidence:
    """Compute attention from the right scores, and read the weights and the tree off it."""
    words, relations = list(ARCS), sorted({relation for _, relation in ARCS.values()})
    candidates = ["(top)", *words]
    targets = torch.tensor([[[candidates.index(head), relations.index(relation)] for head, relation in ARCS.values()]])
    scores = torch.zeros(1, len(relations), len(candidates), len(words), dtype=torch.float64)
    for dependent, (head, relation) in enumerate(targets[0].tolist()):
        scores[0, relation, head, dependent] = sharpness
    is_valid = torch.ones(1, len(words), dtype=torch.bool)
    null = torch.full((len(relations),), sharpness / 2, dtype=torch.float64)
    alpha = log_attention(scores, null, is_valid).exp()[0]
    dobj, flight = alpha[relations.index("dobj"), candidates.index("prefer")], candidates.index("flight")
    best = log_arc_probabilities(scores, is_valid)[0].flatten(0, 1).argmax(0)
    right = targets[0, :, 1] * len(candidates) + targets[0, :, 0]
    expected = attention_targets(targets, len(relations))[0].double()
    return Evidence(
        (
            Finding("head dobj from prefer, on flight", float(dobj[flight]), 1.0, 1e-9),
            expect_zero("the same head, on everything else together", float(dobj.sum() - dobj[flight]), 1e-9),
            expect_zero("all heads from all words − the weights that the tree asks for", alpha - expected, 1e-9),
            expect_count("words whose head and relation the scores give back", int((best == right).sum()), 7),
        ),
        ("word", "head", "relation"),
        tuple((word, *ARCS[word]) for word in words),
        ("From a word without such a dependent, a head attends to a null place; several dependents share evenly.",),
    )
