"""Checks of formulas and numbers: right answers in any notation, diagnoses of wrong ones."""

import time
from pathlib import Path

import pytest

import lemma
from lemma.checking.check_formula import check_formula
from lemma.checking.check_number import check_number
from lemma.checking.explain import neighbor_specs
from lemma.checking.read_formula import read_formula
from lemma.counting.count import Conventions
from lemma.errors import CountingError, InputError
from lemma.models.build import count_spec_parameters
from lemma.report.numbers import read_number
from lemma.spec.choose import PRESETS
from lemma.spec.models import DualEncoder, Gru, Rnn

A1 = "V(d + d_h) + ((N-1)d + 1)d_h"
DECODER = "d(V + T + 2) + L(12d^2 + 13d)"
UPPER = "4(dD + D^2 + D) + 4(L-1)(2D^2 + D)"

RIGHT = [
    ("feed-forward", {}, A1),
    ("feed-forward", {}, r"|V|(d+d_h) + \left((N-1)\cdot d + 1\right) d_h"),
    ("feed-forward", {}, "V*d + V*d_h + N*d*d_h - d*d_h + d_h"),
    ("feed-forward", {}, "P = d_h·(V + (N−1)·d + 1) + d·V"),
    ("feed-forward", {}, "vocabulary*(width + hidden) + ((context-1)*width + 1)*hidden"),
    ("feed-forward", {}, r"\frac{(V^2 - 1)(d + d_h)}{V - 1} - (d + d_h) + ((N-1)d+1)d_h"),
    ("feed-forward", {}, "196,864"),
    ("attentive", {}, "V(d + d_h) + 2 d_k d + d_v d + (d_v + 1) d_h"),
    ("rnn", {}, "|V|d + D^2 + dD + D + D|V| + |V|"),
    ("rnn", {"depth": 3}, "V(d+D+1) + D(d + D + 1) + 2D(2D+1)"),
    ("lstm", {"tied": True, "D": 128}, "V(D + 1) + 4L(2D^2 + D)"),
    ("lstm", {}, f"V(d+D+1) + {UPPER}"),
    ("decoder", {}, DECODER),
    ("decoder", {}, "d(V+T+2) + L(4d d_h + 3d_h + d + 2d d_ff + d_ff + d + 4d)"),
    ("decoder", {}, "d(V+T+2) + L(4d d_h + 4d + 8d^2 + 5d + 4d)"),
    ("decoder", {}, "width*(V+T+2) + depth*(12*width**2 + 13*width)"),
    ("torch-lstm", {}, "4D(d + D + 2) + (L-1)*8*D*(D + 1)"),
]


@pytest.mark.parametrize(("model", "words", "formula"), RIGHT, ids=range(len(RIGHT)))
def test_equivalent_formulas_are_accepted_in_any_form(model: str, words: dict, formula: str) -> None:
    verdict = check_formula(model, "parameters", formula, words)
    assert verdict.equal, str(verdict)
    assert verdict.residual is None
    assert verdict.yours_at == verdict.right_at


REMARKS = [
    ("d(V+T+2) + 12Ld^2 + 13Ld", True, "Read 'Ld^2' as L·d^2, 'Ld' as L·d."),
    ("2BTdV", False, "Read 'TdV' as T·d·V."),
    (r"d_{\text{model}}(V+T+2) + \sum_{l=1}^{n_layers} (12d_model^2 + 13d_{model}) parameters", True, ""),
    ("d(V+T+2) + L(4d^2 + 4d + 2 d d_ff + d_ff + d + 4d) with d_ff = 4d", True, ""),
    (
        "d(V+T+2) + L(4d^2 + 4d + 2 d d_ff + d_ff + d + 4d) with d_ff = 2d",
        False,
        "takes d_ff = 2*d; the model has d_ff = 4*d.",
    ),
    (f"{DECODER} = 834,304", True, ""),
    (f"{DECODER} = 834,305", False, "Step 1 of your chain is wrong: the two sides differ by -1."),
    (f"P = {DECODER} + d = {DECODER}", True, "Step 1 of your chain is wrong: the two sides differ by d."),
    ("tokens: V d, positions: T d, layers: L(12d^2 + 13d), norm: 2d", True, ""),
    ("- tokens: V d\n- positions: T d\n- layers: L(12d^2 + 13d)\n- norm: 2d", True, ""),
    ("1. V d\n2. T d\n3. L(12d^2 + 13d)\n4. 2d\ntotal: 834,304", True, ""),
    (
        "\\begin{aligned} P &= V d + T d + 2d + L(12d^2+13d) \\\\ &= (V+T+2)d + L(12d^2 + 13d) \\end{aligned}",
        True,
        "",
    ),
    ("d_model(V+T+2) + L(12d^2 + 13d) where d_model = d", True, ""),
    (
        "tokens: V d, layers: L(12d^2 + 13d), norm: 2d; total: 834,304",
        False,
        "parts do not add up to the total: the two sides differ by -8,192.",
    ),
]


