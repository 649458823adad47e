"""What training asks for while it runs, for every kind of data: the data made ready, a validation, samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from lemma.data import Dataset, ImagesData, LabelsData, PairsData, prepare, prepare_labels, prepare_pairs
from lemma.evaluation import (
    ClassificationScore,
    MaskedScore,
    PairsScore,
    Score,
    classify,
    perplexity_of_split,
    score_classes,
    score_masked,
    score_pairs,
)
from lemma.generation import Beam, Sampling, generate_text, translate_texts
from lemma.models import ClassifierModel, EncoderDecoderModel, EncoderModel, LanguageModel
from lemma.spec import (
    AnyDataSpec,
    BodySpec,
    Classifier,
    CrossAttention,
    DataSpec,
    DualEncoder,
    Encoder,
    EncoderDecoder,
    GraphSpec,
    ImagesSpec,
    LabelsSpec,
    ModelSpec,
    PairsSpec,
    Recipe,
    Transformer,
    TreebankSpec,
    longest,
)
from lemma.studies.drawing_trees import drawer_for, refuse_misfit
from lemma.studies.graphs import GraphLesson, prepared_graph
from lemma.studies.images import ImagesLesson, prepared_images
from lemma.studies.reranking import RerankingLesson
from lemma.studies.treebank import TreeLesson, prepared_trees
from lemma.training import Observer, watched_reading

SAMPLES, SAMPLE_TOKENS = 3, 60
Told = TypeVar("Told", LabelsData, PairsData, ImagesData)


@dataclass(frozen=True)
class TextLesson:
    """Of a language model: its perplexity on the text held out, and a few lines that it writes."""

    dataset: Dataset

    def evaluate(self, model: LanguageModel) -> Score:
        """Read the whole validation text."""
        return perplexity_of_split(model, self.dataset, "validation")

    def sample(self, model: LanguageModel) -> list[str]:
        """Write without a prompt."""
        settings = Sampling(tokens=SAMPLE_TOKENS)
        return [written.text for written in generate_text(model, self.dataset.tokenizer, [""] * SAMPLES, settings)]


@dataclass(frozen=True)
class MaskedLesson:
    """Of an encoder: how well it says what is hidden in the text held out."""

    dataset: Dataset
    rate: float

    def evaluate(self, model: EncoderModel) -> MaskedScore:
        """Hide tokens of the validation text, the same every time, and ask for them."""
        return score_masked(model, self.dataset.tokens("validation"), self.rate)

    def sample(self, model: EncoderModel) -> list[str]:
        """An encoder writes no text."""
        return []


@dataclass(frozen=True)
class PairsLesson:
    """Of a translator: its loss on the pairs held out, and a few of them translated."""

    dataset: PairsData

    def evaluate(self, model: EncoderDecoderModel) -> PairsScore:
        """Read the validation pairs."""
        return score_pairs(model, self.dataset.tokens("validation"))

    def sample(self, model: EncoderDecoderModel) -> list[str]:
        """Translate the first few sources held out."""
        sources = [pair.source for pair in self.dataset.pairs("validation")[:SAMPLES]]
        written = translate_texts(model, self.dataset.tokenizer, sources, Beam())
        return [f"{one.source} → {one.text}" for one in written]


@dataclass(frozen=True)
class LabelsLesson:
    """Of a classifier: its accuracy and F1 on the texts held out."""

    dataset: LabelsData

    def evaluate(self, model: ClassifierModel) -> ClassificationScore:
        """Classify the validation texts; intervals are for the end."""
        return classified(model, self.dataset, "validation", samples=0)

    def sample(self, model: ClassifierModel) -> list[str]:
        """A classifier writes no text."""
        return []


AnyLesson = (
    TextLesson | MaskedLesson | TreeLesson | PairsLesson | LabelsLesson | ImagesLesson | RerankingLesson | GraphLesson
)


def classified(
    model: ClassifierModel,
    dataset: LabelsData,
    split: str,
    protocol: Mapping[str, Any] | None = None,
    samples: int = 1000,
) -> ClassificationScore:
    """Classify the texts of a split, and compare with their labels."""
    examples = dataset.tokens(split)
    return score_classes(
        examples.classes, classify(model, examples), dataset.labels, dict(protocol or {}), samples=samples
    )


def lesson_for_data(
    data: AnyDataSpec,
    model: ModelSpec,
    recipe: Recipe,
    watcher: Observer,
    vocabulary: Any = None,
    labels: tuple[str, ...] = (),
) -> AnyLesson:
    """Make data ready for a model, with a vocabulary and labels that are known already or else are learned."""
    progress = watched_reading(watcher)
    match data:
        case TreebankSpec():
            return TreeLesson(prepared_trees(data, model, watcher, vocabulary))
        case PairsSpec():
            assert isinstance(model, EncoderDecoder)
            pairs = prepare_pairs(data, length=model.context, tokenizer=vocabulary, progress=progress)
            return PairsLesson(told(pairs, watcher))
        case LabelsSpec():
            assert isinstance(model, Classifier)
            return LabelsLesson(told(prepared_labels(data, model.body, vocabulary, labels, watcher), watcher))
        case ImagesSpec():
            assert isinstance(model, DualEncoder | CrossAttention)
            towers, kind = (model, ImagesLesson) if isinstance(model, DualEncoder) else (model.towers, RerankingLesson)
            return kind(told(prepared_images(data, towers, vocabulary, watcher), watcher), recipe.batch)
        case GraphSpec():
            return GraphLesson(prepared_graph(data, recipe, watcher, labels))
        case DataSpec():
            dataset = prepare(data, tokenizer=vocabulary, progress=progress)
            return MaskedLesson(dataset, recipe.mask_rate) if isinstance(model, Encoder) else TextLesson(dataset)


def prepared_labels(
    data: LabelsSpec, body: BodySpec, tokenizer: Any, labels: tuple[str, ...], watcher: Observer
) -> LabelsData:
    """Labelled texts as this body reads them."""
    refuse_misfit(data, body)
    return prepare_labels(
        data,
        length=longest(body),
        marked=isinstance(body, Transformer),
        tokenizer=tokenizer,
        labels=labels or None,
        drawer=drawer_for(body, data.labels, data.parser, watcher),
        progress=watched_reading(watcher),
    )


def told(dataset: Told, watcher: Observer) -> Told:
    """Say what was passed over or cut."""
    for said in dataset.skipped:
        watcher.say(said)
    return dataset
