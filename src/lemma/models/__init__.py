"""The families: one file each, and `build` from spec to module."""

from lemma.models.body import Body
from lemma.models.build import Model, build, parameters_of
from lemma.models.classifier import ClassifierModel
from lemma.models.cross_attention import CrossAttentionModel
from lemma.models.dual_encoder import DualEncoderModel
from lemma.models.embedding import embed_images, embed_texts
from lemma.models.encoder import EncoderModel
from lemma.models.encoder_decoder import EncoderDecoderModel
from lemma.models.graph import GraphInputs, GraphModel, graph_inputs
from lemma.models.language_model import LanguageModel, count_parameters, evaluating
from lemma.models.merging import Merging, merge
from lemma.models.parser import ParserModel
from lemma.models.tree import TreeModel
from lemma.models.writing import Writing

__all__ = [
    "Body",
    "ClassifierModel",
    "CrossAttentionModel",
    "DualEncoderModel",
    "EncoderDecoderModel",
    "EncoderModel",
    "GraphInputs",
    "GraphModel",
    "LanguageModel",
    "Merging",
    "Model",
    "ParserModel",
    "TreeModel",
    "Writing",
    "build",
    "count_parameters",
    "embed_images",
    "embed_texts",
    "evaluating",
    "graph_inputs",
    "merge",
    "parameters_of",
]
