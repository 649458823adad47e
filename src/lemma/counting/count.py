"""From a subject to its account: every quantity probed, fitted, proved, and kept on the shelf."""

import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Literal

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from lemma.adaptation.adapt import adapt_model
from lemma.counting.account import Account
from lemma.counting.cache import Shelf
from lemma.counting.measure import (
    COLUMNS,
    elementwise,
    numbers_together,
    optimizer_bytes,
    products,
    saved_bytes,
    shapes,
    state_bytes,
    tied_names,
)
from lemma.counting.polynomial import ONE, ZERO, Polynomial, total
from lemma.counting.probe import (
    SUM,
    Fitted,
    Join,
    Ladders,
    Place,
    Probed,
    Readings,
    choose_ladders,
    column_sums,
    draws,
    pattern_of,
    probe,
)
from lemma.counting.quantity import Figure, Part, Quantity
from lemma.counting.subject import Subject, Values, adapted_subject, sizes_in_words
from lemma.errors import InputError, LedgerError, unknown
from lemma.models.build import build
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import Method

QUANTITIES = ("parameters", "flops", "backward", "activations", "cache", "optimizer")
LARGEST_RUN = 2**28  # bytes of parameters and formulas up to which a part without a formula is measured instead


@dataclass(frozen=True)
class Conventions:
    """How operations are counted; the words stand beside every figure."""

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
    ledger = Ledger(subject, Shelf(subject.identity))
    parameters = ledger.parameters(conventions)
    figures = {
        name: parameters if name == "parameters" else _warned(getattr(ledger, name)(conventions), parameters)
        for name in able
    }
    running = any(name not in ("parameters", "optimizer") for name in able)
    return Account(subject.name, subject.sizes(running), figures, subject.defaults)


