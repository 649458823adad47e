"""The scene of a drawing: a card for every step, frames around repeated layers, lines between them; written as SVG."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from xml.sax.saxutils import escape

from lemma.counting.drawing.layout import GAP, LANE, Layout, LayoutBlock, Name, arrange, assign_rows
from lemma.counting.drawing.step_formulas import StepFormulas, name_signals, short_name
from lemma.counting.drawing.tracing import STORED, DataFlow, Frame, Kind, Signal, Step, merge_views, trace_formulas
from lemma.counting.fit import Sizes
from lemma.counting.polynomial import ONE, Polynomial
from lemma.counting.subject import Subject
from lemma.counting.writing import write_formula
from lemma.errors import InputError
from lemma.files import write_atomically
from lemma.report.result import Block, Figure, Pre, Result
from lemma.report.text import format_table

PAGE = 800.0
MARGIN, FRAME, HEAD, TOP = 16.0, 14.0, 30.0, 50.0
PAD, ARROW, ABOVE = 8.0, 20.0, 6.0
CARD_WIDE, CARD_NARROW = 500.0, 128.0  # the longest line of a formula
BoxKind = Literal["input", "parameter", "constant", "step", "free step", "result", "frame"]
FILLS: dict[BoxKind, tuple[str, str]] = {
    "input": ("#e3f4e4", "#2e7d32"),
    "result": ("#e3f4e4", "#2e7d32"),
    "parameter": ("#dceafb", "#1f5fa8"),
    "constant": ("#eeeeee", "#757575"),
    "step": ("#ffffff", "#5f6b7a"),
    "free step": ("#fff3d6", "#b26a00"),
    "frame": ("none", "#8a5fb5"),
}
LEGEND: dict[BoxKind, str] = {
    "parameter": "parameter",
    "result": "input, intermediate",
    "step": "step with parameters",
    "free step": "parameter-free step",
    "constant": "constant",
}


@dataclass(frozen=True)
class TensorNode:
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
class Drawing(Result):
    """The data flow of a module; `shapes` is what `svg` shows."""

    model: str
    symbols: Sizes
    nodes: tuple[TensorNode, ...]
    shapes: "tuple[Shape, ...]"
    svg: str

    @property
    def title(self) -> str:
        return self.model

    def blocks(self) -> Iterator[Block]:
        rows = [(node.name, f"({', '.join(self._format_shape(node))})", node.formula) for node in self.nodes]
        yield Pre([("\n".join(format_table(rows, left=(0, 1, 2), breakable=(0, 2), has_header=False)), "")])

    def details(self) -> Iterator[Block]:
        yield Figure(self.svg)

    def to_dict(self) -> dict[str, Any]:
        order = tuple(self.symbols)
        nodes = [
            {
                **vars(node),
                "shape": self._format_shape(node),
                "reads": list(node.reads),
                "repeats": write_formula(node.repeats, order),
            }
            for node in self.nodes
        ]
        return {"model": self.model, "symbols": dict(self.symbols), "nodes": nodes}

    def _repr_html_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write the drawing to `path`: .svg, or .png if vl-convert is installed; return the path."""
        path = Path(path)
        if path.suffix == ".svg":
            write_atomically(path, self.svg)
        elif path.suffix == ".png":
            try:
                from vl_convert import svg_to_png
            except ImportError:
                needed = "a .png needs vl-convert: pip install vl-convert-python. A .svg needs nothing."
                raise InputError(needed) from None
            write_atomically(path, svg_to_png(self.svg, scale=2))
        else:
            raise InputError(f"{path}: a drawing is saved as .svg or .png, not as '{path.suffix}'.")
        return path

    def _format_shape(self, node: TensorNode) -> list[str]:
        """Return the formula of each dimension of a tensor as text."""
        return [write_formula(size, tuple(self.symbols)) for size in node.shape]


