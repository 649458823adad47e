"""How well images find their captions and captions their images: recall, median rank, against chance.

An image is found if any of its captions is. Captions that are the same, of whichever image, are right for each of their
images. All are functions of plain arrays, computed in blocks: a hundred million scores fit in memory.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
from jaxtyping import Bool, Float, Int, Int64, UInt8

from lemma.data.images import Captioned
from lemma.errors import InputError
from lemma.report.statistics import Estimate, Lines, lay_out, protocol_lines
from lemma.tasks.base import Score


@dataclass(frozen=True)
class Belonging:
    """Which text belongs to which image: the image that owns each, and a number that equal texts share."""

    owners: Int64[np.ndarray, "texts"]
    names: Int64[np.ndarray, "texts"]

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


def belonging_of(examples: Captioned) -> Belonging:
    """Which of the captions belong to which of the images."""
    _, names = np.unique(examples.names, return_inverse=True)
    return Belonging(owners_of(examples), names.astype(np.int64))


def owners_of(examples: Captioned) -> Int64[np.ndarray, "texts"]:
    """The image that each caption belongs to."""
    counts = np.diff(examples.first)
    return np.repeat(np.arange(len(counts)), counts)


BLOCK = 1 << 22
"""Scores that are looked at at once."""

Right = Bool[np.ndarray, "queries candidates"] | Int[np.ndarray, "queries"]
"""Which candidates are right for each query: a mask, or the place of the only one."""


@dataclass(frozen=True)
class Places:
    """Of each query: how many wrong candidates score higher than its best right one, and how many the same."""

    before: Int[np.ndarray, "queries"]
    tied: Int[np.ndarray, "queries"]
    right: Int[np.ndarray, "queries"]
    """How many right ones share that score, itself among them."""

    def ranks(self) -> Float[np.ndarray, "queries"]:
        """The mean rank of the first right one, over all orders of those that are tied; 1 is the best."""
        return self.before + 1 + self.tied / (self.right + 1)

    def hits(self, first: int) -> Float[np.ndarray, "queries"]:
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

    @classmethod
    def joined(cls, parts: list["Places"]) -> "Places":
        """The places of several blocks of queries, one after the other."""
        columns = ([part.before for part in parts], [part.tied for part in parts], [part.right for part in parts])
        return cls(*(np.concatenate(column) for column in columns))


def places_of(scores: Float[np.ndarray, "queries candidates"], right: Right) -> Places:
    """Find the best right candidate of every query; what is NaN scores lower than all else."""
    mask = right if right.ndim == 2 else np.arange(scores.shape[1]) == right[:, None]
    known = np.where(np.isnan(scores), -np.inf, scores)
    best = np.where(mask, known, -np.inf).max(1, keepdims=True)
    same = known == best
    return Places((known > best).sum(1), (same & ~mask).sum(1), (same & mask).sum(1))


def ranks_of(scores: Float[np.ndarray, "queries candidates"], right: Right) -> Float[np.ndarray, "queries"]:
    """The rank of each query's best right candidate: 1 is the best, and a tie counts half a place.

    >>> ranks_of(np.array([[0.1, 0.9, 0.5], [2.0, 2.0, 1.0]]), np.array([2, 0]))
    array([2. , 1.5])
    """
    blocks = (rows for rows in blocks_of(len(scores), scores.shape[1]))
    return Places.joined([places_of(scores[rows], right[rows]) for rows in blocks]).ranks()


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
    names: Int64[np.ndarray, "texts"]
    """The number of each text; equal texts have equal numbers."""
    learned: Pixels
    owners: Int64[np.ndarray, "captions"]
    """The learned image that each of the learned captions belongs to."""
    learned_names: Int64[np.ndarray, "captions"]

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
    def _sums(self) -> tuple[np.ndarray, np.ndarray]:
        return _sums(self.pixels), _sums(self.learned)

    def _nearest(self, rows: slice, names: Int64[np.ndarray, "texts"]) -> Float[np.ndarray, "images texts"]:
        """The distance of some images to the nearest learned one that carries each of these texts."""
        wanted, places = np.unique(names, return_inverse=True)
        near = np.full((rows.stop - rows.start, len(wanted)), np.inf, dtype=np.float32)
        carrying = np.flatnonzero(np.isin(self.learned_names, wanted))
        images = np.unique(self.owners[carrying])
        for some in _cut(len(images), self.learned):
            chosen = images[some]
            captions = carrying[np.isin(self.owners[carrying], chosen)]
            captions = captions[np.argsort(self.learned_names[captions], kind="stable")]
            self._bring_nearer(near, rows, chosen, captions, np.searchsorted(wanted, self.learned_names[captions]))
        return near[:, places]

    def _bring_nearer(
        self,
        near: Float[np.ndarray, "images wanted"],
        rows: slice,
        chosen: Int64[np.ndarray, "some"],
        captions: Int64[np.ndarray, "captions"],
        columns: Int64[np.ndarray, "captions"],
    ) -> None:
        """Let distances to some more learned images count where they are the smallest so far."""
        reached, starts = np.unique(columns, return_index=True)
        others, sums = _flat(self.learned[chosen]), self._sums[1][chosen]
        carriers = np.searchsorted(chosen, self.owners[captions])
        for block in _cut(len(near), self.pixels):
            here = slice(rows.start + block.start, rows.start + block.stop)
            same = self._sums[0][here, None] == sums
            distances = _distances(_flat(self.pixels[here]), others, same)
            nearest = np.minimum.reduceat(distances[:, carriers], starts, axis=1)
            near[block, reached] = np.minimum(near[block, reached], nearest)


def _distances(
    mine: Float[np.ndarray, "images pixels"],
    others: Float[np.ndarray, "some pixels"],
    same: Bool[np.ndarray, "images some"],
) -> Float[np.ndarray, "images some"]:
    """Squared distances, infinite where both are the same image."""
    distances = (mine**2).sum(1)[:, None] + (others**2).sum(1) - 2 * mine @ others.T
    return np.where(same, np.float32(np.inf), distances)


def _cut(count: int, pixels: Pixels) -> Iterator[slice]:
    """Images in blocks of about AT_ONCE numbers, at most IMAGES."""
    size = min(IMAGES, max(1, AT_ONCE // int(np.prod(pixels.shape[1:]))))
    return (slice(start, min(count, start + size)) for start in range(0, count, size))


def _flat(pixels: Pixels) -> Float[np.ndarray, "images pixels"]:
    return pixels.reshape(len(pixels), -1).astype(np.float32) / 255 - 0.5


def _sums(pixels: Pixels) -> np.ndarray:
    """A number for each image, the same for the same pixels: 64 bits of a hash."""
    sums = (blake2b(np.ascontiguousarray(image).tobytes(), digest_size=8).digest() for image in pixels)
    return np.frombuffer(b"".join(sums), dtype="<u8")


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


@dataclass(frozen=True)
class TwoWays:
    """Both ways."""

    image_to_text: OneWay
    text_to_image: OneWay

    def __iter__(self) -> Iterator[tuple[str, OneWay]]:
        return iter((("image → text", self.image_to_text), ("text → image", self.text_to_image)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"image_to_text": self.image_to_text.to_dict(), "text_to_image": self.text_to_image.to_dict()}


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
        ways = [way for _, way in self.found]
        return {f"recall_at_{first}": sum(way.recall[first].value for way in ways) / 2 for first in (1, 10)}

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
        head = f"{'':<20}" + "".join(f"{f'recall@{first}':>14}" for first in FIRST) + f"{'median rank':>14}"
        lines = [head]
        for (name, way), *others in zip(self.found, *self.baselines.values(), strict=True):
            lines += [_line(name, way), *(_interval(way) if way.median_rank.interval else [])]
            lines += [_line(f"  {other}", found) for other, (_, found) in zip(self.baselines, others, strict=True)]
            lines += [_cells("  chance", [*way.chance.values()], way.chance_rank)]
        return lines

    def _lines(self) -> Lines:
        return [
            ("loss", f"{self.loss:.4f} nats/pair"),
            ("images", f"{self.images:,}, all of them candidates for each text"),
            ("texts", f"{self.texts:,}, all of them candidates for each image"),
            *protocol_lines(self.protocol),
        ]


def _line(name: str, way: OneWay) -> str:
    return _cells(name, [estimate.value for estimate in way.recall.values()], way.median_rank.value)


def _cells(name: str, recall: list[float], rank: float) -> str:
    return f"{name:<20}" + "".join(f"{100 * share:>12.2f} %" for share in recall) + f"{rank:>14,.1f}".rstrip()


def _interval(way: OneWay) -> list[str]:
    shares = [_bounds(estimate, 100, 1) for estimate in way.recall.values()]
    return [f"{'  95 %':<20}" + "".join(f"{one:>14}" for one in [*shares, _bounds(way.median_rank, 1, 0)])]


def _bounds(estimate: Estimate, scale: float, digits: int) -> str:
    low, high = estimate.interval or (math.nan, math.nan)
    return f"{scale * low:,.{digits}f}–{scale * high:,.{digits}f}"


RETRIEVAL_AT_ONCE = 1 << 22
"""Numbers drawn at once in the bootstrap."""
EVEN = 1e-9
"""How far from a half a chance may be by rounding."""
Block = Float[np.ndarray, "queries candidates"]


class PairScores(Protocol):
    """How alike every image and every text is, a block of rows at a time."""

    def of_images(self, rows: slice) -> Block:
        """Some images' scores of all texts."""
        ...

    def of_texts(self, rows: slice) -> Block:
        """Some texts' scores of all images."""
        ...


