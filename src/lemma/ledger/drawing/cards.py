"""A step as a card: its formula, what it makes below it, and to the left what of the module it reads."""

from collections.abc import Sequence
from dataclasses import dataclass

from lemma.ledger.drawing.layout import GAP, LANE, Block
from lemma.ledger.drawing.shapes import PAD, Line, Look, Shape, Words, labelled, moved
from lemma.ledger.drawing.text import LINE, broken

ARROW, ABOVE = 20.0, 6.0
WIDE, NARROW = 500.0, 128.0  # the longest line of a formula


@dataclass(frozen=True)
class Label:
    """A tensor as it is written on the drawing."""

    look: Look
    name: str
    shape: str
    full: str = ""
    """Its whole name, where `name` is only a letter for it."""


@dataclass(frozen=True)
class Picture:
    """Shapes from the origin on, with their block and the height at which lines leave."""

    shapes: tuple[Shape, ...]
    block: Block
    bottom: float
    top_width: float


def tensor(label: Label, narrow: bool = False, least: float = 0) -> tuple[list[Shape], float, float]:
    """The box of a tensor: its name and shape in one line, or in two if it must be narrow."""
    lines: list[Words] = [(label.name, ""), ("", label.shape)] if narrow else [(label.name, label.shape)]
    return labelled(label.look, [*lines, *([("", label.full)] if label.full else [])], least)


def source(label: Label) -> Picture:
    """An input, which no step makes."""
    shapes, across, down = tensor(label)
    return Picture(tuple(shapes), Block(across, down, across / 2), down, across)


def card(formula: Sequence[str], results: Sequence[Label], held: Sequence[Label], limit: float | None) -> Picture:
    """A step with what it makes and what it reads of the module, no wider than the limit; without one, narrow."""
    narrow = limit is None
    widest = max((tensor(label, narrow)[1] + ARROW for label in held), default=0)
    longest = NARROW if limit is None else min(WIDE, limit - widest - 2 * PAD - 2 * (LANE + GAP))
    lines = [line for text in formula for line in broken(text, longest)]
    look: Look = "step" if any(label.look == "parameter" for label in held) else "free step"
    words: list[Words] = [("", line) for line in lines]
    across = max([labelled(look, words)[1], *(tensor(label, narrow)[1] for label in results)])
    stack, _, y = labelled(look, words, across)
    step_height = y
    for label in results:
        shapes, _, height = tensor(label, narrow, across)
        stack += moved(shapes, 0, y)
        y += height
    boxes, left, down = _held(held, narrow, step_height)
    return Picture(
        (*boxes, *moved(stack, left, 0)),
        Block(left + across, max(y, down), left + across / 2),
        y,
        across,
    )


def _held(labels: Sequence[Label], narrow: bool, step_height: float) -> tuple[list[Shape], float, float]:
    """Boxes one below the other, as wide as the widest, each with an arrow to the step on their right."""
    if not labels:
        return [], 0, 0
    across = max(tensor(label, narrow)[1] for label in labels)
    shapes: list[Shape] = []
    y = 0.0
    for number, label in enumerate(labels):
        box, _, height = tensor(label, narrow, across)
        middle = y + min(height, LINE + 9) / 2
        meets = (
            min(middle, step_height * (number + 1) / (len(labels) + 1))
            if len(labels) > 1
            else min(middle, step_height / 2)
        )
        start = (across, y + height / 2 if len(labels) > 1 else meets)
        shapes += [*moved(box, 0, y), Line((start, (across + ARROW, meets)), sideways=True)]
        y += height + ABOVE
    return shapes, across + ARROW, y - ABOVE
