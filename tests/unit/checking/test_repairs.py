"""Repairs of wrong lines of a derivation: common mistakes and generated ones."""

import pytest

from lemma.checking.cells import find_cell
from lemma.checking.gradients import check_gradients, read_derivation
from lemma.checking.repairs import (
    RepairContext,
    apply_rules,
    drop_factors,
    drop_terms,
    flip_signs,
    is_correct,
    toggle_transposes,
)

ERRORS = [
    ("softmax-cross-entropy", "dz = y - y_hat", "the sign is wrong: y_hat - y, not y - y_hat", "dz = y_hat - y"),
    ("softmax-cross-entropy", "dz = y_hat + y", "the sign of y is wrong", "dz = y_hat - y"),
    ("softmax-cross-entropy", "dz = y_hat", "the term -y is missing", "dz = y_hat - y"),
    ("softmax-cross-entropy", "dz = 2*(y_hat - y)", "drop the factor 2", "dz = y_hat - y"),
    ("softmax-cross-entropy", "dz = (y_hat - y).T", "the result is transposed", "dz = y_hat - y"),
    ("softmax-cross-entropy", "dy_hat = y / y_hat", "the sign is wrong", "dy_hat = -(y / y_hat)"),
    ("lstm", "dW_y = a @ dz.T", "the result is transposed", "dW_y = (a @ dz.T).T"),
    ("lstm", "dW_y = dz * a", "a matrix product is meant, not *: dz @ a.T", "dW_y = dz @ a.T"),
    ("lstm", "dW_y = sum(dz * a)", "a matrix product is meant, not sum: dz @ a.T", "dW_y = dz @ a.T"),
    ("lstm", "dW_f = dpre_f @ ax", "transpose ax", "dW_f = dpre_f @ ax.T"),
    ("lstm", "dW_f = dpre_f", "the factor ax.T is missing", "dW_f = dpre_f @ ax.T"),
    ("lstm", "dW_f = dpre_u @ ax.T", "dpre_f instead of dpre_u", "dW_f = dpre_f @ ax.T"),
    ("lstm", "da = W_y.T @ dz", "the term da_next is missing", "da = W_y.T @ dz + da_next"),
    ("lstm", "da = W_y @ dz + da_next", "transpose W_y", "da = W_y.T @ dz + da_next"),
    ("lstm", "dc = da*G_o*(1-tanh(c)^2)", "dc_next is missing", "dc = da * G_o * (1 - tanh(c)^2) + dc_next"),
    ("lstm", "dc = da*G_o + dc_next", "the factor 1 - tanh(c)^2", "dc = da * G_o * (1 - tanh(c)^2) + dc_next"),
    ("lstm", "dc = da*(1-tanh(c)²) + dc_next", "factor G_o", "dc = da * (1 - tanh(c)^2) * G_o + dc_next"),
    (
        "lstm",
        "dc = da*G_o*(1-c²) + dc_next",
        "(1 - tanh(c)^2) instead of (1 - c^2)",
        "dc = da * G_o * (1 - tanh(c)^2) + dc_next",
    ),
    (
        "lstm",
        "dc = da*G_o*(1-tanh(c)) + dc_next",
        "(1 - tanh(c)^2) instead of (1 - tanh(c))",
        "dc = da * G_o * (1 - tanh(c)^2) + dc_next",
    ),
    ("lstm", "dG_o = da * c", "tanh(c) instead of c", "dG_o = da * tanh(c)"),
    ("lstm", "dG_f = dc * c", "c_prev instead of c", "dG_f = dc * c_prev"),
    ("lstm", "dpre_f = dG_f", "the factor G_f * (1 - G_f) is missing", "dpre_f = dG_f * G_f * (1 - G_f)"),
    ("lstm", "dpre_f = dG_f*G_f", "the factor 1 - G_f is missing", "dpre_f = dG_f * G_f * (1 - G_f)"),
    ("lstm", "dpre_f = dG_f*G_f*(G_f-1)", "the sign is wrong", "dpre_f = dG_f * G_f * (1 - G_f)"),
    ("lstm", "dpre_f = dG_f*G_u*(1-G_u)", "G_f instead of G_u", "dpre_f = dG_f * G_f * (1 - G_f)"),
    ("lstm", "db_u = dpre_u * x", "drop the factor x", "db_u = dpre_u"),
    ("lstm", "db_u = dpre_u + dpre_f", "drop the term dpre_f", "db_u = dpre_u"),
    ("lstm", "dx = dax", "take the rows that belong to x", "dx = dax[n_a:]"),
    (
        "lstm",
        "dax = W_u.T@dpre_u + W_f.T@dpre_f + W_c.T@dpre_c",
        "the term W_o.T @ dpre_o is missing",
        "dax = W_u.T @ dpre_u + W_o.T @ dpre_o + W_f.T @ dpre_f + W_c.T @ dpre_c",
    ),
    ("gru", "dz = dh*(n - h_prev)", "h_prev - n, not n - h_prev", "dz = dh * (h_prev - n)"),
    ("gru", "dn = dh*z", "(1 - z) instead of z", "dn = dh * (1 - z)"),
    ("gru", "dU_n = dpre_n @ h_prev.T", "dq instead of dpre_n", "dU_n = dq @ h_prev.T"),
    ("gru", "dq = dpre_n", "the factor r is missing", "dq = dpre_n * r"),
    (
        "gru",
        "dh_prev = U_r.T@dpre_r + U_z.T@dpre_z + U_n.T@dq",
        "the term z * dh is missing",
        "dh_prev = U_r.T @ dpre_r + U_z.T @ dpre_z + U_n.T @ dq + z * dh",
    ),
    ("rnn", "δ1 = δ2 @ Uᵀ", "the factor h * (1 - h) is missing", "δ1 = dz2 @ U.T * h * (1 - h)"),
    ("rnn", "δ1 = (δ2 @ Uᵀ) * (1 - h²)", "(h * (1 - h)) instead of (1 - h^2)", "δ1 = dz2 @ U.T * h * (1 - h)"),
    ("rnn", "dH = hᵀ @ δ1", "h_prev instead of h", "dH = h_prev.T @ dz1"),
    ("rnn", "dI = δ1ᵀ @ x", "the result is transposed", "dI = (dz1.T @ x).T"),
    ("rnn", "dL_x = δ1 @ I", "transpose I", "dL_x = dz1 @ I.T"),
    ("attention", "dQ = dS @ K", "the factor 1/sqrt(d_k) is missing", "dQ = dS @ K / sqrt(d_k)"),
    ("attention", "dK = dS @ Q / sqrt(d_k)", "transpose dS", "dK = dS.T @ Q / sqrt(d_k)"),
    ("attention", "dK = dS @ Q", "transpose dS; and the factor 1/sqrt(d_k)", "dK = dS.T @ Q / sqrt(d_k)"),
    ("attention", "dV = alpha @ dOut", "transpose alpha", "dV = alpha.T @ dout"),
    ("attention", "dS = alpha * dalpha", "softmax couples", "dS = alpha * (dalpha - sum(alpha * dalpha, axis=1))"),
    (
        "attention",
        "dS = alpha * (1 - alpha) * dalpha",
        "softmax couples",
        "dS = alpha * (dalpha - sum(alpha * dalpha, axis=1))",
    ),
    (
        "attention",
        "dX = dQ @ W_q.T + dK @ W_k.T",
        "the term dV @ W_v.T is missing",
        "dX = dQ @ W_q.T + dK @ W_k.T + dV @ W_v.T",
    ),
]


