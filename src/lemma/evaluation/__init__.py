"""How well a model predicts a text, with the whole protocol of the measurement."""

from lemma.evaluation.heads import RelationFinding, relation_findings
from lemma.evaluation.parser import score_parser
from lemma.evaluation.parsing import ParsingScore, score_trees
from lemma.evaluation.perplexity import perplexity
from lemma.evaluation.score import Protocol, Score, Source
from lemma.evaluation.split import perplexity_of_split

__all__ = [
    "ParsingScore",
    "Protocol",
    "RelationFinding",
    "Score",
    "Source",
    "perplexity",
    "perplexity_of_split",
    "relation_findings",
    "score_parser",
    "score_trees",
]
