"""What identities share: registration by name, settings with bounds, random inputs and modules, and the report.

An identity returns `Evidence`: measured numbers next to expected ones with their tolerances, a table, a plot.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float
from pydantic import Field, create_model
from torch import Tensor, nn

from lemma.errors import InputError, SpecError, describe_unknown
from lemma.layers.recording import AttentionRecord, record_attention
from lemma.report.curves import NO_PLOT, Plot, can_draw
from lemma.report.result import Block, Heading, Items, Result, Table, Text, plot_blocks, to_plain
from lemma.spec.base import Spec

EXACT = 1e-12  # tolerance of an equality in float64
VISIBLE = 1e-6  # a difference larger than any rounding
STANDARD_ERRORS = 4.0  # tolerance of a sampled mean: with the right value, 1 in 16,000 deviates more
MAX_OPERATIONS = 2 * 10**10  # floating-point operations of one identity: some seconds of one core
MAX_NUMBERS = 2**27  # float64 numbers in memory at once: a gigabyte
OPERATIONS_PER_DRAW = 20  # cost of drawing a random number


# Findings, evidence and the report


@dataclass(frozen=True)
class Finding:
    """A measured number next to the expected one: the two must agree within a tolerance, or must differ."""

    label: str
    actual: float
    expected: float
    tolerance: float
    measure: str = "rounding in float64"  # what the tolerance stands for
    expects: Literal["equal", "different"] = "equal"

    @property
    def is_equal(self) -> bool:
        """True if the measured number is the expected one up to the tolerance."""
        return abs(self.actual - self.expected) <= self.tolerance

    @property
    def holds(self) -> bool:
        """True if the numbers are equal, or different where a difference is expected."""
        return self.is_equal == (self.expects == "equal")

    def __str__(self) -> str:
        relation, mark = "=" if self.is_equal else "≠", "✓" if self.holds else "✗"
        numbers = f"{_format_cell(self.actual)} {relation} {_format_cell(self.expected)}"
        return f"{mark} {self.label}: {numbers} (tolerance {self.tolerance:.2g}, {self.measure})"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and `holds` as plain values for JSON."""
        return {**asdict(self), "holds": self.holds}


def expect_count(label: str, actual: int, expected: int, measure: str = "a count") -> Finding:
    """Return a finding that expects one whole number to equal another; `measure` is printed with the tolerance, 0."""
    return Finding(label, actual, expected, 0, measure)


def expect_zero(label: str, value: float | Tensor, tolerance: float = EXACT) -> Finding:
    """Return a finding that expects a value, or the largest absolute entry of a tensor, to be 0 up to the tolerance."""
    return Finding(label, float(value.abs().max()) if isinstance(value, Tensor) else value, 0.0, tolerance)


def expect_nonzero(label: str, value: float | Tensor, tolerance: float = EXACT) -> Finding:
    """Return a finding that expects a value, or the largest absolute entry of a tensor, to exceed the tolerance."""
    return replace(expect_zero(label, value, tolerance), measure="more than rounding", expects="different")


def expect_mean(label: str, actual: float, expected: float, standard_error: float) -> Finding:
    """Return a finding that expects a sampled mean within STANDARD_ERRORS standard errors of its closed form."""
    measure = f"{STANDARD_ERRORS:g} standard errors of {standard_error:.2g}"
    return Finding(label, actual, expected, STANDARD_ERRORS * standard_error, measure)


