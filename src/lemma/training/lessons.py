"""The lesson of a model, of whatever kind it is, and the data that it can be taught."""

from typing import Any

from lemma.data import Dataset, GraphData, ImagesData, LabelsData, PairsData, TreebankData
from lemma.errors import SpecError
from lemma.models import (
    ClassifierModel,
    CrossAttentionModel,
    DualEncoderModel,
    EncoderDecoderModel,
    EncoderModel,
    GraphModel,
    ParserModel,
)
from lemma.spec import Classifier, CrossAttention, DualEncoder, EncoderDecoder, Graph, ModelSpec, Parser, Recipe
from lemma.training.contrastive_lesson import ContrastiveLesson
from lemma.training.example_lessons import ClassificationLesson, MaskedLesson, TranslationLesson
from lemma.training.graph_lesson import GraphLesson
from lemma.training.lesson import Lesson, lesson_for
from lemma.training.masked_feed import hidden_places
from lemma.training.parallel import Team
from lemma.training.parsing import ParsingLesson
from lemma.training.reranking_lesson import RerankingLesson

AnyData = Dataset | TreebankData | PairsData | LabelsData | ImagesData | GraphData
AnyLesson = (
    Lesson
    | ParsingLesson
    | MaskedLesson
    | TranslationLesson
    | ClassificationLesson
    | ContrastiveLesson
    | RerankingLesson
    | GraphLesson
)
LEARNS: dict[type[AnyData], str] = {
    Dataset: "text",
    TreebankData: "a treebank",
    PairsData: "pairs of texts",
    LabelsData: "labelled texts",
    ImagesData: "images with captions",
    GraphData: "a graph",
}


def learns(spec: ModelSpec) -> type[AnyData]:
    """The kind of data that a family learns."""
    match spec:
        case Parser():
            return TreebankData
        case EncoderDecoder():
            return PairsData
        case Classifier():
            return LabelsData
        case DualEncoder() | CrossAttention():
            return ImagesData
        case Graph():
            return GraphData
        case _:
            return Dataset


def refuse_other_kind(spec: ModelSpec, dataset: AnyData) -> None:
    """Refuse data that a model of this family does not learn."""
    wanted = learns(spec)
    if not isinstance(dataset, wanted):
        got = LEARNS[type(dataset)]
        raise SpecError(f"a model of the family {spec.family} learns {LEARNS[wanted]}, not {got}.")


def lesson_of(model: Any, recipe: Recipe, team: Team | None = None, feed: Any = None) -> AnyLesson:
    """The lesson of a model; a team's is the same unless the whole batch is compared."""
    match model:
        case ParserModel():
            _refuse_shaping(recipe, "a parser's heads are shaped by their relations")
            return ParsingLesson(model)
        case EncoderModel():
            _refuse_shaping(recipe, "an encoder learns what is hidden from it")
            return MaskedLesson(model, hidden_places(model.spec, recipe.mask_rate))
        case EncoderDecoderModel():
            _refuse_shaping(recipe, "an encoder-decoder learns to translate")
            return TranslationLesson(model, recipe.label_smoothing)
        case ClassifierModel():
            _refuse_shaping(recipe, "a classifier learns labels")
            return ClassificationLesson(model, recipe.label_smoothing)
        case DualEncoderModel():
            _refuse_shaping(recipe, "a dual encoder learns images and captions")
            return ContrastiveLesson(model, recipe, team or Team(model.log_scale.device))
        case CrossAttentionModel():
            _refuse_shaping(recipe, "a re-ranker learns images and captions")
            return RerankingLesson(model, recipe)
        case GraphModel():
            _refuse_shaping(recipe, "a graph model has fixed weights in its place")
            return GraphLesson(model, feed, recipe.label_smoothing)
        case _:
            return lesson_for(model, recipe)


def _refuse_shaping(recipe: Recipe, why: str) -> None:
    if recipe.focus or recipe.near:
        raise SpecError(f"recipe.focus and recipe.near shape a language model's attention; {why}. Leave the words out.")