@pytest.mark.parametrize(("cell", "line", "description", "repaired"), ERRORS, ids=lambda text: str(text)[:30])
def test_common_mistake_is_described_and_repaired(cell: str, line: str, description: str, repaired: str) -> None:
    (verdict,) = check_gradients(cell, [line]).lines
    assert verdict.outcome == "wrong"
    assert description in verdict.reason
    assert verdict.repair == repaired
    assert check_gradients(cell, [repaired]).right


def test_numeric_error_is_reported_without_a_simple_repair() -> None:
    (verdict,) = check_gradients("lstm", ["dpre_u = exp(c) * c_prev - tanh(a * c) * G_f"]).lines
    assert verdict.reason.startswith("relative error ")
    assert verdict.reason.endswith("no simple repair found")
    assert verdict.repair is None
    assert verdict.error is not None and verdict.error > 0.01


def test_repair_uses_no_later_gradients() -> None:
    (verdict,) = check_gradients("lstm", ["dpre_u = dG_u"]).lines
    assert verdict.repair == "dpre_u = dG_u * G_u * (1 - G_u)"  # not db_u, which has the same value


def test_mistake_in_a_helper_is_repaired_at_its_use() -> None:
    lines = ["e = y - y_hat", "dW_y = e @ a.T"]
    verdict = check_gradients("lstm", lines).lines[1]
    assert verdict.outcome == "wrong"
    assert verdict.repair is not None
    assert check_gradients("lstm", [lines[0], verdict.repair]).lines[1].outcome == "right"


