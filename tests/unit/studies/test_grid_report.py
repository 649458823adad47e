"""Reports of grid studies: the table, verdicts on claims, the conclusion and the page."""

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from study_outcomes import GREEDY, make_outcomes

from lemma.errors import SpecError
from lemma.report import result as results
from lemma.report.curves import COLOURS
from lemma.report.result import as_csv
from lemma.spec.data import DataSpec
from lemma.spec.studies import ClaimComparison, ComparedModel, GridStudy, StudyClaim, read_study
from lemma.studies.cells import group_rows
from lemma.studies.claims import judge_claims
from lemma.studies.grid_report import (
    ChosenRate,
    conclude,
    describe_loop,
    make_table,
    mean_curve,
    plot_learning_curves,
    report_grid,
    trial_blocks,
)
from lemma.studies.measures import CurvePoint, SampleLoop, TextSample
from lemma.studies.result import StudyResult, StudyTable

pytestmark = pytest.mark.draws


def table_of(outcomes: list[Any]) -> StudyTable:
    return make_table(group_rows(outcomes))


# The table


def test_rows_hold_seed_means_and_mark_the_lowest() -> None:
    table = table_of([*make_outcomes("rnn", [8.0, 8.2, 8.1]), *make_outcomes("lstm", [6.0, 6.2, 6.1])])
    assert table.best_row == 1 and [record["best"] for record in table.records] == [False, True]
    assert str(table).splitlines()[:4] == [
        "model    perplexity    bits/byte  parameters  1,000 tokens/s",
        "──────  ───────────  ───────────  ──────────  ──────────────",
        "rnn     8.10 ± 0.25  4.05 ± 0.12       1,234               –",
        "lstm *  6.10 ± 0.25  3.05 ± 0.12       1,234               –",
    ]
    assert "Mean ± half the 95 % interval over 3 seeds (Student's t)." in table.caption


def test_grid_table_has_a_column_per_setting() -> None:
    table = table_of(
        [
            *make_outcomes("a", [3.0, 3.1], {"depth": 2, "tied": True}),
            *make_outcomes("a", [4.0], {"depth": 4, "tied": False}),
        ]
    )
    assert table.header[:3] == ["model", "depth", "tied"]
    assert [row[:3] for row in table.rows] == [["a", "2", "true"], ["a", "4", "false"]]


def test_two_seeds_are_listed_without_interval() -> None:
    table = table_of([*make_outcomes("rnn", [8.0, 8.2]), *make_outcomes("lstm", [6.0, 6.2])])
    assert table.rows[0][1] == "8.000 / 8.200" and "±" not in str(table)
    assert "Two seeds are shown as they are" in table.caption


def test_speed_shows_quartiles_and_tokens_only_if_different() -> None:
    rows = group_rows([*make_outcomes("rnn", [8.0]), *make_outcomes("lstm", [6.0], tokens=4000)])
    table = make_table(rows, {"rnn": [1e-3, 2e-3, 4e-3, 1e-3, 1e-3]})
    assert table.header[-2:] == ["tokens", "1,000 tokens/s"]
    assert [row[-2:] for row in table.rows] == [["5,000", "1 (0.5–1)"], ["4,000", "–"]]
    assert table.records[0]["tokens_per_second"] == 1000 and table.records[1]["tokens_per_second"] is None


def test_single_seed_has_no_interval_and_caption_notes_it() -> None:
    table = table_of(make_outcomes("rnn", [8.0]))
    assert "±" not in table.rows[0][1]
    assert "one seed, which has no interval" in table.caption


def test_failed_and_pending_seeds_are_noted() -> None:
    table = table_of([*make_outcomes("rnn", ["the loss is nan", "out of memory"]), *make_outcomes("lstm", [6.0, None])])
    assert table.rows[0][1] == "–"
    assert table.best_row == 1
    assert table.notes == [
        "rnn, seed 1 failed: the loss is nan",
        "rnn, seed 2 failed: out of memory",
        "lstm, seed 2 not run yet",
    ]
    assert str(table).endswith("\n".join(table.notes))
    assert table_of(make_outcomes("rnn", ["no"])).caption == "No run finished."


