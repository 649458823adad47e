"""The graph laid out and written as SVG."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal
from xml.sax.saxutils import escape

from lemma.counting.polynomial import ONE, Polynomial
from lemma.counting.tracing import HELD, Frame, Graph, Signal, Step, StepFormulas, short

# How wide a text is at most, in the sans-serif fonts that a reader may have, and how it is broken into lines.


SIZE = 14
SMALL = 12  # subscripts: the smallest letters there are
LINE = 19
SUBSCRIPT = re.compile(r"(?<![A-Za-z0-9_.])([A-Za-zα-ω])_([A-Za-z0-9]+)")
NARROW, WIDE, SIGNS = frozenset("iljI|.,:;'!()[]ftr/-ᵀ…·"), frozenset("mwMW—"), frozenset("×=+−÷√→∗∞≤<>~")


def pieces(text: str) -> list[tuple[str, bool]]:
    """Cut a text into pieces, each with whether it is a subscript: d_h has one, attention_norm has none.

    >>> pieces("H·M_QK")
    [('H·M', False), ('QK', True)]
    """
    found, at = [], 0
    for match in SUBSCRIPT.finditer(text):
        found += [(text[at : match.end(1)], False), (match[2], True)]
        at = match.end()
    return [piece for piece in [*found, (text[at:], False)] if piece[0]]


def width(text: str, bold: bool = False) -> float:
    """An upper estimate of a text's width in pixels."""
    plain = sum(sum(map(_em, piece)) * (SMALL if lowered else SIZE) for piece, lowered in pieces(text))
    return plain * (1.08 if bold else 1.0)


