"""Repairs that leave something out: factors and terms that are too many."""

from collections.abc import Iterator
from itertools import combinations

from lemma.ledger.gradients.repairs.setting import Repair, Setting
from lemma.ledger.gradients.tree import Binary, Call, Negative, Node, Path, factors, product, put, subtrees
from lemma.ledger.gradients.writing import written

_LONGEST_CHAIN = 12


def spare_factors(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Drop one factor of a matrix product or quotient, or one or two of a chain of elementwise factors."""
    for path, node in chains(tree):
        if isinstance(node, Binary) and node.sign == "*":
            for kept, dropped in _without_some(factors(node)[:_LONGEST_CHAIN], factors(node)[_LONGEST_CHAIN:]):
                yield Repair(_too_many(kept, dropped), put(tree, path, product(kept)))
        elif isinstance(node, Binary) and node.sign in "@/":
            yield Repair(f"drop the factor {written(node.right)}", put(tree, path, node.left))
            yield Repair(f"drop the factor {written(node.left)}", put(tree, path, node.right))


def spare_terms(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Drop one term of a sum or difference."""
    for path, node in subtrees(tree):
        match node:
            case Binary("+" | "-" as sign, left, right):
                yield Repair(f"drop the term {written(right)}", put(tree, path, left))
                rest = right if sign == "+" else Negative(right)
                yield Repair(f"drop the term {written(left)}", put(tree, path, rest))


def spare_functions(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Take the argument of a function for the function."""
    for path, node in subtrees(tree):
        if isinstance(node, Call) and len(node.arguments) == 1:
            argument = node.arguments[0]
            yield Repair(f"{written(argument)}, not {written(node)}", put(tree, path, argument))


def chains(tree: Node) -> Iterator[tuple[Path, Node]]:
    """The nodes of a tree, but of a chain of elementwise products only the whole of it and its factors."""
    inside = members(tree)
    for path, node in subtrees(tree):
        if path not in inside or not (isinstance(node, Binary) and node.sign == "*"):
            yield path, node


def members(tree: Node) -> set[Path]:
    """The ways to the two sides of every elementwise product."""
    found = [path for path, node in subtrees(tree) if isinstance(node, Binary) and node.sign == "*"]
    return {(*path, side) for path in found for side in (0, 1)}


def _without_some(parts: list[Node], rest: list[Node]) -> Iterator[tuple[list[Node], list[Node]]]:
    for count in range(1, min(2, len(parts) - 1) + 1):
        for left_out in combinations(range(len(parts)), count):
            kept = [part for index, part in enumerate(parts) if index not in left_out]
            yield kept + rest, [parts[index] for index in left_out]


def _too_many(kept: list[Node], dropped: list[Node]) -> str:
    factor = written(product(dropped))
    doubled = all(part in kept for part in dropped)
    return f"the factor {factor} occurs twice; drop one" if doubled else f"drop the factor {factor}"
