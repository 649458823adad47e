"""Images and texts: a dual encoder finds the caption of an image and the image of a caption."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, distributed
from torch.autograd.function import FunctionCtx

from lemma.data.batches import BucketedExamples
from lemma.data.corpora import IMAGES
from lemma.data.images import CaptionedImages, prepare_images
from lemma.data.splits import Splits
from lemma.errors import DataError, SpecError
from lemma.models.dual_encoder import DualEncoderModel, embed_images, embed_texts
from lemma.report.progress import Observer, reading_progress
from lemma.runs.load import Run
from lemma.spec.data import ImagesSpec
from lemma.spec.models import CrossAttention, DualEncoder, Transformer, max_text_tokens
from lemma.spec.recipe import Recipe
from lemma.tasks.augmentation import augment, draw_transforms, inner_tokens, insert_noise
from lemma.tasks.base import (
    IGNORE_INDEX,
    Batches,
    CrossEntropy,
    DataArgs,
    LossTerms,
    Score,
    Task,
    TaskLoss,
    Worker,
    check_penalties,
    check_unchanged,
    choose_split,
    data_protocol,
    report_skipped,
)
from lemma.tasks.retrieval_score import (
    NearestPixel,
    Relevance,
    RetrievalScore,
    score_retrieval,
    vector_scores,
)

NUM_SAMPLES = 3
"""Images whose captions are shown as samples."""


class ImageTextTask(Task):
    """A dual encoder learns which caption of a batch belongs to which image."""

    name, option, example, learns = "image-text", "images", "emoji", "images with captions"
    unit, has_perplexity, text_checks = "nats/pair", False, False  # a smaller split has a lower loss by its size alone
    data_spec = ImagesSpec
    names, settings, files = IMAGES, ("captions", "image_column", "caption_column"), ("captions",)
    splits_given_data = True
    no_penalties = "a dual encoder learns images and captions"
    adaptation_batch = 128  # the images of a batch are each other's wrong answers, so that there must be many

    def load(
        self,
        data: ImagesSpec,
        model: DualEncoder | CrossAttention,
        recipe: Recipe,
        observer: Observer,
        vocabulary: Any = None,
        labels: tuple[str, ...] = (),
    ) -> Splits[CaptionedImages]:
        """Read images with captions as the dual encoder reads them."""
        return report_skipped(self._prepare(data, model, vocabulary, observer), observer)

    def _prepare(
        self, data: ImagesSpec, model: DualEncoder | CrossAttention, vocabulary: Any, observer: Observer
    ) -> Splits[CaptionedImages]:
        progress = reading_progress(observer)
        return prepare_images(data, **input_settings(model), tokenizer=vocabulary, progress=progress)

    def batches(self, model: Any, examples: CaptionedImages, recipe: Recipe, worker: Worker) -> "ImageBatches":
        """Images in a new order every epoch, augmented every time."""
        return ImageBatches(examples, recipe, worker)

    def loss(self, model: Any, recipe: Recipe, batches: Any = None) -> TaskLoss:
        """The symmetric contrastive loss."""
        check_penalties(self, recipe)
        worker = batches.worker if batches else Worker(model.log_scale.device)
        return ContrastiveLoss(model, recipe, worker)

    def validate(self, model: Any, data: Splits[CaptionedImages], recipe: Recipe) -> Score:
        """Search the validation images, without intervals and baselines."""
        return score_dual_encoder(model, data.item("validation"), recipe.batch, samples=0)

    def evaluate(
        self, run: Run, given: DataArgs, split: str | None, settings: Mapping[str, Any], observer: Observer
    ) -> Score:
        """Find captions by images and images by captions: the run's own test split, or other images."""
        data, part = self._evaluated(run, given, split, observer)
        assert isinstance(run.spec, DualEncoder)
        trained, left_out = None, "The baseline of the nearest pixel is left out:"
        try:  # the images that the run was trained on, to compare pixels with
            if not isinstance(run.data, ImagesSpec):
                raise DataError("what it was trained on is not known.")
            own = self._prepare(run.data, run.spec, run.tokenizer, observer)
            if own.hash == run.data_hash:
                trained = own.item("train")
            else:
                observer.log(f"{left_out} {run.data.images} has changed since training.")
        except (DataError, OSError) as error:
            observer.log(f"{left_out} {error}")
        model = run.require(DualEncoderModel, "a dual encoder")
        batch, protocol = run.recipe.batch, data_protocol(data, part)
        return score_dual_encoder(model, data.item(part), batch, training_examples=trained, protocol=protocol)

    def _evaluated(
        self, run: Run, given: DataArgs, split: str | None, observer: Observer
    ) -> tuple[Splits[CaptionedImages], str]:
        """The images that a run is evaluated on, and which split of them."""
        assert isinstance(run.spec, DualEncoder | CrossAttention)
        if given.name is None:
            assert isinstance(run.data, ImagesSpec)
            data = self.load(run.data, run.spec, run.recipe, observer, run.tokenizer)
            return check_unchanged(run, data, run.data.images, "images"), choose_split(data, split)
        known = {"held_out": run.data.held_out} if isinstance(run.data, ImagesSpec) else {}
        data = prepare_images(
            ImagesSpec(images=given.name, **known, **given.settings),
            **input_settings(run.spec),
            tokenizer=run.tokenizer,
            evaluation=True,
            split=split,
            progress=reading_progress(observer),
        )
        return report_skipped(data, observer), choose_split(data, None)

    def samples(self, model: Any, data: Splits[CaptionedImages]) -> list[str]:
        """The caption that is found for each of the first few validation images."""
        examples = data.item("validation")
        captions = [caption for image in examples.images for caption in image.captions]
        vectors = embed_images(model, examples.pixels[:NUM_SAMPLES])
        found = (vectors @ embed_texts(model, examples.rows).T).argmax(1)
        return [f"{image.name} → {captions[best]}" for image, best in zip(examples.images, found, strict=False)]


