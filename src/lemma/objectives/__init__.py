"""What training makes small."""

from lemma.objectives.causal import causal
from lemma.objectives.shaping import Shape, shape_of

__all__ = ["Shape", "causal", "shape_of"]
