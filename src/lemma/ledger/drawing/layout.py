"""A layered layout: rows from top to bottom, few crossings, and every line as straight as its neighbours allow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

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
