"""Pictures made ready for a dual encoder, and how well it finds what belongs together among them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from lemma.data.corpora import IMAGES
from lemma.data.graphs import GraphNodes, prepare_graph
from lemma.data.images import Captioned, prepare_images, read_images
from lemma.data.labels import Labelled, prepare_labels
from lemma.data.pairs import TokenPairs, prepare_pairs
from lemma.data.splits import Splits
from lemma.data.store import TokenArray, prepare
from lemma.data.treebanks import Lexicon, Trees, prepare_treebank, read_trees
from lemma.errors import DataError, InputError, RunError, SpecError, unknown
from lemma.generation.beam import Beam, translate_texts
from lemma.generation.decode import generate_text
from lemma.generation.sampling import Sampling
from lemma.inspection.trees import check_heads
from lemma.models.base import LanguageModel
from lemma.models.classifier import ClassifierModel
from lemma.models.dual_encoder import CrossAttentionModel, DualEncoderModel, embed_images, embed_texts
from lemma.models.encoder_decoder import EncoderDecoderModel
from lemma.models.graph import GraphInputs, GraphModel, graph_inputs
from lemma.models.parser import ParserModel
from lemma.models.transformer import EncoderModel
from lemma.runs.folder import RunFolder
from lemma.runs.load import Run, load
from lemma.spec.data import AnyDataSpec, DataSpec, GraphSpec, ImagesSpec, LabelsSpec, PairsSpec, TreebankSpec
from lemma.spec.models import (
    BodySpec,
    Classifier,
    CrossAttention,
    DualEncoder,
    Encoder,
    EncoderDecoder,
    ModelSpec,
    Parser,
    Transformer,
    longest,
)
from lemma.spec.recipe import Recipe
from lemma.studies.data_args import Asked, rooted
from lemma.studies.measures import score_attention
from lemma.studies.parse_texts import drawer_for, refuse_misfit
from lemma.tasks.classification import ClassificationScore, classify, score_classes
from lemma.tasks.image_text import (
    NearestPixel,
    Products,
    RetrievalScore,
    belonging_of,
    loss_of_batches,
    owners_of,
    score_retrieval,
)
from lemma.tasks.language import Score, perplexity_of_split
from lemma.tasks.masked import MaskedScore, score_masked
from lemma.tasks.nodes import classify_nodes
from lemma.tasks.parsing import ParsingScore, score_parser
from lemma.tasks.reranking import PairLogits, RerankingScore, score_reranking
from lemma.tasks.translation import PairsScore, score_pairs
from lemma.training.progress import Observer, watched_reading

PIXELS = "nearest pixel"
IMAGES_SAMPLES = 3


@dataclass(frozen=True)
class ImagesLesson:
    """Of a dual encoder: how well it finds pictures and captions that were held out."""

    dataset: Splits[Captioned]
    batch: int

    def evaluate(self, model: DualEncoderModel) -> RetrievalScore:
        """Search the validation pictures; intervals and baselines are for the end."""
        return retrieved(model, self.dataset.tokens("validation"), self.batch, samples=0)

    def sample(self, model: DualEncoderModel) -> list[str]:
        """The caption that is found for each of the first few pictures held out."""
        examples = self.dataset.tokens("validation")
        pictures = examples.images
        captions = [caption for picture in pictures for caption in picture.captions]
        vectors = embed_images(model, examples.pixels[:IMAGES_SAMPLES])
        found = (vectors @ embed_texts(model, examples.rows).T).argmax(1)
        return [f"{picture.name} → {captions[best]}" for picture, best in zip(pictures, found, strict=False)]


def reading_of(spec: DualEncoder) -> dict[str, Any]:
    """How this dual encoder reads pictures and captions: the size, the length, and whether between marks."""
    if spec.body.family == "tree":
        raise SpecError(
            "dual-encoder.body = 'tree' reads sentences with their trees, and captions have none. Take body=lstm."
        )
    return {"side": spec.side, "length": longest(spec.body), "special_tokens": isinstance(spec.body, Transformer)}


def prepared_images(data: ImagesSpec, spec: DualEncoder, tokenizer: Any, watcher: Observer) -> Splits[Captioned]:
    """Pictures with captions as this dual encoder reads them."""
    return prepare_images(data, **reading_of(spec), tokenizer=tokenizer, progress=watched_reading(watcher))


def retrieved(
    model: DualEncoderModel,
    examples: Captioned,
    batch: int,
    *,
    learned: Captioned | None = None,
    protocol: Mapping[str, Any] | None = None,
    samples: int = 1000,
) -> RetrievalScore:
    """Let a dual encoder find captions by pictures and pictures by captions, beside the nearest `learned` picture."""
    images, texts = embed_images(model, examples.pixels), embed_texts(model, examples.rows)
    belonging, first = belonging_of(examples), examples.first[:-1]
    pixels = None if learned is None else by_pixels(examples, learned)
    return score_retrieval(
        Products(images, texts),
        belonging,
        loss=loss_of_batches(images, texts[first], belonging.names[first], model.scale.item(), batch),
        protocol={**(protocol or {}), "loss of": f"batches of {min(batch, len(images)):,} pairs", **_known(pixels)},
        baselines={} if pixels is None else {PIXELS: pixels},
        samples=samples,
    )


def by_pixels(examples: Captioned, learned: Captioned) -> NearestPixel:
    """The scores that the nearest learned picture gives."""
    return NearestPixel(examples.pixels, examples.names, learned.pixels, owners_of(learned), learned.names)


def _known(pixels: NearestPixel | None) -> dict[str, str]:
    """Say how many of the pictures are no news."""
    number = pixels.known() if pixels else 0
    return {"learned": f"{number:,} of these pictures were learned"} if number else {}


def judged_images(run: Run, spec: DualEncoder, asked: Asked, split: str | None, watcher: Observer) -> Splits[Captioned]:
    """The pictures that a run is judged by: a named set's or a folder's, or the run's own."""
    assert isinstance(run.data, ImagesSpec)
    if asked.images is None:
        return prepared_images(run.data, spec, run.tokenizer, watcher)
    given: dict[str, Any] = {**reading_of(spec), **asked.columns("images")}
    return read_images(
        rooted(asked.images, IMAGES),
        **given,
        tokenizer=run.tokenizer,
        held_out=run.data.held_out,
        split=split,
        progress=watched_reading(watcher),
    )


