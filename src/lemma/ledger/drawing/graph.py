"""A module's forward pass as a graph: signals, and the steps that make them from one another."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

from lemma.ledger.polynomial import ONE, Polynomial

Kind = Literal["input", "parameter", "buffer", "constant", "result"]
HELD = ("parameter", "buffer")  # what the module holds, and has a name for
Size = TypeVar("Size", int, Polynomial)


@dataclass(frozen=True)
class Ref:
    """A signal as it stands among a step's arguments, by its number; `turned` is its transpose."""

    signal: int
    turned: bool = False


@dataclass(frozen=True)
class Signal(Generic[Size]):
    """A tensor of the pass: whole numbers for its shape in one run, formulas once many runs are fitted."""

    kind: Kind
    shape: tuple[Size, ...]
    name: str = ""
    repeats: Polynomial = ONE
    """How many equal parameters it stands for."""


@dataclass(frozen=True)
class Step:
    """One operation: its name, the module at work, its arguments with signals as `Ref`s, and the signals it makes."""

    operation: str
    path: str
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]
    results: tuple[int, ...]
    through: tuple[str, ...] = ()
    """The operations it was merged from."""
    under_root: Polynomial | None = None
    """What its scale is one over the root of, where it has a scale that is so."""

    @property
    def refs(self) -> tuple[Ref, ...]:
        """Its signals in the order of its arguments, those within lists too."""
        return tuple(found for found in leaves([*self.arguments, *self.named.values()]) if isinstance(found, Ref))

    @property
    def operands(self) -> tuple[int, ...]:
        """The numbers of its signals."""
        return tuple(ref.signal for ref in self.refs)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The plain numbers among its arguments: those in their order, and a scale."""
        found = leaves([*self.arguments, self.named.get("scale")])
        return tuple(x for x in found if isinstance(x, (int, float)) and not isinstance(x, bool))

    def reading(self, swap: Callable[[Ref], Ref]) -> "Step":
        """Return the step with other signals in the place of its own."""
        arguments, named = swapped(self.arguments, swap), swapped(dict(self.named), swap)
        return replace(self, arguments=arguments, named=named)


@dataclass(frozen=True)
class Frame:
    """Equal layers one after the other, of which one is in the graph: their path, how many, what passes between.

    `carried` gives, for what enters the first layer, what enters the next ones in its place.
    """

    path: str
    count: int
    first: str
    carried: Mapping[int, int] = field(default_factory=dict)
    formula: Polynomial = ONE
    """How many there are at all sizes."""


@dataclass(frozen=True)
class Graph(Generic[Size]):
    """What leads to `result`, the first tensor that the module returns; steps are in the order in which they ran."""

    signals: Mapping[int, Signal[Size]]
    steps: tuple[Step, ...]
    result: int
    frames: tuple[Frame, ...] = ()

    def uses(self) -> Counter[int]:
        """How often each signal is read; the result once more."""
        return Counter([self.result, *(operand for step in self.steps for operand in step.operands)])

    def numbered(self) -> "Graph[Size]":
        """Return it with the signals that occur numbered as they come, what the module holds behind all others."""
        seen = dict.fromkeys(n for step in self.steps for n in (*step.operands, *step.results))
        order = sorted(seen, key=lambda number: self.signals[number].kind in HELD)
        new = {number: place for place, number in enumerate(order)}
        steps = [replace(step, results=tuple(new[number] for number in step.results)) for step in self.steps]
        frames = tuple(
            replace(frame, carried={new[a]: new[b] for a, b in frame.carried.items() if a in new and b in new})
            for frame in self.frames
        )
        smaller = self.reading(lambda ref: Ref(new[ref.signal], ref.turned), steps)
        return replace(smaller, signals={new[number]: self.signals[number] for number in order}, frames=frames)

    def needed(self) -> "Graph[Size]":
        """Return it without what does not lead to the result."""
        wanted, kept = {self.result}, []
        for step in reversed(self.steps):
            if wanted & set(step.results):
                wanted |= set(step.operands)
                kept.append(step)
        return replace(self, steps=tuple(reversed(kept)))

    def reading(self, swap: Callable[[Ref], Ref], steps: Iterable[Step] | None = None) -> "Graph[Size]":
        """Return it with these steps, all of which read other signals in the place of their own."""
        swapped_steps = tuple(step.reading(swap) for step in (self.steps if steps is None else steps))
        return replace(self, steps=swapped_steps, result=swap(Ref(self.result)).signal)


def leaves(value: Any) -> Iterator[Any]:
    """All that is in lists, tuples and dictionaries, however deep."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def swapped(value: Any, swap: Callable[[Ref], Ref]) -> Any:
    """Put other signals in the place of those in lists, tuples and dictionaries."""
    if isinstance(value, Ref):
        return swap(value)
    if isinstance(value, dict):
        return {key: swapped(inner, swap) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(swapped(inner, swap) for inner in value)
    return value
