"""From a subject to its account: every quantity probed, fitted, proved, and cached."""

import warnings
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from math import prod
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lemma.counting import measure, probe
from lemma.counting.account import Account, Part, Quantity
from lemma.counting.cache import CountCache
from lemma.counting.polynomial import ONE, ZERO, Polynomial, of, symbol
from lemma.counting.probe import SUM, Amounts, Fitted, Join, PathGroup, Probed, ProbeSizes, Read, Readings, Values
from lemma.counting.subject import BATCH, SOURCE, TIME, Inputs, NoFilling, Subject, adapted_subject, sizes_in_words
from lemma.errors import InputError, LedgerError, unknown
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import Method

QUANTITIES = ("parameters", "active", "flops", "backward", "activations", "cache", "optimizer")
CONVENTIONS = {
    "active": "parameters that take part for one token, tables of embeddings in full",
    "activations": "storages saved for backward on a CPU, each once, parameters left out; loss not included",
    "cache": "the state after reading the batch",
    "optimizer": "AdamW's state",
}
QUICK_RUN, LARGEST_RUN = (
    2**26,
    2**28,
)  # bytes of weights and activations up to which real tensors are preferred, and run
ODD = "mnpqrstuvwxyz"  # letters for dimensions that follow no formula
EVERYTHING = PathGroup("", SUM)  # all paths together, of a module that cannot be probed
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
    running = any(name not in ("parameters", "optimizer") for name in able)
    if running:
        counter.try_once()
    counters = {"parameters": counter.parameters, "flops": counter.flops, "backward": counter.flops}
    counters["active"] = counter.active
    if len(able) > 1 and "active" in able and not counter.routes():  # all parameters take part for every token
        able.remove("active")
    found = {name: counters.get(name, counter.bytes_kept)(name) for name in able}
    named = {letter: size for quantity in found.values() for letter, size in quantity.named.items()}
    return Account(subject.name, {**subject.sizes(running), **named}, found, subject.defaults)


@dataclass(frozen=True)
class Counted:
    """What was probed, and what the module does at the sizes asked for where no formula says it.

    `missed` is what was measured of the groups without a formula, and of those whose formula does not hold there;
    `unproved` says why nothing was measured; `only_at` are the sizes at which alone the formulas hold, `multiples` what
    sizes must be multiples of.
    """

    probed: Probed
    missed: Mapping[PathGroup, Amounts]
    unproved: str = ""
    only_at: Values = field(default_factory=dict)
    multiples: Values = field(default_factory=dict)


STEPS = (2, 8, 64)  # what sizes may have to be multiples of, as where half a width or every second layer is taken
Whole = Callable[[Fitted], Sequence[Polynomial]]
"""What all members of a group come to, column by column."""
Kind = tuple[Counted, Callable[[PathGroup, Fitted], Part]]
"""What was counted of one kind, and how it is written as a part."""


class TooLargeToRun(LedgerError):
    """A module needs more memory for a real run than counting takes."""


