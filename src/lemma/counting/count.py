"""Count a subject: measure each quantity at many sizes, fit formulas, compare them with the module, account for all.

The flow is `Subject` → measurements (`measure`) → formulas (`fit`; `derived` where polynomials fail) → `Quantity` →
`Account`. What was read is cached on disk (`CountCache`).
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from math import inf, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from lemma.counting import measure
from lemma.counting.account import QUANTITY_KINDS, Account, Part, Quantity
from lemma.counting.derived import DerivedSize, DerivedSizeFinder, find_divisors
from lemma.counting.fit import (
    SMALL_SIZES,
    SUM_ONLY,
    Domain,
    FitResult,
    GroupFit,
    PathGroup,
    ProbeSizes,
    Read,
    Readings,
    Sizes,
    assign_to_groups,
    fit_groups,
    path_pattern,
    total_size,
)
from lemma.counting.layer_kinds import LayerKinds, merge_kinds
from lemma.counting.measure import (
    DEFAULT_LIMITS,
    MAX_QUICK_RUN,
    CountLimits,
    ModuleReader,
    TimeLimitError,
    TooLargeToRunError,
    single_thread,
)
from lemma.counting.polynomial import ONE, Polynomial, symbol
from lemma.counting.subject import BATCH, SOURCE, TIME, SkipInitialization, Subject, adapted_subject, format_sizes
from lemma.errors import CountingError, DataError, InputError, RunError, describe_unknown
from lemma.files import data_home, home_folder, read_checked_json, write_checked_json
from lemma.random_state import unchanged_random_state
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import Method

if TYPE_CHECKING:
    from lemma.report.progress import Observer

QUANTITIES = tuple(QUANTITY_KINDS)
STATIC_QUANTITIES = ("parameters", "optimizer")  # those that need no run, hence no inputs
FREE_LETTERS = "mnpqrstuvwxyz"  # for derived sizes
LENGTH_NAMES = ("w", "C")  # windows and chunks, which are compared with the length of the input
FAR_LENGTHS = (33, 65, 129, 257)  # of inputs, one above lengths of chunks
NUM_CHUNKS = [1, 2, 3, 4]  # of inputs that are computed in chunks
STEPS = (2, 4, 8)  # what sizes may have to be multiples of, as where half a width or every second layer is taken
EVERYWHERE = Domain()
EVERYTHING = PathGroup("", SUM_ONLY)  # all paths together, of a module that cannot be probed


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
            raise InputError(describe_unknown("causal: value", str(self.causal), ("full", "half")))

    def __str__(self) -> str:
        elementwise = "one for each element of elementwise work" if self.elementwise else "elementwise work not counted"
        return f"multiply–add = {self.multiply_add}, causal attention {self.causal}, {elementwise}, look-up free"


DEFAULT_CONVENTIONS = Conventions()


@unchanged_random_state()
@single_thread()
def count(
    subject: Subject,
    quantities: Collection[str] = QUANTITIES,
    conventions: Conventions = DEFAULT_CONVENTIONS,
    limits: CountLimits = DEFAULT_LIMITS,
    observer: "Observer | None" = None,
) -> Account:
    """Count a subject: return an `Account` of each quantity's formula and its amount at the requested sizes.

    A quantity that needs inputs is left out if the subject has none, unless it is the only one requested. A quantity
    that fails is in the account with the reason; if all fail, the first reason is raised. Past the `limits` the
    remaining quantities are measured without a formula. `observer` receives the number of quantities that are counted.
    """
    unknown = next((name for name in quantities if name not in QUANTITIES), None)
    if unknown is not None:
        raise InputError(describe_unknown("quantity", unknown, QUANTITIES))
    names = [name for name in QUANTITIES if name in quantities and (subject.make_inputs or name in STATIC_QUANTITIES)]
    if not names:
        subject.build_inputs({})  # raises: it has none
    counted: dict[str, Quantity] = {}
    on_reading = (lambda: observer.advance(len(counted))) if observer else None
    counter = SubjectCounter(subject, conventions, limits, on_reading=on_reading)
    failures: dict[str, CountingError] = {}
    need_run = [name for name in names if name not in STATIC_QUANTITIES]
    if need_run:
        try:
            counter.check_run(with_backward="flops" in names or "backward" in names)
        except CountingError as error:
            failures = dict.fromkeys(need_run, error)
    if len(names) > 1 and "active" in names and not failures and not counter.routes_tokens():
        names.remove("active")  # all parameters take part for every token
    if observer:
        observer.start(f"counting {subject.name}", len(names), "quantities")
    with counter.reader.time_limit(limits.seconds):
        for name in names:
            try:
                if name in failures:
                    raise failures[name]
                counted[name] = counter.count(name)
                continue
            except CountingError as error:
                failures[name], reason = error, f"it cannot be counted ({error})"
            except MemoryError:
                failures[name] = CountingError(f"{subject.name}: the {name} take more memory than there is.")
                reason = "it takes more memory than there is"
            counted[name] = Quantity(name, QUANTITY_KINDS[name][1], (), "", {"": f"no formula: {reason}"})
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
    return Account(subject.name, sizes, counted, defaults, subject.setting_names)


def trainable_formula(spec: ModelSpec, method: Method, learn: Sequence[str] = ()) -> str:
    """Return the formula of the number of trainable parameters of an adapted model, such as `L·r·(d + d_h)`.

    The adapted model is built at small sizes without its frozen parameters and counted like any other. `learn` are path
    patterns of further parameters that are trained.

    >>> from lemma.spec.models import Decoder
    >>> from lemma.spec.recipe import Lora
    >>> trainable_formula(Decoder(width=64, depth=2), Lora(rank=4, targets=("*.attention.output",)))
    'L·r·(d + d_h)'
    """
    account = count(adapted_subject(spec, method, learn), ["parameters"])
    return account.quantities["parameters"].write_formula(account.order, "unicode")


@contextmanager
def quiet_fake_tensors() -> Iterator[None]:
    """Silence the tracebacks that torch logs where a module does not work on fake tensors; the error says enough."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclass(frozen=True)
