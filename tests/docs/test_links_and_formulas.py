"""Formulas rendered as MathML and detection of dead links."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from pages import PageError
from pages.links import check_site, troubles

ROOT = Path(__file__).parents[2]
SPAN, DIV = '<span class="arithmatex">\\({}\\)</span>', '<div class="arithmatex">\\[{}\\]</div>'


def drawn(latex: str, form: str = SPAN) -> str:
    formulas = pytest.importorskip("pages.formulas", reason="needs latex2mathml: pip install 'lemma-lm[docs]'")
    return formulas.with_formulas(f"<p>{form.format(latex)}</p>")


@pytest.mark.parametrize(
    "latex", [r"\frac{a}{b} &lt; \sqrt{d_k}", r"\hat{y} - y", r"|V|\,(d + d_h)", r"\begin{matrix}a &amp; b\end{matrix}"]
)
def test_formulas_become_well_formed_mathml(latex: str) -> None:
    page = ElementTree.fromstring(drawn(latex))
    math = page.find("{http://www.w3.org/1998/Math/MathML}math")
    assert math is not None and math.get("display") == "inline" and "".join(math.itertext()).strip()
    assert math.get("alttext") is not None


def test_displayed_formulas_are_blocks_and_code_keeps_dollars() -> None:
    assert '<div class="formula"><math' in drawn(r"x^2", DIV) and 'display="block"' in drawn(r"x^2", DIV)
    code = "<pre><code>$ lemma count rnn</code></pre><p>$LEMMA_HOME</p>"
    formulas = pytest.importorskip("pages.formulas")
    assert formulas.with_formulas(code) == code


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "more").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top">A</h1><a href="more/b.html#part">b</a><a href="https://example.org/x">out</a>'
        '<img src="p.png"><a href="#top">up</a><a href="mailto:a@b.c">write</a>'
    )
    (tmp_path / "more/b.html").write_text('<h2 id="part">B</h2><a href="../index.html">back</a><a href="/p.png">p</a>')
    (tmp_path / "p.png").write_bytes(b"")
    (tmp_path / "a.css").write_text("p { background: url(p.png) }")
    return tmp_path


def test_valid_site_has_no_errors(site: Path) -> None:
    assert troubles(site) == []
    check_site(site)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ('<a href="gone.html">x</a>', "'gone.html': no such file"),
        ('<a href="index.html#gone">x</a>', "'index.html#gone': no such anchor"),
        ('<a href="#gone">x</a>', "'#gone': no such anchor"),
        ('<img src="gone.png">', "'gone.png': no such file"),
        ('<a href="https://">x</a>', "'https://': not an address"),
        ('<a href="javascript:alert(1)">x</a>', "not an address"),
        ('<script src="https://cdn.example.org/x.js"></script>', "fetched from elsewhere"),
        ('<link rel="stylesheet" href="//fonts.example.org/x.css">', "fetched from elsewhere"),
    ],
)
def test_each_kind_of_site_error_is_detected(site: Path, wrong: str, why: str) -> None:
    (site / "more" / "c.html").write_text(wrong.replace("index.html#", "../index.html#"))
    assert [why.replace("index.html#", "../index.html#") in trouble for trouble in troubles(site)] == [True]
    with pytest.raises(PageError, match=r"c\.html"):
        check_site(site)


def test_external_styles_and_missing_builds_are_detected(site: Path, tmp_path: Path) -> None:
    (site / "b.css").write_text("@import 'https://fonts.example.org/x.css'; p { src: url(//cdn.example.org/f.woff) }")
    assert len(troubles(site)) == 2
    with pytest.raises(PageError, match="make docs"):
        check_site(tmp_path / "more")
