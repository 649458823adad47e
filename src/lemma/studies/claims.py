"""Claims judged from the numbers: held, not held, or within the noise of the seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lemma.spec import Claim, Comparison
from lemma.studies.grid import plain
from lemma.studies.row import Row
from lemma.studies.statistics import Estimate, difference

Verdict = Literal["held", "not held", "within noise", "one seed only", "not measured"]
GRAVITY: tuple[Verdict, ...] = ("not held", "not measured", "one seed only", "within noise", "held")


@dataclass(frozen=True)
class Judged:
    """One comparison of two rows: what was found, and what that says of the claim."""

    finding: str
    verdict: Verdict


@dataclass(frozen=True)
class Judgement:
    """A claim and what the numbers say of it; it holds if each of its comparisons does."""

    says: str
    comparisons: tuple[Judged, ...]

    @property
    def verdict(self) -> Verdict:
        """The gravest verdict among the comparisons."""
        found = {judged.verdict for judged in self.comparisons}
        return next(verdict for verdict in GRAVITY if verdict in found)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.says.rstrip('.')}: {self.verdict}",
                *(f"  {one.finding}: {one.verdict}" for one in self.comparisons),
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        comparisons = [{"finding": judged.finding, "verdict": judged.verdict} for judged in self.comparisons]
        return {"claim": self.says, "verdict": self.verdict, "comparisons": comparisons}


def judge(claim: Claim, rows: Sequence[Row]) -> Judgement:
    """Judge a claim by the difference of mean perplexities and its 95 % interval (Welch)."""
    judged = [
        _judge(comparison, row, _find(rows, {**_place(row), **comparison.against}), rows)
        for comparison in claim.comparisons
        for row in rows
        if _place(row).items() >= comparison.at.items()
    ]
    return Judgement(claim.says, tuple(judged))


def verdict_on(gap: Estimate, expects: Literal["lower", "not lower"]) -> Verdict:
    """Say what a difference of perplexities means for the claim that it is below zero, or is not.

    >>> verdict_on(Estimate(-2.0, 1.5, 2), "lower"), verdict_on(Estimate(-2.0, 3.0, 2), "lower")
    ('held', 'within noise')
    """
    if gap.margin is None:
        return "one seed only"
    if gap.low <= 0 <= gap.high:
        return "within noise"
    return "held" if (gap.high < 0) == (expects == "lower") else "not held"


def _judge(comparison: Comparison, row: Row, other: Row, rows: Sequence[Row]) -> Judged:
    where = f"{_words(comparison.at)} against {_words(comparison.against)}{_elsewhere(comparison, row, rows)}"
    if row.perplexity is None or other.perplexity is None:
        return Judged(f"{where}: a run is missing", "not measured")
    ones, others = ([measures.perplexity for measures in one.measured] for one in (row, other))
    gap = difference(ones, others)
    expected = "below 0" if comparison.expects == "lower" else "not below 0"
    found = f"{row.perplexity} against {other.perplexity}, difference {str(gap).replace('-', '−')}, expected {expected}"
    return Judged(f"{where}: {found}", verdict_on(gap, comparison.expects))


def _elsewhere(comparison: Comparison, row: Row, rows: Sequence[Row]) -> str:
    """The place's words that the comparison leaves open, as far as they tell rows apart."""
    place = {word: value for word, value in _place(row).items() if word not in comparison.at}
    telling = {word: value for word, value in place.items() if any(_place(one)[word] != value for one in rows)}
    return f" ({_words(telling)})" if telling else ""


def _words(place: Mapping[str, Any]) -> str:
    return ", ".join(f"{word}={plain(value)}" for word, value in place.items())


def _place(row: Row) -> dict[str, Any]:
    return {"contender": row.contender, **row.point}


def _find(rows: Sequence[Row], place: Mapping[str, Any]) -> Row:
    return next(row for row in rows if _place(row) == place)
