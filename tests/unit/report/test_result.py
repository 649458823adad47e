"""Results are printed, shown and saved in every format, with user text escaped in each."""

import csv
import html
import json
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from lemma.errors import InputError
from lemma.report import result as results
from lemma.report.curves import Curve, Plot
from lemma.report.result import (
    Block,
    Card,
    Cards,
    Facts,
    Figure,
    Fold,
    Heading,
    Image,
    Items,
    Matrix,
    Pre,
    Result,
    Table,
    Text,
    as_markdown,
    check_target,
    plot_blocks,
)
from lemma.report.text import display_width, set_text_width

EVIL = "<script>alert('1 & 2')</script> | *x* `y` $z_1$ \\end 100 %"
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><path d="M0 0"/></svg>'
EVERY: list[Block] = [
    Heading(f"A {EVIL}", 1, underlined=True),
    Text(f"kicker {EVIL}", "kicker"),
    Text(f"found {EVIL}", "finding"),
    Items([f"item {EVIL}"], "note"),
    Table(["name", f"b {EVIL}"], [[f"  row {EVIL}", "1.5"]], f"title {EVIL}", caption=f"caption {EVIL}"),
    Table(["name", "share"], [["one", "0.5"], ["two", "0.25"]], bars=[0.5, 0.25], total=["sum", "0.75"]),
    Table(["name", "formula"], [["d", "d_k·h"]], is_text=True, formulas=[1], row_kinds=["best"]),
    Matrix(f"matrix {EVIL}", ["r"], ["c", EVIL], np.array([[0.25, -np.inf]]), sums=[1.0]),
    Figure(SVG, f"figure {EVIL}"),
    Image(b"\x89PNG", f"image {EVIL}"),
    Image(None, "not here"),
    Facts({f"name {EVIL}": f"value {EVIL}"}),
    Cards(
        [Card(f"card {EVIL}", [Pre([("To be", "prompt"), (EVIL, ""), (" and", "loop"), (" and", "again")])], "note")]
    ),
    Fold(f"fold {EVIL}", [Text("within")], is_open=True),
]


@dataclass(frozen=True)
class ExampleResult(Result):
    title: str
    some: tuple[Block, ...]

    def blocks(self) -> list[Block]:
        return list(self.some)

    def to_dict(self) -> dict[str, Any]:
        return {"title": self.title, "half": 0.5}

    def records(self) -> list[dict[str, Any]]:
        return [{"name": EVIL, "value": 1 / 3}, {"name": "b", "more": 2}]


EXAMPLE_RESULT = ExampleResult(f"all {EVIL}", tuple(EVERY))


