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
from lemma.data.images import CaptionedImages, prepare_images
from lemma.data.splits import Splits
from lemma.errors import DataError, SpecError
from lemma.models.dual_encoder import DualEncoderModel, embed_images, embed_texts
from lemma.report.progress import Observer
from lemma.runs.load import Run
from lemma.spec.data import ImagesSpec
from lemma.spec.models import CrossAttention, Transformer, max_text_tokens
from lemma.spec.recipe import Recipe
from lemma.tasks.augmentation import augment, draw_transforms, inner_tokens, insert_noise
from lemma.tasks.base import (
    IGNORE_INDEX,
    Batches,
    CrossEntropy,
    LoadContext,
    LossTerms,
    Score,
    Task,
    TaskLoss,
    Worker,
    data_protocol,
)
from lemma.tasks.registry import IMAGE_TEXT
from lemma.tasks.retrieval_score import NearestPixel, Relevance, RetrievalScore, score_retrieval, vector_scores

NUM_SAMPLES = 3  # images whose captions are shown as samples


class ImageTextTask(Task):
    """Retrieval of captions by images and images by captions, with a dual encoder."""

    info = IMAGE_TEXT

    def _read(self, data: ImagesSpec, context: LoadContext) -> Splits[CaptionedImages]:
        """Return the splits of captioned images for the context's model; raise SpecError for a tree backbone."""
        towers = context.model.towers if isinstance(context.model, CrossAttention) else context.model
        if towers.body.family == "tree":
            raise SpecError(
                "dual-encoder.body = 'tree' reads sentences with their trees, and captions have none. Use body=lstm."
            )
        return prepare_images(
            data,
            side=towers.image_side,
            length=max_text_tokens(towers.body),
            special_tokens=isinstance(towers.body, Transformer),
            tokenizer=context.vocabulary,
            evaluation=context.is_evaluation,
            split=context.split,
            progress=context.progress,
        )

    def batches(self, model: Any, examples: CaptionedImages, recipe: Recipe, worker: Worker) -> "ImageBatches":
        """Return batches of images with one caption each."""
        return ImageBatches(examples, recipe, worker)

    def loss(self, model: Any, recipe: Recipe, batches: Any = None) -> TaskLoss:
        """Return the model with its contrastive loss over the vectors of all processes."""
        worker = batches.worker if batches else Worker(model.log_scale.device)
        return ContrastiveLoss(model, recipe, worker)

    def validate(self, model: Any, data: Splits[CaptionedImages], recipe: Recipe) -> Score:
        """Return the retrieval score on the validation images."""
        return score_dual_encoder(model, data.item("validation"), recipe.batch, samples=0)

    def score(
        self, run: Run, data: Splits[CaptionedImages], split: str, settings: Mapping[str, Any], observer: Observer
    ) -> Score:
        """Return the retrieval score on a split, next to `NearestPixel` if the training images are available."""
        model = run.require(DualEncoderModel, "a dual encoder")
        return score_dual_encoder(
            model,
            data.item(split),
            run.recipe.batch,
            training_examples=self._training_images(run, observer),
            protocol=data_protocol(data, split),
        )

    def _training_images(self, run: Run, observer: Observer) -> CaptionedImages | None:
        """Return the images a run was trained on; None, after logging why, if they are missing or have changed."""
        skipped = "The baseline of the nearest pixel is left out:"
        if not isinstance(run.data, ImagesSpec):
            observer.log(f"{skipped} what it was trained on is not known.")
            return None
        try:
            data = self._read(run.data, LoadContext.of_run(run, observer))
            if data.hash == run.data_hash:
                return data.item("train")
            observer.log(f"{skipped} {run.data.images} has changed since training.")
        except (DataError, OSError) as error:
            observer.log(f"{skipped} {error}")
        return None

    def samples(self, model: Any, data: Splits[CaptionedImages]) -> list[str]:
        """Return a line `image → caption` for some validation images: the caption that the model retrieves."""
        examples = data.item("validation")
        captions = [caption for image in examples.images for caption in image.captions]
        vectors = embed_images(model, examples.pixels[:NUM_SAMPLES])
        best = (vectors @ embed_texts(model, examples.rows).T).argmax(1)
        return [f"{image.name} → {captions[index]}" for image, index in zip(examples.images, best, strict=False)]


