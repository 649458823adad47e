"""Problem A2: one attention head over a window, queried by its last word; the gallery's example by hand."""

from fractions import Fraction
from math import exp, log, sqrt

import pytest
import torch

from lemma.layers.recording import record_attention
from lemma.models.build import build
from lemma.models.feed_forward import WindowHead
from lemma.spec.models import Attentive

WORDS = {"the": (1.0, 0.0), "cat": (0.0, 1.0), "sat": (1.0, 1.0)}


@pytest.fixture
def head() -> WindowHead:
    """d = 2, d_k = 4, d_v = 2; only the first rows of W^q and W^k are not zero."""
    head = WindowHead(2, 4, 2).double()
    rows = torch.zeros(2, 4, 2, dtype=torch.float64)
    rows[0, 0, 1], rows[1, 0] = 2.0, torch.tensor([log(2), log(3)], dtype=torch.float64)
    with torch.no_grad():
        head.query.weight.copy_(rows[0])
        head.key.weight.copy_(rows[1])
        head.value.weight.copy_(torch.eye(2))
    return head


def window_attention(head: WindowHead, *words: str) -> tuple[list[Fraction], list[Fraction]]:
    """Return attention weights and output of the last word's window of three, as fractions."""
    embedded = torch.tensor([[WORDS[word] for word in words]], dtype=torch.float64)
    with torch.no_grad(), record_attention(head) as records:
        answer = head(embedded, 1, 3)[0, 0]
    weights = records[0].weights()[0, 0, 0]
    return as_fractions(weights), as_fractions(answer)


def as_fractions(numbers: torch.Tensor) -> list[Fraction]:
    result = [Fraction(number).limit_denominator(200) for number in numbers.tolist()]
    assert [float(item) for item in result] == pytest.approx(numbers.tolist(), abs=1e-12)
    return result


def test_a2_attention_weights_are_two_three_and_six_elevenths(head: WindowHead) -> None:
    weights, answer = window_attention(head, "the", "cat", "sat")
    assert weights == [Fraction(2, 11), Fraction(3, 11), Fraction(6, 11)]
    assert answer == [Fraction(8, 11), Fraction(9, 11)]


def test_a2_last_word_attends_only_within_its_window(head: WindowHead) -> None:
    """`cat` has the query of `sat` in its second component; `the` has a zero query and attends uniformly."""
    assert window_attention(head, "the", "sat", "cat")[0] == [Fraction(2, 11), Fraction(6, 11), Fraction(3, 11)]
    assert window_attention(head, "cat", "sat", "the")[0] == [Fraction(1, 3)] * 3
    weights, answer = window_attention(head, "sat", "sat", "the", "cat", "sat")
    assert weights == [0, 0, Fraction(2, 11), Fraction(3, 11), Fraction(6, 11)]
    assert answer == [Fraction(8, 11), Fraction(9, 11)]


def test_a2_model_matches_the_formula_on_every_window() -> None:
    """Compare each position of `attentive` with the sums in plain Python."""
    spec = Attentive(vocabulary=7, width=3, key_width=4, value_width=2, hidden=5, context=4)
    model, text = build(spec).double(), [1, 5, 2, 2, 6, 0]
    with torch.no_grad():
        logits = model(torch.tensor([text]))[0][0]
    table = {name: value.tolist() for name, value in model.state_dict().items()}
    for index in range(len(text)):
        window = [table["embedding.weight"][word] for word in text[max(0, index - 2) : index + 1]]
        assert logits[index].tolist() == pytest.approx(reference_logits(table, window), abs=1e-12)


def reference_logits(table: dict[str, list], window: list[list[float]]) -> list[float]:
    """Return logits from scores, softmax, head output, hidden layer (tanh) and output layer."""
    query = matvec(table["head.query.weight"], window[-1])
    scores = [dot(query, matvec(table["head.key.weight"], word)) / sqrt(4) for word in window]
    fractions = [exp(score) / sum(map(exp, scores)) for score in scores]
    values = [matvec(table["head.value.weight"], word) for word in window]
    answer = [dot(fractions, column) for column in zip(*values, strict=True)]
    sums = zip(matvec(table["hidden.weight"], answer), table["hidden.bias"], strict=True)
    hidden = torch.tanh(torch.tensor([a + b for a, b in sums], dtype=torch.float64)).tolist()
    return matvec(table["output.weight"], hidden)


def matvec(matrix: list[list[float]], vector: list[float]) -> list[float]:
    return [dot(row, vector) for row in matrix]


def dot(first, second) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))
