"""From a subject to its account: every quantity probed, fitted, proved, and cached."""

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Literal

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lemma.counting import measure, probe
from lemma.counting.account import Account, Part, Quantity
from lemma.counting.cache import CountCache
from lemma.counting.polynomial import ONE, ZERO, Polynomial, total
from lemma.counting.probe import SUM, Fitted, Join, PathGroup, Probed, ProbeSizes, Read, Readings, Values
from lemma.counting.subject import Inputs, Subject, adapted_subject, sizes_in_words
from lemma.errors import InputError, LedgerError, unknown
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import Method

QUANTITIES = ("parameters", "flops", "backward", "activations", "cache", "optimizer")
LARGEST_RUN = 2**28  # bytes of parameters and formulas up to which a part without a formula is measured instead


@dataclass(frozen=True)
class Conventions:
    """How FLOPs are counted; written next to every figure."""

    multiply_add: Literal[1, 2] = 2
    causal: Literal["full", "half"] = "full"
    elementwise: bool = False

    def __post_init__(self) -> None:
        if self.multiply_add not in (1, 2):
            raise InputError(f"multiply_add = {self.multiply_add}: a multiply–add counts as 1 or as 2.")
        if self.causal not in ("full", "half"):
            raise InputError(unknown("causal", str(self.causal), ("full", "half")))

    def __str__(self) -> str:
        elementwise = "one for each element of elementwise work" if self.elementwise else "elementwise work not counted"
        return f"multiply–add = {self.multiply_add}, causal attention {self.causal}, {elementwise}, look-up free"

    def apply(self, products: Polynomial, causal: Polynomial) -> Polynomial:
        """Count products, some of which belong to causal attention."""
        return (products - (causal / 2 if self.causal == "half" else ZERO)) * self.multiply_add / 2


USUAL = Conventions()


def count(subject: Subject, quantities: Collection[str] = QUANTITIES, conventions: Conventions = USUAL) -> Account:
    """Account for a subject. What cannot be counted for want of inputs is left out unless it was asked for alone."""
    wrong = next((name for name in quantities if name not in QUANTITIES), None)
    if wrong is not None:
        raise InputError(unknown("quantity", wrong, QUANTITIES))
    able = [name for name in QUANTITIES if name in quantities and (subject.feed or name in ("parameters", "optimizer"))]
    if not able:
        subject.inputs({})  # says that it has none
    counter = ModuleCounter(subject, conventions)
    parameters = counter.parameters()
    found: dict[str, Quantity] = {}
    for name in able:
        counted = counter.flops if name in ("flops", "backward") else counter.bytes_kept
        quantity = parameters if name == "parameters" else counted(name)
        # where tensors leave their formulas behind, no formula of another quantity can be trusted either
        far = {path: why for path, why in parameters.refused.items() if path not in quantity.refused}
        found[name] = replace(quantity, refused={**quantity.refused, **far}) if far else quantity
    running = any(name not in ("parameters", "optimizer") for name in able)
    return Account(subject.name, subject.sizes(running), found, subject.defaults)


