"""Repairs of a wrong derivation: every small change of its expression that people's errors call for."""

from collections.abc import Iterator

from lemma.ledger.gradients.repairs import drop, exchange, insert, rearrange
from lemma.ledger.gradients.repairs.setting import Repair, Setting
from lemma.ledger.gradients.tree import Node

__all__ = ["Repair", "Setting", "repairs"]

_LIGHT = (
    rearrange.signs,
    rearrange.transposes,
    rearrange.orders,
    drop.spare_factors,
    drop.spare_terms,
    insert.incoming_terms,
    exchange.activations,
    insert.slopes,
    insert.scales,
)
_HEAVY = (
    rearrange.products,
    drop.spare_functions,
    exchange.slices,
    exchange.complements,
    exchange.functions,
    exchange.other_names,
    insert.named_factors,
    insert.matrix_factors,
    insert.sibling_terms,
    insert.plain_terms,
    exchange.softmaxes,
    insert.double_factors,
)


def repairs(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Every repair of one error, the likeliest first; then those of two errors, both of the commonest kinds."""
    for kind in (*_LIGHT, *_HEAVY):
        yield from kind(tree, setting)
    for first in _light(tree, setting):
        for second in _light(first.expression, setting):
            yield Repair(f"{first.words}; and {second.words}", second.expression)


def _light(tree: Node, setting: Setting) -> Iterator[Repair]:
    for kind in _LIGHT:
        yield from kind(tree, setting)
