"""How well a model does what it was made for, with the whole protocol of the measurement."""

from lemma.evaluation.belonging import Belonging, belonging_of, owners_of
from lemma.evaluation.classification import classify, score_classes
from lemma.evaluation.classification_score import ClassificationScore, ClassScore
from lemma.evaluation.estimates import Estimate
from lemma.evaluation.heads import RelationFinding, relation_findings
from lemma.evaluation.looking_twice import PairLogits
from lemma.evaluation.masked import MaskedScore, score_masked
from lemma.evaluation.nodes import classify_nodes
from lemma.evaluation.parser import score_parser
from lemma.evaluation.parsing import ParsingScore, score_trees
from lemma.evaluation.perplexity import perplexity
from lemma.evaluation.pixel_baseline import NearestPixel
from lemma.evaluation.places import Places, places_of, ranks_of
from lemma.evaluation.reranking import score_reranking
from lemma.evaluation.reranking_score import Gain, RerankingScore
from lemma.evaluation.retrieval import Products, Scores, Table, loss_of_batches, score_retrieval
from lemma.evaluation.retrieval_score import OneWay, RetrievalScore, TwoWays
from lemma.evaluation.score import Protocol, Score, Source
from lemma.evaluation.split import perplexity_of_split
from lemma.evaluation.translation import loss_of_pairs, score_pairs, score_translations
from lemma.evaluation.translation_score import PairsScore, TranslationScore

__all__ = [
    "Belonging",
    "ClassScore",
    "ClassificationScore",
    "Estimate",
    "Gain",
    "MaskedScore",
    "NearestPixel",
    "OneWay",
    "PairLogits",
    "PairsScore",
    "ParsingScore",
    "Places",
    "Products",
    "Protocol",
    "RelationFinding",
    "RerankingScore",
    "RetrievalScore",
    "Score",
    "Scores",
    "Source",
    "Table",
    "TranslationScore",
    "TwoWays",
    "belonging_of",
    "classify",
    "classify_nodes",
    "loss_of_batches",
    "loss_of_pairs",
    "owners_of",
    "perplexity",
    "perplexity_of_split",
    "places_of",
    "ranks_of",
    "relation_findings",
    "score_classes",
    "score_masked",
    "score_pairs",
    "score_parser",
    "score_reranking",
    "score_retrieval",
    "score_translations",
    "score_trees",
]
