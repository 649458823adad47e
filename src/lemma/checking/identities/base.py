"""What identities share: registration by name, settings with bounds, limits of work, random inputs and modules."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float
from pydantic import Field, create_model
from torch import Tensor, nn

from lemma.checking.identity_report import Evidence, IdentityReport
from lemma.errors import SpecError
from lemma.spec.base import Spec

MAX_OPERATIONS = 2 * 10**10  # floating-point operations of one identity: some seconds of one core
MAX_NUMBERS = 2**27  # float64 numbers in memory at once: a gigabyte
OPERATIONS_PER_DRAW = 20  # cost of drawing a random number
MAX_SEED = 2**31
REGISTRY: dict[str, "Identity"] = {}  # identities by name


@dataclass(frozen=True)
class Identity:
    """An identity of the sources; called with sizes, it runs and reports.

    Attributes:
        aliases: other names by which it is found.
        row: the row of the problems that it belongs to.
        sizes: the sizes and choices that it may be tried at, with their defaults and bounds.
    """

    name: str
    aliases: tuple[str, ...]
    title: str
    claim: str
    row: str
    sizes: type[Spec]
    run: Callable[..., Evidence]

    def __call__(self, **sizes: Any) -> IdentityReport:
        source, names = f"identity {self.name}", list(self.sizes.model_fields)
        for name in sizes.keys() - set(names):  # most mistakes are of case: i for I, d_K for D_k
            if matches := [other for other in names if other.lower() == name.lower()]:
                raise SpecError(
                    f"{source}: '{name}' is unknown. Did you mean '{matches[0]}'? Known: {', '.join(names)}."
                )
        settings = self.sizes.read(sizes, source).to_dict()
        evidence = self.run(**settings)
        fields = {**vars(evidence), "claim": evidence.claim or self.claim, "sizes": {**settings, **evidence.sizes}}
        return IdentityReport(**fields, name=self.name, title=self.title)

    @property
    def default_sizes(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.sizes().to_dict().items())

    def __str__(self) -> str:
        return f"{self.name:<7} {self.aliases[0]:<15} {self.title}\n{'':<23} {self.default_sizes}"


def identity(names: str, title: str, claim: str, row: str = "") -> Callable[..., Identity]:
    """Register a function of sizes as an identity; its parameters, each a `setting`, are what users may change.

    Args:
        names: its name and aliases, separated by blanks.
        row: the row of the problems, if it is not the name.
    """
    name, *aliases = names.split()

    def register(run: Callable[..., Evidence]) -> Identity:
        parameters = inspect.signature(run).parameters.values()
        fields: dict[str, Any] = {parameter.name: (parameter.annotation, parameter.default) for parameter in parameters}
        sizes = create_model(f"Sizes of {name}", __base__=Spec, **fields)
        REGISTRY[name] = Identity(name, tuple(aliases), title, claim, row or name, sizes, run)
        return REGISTRY[name]

    return register


def setting(default: Any, minimum: float | None = None, maximum: float | None = None, description: str = "") -> Any:
    """Declare a size or choice of an identity: its default, its bounds and its meaning."""
    return Field(default=default, ge=minimum, le=maximum, description=description)


def setting_above(bound: float, default: float, maximum: float, description: str) -> Any:
    """Declare a number that is larger than a bound."""
    return Field(default=default, gt=bound, le=maximum, description=description)


def seed_setting(description: str) -> Any:
    """Declare the seed of an identity."""
    return setting(1, 0, MAX_SEED, description)


def sweep(sizes: Iterable[int], last: int) -> list[int]:
    """Return the sizes below the last one, and the last one.

    >>> sweep((1, 4, 16, 64), 10)
    [1, 4, 10]
    """
    return sorted({*(size for size in sizes if size < last), last})


def check_work(sizes: Mapping[str, int], operations: int, numbers: int) -> None:
    """Refuse sizes at which an identity would take more operations or memory than the limits above.

    >>> check_work({"D": 10**5}, operations=4 * 10**13, numbers=10**8)
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
    """Refuse a number of heads that does not divide the width."""
    if width % heads:
        raise SpecError(f"{heads_name} = {heads} does not divide {width_name} = {width}.")


Distribution = Literal["normal", "uniform", "signs"]
KURTOSIS: dict[str, float] = {"normal": 3.0, "uniform": 1.8, "signs": 1.0}  # E[x⁴] at zero mean and unit variance
Module = TypeVar("Module", bound=nn.Module)


def draw(distribution: Distribution, shape: tuple[int, ...], generator: torch.Generator) -> Float[Tensor, "..."]:
    """Draw independent components of zero mean and unit variance, in float64.

    >>> draw("signs", (3,), torch.Generator().manual_seed(0)).abs().tolist()
    [1.0, 1.0, 1.0]
    """
    if distribution == "normal":
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    return (uniform - 0.5).mul(12**0.5) if distribution == "uniform" else (uniform < 0.5).double().mul(2).sub(1)


def sample_normal(*shape: int, seed: int) -> Float[Tensor, "..."]:
    """Draw standard normal numbers in float64, fixed by the seed."""
    return draw("normal", shape, torch.Generator().manual_seed(seed))


@contextmanager
def default_float64() -> Iterator[None]:
    """Build modules and tables in float64."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)


def random_module(make: Callable[[], Module], seed: int) -> Module:
    """Build a module in float64 with normal weights of variance 1/width, fixed by the seed."""
    with default_float64(), torch.random.fork_rng(devices=[]):  # its initial weights are not used
        module = make()
    with torch.no_grad():
        for index, parameter in enumerate(module.parameters()):
            parameter.copy_(sample_normal(*parameter.shape, seed=seed + 1 + index) * parameter.shape[-1] ** -0.5)
    return module.eval()
