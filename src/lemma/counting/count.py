"""Count a subject: measure each quantity at many sizes, fit formulas, compare them with the module, account for all.

The flow is `Subject` → measurements (`measure`) → formulas (`fit`; `rules` where polynomials fail) → `Quantity` →
`Account`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import zip_longest
from math import prod
from typing import Any, Literal, TypeVar

from lemma.counting import measure
from lemma.counting.account import Account, Part, Quantity
from lemma.counting.cache import CountCache
from lemma.counting.fit import (
    SUM_ONLY,
    Amounts,
    FitResult,
    GroupFit,
    Join,
    PathGroup,
    Read,
    Readings,
    Sizes,
    assign_to_groups,
    column_sums,
    fit_groups,
    path_pattern,
)
from lemma.counting.measure import (
    DEFAULT_LIMITS,
    MAX_QUICK_RUN,
    CountLimits,
    Measure,
    ModuleReader,
    TimeLimitError,
    TooLargeToRunError,
    reference_kernels,
    single_thread,
)
from lemma.counting.polynomial import ONE, Polynomial, symbol
from lemma.counting.rules import DerivedSizeFinder
from lemma.counting.subject import BATCH, SOURCE, TIME, SkipInitialization, Subject, adapted_subject, format_sizes
from lemma.errors import CountingError, InputError, describe_unknown
from lemma.random_state import unchanged_random_state
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import Method

UNITS = {
    "parameters": "numbers",
    "active": "numbers",
    "flops": "FLOPs",
    "backward": "FLOPs",
    "activations": "bytes",
    "cache": "bytes",
    "optimizer": "bytes",
}
QUANTITIES = tuple(UNITS)
STATIC_QUANTITIES = ("parameters", "optimizer")  # those that need no run, hence no inputs
CONVENTIONS = {
    "parameters": "a tied tensor counts once",
    "active": "parameters that take part for one token, tables of embeddings in full",
    "activations": "storages saved for backward on a CPU, each once, parameters left out; loss not included",
    "cache": "the state after reading the batch",
    "optimizer": "AdamW's state",
}
FREE_LETTERS = "mnpqrstuvwxyz"  # for derived sizes
STEPS = (2, 8)  # what sizes may have to be multiples of, as where half a width or every second layer is taken
EVERYTHING = PathGroup("", SUM_ONLY)  # all paths together, of a module that cannot be probed
Amount = TypeVar("Amount", Polynomial, Fraction)


@dataclass(frozen=True)
class Conventions:
    """Conventions of counting FLOPs, written next to every figure."""

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

    def apply(self, products: Amount, causal: Amount) -> Amount:
        """Return the FLOPs of products, some of which belong to causal attention."""
        counted = products - causal / 2 if self.causal == "half" else products
        return counted * self.multiply_add / 2


DEFAULT_CONVENTIONS = Conventions()


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
    unknown = next((name for name in quantities if name not in QUANTITIES), None)
    if unknown is not None:
        raise InputError(describe_unknown("quantity", unknown, QUANTITIES))
    names = [name for name in QUANTITIES if name in quantities and (subject.make_inputs or name in STATIC_QUANTITIES)]
    if not names:
        subject.build_inputs({})  # raises: it has none
    counter = SubjectCounter(subject, conventions, limits)
    failures: dict[str, CountingError] = {}
    need_run = [name for name in names if name not in STATIC_QUANTITIES]
    if need_run:
        try:
            counter.check_run()
        except CountingError as error:
            failures = dict.fromkeys(need_run, error)
    if len(names) > 1 and "active" in names and not failures and not counter.routes_tokens():
        names.remove("active")  # all parameters take part for every token
    counted: dict[str, Quantity] = {}
    for name in names:
        try:
            if name in failures:
                raise failures[name]
            quantity = counter.count(name)
            recount = partial(_recount, subject, conventions, limits, quantity)
            counted[name] = replace(quantity, recount=recount, defaults=subject.defaults)
        except CountingError as error:
            failures[name] = error
            counted[name] = _failed(name, f"it cannot be counted ({error})")
        except MemoryError:
            failures[name] = CountingError(f"{subject.name}: the {name} take more memory than there is.")
            counted[name] = _failed(name, "it takes more memory than there is")
    if failures.keys() >= counted.keys():
        raise next(iter(failures.values()))
    derived = {letter: size for quantity in counted.values() for letter, size in quantity.derived.items()}
    sizes = {**subject.sizes(bool(need_run)), **derived}
    defaults = dict(subject.defaults)
    for quantity in counted.values():
        for letter, rule in quantity.rules.items():
            unrounded = rule.smooth_polynomial(sizes)
            if unrounded.at(sizes) == sizes[letter]:
                defaults[letter] = unrounded
    size_names = frozenset({*sizes, *subject.sizes(True)})
    counted = {name: replace(quantity, sizes=sizes, size_names=size_names) for name, quantity in counted.items()}
    return Account(subject.name, sizes, counted, defaults)


def trainable_formula(spec: ModelSpec, method: Method, learn: Sequence[str] = ()) -> str:
    """Return the number of trainable parameters of an adapted model, as a formula in its sizes and the method's.

    It is read off the adapted module like any other: built and adapted at small sizes, without what is frozen.

    >>> from lemma.spec.models import Decoder
    >>> from lemma.spec.recipe import Lora
    >>> trainable_formula(Decoder(width=64, depth=2), Lora(rank=4, targets=("*.attention.output",)))
    'L·r·(d + d_h)'
    """
    account = count(adapted_subject(spec, method, learn), ["parameters"])
    return account.quantities["parameters"].write_formula(account.order, "unicode")


def _failed(name: str, reason: str) -> Quantity:
    return Quantity(name, UNITS[name], (), "", {"": f"no formula: {reason}"})


def _recount(
    subject: Subject, conventions: Conventions, limits: CountLimits, quantity: Quantity, sizes: Sizes
) -> int | None:
    """Read a quantity off the module at other sizes; None if it can be run neither without memory nor within limits."""
    symbols = {name: sizes.get(name, size) for name, size in subject.symbols.items()}
    input_sizes = {name: sizes.get(name, size) for name, size in subject.input_sizes.items()}
    by_formula = int(quantity.smooth_polynomial(sizes).at(sizes))
    counter = SubjectCounter(
        replace(subject, symbols=symbols, input_sizes=input_sizes),
        conventions,
        limits,
        expected=max(by_formula, *quantity.measured.values(), 0),
    )
    with unchanged_random_state():
        return counter.measure_requested(quantity.name)


def member_totals(fit: GroupFit) -> Sequence[Polynomial]:
    """Return the totals of all members of a group, column by column."""
    return [fit.repeats * column for column in fit.columns]


def parameter_totals(fit: GroupFit) -> Sequence[Polynomial]:
    """Return the number of parameters in all tensors of a group, whose columns are dimensions."""
    return [fit.repeats * prod(fit.columns, start=ONE)]


def make_part(group: PathGroup, fit: GroupFit) -> Part:
    """Make a part of a group with one column, the amount of each member."""
    return Part(str(group), fit.columns[0], fit.repeats)


@dataclass(frozen=True)
class Measurement:
    """Way to read a quantity, or one of its summands, off a module.

    Attributes:
        key: its name in the cache.
        read: readings at sizes that are probed.
        read_requested: readings at the sizes asked for, given formulas; by default those of `read`.
        read_pinned: readings with some sizes as large as asked for; by default those of `read`.
        needs_run: whether the module is run, so that sizes of its inputs are symbols too.
        join: adds up the readings of a group of which only the sum is known.
        totals: totals of a fitted group, one for each column of `read_requested`.
        make_part: the part of the quantity that a fitted group is.
        amount: what a row of `read_requested` adds to the quantity.
    """

    key: str
    read: Read
    read_requested: Callable[[FitResult], Readings] | None = None
    read_pinned: Read | None = None
    needs_run: bool = True
    join: Join = column_sums
    totals: Callable[[GroupFit], Sequence[Polynomial]] = member_totals
    make_part: Callable[[PathGroup, GroupFit], Part] = make_part
    amount: Callable[[Amounts], int] = lambda row: row[0]


@dataclass(frozen=True)
class Attempt:
    """Formulas of a measurement, compared with the module at the sizes asked for.

    Attributes:
        missed: readings there of groups without a formula, or with one that does not hold.
        unproved: why nothing could be read there; else empty.
        only_at: sizes at which alone the formulas hold.
        multiples: numbers that sizes must be multiples of for the formulas to hold.
    """

    fit: FitResult
    missed: Mapping[PathGroup, Amounts]
    unproved: str = ""
    only_at: Sizes = field(default_factory=dict)
    multiples: Sizes = field(default_factory=dict)

    @property
    def is_final(self) -> bool:
        """Return whether all formulas hold, or the module could not be probed at all."""
        return not self.missed or EVERYTHING in self.missed


class SubjectCounter:
    """Counts the quantities of one subject; what was read is cached on disk where the subject has an identity.

    Attributes:
        expected: bytes of activations expected at the sizes asked for, where no formula is fitted.
    """

    def __init__(self, subject: Subject, conventions: Conventions, limits: CountLimits, expected: int = 0) -> None:
        self.subject, self.conventions, self.limits, self.expected = subject, conventions, limits, expected
        self.reader = ModuleReader(subject, limits)
        self.cache = CountCache(subject.identity)
        self._work: dict[Any, Readings] = {}
        self._letters: dict[str, str] = {}

    @cached_property
    def _finder(self) -> DerivedSizeFinder:
        return DerivedSizeFinder(self.reader)

    def count(self, name: str) -> Quantity:
        """Count a quantity within the limit of time."""
        with self.reader.time_limit():
            measurements = self._measurements(name)
            return self._make_quantity(name, [(measurement, self._fit(measurement)) for measurement in measurements])

    def measure_requested(self, name: str) -> int | None:
        """Read a quantity at the sizes asked for, without formulas; None if no run is within the limits."""
        nothing = FitResult({}, {EVERYTHING: "no formula, since it was only measured"})
        total = 0
        with self.reader.time_limit():
            for measurement in self._measurements(name):
                attempt = self._compare(measurement, measurement.key, nothing)
                if attempt.unproved:
                    return None
                total += measurement.amount(attempt.missed[EVERYTHING])
        return total

    def check_run(self) -> None:
        """Run the module at the sizes asked for, so that what cannot be run fails before anything is probed."""
        sizes = self.subject.sizes(True)

        def run() -> bool:
            with suppress(TooLargeToRunError):
                self.reader.run(measure.run_forward, sizes, ("meta", "cpu"))
            return True

        self.cache.get_or_compute(f"runs at {format_sizes(sizes)}", run)

    def routes_tokens(self) -> bool:
        """Return whether each token is sent to some experts only."""

        def run() -> bool:
            sizes = self._with_one_token(self.reader.small_sizes())
            return bool(self.reader.run(measure.active_sizes, sizes, ("cpu", "meta")))

        try:
            return self.cache.get_or_compute("routes", run)
        except CountingError:
            return False

    def _with_one_token(self, sizes: Sizes) -> dict[str, int]:
        return {**sizes, **{name: 1 for name in (BATCH, TIME, SOURCE) if name in self.subject.input_sizes}}

    # What is read for each quantity.

    def _measurements(self, name: str) -> list[Measurement]:
        run = self.reader.run
        match name:
            case "parameters":
                module = self.subject.build(self.subject.symbols)
                return [self._measure_parameters(module, is_trainable) for is_trainable in (True, False)]
            case "active":
                return [Measurement(name, self._read_active if self.routes_tokens() else self._read_sizes)]
            case "flops" | "backward":
                products = self._measure_flops(name, "products", measure.product_flops, measure.COLUMNS)
                if not self.conventions.elementwise:
                    return [products]
                return [products, self._measure_flops(name, "elementwise", measure.elementwise_flops, 1)]
            case "activations":
                return [Measurement(name, partial(run, measure.saved_bytes, devices=("cpu",)), self._read_activations)]
            case "cache":
                return [Measurement(name, partial(run, measure.state_bytes, devices=("meta", "cpu")))]
            case _:
                return [Measurement(name, self._read_optimizer, needs_run=False)]

    def _measure_parameters(self, module: Any, is_trainable: bool) -> Measurement:
        """Measure the shapes of parameters that are, or are not, trained."""
        requested = measure.parameter_shapes(module, is_trainable)

        def read(sizes: Sizes) -> Readings:
            self.reader.check_time()
            return measure.parameter_shapes(self.subject.build(sizes), is_trainable)

        def part(group: PathGroup, fit: GroupFit) -> Part:
            tied = self.cache.get_or_compute("tied", self._find_tied)
            notes = ["" if is_trainable else "frozen"]
            notes += [f"tied: also {tied[group.pattern]}"] if group.pattern in tied else []
            shape = None if group.subset == SUM_ONLY else fit.columns
            return Part(str(group), prod(fit.columns, start=ONE), fit.repeats, shape, ", ".join(filter(None, notes)))

        return Measurement(
            "trainable" if is_trainable else "frozen",
            read,
            lambda _: {path: (prod(shape),) for path, shape in requested.items()},
            needs_run=False,
            join=measure.total_size,
            totals=parameter_totals,
            make_part=part,
        )

    def _find_tied(self) -> dict[str, str]:
        """Return the other names of tied parameters, by the pattern of the first."""
        tied = measure.find_tied_names(self.subject.build(self.reader.small_sizes(with_inputs=False)))
        return {path_pattern(name): ", ".join(other_names) for name, other_names in tied.items()}

    def _measure_flops(self, name: str, kind: str, function: Measure, num_columns: int) -> Measurement:
        """Measure the FLOPs of one pass over a batch.

        At sizes that are probed they are read on small real tensors, which are many times faster than the meta device;
        at the sizes asked for on the meta device, where PyTorch's own counter is exact.
        """
        is_half = self.conventions.causal == "half"  # else it does not matter which products are causal
        first = num_columns * ("flops", "backward").index(name)

        def read(sizes: Sizes, devices: Sequence[str] = ("cpu", "meta")) -> Readings:
            key = (kind, *sizes.items(), *devices)
            if key not in self._work:  # both passes are read in one run
                with reference_kernels():
                    self._work[key] = self.reader.run(function, sizes, devices)
            rows = {path: row[first : first + num_columns] for path, row in self._work[key].items()}
            return rows if is_half else {path: (row[0], *(0 for _ in row[1:])) for path, row in rows.items()}

        def part(group: PathGroup, fit: GroupFit) -> Part:
            if kind == "elementwise":
                return Part(str(group), fit.columns[0], fit.repeats, note=kind)
            return Part(str(group), self.conventions.apply(*fit.columns), fit.repeats)

        return Measurement(
            f"{kind} {name}" + (" causal" if is_half else ""),
            read,
            lambda _: read(self.subject.sizes(True), ("meta", "cpu")),
            read_pinned=partial(read, devices=("meta",)),
            make_part=part,
            amount=lambda row: row[0] if len(row) == 1 else int(self.conventions.apply(*map(Fraction, row))),
        )

    def _read_active(self, sizes: Sizes) -> Readings:
        return self.reader.run(measure.active_sizes, self._with_one_token(sizes), ("cpu", "meta"))

    def _read_sizes(self, sizes: Sizes) -> Readings:
        shapes = measure.parameter_shapes(self.subject.build(sizes), None)
        return {path: (prod(shape),) for path, shape in shapes.items()}

    def _read_optimizer(self, sizes: Sizes) -> Readings:
        """Return the bytes of AdamW's state, by parameter, at these sizes."""
        self.reader.check_time()
        return measure.optimizer_bytes(self.subject.build(sizes))

    def _read_activations(self, fit: FitResult) -> Readings:
        """Read what autograd saves at the sizes asked for: in a real run if it is small, else in one on fake tensors.

        These take no memory and follow the paths of a CPU. Where they differ from real ones at small sizes, as for what
        oneDNN's LSTM saves, they are not used.
        """
        requested = self.subject.sizes(True)
        read_real = partial(self.reader.run, measure.saved_bytes, devices=("cpu",))
        sizes = {**requested, **self._derived_values(fit, requested)}
        expected = sum(column.at(sizes) for group_fit in fit.fits.values() for column in member_totals(group_fit))
        needed = int(expected) + self.expected + self.reader.weight_bytes(requested)
        if needed <= MAX_QUICK_RUN:
            return read_real(requested)
        from torch._subclasses.fake_tensor import FakeTensorMode  # slow to import

        def read_fake(sizes: Sizes) -> Readings:
            with FakeTensorMode(), SkipInitialization(), measure.MetaGroupedMM():
                return measure.saved_bytes(self.subject.make_module(sizes), self.subject.build_inputs(sizes, "cpu"))

        small = self.reader.small_sizes()
        with suppress(Exception):  # not every module can be run without numbers
            if read_fake(small) == read_real(small):
                return read_fake(requested)
        if needed > self.limits.memory:
            raise TooLargeToRunError(f"a run takes more than {self.limits.memory // 2**20} MiB")
        return read_real(requested)

    # Formulas.

    def _fit(self, measurement: Measurement) -> Attempt:
        """Fit a measurement, and where formulas fail at the sizes asked for, try others that hold there.

        Some sizes may be the reason, such as a batch of one or a text longer than the window: with these as they are,
        readings may have a formula in the other sizes. There may be one with derived sizes. Where a size is divided and
        rounded, there may be one for its multiples.
        """
        attempt = self._attempt(measurement)
        if attempt.is_final:
            return attempt
        requested = self.subject.sizes(measurement.needs_run)
        pins = self._find_pins(measurement, attempt) if measurement.needs_run else {}
        probe_sizes = next(self.reader.probe_sizes(measurement.needs_run), {})
        special = {name: size for name, size in pins.items() if size < min(probe_sizes[name])}  # such as a batch of one
        if special:
            attempts = [attempt, self._attempt_at(measurement, special)]
        else:
            attempts = [attempt, *self._refit(measurement, attempt, probe_sizes, pins)]
        if attempts[-1].missed:
            reasons = attempt.fit.failures.values()
            divided = [name for name in requested if any(f"no polynomial of {name}:" in reason for reason in reasons)]
            for step in STEPS:
                multiples = {name: step for name in divided if requested[name] % step == 0}
                if multiples:
                    stepped = self._attempt(measurement, multiples=multiples)
                    attempts += [] if stepped.missed else [stepped]
            if pins and pins != special and attempts[-1].missed:
                pinned = replace(measurement, read=measurement.read_pinned or measurement.read)
                attempts.append(self._attempt_at(pinned, pins))
        return _best(attempts)

    def _attempt_at(self, measurement: Measurement, only_at: Sizes) -> Attempt:
        """Fit a measurement with some sizes fixed; with derived sizes if need be."""
        attempt = self._attempt(measurement, only_at)
        if attempt.is_final:
            return attempt
        probe_sizes = next(self.reader.probe_sizes(measurement.needs_run, only_at), {})
        return _best([attempt, *self._refit(measurement, attempt, probe_sizes, {})])

    def _attempt(
        self, measurement: Measurement, only_at: Sizes | None = None, multiples: Sizes | None = None
    ) -> Attempt:
        """Fit polynomials, with some sizes fixed or multiples of others, and compare them with the module."""
        only_at, multiples = only_at or {}, multiples or {}
        stepped = f"multiples {format_sizes(multiples)}" if multiples else ""
        key = " ".join(filter(None, (measurement.key, format_sizes(only_at), stepped)))

        def fit() -> FitResult:
            try:
                with single_thread():
                    choices = self.reader.probe_sizes(measurement.needs_run, only_at, multiples)
                    return fit_groups(measurement.read, choices, measurement.join)
            except TimeLimitError:  # not to be cached
                raise
            except CountingError as error:
                return FitResult({}, {EVERYTHING: f"no formula, since it cannot be probed ({error})"})

        try:
            formulas = self.cache.get_or_fit(key, fit)
        except TimeLimitError as error:
            formulas = FitResult({}, {EVERYTHING: f"no formula, since {error}"})
        return replace(self._compare(measurement, key, formulas), only_at=only_at, multiples=multiples)

    def _refit(
        self, measurement: Measurement, attempt: Attempt, probe_sizes: dict[str, list[int]], pins: Sizes
    ) -> Iterator[Attempt]:
        """Fit with derived sizes what an attempt missed; yield nothing if that takes too long."""
        requested = format_sizes(self.subject.sizes(measurement.needs_run))
        key = " ".join(filter(None, (measurement.key, format_sizes(attempt.only_at), f"named at {requested}")))

        def fit() -> FitResult:
            with single_thread():
                read, join = measurement.read, measurement.join
                return self._finder.refit(attempt.fit, attempt.missed, read, probe_sizes, join, pins)

        with suppress(TimeLimitError):
            compared = self._compare(measurement, key, self.cache.get_or_fit(key, fit))
            yield replace(compared, only_at=attempt.only_at)

    def _compare(self, measurement: Measurement, key: str, fit: FitResult) -> Attempt:
        """Compare formulas with the module at the sizes asked for."""
        requested = self.subject.sizes(measurement.needs_run)

        def compare() -> list[Any]:
            try:
                with self.reader.no_time_limit():  # this reading is worth any time
                    if measurement.read_requested:
                        readings = measurement.read_requested(fit)
                    else:
                        readings = measurement.read(self.subject.sizes(True))
            except TooLargeToRunError as error:
                return [str(error), []]
            if EVERYTHING in fit.failures:
                row = measurement.join(list(readings.values())) if readings else (0,)
                return ["", [[EVERYTHING.pattern, EVERYTHING.subset, row]]]
            sizes = {**requested, **self._derived_values(fit, requested)}
            missed = []
            for group, rows in assign_to_groups(fit.groups, readings).items():
                actual = column_sums(rows) if rows else ()
                expected = _expected(measurement, fit, group, sizes)
                if expected is None or _differ(actual, expected):
                    missed.append([group.pattern, group.subset, list(actual or (0,) * len(expected or [0]))])
            return ["", missed]

        key = f"{key} measured" if EVERYTHING in fit.failures else key
        unproved, rows = self.cache.get_or_compute(f"{key} at {format_sizes(requested)}", compare)
        missed = {PathGroup(pattern, subset): tuple(amounts) for pattern, subset, amounts in rows}
        return Attempt(fit, missed, unproved)

    def _find_pins(self, measurement: Measurement, attempt: Attempt) -> dict[str, int]:
        """Return the sizes asked for that alone lead away from the formulas of the groups that were missed."""
        requested, fit = self.subject.sizes(True), attempt.fit
        read = measurement.read_pinned or measurement.read
        probe_sizes = next(self.reader.probe_sizes(True), None)

        def leads_away(name: str) -> bool:
            assert probe_sizes
            if any(f"no polynomial of {name}:" in reason for reason in fit.failures.values()):
                return True
            sizes = {**{other: values[0] for other, values in probe_sizes.items()}, name: requested[name]}
            try:
                if self.reader.weight_bytes(sizes) > MAX_QUICK_RUN:
                    return False
                rows = assign_to_groups(fit.groups, read(sizes))
            except CountingError:
                return False
            for group in attempt.missed:
                expected = _expected(measurement, fit, group, sizes)
                actual = column_sums(rows[group]) if rows.get(group) else ()
                if expected is not None and _differ(actual, expected):
                    return True
            return False

        def find() -> dict[str, int]:
            return {name: size for name, size in requested.items() if leads_away(name)} if probe_sizes else {}

        return self.cache.get_or_compute(f"{measurement.key} depends at {format_sizes(requested)}", find)

    def _derived_values(self, fit: FitResult, sizes: Sizes) -> dict[str, int]:
        """Return the values of the derived sizes of some formulas, by name."""
        return {name: self._finder.value(size, sizes) for name, size in fit.derived.items()}

    # From formulas to a quantity.

    def _make_quantity(self, name: str, fitted: Sequence[tuple[Measurement, Attempt]]) -> Quantity:
        """Put together the parts that have formulas, and what was measured of the others."""
        sizes = self.subject.sizes(name not in STATIC_QUANTITIES)
        parts: list[Part] = []
        refused: dict[str, str] = {}
        measured: dict[str, int] = {}
        only_at = {
            symbol: values[0]
            for symbol, values in self.subject.probe_sizes.items()
            if len(values) == 1 and symbol in sizes
        }
        multiples, derived, rules = {}, dict[str, int](), {}
        for measurement, attempt in fitted:
            fit = attempt.fit
            only_at |= attempt.only_at
            multiples |= attempt.multiples
            derived |= self._derived_values(fit, sizes)
            rules |= fit.derived
            parts += [
                measurement.make_part(group, group_fit)
                for group, group_fit in fit.fits.items()
                if group not in attempt.missed
            ]
            refused |= {str(group): reason for group, reason in fit.failures.items()}
            for group, row in attempt.missed.items():
                path = str(group) if group != EVERYTHING else ""
                measured[path] = measured.get(path, 0) + measurement.amount(row)
                if group in fit.fits:
                    refused[path] = f"no polynomial of {', '.join(sizes)} as far as the sizes asked for"
                elif group not in fit.failures:
                    refused[path] = "no formula, since it is there at the sizes asked for only"
        if UNITS[name] == "FLOPs":
            parts = [part for part in parts if part.each]
        unproved = next((attempt.unproved for _, attempt in fitted if attempt.unproved), "")
        notes = [CONVENTIONS.get(name, str(self.conventions))]
        notes += [f"not compared with a run at the sizes asked for: {unproved}"] if unproved else []
        letters = {derived_name: self._letter(derived_name) for derived_name in derived}
        return Quantity(
            name,
            UNITS[name],
            tuple(_substitute_letters(part, letters) for part in parts),
            "; ".join(notes),
            refused,
            measured,
            only_at if parts else {},
            multiples,
            {letters[derived_name]: size for derived_name, size in derived.items()},
            {letters[derived_name]: rule for derived_name, rule in rules.items() if rule.kind != "dimension"},
            sizes if measured else {},
            tuple(self._remarks(name)),
            sizes,
        )

    def _letter(self, name: str) -> str:
        """Return the letter of a derived size, the same in all quantities."""
        used_letters = {*self.subject.sizes(True), *self._letters.values()}
        return self._letters.setdefault(
            name, next((letter for letter in FREE_LETTERS if letter not in used_letters), name)
        )

    def _remarks(self, name: str) -> Iterator[str]:
        """Yield what a quantity leaves out or depends on: operators without a rule, numbers that the module reads."""
        if name not in ("flops", "backward", "activations"):
            return

        def read() -> dict[str, Amounts]:
            with suppress(CountingError), reference_kernels():
                return dict(self.reader.run(measure.find_uncounted, self.reader.small_sizes(), ("cpu", "meta")))
            return {}

        paths: dict[str, dict[str, None]] = {}
        for key, row in self.cache.get_or_compute("uncounted", read).items():
            operator, _, path = key.partition(" ")
            if operator == measure.READS_DATA:
                happens = row[0]
            else:
                happens = name != "activations" and row[("flops", "backward").index(name)]
            if happens:
                paths.setdefault(operator, {})[path_pattern(path) or "the module itself"] = None
        for operator, patterns in paths.items():
            where = ", ".join(patterns)
            if operator == measure.READS_DATA:
                yield (
                    f"counted for inputs and weights of zeros: {where} reads numbers while it runs, so "
                    "how often a loop runs, or which branch, may depend on them"
                )
            else:
                yield f"not counted: {operator} in {where}, for which there is no rule"


def _best(attempts: Sequence[Attempt]) -> Attempt:
    """Return the attempt that missed the fewest groups, the first of several."""
    return min(attempts, key=lambda attempt: (EVERYTHING in attempt.missed, len(attempt.missed)))


def _expected(measurement: Measurement, fit: FitResult, group: PathGroup, sizes: Sizes) -> list[Fraction] | None:
    """Return the totals of a group by its formula; None without one."""
    group_fit = fit.fits.get(group)
    return None if group_fit is None else [column.at(sizes) for column in measurement.totals(group_fit)]


def _differ(actual: Sequence[int], expected: Sequence[Fraction]) -> bool:
    return any(a != b for a, b in zip_longest(actual, expected, fillvalue=0))


def _substitute_letters(part: Part, letters: Mapping[str, str]) -> Part:
    """Write the letters of derived sizes in the place of their names."""
    if not letters:
        return part
    symbols = {name: symbol(letter) for name, letter in letters.items()}
    return replace(
        part,
        each=part.each.substitute_all(symbols),
        repeats=part.repeats.substitute_all(symbols),
        shape=None if part.shape is None else tuple(size.substitute_all(symbols) for size in part.shape),
    )
