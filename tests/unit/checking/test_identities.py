import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lemma import api
from lemma.checking.identities import IDENTITIES, check_identity, find_identity, list_identities
from lemma.checking.identities.base import Finding, IdentityReport
from lemma.cli.check import app
from lemma.errors import InputError, SpecError
from lemma.report import curves as lines

NAMES = ["a2", "b1", "b2", "b3", "b5", "b6", "b7", "b8", "c1", "c6", "c7", "c8", "c9", "c10", "c11", "rotary"]
NAMES += ["d2", "d3", "d4", "e3"]
FALSE = ("c6", "d4")


@pytest.mark.parametrize("name", NAMES)
def test_findings_match_and_only_c6_and_d4_are_false(name: str) -> None:
    report = check_identity(name, {"samples": 2000} if name in ("b5", "c7") else {})
    assert report.confirmed
    assert report.holds == (name not in FALSE)
    assert bool(report.correction) == (name in FALSE)
    assert [finding.holds for finding in report.claimed] == [False] * (name in FALSE)
    base = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert base["holds"] is report.holds
    assert all(finding["holds"] for finding in base["findings"])
    assert report.claim in " ".join(str(report).split())


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("temperature", "b5"),
        ("orthogonal", "c6"),
        ("products", "c7"),
        ("sum-over-heads", "c8"),
        ("Sum over heads", "c8"),
        ("dense", "c10"),
        ("permutation", "c11"),
        ("merged", "b6"),
        ("B7", "b7"),
        ("relative", "rotary"),
    ],
)
def test_identity_is_looked_up_by_number_or_alias(word: str, name: str) -> None:
    assert find_identity(word).name == name


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("orthgonal", {}, "Did you mean 'orthogonal'?"),
        ("c7", {"sample": 3}, "Did you mean 'samples'"),
        ("b5", {"i": 8}, "Did you mean 'I'"),
        ("c7", {"D": 0}, "greater than or equal to 1"),
        ("c7", {"draws": "cauchy"}, "'normal', 'uniform' or 'signs'"),
        ("c6", {"N": 20, "D": 16}, "at most 16 orthogonal"),
        ("c8", {"D": 10, "H": 3}, "does not divide"),
        ("c10", {"N": 100, "D": 100}, "entries"),
        ("rotary", {"D": 5}, "must be even"),
    ],
)
def test_invalid_identity_name_or_size_is_explained(name: str, sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as mistake:
        check_identity(name, sizes)
    assert message in str(mistake.value)


def report_of(findings: tuple[Finding, ...], **evidence: Any) -> IdentityReport:
    return IdentityReport(findings, name="x", title="X", claim="1 = 2", **evidence)


def test_deviating_number_is_not_confirmed() -> None:
    off = report_of((Finding("one", 1.0, 2.0, 0.5),))
    assert not off.holds
    assert "✗" in str(off)
    assert Finding("one", 1.0, 2.0, 0.5, expects="different").holds


def test_identity_list_shows_every_identity_with_its_sizes() -> None:
    rendered = list_identities()
    assert [item["name"] for item in rendered.to_dict()["identities"]] == list(IDENTITIES)
    assert set(NAMES) == set(IDENTITIES)
    assert all(f"{name} " in str(rendered) for name in NAMES)


def test_identity_report_is_saved_in_every_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vl_convert")
    report = check_identity("c6", {"N": 3, "D": 4})
    for suffix in ("html", "json", "txt", "svg"):
        report.save(tmp_path / f"a.{suffix}")
    page = (tmp_path / "a.html").read_text()
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org/", "")
    assert json.loads((tmp_path / "a.json").read_text())["plot"]["curves"]
    with pytest.raises(InputError, match="unknown ending of the name"):
        report.save(tmp_path / "a.docx")
    with pytest.raises(InputError, match="no plot"):
        check_identity("c10", {}).save(tmp_path / "b.svg")
    monkeypatch.setattr("lemma.report.result.can_draw", lambda: False)
    assert lines.NO_PLOT.replace("'", "&#39;") in report._repr_html_()


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["c7", "D=3", "samples=500"], 0),
        (["orthogonal", "norm=2.5"], 1),
        ([], 0),
        (["c10", "--json"], 0),
    ],
)
def test_exit_code_is_the_verdict_of_the_identity(words: list[str], status: int) -> None:
    result = CliRunner().invoke(app, ["identity", *words])
    assert result.exit_code == status
    assert result.stdout.strip()
    if "--json" in words:
        assert json.loads(result.stdout)["holds"] is True


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["c7", "c8"], "one identity at a time"),
        (["D=3"], "which identity"),
        (["c77"], "unknown"),
        (["b5", "I"], "I needs a value, as in I=64"),
        (["temperature", "I"], "I needs a value, as in I=64"),
        (["--out", "all.html"], "which identity is to be written to all.html"),
    ],
)
def test_command_refuses_invalid_arguments(words: list[str], message: str) -> None:
    mistake = CliRunner().invoke(app, ["identity", *words]).exception
    assert isinstance(mistake, SpecError)
    assert message in str(mistake)


@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_command_reports_the_output_path(json_too: list[str], tmp_path: Path) -> None:
    path = tmp_path / "c7.html"
    result = CliRunner().invoke(app, ["identity", "c7", "D=3", "samples=500", "--out", str(path), *json_too])
    assert path.is_file()
    assert f"Written to {path}" in result.stderr
    assert not json_too or json.loads(result.stdout)["holds"], "stdout stays one JSON object"