class QuantityRecount:
    """Reads the quantity `name` off a subject's module at any sizes."""

    subject: Subject
    conventions: Conventions
    limits: CountLimits
    name: str

    def __call__(self, sizes: Sizes, expected: int) -> int | None:
        """Measure the quantity; None if it cannot be run within the limits.

        `expected` is the estimated amount, which decides how to run the module.
        """
        with unchanged_random_state(), quiet_fake_tensors():
            return self._counter(sizes, expected).measure_requested(self.name)

    def count_again(self, sizes: Sizes) -> Quantity:
        """Return the quantity counted with `sizes` as the requested sizes."""
        with unchanged_random_state():
            quantity = self._counter(sizes).count(self.name)
        return replace(quantity, sizes={**sizes, **quantity.derived}, size_names=frozenset({*sizes, *quantity.derived}))

    def small_sizes(self) -> Sizes:
        """Return small sizes at which the module works."""
        with unchanged_random_state():
            return self._counter({}).reader.small_sizes()

    def library_versions(self) -> dict[str, str]:
        """Return the versions of the libraries that the module's classes are from, by name."""
        with unchanged_random_state():
            module = self.subject.build(self.small_sizes())
        libraries = {type(part).__module__.partition(".")[0] for part in module.modules()} | {"torch"}
        versions: dict[str, str] = {}
        for library in sorted(libraries):
            with suppress(PackageNotFoundError, ValueError):
                versions[library] = version(library)
        return versions

    def _counter(self, sizes: Sizes, expected: int = 0) -> "SubjectCounter":
        return SubjectCounter(self.subject.resize(sizes), self.conventions, self.limits, expected)


@dataclass(frozen=True)
class Measurement:
    """A way to read a quantity, or one of its summands, off a module."""

    key: str  # its name in the cache
    read: Read  # at sizes that are probed
    read_requested: Callable[[int], Readings] | None = None  # at those asked for, where formulas expect this total
    read_pinned: Read | None = None  # with some sizes as large as asked for
    needs_run: bool = True  # sizes of its inputs are symbols, too
    reads_shapes: bool = False  # of tensors, where other readings are amounts
    scale: int | Fraction = 1  # what a number that was read counts
    note: str = ""  # what is written next to its parts


@dataclass(frozen=True)
class Quotient:
    """A size divided by another one and rounded down, in place of which formulas are fitted: ⌊I/P⌋ in place of I."""

    whole: str  # the symbol that is divided
    part: str  # the symbol that divides it

    @property
    def size(self) -> DerivedSize:
        return DerivedSize("floor", (symbol(self.whole) / symbol(self.part),))

    def fit(self, read: Read, choices: Iterable[ProbeSizes], kinds: LayerKinds | None) -> FitResult:
        """Fit readings as polynomials of the quotient and all other sizes.

        They hold for multiples only, unless a size between two multiples reads as the lower one does.
        """
        name = self.size.name
        probed: list[ProbeSizes] = []

        def divided(choices: Iterable[ProbeSizes]) -> Iterator[ProbeSizes]:
            for choice in choices:
                numbers = {self.whole: SMALL_SIZES, self.part: SMALL_SIZES[:4]}
                probed.append({name if key == self.whole else key: numbers.get(key, choice[key]) for key in choice})
                yield probed[-1]

        def multiplied(sizes: Sizes) -> Sizes:
            wholes = {name: (self.whole, sizes[name] * sizes[self.part])}
            return dict(wholes.get(key, (key, size)) for key, size in sizes.items())

        fit = fit_groups(lambda sizes: read(multiplied(sizes)), divided(choices), kinds)
        fit = replace(fit, derived={**fit.derived, name: self.size})
        lowest = {key: values[0] for key, values in probed[-1].items()} | {self.part: SMALL_SIZES[2]}
        between = {**multiplied(lowest), self.whole: multiplied(lowest)[self.whole] + 1}
        with suppress(CountingError):
            rows = assign_to_groups(fit.groups, read(between))
            if all(fit.evaluate(group, between) == total_size(rows.get(group, ())) for group in fit.fits):
                return fit
        return replace(fit, domain=fit.domain.intersect(Domain(divided={self.whole: self.part})))


