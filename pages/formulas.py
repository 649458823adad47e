"""A hook of the site: formulas written as `$…$` and `$$…$$` become MathML, which browsers draw without a script."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAYED = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def drawn(latex: str, display: str) -> str:
    """A formula as MathML, with what was written for those who copy it.

    >>> "<msup>" in drawn("x^2", "inline")
    True
    """
    written = html.unescape(latex).strip()
    math = convert(written, display=display)
    return math.replace("<math ", f'<math alttext="{html.escape(written)}" ', 1)


def with_formulas(page: str) -> str:
    """A page's HTML with every formula drawn.

    >>> with_formulas('<p><span class="arithmatex">\\\\(d_h\\\\)</span></p>').count("<msub>")
    1
    """
    page = INLINE.sub(lambda found: drawn(found[1], "inline"), page)
    return DISPLAYED.sub(lambda found: f'<div class="formula">{drawn(found[1], "block")}</div>', page)


def on_page_content(content: str, **_: Any) -> str:
    """What MkDocs calls with each page's content."""
    return with_formulas(content)
