"""Exercises on numerics: number formats, quantization, softmax, dropout and variances."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor, frexp, inf, isfinite, log, sqrt
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from lemma.checking.check_values import AnswerKey, ValueClaim, normalize_name
from lemma.checking.exercises.base import ExerciseHelp, HelpLevel
from lemma.checking.exercises.statements import (
    ConventionExercise,
    Vector,
    expect,
    expect_exactly,
    show,
    show_terms,
)
from lemma.checking.expected_values import Array, ExpectedValue, expect_words
from lemma.report.numbers import WrittenNumber

MAX_LENGTH, MAX_SCORE = 64, 1e4


@dataclass(frozen=True)
class NumberFormat:
    """A binary floating-point format.

    Attributes:
        exponent: bits of the exponent.
        mantissa: bits of the mantissa that are stored.
        largest: largest number.
        overflow: result beyond it: inf, or nan where the format has no infinity.
    """

    exponent: int
    mantissa: int
    largest: float
    overflow: float = inf

    @property
    def bias(self) -> int:
        """The bias of the exponent."""
        return 2 ** (self.exponent - 1) - 1

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next number."""
        return 2.0**-self.mantissa

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with the full precision."""
        return 2.0 ** (1 - self.bias)

    @property
    def smallest(self) -> float:
        """The smallest positive number."""
        return self.smallest_normal * self.epsilon

    def spacing(self, value: float) -> float:
        """Return the distance of the numbers around a value."""
        exponent = frexp(abs(value))[1] - 1 if value else -(10**4)
        return 2.0 ** (max(exponent, 1 - self.bias) - self.mantissa)

    def round(self, value: float, mode: str = "nearest") -> float:
        """Return the number of the format that is nearest to a value, ties to even; or truncated, or ties up.

        >>> FORMATS["float16"].round(2049), FORMATS["float16"].round(70000)
        (2048.0, inf)
        """
        if not isfinite(value):
            return value
        unit = Fraction(self.spacing(value))
        quotient = abs(Fraction(value)) / unit
        if mode == "truncate":
            count = floor(quotient)
        elif mode == "half up":
            count = floor(quotient + Fraction(1, 2))
        else:
            count = round(quotient)
        result = float(count * unit)
        result = self.overflow if result > self.largest else result
        return -result if value < 0 else result


FORMATS = {
    "float32": NumberFormat(8, 23, (2 - 2.0**-23) * 2.0**127),
    "float16": NumberFormat(5, 10, 65504.0),
    "bfloat16": NumberFormat(8, 7, (2 - 2.0**-7) * 2.0**127),
    "float8_e4m3": NumberFormat(4, 3, 448.0, float("nan")),
    "float8_e5m2": NumberFormat(5, 2, 57344.0),
}
SYNONYMS = {
    "fp32": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3",
    "float8": "float8_e4m3",
    "e4m3": "float8_e4m3",
    "e5m2": "float8_e5m2",
    "float8_e4m3fn": "float8_e4m3",
    "torch.float16": "float16",
    "torch.bfloat16": "bfloat16",
}


def read_format(value: Any) -> str:
    """Return the name of a number format in its usual spelling."""
    name = str(value).strip().casefold().replace("-", "_")
    return SYNONYMS.get(name, name)


class NumericsExercise(ConventionExercise):
    """Numbers as computers hold them, and numerically stable formulas."""

    kind: ClassVar[str] = "numerics"
    first_field: ClassVar[str] = "topic"
    renamed: ClassVar[Mapping[str, str]] = {
        "x": "numbers",
        "number": "numbers",
        "values": "numbers",
        "weights": "numbers",
        "logits": "scores",
        "z": "scores",
        "dtype": "format",
        "tau": "temperature",
        "T": "temperature",
        "label": "target",
        "epsilon": "smoothing",
        "p": "drop",
        "rate": "drop",
        "d": "width",
        "d_k": "width",
        "d_head": "width",
        "q": "query",
        "k": "key",
        "n_in": "fan_in",
        "n_out": "fan_out",
    }

    topic: Literal[
        "rounding",
        "sum",
        "format",
        "quantization",
        "softmax",
        "log-sum-exp",
        "cross-entropy",
        "label-smoothing",
        "dropout",
        "init",
        "attention-scale",
    ] = "rounding"
    """What is computed."""
    numbers: Vector = ()
    """Number that is rounded, numbers that are added in order or quantized, or the inputs of dropout."""
    format: Annotated[
        Literal["float32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2"], BeforeValidator(read_format)
    ] = "float16"
    """Number format; also fp16, bf16 and so on."""
    bits: Annotated[int, Field(ge=2, le=16)] = 8
    """Bits of a quantized integer."""
    scheme: Literal["absmax", "zero-point"] = "absmax"
    """Quantization: symmetric by the largest absolute value, or with a zero point."""
    integers: Literal["", "signed", "unsigned"] = ""
    """Range of the integers for a zero point: −128 … 127 or 0 … 255; by default any, and the report says which."""
    scores: Vector = ()
    """Scores (logits) of a softmax."""
    temperature: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Temperature of the softmax."""
    target: Annotated[int, Field(ge=0, le=MAX_LENGTH)] = 1
    """Right class, counted from 1."""
    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Label smoothing ε."""
    spread: Literal["", "all", "others"] = ""
    """ε of label smoothing over all K classes, ε/K each, or over the others, ε/(K−1); by default any."""
    classes: Annotated[int, Field(ge=0, le=MAX_LENGTH)] = 0
    """Number of classes for label smoothing without scores."""
    drop: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Probability with which dropout sets a number to 0."""
    mask: Vector = ()
    """Mask of dropout: 1 for numbers that stay."""
    fan_in: Annotated[int, Field(ge=1, le=10**9)] = 1
    """Inputs of a layer."""
    fan_out: Annotated[int, Field(ge=1, le=10**9)] = 1
    """Outputs of a layer."""
    method: Literal["xavier", "he", "lecun"] = "xavier"
    """Initialization: Xavier 2/(n_in + n_out), He 2/n_in or LeCun 1/n_in."""
    variance: Annotated[float, Field(ge=0, le=1e9)] = 1.0
    """Variance of each input, or of the entries of query and key."""
    width: Annotated[int, Field(ge=1, le=10**9)] = 64
    """Width of query and key."""
    query: Vector = ()
    """Query, for its score."""
    key: Vector = ()
    """Key."""

    @classmethod
    def setting_names(cls) -> list[str]:
        """Return the names of the fields, and other names of them."""
        return [*super().setting_names(), *cls.renamed]

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        """Raise an error for fields that are missing or do not fit each other."""
        for name in ("numbers", "scores", "query", "key"):
            if len(getattr(self, name)) > MAX_LENGTH:
                raise ValueError(f"{name}: at most {MAX_LENGTH} numbers are computed.")
        if self.topic in ("rounding", "sum", "quantization") and not self.numbers:
            raise ValueError(f"{self.topic}: numbers are needed, as in numbers='0.1' or numbers='1 2.5 -3'.")
        if self.topic == "rounding" and len(self.numbers) > 1:
            raise ValueError("rounding: a single number is rounded, as in numbers=0.1.")
        if self.topic in ("softmax", "log-sum-exp", "cross-entropy") and not self.scores:
            raise ValueError(f"{self.topic}: scores are needed, as in scores='2 1 0.1'.")
        if any(abs(score) > MAX_SCORE * self.temperature for score in self.scores):
            raise ValueError(f"scores / temperature is at most {MAX_SCORE:,.0f} here.")
        count = len(self.scores) or self.classes
        if self.topic == "label-smoothing" and count < 2:
            raise ValueError("label-smoothing: scores or classes are needed, as in classes=4 target=2 smoothing=0.1.")
        if self.topic in ("cross-entropy", "label-smoothing") and not 1 <= self.target <= count:
            raise ValueError(f"target = {self.target}: classes are counted from 1 to {count}.")
        if self.mask and (len(self.mask) != len(self.numbers) or set(self.mask) - {0.0, 1.0}):
            raise ValueError("mask has a 0 or 1 for each of the numbers.")
        if len(self.query) != len(self.key):
            raise ValueError("query and key are equally wide.")
        if self.topic == "quantization" and not np.ptp((*self.numbers, 0.0)):
            raise ValueError("quantization: the numbers are all 0.")
        return self

    def expected_values(self) -> Sequence[ExpectedValue]:
        """Return the steps and the result of the topic."""
        match self.topic:
            case "rounding":
                return self._expect_rounding()
            case "sum":
                return self._expect_sum()
            case "format":
                return self._expect_format()
            case "quantization":
                return self._expect_quantized()
            case "dropout":
                return self._expect_dropout()
            case "init":
                return self._expect_variance()
            case "attention-scale":
                return self._expect_scale()
        return self._expect_softmax()

    def answer_keys(self, claims: Sequence[ValueClaim]) -> Iterable[AnswerKey]:
        """Yield the right answers; a number that is only repeated, not rounded, is no right answer."""
        (key,) = super().answer_keys(claims)
        result = key.expected[-1]
        if self.topic == "rounding" and result.is_numeric and float(result.values) != self.numbers[0]:
            names = {normalize_name(name) for name in (result.name, *result.aliases)}
            for claim in claims:
                value = claim.value if normalize_name(claim.target.name) in names else None
                if isinstance(value, WrittenNumber) and self._is_too_coarse(value, float(result.values)):
                    is_same = float(value.value) == self.numbers[0]
                    text = "the number is not changed, but the format cannot hold it"
                    text = text if is_same else "too few digits are given to see which number of the format it is"
                    right = repr(float(result.values))
                    changed = expect_words((result.name, *result.aliases), right, mistakes={text: value.text})
                    key = self.make_key([*key.expected[:-1], changed])
        yield key

    def _is_too_coarse(self, answer: WrittenNumber, right: float) -> bool:
        """Return whether an answer repeats the number, or is rounded so much that a neighbour would fit, too."""
        value = float(answer.value)
        if value == self.numbers[0]:
            return True
        distance = abs(value - right)
        return FORMATS[self.format].spacing(right) / 2 < distance <= float(answer.unit) / 2

    def help_with(self, level: HelpLevel, answers: Sequence[str] = ()) -> ExerciseHelp:
        """Return help as for other exercises; the solution of a rounding shows all digits."""
        help_text = super().help_with(level, answers)
        result = self.expected_values()[-1]
        if level != "solution" or self.topic != "rounding" or not result.is_numeric:
            return help_text
        exact = f"{result.name} = {float(result.values)!r}"
        lines = (exact if line.startswith(f"{result.name} = ") else line for line in help_text.lines)
        return replace(help_text, lines=tuple(lines))

    def main_names(self) -> tuple[str, ...]:
        """Return the result of the topic."""
        names = {"format": "epsilon", "quantization": "quantized", "init": "std", "softmax": "softmax"}
        names |= {"log-sum-exp": "logsumexp", "cross-entropy": "loss", "label-smoothing": "targets"}
        return (names.get(self.topic) or self.expected_values()[-1].name,)

    def rewrite_line(self, line: str) -> str:
        """Return a line in which an underflow is written as the number 0."""
        return re.sub(r"=\s*(?:it\s+)?underflows?(?:\s+to\s+(?:0|zero))?\s*$", "= 0", line, flags=re.IGNORECASE)

    # Formats

    def _expect_rounding(self) -> list[ExpectedValue]:
        """Return the number in the format, its neighbours and the rounding error."""
        (value,), number_format = self.numbers, FORMATS[self.format]
        rounded = number_format.round(value)
        unit = number_format.spacing(value)
        values = [
            expect_exactly(
                "spacing ulp unit",
                unit,
                "distance of the numbers around it",
                "2^(exponent − mantissa bits)",
                mistakes={"that is half of it": unit / 2, "that is twice as much": 2 * unit},
                extra=_power_texts(unit),
            )
        ]
        if not isfinite(rounded):
            infinite = (
                ("inf", "infinity", "∞", "+inf", "+∞") if value > 0 else ("-inf", "−inf", "-infinity", "-∞", "−∞")
            )
            if number_format.overflow == inf:
                words, meaning = (*infinite, "overflow"), "beyond the largest number"
            else:
                words, meaning = ("nan", "overflow", f"{number_format.largest:g}"), "NaN, or the largest number"
            wrong = {"the largest number is given; beyond it the result is infinite": f"{number_format.largest:g}"}
            result = expect_words("rounded result value", words[0], meaning=meaning, mistakes=wrong)
            return [*values, replace(result, values=(words,))]
        other = "bfloat16" if self.format != "bfloat16" else "float16"
        mistakes = {
            "the number is not changed, but the format cannot hold it": value,
            "the number is truncated instead of rounded to the nearest": number_format.round(value, "truncate"),
            "ties are rounded up; they go to the even mantissa": number_format.round(value, "half up"),
            f"that is the number in {other}": FORMATS[other].round(value),
            "the next number above is given": rounded + unit,
            "the next number below is given": rounded - unit,
        }
        finite = {text: number for text, number in mistakes.items() if isfinite(number) and number != rounded}
        error = rounded - value
        result = expect_exactly(
            "rounded result value",
            rounded,
            f"the number in {self.format}",
            "the nearest multiple of the spacing; a tie goes to the even multiple",
            f"{show(value, 8)} / {show(unit, 8)} = {show(value / unit, 8)} → {show(rounded / unit, 8)}",
            finite,
        )
        values.append(expect_exactly("error rounding_error", error, "rounded − exact"))
        relative = error / value if value else 0.0
        values.append(expect_exactly("relative_error", abs(relative), "|rounded − exact| / |exact|"))
        return [*values, result]

    def _expect_sum(self) -> list[ExpectedValue]:
        """Return the sum of the numbers, added in order and rounded after each step."""
        number_format, partial = FORMATS[self.format], list[float]()
        total = 0.0
        for number in self.numbers:
            total = number_format.round(total + number_format.round(number))
            partial.append(total)
        exact = float(sum(map(Fraction, self.numbers)))
        backward = 0.0
        for number in reversed(self.numbers):
            backward = number_format.round(backward + number_format.round(number))
        truncated = 0.0
        for number in self.numbers:
            truncated = number_format.round(truncated + number_format.round(number), "truncate")
        if not all(map(isfinite, partial)):
            result = expect_words("sum total result", "inf", meaning=f"sum in {self.format}")
            return [replace(result, values=(("inf", "infinity", "∞", "overflow", "nan"),))]
        return [
            expect("exact_sum", exact, "sum without rounding"),
            expect("partial_sums sums", np.array(partial), f"rounded to {self.format} after each step"),
            expect(
                "sum total result s",
                total,
                f"sum in {self.format}, from left to right",
                "round after every addition",
                " → ".join(show(value, 6) for value in partial[:12]),
                {
                    "that is the exact sum, without rounding": exact,
                    "only the exact sum is rounded, not each step": number_format.round(exact),
                    "the numbers are added from right to left": backward,
                    "the sums are truncated instead of rounded": truncated,
                },
            ),
        ]

    def _expect_format(self) -> list[ExpectedValue]:
        """Return the properties of the format."""
        number_format = FORMATS[self.format]
        eps, mantissa = number_format.epsilon, number_format.mantissa
        other_formats = {f"that is the one of {name}": other for name, other in FORMATS.items() if name != self.format}
        special = self.format == "float8_e4m3"
        return [
            expect("exponent_bits", number_format.exponent, mistakes={"that is the mantissa": mantissa}),
            expect(
                "mantissa_bits fraction_bits",
                mantissa,
                "stored bits of the mantissa",
                mistakes={"that is the exponent": number_format.exponent, "the hidden bit is counted": mantissa + 1},
            ),
            expect("bias", number_format.bias, "2^(e−1) − 1", mistakes={"1 is not subtracted": number_format.bias + 1}),
            expect_exactly(
                "largest max maximum",
                number_format.largest,
                "largest number",
                "(2 − 2^−m)·2^bias" if not special else "1.75·2^8: the last mantissa of the last exponent is NaN",
                mistakes={
                    "the mantissa is taken as 2: a power of two": 2.0 ** (floor(log(number_format.largest, 2)) + 1)
                    if number_format.largest < 1e38
                    else 2.0**127 * 2 * 0.999999999,
                    "the mantissa is taken as 1": 2.0 ** floor(log(number_format.largest, 2)),
                    **{text: other.largest for text, other in other_formats.items()},
                },
            ),
            expect_exactly(
                "smallest_normal min_normal",
                number_format.smallest_normal,
                "smallest normal number",
                "2^(1 − bias)",
                mistakes={
                    "the exponent is −bias: the lowest exponent is for subnormal numbers": number_format.smallest_normal
                    / 2,
                    "that is the smallest subnormal number": number_format.smallest,
                },
                extra=_power_texts(number_format.smallest_normal),
            ),
            expect_exactly(
                "smallest smallest_subnormal min_subnormal",
                number_format.smallest,
                "smallest positive number",
                "2^(1 − bias − mantissa bits)",
                mistakes={"that is the smallest normal number": number_format.smallest_normal},
                extra=_power_texts(number_format.smallest),
            ),
            expect_exactly(
                "unit_roundoff u",
                eps / 2,
                "largest relative rounding error",
                "2^−(m+1)",
                mistakes={"that is the machine epsilon": eps},
                extra=_power_texts(eps / 2),
            ),
            expect_exactly(
                "epsilon eps machine_epsilon ε",
                eps,
                "distance from 1 to the next number",
                "2^−m for m stored bits of the mantissa",
                f"2^−{mantissa}",
                {
                    "that is half of it: the unit roundoff": eps / 2,
                    "the stored bits are one fewer": 2 * eps,
                    **{text: other.epsilon for text, other in other_formats.items()},
                },
                extra=_power_texts(eps),
            ),
        ]

    # Quantization

    def _quantize(self, scale: float, zero: float, low: int, high: int, mode: str = "nearest") -> Array:
        """Return the integers of the numbers."""
        quotients = np.array(self.numbers) / scale
        rounded = np.trunc(quotients) if mode == "truncate" else np.floor(quotients) if mode == "floor" else quotients
        return np.clip(np.rint(rounded) + zero, low, high)

    def _expect_quantized(self) -> list[ExpectedValue]:
        """Return scale, zero point, integers, dequantized numbers and their errors."""
        numbers, bits = np.array(self.numbers), self.bits
        top = 2 ** (bits - 1) - 1
        highest, lowest = float(numbers.max()), float(numbers.min())
        largest = float(np.abs(numbers).max())
        if self.scheme == "absmax":
            scale, zero, low, high = largest / top, 0.0, -top, top
            wrong_scales = {
                f"the largest absolute value is divided by {top + 1} instead of {top}": largest / (top + 1),
                f"the largest absolute value is divided by {2 * top + 1}": largest / (2 * top + 1),
                "the largest number is taken instead of the largest absolute value": highest / top
                if highest
                else np.nan,
                "the scale is inverted": top / largest,
                "the range max − min is divided": (highest - lowest) / (2 * top + 1),
            }
            formula, work = f"max|x| / {top}", f"{show(largest)} / {top}"
        else:
            high_value, low_value = max(highest, 0.0), min(lowest, 0.0)
            unsigned = self.integers == "unsigned"
            low, high = (0, 2**bits - 1) if unsigned else (-top - 1, top)
            scale = (high_value - low_value) / (2**bits - 1)
            zero = float(np.clip(np.rint(low - low_value / scale), low, high))
            wrong_scales = {
                f"the range is divided by {2**bits} instead of {2**bits - 1}": (high_value - low_value) / 2**bits,
                "that is the scale of absmax": largest / top,
                "the scale is inverted": (2**bits - 1) / (high_value - low_value),
                "only the largest number is taken": high_value / (2**bits - 1) if high_value else np.nan,
            }
            formula, work = f"(max − min) / {2**bits - 1}", f"({show(high_value)} − {show(low_value)}) / {2**bits - 1}"
        integers = self._quantize(scale, zero, low, high)
        restored = scale * (integers - zero)
        wrong_integers = {
            "the quotients are truncated instead of rounded": self._quantize(scale, zero, low, high, "truncate"),
            "the quotients are rounded down": self._quantize(scale, zero, low, high, "floor"),
            "the zero point is left out": self._quantize(scale, 0.0, low, high),
            "the numbers are multiplied by the scale instead of divided": np.rint(numbers * scale) + zero,
        }
        for text, wrong in wrong_scales.items():
            if isfinite(wrong) and wrong > 0:
                wrong_integers[f"scale: {text}"] = self._quantize(wrong, zero, low, high)
        quotients = show_terms(numbers[:8] / scale, ", ")
        reciprocal = {} if "scale" in self.asks else {scale**-2: "1/scale, by which the numbers are multiplied"}
        values = [
            expect("scale s", scale, "size of a step", formula, work, wrong_scales, scales=reciprocal),
        ]
        if self.scheme == "zero-point":
            values.append(
                expect(
                    "zero_point z zero",
                    zero,
                    "integer of the number 0",
                    "round(lowest integer − min / scale)",
                    f"round({low} − {show(min(lowest, 0.0))} / {show(scale)})",
                    {
                        "the sign is wrong": float(np.rint(low + min(lowest, 0.0) / scale)),
                        "only absmax has the zero point 0": 0.0,
                    },
                )
            )
        values += [
            expect(
                "quantized q integers_q x_q",
                integers,
                f"integers from {low} to {high}",
                "round(x / scale)" + (" + zero point" if self.scheme == "zero-point" else ""),
                f"round of {quotients}" + (f", plus {show(zero)}" if self.scheme == "zero-point" else ""),
                wrong_integers,
            ),
            expect(
                "dequantized x_hat restored",
                restored,
                "numbers after quantization",
                "scale · " + ("(q − zero point)" if self.scheme == "zero-point" else "q"),
                f"{show(scale)}·{show(integers - zero)}",
                {"the zero point is not subtracted": scale * integers, "the integers are divided": integers / scale},
            ),
            expect(
                "errors error",
                restored - numbers,
                "dequantized − exact",
                up_to=frozenset({"sign"}),
                mistakes={"the absolute values are given": np.abs(restored - numbers)},
            ),
            expect(
                "max_error",
                float(np.abs(restored - numbers).max()),
                "largest absolute error",
                mistakes={"that is half the scale: the bound": scale / 2, "that is the scale": scale},
            ),
            expect(
                "MSE mean_squared_error",
                float(((restored - numbers) ** 2).mean()),
                mistakes={"the squares are added, not averaged": float(((restored - numbers) ** 2).sum())},
            ),
        ]
        return values

    # Softmax

    def _expect_softmax(self) -> list[ExpectedValue]:
        """Return the steps of a stable softmax, log-sum-exp, targets and loss."""
        values: list[ExpectedValue] = []
        count = len(self.scores) or self.classes
        excludes_target = self.spread == "others"
        eps, right = self.smoothing, self.target - 1
        hot = np.zeros(count)
        if 0 <= right < count:
            hot[right] = 1.0
        spread_evenly = hot * (1 - eps) + eps / count
        spread_without_target = hot * (1 - eps) + (1 - hot) * eps / max(1, count - 1)
        targets = spread_without_target if excludes_target else spread_evenly
        target_value = expect(
            "targets y smoothed labels q",
            targets,
            "targets after label smoothing",
            "1 − ε for the right class, ε/(K−1) for each other" if excludes_target else "(1 − ε)·one-hot + ε/K",
            f"ε = {show(eps)}, K = {count}",
            {
                "ε is shared by the other classes, ε/(K−1); here by all, ε/K": spread_without_target
                if not excludes_target
                else targets,
                "ε is shared by all classes, ε/K; here by the others, ε/(K−1)": spread_evenly
                if excludes_target
                else targets,
                "the targets are not smoothed": hot,
                "1 − ε is not completed by ε/K: the targets do not sum to 1": hot * (1 - eps) + (1 - hot) * eps / count,
                "each other class gets ε instead of a share of it": hot * (1 - eps) + (1 - hot) * eps,
                "the right class keeps 1": hot + (1 - hot) * eps / count,
                "ε and 1 − ε are exchanged": hot * eps + (1 - eps) / count,
            },
        )
        if not self.scores:
            return [target_value]
        scores, heat = np.array(self.scores), self.temperature
        scaled = scores / heat
        largest = float(scaled.max())
        shifted = scaled - largest
        powers = np.exp(shifted)
        total = float(powers.sum())
        softmax, lse = powers / total, largest + log(total)
        log_softmax = scaled - lse
        if heat != 1:
            values.append(
                expect(
                    "scaled",
                    scaled,
                    "scores / temperature",
                    mistakes={"the scores are multiplied by the temperature": scores * heat},
                )
            )
        with np.errstate(over="ignore", invalid="ignore"):
            unshifted = np.exp(scaled)
            doubled = np.exp(scores * heat - (scores * heat).max())
            unscaled = np.exp(scores - scores.max())
            binary = 2.0**shifted
        values += [
            expect("max maximum m", largest, "largest score"),
            expect(
                "shifted z_shifted",
                shifted,
                "scores − largest score",
                "z − max z",
                mistakes={
                    "the mean is subtracted instead of the maximum": scaled - scaled.mean(),
                },
            ),
            expect(
                "exponentials exps exp",
                powers,
                "exponentials of the shifted scores",
                "exp(z − max z)",
                mistakes={"the largest score is not subtracted": unshifted},
            ),
            expect(
                "sum denominator Z",
                total,
                "sum of the exponentials",
                mistakes={"the largest score is not subtracted": float(unshifted.sum())},
            ),
            expect(
                "logsumexp lse LSE log_sum_exp",
                lse,
                "log of the sum of the exponentials of the scores",
                "max z + ln Σ exp(z − max z)",
                f"{show(largest)} + ln {show(total)}",
                {
                    "the largest score is not added back": log(total),
                    "the largest score is subtracted instead of added": log(total) - largest,
                    "the logarithm is left out": float(unshifted.sum()),
                    "that is the largest score": largest,
                    "log2 is taken instead of ln": lse / log(2),
                    "log10 is taken instead of ln": lse / log(10),
                    "the scores are added": float(scaled.sum()),
                    "the mean is taken instead of the sum": lse - log(count),
                },
            ),
            expect(
                "log_softmax log_probabilities",
                log_softmax,
                "logarithms of the softmax",
                "z − logsumexp",
                mistakes={"the largest score is forgotten": scaled - log(total)},
            ),
            expect(
                "softmax probabilities p y_hat",
                softmax,
                "probabilities",
                "exp(z/T) / Σ exp(z/T)",
                f"{show(powers)} / {show(total)}",
                {
                    "the exponentials are not normalized": unshifted,
                    "the shifted exponentials are not normalized": powers,
                    "the scores are divided by their sum, without exp": scores / scores.sum()
                    if scores.sum()
                    else np.nan,
                    "the scores are multiplied by the temperature instead of divided": doubled / doubled.sum(),
                    "the temperature is left out": unscaled / unscaled.sum(),
                    "2 is raised instead of e": binary / binary.sum(),
                    "the exponent has the wrong sign": np.exp(-scaled + scaled.min())
                    / np.exp(-scaled + scaled.min()).sum(),
                    "each entry is a sigmoid": 1 / (1 + np.exp(-np.clip(scaled, -500, 500))),
                    "the exponentials are divided by the largest instead of the sum": powers / powers.max(),
                },
            ),
            target_value,
        ]
        if not 0 <= right < count:
            return values
        loss = float(-(targets * log_softmax).sum())
        hard = float(-log_softmax[right])
        index = {f"class {self.target - 1}: classes are counted from 1 here": right - 1}
        mistakes = {
            "the sign is wrong": -loss,
            "log2 is taken instead of ln": loss / log(2),
            "log10 is taken instead of ln": loss / log(10),
            "the probability of the right class is given, not its logarithm": float(softmax[right]),
            "1 − probability is taken instead of −ln": 1 - float(softmax[right]),
            "the score is negated, without log-sum-exp": -float(scaled[right]),
            "that is the log-sum-exp": lse,
            "the loss is divided by the number of classes": loss / count,
            "the loss of all classes is added": float(-log_softmax.sum()),
            **{f"that is the loss of {text}": float(-log_softmax[i]) for text, i in index.items() if i >= 0},
            "that is the loss of the next class": float(-log_softmax[right + 1]) if right + 1 < count else np.nan,
        }
        if eps:
            mistakes["the targets are not smoothed"] = hard
        values.append(
            expect(
                "loss cross_entropy CE L",
                loss,
                "cross-entropy of the targets" if eps else f"cross-entropy of class {self.target}",
                "−Σ targets · ln softmax" if eps else "−ln softmax[target] = logsumexp − z[target]",
                f"{show(lse)} − {show(scaled[right])}" if not eps else f"−{show(targets)} · {show(log_softmax)}",
                mistakes,
            )
        )
        return values

    # Dropout and variances

    def _expect_dropout(self) -> list[ExpectedValue]:
        """Return the scale of dropout, the output for a mask and its expectation."""
        drop, keep = self.drop, 1 - self.drop
        values = [
            expect("keep_probability keep", keep, "1 − p", mistakes={"that is p": drop}, scales={100.0: "in per cent"}),
            expect(
                "scale factor",
                1 / keep,
                "factor of the numbers that stay",
                "1 / (1 − p)",
                f"1 / (1 − {show(drop)})",
                {
                    "the factor is 1/p; p is the probability of dropping": 1 / drop if drop else np.nan,
                    "the factor is 1 − p instead of 1/(1 − p)": keep,
                    "the numbers are not scaled": 1.0,
                    "the factor is p": drop,
                },
            ),
        ]
        if not self.numbers:
            return values
        numbers = np.array(self.numbers)
        wrong_factors = {
            "the numbers that stay are not scaled by 1/(1 − p)": 1.0,
            "the numbers that stay are scaled by 1 − p instead of 1/(1 − p)": keep,
            "the numbers that stay are scaled by 1/p; p is the probability of dropping": 1 / drop if drop else np.nan,
        }
        values.append(
            expect(
                "plain_expectation",
                keep * numbers,
                "expected output without scaling",
                "(1 − p)·x",
                mistakes={"p instead of 1 − p": drop * numbers, "that is x itself": numbers},
            )
        )
        values.append(
            expect(
                "expectation E expected_output",
                numbers,
                "expected output with scaling by 1/(1 − p)",
                "(1 − p)·x/(1 − p) = x",
                mistakes={"the scaling is left out": keep * numbers, "p instead of 1 − p": drop * numbers},
            )
        )
        values.append(
            expect(
                "variance_of_output Var",
                numbers**2 * drop / keep,
                "variance of each output",
                "x²·p/(1 − p)",
                mistakes={"without scaling: x²·p(1 − p)": numbers**2 * drop * keep},
            )
        )
        if self.mask:
            mask = np.array(self.mask)
            wrong = {text: mask * numbers * factor for text, factor in wrong_factors.items()}
            wrong["the mask is inverted: 1 stands for numbers that stay"] = (1 - mask) * numbers / keep
            wrong["the numbers that are dropped stay"] = numbers / keep
            work = f"{show(mask)} ∗ {show(numbers)} / {show(keep)}"
            values.append(
                expect("output y", mask * numbers / keep, "mask·x/(1 − p)", "mask · x / (1 − p)", work, wrong)
            )
        return values

    def _expect_variance(self) -> list[ExpectedValue]:
        """Return the variance, standard deviation and bound of initial weights, and the variance of the outputs."""
        n, m = self.fan_in, self.fan_out
        variances = {"xavier": 2 / (n + m), "he": 2 / n, "lecun": 1 / n}
        variance = variances[self.method]
        formulas = {"xavier": "2 / (n_in + n_out)", "he": "2 / n_in", "lecun": "1 / n_in"}
        wrong = {f"that is the variance of {name}": other for name, other in variances.items() if name != self.method}
        wrong |= {
            "n_out is taken instead of n_in": (2 if self.method == "he" else 1) / m,
            "1 instead of 2 in the numerator": 1 / (n + m) if self.method == "xavier" else 1 / n,
            "the numerator is 6, as for the bound of a uniform distribution": 6 / (n + m),
            "that is the standard deviation": sqrt(variance),
        }
        work = {"xavier": f"2 / ({n} + {m})", "he": f"2 / {n}", "lecun": f"1 / {n}"}[self.method]
        bound = sqrt(3 * variance)
        roots = {text: sqrt(other) for text, other in wrong.items() if "standard" not in text}
        bounds = {text: sqrt(3 * other) for text, other in wrong.items() if "standard" not in text}
        output = n * variance * self.variance
        return [
            expect(
                "weight_variance variance var_w Var(W) var",
                variance,
                "variance of a weight",
                formulas[self.method],
                work,
                wrong,
            ),
            expect(
                "bound a limit",
                bound,
                "bound of a uniform distribution",
                "√(3·variance)",
                f"√(3·{show(variance)})",
                {**bounds, "that is the standard deviation": sqrt(variance), "the root is left out": 3 * variance},
            ),
            expect(
                "output_variance Var(y) var_y",
                output,
                "variance of an output: n_in · Var(W) · Var(x)",
                "n_in · Var(W) · Var(x)",
                f"{n}·{show(variance)}·{show(self.variance)}",
                {
                    "n_in is left out": variance * self.variance,
                    "n_out is taken instead of n_in": m * variance * self.variance,
                    "n_in is squared": n * output,
                    "n_in is rooted": output / sqrt(n),
                    "that is the standard deviation": sqrt(output),
                },
            ),
            expect(
                "std sigma σ standard_deviation",
                sqrt(variance),
                "standard deviation of a weight",
                f"√({formulas[self.method]})",
                f"√({work})",
                {**roots, "that is the variance": variance, "that is the bound of a uniform distribution": bound},
            ),
        ]

    def _expect_scale(self) -> list[ExpectedValue]:
        """Return the variance of scores of queries and keys, and the score with its scale."""
        width = len(self.query) or self.width
        var = self.variance**2 * width
        values = [
            expect(
                "score_variance variance Var(q·k) variance_of_score Var(q.k) Var",
                var,
                "variance of q·k with independent entries of mean 0",
                "d · Var(q)·Var(k)",
                f"{width}·{show(self.variance)}²",
                {
                    "that is the standard deviation": sqrt(var),
                    "d is left out": self.variance**2,
                    "d is squared": var * width,
                    "the variances are added": 2 * width * self.variance,
                },
            ),
            expect(
                "score_std std std Std(q·k)",
                sqrt(var),
                "standard deviation of q·k",
                "√(d · Var(q)·Var(k))",
                mistakes={"that is the variance": var, "d is not rooted": width * self.variance},
            ),
            expect(
                "scaled_variance",
                var / width,
                "variance after division by √d",
                "variance / d",
                mistakes={"the variance is divided by √d instead of d": var / sqrt(width)},
            ),
            expect(
                "scale factor",
                1 / sqrt(width),
                "factor of the scores",
                "1 / √d",
                f"1 / √{width}",
                {"the root is left out": 1 / width, "the factor is inverted": sqrt(width)},
            ),
        ]
        if self.query:
            dot = float(np.dot(self.query, self.key))
            values.append(expect("dot q·k", dot, "inner product"))
            values.append(
                expect(
                    "score scaled_score",
                    dot / sqrt(width),
                    "score of query and key",
                    "q·k / √d",
                    f"{show(dot)} / √{width}",
                    {
                        "the score is not divided by √d": dot,
                        "the score is divided by d instead of √d": dot / width,
                        "the score is multiplied by √d": dot * sqrt(width),
                        "that is the cosine": dot
                        / (float(np.linalg.norm(self.query)) * float(np.linalg.norm(self.key)) or np.nan),
                    },
                )
            )
        return values

    def conventions(self) -> Iterable[tuple[str, Self]]:
        """Yield the other ranges of integers and the other way of label smoothing, where they are left open."""
        if self.topic == "quantization" and self.scheme == "zero-point" and not self.integers:
            note = f"Read with integers from 0 to {2**self.bits - 1}."
            yield note, self.model_copy(update={"integers": "unsigned"})
        if self.smoothing and not self.spread:
            note = "Read with ε shared by the other classes, ε/(K−1) each."
            yield note, self.model_copy(update={"spread": "others"})


def _power_texts(value: float) -> list[str]:
    """Return a power of two as text, such as "2^-10" and "1/1024"."""
    mantissa, exponent = frexp(value)
    if mantissa != 0.5:
        return []
    fraction = [f"1/{2 ** (1 - exponent)}"] if -60 < exponent <= 1 else []
    return [f"2^{exponent - 1}", *fraction]