@dataclass(frozen=True)
class Chunks:
    """An input whose tokens are computed in chunks of `length`, the last one padded: formulas have ⌈T/C⌉ in them.

    With T = C·(m − 1) + u, amounts are polynomials of the number of chunks m and of the tokens u in the last one.
    """

    length: int

    @property
    def size(self) -> DerivedSize:
        return DerivedSize("ceil", (symbol(TIME) / self.length,))

    def join(self, sizes: Sizes) -> dict[str, int]:
        """Return sizes with T, given that m is under the name of the derived size and u under that of T."""
        chunks = sizes[self.size.name]
        return {name: size for name, size in sizes.items() if name != self.size.name} | {
            TIME: self.length * (chunks - 1) + sizes[TIME]
        }

    def fit(self, read: Read, probe_sizes: ProbeSizes, kinds: LayerKinds | None) -> FitResult:
        """Fit readings as polynomials of T, ⌈T/C⌉ and all other sizes, and prove them on both sides of two steps.

        Raises:
            CountingError: they follow no such polynomials.
        """
        name, length = self.size.name, self.length
        in_last = [size for size in probe_sizes[TIME] if size <= length]
        probed = {**probe_sizes, name: NUM_CHUNKS, TIME: in_last}
        fit = fit_groups(lambda sizes: read(self.join(sizes)), [probed], kinds)
        tokens = symbol(TIME) - length * (symbol(name) - 1)
        fits: dict[PathGroup, GroupFit] = {}
        for group, group_fit in fit.fits.items():
            polynomials = (group_fit.repeats, *group_fit.columns)
            if any(power < 0 for one in polynomials for term in one.terms for letter, power in term if letter == TIME):
                raise CountingError(f"{group} is divided by {TIME}")
            repeats, *columns = (polynomial.substitute(TIME, tokens) for polynomial in polynomials)
            fits[group] = GroupFit(repeats, tuple(columns))
        result = FitResult(fits, fit.failures, {**fit.derived, name: self.size}, fit.domain)
        lowest = {letter: values[0] for letter, values in probe_sizes.items()}

        def holds(number: int) -> bool:
            sizes = {**lowest, TIME: number}
            rows = assign_to_groups(result.groups, read(sizes))
            return all(result.evaluate(group, sizes) == total_size(rows.get(group, ())) for group in fits)

        for number in (2, length, length + 1, 2 * length, 2 * length + 1):
            if not holds(number):
                raise CountingError(f"it does not hold at {TIME} = {number}")
        if not holds(1):  # a token alone may be read step by step
            result = replace(result, domain=result.domain.intersect(Domain(at_least={TIME: 2})))
        return result


@dataclass(frozen=True)
class Attempt:
    """Formulas of a measurement, compared with the module at the sizes asked for."""

    fit: FitResult
    missed: Mapping[PathGroup, int]  # totals there of groups without a formula, or with one that does not hold
    unproved: str = ""  # why nothing could be read there
    domain: Domain = field(default_factory=Domain)  # the sizes at which the formulas hold

    @property
    def is_final(self) -> bool:
        """Return whether no other fit needs to be tried: all formulas hold, or nothing can be read at small sizes."""
        return not self.missed or EVERYTHING in self.missed


