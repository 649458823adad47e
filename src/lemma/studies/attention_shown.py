"""Entropy and distance of each head, as plots, a table and sentences; and whether shaping them helped."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from lemma.ledger.lines import Curve, Plot
from lemma.studies.drawn import figures
from lemma.studies.page import grid, paragraph, section
from lemma.studies.row import Row
from lemma.studies.shaping import helped
from lemma.studies.statistics import Estimate, estimate
from lemma.typeset import table

NAME = "attention"
KINDS = {"entropy": "mean entropy (nats)", "distance": "mean distance (tokens)"}
SHIFT = 0.08  # of the way from one head to the next
NOTE = (
    "Over all rows of attention on held-out text, in pieces of the trained length. Entropy −Σ α ln α, "
    "distance Σ α |t₁ − t₂|."
)


def section_of(rows: Sequence[Row]) -> str:
    """The heads of all rows: two plots and a table."""
    measured = [row for row in rows if _found(row)]
    if not measured:
        return ""
    drawn = figures([plot_of(measured, kind) for kind in KINDS])
    header, *lines = _table(measured)
    return section("What the heads do", drawn, grid(header, [("", line) for line in lines]), paragraph(NOTE, "note"))


def plot_of(rows: Sequence[Row], kind: str) -> Plot:
    """One curve a row over all its heads, in order."""
    places = sorted({(layer, head) for row in rows for layer, head, _ in heads_of(row, kind)})
    shifts = [SHIFT * (number - (len(rows) - 1) / 2) for number in range(len(rows))]
    curves = tuple(_curve(row, kind, places, shift) for row, shift in zip(rows, shifts, strict=True))
    caption = (
        f"The {KINDS[kind]} of each head; layers and heads are counted from 0. The bars are the 95 % intervals "
        "over the seeds. The models stand a little beside each other so that all bars are seen."
    )
    ticks = tuple(f"{layer}.{head}" for layer, head in places)
    return Plot("layer.head", KINDS[kind], curves, caption=caption, bars=True, ticks=ticks)


def _curve(row: Row, kind: str, order: Sequence[tuple[int, int]], shift: float) -> Curve:
    found = heads_of(row, kind)
    points = [one for _, _, one in found]
    several = len(_found(row)) > 1
    low, high = (tuple(max(0.0, one.low) for one in points), tuple(one.high for one in points)) if several else ((), ())
    places = tuple(order.index((layer, head)) + shift for layer, head, _ in found)
    return Curve(row.title, places, tuple(one.mean for one in points), low, high, dots=True)


def heads_of(row: Row, kind: str) -> list[tuple[int, int, Estimate]]:
    """Layer, head and the mean over the seeds, of every head."""
    found = _found(row)
    values = [[layer[kind] for layer in one["layers"]] for one in found]
    return [
        (layer, head, estimate([seed[layer][head] for seed in values]))
        for layer in range(len(values[0]))
        for head in range(len(values[0][layer]))
    ]


def _table(rows: Sequence[Row]) -> list[list[str]]:
    lines = [["model", "layer", "head", *KINDS.values()]]
    for row in rows:
        both = zip(heads_of(row, "entropy"), heads_of(row, "distance"), strict=True)
        lines += [
            [row.title, str(layer), str(head), str(one), str(other)] for (layer, head, one), (_, _, other) in both
        ]
    return lines


def text_of(rows: Sequence[Row]) -> str:
    """One line a row: the means over all heads, and each head's."""
    measured = [row for row in rows if _found(row)]
    if not measured:
        return ""
    lines = _table(measured)
    return "\n".join(table(lines, left=()))


def sentences_of(rows: Sequence[Row]) -> Iterator[str]:
    """Say what heads do on average, and whether shaping helped."""
    for row in rows:
        if _found(row):
            entropy, distance = (over_heads(row, kind) for kind in KINDS)
            yield f"{row.title}: heads have a mean entropy of {entropy} nats and look {distance} tokens back."
    yield from map(str, helped(rows))


def over_heads(row: Row, kind: str) -> Estimate:
    """The mean over all heads, with its interval over the seeds."""
    return estimate([fmean(value for layer in one["layers"] for value in layer[kind]) for one in _found(row)])


def summary_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Every head's means and margins by row, and whether shaping helped."""
    heads = {row.title: {kind: _plain(row, kind) for kind in KINDS} for row in rows if _found(row)}
    return {"rows": heads, "helped": [one.to_dict() for one in helped(rows)]}


def _plain(row: Row, kind: str) -> list[dict[str, Any]]:
    return [
        {"layer": layer, "head": head, "mean": one.mean, "margin": one.margin}
        for layer, head, one in heads_of(row, kind)
    ]


def _found(row: Row) -> list[Mapping[str, Any]]:
    return [one.more[NAME] for one in row.measured if one.more.get(NAME, {}).get("layers")]
