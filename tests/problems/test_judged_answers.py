"""Problems A1, A3–A5, C5 and D1: the published answers and typical mistakes."""

import pytest

import lemma
from lemma.checking.check_formula import check_formula
from lemma.checking.check_number import check_number

pytestmark = pytest.mark.usefixtures("account_cache")


A5 = "V(d_e + d + 1) + (d_e + 1)d + L(8d^2 + 2d d_ff + 15d + d_ff)"
ATTENTION, FEED_FORWARD = "(4d d_h + 3d_h + d)", "(2d d_ff + d_ff + d)"


def c5(
    attention: str = ATTENTION,
    forward: str = FEED_FORWARD,
    encoder: str = "2*2d",
    decoder: str = "3*2d",
    twice: str = "2",
) -> str:
    encoding = f"L_enc({attention} + {encoder} + {forward})"
    return f"V d + {encoding} + L_dec({twice}{attention} + {decoder} + {forward})"


@pytest.mark.parametrize(
    ("model", "formula", "number"),
    [
        ("feed-forward", "|V|(d + d_h) + ((N−1)d + 1) d_h", 196_864),
        ("attentive", "|V|(d + d_h) + 2 d_k d + d_v d + (d_v + 1) d_h", 131_328),
        ("penn-rnn", "|V|d + D^2 + dD + D|V| + D + |V|", 8_083_728),
        ("table-a5", A5, 9_721_596),
        ("transformer-c5", c5(), 139_994_112),
    ],
)
def test_published_formulas_are_right(model: str, formula: str, number: int) -> None:
    verdict = check_formula(model, "parameters", formula)
    assert verdict.equal, str(verdict)
    assert verdict.right_at == number


def test_a5_65_percent_is_wrong_and_54_1_is_right() -> None:
    verdict = check_number("table-a5", "parameters", "65 % increase from 2 to 4 layers")
    assert (verdict.equal, verdict.yours, verdict.right) == (False, "65 %", "54.1 %")
    totals = [lemma.count("table-a5", quantities=["parameters"], L=layers).parameters.total for layers in (2, 4)]
    assert totals == [9_721_596, 14_980_860]
    assert "what the 9,721,596 at L=2 are of the 14,980,860 at L=4" in str(verdict)
    assert check_number("table-a5", "parameters", "54.1 % increase from L=2 to L=4").equal
    assert check_number("table-a5", "parameters", "54 % increase from depth=2 to depth=4").equal


def test_a5_counts_are_checked() -> None:
    assert check_number("table-a5", "parameters", "9,721,596").equal
    assert check_number("table-a5", "parameters", "14,980,860", {"depth": 4}).equal
    assert "It would be right at L=4" in str(check_number("table-a5", "parameters", "14,980,860"))
    assert check_number("table-a5", "parameters", "0 % increase from N=3 to N=5").equal


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (A5.replace("2d d_ff + 15d + d_ff", "2d^2 + 16d"), "has d where the model has d_ff (the two are equal only at"),
        (A5.replace("8d^2", "4d^2").replace("15d", "11d"), "'layers.*.self_attn' or 'layers.*.multihead_attn'."),
        (A5.replace("15d", "13d"), "'layers.*.norm1', 'layers.*.norm2' or 'layers.*.norm3'."),
        (A5.replace("d + 1)", "d)", 1), "a bias of V in 'output' that your formula leaves out."),
        ("V(2d + 1) + L(8d^2 + 2d d_ff + 15d + d_ff)", "'projection' (d*(d_e + 1)) that your formula leaves out, and"),
        (f"{A5} + N d", "has d*N, in which N is foreign: the parameters of this model do not depend on it."),
    ],
)
def test_a5_mistakes_are_diagnosed(formula: str, expected: str) -> None:
    verdict = check_formula("table-a5", "parameters", formula)
    assert not verdict.equal
    assert expected in " ".join(verdict.diagnosis)


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (c5(attention="(4d d_h)"), "The model has the biases of every 'attention' and 'source_attention'"),
        (c5(attention="(4d d_h)", forward="(2d d_ff)"), "The model has all biases but those of norms"),
        (c5(encoder="2d"), "'encoder.layers.*.attention_norm' or 'encoder.layers.*.feed_forward_norm'."),
        (c5(decoder="2*2d"), "leaves out one of these, which are all of one size: 'decoder.layers.*.attention_norm', "),
        (c5(encoder="2d", decoder="2*2d"), "all of one size: every 'attention_norm' or every 'feed_forward_norm'."),
        (c5(encoder="2d", decoder="3d"), "the biases of all norms or the weights of all norms."),
        (
            c5(encoder="0", decoder="0"),
            "The model has all norms (2*d*(2*L_enc + 3*L_dec)) that your formula leaves out.",
        ),
        (c5(attention="(4d^2 + 4d)"), "Your formula has d where the model has d_h."),
        (c5(attention="(3d d_h + 3d_h)"), "The model has every 'output'"),
        (
            c5(attention="h(4d d_h + 3d_h + d)"),
            "multiplies every 'attention' and 'source_attention' by h; the heads share its width.",
        ),
        (c5(attention="(4d d_h/h + 3d_h + d)"), "divides the weights of every 'attention' and 'source_attention' by h"),
        (c5(twice="1"), "all of one size: 'decoder.layers.*.attention' or 'decoder.layers.*.source_attention'."),
        (c5().replace("L_dec", "L_enc"), "Your formula has L_enc where the model has L_dec."),
        (
            f"V d + {c5()}",
            "counts 'output.weight' again; it is tied to 'embedding.weight', and a tied tensor counts once.",
        ),
        (f"{c5()} + V", "has a bias of V on the output that the model does not have."),
    ],
)
def test_c5_mistakes_are_diagnosed(formula: str, expected: str) -> None:
    verdict = check_formula("transformer-c5", "parameters", formula)
    assert not verdict.equal
    assert expected in " ".join(verdict.diagnosis)


def test_c5_numbers_are_checked() -> None:
    attention, forward = 4 * 1024 * 768 + 3 * 768 + 1024, 2 * 1024 * 512 + 512 + 1024
    right = f"30000*1024 + 12*({attention} + 2*2048 + {forward}) + 8*(2*{attention} + 3*2048 + {forward})"
    assert check_formula("transformer-c5", "parameters", right).equal
    wrong = check_formula("transformer-c5", "parameters", right.replace("3*2048", "2*2048"))
    assert wrong.residual == "-16384"
    assert "'decoder.layers.*.source_norm' or 'decoder.layers.*.feed_forward_norm'" in wrong.diagnosis[-1]
    assert check_number("transformer-c5", "parameters", "140 million").equal
