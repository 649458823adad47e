"""The drawing of a module with every size as a formula (E2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemma.counting.layout import (
    LINE,
    MARGIN,
    PAGE,
    Box,
    Look,
    Picture,
    Scene,
    Shape,
    Text,
    broken,
    labelled,
    moved,
    svg,
)
from lemma.counting.polynomial import ONE, Polynomial
from lemma.counting.subject import Subject, Values
from lemma.counting.tracing import Graph, Kind, Signal, StepFormulas, fitted_graph, signal_names, without_views
from lemma.counting.writing import write
from lemma.data.files import write_atomically
from lemma.errors import InputError
from lemma.report.text import table

TOP = 50.0


@dataclass(frozen=True)
class Node:
    """A tensor of the drawing, with the step that makes it."""

    name: str
    kind: Kind
    shape: tuple[Polynomial, ...]
    step: str = ""
    formula: str = ""
    path: str = ""
    reads: tuple[str, ...] = ()
    repeats: Polynomial = ONE


@dataclass(frozen=True)
class Drawing:
    """The data flow of a module; `shapes` is what `svg` shows."""

    model: str
    symbols: Values
    nodes: tuple[Node, ...]
    shapes: tuple[Shape, ...]
    svg: str

    def __str__(self) -> str:
        rows = [(node.name, f"({', '.join(self._sizes(node))})", node.formula) for node in self.nodes]
        return "\n".join(table(rows, left=(0, 1, 2), flexible=(0, 2), head=False))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: every tensor with its shape and the step that makes it."""
        nodes = [
            {
                "name": node.name,
                "kind": node.kind,
                "shape": self._sizes(node),
                "step": node.step,
                "formula": node.formula,
                "path": node.path,
                "reads": list(node.reads),
                "repeats": write(node.repeats, tuple(self.symbols)),
            }
            for node in self.nodes
        ]
        return {"model": self.model, "symbols": dict(self.symbols), "nodes": nodes}

    def _repr_html_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write it as .svg, or as .png if vl-convert is installed."""
        path = Path(path)
        if path.suffix == ".svg":
            write_atomically(path, self.svg)
        elif path.suffix == ".png":
            write_atomically(path, _png(self.svg))
        else:
            raise InputError(f"{path}: a drawing is saved as .svg or .png, not as '{path.suffix}'.")
        return path

    def _sizes(self, node: Node) -> list[str]:
        return [write(size, tuple(self.symbols)) for size in node.shape]


def draw(subject: Subject) -> Drawing:
    """Draw what leads from a module's inputs to the first tensor it returns, with sizes as formulas.

    The module runs at many small sizes; the drawing is refused unless its steps are the same at all of them and every
    dimension is proved to follow its formula.
    """
    symbols = subject.sizes(running=True)
    fitted, unused = fitted_graph(subject)
    graph = without_views(fitted)
    names, order = signal_names(graph), tuple(symbols)
    picture = Scene(graph, names, order).shapes()
    page = max(PAGE, picture.block.width + 2 * MARGIN)
    shapes, height = _page(subject.name, symbols, picture, page, unused)
    nodes = _nodes(graph, names, order, unused)
    return Drawing(subject.name, symbols, nodes, tuple(shapes), svg(shapes, page, height, subject.name))


def _page(
    name: str, symbols: Values, picture: Picture, page: float, unused: Sequence[Signal[Polynomial]]
) -> tuple[list[Shape], float]:
    """The drawing in the middle of a page, a title above it and what the colours mean below."""
    heading = broken(",  ".join(f"{symbol} = {value:,}" for symbol, value in symbols.items()), page - 2 * MARGIN)
    shapes: list[Shape] = [Text(page / 2, 30, name)]
    shapes += [Text(page / 2, 30 + LINE * number, "", line) for number, line in enumerate(heading, 1)]
    top = TOP + LINE * len(heading)
    shapes += moved(picture.shapes, (page - picture.block.width) / 2, top)
    looks = {shape.look for shape in picture.shapes if isinstance(shape, Box)}
    boxes = [labelled(look, [("", words)]) for look, words in KEY.items() if look in looks]
    y, gap = top + picture.block.height + 26, 12.0
    x = (page - sum(across + gap for _, across, _ in boxes) + gap) / 2
    for box, across, _ in boxes:
        shapes += moved(box, x, y)
        x += across + gap
    if unused:
        y += 34
        words = "not used here: " + ", ".join(signal.name for signal in unused)
        for line in broken(words, page - 2 * MARGIN):
            y += LINE
            shapes.append(Text(page / 2, y, "", line))
    return shapes, y + 28 + MARGIN


KEY: dict[Look, str] = {
    "parameter": "parameter",
    "result": "input, intermediate",
    "step": "step with parameters",
    "free step": "parameter-free step",
    "constant": "constant",
}


def _nodes(
    graph: Graph[Polynomial], names: dict[int, str], order: tuple[str, ...], unused: Sequence[Signal[Polynomial]]
) -> tuple[Node, ...]:
    formulas, uses = StepFormulas(graph, names, order), graph.uses()
    nodes: dict[str, Node] = {}
    for step in graph.steps:
        for number in step.operands:
            signal = graph.signals[number]
            nodes.setdefault(names[number], Node(names[number], signal.kind, signal.shape, repeats=signal.repeats))
        reads, formula = tuple(dict.fromkeys(names[n] for n in step.operands)), "; ".join(formulas.lines(step))
        for number in (n for n in step.results if uses[n]):
            shape = graph.signals[number].shape
            nodes[names[number]] = Node(names[number], "result", shape, step.operation, formula, step.path, reads)
    nodes |= {signal.name: Node(signal.name, signal.kind, signal.shape, repeats=signal.repeats) for signal in unused}
    return tuple(nodes.values())


def _png(svg: str) -> bytes:
    try:
        from vl_convert import svg_to_png
    except ImportError:
        raise InputError("a .png needs vl-convert: pip install vl-convert-python. A .svg needs nothing.") from None
    return svg_to_png(svg, scale=2)
