"""One thing that may be wrong with a formula, and what it adds to the difference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from lemma.ledger.polynomial import Polynomial

Kind = Literal["missing", "twice", "other"]


@dataclass(frozen=True)
class Element:
    """A possible mistake: `change` is what it does to the model's formula, `cost` how far-fetched it is.

    `tell` gives a clause, or for what is missing or counted twice the noun: only the few that fit are ever told.
    `name` is a short name for lists; of several other mistakes with the same name one is enough. `paths` are those of
    what is missing.
    """

    change: Polynomial
    cost: float
    kind: Kind
    tell: Callable[[], str]
    name: str = ""
    paths: frozenset[str] = frozenset()


def clause(elements: Sequence[Element]) -> str:
    """What happened, where any one of these elements explains it; those of one kind share their verb."""
    clauses = [_alike([one for one in elements if one.kind == kind]) for kind in ("missing", "twice")]
    clauses += [element.tell() for element in elements if element.kind == "other"]
    return either(list(dict.fromkeys(said for said in clauses if said)), ", or ")


def together(mistakes: Sequence[Sequence[Element]]) -> str:
    """What happened, where each of these did; what is left out shares its verb."""
    alone = [one for one in mistakes if len(one) == 1 and one[0].kind == "missing"]
    if len(alone) < 2:
        return ", and ".join(map(clause, mistakes))
    *nouns, last = (one[0].tell().rstrip(",") for one in alone)
    missing = f"the model has {', '.join(nouns)} and {last} that your formula leaves out"
    return ", and ".join([missing, *(clause(other) for other in mistakes if other not in alone)])


def either(clauses: Sequence[str], between: str) -> str:
    """One clause as it is; of several, either one or the other."""
    return clauses[0] if len(clauses) == 1 else f"either {between.join(clauses)}"


def sentence(text: str) -> str:
    """A clause as a sentence."""
    return text[0].upper() + text[1:] + "."


def _alike(elements: Sequence[Element]) -> str:
    if not elements:
        return ""
    (first, *others), missing = elements, elements[0].kind == "missing"
    if not others:
        said = f"the model has {first.tell()} that your formula leaves out"
        return said if missing else f"your formula counts {first.tell().replace('a ', 'the ', 1)} twice"
    names = listed([element.name for element in elements])
    verb = "leaves out one of these, which are all of one size" if missing else "counts one of these twice"
    return f"your formula {verb}: {names}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names with commas and a last `or`."""
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
