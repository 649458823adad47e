"""Repairs that add something: a missing term, a missing factor, a missing matrix."""

from collections.abc import Iterator
from itertools import combinations_with_replacement

from lemma.ledger.gradients.evaluation import Evaluator
from lemma.ledger.gradients.operations import Shape, UnfitError, shape
from lemma.ledger.gradients.repairs.drop import chains, members
from lemma.ledger.gradients.repairs.rearrange import flipped
from lemma.ledger.gradients.repairs.setting import Repair, Setting
from lemma.ledger.gradients.tree import (
    Binary,
    Call,
    Name,
    Node,
    Number,
    Path,
    Transpose,
    names,
    put,
    substituted,
    subtrees,
)
from lemma.ledger.gradients.writing import written


def incoming_terms(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Add a gradient that arrives from elsewhere."""
    for path, node, have in shaped(tree, setting):
        for name in setting.cell.incoming:
            if setting.usable.get(name) == have:
                yield Repair(f"the term {name} is missing", put(tree, path, Binary("+", node, Name(name))))


def slopes(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Multiply by the derivative of an activation."""
    for path, node, have in whole_products(tree, setting):
        for slope, other in setting.slopes:
            if other == have:
                yield Repair(f"the factor {written(slope)} is missing", put(tree, path, Binary("*", node, slope)))


def scales(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Multiply or divide by a number that belongs to the cell: the root of a size, or two."""
    numbers = [Call("sqrt", (Name(name),)) for name in setting.cell.sizes] + [Number("2")]
    for number in numbers:
        words = f"the factor 1/{written(number)} is missing"
        yield Repair(words, Binary("/", tree, number))
        yield Repair(f"the factor {written(number)} is missing", Binary("*", tree, number))


def named_factors(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Multiply by a named value of the same shape."""
    for path, node, have in whole_products(tree, setting):
        for name, other in setting.usable.items():
            if other == have:
                yield Repair(f"the factor {name} is missing", put(tree, path, Binary("*", node, Name(name))))


def double_factors(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Multiply by the derivative of an activation and by a named value."""
    for repair in slopes(tree, setting):
        for second in named_factors(repair.expression, setting):
            yield Repair(f"{repair.words}; and {second.words}", second.expression)


def matrix_factors(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Multiply by a named matrix or vector from either side."""
    for path, node, have in shaped(tree, setting):
        for name, other in setting.usable.items():
            for factor, (rows, columns) in ((Name(name), other), (flipped(Name(name)), other[::-1])):
                words = f"the factor {written(factor)} is missing"
                if columns == have[0]:
                    yield Repair(words, put(tree, path, Binary("@", factor, node)))
                if rows == have[1]:
                    yield Repair(words, put(tree, path, Binary("@", node, factor)))


def sibling_terms(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Add a term like one that is there, of another gate."""
    endings = {name.rpartition("_")[2] for name in setting.usable if "_" in name}
    for path, node in subtrees(tree):
        for ending in sorted(_endings(node) & endings):
            for other in sorted(endings - {ending}):
                term = _of_gate(node, ending, other, setting)
                if term is not None:
                    words = f"the term {written(term)} is missing"
                    yield Repair(words, put(tree, path, Binary("+", node, term)))


def plain_terms(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Add to the whole a named value, the elementwise product of two, or a gradient times a given matrix."""
    fitting = [Name(name) for name, have in setting.usable.items() if have == setting.shape]
    pairs = [Binary("*", *pair) for pair in combinations_with_replacement(fitting, 2)]
    for term in (*fitting, *pairs, *_backward_products(setting)):
        yield Repair(f"the term {written(term)} is missing", Binary("+", tree, term))
        yield Repair(f"the term -{written(term)} is missing", Binary("-", tree, term))


def shaped(tree: Node, setting: Setting) -> Iterator[tuple[Path, Node, Shape]]:
    """The nodes that have rows and columns, with their shapes."""
    evaluate = Evaluator(setting.sample.values)
    evaluate.remember(tree)
    for path, node in chains(tree):
        try:
            have = shape(evaluate(node))
        except UnfitError:
            continue
        if len(have) == 2:
            yield path, node, have


def whole_products(tree: Node, setting: Setting) -> Iterator[tuple[Path, Node, Shape]]:
    """The same without the factors of elementwise products: a factor more is one more of the whole product."""
    inside = members(tree)
    return (found for found in shaped(tree, setting) if found[0] not in inside)


def _backward_products(setting: Setting) -> Iterator[Node]:
    """Every gradient times a transposed given matrix, from either side, that has the shape of the target."""
    matrices = {name: have for name, have in setting.usable.items() if name in setting.cell.given}
    for gradient in setting.cell.gradients:
        rows, columns = setting.usable.get(gradient, (0, 0))
        for name, (height, width) in matrices.items():
            if height == rows and (width, columns) == setting.shape:
                yield Binary("@", Transpose(Name(name)), Name(gradient))
            if width == columns and (rows, height) == setting.shape:
                yield Binary("@", Name(gradient), Transpose(Name(name)))


def _endings(node: Node) -> set[str]:
    found = (below.name for _, below in subtrees(node) if isinstance(below, Name) and "_" in below.name)
    return {name.rpartition("_")[2] for name in found}


def _of_gate(node: Node, ending: str, other: str, setting: Setting) -> Node | None:
    """The same expression of another gate; None where that gate lacks one of its names."""
    meaning = {name: Name(f"{name.removesuffix(ending)}{other}") for name in names(node) if name.endswith(f"_{ending}")}
    exists = all(new.name in setting.usable for new in meaning.values())
    return substituted(node, dict(meaning)) if exists else None
