"""What an identity is, and what running it shows: the claim, numbers next to numbers with their tolerance, a table."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float
from pydantic import Field, create_model
from torch import Tensor, nn

from lemma.errors import InputError, SpecError
from lemma.report.curves import NO_PLOT, Plot, can_draw
from lemma.report.result import Block, Heading, Items, Result, Table, Text, plot_blocks
from lemma.spec.base import Spec

EXACT = 1e-12
"""What rounding in float64 may leave of an equality."""
VISIBLE = 1e-6
"""A difference larger than any rounding."""
STANDARD_ERRORS = 4.0
"""How many standard errors a sampled figure may lie off: with the right value, 1 in 16,000 does."""


@dataclass(frozen=True)
class Finding:
    """One number held against another: the two must agree, or must differ, by more than the tolerance."""

    label: str
    actual: float
    expected: float
    tolerance: float
    measure: str = "rounding in float64"
    """What the tolerance stands for."""
    expects: Literal["equal", "different"] = "equal"

    @property
    def holds(self) -> bool:
        """Whether it came out as expected."""
        return (abs(self.actual - self.expected) <= self.tolerance) == (self.expects == "equal")

    def __str__(self) -> str:
        relation = "=" if abs(self.actual - self.expected) <= self.tolerance else "≠"
        mark = "✓" if self.holds else "✗"
        numbers = f"{_format_cell(self.actual)} {relation} {_format_cell(self.expected)}"
        return f"{mark} {self.label}: {numbers} (tolerance {self.tolerance:.2g}, {self.measure})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "holds": self.holds}


def expect_count(label: str, actual: int, expected: int, measure: str = "a count") -> Finding:
    """A whole number that must be exactly right."""
    return Finding(label, actual, expected, 0, measure)


def expect_zero(label: str, value: float | Tensor, tolerance: float = EXACT) -> Finding:
    """What is left of an equality; of a tensor the largest entry."""
    return Finding(label, float(value.abs().max()) if isinstance(value, Tensor) else value, 0.0, tolerance)


def expect_nonzero(label: str, value: float | Tensor, tolerance: float = EXACT) -> Finding:
    """The same where the two sides must not be equal."""
    return replace(expect_zero(label, value, tolerance), measure="more than rounding", expects="different")


def expect_mean(label: str, actual: float, expected: float, error: float) -> Finding:
    """A mean over samples next to its closed form; `error` is its standard error."""
    return Finding(
        label, actual, expected, STANDARD_ERRORS * error, f"{STANDARD_ERRORS:g} standard errors of {error:.2g}"
    )


@dataclass(frozen=True)
class Evidence:
    """What a run of an identity found."""

    findings: tuple[Finding, ...]
    header: tuple[str, ...] = ()
    rows: tuple[tuple[float | int | str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    correction: str = ""
    """The right statement, where the source's is false."""
    plot: Plot | None = None
    claimed: tuple[Finding, ...] = ()
    """What the source's claim comes to in numbers, where that is not what the mathematics says."""
    claim: str = ""
    """The claim, where it depends on the sizes."""
    sizes: Mapping[str, Any] = field(default_factory=dict)
    """Sizes that only the run tells."""


