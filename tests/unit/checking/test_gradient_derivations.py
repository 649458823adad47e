"""Whole derivations: every right line passes, and a slip in any of them is caught and mended."""

import pytest

from lemma.checking.cells import CELLS, draw_samples
from lemma.checking.expressions import written
from lemma.checking.gradients import judge_gradients, read_derivation
from lemma.checking.repairs import Setting, agrees, signs, spare_factors, spare_terms, transposes

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
def test_every_line_of_a_whole_derivation_is_right(cell: str) -> None:
    report = judge_gradients(cell, [DERIVATIONS[cell]])
    assert report.right, str(report)


@pytest.mark.parametrize("slip", [signs, transposes, spare_factors, spare_terms], ids=lambda slip: slip.__name__)
@pytest.mark.parametrize("cell", DERIVATIONS)
def test_a_slip_in_any_line_is_caught_and_mended(cell: str, slip) -> None:
    sample = draw_samples(cell)[1]
    for line in read_derivation(CELLS[cell], [DERIVATIONS[cell]]):
        slips = slip(line.expression, Setting(CELLS[cell], line.name, sample))
        wrong = [slipped.expression for slipped in slips if not agrees(slipped.expression, line.name, sample)]
        for expression in wrong[:2]:
            (verdict,) = judge_gradients(cell, [f"{line.name} = {written(expression)}"]).verdicts
            assert verdict.outcome == "wrong"
            assert verdict.repair is None or judge_gradients(cell, [verdict.repair]).right
            assert verdict.repair or slip in (spare_factors, spare_terms), str(verdict)