class Ledger:
    """The readings of one subject, each taken when it is first needed."""

    def __init__(self, subject: Subject, shelf: Shelf) -> None:
        self.subject, self.shelf = subject, shelf
        self._built: dict[tuple[int, ...], bool] = {}

    def parameters(self, conventions: Conventions) -> Quantity:
        """Every parameter by its shape."""
        kinds = {"": self._shapes("trainable"), "frozen": self._shapes("frozen")}
        ties = self.shelf.get("tied", self._ties)
        parts = [
            _tensor(place, fitted, _note(place, kind, ties))
            for kind, probed in kinds.items()
            for place, fitted in probed.places.items()
        ]
        return self._as_built(Quantity("parameters", "numbers", tuple(parts), "a tied tensor counts once"), kinds)

    def flops(self, conventions: Conventions) -> Quantity:
        """The operations of one forward pass over a batch."""
        return self._work("flops", conventions, 0)

    def backward(self, conventions: Conventions) -> Quantity:
        """The operations of one backward pass over a batch."""
        return self._work("backward", conventions, 1)

    def activations(self, conventions: Conventions) -> Quantity:
        """The bytes that autograd saves in a forward pass on a CPU."""
        probed = self._probed("activations", self._saved, running=True)
        measured = self._measured(probed) if probed.refused else {}
        convention = "storages saved for backward on a CPU, each once, parameters left out; loss not included"
        return Quantity("activations", "bytes", _parts(probed), convention, _reasons(probed), measured)

    def cache(self, conventions: Conventions) -> Quantity:
        """The bytes of the state after a batch was read."""
        probed = self._probed("cache", self._state, running=True)
        return Quantity("cache", "bytes", _parts(probed), "the state after reading the batch", _reasons(probed))

    def optimizer(self, conventions: Conventions) -> Quantity:
        """The bytes that AdamW keeps."""
        probed = self._probed("optimizer", lambda values: optimizer_bytes(self.subject.build(values)))
        return Quantity("optimizer", "bytes", _parts(probed), "AdamW's state", _reasons(probed))

    def _work(self, name: str, conventions: Conventions, phase: int) -> Quantity:
        probed = [self._probed("products", self._products, running=True, check=self._prove_products)]
        begin = phase * COLUMNS
        parts = [
            Part(str(place), conventions.apply(*fitted.columns[begin : begin + COLUMNS]), fitted.repeats)
            for place, fitted in probed[0].places.items()
        ]
        if conventions.elementwise:
            probed.append(self._probed("elementwise", self._elementwise, running=True))
            parts += [
                Part(str(place), fitted.columns[phase], fitted.repeats, note="elementwise")
                for place, fitted in probed[1].places.items()
            ]
        kept = tuple(part for part in parts if part.each)
        return Quantity(name, "operations", kept, str(conventions), _reasons(*probed))

    def _probed(
        self,
        name: str,
        read: Callable[[Values], Readings],
        running: bool = False,
        check: Callable[[Probed], None] | None = None,
        join: Join = column_sums,
    ) -> Probed:
        @single_thread()
        def work() -> Probed:
            probed = probe(partial(self._tried, read), self._ladders(running), join)
            if check:
                check(probed)
            return probed

        return self.shelf.probed(name, work)

    def _tried(self, read: Callable[[Values], Readings], values: Values) -> Readings:
        """Read at these sizes; a module that cannot be run there is refused like one that cannot be built."""
        try:
            return read(values)
        except LedgerError:
            raise
        except Exception as error:  # a stranger's forward may fail in any way
            raise LedgerError(f"{self.subject.name} cannot be run at {sizes_in_words(values)}: {error}") from error

    def _ladders(self, running: bool) -> Iterator[Ladders]:
        """Ladders to try; if there are none, building at the sizes asked for says why."""
        names, none = list(self.subject.sizes(running)), True
        for ladders in choose_ladders(names, self._can_be_built, self.subject.ladders):
            none = False
            yield ladders
        if none:
            self.subject.build(self.subject.sizes(running))

    def _can_be_built(self, values: Values) -> bool:
        """Whether the module can be built at these sizes, tried once: its inputs' sizes have no part in it."""
        key = tuple(values[name] for name in self.subject.symbols)
        if key not in self._built:
            self._built[key] = self.subject.can_be_built(values)
        return self._built[key]

    def _small(self) -> dict[str, int]:
        """Some small sizes at which the subject can be built."""
        found = next(self._ladders(running=True), None)
        return draws(found, 4)[-1] if found else self.subject.sizes(running=True)

    def _shapes(self, kind: str) -> Probed:
        def read(values: Values) -> Readings:
            return shapes(self.subject.build(values), kind == "trainable")

        def check(probed: Probed) -> None:
            """Add everything up once more, at other sizes."""
            values = self._small()
            parts = [_tensor(place, fitted, "") for place, fitted in probed.places.items()]
            found = total(part.whole for part in parts).at(values)
            if not probed.refused and found != sum(prod(shape) for shape in read(values).values()):
                raise LedgerError(f"{self.subject.name}: its parameters do not add up to what was fitted.")

        return self._probed(kind, read, check=check, join=numbers_together)

    def _as_built(self, quantity: Quantity, kinds: Mapping[str, Probed]) -> Quantity:
        """Compare with the module at the very sizes asked for: what was fitted at small ones may change far from them.

        A tensor that differs there follows no formula, like those that were refused; each is given as it was built.
        """
        values = self.subject.symbols
        found = {name: (p.numel(),) for name, p in self.subject.build(values).named_parameters()}
        reasons = _reasons(*kinds.values())
        built = {str(place): _amount(found, place) for one in kinds.values() for place in one.refused}
        kept: list[Part] = []
        places = [place for one in kinds.values() for place in one.places]
        for part, place in zip(quantity.parts, places, strict=True):
            amount = _amount(found, place)
            if place.which or part.whole.at(values) == amount:
                kept.append(part)
            else:
                names = ", ".join(values)
                reasons[part.path] = f"no polynomial of {names} as far as the sizes asked for, where it is {amount:,}"
                built[part.path] = amount
        whole = replace(quantity, parts=tuple(kept), refused=reasons, measured=built)
        if whole.at(values) != sum(row[0] for row in found.values()):
            raise LedgerError(
                f"{self.subject.name}: its parameters follow no polynomial of {', '.join(values)} as far as the sizes "
                "asked for: other tensors are there than at small sizes."
            )
        return whole

    def _ties(self) -> dict[str, str]:
        module = self.subject.build(self._small())
        return {pattern_of(name): ", ".join(others) for name, others in tied_names(module).items()}

    def _products(self, values: Values) -> Readings:
        """Small real tensors by the paths that the meta device takes, since those are many times faster."""
        with plain_paths():
            return products(self.subject.build(values, "cpu"), self.subject.inputs(values, "cpu"))

    def _elementwise(self, values: Values) -> Readings:
        with plain_paths():
            return elementwise(self.subject.build(values, "cpu"), self.subject.inputs(values, "cpu"))

    def _prove_products(self, probed: Probed) -> None:
        """Compare with what is counted on the meta device, where PyTorch's own counter is exact."""
        values = self._small()
        on_meta = products(self.subject.build(values), self.subject.inputs(values))
        for column in range(0 if probed.refused else 2 * COLUMNS):
            fitted = total(f.repeats * f.columns[column] for f in probed.places.values()).at(values)
            if fitted != sum(row[column] for row in on_meta.values()):
                raise LedgerError(f"{self.subject.name}: its operations on a CPU differ from those on the meta device.")

    def _saved(self, values: Values) -> Readings:
        return saved_bytes(self.subject.build(values, "cpu"), self.subject.inputs(values, "cpu"))

    def _state(self, values: Values) -> Readings:
        return state_bytes(self.subject.build(values), self.subject.inputs(values))

    def _measured(self, probed: Probed) -> dict[str, int]:
        """A real run at the sizes asked for, if it is small enough."""
        values = self.subject.sizes(running=True)
        weights = sum(p.numel() * p.element_size() for p in self.subject.build(values).parameters())
        known = sum(int((f.repeats * f.columns[0]).at(values)) for f in probed.places.values())
        if weights + known > LARGEST_RUN:
            return {}
        found = self._saved(values)
        return {str(place): _amount(found, place) for place in probed.refused}