# Batches

CAPTION_STREAM = 1  # separates the choice of captions from other draws of the same seed and step


class ImageBatches(Batches):
    """Batches of images, augmented at every step, each with one of its captions; all batches have one shape."""

    def __init__(self, examples: CaptionedImages, recipe: Recipe, worker: Worker) -> None:
        images = len(examples.caption_bounds) - 1
        if recipe.batch > images:  # an image must not be twice in a batch, as its own negative
            batch = images // worker.size * worker.size
            self.note = f"batch = {recipe.batch} is more than the {images:,} training images: batch={batch} is used."
            recipe = recipe.replace(batch=batch)
        length = max(1, round(float(examples.rows.lengths.mean())))
        super().__init__(recipe, worker, length, recipe.batch * length)
        self.examples, self.longest = examples, int(examples.rows.lengths.max())
        self.noise_tokens = inner_tokens(examples.rows)
        equal_lengths = np.zeros(len(examples.lengths), dtype=np.int64)  # images are not sorted by caption length
        self.order = BucketedExamples(equal_lengths, recipe.batch, recipe.seed)

    def batch(self, step: int) -> tuple[Float[Tensor, "rows channels side side"], Int[Tensor, "rows longest"]]:
        """Return the images of a step, values from 0 to 1, and one caption of each as token ids, padded with −1."""
        recipe, indices = self.recipe, self.order.examples(step)
        pixels = self.worker.to_device(np.asarray(self.examples.pixels[indices[self.rows]]))
        if recipe.augment:
            images = augment(pixels, draw_transforms(recipe.seed, step, recipe.batch, recipe.augment)[self.rows])
        else:
            images = pixels / 255
        caption_seed = int(np.random.default_rng([recipe.seed, step, CAPTION_STREAM]).integers(1 << 31))
        tokens = self.examples.pad_captions(indices, caption_seed)
        tokens = np.pad(tokens, ((0, 0), (0, self.longest - tokens.shape[1])), constant_values=IGNORE_INDEX)
        if recipe.augment:  # equal captions get equal noise, so that they stay equal
            distinct, inverse = np.unique(tokens, axis=0, return_inverse=True)
            tokens = insert_noise(distinct, self.noise_tokens, recipe.seed, step, recipe.augment)[inverse.reshape(-1)]
        return images, self.worker.to_device(tokens[self.rows])


# Loss (Radford et al. 2021)

ImageTextLogits = Float[Tensor, "images texts"]
ImageTextMask = Bool[Tensor, "images texts"]


def contrastive_loss(
    logits: ImageTextLogits, duplicates: ImageTextMask | None = None, smoothing: float = 0.0
) -> CrossEntropy:
    """Return the mean of the cross-entropies of rows and of columns of `logits`, targets on the diagonal, in nats.

    Image i belongs to text i. Where `duplicates` is true off the diagonal, text j is right for image i, too: the pair
    is left out of both softmaxes and of smoothing. For equal logits the loss is ln B.

    >>> contrastive_loss(torch.zeros(8, 8)).loss.item() - math.log(8) < 1e-6
    True
    """
    mask = torch.zeros_like(logits, dtype=torch.bool) if duplicates is None else duplicates.clone()
    mask.fill_diagonal_(False)
    rows, columns = _diagonal_loss(logits, mask, smoothing), _diagonal_loss(logits.T, mask.T, smoothing)
    objective, loss = (torch.stack(terms).mean() for terms in zip(rows, columns, strict=True))
    return CrossEntropy(objective, loss)


def _diagonal_loss(logits: ImageTextLogits, mask: ImageTextMask, smoothing: float) -> CrossEntropy:
    """Return the mean cross-entropy of rows whose target is the diagonal, without logits where `mask` is True."""
    exact = torch.promote_types(logits.dtype, torch.float32)
    log_probs = logits.masked_fill(mask, -math.inf).log_softmax(-1, dtype=exact)
    loss = -log_probs.diagonal().mean()
    if not smoothing:
        return CrossEntropy(loss, loss)
    uniform = -(log_probs.masked_fill(mask, 0.0).sum(-1) / (~mask).sum(-1)).mean()
    return CrossEntropy((1 - smoothing) * loss + smoothing * uniform, loss.detach())