def test_csv_and_json_hold_unrounded_values() -> None:
    table = table_of(
        [*make_outcomes("a,b", [1 / 3, 2 / 3], {"depth": 2}), *make_outcomes("c", ["line\nbreak, comma"], {"depth": 4})]
    )
    first, second = csv.DictReader(io.StringIO(as_csv(table.records)))
    assert (first["model"], first["depth"], float(first["perplexity"])) == ("a,b", "2", 0.5)
    assert second["perplexity"] == ""
    assert second["notes"] == "seed 1 failed: line\nbreak, comma"
    assert json.loads(json.dumps(table.to_dict()))["rows"][0]["perplexity"] == 0.5


def test_markdown_table_escapes_names() -> None:
    markdown = table_of([*make_outcomes("a|b", [3.0]), *make_outcomes("c", ["line\nbreak | <b>"])]).to_markdown()
    lines = markdown.splitlines()
    assert all(line.replace("\\|", "").count("|") == 6 for line in lines[:4])
    assert lines[2].startswith("| a\\|b \\* |")
    assert "- c, seed 1 failed: line break \\| \\<b\\>" in lines


def test_row_titles_show_distinguishing_settings() -> None:
    grid = group_rows(
        [*make_outcomes("a", [3.0], {"depth": 2, "N": 3}), *make_outcomes("a", [4.0], {"depth": 4, "N": 3})]
    )
    assert [row.title for row in grid] == ["depth=2, N=3", "depth=4, N=3"]
    both = group_rows([*make_outcomes("a", [3.0], {"depth": 2}), *make_outcomes("b", [4.0], {"depth": 2})])
    assert [row.title for row in both] == ["a, depth=2", "b, depth=2"]
    assert [row.title for row in group_rows(make_outcomes("a", [3.0]))] == ["a"]


# Claims and the conclusion


A6 = read_study("table-a5").claims
Numbers = dict[tuple[int, int], list[float | str | None]]


def verdicts(numbers: Numbers) -> list[str]:
    outcomes = [
        outcome
        for (depth, context), values in numbers.items()
        for outcome in make_outcomes("table-a5", values, {"depth": depth, "context": context})
    ]
    return [item.verdict for item in judge_claims(A6, group_rows(outcomes))]


SOURCE: Numbers = {
    (2, 3): [8.32, 8.33, 8.32],
    (2, 5): [10.63, 10.62, 10.63],
    (4, 3): [8.15, 8.16, 8.16],
    (4, 5): [6.65, 6.64, 6.65],
}


def test_published_numbers_confirm_both_claims() -> None:
    assert verdicts(SOURCE) == ["held", "held"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({(4, 3): [8.52, 8.53, 8.52]}, ["not held", "held"]),
        ({(4, 3): [8.1, 8.6, 8.3]}, ["not decided", "held"]),
        ({(2, 5): [7.02, 7.01, 7.02]}, ["held", "not held"]),
        ({(4, 5): [9.02, 9.01, 9.02]}, ["held", "not held"]),
        ({(4, 5): ["out of memory", None, None]}, ["not measured", "not measured"]),
        ({index: values[:1] for index, values in SOURCE.items()}, ["too few seeds", "too few seeds"]),
        ({index: values[:2] for index, values in SOURCE.items()}, ["too few seeds", "too few seeds"]),
    ],
)
def test_verdicts_follow_the_numbers(changes: Numbers, expected: list[str]) -> None:
    assert verdicts({**SOURCE, **changes}) == expected


def test_clear_refutation_outweighs_noisy_comparisons() -> None:
    assert verdicts({**SOURCE, (4, 3): [8.52, 8.53, 8.52], (2, 5): [1.0, 99.0, 9.0]})[0] == "not held"


