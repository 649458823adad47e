"""Re-ranking: cross-attention looks again at the first few findings of a dual encoder."""

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
from lemma.report.result import Block
from lemma.report.statistics import Estimate, NamedValues, format_named_values
from lemma.runs.folder import RunFolder
from lemma.runs.load import Run, load
from lemma.spec.recipe import Recipe
from lemma.tasks.base import DataArgs, LossTerms, Score, TaskLoss, check_penalties, data_protocol
from lemma.tasks.image_text import ImageTextLogits, ImageTextMask, ImageTextTask, check_batch, equal_rows
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

VALIDATION_IMAGES = 1000
"""Images that a validation looks at, if there are more: looking takes time."""


class RerankingTask(ImageTextTask):
    """A re-ranker learns to find the right one among those that its dual encoder likes best."""

    name = "re-ranking"
    no_penalties = "a re-ranker learns images and captions"
    adaptation_batch = 64

    def loss(self, model: CrossAttentionModel, recipe: Recipe, batches: Any = None) -> "RerankingLoss":
        """The loss among the dual encoder's candidates."""
        check_penalties(self, recipe)
        return RerankingLoss(model, recipe)

    def validate(self, model: CrossAttentionModel, data: Splits[CaptionedImages], recipe: Recipe) -> "RerankingScore":
        """Search validation images and re-rank, without intervals."""
        return score_reranker(model, sample_images(data.item("validation"), VALIDATION_IMAGES), samples=0)

    def evaluate(
        self, run: Run, given: DataArgs, split: str | None, settings: Mapping[str, Any], observer: Observer
    ) -> "RerankingScore":
        """What re-ranking gains over the dual encoder alone, on the run's own test split or on other images."""
        data, part = self._evaluated(run, given, split, observer)
        model = run.require(CrossAttentionModel, "a re-ranker")
        base = None
        if run.adaptation is not None and run.adaptation.method.kind != "frozen":  # the towers have changed since
            device = next(model.parameters()).device
            base = load(RunFolder.open(run.path).base().path, str(device)).require(DualEncoderModel, "a dual encoder")
        return score_reranker(model, data.item(part), base=base, protocol=data_protocol(data, part))

    def samples(self, model: CrossAttentionModel, data: Splits[CaptionedImages]) -> list[str]:
        """The caption that the dual encoder finds for each of the first few validation images."""
        return super().samples(model.towers, data)


