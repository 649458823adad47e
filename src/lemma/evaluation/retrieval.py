"""How well pictures find their captions and captions their pictures: recall, median rank, against chance.

A picture is found if any of its captions is. Captions that are the same, of whichever picture, are right for each of
their pictures. All are functions of plain arrays, worked out in blocks: a hundred million scores fit in memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int, Int64

from lemma.errors import InputError
from lemma.evaluation.belonging import Belonging
from lemma.evaluation.estimates import Estimate
from lemma.evaluation.places import Places, blocks_of, places_of
from lemma.evaluation.retrieval_score import FIRST, OneWay, RetrievalScore, TwoWays
from lemma.objectives import contrastive

AT_ONCE = 1 << 22
"""Numbers drawn at once in the bootstrap."""
EVEN = 1e-9
"""How far from a half a chance may be by rounding."""
Block = Float[np.ndarray, "queries candidates"]


class Scores(Protocol):
    """How alike every picture and every text is, a block of rows at a time."""

    def of_images(self, rows: slice) -> Block:
        """Some pictures' scores of all texts."""
        ...

    def of_texts(self, rows: slice) -> Block:
        """Some texts' scores of all pictures."""
        ...


@dataclass(frozen=True)
class Products:
    """Scores that are inner products of vectors."""

    images: Float[np.ndarray, "images shared"]
    texts: Float[np.ndarray, "texts shared"]

    def of_images(self, rows: slice) -> Block:
        """Some pictures' scores of all texts."""
        return self.images[rows] @ self.texts.T

    def of_texts(self, rows: slice) -> Block:
        """Some texts' scores of all pictures."""
        return self.texts[rows] @ self.images.T


@dataclass(frozen=True)
class Table:
    """Scores that are written down: one table for both ways, or one for each."""

    by_image: Float[np.ndarray, "images texts"]
    by_text: Float[np.ndarray, "texts images"] | None = None

    def of_images(self, rows: slice) -> Block:
        """Some pictures' scores of all texts."""
        return self.by_image[rows]

    def of_texts(self, rows: slice) -> Block:
        """Some texts' scores of all pictures."""
        return self.by_image[:, rows].T if self.by_text is None else self.by_text[rows]


def two_ways(scores: Scores, belonging: Belonging, *, samples: int = 1000, seed: int = 0) -> TwoWays:
    """Recall and median rank from pictures to texts and from texts to pictures; intervals by drawing pictures anew."""
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
    """Sum up the places of queries, each of which belongs to a picture."""
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
    """The median rank of the first right one if all orders are as likely, over queries with so many right ones each.

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
    """Recalls and median ranks of pictures drawn with replacement, each with all its queries; candidates stay."""
    random, pictures = np.random.default_rng(seed), int(owners.max()) + 1
    order = np.argsort(ranks, kind="stable")
    step = max(1, AT_ONCE // len(ranks))
    recalls, medians = [np.zeros((len(hits), 0))], [np.zeros(0)]
    for start in range(0, samples, step):
        drawn = random.integers(0, pictures, (min(step, samples - start), pictures))
        times = np.stack([np.bincount(row, minlength=pictures) for row in drawn])[:, owners].astype(np.float64)
        recalls.append(hits @ times.T / times.sum(1))
        medians.append(_medians(ranks[order], times[:, order].cumsum(1)))
    return np.concatenate(recalls, axis=1), np.concatenate(medians)


def _medians(ranks: Float[np.ndarray, "queries"], until: Float[np.ndarray, "samples queries"]) -> np.ndarray:
    """The medians of sorted ranks, of which so many were drawn up to each of them."""
    half = until[:, -1:] / 2
    lower, upper = (until >= half).argmax(1), (until > half).argmax(1)
    return (ranks[lower] + ranks[upper]) / 2


def score_retrieval(
    scores: Scores,
    belonging: Belonging,
    *,
    loss: float,
    protocol: Mapping[str, Any] | None = None,
    baselines: Mapping[str, Scores] | None = None,
    samples: int = 1000,
    seed: int = 0,
) -> RetrievalScore:
    """Score both ways, and beside them what other scores of the same pictures and texts come to."""
    if not len(belonging.owners):
        raise InputError("no pictures to score. Give a folder or a split that holds some.")
    measure = partial(two_ways, belonging=belonging, samples=samples, seed=seed)
    return RetrievalScore(
        found=measure(scores),
        loss=loss,
        pictures=belonging.images,
        texts=len(belonging.owners),
        baselines={name: measure(others) for name, others in (baselines or {}).items()},
        protocol={**(protocol or {}), **_bootstrap(samples, seed)},
    )


def _bootstrap(samples: int, seed: int) -> dict[str, str]:
    return {"intervals": f"bootstrap over pictures, {samples:,} samples, seed {seed}"} if samples else {}


def loss_of_batches(
    images: Float[np.ndarray, "pairs shared"],
    texts: Float[np.ndarray, "pairs shared"],
    names: Int[np.ndarray, "pairs"],
    scale: float,
    batch: int,
) -> float:
    """The contrastive loss of pairs in random batches of one size; pairs fewer than a batch are one batch."""
    size = min(batch, len(images))
    order = np.random.default_rng(0).permutation(len(images))[: len(images) // size * size].reshape(-1, size)
    losses = []
    for rows in order:
        logits = torch.from_numpy(scale * images[rows].astype(np.float64) @ texts[rows].astype(np.float64).T)
        losses.append(contrastive(logits, torch.from_numpy(names[rows, None] == names[rows])).loss.item())
    return float(np.mean(losses))
