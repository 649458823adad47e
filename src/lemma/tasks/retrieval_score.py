"""How well images find their captions and captions their images: recall, median rank, against chance.

An image is found if any of its captions is. Captions that are the same, of whichever image, are right for each of their
images. All are functions of plain arrays, computed in blocks: a hundred million scores fit in memory.
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
from lemma.report.statistics import Estimate, NamedValues, format_named_values, protocol_values
from lemma.tasks.base import Score

Block = Float[np.ndarray, "queries candidates"]
RowScores = Callable[[slice], Any]
"""The scores that some queries give all candidates, or which candidates are right for them."""


class PairScores(NamedTuple):
    """How alike every image and every text is, a block of rows at a time."""

    of_images: RowScores
    """Some images' scores of all texts."""
    of_texts: RowScores
    """Some texts' scores of all images."""


def vector_scores(images: Float[np.ndarray, "images shared"], texts: Float[np.ndarray, "texts shared"]) -> PairScores:
    """Scores that are inner products of vectors."""
    return PairScores(lambda rows: images[rows] @ texts.T, lambda rows: texts[rows] @ images.T)


@dataclass(frozen=True)
class Relevance:
    """Which text belongs to which image: the image that owns each, and a number that equal texts share."""

    owners: Int64[np.ndarray, " texts"]
    text_ids: Int64[np.ndarray, " texts"]

    @classmethod
    def from_captions(cls, examples: CaptionedImages) -> Self:
        """Which of the captions belong to which of the images."""
        _, names = np.unique(examples.caption_ids, return_inverse=True)
        return cls(examples.image_indices, names.astype(np.int64))

    def directions(self) -> tuple[tuple[RowScores, Int64[np.ndarray, " queries"], int], ...]:
        """From images to texts, and back: which candidates are right, the image of each query, and the candidates."""
        there = self.of_images, np.arange(self.images), len(self.owners)
        return there, (self.of_texts, self.owners, self.images)

    @property
    def images(self) -> int:
        """How many images there are; each owns a text at least."""
        return int(self.owners.max()) + 1

    def of_images(self, rows: slice) -> np.ndarray:
        """Which texts are right for some of the images: their own, and all that are the same."""
        mine = (self.owners >= rows.start) & (self.owners < rows.stop)
        has = np.zeros((rows.stop - rows.start, int(self.text_ids.max()) + 1), dtype=bool)
        has[self.owners[mine] - rows.start, self.text_ids[mine]] = True
        return has[:, self.text_ids]

    def of_texts(self, rows: slice) -> np.ndarray:
        """Which images are right for some of the texts: all that own the text or one that is the same."""
        right = np.zeros((rows.stop - rows.start, self.images), dtype=bool)
        queries, texts = np.nonzero(self.text_ids[rows, None] == self.text_ids)
        right[queries, self.owners[texts]] = True
        return right


BLOCK_SCORES = 1 << 22
"""Scores that are looked at at once."""


class Ranks(NamedTuple):
    """Of each query: how many wrong candidates score higher than its best right one, and how many the same."""

    num_higher: Int[np.ndarray, " queries"]
    num_tied: Int[np.ndarray, " queries"]
    num_relevant: Int[np.ndarray, " queries"]
    """How many right ones share that score, itself among them."""

    def mean_ranks(self) -> Float[np.ndarray, " queries"]:
        """The mean rank of the first right one, over all orders of those that are tied; 1 is the best."""
        return self.num_higher + 1 + self.num_tied / (self.num_relevant + 1)

    def hit_probabilities(self, cutoff: int) -> Float[np.ndarray, " queries"]:
        """The chance that a right one is among the first N, over all orders of those that are tied.

        Where nothing is tied it is 0 or 1. Else, of j places left, all are wrong with C(e, j) / C(e + r, j).

        >>> Places(np.array([0]), np.array([9]), np.array([1])).hits(1)
        array([0.1])
        """
        left = np.maximum(0, cutoff - self.num_higher)
        missed = np.ones(len(left))
        for place in range(int(left.max(initial=0))):
            there = np.maximum(self.num_tied - place, 0) / np.maximum(self.num_tied + self.num_relevant - place, 1)
            missed *= np.where(place < left, there, 1.0)
        return 1 - missed