@pytest.mark.parametrize(("formula", "equal", "remark"), REMARKS, ids=range(len(REMARKS)))
def test_remarks_report_interpretation_and_wrong_steps_of_a_chain(formula: str, equal: bool, remark: str) -> None:
    verdict = check_formula("decoder", "parameters", formula.replace("2BTdV", "2TdV"))
    assert verdict.equal is equal, str(verdict)
    assert " ".join(verdict.remarks).endswith(remark) and bool(remark) == bool(verdict.remarks)
    assert " ".join(verdict.remarks) in " ".join(str(verdict).split())


def test_formula_equal_at_only_these_sizes_is_wrong() -> None:
    wrong = "V(d + V) + ((N-1)d + 1)d_h"
    assert (
        "yours − model = V*(V − d_h), which is 0 at these sizes only."
        in check_formula("feed-forward", "parameters", wrong).headline
    )
    verdict = check_formula("feed-forward", "parameters", f"{wrong} = 196,864")
    assert not verdict.equal and verdict.headline.endswith("which is 0 at these sizes only.")


def test_numbers_for_symbols_are_right_only_if_sizes_are_set() -> None:
    for text in ("128 V + 801,536", "6518 d = 834,304", "V d + 801,536", "128 V + 801,536 = 834,304"):
        verdict = check_formula("decoder", "parameters", text)
        assert not verdict.equal, str(verdict)
    verdict = check_formula("decoder", "parameters", "128 V + 801,536")
    assert verdict.diagnosis == (
        "It is right only at d = 128, L = 4, T = 64. Write the formula with d, L, T, or set the sizes that are fixed, "
        "as in d=128.",
    )
    sizes = {"width": 128, "depth": 4, "context": 64}
    assert check_formula("decoder", "parameters", "128 V + 801,536", sizes).equal
    assert not check_formula("decoder", "parameters", "128 V + 801,536", {"d": 128, "L": 4}).equal
    assert check_formula("decoder", "parameters", f"{DECODER} with L = 4").equal
    assert check_formula("decoder", "parameters", "834,304").equal  # a number always refers to these sizes


def test_number_after_a_right_formula_is_checked_too() -> None:
    assert check_formula("decoder", "parameters", f"{DECODER} = 834,304").equal
    verdict = check_formula("decoder", "parameters", f"{DECODER} = 834,305")
    assert not verdict.equal and "yours is d*(V + L*(12*d + 13) + T + 2) = 834,305" in verdict.headline
    assert verdict.diagnosis == ("The formula is right, but not the number after it: at these sizes it is 834,304.",)


def test_formula_for_one_row_is_right_at_batch_size_one() -> None:
    one_row = "2V d T + L T(24d^2 + 4 d T)"
    assert check_formula("decoder", "flops", one_row).equal
    verdict = check_formula("decoder", "flops", one_row, {"B": 4})
    assert not verdict.equal and verdict.diagnosis == ("But it is right for one row of the batch (without B).",)
    assert check_formula("decoder", "flops", f"4 ({one_row})", {"B": 4}).equal


