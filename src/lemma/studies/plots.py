"""Learning curves and intervals as SVG that stands in the page itself."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from lemma.ledger.lines import COLOURS, FONT
from lemma.studies.outcome import CurvePoint
from lemma.studies.row import Row

DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3))
HOW_TO_INSTALL = "The plots were left out, since altair and vl-convert are not installed: pip install 'lemma[plots]'."
AXES = {"tokens": "training tokens", "seconds": "training seconds"}


@dataclass(frozen=True)
class Look:
    """How a row is drawn: more rows than colours are told apart by their dashes."""

    title: str
    colour: str
    dash: tuple[int, ...]


def looks(rows: Sequence[Row]) -> list[Look]:
    """Give each row its colour and dash, in the order of the table."""
    count = len(COLOURS)
    return [
        Look(row.title, COLOURS[place % count], DASHES[place // count % len(DASHES)]) for place, row in enumerate(rows)
    ]


def mean_curve(curves: Sequence[Sequence[CurvePoint]]) -> list[CurvePoint]:
    """Average the validations of several seeds one by one, as far as all of them go."""
    validations = zip(*curves, strict=False)
    columns = (tuple(zip(*points, strict=True)) for points in validations)
    return [CurvePoint(round(fmean(tokens)), fmean(seconds), fmean(loss)) for tokens, seconds, loss in columns]


def draw_curves(rows: Sequence[Row], axis: Literal["tokens", "seconds"]) -> str:
    """Draw validation loss against tokens or seconds: each seed thin, the mean of each row thick."""
    import altair

    room = altair.Axis(minExtent=34, tickCount=6)
    base = altair.Chart().encode(
        x=altair.X("x:Q", title=AXES[axis], axis=altair.Axis(format="~s", tickCount=5)),
        y=altair.Y("loss:Q", title="validation loss (nats a token)", scale=altair.Scale(zero=False), axis=room),
        **_marks(rows),
    )
    seeds = (
        base.mark_line(strokeWidth=1, opacity=0.35).encode(detail="seed:N").properties(data=_data(_seeds(rows, axis)))
    )
    means = base.mark_line(strokeWidth=2.5).properties(data=_data(_means(rows, axis)))
    return _svg(altair.layer(seeds, means).properties(width=400, height=260))


def draw_intervals(rows: Sequence[Row]) -> str:
    """Draw the mean perplexity of each row with its interval, and every seed as a small tick."""
    import altair

    titles = [row.title for row in rows if row.measured]
    room = altair.Axis(labelLimit=240, minExtent=7 * max(map(len, titles)))  # for whatever font the reader has
    marks = {"y": altair.Y("row:N", sort=titles, title=None, axis=room), "color": _colour(rows)}
    ticks = altair.Axis(tickCount=6)
    axis = altair.X("value:Q", title="validation perplexity", scale=altair.Scale(zero=False), axis=ticks)
    means, seeds = altair.Chart(_data(_ends(rows))), altair.Chart(_data(_values(rows)))
    chart = altair.layer(
        means.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q", **marks),
        means.mark_circle(size=90, opacity=1).encode(x=axis, **marks),
        seeds.mark_tick(thickness=1.5, size=14, opacity=0.6).encode(x=axis, **marks),
    )
    return _svg(chart.properties(width=300, height=altair.Step(26)))


def _ends(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The intervals; no perplexity is below 1, however wide the interval of a few seeds may be."""
    scored = [(row.title, row.perplexity) for row in rows if row.perplexity]
    return [{"row": title, "value": one.mean, "low": max(1.0, one.low), "high": one.high} for title, one in scored]


def _values(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [{"row": row.title, "value": measures.perplexity} for row in rows for measures in row.measured]


def _marks(rows: Sequence[Row]) -> dict[str, Any]:
    import altair

    styles = looks(rows)
    dash = altair.Scale(domain=[look.title for look in styles], range=[list(look.dash) for look in styles])
    return {"color": _colour(rows), "strokeDash": altair.StrokeDash("row:N", scale=dash, legend=None)}


def _colour(rows: Sequence[Row]) -> Any:
    import altair

    styles = looks(rows)
    scale = altair.Scale(domain=[look.title for look in styles], range=[look.colour for look in styles])
    return altair.Color("row:N", scale=scale, legend=None)


def _seeds(rows: Sequence[Row], axis: str) -> list[dict[str, Any]]:
    return [
        {"row": row.title, "seed": place, "x": getattr(point, axis), "loss": point.loss}
        for row in rows
        for place, measures in enumerate(row.measured)
        for point in measures.curve
    ]


def _means(rows: Sequence[Row], axis: str) -> list[dict[str, Any]]:
    return [
        {"row": row.title, "x": getattr(point, axis), "loss": point.loss}
        for row in rows
        for point in mean_curve([measures.curve for measures in row.measured])
    ]


def _data(values: list[dict[str, Any]]) -> Any:
    import altair

    return altair.InlineData(values=values)


def _svg(chart: Any) -> str:
    """Render without a browser or the network."""
    text = io.StringIO()
    plain = chart.configure(background="transparent", font=FONT).configure_view(stroke=None)
    plain.configure_axis(labelFontSize=12, titleFontSize=12, titleFontWeight="normal").save(text, format="svg")
    return text.getvalue()
