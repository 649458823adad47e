"""Derivations step by step: the first wrong step is reported with its difference."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lemma
from lemma.checking.derivation import check_derivation
from lemma.cli.main import app
from lemma.errors import InputError, SpecError

DECODER = """
P = V d + L(4d^2 + 2 d d_ff)       # embedding, attention, feed-forward
  = V d + L(4d^2 + 8d^2)           with d_ff = 4d
  = V d + 12 L d^2
"""


def test_right_derivation_passes_and_settings_apply_to_both_sides() -> None:
    report = check_derivation(DECODER)
    assert report.right and [step.outcome for step in report.lines] == ["given", "right", "right"]
    assert report.summary == "the derivation: all 2 steps are right"


def test_first_wrong_step_is_reported_with_the_difference() -> None:
    report = check_derivation(DECODER.replace("12 L d^2", "12 d^2") + "= d(V + 12d)\n= d V")
    assert [step.outcome for step in report.lines] == ["given", "right", "wrong", "right", "wrong"]
    wrong = report.first_wrong
    assert wrong is not None and wrong.line == 4
    assert wrong.reason == "the step before − this step = 12*(L−1)*d**2"
    assert "the first wrong step is in line 4" in str(report)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("(a+b)^2 = a^2 + 2ab + b^2 = a(a + 2b) + b^2", True),
        ("(a+b)^2 = a^2 + 2ab + b^2 = a(a + b) + b^2", False),
        ("let d_ff = 4d\n2 d d_ff\n8 d^2", True),
        ("A = 4d^2\nB = 2 d d_ff\nP = A + B\n= 2d(2d + d_ff)", True),
        ("A = 4d^2\nB = 2 d d_ff\nP = A + B\n= 2d(d + d_ff)", False),
        (r"\sum_{l=1}^{L} l = \frac{L(L+1)}{2}" + "\n= (L^2 + L)/2", True),
        ("P = 2x\nP = x + x", True),
        ("P = 2x\nP = x + 1", False),
        ("x/y\n= 1/(y/x)", True),
        ("2 B T d V = 2BTdV", True),
        ("2BTdV = 2 V d T V", False),
        ("2dd_ff = 2 d_ff d", True),
        ("Ld_{model}^2 = L d_model d_model", True),
        ("x1 y2 = y2 x1", True),
        ("x1 y2 = x2 y1", False),
        ("emb = V d\nP = emb + L d\n= d(V + L)", True),
        ("6 * 70e9 * 1.4e12 = 5.88e23", True),
        ("6 · 7·10^10 · 1.4×10^12 = 5.88×10^23", True),
        ("2.5e-3 d = d/400", True),
        ("6 * 70e9 = 42e9", False),
        ("4*128 (12d+13) = 512(12d + 13)", True),
        ("4,128 (12d+13) = 4128(12d + 13)", True),
    ],
)
def test_chains_are_checked_in_all_notations(text: str, right: bool) -> None:
    assert check_derivation(text).right is right, str(check_derivation(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("log2(8) = 3", "'log2' is a function"),
        ("V = 2n\n= log_10 n", "'log_10' is a function"),
        ("4 128 (12d+13) = 512(12d+13)", "two numbers side by side, 4 and 128"),
        ("2e+3 = 3 + 2e", "can be read as a number, or with the symbol e"),
        ("1e999 = 2", "at most 300 digits"),
    ],
)
def test_ambiguous_or_invalid_steps_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        check_derivation(text)


def test_derivation_with_a_single_step_is_not_right() -> None:
    report = check_derivation("x = 3")
    assert not report.right and "none is checked" in report.summary


def test_inputs_x_and_x_t_are_distinct() -> None:
    words = {"sizes": {"n": "rows", "d": "width"}, "inputs": {"x": "n d", "x_t": "n d"}}
    report = check_derivation({**words, "steps": "Y = x + x_t\n= x_{t} + x\n= 2*x"})
    assert [step.outcome for step in report.lines] == ["given", "right", "wrong"]
    assert [step.text for step in report.lines] == ["Y = x + x_t", "= x_{t} + x", "= 2*x"]
    # Without an input x_t, x_t denotes x, as in papers.
    single = {**words, "inputs": {"x": "n d"}, "steps": "Y = x_t + x_t\n= 2*x"}
    assert check_derivation(single).right


SOFTMAX = {
    "forward": "P = softmax(Z)",
    "loss": "-sum(Y * log(P)) / n",
    "sizes": {"n": "rows", "c": "classes"},
    "inputs": {"Z": "n c", "Y": "n c one-hot"},
    "steps": """
        dP = -Y / P / n
        dZ = P * (dP - sum(P * dP, axis=1))
           = -(Y - P * sum(Y, axis=1)) / n
           = (P - Y) / n
    """,
}


def test_wrong_equality_within_a_line_is_identified() -> None:
    wrong = check_derivation("n(n+1)/2 = (n^2 + n)/2 = n^2/2").first_wrong
    assert wrong and wrong.reason == "equality 2 of the line: the step before − this step = n/2"
    wrong = check_derivation("P = a b = b a = a + b").first_wrong
    assert wrong and wrong.reason.startswith("equality 3 of the line")


def test_matrix_steps_are_compared_with_autograd_and_each_other() -> None:
    report = check_derivation(SOFTMAX)
    assert report.right and [step.outcome for step in report.lines] == ["right"] * 4
    wrong = check_derivation({**SOFTMAX, "steps": SOFTMAX["steps"].replace("(P - Y) / n", "(Y - P) / n")})
    assert wrong.first_wrong and wrong.first_wrong.line == 5 and "the sign is wrong" in wrong.first_wrong.reason


def test_matrix_steps_are_read_in_the_notation_of_papers() -> None:
    steps = r"""
        \frac{\partial L}{\partial P} = -Y / P / n
        dZ = P ⊙ (dP − sum(P ⊙ dP, axis=1))
           = \frac{1}{n} (P - Y)
           = \frac{1}{n} (P + Y)
    """
    report = check_derivation({**SOFTMAX, "steps": steps})
    assert [step.outcome for step in report.lines] == ["right"] * 3 + ["wrong"]
    words = {"sizes": {"n": "rows", "d": "width"}, "inputs": {"A": "n d", "B": "d d"}}
    assert check_derivation({**words, "steps": "Y = (AB)^T\n  = B^\\top A^\\top"}).right


def test_loss_is_optional_and_wrong_transposes_are_detected() -> None:
    words = {"sizes": {"n": "rows", "d": "width"}, "inputs": {"A": "n d", "B": "d d"}}
    report = check_derivation({**words, "steps": "Y = (A @ B).T\n  = B.T @ A.T\n  = A.T @ B.T"})
    assert [step.outcome for step in report.lines] == ["given", "right", "wrong"]
    assert "the shapes do not fit: (d, n) @ (d, d)" in report.lines[2].reason
    with pytest.raises(InputError, match="unknown name 'C'"):
        check_derivation({**words, "steps": "A @ C"})
    with pytest.raises(InputError, match="line 1, column 5: unknown name 'C'"):  # where it occurs first
        check_derivation({**words, "steps": "A @ C - C"})
    with pytest.raises(InputError, match="unknown size 'q'"):
        check_derivation({**words, "steps": "A[:q]"})
    with pytest.raises(SpecError, match="steps is missing"):
        check_derivation(words)


def test_wrong_step_exits_1_and_unreadable_input_exits_2(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(DECODER, encoding="utf-8")
    assert CliRunner().invoke(app, ["check", "derivation", str(path)]).exit_code == 0
    path.write_text(DECODER.replace("12 L", "11 L"), encoding="utf-8")
    result = CliRunner().invoke(app, ["check", "derivation", str(path)])
    assert result.exit_code == 1 and "the first wrong step is in line 4" in result.output
    for text in ("V d + (", ""):
        path.write_text(text, encoding="utf-8")
        with pytest.raises((InputError, SpecError)):
            lemma.check.derivation(path)
    with pytest.raises(SpecError, match="no such file"):
        lemma.check.derivation("missing.txt")


def test_steps_may_use_aliases() -> None:
    words = {"sizes": ["n"], "inputs": {"X": "n n"}, "forward": "Y = X @ X", "aliases": {"Z": "Y"}}
    assert check_derivation({**words, "steps": "q = Z + Z\np = q + q\n= 4 * Z"}).right
