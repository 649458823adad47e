"""The simplest explanations of a difference: as few elements as possible, and none of them far-fetched."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from math import inf

from lemma.ledger.judging.element import Element, Kind, clause, either, sentence, together
from lemma.ledger.polynomial import Polynomial

NEAR = 1.15
"""The cost up to which an element may be one of two."""
NEAREST = 1.0
"""The cost up to which an element may be one of three."""
LEFT_OUT = 1.03
"""The cost up to which it may be one of three that are all left out."""
MOST_SHOWN = 2


@dataclass(frozen=True)
class Explanation:
    """A sentence, and how far-fetched it is."""

    text: str
    cost: float


class Elements:
    """Elements by what they do to a formula; of those that do the same only the cheapest."""

    def __init__(self, elements: Iterable[Element]) -> None:
        self.table: dict[Polynomial, list[Element]] = {}
        self.add(elements)

    def add(self, elements: Iterable[Element]) -> None:
        """Take more of them in."""
        for element in elements:
            if element.change:
                self._add(element)

    def _add(self, element: Element) -> None:
        held = self.table.setdefault(element.change, [])
        if held and element.cost < held[0].cost:
            held.clear()
        told = {other.name for other in held if element.kind == "other" and other.name}
        if not held or (element.cost == held[0].cost and element.name not in told):
            held.append(element)

    def cost(self, change: Polynomial) -> float:
        """The cost of the cheapest element that does this; infinite without one."""
        return self.table[change][0].cost if change in self.table else inf

    def up_to(self, cost: float) -> list[Polynomial]:
        """What the elements of at most this cost do."""
        return [change for change in self.table if self.cost(change) <= cost]

    def explain(self, residual: Polynomial) -> "Explanation | None":
        """The simplest explanation, or the two that are equally simple; None if there is none."""
        found = self._one(residual) or self._plainer(self._two(residual), residual) or self._three(residual)
        if not found:
            return None
        clauses = [together([self.table[change] for change in changes]) for changes in found[:MOST_SHOWN]]
        return Explanation(sentence(either(clauses, "; or ")), sum(map(self.cost, found[0])))

    def explain_number(self, residual: Fraction, sizes: Mapping[str, int]) -> "Explanation | None":
        """The simplest element that makes this difference at these sizes; by two, chance would explain anything."""
        fitting = [change for change in self.table if change.at(sizes) == residual]
        if not fitting:
            return None
        least = min(map(self.cost, fitting))
        alike = [element for change in fitting if self.cost(change) == least for element in self.table[change]]
        return Explanation(sentence(clause(alike)), least)

    def _one(self, residual: Polynomial) -> list[tuple[Polynomial, ...]]:
        return [(residual,)] if residual in self.table else []

    def _two(self, residual: Polynomial) -> list[tuple[Polynomial, ...]]:
        near = set(self.up_to(NEAR))
        pairs = {frozenset((one, residual - one)) for one in near if residual - one in near and residual - one != one}
        return self._cheapest(tuple(pair) for pair in pairs)

    def _three(self, residual: Polynomial) -> list[tuple[Polynomial, ...]]:
        return self._cheapest(_triples(self.up_to(NEAREST), residual))

    def _plainer(self, found: list[tuple[Polynomial, ...]], residual: Polynomial) -> list[tuple[Polynomial, ...]]:
        """People rather forget three things than forget one and count another twice."""
        if not found or all(self._all_of(change, "twice") == [] for change in found[0]):
            return found
        missing = [change for change in self.up_to(LEFT_OUT) if self._all_of(change, "missing")]
        return self._cheapest(triple for triple in _triples(missing, residual) if self._apart(triple)) or found

    def _all_of(self, change: Polynomial, kind: Kind) -> list[Element]:
        return [element for element in self.table[change] if element.kind == kind]

    def _apart(self, changes: Sequence[Polynomial]) -> bool:
        """Whether what is missing can be left out together: no tensor is in two of the elements."""
        choices = product(*(self._all_of(change, "missing") for change in changes))
        paths = ([path for element in choice for path in element.paths] for choice in choices)
        return any(len(set(every)) == len(every) for every in paths)

    def _cheapest(self, found: Iterable[tuple[Polynomial, ...]]) -> list[tuple[Polynomial, ...]]:
        """Those of least cost; then those whose elements are told with the fewest words; each in a fixed order."""
        places = {change: place for place, change in enumerate(self.table)}
        ordered = [tuple(sorted(changes, key=places.__getitem__)) for changes in found]
        if not ordered:
            return []
        costs = {changes: (sum(map(self.cost, changes)), self._tally(changes)) for changes in ordered}
        least = min(costs.values())
        return sorted((c for c in ordered if costs[c] == least), key=lambda c: [places[change] for change in c])

    def _tally(self, changes: Sequence[Polynomial]) -> int:
        return sum(len(self.table[change]) for change in changes)


def _triples(among: Sequence[Polynomial], residual: Polynomial) -> Iterator[tuple[Polynomial, ...]]:
    """Three different changes that make the residual together, each three once."""
    known = set(among)
    triples = {
        frozenset((one, other, rest))
        for one, other in combinations(among, 2)
        if (rest := residual - one - other) in known and rest not in (one, other)
    }
    return map(tuple, triples)
