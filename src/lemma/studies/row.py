"""One row of a study's table: what the seeds of a contender at a place of the grid came to."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Any

from lemma.studies.outcome import Measures, Outcome
from lemma.studies.statistics import Estimate, estimate


@dataclass(frozen=True)
class Row:
    """What the seeds of one contender at one place of the grid came to."""

    contender: str
    point: Mapping[str, Any]
    title: str
    """What tells it from the other rows: the contender, its place in the grid, or both."""
    measured: tuple[Measures, ...]
    failed: tuple[tuple[int, str], ...] = ()
    """The seeds that failed, each with its reason."""
    waiting: tuple[int, ...] = ()
    """The seeds that were not run yet."""
    best: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """Why seeds are missing."""
        failed = (f"seed {seed} failed: {reason}" for seed, reason in self.failed)
        return (*failed, *(f"seed {seed} not run yet" for seed in self.waiting))

    @property
    def perplexity(self) -> Estimate | None:
        """Validation perplexity over the seeds; None if no seed came to an end."""
        return self._estimate(lambda measures: measures.perplexity)

    @property
    def bits_per_byte(self) -> Estimate | None:
        """Validation bits per byte over the seeds."""
        return self._estimate(lambda measures: measures.bits_per_byte)

    def mean(self, of: Callable[[Measures], float]) -> float | None:
        """The mean over the seeds of something measured."""
        return fmean(map(of, self.measured)) if self.measured else None

    def _estimate(self, of: Callable[[Measures], float | None]) -> Estimate | None:
        values = [value for value in map(of, self.measured) if value is not None]
        return estimate(values) if values else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        perplexity, bits = self.perplexity, self.bits_per_byte
        return {
            "contender": self.contender,
            **self.point,
            "seeds": len(self.measured),
            "perplexity": perplexity and perplexity.mean,
            "perplexity_margin": perplexity and perplexity.margin,
            "bits_per_byte": bits and bits.mean,
            "bits_per_byte_margin": bits and bits.margin,
            "parameters": self.measured[0].parameters if self.measured else None,
            "tokens": round(self.mean(lambda measures: measures.tokens) or 0) or None,
            "tokens_per_second": self.mean(lambda measures: measures.tokens_per_second),
            "seconds": self.mean(lambda measures: measures.seconds),
            "best": self.best,
            "notes": "; ".join(self.notes),
        }


def gather(outcomes: Iterable[Outcome]) -> list[Row]:
    """Put the seeds of each contender at each place together; they stand side by side."""
    groups = [list(group) for _, group in groupby(outcomes, key=_place)]
    several = len({group[0].cell.contender for group in groups}) > 1
    return [_row(group, several) for group in groups]


def _place(outcome: Outcome) -> tuple[str, str]:
    return outcome.cell.contender, outcome.cell.place


def _row(outcomes: Sequence[Outcome], several: bool) -> Row:
    cell = outcomes[0].cell
    named = [cell.contender] if several or not cell.point else []
    missing = [outcome for outcome in outcomes if not outcome.measures]
    return Row(
        contender=cell.contender,
        point=cell.point,
        title=", ".join(filter(None, [*named, cell.place])),
        measured=tuple(outcome.measures for outcome in outcomes if outcome.measures),
        failed=tuple((outcome.cell.seed, outcome.reason) for outcome in missing if outcome.reason),
        waiting=tuple(outcome.cell.seed for outcome in missing if not outcome.reason),
    )