def input_settings(spec: DualEncoder | CrossAttention) -> dict[str, Any]:
    """How a dual encoder reads images and captions: their size, their length, and whether between special tokens."""
    towers = spec.towers if isinstance(spec, CrossAttention) else spec
    if towers.body.family == "tree":
        raise SpecError(
            "dual-encoder.body = 'tree' reads sentences with their trees, and captions have none. Use body=lstm."
        )
    return {
        "side": towers.image_side,
        "length": max_text_tokens(towers.body),
        "special_tokens": isinstance(towers.body, Transformer),
    }


# Batches


CAPTION_STREAM = 1
"""Makes the choice of captions independent of other draws of the same seed and step."""


class ImageBatches(Batches):
    """Batches of images, each with one of its captions, all of one shape."""

    def __init__(self, examples: CaptionedImages, recipe: Recipe, worker: Worker) -> None:
        images = len(examples.caption_bounds) - 1
        if recipe.batch > images:  # no image is to be in a batch twice: that would be too easy
            batch = images // worker.size * worker.size
            self.note = f"batch = {recipe.batch} is more than the {images:,} training images: batch={batch} is used."
            recipe = recipe.replace(batch=batch)
        length = max(1, round(float(examples.rows.lengths.mean())))
        super().__init__(recipe, worker, length, recipe.batch * length)
        self.examples, self.longest = examples, int(examples.rows.lengths.max())
        self.noise_tokens = inner_tokens(examples.rows)
        alike = np.zeros(len(examples.lengths), dtype=np.int64)  # images are not sorted by their captions' length
        self.order = BucketedExamples(alike, recipe.batch, recipe.seed)

    def batch(self, step: int) -> tuple[Float[Tensor, "rows channels side side"], Int[Tensor, "rows longest"]]:
        """Return the images of a step, and a caption of each."""
        recipe, chosen = self.recipe, self.order.examples(step)
        pixels = self.worker.to_device(np.asarray(self.examples.pixels[chosen[self.rows]]))
        if recipe.augment:
            images = augment(pixels, draw_transforms(recipe.seed, step, recipe.batch, recipe.augment)[self.rows])
        else:
            images = pixels / 255
        choice = int(np.random.default_rng([recipe.seed, step, CAPTION_STREAM]).integers(1 << 31))
        tokens = self.examples.pad_captions(chosen, choice)
        tokens = np.pad(tokens, ((0, 0), (0, self.longest - tokens.shape[1])), constant_values=IGNORE_INDEX)
        if recipe.augment:  # images of one caption, or one that is there twice, have the same tokens
            different, which = np.unique(tokens, axis=0, return_inverse=True)
            tokens = insert_noise(different, self.noise_tokens, recipe.seed, step, recipe.augment)[which.reshape(-1)]
        return images, self.worker.to_device(tokens[self.rows])


# Loss (Radford et al. 2021)


ImageTextLogits = Float[Tensor, "images texts"]
ImageTextMask = Bool[Tensor, "images texts"]