DERIVATIONS = {
    "lstm": """
        dax = W_u.T @ dpre_u + W_f.T @ dpre_f + W_o.T @ dpre_o + W_c.T @ dpre_c
        da_prev = dax[:n_a]
        dx = W_u[:, n_a:].T @ dpre_u + W_f[:, n_a:].T @ dpre_f + W_o[:, n_a:].T @ dpre_o + W_c[:, n_a:].T @ dpre_c
        dc_prev = dc * G_f
        dz = (diag(y_hat) - y_hat @ y_hat.T) @ dy_hat
    """,
    "gru": """
        dlogits = y_hat - y
        dh = W_y.T @ dlogits + dh_next
        dn = dh * (1 - z)
        dz = dh * (h_prev - n)
        dpre_n = dn * (1 - n^2)
        dr = dpre_n * q
        dq = dpre_n * r
        dpre_r = dr * r * (1 - r)
        dpre_z = dz * z * (1 - z)
        dU_n = dq @ h_prev.T
        dv_n = dq
        dW_n = outer(dpre_n, x)
        dh_prev = dh * z + U_r.T @ dpre_r + U_z.T @ dpre_z + U_n.T @ dq
    """,
    "rnn": """
        dh = (ŷ - y) @ U.T
        dx = (dh * h * (1 - h)) @ I.T
        dL = w.T @ dx
        dh_prev = δ1 @ Hᵀ
    """,
    "attention": """
        dV = alpha.T @ dOut
        dalpha = dOut @ V.T
        dS = alpha * (dalpha - sum(alpha * dalpha, axis=1))
        dQ = dS @ K / sqrt(d_k)
        dK = dS.T @ Q / sqrt(d_k)
        dW_q = X.T @ dQ
        dW_k = X.T @ dK
        dW_v = X.T @ dV
        dX = dQ @ W_q.T + dK @ W_k.T + dV @ W_v.T
    """,
    "softmax-cross-entropy": """
        dy_hat = -y / y_hat
        dz = y_hat - y
    """,
}


@pytest.mark.parametrize("cell", DERIVATIONS)
def test_correct_derivation_has_only_right_lines(cell: str) -> None:
    report = check_gradients(cell, [DERIVATIONS[cell]])
    assert report.right, str(report)


@pytest.mark.parametrize(
    "rule", [flip_signs, toggle_transposes, drop_factors, drop_terms], ids=lambda rule: rule.__name__
)
@pytest.mark.parametrize("cell", DERIVATIONS)
def test_generated_mistake_is_detected_and_repaired(cell: str, rule) -> None:
    sample = find_cell(cell).samples[1]
    for line in read_derivation(find_cell(cell), [DERIVATIONS[cell]]):
        mistakes = apply_rules([rule], line.expression, RepairContext(find_cell(cell), line.name, sample))
        wrong = [mistake.expression for mistake in mistakes if not is_correct(mistake.expression, line.name, sample)]
        for expression in wrong[:2]:
            (verdict,) = check_gradients(cell, [f"{line.name} = {expression}"]).lines
            assert verdict.outcome == "wrong"
            assert verdict.repair is None or check_gradients(cell, [verdict.repair]).right
            assert verdict.repair or rule in (drop_factors, drop_terms), str(verdict)