def draw(subject: Subject) -> Drawing:
    """Draw the data flow from a module's inputs to the first tensor it returns, with sizes as formulas.

    The module runs at many small sizes; a CountingError is raised unless its steps are the same at all of them and
    every dimension is proved to follow its formula.
    """
    symbols = subject.sizes(with_inputs=True)
    flow, unused = trace_formulas(subject)
    flow = merge_views(flow)
    names = name_signals(flow)
    formulas = StepFormulas(flow, names, tuple(symbols))
    nodes: dict[str, TensorNode] = {}
    for step in flow.steps:
        for number in step.operands:
            signal, name = flow.signals[number], names[number]
            nodes.setdefault(name, TensorNode(name, signal.kind, signal.shape, repeats=signal.repeats))
        reads, formula = tuple(dict.fromkeys(names[n] for n in step.operands)), "; ".join(formulas.write_step(step))
        for number in (n for n in step.results if formulas.uses[n]):
            shape, name = flow.signals[number].shape, names[number]
            nodes[name] = TensorNode(name, "result", shape, step.operation, formula, step.path, reads)
    for signal in unused:
        nodes[signal.name] = TensorNode(signal.name, signal.kind, signal.shape, repeats=signal.repeats)
    element = _Scene(flow, formulas).lay_out((), PAGE - 2 * MARGIN)
    shapes, page, height = _compose_page(subject.name, symbols, element, unused)
    svg = _write_svg(shapes, page, height, subject.name)
    return Drawing(subject.name, symbols, tuple(nodes.values()), tuple(shapes), svg)


SIZE, SMALL, LINE = 14, 12, 19  # letters, subscripts (the smallest letters there are), from line to line
SUBSCRIPT = re.compile(r"(?<![A-Za-z0-9_.])([A-Za-zα-ω])_([A-Za-z0-9]+)")
WIDTHS = {0.33: " ", 0.42: "iljI|.,:;'!()[]ftr/-ᵀ…·", 0.95: "mwMW—", 0.84: "×=+−÷√→∗∞≤<>~"}
EM = {letter: em for em, letters in WIDTHS.items() for letter in letters}  # at most, in common sans-serif fonts


def _split_subscripts(text: str) -> list[tuple[str, bool]]:
    """Split text into (piece, is_subscript) pairs: the h of d_h is a subscript; attention_norm has none.

    >>> _split_subscripts("H·M_QK")
    [('H·M', False), ('QK', True)]
    """
    pieces, at = [], 0
    for match in SUBSCRIPT.finditer(text):
        pieces += [(text[at : match.end(1)], False), (match[2], True)]
        at = match.end()
    return [piece for piece in [*pieces, (text[at:], False)] if piece[0]]


def text_width(text: str, bold: bool = False) -> float:
    """Return an upper estimate of the width of text in pixels."""
    width = sum(
        sum(EM.get(letter, 0.72 if letter.isupper() else 0.62) for letter in piece) * (SMALL if is_subscript else SIZE)
        for piece, is_subscript in _split_subscripts(text)
    )
    return width * (1.08 if bold else 1.0)


def _wrap_text(text: str, limit: float) -> list[str]:
    """Break text at spaces into lines at most `limit` pixels wide; a longer word stays whole."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer) > limit:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


@dataclass(frozen=True)
class Box:
    """A rectangle."""

    kind: BoxKind
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class TextLine:
    """Line of text centred at x; y is its base line. The bold part comes first."""

    x: float
    y: float
    bold: str = ""
    regular: str = ""

    @property
    def width(self) -> float:
        """Return the width in pixels of the bold and the regular part."""
        space = 2 * text_width(" ") if self.bold and self.regular else 0
        return text_width(self.bold, bold=True) + space + text_width(self.regular)


@dataclass(frozen=True)
class FlowLine:
    """A line through points: straight where two have the same x, else a curve; with an arrow at its end or not."""

    points: tuple[tuple[float, float], ...]
    has_arrow: bool = True
    is_horizontal: bool = False


Shape = Box | TextLine | FlowLine


def _translate(shapes: Sequence[Shape], x: float, y: float) -> list[Shape]:
    """Return the shapes moved by (x, y) pixels."""
    return [
        replace(shape, points=tuple((a + x, b + y) for a, b in shape.points))
        if isinstance(shape, FlowLine)
        else replace(shape, x=shape.x + x, y=shape.y + y)
        for shape in shapes
    ]


@dataclass(frozen=True)
class Element(LayoutBlock):
    """Shapes from the origin on, to be placed together.

    Lines enter at the `anchor` and leave below it at the `bottom`, unless `entries` and `exits` give a point for the
    signal that they carry.
    """

    shapes: tuple[Shape, ...] = ()
    bottom: float = 0.0
    top_width: float = 0.0
    entries: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    exits: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    def exit_point(self, number: int) -> tuple[float, float]:
        """Return the point (x, y) at which the line of tensor `number` leaves this element."""
        return self.exits.get(number, (self.anchor, self.bottom))


def _make_box(kind: BoxKind, lines: Sequence[tuple[str, str]], least: float = 0) -> Element:
    """Draw a box of this kind (which selects its colour) around lines of text, each a (bold, regular) pair.

    It is at least `least` pixels wide.
    """
    width = max([least, *(TextLine(0, 0, *words).width + 2 * PAD for words in lines)])
    height, first = len(lines) * LINE + PAD, PAD / 2 + (LINE + SIZE * 0.7) / 2
    texts = [TextLine(width / 2, first + LINE * number, *words) for number, words in enumerate(lines)]
    return Element(width, height, width / 2, (Box(kind, 0, 0, width, height), *texts), height, width)


@dataclass(frozen=True)
class Label:
    """A tensor as it is written on the drawing."""

    kind: BoxKind
    name: str
    shape: str
    full_name: str = ""  # where `name` is only a letter for it

    def box(self, narrow: bool = False, least: float = 0) -> Element:
        """Draw the label's box, at least `least` pixels wide: name and shape in one line, or two if `narrow`."""
        lines = [(self.name, ""), ("", self.shape)] if narrow else [(self.name, self.shape)]
        return _make_box(self.kind, [*lines, *([("", self.full_name)] if self.full_name else [])], least)