class ModuleCounter:
    """The quantities of one subject, each probed when it is first needed, or taken from the cache."""

    def __init__(self, subject: Subject, conventions: Conventions) -> None:
        self.subject, self.conventions = subject, conventions
        self.cached = CountCache(subject.identity)
        self._built: dict[tuple[int, ...], bool] = {}

    def parameters(self) -> Quantity:
        """Every parameter by its shape.

        What was fitted at small sizes may change far from them, so that it is compared with the module at the very
        sizes asked for. A tensor that differs there follows no formula, like those that were refused; the number is
        then that of the module as it was built.
        """

        def ties() -> dict[str, str]:
            tied = measure.tied_names(self.subject.build(self._small()))
            return {probe.pattern_of(name): ", ".join(others) for name, others in tied.items()}

        kinds = {"": self._shapes("trainable"), "frozen": self._shapes("frozen")}
        also = self.cached.get("tied", ties)
        values = self.subject.symbols
        built = {name: (tensor.numel(),) for name, tensor in self.subject.build(values).named_parameters()}
        refused = _reasons(*kinds.values())
        measured = {str(group): _amount(built, group) for probed in kinds.values() for group in probed.refused}
        parts: list[Part] = []
        for kind, probed in kinds.items():
            for group, fitted in probed.groups.items():
                tied = f"tied: also {also[group.pattern]}" if group.pattern in also else ""
                part, amount = _tensor(group, fitted, ", ".join(filter(None, (kind, tied)))), _amount(built, group)
                if group.which or part.whole.at(values) == amount:
                    parts.append(part)
                    continue
                names = ", ".join(values)
                refused[part.path] = f"no polynomial of {names} as far as the sizes asked for, where it is {amount:,}"
                measured[part.path] = amount
        quantity = Quantity("parameters", "numbers", tuple(parts), "a tied tensor counts once", refused, measured)
        if quantity.at(values) != sum(row[0] for row in built.values()):
            raise LedgerError(
                f"{self.subject.name}: its parameters follow no polynomial of {', '.join(values)} as far as the sizes "
                "asked for: other tensors are there than at small sizes."
            )
        return quantity

    def _shapes(self, kind: str) -> Probed:
        def read(values: Values) -> Readings:
            return measure.shapes(self.subject.build(values), kind == "trainable")

        def check(probed: Probed) -> None:
            """Add everything up once more, at other sizes."""
            values = self._small()
            found = total(_tensor(*fitted).whole for fitted in probed.groups.items()).at(values)
            if found != sum(prod(shape) for shape in read(values).values()):
                raise LedgerError(f"{self.subject.name}: its parameters do not add up to what was fitted.")

        return self._probed(kind, read, check=check, join=measure.total_size)

    def flops(self, name: str) -> Quantity:
        """The FLOPs of one pass over a batch.

        Read on small real tensors, which are many times faster than the meta device, by the paths it takes.
        """

        def read(values: Values, measured: Callable[[nn.Module, Inputs], Readings] = measure.products) -> Readings:
            with plain_kernels():
                return measured(self.subject.build(values, "cpu"), self.subject.inputs(values, "cpu"))

        def check(probed: Probed) -> None:
            """Compare with what is counted on the meta device, where PyTorch's own counter is exact."""
            values = self._small()
            on_meta = measure.products(self.subject.build(values), self.subject.inputs(values))
            for column in range(2 * measure.COLUMNS):
                fitted = total(f.repeats * f.columns[column] for f in probed.groups.values()).at(values)
                if fitted != sum(row[column] for row in on_meta.values()):
                    raise LedgerError(f"{self.subject.name}: its FLOPs on a CPU differ from those on the meta device.")

        phase = ("flops", "backward").index(name)
        probed = [self._probed("products", read, running=True, check=check)]
        columns = slice(phase * measure.COLUMNS, (phase + 1) * measure.COLUMNS)
        parts = [
            Part(str(group), self.conventions.apply(*fitted.columns[columns]), fitted.repeats)
            for group, fitted in probed[0].groups.items()
        ]
        if self.conventions.elementwise:
            probed.append(self._probed("elementwise", partial(read, measured=measure.elementwise), running=True))
            parts += [
                Part(str(group), fitted.columns[phase], fitted.repeats, note="elementwise")
                for group, fitted in probed[1].groups.items()
            ]
        counted = tuple(part for part in parts if part.each)
        return Quantity(name, "FLOPs", counted, str(self.conventions), _reasons(*probed))

    def bytes_kept(self, name: str) -> Quantity:
        """What autograd saves in a forward pass on a CPU, the state after a batch was read, or what AdamW keeps.

        Activations that follow no formula are measured in a real run at the sizes asked for, if it is small enough.
        """
        build, inputs = self.subject.build, self.subject.inputs
        read, convention = {
            "activations": (
                lambda values: measure.saved_bytes(build(values, "cpu"), inputs(values, "cpu")),
                "storages saved for backward on a CPU, each once, parameters left out; loss not included",
            ),
            "cache": (
                lambda values: measure.state_bytes(build(values), inputs(values)),
                "the state after reading the batch",
            ),
            "optimizer": (lambda values: measure.optimizer_bytes(build(values)), "AdamW's state"),
        }[name]
        probed = self._probed(name, read, running=name != "optimizer")
        parts = [Part(str(group), fitted.columns[0], fitted.repeats) for group, fitted in probed.groups.items()]
        quantity = Quantity(name, "bytes", tuple(parts), convention, _reasons(probed))
        if name != "activations" or not probed.refused:
            return quantity
        values = self.subject.sizes(running=True)
        weights = sum(p.numel() * p.element_size() for p in build(values).parameters())
        if weights + int(quantity.polynomial.at(values)) > LARGEST_RUN:
            return quantity
        found = read(values)
        return replace(quantity, measured={str(group): _amount(found, group) for group in probed.refused})

    def _probed(
        self,
        name: str,
        read: Read,
        running: bool = False,
        check: Callable[[Probed], None] | None = None,
        join: Join = probe.column_sums,
    ) -> Probed:
        """Probe what is read, from the cache if it was probed before; `check` is one more proof."""

        def tried(values: Values) -> Readings:
            try:
                return read(values)
            except LedgerError:
                raise
            except Exception as error:  # the forward pass of other people's code may fail in any way
                raise LedgerError(f"{self.subject.name} cannot be run at {sizes_in_words(values)}: {error}") from error

        def work() -> Probed:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)  # probed modules are small: threads would only wait for each other
            try:
                probed = probe.probe(tried, self._sizes(running), join)
                if check and not probed.refused:
                    check(probed)
            finally:
                torch.set_num_threads(threads)
            return probed

        return self.cached.probed(name, work)

    def _sizes(self, running: bool) -> Iterator[ProbeSizes]:
        """Probe sizes to try; if there are none, building at the sizes asked for says why."""

        def can_be_built(values: Values) -> bool:  # tried once: the sizes of its inputs do not matter
            key = tuple(values[name] for name in self.subject.symbols)
            if key not in self._built:
                self._built[key] = self.subject.can_be_built(values)
            return self._built[key]

        none = True
        for sizes in probe.choose_sizes(list(self.subject.sizes(running)), can_be_built, self.subject.probe_sizes):
            none = False
            yield sizes
        if none:
            self.subject.build(self.subject.sizes(running))

    def _small(self) -> dict[str, int]:
        """Some small sizes at which the subject can be built."""
        found = next(self._sizes(running=True), None)
        return probe.draws(found, 4)[-1] if found else self.subject.sizes(running=True)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Attention and recurrent layers by plain products, as on the meta device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mkldnn's switch warns about GPUs
        with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
            yield


def _amount(found: Readings, group: PathGroup) -> int:
    """What was read at all paths of a pattern."""
    return sum(row[0] for path, row in found.items() if group.matches(path))


def _tensor(group: PathGroup, fitted: Fitted, note: str = "") -> Part:
    shape = None if group.which == SUM else fitted.columns
    return Part(str(group), prod(fitted.columns, start=ONE), fitted.repeats, shape, note)


def _reasons(*probed: Probed) -> dict[str, str]:
    return {str(group): why for one in probed for group, why in one.refused.items()}


def trainable_text(spec: ModelSpec, method: Method, learn: Sequence[str] = ()) -> str:
    """How many parameters learn when a model is adapted: their formula in the sizes of the spec and of the method.

    It is read off the adapted module like any other: built and adapted at small sizes, without what does not learn.

    >>> from lemma.spec.models import Decoder
    >>> from lemma.spec.recipe import Lora
    >>> trainable_text(Decoder(width=64, depth=2), Lora(rank=4, targets=("*.attention.output",)))
    'L·r·(d + d_h)'
    """
    account = count(adapted_subject(spec, method, learn), ["parameters"])
    return account.quantities["parameters"].formula(account.order, "unicode")
