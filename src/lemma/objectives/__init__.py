"""What training makes small."""

from lemma.objectives.causal import causal

__all__ = ["causal"]
