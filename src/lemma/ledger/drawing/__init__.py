"""Drawing the data flow of a module, with every size as a formula (problem E2)."""

from lemma.ledger.drawing.attention import self_attention
from lemma.ledger.drawing.drawing import Drawing, Node, draw

__all__ = ["Drawing", "Node", "draw", "self_attention"]