@dataclass(frozen=True)
class IdentityReport(Evidence, Result):
    """An identity of the sources, run: `holds` says whether the source's claim does."""

    name: str = field(kw_only=True)
    title: str = field(kw_only=True)

    @property
    def confirmed(self) -> bool:
        """Whether every number came out as the mathematics says."""
        return all(finding.holds for finding in self.findings)

    @property
    def holds(self) -> bool:
        """Whether the source's claim is true: what it comes to in numbers is what was measured."""
        return self.confirmed and all(finding.holds for finding in self.claimed)

    def __bool__(self) -> bool:
        return self.holds

    def claim_and_correction(self) -> tuple[str, str]:
        """Return the claim, and what is right instead; nothing if it holds."""
        return self.claim, "" if self.holds else self.correction or self.verdict

    @property
    def verdict(self) -> str:
        """The claim judged, in a line."""
        if not self.confirmed:
            return "is not confirmed: a number above is not what it should be."
        return "holds." if self.holds else f"is false. Right: {self.correction}"

    def blocks(self) -> list[Block]:
        """The claim, the findings, the table and the verdict."""
        sizes = " ".join(f"{word}={value}" for word, value in self.sizes.items())
        head = Text(f"{self.name.upper()}  {self.title}\nClaim: {self.claim}\nSizes: {sizes}")
        remarks = [Text("\n".join(self.notes), blank_before=True)] if self.notes else []
        return [head, *self._evidence(), *remarks, Text(f"The claim {self.verdict}", blank_before=True)]

    def details(self) -> list[Block]:
        """The same, with the plot."""
        heading = Heading(f"{self.name.upper()}: {self.title}", 1)
        verdict = Text(f"The claim {self.verdict}", "good" if self.holds else "bad")
        sizes = Text(", ".join(f"{word} = {value}" for word, value in self.sizes.items()), "note")
        shown = plot_blocks([self.plot] if self.plot else [])
        remarks = [Text(remark) for remark in self.notes]
        return [heading, Text(f"Claim: {self.claim}"), verdict, sizes, *self._evidence(), *shown, *remarks]

    def _evidence(self) -> list[Block]:
        findings = Items([str(finding) for finding in (*self.claimed, *self.findings)])
        if not self.rows:
            return [findings]
        named = (0,) if isinstance(self.rows[0][0], str) else ()  # names begin a line, numbers end at a column
        cells = [tuple(map(_format_cell, row)) for row in self.rows]
        return [findings, Table(self.header, cells, left=named, breakable=named)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        plain = {name: getattr(self, name) for name in ("name", "title", "claim", "holds", "confirmed", "correction")}
        return {
            **plain,
            "sizes": dict(self.sizes),
            "claimed": [finding.to_dict() for finding in self.claimed],
            "findings": [finding.to_dict() for finding in self.findings],
            "table": [dict(zip(self.header, row, strict=True)) for row in self.rows],
            "remarks": list(self.notes),
            "plot": self.plot.to_dict() if self.plot else None,
        }

    def writers(self) -> dict[str, Callable[[], str]]:
        """As for every result, but .svg is the plot alone."""

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


@dataclass(frozen=True)
class Identity:
    """One identity of the sources. Called with sizes, it runs and reports."""

    name: str
    aliases: tuple[str, ...]
    """What else a person may call it."""
    title: str
    claim: str
    row: str
    """The row of the problems that it belongs to."""
    sizes: type[Spec]
    """The sizes that it may be tried at, with their defaults and bounds."""
    run: Callable[..., Evidence]

    def __call__(self, **sizes: Any) -> IdentityReport:
        """Check the sizes, run, and report what was found next to the claim."""
        where, known = f"identity {self.name}", list(self.sizes.model_fields)
        for word in sizes.keys() - set(known):  # most mistakes are of case: i for I, d_K for D_k
            if meant := [one for one in known if one.lower() == word.lower()]:
                raise SpecError(f"{where}: '{word}' is unknown. Did you mean '{meant[0]}'? Known: {', '.join(known)}.")
        chosen = self.sizes.read(sizes, where).to_dict()
        found = self.run(**chosen)
        told = {"claim": found.claim or self.claim, "sizes": {**chosen, **found.sizes}}
        return IdentityReport(**{**vars(found), **told}, name=self.name, title=self.title)

    def __str__(self) -> str:
        sizes = " ".join(f"{word}={value}" for word, value in self.sizes().to_dict().items())
        return f"{self.name:<7} {self.aliases[0]:<15} {self.title}\n{'':<23} {sizes}"


REGISTRY: dict[str, Identity] = {}
"""Every identity by its name, once the modules that hold them are imported; see `identities.py`."""


def identity(names: str, title: str, claim: str, row: str = "") -> Callable[..., Identity]:
    """Make an identity of a function of sizes: its parameters, each a `setting`, are what a person may change.

    `names` are what it is called by, separated by blanks, its own name first.
    """
    name, *words = names.split()

    def register(run: Callable[..., Evidence]) -> Identity:
        parameters = inspect.signature(run).parameters.values()
        fields: dict[str, Any] = {one.name: (one.annotation, one.default) for one in parameters}
        sizes = create_model(f"Sizes of {name}", __base__=Spec, **fields)
        REGISTRY[name] = Identity(name, tuple(words), title, claim, row or name, sizes, run)
        return REGISTRY[name]

    return register


def setting(
    default: Any,
    minimum: float | None = None,
    maximum: float | None = None,
    description: str = "",
    exclusive_minimum: float | None = None,
) -> Any:
    """A size or choice of an identity: its default, its bounds, and what it is."""
    return Field(default=default, ge=minimum, le=maximum, gt=exclusive_minimum, description=description)


Distribution = Literal["normal", "uniform", "signs"]
KURTOSIS: dict[str, float] = {"normal": 3.0, "uniform": 1.8, "signs": 1.0}
"""E[x⁴] of the three distributions, each of zero mean and unit variance."""
Module = TypeVar("Module", bound=nn.Module)


def draw(distribution: Distribution, shape: tuple[int, ...], generator: torch.Generator) -> Float[Tensor, "..."]:
    """Independent components of zero mean and unit variance, in float64.

    >>> draw("signs", (3,), torch.Generator().manual_seed(0)).abs().tolist()
    [1.0, 1.0, 1.0]
    """
    if distribution == "normal":
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    return (uniform - 0.5).mul(12**0.5) if distribution == "uniform" else (uniform < 0.5).double().mul(2).sub(1)


def sample_normal(*shape: int, seed: int) -> Float[Tensor, "..."]:
    """Standard normal numbers in float64, fixed by the seed."""
    return draw("normal", shape, torch.Generator().manual_seed(seed))


@contextmanager
def default_float64() -> Iterator[None]:
    """Build modules and tables in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def random_module(make: Callable[[], Module], seed: int) -> Module:
    """Build a module in float64 with normal weights of variance 1/width, fixed by the seed."""
    with default_float64(), torch.random.fork_rng(devices=[]):  # its initial weights are not used
        module = make()
    with torch.no_grad():
        for place, parameter in enumerate(module.parameters()):
            parameter.copy_(sample_normal(*parameter.shape, seed=seed + 1 + place) * parameter.shape[-1] ** -0.5)
    return module.eval()
