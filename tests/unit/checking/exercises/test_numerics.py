"""Number formats, quantization and softmax agree with torch."""

import random
from math import isfinite
from typing import Any

import numpy as np
import pytest
import torch

import lemma
from lemma.checking.exercises.numerics import FORMATS, NumericsExercise
from lemma.errors import LemmaError

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}


def values_of(**fields: Any) -> dict[str, Any]:
    """Return all right values of an exercise by name."""
    return {value.name: value.values for value in NumericsExercise.read(fields, "numerics").expected_values()}


@pytest.mark.parametrize("name", DTYPES)
def test_rounding_is_that_of_torch(name: str) -> None:
    generator = random.Random(0)
    number_format = FORMATS[name]
    numbers = [generator.uniform(-1, 1) * 2.0 ** generator.randint(-20, 9) for _ in range(500)]
    numbers += [count * number_format.spacing(3.0) / 2 for count in range(60)]  # ties
    numbers = [float(np.float32(number)) for number in numbers]
    for number in numbers:
        expected = torch.tensor(number, dtype=torch.float32).to(DTYPES[name]).double().item()
        if isfinite(expected) and abs(number) <= number_format.largest:
            assert number_format.round(number) == expected, number


@pytest.mark.parametrize("name", DTYPES)
def test_properties_of_formats_are_those_of_torch(name: str) -> None:
    info, number_format = torch.finfo(DTYPES[name]), FORMATS[name]
    assert number_format.epsilon == info.eps
    assert number_format.largest == info.max
    assert number_format.smallest_normal == info.smallest_normal


def test_sums_are_those_of_torch() -> None:
    generator = random.Random(0)
    for _ in range(20):
        numbers = [generator.uniform(-100, 100) for _ in range(10)]
        total = torch.tensor(0, dtype=torch.float16)
        for number in numbers:
            total = total + torch.tensor(number, dtype=torch.float64).half()
        assert values_of(topic="sum", numbers=numbers, format="float16")["sum"] == total.double().item()


def test_quantization_is_that_of_torch() -> None:
    generator = random.Random(0)
    for _ in range(20):
        numbers = [generator.uniform(-3, 5) for _ in range(6)]
        values = values_of(topic="quantization", numbers=numbers, scheme="zero-point")
        expected = torch.quantize_per_tensor(
            torch.tensor(numbers), float(values["scale"]), int(values["zero_point"]), torch.qint8
        )
        np.testing.assert_array_equal(values["quantized"], expected.int_repr().numpy())
        np.testing.assert_allclose(values["dequantized"], expected.dequantize().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_softmax_and_loss_are_those_of_torch(smoothing: float) -> None:
    scores = [2.0, -1.0, 0.5, 1000.0, 999.0]
    values = values_of(topic="cross-entropy", scores=scores, target=5, smoothing=smoothing, temperature=3)
    tensor = torch.tensor(scores, dtype=torch.float64) / 3
    np.testing.assert_allclose(values["softmax"], tensor.softmax(0).numpy())
    np.testing.assert_allclose(values["logsumexp"], tensor.logsumexp(0).item())
    loss = torch.nn.functional.cross_entropy(tensor[None], torch.tensor([4]), label_smoothing=smoothing)
    np.testing.assert_allclose(values["loss"], loss.item())


def test_variances_are_those_of_torch_init() -> None:
    weight = torch.empty(300, 500)
    torch.manual_seed(0)
    for method, initialize in (
        ("xavier", torch.nn.init.xavier_uniform_),
        ("he", lambda tensor: torch.nn.init.kaiming_uniform_(tensor, nonlinearity="relu")),
    ):
        initialize(weight)
        values = values_of(topic="init", fan_in=500, fan_out=300, method=method)
        assert weight.abs().max().item() == pytest.approx(float(values["bound"]), rel=1e-3)
        assert weight.std().item() == pytest.approx(float(values["std"]), rel=1e-2)


def test_a_number_that_is_only_repeated_is_not_rounded() -> None:
    fields = {"topic": "rounding", "numbers": 0.1}
    assert not lemma.check.exercise("numerics", fields, "0.1")
    assert lemma.check.exercise("numerics", fields, "0.09998")
    assert lemma.check.exercise("numerics", {"topic": "rounding", "numbers": 0.25}, "0.25")
    report = lemma.check.exercise("numerics", {"topic": "rounding", "numbers": 2049}, "2.05e3")
    assert not report and "Too few digits" in str(report)
    report = lemma.check.exercise("numerics", {"topic": "rounding", "numbers": 0.1}, "0.100037")
    assert not report and "Too few digits" not in str(report)


def test_tiny_numbers_are_compared_by_their_digits() -> None:
    fields = {"topic": "format", "format": "bfloat16"}
    for answer in ("1.175e-38", "1.18e-38", "1.2e-38", "2^-126", "1.18 * 10^-38"):
        assert lemma.check.exercise("numerics", fields, f"smallest_normal = {answer}"), answer
    for answer in ("1.19e-38", "1.1e-38", "0", "0.0", "1.18e-37", "2^-127"):
        assert not lemma.check.exercise("numerics", fields, f"smallest_normal = {answer}"), answer


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "numbers are needed"),
        ({"numbers": "1 2"}, "a single number"),
        ({"topic": "softmax"}, "scores are needed"),
        ({"topic": "softmax", "scores": "1e9 1"}, "at most"),
        ({"topic": "cross-entropy", "scores": "1 2", "target": 3}, "counted from 1 to 2"),
        ({"topic": "dropout", "numbers": "1 2", "mask": "1"}, "mask has a 0 or 1"),
        ({"topic": "quantization", "numbers": "0 0"}, "all 0"),
        ({"numbers": 1, "format": "fp4"}, "format"),
    ],
)
def test_statements_that_make_no_exercise_are_explained(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LemmaError, match=message):
        lemma.check.exercise("numerics", fields, "1")
