"""Images and texts: a dual encoder finds the caption of an image and the image of a caption."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64, UInt8
from torch import Tensor, distributed
from torch.autograd.function import FunctionCtx

from lemma.data.batches import BucketedExamples
from lemma.data.corpora import IMAGES
from lemma.data.images import Captioned, prepare_images, read_images
from lemma.data.splits import Splits
from lemma.errors import DataError, InputError, SpecError
from lemma.models.dual_encoder import DualEncoderModel, embed_images, embed_texts
from lemma.report.progress import Observer, watched_reading
from lemma.report.statistics import Estimate, Lines, lay_out, protocol_lines
from lemma.runs.load import Run
from lemma.spec.data import ImagesSpec
from lemma.spec.models import CrossAttention, DualEncoder, Transformer, longest
from lemma.spec.recipe import Recipe
from lemma.tasks.augmentation import augment, changes, inner_tokens, reworded
from lemma.tasks.base import (
    IGNORED,
    Batches,
    DataArgs,
    Entropy,
    LossTerms,
    Score,
    Task,
    TaskLoss,
    Worker,
    choose_split,
    protocol_of,
    refuse_changed,
    refuse_shaping,
    say_skipped,
)

SHOWN = 3
"""Images whose captions are shown as samples."""
PIXELS = "nearest pixel"


class ImageTextTask(Task):
    """A dual encoder learns which caption of a batch belongs to which image."""

    name, option, example, learns = "image-text", "images", "emoji", "images with captions"
    unit, has_perplexity, text_checks = "nats/pair", False, False  # a smaller split has a lower loss by its size alone
    data_spec = ImagesSpec
    names, settings, files = IMAGES, ("captions", "image_column", "caption_column"), ("captions",)
    splits_given_data = True
    not_shaped = "a dual encoder learns images and captions"
    adaptation_batch = 128  # the images of a batch are each other's wrong answers, so that there must be many

    def load(
        self,
        data: ImagesSpec,
        model: DualEncoder | CrossAttention,
        recipe: Recipe,
        observer: Observer,
        vocabulary: Any = None,
        labels: tuple[str, ...] = (),
    ) -> Splits[Captioned]:
        """Read images with captions as the dual encoder reads them."""
        return say_skipped(self._prepare(data, model, vocabulary, observer), observer)

    def _prepare(
        self, data: ImagesSpec, model: DualEncoder | CrossAttention, vocabulary: Any, observer: Observer
    ) -> Splits[Captioned]:
        progress = watched_reading(observer)
        return prepare_images(data, **reading_of(model), tokenizer=vocabulary, progress=progress)

    def batches(self, model: Any, examples: Captioned, recipe: Recipe, worker: Worker) -> "ImageBatches":
        """Images in a new order every epoch, augmented every time."""
        return ImageBatches(examples, recipe, worker)

    def loss(self, model: Any, recipe: Recipe, batches: Any = None) -> TaskLoss:
        """The symmetric contrastive loss."""
        refuse_shaping(self, recipe)
        worker = batches.worker if batches else Worker(model.log_scale.device)
        return ContrastiveLoss(model, recipe, worker)

    def validate(self, model: Any, data: Splits[Captioned], recipe: Recipe) -> Score:
        """Search the validation images, without intervals and baselines."""
        return retrieve(model, data.tokens("validation"), recipe.batch, samples=0)

    def evaluate(
        self, run: Run, given: DataArgs, split: str | None, settings: Mapping[str, Any], observer: Observer
    ) -> Score:
        """Find captions by images and images by captions: the run's own test split, or other images."""
        data, part = self._evaluated(run, given, split, observer)
        trained = self._trained_images(run, observer)
        model = run.require(DualEncoderModel, "a dual encoder")
        batch, protocol = run.recipe.batch, protocol_of(data, part)
        return retrieve(model, data.tokens(part), batch, trained=trained, protocol=protocol)

    def _evaluated(
        self, run: Run, given: DataArgs, split: str | None, observer: Observer
    ) -> tuple[Splits[Captioned], str]:
        """The images that a run is evaluated on, and which split of them."""
        assert isinstance(run.data, ImagesSpec) and isinstance(run.spec, DualEncoder | CrossAttention)
        if given.name is None:
            data = self.load(run.data, run.spec, run.recipe, observer, run.tokenizer)
            return refuse_changed(run, data, run.data.images, "images"), choose_split(data, split)
        data = read_images(
            given.name,
            **reading_of(run.spec),
            **given.settings,
            tokenizer=run.tokenizer,
            held_out=run.data.held_out,
            split=split,
            progress=watched_reading(observer),
        )
        return say_skipped(data, observer), choose_split(data, None)

    def _trained_images(self, run: Run, observer: Observer) -> Captioned | None:
        """The images that a run was trained on, to compare pixels with; None, and a word on it, if they are gone."""
        assert isinstance(run.data, ImagesSpec) and isinstance(run.spec, DualEncoder)
        try:
            data = self._prepare(run.data, run.spec, run.tokenizer, observer)
        except (DataError, OSError) as error:
            observer.say(f"The baseline of the nearest pixel is left out: {error}")
            return None
        if data.hash == run.data_hash:
            return data.tokens("train")
        observer.say(f"The baseline of the nearest pixel is left out: {run.data.images} has changed since training.")
        return None

    def samples(self, model: Any, data: Splits[Captioned]) -> list[str]:
        """The caption that is found for each of the first few validation images."""
        examples = data.tokens("validation")
        captions = [caption for image in examples.images for caption in image.captions]
        vectors = embed_images(model, examples.pixels[:SHOWN])
        found = (vectors @ embed_texts(model, examples.rows).T).argmax(1)
        return [f"{image.name} → {captions[best]}" for image, best in zip(examples.images, found, strict=False)]