def test_findings_report_grid_points_and_difference() -> None:
    rows = group_rows(
        [*make_outcomes("a", [9.0, 9.2, 9.1], {"depth": 2}), *make_outcomes("a", [7.0, 7.2, 7.15], {"depth": 4})]
    )
    claim = StudyClaim(says="Deeper is better.", comparisons=(ClaimComparison(at={"depth": 4}, against={"depth": 2}),))
    ((checked,),) = (item.comparisons for item in judge_claims([claim], rows))
    expected = stats.ttest_rel(np.log([7.0, 7.2, 7.15]), np.log([9.0, 9.2, 9.1]))
    assert checked.finding.startswith(
        "depth=4 against depth=2: 7.12 ± 0.26 against 9.10 ± 0.25, −21.8 % (95 %: −22.8 to"
    )
    assert checked.finding.endswith("expected below 0") and checked.p == pytest.approx(expected.pvalue)
    assert checked.verdict == "held"


def test_p_values_are_corrected_across_all_comparisons() -> None:
    rows = group_rows(
        [
            *make_outcomes("a", [9.0, 9.2, 9.4]),
            *make_outcomes("b", [7.0, 7.2, 7.15]),
            *make_outcomes("c", [8.0, 8.2, 8.4]),
        ]
    )
    two = [
        StudyClaim(says=f"{at} is better.", comparisons=(ClaimComparison(at={"model": at}, against={"model": "a"}),))
        for at in ("b", "c")
    ]
    single = [judge_claims([claim], rows)[0].comparisons[0].p or 0.0 for claim in two]
    both = [item.comparisons[0].p for item in judge_claims(two, rows)]
    assert both == pytest.approx([max(single) if item == max(single) else 2 * item for item in single])


def test_models_are_compared_at_every_grid_point() -> None:
    rows = group_rows(
        [
            *(
                outcome
                for name in ("x", "y")
                for depth in (1, 2)
                for outcome in make_outcomes(name, [5.0, 5.1], {"depth": depth})
            )
        ]
    )
    claim = StudyClaim(says="x beats y.", comparisons=(ClaimComparison(at={"model": "x"}, against={"model": "y"}),))
    findings = [comparison.finding for comparison in judge_claims([claim], rows)[0].comparisons]
    assert [finding.partition(":")[0] for finding in findings] == [
        "model=x against model=y (depth=1)",
        "model=x against model=y (depth=2)",
    ]


@pytest.mark.parametrize(
    ("comparison", "message"),
    [
        ({"at": {"dept": 2}, "against": {"dept": 1}}, "Did you mean 'depth'"),
        ({"at": {"depth": 9}, "against": {"depth": 1}}, "depth = 9 is not in the grid"),
        ({"at": {"depth": 1}, "against": {"model": "a"}}, "must name the same settings"),
        ({"at": {"depth": 1}, "against": {"depth": 1}}, "differ in at least one value"),
    ],
)
def test_claim_without_matching_cells_is_refused(comparison: dict[str, Any], message: str) -> None:
    words = {
        "name": "s",
        "data": DataSpec(text=("a.txt",)).to_dict(),
        "models": [ComparedModel(model="rnn").to_dict()],
        "grid": {"depth": [1, 2]},
        "claims": [{"says": "", "comparisons": [comparison]}],
    }
    with pytest.raises(SpecError) as mistake:
        GridStudy.read(words, "study")
    assert message in str(mistake.value)


def test_conclusion_reports_best_model_and_significant_differences() -> None:
    clear = conclude(
        group_rows([*make_outcomes("lstm", [73.0, 55.0, 55.0]), *make_outcomes("decoder", [35.0, 35.0, 35.0])])
    )
    assert clear[0] == "decoder has the lowest validation perplexity at this budget: 35.0 ± 0.0."
    assert clear[1] == "Significantly higher: lstm by +72.7 % (95 %: +15.1 to +159.2; p = 0.029, d = 3.3)."
    nearby = conclude(
        group_rows(
            [
                *make_outcomes("rnn", [6.0, 6.4, 6.1]),
                *make_outcomes("gru", [9.9, 9.91, 9.9]),
                *make_outcomes("lstm", [6.1, 6.2, 6.1]),
            ]
        )
    )
    assert nearby[0].startswith("lstm has the lowest")
    assert nearby[1].startswith("Significantly higher: gru by +61.5 %")
    assert nearby[2].startswith("rnn does not differ significantly from it: +0.5 %")
    assert nearby[3].startswith("p-values are corrected for all 3 pairs (Holm)")


