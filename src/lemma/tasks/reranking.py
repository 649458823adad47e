"""Re-ranking: cross-attention re-orders the best candidates of a dual encoder."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64, Shaped, UInt8
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from lemma.data.batches import TokenRows
from lemma.data.images import CaptionedImages
from lemma.data.splits import Splits
from lemma.models.base import measuring, tokens_per_batch
from lemma.models.dual_encoder import CrossAttentionModel, DualEncoderModel, ImageTextPairs, embed_images, embed_texts
from lemma.report.progress import Observer
from lemma.report.result import Block, Table, to_plain
from lemma.report.statistics import Estimate, NamedValues, format_named_values
from lemma.runs.folder import RunFolder
from lemma.runs.load import Run, load
from lemma.spec.recipe import Recipe
from lemma.tasks.base import LossTerms, TaskLoss, data_protocol
from lemma.tasks.image_text import ImageTextLogits, ImageTextMask, ImageTextTask, check_batch, equal_rows
from lemma.tasks.registry import RERANKING
from lemma.tasks.retrieval_score import (
    DIRECTIONS,
    PairScores,
    Relevance,
    RetrievalScore,
    RowScores,
    bootstrap_ranks,
    rank_relevant,
    row_blocks,
    score_retrieval,
    vector_scores,
)

VALIDATION_IMAGES = 1000  # images that a validation scores at most, since cross-attention is slow


class RerankingTask(ImageTextTask):
    """Re-ranking of the best candidates of a dual encoder by cross-attention."""

    info = RERANKING

    def loss(self, model: CrossAttentionModel, recipe: Recipe, batches: Any = None) -> "RerankingLoss":
        """Return the re-ranker with its loss."""
        return RerankingLoss(model, recipe)

    def validate(self, model: CrossAttentionModel, data: Splits[CaptionedImages], recipe: Recipe) -> "RerankingScore":
        """Return the score of re-ranking on some of the validation images."""
        return score_reranker(model, sample_images(data.item("validation"), VALIDATION_IMAGES), samples=0)

    def score(
        self, run: Run, data: Splits[CaptionedImages], split: str, settings: Mapping[str, Any], observer: Observer
    ) -> "RerankingScore":
        """Return the score of re-ranking on a split, next to that of the dual encoder alone."""
        model = run.require(CrossAttentionModel, "a re-ranker")
        base = None
        if run.adaptation is not None and run.adaptation.method.kind != "frozen":  # the towers have changed since
            device = next(model.parameters()).device
            base = load(RunFolder.open(run.path).base().path, str(device)).require(DualEncoderModel, "a dual encoder")
        return score_reranker(model, data.item(split), base=base, protocol=data_protocol(data, split))

    def samples(self, model: CrossAttentionModel, data: Splits[CaptionedImages]) -> list[str]:
        """Return lines `image → caption`, retrieved by the dual encoder inside."""
        return super().samples(model.towers, data)


def sample_images(examples: CaptionedImages, number: int) -> CaptionedImages:
    """Return at most `number` of the images with all their captions, the same ones at each call."""
    num_images = len(examples.caption_bounds) - 1
    if num_images <= number:
        return examples
    indices = np.sort(np.random.default_rng(0).permutation(num_images)[:number])
    counts = np.diff(examples.caption_bounds)[indices]
    captions = np.concatenate([np.arange(*examples.caption_bounds[index : index + 2]) for index in indices])
    return CaptionedImages(
        np.asarray(examples.pixels[indices]),
        examples.rows.select(captions),
        np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]),
        examples.caption_ids[captions],
    )


def score_reranker(
    model: CrossAttentionModel,
    examples: CaptionedImages,
    *,
    base: DualEncoderModel | None = None,
    protocol: Mapping[str, Any] | None = None,
    samples: int = 1000,
) -> "RerankingScore":
    """Return a re-ranker's score both ways, next to that of the dual encoder `base`, by default the one inside it."""

    def dual_scores(towers: DualEncoderModel) -> PairScores:
        return vector_scores(embed_images(towers, examples.pixels), embed_texts(towers, examples.rows))

    return score_reranking(
        dual_scores(model.towers),
        Relevance.from_captions(examples),
        model.spec.candidates,
        PairLogits(model, examples.pixels, examples.rows),
        before=dual_scores(base) if base else None,
        protocol=protocol,
        samples=samples,
    )


# Loss

MAX_PAIR_ELEMENTS = 1 << 25  # elements of the hidden states of pairs read together; more are recomputed for backward


