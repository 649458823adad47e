"""Is the shape of a tensor right? Every parameter and intermediate of a module's drawing, judged by its sizes."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from itertools import permutations
from typing import Any

from lemma.checking.formula import read_formula
from lemma.counting.cache import CountCache, polynomial_from_json, polynomial_to_json
from lemma.counting.drawing import draw
from lemma.counting.polynomial import Polynomial, Rational, work_limit
from lemma.counting.subject import Model, resolve_subject
from lemma.counting.writing import write_formula
from lemma.errors import InputError, describe_unknown
from lemma.report.result import Block, Result, Text

MAX_LINES, MAX_AXES, MAX_TERMS = 100, 8, 100
MAX_STEPS = 120_000
"""Steps of work for all lines of an answer, see `work_limit`."""
SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
Axes = tuple[Rational, ...]


@dataclass(frozen=True)
class JudgedShape:
    """One line judged."""

    name: str
    yours: str
    right: str
    equal: bool
    reason: str = ""

    def __str__(self) -> str:
        if self.equal:
            return f"right   {self.name}: {self.right}"
        because = f" {self.reason}" if self.reason else ""
        return f"wrong   {self.name}: {self.yours} given, {self.right} is right.{because}"


@dataclass(frozen=True)
class ShapeReport(Result):
    """The shapes of a module's tensors as a person gave them, each judged."""

    model: str
    lines: tuple[JudgedShape, ...]

    @property
    def title(self) -> str:
        """What was judged."""
        return f"{self.model}: shapes"

    @property
    def right(self) -> bool:
        """Whether every shape is."""
        return all(line.equal for line in self.lines)

    def __bool__(self) -> bool:
        return self.right

    def claim_and_correction(self) -> tuple[str, str]:
        """Return the first wrong line, and what is right instead; all lines and nothing if they are right."""
        wrong = next((line for line in self.lines if not line.equal), None)
        if wrong is None:
            return "; ".join(f"{line.name} = {line.yours}" for line in self.lines), ""
        return f"{wrong.name} = {wrong.yours}", " ".join(filter(None, [wrong.right, wrong.reason]))

    @property
    def summary(self) -> str:
        """How many shapes are right."""
        return f"{sum(line.equal for line in self.lines)} of {len(self.lines)} right."

    def blocks(self) -> list[Block]:
        """A line for each shape."""
        return [Text("\n".join([*map(str, self.lines), self.summary]))]

    def details(self) -> list[Block]:
        """The same, coloured."""
        return [*(Text(str(line), "good" if line.equal else "bad") for line in self.lines), Text(self.summary)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"model": self.model, "right": self.right, "lines": [asdict(line) for line in self.lines]}


def check_shapes(model: Model, lines: Sequence[str], settings: Mapping[str, Any] | None = None) -> ShapeReport:
    """Judge lines `NAME = S×E` against the tensors of a module's drawing.

    >>> print(judge_shapes("self-attention", ["Q = H×S×M_QK", "scores = S×S"]).lines[1].reason)
    The first axis, H, is missing.
    """
    given = [line for text in lines for line in text.splitlines() if line.strip()]
    if not given or len(given) > MAX_LINES:
        raise InputError(f"check shape: from 1 to {MAX_LINES} lines are expected, got {len(given)}.")
    pairs = [_split(line) for line in given]
    subject = resolve_subject(model, settings)
    order = tuple(subject.sizes(with_inputs=True))

    def drawn() -> list[list[Any]]:
        return [
            [node.name.translate(SUBSCRIPTS), [polynomial_to_json(size) for size in node.shape]]
            for node in draw(subject).nodes
        ]

    kept = CountCache(subject.identity).get_or_compute("drawn shapes", drawn)
    known = {name: tuple(Rational(polynomial_from_json(terms)) for terms in sizes) for name, sizes in kept}
    judged: list[JudgedShape] = []
    with work_limit(MAX_STEPS):
        for name, shape in pairs:
            found = name.translate(SUBSCRIPTS)
            ends = [other for other in known if other.endswith(f".{found}")]
            if found not in known and len(ends) != 1:
                near = get_close_matches(found, known, n=8, cutoff=0.4) or [*known][:8]
                every = f" All of them, {len(known)}: lemma count {subject.name} --draw FILE.svg"
                raise InputError(describe_unknown(f"{subject.name}: the tensor", name, near) + every)
            found = found if found in known else ends[0]
            readings, right = read_shape(shape, order), known[found]
            yours = next((reading for reading in readings if _equal(reading, right)), readings[0])
            mine, theirs = (" × ".join(write_formula(size, order) for size in shape) for shape in (yours, right))
            equal = _equal(yours, right)
            reason = "" if equal else _reason(yours, right, order)
            if not equal and not reason:
                alike = (other for other, shape in known.items() if other != found and _equal(yours, shape))
                reason = next((f"That is the shape of {other}." for other in alike), "")
            judged.append(JudgedShape(found, mine, theirs, equal, reason))
    return ShapeReport(subject.name, tuple(judged))


