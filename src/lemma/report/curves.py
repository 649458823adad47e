"""Plots of curves as SVG for a page: error against norm, time against length, loss against position."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

# Okabe and Ito's colours, for any kind of colour vision; their yellow is left out, being too pale on paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
FONT = "Arial, Helvetica, Liberation Sans, sans-serif"
NO_PLOT = "The plot was left out, since altair and vl-convert are not installed: pip install 'lemma-lm[plots]'."
WIDTH, HEIGHT = 460, 280
DASHES = ([1, 0], [5, 4], [2, 2], [8, 3, 2, 3])  # the next ones are for titles beyond the colours
LARGE = 1e5  # numbers on the x axis that are written as 100k


@dataclass(frozen=True)
class Curve:
    """A line of a plot through the points (x, y); `low` and `high` bound a band around it, `dots` mark the points.

    Bands that reach far past all lines are cut off there. Curves with one title have one colour: `thin` ones are single
    measurements, of which another curve is the mean.
    """

    title: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    dashed: bool = False
    dots: bool = False
    thin: bool = False


@dataclass(frozen=True)
class Plot:
    """A plot of curves, with titles `x` and `y` of its axes and a vertical line at `rule`, as at a trained length."""

    x: str
    y: str
    curves: tuple[Curve, ...]
    log_x: bool = False
    log_y: bool = False
    rule: float | None = None
    caption: str = ""
    bars: bool = False  # draw intervals as thin bars instead of bands
    ticks: tuple[str, ...] = ()  # names for x = 0, 1, 2, …
    joined: bool = True  # whether lines join the points; not where the points are no sequence

    @property
    def full_caption(self) -> str:
        """The caption, with a note if a band or bar of a curve is cut off at the edge of the plot."""
        bottom, top = band_limits(self)
        is_cut = any(
            min(curve.low, default=top) < bottom or max(curve.high, default=bottom) > top for curve in self.curves
        )
        cut_note = f" {'Bars' if self.bars else 'Bands'} that reach further are cut at the edge."
        return self.caption + (cut_note if is_cut else "")

    def svg(self) -> str:
        """Draw the plot as an SVG document; the libraries altair and vl-convert must be installed."""
        import altair

        def scale(log: bool) -> Any:
            """Return a logarithmic or linear axis scale."""
            return altair.Scale(type="log", nice=False, padding=12) if log else altair.Scale(zero=False, nice=True)

        largest = max((x for curve in self.curves for x in curve.x), default=0.0)
        x_scale = scale(self.log_x)
        x_axis = altair.Axis(tickCount=6, grid=False, format="~s" if largest >= LARGE else altair.Undefined)
        if self.ticks:
            names = f"{json.dumps(list(self.ticks))}[datum.value]"
            x_axis = altair.Axis(values=list(range(len(self.ticks))), labelExpr=names, labelOverlap=True, grid=False)
            x_scale = altair.Scale(nice=False, padding=16)
        elif self.log_x:
            x_axis = altair.Axis(values=sorted({x for curve in self.curves for x in curve.x}), format=",~r")
        x = altair.X("x:Q", title=self.x, scale=x_scale, axis=x_axis)
        y = altair.Y("y:Q", title=self.y, scale=scale(self.log_y), axis=altair.Axis(tickCount=6, grid=True))
        titles = list(dict.fromkeys(curve.title for curve in self.curves))
        legend = altair.Legend(
            title=None,
            orient="top",
            columns=legend_columns(titles),
            labelLimit=0,
            labelFontSize=12,
            symbolType="stroke",
            symbolOpacity=1,
            symbolStrokeWidth=3,
            symbolSize=200,
        )
        colours = altair.Scale(domain=titles, range=[COLOURS[at % len(COLOURS)] for at in range(len(titles))])
        colour = altair.Color("curve:N", scale=colours, legend=legend)

        bottom, top = band_limits(self)
        bands = [
            {"x": at, "low": max(low, bottom), "high": min(high, top), "curve": curve.title}
            for curve in self.curves
            for at, low, high in zip(curve.x, curve.low, curve.high, strict=False)  # none where a curve has no band
            if low <= top and high >= bottom
        ]
        chart = altair.Chart(altair.InlineData(values=bands))
        chart = chart.mark_rule(opacity=0.6) if self.bars else chart.mark_area(opacity=0.16)
        low = altair.Y("low:Q", scale=scale(self.log_y), title=self.y)
        layers: list[Any] = [chart.encode(x=x, y=low, y2="high:Q", color=colour)]

        points = [
            {"x": at, "y": height, "curve": curve.title, "line": line, "dot": curve.dots, "thin": curve.thin}
            for line, curve in enumerate(self.curves)
            for at, height in zip(curve.x, curve.y, strict=True)
        ]
        chart = altair.Chart(altair.InlineData(values=points)).encode(x=x, y=y, color=colour)
        size = altair.condition("datum.thin", altair.value(14), altair.value(45))
        dots = chart.mark_circle(opacity=1).encode(size=size).transform_filter("datum.dot")
        dashed = {curve.title for curve in self.curves if curve.dashed}
        patterns = [DASHES[((title in dashed) + at // len(COLOURS)) % len(DASHES)] for at, title in enumerate(titles)]
        dash = altair.StrokeDash("curve:N", scale=altair.Scale(domain=titles, range=patterns), legend=legend)
        lines = chart.encode(strokeDash=dash, detail="line:N")
        thin = lines.mark_line(strokeWidth=1, opacity=0.35).transform_filter("datum.thin")
        lines = thin + lines.mark_line(strokeWidth=2.5).transform_filter("!datum.thin")
        layers.append(lines + dots if self.joined else dots)
        if self.rule is not None:
            chart = altair.Chart(altair.InlineData(values=[{"x": self.rule}]))
            layers.append(chart.mark_rule(color="#7F7F7F", strokeDash=[2, 3]).encode(x=x))
        chart = altair.layer(*layers).properties(width=WIDTH, height=HEIGHT)
        return to_svg(chart)


def can_draw() -> bool:
    """Return whether plots can be drawn: altair and vl-convert are installed."""
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError:
        return False
    return True


def to_svg(chart: Any) -> str:
    """Render an altair chart as SVG text with Lemma's fonts."""
    text = io.StringIO()
    styled = chart.configure(background="transparent", font=FONT).configure_view(stroke=None)
    styled.configure_axis(labelFontSize=12, titleFontSize=12, titleFontWeight="normal").save(text, format="svg")
    return text.getvalue()


def band_limits(plot: Plot) -> tuple[float, float]:
    """Return (lowest, highest) y that bands are drawn to: half the curves' height beyond them; no limit on a log axis.

    >>> band_limits(Plot("x", "y", (Curve("a", (0.0, 1.0), (1.0, 3.0)),)))
    (0.0, 4.0)
    """
    heights = [y for curve in plot.curves for y in curve.y]
    margin = (max(heights) - min(heights)) / 2
    if plot.log_y or not margin:
        return -inf, inf
    return min(heights) - margin, max(heights) + margin


def legend_columns(titles: Sequence[str]) -> int:
    """Return the number of columns of a legend with these titles that fit the width of a plot.

    >>> legend_columns(["measured", "exact formula"])
    2
    """
    return max(1, min(len(titles), WIDTH // (30 + 7 * max(map(len, titles), default=1))))