def broken(text: str, limit: float) -> list[str]:
    """Break a text at spaces into lines no wider than the limit, as far as its words allow."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and width(longer) > limit:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _em(letter: str) -> float:
    if letter == " ":
        return 0.33
    if letter in NARROW:
        return 0.42
    if letter in WIDE:
        return 0.95
    if letter in SIGNS:
        return 0.84
    return 0.72 if letter.isupper() else 0.62


# What a drawing is made of: boxes, texts and lines, each of which can be moved.


Look = Literal["input", "parameter", "constant", "step", "free step", "result", "frame"]
PAD = 8.0


@dataclass(frozen=True)
class Box:
    """A rectangle of some look."""

    look: Look
    x: float
    y: float
    width: float
    height: float

    def moved(self, x: float, y: float) -> "Box":
        """Return it elsewhere."""
        return replace(self, x=self.x + x, y=self.y + y)


@dataclass(frozen=True)
class Text:
    """One line of text around the middle x; y is its base line. `strong` comes first, in bold."""

    x: float
    y: float
    strong: str = ""
    plain: str = ""

    @property
    def width(self) -> float:
        """An upper estimate."""
        return line_width(self.strong, self.plain)

    def moved(self, x: float, y: float) -> "Text":
        """Return it elsewhere."""
        return replace(self, x=self.x + x, y=self.y + y)


@dataclass(frozen=True)
class Line:
    """A line down through points: straight where two have the same x, else a bow; with an arrow at its end or not."""

    points: tuple[tuple[float, float], ...]
    arrow: bool = True
    sideways: bool = False

    def moved(self, x: float, y: float) -> "Line":
        """Return it elsewhere."""
        return replace(self, points=tuple((a + x, b + y) for a, b in self.points))


Shape = Box | Text | Line
Words = tuple[str, str]
"""A line of text: what is bold and what is not."""


def line_width(strong: str, plain: str) -> float:
    """The width of a line of text at most."""
    space = 2 * width(" ") if strong and plain else 0
    return width(strong, bold=True) + space + width(plain)


def labelled(look: Look, lines: Sequence[Words], least: float = 0) -> tuple[list[Shape], float, float]:
    """A box around lines of text, at the origin, with its width and height."""
    across = max([least, *(line_width(*words) + 2 * PAD for words in lines)])
    down = len(lines) * LINE + PAD
    texts = [
        Text(across / 2, PAD / 2 + LINE * number + (LINE + SIZE * 0.7) / 2, *words)
        for number, words in enumerate(lines)
    ]
    return [Box(look, 0, 0, across, down), *texts], across, down


def moved(shapes: Sequence[Shape], x: float, y: float) -> list[Shape]:
    """Move shapes together."""
    return [shape.moved(x, y) for shape in shapes]


# A layered layout: rows from top to bottom, few crossings, and every line as straight as its neighbours allow.


GAP, LANE, BETWEEN = 18.0, 16.0, 38.0  # between blocks, for a line that passes a row, between rows
SWEEPS = 40

Key = tuple[str, Any]
"""What a block is, and which one."""
Edge = tuple[Key, Key]


@dataclass(frozen=True)
class Block:
    """Something to place: its size, and where from its left edge lines meet it."""

    width: float
    height: float
    anchor: float

    @property
    def right(self) -> float:
        """What lies to the right of the anchor."""
        return self.width - self.anchor


@dataclass(frozen=True)
class Layout:
    """Where blocks stand (top left corners), and the lanes (x, top, bottom) in which lines pass rows."""

    width: float
    height: float
    corners: Mapping[Key, tuple[float, float]]
    lanes: Mapping[Edge, Sequence[tuple[float, float, float]]]
    floors: Mapping[Key, float]
    """For each block the lower edge of its row."""


def arrange(blocks: Mapping[Key, Block], edges: Sequence[Edge], limit: float, last: Sequence[Key] = ()) -> Layout:
    """Lay out blocks, given in an order in which lines lead forwards; those in `last` stand in the last row."""
    ours = list(dict.fromkeys(edges))
    tried = [_Rows(dict(blocks), ours, limit, tuple(last), spare).layout() for spare in (0, 3 * LANE, 8 * LANE)]
    return next((layout for layout in tried if layout.width <= limit), min(tried, key=lambda layout: layout.width))


def rows_of(
    blocks: Mapping[Key, Block], edges: Sequence[Edge], limit: float, last: Sequence[Key] = ()
) -> dict[Key, int]:
    """Each block below all it reads, in the first row that has room; what reads nothing as low as possible."""
    level: dict[Key, int] = {}
    used: dict[int, float] = {}
    read = {b for _, b in edges}
    for key, block in blocks.items():
        at = max((level[a] + 1 for a, b in edges if b == key), default=0)
        while used.get(at, 0) and used[at] + GAP + block.width > limit:
            at += 1
        level[key], used[at] = at, used.get(at, -GAP) + GAP + block.width
    for key in blocks:
        below = [level[b] for a, b in edges if a == key]
        lower = min(below, default=0) - 1
        if lower > level[key] and key not in read and used.get(lower, 0) + GAP + blocks[key].width <= limit:
            used[lower] = used.get(lower, 0) + GAP + blocks[key].width
            level[key] = lower
    bottom = max((level[key] for key in blocks if key not in last), default=-1)
    return {key: bottom + 1 if key in last else at for key, at in level.items()}


@dataclass
class _Rows:
    blocks: dict[Key, Block]
    edges: list[Edge]
    limit: float
    last: tuple[Key, ...]
    spare: float
    """Room kept free in every row for lines that pass."""
    rows: list[list[Key]] = field(default_factory=list)
    links: list[Edge] = field(default_factory=list)
    """Lines from row to row: those of edges, cut by lanes."""
    lanes: dict[Edge, list[Key]] = field(default_factory=dict)

    def layout(self) -> Layout:
        level = rows_of(self.blocks, self.edges, self.limit - self.spare, self.last)
        self._cut(level)
        self._order()
        x = self._straighten()
        return self._drawn(x)

    def _cut(self, level: Mapping[Key, int]) -> None:
        self.rows = [[] for _ in range(max(level.values()) + 1)]
        for key in self.blocks:
            self.rows[level[key]].append(key)
        for edge in self.edges:
            chain = [edge[0]]
            for row in range(level[edge[0]] + 1, level[edge[1]]):
                lane = ("lane", (edge[0], row))  # lines from one block share a lane until they part
                if lane not in self.blocks:
                    self.blocks[lane] = Block(LANE, 0, LANE / 2)
                    self.rows[row].append(lane)
                chain.append(lane)
            self.lanes[edge] = chain[1:]
            chain.append(edge[1])
            self.links += pairwise(chain)
        self.links = list(dict.fromkeys(self.links))

    def _order(self) -> None:
        """Order rows by the mean place of what they are linked with, down and up; the one that crosses least stays."""
        best, fewest = [list(row) for row in self.rows], self._crossings()
        for sweep in range(8):
            down = sweep % 2 == 0
            for index in range(1, len(self.rows)) if down else range(len(self.rows) - 2, -1, -1):
                self._sort(index, index - 1 if down else index + 1)
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(row) for row in self.rows], crossings
        self.rows = best

    def _sort(self, index: int, by: int) -> None:
        place = {key: number for number, key in enumerate(self.rows[by])}
        own = {key: number for number, key in enumerate(self.rows[index])}

        def mean(key: Key) -> float:
            linked = [place[other] for link in self.links for other in link if key in link and other in place]
            return sum(linked) / len(linked) if linked else own[key]

        self.rows[index].sort(key=mean)

    def _crossings(self) -> int:
        place = {key: number for row in self.rows for number, key in enumerate(row)}
        level = {key: index for index, row in enumerate(self.rows) for key in row}
        return sum(
            level[a] == level[c] and (place[a] - place[c]) * (place[b] - place[d]) < 0
            for number, (a, b) in enumerate(self.links)
            for c, d in self.links[:number]
        )

    def _straighten(self) -> dict[Key, float]:
        """Put every block under what it reads, and now and then above what reads it, as its row allows."""
        x = dict.fromkeys(self.blocks, self.limit / 2)
        above: dict[Key, list[Key]] = {key: [a for a, b in self.links if b == key] for key in self.blocks}
        below: dict[Key, list[Key]] = {key: [b for a, b in self.links if a == key] for key in self.blocks}
        for sweep in range(SWEEPS):
            down = sweep % 2 == 1  # the last one goes down
            for row in self.rows if down else reversed(self.rows):
                wanted = [self._mean((above if down else below)[key], x, x[key]) for key in row]
                x |= dict(zip(row, self._apart(row, wanted), strict=True))
        return x

    def _mean(self, linked: Sequence[Key], x: Mapping[Key, float], otherwise: float) -> float:
        weights = [self._weight(key) for key in linked]
        return sum(w * x[key] for w, key in zip(weights, linked, strict=True)) / sum(weights) if linked else otherwise

    def _weight(self, key: Key) -> float:
        """Lines give way to blocks."""
        return 1.0 if self.blocks[key].height else 1e-4

    def _apart(self, row: Sequence[Key], wanted: Sequence[float]) -> list[float]:
        """The nearest places to those wanted at which nothing in the row overlaps, in the least-squares sense."""
        blocks = [self.blocks[key] for key in row]
        steps = [0.0, *(a.right + GAP + b.anchor for a, b in pairwise(blocks))]
        offsets = [sum(steps[: i + 1]) for i in range(len(steps))]
        pools: list[list[float]] = []
        for key, want, offset in zip(row, wanted, offsets, strict=True):
            pools.append([want - offset, self._weight(key), 1])
            while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
                (one, light, few), (other, heavy, more) = pools[-2], pools.pop()
                pools[-1] = [(one * light + other * heavy) / (light + heavy), light + heavy, few + more]
        low, high = blocks[0].anchor, self.limit - blocks[-1].right - offsets[-1]
        flat = [max(low, min(value, high)) for value, _, many in pools for _ in range(int(many))]
        return [value + offset for value, offset in zip(flat, offsets, strict=True)]

    def _drawn(self, x: Mapping[Key, float]) -> Layout:
        left = min(x[key] - block.anchor for key, block in self.blocks.items())
        right = max(x[key] + block.right for key, block in self.blocks.items())
        tops: dict[Key, tuple[float, float]] = {}
        y = 0.0
        for row in self.rows:
            height = max((self.blocks[key].height for key in row), default=0)
            tops |= dict.fromkeys(row, (y, y + height))
            y += height + BETWEEN
        real = [key for key in self.blocks if key[0] != "lane"]
        return Layout(
            right - left,
            y - BETWEEN,
            {key: (x[key] - self.blocks[key].anchor - left, tops[key][0]) for key in real},
            {edge: [(x[lane] - left, *tops[lane]) for lane in lanes] for edge, lanes in self.lanes.items()},
            {key: tops[key][1] for key in real},
        )


# A step as a card: its formula, what it makes below it, and to the left what of the module it reads.


ARROW, ABOVE = 20.0, 6.0
CARDS_WIDE, CARDS_NARROW = 500.0, 128.0  # the longest line of a formula


@dataclass(frozen=True)
class Label:
    """A tensor as it is written on the drawing."""

    look: Look
    name: str
    shape: str
    full: str = ""
    """Its whole name, where `name` is only a letter for it."""


@dataclass(frozen=True)
class Picture:
    """Shapes from the origin on, with their block and the height at which lines leave."""

    shapes: tuple[Shape, ...]
    block: Block
    bottom: float
    top_width: float


def tensor(label: Label, narrow: bool = False, least: float = 0) -> tuple[list[Shape], float, float]:
    """The box of a tensor: its name and shape in one line, or in two if it must be narrow."""
    lines: list[Words] = [(label.name, ""), ("", label.shape)] if narrow else [(label.name, label.shape)]
    return labelled(label.look, [*lines, *([("", label.full)] if label.full else [])], least)


def source(label: Label) -> Picture:
    """An input, which no step makes."""
    shapes, across, down = tensor(label)
    return Picture(tuple(shapes), Block(across, down, across / 2), down, across)


def card(formula: Sequence[str], results: Sequence[Label], held: Sequence[Label], limit: float | None) -> Picture:
    """A step with what it makes and what it reads of the module, no wider than the limit; without one, narrow."""
    narrow = limit is None
    widest = max((tensor(label, narrow)[1] + ARROW for label in held), default=0)
    longest = CARDS_NARROW if limit is None else min(CARDS_WIDE, limit - widest - 2 * PAD - 2 * (LANE + GAP))
    lines = [line for text in formula for line in broken(text, longest)]
    look: Look = "step" if any(label.look == "parameter" for label in held) else "free step"
    words: list[Words] = [("", line) for line in lines]
    across = max([labelled(look, words)[1], *(tensor(label, narrow)[1] for label in results)])
    stack, _, y = labelled(look, words, across)
    step_height = y
    for label in results:
        shapes, _, height = tensor(label, narrow, across)
        stack += moved(shapes, 0, y)
        y += height
    boxes, left, down = _held(held, narrow, step_height)
    return Picture(
        (*boxes, *moved(stack, left, 0)),
        Block(left + across, max(y, down), left + across / 2),
        y,
        across,
    )


def _held(labels: Sequence[Label], narrow: bool, step_height: float) -> tuple[list[Shape], float, float]:
    """Boxes one below the other, as wide as the widest, each with an arrow to the step on their right."""
    if not labels:
        return [], 0, 0
    across = max(tensor(label, narrow)[1] for label in labels)
    shapes: list[Shape] = []
    y = 0.0
    for number, label in enumerate(labels):
        box, _, height = tensor(label, narrow, across)
        middle = y + min(height, LINE + 9) / 2
        meets = (
            min(middle, step_height * (number + 1) / (len(labels) + 1))
            if len(labels) > 1
            else min(middle, step_height / 2)
        )
        start = (across, y + height / 2 if len(labels) > 1 else meets)
        shapes += [*moved(box, 0, y), Line((start, (across + ARROW, meets)), sideways=True)]
        y += height + ABOVE
    return shapes, across + ARROW, y - ABOVE


# From the graph to shapes: a card for each step, a frame around repeated layers, and the lines between them.


PAGE = 800.0
MARGIN, FRAME, HEAD = 16.0, 14.0, 30.0


@dataclass(frozen=True)
class Part:
    """Something placed: its picture, and where lines that carry a signal enter and leave it, from its corner."""

    picture: Picture
    entries: Mapping[int, tuple[float, float]]
    exits: Mapping[int, tuple[float, float]]


class Scene:
    """Draws a graph whose signals have names."""

    def __init__(self, graph: Graph[Polynomial], names: Mapping[int, str], order: Sequence[str]) -> None:
        self.graph, self.names = graph, names
        self.formulas = StepFormulas(graph, names, order)
        self.uses = graph.uses()
        self.maker = {number: step for step in graph.steps for number in step.results}
        self.home = {id(step): self._frames_around(step) for step in graph.steps}

    def shapes(self) -> Picture:
        """The whole drawing, from the origin on."""
        return self._level((), PAGE - 2 * MARGIN)

    def _frames_around(self, step: Step) -> tuple[Frame, ...]:
        """The frames that a step stands in, outermost first."""
        around = [f for f in self.graph.frames if f"{step.path}.".startswith(f"{f.first}.")]
        return tuple(sorted(around, key=lambda frame: len(frame.path)))

    def _level(self, around: tuple[Frame, ...], limit: float) -> Picture:
        """Lay out what stands directly within a frame, or outside all of them."""
        inside = [step for step in self.graph.steps if self.home[id(step)][: len(around)] == around]
        made = {number for step in inside for number in step.results}
        entering = [n for n in self._read_by(inside) if n not in made] if around else []
        leaving = [n for n in made if around and self._leaves(n, inside)]
        parts: dict[Key, Part] = {}
        if not around:
            parts |= {("signal", n): self._source(n) for n in self._read_by(inside) if n not in made}
        parts |= {("in", n): _port(n) for n in entering}
        for step in inside:
            key = self._key(step, len(around))
            if key not in parts:
                deeper = self.home[id(step)][: len(around) + 1]
                parts[key] = self._step(step, limit) if len(deeper) == len(around) else self._frame(deeper, limit)
        parts |= {("out", n): _port(n) for n in leaving}
        lines = self._lines(inside, made, len(around), entering, leaving)
        return self._composed(self._narrowed(parts, lines, limit), lines, limit, leaving)

    def _narrowed(self, parts: dict[Key, Part], lines: Sequence[tuple[Key, Key, int]], limit: float) -> dict[Key, Part]:
        """Make those cards narrow that then fit into one row, where that saves a row."""
        steps: dict[Key, Step] = {("step", step.results): step for step in self.graph.steps}
        narrow = {
            key: self._step(steps[key], limit, narrow=True) if key in steps else part for key, part in parts.items()
        }
        edges = [(a, b) for a, b, _ in lines]
        fewer, more = (rows_of({k: p.picture.block for k, p in some.items()}, edges, limit) for some in (narrow, parts))
        if sum(fewer.values()) >= sum(more.values()):
            return parts
        crowded = {row for row in fewer.values() if _too_wide([parts[k] for k in parts if fewer[k] == row], limit)}
        return {key: narrow[key] if fewer[key] in crowded else part for key, part in parts.items()}

    def _read_by(self, steps: Sequence[Step]) -> list[int]:
        """The signals that flow into steps: neither held by the module nor constant."""
        read = [number for step in steps for number in step.operands]
        return [n for n in dict.fromkeys(read) if self.graph.signals[n].kind in ("input", "result")]

    def _leaves(self, number: int, inside: Sequence[Step]) -> bool:
        within = sum(step.operands.count(number) for step in inside)
        return self.uses[number] > within

    def _key(self, step: Step, depth: int) -> Key:
        frames = self.home[id(step)]
        return ("frame", frames[depth].path) if len(frames) > depth else ("step", step.results)

    def _lines(
        self, inside: Sequence[Step], made: set[int], depth: int, entering: Sequence[int], leaving: Sequence[int]
    ) -> list[tuple[Key, Key, int]]:
        found: dict[tuple[Key, Key, int], None] = {}
        for step in inside:
            for number in self._read_by([step]):
                ours = self._key(self.maker[number], depth) if number in made else None
                begin = ours or (("in", number) if number in entering else ("signal", number))
                end = self._key(step, depth)
                if begin != end:
                    found[begin, end, number] = None
        return [*found, *((self._key(self.maker[n], depth), ("out", n), n) for n in leaving)]

    def _composed(
        self, parts: Mapping[Key, Part], lines: Sequence[tuple[Key, Key, int]], limit: float, leaving: Sequence[int]
    ) -> Picture:
        blocks = {key: part.picture.block for key, part in parts.items()}
        layout = arrange(blocks, [(a, b) for a, b, _ in lines], limit, [("out", n) for n in leaving])
        shapes: list[Shape] = []
        for key, part in parts.items():
            shapes += moved(part.picture.shapes, *layout.corners[key])
        drawn = [_line(parts, layout, line, lines) for line in lines]
        self.ports = {key: x + blocks[key].anchor for key, (x, _) in layout.corners.items() if key[0] in ("in", "out")}
        return Picture(
            (*drawn, *shapes), Block(layout.width, layout.height, layout.width / 2), layout.height, layout.width
        )

    def _source(self, number: int) -> Part:
        picture = source(self._label(number))
        return Part(picture, {}, {number: (picture.block.anchor, picture.bottom)})

    def _step(self, step: Step, limit: float, narrow: bool = False) -> Part:
        results = [self._label(n) for n in step.results if self.uses[n]]
        held = {n: self._label(n, step) for n in step.operands if self.graph.signals[n].kind in (*HELD, "constant")}
        labels = _without_twins(list(dict.fromkeys(held.values())))
        picture = card(self.formulas.lines(step), results, labels, None if narrow else limit)
        return Part(picture, {}, dict.fromkeys(step.results, (picture.block.anchor, picture.bottom)))

    def _frame(self, around: tuple[Frame, ...], limit: float) -> Part:
        """A frame around one of several equal layers, with its lines passed through its edges."""
        frame = around[-1]
        inner = self._level(around, limit - 2 * FRAME)
        ports = self.ports
        title = self._title(frame)
        wide = max(inner.block.width, line_width(*title)) + 2 * FRAME
        left, high = (wide - inner.block.width) / 2, inner.block.height + HEAD + FRAME
        places = {key: x + left for key, x in ports.items()}
        entries = {n: (x, HEAD) for (kind, n), x in places.items() if kind == "in"}
        exits = {n: (x, HEAD + inner.block.height) for (kind, n), x in places.items() if kind == "out"}
        if not any(
            _free([x for x, _ in entries.values()], line_width(*title), wide)
        ):  # no room beside the lines that enter
            title = (title[0], frame.path)
        middle = _clear([x for x, _ in entries.values()], line_width(*title), wide)
        shapes = (Box("frame", 0, 0, wide, high), Text(middle, 20, *title), *moved(inner.shapes, left, HEAD))
        anchor = sum(x for x, _ in entries.values()) / max(1, len(entries)) or wide / 2
        return Part(Picture(shapes, Block(wide, high, anchor), high, wide), entries, exits)

    def _title(self, frame: Frame) -> tuple[str, str]:
        count = self.formulas.size(frame.formula)
        passed = [
            f"{self.names[b]} is the next one's {self.names[a]}" for a, b in frame.carried.items() if b in self.names
        ]
        return f"× {count}", ", ".join([frame.path, *passed[:1]])

    def _label(self, number: int, step: Step | None = None) -> Label:
        signal = self.graph.signals[number]
        shape = self.formulas.shape(signal.shape)
        if signal.kind not in HELD:
            look = {"input": "input", "constant": "constant"}.get(signal.kind, "result")
            return Label(look, self.names[number], shape)  # pyright: ignore[reportArgumentType]
        several = (
            "" if signal.repeats == ONE or self._framed(step) else f" each, × {self.formulas.size(signal.repeats)}"
        )
        look = "parameter" if signal.kind == "parameter" else "constant"
        full, name = self._full(signal, step), short(signal.name)
        return Label(look, name, shape + several, full) if len(name) == 1 else Label(look, full, shape + several)

    def _framed(self, step: Step | None) -> bool:
        return step is not None and bool(self.home[id(step)])

    def _full(self, signal: Signal[Polynomial], step: Step | None) -> str:
        """The name of a parameter within the frame that its step stands in."""
        frames = self.home[id(step)] if step else ()
        path = frames[-1].path if frames else ""
        return signal.name.removeprefix(f"{path}.*.") if path else signal.name


def _port(number: int) -> Part:
    """The place where a line passes the edge of a frame."""
    place = {number: (8.0, 0.0)}
    return Part(Picture((), Block(16, 0, 8), 0, 0), place, place)


def _without_twins(labels: Sequence[Label]) -> list[Label]:
    """Leave out the whole name of a bias below its weight, whose name says it."""
    paths = [label.full.rpartition(".")[0] for label in labels]
    return [
        replace(label, full="") if label.full and path in paths[:n] else label
        for n, (label, path) in enumerate(zip(labels, paths, strict=True))
    ]


def _too_wide(row: Sequence[Part], limit: float) -> bool:
    return sum(part.picture.block.width + GAP for part in row) - GAP > limit


def _clear(taken: Sequence[float], wide: float, across: float) -> float:
    """The middle of a title that stands on the left, or on the right if a line enters there."""
    on_left, _ = _free(taken, wide, across)
    return FRAME + wide / 2 if on_left else across - FRAME - wide / 2


def _free(taken: Sequence[float], wide: float, across: float) -> tuple[bool, bool]:
    """Whether a title of this width meets no line on the left of a frame, and on its right."""
    return all(x > FRAME + wide + 6 for x in taken), all(x < across - FRAME - wide - 6 for x in taken)


def _line(
    parts: Mapping[Key, Part], layout: Layout, line: tuple[Key, Key, int], lines: Sequence[tuple[Key, Key, int]]
) -> Line:
    begin, end, number = line
    (x, y), (dx, dy) = layout.corners[begin], parts[begin].exits[number]
    points = [(x + dx, y + dy), (x + dx, layout.floors[begin])]
    for lane, top, bottom in layout.lanes[begin, end]:
        points += [(lane, top), (lane, bottom)]
    points.append(_entry(parts, layout, line, lines))
    return Line(tuple(points), arrow=end[0] not in ("out", "frame"))


def _entry(
    parts: Mapping[Key, Part], layout: Layout, line: tuple[Key, Key, int], lines: Sequence[tuple[Key, Key, int]]
) -> tuple[float, float]:
    """Where a line meets its end: side by side with the others that end there, in the order in which they come."""
    _, end, number = line
    x, y = layout.corners[end]
    if number in parts[end].entries:
        dx, dy = parts[end].entries[number]
        return x + dx, y + dy
    mine = [other for other in lines if other[1] == end]
    mine.sort(key=lambda other: _comes_from(parts, layout, other))
    picture = parts[end].picture
    middle = x + picture.block.anchor
    straight = [other for other in mine if abs(_comes_from(parts, layout, other) - middle) < 1]
    place = mine.index(line) - (mine.index(straight[0]) if len(straight) == 1 else (len(mine) - 1) / 2)
    return middle + place * min(30.0, picture.top_width / (2 * len(mine))), y


def _comes_from(parts: Mapping[Key, Part], layout: Layout, line: tuple[Key, Key, int]) -> float:
    lanes = layout.lanes[line[0], line[1]]
    return lanes[-1][0] if lanes else layout.corners[line[0]][0] + parts[line[0]].exits[line[2]][0]


# Shapes as SVG: on a background of its own, so that it can be read in light and dark surroundings.


FILLS = {
    "input": ("#e3f4e4", "#2e7d32"),
    "result": ("#e3f4e4", "#2e7d32"),
    "parameter": ("#dceafb", "#1f5fa8"),
    "constant": ("#eeeeee", "#757575"),
    "step": ("#ffffff", "#5f6b7a"),
    "free step": ("#fff3d6", "#b26a00"),
    "frame": ("none", "#8a5fb5"),
}
INK, PAPER, FLOW = "#1b1f24", "#fcfcfd", "#5f6b7a"
FONTS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"


def svg(shapes: Sequence[Shape], width: float, height: float, title: str) -> str:
    """An SVG document of this size."""
    order = sorted(
        shapes, key=lambda shape: (not (isinstance(shape, Box) and shape.look == "frame"), not isinstance(shape, Line))
    )
    body = "\n".join(_drawn(shape) for shape in order)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" font-family="{FONTS}" font-size="{SIZE}">\n'
        f"<title>{escape(title)}</title>\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto" '
        f'markerUnits="userSpaceOnUse"><path d="M0,0.5 L8,4 L0,7.5 z" fill="{FLOW}"/></marker></defs>\n'
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{PAPER}"/>\n{body}\n</svg>\n'
    )


def _drawn(shape: Shape) -> str:
    if isinstance(shape, Box):
        return _box(shape)
    return _text(shape) if isinstance(shape, Text) else _svg_line(shape)


def _box(box: Box) -> str:
    fill, edge = FILLS[box.look]
    round_ = {"free step": 13, "step": 13, "frame": 12}.get(box.look, 2)
    dashes = ' stroke-dasharray="6 4"' if box.look == "frame" else ""
    place = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    return f'<rect {place} rx="{round_}" fill="{fill}" stroke="{edge}" stroke-width="1.2"{dashes}/>'


def _text(text: Text) -> str:
    spans = [
        span for words, strong in ((text.strong, True), (text.plain, False)) if words for span in _spans(words, strong)
    ]
    if text.strong and text.plain:
        spans.insert(len(_spans(text.strong, True)), "  ")
    place = f'x="{text.x:.1f}" y="{text.y:.1f}" text-anchor="middle" fill="{INK}" xml:space="preserve"'
    return f"<text {place}>{''.join(spans)}</text>"


def _spans(words: str, strong: bool) -> list[str]:
    """Spans of text; what follows a subscript is lifted up again."""
    weight = ' font-weight="bold"' if strong else ""
    spans, low = [], False
    for piece, lowered in pieces(words):
        shift = f' dy="{4 if lowered else -4}"' if lowered != low else ""
        size = f' font-size="{SMALL}"' if lowered else ""
        spans.append(f"<tspan{weight}{shift}{size}>{escape(piece)}</tspan>")
        low = lowered
    return [*spans, '<tspan dy="-4">\u200b</tspan>'] if low else spans


def _svg_line(line: Line) -> str:
    (x, y), *rest = line.points
    path = f"M{x:.1f},{y:.1f}"
    for a, b in rest:
        if line.sideways:
            path += f" C{(x + a) / 2:.1f},{y:.1f} {(x + a) / 2:.1f},{b:.1f} {a:.1f},{b:.1f}"
        elif abs(a - x) < 0.5:
            path += f" L{a:.1f},{b:.1f}"
        else:
            path += f" C{x:.1f},{(y + b) / 2:.1f} {a:.1f},{(y + b) / 2:.1f} {a:.1f},{b:.1f}"
        x, y = a, b
    tip = ' marker-end="url(#tip)"' if line.arrow else ""
    return f'<path d="{path}" fill="none" stroke="{FLOW}" stroke-width="1.4"{tip}/>'
