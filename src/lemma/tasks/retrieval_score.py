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

from lemma.data.images import Captioned
from lemma.errors import InputError
from lemma.report.statistics import Estimate, Lines, lay_out, protocol_lines
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
class Belonging:
    """Which text belongs to which image: the image that owns each, and a number that equal texts share."""

    owners: Int64[np.ndarray, " texts"]
    names: Int64[np.ndarray, " texts"]

    @classmethod
    def of(cls, examples: Captioned) -> Self:
        """Which of the captions belong to which of the images."""
        _, names = np.unique(examples.names, return_inverse=True)
        return cls(examples.owners, names.astype(np.int64))

    def ways(self) -> tuple[tuple[RowScores, Int64[np.ndarray, " queries"], int], ...]:
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
        has = np.zeros((rows.stop - rows.start, int(self.names.max()) + 1), dtype=bool)
        has[self.owners[mine] - rows.start, self.names[mine]] = True
        return has[:, self.names]

    def of_texts(self, rows: slice) -> np.ndarray:
        """Which images are right for some of the texts: all that own the text or one that is the same."""
        right = np.zeros((rows.stop - rows.start, self.images), dtype=bool)
        queries, texts = np.nonzero(self.names[rows, None] == self.names)
        right[queries, self.owners[texts]] = True
        return right


BLOCK = 1 << 22
"""Scores that are looked at at once."""


class Places(NamedTuple):
    """Of each query: how many wrong candidates score higher than its best right one, and how many the same."""

    before: Int[np.ndarray, " queries"]
    tied: Int[np.ndarray, " queries"]
    right: Int[np.ndarray, " queries"]
    """How many right ones share that score, itself among them."""

    def ranks(self) -> Float[np.ndarray, " queries"]:
        """The mean rank of the first right one, over all orders of those that are tied; 1 is the best."""
        return self.before + 1 + self.tied / (self.right + 1)

    def hits(self, first: int) -> Float[np.ndarray, " queries"]:
        """The chance that a right one is among the first N, over all orders of those that are tied.

        Where nothing is tied it is 0 or 1. Else, of j places left, all are wrong with C(e, j) / C(e + r, j).

        >>> Places(np.array([0]), np.array([9]), np.array([1])).hits(1)
        array([0.1])
        """
        left = np.maximum(0, first - self.before)
        missed = np.ones(len(left))
        for place in range(int(left.max(initial=0))):
            there = np.maximum(self.tied - place, 0) / np.maximum(self.tied + self.right - place, 1)
            missed *= np.where(place < left, there, 1.0)
        return 1 - missed


def places_of(scores: Block, right: Bool[np.ndarray, "queries candidates"]) -> Places:
    """Find the best right candidate of every query; what is NaN scores lower than all else.

    >>> places_of(np.array([[0.1, 0.9, 0.5], [2.0, 2.0, 1.0]]), np.array([[0, 0, 1], [1, 0, 0]]) > 0).ranks()
    array([2. , 1.5])
    """
    known = np.where(np.isnan(scores), -np.inf, scores)
    best = np.where(right, known, -np.inf).max(1, keepdims=True)
    same = known == best
    return Places((known > best).sum(1), (same & ~right).sum(1), (same & right).sum(1))


