"""Lines that are too long for the page, broken at spaces; what has no space runs over, as a long file name does."""

import re

from lemma.typeset.measure import FIXED, across, columns, together

HANGING = "  "
MOST_LABEL = 30
_OPERATOR = re.compile(r"(?<=\s)([-+−–=·×/<>≤≥≠≈→*]) (?=\S)")  # stands with what comes after it
_EQUATION = re.compile(r"(?<!\S)(\S{1,4}) = (?=\S)")  # d = 512 stays on one line
_COMMAND = re.compile(r"(?<=: )(?:lemma|iconv|pip|make|torchrun) \S.*$")  # is copied as a whole
_WORD = re.compile(r"([ \t]*)([^ \t]+)")
_LABEL = re.compile(r"(\S(?:.*?\S)??)( {2,})(?=\S)")
_DOTTED = re.compile(r"[^·.]+[·.]?|[·.]")
_BULLET = re.compile(r"[✓✗•·*–-] +(?=\S)")


def wrap(
    text: str, width: int | None = None, indent: str = "", hanging: str | None = None, anywhere: bool = False
) -> list[str]:
    """Break one line at spaces, and a formula before its signs; the first line after `indent`, others after `hanging`.

    What is too long for a line runs over it, unless it may be broken `anywhere`.

    >>> wrap("parameters = d·(V + 2) + L·d", 18, hanging="  ")
    ['parameters = d·(V', '  + 2) + L·d']
    """
    width, hanging = width or columns(), indent if hanging is None else hanging
    lines, line, empty = [], indent, True
    for space, word in _WORD.findall(_kept_together(text.strip(" "))):
        for place, piece in enumerate(_pieces(word, width - across(hanging), anywhere)):
            between = "" if empty or place else space
            if not empty and across(line + between + piece) > width:
                lines.append(line)
                line, between = hanging, ""
            line, empty = line + between + piece, False
    return [one.replace(FIXED, " ").rstrip() for one in [*lines, line]]


def _kept_together(text: str) -> str:
    """Signs stand with what comes after them; short equations, and a command that ends a line, are not broken."""
    signs = _OPERATOR.sub(rf"\1{FIXED}", _EQUATION.sub(rf"\1{FIXED}={FIXED}", text))
    return _COMMAND.sub(lambda found: together(found[0]), signs)


def _pieces(word: str, room: int, anywhere: bool) -> list[str]:
    """A word as it stands; a formula or a module's path that is too long cut after its dots. A file's stays whole."""
    if across(word) <= room or ("/" in word and not anywhere):
        return [word]
    pieces = [""]
    for factor in word if anywhere else _DOTTED.findall(word):
        if pieces[-1] and across(pieces[-1] + factor) > room:
            pieces.append("")
        pieces[-1] += factor
    return [part for piece in pieces for part in _chopped(piece, room)]


def _chopped(piece: str, room: int) -> list[str]:
    """What has no place to be cut at, such as a model's babble, cut where the line ends."""
    parts, used = [""], 0
    for character in piece:
        wide = across(character)
        if parts[-1] and used + wide > room:
            parts.append("")
            used = 0
        parts[-1] += character
        used += wide
    return parts


def paragraph(text: str, width: int | None = None) -> str:
    """A text whose lines are broken where they are too long, all of them beginning at the left.

    >>> print(paragraph("to be or not to be", 10))
    to be or
    not to be
    """
    return "\n".join(part for line in text.split("\n") for part in _broken(line, width or columns(), ""))


def fit(text: str, width: int | None = None) -> str:
    """A text whose lines are broken where they are too long, what follows of each standing a little to the right.

    Where a line begins with a name and two spaces, it goes on below what comes after them.

    >>> print(fit("loss    1.5 nats a token, lower is better", 24))
    loss    1.5 nats a
            token, lower is
            better
    """
    width = width or columns()
    return "\n".join(part for line in text.split("\n") for part in _broken(line, width, None))


def _broken(line: str, width: int, hanging: str | None) -> list[str]:
    if across(line) <= width:
        return [line.replace(FIXED, " ")]
    indent = line[: len(line) - len(line.lstrip(" "))]
    deeper = indent + (_deeper(line.lstrip(" ")) if hanging is None else hanging)
    return wrap(line, width, indent, deeper)


def _deeper(line: str) -> str:
    """How much further to the right a line goes on."""
    for known in (_BULLET.match(line), _LABEL.match(line)):
        if known and across(known[0]) <= MOST_LABEL:
            return " " * across(known[0])
    return HANGING


def label(name: str, value: str, width: int, anywhere: bool = False) -> str:
    """A name and what is said of it, the latter in a column of its own however long it is.

    >>> print(label("loss", "1.5 nats", 6))
    loss   1.5 nats
    """
    lead = f"{name}{' ' * (width - across(name))} "
    return "\n".join(
        wrap(value, indent=lead, hanging=" " * across(lead), anywhere=anywhere) if value else [lead.rstrip()]
    )