def learned_images(run: Run, spec: DualEncoder, watcher: Observer) -> Captioned | None:
    """The pictures that a run learned, to compare pixels with; None, and a word on it, where they are gone."""
    assert isinstance(run.data, ImagesSpec)
    try:
        dataset = prepared_images(run.data, spec, run.tokenizer, watcher)
    except (DataError, OSError) as error:
        watcher.say(f"The baseline of the nearest pixel is left out: {error}")
        return None
    if dataset.hash == run.data_hash:
        return dataset.tokens("train")
    watcher.say(f"The baseline of the nearest pixel is left out: {run.data.images} has changed since it was learned.")
    return None


# Graphs in training and in judgement: the nodes held out, and what a run says of them.


@dataclass(frozen=True)
class GraphLesson:
    """Of a graph model: its accuracy and F1 on the nodes held out."""

    dataset: Splits[GraphNodes]
    inputs: dict[tuple[torch.device, str], GraphInputs] = field(default_factory=dict, repr=False)
    """The graph as it was laid out for a device before, so that a large one is sorted once."""

    def evaluate(self, model: GraphModel) -> ClassificationScore:
        """Classify the validation nodes; intervals are for the end."""
        place = next(model.parameters()).device, model.spec.normalise
        if place not in self.inputs:
            self.inputs[place] = graph_inputs(self.dataset.tokens("train").graph, model.spec.normalise, place[0])
        return classified_nodes(model, self.dataset, "validation", samples=0, inputs=self.inputs[place])

    def sample(self, model: GraphModel) -> list[str]:
        """A graph model writes no text."""
        return []


def prepared_graph(
    data: GraphSpec, recipe: Recipe, watcher: Observer, labels: tuple[str, ...] = (), tell: bool = True
) -> Splits[GraphNodes]:
    """The graph of a run, its nodes divided by the recipe's seed unless the data say another; what was cut is told."""
    graph = prepare_graph(data, seed=recipe.seed, labels=labels or None, progress=watched_reading(watcher))
    for said in graph.skipped if tell else ():
        watcher.say(said)
    return graph


def classified_nodes(
    model: GraphModel,
    graph: Splits[GraphNodes],
    split: str,
    protocol: Mapping[str, Any] | None = None,
    samples: int = 1000,
    inputs: GraphInputs | None = None,
) -> ClassificationScore:
    """Classify the nodes of a split, and compare with their labels."""
    chosen = graph.tokens(split)
    chances = classify_nodes(model, chosen.graph, inputs)[chosen.nodes]
    return score_classes(chosen.classes, chances, graph.labels, protocol, samples=samples, unit="node")


