"""Problem E9: one LSTM step from given gate values."""

import math

import pytest

from lemma.checking.worked.lstm import WorkedLstm, work_lstm


@pytest.fixture(scope="module")
def worked() -> WorkedLstm:
    return work_lstm("e9", backward=True)


def test_new_states_follow_from_the_gates(worked: WorkedLstm) -> None:
    case = worked.case.to_dict()
    for unit in range(2):
        update, forget, output, candidate, before = (
            case[name][unit] for name in ("gamma_u", "gamma_f", "gamma_o", "candidate", "c_prev")
        )
        state = forget * before + update * candidate
        assert worked.forward["c_t"][unit] == pytest.approx(state, abs=1e-15)
        assert worked.forward["a_t"][unit] == pytest.approx(output * math.tanh(state), abs=1e-15)


def test_every_gate_value_and_both_states_are_printed(worked: WorkedLstm) -> None:
    lines = [line.split() for line in str(worked).splitlines()]
    assert ["1", "0.5", "0.2", "0.10", "0.6", "0.7", "0.42", "0.52"] in lines
    assert ["2", "0.9", "−0.4", "−0.36", "0.2", "0.1", "0.02", "−0.34"] in lines
    assert ["1", "0.7", "0.52", "0.4777", "0.3344"] in lines
    assert "h_t = (0.3344, −0.262)" in str(worked)


def test_gradients_match_finite_differences(worked: WorkedLstm) -> None:
    """dh_next is 1 for both units, so each gradient is that of h_1 + h_2: finite differences in every gate."""
    case, step = worked.case.to_dict(), 1e-6
    for name in ("gamma_u", "gamma_f", "gamma_o", "candidate", "c_prev"):
        for unit in range(2):
            ends = []
            for sign in (1, -1):
                moved = [value + sign * step * (index == unit) for index, value in enumerate(case[name])]
                ends.append(work_lstm({**case, name: moved}).forward["a_t"].sum())
            assert worked.backward[f"d{name}"][unit] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-8)
