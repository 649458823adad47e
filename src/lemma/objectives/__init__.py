"""What training makes small."""

from lemma.objectives.causal import causal
from lemma.objectives.entropy import Entropy, cross_entropy
from lemma.objectives.masked import masked, next_sentence
from lemma.objectives.shaping import Shape, shape_of
from lemma.objectives.translation import teacher_forcing, translation

__all__ = [
    "Entropy",
    "Shape",
    "causal",
    "cross_entropy",
    "masked",
    "next_sentence",
    "shape_of",
    "teacher_forcing",
    "translation",
]