Connection = tuple[Name, Name, int]
"""The elements that a line leaves and enters, and the signal that it carries."""
_PORT = Element(16, 0, 8)
"""The point where a line passes the edge of a frame."""


class _Scene:
    """Draws a data flow: a card for each step, a frame around repeated layers, and the lines between."""

    def __init__(self, flow: DataFlow[Polynomial], formulas: StepFormulas) -> None:
        self.flow, self.names, self.uses, self.formulas = flow, formulas.names, formulas.uses, formulas
        self.producers = {number: step for step in flow.steps for number in step.results}
        self.frames_around: dict[int, tuple[Frame, ...]] = {}  # the frames around each step, outermost first
        for step in flow.steps:
            around = [frame for frame in flow.frames if f"{step.path}.".startswith(f"{frame.first_path}.")]
            self.frames_around[id(step)] = tuple(sorted(around, key=lambda frame: len(frame.path)))

    def lay_out(self, around: tuple[Frame, ...], limit: float) -> Element:
        """Lay out the steps and frames directly within the innermost of the frames `around`; () is the page.

        Lines that cross the edge of the frame do so at ports. `limit` is the width in pixels.
        """
        depth = len(around)
        steps = [step for step in self.flow.steps if self.frames_around[id(step)][:depth] == around]
        produced = {number for step in steps for number in step.results}
        incoming = [number for number in self._incoming_signals(steps) if number not in produced]
        within = Counter(number for step in steps for number in step.operands)
        outgoing = [number for number in produced if around and self.uses[number] > within[number]]
        elements: dict[Name, Element] = {}
        for number in incoming:
            elements["in" if around else "signal", number] = _PORT if around else self._make_label(number).box()
        for step in steps:
            name = self._element_name(step, depth)
            if name not in elements:
                deeper = self.frames_around[id(step)][: depth + 1]
                elements[name] = (
                    self._draw_card(step, limit) if len(deeper) == depth else self._draw_frame(deeper, limit)
                )
        elements |= {("out", number): _PORT for number in outgoing}
        connections: dict[Connection, None] = {}
        for step in steps:
            for number in self._incoming_signals([step]):
                outside = ("in" if around else "signal", number)
                start = self._element_name(self.producers[number], depth) if number in produced else outside
                end = self._element_name(step, depth)
                if start != end:
                    connections[start, end, number] = None
        lines = [*connections, *((self._element_name(self.producers[n], depth), ("out", n), n) for n in outgoing)]
        elements = self._narrow_cards(elements, lines, limit)
        out = [name for name in elements if name[0] == "out"]
        layout = arrange(elements, [(a, b) for a, b, _ in lines], limit, out)
        shapes: list[Shape] = [_route_line(elements, layout, line, lines) for line in lines]
        ports: dict[str, dict[int, tuple[float, float]]] = {"in": {}, "out": {}}
        for name, element in elements.items():
            x, y = layout.corners[name]
            shapes += _translate(element.shapes, x, y)
            if name[0] in ports:
                ports[name[0]][name[1]] = (x + element.anchor, y)
        width, height = layout.width, layout.height
        return Element(width, height, width / 2, tuple(shapes), height, width, ports["in"], ports["out"])

    def _incoming_signals(self, steps: Sequence[Step]) -> list[int]:
        """Return the numbers of the tensors that steps read, without parameters, buffers and constants."""
        read = [number for step in steps for number in step.operands]
        return [n for n in dict.fromkeys(read) if self.flow.signals[n].kind in ("input", "result")]

    def _element_name(self, step: Step, depth: int) -> Name:
        """Return the name of the element that shows a step at this depth: its card, or the frame around it."""
        frames = self.frames_around[id(step)]
        return ("frame", frames[depth].path) if len(frames) > depth else ("step", step.results)

    def _narrow_cards(
        self, elements: dict[Name, Element], lines: Sequence[Connection], limit: float
    ) -> dict[Name, Element]:
        """Return the elements with cards made narrow in rows that exceed `limit`, if that saves a row."""
        steps: dict[Name, Step] = {("step", step.results): step for step in self.flow.steps}
        narrow = {
            name: self._draw_card(steps[name], None) if name in steps else element for name, element in elements.items()
        }
        edges = [(a, b) for a, b, _ in lines]
        fewer, more = assign_rows(narrow, edges, limit), assign_rows(elements, edges, limit)
        if sum(fewer.values()) >= sum(more.values()):
            return elements
        used: dict[int, float] = {}
        for name, element in elements.items():
            used[fewer[name]] = used.get(fewer[name], -GAP) + element.width + GAP
        return {name: narrow[name] if used[fewer[name]] > limit else element for name, element in elements.items()}

    def _draw_card(self, step: Step, limit: float | None) -> Element:
        """Draw a step's card: its formula, results below it, and left of it the parameters and constants it reads.

        It is at most `limit` pixels wide; None draws it as narrow as possible.
        """
        results = [self._make_label(number) for number in step.results if self.uses[number]]
        kinds = {number: self.flow.signals[number].kind for number in step.operands}
        stored_numbers = [number for number, kind in kinds.items() if kind in (*STORED, "constant")]
        labels = list(dict.fromkeys(self._make_label(number, step) for number in stored_numbers))
        paths = [label.full_name.rpartition(".")[0] for label in labels]
        stored = [  # the name of a bias below its weight is said by that of the weight
            replace(label, full_name="") if label.full_name and path in paths[:index] else label
            for index, (label, path) in enumerate(zip(labels, paths, strict=True))
        ]
        narrow = limit is None
        widest = max((label.box(narrow).width for label in stored), default=0)
        left = widest + ARROW if stored else 0
        longest = CARD_NARROW if limit is None else min(CARD_WIDE, limit - left - 2 * PAD - 2 * (LANE + GAP))
        words = [("", line) for text in self.formulas.write_step(step) for line in _wrap_text(text, longest)]
        look: BoxKind = "step" if any(label.kind == "parameter" for label in stored) else "free step"
        across = max([_make_box(look, words).width, *(label.box(narrow).width for label in results)])
        stack = [_make_box(look, words, across), *(label.box(narrow, across) for label in results)]
        shapes: list[Shape] = []
        y = 0.0
        for number, label in enumerate(stored):  # one below the other, each with an arrow to the step on their right
            box = label.box(narrow, widest)
            meets = min(y + min(box.height, LINE + 9) / 2, stack[0].height * (number + 1) / (len(stored) + 1))
            start = (widest, y + box.height / 2 if len(stored) > 1 else meets)
            shapes += [*_translate(box.shapes, 0, y), FlowLine((start, (left, meets)), is_horizontal=True)]
            y += box.height + ABOVE
        bottom = 0.0
        for box in stack:
            shapes += _translate(box.shapes, left, bottom)
            bottom += box.height
        return Element(left + across, max(bottom, y - ABOVE), left + across / 2, tuple(shapes), bottom, across)

    def _draw_frame(self, around: tuple[Frame, ...], limit: float) -> Element:
        """Draw the innermost of the frames `around` with the first of its equal layers inside; `limit` is in pixels."""
        frame = around[-1]
        inner = self.lay_out(around, limit - 2 * FRAME)
        carried = [(self.names[a], self.names[b]) for a, b in frame.carried.items() if b in self.names]
        passed = "".join(f", {source} is the next one's {begins}" for begins, source in carried[:1])
        title = TextLine(0, 20, f"× {self.formulas.write_size(frame.formula)}", frame.path + passed)
        width, height = max(inner.width, title.width) + 2 * FRAME, inner.height + HEAD + FRAME
        left = (width - inner.width) / 2
        entries = {number: (x + left, HEAD) for number, (x, _) in inner.entries.items()}
        exits = {number: (x + left, HEAD + inner.height) for number, (x, _) in inner.exits.items()}

        def free_on_left() -> bool:
            return all(x > FRAME + title.width + 6 for x, _ in entries.values())

        if not free_on_left() and not all(x < width - FRAME - title.width - 6 for x, _ in entries.values()):
            title = replace(title, regular=frame.path)  # no room next to the lines that enter
        middle = FRAME + title.width / 2 if free_on_left() else width - FRAME - title.width / 2
        shapes = (Box("frame", 0, 0, width, height), replace(title, x=middle), *_translate(inner.shapes, left, HEAD))
        anchor = sum(x for x, _ in entries.values()) / max(1, len(entries)) or width / 2
        return Element(width, height, anchor, shapes, height, width, entries, exits)

    def _make_label(self, number: int, step: Step | None = None) -> Label:
        """Return the label of tensor `number`; a parameter read by `step` is named relative to the frame around it."""
        signal, frames = self.flow.signals[number], self.frames_around[id(step)] if step else ()
        shape = self.formulas.write_shape(signal.shape)
        if signal.kind not in STORED:
            kind: BoxKind = signal.kind if signal.kind in ("input", "constant") else "result"
            return Label(kind, self.names[number], shape)
        if signal.repeats != ONE and not frames:
            shape += f" each, × {self.formulas.write_size(signal.repeats)}"
        kind = "parameter" if signal.kind == "parameter" else "constant"
        path = frames[-1].path if frames else ""
        full, name = signal.name.removeprefix(f"{path}.*.") if path else signal.name, short_name(signal.name)
        return Label(kind, name, shape, full) if len(name) == 1 else Label(kind, full, shape)


