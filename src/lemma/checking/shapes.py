"""Is the shape of a tensor right? Every parameter and intermediate of a module's drawing, judged by its sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from itertools import permutations
from typing import Any

from lemma.checking.formula import read_formula
from lemma.counting.cache import CountCache, polynomial_of, terms_of
from lemma.counting.drawing import draw
from lemma.counting.polynomial import Rational
from lemma.counting.subject import Model, subject_of
from lemma.counting.writing import write
from lemma.errors import InputError, unknown
from lemma.report.result import Block, Result, Text

MOST_LINES, MOST_AXES = 100, 8
BELOW = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
Formulas = tuple[Rational, ...]


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


def judge_shapes(model: Model, lines: Sequence[str], words: Mapping[str, Any] | None = None) -> ShapeReport:
    """Judge lines `NAME = S×E` against the tensors of a module's drawing.

    >>> print(judge_shapes("self-attention", ["Q = H×S×M_QK", "scores = S×S"]).lines[1].reason)
    The first axis, H, is missing.
    """
    given = [line for text in lines for line in text.splitlines() if line.strip()]
    if not given or len(given) > MOST_LINES:
        raise InputError(f"check shape: from 1 to {MOST_LINES} lines are expected, got {len(given)}.")
    pairs = [_split(line) for line in given]
    subject = subject_of(model, words)
    order = tuple(subject.sizes(running=True))

    def drawn() -> list[list[Any]]:
        return [[node.name.translate(BELOW), [terms_of(size) for size in node.shape]] for node in draw(subject).nodes]

    kept = CountCache(subject.identity).get("drawn shapes", drawn)
    known = {name: tuple(Rational(polynomial_of(terms)) for terms in sizes) for name, sizes in kept}
    judged: list[JudgedShape] = []
    for name, sizes in pairs:
        found = name.translate(BELOW)
        ends = [other for other in known if other.endswith(f".{found}")]
        if found not in known and len(ends) != 1:
            near = get_close_matches(found, known, n=8, cutoff=0.4) or [*known][:8]
            every = f" All of them, {len(known)}: lemma count {subject.name} --draw FILE.svg"
            raise InputError(unknown(f"{subject.name}: the tensor", name, near) + every)
        found = found if found in known else ends[0]
        yours, right = tuple(read_formula(size, order) for size in sizes), known[found]
        mine, theirs = (" × ".join(write(size, order) for size in shape) for shape in (yours, right))
        equal = _equal(yours, right)
        reason = "" if equal else _reason(yours, right, order)
        if not equal and not reason:
            alike = (other for other, shape in known.items() if other != found and _equal(yours, shape))
            reason = next((f"That is the shape of {other}." for other in alike), "")
        judged.append(JudgedShape(found, mine, theirs, equal, reason))
    return ShapeReport(subject.name, tuple(judged))


def _split(line: str) -> tuple[str, list[str]]:
    name, sign, shape = line.replace(":", "=", 1).partition("=")
    plain = shape.strip().strip("()[]").replace("×", ",").replace(" x ", ",")
    sizes = [size.strip() for size in plain.split(",") if size.strip()]
    if not sign or not name.strip() or not sizes or len(sizes) > MOST_AXES:
        raise InputError(f"'{line.strip()[:60]}': NAME = SHAPE is expected, as in Q = H×S×M_QK.")
    return name.strip(), sizes


def _reason(yours: Formulas, right: Formulas, order: Sequence[str]) -> str:
    for place, axis in enumerate(("first", "second", "third", "fourth")):
        if place < len(right) and _equal(yours, right[:place] + right[place + 1 :]):
            return f"The {axis} axis, {write(right[place], order)}, is missing."
        if place < len(yours) and _equal(yours[:place] + yours[place + 1 :], right):
            return f"The {axis} axis, {write(yours[place], order)}, is one too many."
    return "The axes are in another order." if any(_equal(yours, turned) for turned in permutations(right)) else ""


def _equal(one: Formulas, other: Formulas) -> bool:
    same = (not (mine - theirs).numerator for mine, theirs in zip(one, other, strict=False))
    return len(one) == len(other) and all(same)
