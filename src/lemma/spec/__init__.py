"""Frozen descriptions of models, data, training and studies. No torch in this room."""

from lemma.spec.base import Letter, Spec
from lemma.spec.choose import Choice, choose, read_choice, read_model
from lemma.spec.data import BytePairs, Characters, DataSpec, TokenizerSpec, Words
from lemma.spec.describe import WordRow, describe_words
from lemma.spec.model import (
    FAMILIES,
    Attentive,
    Decoder,
    FeedForward,
    Gru,
    Lstm,
    ModelSpec,
    Recurrent,
    Rnn,
    TableA5,
)
from lemma.spec.positions import Learned, NoPositions, Positions, Sinusoidal
from lemma.spec.presets import PRESETS, Preset, preset
from lemma.spec.recipe import Recipe
from lemma.spec.studies import STUDIES, read_study
from lemma.spec.study import Budget, Claim, Comparison, Contender, StudySpec
from lemma.spec.toml import read_toml, to_toml
from lemma.spec.words import distribute, parse_value, parse_words

__all__ = [
    "FAMILIES",
    "PRESETS",
    "STUDIES",
    "Attentive",
    "Budget",
    "BytePairs",
    "Characters",
    "Choice",
    "Claim",
    "Comparison",
    "Contender",
    "DataSpec",
    "Decoder",
    "FeedForward",
    "Gru",
    "Learned",
    "Letter",
    "Lstm",
    "ModelSpec",
    "NoPositions",
    "Positions",
    "Preset",
    "Recipe",
    "Recurrent",
    "Rnn",
    "Sinusoidal",
    "Spec",
    "StudySpec",
    "TableA5",
    "TokenizerSpec",
    "WordRow",
    "Words",
    "choose",
    "describe_words",
    "distribute",
    "parse_value",
    "parse_words",
    "preset",
    "read_choice",
    "read_model",
    "read_study",
    "read_toml",
    "to_toml",
]