def rank_relevant(scores: Block, is_relevant: Bool[np.ndarray, "queries candidates"]) -> Ranks:
    """Find the best right candidate of every query; what is NaN scores lower than all else.

    >>> places_of(np.array([[0.1, 0.9, 0.5], [2.0, 2.0, 1.0]]), np.array([[0, 0, 1], [1, 0, 0]]) > 0).ranks()
    array([2. , 1.5])
    """
    known = np.where(np.isnan(scores), -np.inf, scores)
    best = np.where(is_relevant, known, -np.inf).max(1, keepdims=True)
    same = known == best
    return Ranks((known > best).sum(1), (same & ~is_relevant).sum(1), (same & is_relevant).sum(1))


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Rows in blocks of about BLOCK numbers."""
    size = max(1, BLOCK_SCORES // max(1, columns))
    return (slice(start, min(rows, start + size)) for start in range(0, max(rows, 1), size))


Pixels = UInt8[np.ndarray, "images channels side side"]
PIXEL_BLOCK = 1 << 23
"""Numbers in the images that are compared at once."""
MAX_BLOCK_IMAGES = 1024
"""Images that are compared at once at most, however small they are."""


@dataclass(frozen=True)
class NearestPixel:
    """How alike images and texts are: minus the distance to the nearest learned image that carries just this text.

    A text that no learned image carries is at −∞: after all others, and at chance among its like. A learned image
    that is the very image that is asked about tells nothing, and is left out.
    """

    pixels: Pixels
    text_ids: Int64[np.ndarray, " texts"]
    """The number of each text; equal texts have equal numbers."""
    training_pixels: Pixels
    owners: Int64[np.ndarray, " captions"]
    """The learned image that each of the learned captions belongs to."""
    training_ids: Int64[np.ndarray, " captions"]

    def of_images(self, rows: slice) -> Float[np.ndarray, "images texts"]:
        """Some images' scores of all texts."""
        return -self._nearest(rows, self.text_ids)

    def of_texts(self, rows: slice) -> Float[np.ndarray, "texts images"]:
        """Some texts' scores of all images."""
        return -self._nearest(slice(0, len(self.pixels)), self.text_ids[rows]).T

    def count_training_images(self) -> int:
        """How many of the images were learned, pixel for pixel."""
        return int(np.isin(self._hashes[0], self._hashes[1]).sum())

    @cached_property
    def _hashes(self) -> list[np.ndarray]:
        """A number for each image, the same for the same pixels: 64 bits of a hash."""
        sums = []
        for pixels in (self.pixels, self.training_pixels):
            hashes = (blake2b(np.ascontiguousarray(image).tobytes(), digest_size=8).digest() for image in pixels)
            sums.append(np.frombuffer(b"".join(hashes), dtype="<u8"))
        return sums

    def _nearest(self, rows: slice, names: Int64[np.ndarray, " texts"]) -> Float[np.ndarray, "images texts"]:
        """The squared distance of some images to the nearest learned one that carries each of these texts."""
        wanted, places = np.unique(names, return_inverse=True)
        near = np.full((rows.stop - rows.start, len(wanted)), np.inf, dtype=np.float32)
        carrying = np.flatnonzero(np.isin(self.training_ids, wanted))
        images = np.unique(self.owners[carrying])
        for some in _image_blocks(len(images), self.training_pixels):
            chosen = images[some]
            captions = carrying[np.isin(self.owners[carrying], chosen)]
            captions = captions[np.argsort(self.training_ids[captions], kind="stable")]
            columns = np.searchsorted(wanted, self.training_ids[captions])
            reached, starts = np.unique(columns, return_index=True)
            carriers = np.searchsorted(chosen, self.owners[captions])
            others, sums = _flatten_pixels(self.training_pixels[chosen]), self._hashes[1][chosen]
            for block in _image_blocks(len(near), self.pixels):
                here = slice(rows.start + block.start, rows.start + block.stop)
                mine = _flatten_pixels(self.pixels[here])
                distances = (mine**2).sum(1)[:, None] + (others**2).sum(1) - 2 * mine @ others.T
                distances[self._hashes[0][here, None] == sums] = np.inf
                nearest = np.minimum.reduceat(distances[:, carriers], starts, axis=1)
                near[block, reached] = np.minimum(near[block, reached], nearest)
        return near[:, places]


