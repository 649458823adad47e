"""The families: one file each, and `build` from spec to module."""

from lemma.models.build import build, parameters_of
from lemma.models.language_model import LanguageModel, count_parameters, evaluating

__all__ = ["LanguageModel", "build", "count_parameters", "evaluating", "parameters_of"]
