"""The result of looking twice: recall before and after, what was gained, and how much there was to gain."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from lemma.data.batches import TokenRows as ExampleRows
from lemma.models.base import measuring, positions_on
from lemma.models.dual_encoder import CrossAttentionModel, Pairs
from lemma.report.statistics import BootstrapEstimate, Lines, lay_out
from lemma.tasks.image_text import Belonging, RetrievalScore, Scores, blocks_of, places_of, resampled, score_retrieval


@dataclass(frozen=True)
class Gain:
    """What the new order gains one way; shares from 0 to 1."""

    recall: BootstrapEstimate
    """Recall at 1 after less that before, by a paired bootstrap."""
    better: int
    """Queries whose right one comes first only now."""
    worse: int
    """Queries whose right one came first only before."""
    ceiling: float
    """How often a right one is among the few that are ranked again at all: recall at 1 cannot become more."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        found = {"recall_at_1": self.recall.value, "interval": self.recall.interval}
        return {**found, "better": self.better, "worse": self.worse, "ceiling": self.ceiling}

    def __str__(self) -> str:
        bounds = self.recall.interval
        between = f"  (95 %: {100 * bounds[0]:+.2f} to {100 * bounds[1]:+.2f})" if bounds else ""
        return f"{100 * self.recall.value:+.2f} points{between}"


@dataclass(frozen=True)
class RerankingScore:
    """Recall both ways of the new order, beside that of the dual encoder alone."""

    score: RetrievalScore
    candidates: int
    """How many findings are ranked again."""
    image_to_text: Gain
    text_to_image: Gain

    @property
    def loss(self) -> float:
        """−log p(own) among the few and the right one, mean of both ways, in nats."""
        return self.score.loss

    @property
    def perplexity(self) -> float:
        """exp(loss): among so many of the few it hesitates."""
        return self.score.perplexity

    @property
    def figures(self) -> dict[str, float]:
        """The figures that a training run writes down at each validation."""
        gain = (self.image_to_text.recall.value + self.text_to_image.recall.value) / 2
        return {**self.score.figures, "gain_at_1": gain}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        gains = {"image_to_text": self.image_to_text.to_dict(), "text_to_image": self.text_to_image.to_dict()}
        return {**self.score.to_dict(), "candidates": self.candidates, "gain": gains}

    def __str__(self) -> str:
        return f"{self.score}\n\n{lay_out(self._lines())}"

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._lines())
        return f"{self.score._repr_html_()}<table>{''.join(rows)}</table>"

    def _ways(self) -> Iterator[tuple[str, Gain]]:
        return iter((("image → text", self.image_to_text), ("text → image", self.text_to_image)))

    def _lines(self) -> Lines:
        lines = [("ranked again", f"the first {self.candidates} of the dual encoder")]
        for way, gain in self._ways():
            lines.append((f"gain, {way}", f"{gain} in recall@1"))
            lines.append(("", f"{gain.better:,} put first only now, {gain.worse:,} only before"))
            lines.append(("", f"at most {100 * gain.ceiling:.2f} %: so many are among the {self.candidates}"))
        return lines


# What looking twice is worth: the first few findings of each query put in a new order, and what that gains.
#
# All are functions of plain arrays and of a callable that scores pairs.


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
    return Gain(
        BootstrapEstimate.of(float(gained.mean()), drawn[0]), int((gained > 0).sum()), int((gained < 0).sum()), ceiling
    )


# The logits of many pairs of pictures and captions by a re-ranker, each picture read once.


@dataclass(frozen=True)
class PairLogits:
    """Scores pairs of these pictures and these texts."""

    model: CrossAttentionModel
    pixels: UInt8[np.ndarray, "images channels side side"]
    rows: ExampleRows
    """The texts' tokens."""

    def __call__(self, images: Numbers, texts: Numbers) -> Float[np.ndarray, "pairs"]:
        """Return the logit of each pair, in the order of the pairs."""
        found = np.zeros(len(images))
        with measuring(self.model) as device:
            at_once = max(1, positions_on(device) // self.model.towers.spec.grid**2)
            for group in by_image(images, at_once):
                known, places = np.unique(images[group], return_inverse=True)
                pixels = torch.from_numpy(np.ascontiguousarray(self.pixels[known])).to(device)
                patches = self.model.towers.patches(pixels)
                for some in (slice(start, start + at_once) for start in range(0, len(group), at_once)):
                    found[group[some]] = self._scored(patches, places[some], texts[group[some]])
        return found

    def _scored(self, patches: Tensor, images: Numbers, texts: Numbers) -> Float[np.ndarray, "pairs"]:
        known, places = np.unique(texts, return_inverse=True)
        tokens = torch.from_numpy(self.rows.padded(known)).to(patches.device)
        pairs = Pairs(*(torch.from_numpy(numbers).to(patches.device) for numbers in (images, places)))
        logits = self.model.logits(patches, self.model.towers.words(tokens), tokens >= 0, pairs)
        return logits.double().cpu().numpy()


def by_image(images: Numbers, at_once: int) -> Iterator[Numbers]:
    """The places of pairs in groups of a few images each, all pairs of an image in one group.

    >>> [group.tolist() for group in by_image(np.array([7, 3, 7, 5]), 2)]
    [[1, 3], [0, 2]]
    """
    order = np.argsort(images, kind="stable")
    number = np.unique(images[order], return_inverse=True)[1]
    for start in range(0, int(number.max(initial=-1)) + 1, at_once):
        yield order[(number >= start) & (number < start + at_once)]
