"""What a drawing is made of: boxes, texts and lines, each of which can be moved."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lemma.ledger.drawing.text import LINE, SIZE, width

Look = Literal["input", "parameter", "constant", "step", "free step", "result", "frame"]
PAD = 8.0


@dataclass(frozen=True)
class Box:
    """A rectangle of some look."""

    look: Look
    x: float
    y: float
    width: float
    height: float

    def moved(self, x: float, y: float) -> "Box":
        """Return it elsewhere."""
        return replace(self, x=self.x + x, y=self.y + y)


@dataclass(frozen=True)
class Text:
    """One line of text around the middle x; y is its base line. `strong` comes first, in bold."""

    x: float
    y: float
    strong: str = ""
    plain: str = ""

    @property
    def width(self) -> float:
        """An upper estimate."""
        return line_width(self.strong, self.plain)

    def moved(self, x: float, y: float) -> "Text":
        """Return it elsewhere."""
        return replace(self, x=self.x + x, y=self.y + y)


@dataclass(frozen=True)
class Line:
    """A line down through points: straight where two have the same x, else a bow; with an arrow at its end or not."""

    points: tuple[tuple[float, float], ...]
    arrow: bool = True
    sideways: bool = False

    def moved(self, x: float, y: float) -> "Line":
        """Return it elsewhere."""
        return replace(self, points=tuple((a + x, b + y) for a, b in self.points))


Shape = Box | Text | Line
Words = tuple[str, str]
"""A line of text: what is bold and what is not."""


def line_width(strong: str, plain: str) -> float:
    """The width of a line of text at most."""
    space = 2 * width(" ") if strong and plain else 0
    return width(strong, bold=True) + space + width(plain)


def labelled(look: Look, lines: Sequence[Words], least: float = 0) -> tuple[list[Shape], float, float]:
    """A box around lines of text, at the origin, with its width and height."""
    across = max([least, *(line_width(*words) + 2 * PAD for words in lines)])
    down = len(lines) * LINE + PAD
    texts = [
        Text(across / 2, PAD / 2 + LINE * number + (LINE + SIZE * 0.7) / 2, *words)
        for number, words in enumerate(lines)
    ]
    return [Box(look, 0, 0, across, down), *texts], across, down


def moved(shapes: Sequence[Shape], x: float, y: float) -> list[Shape]:
    """Move shapes together."""
    return [shape.moved(x, y) for shape in shapes]
