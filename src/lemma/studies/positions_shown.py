"""Loss against position, as a plot, a table and sentences."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lemma.ledger.lines import NO_PLOT, Curve, Plot, can_draw
from lemma.studies.drawn import figure
from lemma.studies.page import grid, paragraph, section
from lemma.studies.row import Row
from lemma.studies.statistics import Estimate, estimate
from lemma.typeset import table

NAME, NONE = "positions", "–"
NOTE = (
    "Each piece of held-out text is read from its beginning; position p has p tokens before it, and all are seen. "
    "Mean over the pieces, with the 95 % interval over the seeds."
)


def section_of(rows: Sequence[Row]) -> str:
    """The plot and the table of losses by stretch of the text."""
    measured = [row for row in rows if _found(row)]
    if not measured:
        return ""
    drawn = figure(plot_of(measured), "narrow") if can_draw() else paragraph(NO_PLOT)
    header, *lines = _table(measured)
    table = grid(header, [("", line) for line in lines])
    notes = "".join(paragraph(sentence, "note") for sentence in _ends(measured))
    return section("Loss against position", drawn, table, paragraph(NOTE, "note"), notes)


def plot_of(rows: Sequence[Row]) -> Plot:
    """One curve a row, a band for its seeds, and a line at the trained length."""
    trained = _found(rows[0])[0]["trained"]
    caption = f"Validation loss against position. The dotted line is the trained length, {trained}."
    return Plot("position", "loss (nats a token)", tuple(map(_curve, rows)), rule=float(trained), caption=caption)


def _curve(row: Row) -> Curve:
    found = _found(row)
    points = [estimate(losses) for losses in zip(*(one["losses"] for one in found), strict=True)]
    low, high = (tuple(p.low for p in points), tuple(p.high for p in points)) if len(found) > 1 else ((), ())
    return Curve(row.title, tuple(found[0]["positions"]), tuple(point.mean for point in points), low, high)


def stretches(row: Row) -> list[Estimate | None]:
    """The mean loss within the trained length, within the second of that length, and so on; None where it cannot go."""
    found = _found(row)
    trained, count = found[0]["trained"], -(-found[0]["asked"] // found[0]["trained"])
    return [_between(found, place * trained, (place + 1) * trained) for place in range(count)]


def _between(found: Sequence[Mapping[str, Any]], begin: int, end: int) -> Estimate | None:
    means = []
    for one in found:
        inside = [loss for at, loss in zip(one["positions"], one["losses"], strict=True) if begin < at <= end]
        means += [sum(inside) / len(inside)] if inside else []
    return estimate(means) if means else None


def _table(rows: Sequence[Row]) -> list[list[str]]:
    columns = max(len(stretches(row)) for row in rows)
    header = ["model", *(f"{place}T to {place + 1}T" if place else "up to T" for place in range(columns))]
    lines = [[row.title, *(NONE if one is None else str(one) for one in stretches(row))] for row in rows]
    return [header, *(line + [NONE] * (columns + 1 - len(line)) for line in lines)]


def text_of(rows: Sequence[Row]) -> str:
    """The table of losses by stretch of the text."""
    measured = [row for row in rows if _found(row)]
    if not measured:
        return ""
    lines = _table(measured)
    trained = _found(measured[0])[0]["trained"]
    return "\n".join([f"Loss by position, T = {trained} the trained length", *table(lines, left=())])


def sentences_of(rows: Sequence[Row]) -> Iterator[str]:
    """Say how each row fares past the trained length, and which is best at the far end."""
    measured = [row for row in rows if _found(row)]
    far = [(row, ends) for row in measured if (ends := stretches(row))[-1] is not None and len(ends) > 1]
    for row, ends in sorted(far, key=lambda pair: pair[1][-1].mean if pair[1][-1] else 0.0):
        near, last = ends[0], ends[-1]
        if near and last:
            gap = f"{last.mean - near.mean:+.2f}".replace("-", "−")
            yield f"{row.title}: loss {near} up to the trained length, {last} in the last stretch ({gap})."
    yield from _ends(measured)


def _ends(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        one = _found(row)[0]
        if one["readable"] < one["asked"]:
            yield f"{row.title} ends at position {one['readable']}: it has no vectors for later positions."


def summary_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Means and margins by row: along the curve, and by stretch."""
    return {row.title: _plain(row) for row in rows if _found(row)}


def _plain(row: Row) -> dict[str, Any]:
    curve = _curve(row)
    means = [one and {"loss": one.mean, "margin": one.margin} for one in stretches(row)]
    return {"trained": _found(row)[0]["trained"], "positions": curve.x, "losses": curve.y, "stretches": means}


def _found(row: Row) -> list[Mapping[str, Any]]:
    return [one.more[NAME] for one in row.measured if NAME in one.more]
