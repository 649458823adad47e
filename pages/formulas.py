"""A hook of the site: formulas written as `$…$` and `$$…$$` become MathML, which browsers draw without a script."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAYED = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def render_formula(latex: str, display: str) -> str:
    """A formula as MathML, with what was written for those who copy it.

    >>> "<msup>" in drawn("x^2", "inline")
    True
    """
    source = html.unescape(latex).strip()
    math = convert(source, display=display)
    return math.replace("<math ", f'<math alttext="{html.escape(source)}" ', 1)


def with_formulas(page: str) -> str:
    """A page's HTML with every formula drawn.

    >>> with_formulas('<p><span class="arithmatex">\\\\(d_h\\\\)</span></p>').count("<msub>")
    1
    """
    page = INLINE.sub(lambda match: render_formula(match[1], "inline"), page)
    return DISPLAYED.sub(lambda match: f'<div class="formula">{render_formula(match[1], "block")}</div>', page)


def on_page_content(content: str, **_: Any) -> str:
    """Hook of MkDocs, called with the content of each page."""
    return with_formulas(content)
