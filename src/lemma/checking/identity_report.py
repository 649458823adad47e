"""The report on an identity: its claim, numbers next to expected numbers with their tolerances, a table, a verdict."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from lemma.errors import InputError
from lemma.report.curves import NO_PLOT, Plot, can_draw
from lemma.report.result import Block, Heading, Items, Result, Table, Text, plot_blocks, to_plain

EXACT = 1e-12  # tolerance of an equality in float64
VISIBLE = 1e-6  # a difference larger than any rounding
STANDARD_ERRORS = 4.0  # tolerance of a sampled mean: with the right value, 1 in 16,000 deviates more


@dataclass(frozen=True)
class Finding:
    """A measured number next to the expected one; they must agree, or must differ.

    Attributes:
        measure: what the tolerance stands for.
    """

    label: str
    actual: float
    expected: float
    tolerance: float
    measure: str = "rounding in float64"
    expects: Literal["equal", "different"] = "equal"

    @property
    def is_equal(self) -> bool:
        return abs(self.actual - self.expected) <= self.tolerance

    @property
    def holds(self) -> bool:
        return self.is_equal == (self.expects == "equal")

    def __str__(self) -> str:
        relation, mark = "=" if self.is_equal else "≠", "✓" if self.holds else "✗"
        numbers = f"{_format_cell(self.actual)} {relation} {_format_cell(self.expected)}"
        return f"{mark} {self.label}: {numbers} (tolerance {self.tolerance:.2g}, {self.measure})"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def expect_count(label: str, actual: int, expected: int, measure: str = "a count") -> Finding:
    """Expect a whole number, exactly."""
    return Finding(label, actual, expected, 0, measure)


def expect_zero(label: str, value: float | Tensor, tolerance: float = EXACT) -> Finding:
    """Expect the difference of two sides to be zero; of a tensor, its largest entry."""
    return Finding(label, float(value.abs().max()) if isinstance(value, Tensor) else value, 0.0, tolerance)


def expect_nonzero(label: str, value: float | Tensor, tolerance: float = EXACT) -> Finding:
    """Expect two sides to differ."""
    return replace(expect_zero(label, value, tolerance), measure="more than rounding", expects="different")


def expect_mean(label: str, actual: float, expected: float, standard_error: float) -> Finding:
    """Expect a mean over samples to be near its closed form."""
    measure = f"{STANDARD_ERRORS:g} standard errors of {standard_error:.2g}"
    return Finding(label, actual, expected, STANDARD_ERRORS * standard_error, measure)


@dataclass(frozen=True)
class Evidence:
    """The outcome of running an identity.

    Attributes:
        header: names of the columns of the table `rows`.
        correction: the right statement, if the source's is false.
        claimed: the source's claim in numbers, if that is not what the mathematics says.
        claim: the claim, if it depends on the sizes.
        sizes: sizes that are known only after the run.
    """

    findings: tuple[Finding, ...]
    header: tuple[str, ...] = ()
    rows: tuple[tuple[float | int | str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    correction: str = ""
    plot: Plot | None = None
    claimed: tuple[Finding, ...] = ()
    claim: str = ""
    sizes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class IdentityReport(Evidence, Result):
    """The report on an identity of the sources; true if the source's claim holds."""

    name: str = field(kw_only=True)
    title: str = field(kw_only=True)

    @property
    def confirmed(self) -> bool:
        """True if every number is what the mathematics says."""
        return all(finding.holds for finding in self.findings)

    @property
    def holds(self) -> bool:
        """True if the source's claim is."""
        return self.confirmed and all(finding.holds for finding in self.claimed)

    def __bool__(self) -> bool:
        return self.holds

    def claim_and_correction(self) -> tuple[str, str]:
        """Return the claim, and what is right instead; nothing if it holds."""
        return self.claim, "" if self.holds else self.correction or self.verdict

    @property
    def verdict(self) -> str:
        """The predicate of the sentence 'The claim …'."""
        if not self.confirmed:
            return "is not confirmed: a number above is not what it should be."
        return "holds." if self.holds else f"is false. Right: {self.correction}"

    def blocks(self) -> list[Block]:
        sizes = " ".join(f"{name}={value}" for name, value in self.sizes.items())
        heading = Text(f"{self.name.upper()}  {self.title}\nClaim: {self.claim}\nSizes: {sizes}")
        notes = [Text("\n".join(self.notes), blank_before=True)] if self.notes else []
        return [heading, *self._evidence(), *notes, Text(f"The claim {self.verdict}", blank_before=True)]

    def details(self) -> list[Block]:
        heading = Heading(f"{self.name.upper()}: {self.title}", 1)
        verdict = Text(f"The claim {self.verdict}", "good" if self.holds else "bad")
        sizes = Text(", ".join(f"{name} = {value}" for name, value in self.sizes.items()), "note")
        plots = plot_blocks([self.plot] if self.plot else [])
        return [
            heading,
            Text(f"Claim: {self.claim}"),
            verdict,
            sizes,
            *self._evidence(),
            *plots,
            *map(Text, self.notes),
        ]

    def _evidence(self) -> list[Block]:
        findings = Items([str(finding) for finding in (*self.claimed, *self.findings)])
        if not self.rows:
            return [findings]
        left = (0,) if isinstance(self.rows[0][0], str) else ()  # names are aligned left, numbers right
        cells = [tuple(map(_format_cell, row)) for row in self.rows]
        return [findings, Table(self.header, cells, left=left, breakable=left)]

    def to_dict(self) -> dict[str, Any]:
        names = ("name", "title", "claim", "holds", "confirmed", "correction", "sizes", "claimed", "findings")
        table = [dict(zip(self.header, row, strict=True)) for row in self.rows]
        values = {name: getattr(self, name) for name in names}
        return to_plain({**values, "table": table, "remarks": self.notes, "plot": self.plot})

    def writers(self) -> dict[str, Callable[[], str]]:
        """Return the writers of every result, with .svg for the plot alone."""

        def svg() -> str:
            if self.plot is None:
                raise InputError(f"{self.name} has no plot; save it as .html, .json or .txt.")
            if not can_draw():
                raise InputError(NO_PLOT)
            return self.plot.svg()

        return super().writers() | {".svg": svg}


def _format_cell(value: float | int | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}".replace("-", "−")
