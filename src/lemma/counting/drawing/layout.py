"""A small layered layout: rows from top to bottom, few crossings, lines as straight as their neighbours allow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

GAP, LANE, ROW_GAP = 18.0, 16.0, 38.0  # between blocks, for a line that passes a row, between rows
ORDERING_SWEEPS, STRAIGHTENING_SWEEPS = 8, 40
Name = tuple[str, Any]  # the kind of a block, and which of its kind
Edge = tuple[Name, Name]


@dataclass(frozen=True)
class LayoutBlock:
    """A block to place."""

    width: float
    height: float
    anchor: float  # distance of its lines from its left edge


@dataclass(frozen=True)
class Layout:
    """The positions of blocks and lines."""

    width: float
    height: float
    corners: Mapping[Name, tuple[float, float]]  # top left ones of blocks
    lanes: Mapping[Edge, Sequence[tuple[float, float, float]]]  # of each line the (x, top, bottom) where it passes rows
    row_bottoms: Mapping[Name, float]  # for each block the lower edge of its row


def arrange(
    blocks: Mapping[Name, LayoutBlock], edges: Sequence[Edge], limit: float, last: Sequence[Name] = ()
) -> Layout:
    """Lay out blocks in rows, with lines between them from top to bottom.

    More and more width is left free in every row for lines that pass, until the layout is within the limit in pixels;
    else the narrowest is returned. Each edge leads to a later block; the blocks in `last` get a final row.
    """
    unique_edges = list(dict.fromkeys(edges))
    levels = [assign_rows(blocks, unique_edges, limit - spare, last) for spare in (0, 3 * LANE, 8 * LANE)]
    layouts = [_Rows(dict(blocks), unique_edges, limit, level).layout() for level in levels]
    return next((layout for layout in layouts if layout.width <= limit), min(layouts, key=lambda layout: layout.width))


def assign_rows(
    blocks: Mapping[Name, LayoutBlock], edges: Sequence[Edge], limit: float, last: Sequence[Name] = ()
) -> dict[Name, int]:
    """Assign each block to a row: the first below all blocks with an edge to it in which `limit` pixels suffice.

    Blocks without incoming edges move down as far as possible; those in `last` get a final row. Returns row indices by
    name.
    """
    level: dict[Name, int] = {}
    used: dict[int, float] = {}
    read = {b for _, b in edges}
    for name, block in blocks.items():
        at = max((level[a] + 1 for a, b in edges if b == name), default=0)
        while used.get(at, 0) and used[at] + GAP + block.width > limit:
            at += 1
        level[name], used[at] = at, used.get(at, -GAP) + GAP + block.width
    for name, block in blocks.items():
        lower = min((level[b] for a, b in edges if a == name), default=0) - 1
        if lower > level[name] and name not in read and used.get(lower, 0) + GAP + block.width <= limit:
            used[lower] = used.get(lower, 0) + GAP + block.width
            level[name] = lower
    bottom = max((level[name] for name in blocks if name not in last), default=-1)
    return {name: bottom + 1 if name in last else at for name, at in level.items()}


@dataclass
class _Rows:
    blocks: dict[Name, LayoutBlock]
    edges: list[Edge]
    limit: float
    level: Mapping[Name, int]
    rows: list[list[Name]] = field(default_factory=list)
    links: list[Edge] = field(default_factory=list)  # edges cut into lines from row to row
    lanes: dict[Edge, list[Name]] = field(default_factory=dict)

    def layout(self) -> Layout:
        """Compute the positions of all blocks and lines."""
        self._add_lanes()
        self._order_rows()
        x = self._straighten()
        left = min(x[name] - block.anchor for name, block in self.blocks.items())
        right = max(x[name] + (block.width - block.anchor) for name, block in self.blocks.items())
        spans: dict[Name, tuple[float, float]] = {}
        y = 0.0
        for row in self.rows:
            height = max((self.blocks[name].height for name in row), default=0)
            spans |= dict.fromkeys(row, (y, y + height))
            y += height + ROW_GAP
        return Layout(
            right - left,
            y - ROW_GAP,
            {name: (x[name] - self.blocks[name].anchor - left, spans[name][0]) for name in self.level},
            {edge: [(x[lane] - left, *spans[lane]) for lane in lanes] for edge, lanes in self.lanes.items()},
            {name: spans[name][1] for name in self.level},
        )

    def _add_lanes(self) -> None:
        """Insert a lane into every row that a line passes, and cut the line into links from row to row."""
        self.rows = [[] for _ in range(max(self.level.values()) + 1)]
        for name in self.blocks:
            self.rows[self.level[name]].append(name)
        for edge in self.edges:
            chain = [edge[0]]
            for row in range(self.level[edge[0]] + 1, self.level[edge[1]]):
                lane = ("lane", (edge[0], row))
                if lane not in self.blocks:
                    self.blocks[lane] = LayoutBlock(LANE, 0, LANE / 2)  # lines from one block share it until they part
                    self.rows[row].append(lane)
                chain.append(lane)
            self.lanes[edge] = chain[1:]
            self.links += pairwise([*chain, edge[1]])
        self.links = list(dict.fromkeys(self.links))

    def _order_rows(self) -> None:
        """Order each row by the mean position of linked blocks, sweeping down and up.

        Keep the order with fewest crossings.
        """
        best, fewest = [list(row) for row in self.rows], self._crossings()
        for sweep in range(ORDERING_SWEEPS):
            down = sweep % 2 == 0
            for index in range(1, len(self.rows)) if down else range(len(self.rows) - 2, -1, -1):
                nearby = {name: at for at, name in enumerate(self.rows[index - 1 if down else index + 1])}
                means: dict[Name, float] = {}
                for at, name in enumerate(self.rows[index]):
                    linked = [
                        nearby[other] for link in self.links for other in link if name in link and other in nearby
                    ]
                    means[name] = sum(linked) / len(linked) if linked else at
                self.rows[index].sort(key=means.__getitem__)
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(row) for row in self.rows], crossings
        self.rows = best

    def _crossings(self) -> int:
        """Return the number of pairs of links that cross."""
        positions = {name: (index, at) for index, row in enumerate(self.rows) for at, name in enumerate(row)}
        ends = [(*positions[a], positions[b][1]) for a, b in self.links]
        return sum(
            first[0] == second[0] and (first[1] - second[1]) * (first[2] - second[2]) < 0
            for number, first in enumerate(ends)
            for second in ends[:number]
        )

    def _straighten(self) -> dict[Name, float]:
        """Return the x coordinate of each block, close to the mean of the blocks linked to it, without overlaps."""
        x = dict.fromkeys(self.blocks, self.limit / 2)
        weights = {name: 1.0 if block.height else 1e-4 for name, block in self.blocks.items()}  # lines give way
        above: dict[Name, list[Name]] = {name: [a for a, b in self.links if b == name] for name in self.blocks}
        below: dict[Name, list[Name]] = {name: [b for a, b in self.links if a == name] for name in self.blocks}
        for linked, rows in [(below, self.rows[::-1]), (above, self.rows)] * (STRAIGHTENING_SWEEPS // 2):
            for row in rows:
                targets: list[float] = []
                for name in row:
                    weight = sum(weights[other] for other in linked[name])
                    pull = sum(weights[other] * x[other] for other in linked[name])
                    targets.append(pull / weight if linked[name] else x[name])
                x |= dict(zip(row, self._separate(row, targets, weights), strict=True))
        return x

    def _separate(self, row: Sequence[Name], targets: Sequence[float], weights: Mapping[Name, float]) -> list[float]:
        """Return x coordinates close to `targets` (weighted least squares) at which no blocks of the row overlap."""
        blocks = [self.blocks[name] for name in row]
        steps = [0.0, *(a.width - a.anchor + GAP + b.anchor for a, b in pairwise(blocks))]
        offsets = list(accumulate(steps))
        pools: list[list[float]] = []  # neighbours that want to overlap are placed together
        for name, want, offset in zip(row, targets, offsets, strict=True):
            pools.append([want - offset, weights[name], 1])
            while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
                (left, light, few), (right, heavy, more) = pools[-2], pools.pop()
                pools[-1] = [(left * light + right * heavy) / (light + heavy), light + heavy, few + more]
        low, high = blocks[0].anchor, self.limit - (blocks[-1].width - blocks[-1].anchor) - offsets[-1]
        flat = [max(low, min(value, high)) for value, _, many in pools for _ in range(int(many))]
        return [value + offset for value, offset in zip(flat, offsets, strict=True)]
