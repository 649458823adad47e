"""Every count of the problems, by formula and by number, counted from the module."""

import pytest
import torch
from torch import nn

import lemma
from lemma.checking.read_formula import read_formula
from lemma.counting.polynomial import symbol

pytestmark = pytest.mark.usefixtures("account_cache")

COUNTS = [
    ("feed-forward", "V*(d + d_h) + ((N-1)*d + 1)*d_h", {}),  # A1
    ("attentive", "V*(d + d_h) + 2*d_k*d + d_v*d + (d_v + 1)*d_h", {}),  # A4
    ("table-a5", "(d_e + d + 1)*V + (d_e + 1)*d + L*(8*d**2 + 2*d*d_ff + 15*d + d_ff)", {"L": 2}),  # A5
    ("rnn", "V*d + d*D + D*D + D + V*D + V", {"L": 1}),  # D1
    ("transformer-c5", "V*d + (L_enc + 2*L_dec)*(4*d*d_h + 3*d_h + d) + (L_enc + L_dec)*(2*d*d_ff + d + d_ff)"
     " + 2*d*(2*L_enc + 3*L_dec)", {}),  # C5
    ("gpt2", "V*d + T*d + L*(12*d**2 + 13*d) + 2*d", {}),
    ("torch-lstm", "4*D*(d + D + 2) + (L-1)*4*D*(2*D + 2)", {}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "formula", "fixed"), COUNTS, ids=[row[0] for row in COUNTS])
def test_problem_formula_matches_the_module(model: str, formula: str, fixed: dict[str, int]) -> None:
    if model == "gpt2":
        pytest.importorskip("transformers")
    account = lemma.count(model, quantities=["parameters"])
    expected = read_formula(formula, account.order).to_polynomial()
    result = account.parameters.polynomial
    for name, value in fixed.items():
        expected, result = expected.substitute(name, value), result.substitute(name, value)
    assert result == expected


NUMBERS = [
    ("table-a5", {"L": 2}, 9_721_596),
    ("table-a5", {"L": 4}, 14_980_860),
    ("transformer-c5", {}, 139_994_112),
    ("gpt2", {}, 124_439_808),
    ("penn-rnn", {}, 256 * 10_000 + 256 * 512 + 512 * 512 + 512 + 512 * 10_000 + 10_000),
]


@pytest.mark.parametrize(("model", "sizes", "number"), NUMBERS)
def test_problem_number_matches_the_module(model: str, sizes: dict[str, int], number: int) -> None:
    if model == "gpt2":
        pytest.importorskip("transformers")
    assert lemma.count(model, quantities=["parameters"], **sizes).parameters.total == number


def test_c5_parts_add_up_to_the_total() -> None:
    parts = lemma.count("transformer-c5", quantities=["parameters"]).parameters.parts
    attention = sum(part["count"] for part in parts if part["path"].startswith("encoder.layers.*.attention."))
    assert attention == 12 * 3_149_056
    assert sum(part["count"] for part in parts if part["path"].startswith("encoder")) == 50_439_168
    assert sum(part["count"] for part in parts if part["path"].startswith("decoder")) == 58_834_944


def test_a3_head_of_the_attentive_model_matches_formula() -> None:
    account = lemma.count("attentive", quantities=["parameters"])
    head = [part for part in account.parameters.groups if part.path.startswith("head")]
    expected = read_formula("2*d_k*d + d_v*d", account.order).to_polynomial()
    assert sum((part.total for part in head), 0 * expected) == expected


def test_a3_head_has_6600_parameters() -> None:
    account = lemma.count(
        "lemma.models.feed_forward:WindowHead", quantities=["parameters"], width=60, key_width=30, value_width=50
    ).parameters
    assert account.total == 2 * 30 * 60 + 50 * 60 == 6600
    assert account.formula == "width*(2*key_width + value_width)"


def test_a5_sizes_are_recovered_from_printed_totals() -> None:
    """(V + 512)(d_e + 513) = 9,721,596 − 2·2,629,632 + 512²: a pair of divisors for each solution."""
    product = 9_721_596 - (14_980_860 - 9_721_596) + 512**2
    assert product == 4 * 23 * 89 * 577
    divisors = [index for index in range(513, product // 513) if product % index == 0]
    by_hand = {(index - 512, product // index - 513) for index in divisors if product // index > 513}
    result = lemma.count.solve("table-a5", ["V", "d_e"], ["L=2:9721596", "L=4:14980860"])
    assert {(index["V"], index["d_e"]) for index in result.solutions} == by_hand and result.number == 6
    assert result.solutions[0] == {"V": 7676, "d_e": 64}


def test_d3_heads_do_not_change_the_parameters() -> None:
    assert "h" not in lemma.count("decoder", quantities=["parameters"]).parameters.polynomial.symbols


def test_llama_with_grouped_heads_matches_formula() -> None:
    transformers = pytest.importorskip("transformers")
    account = lemma.count("llama", quantities=["parameters"])
    sizes = {"V": 97, "d": 48, "L": 3, "h": 6, "h_kv": 2, "d_h": 10, "d_ff": 70}
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=48, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=10,
        intermediate_size=70, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    assert account.parameters.polynomial.at(sizes) == sum(p.numel() for p in model.parameters())


class Tensors(nn.Module):
    """A module of parameters with given shapes."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))


def separate(I: int = 8, J: int = 16) -> nn.Module:  # noqa: E741 (the letter of the problem)
    return Tensors(query=(I, J), key=(I, J))


def merged(J: int = 16) -> nn.Module:
    return Tensors(query_key=(J, J))


def dense_attention(N: int = 3, D: int = 4) -> nn.Module:
    return Tensors(M=(N * D, N * D, N, N))


def lora(W_in: int = 200, W_out: int = 50, R: int = 5) -> nn.Module:
    return Tensors(down=(R, W_in), up=(W_out, R))


def test_b7_merged_matrix_parameters_are_equal_at_half_width() -> None:
    two, item = lemma.count(separate).parameters, lemma.count(merged).parameters
    assert (two.formula, item.formula) == ("2*I*J", "J**2")
    assert two.polynomial.substitute("I", symbol("J") / 2) == item.polynomial


def test_c10_dense_map_has_n4_d2_entries() -> None:
    assert lemma.count(dense_attention).parameters.formula == "N**4*D**2"


def test_e5_lora_trains_one_eighth() -> None:
    account = lemma.count(lora, quantities=["parameters"])
    assert account.parameters.formula == "R*(W_in + W_out)"
    assert account.parameters.total / (200 * 50) == 0.125
