"""Frozen descriptions of models, data, training and studies. No torch in this room."""

from lemma.spec.adaptation import METHODS, AdaptationSpec, Adapters, Frozen, Full, Lora, Method
from lemma.spec.base import Letter, Spec
from lemma.spec.bodies import BODIES, BodySpec, Pooling, Reading, longest
from lemma.spec.brought_sources import brought_sources
from lemma.spec.choose import Choice, choose, read_choice, read_model, refuse_idle
from lemma.spec.classifier import Classifier
from lemma.spec.costs import COSTS, CostSpec, HeadsStudy, LengthStudy, read_cost
from lemma.spec.data import BytePairs, Characters, DataSpec, TokenizerSpec, Words
from lemma.spec.describe import WordRow, describe_words
from lemma.spec.dual_encoder import CHANNELS, CrossAttention, DualEncoder, Reranking
from lemma.spec.examples import AnyDataSpec, LabelsSpec, PairsSpec, read_data
from lemma.spec.families import FAMILIES, LanguageSpec, ModelSpec, family_names, family_of
from lemma.spec.graph import Graph, GraphSpec
from lemma.spec.graph_studies import GRAPH_STUDIES, GraphStudy, read_graph_study
from lemma.spec.images import ImagesSpec
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
from lemma.spec.new_family import NEW_FAMILIES, NewFamily
from lemma.spec.objective import OBJECTIVES, ChosenObjective, NewObjective, Objective
from lemma.spec.parser import BiLstm, Parser, TransformerEncoder, TreebankSpec
from lemma.spec.positions import (
    POSITIONS,
    Alibi,
    Learned,
    NewPositions,
    NoPositions,
    Positions,
    PositionsSpec,
    Rotary,
    Sinusoidal,
)
from lemma.spec.presets import PRESETS, Preset, find_preset, preset, preset_names
from lemma.spec.recipe import Recipe
from lemma.spec.studies import STUDIES, read_study
from lemma.spec.study import Budget, Claim, Comparison, Contender, StudySpec
from lemma.spec.toml import read_toml, to_toml
from lemma.spec.transformer import MARKS, Encoder, EncoderDecoder, Transformer
from lemma.spec.tree import Tree
from lemma.spec.words import distribute, parse_value, parse_words

__all__ = [
    "BODIES",
    "CHANNELS",
    "COSTS",
    "FAMILIES",
    "GRAPH_STUDIES",
    "LABEL_STUDIES",
    "MARKS",
    "METHODS",
    "NEW_FAMILIES",
    "OBJECTIVES",
    "POSITIONS",
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
    "ChosenObjective",
    "Claim",
    "Classifier",
    "ClassifiersStudy",
    "Comparison",
    "Contender",
    "CostSpec",
    "CrossAttention",
    "DataSpec",
    "Decoder",
    "DualEncoder",
    "Encoder",
    "EncoderDecoder",
    "FeedForward",
    "Frozen",
    "Full",
    "Graph",
    "GraphSpec",
    "GraphStudy",
    "Gru",
    "HeadsStudy",
    "ImagesSpec",
    "LabelStudy",
    "LabelStudySpec",
    "LabelsSpec",
    "LanguageSpec",
    "Learned",
    "LengthStudy",
    "Letter",
    "Lora",
    "Lstm",
    "Method",
    "ModelSpec",
    "NewFamily",
    "NewObjective",
    "NewPositions",
    "NoPositions",
    "Objective",
    "PairsSpec",
    "Parser",
    "Pooling",
    "Positions",
    "PositionsSpec",
    "Preset",
    "PretrainingStudy",
    "Reading",
    "Recipe",
    "Recurrent",
    "Reranking",
    "Rnn",
    "Rotary",
    "Sinusoidal",
    "Spec",
    "StudySpec",
    "TableA5",
    "TokenizerSpec",
    "Transformer",
    "TransformerEncoder",
    "Tree",
    "TreebankSpec",
    "WordRow",
    "Words",
    "brought_sources",
    "choose",
    "describe_words",
    "distribute",
    "family_names",
    "family_of",
    "find_preset",
    "longest",
    "parse_value",
    "parse_words",
    "preset",
    "preset_names",
    "read_choice",
    "read_cost",
    "read_data",
    "read_graph_study",
    "read_label_study",
    "read_model",
    "read_study",
    "read_toml",
    "refuse_idle",
    "to_toml",
]
