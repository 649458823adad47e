"""The graph with formulas for its sizes: traced at many, with the same steps, every dimension fitted and proved."""

from collections.abc import Hashable
from dataclasses import replace

from torch import nn

from lemma.errors import LedgerError
from lemma.ledger.drawing.constants import without_constants
from lemma.ledger.drawing.graph import HELD, Frame, Graph, Signal, Step
from lemma.ledger.drawing.repeats import folded
from lemma.ledger.drawing.trace import trace
from lemma.ledger.ladders import choose_ladders
from lemma.ledger.places import NUMBER, Place, Readings, pattern_of
from lemma.ledger.polynomial import Polynomial
from lemma.ledger.probe import Fitted, Probed, probe
from lemma.ledger.subject import Inputs, Subject, Values

SMALL = 128  # sizes up to which real tensors are faster than those of the meta device
BUFFER = "buffer "
SCALING = ("mul", "div", "scaled_dot_product_attention")


def fitted_graph(subject: Subject) -> tuple[Graph[Polynomial], list[Signal[Polynomial]]]:
    """Trace a subject and return its graph in formulas, and the parameters that take no part in it."""
    tracer = Tracer(subject)
    names = list(subject.sizes(running=True))
    probed = probe(tracer.read, choose_ladders(names, subject.can_be_built, subject.ladders))
    assert tracer.graph
    return Formulas(subject.name, tracer.graph, probed).graph()


def simple_graph(module: nn.Module, inputs: Inputs) -> Graph[int]:
    """What leads to the result in one run; constants are one signal each, and equal layers are there once."""
    return folded(without_constants(trace(module, inputs)).needed()).numbered()


class Tracer:
    """Traces a subject at the sizes asked for; the steps must be the same at all of them."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.graph: Graph[int] | None = None

    def read(self, values: Values) -> Readings:
        """The shape of every signal and parameter, the number of repeated layers, and the scales, at these sizes."""
        device = "cpu" if max(values.values()) <= SMALL else "meta"
        module = self.subject.build(values, device)
        held = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
        held |= {f"{BUFFER}{name}": tuple(buffer.shape) for name, buffer in module.named_buffers()}
        graph = self._run(module, values, device)
        self.graph = self.graph or graph
        self._compare(structure(self.graph), structure(graph))
        signals = {f"signal {n}": signal.shape for n, signal in graph.signals.items() if signal.kind not in HELD}
        frames = {f"frame {place}": (frame.count,) for place, frame in enumerate(graph.frames)}
        scales = {f"scale {place}": (under_root(step),) for place, step in enumerate(graph.steps) if step.numbers}
        return {**held, **signals, **frames, **scales}

    def _run(self, module: nn.Module, values: Values, device: str) -> Graph[int]:
        inputs = self.subject.inputs(values, device)
        try:
            return simple_graph(module, inputs)
        except LedgerError:
            raise
        except Exception as error:  # a stranger's forward may refuse in any way
            sizes = ", ".join(f"{name}={value}" for name, value in values.items())
            raise LedgerError(f"{self.subject.name} cannot be run at {sizes}: {error}") from error

    def _compare(self, known: list[Hashable], here: list[Hashable]) -> None:
        if known != here:
            same = [one == other for one, other in zip(known, here, strict=False)]
            at = same.index(False) if False in same else len(same)
            raise LedgerError(
                f"{self.subject.name}: its steps differ from size to size (at step {at + 1} for the first time), so no "
                "one drawing is true of it. Draw one of its parts, as in package.module:factory."
            )


def structure(graph: Graph[int]) -> list[Hashable]:
    """What must not depend on sizes: operations, places, and what is read; parameters by their names' pattern."""
    return [
        (
            step.operation,
            step.path,
            tuple(number for number in step.operands if graph.signals[number].kind not in HELD),
            frozenset(pattern_of(graph.signals[n].name) for n in step.operands if graph.signals[n].kind in HELD),
            step.results,
        )
        for step in graph.steps
    ]


def under_root(step: Step) -> int:
    """The n of a scale √n or 1/√n; 0 if it is none.

    >>> under_root(Step("mul", "", (3**-0.5,), {}, ())), under_root(Step("div", "", (0.3,), {}, ()))
    (3, 0)
    """
    numbers = [float(number) for number in step.numbers]
    if step.operation not in SCALING or len(numbers) != 1 or not 0 < numbers[0] < float("inf"):
        return 0
    square = max(numbers[0] ** 2, numbers[0] ** -2)
    return round(square) if abs(square - round(square)) < 1e-9 * square else 0


class Formulas:
    """Puts what was fitted in the place of the numbers of one trace."""

    def __init__(self, name: str, graph: Graph[int], probed: Probed) -> None:
        self.name, self.traced, self.probed = name, graph, probed

    def graph(self) -> tuple[Graph[Polynomial], list[Signal[Polynomial]]]:
        """The graph in formulas, and the parameters that take no part in it."""
        steps = tuple(self._step(place, step) for place, step in enumerate(self.traced.steps))
        signals = {number: self._signal(number, signal) for number, signal in self.traced.signals.items()}
        frames = tuple(self._frame(place, frame) for place, frame in enumerate(self.traced.frames))
        used = {signal.name for signal in signals.values() if signal.kind in HELD}
        others = [self._held(place) for place in self.probed.places if " " not in place.pattern]
        unused = [signal for signal in others if signal.name not in used]
        return Graph(signals, steps, self.traced.result, frames), unused

    def _fitted(self, place: Place) -> Fitted:
        if place in self.probed.refused:
            raise LedgerError(f"{self.name}: the shape of {place} cannot be drawn: {self.probed.refused[place]}.")
        return self.probed.places[place]

    def _signal(self, number: int, signal: Signal[int]) -> Signal[Polynomial]:
        if signal.kind in HELD:
            buffer = BUFFER if signal.kind == "buffer" else ""
            found = self._held(self._place(buffer + signal.name))
            return replace(found, kind=signal.kind, name=found.name.removeprefix(BUFFER))
        key = Place(f"signal {number}")
        if not signal.shape:  # a single number has no dimensions to fit
            return Signal(signal.kind, (), signal.name)
        return Signal(signal.kind, self._fitted(key).columns, signal.name)

    def _held(self, place: Place) -> Signal[Polynomial]:
        fitted = self._fitted(place)
        return Signal("parameter", fitted.columns, str(place), fitted.repeats)

    def _place(self, name: str) -> Place:
        """The place of a parameter in a trace of two layers at least, of which only the first may stand apart."""
        found = [place for place in self.probed.places if place.pattern in (name, pattern_of(name))]
        numbers = NUMBER.findall(name)
        if len(found) > 1:
            first = bool(numbers) and set(numbers) == {"0"}
            found = [place for place in found if place.which == ("0" if first else "1…")] or found
        return found[0] if found else Place(pattern_of(name))

    def _frame(self, place: int, frame: Frame) -> Frame:
        (count,) = self._fitted(Place(f"frame {place}")).columns
        return replace(frame, formula=count)

    def _step(self, place: int, step: Step) -> Step:
        fitted = self.probed.places.get(Place(f"scale {place}"))
        scale = fitted.columns[0] if fitted else None
        return replace(step, under_root=scale if scale is not None and scale.symbols else None)