class Candidates(NamedTuple):
    """Masks of the image–text pairs to re-rank."""

    texts: ImageTextMask  # in each row, the texts among which the image's own text is to be found
    images: ImageTextMask  # in each column, the images among which the text's own image is to be found

    @property
    def either(self) -> ImageTextMask:
        """Mask of pairs that are candidates in at least one direction."""
        return self.texts | self.images


def select_candidates(logits: ImageTextLogits, number: int, duplicates: ImageTextMask | None = None) -> Candidates:
    """Return as candidates the `number` highest logits of each image (row) and text (column), and the diagonal.

    Where `duplicates` is true off the diagonal, as for two images with one caption, the pair is left out of both.

    >>> logits = torch.tensor([[1.0, 3.0, 2.0], [9.0, 0.0, 1.0], [0.0, 0.0, 5.0]])
    >>> select_candidates(logits, 2).texts.int().tolist()
    [[1, 1, 0], [1, 1, 0], [1, 0, 1]]
    """
    diagonal = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
    similarities = logits.detach().float()
    if duplicates is not None:
        similarities = similarities.masked_fill(duplicates, -torch.inf)
    similarities = similarities.masked_fill(diagonal, torch.inf)
    texts, images = _top_k_mask(similarities, number), _top_k_mask(similarities.T, number).T
    excluded = torch.zeros_like(diagonal) if duplicates is None else duplicates & ~diagonal
    return Candidates(texts & ~excluded, images & ~excluded)


def _top_k_mask(similarities: Float[Tensor, "queries candidates"], number: int) -> Bool[Tensor, "queries candidates"]:
    """Return a mask that is True for each query's `number` most similar candidates."""
    best = similarities.topk(min(number, similarities.shape[1]), dim=1).indices
    return torch.zeros_like(similarities, dtype=torch.bool).scatter_(1, best, True)


def reranking_loss(logits: ImageTextLogits, candidates: Candidates) -> Float[Tensor, ""]:
    """Return the mean over both directions of −log p(true partner) among the candidates, in nats.

    >>> reranking_loss(torch.zeros(4, 4), select_candidates(torch.zeros(4, 4), 2)).exp().item()  # chance: one of two
    2.0
    """
    targets = torch.arange(len(logits), device=logits.device)
    rows = logits.masked_fill(~candidates.texts, -torch.inf)
    columns = logits.T.masked_fill(~candidates.images.T, -torch.inf)
    return torch.stack([functional.cross_entropy(direction, targets) for direction in (rows, columns)]).mean()


