"""From the graph to shapes: a card for each step, a frame around repeated layers, and the lines between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lemma.ledger.drawing.cards import Label, Picture, card, source
from lemma.ledger.drawing.formulas import Formulas, short
from lemma.ledger.drawing.graph import HELD, Frame, Graph, Signal, Step
from lemma.ledger.drawing.layout import GAP, Block, Key, Layout, arrange, rows_of
from lemma.ledger.drawing.shapes import Box, Line, Shape, Text, line_width, moved
from lemma.ledger.polynomial import ONE, Polynomial

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
        self.formulas = Formulas(graph, names, order)
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
