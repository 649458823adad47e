"""Problems C1 and C2: the worked LSTM step equals the cell of the gradient checks, forward and backward."""

import pytest
import torch

from lemma.checking.cells import find_cell
from lemma.checking.gradients import check_gradients
from lemma.checking.worked.lstm import WorkedLstm, work_lstm

INPUTS = ("a_prev", "c_prev", "x", "y", "da_next", "dc_next", *(f"{kind}_{gate}" for kind in "Wb" for gate in "ufocy"))
NAMES = {"G_u": "gamma_u", "G_f": "gamma_f", "G_o": "gamma_o", "c_tilde": "candidate", "c": "c_t", "a": "a_t"}


@pytest.fixture(scope="module")
def worked() -> WorkedLstm:
    return work_lstm("c1", backward=True)


def test_worked_values_and_gradients_match_the_checked_cell() -> None:
    for sample in find_cell("lstm").samples:
        values = sample.values
        case = {name: (values[name] if name[0] == "W" else values[name].flatten()).tolist() for name in INPUTS}
        built = work_lstm(case, backward=True)
        forward = {name: built.forward[NAMES.get(name, name)] for name in (*NAMES, "pre_u", "pre_c", "z", "y_hat")}
        base = {name: name for name in ("da", "dc", "dz", "dx", "da_prev", "dc_prev")}
        base |= {f"d{kind}_{gate}": f"d{kind}_{gate}" for kind in "Wb" for gate in "ufocy"}
        base |= {f"dpre_{gate}": f"dpre_{gate}" for gate in "ufoc"}
        base |= {f"d{name}": f"d{NAMES[name]}" for name in ("G_u", "G_f", "G_o", "c_tilde")}
        for name, ours in (forward | {name: built.backward[base[name]] for name in base}).items():
            reference = values[name].reshape(ours.shape)
            torch.testing.assert_close(torch.tensor(ours), reference, rtol=1e-10, atol=1e-13, msg=name)


def test_example_contains_every_part_of_c1(worked: WorkedLstm) -> None:
    case = worked.case.to_dict()
    cell = torch.nn.LSTMCell(2, 2, dtype=torch.float64)
    weights = torch.tensor([row for gate in "ufco" for row in case[f"W_{gate}"]], dtype=torch.float64)
    with torch.no_grad():
        cell.weight_hh.copy_(weights[:, :2])
        cell.weight_ih.copy_(weights[:, 2:])
        biases = [value for gate in "ufco" for value in case[f"b_{gate}"]]
        cell.bias_ih.copy_(torch.tensor(biases, dtype=torch.float64))
        cell.bias_hh.zero_()
    x, a, c, w, b = (torch.tensor(case[n], dtype=torch.float64) for n in ("x", "a_prev", "c_prev", "W_y", "b_y"))
    hidden, state = cell(x[None], (a[None], c[None]))
    loss = torch.nn.functional.cross_entropy(hidden @ w.T + b, torch.tensor([1]))
    assert worked.forward["a_t"].tolist() == pytest.approx(hidden[0].tolist(), abs=1e-14)
    assert worked.forward["c_t"].tolist() == pytest.approx(state[0].tolist(), abs=1e-14)
    assert worked.forward["loss"] == pytest.approx(loss.item(), abs=1e-14)


def test_printed_formulas_pass_the_gradient_check(worked: WorkedLstm) -> None:
    """The formulas of the headings, in the notation of the checks, are correct derivations."""
    rendered = str(worked)
    lines = {
        "dz = ŷ − y": "dz = ŷ − y",
        "da = W_yᵀ(ŷ−y) + da_next": "da = W_yᵀ @ (ŷ−y) + da_next",
        "dc = da ∗ Γ_o ∗ (1−tanh²(c_t)) + dc_next": "dc = da ∗ Γ_o ∗ (1−tanh²(c)) + dc_next",
        "dΓ_u = dc ∗ c̃": "dΓ_u = dc ∗ c̃",
        "dΓ_f = dc ∗ c_prev": "dΓ_f = dc ∗ c_prev",
        "dΓ_o = da ∗ tanh(c_t)": "dΓ_o = da ∗ tanh(c)",
        "dc̃ = dc ∗ Γ_u": "dc̃ = dc ∗ Γ_u",
        "dpre_c = dc̃ ∗ (1−c̃²)": "dpre_c = dc̃ ∗ (1−c̃²)",
        "dpre_u = dΓ_u ∗ Γ_u∗(1−Γ_u)": "dpre_u = dΓ_u ∗ Γ_u∗(1−Γ_u)",
        "dc_prev = dc ∗ Γ_f": "dc_prev = dc ∗ Γ_f",
    }
    assert [line for line in lines if line not in rendered] == []
    assert check_gradients("lstm", list(lines.values())).right


def test_preactivations_gates_outputs_and_gradients_are_printed(worked: WorkedLstm) -> None:
    lines = [line.split() for line in str(worked).splitlines()]
    assert ["unit", "1:", "0.4·0.5", "+", "(−0.2)·(−0.5)", "+", "0.3·1", "+", "0.1·2", "+", "0", "=", "0.8"] in lines
    assert ["1", "0.80", "0", "0.80", "0.6900"] in lines
    assert ["class", "1:", "0.6·0.4039", "+", "(−0.4)·(−0.328)", "+", "0", "=", "0.3735"] in lines
    assert ["1", "0.5250", "1.0186", "0.7693", "0.4039"] in lines
    assert ["loss", "=", "−Σ", "y", "log", "ŷ", "=", "−log", "ŷ_2", "=", "−log", "0.2387", "=", "1.4327"] in lines
    assert ["2", "0.0311", "−0.0311", "0.0623", "0.1245", "0.0623"] in lines