def equal_rows(tokens: Int[Tensor, "batch time"]) -> Bool[Tensor, "batch batch"]:
    """Return a matrix that is True where texts i and j have equal tokens.

    >>> equal_rows(torch.tensor([[1, 2], [1, -1], [1, 2]]))[0].tolist()
    [True, False, True]
    """
    return (tokens[:, None] == tokens[None]).all(-1)


class ContrastiveLoss(TaskLoss):
    """A dual encoder with the symmetric contrastive loss over the vectors of all processes."""

    terms = ("loss", "temperature")

    def __init__(self, model: DualEncoderModel, recipe: Recipe, worker: Worker) -> None:
        super().__init__()
        check_batch(recipe)
        self.model, self.worker, self.smoothing = model, worker, recipe.label_smoothing
        self.chance = (recipe.batch, "captions", "B")

    def forward(
        self, images: Float[Tensor, "rows channels side side"], tokens: Int[Tensor, "rows time"], state: Any = None
    ) -> LossTerms:
        """Return the loss of a batch as `LossTerms`: objective, loss and temperature, no state."""
        model = self.model
        image_vectors, text_vectors = (
            GatherRows.apply(vectors.float(), self.worker) if self.worker.size > 1 else vectors.float()
            for vectors in (model.image_vectors(images), model.text_vectors(tokens))
        )
        with torch.autocast(images.device.type, enabled=False):  # bfloat16 is too coarse for cosines times a hundred
            logits = model.scale * image_vectors @ text_vectors.T
        objective, loss = contrastive_loss(logits, equal_rows(self.worker.gather(tokens)), self.smoothing)
        return objective, (loss, 1 / model.scale), None


def check_batch(recipe: Recipe) -> None:
    """Raise SpecError if a batch has a single pair, or is accumulated in parts: the other pairs are its negatives."""
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
    """Concatenation of the rows of all processes; backward, each process gets the summed gradients of its own rows.

    Every process computes the same loss, so the sum is `size` times too large; DDP's mean over the processes undoes it.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, vectors: Tensor, worker: Worker) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the rows (`vectors`) of all processes, concatenated by rank."""
        ctx.worker, ctx.num_rows = worker, len(vectors)  # pyright: ignore[reportAttributeAccessIssue]
        return worker.gather(vectors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradient of this process's rows, summed over all processes, and None for `worker`."""
        total = gradient.contiguous().clone()
        distributed.all_reduce(total)
        start = ctx.worker.rank * ctx.num_rows
        return total[start : start + ctx.num_rows], None


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
    """Return the retrieval score in both directions; given `training_examples`, next to the `NearestPixel` baseline."""
    images, texts = embed_images(model, examples.pixels), embed_texts(model, examples.rows)
    relevance, first_captions = Relevance.from_captions(examples), examples.caption_bounds[:-1]
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
        if count := nearest.count_seen_in_training():
            protocol["learned"] = f"{count:,} of these images were in the training split"
    return score_retrieval(
        vector_scores(images, texts),
        relevance,
        loss=mean_batch_loss(
            images, texts[first_captions], relevance.text_ids[first_captions], model.scale.item(), batch
        ),
        protocol=protocol,
        baselines=baselines,
        samples=samples,
    )


def mean_batch_loss(
    images: Float[np.ndarray, "pairs shared"],
    texts: Float[np.ndarray, "pairs shared"],
    text_ids: Int[np.ndarray, " pairs"],
    scale: float,
    batch: int,
) -> float:
    """Return the mean contrastive loss of pairs (row i of `images` and of `texts`) in random batches, in nats/pair.

    Logits are `scale` times inner products; pairs with equal `text_ids` are no negatives of each other.
    """
    size = min(batch, len(images))
    order = np.random.default_rng(0).permutation(len(images))[: len(images) // size * size].reshape(-1, size)
    losses = []
    for rows in order:
        logits = torch.from_numpy(scale * images[rows].astype(np.float64) @ texts[rows].astype(np.float64).T)
        duplicates = torch.from_numpy(text_ids[rows, None] == text_ids[rows])
        losses.append(contrastive_loss(logits, duplicates).loss.item())
    return float(np.mean(losses))