class ModuleCounter:
    """The quantities of one subject, each probed when it is first needed, or taken from the cache."""

    def __init__(self, subject: Subject, conventions: Conventions) -> None:
        self.subject, self.conventions = subject, conventions
        self.cached = CountCache(subject.identity)
        self._runs: dict[tuple[int, ...], bool] = {}
        self._work: dict[Hashable, Readings] = {}

    def try_once(self) -> None:
        """Run the module at the sizes asked for, so that what cannot be run says so before anything is probed."""
        values = self.subject.sizes(True)

        def run() -> bool:
            with suppress(TooLargeToRun):
                self._run(measure.forward, values, ("meta", "cpu"))
            return True

        self.cached.get(f"runs at {sizes_in_words(values)}", run)

    def parameters(self, name: str) -> Quantity:
        """Every parameter by its shape."""

        def ties() -> dict[str, str]:
            tied = measure.tied_names(self.subject.build(self._small()))
            return {probe.pattern_of(name): ", ".join(others) for name, others in tied.items()}

        def part(group: PathGroup, fitted: Fitted, kind: str) -> Part:
            tied = f"tied: also {also[group.pattern]}" if group.pattern in also else ""
            shape, each = None if group.which == SUM else fitted.columns, prod(fitted.columns, start=ONE)
            return Part(str(group), each, fitted.repeats, shape, ", ".join(filter(None, (kind, tied))))

        def whole(fitted: Fitted) -> Sequence[Polynomial]:
            return (fitted.repeats * prod(fitted.columns, start=ONE),)

        built = self.subject.build(self.subject.symbols)
        also = self.cached.get("tied", ties)
        kinds: list[Kind] = []
        for kind, trainable in (("", True), ("frozen", False)):

            def read(values: Values, trainable: bool = trainable) -> Readings:
                return measure.shapes(self.subject.build(values), trainable)

            there = {path: (prod(shape),) for path, shape in measure.shapes(built, trainable).items()}
            name_of_kind = kind or "trainable"
            counted = self._counted(name_of_kind, read, lambda _, there=there: there, False, measure.total_size, whole)
            kinds.append((counted, partial(part, kind=kind)))
        found = self._quantity(name, "numbers", "a tied tensor counts once", kinds, lambda row: row[0])
        return self._with_odd_dimensions(found, built, kinds) if found.measured else found

    def _with_odd_dimensions(self, quantity: Quantity, built: nn.Module, kinds: Sequence[Kind]) -> Quantity:
        """Name the dimensions that follow no formula, such as one that is rounded up, where all else of a tensor does.

        What is then a product of its shape at the sizes asked for is no longer only measured.
        """
        values, named = self.subject.sizes(False), dict[str, int]()
        parts, measured, refused = list(quantity.parts), dict(quantity.measured), dict(quantity.refused)
        letters = (letter for letter in ODD if letter not in values)

        def dimensions(at: Values) -> Readings:
            found = measure.shapes(self.subject.build(at), None)
            return {f"{path} {place}": (size,) for path, shape in found.items() for place, size in enumerate(shape)}

        try:
            each = probe.probe(dimensions, self._sizes(False)).groups
        except LedgerError:
            return quantity
        for (counted, part_of), trainable in zip(kinds, (True, False), strict=True):
            rows = probe.sorted_into(
                [*counted.probed.groups, *counted.probed.refused], measure.shapes(built, trainable)
            )
            for group in counted.missed:
                fitted, members = counted.probed.groups.get(group), rows.get(group, [])
                if group.which or len(set(members)) != 1 or not (fitted or group in counted.probed.refused):
                    continue
                columns: list[Polynomial] = []
                for place, size in enumerate(members[0]):
                    fits = each.get(PathGroup(f"{group.pattern} {place}"))
                    if fits and fits.columns[0].at(values) == size:
                        columns.append(fits.columns[0])
                        continue
                    name = next((name for name, value in named.items() if value == size), None) or next(letters)
                    named[name] = size
                    columns.append(symbol(name))
                repeats = fitted.repeats if fitted and fitted.repeats.at(values) == len(members) else of(len(members))
                parts.append(part_of(group, Fitted(repeats, tuple(columns))))
                measured.pop(str(group), None)
                refused.pop(str(group), None)
        return replace(quantity, parts=tuple(parts), measured=measured, refused=refused, named=named)

    def routes(self) -> bool:
        """Whether each token is sent to some experts only."""

        def seen() -> bool:
            small = self._one_token(self._small())
            return bool(self._run(measure.routed_sizes, small, ("cpu",)))

        with suppress(LedgerError):
            return self.cached.get("routes", seen)
        return False

    def active(self, name: str) -> Quantity:
        """The parameters that take part for one token: of a mixture of experts, those of its k experts."""
        routed = self.routes()

        def read(values: Values) -> Readings:
            if not routed:
                return {one: (prod(size),) for one, size in measure.shapes(self.subject.build(values), None).items()}
            return self._run(measure.routed_sizes, self._one_token(values), ("cpu",))

        values = self.subject.sizes(True)
        counted = self._counted(name, read, lambda _: read(values), join=probe.column_sums)
        kinds: list[Kind] = [(counted, lambda group, fitted: Part(str(group), fitted.columns[0], fitted.repeats))]
        return self._quantity(name, "numbers", CONVENTIONS[name], kinds, lambda row: row[0])

    def _one_token(self, values: Values) -> dict[str, int]:
        """The same sizes with one sequence of one token."""
        return {**values, **{one: 1 for one in (BATCH, TIME, SOURCE) if one in self.subject.running}}

    def flops(self, name: str) -> Quantity:
        """The FLOPs of one pass over a batch.

        Read on small real tensors, which are many times faster than the meta device, by the paths it takes; at the
        sizes asked for they are read on the meta device, where PyTorch's own counter is exact.
        """
        phase = ("flops", "backward").index(name)

        def counted(kind: str, measured: Measured, columns: slice) -> Counted:
            def read(values: Values, devices: Sequence[str] = ("cpu",)) -> Readings:
                key = (kind, *values.items(), *devices)
                if key not in self._work:  # both passes are read in one run
                    with plain_kernels():
                        self._work[key] = self._run(measured, values, devices)
                return {path: row[columns] for path, row in self._work[key].items()}

            def asked(_: Probed) -> Readings:
                return read(self.subject.sizes(True), ("meta", "cpu"))

            return self._counted(f"{kind} {name}", read, asked, pinned=partial(read, devices=("meta",)))

        def part(group: PathGroup, fitted: Fitted, note: str = "") -> Part:
            each = fitted.columns[0] if note else self.conventions.apply(*fitted.columns)
            return Part(str(group), each, fitted.repeats, note=note)

        def amount(row: Amounts) -> int:
            return int((of(row[0]) if len(row) == 1 else self.conventions.apply(*map(of, row))).at({}))

        columns = slice(phase * measure.COLUMNS, (phase + 1) * measure.COLUMNS)
        kinds: list[Kind] = [(counted("products", measure.products, columns), part)]
        if self.conventions.elementwise:
            spread = counted("elementwise", measure.elementwise, slice(phase, phase + 1))
            kinds.append((spread, partial(part, note="elementwise")))
        return self._quantity(name, "FLOPs", str(self.conventions), kinds, amount)

    def bytes_kept(self, name: str) -> Quantity:
        """What autograd saves in a forward pass on a CPU, the state after a batch was read, or what AdamW keeps."""
        values = self.subject.sizes(True)
        if name == "activations":
            read = partial(self._run, measure.saved_bytes, devices=("cpu",))
            counted = self._counted(name, read, self._saved)
        else:

            def read(values: Values) -> Readings:
                if name == "optimizer":
                    return measure.optimizer_bytes(self.subject.build(values))
                return self._run(measure.state_bytes, values, ("meta", "cpu"))

            counted = self._counted(name, read, lambda _: read(values), running=name == "cache")
        kinds: list[Kind] = [(counted, lambda group, fitted: Part(str(group), fitted.columns[0], fitted.repeats))]
        return self._quantity(name, "bytes", CONVENTIONS[name], kinds, lambda row: row[0])

    def _saved(self, probed: Probed) -> Readings:
        """What autograd saves at the sizes asked for: in a real run if it is small, else in one on fake tensors.

        These take no memory and follow the paths of a CPU. Where they differ from real ones at small sizes, as for what
        oneDNN's LSTM saves, they are not used.
        """
        values, real = self.subject.sizes(True), partial(self._run, measure.saved_bytes, devices=("cpu",))
        expected = sum(column.at(values) for fitted in probed.groups.values() for column in _wholes(fitted))
        needed = int(expected) + self._weights(values)
        if needed <= QUICK_RUN:
            return real(values)
        from torch._subclasses.fake_tensor import FakeTensorMode  # slow to import

        def fake(values: Values) -> Readings:
            with FakeTensorMode(), NoFilling():
                return measure.saved_bytes(self.subject.make(values), self.subject.inputs(values, "cpu"))

        small = self._small()
        with suppress(Exception):  # not every module can be followed without numbers
            if fake(small) == real(small):
                return fake(values)
        if needed > LARGEST_RUN:
            raise TooLargeToRun(f"a run takes more than {LARGEST_RUN // 2**20} MiB")
        return real(values)

    def _weights(self, values: Values) -> int:
        """The bytes of the parameters."""
        return sum(p.numel() * p.element_size() for p in self.subject.build(values).parameters())

    def _run(self, measured: Measured, values: Values, devices: Sequence[str]) -> Readings:
        """Measure a run on the first device on which there is one; a LedgerError says why it cannot be run."""
        failure: Exception | None = None
        for device in devices:
            try:
                if device == "cpu" and values == self.subject.sizes(True) and self._weights(values) > LARGEST_RUN:
                    raise TooLargeToRun(f"a run takes more than {LARGEST_RUN // 2**20} MiB")
                drawn = measured is measure.routed_sizes  # zeros would leave experts without a gradient
                return measured(self.subject.build(values, device, drawn), self.subject.inputs(values, device))
            except LedgerError:
                raise
            except Exception as error:  # the forward pass of other people's code may fail in any way
                failure = error
        why = str(failure).strip().partition("\n")[0] or type(failure).__name__
        words = sizes_in_words(values)
        raise LedgerError(f"{self.subject.name} cannot be run at {words}: {why}") from failure

    def _counted(
        self,
        name: str,
        read: Read,
        asked: Callable[[Probed], Readings],
        running: bool = True,
        join: Join = probe.column_sums,
        whole: Whole | None = None,
        pinned: Read | None = None,
        only_at: Values | None = None,
        multiples: Values | None = None,
    ) -> Counted:
        """Probe what is read, and compare it with what is read at the sizes asked for; both are cached.

        Where a formula does not hold there, or is missing, some sizes may be the reason, such as a batch of one or a
        text longer than the window: with these as they are, what is read may have a formula in the other sizes. Where
        a size is divided and rounded, there may be one for its multiples.
        """
        whole = whole or _wholes
        values, fixed = self.subject.sizes(running), dict(only_at or {})
        steps = dict(multiples or {})
        stepped = f"multiples {sizes_in_words(steps)}" if steps else ""
        key = " ".join(filter(None, (name, sizes_in_words(fixed), stepped)))

        def work() -> Probed:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)  # probed modules are small: threads would only wait for each other
            try:
                return probe.probe(read, self._sizes(running, fixed, steps), join)
            except LedgerError as error:
                return Probed({}, {EVERYTHING: f"no formula, since it cannot be probed ({error})"})
            finally:
                torch.set_num_threads(threads)

        def compare() -> list[Any]:
            try:
                found = asked(probed)
            except TooLargeToRun as error:
                return [str(error), []]
            if EVERYTHING in probed.refused:
                return ["", [["", SUM, join(list(found.values())) if found else (0,)]]]
            missed = []
            for group, rows in probe.sorted_into([*probed.groups, *probed.refused], found).items():
                amounts = probe.column_sums(rows) if rows else ()
                fitted = probed.groups.get(group)
                expected = [column.at(values) for column in whole(fitted)] if fitted else None
                if expected is None or any(a != b for a, b in zip_longest(amounts, expected, fillvalue=0)):
                    missed.append([group.pattern, group.which, list(amounts or (0,) * len(expected or [0]))])
            return ["", missed]

        probed = self.cached.probed(key, work)
        unproved, rows = self.cached.get(f"{key} at {sizes_in_words(values)}", compare)
        missed = {PathGroup(pattern, which): tuple(amounts) for pattern, which, amounts in rows}
        counted = Counted(probed, missed, unproved, fixed, steps)
        if not missed or fixed or steps or EVERYTHING in missed:
            return counted
        divided = {one for one in values for why in probed.refused.values() if f"no polynomial of {one}:" in why}
        for step in STEPS:
            by = {one: step for one in divided if values[one] % step == 0}
            if by:
                again = self._counted(name, read, asked, running, join, whole, pinned, multiples=by)
                if not again.missed:
                    return again
        if not running:
            return counted
        pins = self.cached.get(
            f"{key} depends at {sizes_in_words(values)}", lambda: self._reasons(counted, pinned or read, whole)
        )
        if not pins:
            return counted
        again = self._counted(name, pinned or read, asked, running, join, whole, only_at=pins)
        return again if len(again.missed) < len(missed) and EVERYTHING not in again.missed else counted

    def _reasons(self, counted: Counted, read: Read, whole: Whole) -> dict[str, int]:
        """The sizes asked for that alone lead away from the formulas of the groups that were missed."""
        values, probed = self.subject.sizes(True), counted.probed
        sizes = next(self._sizes(True), None)
        pins: dict[str, int] = {}
        for name in values if sizes else ():
            assert sizes
            if any(f"no polynomial of {name}:" in why for why in probed.refused.values()):
                pins[name] = values[name]
            there = {**{other: known[0] for other, known in sizes.items()}, name: values[name]}
            try:
                if self._weights(there) > QUICK_RUN:
                    continue
                found = probe.sorted_into([*probed.groups, *probed.refused], read(there))
            except LedgerError:
                continue
            for group in counted.missed:
                fitted = probed.groups.get(group)
                rows = probe.column_sums(found[group]) if found.get(group) else ()
                expected = [column.at(there) for column in whole(fitted)] if fitted else []
                if fitted and any(a != b for a, b in zip_longest(rows, expected, fillvalue=0)):
                    pins[name] = values[name]
        return pins

    def _quantity(
        self, name: str, unit: str, convention: str, kinds: Sequence[Kind], amount: Callable[[Amounts], int]
    ) -> Quantity:
        """What has a formula part by part, and what has none as it was measured."""
        parts: list[Part] = []
        refused: dict[str, str] = {}
        measured: dict[str, int] = {}
        sizes = self.subject.sizes(name not in ("parameters", "optimizer"))
        only_at = {
            one: probed[0] for one, probed in self.subject.probe_sizes.items() if len(probed) == 1 and one in sizes
        }
        unproved, multiples = "", {}
        for counted, part_of in kinds:
            probed = counted.probed
            unproved = unproved or counted.unproved
            only_at |= counted.only_at
            multiples |= counted.multiples
            parts += [part_of(*one) for one in probed.groups.items() if one[0] not in counted.missed]
            refused |= {str(group): why for group, why in probed.refused.items()}
            for group, row in counted.missed.items():
                path = str(group) if group != EVERYTHING else ""
                measured[path] = measured.get(path, 0) + amount(row)
                if group in probed.groups:
                    refused[path] = f"no polynomial of {', '.join(sizes)} as far as the sizes asked for"
                elif group not in probed.refused:
                    refused[path] = "no formula, since it is there at the sizes asked for only"
        unproved = f"not compared with a run at the sizes asked for: {unproved}" if unproved else ""
        convention = "; ".join(filter(None, (convention, unproved)))
        shown = tuple(part for part in parts if part.each or unit != "FLOPs")
        return Quantity(name, unit, shown, convention, refused, measured, only_at if shown else {}, multiples)

    def _sizes(
        self, running: bool, fixed: Values | None = None, multiples: Values | None = None
    ) -> Iterator[ProbeSizes]:
        """Probe sizes to try; if there are none, building at the sizes asked for says why."""

        def works(values: Values) -> bool:
            key = (running, *values.values())
            if key not in self._runs:
                self._runs[key] = self.subject.can_be_run(values) if running else self.subject.can_be_built(values)
            return self._runs[key]

        none = True
        for sizes in probe.choose_sizes(self.subject.sizes(running), works, self.subject.probe_sizes):
            none = False
            stepped = {name: [step * value for value in sizes[name]] for name, step in (multiples or {}).items()}
            yield {**sizes, **stepped, **{name: [value] for name, value in (fixed or {}).items()}}
        if none:
            self.subject.build(self.subject.sizes(running))

    def _small(self) -> dict[str, int]:
        """Some small sizes at which the subject can be built."""
        found = next(self._sizes(running=self.subject.feed is not None), None)
        return probe.draws(found, 4)[-1] if found else self.subject.sizes(running=True)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Attention and recurrent layers by plain products, as on the meta device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mkldnn's switch warns about GPUs
        with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
            yield


def _wholes(fitted: Fitted) -> Sequence[Polynomial]:
    return [fitted.repeats * column for column in fitted.columns]


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