def _route_line(
    elements: Mapping[Name, Element], layout: Layout, line: Connection, lines: Sequence[Connection]
) -> FlowLine:
    """Return the line of one connection; lines that end at the same element arrive side by side, without crossing."""
    start, end, number = line
    (x, y), (dx, dy) = layout.corners[start], elements[start].exit_point(number)
    points = [(x + dx, y + dy), (x + dx, layout.row_bottoms[start])]
    for lane, top, bottom in layout.lanes[start, end]:
        points += [(lane, top), (lane, bottom)]
    (x, y), element = layout.corners[end], elements[end]
    if end[0] == "out":
        points.append((x + element.anchor, y))
    elif number in element.entries:
        dx, dy = element.entries[number]
        points.append((x + dx, y + dy))
    else:

        def comes_from(other: Connection) -> float:
            lanes = layout.lanes[other[0], other[1]]
            return lanes[-1][0] if lanes else layout.corners[other[0]][0] + elements[other[0]].exit_point(other[2])[0]

        incoming = sorted((other for other in lines if other[1] == end), key=comes_from)
        middle = x + element.anchor
        straight = [other for other in incoming if abs(comes_from(other) - middle) < 1]
        offset = incoming.index(line) - (incoming.index(straight[0]) if len(straight) == 1 else (len(incoming) - 1) / 2)
        points.append((middle + offset * min(30.0, element.top_width / (2 * len(incoming))), y))
    return FlowLine(tuple(points), has_arrow=end[0] not in ("out", "frame"))


