"""Scores of retrieval between images and captions: recall and median rank, next to chance.

An image is found if any of its captions is. Equal captions are relevant for each of their images. Scores are computed
in blocks of rows, so that a hundred million of them need little memory.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Float, Int, Int64, UInt8

from lemma.data.images import CaptionedImages
from lemma.errors import InputError
from lemma.report.result import to_plain
from lemma.report.statistics import Estimate, NamedValues, format_named_values, protocol_values
from lemma.tasks.base import Score

Block = Float[np.ndarray, "queries candidates"]
RowScores = Callable[[slice], Any]
"""Returns the scores of all candidates for some queries, or which candidates are relevant for them."""


class PairScores(NamedTuple):
    """Similarities of all images and all texts, computed for a block of rows at a time."""

    of_images: RowScores  # scores of all texts for some images
    of_texts: RowScores  # scores of all images for some texts


def vector_scores(images: Float[np.ndarray, "images shared"], texts: Float[np.ndarray, "texts shared"]) -> PairScores:
    """Return the similarities of all images with all texts: inner products of their vectors."""
    return PairScores(lambda rows: images[rows] @ texts.T, lambda rows: texts[rows] @ images.T)


@dataclass(frozen=True)
class Relevance:
    """Relevance of texts for images and of images for texts, as matrices of True and False."""

    owners: Int64[np.ndarray, " texts"]  # index of the image that owns each text
    text_ids: Int64[np.ndarray, " texts"]  # equal texts have equal ids

    @classmethod
    def from_captions(cls, examples: CaptionedImages) -> Self:
        """Return which captions are relevant for which images, and vice versa."""
        _, text_ids = np.unique(examples.caption_ids, return_inverse=True)
        return cls(examples.image_indices, text_ids.astype(np.int64))

    def directions(self) -> tuple[tuple[RowScores, Int64[np.ndarray, " queries"], int], ...]:
        """Return, for image → text and text → image: (relevance by rows, image of each query, number of candidates)."""
        image_to_text = self.of_images, np.arange(self.images), len(self.owners)
        return image_to_text, (self.of_texts, self.owners, self.images)

    @property
    def images(self) -> int:
        """Number of images; each owns at least one text."""
        return int(self.owners.max()) + 1

    def of_images(self, rows: slice) -> np.ndarray:
        """Return a matrix for the images in `rows`: True at their own texts, and at all texts equal to one of these."""
        is_owned = (self.owners >= rows.start) & (self.owners < rows.stop)
        has_text = np.zeros((rows.stop - rows.start, int(self.text_ids.max()) + 1), dtype=bool)
        has_text[self.owners[is_owned] - rows.start, self.text_ids[is_owned]] = True
        return has_text[:, self.text_ids]

    def of_texts(self, rows: slice) -> np.ndarray:
        """Return a matrix (texts in `rows`) × images: True at all images that have this text or an equal one."""
        is_relevant = np.zeros((rows.stop - rows.start, self.images), dtype=bool)
        queries, texts = np.nonzero(self.text_ids[rows, None] == self.text_ids)
        is_relevant[queries, self.owners[texts]] = True
        return is_relevant


BLOCK_SCORES = 1 << 22  # scores that are computed at once


class Ranks(NamedTuple):
    """Rank of the best relevant candidate of each query, as counts of the candidates before it and tied with it."""

    num_higher: Int[np.ndarray, " queries"]  # irrelevant candidates with a higher score
    num_tied: Int[np.ndarray, " queries"]  # irrelevant candidates with the same score
    num_relevant: Int[np.ndarray, " queries"]  # relevant candidates with the same score, itself included

    def mean_ranks(self) -> Float[np.ndarray, " queries"]:
        """Return each query's rank of its best relevant candidate, averaged over all orders of ties; 1 is the best."""
        return self.num_higher + 1 + self.num_tied / (self.num_relevant + 1)

    def hit_probabilities(self, cutoff: int) -> Float[np.ndarray, " queries"]:
        """Return each query's probability of a relevant candidate in the first `cutoff`, ties in random order.

        Without ties it is 0 or 1. Otherwise all of the j remaining ranks are irrelevant with C(e, j) / C(e + r, j).

        >>> Ranks(np.array([0]), np.array([9]), np.array([1])).hit_probabilities(1)
        array([0.1])
        """
        remaining = np.maximum(0, cutoff - self.num_higher)
        miss = np.ones(len(remaining))
        for rank in range(int(remaining.max(initial=0))):
            tied = np.maximum(self.num_tied - rank, 0)
            total = np.maximum(self.num_tied + self.num_relevant - rank, 1)
            miss *= np.where(rank < remaining, tied / total, 1.0)
        return 1 - miss


