"""Frozen descriptions of models, data, training and studies. No torch in this room."""

from lemma.spec.adaptation import METHODS, AdaptationSpec, Adapters, Frozen, Full, Lora, Method
from lemma.spec.base import Letter, Spec
from lemma.spec.choose import Choice, choose, read_choice, read_model, refuse_idle
from lemma.spec.classifier import BODIES, BodySpec, Classifier, Pooling
from lemma.spec.costs import COSTS, CostSpec, HeadsStudy, LengthStudy, read_cost
from lemma.spec.data import BytePairs, Characters, DataSpec, TokenizerSpec, Words
from lemma.spec.describe import WordRow, describe_words
from lemma.spec.examples import AnyDataSpec, LabelsSpec, PairsSpec, read_data
from lemma.spec.families import FAMILIES, ModelSpec
from lemma.spec.label_studies import (
    LABEL_STUDIES,
    ClassifiersStudy,
    LabelStudy,
    LabelStudySpec,
    PretrainingStudy,
    read_label_study,
)
from lemma.spec.model import (
    Attentive,
    Decoder,
    FeedForward,
    Gru,
    Lstm,
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
from lemma.spec.transformer import MARKS, Encoder, EncoderDecoder, Transformer
from lemma.spec.words import distribute, parse_value, parse_words

__all__ = [
    "BODIES",
    "COSTS",
    "FAMILIES",
    "LABEL_STUDIES",
    "MARKS",
    "METHODS",
    "PRESETS",
    "STUDIES",
    "AdaptationSpec",
    "Adapters",
    "Alibi",
    "AnyDataSpec",
    "Attentive",
    "BiLstm",
    "BodySpec",
    "Budget",
    "BytePairs",
    "Characters",
    "Choice",
    "Claim",
    "Classifier",
    "ClassifiersStudy",
    "Comparison",
    "Contender",
    "CostSpec",
    "DataSpec",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "FeedForward",
    "Frozen",
    "Full",
    "Gru",
    "HeadsStudy",
    "LabelStudy",
    "LabelStudySpec",
    "LabelsSpec",
    "Learned",
    "LengthStudy",
    "Letter",
    "Lora",
    "Lstm",
    "Method",
    "ModelSpec",
    "NoPositions",
    "PairsSpec",
    "Parser",
    "Pooling",
    "Positions",
    "Preset",
    "PretrainingStudy",
    "Recipe",
    "Recurrent",
    "Rnn",
    "Rotary",
    "Sinusoidal",
    "Spec",
    "StudySpec",
    "TableA5",
    "TokenizerSpec",
    "Transformer",
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
    "read_data",
    "read_label_study",
    "read_model",
    "read_study",
    "read_toml",
    "refuse_idle",
    "to_toml",
]
