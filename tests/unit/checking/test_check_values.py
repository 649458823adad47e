"""Explanations of wrong values: another quantity or a factor is named only if the numbers are enough to tell."""

import numpy as np
import pytest

from lemma.checking.check_values import explain_difference
from lemma.checking.expected_values import expect_numbers
from lemma.checking.read_values import RoundedArray, read_entries, read_value


@pytest.mark.parametrize(
    ("answer", "exact", "other", "words"),
    [
        ("0.5", 0.31, 0.49, ""),
        ("0.50", 0.31, 0.498, "that is beta, not alpha."),
        ("0.6", 0.31, 0.9, ""),
        ("0.62", 0.31, 0.9, "yours is twice the right value."),
        ("8", 4.0, 8.0, ""),
        ("12", 6.0, 12.0, "that is beta, not alpha."),
        ("[0.5, 0.2]", [0.3, 0.7], [0.5, 0.2], "that is beta, not alpha."),
        ("[0.5, 0.5]", [0.3, 0.7], [0.5, 0.5], ""),
    ],
)
def test_coincidence_of_one_digit_is_no_explanation(answer: str, exact, other, words: str) -> None:
    expected, another = expect_numbers("alpha", np.array(exact)), expect_numbers("beta", np.array(other))
    numbers = RoundedArray.from_entries(read_entries(read_value(answer), expected))
    assert next(explain_difference(numbers, expected, [another]), "") == words
