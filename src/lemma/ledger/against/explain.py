"""Which module explains that a tool's number is not the exact one."""

from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

from lemma.ledger.against.exact import Exact, grouped
from lemma.ledger.against.tools import Reading
from lemma.ledger.places import pattern_of

MOST_NAMED = 2
MOST_TOGETHER = 3


class Wording(NamedTuple):
    """How to speak of what is counted in one place and not in the other."""

    missing: str
    superfluous: str


WORK = Wording("its work", "where no matrices are multiplied")
PARAMETERS = Wording("its parameters", "for parameters it has none of, or shares")


def why_parameters(reading: Reading, exact: Exact) -> str:
    """The modules whose parameters make up the difference."""
    difference = reading.parameters - exact.all_parameters
    if not difference:
        return ""
    mine, kinds = grouped(exact.parameters), _kinds(exact)
    return _made_up_of(difference, mine, kinds) or _parting(
        mine, grouped(reading.holdings or {}), kinds, {}, PARAMETERS
    )


def why_operations(reading: Reading, exact: Exact) -> str:
    """The modules at which the numbers part, and what was counted outside of any."""
    if reading.operations == exact.all_operations:
        return ""
    functions = {pattern_of(path): ", ".join(names) for path, names in exact.functions.items()}
    said = _parting(grouped(exact.operations), grouped(reading.modules), _kinds(exact), functions, WORK)
    outside = reading.operations - sum(reading.modules.values())
    return said + (f"; counted in no module: {outside:,.0f}" if outside else "")


def _parting(
    mine: Mapping[str, float],
    theirs: Mapping[str, float],
    kinds: Mapping[str, str],
    done: Mapping[str, str],
    what: Wording,
) -> str:
    """The modules whose numbers are farthest apart, in words."""
    apart = {path: abs(theirs.get(path, 0) - mine.get(path, 0)) for path in {**mine, **theirs}}
    worst = sorted((path for path in apart if apart[path]), key=lambda path: -apart[path])
    named = [
        _at(_named(path, kinds), mine.get(path, 0), theirs.get(path, 0), what, done.get(path, ""))
        for path in worst[:MOST_NAMED]
    ]
    return "; ".join(named + ([f"{len(worst) - MOST_NAMED} more"] if len(worst) > MOST_NAMED else []))


def _at(where: str, mine: float, theirs: float, what: Wording, done: str) -> str:
    if not mine:
        return f"{where}: {theirs:,.0f} {what.superfluous}"
    if not theirs:
        return f"{where}: {done or what.missing} not counted ({mine:,.0f})"
    return f"{where}: {theirs:,.0f} instead of {mine:,.0f}"


def _made_up_of(difference: float, groups: Mapping[str, float], kinds: Mapping[str, str]) -> str:
    """The fewest groups that sum up to the difference; nothing if none do."""
    counted = [path for path, count in groups.items() if count]
    for number in range(1, min(MOST_TOGETHER, len(counted)) + 1):
        for chosen in combinations(counted, number):
            if sum(groups[path] for path in chosen) == abs(difference):
                verb = "counted twice" if difference > 0 else "not counted"
                return f"{', '.join(_named(path, kinds) for path in chosen)}: {verb}"
    return ""


def _named(path: str, kinds: Mapping[str, str]) -> str:
    kind = kinds.get(path, "")
    return f"{path} ({kind})" if path and kind else path or kind


def _kinds(exact: Exact) -> dict[str, str]:
    return {pattern_of(path): kind for path, kind in exact.kinds.items()}