class SubjectCounter:
    """Counts the quantities of one subject; what was read is cached on disk where the subject has an identity.

    `expected` is about how much there is at the sizes asked for, where no formula is fitted.
    """

    def __init__(
        self,
        subject: Subject,
        conventions: Conventions,
        limits: CountLimits,
        expected: int = 0,
        on_reading: Callable[[], None] | None = None,
    ) -> None:
        self.subject, self.conventions, self.limits, self.expected = subject, conventions, limits, expected
        self.reader = ModuleReader(subject, limits, on_reading)
        self.cache = CountCache(subject.identity)
        self._letters: dict[str, str] = {}
        self._chunks: Chunks | None = None  # that made other formulas hold

    @cached_property
    def _divisors(self) -> dict[str, str]:
        """Return sizes that are divided by another one and rounded, with that size, such as h for d."""
        if self.subject.probes_work:
            return dict(self.subject.domain.divided)
        probe_sizes = next(self.reader.probe_sizes(False), {})
        return self.cache.get_or_compute("divisors", lambda: find_divisors(self.reader, [*probe_sizes], probe_sizes))

    @cached_property
    def _finder(self) -> DerivedSizeFinder:
        """Return the finder of this subject's sizes that no polynomial describes, such as 64·⌈d/24⌉; cached."""
        return DerivedSizeFinder(self.reader)

    def count(self, name: str) -> Quantity:
        """Count the quantity of this name, such as "flops": its formula and its amount."""
        return self._make_quantity(name, [(m, self._fit(m)) for m in self._list_measurements(name)])

    def measure_requested(self, name: str) -> int | None:
        """Measure the quantity of this name at the requested sizes without fitting.

        None if it cannot run within the limits.
        """
        nothing, total = FitResult({}, {EVERYTHING: "no formula, since it was only measured"}), 0
        with self.reader.time_limit(self.limits.seconds):
            for measurement in self._list_measurements(name):
                attempt = self._compare(measurement, measurement.key, nothing)
                if attempt.unproved:
                    return None
                total += int(measurement.scale * attempt.missed[EVERYTHING])
        return total

    def check_run(self, with_backward: bool) -> None:
        """Run the module once at the requested sizes, so that a module that fails there raises before any fitting.

        A run with a backward pass also gives readings that are needed later.
        """
        sizes, devices = self.subject.sizes(True), ("meta", "cpu")

        def run() -> bool:
            if with_backward:
                with suppress(CountingError):
                    self.reader.run_pass(sizes, devices)
                    return True
            with suppress(TooLargeToRunError):
                self.reader.run(measure.run_forward, sizes, devices)
            return True

        self.cache.get_or_compute(f"runs at {format_sizes(sizes)}", run)

    def routes_tokens(self) -> bool:
        """Return whether the module sends each token to only some of its experts."""
        try:
            return self.cache.get_or_compute("routes", lambda: bool(self._read_active(self.reader.small_sizes())))
        except CountingError:
            return False

    # What is read for each quantity.

    def _list_measurements(self, name: str) -> list[Measurement]:
        """Return the measurements whose sum is the quantity of this name.

        For "parameters" trainable and frozen ones.
        """
        run, shapes = self.reader.run, self.reader.shapes
        match name:
            case "parameters":
                trainable, frozen = partial(shapes, trainable=True), partial(shapes, trainable=False)
                return [
                    Measurement("trainable", trainable, needs_run=False, reads_shapes=True),
                    Measurement("frozen", frozen, needs_run=False, reads_shapes=True, note="frozen"),
                ]
            case "active" if self.routes_tokens():
                return [Measurement(name, self._read_active)]
            case "active":
                return [Measurement(name, lambda at: {path: (prod(shape),) for path, shape in shapes(at).items()})]
            case "flops" | "backward":
                kinds = ("products", "elementwise") if self.conventions.elementwise else ("products",)
                return [self._measure_flops(name, kind) for kind in kinds]
            case "activations":
                return [Measurement(name, partial(run, measure.saved_bytes, devices=("cpu",)), self._read_activations)]
            case "cache":
                return [Measurement(name, self.reader.run_state)]
            case _:
                return [Measurement(name, self.reader.optimizer_bytes, needs_run=False)]

    def _measure_flops(self, name: str, kind: str) -> Measurement:
        """Return the measurement of one kind of FLOPs ("products" or "elementwise") of the pass "flops" or "backward".

        At small sizes it runs on real tensors, which are many times faster than the meta device; at the requested sizes
        it runs on the meta device, where PyTorch's own counter is exact.
        """
        is_product = kind == "products"
        is_half = self.conventions.causal == "half"  # else it does not matter which products are causal

        def read(sizes: Sizes, devices: Sequence[str] = ("cpu", "meta")) -> Readings:
            readings = self.reader.run_pass(sizes, devices)
            if name == "backward" and readings.backward_failure:
                raise CountingError(readings.backward_failure)
            amounts = {}
            for path, row in (readings.products if is_product else readings.elementwise).items():
                columns = row[: len(row) // 2] if name == "flops" else row[len(row) // 2 :]
                amounts[path] = (columns[0] - columns[1] // 2 if is_product and is_half else columns[0],)
            return amounts

        return Measurement(
            f"{kind} {name}" + (" causal" if is_half else ""),
            read,
            lambda _: read(self.subject.sizes(True), ("meta", "cpu")),
            read_pinned=partial(read, devices=("meta",)),
            scale=Fraction(self.conventions.multiply_add, 2) if is_product else 1,
            note="" if is_product else kind,
        )

    def _read_active(self, sizes: Sizes) -> Readings:
        """Return for each parameter how many of its numbers take part in processing a single token."""
        one_token = {name: 1 for name in (BATCH, TIME, SOURCE) if name in self.subject.input_sizes}
        return self.reader.run(measure.active_sizes, {**sizes, **one_token}, ("cpu", "meta"))

    def _read_activations(self, expected: int) -> Readings:
        """Measure the bytes that autograd saves at the requested sizes; `expected` is the amount by the formulas.

        A small run is real. A larger one uses fake tensors, which take no memory and follow the CPU kernels; if they
        differ from real ones at small sizes, as they do for oneDNN's LSTM, the run is real or, past the memory limit,
        an error.
        """
        requested = self.subject.sizes(True)
        read_real = partial(self.reader.run, measure.saved_bytes, devices=("cpu",))
        needed = expected + self.expected + self.reader.weight_bytes(requested)
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
        """Fit a measurement and return the best attempt; if formulas fail at the requested sizes, try others.

        The reason may be a size such as a batch of 1 or a sequence longer than the window: with that size fixed,
        readings may have a formula in the other sizes. There may be a formula with derived sizes. Where a size is
        divided and rounded, there may be a formula for its multiples.
        """
        are_known = bool(vars(self).get("_divisors"))  # sizes without which another quantity had no formula
        attempt = self._attempt(measurement, Domain(divided=self._divisors) if are_known else EVERYWHERE)
        if attempt.is_final:
            return attempt
        if self._divisors:
            quotients = [Quotient(whole, part) for whole, part in self._divisors.items()]
            for quotient in (*([] if are_known else [None]), *quotients):
                others = {whole: part for whole, part in self._divisors.items() if Quotient(whole, part) != quotient}
                divided = self._attempt(measurement, Domain(divided=others), quotient)
                if not divided.missed:
                    return divided
        requested = self.subject.sizes(measurement.needs_run)
        pins = self._find_pins(measurement, attempt) if measurement.needs_run else {}
        probe_sizes = next(self.reader.probe_sizes(measurement.needs_run), {})
        special = {name: size for name, size in pins.items() if size < min(probe_sizes[name])}  # such as a batch of one
        attempts = [attempt]
        if special:
            attempts.append(self._attempt_at(measurement, special))
        else:
            attempts += self._refit(measurement, attempt, pins)
        if attempts[-1].missed:
            reasons = attempt.fit.failures.values()
            divided = [name for name in requested if any(f"no polynomial of {name}:" in reason for reason in reasons)]
            for step in STEPS:
                multiples = {name: step for name in divided if requested[name] % step == 0}
                if multiples:
                    stepped = self._attempt(measurement, Domain(multiples=multiples))
                    if not stepped.missed:
                        return stepped
            if pins and pins != special and attempts[-1].missed:
                pinned = replace(measurement, read=measurement.read_pinned or measurement.read)
                attempts.append(self._attempt_at(pinned, pins))
        return _best_attempt(attempts)

    def _attempt_at(self, measurement: Measurement, only_at: Sizes) -> Attempt:
        """Fit a measurement with the sizes of `only_at` fixed, with derived sizes if necessary."""
        attempt = self._attempt(measurement, Domain(only_at))
        return attempt if attempt.is_final else _best_attempt([attempt, *self._refit(measurement, attempt, {})])

    def _attempt(
        self, measurement: Measurement, domain: Domain = EVERYWHERE, quotient: Quotient | None = None
    ) -> Attempt:
        """Fit polynomials to a measurement at sizes within `domain`, and compare them with the module.

        With `quotient` they are polynomials of it, in place of the size that is divided.
        """
        stepped = f"multiples {format_sizes(domain.multiples)}" if domain.multiples else ""
        divided = " ".join(f"{whole}/{part}" for whole, part in domain.divided.items())
        divided += f" {quotient.size.name}" if quotient else ""
        order = self._order_lengths() if measurement.needs_run else ""  # the domain of what is cached depends on it
        key = " ".join(filter(None, (measurement.key, format_sizes(domain.only_at), stepped, divided, order)))

        def fit() -> FitResult:
            try:
                with single_thread():
                    choices, kinds = self.reader.probe_sizes(measurement.needs_run, domain), self.reader.kinds
                    kinds = kinds if kinds.containers else None
                    if quotient:
                        return quotient.fit(measurement.read, choices, kinds)
                    found = fit_groups(measurement.read, choices, kinds)
                    return replace(found, domain=found.domain.intersect(self._find_longest(measurement, found, domain)))
            except TimeLimitError:  # not to be cached
                raise
            except CountingError as error:
                return FitResult({}, {EVERYTHING: f"no formula, since it cannot be probed ({error})"})

        try:
            formulas = self.cache.get_or_fit(key, fit)
        except TimeLimitError as error:
            formulas = FitResult({}, {EVERYTHING: f"no formula, since {error}"})
        attempt = replace(self._compare(measurement, key, formulas), domain=domain)
        if attempt.is_final or quotient or not measurement.needs_run or TIME not in self.subject.input_sizes:
            return attempt
        return self._attempt_chunks(measurement, attempt, key)

    def _attempt_chunks(self, measurement: Measurement, attempt: Attempt, key: str) -> Attempt:
        """Fit the parts whose formulas in `attempt` fail again with a number of chunks of tokens.

        `key` names the cache entry of `attempt`, which is returned if this does not help.
        """
        fit, domain = attempt.fit, attempt.domain
        patterns = [group for group in attempt.missed if group in fit.groups]
        probe_sizes = next(self.reader.probe_sizes(True, domain))
        if not patterns or len(probe_sizes[TIME]) < 2:
            return attempt

        def read(sizes: Sizes) -> Readings:
            rows = measurement.read(sizes)
            return {path: row for path, row in rows.items() if any(group.matches(path) for group in patterns)}

        def refit() -> FitResult:
            failed = FitResult({}, dict.fromkeys(patterns, "no formula with chunks of tokens"))
            try:
                with single_thread():
                    chunks = self._chunks or self._find_chunks(read, attempt, probe_sizes)
                    if chunks is None:
                        return failed
                    kinds = self.reader.kinds if self.reader.kinds.containers else None
                    fitted = chunks.fit(read, probe_sizes, kinds)
            except TimeLimitError:  # not to be cached
                raise
            except CountingError:
                return failed
            fits = {group: group_fit for group, group_fit in fit.fits.items() if group not in patterns}
            failures = {group: reason for group, reason in fit.failures.items() if group not in patterns}
            both = fit.domain.intersect(fitted.domain)
            return FitResult(
                {**fits, **fitted.fits}, {**failures, **fitted.failures}, {**fit.derived, **fitted.derived}, both
            )

        key = f"{key} chunks {format_sizes(self.subject.sizes(True))}"
        try:
            result = self.cache.get_or_fit(key, refit)
        except TimeLimitError:
            return attempt
        rule = next((size for size in result.derived.values() if size.symbols == {TIME}), None)
        if rule is None:
            return attempt
        compared = replace(self._compare(measurement, key, result), domain=domain)
        if len(compared.missed) >= len(attempt.missed):
            return attempt
        self._chunks = Chunks(int(1 / rule.operands[0].terms[(TIME, 1),]))
        return compared

    def _find_chunks(self, read: Read, attempt: Attempt, probe_sizes: ProbeSizes) -> Chunks | None:
        """Return the chunks at whose ends a formula of `attempt` bends: the first by bisection, then at its double."""
        fit = attempt.fit
        lowest = {name: values[0] for name, values in probe_sizes.items()}
        groups = [group for group in attempt.missed if group in fit.fits]

        def amount(group: PathGroup, length: int) -> int:
            rows = assign_to_groups(fit.groups, read({**lowest, TIME: length}))
            return total_size(rows.get(group, ()))

        for group in groups[:1]:
            low = max(probe_sizes[TIME])
            for high in FAR_LENGTHS:
                if fit.evaluate(group, {**lowest, TIME: high}) == amount(group, high):
                    low = high
                    continue
                while high - low > 1:
                    middle = (low + high) // 2
                    holds = fit.evaluate(group, {**lowest, TIME: middle}) == amount(group, middle)
                    low, high = (middle, high) if holds else (low, middle)
                a, b, c, d = (amount(group, 2 * low + offset) for offset in (-2, -1, 0, 1))
                return Chunks(low) if d - 3 * c + 3 * b - a else None
        return None

    def _order_lengths(self) -> str:
        """Return which windows and chunks are at most as long as the inputs, as part of a key of the cache."""
        sizes = self.subject.sizes(True)
        short = [name for name in LENGTH_NAMES if name in sizes and TIME in sizes and sizes[name] <= sizes[TIME]]
        return f"where {', '.join(short)} <= {TIME}" if short else ""

    def _find_longest(self, measurement: Measurement, fit: FitResult, domain: Domain) -> Domain:
        """Return up to which length of the inputs formulas hold: some modules have windows, or chunks of tokens."""
        if not self.subject.probes_work or not measurement.needs_run:
            return EVERYWHERE
        probe_sizes = next(self.reader.probe_sizes(True, domain))
        lowest, requested = {name: values[0] for name, values in probe_sizes.items()}, self.subject.sizes(True)

        def holds(changes: Sizes) -> bool:
            sizes = {**lowest, **changes}
            try:
                rows = assign_to_groups(fit.groups, measurement.read(sizes))
            except TimeLimitError:
                raise
            except CountingError:  # a module that does not run there contradicts no formula
                return True
            return all(fit.evaluate(group, sizes) == total_size(rows.get(group, ())) for group in fit.fits)

        ordered: dict[str, str] = {}
        at_most: dict[str, int] = {}
        for name in {*LENGTH_NAMES} & {*lowest}:
            is_below = requested[name] <= requested[TIME]
            other_order = {name: lowest[TIME], TIME: lowest[name]} if is_below else {TIME: lowest[name] + 3}
            if not holds(other_order):
                ordered |= {name: TIME} if is_below else {TIME: name}
        for name in {TIME, SOURCE} & {*lowest} - ordered.keys():
            low = max(probe_sizes[name])
            for high in FAR_LENGTHS:
                if not holds({name: high}):
                    while high - low > 1:
                        middle = (low + high) // 2
                        low, high = (middle, high) if holds({name: middle}) else (low, middle)
                    at_most |= {name: low} if low >= requested[name] else {}
                    break
                low = high
        return Domain(at_most=at_most, ordered=ordered)

    def _refit(self, measurement: Measurement, attempt: Attempt, pins: Sizes) -> list[Attempt]:
        """Fit the parts whose formulas in `attempt` fail again, with rounded or bounded sizes; return new attempts.

        `pins` are sizes that alone make the formulas fail. The result is empty if fitting takes too long.
        """
        domain, needs_run = attempt.domain, measurement.needs_run
        requested = format_sizes(self.subject.sizes(needs_run))
        key = " ".join(filter(None, (measurement.key, format_sizes(domain.only_at), f"named at {requested}")))
        probe_sizes = next(self.reader.probe_sizes(needs_run, domain), {})

        def fit() -> FitResult:
            with single_thread():
                missed, reads_shapes = attempt.missed, measurement.reads_shapes
                return self._finder.refit(attempt.fit, missed, measurement.read, probe_sizes, pins, reads_shapes)

        try:
            compared = self._compare(measurement, key, self.cache.get_or_fit(key, fit))
        except TimeLimitError:
            return []
        return [replace(compared, domain=domain)]

    def _compare(self, measurement: Measurement, key: str, fit: FitResult) -> Attempt:
        """Compare the formulas of `fit` with the module at the requested sizes; `key` names the cache entry."""
        requested = self.subject.sizes(measurement.needs_run)

        def compare() -> list[Any]:
            sizes = {**requested, **self._derived_values(fit, requested)}
            expected = {group: group_fit.total.at(sizes) for group, group_fit in fit.fits.items()}
            try:
                with self.reader.time_limit(inf):  # this reading is worth any time
                    if measurement.read_requested:
                        readings = measurement.read_requested(int(sum(expected.values())))
                    else:
                        readings = measurement.read(self.subject.sizes(True))
            except TooLargeToRunError as error:
                return [str(error), []]
            if EVERYTHING in fit.failures:
                return ["", [[EVERYTHING.pattern, EVERYTHING.subset, total_size(readings.values())]]]
            totals = {group: total_size(rows) for group, rows in assign_to_groups(fit.groups, readings).items()}
            missed = [group for group, total in totals.items() if expected.get(group) != total]
            return ["", [[group.pattern, group.subset, totals[group]] for group in missed]]

        key = f"{key} measured" if EVERYTHING in fit.failures else key
        unproved, rows = self.cache.get_or_compute(f"{key} at {format_sizes(requested)}", compare)
        return Attempt(fit, {PathGroup(pattern, subset): total for pattern, subset, total in rows}, unproved)

    def _find_pins(self, measurement: Measurement, attempt: Attempt) -> dict[str, int]:
        """Return the requested sizes that alone, all others small, make a formula of `attempt` fail."""
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
            return any(
                group in fit.fits and fit.evaluate(group, sizes) != total_size(rows.get(group, ()))
                for group in attempt.missed
            )

        def find() -> dict[str, int]:
            return {name: size for name, size in requested.items() if leads_away(name)} if probe_sizes else {}

        return self.cache.get_or_compute(f"{measurement.key} depends at {format_sizes(requested)}", find)

    def _derived_values(self, fit: FitResult, sizes: Sizes) -> dict[str, int]:
        """Return the value of each derived size of `fit` at `sizes`, by name."""
        return {name: self._finder.value(size, sizes) for name, size in fit.derived.items()}

    # From formulas to a quantity.

    def _make_quantity(self, name: str, fitted: Sequence[tuple[Measurement, Attempt]]) -> Quantity:
        """Build the quantity `name` from fitted measurements: parts with formulas, measured amounts of the others."""
        sizes = self.subject.sizes(name not in STATIC_QUANTITIES)
        parts: list[Part] = []
        refused: dict[str, str] = {}
        measured: dict[str, int] = {}
        probe_sizes = self.subject.probe_sizes.items()
        only_at = {letter: values[0] for letter, values in probe_sizes if len(values) == 1 and letter in sizes}
        domain = self.subject.domain.intersect(Domain(only_at))
        derived, rules = dict[str, int](), {}
        for measurement, attempt in fitted:
            fit = attempt.fit
            if fit.fits:
                domain = domain.intersect(attempt.domain).intersect(fit.domain)
            derived |= self._derived_values(fit, sizes)
            rules |= fit.derived
            holding = {group: group_fit for group, group_fit in fit.fits.items() if group not in attempt.missed}
            parts += [self._make_part(measurement, group, group_fit) for group, group_fit in holding.items()]
            refused |= {str(group): reason for group, reason in fit.failures.items()}
            for group, total in attempt.missed.items():
                path = str(group) if group != EVERYTHING else ""
                measured[path] = measured.get(path, 0) + int(measurement.scale * total)
                if group in fit.fits:
                    refused[path] = f"no polynomial of {', '.join(sizes)} as far as the sizes asked for"
                elif group not in fit.failures:
                    refused[path] = "no formula, since it is there at the sizes asked for only"
        parts = merge_kinds(parts)
        used = frozenset[str]().union(*(part.repeats.symbols | part.each.symbols for part in parts))
        derived = {letter: size for letter, size in derived.items() if letter in used}
        rules = {letter: rule for letter, rule in rules.items() if letter in used}
        _, unit, convention = QUANTITY_KINDS[name]
        if unit == "FLOPs":
            parts = [part for part in parts if part.each]
        unproved = next((attempt.unproved for _, attempt in fitted if attempt.unproved), "")
        notes = [convention or str(self.conventions)]
        if unit == "bytes" and self.subject.configured_dtype not in ("", "float32"):
            notes.append(f"in float32, where the configuration says {self.subject.configured_dtype}")
        notes += [f"not compared with a run at the sizes asked for: {unproved}"] if unproved else []
        for derived_name in derived:  # each has the same letter in all quantities
            used_letters = {*self.subject.sizes(True), *self._letters.values()}
            free = next((letter for letter in FREE_LETTERS if letter not in used_letters), derived_name)
            self._letters.setdefault(derived_name, free)
        symbols = {derived_name: symbol(self._letters[derived_name]) for derived_name in derived}
        return Quantity(
            name,
            unit,
            tuple(part.substitute(symbols) for part in parts) if symbols else tuple(parts),
            "; ".join(notes),
            refused,
            measured,
            domain if parts else EVERYWHERE,
            {self._letters[derived_name]: size for derived_name, size in derived.items()},
            {self._letters[derived_name]: rule for derived_name, rule in rules.items() if rule.kind != "dimension"},
            tuple(self._collect_notes(name)),
            sizes,
            QuantityRecount(self.subject, self.conventions, self.limits, name),
            self.subject.defaults,
        )

    def _make_part(self, measurement: Measurement, group: PathGroup, fit: GroupFit) -> Part:
        """Convert the fit of a group of paths to a `Part`, scaled to the unit of the measurement."""
        each, shape, notes = prod(fit.columns, start=ONE), None, [measurement.note]
        if measurement.reads_shapes:
            tied = self.cache.get_or_compute("tied", self._find_tied)
            notes += [f"tied: also {tied[group.pattern]}"] if group.pattern in tied else []
            shape = None if group.subset == SUM_ONLY else fit.columns
        return Part(str(group), measurement.scale * each, fit.repeats, shape, ", ".join(filter(None, notes)))

    def _find_tied(self) -> dict[str, str]:
        """Return for the path pattern of each tied parameter the other names of that parameter."""
        tied = measure.find_tied_names(self.subject.build(self.reader.small_sizes(with_inputs=False)))
        return {path_pattern(name): ", ".join(other_names) for name, other_names in tied.items()}

    def _collect_notes(self, name: str) -> Iterator[str]:
        """Yield notes on the quantity `name`: operators without a FLOP rule, control flow that depends on values."""
        if name not in ("flops", "backward", "activations"):
            return

        def read(sizes: Sizes, *devices: str) -> Readings:
            with suppress(CountingError):
                return dict(self.reader.run_pass(sizes, devices).uncounted)
            return {}

        paths: dict[str, dict[str, None]] = {}
        small = self.cache.get_or_compute("uncounted", lambda: read(self.reader.small_sizes(), "cpu", "meta"))
        for key, (forward, backward, _) in small.items():
            operator, _, path = key.partition(" ")
            counts = forward if name == "flops" else backward if name == "backward" else 0
            if operator == measure.READS_DATA or (operator == measure.CONTRACTS and name != "activations"):
                counts = forward
            if counts:
                paths.setdefault(operator, {})[path_pattern(path) or "the module itself"] = None
        for operator, patterns in paths.items():
            where = ", ".join(patterns)
            if operator == measure.READS_DATA:
                yield (
                    f"counted for inputs and weights of zeros: {where} reads numbers while it runs, so "
                    "how often a loop runs, or which branch, may depend on them"
                )
            elif operator == measure.CONTRACTS:
                yield f"counted as matrix products: multiplications in {where} whose results are summed"
            else:
                sizes = self.subject.sizes(True)
                key = f"uncounted at {format_sizes(sizes)}"
                rows = self.cache.get_or_compute(key, lambda sizes=sizes: read(sizes, "meta", "cpu"))
                calls = [row for name, row in rows.items() if name.startswith(f"{operator} ")]
                index, direction = (1, "backward") if name == "backward" else (0, "forward")
                times, numbers = sum(row[index] for row in calls), sum(row[2] for row in calls)
                size = (
                    f" (called {times:,} × {direction}{f', {numbers:,} numbers' if numbers else ''})" if calls else ""
                )
                yield f"not counted: {operator} in {where}, for which there is no rule{size}"


def _best_attempt(attempts: Sequence[Attempt]) -> Attempt:
    """Return the attempt with the fewest path groups whose formula fails, the first if several have as few."""
    return min(attempts, key=lambda attempt: (EVERYTHING in attempt.missed, len(attempt.missed)))


# Readings and formulas on disk.

PACKAGE = Path(__file__).parents[1]
SOURCES = ("adaptation/*.py", "counting/**/*.py", "layers/*.py", "models/*.py", "spec/*.py")


class CountCache:
    """The cache of one subject, in one file; without an identity it lives in memory only.

    The file is named by the identity and the versions of all that takes part. A damaged file is treated as missing, and
    a file that cannot be written is left alone.
    """

    def __init__(self, identity: str | None) -> None:
        self.path: Path | None = None
        self._entries: dict[str, Any] = {}
        if identity is None:
            return
        key = sha256(f"{identity}\n{torch.__version__}\n{source_hash()}".encode()).hexdigest()[:32]
        self.path = data_home() / "counts" / f"{key}.json"
        with suppress(OSError, RunError):
            self._entries = read_checked_json(self.path)

    def get_or_compute(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return the cached JSON value of this name, else store and return `compute()`."""
        if name not in self._entries:
            self._entries[name] = compute()
            if self.path is not None:
                with suppress(DataError, OSError):
                    home_folder(self.path.parent.name)
                    write_checked_json(self.path, self._entries, indent=None)
        return self._entries[name]

    def get_or_fit(self, name: str, fit: Callable[[], FitResult]) -> FitResult:
        """Return the cached fit of this name, else store and return `fit()`."""
        return _fit_from_json(self.get_or_compute(name, lambda: _fit_to_json(fit())))


def source_hash() -> str:
    """Return a hash of Lemma's source files that influence counts; the cache depends on it."""
    files = sorted(path for pattern in SOURCES for path in PACKAGE.glob(pattern))
    return sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def _fit_to_json(result: FitResult) -> dict[str, Any]:
    """Convert a fit to JSON values: its polynomials, failures and derived sizes."""

    def terms(polynomials: Iterable[Polynomial]) -> list[Any]:
        return [polynomial.to_json() for polynomial in polynomials]

    return {
        "fits": [
            [group.pattern, group.subset, terms((fit.repeats, *fit.columns))] for group, fit in result.fits.items()
        ],
        "failures": [[group.pattern, group.subset, reason] for group, reason in result.failures.items()],
        "derived": [[size.kind, terms(size.operands), size.factor, size.dimension] for size in result.derived.values()],
        "domain": list(vars(result.domain).values()),
    }


def _fit_from_json(fields: dict[str, Any]) -> FitResult:
    """Restore a fit from the values of `_fit_to_json`."""
    fits: dict[PathGroup, GroupFit] = {}
    for pattern, subset, terms in fields["fits"]:
        repeats, *columns = map(Polynomial.from_json, terms)
        fits[PathGroup(pattern, subset)] = GroupFit(repeats, tuple(columns))
    failures = {PathGroup(pattern, subset): reason for pattern, subset, reason in fields["failures"]}
    derived = [
        DerivedSize(kind, tuple(map(Polynomial.from_json, operands)), factor, dimension)
        for kind, operands, factor, dimension in fields["derived"]
    ]
    return FitResult(fits, failures, {size.name: size for size in derived}, Domain(*fields["domain"]))
