"""Cells agree with PyTorch's modules and with finite differences."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lemma.checking.cells import CELL_NAMES, draw_sample, find_cell
from lemma.checking.expressions import Evaluator
from lemma.checking.gradients import check_gradients, describe_cell
from lemma.errors import InputError


def loss_of(name: str, values: dict[str, Tensor]) -> float:
    scope = dict(values)
    for equation in find_cell(name).equations:
        scope[equation.name] = Evaluator(scope)(equation.expression)
    return scope["loss"].item()


@pytest.mark.parametrize("name", CELL_NAMES)
def test_cell_gradients_match_finite_differences_of_the_loss(name: str) -> None:
    values = find_cell(name).samples[1].values
    for input_side in find_cell(name).input_shapes:
        if f"d{input_side}" not in find_cell(name).gradients:
            continue
        direction = torch.randn_like(values[input_side])
        ahead, behind = ({**values, input_side: values[input_side] + step * direction} for step in (1e-5, -1e-5))
        slope = (loss_of(name, ahead) - loss_of(name, behind)) / 2e-5
        assert slope == pytest.approx((values[f"d{input_side}"] * direction).sum().item(), rel=1e-5, abs=1e-8), (
            input_side
        )


def test_gru_cell_matches_torch_gru_cell() -> None:
    v = find_cell("gru").samples[0].values
    cell = torch.nn.GRUCell(v["x"].shape[0], v["h"].shape[0], dtype=torch.float64)
    with torch.no_grad():
        cell.weight_ih.copy_(torch.cat([v[f"W_{gate}"] for gate in "rzn"]))
        cell.weight_hh.copy_(torch.cat([v[f"U_{gate}"] for gate in "rzn"]))
        cell.bias_ih.copy_(torch.cat([v[f"b_{gate}"] for gate in "rzn"]).flatten())
        cell.bias_hh.copy_(torch.cat([0 * v["b_r"], 0 * v["b_z"], v["v_n"]]).flatten())
    state = v["h_prev"].T.clone().requires_grad_()
    h = cell(v["x"].T, state)
    torch.testing.assert_close(h, v["h"].T, rtol=1e-12, atol=1e-12)
    h.backward(v["dh"].T)
    torch.testing.assert_close(state.grad, v["dh_prev"].T, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(cell.bias_hh.grad[-len(v["v_n"]) :], v["dv_n"].flatten(), rtol=1e-10, atol=1e-12)


def test_attention_cell_matches_torch_scaled_dot_product_attention() -> None:
    v = find_cell("attention").samples[0].values
    tokens = v["X"].clone().requires_grad_()
    out = functional.scaled_dot_product_attention(*((tokens @ v[f"W_{part}"])[None] for part in "qkv"))[0]
    torch.testing.assert_close(out, v["out"], rtol=1e-12, atol=1e-12)
    out.backward(v["dout"])
    torch.testing.assert_close(tokens.grad, v["dX"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CELL_NAMES)
def test_sample_sizes_differ_so_wrong_shapes_cannot_match(name: str) -> None:
    for seed in range(20):
        sample = draw_sample(find_cell(name), seed)
        assert len(sample.size_names) == len(set(sample.size_names.values()))
        assert set(find_cell(name).sizes) <= set(sample.size_names.values())
        assert min(set(sample.size_names) - {1}) > 1


@pytest.mark.parametrize("name", CELL_NAMES)
def test_cell_description_lists_values_gradients_and_aliases(name: str) -> None:
    text = describe_cell(name)
    for names in (*find_cell(name).values, *find_cell(name).gradients, *find_cell(name).aliases):
        assert names in text
    assert max(map(len, text.splitlines())) <= 120


def test_unknown_cell_name_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match="Did you mean 'lstm'"):
        describe_cell("ltsm")


def test_inputs_x_and_x_t_are_distinct(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(
        'sizes = ["n"]\nforward = "z = x + 2*x_t"\nloss = "sum(z * z)"\n[inputs]\nx = "n"\nx_t = "n"\n',
        encoding="utf-8",
    )
    verdicts = check_gradients(str(path), ["dz = 2*z", "dx = dz", "dx_t = 2*dz"]).lines
    assert [verdict.outcome for verdict in verdicts] == ["right"] * 3
    assert check_gradients(str(path), ["dz = 2*z", "dx_t = dz"]).lines[1].outcome == "wrong"


def test_time_subscript_t_is_optional_in_names(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text('sizes = ["n"]\nforward = "z_t = 3*x"\nloss = "sum(z * z)"\n[inputs]\nx_t = "n"\n')
    for lines in (["dz = 2*z", "dx = 3*dz"], ["dz_t = 2*z_t", "dx_t = 3*dz_t"], ["k_t = 2*z", "dz = k", "dx = 3*dz"]):
        assert check_gradients(str(path), lines).right, lines
