"""Check the shapes of a module's tensors: every parameter and intermediate of its drawing, by the sizes of its axes."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import accumulate, permutations
from typing import Any

from lemma.checking.checked_lines import CheckedLine, CheckedLines
from lemma.checking.read_formula import read_formula
from lemma.counting.count import CountCache
from lemma.counting.drawing import draw
from lemma.counting.polynomial import Polynomial, Rational, work_limit
from lemma.counting.subject import Model, Subject, resolve_subject
from lemma.counting.writing import write_formula
from lemma.errors import InputError, describe_unknown

MAX_LINES, MAX_AXES, MAX_TERMS = 100, 8, 100
MAX_STEPS = 120_000  # steps of work for all lines of an answer, see `work_limit`
SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
ORDINALS = ("first", "second", "third", "fourth")
Axes = tuple[Rational, ...]


@dataclass(frozen=True)
class CheckedShape(CheckedLine):
    """A line with the shape of a tensor, and the right shape."""

    name: str
    yours: str
    right: str
    equal: bool
    reason: str = ""

    @property
    def outcome(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The word "right" or "wrong"."""
        return "right" if self.equal else "wrong"

    @property
    def text(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The right shape after the name; for a wrong line, both shapes and the reason."""
        if self.equal:
            return f"{self.name}: {self.right}"
        return " ".join(filter(None, [f"{self.name}: {self.yours} given, {self.right} is right.", self.reason]))

    @property
    def claim(self) -> str:
        """The name and the written shape, such as "Q = H × S"."""
        return f"{self.name} = {self.yours}"

    @property
    def correction(self) -> str:
        """The right shape and the reason."""
        return " ".join(filter(None, [self.right, self.reason]))


class ShapeReport(CheckedLines[CheckedShape]):
    """Report on lines with shapes of a module's tensors."""

    topic, keys = "shapes", ("model", "lines")


def check_shapes(model: Model, lines: Sequence[str], settings: Mapping[str, Any] | None = None) -> ShapeReport:
    """Check lines `NAME = S×E` against the shapes of a module's parameters and intermediates, as its drawing has them.

    >>> print(check_shapes("self-attention", ["Q = H×S×M_QK", "scores = S×S"]).lines[1].reason)
    The first axis, H, is missing.
    """
    answers = [line for text in lines for line in text.splitlines() if line.strip()]
    if not answers or len(answers) > MAX_LINES:
        raise InputError(f"check shape: from 1 to {MAX_LINES} lines are expected, got {len(answers)}.")
    pairs = [_split_line(line) for line in answers]
    subject = resolve_subject(model, settings)
    order = tuple(subject.sizes(with_inputs=True))

    def draw_shapes() -> list[list[Any]]:
        return [
            [node.name.translate(SUBSCRIPTS), [size.to_json() for size in node.shape]] for node in draw(subject).nodes
        ]

    nodes = CountCache(subject.identity).get_or_compute("drawn shapes", draw_shapes)
    shapes = {name: tuple(Rational(Polynomial.from_json(terms)) for terms in sizes) for name, sizes in nodes}
    with work_limit(MAX_STEPS):
        checked = [_check_shape(_find_tensor(name, shapes, subject), text, shapes, order) for name, text in pairs]
    return ShapeReport(subject.name, tuple(checked))


def _find_tensor(name: str, shapes: Mapping[str, Axes], subject: Subject) -> str:
    """Return the path of the tensor of that name, or the only path that ends with it; without one raise an error."""
    normalized = name.translate(SUBSCRIPTS)
    if normalized in shapes:
        return normalized
    matches = [path for path in shapes if path.endswith(f".{normalized}")]
    if len(matches) == 1:
        return matches[0]
    similar = get_close_matches(normalized, shapes, n=8, cutoff=0.4) or [*shapes][:8]
    hint = f" All of them, {len(shapes)}: lemma count {subject.name} --draw FILE.svg"
    raise InputError(describe_unknown(f"{subject.name}: tensor", name, similar) + hint)


def _check_shape(name: str, text: str, shapes: Mapping[str, Axes], order: Sequence[str]) -> CheckedShape:
    """Compare the text of a shape with that of the tensor `name`; symbols are printed in this order."""
    readings, expected = read_shape(text, order), shapes[name]
    equal = expected in readings
    actual, reason = expected if equal else readings[0], ""
    if not equal:
        other = next((other for other, shape in shapes.items() if actual == shape), None)
        reason = _explain_axes(actual, expected, order) or (f"That is the shape of {other}." if other else "")
    yours, right = (" × ".join(write_formula(size, order) for size in axes) for axes in (actual, expected))
    return CheckedShape(name, yours, right, equal, reason)


def _explain_axes(actual: Axes, expected: Axes, order: Sequence[str]) -> str:
    """Return a sentence on an axis that is missing, added or permuted; "" if the shapes differ in another way."""
    for index, ordinal in enumerate(ORDINALS):
        if index < len(expected) and actual == expected[:index] + expected[index + 1 :]:
            return f"The {ordinal} axis, {write_formula(expected[index], order)}, is missing."
        if index < len(actual) and actual[:index] + actual[index + 1 :] == expected:
            return f"The {ordinal} axis, {write_formula(actual[index], order)}, is one too many."
    is_permuted = actual in permutations(expected)
    return "The axes are in another order." if is_permuted else ""


# Reading.

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_AXES = re.compile(r"\s*(?:×|✕|,|;|\\times(?![A-Za-z])|\s[xX]\s|\sby\s)\s*")
_BY_X = re.compile(r"x")
_BY_BLANK = re.compile(r"(?<![-+*/^·])\s+(?![-+*/^·])")
_BY_STAR = re.compile(r"\s*\*(?!\*)\s*")


def _split_line(line: str) -> tuple[str, str]:
    """Split a line `NAME = SHAPE` into name and shape; a colon or ∈ may stand for =, NAME.shape for NAME."""
    name, sign, shape = re.sub(r"[:∈]|\\in(?![A-Za-z])", "=", line, count=1).partition("=")
    name = re.sub(r"^shape\s*(?:of\s+(.*)|\((.*)\))$|^(.*)\.(?:shape|size\(\))$", r"\1\2\3", name.strip())
    if not sign or not name or not shape.strip():
        raise InputError(f"'{line.strip()[:60]}': NAME = SHAPE is expected, as in Q = H×S×M_QK.")
    return name, shape.strip()


def read_shape(text: str, sizes: Collection[str]) -> list[Axes]:
    """Parse the text of a shape; return all its readings, the most literal first.

    Axes are separated by ×, commas or x. A shape without these may also be meant with blanks or * between its axes.

    >>> [[write_formula(axis, "HME") for axis in reading] for reading in read_shape("(H*M) E", "HME")]
    [['H*M*E'], ['H*M', 'E']]
    """
    shape = re.sub(r"^(?:torch\.)?Size(?=\()|^(?:ℝ|R|\\mathbb\s*\{\s*R\s*\})\s*\^", "", text).strip()
    while _is_enclosed(shape):
        shape = shape[1:-1].strip()
    readings: list[Axes] = []
    first_error: InputError | None = None
    for separator in (_AXES, _BY_X, _BY_BLANK, _BY_STAR):
        try:
            axes = _split_axes(shape, separator, sizes)
            if len(axes) > 1 or separator is _AXES:
                readings.append(tuple(_read_size(axis, sizes) for axis in axes))
        except InputError as error:
            first_error = first_error or error
        if separator is _AXES and _AXES.search(shape):
            break
    if not readings:
        raise first_error or InputError(f"'{text[:60]}' is not a shape. Write the sizes of its axes, as in H×S×M_QK.")
    return readings


def _split_axes(shape: str, separator: re.Pattern[str], sizes: Collection[str]) -> list[str]:
    """Split the text of a shape at separators outside brackets; an x inside the name of a size does not separate."""
    axes, depth, start, position = list[str](), 0, 0, 0
    while position < len(shape):
        depth += (shape[position] in _CLOSING) - (shape[position] in _CLOSING.values())
        word = re.compile(r"[A-Za-z]\w*").match(shape, position) if separator is _BY_X else None
        match = separator.match(shape, position)
        if word and word.group() in sizes:
            position = word.end()
        elif match and not depth:
            axes.append(shape[start:position])
            start = position = match.end()
        else:
            position += 1
    axes = [axis.strip() for axis in (*axes, shape[start:])]
    if len(axes) > 1 and not axes[-1]:  # as in (D,)
        axes.pop()
    if not all(axes) or len(axes) > MAX_AXES:
        raise InputError(f"'{shape[:60]}' is not a shape of 1 to {MAX_AXES} axes. Write it as in H×S×M_QK.")
    return axes


def _is_enclosed(text: str) -> bool:
    """Return whether a text starts with a bracket that is closed only at its end."""
    depths = list(accumulate((character in _CLOSING) - (character in _CLOSING.values()) for character in text))
    return text[:1] in _CLOSING and text[-1] == _CLOSING[text[0]] and 0 not in depths[:-1] and depths[-1] == 0


def _read_size(axis: str, sizes: Collection[str]) -> Rational:
    """Parse the text of an axis into a polynomial in the sizes; raise an InputError for other or too large formulas."""
    formula = read_formula(axis, sizes)
    if len(formula.numerator.terms) * len(formula.denominator.terms) > MAX_TERMS:
        raise InputError(f"'{axis[:60]}' is too large for an axis. Write a size, or a product such as H*M_V.")
    value = formula.to_polynomial()
    if value is None:
        raise InputError(f"'{axis[:60]}' is not a whole number at all sizes.")
    return Rational(value)
