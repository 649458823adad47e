"""Vectors and matrices agree with scikit-learn and NumPy; constructed values satisfy their conditions."""

import random
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

import lemma
from lemma.checking.exercises.vectors import VectorExercise
from lemma.errors import LemmaError


def values_of(**fields: Any) -> dict[str, Any]:
    """Return all right values of an exercise by name."""
    return {value.name: value for value in VectorExercise.read(fields, "vector").expected_values()}


def test_tfidf_is_that_of_scikit_learn() -> None:
    documents = ["the cat sat", "the dog saw the cat", "a bird"]
    vectorizer = TfidfVectorizer(norm=None, token_pattern=r"\S+")
    expected = vectorizer.fit_transform(documents).toarray()
    value = values_of(operation="tf-idf", documents=documents, tf_scheme="raw", idf_scheme="smooth", log_base="e")[
        "tfidf"
    ]
    order = [list(value.labels[1]).index(term) for term in vectorizer.get_feature_names_out()]
    np.testing.assert_allclose(value.values[:, order], expected)


def test_cosine_and_projection() -> None:
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, 4))
    values = values_of(operation="projection", given={"a": a.tolist(), "b": b.tolist()})
    assert values["cosine"].values == pytest.approx(cosine_similarity([a], [b])[0, 0])
    rest = a - values["projection"].values
    assert rest @ b == pytest.approx(0)


@pytest.mark.parametrize("seed", range(5))
def test_every_choice_of_signs_of_singular_vectors_is_right(seed: int) -> None:
    generator = np.random.default_rng(seed)
    matrix = generator.normal(size=(3, 2))
    left, singular, right = np.linalg.svd(matrix, full_matrices=False)
    signs = generator.choice([-1, 1], size=2)
    lines = [
        f"U = {np.round(left * signs, 6).tolist()}",
        f"V = {np.round((right * signs[:, None]).T, 6).tolist()}",
        f"singular_values = {np.round(singular, 6).tolist()}",
    ]
    fields = {"operation": "svd", "given": {"A": matrix.tolist()}}
    assert lemma.check.exercise("vector", fields, *lines)
    lines[0] = f"U = {np.round(left * signs * [1, -1], 6).tolist()}"  # the signs of U and V must go together
    assert not lemma.check.exercise("vector", fields, *lines)


def test_expressions_are_those_of_numpy() -> None:
    generator = np.random.default_rng(0)
    a, b, x = generator.normal(size=(2, 3)), generator.normal(size=(3, 2)), generator.normal(size=3)
    given = {"A": a.tolist(), "B": b.tolist(), "x": x.tolist()}
    for text, expected in (
        ("A @ B", a @ b),
        ("A.T * B", a.T * b),
        ("A @ x", a @ x),
        ("x @ B", x @ b),
        ("x.T @ x", x @ x),
        ("sum(A, axis=0)", a.sum(0)),
    ):
        np.testing.assert_allclose(values_of(expression=text, given=given)["result"].values, expected)


@pytest.mark.parametrize("seed", range(5))
def test_constructed_values_are_right_exactly_if_the_condition_holds(seed: int) -> None:
    generator = random.Random(seed)
    fields = {"unknowns": "x: 2", "given": "a = [[2, 1]]", "condition": "a @ x = 4", "tolerance": 0.01}
    for _ in range(20):
        x = [generator.choice([0, 1, 1.5, 2]), generator.choice([0, 1, 2, 4])]
        assert bool(lemma.check.exercise("constructive", fields, f"x = {x}")) == (2 * x[0] + x[1] == 4)


def test_the_solution_of_a_construction_is_its_example() -> None:
    fields = {"unknowns": "x: 2", "given": "a = [[2, 1]]", "condition": "a @ x = 4", "example": "x = [1, 2]"}
    assert "x = [1, 2]" in str(lemma.check.help_with("solution", "constructive", fields))
    with pytest.raises(LemmaError, match="does not hold"):
        lemma.check.exercise("constructive", {**fields, "example": "x = [1, 1]"}, "x = [1, 2]")


@pytest.mark.parametrize(
    ("kind", "fields", "answer", "message"),
    [
        ("vector", {}, "1", "expression is needed"),
        ("vector", {"expression": "A @ B", "given": "A = [[1, 2]]"}, "1", "unknown name 'B'"),
        ("vector", {"expression": "A @ B", "given": "A = [[1, 2]], B = [[1, 2]]"}, "1", "shapes do not fit"),
        ("vector", {"expression": "A", "given": "A = [[1, 2], [1]]"}, "1", "equally long"),
        ("vector", {"operation": "cosine", "given": "a = [1, 2], b = [1]"}, "1", "same length"),
        ("vector", {"operation": "eigen", "given": "A = [[0, 1], [-1, 0]]"}, "1", "not real"),
        ("vector", {"expression": "1 / x", "given": "x = 0"}, "1", "infinite"),
        ("vector", {"expression": "A^6 @ A^6", "given": {"A": [[1e9] * 2] * 2}}, "1", ""),
        ("constructive", {}, "1", "unknowns and condition are needed"),
        ("constructive", {"unknowns": "x: 2", "condition": "x"}, "1", "no equation"),
        ("constructive", {"unknowns": "x: 2", "condition": "x = [1, 2]"}, "y = 1", "unknown name 'y'"),
        ("constructive", {"unknowns": "x: 2", "condition": "x = [1, 2]"}, "x = [1, 2, 3]", "2 numbers are expected"),
        ("constructive", {"unknowns": "x: 2, y: 2", "condition": "x = y"}, "x = [1, 2]", "y is missing"),
        ("constructive", {"unknowns": "x: 2", "condition": "x = [1, 2]"}, "x = [1e99, 2]", "at most"),
        ("constructive", {"unknowns": "x: 2", "condition": "x = [1, 2]"}, "x = z", "numbers are expected"),
    ],
)
def test_wrong_inputs_are_explained(kind: str, fields: dict[str, Any], answer: str, message: str) -> None:
    with pytest.raises(LemmaError, match=message):
        assert not lemma.check.exercise(kind, fields, answer)
        raise LemmaError("the answer is wrong")