def judge_graph(run: Run, asked: Asked, split: str | None, watcher: Observer) -> ClassificationScore:
    """Classify the test nodes of a run, or those of another of its splits, and compare with their labels."""
    assert isinstance(run.data, GraphSpec)
    if asked.graph is not None:
        raise SpecError(
            "evaluate: a graph model is judged on the nodes held out of the graph that it learned. Leave --graph out; "
            "--split names the part (train, validation, test)."
        )
    graph = prepared_graph(run.data, run.recipe, watcher, run.labels, tell=False)
    if graph.hash != run.data_hash:
        raise RunError(
            f"{run.path} was trained on a graph with SHA-256 {run.data_hash}, but {run.data.graph} now has "
            f"{graph.hash}: the nodes held out may have been learned. Train a new run."
        )
    part = split or "test"
    if part not in graph.splits:
        raise SpecError(unknown("split", part, graph.splits))
    seed = run.recipe.seed if run.data.split is None else run.data.split
    protocol = {"data": graph.about, "split": f"{part}, drawn by the seed {seed}", "data hash": graph.hash}
    return classified_nodes(run.graph, graph, part, protocol)


# A re-ranker at work: what it learns from, and what looking twice gains over its dual encoder alone.


VALIDATED = 1000
"""Pictures that a validation looks at, if there are more: looking takes time."""


@dataclass(frozen=True)
class RerankingLesson:
    """Of a re-ranker: how well it orders again what its dual encoder finds among pictures that were held out."""

    dataset: Splits[Captioned]
    batch: int

    def evaluate(self, model: CrossAttentionModel) -> RerankingScore:
        """Search the validation pictures, and look twice; intervals are for the end."""
        return reranked(model, part_of(self.dataset.tokens("validation"), VALIDATED), samples=0)

    def sample(self, model: CrossAttentionModel) -> list[str]:
        """The caption that the dual encoder finds for each of the first few pictures held out."""
        return ImagesLesson(self.dataset, self.batch).sample(model.towers)


def part_of(examples: Captioned, number: int) -> Captioned:
    """So many of the pictures, with all their captions, the same ones every time."""
    pictures = len(examples.first) - 1
    if pictures <= number:
        return examples
    chosen = np.sort(np.random.default_rng(0).permutation(pictures)[:number])
    counts = np.diff(examples.first)[chosen]
    captions = np.concatenate([np.arange(*examples.first[place : place + 2]) for place in chosen])
    return Captioned(
        np.asarray(examples.pixels[chosen]),
        examples.rows.select(captions),
        np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]),
        examples.names[captions],
    )


def reranked(
    model: CrossAttentionModel,
    examples: Captioned,
    *,
    base: DualEncoderModel | None = None,
    protocol: Mapping[str, Any] | None = None,
    samples: int = 1000,
) -> RerankingScore:
    """Let a re-ranker find captions by pictures and pictures by captions; compare with `base`, or with its towers."""
    return score_reranking(
        products_of(model.towers, examples),
        belonging_of(examples),
        model.spec.candidates,
        PairLogits(model, examples.pixels, examples.rows),
        before=None if base is None else products_of(base, examples),
        protocol=protocol,
        samples=samples,
    )


def products_of(towers: DualEncoderModel, examples: Captioned) -> Products:
    """How alike a dual encoder finds all of these pictures and captions."""
    return Products(embed_images(towers, examples.pixels), embed_texts(towers, examples.rows))


def base_of_reranker(run: Run) -> DualEncoderModel | None:
    """The dual encoder that a re-ranker was made of, if its own towers have learned since; else None."""
    if run.adaptation is None or run.adaptation.method.kind == "frozen":
        return None
    device = next(run.module.parameters()).device
    return load(RunFolder.open(run.path).base().path, str(device)).dual_encoder


# What `train` and `evaluate` do with trees: a treebank made ready, its validation, and runs judged by it.


SETTINGS = ("layer", "head", "limit", "seed")
ONE_TREE = "a parser has one tree a sentence; --layer and --head choose among a language model's heads"
WHOLE = "trees are of whole sentences; --context and --stride cut running text into windows, for perplexity"
NO_DRAW = "a parser's trees are drawn from no random weights; seed fixes those a language model is set beside"


@dataclass(frozen=True)
class TreeLesson:
    """What the training of a parser asks for: UAS and LAS on the trees held out, and no samples."""

    dataset: Splits[Trees]

    def evaluate(self, model: ParserModel) -> ParsingScore:
        """Parse what is held out, and compare."""
        return score_parser(model, self.dataset.tokenizer, self.dataset.tokens("validation").sentences)

    def sample(self, model: ParserModel) -> list[str]:
        """A parser writes no text."""
        return []


