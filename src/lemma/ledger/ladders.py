"""At which sizes to probe: small ones, and where heads must divide a width or the like, well divisible ones.

Which symbols must be wide is found by trying: the fewest that let the module be built at a dozen random sizes.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, permutations

Values = Mapping[str, int]
Ladders = dict[str, list[int]]
PLAIN = [2, 3, 4, 5, 6, 7, 8, 9]
DIVISORS = [2, 3, 4, 6, 12]  # never 1, at which much is a case of its own
MIDDLE = [12 * step for step in (1, 2, 3, 4, 6)]
TRIALS = 12
WIDEST = 3  # symbols that may have to be wide together


def choose_ladders(
    names: Sequence[str], builds: Callable[[Values], bool], hints: Mapping[str, Sequence[int]]
) -> Iterator[Ladders]:
    """Yield ladders at which the module can be built, the simplest first."""
    for ladders in _candidates(names):
        chosen = {**ladders, **{name: list(hint) for name, hint in hints.items() if name in ladders}}
        if all(builds(values) for values in draws(chosen, TRIALS)):
            yield chosen


def draws(ladders: Ladders, number: int, rungs: int | None = None) -> list[dict[str, int]]:
    """The lowest sizes, then sizes drawn at random from the ladders' first rungs; the same ones each time."""
    source = random.Random(len(ladders))
    lowest = {name: ladder[0] for name, ladder in ladders.items()}
    drawn = [{name: source.choice(ladder[:rungs]) for name, ladder in ladders.items()} for _ in range(number - 1)]
    return [lowest, *drawn]


def _candidates(names: Sequence[str]) -> Iterator[Ladders]:
    yield {name: list(PLAIN) for name in names}
    for step in (12, 24):
        for number in range(1, WIDEST + 1):
            for wide in combinations(names, number):
                for others in (PLAIN, DIVISORS):
                    yield _tiers(names, dict.fromkeys(wide, step), others)
    for step in (144, 288):  # heads in groups: few divide many, and many divide a width
        for middle, wide in permutations(names, 2):
            yield {**_tiers(names, {wide: step}, DIVISORS), middle: list(MIDDLE)}


def _tiers(names: Sequence[str], steps: Mapping[str, int], others: Sequence[int]) -> Ladders:
    return {name: [steps[name] * rung for rung in range(1, 9)] if name in steps else list(others) for name in names}
