"""The heads in a terminal: small pictures side by side, the table, and for one head who attends to whom."""

import math

import numpy as np
from jaxtyping import Bool, Float

from lemma.looking.head import Head, Seen
from lemma.looking.patterns import MEANINGS
from lemma.looking.words import counted
from lemma.typeset import across, columns, fit, table

MOST_ACROSS = 8
SHADES = "·░▒▓█"  # shares of attention below 0.04, 0.16, 0.36, 0.64, and above
MOST_LISTED, MOST_LINES = 3, 8


def terminal(seen: Seen) -> str:
    """Everything there is to say in plain characters."""
    parts = [f"{seen.model}: {counted(len(seen.heads), 'head')} on {counted(len(seen.tokens), 'token')}", _tokens(seen)]
    parts += [_pictures(number, heads) for number, heads in seen.layers().items()]
    parts += [_key(seen), _table(seen)]
    parts += [_listing(seen.heads[0])] if len(seen.heads) == 1 else []
    return fit("\n\n".join([*parts, *seen.notes]))


def _tokens(seen: Seen) -> str:
    """The tokens with their numbers, in lines that fit."""
    lines = [""]
    for word in seen.tokens:
        piece = f"{word.index}:{word.label()}"
        if across(lines[-1]) + 2 + across(piece) > columns():
            lines.append("")
        lines[-1] += ("  " if lines[-1] else "") + piece
    return "\n".join(lines[:MOST_LINES] + (["…"] if len(lines) > MOST_LINES else []))


def _key(seen: Seen) -> str:
    lines = [f"Rows ask, columns are asked, blank is masked. {SHADES}: the share of attention under a character."]
    meant = {head.pattern for head in seen.heads}
    return "\n".join([*lines, *(f"{name}: {words}." for name, words in MEANINGS.items() if name in meant)])


def _pictures(layer: int, heads: list[Head]) -> str:
    """The heads of a layer, as many side by side as there is room for."""
    side = math.ceil(len(heads) / math.ceil(len(heads) / MOST_ACROSS))
    room = min(24, columns() // side - 2)
    blocks = [_picture(head, room) for head in heads]
    rows = [blocks[start : start + side] for start in range(0, len(blocks), side)]
    name = f"Layer {layer}  {heads[0].name}".rstrip()
    return "\n".join([name, *("\n".join(map("  ".join, zip(*row, strict=True))).rstrip() for row in rows)])


def _picture(head: Head, room: int) -> list[str]:
    columns = room if len(head.known) * 2 > room else len(head.known) * 2
    rows = min(max(1, room // 2), len(head.asking))
    lines = ["".join(line).ljust(room) for line in shades(head.weights, head.allowed, rows, columns)]
    return [f"head {head.head}".ljust(room)[:room], *lines, head.pattern.ljust(room)[:room]]


def shades(
    weights: Float[np.ndarray, "new known"], allowed: Bool[np.ndarray, "new known"], rows: int, columns: int
) -> list[list[str]]:
    """Draw a matrix in a few characters, blank where all is masked.

    Each is as dark as the share of attention that its rows, in the mean, give to its columns.

    >>> weights = np.array([[1.0, 0.0], [0.25, 0.75]])
    >>> ["".join(line) for line in shades(weights, np.tri(2, dtype=bool), 2, 4)]
    ['██  ', '▒▒██']
    """
    new, known = weights.shape
    across = [slice(*_span(column, columns, known)) for column in range(columns)]
    down = [slice(*_span(row, rows, new)) for row in range(rows)]
    return [[_shade(weights[y, x], allowed[y, x]) for x in across] for y in down]


def _span(number: int, count: int, size: int) -> tuple[int, int]:
    start = number * size // count
    return start, max(start + 1, (number + 1) * size // count)


def _shade(weights: np.ndarray, allowed: np.ndarray) -> str:
    if not allowed.any():
        return " "
    return SHADES[min(len(SHADES) - 1, int(math.sqrt(weights.sum(1).mean()) * len(SHADES)))]


def _table(seen: Seen) -> str:
    """A head by its layer and its number; `uniform` is what entropy and score are of uniform weights."""
    head = ("head", "entropy", "uniform", "distance", "to first", "pattern", "nearest", "score", "uniform")
    return "\n".join(table([head, *map(_row, seen.heads)], left=(0, 5, 6)))


def _row(head: Head) -> tuple[str, ...]:
    numbers, near = head.statistics, head.nearest
    distance = "–" if numbers.distance is None else f"{numbers.distance:.2f}"
    match = (near.pattern, f"{near.score:.3f}", f"{near.uniform:.3f}") if near else ("–", "", "")
    mean = (f"{numbers.entropy:.3f}", f"{numbers.uniform_entropy:.3f}", distance, f"{numbers.first:.3f}")
    return (f"{head.layer}.{head.head}", *mean, head.pattern, *match)


def _listing(head: Head) -> str:
    """To whom each token attends most."""
    width = max(len(word.label()) for word in head.asking)
    return "\n".join(f"{word.index:5d} {word.label():{width}}  {_most(head, i)}" for i, word in enumerate(head.asking))


def _most(head: Head, row: int) -> str:
    order = np.argsort(-head.weights[row], kind="stable")[:MOST_LISTED]
    seen = [column for column in order if head.allowed[row, column]]
    listed = (f"{head.known[c].index}:{head.known[c].label()} {head.weights[row, c]:.3f}" for c in seen)
    return "→ " + ",  ".join(listed) if seen else "→ nothing: all keys are masked"
