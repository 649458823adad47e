"""The syntax tree of an expression: its nodes, and how one of them is replaced."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

Bound = int | str | None
"""One end of a slice: a number, the name of a size, or nothing."""
Range = tuple[Bound, Bound]
Path = tuple[int, ...]
"""The way from the root to a node: which child to take at each step."""
WHOLE: Range = (None, None)


@dataclass(frozen=True)
class Number:
    """A number as it was written."""

    text: str


@dataclass(frozen=True)
class Name:
    """A named value and the column it stands in."""

    name: str
    column: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Negative:
    """A value with its sign flipped."""

    inner: "Node"


@dataclass(frozen=True)
class Binary:
    """Two values joined by one of + - * / @."""

    sign: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True)
class Power:
    """A value to a small integer power, element by element."""

    inner: "Node"
    exponent: int


@dataclass(frozen=True)
class Transpose:
    """A transposed value."""

    inner: "Node"


@dataclass(frozen=True)
class Call:
    """A function of the language, and the axis it works along where that is given."""

    function: str
    arguments: "tuple[Node, ...]"
    axis: int | None = None


@dataclass(frozen=True)
class Slice:
    """Some rows and columns of a value."""

    inner: "Node"
    rows: Range
    columns: Range


Node = Number | Name | Negative | Binary | Power | Transpose | Call | Slice


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below a node."""
    match node:
        case Number() | Name():
            return ()
        case Binary(_, left, right):
            return (left, right)
        case Call(_, arguments):
            return arguments
        case _:
            return (node.inner,)


def with_children(node: Node, below: tuple[Node, ...]) -> Node:
    """The same node above other children."""
    match node:
        case Number() | Name():
            return node
        case Binary(sign):
            return Binary(sign, *below)
        case Call():
            return replace(node, arguments=below)
        case _:
            return replace(node, inner=below[0])


def subtrees(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Every node of a tree with the way to it, the root first."""
    yield path, node
    for index, child in enumerate(children(node)):
        yield from subtrees(child, (*path, index))


def put(node: Node, path: Path, new: Node) -> Node:
    """The tree with another node at the end of a path.

    >>> put(Binary("-", Number("1"), Name("h")), (1,), Number("2"))
    Binary(sign='-', left=Number(text='1'), right=Number(text='2'))
    """
    if not path:
        return new
    below = list(children(node))
    below[path[0]] = put(below[path[0]], path[1:], new)
    return with_children(node, tuple(below))


def substituted(node: Node, meaning: "dict[str, Node]") -> Node:
    """The tree with some names replaced by what they stand for."""
    if isinstance(node, Name):
        return meaning.get(node.name, node)
    return with_children(node, tuple(substituted(child, meaning) for child in children(node)))


def names(node: Node) -> set[str]:
    """The names that occur in a tree."""
    return {below.name for _, below in subtrees(node) if isinstance(below, Name)}


def is_larger(node: Node, most: int) -> bool:
    """Whether a tree has more nodes than that; it counts no further."""
    return next(islice(subtrees(node), most, None), None) is not None


def factors(node: Node) -> list[Node]:
    """The factors of a chain of elementwise products, from left to right.

    >>> [factor.text for factor in factors(Binary("*", Binary("*", Number("1"), Number("2")), Number("3")))]
    ['1', '2', '3']
    """
    if isinstance(node, Binary) and node.sign == "*":
        return factors(node.left) + factors(node.right)
    return [node]


def product(parts: list[Node]) -> Node:
    """The elementwise product of one or more factors."""
    result = parts[0]
    for part in parts[1:]:
        result = Binary("*", result, part)
    return result