def blocks_of(rows: int, columns: int) -> Iterator[slice]:
    """Rows in blocks of about BLOCK numbers."""
    size = max(1, BLOCK // max(1, columns))
    return (slice(start, min(rows, start + size)) for start in range(0, max(rows, 1), size))


Pixels = UInt8[np.ndarray, "images channels side side"]
AT_ONCE = 1 << 23
"""Numbers in the images that are compared at once."""
IMAGES = 1024
"""Images that are compared at once at most, however small they are."""


@dataclass(frozen=True)
class NearestPixel:
    """How alike images and texts are: minus the distance to the nearest learned image that carries just this text.

    A text that no learned image carries is at −∞: after all others, and at chance among its like. A learned image
    that is the very image that is asked about tells nothing, and is left out.
    """

    pixels: Pixels
    names: Int64[np.ndarray, " texts"]
    """The number of each text; equal texts have equal numbers."""
    learned: Pixels
    owners: Int64[np.ndarray, " captions"]
    """The learned image that each of the learned captions belongs to."""
    learned_names: Int64[np.ndarray, " captions"]

    def of_images(self, rows: slice) -> Float[np.ndarray, "images texts"]:
        """Some images' scores of all texts."""
        return -self._nearest(rows, self.names)

    def of_texts(self, rows: slice) -> Float[np.ndarray, "texts images"]:
        """Some texts' scores of all images."""
        return -self._nearest(slice(0, len(self.pixels)), self.names[rows]).T

    def known(self) -> int:
        """How many of the images were learned, pixel for pixel."""
        return int(np.isin(self._sums[0], self._sums[1]).sum())

    @cached_property
    def _sums(self) -> list[np.ndarray]:
        """A number for each image, the same for the same pixels: 64 bits of a hash."""
        sums = []
        for pixels in (self.pixels, self.learned):
            hashes = (blake2b(np.ascontiguousarray(image).tobytes(), digest_size=8).digest() for image in pixels)
            sums.append(np.frombuffer(b"".join(hashes), dtype="<u8"))
        return sums

    def _nearest(self, rows: slice, names: Int64[np.ndarray, " texts"]) -> Float[np.ndarray, "images texts"]:
        """The squared distance of some images to the nearest learned one that carries each of these texts."""
        wanted, places = np.unique(names, return_inverse=True)
        near = np.full((rows.stop - rows.start, len(wanted)), np.inf, dtype=np.float32)
        carrying = np.flatnonzero(np.isin(self.learned_names, wanted))
        images = np.unique(self.owners[carrying])
        for some in _cut(len(images), self.learned):
            chosen = images[some]
            captions = carrying[np.isin(self.owners[carrying], chosen)]
            captions = captions[np.argsort(self.learned_names[captions], kind="stable")]
            columns = np.searchsorted(wanted, self.learned_names[captions])
            reached, starts = np.unique(columns, return_index=True)
            carriers = np.searchsorted(chosen, self.owners[captions])
            others, sums = _flat(self.learned[chosen]), self._sums[1][chosen]
            for block in _cut(len(near), self.pixels):
                here = slice(rows.start + block.start, rows.start + block.stop)
                mine = _flat(self.pixels[here])
                distances = (mine**2).sum(1)[:, None] + (others**2).sum(1) - 2 * mine @ others.T
                distances[self._sums[0][here, None] == sums] = np.inf
                nearest = np.minimum.reduceat(distances[:, carriers], starts, axis=1)
                near[block, reached] = np.minimum(near[block, reached], nearest)
        return near[:, places]


def _cut(count: int, pixels: Pixels) -> Iterator[slice]:
    """Images in blocks of about AT_ONCE numbers, at most IMAGES."""
    size = min(IMAGES, max(1, AT_ONCE // int(np.prod(pixels.shape[1:]))))
    return (slice(start, min(count, start + size)) for start in range(0, count, size))


def _flat(pixels: Pixels) -> Float[np.ndarray, "images pixels"]:
    return pixels.reshape(len(pixels), -1).astype(np.float32) / 255 - 0.5


WAYS = ("image → text", "text → image")
FIRST = (1, 5, 10)
"""Among how many of the first the right one is looked for."""


@dataclass(frozen=True)
class OneWay:
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


class TwoWays(NamedTuple):
    """Both ways."""

    image_to_text: OneWay
    text_to_image: OneWay

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: way.to_dict() for name, way in self._asdict().items()}


@dataclass(frozen=True)
class RetrievalScore(Score):
    """Recall among the first 1, 5 and 10 and the median rank, both ways; chance and baselines next to them."""

    title = "Image and text retrieval"

    found: TwoWays
    loss: float
    """The contrastive loss in batches, nats/pair."""
    images: int
    texts: int
    baselines: Mapping[str, TwoWays]
    protocol: Mapping[str, Any]

    @property
    def figures(self) -> dict[str, float]:
        """The figures that a training run writes down at each validation: means of both ways."""
        return {f"recall_at_{first}": sum(way.recall[first].value for way in self.found) / 2 for first in (1, 10)}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON: None for what is infinite or NaN."""
        return {
            **self.found.to_dict(),
            "loss": self.loss if math.isfinite(self.loss) else None,
            "pictures": self.images,
            "texts": self.texts,
            "baselines": {name: ways.to_dict() for name, ways in self.baselines.items()},
            "protocol": dict(self.protocol),
        }

    def __str__(self) -> str:
        return "\n".join([*self._table(), "", lay_out(self._lines())])

    def _table(self) -> list[str]:
        def row(name: str, recall: Iterable[float], rank: float) -> str:
            return f"{name:<20}" + "".join(f"{100 * share:>12.2f} %" for share in recall) + f"{rank:>14,.1f}".rstrip()

        def found(name: str, way: OneWay) -> str:
            return row(name, [estimate.value for estimate in way.recall.values()], way.median_rank.value)

        def bounds(estimate: Estimate, scale: float, digits: int) -> str:
            low, high = estimate.interval or (math.nan, math.nan)
            return f"{f'{scale * low:,.{digits}f}–{scale * high:,.{digits}f}':>14}"

        lines = [f"{'':<20}" + "".join(f"{f'recall@{first}':>14}" for first in FIRST) + f"{'median rank':>14}"]
        for name, way, *others in zip(WAYS, self.found, *self.baselines.values(), strict=True):
            lines.append(found(name, way))
            if way.median_rank.interval:
                shares = [bounds(estimate, 100, 1) for estimate in way.recall.values()]
                lines.append(f"{'  95 %':<20}" + "".join(shares) + bounds(way.median_rank, 1, 0))
            lines += [found(f"  {other}", its) for other, its in zip(self.baselines, others, strict=True)]
            lines.append(row("  chance", way.chance.values(), way.chance_rank))
        return lines

    def _lines(self) -> Lines:
        return [
            ("loss", f"{self.loss:.4f} nats/pair"),
            ("images", f"{self.images:,}, all of them candidates for each text"),
            ("texts", f"{self.texts:,}, all of them candidates for each image"),
            *protocol_lines(self.protocol),
        ]


RETRIEVAL_AT_ONCE = 1 << 22
"""Numbers drawn at once in the bootstrap."""
EVEN = 1e-9
"""How far from a half a chance may be by rounding."""


def two_ways(scores: PairScores | NearestPixel, belonging: Belonging, *, samples: int = 1000, seed: int = 0) -> TwoWays:
    """Recall and median rank from images to texts and from texts to images; intervals by drawing images again."""
    ways: list[OneWay] = []
    for score, (right, owners, candidates) in zip((scores.of_images, scores.of_texts), belonging.ways(), strict=True):
        parts: list[Places] = []
        counts: list[np.ndarray] = []
        for rows in blocks_of(len(owners), candidates):
            mask = right(rows)
            parts.append(places_of(score(rows), mask))
            counts.append(mask.sum(1))
        found, number = Places(*map(np.concatenate, zip(*parts, strict=True))), np.concatenate(counts)
        chance = Places(np.zeros_like(number), candidates - number, number)  # as if all candidates were tied
        ranks, hits = found.ranks(), np.stack([found.hits(first) for first in FIRST])
        recalls, medians = resampled(ranks, hits, owners, samples, seed)
        recall = {first: Estimate.of(*both) for first, *both in zip(FIRST, hits.mean(1), recalls, strict=True)}
        guessed = {first: float(chance.hits(first).mean()) for first in FIRST}
        median = Estimate.of(float(np.median(ranks)), medians)
        ways.append(OneWay(len(ranks), candidates, recall, median, guessed, chance_rank(number, candidates)))
    return TwoWays(*ways)


def chance_rank(right: Int[np.ndarray, " queries"], candidates: int) -> float:
    """The median rank of the first right one if all orders are as likely, over queries with these counts of right ones.

    Of n candidates, r of them right, none is among the first j with C(n − r, j) / C(n, j).

    >>> chance_rank(np.array([1]), 20), chance_rank(np.array([2]), 20)
    (10.5, 6.0)
    """
    numbers, counts = np.unique(right, return_counts=True)
    places, later = np.arange(candidates), np.zeros(candidates)
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        passed = np.maximum(candidates - number - places, 0) / (candidates - places)
        later += count / len(right) * np.cumprod(passed)  # at place j: the chance of a rank above j + 1
    lower, upper = (1 + int((later <= bound).argmax()) for bound in (0.5 + EVEN, 0.5 - EVEN))
    return (lower + upper) / 2


def resampled(
    ranks: Float[np.ndarray, " queries"],
    hits: Float[np.ndarray, "firsts queries"],
    owners: Int64[np.ndarray, " queries"],
    samples: int,
    seed: int,
) -> tuple[Float[np.ndarray, "firsts samples"], Float[np.ndarray, " samples"]]:
    """Recalls and median ranks of images drawn with replacement, each with all its queries; candidates stay."""
    random, images = np.random.default_rng(seed), int(owners.max()) + 1
    order = np.argsort(ranks, kind="stable")
    step = max(1, RETRIEVAL_AT_ONCE // len(ranks))
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
    belonging: Belonging,
    *,
    loss: float,
    protocol: Mapping[str, Any] | None = None,
    baselines: Mapping[str, PairScores | NearestPixel] | None = None,
    samples: int = 1000,
    seed: int = 0,
) -> RetrievalScore:
    """Score both ways, and next to them what other scores of the same images and texts come to."""
    if not len(belonging.owners):
        raise InputError("no images to score. Give a folder or a split that holds some.")
    measure = partial(two_ways, belonging=belonging, samples=samples, seed=seed)
    bootstrap = {"intervals": f"bootstrap over images, {samples:,} samples, seed {seed}"} if samples else {}
    return RetrievalScore(
        found=measure(scores),
        loss=loss,
        images=belonging.images,
        texts=len(belonging.owners),
        baselines={name: measure(others) for name, others in (baselines or {}).items()},
        protocol={**(protocol or {}), **bootstrap},
    )
