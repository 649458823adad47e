"""Cells of a study with their settings, their outcomes, and rows of the table: the seeds of one condition."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from lemma.errors import SpecError
from lemma.report.result import to_plain
from lemma.report.statistics import MIN_SEEDS, Estimate, PairedTest, estimate, holm_correct, paired_test
from lemma.spec.base import Spec
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import Recipe

M = TypeVar("M")
"""The dataclass of what is measured of a cell."""
K = TypeVar("K")


@dataclass(frozen=True)
class StudyCell:
    """A planned run of a study: one condition at one point of the grid with one seed.

    A trial is a short run by which a setting of other cells is chosen; it is not in the table.
    """

    condition: str  # the model or condition that is compared, by its name in the table
    point: Mapping[str, Any]  # the settings of the grid at this cell, with their values
    seed: int | None
    model: ModelSpec | None = None
    recipe: Recipe = field(default_factory=Recipe)
    fixed_sizes: frozenset[str] = frozenset()  # settings of the model that the study sets, which no budget may change
    recipe_settings: frozenset[str] = frozenset()  # settings of the recipe that the study sets
    is_trial: bool = False

    @property
    def row_name(self) -> str:
        """Return the name of the cell's row, which all its seeds share: `lstm-depth-2`."""
        parts = [self.condition, *(f"{name}-{format_value(value)}" for name, value in self.point.items())]
        return "-".join(re.sub(r"[^\w.]+", "-", part).strip("-.") for part in parts)

    @property
    def name(self) -> str:
        """Return the name of the run's folder: `lstm-depth-2-seed-1`."""
        return self.row_name if self.seed is None else f"{self.row_name}-seed-{self.seed}"

    @property
    def point_text(self) -> str:
        """Return the grid settings of the cell as text: `depth=2, tied=true`."""
        return format_settings(self.point)

    def __str__(self) -> str:
        seed = "" if self.seed is None else f"seed {self.seed}"
        return ", ".join(filter(None, (self.condition, self.point_text, seed)))


def format_value(value: Any) -> str:
    """Write a setting's value as a user types it.

    >>> format_value(True), format_value(0.001)
    ('true', '0.001')
    """
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def format_settings(settings: Mapping[str, Any]) -> str:
    """Write settings with their values.

    >>> format_settings({"depth": 2, "tied": True})
    'depth=2, tied=true'
    """
    return ", ".join(f"{name}={format_value(value)}" for name, value in settings.items())


