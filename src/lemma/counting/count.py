"""From a subject to its account: every quantity probed, fitted, proved, and cached."""

import random
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import chain, combinations, islice, product, zip_longest
from math import gcd, inf, prod
from time import process_time
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lemma.counting import measure, probe
from lemma.counting.account import Account, Part, Quantity
from lemma.counting.cache import CountCache
from lemma.counting.measure import MetaGroupedMM
from lemma.counting.piecewise import (
    LAYER_SERIES_LENGTH,
    NUM_RULE_POINTS,
    NUM_RULE_PROOFS,
    SERIES_LENGTH,
    DerivedSize,
    ReadAmounts,
    find_bends,
    fit_staircase,
    fit_with_derived,
    reduce_slope,
)
from lemma.counting.polynomial import ONE, ZERO, Polynomial, as_polynomial, symbol
from lemma.counting.probe import (
    SUM_ONLY,
    Amounts,
    FitResult,
    GroupFit,
    Join,
    NotPolynomial,
    PathGroup,
    ProbeSizes,
    Read,
    Readings,
    Sizes,
)
from lemma.counting.subject import (
    BATCH,
    SOURCE,
    TIME,
    Inputs,
    SkipInitialization,
    Subject,
    adapted_subject,
    format_sizes,
)
from lemma.errors import CountingError, InputError, describe_unknown
from lemma.random_state import unchanged_random_state
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import Method

STATIC_QUANTITIES = ("parameters", "optimizer")
UNITS = {"parameters": "numbers", "active": "numbers", "flops": "FLOPs", "backward": "FLOPs"}
UNITS |= dict.fromkeys(("activations", "cache", "optimizer"), "bytes")
QUANTITIES = ("parameters", "active", "flops", "backward", "activations", "cache", "optimizer")
CONVENTIONS = {
    "active": "parameters that take part for one token, tables of embeddings in full",
    "activations": "storages saved for backward on a CPU, each once, parameters left out; loss not included",
    "cache": "the state after reading the batch",
    "optimizer": "AdamW's state",
}
MAX_QUICK_RUN = 2**26  # bytes of weights and activations up to which a real run is preferred to one on fake tensors
FREE_LETTERS = "mnpqrstuvwxyz"  # letters for dimensions that follow no formula
MEMBERS = "members"  # the place of the number of tensors with a pattern, next to their dimensions
MOST_TRIED, MOST_READ = 12, 400  # fits with named sizes, alone and in pairs, and readings for them
EVERYTHING = PathGroup("", SUM_ONLY)  # all paths together, of a module that cannot be probed
Measured = Callable[[nn.Module, Inputs], Readings]


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
            raise InputError(describe_unknown("causal", str(self.causal), ("full", "half")))

    def __str__(self) -> str:
        elementwise = "one for each element of elementwise work" if self.elementwise else "elementwise work not counted"
        return f"multiply–add = {self.multiply_add}, causal attention {self.causal}, {elementwise}, look-up free"

    def apply(self, products: Polynomial, causal: Polynomial) -> Polynomial:
        """Count products, some of which belong to causal attention."""
        return (products - (causal / 2 if self.causal == "half" else ZERO)) * self.multiply_add / 2


DEFAULT_CONVENTIONS = Conventions()


@dataclass(frozen=True)
class CountLimits:
    """How much work the formulas of one quantity may take; past it the quantity is measured at the sizes asked for.

    Attributes:
        seconds: processor time for reading a module at other sizes than those asked for.
        memory: bytes of weights and activations that a run on real tensors may take.
    """

    seconds: float = 120.0
    memory: int = 2**28

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.memory <= 0:
            raise InputError(f"Limits must be above 0, got {self.seconds:g} seconds and {self.memory:,} bytes.")


DEFAULT_LIMITS = CountLimits()


@unchanged_random_state()
def count(
    subject: Subject,
    quantities: Collection[str] = QUANTITIES,
    conventions: Conventions = DEFAULT_CONVENTIONS,
    limits: CountLimits = DEFAULT_LIMITS,
) -> Account:
    """Account for a subject.

    What cannot be counted for want of inputs is left out, unless nothing else was asked for. A quantity that fails is
    in the account with the reason; if all fail, the first reason is raised.
    """
    wrong = next((name for name in quantities if name not in QUANTITIES), None)
    if wrong is not None:
        raise InputError(describe_unknown("quantity", wrong, QUANTITIES))
    able = [name for name in QUANTITIES if name in quantities and (subject.make_inputs or name in STATIC_QUANTITIES)]
    if not able:
        subject.build_inputs({})  # says that it has none
    counter = ModuleCounter(subject, conventions, limits)
    failures: dict[str, CountingError] = {}
    running = [name for name in able if name not in STATIC_QUANTITIES]
    if running:
        try:
            counter.try_once()
        except CountingError as error:
            failures = dict.fromkeys(running, error)
    if len(able) > 1 and "active" in able and not failures and not counter.routes():
        able.remove("active")  # all parameters take part for every token
    counted: dict[str, Quantity] = {}
    for name in able:
        try:
            if name in failures:
                raise failures[name]
            quantity = counter.quantity(name)
            counted[name] = replace(
                quantity,
                recount=partial(_recount, subject, conventions, limits, quantity),
                defaults=subject.defaults,
            )
        except CountingError as error:
            failures[name] = error
            counted[name] = Quantity(name, UNITS[name], (), "", {"": f"no formula: it cannot be counted ({error})"})
        except MemoryError:
            failures[name] = CountingError(f"{subject.name}: the {name} take more memory than there is.")
            counted[name] = Quantity(name, UNITS[name], (), "", {"": "no formula: it takes more memory than there is"})
    if failures.keys() >= counted.keys():
        raise next(iter(failures.values()))
    named = {letter: size for quantity in counted.values() for letter, size in quantity.derived.items()}
    sizes = {**subject.sizes(bool(running)), **named}
    rules = {letter: rule.smooth_polynomial(sizes) for one in counted.values() for letter, rule in one.rules.items()}
    even = {letter: rule for letter, rule in rules.items() if rule.at(sizes) == sizes[letter]}
    counted = {
        name: replace(quantity, size_names=frozenset({*sizes, *subject.sizes(True)}))
        for name, quantity in counted.items()
    }
    return Account(subject.name, sizes, counted, {**subject.defaults, **even})


