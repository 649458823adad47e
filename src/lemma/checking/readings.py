"""How a line in the notation of papers is read: products without a sign, indices, sums and cases, by the shapes.

The result is an expression of the small language. Products of two names are matrix products where the shapes allow it,
otherwise elementwise; indices are leading axes of the values.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

from torch import Tensor

from lemma.checking.cells import PART, GradientCell, Sample, add_values
from lemma.checking.expressions import Evaluator, IndexSpec, Node, ShapeError, binary, variable, walk, walk_all
from lemma.errors import InputError

MAX_INDICES = 4
_ONE = Node("number", value="1")
SPECIAL = frozenset({"juxt", "index", "index_sum", "cases", "equal", "identity", "ones_vector"})


@dataclass(frozen=True)
class Reading:
    """An expression of the small language and the name whose value it should have.

    Attributes:
        target: the name, with the part of it that is meant, as in "dU|o".
        samples: samples that have the value of the target.
        is_flipped: whether vectors given by an index are read in the other layout, rows as columns.
    """

    expression: Node
    target: str
    samples: tuple[Sample, ...]
    is_flipped: bool = False


Layout = Literal["given", "transposed", "vectors"]
"""The layout of the function; the one with everything transposed; and the one with only rows and columns exchanged."""


def change_value(value: Tensor, layout: Layout) -> Tensor:
    """Return a value of the function in another layout."""
    is_vector = value.ndim == 2 and 1 in value.shape
    is_changed = layout == "transposed" or (layout == "vectors" and is_vector)
    return value.mT if value.ndim >= 2 and is_changed else value


def change_layout(samples: Sequence[Sample], layout: Layout) -> tuple[Sample, ...]:
    """Return samples in another layout."""
    if layout == "given":
        return tuple(samples)
    return tuple(
        replace(sample, values={name: change_value(value, layout) for name, value in sample.values.items()})
        for sample in samples
    )


def is_special(node: Node) -> bool:
    """Return whether an expression must be resolved before it can be evaluated."""
    return any(
        child.op in SPECIAL or child.op == "*" or (child.op == ".T" and child.children[0] == _ONE)
        for _, child in walk(node)
    )


def resolve_line(
    expression: Node,
    left: Node,
    condition: Node | None,
    cell: GradientCell,
    samples: tuple[Sample, ...],
    is_transposed: bool = False,
    is_flipped: bool = False,
) -> list[Reading]:
    """Read an expression for the name on the left of its line; return its readings, the most likely first.

    Raise an InputError if its indices make no sense.

    Args:
        left: the node of the name, which may have indices.
        condition: of the whole line, as in `for w ≠ o`; None without one.
        is_transposed: whether the samples are in the other layout.
        is_flipped: whether vectors given by an index are rows instead of columns and the reverse.

    A second reading is more lenient: the product of a matrix and a row is elementwise, a sum without an index is over
    the columns, and * is a matrix product where it can be nothing else.
    """
    resolver = _Resolver(cell, samples, is_transposed, is_flipped)
    readings = [resolver.resolve_line(expression, left, condition)]
    if resolver.has_choice:
        resolver.is_lenient = True
        readings.append(resolver.resolve_line(expression, left, condition))
    return readings


class _Resolver:
    """The state of reading one line.

    Attributes:
        letters: the indices of the line, in the order of their axes.
        lengths: a name and an axis with the length of each index.
        labels: letters that stand for the position of the 1 in a one-hot input, with its name.
    """

    def __init__(self, cell: GradientCell, samples: tuple[Sample, ...], is_transposed: bool, is_flipped: bool) -> None:
        self.cell, self.samples = cell, samples
        self.is_transposed, self.is_flipped = is_transposed, is_flipped
        self.values: Mapping[str, Tensor] = samples[0].values
        self.evaluate = Evaluator(self.values)
        self.letters: list[str] = []
        self.lengths: dict[str, tuple[str, int]] = {}
        self.labels = dict(cell.indices)
        self.is_lenient, self.has_choice = False, False

    def resolve_line(self, expression: Node, left: Node, condition: Node | None) -> Reading:
        """Return the reading of a line."""
        if expression.op == "cases" and len(expression.children) == 1:
            condition, expression = expression.value[0], expression.children[0]
        nodes = [node for tree in (left, expression, condition) if tree for node in walk_all(tree)]
        self._find_indices(nodes)
        target, samples = left.value if left.op == "name" else left.children[0].value, self.samples
        free = set(_letters(left)) - self.labels.keys() if left.op == "index" else set[str]()
        resolved = self.resolve(expression)
        self._check_bound(expression, free)
        if left.op == "index" and (label := next((x for x in _letters(left) if x in self.labels), "")):
            part, name = self.resolve(left), f"{target}{PART}{label}"
            if free:
                raise InputError(f"{left.value}: write an index or a label, not both.")
            samples = add_values(samples, name, [Evaluator(sample.values)(part) for sample in samples])
            return Reading(resolved, name, samples, self.is_flipped)
        if left.op == "index":
            spec = self._spec(left)
            if condition is not None:
                mask = self.resolve(condition)
                collected = Node("collect", (binary("*", mask, Node("index", (variable(target),), spec)),), spec)
                name = f"{target}{PART}{spec.text}"
                samples = add_values(samples, name, [Evaluator(sample.values)(collected) for sample in samples])
                masked = Node("collect", (binary("*", mask, resolved),), spec)
                return Reading(masked, name, samples, self.is_flipped)
            return Reading(Node("collect", (resolved,), spec), target, samples, self.is_flipped)
        if condition is not None:
            raise InputError(f"a condition needs an index on the left side, as in {target}_w = … for w ≠ o.")
        if self.letters and target in self.values:
            resolved = Node("collect", (resolved,), IndexSpec(target, target, (None, None), len(self.letters)))
        return Reading(resolved, target, samples, self.is_flipped)

    def _find_indices(self, nodes: Sequence[Node]) -> None:
        """Find the indices of a line and what they run over."""
        indexed = [node for node in nodes if node.op == "index"]
        summed = {
            letter for node in nodes if node.op == "index_sum" for letter in re.findall("[a-zA-Z]", node.value)[:1]
        }
        for node in indexed:
            for letter in _letters(node):
                if letter not in self.labels or letter in summed:
                    self.labels.pop(letter, None)
                    if letter not in self.letters:
                        self.letters.append(letter)
        for node in nodes:
            for pair in (node.value,) if node.op == "equal" else ():
                first = next((name for name in pair if name in self.letters), "")
                if not first:
                    continue
                other = pair[1] if first == pair[0] else pair[0]
                if other in self.letters and len(other) == 1:
                    continue
                if other not in self.labels and (name := self._one_hot()):
                    self.labels[other] = name
            match = re.fullmatch(r"([a-zA-Z])≠([a-zA-Z])", node.value) if node.op == "index_sum" else None
            if match and match[2] not in self.labels and (name := self._one_hot()):
                self.labels[match[2]] = name
        for letter in sorted(summed - {*self.letters}):
            self.letters.append(letter)
        if len(self.letters) > MAX_INDICES:
            raise InputError(f"the line has more than {MAX_INDICES} indices: {', '.join(self.letters)}.")
        by_certainty = sorted(indexed, key=lambda node: -self._certainty(node))
        for node in by_certainty:
            self._spec(node)

    def _one_hot(self) -> str:
        """Return the only one-hot input whose position of the 1 a letter can stand for; "" if there is none."""
        names = [name for name, kinds in self.cell.input_kinds.items() if "one-hot" in kinds]
        used = [name for name in names if not re.fullmatch(r"[OwW]", name)]
        return used[0] if len(used) == 1 else names[0] if len(names) == 1 else ""

    def _certainty(self, node: Node) -> bool:
        """Return whether every axis of an indexed name has an index, so that there is no choice between axes."""
        shape = self._shape(node)
        return sum(length > 1 for length in shape) == len([x for x in _letters(node) if x not in self.labels])

    def _shape(self, node: Node) -> tuple[int, ...]:
        """Return the shape of the name that a node gives an index."""
        name = node.children[0].value
        if name not in self.values:
            raise InputError(f"{node.value}: {name} has no value here.")
        shape = tuple(self.values[name].shape)
        if len(shape) != 2:
            raise InputError(f"{node.value}: {name} has {len(shape)} axes; an index needs a vector or a matrix.")
        return shape

    def _axes(self, node: Node) -> list[tuple[str, int]]:
        """Return the axis of each index or label of a name."""
        shape, letters = self._shape(node), _letters(node)
        free = [axis for axis in (0, 1) if shape[axis] > 1]
        if len(letters) > len(free):
            raise InputError(f"{node.value}: {node.children[0].value} has fewer than {len(letters)} indices.")
        label_letters = [letter for letter in letters if letter in self.labels]
        if label_letters and max(self.values[self.labels[label_letters[0]]].shape) not in shape:
            raise InputError(f"{node.value}: {node.children[0].value} has no position {label_letters[0]}.")
        if len(letters) == 2 or len(free) == 1:
            return list(zip(letters, reversed(free) if self.is_transposed else free, strict=False))
        letter = letters[0]
        if letter in self.labels:
            length = max(self.values[self.labels[letter]].shape)
        elif letter in self.lengths:
            name, axis = self.lengths[letter]
            length = self.values[name].shape[axis]
        else:
            kinds = self.cell.input_kinds.get(node.children[0].value.removeprefix("d"), frozenset())
            length = shape[int(self.is_transposed) ^ int("columns" in kinds)]
        axis = next((axis for axis in (0, 1) if shape[axis] == length), None)
        if axis is None:
            raise InputError(
                f"{node.value}: the index {letter} runs over another size than {node.children[0].value} has."
            )
        return [(letter, axis)]

    def _spec(self, node: Node) -> IndexSpec:
        """Return how the indices of a name select its entries."""
        name, shape = node.children[0].value, self._shape(node)
        positions: list[int | None] = [None, None]
        for letter, axis in self._axes(node):
            if letter in self.labels:
                continue
            first_axis = self.lengths.setdefault(letter, (name, axis))
            if self.values[first_axis[0]].shape[first_axis[1]] != shape[axis]:
                raise InputError(f"the index {letter} runs over different sizes in {first_axis[0]} and {name}.")
            positions[axis] = self.letters.index(letter)
        return IndexSpec(node.value, name, (positions[0], positions[1]), len(self.letters), self.is_flipped)

    def _check_bound(self, expression: Node, free: set[str]) -> None:
        """Raise an error for an index that is neither on the left side nor summed over."""

        def unbound(node: Node, bound: set[str]) -> str:
            if node.op == "index_sum":
                bound = bound | {*re.findall("[a-zA-Z]", node.value)[:1]}
            if node.op == "index":
                return next((x for x in _letters(node) if x not in bound and x not in self.labels), "")
            return next((letter for child in node.children if (letter := unbound(child, bound))), "")

        if letter := unbound(expression, free):
            raise InputError(
                f"the index {letter} is neither on the left side nor summed over. Write sum_{letter} or Σ_{letter} "
                f"before the terms, or {letter} on the left side."
            )

    # Expressions.

    def resolve(self, node: Node) -> Node:
        """Return an expression in the small language, with every product either elementwise or a matrix product."""
        match node.op:
            case "index":
                return self._resolve_index(node)
            case "equal":
                return self._resolve_equal(node)
            case "index_sum":
                return self._resolve_sum(node)
            case "cases":
                return self._resolve_cases(node)
            case "identity" | "ones_vector":
                return _ONE
        if node.is_binary or node.op == "juxt":
            left, right = node.children
            is_inner = left.op in ("juxt", "@", "*") and _special_operand(left.children[1])
            if node.op in ("juxt", "@") and is_inner and not _special_operand(right):
                return self.resolve(Node("juxt", (left.children[0], Node(node.op, (left.children[1], right))), ""))
            if _special_operand(left) or _special_operand(right):
                special = self._resolve_identity(node)
                if special is not None:
                    return special
        children = tuple(map(self.resolve, node.children))
        if node.op == "juxt":
            return self._juxtapose(children[0], children[1], node.value)
        if node.op == "*" and self._value(Node("*", children)) is None:  # a matrix product, as in h^T * x
            product = binary("@", *children)
            if self._value(product) is not None:
                self.has_choice = True
                return product if self.is_lenient else Node("*", children)
        if node.op == "softmax" and node.value is None and self.is_transposed:
            value = self._value(children[0])
            if value is not None and value.ndim == 2 and min(value.shape) > 1:
                return Node("softmax", children, 0)
        return Node(node.op, children, node.value, node.position) if children else node

    def _value(self, node: Node) -> Tensor | None:
        """Return the value of a resolved expression in the first sample; None if its shapes do not fit."""
        try:
            self.evaluate.cache_values(node)
            return self.evaluate(node)
        except ShapeError:
            return None

    def _juxtapose(self, left: Node, right: Node, sign: str) -> Node:
        """Return the product of two expressions that stand side by side."""
        first, second = self._value(left), self._value(right)
        if first is None or second is None:
            return binary("@", left, right)
        if all(length == 1 for length in first.shape[-2:]) or all(length == 1 for length in second.shape[-2:]):
            return binary("*", left, right)
        product = binary("*", left, right)
        if first.shape[-1] != second.shape[-2] and self._value(product) is not None:
            if first.shape[-2:] == second.shape[-2:] or self.is_lenient or sign == "·":
                return product
            self.has_choice = True
        return binary("@", left, right)

    def _resolve_identity(self, node: Node) -> Node | None:
        """Return a sum or product with the identity matrix I or a vector of ones; None if there is none."""
        operands = [(_special_operand(child), child) for child in node.children]
        (kind_left, left), (kind_right, right) = operands
        if node.op in ("+", "-"):
            other = right if kind_left else left
            if (kind_left or kind_right) == "ones_vector":
                return None
            resolved = self.resolve(other)
            eye = Node("eye", (resolved,))
            return binary(node.op, eye if kind_left else resolved, resolved if kind_left else eye)
        if node.op in ("juxt", "@") and "identity" in (kind_left, kind_right):
            return self.resolve(right if kind_left else left)
        if node.op in ("juxt", "@") and kind_left == "ones_vector":
            resolved = self.resolve(right)  # 1 m is the row m in every row
            return Node("sum", (resolved,), 0) if left.op == ".T" else resolved
        if node.op in ("juxt", "@") and kind_right == "ones_vector":
            resolved = self.resolve(left)
            return resolved if right.op == ".T" else Node("sum", (resolved,), 1)
        return None

    def _resolve_index(self, node: Node) -> Node:
        """Return the node of a name with indices; one at a label is the product with the one-hot vector."""
        base = node.children[0]
        axes = self._axes(node)
        labelled = [(letter, axis) for letter, axis in axes if letter in self.labels]
        if not labelled:
            return Node("index", (base,), self._spec(node))
        if len(axes) > 1:
            raise InputError(f"{node.value}: write one label and no other index.")
        (letter, axis) = labelled[0]
        one_hot = variable(self.labels[letter])
        is_column = self.values[one_hot.value].shape[1] == 1
        if min(self.values[one_hot.value].shape) > 1:
            raise InputError(f"{node.value}: write the one-hot matrix {one_hot.value} instead of the label {letter}.")
        row, column = (Node(".T", (one_hot,)), one_hot) if is_column else (one_hot, Node(".T", (one_hot,)))
        selected = binary("@", row, base) if axis == 0 else binary("@", base, column)
        value = self._value(selected)
        if self.is_flipped and value is not None and value.numel() > 1:
            selected = Node(".T", (selected,))
        return selected

    def _resolve_equal(self, node: Node) -> Node:
        """Return the indicator of a condition such as w = o or i = j."""
        first, second = node.value
        if first not in self.letters and second in self.letters:
            first, second = second, first
        if first not in self.letters:
            raise InputError(f"{first} = {second}: {first} is not an index of this line.")
        if second in self.labels:
            one_hot = variable(self.labels[second])
            shape = self.values[one_hot.value].shape
            if min(shape) == 1:
                return Node("index", (one_hot,), self._spec(Node("index", (one_hot,), f"{one_hot.value}_{first}")))
            candidates = [letter for letter in self.letters if letter != first and letter in self.lengths]
            length = self._length(first)
            rows = [letter for letter in candidates if self._length(letter) in shape and self._length(letter) != length]
            if len(rows) == 1 and length in shape:
                order = rows[0] + first if shape[0] == self._length(rows[0]) else first + rows[0]
                indexed = Node("index", (one_hot,), f"{one_hot.value}_{order}")
                return Node("index", (one_hot,), self._spec(indexed))
            raise InputError(f"{first} = {second}: write the one-hot input {one_hot.value} with its indices instead.")
        if second not in self.letters or first not in self.lengths:
            raise InputError(f"{first} = {second}: {second} is neither an index nor a label of this function.")
        name, axis = self.lengths[first]
        spec = (self.letters.index(first), self.letters.index(second), len(self.letters), axis)
        return Node("delta", (variable(name),), spec)

    def _length(self, letter: str) -> int:
        """Return how many values an index has; 0 if it is not known."""
        if letter not in self.lengths:
            return 0
        name, axis = self.lengths[letter]
        return self.values[name].shape[axis]

    def _resolve_sum(self, node: Node) -> Node:
        """Return a sum over an index; without an index it is over the rows."""
        (body,), text = node.children, str(node.value)
        match = re.fullmatch(r"([a-zA-Z])(?:≠([a-zA-Z]))?", text)
        if not match:
            if text:
                raise InputError(f"the index of the sum is not read: '{text}'. Write it as in \\sum_{{i=1}}^{{n}}.")
            resolved = self.resolve(body)
            value = self._value(resolved)
            is_matrix = value is not None and value.ndim == 2 and min(value.shape) > 1
            self.has_choice |= is_matrix
            return Node("sum", (resolved,), int(self.is_transposed ^ self.is_lenient) if is_matrix else None)
        letter, excluded = match.groups()
        resolved = self.resolve(body)
        axis = self.letters.index(letter) - len(self.letters) - 2
        if excluded:
            resolved = binary(
                "*", binary("-", _ONE, self._resolve_equal(Node("equal", value=(letter, excluded)))), resolved
            )
        elif not any(letter in _letters(child) for child in walk_all(body) if child.op == "index"):
            value = self._value(resolved)
            if value is not None and value.ndim == 2 and min(value.shape) > 1:  # the rows of the batch
                return Node("sum", (resolved,), 1 if self.is_transposed else 0)
            raise InputError(f"nothing in the sum over {letter} has the index {letter}. Write it, as in y_{letter}.")
        return Node("index_sum", (resolved,), (letter, axis))

    def _resolve_cases(self, node: Node) -> Node:
        """Return the sum of all cases, each times the indicator of its condition."""
        terms, remainder = list[Node](), _ONE
        for branch, condition in zip(node.children, node.value, strict=True):
            indicator = self.resolve(condition) if condition is not None else remainder
            terms.append(binary("*", indicator, self.resolve(branch)))
            if condition is not None:
                remainder = binary("-", remainder, indicator)
        return reduce(lambda first, second: binary("+", first, second), terms)


def _special_operand(node: Node) -> str:
    """Return "identity" or "ones_vector" if a node is one of these, perhaps transposed; otherwise ""."""
    inner = node.children[0] if node.op == ".T" else node
    if node.op == ".T" and inner == _ONE:  # 1^T
        return "ones_vector"
    return inner.op if inner.op in ("identity", "ones_vector") else ""


def _letters(node: Node) -> list[str]:
    """Return the indices of a name, such as ["i", "j"] for W_ij."""
    text = node.value.text if isinstance(node.value, IndexSpec) else str(node.value)
    return list(text.rpartition("_")[2])
