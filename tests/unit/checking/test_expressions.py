"""The expression language: syntax, errors with positions, and values."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lemma.checking.expressions import Evaluator, ShapeError, parse_equation, write_expression
from lemma.errors import InputError

GENERATOR = np.random.default_rng(0)
ARRAYS = {"u": (3, 1), "v": (3, 1), "r": (1, 4), "M": (3, 4), "S": (3, 3), "n": ()}
NUMPY = {name: GENERATOR.normal(size=shape) for name, shape in ARRAYS.items()} | {"n": np.asarray(2.0)}
VALUES = {name: torch.tensor(value) for name, value in NUMPY.items()}


def value_of(text: str) -> np.ndarray:
    return Evaluator(VALUES)(parse_equation(f"t = {text}").expression).numpy()


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


U, V, R, M, S = (NUMPY[name] for name in "uvrMS")
CASES = {
    "u - v * 2 + u / n": U - V * 2 + U / 2,
    "-u^2": -(U**2),
    "(-u)**2": U**2,
    "u² - v³": U**2 - V**3,
    "u^(-1) * u^-2": U**-3,
    "S @ u * v": (S @ U) * V,
    "u * S @ v": (U * S) @ V,
    "M.T @ u - Mᵀ @ v + M^T @ u": M.T @ (2 * U - V),
    "tanh²(u) + tanh(u)^2": 2 * np.tanh(U) ** 2,
    "σ(u) + sigmoid(u)": 2 * sigmoid(U),
    "1 − u ⊙ v · u × v ∗ u": 1 - U * V * U * V * U,
    "[u; v] + concat(v, u)": np.concatenate([U + V, V + U]),
    "[r, r]": np.concatenate([R, R], 1),
    "outer(u, r) - u @ r": np.zeros((3, 4)),
    "diag(u) @ v": U * V,
    "sum(M) + 1e-1": M.sum() + 0.1,
    "sum(M, axis=0)": M.sum(0, keepdims=True),
    "M * sum(M, 1)": M * M.sum(1, keepdims=True),
    "softmax(u)": np.exp(U) / np.exp(U).sum(),
    "softmax(M)": np.exp(M) / np.exp(M).sum(1, keepdims=True),
    "softmax(M, axis=0)": np.exp(M) / np.exp(M).sum(0),
    "relu(u) - relu(-u)": U,
    "log(exp(u)) - sqrt(u^2)^2/u": np.zeros((3, 1)),
    "M[1:, :n] + M[:2, 2:]": M[1:, :2] + M[:2, 2:],
    "u - ones(u)": U - 1,
    "(S^2.T @ u^2).T": ((S**2).T @ U**2).T,
    "n^-1": np.asarray(0.5),
}


@pytest.mark.parametrize("text", CASES)
def test_expression_values_match_numpy(text: str) -> None:
    np.testing.assert_allclose(value_of(text), CASES[text], rtol=1e-12, atol=1e-12)
    assert value_of(text).shape == CASES[text].shape


REFUSED = {
    "dz = y_hat - ": "column 14: expected a value, got the end of the line",
    "dz = (y": "column 8: expected ')', got the end of the line",
    "dz = y ~ z": "column 8: '~' is not part of the language",
    "dz = y z": "column 8: expected an operator before 'z'",
    "dz = 2y": "column 7: expected an operator before 'y'",
    "dz = y.grad": "column 8: unknown function 'grad'",
    "dz = y.__class__": "column 7: '.' is not part of the language",
    "dz = __import__(os)": "column 6: unknown function '__import__'",
    "dz = __import__('os')": "column 6: unknown function '__import__'",
    "dz = eval(y)": "column 6: unknown function 'eval'",
    "dz = sigmod(y)": "Did you mean 'sigmoid'",
    "dz = tanh": "'tanh' is a function; write tanh(…)",
    "dz = tanh(y, z)": "tanh takes 1 values, not 2",
    "dz = outer(y)": "outer takes 2 values, not 1",
    "dz = y^99999999999": "an exponent is a whole or half number from -6 to 6",
    "dz = y^y": "an exponent is a whole or half number from -6 to 6",
    "dz = y^2^2^2^2^y": "an exponent is a whole or half number from -6 to 6",
    "dz = sum(y, axis=7)": "an axis is 0",
    "dz = y[0]": "expected ':'",
    "dz == y": "expected a value, got '='",
    "dz": "expected 'name = expression'",
    "= y": "expected 'name = expression'",
    "3 = y": "expected 'name = expression'",
    "dz = y = z": "'=' does not fit here",
    f"dz = {'(' * 60}y{')' * 60}": "nested more than 40 deep",
    f"dz = {'+'.join(['y'] * 300)}": "more than 200 parts",
    f"dz = {'y+' * 2000}y": "at most 2000 characters",
    f"dz = {'y' * 100}": "at most 40 characters",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:25])
def test_unsupported_syntax_is_refused_with_its_position(text: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse_equation(text)
    assert str(refusal.value).startswith("line 1, column ")
    assert REFUSED[text] in str(refusal.value)


UNFIT = ["u @ v", "u + r", "u * M.T", "n @ u", "[u; r]", "outer(M, u)", "diag(M)", "softmax(n)", "n[:1]", "u[5:]"]


@pytest.mark.parametrize("text", UNFIT)
def test_shape_mismatch_error_lists_the_shapes(text: str) -> None:
    with pytest.raises(ShapeError) as misfit:
        value_of(text)
    assert misfit.value.operation.count("{}") == len(misfit.value.shapes) > 0


def test_value_sizes_are_bounded() -> None:
    eight = "[u; u; u; u; u; u; u; u]"
    many = f"[{'; '.join([eight] * 8)}]"
    with pytest.raises(ShapeError, match="too large"):
        value_of(f"outer({many}, {many})")
    with pytest.raises(ShapeError, match="too large"):
        value_of(f"{many} @ {many}.T")


columns = st.recursive(
    st.sampled_from(["u", "v", "S @ u", "1.5 * v", "S.T @ v"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(inner, st.sampled_from("+-*"), inner).map(" ".join),
        inner.map(lambda text: f"-({text})"),
        inner.map(lambda text: f"tanh({text})^2"),
        inner.map(lambda text: f"(({text}).T @ S).T"),
        inner.map(lambda text: f"S @ ({text})"),
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(columns)
def test_written_expression_evaluates_to_the_same_value(text: str) -> None:
    again = write_expression(parse_equation(f"t = {text}").expression)
    np.testing.assert_allclose(value_of(again), value_of(text), rtol=1e-9, atol=1e-9)
