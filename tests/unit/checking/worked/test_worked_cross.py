"""Worked cross-attention matches PyTorch and a brute-force comparison."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lemma.checking.worked.attention import work_cross_attention
from lemma.errors import InputError

SMALL: dict[str, Any] = {
    "queries": {"a": [1, 0], "b": [0, 0]},
    "source": {"x": [1, 0, 0], "y": [0, 1, 0], "z": [3, 0, 0]},
    "W_Q": [[1, 0], [0, 1]],
    "W_K": [[1, 0, 0], [0, 1, 0]],
    "W_V": [[1, 0, 0]],
}


@given(
    seed=st.integers(0, 10**6),
    sizes=st.tuples(*[st.integers(1, 5)] * 6),
    scaled=st.booleans(),
)
def test_cross_attention_matches_torch(seed: int, sizes: tuple[int, ...], scaled: bool) -> None:
    looking, looked, width, source, key, value = sizes
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=(looking, width)), draw.normal(size=(looked, source))
    maps = {"W_Q": (width, key), "W_K": (source, key), "W_V": (source, value)}
    samples = {name: draw.normal(size=shape) for name, shape in maps.items()}
    worked = work_cross_attention(
        {
            "queries": {f"q{index}": row.tolist() for index, row in enumerate(x)},
            "source": {f"s{index}": row.tolist() for index, row in enumerate(y)},
            "apply": "x W",
            "scaled": scaled,
            **{name: matrix.tolist() for name, matrix in samples.items()},
        }
    )
    query, keys, values = (torch.tensor(a @ samples[b])[None] for a, b in ((x, "W_Q"), (y, "W_K"), (y, "W_V")))
    expected = torch.nn.functional.scaled_dot_product_attention(query, keys, values, scale=None if scaled else 1.0)[0]
    np.testing.assert_allclose(worked.steps.outputs, expected.numpy(), rtol=1e-9, atol=1e-12)
    best = [int(np.argmax((query[0] @ keys[0].T).numpy()[row])) for row in range(looking)]
    assert [preference.by_weight for preference in worked.preferences] == [(f"s{index}",) for index in best]


def test_disagreements_ties_and_zero_vectors_are_reported() -> None:
    first, second = work_cross_attention(SMALL).preferences
    assert first.by_weight == ("z",)
    assert first.by_cosine == ("x", "z")
    assert not first.agree
    assert second.by_weight == ("x", "y", "z")
    assert second.cosine is None
    text = str(work_cross_attention(SMALL))
    assert "x = z" in text
    assert "undefined" in text
    assert json.loads(json.dumps(work_cross_attention(SMALL).to_dict(), allow_nan=False))["cosines"][1] == [None] * 3


def test_cosine_does_not_overflow_or_underflow() -> None:
    tiny = work_cross_attention({**SMALL, "queries": {"a": [1e-200, 1e-200]}})
    np.testing.assert_allclose(tiny.cosines, [[0.5**0.5] * 3])


def test_focus_selects_the_arithmetic_that_is_printed() -> None:
    text = str(work_cross_attention("e8", words=["image 2"]))
    assert "From image 2" in text
    assert "From image 1" not in text
    assert "From image 1" in str(work_cross_attention("e8"))
    assert "vectors x looked at" in str(work_cross_attention("e8", full=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"W_K": [[1, 0], [0, 1]]}, "W_K is 2×2"),
        ({"W_Q": [[1, 0]]}, "q·k needs equal lengths"),
        ({"queries": {}}, "the case: queries is empty. Give named vectors, as in queries = {"),
        (
            {"source": {"x": [1, 0, 0], "W_V": [[1, 0, 0]]}, "W_V": None},
            "W_V is inside the table [source]; move it",
        ),
        ({"source": {"x": [1, 2, 3], "y": [1, 2]}}, "'y' has 2 numbers"),
        ({"focus": "image"}, "unknown focus 'image'"),
        ({"passes": 2}, "unknown setting 'passes'"),
        ({"queries": {"a": [1e101, 0]}}, "too large"),
    ],
)
def test_invalid_cases_are_explained(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        work_cross_attention({name: value for name, value in {**SMALL, **change}.items() if value is not None})
    assert message in str(caught.value)
