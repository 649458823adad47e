"""How well a model does what it was made for, with the whole protocol of the measurement."""

from lemma.evaluation.classification import classify, score_classes
from lemma.evaluation.classification_score import ClassificationScore, ClassScore
from lemma.evaluation.estimates import Estimate
from lemma.evaluation.heads import RelationFinding, relation_findings
from lemma.evaluation.masked import MaskedScore, score_masked
from lemma.evaluation.parser import score_parser
from lemma.evaluation.parsing import ParsingScore, score_trees
from lemma.evaluation.perplexity import perplexity
from lemma.evaluation.score import Protocol, Score, Source
from lemma.evaluation.split import perplexity_of_split
from lemma.evaluation.translation import loss_of_pairs, score_pairs, score_translations
from lemma.evaluation.translation_score import PairsScore, TranslationScore

__all__ = [
    "ClassScore",
    "ClassificationScore",
    "Estimate",
    "MaskedScore",
    "PairsScore",
    "ParsingScore",
    "Protocol",
    "RelationFinding",
    "Score",
    "Source",
    "TranslationScore",
    "classify",
    "loss_of_pairs",
    "perplexity",
    "perplexity_of_split",
    "relation_findings",
    "score_classes",
    "score_masked",
    "score_pairs",
    "score_parser",
    "score_translations",
    "score_trees",
]
