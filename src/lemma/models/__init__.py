"""The families: one file each, and `build` from spec to module."""

from lemma.models.build import build, parameters_of
from lemma.models.language_model import LanguageModel, count_parameters, evaluating
from lemma.models.merging import Merging, merge
from lemma.models.parser import ParserModel

__all__ = [
    "LanguageModel",
    "Merging",
    "ParserModel",
    "build",
    "count_parameters",
    "evaluating",
    "merge",
    "parameters_of",
]
