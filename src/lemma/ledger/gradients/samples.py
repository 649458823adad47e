"""A cell at random sizes and inputs: every value of its forward pass, and every gradient by autograd."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Generator, Tensor

from lemma.ledger.gradients.cells import CELLS
from lemma.ledger.gradients.cells.cell import Cell
from lemma.ledger.gradients.evaluation import Evaluator
from lemma.ledger.gradients.operations import Shape

SEEDS = (0, 1)
"""A derivation is judged at one random draw of sizes and inputs for each."""
_LARGEST = 9


@dataclass(frozen=True)
class Sample:
    """The sizes drawn, and the values of all names of a cell there."""

    lengths: dict[int, str]
    """What a length stands for: every size, and every sum of sizes that the cell uses, has a length of its own."""
    values: dict[str, Tensor]

    def spelled(self, shape: Shape) -> str:
        """A shape in the names of the sizes."""
        if not shape:
            return "a number"
        return f"({', '.join(self.lengths.get(length, str(length)) for length in shape)})"


@lru_cache
def draw_samples(name: str) -> tuple[Sample, ...]:
    """The samples of the cell of that name, always the same."""
    return tuple(draw(CELLS[name], seed) for seed in SEEDS)


def draw(cell: Cell, seed: int) -> Sample:
    """Draw sizes and inputs, run the equations forward, and let autograd run them backward."""
    generator = Generator().manual_seed(seed)
    lengths = draw_lengths(cell, generator)
    given = {name: _value(name, cell, lengths, generator) for name in cell.given}
    sizes = {name: torch.tensor(float(lengths[name]), dtype=torch.float64) for name in cell.sizes}
    values, gradients = _forward_and_backward(cell, {**sizes, **given})
    return Sample({length: name for name, length in lengths.items()}, {**values, **gradients})


def draw_lengths(cell: Cell, generator: Generator) -> dict[str, int]:
    """Draw different lengths for all sizes, and for all sums of them, so that no wrong shape fits by chance."""
    spelled = {side for shape in cell.given.values() for side in shape.split()} | set(cell.sizes)
    while True:
        drawn = (torch.randperm(_LARGEST - 1, generator=generator) + 2).tolist()
        sizes = dict(zip(cell.sizes, drawn, strict=False)) | {"1": 1}
        lengths = {side: sum(sizes[part] for part in side.split("+")) for side in sorted(spelled | {"1"})}
        if len(set(lengths.values())) == len(lengths):
            return lengths


def _value(name: str, cell: Cell, lengths: dict[str, int], generator: Generator) -> Tensor:
    rows, columns = (lengths[side] for side in cell.given[name].split())
    if name in cell.one_hot:
        which = int(torch.randint(rows * columns, (), generator=generator))
        return torch.eye(rows * columns, dtype=torch.float64)[which].reshape(rows, columns)
    return torch.randn(rows, columns, dtype=torch.float64, generator=generator)


def _forward_and_backward(cell: Cell, given: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """All forward values and all gradients, without the history that autograd kept."""
    values = {name: value.requires_grad_(f"d{name}" in cell.gradients) for name, value in given.items()}
    with torch.enable_grad():
        for equation in cell.forward:
            values[equation.name] = Evaluator(values)(equation.expression)
    sources = [values[gradient[1:]] for gradient in cell.gradients]
    gradients = torch.autograd.grad(values.pop("loss"), sources)
    return {name: value.detach() for name, value in values.items()}, dict(zip(cell.gradients, gradients, strict=True))
