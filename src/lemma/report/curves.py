"""Curves drawn as SVG that stands in a page itself: error against norm, time against length, loss against position."""

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

# Okabe and Ito's colours, which people with any kind of colour vision tell apart; their yellow is too pale on paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
FONT = "Arial, Helvetica, Liberation Sans, sans-serif"
NO_PLOT = "The plot was left out, since altair and vl-convert are not installed: pip install 'lemma[plots]'."
DASH = (5, 4)
CUT = "{} that reach further are cut at the edge."
WIDTH, HEIGHT = 460, 280


@dataclass(frozen=True)
class Curve:
    """One line of a plot; `low` and `high` make a band around it, `dots` mark what was measured.

    Bands that reach far past all lines are cut off there.
    """

    title: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    dashed: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Plot:
    """Curves over one axis, what the axes are, and a line where something happens (the trained length)."""

    x: str
    y: str
    curves: tuple[Curve, ...]
    log_x: bool = False
    log_y: bool = False
    rule: float | None = None
    caption: str = ""
    bars: bool = False
    """Intervals as thin bars in place of bands."""
    ticks: tuple[str, ...] = ()
    """Names for x = 0, 1, 2, …"""
    joined: bool = True
    """Whether lines join the points; not where they are no sequence."""

    @property
    def whole_caption(self) -> str:
        """The caption, and whether what is drawn around the lines goes on past the edge."""
        return f"{self.caption} {CUT.format('Bars' if self.bars else 'Bands')}" if is_cut(self) else self.caption

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def svg(self) -> str:
        """Draw it without a browser or the network; altair and vl-convert must be installed."""
        import altair

        layers = [_bands(self), _lines(self), *([_rule(self)] if self.rule is not None else [])]
        chart = altair.layer(*layers).properties(width=WIDTH, height=HEIGHT)
        return to_svg(chart.resolve_scale(strokeDash="independent"))


def can_draw() -> bool:
    """Whether the libraries that draw are installed."""
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError:
        return False
    return True


def to_svg(chart: Any) -> str:
    """Render a chart in the house's plain dress."""
    text = io.StringIO()
    plain = chart.configure(background="transparent", font=FONT).configure_view(stroke=None)
    plain.configure_axis(labelFontSize=12, titleFontSize=12, titleFontWeight="normal").save(text, format="svg")
    return text.getvalue()


def _lines(plot: Plot) -> Any:
    import altair

    rows = [
        {"x": x, "y": y, "curve": curve.title, "dash": curve.dashed, "dot": curve.dots}
        for curve in plot.curves
        for x, y in zip(curve.x, curve.y, strict=True)
    ]
    dash = altair.condition("datum.dash", altair.value(list(DASH)), altair.value([1, 0]))
    base = altair.Chart(altair.InlineData(values=rows)).encode(x=_axis(plot, "x"), y=_axis(plot, "y"), color=_hue(plot))
    dots = base.mark_circle(size=45, opacity=1).transform_filter("datum.dot")
    if not plot.joined:
        return dots
    return base.mark_line(strokeWidth=2.5).encode(strokeDash=dash, detail="curve:N") + dots


def _bands(plot: Plot) -> Any:
    import altair

    bottom, top = band_limits(plot)
    rows = [
        {"x": x, "low": max(low, bottom), "high": min(high, top), "curve": curve.title}
        for curve in plot.curves
        for x, low, high in zip(curve.x, curve.low, curve.high, strict=False)  # none where a curve has no band
        if low <= top and high >= bottom
    ]
    chart = altair.Chart(altair.InlineData(values=rows))
    base = chart.mark_rule(opacity=0.6) if plot.bars else chart.mark_area(opacity=0.16)
    low = altair.Y("low:Q", scale=_scale(plot.log_y), title=plot.y)
    return base.encode(x=_axis(plot, "x"), y=low, y2="high:Q", color=_hue(plot))


def band_limits(plot: Plot) -> tuple[float, float]:
    """How far bands are drawn: past the lines by half their height, so that one wide interval does not flatten all.

    >>> band_limits(Plot("x", "y", (Curve("a", (0.0, 1.0), (1.0, 3.0)),)))
    (0.0, 4.0)
    """
    heights = [y for curve in plot.curves for y in curve.y]
    room = (max(heights) - min(heights)) / 2
    if plot.log_y or not room:
        return -inf, inf
    return min(heights) - room, max(heights) + room


def is_cut(plot: Plot) -> bool:
    """Whether some band is not drawn to its end."""
    bottom, top = band_limits(plot)
    return any(min(curve.low, default=top) < bottom or max(curve.high, default=bottom) > top for curve in plot.curves)


def _rule(plot: Plot) -> Any:
    import altair

    mark = altair.Chart(altair.InlineData(values=[{"x": plot.rule}])).mark_rule(color="#7F7F7F", strokeDash=[2, 3])
    return mark.encode(x=_axis(plot, "x"))


def _axis(plot: Plot, name: str) -> Any:
    import altair

    log, title = getattr(plot, f"log_{name}"), getattr(plot, name)
    channel = altair.X if name == "x" else altair.Y
    values = sorted({x for curve in plot.curves for x in curve.x}) if log and name == "x" else None
    if name == "x" and plot.ticks:
        return channel("x:Q", title=title, axis=_named(plot.ticks), scale=altair.Scale(nice=False, padding=16))
    shown = altair.Axis(values=values, format=",~r") if values else altair.Axis(tickCount=6, grid=name == "y")
    return channel(f"{name}:Q", title=title, scale=_scale(log), axis=shown)


def _named(ticks: Sequence[str]) -> Any:
    import altair

    places = list(range(len(ticks)))
    return altair.Axis(
        values=places, labelExpr=f"{json.dumps(list(ticks))}[datum.value]", labelOverlap=True, grid=False
    )


def _scale(log: bool) -> Any:
    import altair

    return altair.Scale(type="log", nice=False, padding=12) if log else altair.Scale(zero=False, nice=True)


def _hue(plot: Plot) -> Any:
    import altair

    titles = [curve.title for curve in plot.curves]
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(titles))]
    columns = legend_columns(titles)
    marks = {"symbolType": "stroke", "symbolOpacity": 1, "symbolStrokeWidth": 3, "symbolSize": 200}
    legend = altair.Legend(title=None, orient="top", columns=columns, labelLimit=0, labelFontSize=12, **marks)
    return altair.Color("curve:N", scale=altair.Scale(domain=titles, range=colours), legend=legend)


def legend_columns(titles: Sequence[str]) -> int:
    """How many names stand side by side above a plot.

    >>> legend_columns(["measured", "exact formula"])
    2
    """
    return max(1, min(len(titles), WIDTH // (30 + 7 * max(map(len, titles), default=1))))