class RerankingLoss(TaskLoss):
    """A re-ranker with its loss: each image finds its text among the dual encoder's k best of the batch and vice versa.

    With several processes, each has its candidates among its own rows.
    """

    compilable = False  # the number of pairs varies

    def __init__(self, model: CrossAttentionModel, recipe: Recipe) -> None:
        super().__init__()
        check_batch(recipe)
        self.model = model

    def forward(
        self, images: Shaped[Tensor, "rows 3 side side"], tokens: Int[Tensor, "rows time"], state: Any = None
    ) -> LossTerms:
        """Return the loss of a batch as `LossTerms`: loss, no state."""
        logits, candidates = self.logits(images, tokens)
        loss = reranking_loss(logits, candidates)
        return loss, (loss,), None

    def logits(
        self, images: Shaped[Tensor, "rows 3 side side"], tokens: Int[Tensor, "rows time"]
    ) -> tuple[Float[Tensor, "rows rows"], Candidates]:
        """Return the logits of all pairs, and the candidates, whose logits the re-ranker has corrected."""
        towers, mask = self.model.towers, tokens >= 0
        patches, words = towers.patches(images), towers.words(tokens)
        image_vectors, text_vectors = towers.project_image(patches).float(), towers.project_text(words, mask).float()
        with torch.autocast(image_vectors.device.type, enabled=False):  # bfloat16 is too coarse for logits of 100
            dual = towers.scale.float() * image_vectors @ text_vectors.T
        candidates = select_candidates(dual, self.model.spec.candidates, equal_rows(tokens))
        pairs = ImageTextPairs(*candidates.either.nonzero(as_tuple=True))
        block_size = max(1, MAX_PAIR_ELEMENTS // patches[0].numel())
        if len(pairs.images) <= block_size:
            terms = self.model(patches, words, mask, pairs).float()
        else:  # all pairs at once would take too much memory
            blocks = [ImageTextPairs(*block) for block in zip(*(part.split(block_size) for part in pairs), strict=True)]
            outputs = [checkpoint(self.model, patches, words, mask, block, use_reentrant=False) for block in blocks]
            terms = torch.cat([output.float() for output in outputs if output is not None])
        return dual + torch.zeros_like(dual).masked_scatter(candidates.either, terms), candidates


# Scores


@dataclass(frozen=True)
class RerankingGain:
    """Gain of re-ranking in one direction; fractions from 0 to 1."""

    recall: Estimate  # recall at 1 after re-ranking minus before, by a paired bootstrap
    better: int  # queries whose relevant candidate is first only after re-ranking
    worse: int  # queries whose relevant candidate is first only before
    ceiling: float  # fraction of the queries with a relevant candidate to re-rank: the upper bound of recall at 1

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values: recall and its interval, and the other fields."""
        values = {"recall_at_1": self.recall.value, "interval": self.recall.interval}
        return {**values, "better": self.better, "worse": self.worse, "ceiling": self.ceiling}

    def __str__(self) -> str:
        bounds = self.recall.interval
        interval = f"  (95 %: {100 * bounds[0]:+.2f} to {100 * bounds[1]:+.2f})" if bounds else ""
        return f"{100 * self.recall.value:+.2f} points{interval}"


@dataclass(frozen=True)
class RerankingScore(RetrievalScore):
    """Recall after re-ranking in both directions, next to that of the dual encoder alone.

    The loss is the mean over both directions of −log p(relevant item) among the candidates, in nats.
    """

    title = "Re-ranking"

    candidates: int  # number of candidates that are re-ranked
    image_to_text: RerankingGain
    text_to_image: RerankingGain

    @property
    def figures(self) -> dict[str, float]:
        """Recall at 1 and 10 and the gain in recall at 1, each the mean of both directions, from 0 to 1."""
        gain = (self.image_to_text.recall.value + self.text_to_image.recall.value) / 2
        return {**super().figures, "gain_at_1": gain}

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values of the retrieval score, with the gains and the number of candidates."""
        gains = {"image_to_text": self.image_to_text, "text_to_image": self.text_to_image}
        return to_plain({**super().to_dict(), "candidates": self.candidates, "gain": gains})

    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{format_named_values(self._gain_lines())}"

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of the retrieval score, and a table of the gains."""
        yield from super().blocks()
        yield Table(("", ""), self._gain_lines(), is_text=True)

    def _gain_lines(self) -> NamedValues:
        """Return (name, value) pairs for the table of gains in both directions."""
        lines = [("ranked again", f"the first {self.candidates} of the dual encoder")]
        for direction, gain in zip(DIRECTIONS, (self.image_to_text, self.text_to_image), strict=True):
            lines.append((f"gain, {direction}", f"{gain} in recall@1"))
            lines.append(("", f"{gain.better:,} put first only now, {gain.worse:,} only before"))
            lines.append(("", f"at most {100 * gain.ceiling:.2f} %: only these are among the {self.candidates}"))
        return lines


Indices = Int64[np.ndarray, " pairs"]
PairScorer = Callable[[Indices, Indices], Float[np.ndarray, " pairs"]]
"""Returns the logits of pairs, given the indices of their images and of their texts."""


@dataclass(frozen=True)
class TopK:
    """The best candidates of each query, and the re-ranker's logits, by which they are re-ordered."""

    indices: Int64[np.ndarray, "queries few"]
    logits: Float[np.ndarray, "queries few"]

    def rescore(
        self, scores_block: Float[np.ndarray, "queries candidates"], rows: slice
    ) -> Float[np.ndarray, "queries candidates"]:
        """Return the scores of the queries in `rows`, changed so that their top candidates come first, as re-ranked.

        >>> TopK(np.array([[2, 0]]), np.array([[1.0, 5.0]])).rescore(np.array([[3.0, 1.0, 4.0]]), slice(0, 1))
        array([[6., 1., 2.]])
        """
        scores, indices = scores_block.astype(np.float64), self.indices[rows]
        logits = self.logits[rows].astype(np.float64)
        np.put_along_axis(scores, indices, -np.inf, axis=1)
        highest = scores.max(1, keepdims=True, initial=-np.inf)
        highest = np.where(np.isfinite(highest), highest, 0.0)
        np.put_along_axis(scores, indices, highest + 1 + logits - logits.min(1, keepdims=True), axis=1)
        return scores


def top_candidates(
    scores: RowScores, num_queries: int, num_candidates: int, k: int
) -> Int64[np.ndarray, "queries few"]:
    """Return the indices of each query's `k` candidates with the highest scores, best first; ties by index."""
    blocks = row_blocks(num_queries, num_candidates)
    return np.concatenate([np.argsort(-scores(rows), axis=1, kind="stable")[:, :k] for rows in blocks])


def score_reranking(
    scores: PairScores,
    relevance: Relevance,
    number: int,
    score_pairs: PairScorer,
    *,
    before: PairScores | None = None,
    protocol: Mapping[str, Any] | None = None,
    samples: int = 1000,
    seed: int = 0,
) -> RerankingScore:
    """Return the score after re-ranking each query's `number` best candidates by `score_pairs`.

    Next to it is the score of `before`, by default of `scores`. The loss is that of training: −log p of each text and
    its image among the irrelevant candidates, both directions.
    """
    directions, before = relevance.directions(), before or scores
    num_texts = len(relevance.owners)
    texts = np.arange(num_texts)
    best_texts, best_images = (
        top_candidates(score, len(owners), candidates, number)
        for score, (_, owners, candidates) in zip(scores, directions, strict=True)
    )
    pair_ids = [  # image · num_texts + text, so that no pair is scored twice
        np.arange(len(best_texts))[:, None] * num_texts + best_texts,
        best_images * num_texts + texts[:, None],
        relevance.owners * num_texts + texts,
    ]
    pairs, inverse = np.unique(np.concatenate([ids.ravel() for ids in pair_ids]), return_inverse=True)
    logits = np.asarray(score_pairs(*np.divmod(pairs, num_texts)), dtype=np.float64)[inverse]
    parts = np.split(logits, np.cumsum([ids.size for ids in pair_ids])[:-1])
    text_logits, image_logits, own_logits = (part.reshape(ids.shape) for part, ids in zip(parts, pair_ids, strict=True))
    by_image, by_text = TopK(best_texts, text_logits), TopK(best_images, image_logits)
    after = PairScores(
        lambda rows: by_image.rescore(scores.of_images(rows), rows),
        lambda rows: by_text.rescore(scores.of_texts(rows), rows),
    )
    gains: list[RerankingGain] = []
    losses: list[float] = []
    queries = relevance.owners, texts  # the query of each text, in both directions
    for top, query, new_scores, old_scores, direction in zip(
        (by_image, by_text), queries, after, before, directions, strict=True
    ):
        is_relevant, owners, candidates = direction
        blocks = list(row_blocks(len(owners), candidates))
        mask = np.concatenate([np.take_along_axis(is_relevant(rows), top.indices[rows], axis=1) for rows in blocks])
        negatives = np.where(mask, -np.inf, top.logits)[query]
        normalizers = np.logaddexp.reduce(np.column_stack([own_logits, negatives]), axis=1)
        losses.append(float((normalizers - own_logits).mean()))
        hits, hits_before = (
            np.concatenate([rank_relevant(score(rows), is_relevant(rows)).hit_probabilities(1) for rows in blocks])
            for score in (new_scores, old_scores)
        )
        gain = hits - hits_before
        resamples, _ = bootstrap_ranks(hits, gain[None], owners, samples, seed)  # of the same images before and after
        recall, ceiling = Estimate.from_resamples(float(gain.mean()), resamples[0]), float(mask.any(1).mean())
        gains.append(RerankingGain(recall, int((gain > 0).sum()), int((gain < 0).sum()), ceiling))
    baselines, loss = {"dual encoder": before}, sum(losses) / 2
    score = score_retrieval(
        after, relevance, loss=loss, protocol=protocol, baselines=baselines, samples=samples, seed=seed
    )
    return RerankingScore(**vars(score), candidates=number, image_to_text=gains[0], text_to_image=gains[1])


@dataclass(frozen=True)
class PairLogits:
    """Function that returns a re-ranker's logits of pairs of these images and texts, given their indices."""

    model: CrossAttentionModel
    pixels: UInt8[np.ndarray, "images channels side side"]
    rows: TokenRows

    def __call__(self, images: Indices, texts: Indices) -> Float[np.ndarray, " pairs"]:
        """Return the logit of each pair, given the indices of its image and of its text."""
        result = np.zeros(len(images))
        towers = self.model.towers
        with measuring(self.model) as device:
            batch_size = max(1, tokens_per_batch(device) // towers.spec.grid**2)
            order = np.argsort(images, kind="stable")  # by image: the patches of one are computed for all its pairs
            for batch in np.split(order, range(batch_size, len(order), batch_size)):
                batch_images, image_index = np.unique(images[batch], return_inverse=True)
                batch_texts, text_index = np.unique(texts[batch], return_inverse=True)
                pixels = torch.from_numpy(np.ascontiguousarray(self.pixels[batch_images])).to(device)
                tokens = torch.from_numpy(self.rows.pad(batch_texts)).to(device)
                patches, words = towers.patches(pixels), towers.words(tokens)
                pairs = ImageTextPairs(*(torch.from_numpy(index).to(device) for index in (image_index, text_index)))
                result[batch] = self.model.logits(patches, words, tokens >= 0, pairs).double().cpu().numpy()
        return result
