"""Repairs that use what is there: other signs, other order, other transposes."""

from collections.abc import Iterator

from lemma.ledger.gradients.repairs.setting import Repair, Setting
from lemma.ledger.gradients.tree import Binary, Call, Negative, Node, Transpose, put, subtrees
from lemma.ledger.gradients.writing import written


def signs(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Flip one sign."""
    for path, node in subtrees(tree):
        match node:
            case Binary("-", left, right):
                swapped = Binary("-", right, left)
                yield Repair(f"the sign is wrong: {written(swapped)}, not {written(node)}", put(tree, path, swapped))
                yield Repair(f"the sign of {written(right)} is wrong", put(tree, path, Binary("+", left, right)))
            case Binary("+", left, right):
                for part, flipped in (
                    (right, Binary("-", left, right)),
                    (left, Binary("-", right, left)),
                ):
                    yield Repair(f"the sign of {written(part)} is wrong", put(tree, path, flipped))
            case Negative(inner):
                yield Repair("the sign is wrong", put(tree, path, inner))
    yield Repair("the sign is wrong", Negative(tree))


def transposes(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Transpose one thing, or leave it untransposed."""
    yield Repair("the result is transposed", flipped(tree))
    for path, node in subtrees(tree):
        if isinstance(node, Transpose):
            yield Repair(f"do not transpose {written(node.inner)}", put(tree, path, node.inner))
        elif path:
            yield Repair(f"transpose {written(node)}", put(tree, path, Transpose(node)))


def orders(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Try every order and every transposition of the two sides of a matrix product."""
    for path, node in subtrees(tree):
        if isinstance(node, Binary) and node.sign == "@":
            for product in arrangements(node.left, node.right):
                words = f"the factors are in the wrong order or wrongly transposed: {written(product)}"
                yield Repair(words, put(tree, path, product))


def products(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Take a matrix or outer product for an elementwise one, and the reverse."""
    for path, node in subtrees(tree):
        match node:
            case Binary("*", left, right) | Call("sum", (Binary("*", left, right),)):
                taken = "*" if isinstance(node, Binary) else "sum"
                for product in (Binary("@", left, right), *arrangements(left, right)):
                    words = f"a matrix product is meant, not {taken}: {written(product)}"
                    yield Repair(words, put(tree, path, product))
            case Binary("@", left, right):
                product = Binary("*", left, right)
                yield Repair(f"the product is elementwise: {written(product)}", put(tree, path, product))


def arrangements(left: Node, right: Node) -> Iterator[Binary]:
    """The products of two factors in either order, each factor as it is or transposed, the nearest ones first."""
    for first, second in ((right, left), (left, right)):
        yield from (
            Binary("@", first, second),
            Binary("@", flipped(first), second),
            Binary("@", first, flipped(second)),
            Binary("@", flipped(first), flipped(second)),
        )


def flipped(node: Node) -> Node:
    """A node transposed; a transposed one as it was before."""
    return node.inner if isinstance(node, Transpose) else Transpose(node)
