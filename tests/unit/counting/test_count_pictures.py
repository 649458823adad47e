"""The account of a dual encoder: formulas equal to the built module and to sums by hand."""

import pytest

import lemma
from lemma.models.build import count_spec_parameters
from lemma.spec.models import DualEncoder, Rnn

SPEC = DualEncoder(body=Rnn(width=8, hidden=8))
ODD = {"V": 31, "d": 7, "D": 11, "L": 3, "G": 5, "P": 3, "d_i": 21, "L_i": 3, "h_i": 3, "d_s": 13}


@pytest.fixture(scope="module")
def account(account_cache: None):
    return lemma.count(SPEC, quantities=["parameters", "flops"], **ODD, B=5, T=9)


def test_dual_encoder_formula_matches_module_at_odd_sizes(account) -> None:
    assert account.parameters.total == count_spec_parameters(SPEC.with_sizes(ODD))


def test_image_tower_parameters_match_hand_calculation(account) -> None:
    sizes = ODD
    patches, width, layers, shared = sizes["G"] ** 2, sizes["d_i"], sizes["L_i"], sizes["d_s"]
    layer = 4 * (width**2 + width) + (8 * width**2 + 5 * width) + 4 * width
    tower = 3 * sizes["P"] ** 2 * width + width + patches * width + layers * layer + 2 * width
    text = sizes["V"] * sizes["d"] + rnn_parameters(sizes)
    assert account.parameters.total == tower + text + (patches * width + sizes["D"]) * shared + 1


def rnn_parameters(sizes: dict[str, int]) -> int:
    """Return the parameters of an RNN: input and recurrent weights and a bias per layer."""
    inner = [sizes["d"], *[sizes["D"]] * (sizes["L"] - 1)]
    return sum((width + sizes["D"] + 1) * sizes["D"] for width in inner)


def test_contrastive_flops_grow_quadratically_with_batch(account) -> None:
    sizes, batch, time = ODD, 5, 9
    patches, width, shared = sizes["G"] ** 2, sizes["d_i"], sizes["d_s"]
    enter = 2 * patches * 3 * sizes["P"] ** 2 * width
    layers = sizes["L_i"] * (2 * patches * 12 * width**2 + 4 * patches**2 * width)
    inner = [sizes["d"], *[sizes["D"]] * (sizes["L"] - 1)]
    text = sum(2 * time * (entering + sizes["D"]) * sizes["D"] for entering in inner)
    maps = 2 * (patches * width + sizes["D"]) * shared
    assert account.flops.total == batch * (enter + layers + text + maps) + 2 * batch**2 * shared
