"""The plots of a report with their captions and one legend, or a word on how to get them."""

from collections.abc import Sequence
from html import escape

from lemma.ledger.lines import can_draw
from lemma.studies.page import paragraph, section
from lemma.studies.plots import HOW_TO_INSTALL, Look, draw_curves, draw_intervals, looks
from lemma.studies.row import Row

INTERVALS = "Mean validation perplexity (dot) with its 95 % interval (line), and each seed (tick). Lower is better."
TOKENS = "Validation loss against training tokens: what a model makes of its text."
SECONDS = "Validation loss against training seconds: what it makes of your time."
ONE_POINT = "There are none: each run was validated once, at its end. More points: validations=5."
NOTE = "Each seed is a thin line, the mean of the seeds a thick one. The time of validations is not counted."


def intervals(rows: Sequence[Row]) -> str:
    """The mean of each row with its interval; nothing if there is none, or nothing to draw it with."""
    return _figure(draw_intervals(rows), INTERVALS, "narrow") if can_draw() and _measured(rows) else ""


def curves(rows: Sequence[Row]) -> str:
    """The section of learning curves."""
    if not _measured(rows):
        return ""
    if not any(len(measures.curve) > 1 for row in rows for measures in row.measured):
        return section("Learning curves", paragraph(ONE_POINT))
    if not can_draw():
        return section("Learning curves", paragraph(HOW_TO_INSTALL))
    figures = _figure(draw_curves(rows, "tokens"), TOKENS) + _figure(draw_curves(rows, "seconds"), SECONDS)
    return section("Learning curves", _legend(rows), f'<div class="plots">{figures}</div>', paragraph(NOTE, "note"))


def _legend(rows: Sequence[Row]) -> str:
    items = "".join(f"<li>{_swatch(look)}{escape(look.title)}</li>" for look in looks(rows))
    return f'<ul class="legend">{items}</ul>'


def _swatch(look: Look) -> str:
    dash = "" if look.dash == (1, 0) else f' stroke-dasharray="{" ".join(map(str, look.dash))}"'
    line = f'<line x1="0" y1="5" x2="24" y2="5" stroke="{look.colour}" stroke-width="3"{dash}/>'
    return f'<svg class="swatch" viewBox="0 0 24 10" aria-hidden="true">{line}</svg>'


def _figure(svg: str, caption: str, kind: str = "wide") -> str:
    return f'<figure class="{kind}">{svg}<figcaption>{escape(caption)}</figcaption></figure>'


def _measured(rows: Sequence[Row]) -> bool:
    return any(row.measured for row in rows)