def rank_relevant(scores: Block, is_relevant: Bool[np.ndarray, "queries candidates"]) -> Ranks:
    """Return the rank of the best relevant candidate of each query; NaN scores are lowest.

    >>> rank_relevant(np.array([[0.1, 0.9, 0.5], [2.0, 2.0, 1.0]]), np.array([[0, 0, 1], [1, 0, 0]]) > 0).mean_ranks()
    array([2. , 1.5])
    """
    scores = np.where(np.isnan(scores), -np.inf, scores)
    best = np.where(is_relevant, scores, -np.inf).max(1, keepdims=True)
    is_tied = scores == best
    return Ranks((scores > best).sum(1), (is_tied & ~is_relevant).sum(1), (is_tied & is_relevant).sum(1))


def row_blocks(num_rows: int, num_columns: int) -> Iterator[slice]:
    """Yield slices that cover `num_rows` rows of a score matrix, in blocks of about `BLOCK_SCORES` scores."""
    size = max(1, BLOCK_SCORES // max(1, num_columns))
    return (slice(start, min(num_rows, start + size)) for start in range(0, max(num_rows, 1), size))


Pixels = UInt8[np.ndarray, "images channels side side"]
PIXEL_BLOCK = 1 << 23  # pixel values that are compared at once
MAX_BLOCK_IMAGES = 1024  # images that are compared at once


@dataclass(frozen=True)
class NearestPixel:
    """Baseline: the similarity of image and text is minus the distance to the nearest training image with that text.

    Texts without a training image are at −∞, tied with each other. A training image that equals the query is left out.
    """

    pixels: Pixels
    text_ids: Int64[np.ndarray, " texts"]  # equal texts have equal ids
    training_pixels: Pixels
    owners: Int64[np.ndarray, " captions"]  # index of the training image of each training caption
    training_ids: Int64[np.ndarray, " captions"]

    def of_images(self, rows: slice) -> Float[np.ndarray, "images texts"]:
        """Return the similarities of the images in `rows` with all texts."""
        return -self._distances(rows, self.text_ids)

    def of_texts(self, rows: slice) -> Float[np.ndarray, "texts images"]:
        """Return the similarities of the texts in `rows` with all images."""
        return -self._distances(slice(0, len(self.pixels)), self.text_ids[rows]).T

    def count_seen_in_training(self) -> int:
        """Return how many of the scored images equal a training image, pixel for pixel."""
        return int(np.isin(self._hashes[0], self._hashes[1]).sum())

    @cached_property
    def _hashes(self) -> list[np.ndarray]:
        """Two arrays of 64-bit hashes: of the scored images, and of the training images."""
        result = []
        for pixels in (self.pixels, self.training_pixels):
            hashes = (blake2b(np.ascontiguousarray(image).tobytes(), digest_size=8).digest() for image in pixels)
            result.append(np.frombuffer(b"".join(hashes), dtype="<u8"))
        return result

    def _distances(self, rows: slice, text_ids: Int64[np.ndarray, " texts"]) -> Float[np.ndarray, "images texts"]:
        """Return squared pixel distances of the images in `rows` to the nearest training image with each text."""
        distinct, inverse = np.unique(text_ids, return_inverse=True)
        nearest = np.full((rows.stop - rows.start, len(distinct)), np.inf, dtype=np.float32)
        captions = np.flatnonzero(np.isin(self.training_ids, distinct))
        images = np.unique(self.owners[captions])
        for training_block in _image_blocks(len(images), self.training_pixels):
            training = images[training_block]
            block_captions = captions[np.isin(self.owners[captions], training)]
            block_captions = block_captions[np.argsort(self.training_ids[block_captions], kind="stable")]
            columns = np.searchsorted(distinct, self.training_ids[block_captions])
            column_ids, starts = np.unique(columns, return_index=True)
            caption_images = np.searchsorted(training, self.owners[block_captions])
            training_vectors = _flatten_pixels(self.training_pixels[training])
            for block in _image_blocks(len(nearest), self.pixels):
                queries = slice(rows.start + block.start, rows.start + block.stop)
                vectors = _flatten_pixels(self.pixels[queries])
                squares = (vectors**2).sum(1)[:, None] + (training_vectors**2).sum(1)
                distances = squares - 2 * vectors @ training_vectors.T
                distances[self._hashes[0][queries, None] == self._hashes[1][training]] = np.inf
                by_text = np.minimum.reduceat(distances[:, caption_images], starts, axis=1)
                nearest[block, column_ids] = np.minimum(nearest[block, column_ids], by_text)
        return nearest[:, inverse]


def _image_blocks(count: int, pixels: Pixels) -> Iterator[slice]:
    """Yield slices that cover `count` images, each of as many images as have about `PIXEL_BLOCK` values together."""
    size = min(MAX_BLOCK_IMAGES, max(1, PIXEL_BLOCK // int(np.prod(pixels.shape[1:]))))
    return (slice(start, min(count, start + size)) for start in range(0, count, size))


def _flatten_pixels(pixels: Pixels) -> Float[np.ndarray, "images pixels"]:
    """Return 8-bit images as rows of numbers from −0.5 to 0.5."""
    return pixels.reshape(len(pixels), -1).astype(np.float32) / 255 - 0.5


DIRECTIONS = ("image → text", "text → image")
CUTOFFS = (1, 5, 10)  # of recall


@dataclass(frozen=True)
class DirectionScore:
    """Score from images to texts, or from texts to images; fractions from 0 to 1."""

    queries: int
    candidates: int
    recall: Mapping[int, Estimate]  # fraction of the queries with a relevant candidate among the first 1, 5 and 10
    median_rank: Estimate
    chance: Mapping[int, float]  # the recall of candidates in random order
    chance_rank: float  # the median rank of candidates in random order

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values: recalls, median rank, their intervals, and chance."""
        return {
            "queries": self.queries,
            "candidates": self.candidates,
            "recall": {str(cutoff): estimate.value for cutoff, estimate in self.recall.items()},
            "median_rank": self.median_rank.value,
            "intervals": {
                str(name): estimate.interval
                for name, estimate in [*self.recall.items(), ("median_rank", self.median_rank)]
                if estimate.interval
            },
            "chance": {str(cutoff): recall for cutoff, recall in self.chance.items()},
            "chance_rank": self.chance_rank,
        }


class DirectionScores(NamedTuple):
    """Scores in both directions."""

    image_to_text: DirectionScore
    text_to_image: DirectionScore

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values of each direction by its name."""
        return {name: direction.to_dict() for name, direction in self._asdict().items()}


@dataclass(frozen=True)
class RetrievalScore(Score):
    """Recall at 1, 5 and 10 and median rank in both directions, next to chance and baselines."""

    title = "Image and text retrieval"

    scores: DirectionScores
    loss: float  # contrastive loss in batches, nats/pair
    images: int
    texts: int
    baselines: Mapping[str, DirectionScores]
    protocol: Mapping[str, Any]

    @property
    def figures(self) -> dict[str, float]:
        """Recall at 1 and 10 by name, each the mean of both directions, from 0 to 1."""
        return {f"recall_at_{n}": sum(direction.recall[n].value for direction in self.scores) / 2 for n in (1, 10)}

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values: both directions, loss, numbers of images and texts, baselines, protocol."""
        names = ("loss", "images", "texts", "baselines", "protocol")
        return to_plain({**self.scores.to_dict(), **{name: getattr(self, name) for name in names}})

    def __str__(self) -> str:
        return "\n".join([*self._table(), "", format_named_values(self._lines())])

    def _table(self) -> list[str]:
        """Return the lines of the table of recalls and median ranks, with chance and baselines below."""

        def row(name: str, recall: Iterable[float], rank: float) -> str:
            return f"{name:<20}" + "".join(f"{100 * value:>12.2f} %" for value in recall) + f"{rank:>14,.1f}".rstrip()

        def score_row(name: str, score: DirectionScore) -> str:
            return row(name, [estimate.value for estimate in score.recall.values()], score.median_rank.value)

        def bounds(estimate: Estimate, scale: float, digits: int) -> str:
            low, high = estimate.interval or (math.nan, math.nan)
            return f"{f'{scale * low:,.{digits}f}–{scale * high:,.{digits}f}':>14}"

        lines = [f"{'':<20}" + "".join(f"{f'recall@{cutoff}':>14}" for cutoff in CUTOFFS) + f"{'median rank':>14}"]
        for name, score, *baselines in zip(DIRECTIONS, self.scores, *self.baselines.values(), strict=True):
            lines.append(score_row(name, score))
            if score.median_rank.interval:
                intervals = [bounds(estimate, 100, 1) for estimate in score.recall.values()]
                lines.append(f"{'  95 %':<20}" + "".join(intervals) + bounds(score.median_rank, 1, 0))
            named = zip(self.baselines, baselines, strict=True)
            lines += [score_row(f"  {baseline_name}", baseline) for baseline_name, baseline in named]
            lines.append(row("  chance", score.chance.values(), score.chance_rank))
        return lines

    def _lines(self) -> NamedValues:
        """Return (name, value) pairs for the summary: loss, numbers of images and texts, protocol."""
        return [
            ("loss", f"{self.loss:.4f} nats/pair"),
            ("images", f"{self.images:,}, all of them candidates for each text"),
            ("texts", f"{self.texts:,}, all of them candidates for each image"),
            *protocol_values(self.protocol),
        ]


BOOTSTRAP_ELEMENTS = 1 << 22  # numbers drawn at once
ROUNDING = 1e-9  # tolerance of a probability of one half


def score_directions(
    scores: PairScores | NearestPixel, relevance: Relevance, *, samples: int = 1000, seed: int = 0
) -> DirectionScores:
    """Return recalls and median rank in both directions, with bootstrap intervals over the images."""
    results: list[DirectionScore] = []
    for score, (is_relevant, owners, candidates) in zip(
        (scores.of_images, scores.of_texts), relevance.directions(), strict=True
    ):
        blocks: list[Ranks] = []
        counts: list[np.ndarray] = []
        for rows in row_blocks(len(owners), candidates):
            mask = is_relevant(rows)
            blocks.append(rank_relevant(score(rows), mask))
            counts.append(mask.sum(1))
        best, num_relevant = Ranks(*map(np.concatenate, zip(*blocks, strict=True))), np.concatenate(counts)
        chance = Ranks(np.zeros_like(num_relevant), candidates - num_relevant, num_relevant)  # all candidates tied
        ranks, hits = best.mean_ranks(), np.stack([best.hit_probabilities(cutoff) for cutoff in CUTOFFS])
        recalls, medians = bootstrap_ranks(ranks, hits, owners, samples, seed)
        results.append(
            DirectionScore(
                queries=len(ranks),
                candidates=candidates,
                recall=dict(zip(CUTOFFS, map(Estimate.from_resamples, hits.mean(1), recalls), strict=True)),
                median_rank=Estimate.from_resamples(float(np.median(ranks)), medians),
                chance={cutoff: float(chance.hit_probabilities(cutoff).mean()) for cutoff in CUTOFFS},
                chance_rank=chance_rank(num_relevant, candidates),
            )
        )
    return DirectionScores(*results)


def chance_rank(num_relevant: Int[np.ndarray, " queries"], num_candidates: int) -> float:
    """Return the median rank of the first relevant candidate in random order, if query i has `num_relevant[i]` of them.

    If r of n candidates are relevant, none is among the first j with probability C(n − r, j) / C(n, j).

    >>> chance_rank(np.array([1]), 20), chance_rank(np.array([2]), 20)
    (10.5, 6.0)
    """
    numbers, counts = np.unique(num_relevant, return_counts=True)
    ranks, later = np.arange(num_candidates), np.zeros(num_candidates)
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        misses = np.maximum(num_candidates - number - ranks, 0) / (num_candidates - ranks)
        later += count / len(num_relevant) * np.cumprod(misses)  # at index j: the probability of a rank above j + 1
    lower, upper = (1 + int((later <= bound).argmax()) for bound in (0.5 + ROUNDING, 0.5 - ROUNDING))
    return (lower + upper) / 2


def bootstrap_ranks(
    ranks: Float[np.ndarray, " queries"],
    hits: Float[np.ndarray, "cutoffs queries"],
    owners: Int64[np.ndarray, " queries"],
    samples: int,
    seed: int,
) -> tuple[Float[np.ndarray, "cutoffs samples"], Float[np.ndarray, " samples"]]:
    """Return recalls and median ranks of bootstrap samples of images with their queries (`owners`: their images)."""
    random, images = np.random.default_rng(seed), int(owners.max()) + 1
    order = np.argsort(ranks, kind="stable")
    step = max(1, BOOTSTRAP_ELEMENTS // len(ranks))
    recalls, medians = [np.zeros((len(hits), 0))], [np.zeros(0)]
    for start in range(0, samples, step):
        draws = random.integers(0, images, (min(step, samples - start), images))
        counts = np.stack([np.bincount(row, minlength=images) for row in draws])[:, owners].astype(np.float64)
        recalls.append(hits @ counts.T / counts.sum(1))
        cumulative = counts[:, order].cumsum(1)  # queries drawn up to each rank
        half = cumulative[:, -1:] / 2
        lower, upper = (cumulative >= half).argmax(1), (cumulative > half).argmax(1)
        medians.append((ranks[order][lower] + ranks[order][upper]) / 2)
    return np.concatenate(recalls, axis=1), np.concatenate(medians)


def score_retrieval(
    scores: PairScores | NearestPixel,
    relevance: Relevance,
    *,
    loss: float,
    protocol: Mapping[str, Any] | None = None,
    baselines: Mapping[str, PairScores | NearestPixel] | None = None,
    samples: int = 1000,
    seed: int = 0,
) -> RetrievalScore:
    """Return the retrieval score both ways, next to baselines (name → other similarities of these images and texts)."""
    if not len(relevance.owners):
        raise InputError("no images to score. Give a folder or a split that holds some.")
    measure = partial(score_directions, relevance=relevance, samples=samples, seed=seed)
    bootstrap = {"intervals": f"bootstrap over images, {samples:,} samples, seed {seed}"} if samples else {}
    return RetrievalScore(
        scores=measure(scores),
        loss=loss,
        images=relevance.images,
        texts=len(relevance.owners),
        baselines={name: measure(baseline) for name, baseline in (baselines or {}).items()},
        protocol={**(protocol or {}), **bootstrap},
    )