@dataclass(frozen=True)
class CellOutcome(Generic[M]):
    """A cell with its measures, or the reason why it failed, or neither if it was not run yet."""

    cell: StudyCell
    measures: M | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of cell, measures and reason of failure."""
        cell = self.cell
        values = {"run": cell.name, "model": cell.condition, "point": cell.point, "seed": cell.seed}
        return to_plain({**values, "measures": self.measures, "reason": self.reason})


@dataclass(frozen=True)
class StudyRow(Generic[M]):
    """A row of a study's table: the measures of all seeds of one condition at one point of the grid."""

    condition: str
    point: Mapping[str, Any]
    title: str  # what distinguishes it from the other rows: the condition, the point, or both
    measures: Mapping[int, M]  # by seed
    failures: Mapping[int, str]  # why seeds failed, by seed
    pending: tuple[int, ...] = ()  # the seeds that were not run yet

    @property
    def first(self) -> M | None:
        """Return the measures of the first seed that has any; None if no seed is finished."""
        return next(iter(self.measures.values()), None)

    @property
    def missing_seeds(self) -> tuple[str, ...]:
        """Return a note on each seed that failed or was not run yet."""
        failed = (f"seed {seed} failed: {reason}" for seed, reason in self.failures.items())
        return (*failed, *(f"seed {seed} not run yet" for seed in self.pending))

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes on missing seeds, each after the title of the row."""
        return tuple(f"{self.title}, {note}" for note in self.missing_seeds)

    def values(self, name: str) -> dict[int, float]:
        """Return the value of the measure `name` by seed, for the seeds that have it."""
        values = {seed: getattr(measures, name) for seed, measures in self.measures.items()}
        return {seed: float(value) for seed, value in values.items() if value is not None}

    def estimate(self, name: str) -> Estimate | None:
        """Return the mean of the measure `name` with its interval over the seeds; None if no seed has it."""
        values = list(self.values(name).values())
        return estimate(values) if values else None

    def count(self, name: str) -> int | None:
        """Return the measure `name`, a count such as "parameters", equal for all seeds; None if no seed is finished."""
        return None if self.first is None else int(getattr(self.first, name))


def group_rows(outcomes: Iterable[CellOutcome[M]]) -> list[StudyRow[M]]:
    """Group outcomes by condition and grid point into rows, in order of first occurrence."""
    groups: dict[tuple[str, str], list[CellOutcome[M]]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.cell.condition, outcome.cell.point_text), []).append(outcome)
    has_conditions = len({condition for condition, _ in groups}) > 1
    rows = []
    for group in groups.values():
        cell = group[0].cell
        condition = cell.condition if has_conditions or not cell.point else ""
        by_seed = {outcome.cell.seed or 0: outcome for outcome in group}
        unmeasured = {seed: outcome.reason for seed, outcome in by_seed.items() if not outcome.measures}
        rows.append(
            StudyRow(
                condition=cell.condition,
                point=cell.point,
                title=", ".join(filter(None, [condition, cell.point_text])),
                measures={seed: outcome.measures for seed, outcome in by_seed.items() if outcome.measures},
                failures={seed: reason for seed, reason in unmeasured.items() if reason},
                pending=tuple(seed for seed, reason in unmeasured.items() if not reason),
            )
        )
    return rows


def compare_rows(
    row: StudyRow[Any], baseline: StudyRow[Any], name: str, log: bool = True, min_error: float = 0.0
) -> PairedTest | None:
    """Return the test of the measure `name` of a row against a baseline's, paired by seed; None if they share no seed.

    A seed fixes the order of the batches and the random numbers of the initial weights for both rows alike; its common
    effect cancels in the difference.

    With `log`, logarithms are compared, for measures whose ratio matters; the standard error is at least `min_error`.
    """
    values, baseline_values = row.values(name), baseline.values(name)
    seeds = sorted(values.keys() & baseline_values.keys())
    if not seeds:
        return None
    return paired_test([values[seed] for seed in seeds], [baseline_values[seed] for seed in seeds], log, min_error)


def correct_tests(tests: Mapping[K, PairedTest | None]) -> dict[K, PairedTest]:
    """Return the tests by the same keys, with p-values corrected for their number (Holm 1979); None is left out."""
    made = {name: test for name, test in tests.items() if test}
    return dict(zip(made, holm_correct(list(made.values())), strict=True))


def describe_seeds(rows: Sequence[StudyRow[Any]]) -> str:
    """Return a sentence on the meaning of ± in a table of these rows; "" if no run finished."""
    counts = {len(row.measures) for row in rows if row.measures}
    text = ""
    if counts and max(counts) >= MIN_SEEDS:
        seeds = f"{max(counts)} seeds" if len(counts) == 1 else f"up to {max(counts)} seeds"
        text = f" Mean ± half the 95 % interval over {seeds} (Student's t)."
    if 2 in counts:
        text += " Two seeds are shown as they are, a / b: too few for an interval or a test."
    if 1 in counts:
        text += " A figure without ± comes from one seed, which has no interval."
    return text


# Settings that a study distributes over its runs, and those that it sets itself.


FROM_TOKENIZER = "It comes from the tokenizer, the same for every run: set {}tokenizer.vocabulary."
RESERVED_SETTINGS = {
    "vocabulary": FROM_TOKENIZER.format("data."),
    "V": FROM_TOKENIZER.format("data."),
    "seed": "Give the study `seeds`, as in seeds=[1,2,3].",
    "family": "Name another model, as in model = 'lstm'.",
}
"""Why a setting cannot be set for single runs of a study of language models."""


def has_setting(specs: Mapping[str, type[Spec]], setting: str) -> bool:
    """Return whether any of these spec classes has the field that a setting, such as `positions.base`, begins with."""
    return any(setting.partition(".")[0] in spec.setting_names() for spec in specs.values())


def check_reserved(settings: Iterable[str], reserved: Mapping[str, str]) -> None:
    """Raise a SpecError if any of these settings is set by the study itself; `reserved` maps those to the reason."""
    for setting in settings:
        if setting in reserved:
            raise SpecError(f"study: '{setting}' is not a setting of single runs. {reserved[setting]}")