@dataclass(frozen=True)
class Evidence:
    """The outcome of running an identity: numbers next to what is expected, a table, a plot."""

    findings: tuple[Finding, ...]
    header: tuple[str, ...] = ()  # names of the columns of `rows`
    rows: tuple[tuple[float | int | str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    correction: str = ""  # the right statement, if the source's is false
    plot: Plot | None = None
    claimed: tuple[Finding, ...] = ()  # the source's claim in numbers, if that is not what the mathematics says
    claim: str = ""  # the claim, if it depends on the sizes
    sizes: Mapping[str, Any] = field(default_factory=dict)  # sizes that are known only after the run


@dataclass(frozen=True)
class IdentityReport(Evidence, Result):
    """A report on the claim of a source, run at certain sizes; true in Python if the claim holds."""

    name: str = field(kw_only=True)
    title: str = field(kw_only=True)

    @property
    def confirmed(self) -> bool:
        """True if every measured number is as the mathematics says, whether or not the source claims the same."""
        return all(finding.holds for finding in self.findings)

    @property
    def holds(self) -> bool:
        """True if the source's claim holds."""
        return self.confirmed and all(finding.holds for finding in self.claimed)

    def __bool__(self) -> bool:
        return self.holds

    def claim_and_correction(self) -> tuple[str, str]:
        """Return the claim, and the right statement in its place; "" if the claim holds."""
        return self.claim, "" if self.holds else self.correction or self.verdict

    @property
    def verdict(self) -> str:
        """The end of a sentence that starts with "The claim", such as "holds." or "is false. Right: …"."""
        if not self.confirmed:
            return "is not confirmed: a number above is not what it should be."
        return "holds." if self.holds else f"is false. Right: {self.correction}"

    def blocks(self) -> list[Block]:
        """Return the report blocks: claim, sizes, evidence, notes and verdict."""
        sizes = " ".join(f"{name}={value}" for name, value in self.sizes.items())
        heading = Text(f"{self.name.upper()}  {self.title}\nClaim: {self.claim}\nSizes: {sizes}")
        notes = [Text("\n".join(self.notes), blank_before=True)] if self.notes else []
        return [heading, *self._evidence_blocks(), *notes, Text(f"The claim {self.verdict}", blank_before=True)]

    def details(self) -> list[Block]:
        """Return the report blocks with the plot, if there is one."""
        return [
            Heading(f"{self.name.upper()}: {self.title}", 1),
            Text(f"Claim: {self.claim}"),
            Text(f"The claim {self.verdict}", "good" if self.holds else "bad"),
            Text(", ".join(f"{name} = {value}" for name, value in self.sizes.items()), "note"),
            *self._evidence_blocks(),
            *plot_blocks([self.plot] if self.plot else []),
            *map(Text, self.notes),
        ]

    def _evidence_blocks(self) -> list[Block]:
        """Return report blocks of the findings and, if there are rows, of the table."""
        findings = Items([str(finding) for finding in (*self.claimed, *self.findings)])
        if not self.rows:
            return [findings]
        left = (0,) if isinstance(self.rows[0][0], str) else ()  # names are aligned left, numbers right
        cells = [tuple(map(_format_cell, row)) for row in self.rows]
        return [findings, Table(self.header, cells, left=left, breakable=left)]

    def to_dict(self) -> dict[str, Any]:
        """Return claim, outcome, findings, table and plot as plain values for JSON."""
        names = ("name", "title", "claim", "holds", "confirmed", "correction", "sizes", "claimed", "findings")
        table = [dict(zip(self.header, row, strict=True)) for row in self.rows]
        values = {name: getattr(self, name) for name in names}
        return to_plain({**values, "table": table, "remarks": self.notes, "plot": self.plot})

    def writers(self) -> dict[str, Callable[[], str]]:
        """Return functions that write the report as text, by file suffix; .svg is the plot."""

        def svg() -> str:
            if self.plot is None:
                raise InputError(f"{self.name} has no plot; save it as .html, .json or .txt.")
            if not can_draw():
                raise InputError(NO_PLOT)
            return self.plot.svg()

        return super().writers() | {".svg": svg}


def _format_cell(value: float | int | str) -> str:
    """Write a number for a table, a fraction with 6 digits; return text unchanged."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}".replace("-", "−")


# Identities and their sizes


@dataclass(frozen=True)
class Identity:
    """An identity of the sources; called with sizes, it is run at them and returns a report."""

    name: str
    aliases: tuple[str, ...]
    title: str
    claim: str
    row: str  # the row of the problems that it belongs to
    sizes: type[Spec]  # the sizes and choices that it may be tried at, with their defaults and bounds
    run: Callable[..., Evidence]

    def __call__(self, **sizes: Any) -> IdentityReport:
        source, names = f"identity {self.name}", list(self.sizes.model_fields)
        for name in sizes.keys() - set(names):  # most mistakes are of case: i for I, d_K for D_k
            if matches := [other for other in names if other.lower() == name.lower()]:
                raise SpecError(describe_unknown(f"{source}: setting", name, names, matches[0]))
        settings = self.sizes.read(sizes, source).to_dict()
        evidence = self.run(**settings)
        fields = {**vars(evidence), "claim": evidence.claim or self.claim, "sizes": {**settings, **evidence.sizes}}
        return IdentityReport(**fields, name=self.name, title=self.title)

    @property
    def default_sizes(self) -> str:
        """The sizes with their defaults, such as "D=64 samples=20000"."""
        return " ".join(f"{name}={value}" for name, value in self.sizes().to_dict().items())

    def __str__(self) -> str:
        return f"{self.name:<7} {self.aliases[0]:<15} {self.title}\n{'':<23} {self.default_sizes}"


REGISTRY: dict[str, Identity] = {}  # identities by name


def identity(names: str, title: str, claim: str = "", row: str = "") -> Callable[..., Identity]:
    """Return a decorator that makes a function of sizes an identity, which is registered under its name.

    Args:
        names: its number and aliases, separated by blanks, as in "c7 products".
        title: its heading in the report.
        claim: the source's claim; empty if it depends on the sizes.
        row: the number of the problem it belongs to, if not its own.
    """
    name, *aliases = names.split()

    def register(run: Callable[..., Evidence]) -> Identity:
        parameters = inspect.signature(run).parameters.values()
        fields: dict[str, Any] = {parameter.name: (parameter.annotation, parameter.default) for parameter in parameters}
        sizes = create_model(f"Sizes of {name}", __base__=Spec, **fields)
        REGISTRY[name] = Identity(name, tuple(aliases), title, claim, row or name, sizes, run)
        return REGISTRY[name]

    return register


def setting(
    default: Any, minimum: float | None, maximum: float | None, description: str, gt: float | None = None
) -> Any:
    """Return a pydantic field for a size or choice of an identity, from `minimum` to `maximum` or greater than `gt`."""
    return Field(default=default, ge=minimum, le=maximum, gt=gt, description=description)


SEED: int = setting(1, 0, 2**31, "fixes all that is drawn at random")


def sweep_sizes(sizes: Iterable[int], last: int) -> list[int]:
    """Return the sizes below `last`, in increasing order, and `last` itself.

    >>> sweep_sizes((1, 4, 16, 64), 10)
    [1, 4, 10]
    """
    return sorted({*(size for size in sizes if size < last), last})


def check_work(operations: int, numbers: int, **sizes: int) -> None:
    """Raise a SpecError if an identity takes too many operations or float64 numbers in memory at these sizes.

    >>> check_work(4 * 10**13, 10**8, D=10**5)
    Traceback (most recent call last):
    lemma.errors.SpecError: D = 100,000: that takes 4e+13 operations; at most 2e+10 are made. Give smaller sizes.
    """
    requested = ", ".join(f"{name} = {size:,}" for name, size in sizes.items())
    if operations > MAX_OPERATIONS:
        work = f"that takes {operations:.0e} operations; at most {MAX_OPERATIONS:.0e} are made"
        raise SpecError(f"{requested}: {work}. Give smaller sizes.")
    if numbers > MAX_NUMBERS:
        reason = f"that takes {8 * numbers / 1e9:.1f} GB of memory; at most {8 * MAX_NUMBERS / 1e9:.1f} GB are taken"
        raise SpecError(f"{requested}: {reason}. Give smaller sizes.")


def check_divisible(heads_name: str, heads: int, width_name: str, width: int) -> None:
    """Raise a SpecError, which uses the two names, if the number of heads does not divide the width."""
    if width % heads:
        raise SpecError(f"{heads_name} = {heads} does not divide {width_name} = {width}.")


# Random inputs and modules, in float64


Distribution = Literal["normal", "uniform", "signs"]
KURTOSIS: dict[str, float] = {"normal": 3.0, "uniform": 1.8, "signs": 1.0}  # E[x⁴] at zero mean and unit variance
Module = TypeVar("Module", bound=nn.Module)


def draw(distribution: Distribution, shape: tuple[int, ...], generator: torch.Generator) -> Float[Tensor, "..."]:
    """Draw a float64 tensor of this shape of independent numbers of zero mean and unit variance.

    >>> draw("signs", (3,), torch.Generator().manual_seed(0)).abs().tolist()
    [1.0, 1.0, 1.0]
    """
    if distribution == "normal":
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    return (uniform - 0.5).mul(12**0.5) if distribution == "uniform" else (uniform < 0.5).double().mul(2).sub(1)


def sample_normal(*shape: int, seed: int) -> Float[Tensor, "..."]:
    """Draw a float64 tensor of this shape of standard normal numbers, fixed by the seed."""
    return draw("normal", shape, torch.Generator().manual_seed(seed))


@contextmanager
def default_float64() -> Iterator[None]:
    """Make float64 the default dtype of torch inside a `with` block."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)


def random_module(make: Callable[[], Module], seed: int) -> Module:
    """Return the module that `make` builds, in float64 and evaluation mode, with normal weights of variance 1/width."""
    with default_float64(), torch.random.fork_rng(devices=[]):  # its initial weights are not used
        module = make()
    with torch.no_grad():
        for index, parameter in enumerate(module.parameters()):
            parameter.copy_(sample_normal(*parameter.shape, seed=seed + 1 + index) * parameter.shape[-1] ** -0.5)
    return module.eval()


def run_recorded(attention: nn.Module, *args: Any) -> tuple[Any, AttentionRecord]:
    """Call a module of one attention layer with `args`; return its output and the record of its scores and weights."""
    with torch.no_grad(), default_float64(), record_attention() as records:
        output = attention(*args)
    return output, records[0]
