import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_up import GREEDY, made_up

from lemma.report.curves import COLOURS
from lemma.spec.data import DataSpec
from lemma.spec.studies import Claim, Comparison, Contender, StudySpec
from lemma.studies import result as figures
from lemma.studies.cells import CurvePoint, Loop, Outcome, Talk
from lemma.studies.result import StudyResult, looks, loop_in_words, make_table, mean_curve

EVIL = "<script>alert(1)</script> & \"quotes\" 'n'"
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Checker(HTMLParser):
    """Reads a page strictly: every tag closed in its order, ids once each, texts collected."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "data", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def result(outcomes: list[Outcome], **words: Any) -> StudyResult:
    contenders = tuple(
        Contender(model="rnn", name=name) for name in dict.fromkeys(one.cell.contender for one in outcomes)
    )
    spec = StudySpec(name="s", data=DataSpec(text=("a",)), contenders=contenders, **words)
    return StudyResult(spec, tuple(outcomes), {"text": "a", "SHA-256": "abc"}, {"processor": "two cores"}, Path("out"))


def read_page(outcomes: list[Outcome], folder: Path, **words: Any) -> Checker:
    report = result(outcomes, **words).save(folder)
    checker = Checker()
    checker.feed(report.read_text(encoding="utf-8"))
    checker.close()
    assert not checker.open
    return checker


def test_the_report_is_one_whole_page_that_needs_nothing_else(tmp_path: Path) -> None:
    page = read_page([*made_up("rnn", [8.0, 8.1]), *made_up("lstm", [6.0, 6.1])], tmp_path, question="Which?")
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not page.links
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("svg") == 3 + 2, "intervals, two plots of curves, and a swatch for each row"
    assert not re.search(r"url\((?!#)|@import", (tmp_path / "report.html").read_text())
    for part in ("Which?", "lstm has the lowest", "6.05 ± 0.64", "SHA-256", "two cores", "O what a sample", "stride 1"):
        assert part in page.text


def test_all_text_is_escaped(tmp_path: Path) -> None:
    talks = {"sample": Talk(EVIL, EVIL), "greedy": Talk(EVIL, EVIL * 2, Loop(0, 3, True, EVIL, 0, len(EVIL)))}
    outcomes = [*made_up(EVIL, [8.0, EVIL], {"depth": EVIL}, **talks)]
    claim = Claim(says=EVIL, comparisons=(Comparison(at={"depth": EVIL}, against={"depth": 1}),))
    outcomes += made_up(EVIL, [7.0], {"depth": 1}, **talks)
    page = read_page(outcomes, tmp_path, question=EVIL, grid={"depth": (EVIL, 1)}, claims=(claim,))
    assert "script" not in page.tags
    assert page.text.count(EVIL) > 8
    html = result(outcomes, question=EVIL)._repr_html_()
    assert "<script" not in html


def test_failed_runs_have_their_place_and_a_study_of_failures_still_has_a_page(tmp_path: Path) -> None:
    page = read_page([*made_up("rnn", ["it broke", None]), *made_up("lstm", [6.0, 6.1])], tmp_path)
    assert "rnn, seed 1 failed: it broke" in page.text
    assert "rnn, seed 2 not run yet" in page.text
    empty = read_page(made_up("rnn", ["it broke"]), tmp_path)
    assert "No run came to its end" in empty.text
    assert "svg" not in empty.tags


def test_without_the_plotting_libraries_the_report_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "can_draw", lambda: False)
    page = read_page(made_up("rnn", [8.0, 8.1]), tmp_path)
    assert "svg" not in page.tags
    assert "pip install 'lemma[plots]'" in page.text


def test_claims_stand_in_the_report_with_their_verdict(tmp_path: Path) -> None:
    outcomes = [*made_up("a", [9.0, 9.01], {"depth": 2}), *made_up("a", [7.0, 7.01], {"depth": 4})]
    claim = Claim(says="Deeper is better.", comparisons=(Comparison(at={"depth": 4}, against={"depth": 2}),))
    page = read_page(outcomes, tmp_path, grid={"depth": (2, 4)}, claims=(claim,))
    assert "Deeper is better.heldDepth".casefold() in page.text.casefold()


def test_the_first_round_of_a_loop_is_marked_and_its_repetitions_shortened(tmp_path: Path) -> None:
    talk = Talk("", "well " + "to be " * 40, Loop(5, 6, False, "the hidden vectors", 5, 11))
    read_page(made_up("rnn", [8.0], greedy=talk), tmp_path)
    html = (tmp_path / "report.html").read_text()
    assert '<pre>well <mark>to be </mark><mark class="again">to be ' in html
    assert html.count("to be ") < 15
    assert (
        "Onset 5, period 6: from token 5 on it repeats every 6 tokens. Not proved: the hidden vectors did not" in html
    )


def test_a_loop_of_white_space_is_made_visible(tmp_path: Path) -> None:
    talk = Talk("", "a" + "\n" * 40, Loop(1, 1, True, "the last token", 1, 2))
    read_page(made_up("rnn", [8.0], greedy=talk), tmp_path)
    assert "<pre>a<mark>↵</mark>" in (tmp_path / "report.html").read_text()


def test_loops_are_told_in_words() -> None:
    assert loop_in_words(GREEDY) == (
        "Onset 0, period 6: from token 0 on it repeats every 6 tokens. Proved: the last 7 tokens came back."
    )
    assert loop_in_words(Talk("", "abc")) == "No loop as far as this goes."


def test_mean_curves_go_as_far_as_all_seeds_do() -> None:
    curves = [[CurvePoint(10, 1.0, 4.0), CurvePoint(20, 2.0, 3.0)], [CurvePoint(10, 3.0, 2.0)]]
    assert mean_curve(curves) == [CurvePoint(10, 2.0, 3.0)]


def test_more_rows_than_colours_are_told_apart_by_dashes() -> None:
    rows = make_table([outcome for number in range(15) for outcome in made_up(f"m{number}", [5.0])]).rows
    assert len({(look.colour, look.dash) for look in looks(rows)}) == 15 > len(COLOURS)


def test_saving_leaves_the_four_files_and_nothing_half_written(tmp_path: Path) -> None:
    report = result(made_up("rnn", [8.0, 8.1])).save(tmp_path / "deep" / "folder")
    assert sorted(file.name for file in report.parent.iterdir()) == [
        "report.html",
        "results.json",
        "table.csv",
        "table.md",
    ]
    assert "Report: out/report.html" in str(result(made_up("rnn", [8.0])))


def test_a_loop_of_short_lines_does_not_fill_the_page(tmp_path: Path) -> None:
    talk = Talk("", "so\n" * 90, Loop(0, 3, True, "the last token", 0, 3))
    read_page(made_up("rnn", [8.0], greedy=talk), tmp_path)
    assert (tmp_path / "report.html").read_text().count("so\n") == 1 + 6


def test_one_validation_a_run_is_no_curve(tmp_path: Path) -> None:
    page = read_page(made_up("rnn", [8.0], curve=(CurvePoint(5000, 2.5, 2.5),)), tmp_path)
    assert "each run was validated once, at its end" in page.text
    assert page.tags.count("svg") == 1, "the intervals alone"