def test_false_positive_rate_of_best_model_is_controlled() -> None:
    chance = np.random.default_rng(0)
    alarms = 0
    for _ in range(150):
        values = np.exp(2 + 0.05 * chance.normal(size=(5, 4)))
        rows = group_rows(
            [
                item
                for name, subset in zip("abcde", values.tolist(), strict=True)
                for item in make_outcomes(name, subset)
            ]
        )
        alarms += any("Significantly" in output for output in conclude(rows))
    assert alarms <= 15, "at a level of 5 % about 7 of 150 are expected"


def test_two_seeds_are_compared_without_significance_claims() -> None:
    output = conclude(
        group_rows(
            [*make_outcomes("rnn", [8.0, 8.01]), *make_outcomes("gru", [7.0, 7.1]), *make_outcomes("lstm", [6.0, 6.01])]
        )
    )
    assert output[0] == "lstm has the lowest validation perplexity at this budget: 6.000 / 6.010."
    assert output[1] == (
        "It is ahead of every other in both seeds; next is gru with 7.000 / 7.100. "
        "Two seeds are no test: with seeds=3 or more differences get p-values."
    )
    mixed = conclude(group_rows([*make_outcomes("rnn", [8.0, 5.0]), *make_outcomes("lstm", [6.0, 6.01])]))
    assert mixed[1].startswith("Next is rnn with") and not any("ignificant" in item for item in (*output, *mixed))


def test_conclusion_mentions_single_seeds_and_missing_runs() -> None:
    single = conclude(group_rows([*make_outcomes("rnn", [8.0]), *make_outcomes("lstm", [6.0])]))
    assert "One seed is no test" in single[1]
    invalid = conclude(group_rows([*make_outcomes("rnn", [8.0, "nan"]), *make_outcomes("lstm", [None, None])]))
    assert "1 of 4 runs failed; its reason is below the table." in invalid
    assert "2 of 4 runs are still to be run." in invalid
    assert conclude(group_rows(make_outcomes("rnn", ["nan"])))[0].startswith("No run finished")


def test_conclusion_describes_the_trend_of_loss_curves() -> None:
    falling = (CurvePoint(3000, 1.0, 3.0), CurvePoint(4000, 2.0, 2.5), CurvePoint(5000, 2.5, 2.4))
    flat = (*falling[:2], CurvePoint(5000, 2.5, 2.499))
    output = conclude(group_rows([*make_outcomes("a", [8.0], curve=falling), *make_outcomes("b", [9.0], curve=flat)]))
    assert (
        "The curves are still falling; over the last 20 % of the training perplexity fell by: a 9.5 %, b 0.1 %. What "
        "holds at this budget need not hold at a larger one."
    ) in output
    assert any(
        item.startswith("The curves are flat;") for item in conclude(group_rows(make_outcomes("b", [9.0], curve=flat)))
    )


def test_fastest_model_is_reported_only_beyond_timing_noise() -> None:
    rates = [outcome for rate in (0.002, 0.008) for outcome in make_outcomes("lstm", [6.0], {"learning_rate": rate})]
    rows = group_rows([*rates, *make_outcomes("rnn", [8.0], {"learning_rate": 0.002})])
    slow, fast = [4.0, 4.1, 4.2, 4.0], [1.0, 1.1, 1.0, 1.0]
    seconds = {row.title: slow if row.condition == "rnn" else fast for row in rows}
    [output] = [item for item in conclude(rows, (), seconds) if "fastest" in item]
    assert output.startswith("lstm trains fastest, 4.0 × the tokens/s of rnn, the slowest (quartiles 3.9 to 4.0;")
    noisy = {row.title: [1.0, 4.0, 2.0, 9.0] if row.condition == "rnn" else [2.0, 1.0, 5.0, 1.0] for row in rows}
    assert not any("fastest" in item for item in conclude(rows, (), noisy))
    same = {row.title: fast for row in rows if row.condition == "lstm"}
    assert not any("fastest" in item for item in conclude(rows, (), same)), "two rates of one model are one model"


