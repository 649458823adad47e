"""Masked language modelling: an encoder predicts masked tokens, and whether one text segment follows another (E3).

The targets of a row are the tokens at masked positions, −1 elsewhere. Its first position is a special token, which is
never masked: its target says whether the second segment of the row follows the first (Devlin et al. 2019).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor
from torch.nn import functional

from lemma.data.batches import MaskedWindows
from lemma.data.splits import Splits
from lemma.data.store import TokenArray
from lemma.models.base import measuring, tokens_per_batch
from lemma.models.transformer import EncoderModel
from lemma.report.progress import Observer
from lemma.report.result import to_plain
from lemma.report.statistics import NamedValues, protocol_values
from lemma.runs.load import Run
from lemma.spec.models import SPECIAL_TOKENS, Encoder
from lemma.spec.recipe import Recipe
from lemma.tasks.base import Batches, CrossEntropy, LossTerms, Score, TaskLoss, Worker, cross_entropy, data_protocol
from lemma.tasks.language import TextTask
from lemma.tasks.registry import MASKED

SEED = 0  # of the masked positions of an evaluation


class MaskedTask(TextTask):
    """Training of an encoder to predict masked tokens of a text, the order of two segments, or both."""

    info = MASKED

    def batches(
        self, model: EncoderModel, examples: Int[np.ndarray, " length"], recipe: Recipe, worker: Worker
    ) -> "MaskedBatches":
        """Return batches of windows at random offsets of a text, with masked tokens."""
        return MaskedBatches(examples, model.spec, recipe, worker)

    def loss(self, model: EncoderModel, recipe: Recipe, batches: Any = None) -> "MaskedLoss":
        """Return the encoder with its loss on masked tokens; `batches` are not used."""
        return MaskedLoss(model, masked_windows(model.spec.context, model.spec, recipe.mask_rate).num_predicted)

    def validate(self, model: EncoderModel, data: Splits[TokenArray], recipe: Recipe) -> "MaskedScore":
        """Return loss and accuracy on the validation text."""
        return score_masked(model, data.item("validation"), recipe.mask_rate)

    def score(
        self, run: Run, data: Splits[TokenArray], split: str, settings: Mapping[str, Any], observer: Observer
    ) -> "MaskedScore":
        """Return loss and accuracy on a split, masked at the rate of the recipe."""
        encoder = run.require(EncoderModel, "an encoder")
        return score_masked(encoder, data.item(split), run.recipe.mask_rate, protocol=data_protocol(data, split))


def masked_windows(length: int, spec: Encoder, rate: float, batch: int = 1, seed: int = 0) -> MaskedWindows:
    """Return the windows in which an encoder reads a text of `length` tokens, a fraction `rate` of them masked."""
    return MaskedWindows(length, spec.context, batch, seed, rate, spec.objective, spec.vocabulary, spec.special_tokens)


class MaskedBatches(Batches):
    """Windows of a text at random offsets with masked tokens; offsets and masks depend only on the step."""

    def __init__(self, tokens: Int[np.ndarray, " length"], spec: Encoder, recipe: Recipe, worker: Worker) -> None:
        super().__init__(recipe, worker, spec.context, recipe.batch * spec.context)
        self.tokens = tokens
        self.windows = masked_windows(len(tokens), spec, recipe.mask_rate, recipe.batch, recipe.seed)

    def batch(self, step: int) -> tuple[Int[Tensor, "rows context"], Int[Tensor, "rows context"]]:
        """Return (windows with masked tokens, true tokens at the masked positions and −1 elsewhere)."""
        inputs, targets = self.windows.batch(self.tokens, step)
        return self.worker.to_device(inputs[self.rows]), self.worker.to_device(targets[self.rows])


def masked_loss(
    logits: Float[Tensor, "batch time vocabulary"], targets: Int[Tensor, "batch time"], smoothing: float = 0.0
) -> CrossEntropy:
    """Return the mean cross-entropy of the masked tokens; the first target of a row is left out."""
    return cross_entropy(logits[:, 1:], targets[:, 1:], smoothing)


def next_sentence_loss(
    follows: Float[Tensor, "batch two"], targets: Int[Tensor, "batch time"], smoothing: float = 0.0
) -> CrossEntropy:
    """Return the mean cross-entropy of logits of two classes, 1 if the second segment follows the first, else 0."""
    return cross_entropy(follows, targets[:, 0], smoothing)


class MaskedLoss(TaskLoss):
    """An encoder with its loss on masked tokens, on the order of segments, or their sum.

    `num_hidden` tokens are masked in every row, so the output layer reads these positions only.
    """

    def __init__(self, model: EncoderModel, num_hidden: int) -> None:
        super().__init__()
        self.model, self.num_hidden = model, num_hidden
        self.terms = ("loss", "next_sentence") if model.spec.objective == "both" else ("loss",)

    def forward(
        self, inputs: Int[Tensor, "rows context"], targets: Int[Tensor, "rows context"], state: Any = None
    ) -> LossTerms:
        """Return the loss of a batch as `LossTerms`: the sum of the losses, each of them, no state."""
        vectors = self.model.vectors(inputs)
        losses = []
        if self.model.output is not None:
            tokens = targets[:, 1:]  # the first target is about the order of segments
            positions = (tokens >= 0).byte().argsort(dim=1, descending=True, stable=True)[:, : self.num_hidden]
            masked = vectors.gather(1, (positions + 1)[..., None].expand(-1, -1, vectors.shape[-1]))
            losses.append(cross_entropy(self.model.output(masked), tokens.gather(1, positions)).loss)
        if self.model.follow is not None:
            losses.append(next_sentence_loss(self.model.follow(vectors[:, 0]), targets).loss)
        return torch.stack(losses).sum(), tuple(losses), None


@dataclass(frozen=True)
class MaskedScore(Score):
    """Loss and accuracy on masked tokens, and on the order of segments if the encoder learns it."""

    title = "Prediction of hidden tokens"

    loss: float  # nats per masked token; per window, if only the order of segments is learned
    accuracy: float | None  # fraction of the masked tokens that are the most likely ones; None where none is masked
    tokens: int  # number of masked tokens
    rows: int  # number of windows
    follows_loss: float | None  # nats per window of the order of segments
    follows_accuracy: float | None  # fraction of the windows whose order is right
    protocol: Mapping[str, Any]

    @property
    def figures(self) -> dict[str, float]:
        """Accuracies by name, from 0 to 1: of masked tokens and of the order of segments."""
        figures = {"accuracy": self.accuracy, "next_sentence_accuracy": self.follows_accuracy}
        return {name: value for name, value in figures.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values: losses, accuracies, numbers of tokens and windows, protocol."""
        values = {"perplexity": self.perplexity, "loss": self.loss, "accuracy": self.accuracy}
        if self.follows_loss is not None:
            values |= {"next_sentence_loss": self.follows_loss, "next_sentence_accuracy": self.follows_accuracy}
        return to_plain({**values, "tokens": self.tokens, "windows": self.rows, "protocol": self.protocol})

    def _lines(self) -> NamedValues:
        """Return (name, value) pairs for the summary: losses, accuracies, protocol."""
        lines: NamedValues = []
        if self.accuracy is not None:
            lines.append(("perplexity", f"{self.perplexity:,.4f} of hidden tokens"))
            lines.append(("loss", f"{self.loss:.4f} nats/token"))
            lines.append(("accuracy", f"{100 * self.accuracy:.2f} % of {self.tokens:,} hidden tokens"))
        if self.follows_accuracy is not None:
            percent = f"{100 * self.follows_accuracy:.2f} % right of {self.rows:,} windows, half of which follow"
            lines.append(("next sentence", f"{percent} ({self.follows_loss:.4f} nats)"))
        return [*lines, *protocol_values(self.protocol)]