WRONG = [
    # feed-forward
    ("feed-forward", {}, "V(d + d_h) + (N-1)d d_h", "The model has a bias of d_h in 'hidden' that your formula leaves"),
    ("feed-forward", {}, "V(d + d_h) + (N d + 1)d_h", "has N where the model has N-1."),
    ("feed-forward", {}, "V(d + d_h) + ((N-2)d + 1)d_h", "has N-2 where the model has N-1."),
    ("feed-forward", {}, f"{A1} + V", "has a bias of V in 'output' that the model does not have."),
    ("feed-forward", {}, "V d + ((N-1)d + 1)d_h", "a weight of V*d_h in 'output' that your formula leaves out."),
    ("feed-forward", {}, "V(d + d_h) + (d + 1)d_h", "leaves the factor N-1 out of 'hidden.weight'."),
    ("feed-forward", {}, "2V d + ((N-1)d + 1)d_h", "has d where the model has d_h on one side of 'output.weight'."),
    ("feed-forward", {}, "(V+1)(d + d_h) + ((N-1)d + 1)d_h", "has V+1 where the model has V."),
    (
        "feed-forward",
        {},
        "V(d + d_h) + N d d_h",
        "bias of d_h in 'hidden' that your formula leaves out, and your formula has N",
    ),
    ("feed-forward", {}, f"2({A1})", "Your formula is 2 times the model's."),
    ("feed-forward", {}, "V(d + d_h) + (N-1)(d + 1)d_h", "multiplies 'hidden.bias' by N-1."),
    # attentive
    ("attentive", {}, "V(d + d_h) + d_k d + d_v d + (d_v + 1)d_h", "'head.query.weight' or 'head.key.weight'."),
    (
        "attentive",
        {},
        "V(d + d_h) + 3 d_k d + (d_v + 1)d_h",
        "has d_k where the model has d_v on one side of 'head.value",
    ),
    ("attentive", {}, "V(d + d_h) + 2d_k d + d_v d + ((N-1)d_v + 1)d_h", "multiplies 'hidden.weight' by N-1."),
    # recurrent
    (
        "rnn",
        {},
        "V(d+D+1) + dD + (2L-1)D^2",
        "the bias 'layers.bias_ih_l*' (D each, D*L in all) that your formula leaves",
    ),
    ("rnn", {}, "V(d+D+1) + dD + (2L-1)D^2", "It would be right with biases=0."),
    ("rnn", {}, "V(d+D) + dD + (2L-1)D^2 + L D", "a bias of V in 'output' that your formula leaves out."),
    ("rnn", {}, "V(d+D+1) + D^2 + D", "the weight 'layers.weight_ih_l0' (d*D) that your formula leaves out."),
    ("rnn", {}, "V(d+D+1) + 4(dD + (2L-1)D^2 + L D)", "It would be right with family=lstm."),
    (
        "lstm",
        {},
        f"V(d+D+1) + ({UPPER})3/4",
        "has 4 equal blocks in 'layers' (one for each gate or candidate); yours has 3",
    ),
    ("lstm", {}, f"V(d+D+1) + ({UPPER})3/4", "It would be right with family=gru."),
    ("lstm", {}, "V(d+D+1) + dD + D^2 + D", "(one for each gate or candidate); yours has 1."),
    (
        "lstm",
        {},
        f"V(d+D+1) + {UPPER} + 4L D",
        "two bias vectors of 4*D in each layer, b_ih and b_hh as in PyTorch; this model has one",
    ),
    ("lstm", {}, f"V(d+D+1) + {UPPER} + 4L D", "It would be right with biases=2."),
    ("lstm", {}, "V(d+D) + 4(dD + D^2)", "The model has all biases (V + 4*D) that your formula leaves out."),
    ("gru", {}, f"V(d+D+1) + {UPPER}", "has 3 equal blocks in 'layers' (one for each gate or candidate); yours has 4"),
    ("torch-lstm", {}, UPPER, "'bias_ih_l*' or 'bias_hh_l*'."),
    ("torch-lstm", {}, "4L(dD + D^2 + 2D)", "has d where the model has D on one side of 'weight_ih_l1…'."),
    ("torch-lstm", {}, "4(dD + D^2 + 2D) + 8L(D^2 + D)", "has L+1 where the model has L."),
    # decoder, tied
    ("decoder", {}, "d(V+T) + L(12d^2 + 13d)", "The model has 'norm' (2*d) that your formula leaves out."),
    ("decoder", {}, "d(V+T+2) + L(12d^2 + 11d)", "'layers.*.attention_norm' or 'layers.*.feed_forward_norm'."),
    ("decoder", {}, "d(V+T+2) + L(12d^2 + 4d)", "all biases but those of norms (9*d*L)"),
    (
        "decoder",
        {},
        "d(V+T+1) + L(12d^2 + 2d)",
        "all biases (d*(11*L + 1)) that your formula leaves out. It would be right with bias=f",
    ),
    ("decoder", {}, "d(V+T) + L(12d^2 + 9d)", "The model has all norms (2*d*(2*L + 1)) that your formula leaves out."),
    ("decoder", {}, "d(2V+T+2) + L(12d^2 + 13d)", "counts 'output.weight' again; it is tied to 'embedding.weight'"),
    ("decoder", {}, "d(2V+T+2) + L(12d^2 + 13d)", "It would be right with tied=false."),
    ("decoder", {}, "d(V+2) + L(12d^2 + 13d)", "a weight of d*T in 'positions' that your formula leaves out."),
    ("decoder", {}, "d(V+T+2) + 12d^2 + 13d", "counts 'layers' for one layer only; there are L."),
    ("decoder", {}, "d(V+T+2) + (L+1)(12d^2 + 13d)", "has L+1 where the model has L."),
    (
        "decoder",
        {},
        "d(V+T+2) + L(11d^2 + 12d)",
        "'layers.*.attention.output' (d*L*(d + 1)) that your formula leaves out.",
    ),
    ("decoder", {}, "d(V+T+2) + L(4 h d^2 + 8d^2 + 13d)", "multiplies the weights of 'layers.*.attention' by h"),
    (
        "decoder",
        {},
        "d(V+T+3) + L(12d^2 + 13d)",
        "Either your formula has V+1 where the model has V, or your formula has T+1",
    ),
    (
        "decoder",
        {},
        "d(V+T) + 12L d^2",
        "has all norms (2*d*(2*L + 1)) and all biases but those of norms (9*d*L) that your formula leaves out.",
    ),
    (  # three omissions, not one omission and one term counted twice
        "encoder",
        {},
        "V*d + L*(4*d*d)",
        "The model has the biases of 'encoder.layers.*.attention' (4*d*L), all norms (2*d*(2*L + 1)) and "
        "'encoder.layers.*.feed_forward' (d*L*(8*d + 5)) that your formula leaves out.",
    ),
    # an unused symbol, alone and with another mistake; a repeated size
    (
        "encoder",
        {},
        "d(V+2) + L(12d^2 + 13d) + T d",
        "has d*T, in which T is foreign: the parameters of this model do not",
    ),
    (
        "encoder",
        {},
        "d(V+2) + L(12d^2 + 4d) + T d",
        "all biases but those of norms (9*d*L) that your formula leaves out, and",
    ),
    ("decoder", {}, "d(V+T+2) + L(12d^2 + 5d)", "your formula leaves out two of these"),
    ("decoder", {}, "d(V+T+2) + L(12d^2 + 9d)", "'layers.*.feed_forward.widen.bias', the norms of the layers or"),
    ("decoder", {}, "d(V+T+2) + L(6d^2 + 10d)", "Your formula has d where the model has d_ff = 4*d."),
    # other mistakes in a decoder
    ("decoder", {"d_h": 96}, DECODER, "has d where the model has d_h."),
    ("decoder", {"tied": False}, DECODER, "'embedding.weight' or 'output.weight'. It would be right with tied=true."),
    ("decoder", {"norm": "rms"}, DECODER, "It would be right with norm=layer."),
    ("decoder", {"d_ff": 300}, DECODER, "has 4*d where the model has d_ff."),
]