def test_conclusion_reports_the_verdict_on_each_claim() -> None:
    outcomes = [
        *make_outcomes("a", [9.0, 9.01, 9.0], {"depth": 2}),
        *make_outcomes("a", [7.0, 7.01, 7.01], {"depth": 4}),
    ]
    rows = group_rows(outcomes)
    claim = StudyClaim(says="Deeper is better.", comparisons=(ClaimComparison(at={"depth": 4}, against={"depth": 2}),))
    assert conclude(rows, judge_claims([claim], rows))[-1] == "“Deeper is better”: held in every comparison."


# The page


EVIL = "<script>alert(1)</script> & \"quotes\" 'n'"
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Checker(HTMLParser):
    """Strict HTML parser: checks that tags are closed in order and collects ids and text."""

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


def result(outcomes: list[Any], **words: Any) -> StudyResult:
    models = tuple(
        ComparedModel(model="rnn", name=name) for name in dict.fromkeys(outcome.cell.condition for outcome in outcomes)
    )
    spec = GridStudy(name="s", data=DataSpec(text=("a",)), models=models, **words)
    return report_grid(spec, outcomes, {"text": "a", "SHA-256": "abc"}, {"processor": "two cores"}, Path("out"))


def read_page(outcomes: list[Any], folder: Path, **words: Any) -> Checker:
    report = result(outcomes, **words).save(folder)
    checker = Checker()
    checker.feed(report.read_text(encoding="utf-8"))
    checker.close()
    assert not checker.open
    return checker


def test_report_is_one_complete_self_contained_page(tmp_path: Path) -> None:
    page = read_page(
        [*make_outcomes("rnn", [8.0, 8.1]), *make_outcomes("lstm", [6.0, 6.1])], tmp_path, question="Which?"
    )
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not page.links
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("svg") == 3, "intervals and two plots of curves"
    assert not re.search(r"url\((?!#)|@import", (tmp_path / "report.html").read_text())
    for part in (
        "Which?",
        "lstm has the lowest",
        "6.000 / 6.100",
        "SHA-256",
        "two cores",
        "O what a sample",
        "stride 1",
    ):
        assert part in page.text


def test_report_escapes_all_text(tmp_path: Path) -> None:
    samples = {
        "sample": TextSample(EVIL, EVIL),
        "greedy": TextSample(EVIL, EVIL * 2, SampleLoop(0, 3, True, EVIL, 0, len(EVIL))),
    }
    outcomes = [*make_outcomes(EVIL, [8.0, EVIL], {"depth": EVIL}, **samples)]
    claim = StudyClaim(says=EVIL, comparisons=(ClaimComparison(at={"depth": EVIL}, against={"depth": 1}),))
    outcomes += make_outcomes(EVIL, [7.0], {"depth": 1}, **samples)
    page = read_page(outcomes, tmp_path, question=EVIL, grid={"depth": (EVIL, 1)}, claims=(claim,))
    assert "script" not in page.tags
    assert page.text.count(EVIL) > 8
    html = result(outcomes, question=EVIL)._repr_html_()
    assert "<script" not in html


def test_failed_runs_are_reported_on_the_page(tmp_path: Path) -> None:
    page = read_page([*make_outcomes("rnn", ["it broke", None]), *make_outcomes("lstm", [6.0, 6.1])], tmp_path)
    assert "rnn, seed 1 failed: it broke" in page.text
    assert "rnn, seed 2 not run yet" in page.text
    empty = read_page(make_outcomes("rnn", ["it broke"]), tmp_path)
    assert "No run finished" in empty.text
    assert "svg" not in empty.tags


def test_report_without_plot_libraries_shows_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "can_draw", lambda: False)
    page = read_page(make_outcomes("rnn", [8.0, 8.1]), tmp_path)
    assert "svg" not in page.tags
    assert "pip install 'lemma-lm[plots]'" in page.text


def test_report_shows_claims_with_their_verdict(tmp_path: Path) -> None:
    outcomes = [
        *make_outcomes("a", [9.0, 9.01, 9.0], {"depth": 2}),
        *make_outcomes("a", [7.0, 7.01, 7.0], {"depth": 4}),
    ]
    claim = StudyClaim(says="Deeper is better.", comparisons=(ClaimComparison(at={"depth": 4}, against={"depth": 2}),))
    page = read_page(outcomes, tmp_path, grid={"depth": (2, 4)}, claims=(claim,))
    assert "Deeper is better. held depth=4 against depth=2" in " ".join(page.text.split())