def reading_of(spec: DualEncoder | CrossAttention) -> dict[str, Any]:
    """How a dual encoder reads images and captions: their size, their length, and whether between special tokens."""
    towers = spec.towers if isinstance(spec, CrossAttention) else spec
    if towers.body.family == "tree":
        raise SpecError(
            "dual-encoder.body = 'tree' reads sentences with their trees, and captions have none. Use body=lstm."
        )
    return {"side": towers.side, "length": longest(towers.body), "special_tokens": isinstance(towers.body, Transformer)}


# Batches


CAPTION_DRAW = 1
"""Makes the choice of captions independent of other draws of the same seed and step."""


class ImageBatches(Batches):
    """Batches of images, each with one of its captions, all of one shape."""

    def __init__(self, examples: Captioned, recipe: Recipe, worker: Worker) -> None:
        images = len(examples.first) - 1
        if recipe.batch > images:  # no image is to be in a batch twice: that would be too easy
            batch = images // worker.size * worker.size
            self.note = f"batch = {recipe.batch} is more than the {images:,} training images: batch={batch} is used."
            recipe = recipe.replace(batch=batch)
        length = max(1, round(float(examples.rows.lengths.mean())))
        super().__init__(recipe, worker, length, recipe.batch * length)
        self.examples, self.longest = examples, int(examples.rows.lengths.max())
        self.strays = inner_tokens(examples.rows)
        alike = np.zeros(len(examples.lengths), dtype=np.int64)  # images are not sorted by their captions' length
        self.order = BucketedExamples(alike, recipe.batch, recipe.seed)

    def batch(self, step: int) -> tuple[Float[Tensor, "rows channels side side"], Int[Tensor, "rows longest"]]:
        """Return the images of a step, and a caption of each."""
        recipe, chosen = self.recipe, self.order.examples(step)
        pixels = self.worker.send(np.asarray(self.examples.pixels[chosen[self.rows]]))
        if recipe.augment:
            images = augment(pixels, changes(recipe.seed, step, recipe.batch, recipe.augment)[self.rows])
        else:
            images = pixels / 255
        return images, self.worker.send(self._captions(chosen, step)[self.rows])

    def _captions(self, chosen: Int64[np.ndarray, "batch"], step: int) -> Int64[np.ndarray, "batch longest"]:
        """A caption of each image; images of one caption, or one that is there twice, have the same tokens."""
        recipe = self.recipe
        choice = int(np.random.default_rng([recipe.seed, step, CAPTION_DRAW]).integers(1 << 31))
        tokens = self.examples.captions(chosen, choice)
        tokens = np.pad(tokens, ((0, 0), (0, self.longest - tokens.shape[1])), constant_values=IGNORED)
        if not recipe.augment:
            return tokens
        different, which = np.unique(tokens, axis=0, return_inverse=True)
        return reworded(different, self.strays, recipe.seed, step, recipe.augment)[which.reshape(-1)]


# Loss (Radford et al. 2021)


ImageTextLogits = Float[Tensor, "images texts"]
ImageTextMask = Bool[Tensor, "images texts"]


