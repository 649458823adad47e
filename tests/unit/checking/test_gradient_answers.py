"""Answers of students to gradients of every function: right ones in many notations, wrong ones with their causes."""

import time
import tomllib
from pathlib import Path

import pytest

from lemma.checking.cells import CELL_NAMES, find_cell
from lemma.checking.gradients import check_gradients
from lemma.errors import InputError

ANSWERS = tomllib.loads((Path(__file__).parent / "gradient_answers.toml").read_text(encoding="utf-8"))
RIGHT = [(name, answer) for name, table in ANSWERS.items() for answer in table["right"]]
WRONG = [(name, *pair) for name, table in ANSWERS.items() for pair in table["wrong"]]
SECONDS = 2.0


@pytest.mark.parametrize(("name", "answer"), RIGHT)
def test_right_answer_is_accepted_in_every_notation(name: str, answer: str) -> None:
    started = time.process_time()
    report = check_gradients(name, [answer])
    assert report.right, str(report)
    assert time.process_time() - started < SECONDS


@pytest.mark.parametrize(("name", "answer", "words"), WRONG)
def test_wrong_answer_is_diagnosed(name: str, answer: str, words: str) -> None:
    started = time.process_time()
    report = check_gradients(name, [answer])
    (verdict,) = (line for line in report.lines if line.outcome == "wrong")
    assert words in verdict.reason, str(report)
    assert bool(words) == ("no simple repair" not in verdict.reason) or "the shape is" in words
    assert time.process_time() - started < SECONDS


def test_nineteen_of_twenty_wrong_answers_are_named() -> None:
    assert len(WRONG) >= 120
    assert sum(bool(words) for *_, words in WRONG) >= 0.95 * len(WRONG)


@pytest.mark.parametrize("name", CELL_NAMES)
def test_every_repair_is_right(name: str) -> None:
    for answer, _ in ANSWERS.get(name, {"wrong": []})["wrong"]:
        for verdict in check_gradients(name, [answer]).lines:
            if verdict.repair:
                assert check_gradients(name, [verdict.repair]).right, verdict.repair


READINGS = {
    ("word2vec", r"\frac{\partial J}{\partial v_c} = U(\hat y - y)"): "dv_c = U @ (y_hat - y)",
    ("word2vec", "∂J/∂U = v_c (ŷ − y)^T"): "dU = v_c @ (y_hat - y).T",
    ("word2vec", "∂J/∂u_w = (ŷ_w − y_w) v_c"): "du_w = (y_hat_w - y_w) * v_c",
    ("tanh-network", "∂J/∂W = [U^T(ŷ − y) ∘ (1 − h²)] x^T"): "dW = U.T @ (y_hat - y) * (1 - h^2) @ x.T",
    ("tanh-network", "δ_1 = U^T δ_2 ∘ f'(z_1)"): "dz1 = U.T @ dz2 * (1 - tanh(z1)^2)",
    ("tanh-network", "∂J/∂h = Uδ_2"): "dh = U @ dz2",
    ("batch-norm", "dxhat = dY * gamma"): "dX_hat = dY * gamma",
    ("softmax-cross-entropy", "dz = y_hat - y"): "",
    ("rnn", "δ2 = ŷ - y"): "",
}


@pytest.mark.parametrize(("name", "line"), READINGS)
def test_reading_is_shown_where_the_notation_is_not_literal(name: str, line: str) -> None:
    (verdict,) = check_gradients(name, [line]).lines
    assert verdict.reading == READINGS[name, line]
    assert (f"read as {verdict.reading}" in verdict.notes) == bool(verdict.reading)


@pytest.mark.parametrize(
    ("name", "lines", "words"),
    [
        ("rnn", "∂J/∂U = (ŷ − y)^T h", "the result is transposed"),
        ("rnn", "∂J/∂U = (ŷ − y) h^T", ""),
        ("rnn", "∂J/∂U = h (ŷ − y)^T", ""),
        ("rnn", "∂J/∂H = δ_1 h_{t-1}^T\n∂J/∂h_{t-1} = H^T δ_1", ""),
        ("softmax-regression", "dZ = (P - Y)/n\ndW = dZ X^T\ndX = W^T dZ", ""),
        ("lstm", "dW_y = dz.T @ a", ""),
    ],
)
def test_other_layout_is_accepted_if_it_is_consistent(name: str, lines: str, words: str) -> None:
    report = check_gradients(name, [lines])
    assert report.right == (not words), str(report)
    assert words in str(report).replace("\n        ", " ")
    assert any("--names shows the layout" in note for note in report.notes) == (not words)


def test_mixed_layouts_are_named() -> None:
    report = check_gradients("rnn", ["∂J/∂H = h_{t-1}^T δ_1", "∂J/∂h_{t-1} = H^T δ_1"])
    assert [line.outcome for line in report.lines] == ["right", "wrong"]
    assert "use one layout throughout" in report.lines[1].reason


def test_helpers_alone_get_the_names_of_the_gradients() -> None:
    report = check_gradients("rnn", ["e = ŷ - y"])
    assert not report.right
    assert report.summary.startswith("rnn: no line names a gradient; the gradients of rnn are dh_prev, ")


def test_jacobians_in_a_chain_are_skipped() -> None:
    chain = (
        r"\frac{\partial J}{\partial h} = \frac{\partial J}{\partial z} \frac{\partial z}{\partial h} = U^T \delta_2"
    )
    assert check_gradients("tanh-network", [chain]).right
    with pytest.raises(InputError, match="a derivative of a vector by a vector"):
        check_gradients("tanh-network", [r"∂J/∂h = ∂J/∂z_2 ∂z_2/∂h"])


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        ("word2vec", "∂J/∂v_c = ŷ_w u_w", "the index w is neither on the left side nor summed over"),
        ("word2vec", "∂J/∂u_w = Q v_c", "unknown name 'Q'"),
        ("word2vec", "∂J/∂v_c = Σ_w U ŷ", "nothing in the sum over w has the index w"),
        ("word2vec", "∂J/∂u_w = ŷ_w v_c for", "expected"),
        ("word2vec", "∂J/∂u_w = ŷ_w v_c for w = q r", ""),
        ("tanh-network", r"∂J/∂h = \frac{", "expected a value"),
        ("tanh-network", "∂J/∂h = U^", "an exponent is"),
    ],
)
def test_unreadable_notation_is_refused_with_the_reason(name: str, line: str, words: str) -> None:
    with pytest.raises(InputError) as refusal:
        check_gradients(name, [line])
    assert words in str(refusal.value)


def test_own_function_is_checked_in_the_same_notation() -> None:
    mine = {
        "forward": "Z = X @ W\nA = tanh(Z)",
        "loss": "sum((A - T_y)^2) / n",
        "sizes": ["n", "d", "c"],
        "inputs": {"X": "n d", "W": "d c", "T_y": "n c fixed"},
        "answers": r"\frac{\partial L}{\partial A} = \frac{2}{n} (A - T_y)",
    }
    lines = [
        "∂L/∂Z = ∂L/∂A ⊙ f'(Z)",
        r"\nabla_W L = X^\top dZ",
        "∂L/∂x_i = W ∂L/∂z_i",
        "∂L/∂a_ij = (2/n)(a_ij − T_y_ij)",
    ]
    report = check_gradients(mine, lines)
    assert report.right, str(report)


def test_every_function_lists_the_indices_it_has() -> None:
    for name in CELL_NAMES:
        for letter, one_hot in find_cell(name).indices.items():
            assert "one-hot" in find_cell(name).input_kinds[one_hot] and len(letter) == 1
