"""Plots on a page, or the sentence that says why there are none."""

from collections.abc import Sequence
from html import escape

from lemma.ledger.lines import NO_PLOT, Plot, can_draw
from lemma.studies.page import paragraph, section


def figure(plot: Plot, kind: str = "") -> str:
    """One plot with its caption."""
    opened = f'<figure class="{kind}">' if kind else "<figure>"
    return f"{opened}{plot.svg()}<figcaption>{escape(plot.whole_caption)}</figcaption></figure>"


def figures(plots: Sequence[Plot]) -> str:
    """Plots side by side, where they can be drawn."""
    if not can_draw():
        return paragraph(NO_PLOT)
    return f'<div class="plots">{"".join(map(figure, plots))}</div>'


def plots_section(plots: Sequence[Plot], otherwise: str = "") -> str:
    """The page's part with all plots; without any, what is said instead."""
    if plots:
        return section("Plots", figures(plots))
    return section("Plots", paragraph(otherwise)) if otherwise else ""