@dataclass(frozen=True)
class VectorScores:
    """Scores that are inner products of vectors."""

    images: Float[np.ndarray, "images shared"]
    texts: Float[np.ndarray, "texts shared"]

    def of_images(self, rows: slice) -> Block:
        """Some images' scores of all texts."""
        return self.images[rows] @ self.texts.T

    def of_texts(self, rows: slice) -> Block:
        """Some texts' scores of all images."""
        return self.texts[rows] @ self.images.T


@dataclass(frozen=True)
class TableScores:
    """Scores that are written down: one table for both ways, or one for each."""

    by_image: Float[np.ndarray, "images texts"]
    by_text: Float[np.ndarray, "texts images"] | None = None

    def of_images(self, rows: slice) -> Block:
        """Some images' scores of all texts."""
        return self.by_image[rows]

    def of_texts(self, rows: slice) -> Block:
        """Some texts' scores of all images."""
        return self.by_image[:, rows].T if self.by_text is None else self.by_text[rows]


def two_ways(scores: PairScores, belonging: Belonging, *, samples: int = 1000, seed: int = 0) -> TwoWays:
    """Recall and median rank from images to texts and from texts to images; intervals by drawing images again."""
    images, texts = belonging.images, len(belonging.owners)
    forth = _places(scores.of_images, belonging.of_images, images, texts)
    back = _places(scores.of_texts, belonging.of_texts, texts, images)
    return TwoWays(
        one_way(*forth, np.arange(images), texts, samples, seed),
        one_way(*back, belonging.owners, images, samples, seed),
    )