def _recount(
    subject: Subject, conventions: Conventions, limits: CountLimits, quantity: Quantity, values: Sizes
) -> int | None:
    """Read a quantity off the module at other sizes; None if it can be run neither without memory nor within limits."""
    symbols, running = (
        {name: values.get(name, size) for name, size in group.items()}
        for group in (subject.symbols, subject.input_sizes)
    )
    moved = replace(subject, symbols=symbols, input_sizes=running)
    formula = int(quantity.smooth_polynomial(values).at(values))
    counter = ModuleCounter(moved, conventions, limits, estimate=max(formula, *quantity.measured.values(), 0))
    with unchanged_random_state():
        return counter.quantity(quantity.name).evaluate(moved.sizes(True))


@dataclass(frozen=True)
class Counted:
    """What was probed, and what the module does at the sizes asked for where no formula says it.

    `missed` is what was measured of the groups without a formula, and of those whose formula does not hold there;
    `unproved` says why nothing was measured; `only_at` are the sizes at which alone the formulas hold, `multiples` what
    sizes must be multiples of.
    """

    probed: FitResult
    missed: Mapping[PathGroup, Amounts]
    unproved: str = ""
    only_at: Sizes = field(default_factory=dict)
    multiples: Sizes = field(default_factory=dict)


STEPS = (2, 8)  # what sizes may have to be multiples of, as where half a width or every second layer is taken
Whole = Callable[[GroupFit], Sequence[Polynomial]]
"""What all members of a group come to, column by column."""
Kind = tuple[Counted, Callable[[PathGroup, GroupFit], Part]]
"""What was counted of one kind, and how it is written as a part."""


class TooLargeToRunError(CountingError):
    """A module needs more memory for a real run than counting takes."""


class TimeLimitError(CountingError):
    """Reading a module at small sizes took longer than the limit."""


