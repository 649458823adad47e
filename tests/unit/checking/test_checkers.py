"""Checkers by name: each equals the function of `lemma.check` of that name and refuses invalid arguments."""

from typing import Any

import pytest

import lemma
from lemma.checking.checkers import ANSWER_ARGUMENTS, run_checker
from lemma.errors import SpecError

CALLS: dict[str, tuple[Any, ...]] = {
    "parameters": ("feed-forward", "V(d + d_h) + ((N-1)d + 1)d_h"),
    "flops": ("decoder", "2V d T B + 24 L T B d^2 + 4 L d B T^2"),
    "trainable": ("lora", "R(W_in + W_out)"),
    "number": ("table-a5", "parameters", "9,721,596"),
    "shape": ("self-attention", "Q = H×S×M_QK", "scores = H×S×S"),
    "gradient": ("rnn", "db2 = y_hat - y"),
    "derivation": ("(a + b)^2 = a^2 + 2ab + b^2",),
    "worked": ("e9", "c_t[1] = 0.52"),
    "identity": ("c10",),
}


@pytest.mark.parametrize("name", CALLS)
def test_function_and_named_checker_return_equal_results(name: str) -> None:
    model, *answers = CALLS[name]
    result = getattr(lemma.check, name)(model, *answers)
    assert result == run_checker(name, model, answers, {})
    right = result.equal if hasattr(result, "equal") else result.holds if name == "identity" else result.right
    assert right is True and bool(result) is True


def test_every_checker_has_a_function_of_its_name() -> None:
    assert set(ANSWER_ARGUMENTS) == {*CALLS, "sheet"}
    assert all(callable(getattr(lemma.check, name)) for name in ANSWER_ARGUMENTS)


def test_sizes_are_passed_as_arbitrary_keywords() -> None:
    from torch import nn

    def factory(formula: int = 3, value: int = 2) -> nn.Module:
        return nn.Linear(formula, value)

    result: Any = lemma.check("parameters", factory, "(formula + 1) value", formula=5, value=7)
    assert result.equal and result.right_at == 42
    assert lemma.check.number("table-a5", "parameters", 14980860, L=4).equal
    assert lemma.check.identity("c7", D=3, samples=500).sizes["D"] == 3


@pytest.mark.parametrize(
    ("what", "model", "answers", "message"),
    [
        ("parametres", "lstm", ["V"], "Did you mean 'parameters'"),
        ("parameters", None, [], "a model is expected behind it"),
        ("worked", None, [], "a case is expected behind it"),
        ("parameters", "lstm", [], "FORMULA expected behind the model, got 0 answers"),
        ("number", "lstm", ["parameters"], "QUANTITY and VALUE expected behind the model, got 1 answers"),
        ("identity", "c7", ["V"], "nothing expected behind the model, got 1 answers"),
    ],
)
def test_missing_arguments_are_listed(what: str, model: str | None, answers: list[str], message: str) -> None:
    with pytest.raises(SpecError) as mistake:
        run_checker(what, model, answers, {})
    assert message in str(mistake.value)