def _compose_page(
    name: str, symbols: Sizes, element: Element, unused: Sequence[Signal[Polynomial]]
) -> tuple[list[Shape], float, float]:
    """Compose a page of title `name`, sizes, drawing, legend and unused parameters; return shapes, width, height."""
    page = max(PAGE, element.width + 2 * MARGIN)
    heading = _wrap_text(",  ".join(f"{symbol} = {value:,}" for symbol, value in symbols.items()), page - 2 * MARGIN)
    shapes: list[Shape] = [TextLine(page / 2, 30, name)]
    shapes += [TextLine(page / 2, 30 + LINE * number, "", line) for number, line in enumerate(heading, 1)]
    top = TOP + LINE * len(heading)
    shapes += _translate(element.shapes, (page - element.width) / 2, top)
    kinds = {shape.kind for shape in element.shapes if isinstance(shape, Box)}
    boxes = [_make_box(kind, [("", words)]) for kind, words in LEGEND.items() if kind in kinds]
    y, gap = top + element.height + 26, 12.0
    x = (page - sum(box.width + gap for box in boxes) + gap) / 2
    for box in boxes:
        shapes += _translate(box.shapes, x, y)
        x += box.width + gap
    if unused:
        y += 34
        for line in _wrap_text("not used here: " + ", ".join(signal.name for signal in unused), page - 2 * MARGIN):
            y += LINE
            shapes.append(TextLine(page / 2, y, "", line))
    return shapes, page, y + 28 + MARGIN