class PageParser(HTMLParser):
    """HTML parser that collects tags and text and checks that every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def read(page: str) -> PageParser:
    reader = PageParser()
    reader.feed(page)
    assert not reader.open
    return reader


def test_page_shows_every_block_without_scripts(tmp_path: Path) -> None:
    page = EXAMPLE_RESULT.save(tmp_path / "all.html").read_text(encoding="utf-8")
    result = read(page)
    assert "script" not in result.tags and not re.search(r"https?://(?!www\.w3\.org)", page)
    begins = [
        "A",
        "kicker",
        "found",
        "item",
        "row",
        "title",
        "caption",
        "matrix",
        "figure",
        "name",
        "value",
        "card",
    ]
    for start in begins:
        assert f"{start} {EVIL}" in result.words
    assert html.escape(f"image {EVIL}") in page.replace("&#34;", "&quot;").replace("&#39;", "&#x27;")
    assert SVG in page and "d<sub>k</sub>·h" in page and "not here" in result.words
    assert page.startswith("<!DOCTYPE html>") and "<title>all &lt;script&gt;" in page and "prefers-color-scheme" in page


def test_notebook_html_has_scoped_styles() -> None:
    cell = EXAMPLE_RESULT._repr_html_()
    assert "<html" not in cell and f"kicker {EVIL}" in read(cell).words
    style = cell[cell.index("<style>") + 7 : cell.index("</style>")]
    rules = re.findall(r"([^{}]+)\{", re.sub(r"/\*.*?\*/", "", style, flags=re.S))
    assert all(item.strip().startswith((".lemma", "@media")) for rule in rules for item in rule.split(","))


def test_text_samples_preserve_whitespace() -> None:
    text = " a\n\n  b <c>"
    cell = ExampleResult("x", (Pre([(text, "loop")]),))._repr_html_()
    assert f'<pre><mark class="loop">{html.escape(text)}</mark></pre>' in cell


def test_printed_lines_fit_the_width() -> None:
    with set_text_width(60):
        lines = str(
            ExampleResult("x", (Text("to be or not " * 20), Table(["a", "b"], [["c", "word " * 40]], is_text=True)))
        ).split("\n")
    assert max(map(display_width, lines)) <= 60


def test_printed_text_omits_drawings_and_respects_spacing() -> None:
    blocks = (Heading("T", 1, underlined=True), Text("a"), Text("b", blank_before=True), Figure(SVG), Items(["c", "d"]))
    assert str(ExampleResult("x", blocks)) == "T\n=\na\n\nb\n\nc\nd"


def test_printed_table_may_have_rule_and_caption() -> None:
    table = Table(["name", "n"], [["a", "10"]], underline_header=True, caption="Said.")
    assert str(ExampleResult("x", (table,))) == "name   n\n────  ──\na     10\n\nSaid."


def test_markdown_escapes_special_characters() -> None:
    text = as_markdown(EVERY)
    rows = [line for line in text.split("\n") if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) >= 3 for row in rows)
    assert "<script>" not in text.replace("\\<script\\>", "").split("```")[0]
    assert "&emsp;row" in text
    fenced = as_markdown([Pre([("a ``` b", "")])])
    assert fenced.startswith("````\n") and fenced.endswith("````\n")


def test_svg_is_well_formed_with_tables_matrices_and_figures(tmp_path: Path) -> None:
    root = ElementTree.fromstring(EXAMPLE_RESULT.save(tmp_path / "all.svg").read_text(encoding="utf-8"))
    words = "".join(root.itertext())
    assert "row " in words and "matrix " in words and "figure " in words
    assert sum(element.tag.endswith("}svg") for element in root.iter()) == 2


def test_csv_has_every_column_and_json_every_value(tmp_path: Path) -> None:
    with EXAMPLE_RESULT.save(tmp_path / "all.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [EVIL, "b"] and float(rows[0]["value"]) == 1 / 3 and rows[1]["more"] == "2"
    assert (
        json.loads(EXAMPLE_RESULT.save(tmp_path / "all.json").read_text(encoding="utf-8")) == EXAMPLE_RESULT.to_dict()
    )


def test_json_refuses_nonfinite_values() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        results.as_json({"loss": float("nan")})


def test_unwritable_target_is_refused_early(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown ending of the name '\.htm'\. Did you mean '\.html'\?"):
        EXAMPLE_RESULT.save(tmp_path / "all.htm")
    with pytest.raises(InputError, match="there is no folder"):
        EXAMPLE_RESULT.save(tmp_path / "nowhere" / "all.html")
    with pytest.raises(InputError, match="unknown"):
        check_target(tmp_path / "all.csv", [".html", ".json"])
    assert not list(tmp_path.iterdir())


def test_only_results_with_records_save_as_csv() -> None:
    class EmptyResult(ExampleResult):
        def records(self) -> list[dict[str, Any]]:
            return []

    assert ".csv" not in EmptyResult("x", ()).writers() and ".csv" in EXAMPLE_RESULT.writers()


def test_only_svg_is_inserted_unescaped() -> None:
    with pytest.raises(AssertionError):
        Figure("<img src=x onerror=alert(1)>")


def test_missing_plot_libraries_show_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    plot = Plot("x", "y", (Curve(f"a {EVIL}", (0.0, 1.0), (1.0, 2.0)),), caption="Said.")
    (figure,) = plot_blocks([plot])
    assert isinstance(figure, Figure) and figure.caption == "Said." and "<script" not in figure.svg
    monkeypatch.setattr(results, "can_draw", lambda: False)
    (text,) = plot_blocks([plot])
    assert isinstance(text, Text) and "pip install" in text.text and plot_blocks([]) == []


def test_template_and_stylesheet_are_packaged() -> None:
    folder = Path(results.__file__).parent
    assert {path.name for path in folder.iterdir()} >= {"result.html", "result.css"}