@pytest.mark.parametrize(("model", "words", "formula", "expected"), WRONG, ids=range(len(WRONG)))
def test_diagnosis_identifies_the_mistake_in_a_wrong_formula(
    model: str, words: dict, formula: str, expected: str
) -> None:
    verdict = check_formula(model, "parameters", formula, words)
    assert not verdict.equal
    assert expected in " ".join(verdict.diagnosis)


@pytest.mark.parametrize("case", WRONG[::6], ids=range(len(WRONG[::6])))
def test_residual_is_answer_minus_model_size(case: tuple) -> None:
    model, words, formula, _ = case
    verdict = check_formula(model, "parameters", formula, words)
    if model in PRESETS:
        assert verdict.right_at == count_spec_parameters(PRESETS[model].model.replace(**words))
    assert verdict.residual is not None
    residual = read_formula(verdict.residual, list(verdict.symbols)).at(verdict.symbols)
    assert residual == verdict.yours_at - verdict.right_at
    assert read_formula(verdict.right, list(verdict.symbols)).at(verdict.symbols) == verdict.right_at


FLOPS = [
    ("V d T B + L T B(12d^2 + 2 d T)", "But it is right with a multiply–add counted as 1."),
    ("2V d T B + L T B(24d^2 + 2 d T)", "But it is right with causal attention counted half."),
    ("3(2V d T B + L T B(24d^2 + 4 d T))", "But it is right for the forward and the backward pass together."),
    ("4V d T B + L T B(48d^2 + 8 d T)", "But it is right for the backward pass alone."),
    ("2V d + L(24d^2 + 4 d T)", "But it is right for one token (without B and T)."),
    ("V d T + L T(12d^2 + 2 d T)", "a multiply–add counted as 1, for one row of the batch (without B)."),
    (
        "2V d T B + 24 L T B d^2",
        "the products of 'layers.*.attention' itself (4*d*L*T**2*B) that your formula leaves out.",
    ),
    ("L T B(24d^2 + 4 d T)", "the products of 'output' (2*V*d*T*B) that your formula leaves out."),
    ("2V d T B + L T B(24d^2 + 4 d)", "leaves the factor T out of 'layers.*.attention' itself."),
    ("2V d T B + L T B(24d^2 + 4 d h T)", "multiplies 'layers.*.attention' itself by h; the heads share its width."),
    (f"2 B T ({DECODER})", "the rule of thumb of 2 operations for each parameter and token"),
]