INK, PAPER, FLOW = "#1b1f24", "#fcfcfd", "#5f6b7a"
FONTS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"


def _write_svg(shapes: Sequence[Shape], width: float, height: float, title: str) -> str:
    """Write shapes as an SVG document of this size in pixels, with an accessible `title` and a background."""
    order = sorted(shapes, key=lambda shape: (getattr(shape, "kind", "") != "frame", not isinstance(shape, FlowLine)))
    body = "\n".join(map(_write_shape, order))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" font-family="{FONTS}" font-size="{SIZE}">\n'
        f"<title>{escape(title)}</title>\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto" '
        f'markerUnits="userSpaceOnUse"><path d="M0,0.5 L8,4 L0,7.5 z" fill="{FLOW}"/></marker></defs>\n'
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{PAPER}"/>\n{body}\n</svg>\n'
    )


def _write_shape(shape: Shape) -> str:
    """Write a shape as an SVG element."""
    if isinstance(shape, TextLine):
        bold, regular = _write_spans(shape.bold, True), _write_spans(shape.regular, False)
        spans = [*bold, *(["  "] if bold and regular else []), *regular]
        attributes = f'x="{shape.x:.1f}" y="{shape.y:.1f}" text-anchor="middle" fill="{INK}" xml:space="preserve"'
        return f"<text {attributes}>{''.join(spans)}</text>"
    if isinstance(shape, Box):
        fill, edge = FILLS[shape.kind]
        corner = {"free step": 13, "step": 13, "frame": 12}.get(shape.kind, 2)
        dashes = ' stroke-dasharray="6 4"' if shape.kind == "frame" else ""
        attributes = f'x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}"'
        return f'<rect {attributes} rx="{corner}" fill="{fill}" stroke="{edge}" stroke-width="1.2"{dashes}/>'
    (x, y), *points = shape.points
    path = f"M{x:.1f},{y:.1f}"
    for a, b in points:
        if shape.is_horizontal:
            path += f" C{(x + a) / 2:.1f},{y:.1f} {(x + a) / 2:.1f},{b:.1f} {a:.1f},{b:.1f}"
        elif abs(a - x) < 0.5:
            path += f" L{a:.1f},{b:.1f}"
        else:
            path += f" C{x:.1f},{(y + b) / 2:.1f} {a:.1f},{(y + b) / 2:.1f} {a:.1f},{b:.1f}"
        x, y = a, b
    tip = ' marker-end="url(#tip)"' if shape.has_arrow else ""
    return f'<path d="{path}" fill="none" stroke="{FLOW}" stroke-width="1.4"{tip}/>'


def _write_spans(words: str, is_bold: bool) -> list[str]:
    """Write text as SVG spans with subscripts lowered."""
    weight = ' font-weight="bold"' if is_bold else ""
    spans, was_subscript = [], False
    for piece, is_subscript in _split_subscripts(words):
        shift = f' dy="{4 if is_subscript else -4}"' if is_subscript != was_subscript else ""
        size = f' font-size="{SMALL}"' if is_subscript else ""
        spans.append(f"<tspan{weight}{shift}{size}>{escape(piece)}</tspan>")
        was_subscript = is_subscript
    return [*spans, '<tspan dy="-4">\u200b</tspan>'] if was_subscript else spans