def _image_blocks(count: int, pixels: Pixels) -> Iterator[slice]:
    """Images in blocks of about AT_ONCE numbers, at most IMAGES."""
    size = min(MAX_BLOCK_IMAGES, max(1, PIXEL_BLOCK // int(np.prod(pixels.shape[1:]))))
    return (slice(start, min(count, start + size)) for start in range(0, count, size))


def _flatten_pixels(pixels: Pixels) -> Float[np.ndarray, "images pixels"]:
    return pixels.reshape(len(pixels), -1).astype(np.float32) / 255 - 0.5


DIRECTIONS = ("image → text", "text → image")
CUTOFFS = (1, 5, 10)
"""Among how many of the first the right one is looked for."""


@dataclass(frozen=True)
class DirectionScore:
    """From images to texts, or from texts to images: shares from 0 to 1, and what guessing comes to."""

    queries: int
    candidates: int
    recall: Mapping[int, Estimate]
    """How often a right one is among the first 1, 5 and 10."""
    median_rank: Estimate
    chance: Mapping[int, float]
    """The same of candidates in random order."""
    chance_rank: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "queries": self.queries,
            "candidates": self.candidates,
            "recall": {str(first): estimate.value for first, estimate in self.recall.items()},
            "median_rank": self.median_rank.value,
            "intervals": {
                str(name): estimate.interval
                for name, estimate in [*self.recall.items(), ("median_rank", self.median_rank)]
                if estimate.interval
            },
            "chance": {str(first): share for first, share in self.chance.items()},
            "chance_rank": self.chance_rank,
        }


class DirectionScores(NamedTuple):
    """Both ways."""

    image_to_text: DirectionScore
    text_to_image: DirectionScore

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: way.to_dict() for name, way in self._asdict().items()}