@pytest.mark.parametrize("J", [2, 3, 7, 64])
def test_b7_costs_cross_at_half_of_an_odd_width(J: int) -> None:
    report = check_identity("b7", {"J": J, "I": 1})
    meeting = report.findings[-1]
    assert f"J/2 = {J / 2:g}" in meeting.label
    assert meeting.actual == J**2 - 2 * (J / 2) * J == 0
    assert ("odd" in meeting.label) is bool(J % 2)
    signs = {width: merged - separate for width, separate, merged, _ in report.rows}  # type: ignore[operator]
    assert signs[J // 2] * signs[(J + 1) // 2] < 0 or J % 2 == 0
    assert "2·I·J" in str(report)
    assert "**" not in str(report)


def test_python_api_returns_the_same_report() -> None:
    report: Any = api.check("identity", "products", D=5, samples=100)
    assert report.sizes["D"] == 5
    listed: Any = api.check("identity", None)
    assert "temperature" in str(listed)


def test_c6_is_decided_at_norms_beyond_float64() -> None:
    assert check_identity("c6", {"norm": 100}).confirmed
    assert check_identity("c6", {"norm": 1e-3, "scaled": True}).confirmed


def test_claims_are_decided_by_measurement() -> None:
    wrong, right = Finding("claimed", 1.0, 2.0, 0.5), Finding("claimed", 2.0, 2.0, 0.5)
    fact = Finding("a fact", 1.0, 1.0, 0.0)
    assert report_of((fact,), correction="no.", claimed=(right,)).holds
    report = report_of((fact,), correction="no.", claimed=(wrong,))
    assert report.confirmed and not report.holds
    assert "is false. Right: no." in str(report)
    assert check_identity("c6", {"says": "limit"}).holds
    assert check_identity("d4", {"matrix": "rows"}).holds


@pytest.mark.parametrize(
    ("graph", "holds"), [("star", False), ("path", False), ("random", False), ("cycle", True), ("complete", True)]
)
def test_d4_holds_only_on_regular_graphs(graph: str, holds: bool) -> None:
    report = check_identity("d4", {"graph": graph, "nodes": 7, "edges": 9})
    assert report.confirmed
    assert report.holds is holds
    spectral = next(finding for finding in report.findings if "spectral" in finding.label)
    assert spectral.actual == pytest.approx(1, abs=1e-10)


def test_d4_star_matches_hand_calculation() -> None:
    report = check_identity("d4", {"graph": "star", "nodes": 4})
    assert report.claimed[0].actual == pytest.approx(1 / 4 + 3 / 8**0.5 - 1)  # the hub: 1/4 + 3/√(4·2)


def test_d2_uniform_model_has_perplexity_of_vocabulary_size() -> None:
    report = check_identity("d2", {"V": 17, "T": 9})
    assert report.findings[-1].actual == pytest.approx(17)
    assert {row[0] for row in report.rows} == {"feed-forward", "lstm", "decoder"}


def test_b3_clipped_distance_is_bounded_while_unclipped_grows() -> None:
    rows = check_identity("b3", {"T": 64, "L_max": 5.0}).rows
    assert {round(row[1], 9) for row in rows} == {5.0}
    assert rows[-1][2] == pytest.approx(sum(max(t, 63 - t) ** 2 for t in range(64)) / 64)


def test_b8_reports_onset_and_period_of_nontrivial_loops() -> None:
    report = check_identity("b8", {"V": 5, "N": 4})
    assert report.findings[0].actual == 20
    assert max(row[2] for row in report.rows) > 1 and max(row[1] for row in report.rows) > 1


def test_c9_table_of_width_four_matches_sine_and_cosine() -> None:
    rows = check_identity("c9", {"P": 3}).rows
    assert rows[1][1:] == pytest.approx((math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)))


def test_d3_counts_match_the_closed_form() -> None:
    rows = {row[0]: row[1:] for row in check_identity("d3", {"d": 12, "h": 3, "n": 5}).rows}
    assert rows["single"] == (432, 2 * (3 * 5 * 144 + 2 * 25 * 12), 5)
    assert rows["multi"] == (432, 2 * (3 * 5 * 144 + 2 * 25 * 12), 15)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("c7", {"D": 100_000, "samples": 10_000_000}),
        ("b5", {"I": 100_000, "samples": 10_000_000}),
        ("b2", {"L": 12, "K": 16, "T": 512}),
        ("b3", {"L": 12, "K": 16, "T": 512}),
        ("b6", {"N": 2000, "J": 1024, "I": 1024, "H": 64}),
        ("c6", {"N": 2000, "D": 2000}),
        ("c8", {"N": 2000, "D": 2048, "H": 2048}),
        ("c10", {"N": 1, "D": 5000, "D_k": 4096}),
        ("c11", {"N": 2000, "D": 2048, "H": 2048}),
        ("d3", {"d": 4096, "h": 64, "n": 4096}),
        ("rotary", {"N": 2000, "D": 1024}),
    ],
)
def test_sizes_beyond_the_work_or_memory_limit_are_refused(name: str, sizes: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"at most .* Give smaller sizes"):
        check_identity(name, sizes)


def test_oversized_identity_settings_are_refused_in_time() -> None:
    started = time.process_time()
    for name, identity in IDENTITIES.items():
        for setting in identity.sizes.model_fields:
            for value in (10**30, -(10**30)):
                with pytest.raises(SpecError):
                    check_identity(name, {setting: value, **({"graph": "random"} if setting == "edges" else {})})
    assert time.process_time() - started < 5
