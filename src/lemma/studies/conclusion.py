"""What the numbers say, in sentences made from them."""

from collections.abc import Iterator, Sequence
from itertools import chain

from lemma.studies.claims import Judgement
from lemma.studies.row import Row
from lemma.studies.statistics import Estimate
from lemma.studies.table import Table

NOTABLE = 1.05  # a ratio of speeds worth a sentence


def conclude(table: Table, judgements: Sequence[Judgement] = ()) -> tuple[str, ...]:
    """Say which row is best, which cannot be told from it, which was fastest, what failed and which claims held."""
    ranked = sorted(_scored(table.rows), key=lambda pair: pair[1].mean)
    if not ranked:
        return ("No run came to its end, so that there is nothing to compare.", *_missing(table))
    return tuple(chain(_best(ranked), _speed(table.rows), _missing(table), _claims(judgements)))


def _scored(rows: Sequence[Row]) -> list[tuple[Row, Estimate]]:
    return [(row, row.perplexity) for row in rows if row.perplexity]


def _best(ranked: Sequence[tuple[Row, Estimate]]) -> Iterator[str]:
    (best, score), *others = ranked
    yield f"{best.title} has the lowest validation perplexity: {score}."
    if not others:
        return
    if any(estimate.margin is None for _, estimate in ranked):
        yield f"Next is {others[0][0].title} with {others[0][1]}. One seed has no interval, so the noise is unknown."
        return
    near = [f"{row.title} ({estimate})" for row, estimate in others if estimate.low <= score.high]
    if near:
        overlap = f"interval of {near[0]} overlaps" if len(near) == 1 else f"intervals of {_and(near)} overlap"
        yield f"The 95 % {overlap} with it: this study does not tell them apart.{_wide(score)}"
    else:
        yield f"No other interval overlaps with it; next is {others[0][0].title} with {others[0][1]}."
    above = [row.title for row, estimate in others if estimate.low > score.high]
    if near and above:
        yield f"Clearly above it {'lies' if len(above) == 1 else 'lie'} {_and(above)}."


def _wide(score: Estimate) -> str:
    return " Two seeds make wide intervals (t = 12.7); more would narrow them." if score.count == 2 else ""


def _speed(rows: Sequence[Row]) -> Iterator[str]:
    speeds = sorted((row.to_dict()["tokens_per_second"], row.title) for row in rows if row.measured)
    if not speeds:
        return
    (slow, slowest), (fast, fastest) = speeds[0], speeds[-1]
    if fast > NOTABLE * slow:
        yield f"{fastest} trained fastest, {fast / slow:.1f} × the speed of {slowest}, the slowest."


def _missing(table: Table) -> Iterator[str]:
    failed, waiting = (sum(len(seeds) for seeds in some) for some in zip(*map(_absent, table.rows), strict=True))
    runs = failed + waiting + sum(len(row.measured) for row in table.rows)
    if failed:
        reasons = "its reason stands" if failed == 1 else "their reasons stand"
        yield f"{failed} of {runs} runs failed; {reasons} with the table."
    if waiting:
        yield f"{waiting} of {runs} runs {'is' if waiting == 1 else 'are'} still to be run."


def _absent(row: Row) -> tuple[tuple[object, ...], tuple[object, ...]]:
    return row.failed, row.waiting


def _claims(judgements: Sequence[Judgement]) -> Iterator[str]:
    for judgement in judgements:
        yield f"“{judgement.says.rstrip('.')}”: {_SAID[judgement.verdict]}."


_SAID = {
    "held": "held in every comparison",
    "not held": "did not hold",
    "within noise": "not decided, since a difference lies within the noise of the seeds",
    "one seed only": "not decided, since one seed gives no interval",
    "not measured": "not decided, since a run is missing",
}


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