def _places(scores: Any, right: Any, queries: int, candidates: int) -> tuple[Places, Places]:
    """Where the right ones stand, and where they would stand if all candidates were tied."""
    found: list[Places] = []
    chance: list[Places] = []
    for rows in blocks_of(queries, candidates):
        mask = right(rows)
        number = mask.sum(1)
        found.append(places_of(scores(rows), mask))
        chance.append(Places(np.zeros_like(number), candidates - number, number))
    return Places.joined(found), Places.joined(chance)


def one_way(
    found: Places, chance: Places, owners: Int64[np.ndarray, "queries"], candidates: int, samples: int, seed: int
) -> OneWay:
    """Sum up the places of queries, each of which belongs to an image."""
    ranks, hits = found.ranks(), np.stack([found.hits(first) for first in FIRST])
    recalls, medians = resampled(ranks, hits, owners, samples, seed)
    return OneWay(
        queries=len(ranks),
        candidates=candidates,
        recall={first: Estimate.of(*both) for first, *both in zip(FIRST, hits.mean(1), recalls, strict=True)},
        median_rank=Estimate.of(float(np.median(ranks)), medians),
        chance={first: float(chance.hits(first).mean()) for first in FIRST},
        chance_rank=chance_rank(chance.right, candidates),
    )


def chance_rank(right: Int[np.ndarray, "queries"], candidates: int) -> float:
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
    ranks: Float[np.ndarray, "queries"],
    hits: Float[np.ndarray, "firsts queries"],
    owners: Int64[np.ndarray, "queries"],
    samples: int,
    seed: int,
) -> tuple[Float[np.ndarray, "firsts samples"], Float[np.ndarray, "samples"]]:
    """Recalls and median ranks of images drawn with replacement, each with all its queries; candidates stay."""
    random, images = np.random.default_rng(seed), int(owners.max()) + 1
    order = np.argsort(ranks, kind="stable")
    step = max(1, RETRIEVAL_AT_ONCE // len(ranks))
    recalls, medians = [np.zeros((len(hits), 0))], [np.zeros(0)]
    for start in range(0, samples, step):
        drawn = random.integers(0, images, (min(step, samples - start), images))
        times = np.stack([np.bincount(row, minlength=images) for row in drawn])[:, owners].astype(np.float64)
        recalls.append(hits @ times.T / times.sum(1))
        medians.append(_medians(ranks[order], times[:, order].cumsum(1)))
    return np.concatenate(recalls, axis=1), np.concatenate(medians)


def _medians(ranks: Float[np.ndarray, "queries"], until: Float[np.ndarray, "samples queries"]) -> np.ndarray:
    """The medians of sorted ranks, from the number drawn up to each of them."""
    half = until[:, -1:] / 2
    lower, upper = (until >= half).argmax(1), (until > half).argmax(1)
    return (ranks[lower] + ranks[upper]) / 2


def score_retrieval(
    scores: PairScores,
    belonging: Belonging,
    *,
    loss: float,
    protocol: Mapping[str, Any] | None = None,
    baselines: Mapping[str, PairScores] | None = None,
    samples: int = 1000,
    seed: int = 0,
) -> RetrievalScore:
    """Score both ways, and next to them what other scores of the same images and texts come to."""
    if not len(belonging.owners):
        raise InputError("no images to score. Give a folder or a split that holds some.")
    measure = partial(two_ways, belonging=belonging, samples=samples, seed=seed)
    return RetrievalScore(
        found=measure(scores),
        loss=loss,
        images=belonging.images,
        texts=len(belonging.owners),
        baselines={name: measure(others) for name, others in (baselines or {}).items()},
        protocol={**(protocol or {}), **_bootstrap(samples, seed)},
    )


def _bootstrap(samples: int, seed: int) -> dict[str, str]:
    return {"intervals": f"bootstrap over images, {samples:,} samples, seed {seed}"} if samples else {}