def _split(line: str) -> tuple[str, str]:
    """Split `NAME = SHAPE`, also written with a colon or ∈, or as NAME.shape."""
    name, sign, shape = re.sub(r"[:∈]|\\in(?![A-Za-z])", "=", line, count=1).partition("=")
    name = re.sub(r"^shape\s*(?:of\s+(.*)|\((.*)\))$|^(.*)\.(?:shape|size\(\))$", r"\1\2\3", name.strip())
    if not sign or not name or not shape.strip():
        raise InputError(f"'{line.strip()[:60]}': NAME = SHAPE is expected, as in Q = H×S×M_QK.")
    return name, shape.strip()


def read_shape(text: str, sizes: Collection[str]) -> list[Axes]:
    """Return the readings of a shape, the most literal one first.

    Axes are separated by ×, commas or x. A shape without these may also be meant with blanks or * between its axes.

    >>> [[write(axis, "HME") for axis in reading] for reading in read_shape("(H*M) E", "HME")]
    [['H*M*E'], ['H*M', 'E']]
    """
    shape = re.sub(r"^(?:torch\.)?Size(?=\()|^(?:ℝ|R|\\mathbb\s*\{\s*R\s*\})\s*\^", "", text).strip()
    while (closing := _CLOSING.get(shape[:1])) and _closing_position(shape) == len(shape) - 1 and shape[-1] == closing:
        shape = shape[1:-1].strip()
    readings: list[Axes] = []
    refusal: InputError | None = None
    for separator in (_AXES, _BY_X, _BY_BLANK, _BY_STAR):
        try:
            axes = _split_axes(shape, separator, sizes)
            if len(axes) > 1 or separator is _AXES:
                readings.append(tuple(Rational(_polynomial(axis, sizes)) for axis in axes))
        except InputError as error:
            refusal = refusal or error
        if separator is _AXES and _AXES.search(shape):
            break
    if not readings:
        raise refusal or InputError(f"'{text[:60]}' is not a shape. Write the sizes of its axes, as in H×S×M_QK.")
    return readings


_CLOSING = {"(": ")", "[": "]", "{": "}"}
_AXES = re.compile(r"\s*(?:×|✕|,|;|\\times(?![A-Za-z])|\s[xX]\s|\sby\s)\s*")
_BY_X, _BY_BLANK, _BY_STAR = (
    re.compile(r"x"),
    re.compile(r"(?<![-+*/^·])\s+(?![-+*/^·])"),
    re.compile(r"\s*\*(?!\*)\s*"),
)


def _split_axes(shape: str, separator: re.Pattern[str], sizes: Collection[str]) -> list[str]:
    """Split a shape at the separators outside of brackets; an x inside the name of a size does not separate."""
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


def _closing_position(text: str) -> int:
    """Return the position of the bracket that closes the one at the beginning, or -1."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in _CLOSING) - (character in _CLOSING.values())
        if not depth:
            return position
    return -1


def _polynomial(axis: str, sizes: Collection[str]) -> Polynomial:
    formula = read_formula(axis, sizes)
    if len(formula.numerator.terms) * len(formula.denominator.terms) > MAX_TERMS:
        raise InputError(f"'{axis[:60]}' is too large for an axis. Write a size, or a product such as H*M_V.")
    value = formula.to_polynomial()
    if value is None:
        raise InputError(f"'{axis[:60]}' is not a whole number at all sizes.")
    return value


def _reason(yours: Axes, right: Axes, order: Sequence[str]) -> str:
    for place, axis in enumerate(("first", "second", "third", "fourth")):
        if place < len(right) and _equal(yours, right[:place] + right[place + 1 :]):
            return f"The {axis} axis, {write_formula(right[place], order)}, is missing."
        if place < len(yours) and _equal(yours[:place] + yours[place + 1 :], right):
            return f"The {axis} axis, {write_formula(yours[place], order)}, is one too many."
    return "The axes are in another order." if any(_equal(yours, turned) for turned in permutations(right)) else ""


def _equal(left: Axes, right: Axes) -> bool:
    return len(left) == len(right) and all(mine == theirs for mine, theirs in zip(left, right, strict=True))