def prepared_trees(
    data: TreebankSpec, model: ModelSpec, watcher: Observer, lexicon: Lexicon | None = None
) -> Splits[Trees]:
    """Read a treebank for a parser, and say what was passed over."""
    if not isinstance(model, Parser):
        raise SpecError(f"a model of the family {model.family} learns text, not trees. Take the family parser.")
    prepared = prepare_treebank(
        data,
        minimum_count=model.minimum_count,
        buckets=model.buckets,
        lexicon=lexicon,
        progress=watched_reading(watcher),
    )
    for said in prepared.skipped:
        watcher.say(f"passed over in {said}")
    return prepared


def evaluate_trees(
    run: Run, treebank: str | None, split: str | None, watcher: Observer, settings: Mapping[str, Any]
) -> ParsingScore:
    """Compare a parser's trees, or those of a language model's attention, with a treebank's or the run's own."""
    _check_settings(run, settings)
    source = (
        own_trees(run, watcher, split) if treebank is None else read_trees(treebank, watched_reading(watcher), split)
    )
    gold = source.tokens(source.splits[0]).sentences
    skipped = "; ".join(source.skipped) or None
    protocol = {"treebank": source.about, "data hash": source.hash, "passed over": skipped}
    if isinstance(run.spec, Parser):
        first = gold[: settings.get("limit")]
        return score_parser(run.parser, run.lexicon, first, {"model": run.lexicon.about, **protocol})
    return score_attention(run, gold, protocol, watcher=watcher, **settings)


def _check_settings(run: Run, settings: Mapping[str, Any]) -> None:
    """Refuse, before anything is read, what the run has no use for or does not have."""
    parser = isinstance(run.spec, Parser)
    why = {"context": WHOLE, "stride": WHOLE}
    why |= {"layer": ONE_TREE, "head": ONE_TREE, "seed": NO_DRAW} if parser else {}
    for word in settings:
        if word in why:
            raise SpecError(f"evaluate: {why[word]}. Leave {word} out.")
        if word not in SETTINGS:
            raise SpecError(unknown("evaluate: the word", word, ("limit",) if parser else SETTINGS))
    limit = settings.get("limit")
    if limit is not None and limit < 1:
        raise InputError(f"evaluate: limit = {limit}, but at least one sentence must be read.")
    if not parser:
        check_heads(run.model, settings.get("layer"), settings.get("head"))


def own_trees(run: Run, watcher: Observer, split: str | None) -> Splits[Trees]:
    """The part of a run's own treebank that it has not learned: test if there is one, else validation."""
    if not isinstance(run.data, TreebankSpec):
        raise SpecError("a language model's trees need a treebank: --treebank ewt, or --treebank FILE.conllu.")
    data = prepared_trees(run.data, run.spec, watcher, run.lexicon)
    if data.hash != run.data_hash:
        raise RunError(
            f"{run.path} was trained on trees with SHA-256 {run.data_hash}, but {run.data.treebank} now has "
            f"{data.hash}: what was held out may have been learned. To judge it all the same, name it with --treebank."
        )
    chosen = split or ("test" if "test" in data.splits else "validation")
    return data.only(chosen)


# What training asks for while it runs, for every kind of data: the data made ready, a validation, samples.


SAMPLES, SAMPLE_TOKENS = 3, 60
Told = TypeVar("Told", bound=Splits)


@dataclass(frozen=True)
class TextLesson:
    """Of a language model: its perplexity on the text held out, and a few lines that it writes."""

    dataset: Splits[TokenArray]

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

    dataset: Splits[TokenArray]
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

    dataset: Splits[TokenPairs]

    def evaluate(self, model: EncoderDecoderModel) -> PairsScore:
        """Read the validation pairs."""
        return score_pairs(model, self.dataset.tokens("validation"))

    def sample(self, model: EncoderDecoderModel) -> list[str]:
        """Translate the first few sources held out."""
        sources = [pair.source for pair in self.dataset.tokens("validation").pairs[:SAMPLES]]
        written = translate_texts(model, self.dataset.tokenizer, sources, Beam())
        return [f"{one.source} → {one.text}" for one in written]


@dataclass(frozen=True)
class LabelsLesson:
    """Of a classifier: its accuracy and F1 on the texts held out."""

    dataset: Splits[Labelled]

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
    dataset: Splits[Labelled],
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
) -> Splits[Labelled]:
    """Labelled texts as this body reads them."""
    refuse_misfit(data, body)
    return prepare_labels(
        data,
        length=longest(body),
        special_tokens=isinstance(body, Transformer),
        tokenizer=tokenizer,
        labels=labels or None,
        trees=drawer_for(body, data.labels, data.parser, watcher),
        progress=watched_reading(watcher),
    )


def told(dataset: Told, watcher: Observer) -> Told:
    """Say what was passed over or cut."""
    for said in dataset.skipped:
        watcher.say(said)
    return dataset
