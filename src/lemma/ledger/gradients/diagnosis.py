"""Comparing an expression with the truth and, where they differ, finding the repair that fits."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lemma.ledger.gradients.cells.cell import Cell
from lemma.ledger.gradients.evaluation import Evaluator
from lemma.ledger.gradients.operations import UnfitError, shape
from lemma.ledger.gradients.repairs import Repair, Setting, repairs
from lemma.ledger.gradients.samples import Sample
from lemma.ledger.gradients.tree import Node

TOLERANCE = 1e-9
"""The relative error up to which two float64 values count as equal."""
MOST_OPERATIONS, MOST_OPERATIONS_A_LINE = 45_000, 20_000
"""The operations that a report, and a line of it, may spend on repairs; a line takes a third of a second at most."""


@dataclass
class Budget:
    """The operations that are left for the repairs of a report."""

    operations: int = MOST_OPERATIONS


def relative_error(value: Tensor, truth: Tensor) -> float:
    """The largest difference over the largest true element; infinite where the value is not finite."""
    error = ((value - truth).abs().max() / truth.abs().max().clamp_min(1e-300)).item()
    return error if error < float("inf") else float("inf")


def agrees(expression: Node, target: str, sample: Sample) -> bool:
    """Whether an expression has the true value of a name in a sample."""
    return _fits(Evaluator(sample.values), expression, sample.values[target])


def find_repair(expression: Node, cell: Cell, target: str, samples: Sequence[Sample], budget: Budget) -> Repair | None:
    """The first repair that makes an expression right in every sample, if the budget allows to find one."""
    if budget.operations <= 0:
        return None
    setting = Setting(cell, target, samples[0])
    evaluate, truth = Evaluator(samples[0].values), samples[0].values[target]
    evaluate.remember(expression)
    for repair in _affordable(repairs(expression, setting), evaluate, budget):
        right = _fits(evaluate, repair.expression, truth)
        if right and all(agrees(repair.expression, target, sample) for sample in samples[1:]):
            return repair
    return None


def _affordable(candidates: Iterable[Repair], evaluate: Evaluator, budget: Budget) -> Iterator[Repair]:
    """The candidates that can be tried before the operations of the line or of the report are spent."""
    start, tried = evaluate.operations, 0
    most = min(budget.operations, MOST_OPERATIONS_A_LINE)
    try:
        for candidate in candidates:
            tried += 1
            if evaluate.operations - start + tried > most:
                return
            yield candidate
    finally:
        budget.operations -= evaluate.operations - start + tried


def _fits(evaluate: Callable[[Node], Tensor], expression: Node, truth: Tensor) -> bool:
    try:
        value = evaluate(expression)
    except UnfitError:
        return False
    return shape(value) == shape(truth) and torch.allclose(
        value, truth, rtol=0.0, atol=TOLERANCE * float(truth.abs().max())
    )
