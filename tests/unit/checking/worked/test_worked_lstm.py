"""A worked LSTM step matches PyTorch, forward and backward; invalid cases are explained."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lemma.checking.worked.lstm import WorkedLstm, work_lstm
from lemma.cli.main import main
from lemma.errors import InputError
from lemma.report.text import display_width

PYTORCH = ("u", "f", "c", "o")  # PyTorch stacks input, forget, candidate and output
GATES: dict[str, Any] = {
    "gamma_u": [0.5, 1],
    "gamma_f": [0.25, 0],
    "gamma_o": [1, 0.5],
    "candidate": [0.5, -1],
    "c_prev": [2, 3],
}
WEIGHTS: dict[str, Any] = {
    **{f"W_{letter}": [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]] for letter in "ufoc"},
    **{f"b_{letter}": [0.1, 0.2] for letter in "ufoc"},
    "a_prev": [1, 2],
    "c_prev": [3, 4],
    "x": [5],
}
LAYER: dict[str, Any] = {"W_y": [[1, 2], [3, 4], [5, 6]], "b_y": [0, 1, 0], "y": [0, 0, 1]}


def random_case(seed: int, width: int, inputs: int, classes: int) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {f"W_{letter}": (width, width + inputs) for letter in "ufoc"}
    shapes |= {f"b_{letter}": (width,) for letter in "ufoc"} | {"x": (inputs,), "W_y": (classes, width)}
    shapes |= dict.fromkeys(("a_prev", "c_prev", "da_next", "dc_next"), (width,)) | {"b_y": (classes,)}
    case = {name: draw.normal(size=shape).tolist() for name, shape in shapes.items()}
    return case | {"y": np.eye(classes)[draw.integers(classes)].tolist()}


def torch_cell(case: dict[str, Any]) -> torch.nn.LSTMCell:
    width = len(case["c_prev"])
    cell = torch.nn.LSTMCell(len(case["x"]), width, dtype=torch.float64)
    weights = torch.cat([torch.tensor(case[f"W_{letter}"], dtype=torch.float64) for letter in PYTORCH])
    with torch.no_grad():
        cell.weight_hh.copy_(weights[:, :width])
        cell.weight_ih.copy_(weights[:, width:])
        biases = [value for letter in PYTORCH for value in case[f"b_{letter}"]]
        cell.bias_ih.copy_(torch.tensor(biases, dtype=torch.float64))
        cell.bias_hh.zero_()
    return cell


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
def test_states_loss_and_gradients_match_torch(seed: int, width: int, inputs: int, classes: int) -> None:
    case = random_case(seed, width, inputs, classes)
    worked = work_lstm(case, backward=True)
    leaves = {
        name: torch.tensor(case[name], dtype=torch.float64, requires_grad=True)
        for name in ("x", "a_prev", "c_prev", "W_y", "b_y")
    }
    cell = torch_cell(case)
    hidden, state = cell(leaves["x"][None], (leaves["a_prev"][None], leaves["c_prev"][None]))
    logits = hidden @ leaves["W_y"].T + leaves["b_y"]
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor([case["y"].index(1.0)]))
    later = [torch.tensor(case[name], dtype=torch.float64) for name in ("da_next", "dc_next")]
    (loss + (hidden @ later[0]).sum() + (state @ later[1]).sum()).backward()
    expected = {"a_t": hidden[0], "c_t": state[0], "z": logits[0], "y_hat": logits.softmax(1)[0], "loss": loss}
    for name, value in expected.items():
        np.testing.assert_allclose(worked.forward[name], value.detach().numpy(), rtol=1e-10, atol=1e-13, err_msg=name)
    gradients = {f"d{name}": leaf.grad for name, leaf in leaves.items()}
    full = torch.cat([cell.weight_hh.grad, cell.weight_ih.grad], 1)
    for index, letter in enumerate(PYTORCH):
        rows = slice(index * width, (index + 1) * width)
        gradients |= {f"dW_{letter}": full[rows], f"db_{letter}": cell.bias_ih.grad[rows]}
    for name, value in gradients.items():
        np.testing.assert_allclose(worked.backward[name], value.numpy(), rtol=1e-9, atol=1e-13, err_msg=name)


def test_supplied_gates_give_the_same_step_as_computed() -> None:
    case = random_case(3, 3, 2, 4)
    full = work_lstm(case, backward=True)
    tail = {name: case[name] for name in ("c_prev", "W_y", "b_y", "y", "da_next", "dc_next")}
    gates = {name: full.forward[name].tolist() for name in ("gamma_u", "gamma_f", "gamma_o", "candidate")}
    again = work_lstm(gates | tail, backward=True)
    assert set(again.backward) == {name for name in full.backward if name in again.backward}
    for ours, other in ((again.forward, full.forward), (again.backward, full.backward)):
        for name, value in ours.items():
            np.testing.assert_allclose(value, other[name], rtol=1e-14, err_msg=name)
    assert "dW_u" not in again.backward
    assert "dW_y" in again.backward


def test_large_preactivations_and_logits_give_finite_loss() -> None:
    steep = {**WEIGHTS, "x": [1e5], "W_y": [[-1e3, 0], [0, 1e3]], "y": [1, 0]}
    built = work_lstm(steep, backward=True)
    assert built.forward["gamma_u"].tolist() == [1, 1]
    assert built.forward["loss"] == pytest.approx(1e3 * (built.forward["a_t"].sum()))
    assert "exp(z − largest)" in str(built)
    assert all(np.isfinite(value).all() for value in built.backward.values())


def test_soft_target_has_its_cross_entropy() -> None:
    built = work_lstm({**GATES, **LAYER, "y": [0.5, 0.25, 0.25]}, backward=True)
    logits = torch.tensor(built.forward["z"], requires_grad=True)
    loss = torch.nn.functional.cross_entropy(logits[None], torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64))
    loss.backward()
    assert built.forward["loss"] == pytest.approx(loss.item())
    np.testing.assert_allclose(built.backward["dz"], logits.grad.numpy())
    assert "−log" not in str(built)


def test_alternative_spellings_are_equivalent() -> None:
    decoded = {"Γ_u": [0.5, 1], "G_f": [0.25, 0], "Gamma_o": [1, 0.5], "c_tilde": [0.5, -1], "c_prev": [2, 3]}
    assert work_lstm(decoded).to_dict() == work_lstm(GATES).to_dict()
    renamed = {("h_prev" if name == "a_prev" else name): value for name, value in WEIGHTS.items()}
    with_h = work_lstm({**renamed, "dh_next": [1, 1]}, backward=True)
    np.testing.assert_array_equal(with_h.forward["a_t"], work_lstm(WEIGHTS).forward["a_t"])
    assert "h_t = Γ_o ∗ tanh(c_t)" in str(with_h) and "dh = dh_next" in str(with_h)
    assert "a_t" not in str(with_h) and "a_prev" not in str(with_h)


def test_single_unit_cell_may_use_plain_numbers() -> None:
    bare = work_lstm({"gamma_u": 0.5, "gamma_f": 0.5, "gamma_o": 1, "candidate": 0.4, "c_prev": 0.2})
    assert bare.forward["c_t"].tolist() == pytest.approx([0.3])


@pytest.mark.parametrize("size", [(2, 2, 3), (7, 12, 5), (20, 30, 9)])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("decimals", [0, 12])
def test_lines_fit_80_columns_without_color(size: tuple[int, int, int], full: bool, decimals: int) -> None:
    case = {**random_case(1, *size), "title": "a long title " * 12}
    text = str(work_lstm(case, backward=True, full=full, decimals=decimals))
    assert max(map(display_width, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert ("--full prints" in text) == (not full and size != (2, 2, 3))


def test_printed_values_are_rounded_and_returned_values_exact() -> None:
    worked = work_lstm("c1", backward=True, decimals=2)
    assert "Printed to 2 decimals; nothing is rounded on the way." in str(worked)
    base = json.loads(json.dumps(worked.to_dict(), allow_nan=False))
    assert base["forward"]["c_t"] == worked.forward["c_t"].tolist()
    assert base["backward"]["dW_c"] == work_lstm("c1", backward=True).backward["dW_c"].tolist()
    assert work_lstm("c1").to_dict()["backward"] is None


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ({**GATES, "gamma_f": [0.5]}, "the case: gamma_f has 1 number, expected 2, as many as c_prev has."),
        ({**GATES, "gamma_u": [0.5, 1.3]}, "gamma_u: number 2 = 1.3: a gate is a sigmoid, which lies between 0 and 1"),
        ({**GATES, "gamma_o": [-0.1, 1]}, "gamma_o: number 1 = -0.1"),
        ({**GATES, "c_prev": [float("nan"), 1]}, "c_prev: number 1 = nan: give a finite number."),
        ({**GATES, "candidate": ["x", 1]}, "candidate: number 1 = 'x': give a finite number."),
        ({**GATES, "gamma_u": []}, "gamma_u is empty. Give a vector, as in gamma_u = [0.5, 0.9]."),
        ({**GATES, "gamma_u": "half"}, "gamma_u = 'half': expected a vector"),
        ({**GATES, "gamma_u": True}, "gamma_u = True: expected a vector"),
        ({**GATES, "gama_u": [1, 1]}, "unknown setting 'gama_u'. Did you mean 'gamma_u'?"),
        ({**GATES, "G_u": [1, 1]}, "gamma_u and G_u are the same word"),
        ({**GATES, "x": [1]}, "it holds gamma_u (gates given) and x (gates worked out from weights). Leave out x"),
        ({**GATES, "y": [0, 1]}, "y is given, but W_y is missing"),
        ({**GATES, **LAYER, "y": [0, 2, 0]}, "y = [0.0, 2.0, 0.0] is not a target"),
        ({**GATES, **LAYER, "y": [0, 1]}, "y has 2 numbers, expected 3, one for each row of W_y."),
        ({**GATES, **LAYER, "y": 1}, "y = 1: expected a one-hot vector, as in y = [0, 1, 0]."),
        ({**GATES, **LAYER, "W_y": [[1, 2, 3], [4, 5, 6]]}, "W_y is 2×3, expected 2×2: a row for each class"),
        ({**GATES, "letter": "s"}, "letter = 's'"),
        ({"c_prev": [1]}, "it holds neither gates nor weights. Give gamma_u"),
        ({"W_Q": [[1]], "sentences": "a"}, "it is a case for: lemma look attention the case"),
        ({**WEIGHTS, "W_f": [[1, 2], [3, 4]]}, "W_f is 2×2, expected 2×3: a row for each of the 2 of c_prev"),
        ({**WEIGHTS, "W_f": [[1, 2], [3, 4], [5, 6]]}, "It would fit transposed."),
        ({**WEIGHTS, "W_f": [[1, 2, 3], [4, 5]]}, "W_f: row 2 has 2 numbers, row 1 has 3"),
        ({**WEIGHTS, "W_f": [1, 2, 3]}, "W_f = [1, 2, 3]: expected a matrix, as in W_f"),
        ({**WEIGHTS, "W_o": [[1, 2, float("inf")]] * 2}, "W_o: row 1, number 3 = inf: give a finite number."),
        ({**WEIGHTS, "a_prev": [1]}, "a_prev has 1 number, expected 2"),
        ({**{n: v for n, v in WEIGHTS.items() if n != "a_prev"}, "h_prev": [1]}, "h_prev has 1 number, expected 2"),
        ({n: v for n, v in WEIGHTS.items() if n != "x"}, "x is missing. Give a vector"),
        ({n: v for n, v in WEIGHTS.items() if n != "W_c"}, "W_c is missing. Give a matrix"),
        ({n: v for n, v in WEIGHTS.items() if n != "b_c"}, "b_c missing: give all four biases, or none"),
        ({**WEIGHTS, "x": [1e200]}, "grows past"),
        ({**WEIGHTS, "x": [1.0] * 101}, "x is too long for work by hand: 101, at most 100."),
        ({**WEIGHTS, "dc_next": [1]}, "dc_next has 1 number, expected 2"),
    ],
)
def test_invalid_cases_are_explained(case: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        work_lstm(case)
    assert message in str(caught.value)
    assert str(caught.value).startswith("the case: ")


def test_backward_needs_an_upstream_gradient() -> None:
    with pytest.raises(InputError, match="Give y with W_y, da_next or dc_next"):
        work_lstm(GATES, backward=True)
    with pytest.raises(InputError, match="nothing can go back through it"):
        work_lstm({**GATES, "candidate": [2, 0], "da_next": [1, 1]}, backward=True)


def test_defaults_for_missing_values_are_noted() -> None:
    assert "number 1 is outside [−1, 1]" in str(work_lstm({**GATES, "candidate": [2, 0]}))
    bare = {name: value for name, value in WEIGHTS.items() if not name.startswith("b_")}
    without = work_lstm({**bare, "W_y": [[1, 2]]})
    zeros = work_lstm({**WEIGHTS, **{f"b_{letter}": [0, 0] for letter in "ufoc"}})
    np.testing.assert_array_equal(without.forward["a_t"], zeros.forward["a_t"])
    assert without.notes == ("No biases are given: b_u, b_f, b_o and b_c are 0.", "No b_y is given: it is 0.")


def look(*words: str) -> int:
    with pytest.raises(SystemExit) as exit_info:
        main(["look", "lstm", *words])
    return int(exit_info.value.code or 0)


def test_command_lists_prints_saves_and_reloads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert look() == 0
    listed = capsys.readouterr().out
    assert "e9" in listed and "c1" in listed and "lemma look lstm c1 --out mine.toml" in listed
    copy = tmp_path / "mine.toml"
    assert look("c1", "--out", str(copy)) == 0
    capsys.readouterr()
    assert look(str(copy), "--backward", "--json") == 0
    assert json.loads(capsys.readouterr().out) == work_lstm("c1", backward=True).to_dict()
    for end in (".html", ".svg", ".md", ".txt", ".json"):
        assert look("e9", "--backward", "--out", str(tmp_path / f"e9{end}")) == 0
        assert (tmp_path / f"e9{end}").stat().st_size > 500
    page = (tmp_path / "e9.html").read_text(encoding="utf-8")
    assert "Γ_f∗c_prev" in page and "0.3344" in page


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gamma_u = [0.5]\nc_prev = [1]\n", "gamma_f is missing. Give a vector, as in gamma_f = [0.5, 0.9]."),
        ("gamma_u = [0.5\n", "not valid TOML"),
        ('title = "none"\n', "it holds neither gates nor weights"),
    ],
)
def test_invalid_file_exits_with_2_and_its_path(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.toml").write_text(text, encoding="utf-8")
    assert look(str(tmp_path / "bad.toml")) == 2
    output = " ".join(capsys.readouterr().err.split())
    assert message in output and "bad.toml" in output


def test_example_of_another_kind_suggests_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert look("e1") == 2
    assert "lemma look attention e1" in capsys.readouterr().err
    assert look("c2") == 2
    assert "Did you mean 'c1'" in capsys.readouterr().err


def test_case_from_keywords_can_be_saved_and_reloaded(tmp_path: Path) -> None:
    first = work_lstm({**WEIGHTS, **LAYER})
    again = work_lstm(first.save(tmp_path / "case.toml"))
    assert isinstance(again, WorkedLstm)
    assert again.to_dict() == first.to_dict()