def contrastive(logits: ImageTextLogits, alike: ImageTextMask | None = None, smoothing: float = 0.0) -> Entropy:
    """The symmetric loss: −½ (mean log softmax of rows + mean log softmax of columns) at the pairs, in nats.

    Image i belongs to text i. Where `alike` is true off the diagonal, text j is as right for image i as its own: the
    pair is left out of both softmaxes, and of what smoothing spreads over. Where all logits are equal it is ln B.

    >>> contrastive(torch.zeros(8, 8)).loss.item() - math.log(8) < 1e-6
    True
    """
    left_out = torch.zeros_like(logits, dtype=torch.bool) if alike is None else alike.clone()
    left_out.fill_diagonal_(False)
    ways = (_one_way(logits, left_out, smoothing), _one_way(logits.T, left_out.T, smoothing))
    objective, loss = (torch.stack(both).mean() for both in zip(*ways, strict=True))
    return Entropy(objective, loss)


def _one_way(logits: ImageTextLogits, left_out: ImageTextMask, smoothing: float) -> Entropy:
    exact = torch.promote_types(logits.dtype, torch.float32)
    log = logits.masked_fill(left_out, -math.inf).log_softmax(-1, dtype=exact)
    loss = -log.diagonal().mean()
    if not smoothing:
        return Entropy(loss, loss)
    even = -(log.masked_fill(left_out, 0.0).sum(-1) / (~left_out).sum(-1)).mean()
    return Entropy((1 - smoothing) * loss + smoothing * even, loss.detach())


def equal_rows(tokens: Int[Tensor, "batch time"]) -> Bool[Tensor, "batch batch"]:
    """Which texts are the same, token for token.

    >>> equal_rows(torch.tensor([[1, 2], [1, -1], [1, 2]]))[0].tolist()
    [True, False, True]
    """
    return (tokens[:, None] == tokens[None]).all(-1)


class ContrastiveLoss(TaskLoss):
    """A dual encoder and the symmetric contrastive loss over the vectors of all processes."""

    terms = ("loss", "temperature")

    def __init__(self, model: DualEncoderModel, recipe: Recipe, worker: Worker) -> None:
        super().__init__()
        refuse_parts(recipe)
        self.model, self.worker, self.smoothing = model, worker, recipe.label_smoothing
        self.chance = (recipe.batch, "captions", "B")

    def forward(
        self, images: Float[Tensor, "rows channels side side"], tokens: Int[Tensor, "rows time"], state: Any = None
    ) -> LossTerms:
        """Return the smoothed loss of the whole batch, to minimise; the true one and the temperature are reported."""
        model = self.model
        pictures, texts = (
            gather_rows(vectors.float(), self.worker)
            for vectors in (model.image_vectors(images), model.text_vectors(tokens))
        )
        with torch.autocast(images.device.type, enabled=False):  # bfloat16 is too coarse for cosines times a hundred
            logits = model.scale * pictures @ texts.T
        objective, loss = contrastive(logits, equal_rows(self.worker.gather(tokens)), self.smoothing)
        return objective, (loss, 1 / model.scale), None


def refuse_parts(recipe: Recipe) -> None:
    """Refuse a batch of one pair, which has nothing to tell apart, and one cut into parts that cannot be compared."""
    if recipe.batch < 2:
        raise SpecError(
            f"recipe.batch = {recipe.batch}: each image is compared with the others of its batch, and one alone has no "
            "others. Set batch=2 or more."
        )
    if recipe.accumulate > 1:
        raise SpecError(
            f"recipe.accumulate = {recipe.accumulate}: the contrastive loss compares every image with every caption "
            "of the batch, and parts cannot be compared one by one. Leave accumulate out, or lower batch."
        )


def gather_rows(vectors: Float[Tensor, "rows shared"], worker: Worker) -> Float[Tensor, "batch shared"]:
    """The vectors of all processes, in the order of ranks, with gradients."""
    gathered: Any = GatheredRows.apply(vectors, worker) if worker.size > 1 else vectors
    return gathered