def test_first_loop_period_is_marked_and_repetitions_shortened(tmp_path: Path) -> None:
    talk = TextSample("", "well " + "to be " * 40, SampleLoop(5, 6, False, "the hidden vectors", 5, 11))
    read_page(make_outcomes("rnn", [8.0], greedy=talk), tmp_path)
    html = (tmp_path / "report.html").read_text()
    assert '<pre>well <mark class="loop">to be </mark><mark class="again">to be ' in html
    assert html.count("to be ") < 15
    assert (
        "Onset 5, period 6: from token 5 on it repeats every 6 tokens. Not proved: the hidden vectors did not" in html
    )


def test_whitespace_loop_is_made_visible(tmp_path: Path) -> None:
    talk = TextSample("", "a" + "\n" * 40, SampleLoop(1, 1, True, "the last token", 1, 2))
    read_page(make_outcomes("rnn", [8.0], greedy=talk), tmp_path)
    assert '<pre>a<mark class="loop">↵</mark>' in (tmp_path / "report.html").read_text()


def test_loop_descriptions_match_expected_text() -> None:
    assert describe_loop(GREEDY) == (
        "Onset 0, period 6: from token 0 on it repeats every 6 tokens. Proved: the last 7 tokens came back."
    )
    assert describe_loop(TextSample("", "abc")) == "No loop as far as this goes."


def test_mean_curve_ends_with_the_shortest_seed() -> None:
    curves = [[CurvePoint(10, 1.0, 4.0), CurvePoint(20, 2.0, 3.0)], [CurvePoint(10, 3.0, 2.0)]]
    assert mean_curve(curves) == [CurvePoint(10, 2.0, 3.0)]


def test_rows_beyond_the_palette_differ_by_dashes() -> None:
    rows = group_rows([outcome for number in range(15) for outcome in make_outcomes(f"m{number}", [5.0])])
    styles = re.findall(
        r'stroke="(#\w{6})"[^>]*?stroke-width="2.5"[^>]*?stroke-dasharray="([\d,]+)"',
        plot_learning_curves(rows, "tokens").svg(),
    )
    assert len(set(styles)) == 15 > len(COLOURS)


def test_saving_writes_four_complete_files(tmp_path: Path) -> None:
    report = result(make_outcomes("rnn", [8.0, 8.1])).save(tmp_path / "deep" / "folder")
    assert sorted(file.name for file in report.parent.iterdir()) == [
        "report.html",
        "results.json",
        "table.csv",
        "table.md",
    ]
    assert "Report: out/report.html" in str(result(make_outcomes("rnn", [8.0])))


def test_loop_of_short_lines_is_shortened(tmp_path: Path) -> None:
    talk = TextSample("", "so\n" * 90, SampleLoop(0, 3, True, "the last token", 0, 3))
    read_page(make_outcomes("rnn", [8.0], greedy=talk), tmp_path)
    assert (tmp_path / "report.html").read_text().count("so\n") == 1 + 6


def test_single_validation_per_run_has_no_curve(tmp_path: Path) -> None:
    page = read_page(make_outcomes("rnn", [8.0], curve=(CurvePoint(5000, 2.5, 2.5),)), tmp_path)
    assert "each run was validated once, at its end" in page.text
    assert page.tags.count("svg") == 1, "the intervals alone"


def test_learning_rate_at_the_search_boundary_is_noted() -> None:
    attempts = {0.001: 3.0, 0.002: 2.5, 0.004: 4.0}
    rows = {name: ChosenRate(rate, attempts, 10) for name, rate in (("a", 0.001), ("b", 0.002), ("c", 0.004))}
    note = str(trial_blocks(rows, 0.2)[-1])
    assert "a lower one may be better: a." in note and "a higher one may be better: c." in note and ": b" not in note
    assert "may be better" not in str(trial_blocks({"b": rows["b"]}, 0.2)[-1])