@dataclass(frozen=True)
class RetrievalScore(Score):
    """Recall among the first 1, 5 and 10 and the median rank, both ways; chance and baselines next to them."""

    title = "Image and text retrieval"

    scores: DirectionScores
    loss: float
    """The contrastive loss in batches, nats/pair."""
    images: int
    texts: int
    baselines: Mapping[str, DirectionScores]
    protocol: Mapping[str, Any]

    @property
    def figures(self) -> dict[str, float]:
        """The figures that a training run writes down at each validation: means of both ways."""
        return {f"recall_at_{first}": sum(way.recall[first].value for way in self.scores) / 2 for first in (1, 10)}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON: None for what is infinite or NaN."""
        return {
            **self.scores.to_dict(),
            "loss": self.loss if math.isfinite(self.loss) else None,
            "pictures": self.images,
            "texts": self.texts,
            "baselines": {name: ways.to_dict() for name, ways in self.baselines.items()},
            "protocol": dict(self.protocol),
        }

    def __str__(self) -> str:
        return "\n".join([*self._table(), "", format_named_values(self._lines())])

    def _table(self) -> list[str]:
        def row(name: str, recall: Iterable[float], rank: float) -> str:
            return f"{name:<20}" + "".join(f"{100 * share:>12.2f} %" for share in recall) + f"{rank:>14,.1f}".rstrip()

        def found(name: str, way: DirectionScore) -> str:
            return row(name, [estimate.value for estimate in way.recall.values()], way.median_rank.value)

        def bounds(estimate: Estimate, scale: float, digits: int) -> str:
            low, high = estimate.interval or (math.nan, math.nan)
            return f"{f'{scale * low:,.{digits}f}–{scale * high:,.{digits}f}':>14}"

        lines = [f"{'':<20}" + "".join(f"{f'recall@{first}':>14}" for first in CUTOFFS) + f"{'median rank':>14}"]
        for name, way, *others in zip(DIRECTIONS, self.scores, *self.baselines.values(), strict=True):
            lines.append(found(name, way))
            if way.median_rank.interval:
                shares = [bounds(estimate, 100, 1) for estimate in way.recall.values()]
                lines.append(f"{'  95 %':<20}" + "".join(shares) + bounds(way.median_rank, 1, 0))
            lines += [found(f"  {other}", its) for other, its in zip(self.baselines, others, strict=True)]
            lines.append(row("  chance", way.chance.values(), way.chance_rank))
        return lines

    def _lines(self) -> NamedValues:
        return [
            ("loss", f"{self.loss:.4f} nats/pair"),
            ("images", f"{self.images:,}, all of them candidates for each text"),
            ("texts", f"{self.texts:,}, all of them candidates for each image"),
            *protocol_values(self.protocol),
        ]


BOOTSTRAP_ELEMENTS = 1 << 22
"""Numbers drawn at once in the bootstrap."""
ROUNDING = 1e-9
"""How far from a half a chance may be by rounding."""


def score_directions(
    scores: PairScores | NearestPixel, relevance: Relevance, *, samples: int = 1000, seed: int = 0
) -> DirectionScores:
    """Recall and median rank from images to texts and from texts to images; intervals by drawing images again."""
    ways: list[DirectionScore] = []
    for score, (right, owners, candidates) in zip(
        (scores.of_images, scores.of_texts), relevance.directions(), strict=True
    ):
        parts: list[Ranks] = []
        counts: list[np.ndarray] = []
        for rows in row_blocks(len(owners), candidates):
            mask = right(rows)
            parts.append(rank_relevant(score(rows), mask))
            counts.append(mask.sum(1))
        found, number = Ranks(*map(np.concatenate, zip(*parts, strict=True))), np.concatenate(counts)
        chance = Ranks(np.zeros_like(number), candidates - number, number)  # as if all candidates were tied
        ranks, hits = found.mean_ranks(), np.stack([found.hit_probabilities(first) for first in CUTOFFS])
        recalls, medians = bootstrap_ranks(ranks, hits, owners, samples, seed)
        recall = {
            first: Estimate.from_resamples(*both) for first, *both in zip(CUTOFFS, hits.mean(1), recalls, strict=True)
        }
        guessed = {first: float(chance.hit_probabilities(first).mean()) for first in CUTOFFS}
        median = Estimate.from_resamples(float(np.median(ranks)), medians)
        ways.append(DirectionScore(len(ranks), candidates, recall, median, guessed, chance_rank(number, candidates)))
    return DirectionScores(*ways)


def chance_rank(num_relevant: Int[np.ndarray, " queries"], candidates: int) -> float:
    """The median rank of the first right one if all orders are as likely, over queries with these counts of right ones.

    Of n candidates, r of them right, none is among the first j with C(n − r, j) / C(n, j).

    >>> chance_rank(np.array([1]), 20), chance_rank(np.array([2]), 20)
    (10.5, 6.0)
    """
    numbers, counts = np.unique(num_relevant, return_counts=True)
    places, later = np.arange(candidates), np.zeros(candidates)
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        passed = np.maximum(candidates - number - places, 0) / (candidates - places)
        later += count / len(num_relevant) * np.cumprod(passed)  # at place j: the chance of a rank above j + 1
    lower, upper = (1 + int((later <= bound).argmax()) for bound in (0.5 + ROUNDING, 0.5 - ROUNDING))
    return (lower + upper) / 2


def bootstrap_ranks(
    ranks: Float[np.ndarray, " queries"],
    hits: Float[np.ndarray, "firsts queries"],
    owners: Int64[np.ndarray, " queries"],
    samples: int,
    seed: int,
) -> tuple[Float[np.ndarray, "firsts samples"], Float[np.ndarray, " samples"]]:
    """Recalls and median ranks of images drawn with replacement, each with all its queries; candidates stay."""
    random, images = np.random.default_rng(seed), int(owners.max()) + 1
    order = np.argsort(ranks, kind="stable")
    step = max(1, BOOTSTRAP_ELEMENTS // len(ranks))
    recalls, medians = [np.zeros((len(hits), 0))], [np.zeros(0)]
    for start in range(0, samples, step):
        drawn = random.integers(0, images, (min(step, samples - start), images))
        times = np.stack([np.bincount(row, minlength=images) for row in drawn])[:, owners].astype(np.float64)
        recalls.append(hits @ times.T / times.sum(1))
        until = times[:, order].cumsum(1)  # how many were drawn up to each rank
        half = until[:, -1:] / 2
        lower, upper = (until >= half).argmax(1), (until > half).argmax(1)
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
    """Score both ways, and next to them what other scores of the same images and texts come to."""
    if not len(relevance.owners):
        raise InputError("no images to score. Give a folder or a split that holds some.")
    measure = partial(score_directions, relevance=relevance, samples=samples, seed=seed)
    bootstrap = {"intervals": f"bootstrap over images, {samples:,} samples, seed {seed}"} if samples else {}
    return RetrievalScore(
        scores=measure(scores),
        loss=loss,
        images=relevance.images,
        texts=len(relevance.owners),
        baselines={name: measure(others) for name, others in (baselines or {}).items()},
        protocol={**(protocol or {}), **bootstrap},
    )