def contrastive_loss(
    logits: ImageTextLogits, duplicates: ImageTextMask | None = None, smoothing: float = 0.0
) -> CrossEntropy:
    """The symmetric loss: −½ (mean log softmax of rows + mean log softmax of columns) at the pairs, in nats.

    Image i belongs to text i. Where `alike` is true off the diagonal, text j is as right for image i as its own: the
    pair is left out of both softmaxes, and of what smoothing spreads over. Where all logits are equal it is ln B.

    >>> contrastive(torch.zeros(8, 8)).loss.item() - math.log(8) < 1e-6
    True
    """
    left_out = torch.zeros_like(logits, dtype=torch.bool) if duplicates is None else duplicates.clone()
    left_out.fill_diagonal_(False)
    ways = (_one_way(logits, left_out, smoothing), _one_way(logits.T, left_out.T, smoothing))
    objective, loss = (torch.stack(both).mean() for both in zip(*ways, strict=True))
    return CrossEntropy(objective, loss)


def _one_way(logits: ImageTextLogits, left_out: ImageTextMask, smoothing: float) -> CrossEntropy:
    exact = torch.promote_types(logits.dtype, torch.float32)
    log = logits.masked_fill(left_out, -math.inf).log_softmax(-1, dtype=exact)
    loss = -log.diagonal().mean()
    if not smoothing:
        return CrossEntropy(loss, loss)
    even = -(log.masked_fill(left_out, 0.0).sum(-1) / (~left_out).sum(-1)).mean()
    return CrossEntropy((1 - smoothing) * loss + smoothing * even, loss.detach())


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
        check_batch(recipe)
        self.model, self.worker, self.smoothing = model, worker, recipe.label_smoothing
        self.chance = (recipe.batch, "captions", "B")

    def forward(
        self, images: Float[Tensor, "rows channels side side"], tokens: Int[Tensor, "rows time"], state: Any = None
    ) -> LossTerms:
        """Return the smoothed loss of the whole batch, to minimise; the true one and the temperature are reported."""
        model = self.model
        shown, texts = (
            GatherRows.apply(vectors.float(), self.worker) if self.worker.size > 1 else vectors.float()
            for vectors in (model.image_vectors(images), model.text_vectors(tokens))
        )
        with torch.autocast(images.device.type, enabled=False):  # bfloat16 is too coarse for cosines times a hundred
            logits = model.scale * shown @ texts.T
        objective, loss = contrastive_loss(logits, equal_rows(self.worker.gather(tokens)), self.smoothing)
        return objective, (loss, 1 / model.scale), None


def check_batch(recipe: Recipe) -> None:
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


class GatherRows(torch.autograd.Function):
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


def score_dual_encoder(
    model: DualEncoderModel,
    examples: CaptionedImages,
    batch: int,
    *,
    training_examples: CaptionedImages | None = None,
    protocol: Mapping[str, Any] | None = None,
    samples: int = 1000,
) -> RetrievalScore:
    """Let a dual encoder find captions by images and images by captions, next to the nearest `trained` image."""
    images, texts = embed_images(model, examples.pixels), embed_texts(model, examples.rows)
    belonging, first = Relevance.from_captions(examples), examples.caption_bounds[:-1]
    protocol = {**(protocol or {}), "loss of": f"batches of {min(batch, len(images)):,} pairs"}
    baselines = {}
    if training_examples is not None:
        nearest = NearestPixel(
            examples.pixels,
            examples.caption_ids,
            training_examples.pixels,
            training_examples.image_indices,
            training_examples.caption_ids,
        )
        baselines = {"nearest pixel": nearest}
        if known := nearest.count_training_images():
            protocol["learned"] = f"{known:,} of these images were in the training split"
    return score_retrieval(
        vector_scores(images, texts),
        belonging,
        loss=mean_batch_loss(images, texts[first], belonging.text_ids[first], model.scale.item(), batch),
        protocol=protocol,
        baselines=baselines,
        samples=samples,
    )


def mean_batch_loss(
    images: Float[np.ndarray, "pairs shared"],
    texts: Float[np.ndarray, "pairs shared"],
    names: Int[np.ndarray, " pairs"],
    scale: float,
    batch: int,
) -> float:
    """The contrastive loss of pairs in random batches of one size; pairs fewer than a batch are one batch."""
    size = min(batch, len(images))
    order = np.random.default_rng(0).permutation(len(images))[: len(images) // size * size].reshape(-1, size)
    losses = []
    for rows in order:
        logits = torch.from_numpy(scale * images[rows].astype(np.float64) @ texts[rows].astype(np.float64).T)
        losses.append(contrastive_loss(logits, torch.from_numpy(names[rows, None] == names[rows])).loss.item())
    return float(np.mean(losses))