class ModuleCounter:
    """The quantities of one subject, each probed when it is first needed, or taken from the cache.

    With an `estimate` nothing is probed: the module is measured at the sizes asked for. It is the number that is
    expected there, which decides whether activations are read in a real run.
    """

    def __init__(
        self,
        subject: Subject,
        conventions: Conventions,
        limits: CountLimits = DEFAULT_LIMITS,
        *,
        estimate: int | None = None,
    ) -> None:
        self.subject, self.conventions, self.limits, self.estimate = subject, conventions, limits, estimate
        self._deadline = self._run_deadline = inf  # the second is for runs that parameters can do without
        self._bytes: dict[tuple[int, ...], int] = {}
        self.cached = CountCache(subject.identity)
        self._runs: dict[tuple[int, ...], bool] = {}
        self._work: dict[Hashable, Readings] = {}
        self._built: dict[tuple[int, ...], Readings] = {}
        self._odd: dict[str, tuple[DerivedSize, Polynomial]] | None = None
        self._dimensions: FitResult | None = None
        self._letters: dict[str, str] = {}

    def quantity(self, name: str) -> Quantity:
        """Count one quantity, within the limit of time."""
        counters = {"parameters": self.parameters, "active": self.active, "flops": self.flops, "backward": self.flops}
        self._deadline = process_time() + self.limits.seconds
        self._run_deadline = self._deadline - self.limits.seconds / 2
        try:
            return counters.get(name, self.bytes_kept)(name)
        finally:
            self._deadline = self._run_deadline = inf

    def _check_time(self) -> None:
        if process_time() > self._deadline:
            raise TimeLimitError(f"reading it at other sizes takes more than {self.limits.seconds:g} s, the time limit")

    def try_once(self) -> None:
        """Run the module at the sizes asked for, so that what cannot be run says so before anything is probed."""
        values = self.subject.sizes(True)

        def run() -> bool:
            with suppress(TooLargeToRunError):
                self._run(measure.run_forward, values, ("meta", "cpu"))
            return True

        self.cached.get_or_compute(f"runs at {format_sizes(values)}", run)

    def parameters(self, name: str) -> Quantity:
        """Every parameter by its shape."""

        def ties() -> dict[str, str]:
            tied = measure.find_tied_names(self.subject.build(self._small(running=False)))
            return {probe.path_pattern(name): ", ".join(others) for name, others in tied.items()}

        def part(group: PathGroup, fitted: GroupFit, kind: str) -> Part:
            tied = f"tied: also {also[group.pattern]}" if group.pattern in also else ""
            shape, each = None if group.subset == SUM_ONLY else fitted.columns, prod(fitted.columns, start=ONE)
            return Part(str(group), each, fitted.repeats, shape, ", ".join(filter(None, (kind, tied))))

        def whole(fitted: GroupFit) -> Sequence[Polynomial]:
            return (fitted.repeats * prod(fitted.columns, start=ONE),)

        built = self.subject.build(self.subject.symbols)
        also = self.cached.get_or_compute("tied", ties) if self.estimate is None else {}
        kinds: list[Kind] = []
        for kind, trainable in (("", True), ("frozen", False)):

            def read(values: Sizes, trainable: bool = trainable) -> Readings:
                self._check_time()
                return measure.parameter_shapes(self.subject.build(values), trainable)

            there = {path: (prod(shape),) for path, shape in measure.parameter_shapes(built, trainable).items()}
            name_of_kind = kind or "trainable"
            counted = self._counted(name_of_kind, read, lambda _, there=there: there, False, measure.total_size, whole)
            kinds.append((counted, partial(part, kind=kind)))
        return self._quantity(name, "a tied tensor counts once", kinds, lambda row: row[0])

    def routes(self) -> bool:
        """Whether each token is sent to some experts only."""

        def seen() -> bool:
            small = self._one_token(self._small())
            return bool(self._run(measure.active_sizes, small, ("cpu", "meta")))

        with suppress(CountingError):
            return self.cached.get_or_compute("routes", seen)
        return False

    def active(self, name: str) -> Quantity:
        """The parameters that take part for one token: of a mixture of experts, those of its k experts."""
        routed = self.routes()

        def read(values: Sizes) -> Readings:
            if not routed:
                return {
                    one: (prod(size),)
                    for one, size in measure.parameter_shapes(self.subject.build(values), None).items()
                }
            return self._run(measure.active_sizes, self._one_token(values), ("cpu", "meta"))

        values = self.subject.sizes(True)
        counted = self._counted(name, read, lambda _: read(values), join=probe.column_sums)
        kinds: list[Kind] = [(counted, lambda group, fitted: Part(str(group), fitted.columns[0], fitted.repeats))]
        return self._quantity(name, CONVENTIONS[name], kinds, lambda row: row[0])

    def _one_token(self, values: Sizes) -> dict[str, int]:
        """The same sizes with one sequence of one token."""
        return {**values, **{one: 1 for one in (BATCH, TIME, SOURCE) if one in self.subject.input_sizes}}

    def flops(self, name: str) -> Quantity:
        """The FLOPs of one pass over a batch.

        Read on small real tensors, which are many times faster than the meta device, by the paths it takes; at the
        sizes asked for they are read on the meta device, where PyTorch's own counter is exact.
        """
        phase = ("flops", "backward").index(name)

        halved = self.conventions.causal == "half"  # else it does not matter which products are causal

        def counted(kind: str, measured: Measured, columns: slice) -> Counted:
            def read(values: Sizes, devices: Sequence[str] = ("cpu", "meta")) -> Readings:
                key = (kind, *values.items(), *devices)
                if key not in self._work:  # both passes are read in one run
                    with reference_kernels():
                        self._work[key] = self._run(measured, values, devices)
                rows = {path: row[columns] for path, row in self._work[key].items()}
                return rows if halved else {path: (row[0], *(0 for _ in row[1:])) for path, row in rows.items()}

            def asked(_: FitResult) -> Readings:
                return read(self.subject.sizes(True), ("meta", "cpu"))

            key = f"{kind} {name}" + (" causal" if halved else "")
            return self._counted(key, read, asked, pinned=partial(read, devices=("meta",)))

        def part(group: PathGroup, fitted: GroupFit, note: str = "") -> Part:
            each = fitted.columns[0] if note else self.conventions.apply(*fitted.columns)
            return Part(str(group), each, fitted.repeats, note=note)

        def amount(row: Amounts) -> int:
            return int(
                (as_polynomial(row[0]) if len(row) == 1 else self.conventions.apply(*map(as_polynomial, row))).at({})
            )

        columns = slice(phase * measure.COLUMNS, (phase + 1) * measure.COLUMNS)
        kinds: list[Kind] = [(counted("products", measure.product_flops, columns), part)]
        if self.conventions.elementwise:
            spread = counted("elementwise", measure.elementwise_flops, slice(phase, phase + 1))
            kinds.append((spread, partial(part, note="elementwise")))
        return self._quantity(name, str(self.conventions), kinds, amount)

    def bytes_kept(self, name: str) -> Quantity:
        """What autograd saves in a forward pass on a CPU, the state after a batch was read, or what AdamW keeps."""
        values = self.subject.sizes(True)
        if name == "activations":
            read = partial(self._run, measure.saved_bytes, devices=("cpu",))
            counted = self._counted(name, read, self._saved)
        else:

            def read(values: Sizes) -> Readings:
                if name == "optimizer":
                    self._check_time()
                    return measure.optimizer_bytes(self.subject.build(values))
                return self._run(measure.state_bytes, values, ("meta", "cpu"))

            counted = self._counted(name, read, lambda _: read(values), running=name == "cache")
        kinds: list[Kind] = [(counted, lambda group, fitted: Part(str(group), fitted.columns[0], fitted.repeats))]
        return self._quantity(name, CONVENTIONS[name], kinds, lambda row: row[0])

    def _saved(self, probed: FitResult) -> Readings:
        """What autograd saves at the sizes asked for: in a real run if it is small, else in one on fake tensors.

        These take no memory and follow the paths of a CPU. Where they differ from real ones at small sizes, as for what
        oneDNN's LSTM saves, they are not used.
        """
        values, real = self.subject.sizes(True), partial(self._run, measure.saved_bytes, devices=("cpu",))
        there = {**values, **self._named_values(probed, values)}
        expected = sum(column.at(there) for fitted in probed.fits.values() for column in _wholes(fitted))
        needed = int(expected) + (self.estimate or 0) + self._weights(values)
        if needed <= MAX_QUICK_RUN:
            return real(values)
        from torch._subclasses.fake_tensor import FakeTensorMode  # slow to import

        def fake(values: Sizes) -> Readings:
            with FakeTensorMode(), SkipInitialization(), MetaGroupedMM():
                return measure.saved_bytes(self.subject.make_module(values), self.subject.build_inputs(values, "cpu"))

        small = self._small()
        with suppress(Exception):  # not every module can be followed without numbers
            if fake(small) == real(small):
                return fake(values)
        if needed > self.limits.memory:
            raise TooLargeToRunError(f"a run takes more than {self.limits.memory // 2**20} MiB")
        return real(values)

    def _weights(self, values: Sizes) -> int:
        """The bytes of the parameters."""
        key = tuple(values[name] for name in self.subject.symbols)
        if key not in self._bytes:
            parameters = self.subject.build(values).parameters()
            self._bytes[key] = sum(one.numel() * one.element_size() for one in parameters)
        return self._bytes[key]

    def _too_large(self, values: Sizes) -> bool:
        """Whether the weights are past the limit of memory; smaller ones than at the sizes asked for may not be."""
        asked = self.subject.symbols
        smaller = all(values[name] <= size for name, size in asked.items())
        return (not smaller or self._weights(asked) > self.limits.memory) and self._weights(values) > self.limits.memory

    def _run(self, measured: Measured, values: Sizes, devices: Sequence[str]) -> Readings:
        """Measure a run on the first device on which there is one; a LedgerError says why it cannot be run."""
        self._check_time()
        failure: Exception | None = None
        for device in devices:
            try:
                if device == "cpu" and self._too_large(values):
                    raise TooLargeToRunError(f"a run takes more than {self.limits.memory // 2**20} MiB")
                drawn = measured is measure.active_sizes  # zeros would leave experts without a gradient
                with MetaGroupedMM() if device == "meta" else nullcontext():
                    return measured(
                        self.subject.build(values, device, drawn), self.subject.build_inputs(values, device)
                    )
            except TooLargeToRunError as error:
                failure = error
            except CountingError:
                raise
            except Exception as error:  # the forward pass of other people's code may fail in any way
                failure = failure if isinstance(failure, TooLargeToRunError) else error
        if isinstance(failure, TooLargeToRunError):
            raise failure
        why = str(failure).strip().partition("\n")[0] or type(failure).__name__
        words = format_sizes(values)
        raise CountingError(f"{self.subject.name} cannot be run at {words}: {why}") from failure

    def _counted(
        self,
        name: str,
        read: Read,
        asked: Callable[[FitResult], Readings],
        running: bool = True,
        join: Join = probe.column_sums,
        whole: Whole | None = None,
        pinned: Read | None = None,
        only_at: Sizes | None = None,
        multiples: Sizes | None = None,
    ) -> Counted:
        """Probe what is read, and compare it with what is read at the sizes asked for; both are cached.

        Where a formula does not hold there, or is missing, some sizes may be the reason, such as a batch of one or a
        text longer than the window: with these as they are, what is read may have a formula in the other sizes. Where
        a size is divided and rounded, there may be one for its multiples.
        """
        whole = whole or _wholes
        values, fixed = self.subject.sizes(running), dict(only_at or {})
        steps = dict(multiples or {})
        stepped = f"multiples {format_sizes(steps)}" if steps else ""
        key = " ".join(filter(None, (name, format_sizes(fixed), stepped)))

        def work() -> FitResult:
            try:
                with single_thread():
                    return probe.fit_groups(read, self._sizes(running, fixed, steps), join)
            except TimeLimitError:  # not to be cached
                raise
            except CountingError as error:
                return FitResult({}, {EVERYTHING: f"no formula, since it cannot be probed ({error})"})

        def with_named() -> FitResult:
            with single_thread():
                return self._with_named_sizes(counted, read, sizes, join, pins)

        def formulas() -> FitResult:
            if self.estimate is not None:
                return FitResult({}, {EVERYTHING: "no formula, since it was only measured"})
            try:
                return self.cached.probed(key, work)
            except TimeLimitError as error:
                return FitResult({}, {EVERYTHING: f"no formula, since {error}"})

        def compared(key: str, probed: FitResult) -> Counted:
            key = f"{key} measured" if EVERYTHING in probed.failures else key

            def compare() -> list[Any]:
                deadline, self._deadline = self._deadline, inf  # this reading is worth any time
                try:
                    found = asked(probed)
                except TooLargeToRunError as error:
                    return [str(error), []]
                finally:
                    self._deadline = deadline
                if EVERYTHING in probed.failures:
                    return ["", [["", SUM_ONLY, join(list(found.values())) if found else (0,)]]]
                missed, there = [], {**values, **self._named_values(probed, values)}
                for group, rows in probe.assign_to_groups([*probed.fits, *probed.failures], found).items():
                    amounts = probe.column_sums(rows) if rows else ()
                    fitted = probed.fits.get(group)
                    expected = [column.at(there) for column in whole(fitted)] if fitted else None
                    if expected is None or any(a != b for a, b in zip_longest(amounts, expected, fillvalue=0)):
                        missed.append([group.pattern, group.subset, list(amounts or (0,) * len(expected or [0]))])
                return ["", missed]

            unproved, rows = self.cached.get_or_compute(f"{key} at {format_sizes(values)}", compare)
            missed = {PathGroup(pattern, which): tuple(amounts) for pattern, which, amounts in rows}
            return Counted(probed, missed, unproved, fixed, steps)

        counted = compared(key, formulas())
        if not counted.missed or steps or EVERYTHING in counted.missed:
            return counted
        given = {"read": read, "asked": asked, "running": running, "join": join, "whole": whole, "pinned": pinned}
        again = partial(self._counted, name, **given)
        pins = {} if fixed or not running else self._reasons(key, counted, pinned or read, whole)
        sizes = next(self._sizes(running, fixed), {})
        special = {one: size for one, size in pins.items() if size < min(sizes[one])}  # such as a batch of one
        tried = [counted, again(only_at=special)] if special else [counted]
        if not special:
            at = f"{key} named at {format_sizes(values)}"
            with suppress(TimeLimitError):
                tried.append(compared(at, self.cached.probed(at, with_named)))
        if not fixed and tried[-1].missed:
            divided = {one for one in values for why in counted.probed.failures.values() if _fails_in(one, why)}
            stepped = [{one: step for one in divided if values[one] % step == 0} for step in STEPS]
            tried += [one for by in stepped if by and not (one := again(multiples=by)).missed]
            if pins and pins != special and tried[-1].missed:
                tried.append(again(read=pinned or read, only_at=pins))
        return min(tried, key=lambda one: (EVERYTHING in one.missed, len(one.missed)))

    def _reasons(self, key: str, counted: Counted, read: Read, whole: Whole) -> dict[str, int]:
        """The sizes asked for that alone lead away from the formulas of the groups that were missed."""
        values, probed = self.subject.sizes(True), counted.probed
        sizes = next(self._sizes(True), None)

        def work() -> dict[str, int]:
            pins: dict[str, int] = {}
            for name in values if sizes else ():
                assert sizes
                if any(_fails_in(name, why) for why in probed.failures.values()):
                    pins[name] = values[name]
                there = {**{other: known[0] for other, known in sizes.items()}, name: values[name]}
                try:
                    if self._weights(there) > MAX_QUICK_RUN:
                        continue
                    found = probe.assign_to_groups([*probed.fits, *probed.failures], read(there))
                except CountingError:
                    continue
                for group in counted.missed:
                    fitted = probed.fits.get(group)
                    rows = probe.column_sums(found[group]) if found.get(group) else ()
                    expected = [column.at(there) for column in whole(fitted)] if fitted else []
                    if fitted and any(a != b for a, b in zip_longest(rows, expected, fillvalue=0)):
                        pins[name] = values[name]
            return pins

        return self.cached.get_or_compute(f"{key} depends at {format_sizes(values)}", work)

    # Sizes that no polynomial gives, found out when formulas of the symbols alone fail.

    def _shapes(self, values: Sizes) -> Readings:
        key = tuple(values[name] for name in self.subject.symbols)
        if key not in self._built:
            self._check_time()
            symbols = {name: values[name] for name in self.subject.symbols}
            self._built[key] = measure.parameter_shapes(self.subject.build(symbols), None)
        return self._built[key]

    def _read_dimensions(self, values: Sizes) -> Readings:
        """Every dimension of every tensor, and how many tensors there are of each pattern."""
        shapes = self._shapes(values)
        found = {f"{path} {place}": (size,) for path, shape in shapes.items() for place, size in enumerate(shape)}
        members = Counter(pattern for path in shapes for pattern in probe.iter_patterns(path))
        return {**found, **{_members(pattern): (number,) for pattern, number in members.items()}}

    def _dimension(self, place: str, values: Sizes) -> int:
        """A dimension of the tensors of a pattern, or how many of them there are."""
        pattern, _, which = place.rpartition(" ")
        group = PathGroup(pattern.replace("/", ".") if which == MEMBERS else pattern)
        rows = [shape for path, shape in self._shapes(values).items() if group.matches(path)]
        if which == MEMBERS:
            return len(rows)
        if not rows:
            raise CountingError(f"{pattern} is not there at {format_sizes(values)}")
        return rows[0][int(which)]

    def _value(self, size: DerivedSize, values: Sizes) -> int:
        return self._dimension(size.dimension, values) if size.kind == "dimension" else size.at(values)

    def _named_values(self, probed: FitResult, values: Sizes) -> dict[str, int]:
        return {name: self._value(one, values) for name, one in probed.derived.items()}

    def _odd_sizes(self) -> dict[str, tuple[DerivedSize, Polynomial]]:
        """The dimensions of tensors, and their numbers, that follow no polynomial: by place, with what is to be added.

        Those that are equal wherever they were read are one.
        """
        if self._odd is not None:
            return self._odd
        values, self._odd = self.subject.sizes(False), {}
        try:
            sizes = next(self._sizes(False))
            probed = self._dimensions = probe.fit_groups(self._read_dimensions, [sizes])
        except (CountingError, StopIteration):
            return self._odd
        there = probe.assign_to_groups([*probed.fits, *probed.failures], self._read_dimensions(values))
        drawn, known = probe.sample_sizes(sizes, 6), dict[tuple[int, ...], tuple[DerivedSize, Polynomial]]()
        for group, rows in there.items():
            fitted = probed.fits.get(group)
            if group.subset or len(set(rows)) != 1 or (fitted and (fitted.columns[0].at(values),) == rows[0]):
                continue
            with suppress(CountingError):
                read = tuple(self._dimension(group.pattern, at) for at in [values, *drawn])
                if read not in known:
                    known[read] = self._rule(group.pattern, sizes)
                self._odd[group.pattern] = known[read]
        return self._odd

    def _rule(self, place: str, sizes: ProbeSizes) -> tuple[DerivedSize, Polynomial]:
        """What a dimension is: rounded, or the smaller or the larger of two symbols; else only the module knows it."""
        values = self.subject.sizes(False)
        source, read = random.Random(place), partial(self._dimension, place)

        def points(name: str, others: Sizes, places: Iterable[int] | None = None) -> dict[int, int]:
            step, found = gcd(*sizes[name]), dict[int, int]()
            reach = max(4 * values[name], 2 * max(sizes[name])) // step
            near = range(min(sizes[name]), min(sizes[name]) + NUM_RULE_POINTS // 3)
            for one in places or [*near, *(step * source.randint(1, reach) for _ in range(NUM_RULE_POINTS))]:
                with suppress(CountingError):
                    found[one] = read({**others, name: one})
            return found

        lowest = {name: known[0] for name, known in sizes.items()}
        fresh = [values, *probe.sample_sizes(sizes, NUM_RULE_PROOFS)]
        varied: list[str] = []
        for name in values:
            if len(sizes[name]) < 2:
                continue
            some = points(name, lowest)
            if len(set(some.values())) < 2:
                continue
            varied.append(name)
            found = None
            for _ in range(3):  # again with what is read at its steps, where it shows whether it is rounded up or down
                found = fit_staircase(name, some)
                if found is None:
                    break
                near = {one for step in found[0].step_points(min(sizes[name])) for one in (step - 1, step)}
                at_steps = points(name, lowest, near)
                if all(found[0].at({name: one}) + found[1].at({}) == size for one, size in at_steps.items()):
                    break
                some |= at_steps
            if found is None:
                continue
            size, rest = reduce_slope(found[0], found[1]) if place.endswith(MEMBERS) else found
            with suppress(CountingError, NotPolynomial):  # other symbols may be added to it
                rest = probe.fit_polynomials(lambda at, size=size: {"": read(at) - size.at(at)}, sizes).get("", ZERO)
                more = [{**values, name: one} for one in points(name, values)]
                if all(size.at(at) + rest.at(at) == read(at) for at in [*fresh, *more]):
                    return size, rest
        for (one, other), by in product(combinations(varied, 2), (0, -1, 1)):
            for kind in ("min", "max"):
                size = DerivedSize(kind, (symbol(one), symbol(other) + by))
                with suppress(CountingError):
                    if all(size.at(at) == read(at) for at in fresh):
                        return size, ZERO
        if not varied:
            raise CountingError(f"{place} does not change with one size alone")
        return DerivedSize("dimension", tuple(map(symbol, varied)), dimension=place), ZERO

    def _with_named_sizes(self, counted: Counted, read: Read, sizes: ProbeSizes, join: Join, pins: Sizes) -> FitResult:
        """Fit the groups that were missed with sizes of their own: odd dimensions, and what bends along one symbol."""
        probed, missed = counted.probed, list(counted.missed)
        groups = {group: fitted for group, fitted in probed.fits.items() if group not in counted.missed}
        named: dict[str, DerivedSize] = {}
        odd = self._odd_sizes()
        if join is measure.total_size:  # tensors, dimension by dimension
            for group, fitted in self._by_shape(counted, odd).items():
                groups[group] = fitted
                used = {name for one in (fitted.repeats, *fitted.columns) for name in one.symbols}
                named |= {one.name: one for one, _ in odd.values() if one.name in used}
                missed.remove(group)

        seen: dict[tuple[int, ...], dict[PathGroup, list[Amounts]]] = {}

        def amounts(at: Sizes) -> dict[PathGroup, Amounts]:
            key = tuple(at[name] for name in sizes)
            if key not in seen:
                if len(seen) == MOST_READ:
                    raise CountingError("it was read often enough")
                seen[key] = probe.assign_to_groups([*probed.fits, *probed.failures], read(at))
            return {group: tuple(join(seen[key][group])) if seen[key].get(group) else () for group in missed}

        known: dict[DerivedSize, None] = {}
        able = {name for name, some in sizes.items() if len(some) > 1}

        def candidates() -> Iterator[tuple[DerivedSize, ...]]:
            for one in chain((one for one, _ in odd.values()), self._bent(counted, amounts, sizes, pins)):
                if one not in known and one.symbols <= able:
                    known[one] = None
                    yield (one,)
            yield from combinations(known, 2)

        for chosen in islice(candidates() if missed else (), MOST_TRIED):
            if not missed:
                break
            found = fit_with_derived(amounts, chosen, sizes, self._value)
            for group in list(missed):
                columns = [found.get((group, at)) for at in range(len(counted.missed[group]))]
                if all(column is not None for column in columns):
                    groups[group] = GroupFit(ONE, tuple(column for column in columns if column is not None))
                    missed.remove(group)
                    used = {name for column in columns if column is not None for name in column.symbols}
                    named |= {one.name: one for one in chosen if one.name in used}
        refused = {group: why for group, why in probed.failures.items() if group not in groups}
        refused |= {group: "no polynomial as far as the sizes asked for" for group in missed if group not in refused}
        return FitResult(groups, refused, named)

    def _by_shape(
        self, counted: Counted, odd: Mapping[str, tuple[DerivedSize, Polynomial]]
    ) -> dict[PathGroup, GroupFit]:
        """The tensors that were missed as products of their dimensions, where each has a formula or is an odd one."""
        values, probed = self.subject.sizes(False), counted.probed
        there = probe.assign_to_groups([*probed.fits, *probed.failures], self._shapes(values))

        def formula(place: str, size: int) -> Polynomial | None:
            fits = self._dimensions.fits.get(PathGroup(place)) if self._dimensions else None
            if fits and fits.columns[0].at(values) == size:
                return fits.columns[0]
            return symbol(odd[place][0].name) + odd[place][1] if place in odd else None

        found: dict[PathGroup, GroupFit] = {}
        for group in counted.missed:
            rows = there.get(group, [])
            if group.subset or len(set(rows)) != 1 or not (group in probed.fits or group in probed.failures):
                continue
            columns = [formula(f"{group.pattern} {place}", size) for place, size in enumerate(rows[0])]
            repeats = formula(_members(group.pattern), len(rows))
            known = tuple(column for column in columns if column is not None)
            if len(known) == len(columns) and repeats is not None:
                found[group] = GroupFit(repeats, known)
        return found

    def _bent(self, counted: Counted, amounts: ReadAmounts, sizes: ProbeSizes, pins: Sizes) -> Iterator[DerivedSize]:
        """Sizes that may explain where what is read bends, along one symbol after the other."""
        base = {name: known[-1] for name, known in sizes.items()}
        values = self.subject.sizes(any(name in self.subject.input_sizes for name in sizes))

        def moves(other: str, name: str, kink: int) -> bool:
            """Whether the bend is elsewhere where another size is smaller."""
            if other == name or base[other] - 3 < min(sizes[other]):
                return False
            with suppress(CountingError):
                rows = [amounts({**base, other: base[other] - 3, name: kink + by}) for by in (1, 0, -1, -2)]
                return not any(
                    a - 3 * b + 3 * c - d
                    for group in counted.missed
                    for a, b, c, d in zip(*(row.get(group, ()) for row in rows), strict=False)
                )
            return False

        together = any("together" in counted.probed.failures.get(group, "") for group in counted.missed)
        for name in [*pins, *(name for name in sizes if (together or not pins) and name not in pins)]:
            if gcd(*sizes[name]) > 1 or len(sizes[name]) < 2:
                continue
            start, series = min(sizes[name]), dict[int, Mapping[PathGroup, Sequence[int]]]()
            with suppress(CountingError):
                for one in range(
                    start, start + (LAYER_SERIES_LENGTH if probe.LAYER_NAMES.match(name) else SERIES_LENGTH)
                ):
                    series[one] = amounts({**base, name: one})
            for group, row in counted.missed.items():
                for column in range(len(row)):
                    line = {
                        one: (*found.get(group, ()), *row)[column] if found.get(group) else 0
                        for one, found in series.items()
                    }
                    kink, period = find_bends(line) if len(line) > 4 else (0, 0)
                    if kink:
                        near = [other for other in sizes if abs(kink - base[other]) <= 1 and moves(other, name, kink)]
                        for other in near:
                            by = kink - base[other]
                            pair = (symbol(name), symbol(other) + by) if by <= 0 else (symbol(other), symbol(name) - by)
                            yield DerivedSize("min", pair)
                        if not near:
                            yield DerivedSize("min", (symbol(name), as_polynomial(kink)))
                    if period:
                        x = symbol(name) / period
                        yield from (DerivedSize(kind, (x,)) for kind in ("ceil", "floor"))
                        yield from (DerivedSize("floor", (x + Fraction(by, period),)) for by in range(1, period - 1))
            lowest = {other: known[0] for other, known in sizes.items()}
            for group in counted.missed:
                fitted = counted.probed.fits.get(group)
                low, high = max(sizes[name]), values[name]  # the formula holds at the first, and not at the second
                if not fitted or high <= low or group not in amounts(lowest):
                    continue  # another size has explained it already
                with suppress(CountingError):
                    while high - low > 1:
                        there = {**lowest, name: (low + high) // 2}
                        holds = [column.at(there) for column in _wholes(fitted)] == list(amounts(there).get(group, ()))
                        low, high = ((low + high) // 2, high) if holds else (low, (low + high) // 2)
                    yield DerivedSize("min", (symbol(name), as_polynomial(low)))

    def _quantity(
        self, name: str, convention: str, kinds: Sequence[Kind], amount: Callable[[Amounts], int]
    ) -> Quantity:
        """What has a formula part by part, and what has none as it was measured."""
        parts: list[Part] = []
        unit = UNITS[name]
        refused: dict[str, str] = {}
        measured: dict[str, int] = {}
        sizes = self.subject.sizes(name not in STATIC_QUANTITIES)
        only_at = {
            one: probed[0] for one, probed in self.subject.probe_sizes.items() if len(probed) == 1 and one in sizes
        }
        unproved, multiples, named, rules = "", {}, dict[str, int](), dict[str, DerivedSize]()
        for counted, part_of in kinds:
            probed = counted.probed
            unproved = unproved or counted.unproved
            only_at |= counted.only_at
            multiples |= counted.multiples
            named |= self._named_values(probed, sizes)
            rules |= probed.derived
            parts += [part_of(*one) for one in probed.fits.items() if one[0] not in counted.missed]
            refused |= {str(group): why for group, why in probed.failures.items()}
            for group, row in counted.missed.items():
                path = str(group) if group != EVERYTHING else ""
                measured[path] = measured.get(path, 0) + amount(row)
                if group in probed.fits:
                    refused[path] = f"no polynomial of {', '.join(sizes)} as far as the sizes asked for"
                elif group not in probed.failures:
                    refused[path] = "no formula, since it is there at the sizes asked for only"
        unproved = f"not compared with a run at the sizes asked for: {unproved}" if unproved else ""
        convention = "; ".join(filter(None, (convention, unproved)))
        shown = tuple(part for part in parts if part.each or unit != "FLOPs")
        for one in named:  # the same letter in all quantities
            free = (
                letter for letter in FREE_LETTERS if letter not in {*self.subject.sizes(True), *self._letters.values()}
            )
            self._letters.setdefault(one, next(free, one))
        letters = {one: symbol(self._letters[one]) for one in named}

        def spelled(part: Part) -> Part:
            shape = None if part.shape is None else tuple(size.substitute_all(letters) for size in part.shape)
            return replace(
                part, each=part.each.substitute_all(letters), repeats=part.repeats.substitute_all(letters), shape=shape
            )

        return Quantity(
            name,
            unit,
            tuple(map(spelled, shown)) if letters else shown,
            convention,
            refused,
            measured,
            only_at if shown else {},
            multiples,
            {self._letters[one]: size for one, size in named.items()},
            {self._letters[one]: rule for one, rule in rules.items() if rule.kind != "dimension"},
            sizes if measured else {},
            () if self.estimate is not None else tuple(self._remarks(name)),
            sizes,
        )

    def _remarks(self, name: str) -> Iterator[str]:
        """Yield what a quantity leaves out or depends on: operators without a rule, numbers that the module reads."""
        phase = ("flops", "backward").index(name) if name in ("flops", "backward") else None
        if phase is None and name != "activations":
            return

        def read() -> dict[str, Amounts]:
            with suppress(CountingError), reference_kernels():
                return dict(self._run(measure.find_uncounted, self._small(), ("cpu", "meta")))
            return {}

        paths: dict[str, dict[str, None]] = {}
        for key, row in self.cached.get_or_compute("uncounted", read).items():
            operator, _, path = key.partition(" ")
            reads = operator == measure.READS_DATA
            if row[0] if reads else phase is not None and row[phase]:
                paths.setdefault(operator, {})[probe.path_pattern(path) or "the module itself"] = None
        for operator, places in paths.items():
            where = ", ".join(places)
            if operator == measure.READS_DATA:
                yield (
                    f"counted for inputs and weights of zeros: {where} reads numbers while it runs, so "
                    "how often a loop runs, or which branch, may depend on them"
                )
            else:
                yield f"not counted: {operator} in {where}, for which there is no rule"

    def _sizes(self, running: bool, fixed: Sizes | None = None, multiples: Sizes | None = None) -> Iterator[ProbeSizes]:
        """Probe sizes to try; if there are none, building at the sizes asked for says why.

        What has inputs is built at sizes at which it runs: a width that heads do not divide may be built all the same.
        """

        def works(values: Sizes) -> bool:
            key = (running, *values.values())
            if key not in self._runs:
                self._check_time()
                self._runs[key] = self.subject.can_build(values)
                if running and self._runs[key]:
                    with suppress(CountingError):
                        self._runs[key] = False
                        self._run(measure.run_forward, values, ("meta",) if self._too_large(values) else ("cpu",))
                        self._runs[key] = True
            return self._runs[key]

        none, symbols = True, self.subject.sizes(running)
        choices = probe.choose_probe_sizes(symbols, works, self.subject.probe_sizes)
        if not running and self.subject.make_inputs:
            choices = chain(self._sizes_that_run(), choices)
        for sizes in choices:
            none = False
            stepped = {name: [step * value for value in sizes[name]] for name, step in (multiples or {}).items()}
            yield {**sizes, **stepped, **{name: [value] for name, value in (fixed or {}).items()}}
        if none:
            self.subject.build(symbols)

    def _sizes_that_run(self) -> Iterator[ProbeSizes]:
        """The first sizes of the module at which it runs, unless to find them takes half of the time there is."""
        deadline = self._deadline
        self._deadline = min(deadline, self._run_deadline)
        try:
            for sizes in islice(self._sizes(True), 1):
                yield {name: sizes[name] for name in self.subject.symbols}
        except TimeLimitError:
            return
        finally:
            self._deadline = deadline

    def _small(self, running: bool = True) -> dict[str, int]:
        """Some small sizes at which the subject can be built, and run if it has inputs."""
        with suppress(TimeLimitError):
            sizes = next(self._sizes(running and self.subject.make_inputs is not None), None)
            if sizes:
                return probe.sample_sizes(sizes, 4)[-1]
        return self.subject.sizes(with_inputs=True)


@contextmanager
def single_thread() -> Iterator[None]:
    """Without threads, which would only wait for each other: probed modules are small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def reference_kernels() -> Iterator[None]:
    """Attention and recurrent layers by plain products, as on the meta device."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # mkldnn's switch warns about GPUs
            with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
                yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _members(pattern: str) -> str:
    """The place of how many tensors a pattern has; with no dots, so that its numbers count no layers."""
    return f"{pattern.replace('.', '/')} {MEMBERS}"


def _fails_in(name: str, why: str) -> bool:
    """Whether a refusal says that the fit failed in this symbol."""
    return f"no polynomial of {name}:" in why


def _wholes(fitted: GroupFit) -> Sequence[Polynomial]:
    return [fitted.repeats * column for column in fitted.columns]


def trainable_formula(spec: ModelSpec, method: Method, learn: Sequence[str] = ()) -> str:
    """How many parameters learn when a model is adapted: their formula in the sizes of the spec and of the method.

    It is read off the adapted module like any other: built and adapted at small sizes, without what does not learn.

    >>> from lemma.spec.models import Decoder
    >>> from lemma.spec.recipe import Lora
    >>> trainable_text(Decoder(width=64, depth=2), Lora(rank=4, targets=("*.attention.output",)))
    'L·r·(d + d_h)'
    """
    account = count(adapted_subject(spec, method, learn), ["parameters"])
    return account.quantities["parameters"].write_formula(account.order, "unicode")
