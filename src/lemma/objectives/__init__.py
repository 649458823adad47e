"""What training makes small."""

from lemma.objectives.causal import causal
from lemma.objectives.chosen import Loss, loss_of
from lemma.objectives.contrastive import contrastive, equal_rows
from lemma.objectives.entropy import Entropy, cross_entropy
from lemma.objectives.masked import masked, next_sentence
from lemma.objectives.reranking import Candidates, candidates_of, reranking
from lemma.objectives.shaping import Shape, shape_of
from lemma.objectives.translation import teacher_forcing, translation

__all__ = [
    "Candidates",
    "Entropy",
    "Loss",
    "Shape",
    "candidates_of",
    "causal",
    "contrastive",
    "cross_entropy",
    "equal_rows",
    "loss_of",
    "masked",
    "next_sentence",
    "reranking",
    "shape_of",
    "teacher_forcing",
    "translation",
]
