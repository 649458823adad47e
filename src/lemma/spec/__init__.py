"""Frozen descriptions of models, data, training and studies. No torch in this room."""

from lemma.spec.base import Letter, Spec
from lemma.spec.choose import Choice, choose, read_choice, read_model
from lemma.spec.costs import COSTS, CostSpec, HeadsStudy, LengthStudy, read_cost
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
from lemma.spec.parser import BiLstm, Parser, TransformerEncoder, TreebankSpec
from lemma.spec.positions import Alibi, Learned, NoPositions, Positions, Rotary, Sinusoidal
from lemma.spec.presets import PRESETS, Preset, preset
from lemma.spec.recipe import Recipe
from lemma.spec.studies import STUDIES, read_study
from lemma.spec.study import Budget, Claim, Comparison, Contender, StudySpec
from lemma.spec.toml import read_toml, to_toml
from lemma.spec.words import distribute, parse_value, parse_words

__all__ = [
    "COSTS",
    "FAMILIES",
    "PRESETS",
    "STUDIES",
    "Alibi",
    "Attentive",
    "BiLstm",
    "Budget",
    "BytePairs",
    "Characters",
    "Choice",
    "Claim",
    "Comparison",
    "Contender",
    "CostSpec",
    "DataSpec",
    "Decoder",
    "FeedForward",
    "Gru",
    "HeadsStudy",
    "Learned",
    "LengthStudy",
    "Letter",
    "Lstm",
    "ModelSpec",
    "NoPositions",
    "Parser",
    "Positions",
    "Preset",
    "Recipe",
    "Recurrent",
    "Rnn",
    "Rotary",
    "Sinusoidal",
    "Spec",
    "StudySpec",
    "TableA5",
    "TokenizerSpec",
    "TransformerEncoder",
    "TreebankSpec",
    "WordRow",
    "Words",
    "choose",
    "describe_words",
    "distribute",
    "parse_value",
    "parse_words",
    "preset",
    "read_choice",
    "read_cost",
    "read_model",
    "read_study",
    "read_toml",
    "to_toml",
]