def _sum_predictions(
    logits: Float[Tensor, "predictions classes"], targets: Int[Tensor, " predictions"]
) -> Float[np.ndarray, " sums"]:
    """Return (sum of cross-entropies, number of correct predictions, number of predictions) as an array."""
    loss = functional.cross_entropy(logits.double(), targets, reduction="sum").item()
    return np.array([loss, int((logits.argmax(-1) == targets).sum()), len(targets)])


def score_masked(
    model: EncoderModel,
    tokens: Integer[np.ndarray, " tokens"],
    rate: float,
    *,
    seed: int = SEED,
    protocol: Mapping[str, Any] | None = None,
) -> MaskedScore:
    """Return loss and accuracy on a text with a fraction `rate` of its tokens masked, the same ones for every model."""
    spec = model.spec
    num_special = 2 if spec.objective == "masked" else len(SPECIAL_TOKENS)
    context = min(spec.context, len(tokens) + num_special)  # a shorter text is one window
    windows = masked_windows(len(tokens), spec.replace(context=context), rate, seed=seed)
    hidden, follows = np.zeros(3), np.zeros(3)
    rows = 0
    with measuring(model) as device:
        batch_size = max(1, tokens_per_batch(device, spec.vocabulary) // context)  # whose logits fit in memory
        for arrays in windows.evaluation_batches(tokens):
            inputs, targets = (torch.from_numpy(array).to(device) for array in arrays)
            rows += len(inputs)
            for batch, batch_targets in zip(inputs.split(batch_size), targets[:, 1:].split(batch_size), strict=True):
                if windows.num_predicted:
                    is_masked = batch_targets >= 0
                    hidden += _sum_predictions(model(batch)[:, 1:][is_masked], batch_targets[is_masked])
            if windows.is_paired:
                follows += _sum_predictions(model.follows(inputs), targets[:, 0])
    loss, accuracy = (hidden[:2] / hidden[2]).tolist() if hidden[2] else (None, None)
    follows_loss, follows_accuracy = (follows[:2] / follows[2]).tolist() if follows[2] else (None, None)
    loss = follows_loss if loss is None else loss
    entries: dict[str, Any] = {"read": f"{rows:,} windows of {context} places, one after the other"}
    if windows.num_predicted:
        entries["hidden"] = f"{windows.num_predicted} of {windows.num_text_tokens} tokens a window, seed {seed}"
    if unread := len(tokens) - rows * windows.num_text_tokens:
        entries["left out"] = f"the last {unread:,} tokens"
    return MaskedScore(
        loss=math.nan if loss is None else loss,
        accuracy=accuracy,
        tokens=int(hidden[2]),
        rows=rows,
        follows_loss=follows_loss,
        follows_accuracy=follows_accuracy,
        protocol={**(protocol or {}), **entries},
    )