class GatheredRows(torch.autograd.Function):
    """Join the rows of all processes. Backward, each takes its own rows of the sum of all processes' gradients.

    Every process computes the same loss, so that the sum is as many times too large as there are processes; the mean
    that DDP takes over them makes it right again.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, vectors: Tensor, worker: Worker) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Join the rows of all."""
        ctx.worker, ctx.own = worker, len(vectors)  # pyright: ignore[reportAttributeAccessIssue]
        return worker.gather(vectors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Sum the gradients of all, and take the own rows of it."""
        total = gradient.contiguous().clone()
        distributed.all_reduce(total)
        start = ctx.worker.rank * ctx.own
        return total[start : start + ctx.own], None


# Scores


def retrieve(
    model: DualEncoderModel,
    examples: Captioned,
    batch: int,
    *,
    trained: Captioned | None = None,
    protocol: Mapping[str, Any] | None = None,
    samples: int = 1000,
) -> "RetrievalScore":
    """Let a dual encoder find captions by images and images by captions, next to the nearest `trained` image."""
    images, texts = embed_images(model, examples.pixels), embed_texts(model, examples.rows)
    belonging, first = belonging_of(examples), examples.first[:-1]
    protocol = {**(protocol or {}), "loss of": f"batches of {min(batch, len(images)):,} pairs"}
    baselines = {}
    if trained is not None:
        nearest = NearestPixel(examples.pixels, examples.names, trained.pixels, owners_of(trained), trained.names)
        baselines = {PIXELS: nearest}
        if known := nearest.known():
            protocol["learned"] = f"{known:,} of these images were in the training split"
    return score_retrieval(
        VectorScores(images, texts),
        belonging,
        loss=loss_of_batches(images, texts[first], belonging.names[first], model.scale.item(), batch),
        protocol=protocol,
        baselines=baselines,
        samples=samples,
    )


@dataclass(frozen=True)
class Belonging:
    """Which text belongs to which picture: the picture that owns each, and a number that equal texts share."""

    owners: Int64[np.ndarray, "texts"]
    names: Int64[np.ndarray, "texts"]

    @property
    def images(self) -> int:
        """How many pictures there are; each owns a text at least."""
        return int(self.owners.max()) + 1

    def of_images(self, rows: slice) -> np.ndarray:
        """Which texts are right for some of the pictures: their own, and all that are the same."""
        mine = (self.owners >= rows.start) & (self.owners < rows.stop)
        has = np.zeros((rows.stop - rows.start, int(self.names.max()) + 1), dtype=bool)
        has[self.owners[mine] - rows.start, self.names[mine]] = True
        return has[:, self.names]

    def of_texts(self, rows: slice) -> np.ndarray:
        """Which pictures are right for some of the texts: all that own the text or one that is the same."""
        right = np.zeros((rows.stop - rows.start, self.images), dtype=bool)
        queries, texts = np.nonzero(self.names[rows, None] == self.names)
        right[queries, self.owners[texts]] = True
        return right


def belonging_of(examples: Captioned) -> Belonging:
    """Which of the captions belong to which of the pictures."""
    _, names = np.unique(examples.names, return_inverse=True)
    return Belonging(owners_of(examples), names.astype(np.int64))


def owners_of(examples: Captioned) -> Int64[np.ndarray, "texts"]:
    """The picture that each caption belongs to."""
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
        """The chance that a right one is among the first so many, over all orders of those that are tied.

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
    """Find the best right candidate of every query; what is no number scores lower than all else."""
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
    """Rows in blocks of about so many numbers as are looked at at once."""
    size = max(1, BLOCK // max(1, columns))
    return (slice(start, min(rows, start + size)) for start in range(0, max(rows, 1), size))


Pixels = UInt8[np.ndarray, "pictures channels side side"]
AT_ONCE = 1 << 23
"""Numbers in the pictures that are compared at once."""
PICTURES = 1024
"""Pictures that are compared at once at most, however small they are."""


@dataclass(frozen=True)
class NearestPixel:
    """How alike pictures and texts are: minus the distance to the nearest learned picture that carries just this text.

    A text that no learned picture carries is at −∞: after all others, and at chance among its like. A learned picture
    that is the very picture that is asked about tells nothing, and is left out.
    """

    pixels: Pixels
    names: Int64[np.ndarray, "texts"]
    """The number of each text; equal texts have equal numbers."""
    learned: Pixels
    owners: Int64[np.ndarray, "captions"]
    """The learned picture that each of the learned captions belongs to."""
    learned_names: Int64[np.ndarray, "captions"]

    def of_images(self, rows: slice) -> Float[np.ndarray, "pictures texts"]:
        """Some pictures' scores of all texts."""
        return -self._nearest(rows, self.names)

    def of_texts(self, rows: slice) -> Float[np.ndarray, "texts pictures"]:
        """Some texts' scores of all pictures."""
        return -self._nearest(slice(0, len(self.pixels)), self.names[rows]).T

    def known(self) -> int:
        """How many of the pictures were learned, pixel for pixel."""
        return int(np.isin(self._sums[0], self._sums[1]).sum())

    @cached_property
    def _sums(self) -> tuple[np.ndarray, np.ndarray]:
        return _sums(self.pixels), _sums(self.learned)

    def _nearest(self, rows: slice, names: Int64[np.ndarray, "texts"]) -> Float[np.ndarray, "pictures texts"]:
        """The distance of some pictures to the nearest learned one that carries each of these texts."""
        wanted, places = np.unique(names, return_inverse=True)
        near = np.full((rows.stop - rows.start, len(wanted)), np.inf, dtype=np.float32)
        carrying = np.flatnonzero(np.isin(self.learned_names, wanted))
        pictures = np.unique(self.owners[carrying])
        for some in _cut(len(pictures), self.learned):
            chosen = pictures[some]
            captions = carrying[np.isin(self.owners[carrying], chosen)]
            captions = captions[np.argsort(self.learned_names[captions], kind="stable")]
            self._bring_nearer(near, rows, chosen, captions, np.searchsorted(wanted, self.learned_names[captions]))
        return near[:, places]

    def _bring_nearer(
        self,
        near: Float[np.ndarray, "pictures wanted"],
        rows: slice,
        chosen: Int64[np.ndarray, "some"],
        captions: Int64[np.ndarray, "captions"],
        columns: Int64[np.ndarray, "captions"],
    ) -> None:
        """Let distances to some more learned pictures count where they are the smallest so far."""
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
    mine: Float[np.ndarray, "pictures pixels"],
    others: Float[np.ndarray, "some pixels"],
    same: Bool[np.ndarray, "pictures some"],
) -> Float[np.ndarray, "pictures some"]:
    """Squared distances, infinite where both are the same picture."""
    distances = (mine**2).sum(1)[:, None] + (others**2).sum(1) - 2 * mine @ others.T
    return np.where(same, np.float32(np.inf), distances)


def _cut(count: int, pixels: Pixels) -> Iterator[slice]:
    """So many pictures in blocks of about so many numbers as are compared at once."""
    size = min(PICTURES, max(1, AT_ONCE // int(np.prod(pixels.shape[1:]))))
    return (slice(start, min(count, start + size)) for start in range(0, count, size))


def _flat(pixels: Pixels) -> Float[np.ndarray, "pictures pixels"]:
    return pixels.reshape(len(pixels), -1).astype(np.float32) / 255 - 0.5


def _sums(pixels: Pixels) -> np.ndarray:
    """A number for each picture, the same for the same pixels: 64 bits of a hash."""
    sums = (blake2b(np.ascontiguousarray(picture).tobytes(), digest_size=8).digest() for picture in pixels)
    return np.frombuffer(b"".join(sums), dtype="<u8")


FIRST = (1, 5, 10)
"""Among how many of the first the right one is looked for."""


@dataclass(frozen=True)
class OneWay:
    """From pictures to texts, or from texts to pictures: shares from 0 to 1, and what guessing comes to."""

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
    """Recall among the first 1, 5 and 10 and the median rank, both ways; chance and baselines beside them."""

    title = "Image and text retrieval"

    found: TwoWays
    loss: float
    """The contrastive loss in batches, nats a pair."""
    pictures: int
    texts: int
    baselines: Mapping[str, TwoWays]
    protocol: Mapping[str, Any]

    @property
    def figures(self) -> dict[str, float]:
        """The figures that a training run writes down at each validation: means of both ways."""
        ways = [way for _, way in self.found]
        return {f"recall_at_{first}": sum(way.recall[first].value for way in ways) / 2 for first in (1, 10)}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON: None stands for what is infinite or no number."""
        return {
            **self.found.to_dict(),
            "loss": self.loss if math.isfinite(self.loss) else None,
            "pictures": self.pictures,
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
            ("pictures", f"{self.pictures:,}, all of them candidates for each text"),
            ("texts", f"{self.texts:,}, all of them candidates for each picture"),
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
    """How alike every picture and every text is, a block of rows at a time."""

    def of_images(self, rows: slice) -> Block:
        """Some pictures' scores of all texts."""
        ...

    def of_texts(self, rows: slice) -> Block:
        """Some texts' scores of all pictures."""
        ...


@dataclass(frozen=True)
class VectorScores:
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
class TableScores:
    """Scores that are written down: one table for both ways, or one for each."""

    by_image: Float[np.ndarray, "images texts"]
    by_text: Float[np.ndarray, "texts images"] | None = None

    def of_images(self, rows: slice) -> Block:
        """Some pictures' scores of all texts."""
        return self.by_image[rows]

    def of_texts(self, rows: slice) -> Block:
        """Some texts' scores of all pictures."""
        return self.by_image[:, rows].T if self.by_text is None else self.by_text[rows]


def two_ways(scores: PairScores, belonging: Belonging, *, samples: int = 1000, seed: int = 0) -> TwoWays:
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
    step = max(1, RETRIEVAL_AT_ONCE // len(ranks))
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
    scores: PairScores,
    belonging: Belonging,
    *,
    loss: float,
    protocol: Mapping[str, Any] | None = None,
    baselines: Mapping[str, PairScores] | None = None,
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
