"""`lemma check sources`: selection of rows, output formats, and claim data without verdicts."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lemma.api as lemma
from lemma.checking.audit import Audit, SourceClaim, check_claim, check_sources, load_claims, select_claims
from lemma.cli.check import app
from lemma.errors import SpecError
from lemma.report.text import display_width

TABLE = {"row": "D2", "says": "it is so", "check": "identity", "of": "d2"}


def test_claims_are_selected_by_number_or_letter_in_table_order() -> None:
    assert {claim.row for claim in select_claims(["c2"])} == {"C2"}
    rows = [claim.row for claim in select_claims(["B", "A1"])]
    assert rows[0] == "A1" and set(rows) == {"A1", *(f"B{number}" for number in range(1, 9))}
    order = [claim.row for claim in load_claims()]
    assert order == sorted(order, key=lambda row: (row[0], int(row[1:])))
    with pytest.raises(SpecError, match=r"unknown row 'C12'. Did you mean 'C\d"):
        select_claims(["c12"])


@pytest.mark.parametrize(
    "changed",
    [{"right": True}, {"verdict": "wrong"}, {"correction": "54.1 %"}, {"row": "F1"}, {"measure": "lemma study x"}],
)
def test_claim_has_exactly_one_check_and_no_verdict_field(changed: dict) -> None:
    assert SourceClaim.read(TABLE, "here").command == "lemma check identity d2"
    with pytest.raises(SpecError):
        SourceClaim.read({**TABLE, **changed}, "here")


def test_claims_that_need_training_are_listed_as_to_measure() -> None:
    claim = SourceClaim.read({"row": "A6", "says": "it falls", "measure": "lemma study table-a5 --out runs/a"}, "here")
    checked = check_claim(claim)
    assert checked.right is None
    assert str(Audit((checked,))).splitlines()[:2] == [
        "– A6   it falls",
        "       to measure: lemma study table-a5 --out runs/a",
    ]


def test_wrong_claim_is_printed_with_claimed_and_right_text() -> None:
    printed = str(check_sources(["D4"]))
    assert "✗ D4   After D̃^(−1/2)" in printed
    assert "claimed: The rows of Â" in printed and "right: the rows of Â sum to one only where" in printed
    assert printed.endswith("3 claims: 2 right, 1 wrong (D4), 0 to measure.")
    assert all(display_width(line) <= 80 for line in printed.splitlines())


def test_audit_is_saved_as_text_json_and_html(tmp_path: Path) -> None:
    audit = lemma.check("sources", "D4", "d2")
    assert isinstance(audit, Audit)
    for name in ("a.html", "a.md", "a.json"):
        audit.save(tmp_path / name)
    assert '<tr class="wrong">' in (tmp_path / "a.html").read_text()
    assert "| D4 | ✗ wrong |" in (tmp_path / "a.md").read_text()
    base = json.loads((tmp_path / "a.json").read_text())
    assert base["counts"] == {"right": 3, "wrong": 1, "to measure": 0}
    with pytest.raises(ValueError, match="unknown ending of the name"):
        audit.save(tmp_path / "a.pdf")


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["D2"], 0, "1 claim"),
        (["D4"], 1, "3 claims"),
        (["d2", "--json"], 0, "1 claim"),
        (["A6"], 0, "2 claims"),
    ],
)
def test_exit_code_is_the_verdict_of_the_audit(words: list[str], status: int, message: str) -> None:
    result = CliRunner().invoke(app, ["sources", *words])
    assert result.exit_code == status
    if "--json" in words:
        assert json.loads(result.stdout)["claims"][0]["verdict"] == "right"
    assert result.stderr == f"checking: {message}\n"


def test_command_reports_progress_and_python_api_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    messages: list[tuple[int, int]] = []
    check_sources(["D4"], lambda done, total: messages.append((done, total)))
    assert messages == [(0, 3), (1, 3), (2, 3), (3, 3)]
    lemma.check("sources", "D2")
    assert capsys.readouterr().err == ""
    with pytest.raises(SpecError, match="Did you mean 'progress'"):
        lemma.check("sources", "D2", progres=True)


@pytest.mark.parametrize(
    ("what", "of", "answer"), [("gradient", "rnn", "db2 = y_hat - y"), ("worked", "e9", "c_t[1] = 0.52")]
)
def test_sizes_without_effect_on_the_check_are_refused(what: str, of: str, answer: str) -> None:
    assert lemma.check(what, of, answer).right
    with pytest.raises(SpecError, match=f"check {what}: 'L' is unknown here"):
        lemma.check(what, of, answer, L=2)
