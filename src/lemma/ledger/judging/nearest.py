"""Where nothing explains a difference: the part of the model to look at first."""

from collections.abc import Sequence

from lemma.ledger.judging.groups import Group
from lemma.ledger.judging.question import Question
from lemma.ledger.polynomial import Polynomial


def nearest(question: Question, groups: Sequence[Group]) -> str:
    """Name the group that, left out or counted twice, would explain most of the difference."""
    residual = question.residual
    assert residual is not None
    if not groups:
        return "No simple explanation: the model has nothing of the kind."
    tried = [(_left(residual, group.whole), group) for group in groups]
    left, group = min(tried, key=lambda pair: (len(pair[0].terms), len(pair[1].parts)))
    said = f"No simple explanation. Nearest to the difference is {group.name}, {question.write(group.whole)}"
    if len(left.terms) < len(residual.terms):
        return f"{said}; beyond that, {question.write(left)} is left."
    group = max(groups, key=lambda one: (_shared(residual, one.whole), -len(one.parts)))
    if not _shared(residual, group.whole):
        return "No simple explanation: no part of the model has terms like those of the difference."
    return (
        f"No simple explanation. The terms that differ are like those of {group.name}, {question.write(group.whole)}."
    )


def _left(residual: Polynomial, whole: Polynomial) -> Polynomial:
    return min(residual - whole, residual + whole, key=lambda rest: len(rest.terms))


def _shared(residual: Polynomial, whole: Polynomial) -> float:
    """How much of the difference's and the part's terms are the same but for their numbers."""
    both = residual.terms.keys() & whole.terms.keys()
    return len(both) / len(residual.terms.keys() | whole.terms.keys())
