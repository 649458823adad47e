"""Types of the fields of exercises, which read text as well as lists, and values whose mistakes differ from them."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Annotated, Any, Self, TypeVar

import numpy as np
from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from lemma.checking.check_values import ValueReport
from lemma.checking.exercises.base import ValueExercise
from lemma.checking.exercises.notation import find_information_unit, remove_information_unit
from lemma.checking.expected_values import Array, ExpectedValue, expect_numbers, expect_words
from lemma.checking.read_values import read_value, write_value
from lemma.errors import InputError
from lemma.report.numbers import WrittenNumber, format_short, read_entry

MAX_NUMBERS = 400  # in a field
MAX_LIST_WORDS = 2000
MAX_TEXT_CHARS = 20_000
MAX_MAGNITUDE = 1e12


def _to_number(value: Any, name: str) -> float:
    """Return a number of a field as a float; `name` is the field, for errors."""
    number = read_entry(value) if isinstance(value, str) else value
    if isinstance(number, WrittenNumber):
        number = float(number.value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"{name}: '{str(value)[:40]}' is not a number. As in: {name}=[0.5, 1/4, -2]")
    if abs(number) > MAX_MAGNITUDE:
        raise ValueError(f"{name}: numbers are at most {MAX_MAGNITUDE:.0e} in size.")
    return float(number)


def _parse_text(value: Any, name: str) -> Any:
    """Return what a text holds: a number, a word, a list or a table; other values unchanged."""
    if not isinstance(value, str):
        return value
    try:
        parsed = read_value(value)
    except InputError as error:
        raise ValueError(f"{name}: {error}") from None
    if isinstance(parsed, str) and len(parts := parsed.split()) > 1 and all(map(read_entry, parts)):
        return parts
    return parsed


def _flatten_item(value: Any) -> Any:
    """Return a written number as its text; other values unchanged."""
    return value.text if isinstance(value, WrittenNumber) else value


def read_vector(value: Any, info: ValidationInfo) -> tuple[float, ...]:
    """Return a field such as "1, 2", "[1 2]" or [1, 2] as numbers; a validator of pydantic."""
    name = str(info.field_name)
    parsed = _parse_text(value, name)
    if not isinstance(parsed, list | tuple):
        parsed = [parsed]
    if len(parsed) == 1 and isinstance(parsed[0], list | tuple):
        parsed = parsed[0]
    if len(parsed) > MAX_NUMBERS:
        raise ValueError(f"{name}: at most {MAX_NUMBERS} numbers are read, got {len(parsed)}.")
    return tuple(_to_number(_flatten_item(item), name) for item in parsed)


def read_matrix(value: Any, info: ValidationInfo) -> tuple[tuple[float, ...], ...]:
    """Return a field such as "1 2; 3 4" or [[1, 2], [3, 4]] as rows of numbers; a validator of pydantic."""
    name = str(info.field_name)
    if isinstance(value, str) and ";" in value and "[" not in value:
        value = f"[{value}]"
    parsed = _parse_text(value, name)
    if not isinstance(parsed, list | tuple):
        parsed = [parsed]
    rows = [row if isinstance(row, list | tuple) else None for row in parsed]
    if all(row is None for row in rows):  # a matrix of one row
        rows = [list(parsed)] if parsed else []
    if any(row is None for row in rows):
        raise ValueError(f"{name}: a matrix is a list of rows, as in {name}=[[1, 2], [3, 4]]")
    if len({len(row or ()) for row in rows}) > 1:
        raise ValueError(f"{name}: all rows of a matrix are equally long; these are not.")
    if sum(len(row or ()) for row in rows) > MAX_NUMBERS:
        raise ValueError(f"{name}: at most {MAX_NUMBERS} numbers are read.")
    return tuple(tuple(_to_number(_flatten_item(item), name) for item in row or ()) for row in rows)


def read_words(value: Any, info: ValidationInfo) -> tuple[str, ...]:
    """Return a field such as "a b c", "a, b" or ["a", "b"] as words; a validator of pydantic."""
    name = str(info.field_name)
    if isinstance(value, list | tuple):
        words = [to_text(item) for item in value]
    elif isinstance(value, Mapping):
        raise ValueError(f"{name}: a list of words is expected, as in {name}='a b c'")
    else:
        text = to_text(value).strip()
        text = text[1:-1] if len(text) > 1 and text[0] == "[" and text[-1] == "]" else text
        words = [part.strip().strip("'\"") for part in (text.split(",") if "," in text else text.split())]
    words = [word for word in words if word]
    if len(words) > MAX_LIST_WORDS:
        raise ValueError(f"{name}: at most {MAX_LIST_WORDS:,} words are read, got {len(words):,}.")
    return tuple(words)


def read_table(value: Any, info: ValidationInfo) -> dict[str, float]:
    """Return a field such as "{low: 5, lower: 2}" or "low 5, lower 2" as numbers by name; a validator of pydantic."""
    name = str(info.field_name)
    if isinstance(value, str) and value.strip():
        text = value.strip()
        inner = text[1:-1] if text[0] == "{" and text[-1] == "}" else text
        pairs = (re.split(r"\s*[:=×]\s*|\s+", part.strip()) for part in re.split(r"[,;\n]", inner) if part.strip())
        entries = [pair if len(pair) == 2 else ["".join(pair[:1]), ""] for pair in pairs]
        value = {label.strip("'\""): number for label, number in entries}
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: a table is expected, as in {name}='{{low: 5, lower: 2}}'")
    if len(value) > MAX_NUMBERS:
        raise ValueError(f"{name}: at most {MAX_NUMBERS} entries are read, got {len(value)}.")
    for label, number in value.items():
        if number == "":
            raise ValueError(f"{name}: '{label[:40]}' has no number. As in: {name}='{{low: 5, lower: 2}}'")
    return {str(label): _to_number(number, name) for label, number in value.items()}


def read_sentences(value: Any, info: ValidationInfo) -> tuple[str, ...]:
    """Return a field such as "I am / You are" or a list of texts as sentences; a validator of pydantic."""
    name = str(info.field_name)
    if isinstance(value, list | tuple):
        sentences = [to_text(item) for item in value]
    else:
        sentences = re.split(r"\s/\s|\n", to_text(value))
    if sum(map(len, sentences)) > MAX_TEXT_CHARS:
        raise ValueError(f"{name}: at most {MAX_TEXT_CHARS:,} characters are read.")
    return tuple(" ".join(sentence.split()) for sentence in sentences if sentence.strip())


def to_text(value: Any) -> str:
    """Return a value that TOML read as something else than text, such as 5 or true, as it was written."""
    if isinstance(value, bool):
        return str(value).lower()
    return write_value(value) if isinstance(value, list) else str(value)


def _limit_text(text: str) -> str:
    """Return a text if it is short enough to work with."""
    if len(text) > MAX_TEXT_CHARS:
        raise ValueError(f"a text has at most {MAX_TEXT_CHARS:,} characters here, not {len(text):,}.")
    return text


Vector = Annotated[tuple[float, ...], BeforeValidator(read_vector)]
Matrix = Annotated[tuple[tuple[float, ...], ...], BeforeValidator(read_matrix)]
Words = Annotated[tuple[str, ...], BeforeValidator(read_words)]
Table = Annotated[dict[str, float], BeforeValidator(read_table)]
Sentences = Annotated[tuple[str, ...], BeforeValidator(read_sentences)]
StatementText = Annotated[str, BeforeValidator(to_text), AfterValidator(_limit_text)]


class ConventionExercise(ValueExercise):
    """An exercise for which textbooks use several conventions; an answer is right if all of it follows one."""

    def conventions(self) -> Iterable[tuple[str, Self]]:
        """Yield (note on the convention, the exercise with it) for each convention that the statement leaves open."""
        return ()

    def check(self, answers: Sequence[str], show_solution: bool = False) -> ValueReport:
        """Check lines `NAME = VALUE` under each convention that the fields leave open; the best fit counts."""
        report = super().check(answers, show_solution)
        if report:
            return report
        for note, exercise in self.conventions():
            other = ValueExercise.check(exercise, answers, show_solution)
            if sum(line.right for line in other.lines) > sum(line.right for line in report.lines):
                report = replace(other, name=self.name, notes=(*other.notes, note))
            if report:
                break
        return report


Unitless = TypeVar("Unitless", bound=ValueExercise)


def check_information_units(
    exercise: Unitless, answers: Sequence[str], check: Callable[[Unitless, Sequence[str]], ValueReport]
) -> ValueReport:
    """Return the report of `check` on lines; those with bits or nats are read with that base of logarithms.

    The exercise has the field `log_base`.
    """
    lines = [line for answer in answers for line in answer.splitlines() if line.strip()]
    bases = [find_information_unit(line) for line in lines]
    if not any(bases):
        return check(exercise, answers)
    reports: list[ValueReport] = []
    for base in dict.fromkeys(bases):
        selected = [remove_information_unit(line) for line, other in zip(lines, bases, strict=True) if other == base]
        variant = exercise.model_copy(update={"log_base": base}) if base else exercise
        reports.append(check(variant, selected))
    by_base = {base: iter(report.lines) for base, report in zip(dict.fromkeys(bases), reports, strict=True)}
    checked = (
        replace(next(by_base[base]), text=" ".join(line.split())) for line, base in zip(lines, bases, strict=True)
    )
    notes = dict.fromkeys(note for report in reports for note in report.notes)
    return replace(reports[0], lines=tuple(checked), notes=tuple(notes))


def expect(
    names: str | Sequence[str],
    values: Array | float,
    meaning: str = "",
    formula: str = "",
    work: str = "",
    mistakes: Mapping[str, Any] | None = None,
    **details: Any,
) -> ExpectedValue:
    """Return an expected number or array, with those mistakes that lead to another one.

    Mistakes without a finite value are left out. Of mistakes with the same value the first two share a description.
    """
    exact = np.asarray(values, dtype=np.float64)
    return expect_numbers(
        names,
        exact,
        meaning=meaning,
        formula=formula,
        work=work,
        mistakes=distinguish_mistakes(exact, mistakes or {}),
        **details,
    )


def distinguish_mistakes(exact: Array, mistakes: Mapping[str, Any]) -> dict[str, Array]:
    """Return the mistakes whose value is finite and not the exact one; two with the same value become one.

    >>> distinguish_mistakes(np.array(1.0), {"a is added": 2.0, "b is added": 2.0, "c is added": 1.0})
    {'a is added, or b is added': array(2.)}
    """
    distinct: dict[str, Array] = {}
    groups: list[tuple[Array, list[str]]] = []
    for text, wrong in mistakes.items():
        array = np.asarray(wrong, dtype=np.float64)
        if array.shape != exact.shape or not np.isfinite(array).all() or _is_same(array, exact):
            continue
        group = next((texts for value, texts in groups if _is_same(array, value)), None)
        if group is None:
            groups.append((array, [text]))
        elif text not in group:
            group.append(text)
    for array, texts in groups:
        distinct[", or ".join(texts[:2])] = array
    return distinct


def _is_same(first: Array, second: Array) -> bool:
    """Return whether two arrays of one shape are equal up to rounding errors."""
    return bool(np.allclose(first, second, rtol=1e-9, atol=1e-12))


def expect_exactly(
    names: str | Sequence[str],
    value: float,
    meaning: str = "",
    formula: str = "",
    work: str = "",
    mistakes: Mapping[str, float] | None = None,
    extra: Sequence[str] = (),
) -> ExpectedValue:
    """Return an expected number; a tiny or huge one, such as 1.18e-38, is right to the significant digits written.

    Args:
        extra: other ways to write it, such as "2^-126".
    """
    if 1e-6 <= abs(value) <= 1e15 or not value:
        return expect(names, value, meaning, formula, work, mistakes)
    digits = len(Decimal(repr(value)).normalize().as_tuple().digits)
    rounded = [f"{value:.{count}e}" for count in range(max(digits, 3) - 1, -1, -1)]
    wrong = {text: f"{number:.2e}" for text, number in (mistakes or {}).items() if number != value}
    return expect_words(
        names,
        [(*dict.fromkeys([f"{value:.6g}", *rounded, *extra]),)],
        meaning=meaning,
        formula=formula,
        work=work,
        mistakes=wrong,
        normalize=normalize_scientific,
    )


_POWER_OF_TEN = re.compile(r"(?:×|\*|·|\\times|\\cdot|x)\s*10\s*(?:\^|\*\*)\s*\{?\s*\(?([+-]?\d{1,4})\)?\}?")


def normalize_scientific(text: str) -> str:
    r"""Return a number in one notation, whatever way it is written; other text without blanks.

    >>> normalize_scientific(r"1.180 \times 10^{-38}"), normalize_scientific("65,504"), normalize_scientific("2^{-126}")
    ('1.18E-38', '6.5504E+4', '2^-126')
    """
    unshifted = text.strip().strip("$").replace("−", "-").replace("–", "-").casefold()
    unshifted = _POWER_OF_TEN.sub(r"e\1", unshifted).replace(",", "").replace("_", "")
    unshifted = re.sub(r"^10\^\{?([+-]?\d{1,4})\}?$", r"1e\1", "".join(unshifted.split()))
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,4})?", unshifted) and len(unshifted) < 100:
        number = Decimal(unshifted)
        return f"{number.normalize():E}" if number else "0"
    return re.sub(r"[{}()]", "", unshifted.replace("**", "^"))


def show(value: Any, decimals: int = 4) -> str:
    """Return a number, or a list of numbers, for the text of a computation.

    >>> show(0.25), show([1, -0.5])
    ('0.25', '[1, −0.5]')
    """
    if np.ndim(value):
        return "[" + ", ".join(show(item, decimals) for item in value) + "]"
    number = float(value)
    if number and (abs(number) < 10.0**-decimals or abs(number) >= 1e15):
        return f"{number:.4g}".replace("-", "−")
    return format_short(number, decimals)


def show_terms(values: Iterable[Any], sign: str = " + ", limit: int = 12) -> str:
    """Return numbers joined by a sign, such as "1 + 2 + 3"; a long list is cut.

    >>> show_terms([1, 2, -3])
    '1 + 2 + (−3)'
    """
    texts = [show(value) for value in values]
    texts = [f"({text})" if index and text.startswith("−") else text for index, text in enumerate(texts)]
    return sign.join(texts[:limit] + (["…"] if len(texts) > limit else []))
