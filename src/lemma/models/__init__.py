"""The families: one file each, and `build` from spec to module."""

from lemma.models.body import Body
from lemma.models.build import Model, build, parameters_of
from lemma.models.classifier import ClassifierModel
from lemma.models.encoder import EncoderModel
from lemma.models.encoder_decoder import EncoderDecoderModel
from lemma.models.language_model import LanguageModel, count_parameters, evaluating
from lemma.models.merging import Merging, merge
from lemma.models.parser import ParserModel
from lemma.models.writing import Writing

__all__ = [
    "Body",
    "ClassifierModel",
    "EncoderDecoderModel",
    "EncoderModel",
    "LanguageModel",
    "Merging",
    "Model",
    "ParserModel",
    "Writing",
    "build",
    "count_parameters",
    "evaluating",
    "merge",
    "parameters_of",
]
