"""Problems C1, C2, D1 and E9: every line of the hand derivations, and the four errors of C2's source."""

import pytest
import torch

from lemma.checking.gradients import check_gradients

C2 = """
    dz = ŷ − y
    da = W_yᵀ @ (ŷ−y) + da_next
    dW_y = (ŷ−y) @ aᵀ
    db_y = ŷ − y
    dΓ_o = da∗tanh(c)
    dc = da∗Γ_o∗(1−tanh²(c)) + dc_next
    dc̃ = dc∗Γ_u
    dpre_c = dc̃∗(1−c̃²)
    dΓ_u = dc∗c̃
    dΓ_f = dc∗c_{t−1}
    dpre_u = dΓ_u∗Γ_u∗(1−Γ_u)
    dpre_f = dΓ_f∗Γ_f∗(1−Γ_f)
    dpre_o = dΓ_o∗Γ_o∗(1−Γ_o)
    dW_u = dpre_u @ [a_prev; x]ᵀ
    dW_f = dpre_f @ [a_prev; x]ᵀ
    dW_o = dpre_o @ [a_prev; x]ᵀ
    dW_c = dpre_c @ [a_prev; x]ᵀ
    db_u = dpre_u
    db_f = dpre_f
    db_o = dpre_o
    db_c = dpre_c
"""
D1 = """
    δ2 = ŷ − y
    δ1 = (δ2 @ Uᵀ)∗h∗(1−h)
    dU = hᵀ @ δ2
    db2 = δ2
    dI = xᵀ @ δ1
    dH = h_{t−1}ᵀ @ δ1
    db1 = δ1
    dL_x = δ1 @ Iᵀ
"""
WRONG_IN_SOURCE = {
    "da = (ŷ−y)ᵀ @ W_yᵀ + da_next": (
        "the shapes do not fit: (1, n_y) @ (n_a, n_y): "
        "the factors are in the wrong order or wrongly transposed: W_y.T @ (y_hat - y)",
        "da = W_y.T @ (y_hat - y) + da_next",
    ),
    "db_y = (ŷ−y) @ aᵀ": (
        "the shape is (n_y, n_a), expected (n_y, 1): drop the factor a.T",
        "db_y = y_hat - y",
    ),
    "dpre_c = dc * Γ_u * (1 − pre_c)": (
        "(1 - c_tilde^2) instead of (1 - pre_c)",
        "dpre_c = dc * G_u * (1 - c_tilde^2)",
    ),
    "db_u = dc * c̃ * Γ_u*(1−Γ_u) * Γ_u*(1−Γ_u)": (
        "the factor G_u * (1 - G_u) occurs twice; drop one",
        "db_u = dc * c_tilde * G_u * (1 - G_u)",
    ),
}


@pytest.mark.parametrize(("cell", "derivation", "lines"), [("lstm", C2, 21), ("rnn", D1, 8)])
def test_derivation_has_only_right_lines(cell: str, derivation: str, lines: int) -> None:
    report = check_gradients(cell, [derivation])
    assert report.right, str(report)
    assert [verdict.outcome for verdict in report.lines] == ["right"] * lines
    assert not any(verdict.taken for verdict in report.lines)


@pytest.mark.parametrize("line", WRONG_IN_SOURCE)
def test_each_published_error_is_detected_and_repaired(line: str) -> None:
    reason, repaired = WRONG_IN_SOURCE[line]
    (verdict,) = check_gradients("lstm", [line]).lines
    assert verdict.outcome == "wrong"
    assert verdict.reason.endswith(reason)
    assert verdict.repair == repaired
    assert check_gradients("lstm", [repaired]).right


def test_first_error_is_repaired_with_missing_recurrent_term() -> None:
    (verdict,) = check_gradients("lstm", ["da = (ŷ−y)ᵀ @ W_yᵀ"]).lines
    assert verdict.repair == "da = W_y.T @ (y_hat - y) + da_next"
    assert verdict.reason.endswith("W_y.T @ (y_hat - y); and the term da_next is missing")


def test_error_does_not_make_dependent_lines_wrong() -> None:
    lines = list(WRONG_IN_SOURCE) + [line for line in C2.strip().splitlines() if line.split()[0] in ("dΓ_o", "db_c")]
    outcomes = [verdict.outcome for verdict in check_gradients("lstm", lines).lines]
    assert outcomes == ["wrong"] * 4 + ["right"] * 2


def test_forward_steps_are_checked() -> None:
    step = ["c_t = Γ_f∗c_{t−1} + Γ_u∗c̃", "a_t = Γ_o∗tanh(c_t)", "ŷ = softmax(W_y @ a_t + b_y)"]
    assert check_gradients("lstm", step).right
    (verdict,) = check_gradients("lstm", ["h_t = Γ_o * c_t"]).lines
    assert verdict.repair == "h_t = G_o * tanh(c)"


def test_c2_gradients_match_torch_lstm_cell() -> None:
    """The cell of the gradient checks is PyTorch's LSTM: its gradients equal those of nn.LSTMCell."""
    from lemma.checking.cells import find_cell

    for sample in find_cell("lstm").samples:
        v = sample.values
        hidden = v["a_prev"].shape[0]
        cell = torch.nn.LSTMCell(v["x"].shape[0], hidden, dtype=torch.float64)
        order = ("u", "f", "c", "o")  # PyTorch stacks input, forget, candidate and output
        with torch.no_grad():
            cell.weight_hh.copy_(torch.cat([v[f"W_{gate}"][:, :hidden] for gate in order]))
            cell.weight_ih.copy_(torch.cat([v[f"W_{gate}"][:, hidden:] for gate in order]))
            cell.bias_ih.copy_(torch.cat([v[f"b_{gate}"] for gate in order]).flatten())
            cell.bias_hh.zero_()
        a, c = cell(v["x"].T, (v["a_prev"].T, v["c_prev"].T))
        logits = a @ v["W_y"].T + v["b_y"].T
        loss = torch.nn.functional.cross_entropy(logits, v["y"].argmax().reshape(1))
        (loss + (a @ v["da_next"]).sum() + (c @ v["dc_next"]).sum()).backward()
        for index, gate in enumerate(order):
            rows = slice(index * hidden, (index + 1) * hidden)
            full = torch.cat([cell.weight_hh.grad[rows], cell.weight_ih.grad[rows]], 1)
            torch.testing.assert_close(v[f"dW_{gate}"], full, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(v[f"db_{gate}"].flatten(), cell.bias_ih.grad[rows], rtol=1e-10, atol=1e-12)
