"""How well a model predicts a text, with the whole protocol of the measurement."""

from lemma.evaluation.perplexity import perplexity
from lemma.evaluation.score import Protocol, Score, Source
from lemma.evaluation.split import perplexity_of_split

__all__ = ["Protocol", "Score", "Source", "perplexity", "perplexity_of_split"]