@pytest.mark.parametrize(("formula", "expected"), FLOPS, ids=range(len(FLOPS)))
def test_diagnosis_identifies_other_flops_conventions_and_mistakes(formula: str, expected: str) -> None:
    verdict = check_formula("decoder", "flops", formula)
    assert not verdict.equal
    assert expected in " ".join(verdict.diagnosis)


def test_flops_are_checked_under_the_requested_convention() -> None:
    half = Conventions(multiply_add=1, causal="half")
    assert check_formula("decoder", "flops", "2V d T B + 24 L T B d^2 + 4 L d B T^2").equal
    assert check_formula("decoder", "flops", "V d T B + 12 L T B d^2 + L d B T^2", conventions=half).equal
    assert not check_formula("decoder", "flops", "2V d T B + 24 L T B d^2 + 4 L d B T^2", conventions=half).equal


def test_unrelated_formula_is_compared_term_by_term() -> None:
    verdict = check_formula("feed-forward", "parameters", "V(d + d_h) + 5d^3 + 7")
    assert "of d**3 yours has 5, the model none" in verdict.diagnosis[0]
    assert "of d*d_h yours has none, the model -1, from 'hidden.weight'" in verdict.diagnosis[0]
    fraction = check_formula("feed-forward", "parameters", "V/(d+1)")
    assert fraction.diagnosis == ("Your formula is not a polynomial: it is divided by d + 1.",)


def test_unknown_quantities_and_models_suggest_the_nearest() -> None:
    with pytest.raises(InputError, match="Did you mean 'd_h'"):
        check_formula("feed-forward", "parameters", "V*d_hh")
    with pytest.raises(InputError, match="unknown quantity 'params'"):
        check_formula("feed-forward", "params", "V")  # type: ignore[arg-type]
    with pytest.raises(CountingError, match="only its parameters"):
        lemma.check("flops", "torch.nn:Linear", "in_features", in_features=4, out_features=2)


def test_formula_of_a_custom_factory_is_checked() -> None:
    from torch import nn

    def two_layers(inside: int = 8, outside: int = 3) -> nn.Module:
        return nn.ModuleDict({"first": nn.Linear(4, inside), "last": nn.Linear(inside, outside, bias=False)})

    assert check_formula(two_layers, "parameters", "inside*(5 + outside)").equal
    wrong = check_formula(two_layers, "parameters", "4*inside + inside*outside")
    assert wrong.diagnosis == ("The model has a bias of inside in 'first' that your formula leaves out.",)


def test_spec_is_checked_like_its_preset() -> None:
    spec = Rnn(biases=2)
    assert check_formula(spec, "parameters", "V(d+D+1) + dD + (2L-1)D^2 + 2L D").equal
    assert "biases=1" in str(check_formula(spec, "parameters", "V(d+D+1) + dD + (2L-1)D^2 + L D"))


def test_spec_file_is_checked_like_its_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('family = "gru"\nwidth = 8\nhidden = 16\n', encoding="utf-8")
    verdict = check_formula(path, "parameters", "vocabulary*(width + hidden + 1) + 4*hidden*(width + hidden + 1)")
    assert verdict.right_at == count_spec_parameters(Gru(width=8, hidden=16))
    assert "yours has 4" in str(verdict)


@pytest.mark.parametrize("formula", ["(V+d+d_h+N)^12", "1/(V+d)^9+1/(N+d_h)^9", "+".join(["V*d^3"] * 600)])
def test_expensive_formula_is_checked_in_bounded_time(formula: str) -> None:
    check_formula("feed-forward", "parameters", A1)
    start = time.process_time()
    assert not check_formula("feed-forward", "parameters", formula).equal
    assert time.process_time() - start < 3


