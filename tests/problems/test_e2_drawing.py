"""Problem E2: multi-head self-attention with all shapes and the formula of every step."""

from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import lemma
from lemma.counting.drawing import Drawing
from lemma.counting.examples import self_attention

PARAMETERS = {
    "W_Q": ["H", "E", "M_QK"],
    "W_K": ["H", "E", "M_QK"],
    "W_V": ["H", "E", "M_V"],
    "W_O": ["H*M_V", "E"],
}
STEPS = {
    "Q": (["H", "S", "M_QK"], "Q = X W_Q"),
    "K": (["H", "S", "M_QK"], "K = X W_K"),
    "V": (["H", "S", "M_V"], "V = X W_V"),
    "scores": (["H", "S", "S"], "scores = Q Kᵀ"),
    "scaled": (["H", "S", "S"], "scaled = scores / √M_QK"),
    "A": (["H", "S", "S"], "A = softmax(scaled) over S"),
    "heads": (["H", "S", "M_V"], "heads = A V"),
    "concat": (["S", "H*M_V"], "concat = heads, axes H × M_V → H·M_V"),
    "Y": (["S", "E"], "Y = concat W_O"),
}


@pytest.fixture(scope="module")
def drawing(account_cache: None):
    return lemma.count.draw("self-attention")


@pytest.fixture
def nodes(drawing: Drawing) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in drawing.to_dict()["nodes"]}


def test_drawing_shows_the_shape_of_every_parameter(nodes: dict[str, Any]) -> None:
    reserved = {name: node["shape"] for name, node in nodes.items() if node["kind"] == "parameter"}
    assert reserved == PARAMETERS
    assert nodes["X"]["shape"] == ["S", "E"]


def test_drawing_shows_shape_and_formula_of_every_step(nodes: dict[str, Any]) -> None:
    steps = {name: (node["shape"], node["formula"]) for name, node in nodes.items() if node["step"]}
    assert steps == STEPS
    assert nodes.keys() == {"X", *PARAMETERS, *STEPS}, "nothing is left out, nothing is added"


def test_parameter_free_steps_read_no_parameters(nodes: dict[str, Any]) -> None:
    bare = {name for name in STEPS if not {*nodes[name]["reads"]} & {*PARAMETERS}}
    assert bare == {"scores", "scaled", "A", "heads", "concat"}


def test_drawn_formulas_reproduce_the_module_output() -> None:
    module = self_attention(E=6, H=3, M_QK=4, M_V=5).double()
    W, X = dict(module.named_parameters()), torch.randn(7, 6, dtype=torch.double)
    heads = []
    for head in range(3):
        Q, K, V = (X @ W[name][head] for name in ("W_Q", "W_K", "W_V"))
        exponentials = (Q @ K.T / 2).exp()  # √4
        heads.append(exponentials / exponentials.sum(1, keepdim=True) @ V)
    torch.testing.assert_close(module(X), torch.cat(heads, 1) @ W["W_O"])


def test_parameters_match_formula_and_number(drawing: Drawing) -> None:
    account = lemma.count("self-attention", quantities=["parameters"])
    assert account.parameters.formula == "2*E*H*(M_QK + M_V)"
    assert account.parameters.total == 3 * 64 * 64 + 64 * 64 == 16_384


def test_image_shows_every_name_and_shape(drawing: Drawing) -> None:
    rendered = "\n".join("".join(element.itertext()) for element in ElementTree.fromstring(drawing.svg))
    for text in (*PARAMETERS, *STEPS, "H × S × M_QK", "H × S × S", "S × H·M_V"):
        assert text.replace("_", "") in rendered
