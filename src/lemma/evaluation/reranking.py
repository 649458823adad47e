"""What looking twice is worth: the first few findings of each query put in a new order, and what that gains.

All are functions of plain arrays and of a callable that scores pairs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int64

from lemma.evaluation.estimates import Estimate
from lemma.evaluation.places import blocks_of, places_of
from lemma.evaluation.reranking_score import Gain, RerankingScore
from lemma.evaluation.retrieval import Belonging, Scores, resampled, score_retrieval

Numbers = Int64[np.ndarray, "pairs"]
Scorer = Callable[[Numbers, Numbers], Float[np.ndarray, "pairs"]]
"""The logits of pairs, each an image and a text by their numbers."""
Block = Float[np.ndarray, "queries candidates"]
Rows = Callable[[slice], Any]
BEFORE = "dual encoder"


@dataclass(frozen=True)
class Few:
    """The first few candidates of each query, and the logits that they are ordered by anew."""

    places: Int64[np.ndarray, "queries few"]
    logits: Float[np.ndarray, "queries few"]

    def put(self, block: Block, rows: slice) -> Block:
        """Scores that have the few before all others, in their new order; the others stay in theirs.

        >>> Few(np.array([[2, 0]]), np.array([[1.0, 5.0]])).put(np.array([[3.0, 1.0, 4.0]]), slice(0, 1))
        array([[6., 1., 2.]])
        """
        scores, places, logits = block.astype(np.float64), self.places[rows], self.logits[rows].astype(np.float64)
        np.put_along_axis(scores, places, -np.inf, axis=1)
        highest = scores.max(1, keepdims=True, initial=-np.inf)
        behind = np.where(np.isfinite(highest), highest, 0.0)
        np.put_along_axis(scores, places, behind + 1 + logits - logits.min(1, keepdims=True), axis=1)
        return scores


@dataclass(frozen=True)
class Reordered:
    """Scores in which every query's first few are in a new order."""

    scores: Scores
    texts: Few
    """Of each image."""
    images: Few
    """Of each text."""

    def of_images(self, rows: slice) -> Block:
        """Some pictures' scores of all texts."""
        return self.texts.put(self.scores.of_images(rows), rows)

    def of_texts(self, rows: slice) -> Block:
        """Some texts' scores of all pictures."""
        return self.images.put(self.scores.of_texts(rows), rows)


def first_few(scores: Rows, queries: int, candidates: int, number: int) -> Int64[np.ndarray, "queries few"]:
    """The places of each query's best candidates, the best first; of equals the earlier."""
    blocks = blocks_of(queries, candidates)
    return np.concatenate([np.argsort(-scores(rows), axis=1, kind="stable")[:, :number] for rows in blocks])


def score_reranking(
    scores: Scores,
    belonging: Belonging,
    number: int,
    score_pairs: Scorer,
    *,
    before: Scores | None = None,
    protocol: Mapping[str, Any] | None = None,
    samples: int = 1000,
    seed: int = 0,
) -> RerankingScore:
    """Rank the first `number` that `scores` finds again, both ways, and compare with `before`, or with the same scores.

    The loss is that of training: −log p(own) of each text and its image among the wrong ones of the few, both ways.
    """
    images, texts = belonging.images, len(belonging.owners)
    few_texts = first_few(scores.of_images, images, texts, number)
    few_images = first_few(scores.of_texts, texts, images, number)
    of_texts, of_images, own = _scored(few_texts, few_images, belonging, score_pairs)
    after = Reordered(scores, Few(few_texts, of_texts), Few(few_images, of_images))
    right = _right(belonging.of_images, few_texts, texts), _right(belonging.of_texts, few_images, images)
    loss = (_loss(own, of_texts[belonging.owners], right[0][belonging.owners]) + _loss(own, of_images, right[1])) / 2
    earlier = before or scores
    settings: dict[str, Any] = {"samples": samples, "seed": seed}
    return RerankingScore(
        score=score_retrieval(after, belonging, loss=loss, protocol=protocol, baselines={BEFORE: earlier}, **settings),
        candidates=number,
        image_to_text=_gain(
            _hits(after.of_images, belonging.of_images, images, texts),
            _hits(earlier.of_images, belonging.of_images, images, texts),
            np.arange(images),
            float(right[0].any(1).mean()),
            **settings,
        ),
        text_to_image=_gain(
            _hits(after.of_texts, belonging.of_texts, texts, images),
            _hits(earlier.of_texts, belonging.of_texts, texts, images),
            belonging.owners,
            float(right[1].any(1).mean()),
            **settings,
        ),
    )


def _scored(
    few_texts: Int64[np.ndarray, "images few"],
    few_images: Int64[np.ndarray, "texts few"],
    belonging: Belonging,
    score_pairs: Scorer,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The logits of both kinds of few and of what belongs together, no pair looked at twice."""
    texts = len(belonging.owners)
    asked = [
        np.arange(len(few_texts))[:, None] * texts + few_texts,
        few_images * texts + np.arange(texts)[:, None],
        belonging.owners * texts + np.arange(texts),
    ]
    pairs, places = np.unique(np.concatenate([one.ravel() for one in asked]), return_inverse=True)
    logits = np.asarray(score_pairs(*np.divmod(pairs, texts)), dtype=np.float64)[places]
    parts = np.split(logits, np.cumsum([one.size for one in asked])[:-1])
    shaped = [part.reshape(one.shape) for part, one in zip(parts, asked, strict=True)]
    return shaped[0], shaped[1], shaped[2]


def _right(right: Rows, few: Int64[np.ndarray, "queries few"], candidates: int) -> Bool[np.ndarray, "queries few"]:
    """Which of the few are right."""
    blocks = blocks_of(len(few), candidates)
    return np.concatenate([np.take_along_axis(right(rows), few[rows], axis=1) for rows in blocks])


def _loss(
    own: Float[np.ndarray, "queries"], few: Float[np.ndarray, "queries few"], right: Bool[np.ndarray, "queries few"]
) -> float:
    wrong = np.where(right, -np.inf, few)
    return float((np.logaddexp.reduce(np.column_stack([own, wrong]), axis=1) - own).mean())


def _hits(scores: Rows, right: Rows, queries: int, candidates: int) -> Float[np.ndarray, "queries"]:
    """Whether a right one comes first, of each query."""
    blocks = blocks_of(queries, candidates)
    return np.concatenate([places_of(scores(rows), right(rows)).hits(1) for rows in blocks])


def _gain(
    after: Float[np.ndarray, "queries"],
    before: Float[np.ndarray, "queries"],
    owners: Int64[np.ndarray, "queries"],
    ceiling: float,
    samples: int,
    seed: int,
) -> Gain:
    """The gain in recall at 1; before and after are of the same pictures in every sample of the bootstrap."""
    gained = after - before
    drawn, _ = resampled(after, gained[None], owners, samples, seed)
    return Gain(Estimate.of(float(gained.mean()), drawn[0]), int((gained > 0).sum()), int((gained < 0).sum()), ceiling)