def sample_images(examples: CaptionedImages, number: int) -> CaptionedImages:
    """At most `number` of the images, with all their captions, the same ones every time."""
    images = len(examples.caption_bounds) - 1
    if images <= number:
        return examples
    chosen = np.sort(np.random.default_rng(0).permutation(images)[:number])
    counts = np.diff(examples.caption_bounds)[chosen]
    captions = np.concatenate([np.arange(*examples.caption_bounds[place : place + 2]) for place in chosen])
    return CaptionedImages(
        np.asarray(examples.pixels[chosen]),
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
    """Let a re-ranker find captions by images and images by captions; compare with `base`, or with its own towers."""
    before, *others = (
        vector_scores(embed_images(towers, examples.pixels), embed_texts(towers, examples.rows))
        for towers in (model.towers, *([base] if base else []))
    )
    return score_reranking(
        before,
        Relevance.from_captions(examples),
        model.spec.candidates,
        PairLogits(model, examples.pixels, examples.rows),
        before=others[0] if others else None,
        protocol=protocol,
        samples=samples,
    )


# Loss


MAX_PAIR_ELEMENTS = 1 << 25
"""Numbers in the streams of the pairs that are looked at together; of more, blocks are computed twice."""


class Candidates(NamedTuple):
    """Of each image the texts, and of each text the images, that are ranked again."""

    texts: ImageTextMask
    """Row: the texts among which an image's own is to be found."""
    images: ImageTextMask
    """Column: the images among which a text's own is to be found."""

    @property
    def either(self) -> ImageTextMask:
        """All pairs that have to be looked at."""
        return self.texts | self.images


def select_candidates(logits: ImageTextLogits, number: int, duplicates: ImageTextMask | None = None) -> Candidates:
    """The `number` most alike of each row and of each column, its own (on the diagonal) always among them.

    Where `alike` is true off the diagonal, as where two images have one caption, the pair is left out of both.

    >>> dual = torch.tensor([[1.0, 3.0, 2.0], [9.0, 0.0, 1.0], [0.0, 0.0, 5.0]])
    >>> candidates_of(dual, 2).texts.int().tolist()
    [[1, 1, 0], [1, 1, 0], [1, 0, 1]]
    """
    own = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
    likings = logits.detach().float()
    if duplicates is not None:
        likings = likings.masked_fill(duplicates, -torch.inf)
    likings = likings.masked_fill(own, torch.inf)
    texts, images = _top_k_mask(likings, number), _top_k_mask(likings.T, number).T
    others = torch.zeros_like(own) if duplicates is None else duplicates & ~own
    return Candidates(texts & ~others, images & ~others)


def _top_k_mask(similarities: Float[Tensor, "queries candidates"], number: int) -> Bool[Tensor, "queries candidates"]:
    best = similarities.topk(min(number, similarities.shape[1]), dim=1).indices
    return torch.zeros_like(similarities, dtype=torch.bool).scatter_(1, best, True)


def reranking_loss(logits: ImageTextLogits, candidates: Candidates) -> Float[Tensor, ""]:
    """Return −log p(own) among the candidates, the mean of both ways, in nats.

    >>> reranking(torch.zeros(4, 4), candidates_of(torch.zeros(4, 4), 2)).exp().item()  # chance: one of two
    2.0
    """
    own = torch.arange(len(logits), device=logits.device)
    ways = (logits.masked_fill(~candidates.texts, -torch.inf), logits.T.masked_fill(~candidates.images.T, -torch.inf))
    return torch.stack([functional.cross_entropy(way, own) for way in ways]).mean()


class RerankingLoss(TaskLoss):
    """Each image picks its text among the dual encoder's k best of the batch, and each text its image.

    Of several processes each finds its candidates among its own rows.
    """

    compilable = False  # the number of pairs differs

    def __init__(self, model: CrossAttentionModel, recipe: Recipe) -> None:
        super().__init__()
        check_batch(recipe)
        self.model = model

    def forward(
        self, images: Shaped[Tensor, "rows 3 side side"], tokens: Int[Tensor, "rows time"], state: Any = None
    ) -> LossTerms:
        """Return the mean loss of both ways; it begins at the dual encoder's own."""
        logits, candidates = self.logits(images, tokens)
        loss = reranking_loss(logits, candidates)
        return loss, (loss,), None

    def logits(
        self, images: Shaped[Tensor, "rows 3 side side"], tokens: Int[Tensor, "rows time"]
    ) -> tuple[Float[Tensor, "rows rows"], Candidates]:
        """The dual encoder's logits of all pairs, with what looking adds to those of the candidates."""
        towers, there = self.model.towers, tokens >= 0
        patches, words = towers.patches(images), towers.words(tokens)
        seen, read = towers.project_image(patches).float(), towers.project_text(words, there).float()
        with torch.autocast(seen.device.type, enabled=False):  # a logit of 100 has no digits left in bfloat16
            dual = towers.scale.float() * seen @ read.T
        candidates = select_candidates(dual, self.model.spec.candidates, equal_rows(tokens))
        pairs = ImageTextPairs(*candidates.either.nonzero(as_tuple=True))
        at_once = max(1, MAX_PAIR_ELEMENTS // patches[0].numel())
        if len(pairs.images) <= at_once:
            added = self.model(patches, words, there, pairs).float()
        else:  # in blocks, since all at once would take too much memory
            blocks = (ImageTextPairs(*block) for block in zip(*(one.split(at_once) for one in pairs), strict=True))
            parts = [checkpoint(self.model, patches, words, there, one, use_reentrant=False) for one in blocks]
            added = torch.cat([part.float() for part in parts if part is not None])
        return dual + torch.zeros_like(dual).masked_scatter(candidates.either, added), candidates


# Scores


@dataclass(frozen=True)
class RerankingGain:
    """What the new order gains one way; shares from 0 to 1."""

    recall: Estimate
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
class RerankingScore(Score):
    """Recall both ways of the new order, next to that of the dual encoder alone."""

    title = "Re-ranking"

    score: RetrievalScore
    candidates: int
    """How many findings are ranked again."""
    image_to_text: RerankingGain
    text_to_image: RerankingGain

    @property
    def loss(self) -> float:
        """−log p(own) among the few and the right one, mean of both ways, in nats."""
        return self.score.loss

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
        return f"{self.score}\n\n{format_named_values(self._lines())}"

    def blocks(self) -> Iterator[Block]:
        """The score of the new order, and what it gains."""
        yield from self.score.blocks()
        yield from super().blocks()

    def _lines(self) -> NamedValues:
        lines = [("ranked again", f"the first {self.candidates} of the dual encoder")]
        for way, gain in zip(DIRECTIONS, (self.image_to_text, self.text_to_image), strict=True):
            lines.append((f"gain, {way}", f"{gain} in recall@1"))
            lines.append(("", f"{gain.better:,} put first only now, {gain.worse:,} only before"))
            lines.append(("", f"at most {100 * gain.ceiling:.2f} %: only these are among the {self.candidates}"))
        return lines


Indices = Int64[np.ndarray, " pairs"]
PairScorer = Callable[[Indices, Indices], Float[np.ndarray, " pairs"]]
"""The logits of pairs, each an image and a text by their numbers."""


@dataclass(frozen=True)
class TopK:
    """The first few candidates of each query, and the logits that they are re-ordered by."""

    indices: Int64[np.ndarray, "queries few"]
    logits: Float[np.ndarray, "queries few"]

    def rescore(
        self, scores_block: Float[np.ndarray, "queries candidates"], rows: slice
    ) -> Float[np.ndarray, "queries candidates"]:
        """Scores that have the few before all others, in their new order; the others stay in theirs.

        >>> Few(np.array([[2, 0]]), np.array([[1.0, 5.0]])).put(np.array([[3.0, 1.0, 4.0]]), slice(0, 1))
        array([[6., 1., 2.]])
        """
        scores, places, logits = (
            scores_block.astype(np.float64),
            self.indices[rows],
            self.logits[rows].astype(np.float64),
        )
        np.put_along_axis(scores, places, -np.inf, axis=1)
        highest = scores.max(1, keepdims=True, initial=-np.inf)
        behind = np.where(np.isfinite(highest), highest, 0.0)
        np.put_along_axis(scores, places, behind + 1 + logits - logits.min(1, keepdims=True), axis=1)
        return scores


def top_candidates(scores: RowScores, queries: int, candidates: int, number: int) -> Int64[np.ndarray, "queries few"]:
    """The places of each query's best candidates, the best first; of equals the earlier."""
    blocks = row_blocks(queries, candidates)
    return np.concatenate([np.argsort(-scores(rows), axis=1, kind="stable")[:, :number] for rows in blocks])


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
    """Rank the first `number` that `scores` finds again, both ways, and compare with `before`, or with the same scores.

    The loss is that of training: −log p(own) of each text and its image among the wrong ones of the few, both ways.
    """
    ways, before = relevance.directions(), before or scores
    texts = len(relevance.owners)
    few_texts, few_images = (
        top_candidates(score, len(owners), candidates, number)
        for score, (_, owners, candidates) in zip(scores, ways, strict=True)
    )
    asked = [  # both kinds of few, and what belongs together: no pair is looked at twice
        np.arange(len(few_texts))[:, None] * texts + few_texts,
        few_images * texts + np.arange(texts)[:, None],
        relevance.owners * texts + np.arange(texts),
    ]
    pairs, places = np.unique(np.concatenate([one.ravel() for one in asked]), return_inverse=True)
    logits = np.asarray(score_pairs(*np.divmod(pairs, texts)), dtype=np.float64)[places]
    parts = np.split(logits, np.cumsum([one.size for one in asked])[:-1])
    of_texts, of_images, own = (part.reshape(one.shape) for part, one in zip(parts, asked, strict=True))
    few = TopK(few_texts, of_texts), TopK(few_images, of_images)
    after = PairScores(
        lambda rows: few[0].rescore(scores.of_images(rows), rows),
        lambda rows: few[1].rescore(scores.of_texts(rows), rows),
    )
    gains: list[RerankingGain] = []
    losses: list[float] = []
    queries = relevance.owners, np.arange(texts)  # the query of each text, both ways
    for first, query, now, earlier, way in zip(few, queries, after, before, ways, strict=True):
        right, owners, candidates = way
        blocks = list(row_blocks(len(owners), candidates))
        mask = np.concatenate([np.take_along_axis(right(rows), first.indices[rows], axis=1) for rows in blocks])
        wrong = np.where(mask, -np.inf, first.logits)[query]
        losses.append(float((np.logaddexp.reduce(np.column_stack([own, wrong]), axis=1) - own).mean()))
        hits, hits_before = (
            np.concatenate([rank_relevant(one(rows), right(rows)).hit_probabilities(1) for rows in blocks])
            for one in (now, earlier)
        )
        gained = hits - hits_before
        drawn, _ = bootstrap_ranks(hits, gained[None], owners, samples, seed)  # of the same images before and after
        recall, ceiling = Estimate.from_resamples(float(gained.mean()), drawn[0]), float(mask.any(1).mean())
        gains.append(RerankingGain(recall, int((gained > 0).sum()), int((gained < 0).sum()), ceiling))
    baselines, loss = {"dual encoder": before}, sum(losses) / 2
    score = score_retrieval(
        after, relevance, loss=loss, protocol=protocol, baselines=baselines, samples=samples, seed=seed
    )
    return RerankingScore(score, number, *gains)


@dataclass(frozen=True)
class PairLogits:
    """Scores pairs of these images and these texts."""

    model: CrossAttentionModel
    pixels: UInt8[np.ndarray, "images channels side side"]
    rows: TokenRows
    """The texts' tokens."""

    def __call__(self, images: Indices, texts: Indices) -> Float[np.ndarray, " pairs"]:
        """Return the logit of each pair, in the order of the pairs."""
        found = np.zeros(len(images))
        towers = self.model.towers
        with measuring(self.model) as device:
            at_once = max(1, tokens_per_batch(device) // towers.spec.grid**2)
            order = np.argsort(images, kind="stable")  # all pairs of an image in one group of a few images
            number = np.unique(images[order], return_inverse=True)[1]
            for first in range(0, int(number.max(initial=-1)) + 1, at_once):
                group = order[(number >= first) & (number < first + at_once)]
                known, places = np.unique(images[group], return_inverse=True)
                patches = towers.patches(torch.from_numpy(np.ascontiguousarray(self.pixels[known])).to(device))
                for some in (slice(start, start + at_once) for start in range(0, len(group), at_once)):
                    read, words = np.unique(texts[group[some]], return_inverse=True)
                    tokens = torch.from_numpy(self.rows.pad(read)).to(device)
                    pairs = ImageTextPairs(*(torch.from_numpy(one).to(device) for one in (places[some], words)))
                    logits = self.model.logits(patches, towers.words(tokens), tokens >= 0, pairs)
                    found[group[some]] = logits.double().cpu().numpy()
        return found