def _amount(found: Readings, place: Place) -> int:
    """What was read at all paths that a place stands for."""
    return sum(row[0] for path, row in found.items() if _stands_for(place, path))


def _stands_for(place: Place, path: str) -> bool:
    return re.fullmatch(re.escape(place.pattern).replace(r"\*", r"\d+"), path) is not None


def _warned(quantity: Quantity, parameters: Quantity) -> Quantity:
    """A quantity of a module whose tensors leave their formulas behind has no formula that can be trusted either."""
    far = {path: why for path, why in parameters.refused.items() if path not in quantity.refused}
    return replace(quantity, refused={**quantity.refused, **far}) if far else quantity


@contextmanager
def single_thread() -> Iterator[None]:
    """Probed modules are small: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def plain_paths() -> Iterator[None]:
    """Attention and recurrent layers by plain products, as on the meta device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mkldnn's switch talks about GPUs
        with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
            yield


def _tensor(place: Place, fitted: Fitted, note: str) -> Part:
    shape = None if place.which == SUM else fitted.columns
    return Part(str(place), prod(fitted.columns, start=ONE), fitted.repeats, shape, note)


def _parts(probed: Probed) -> tuple[Part, ...]:
    return tuple(Part(str(place), _only(fitted), fitted.repeats) for place, fitted in probed.places.items())


def _only(fitted: Fitted) -> Polynomial:
    (column,) = fitted.columns
    return column


def _reasons(*probed: Probed) -> dict[str, str]:
    return {str(place): why for one in probed for place, why in one.refused.items()}


def _note(place: Place, kind: str, ties: Mapping[str, str]) -> str:
    tied = ties.get(place.pattern)
    return ", ".join(word for word in (kind, f"tied: also {tied}" if tied else "") if word)


# How many numbers learn when a model is adapted, as a formula of its sizes and of the rank r or the bottleneck m.
#
# It is read off the adapted module like any other: the module is built and adapted at small sizes, what does not
# learn
# is taken out of it, and the ledger accounts for what is left.


def trainable_formula(spec: ModelSpec, method: Method, learn: Sequence[str] = ()) -> Figure:
    """The parameters that learn: their formula in the sizes of the spec and of the method, and their number.

    >>> from lemma.spec import Decoder, Lora
    >>> figure = trainable_formula(Decoder(width=64, depth=2), Lora(rank=4, targets=("*.attention.output",)))
    >>> figure.formula, figure.total
    ('L*r*(d + d_h)', 1024)
    """
    with torch.device("meta"):
        adapt_model(build(spec), method, learn)  # at the very sizes asked for: refuses what cannot be
    return count(adapted_subject(spec, method, learn), ["parameters"]).parameters


def trainable_text(spec: ModelSpec, method: Method, learn: Sequence[str] = ()) -> str:
    """The same formula as `lemma count` writes it: 2·L·r·(2·d + 2·d_h + d_ff)."""
    account = count(adapted_subject(spec, method, learn), ["parameters"])
    return account.quantities["parameters"].formula(account.order, "unicode")
