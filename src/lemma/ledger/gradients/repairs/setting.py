"""What a repair may look at: the cell, the name that is derived, and the shapes of what was written."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from lemma.ledger.gradients.cells.cell import Cell
from lemma.ledger.gradients.evaluation import Evaluator
from lemma.ledger.gradients.operations import Shape, shape
from lemma.ledger.gradients.samples import Sample
from lemma.ledger.gradients.tree import Binary, Name, Node, Number, Power, names


@dataclass(frozen=True)
class Repair:
    """A changed expression and, in words, the change."""

    words: str
    expression: Node


@dataclass(frozen=True)
class Setting:
    """The cell, the name that is derived, and a sample."""

    cell: Cell
    target: str
    sample: Sample

    @cached_property
    def shape(self) -> Shape:
        """The shape that the target has."""
        return shape(self.sample.values[self.target])

    @cached_property
    def usable(self) -> dict[str, Shape]:
        """The names a repair may bring in: none that is derived only after the target."""
        cell, depth = self.cell, self.cell.depth(self.target)
        if self.target in cell.gradients:
            usable = [*cell.given, *cell.steps, *(name for name in cell.gradients if cell.depth(name) > depth)]
        else:
            usable = [*cell.given, *cell.steps[:depth]]
        return {name: shape(self.sample.values[name]) for name in usable}

    @cached_property
    def slopes(self) -> list[tuple[Node, Shape]]:
        """The derivatives of the cell's activations, and the pieces they consist of, where they may be used."""
        evaluate = Evaluator(self.sample.values)
        return [(slope, shape(evaluate(slope))) for slope in self._slopes() if names(slope) <= set(self.usable)]

    def _slopes(self) -> Iterator[Node]:
        for function, _, output in self.cell.activations:
            rest = Binary("-", Number("1"), output)
            if function == "sigmoid":
                yield from (Binary("*", output, rest), rest)
            else:
                yield Binary("-", Number("1"), Power(output, 2))
            if not isinstance(output, Name):
                yield output