def test_verdict_renders_as_json_and_html() -> None:
    verdict = check_formula("feed-forward", "parameters", "V(d + d_h) + (N-1)d d_h")
    assert str(verdict) == (
        "Not equal: yours − model = −d_h. The model has a bias of d_h in 'hidden' that\nyour formula leaves out."
    )
    base = verdict.to_dict()
    assert (base["equal"], base["residual"], base["yours_at"], base["right_at"]) == (False, "-d_h", 196608, 196864)
    assert "196,864" in verdict._repr_html_()
    assert "<script" not in check_number("feed-forward", "parameters", "1")._repr_html_()


NUMBERS = [
    ("feed-forward", "parameters", "196,864", True, ""),
    ("feed-forward", "parameters", "0.197 million", True, "0.197 million is 196,864, rounded."),
    ("feed-forward", "parameters", "197k", True, "rounded"),
    ("feed-forward", "parameters", "about 197,000", True, "rounded"),
    ("feed-forward", "parameters", "1.97e5", True, "rounded"),
    ("feed-forward", "parameters", "197,000", False, "times the right number"),
    ("feed-forward", "parameters", "0.196 million", False, "times the right number"),
    ("feed-forward", "parameters", "196,608", False, "a bias of d_h in 'hidden' that your number leaves out"),
    ("feed-forward", "parameters", "393,728", False, "It is 2 times the right number."),
    ("decoder", "flops", "113.2 MFLOPs", True, "rounded"),
    ("decoder", "flops", "56,623,104", False, "But it is right with a multiply–add counted as 1."),
    ("decoder", "parameters", "288.5 % increase from width 128 to 256", True, ""),
    ("decoder", "parameters", "300 % more from d=128 to d=256", False, "834,304 at d=128, 3,241,472 at d=256."),
    ("lstm", "optimizer", "3.94 MB", True, "rounded"),
]


@pytest.mark.parametrize(("model", "quantity", "value", "equal", "expected"), NUMBERS, ids=range(len(NUMBERS)))
def test_numbers_are_checked_to_their_printed_precision(
    model: str, quantity: str, value: str, equal: bool, expected: str
) -> None:
    verdict = check_number(model, quantity, value)
    assert verdict.equal is equal, str(verdict)
    assert expected in " ".join(verdict.diagnosis)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("sixty", "is not read as a number"),
        ("10**9**9", "is not read as a number"),
        ("1e99", "power of ten"),
        ("65 %", "needs its two sizes"),
        ("65 % from 2 to 4", "which size changes"),
        ("65 % from 2 to 4 leyers", "Did you mean 'layers'"),
        ("65 % from L=2 to N=4", "which size changes"),
        ("65 % from L=0 to L=4", "at least 1"),
        ("7" * 300, "at most 200"),
    ],
)
def test_invalid_numbers_are_refused(value: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected.replace("?", r"\?")):
        check_number("table-a5", "parameters", value)


def test_rounded_number_matches_within_half_a_unit() -> None:
    assert read_number("9.7M").matches(9_650_000) and read_number("9.7M").matches(9_749_999)
    assert not read_number("9.7M").matches(9_750_001)
    assert read_number("9,721,596").unit == 0


def test_rounded_zero_does_not_match_everything() -> None:
    assert not check_number("table-a5", "parameters", "0e30").equal
    assert check_number("table-a5", "parameters", "9.7M").equal


@pytest.mark.parametrize("name", PRESETS)
def test_neighbor_specs_of_every_preset_can_be_built(name: str) -> None:
    for word, other in neighbor_specs(PRESETS[name].model):
        assert "=" in word and other != PRESETS[name].model


def test_wrong_formula_of_a_dual_encoder_is_detected() -> None:
    spec = DualEncoder(body=Gru(width=4, hidden=4), grid=2, patch=2, image_width=4, image_depth=1, image_heads=1)
    assert not check_formula(spec, "parameters", "V*d").equal


def test_nearly_right_number_is_wrong() -> None:
    output = str(check_number("table-a5", "parameters", "9721596.5", {}))
    assert "9721596.5" in output and "times the right number" not in output


@pytest.mark.parametrize("number", ["834,304", "834 304", "834304"])
def test_number_after_a_formula_may_have_thousands_separators(number: str) -> None:
    assert lemma.check.parameters("decoder", f"V d + T d + 2d + L(12 d^2 + 13 d) = {number}")


def test_division_by_zero_at_dependent_sizes_is_refused() -> None:
    with pytest.raises(InputError, match="divides by zero"):
        lemma.check.parameters("decoder", "d/(d_ff - 4d)")
