"""Masked language modelling: an encoder predicts hidden tokens, and whether one piece of text follows another (E3)."""

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
from lemma.report.statistics import NamedValues, format_named_values, protocol_values
from lemma.runs.load import Run
from lemma.spec.models import SPECIAL_TOKENS, Encoder
from lemma.spec.recipe import Recipe
from lemma.tasks.base import (
    Batches,
    CrossEntropy,
    DataArgs,
    LossTerms,
    Score,
    TaskLoss,
    Worker,
    cross_entropy,
    data_protocol,
)
from lemma.tasks.language import TextTask, load_evaluation_text

SEED = 0


class MaskedTask(TextTask):
    """An encoder predicts hidden tokens of a text, whether one part of it follows another, or both."""

    name, unit = "masked", "nats/hidden token"
    no_penalties = "an encoder learns what is hidden from it"

    def batches(
        self, model: EncoderModel, examples: Int[np.ndarray, " length"], recipe: Recipe, worker: Worker
    ) -> "MaskedBatches":
        """Windows at random places, with some tokens hidden."""
        return MaskedBatches(examples, model.spec, recipe, worker)

    def loss(self, model: EncoderModel, recipe: Recipe, batches: Any = None) -> "MaskedLoss":
        """The loss of the hidden tokens, of what follows what, or both."""
        hidden = masked_windows(model.spec.context, model.spec, recipe.mask_rate).num_predicted
        return MaskedLoss(model, hidden)

    def validate(self, model: EncoderModel, data: Splits[TokenArray], recipe: Recipe) -> "MaskedScore":
        """Hide tokens of the validation text, the same every time, and predict them."""
        return score_masked(model, data.item("validation"), recipe.mask_rate)

    def evaluate(
        self, run: Run, given: DataArgs, split: str | None, settings: Mapping[str, Any], observer: Observer
    ) -> "MaskedScore":
        """Predict hidden tokens of other text, or of the run's own test or validation text."""
        data, part = load_evaluation_text(run, given, split, observer)
        encoder = run.require(EncoderModel, "an encoder")
        return score_masked(encoder, data.item(part), run.recipe.mask_rate, protocol=data_protocol(data, part))


def masked_windows(length: int, spec: Encoder, rate: float, batch: int = 1, seed: int = 0) -> MaskedWindows:
    """The windows that an encoder reads of a text of some length."""
    return MaskedWindows(length, spec.context, batch, seed, rate, spec.objective, spec.vocabulary, spec.special_tokens)


class MaskedBatches(Batches):
    """Windows at random places of a text; what is hidden is a function of the step too."""

    def __init__(self, tokens: Int[np.ndarray, " length"], spec: Encoder, recipe: Recipe, worker: Worker) -> None:
        super().__init__(recipe, worker, spec.context, recipe.batch * spec.context)
        self.tokens = tokens
        self.windows = masked_windows(len(tokens), spec, recipe.mask_rate, recipe.batch, recipe.seed)

    def batch(self, step: int) -> tuple[Int[Tensor, "rows context"], Int[Tensor, "rows context"]]:
        """Return what the model reads at a step, and what is to be predicted; −1 where nothing is."""
        inputs, targets = self.windows.batch(self.tokens, step)
        return self.worker.to_device(inputs[self.rows]), self.worker.to_device(targets[self.rows])


# The targets of a row are the tokens at the places that were hidden, −1 elsewhere. Its first place is a special token,
# which is never hidden: its target says whether the second half of the row follows the first (Devlin et al. 2019).


def masked_loss(
    logits: Float[Tensor, "batch time vocabulary"], targets: Int[Tensor, "batch time"], smoothing: float = 0.0
) -> CrossEntropy:
    """The loss at every place that was hidden."""
    return cross_entropy(logits[:, 1:], targets[:, 1:], smoothing)


def next_sentence_loss(
    follows: Float[Tensor, "batch two"], targets: Int[Tensor, "batch time"], smoothing: float = 0.0
) -> CrossEntropy:
    """The loss of the logits of 0 (does not follow) and 1 (follows)."""
    return cross_entropy(follows, targets[:, 0], smoothing)


class MaskedLoss(TaskLoss):
    """An encoder with the loss of the hidden tokens, of what follows what, or their sum."""

    def __init__(self, model: EncoderModel, hidden: int) -> None:
        """Take the model, and how many tokens of every row are predicted."""
        super().__init__()
        self.model, self.num_hidden = model, hidden
        self.terms = ("loss", "next_sentence") if model.spec.objective == "both" else ("loss",)

    def forward(
        self, inputs: Int[Tensor, "rows context"], targets: Int[Tensor, "rows context"], state: Any = None
    ) -> LossTerms:
        """Return the sum of the losses, to be minimised, and each of them.

        As many tokens are hidden in every row, so that the output layer need read no other places.
        """
        vectors = self.model.vectors(inputs)
        losses = []
        if self.model.output is not None:
            inner = targets[:, 1:]  # the first target says what follows what
            places = (inner >= 0).byte().argsort(dim=1, descending=True, stable=True)[:, : self.num_hidden]
            picked = vectors.gather(1, (places + 1)[..., None].expand(-1, -1, vectors.shape[-1]))
            losses.append(cross_entropy(self.model.output(picked), inner.gather(1, places)).loss)
        if self.model.follow is not None:
            losses.append(next_sentence_loss(self.model.follow(vectors[:, 0]), targets).loss)
        return torch.stack(losses).sum(), tuple(losses), None


@dataclass(frozen=True)
class MaskedScore(Score):
    """The mean loss of hidden tokens in nats, the share that was found; the same of what follows what, if learned."""

    title = "Prediction of hidden tokens"

    loss: float
    """Of hidden tokens; of an encoder that learned only what follows what, of that."""
    accuracy: float | None
    """The share of the hidden tokens that are the most likely; None where there are none."""
    tokens: int
    """Hidden tokens that were asked for."""
    rows: int
    follows_loss: float | None
    follows_accuracy: float | None
    protocol: Mapping[str, Any]

    @property
    def figures(self) -> dict[str, float]:
        """The figures that a training run writes down at each validation."""
        found = {"accuracy": self.accuracy, "next_sentence_accuracy": self.follows_accuracy}
        return {name: value for name, value in found.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON: None for what is infinite or NaN."""
        loss = self.loss if math.isfinite(self.loss) else None
        figures = {"perplexity": None if loss is None else self.perplexity, "loss": loss, "accuracy": self.accuracy}
        follows = {"next_sentence_loss": self.follows_loss, "next_sentence_accuracy": self.follows_accuracy}
        plain = {**figures, **(follows if self.follows_loss is not None else {})}
        return {**plain, "tokens": self.tokens, "windows": self.rows, "protocol": dict(self.protocol)}

    def __str__(self) -> str:
        return format_named_values(self._lines())

    def _lines(self) -> NamedValues:
        hidden: NamedValues = []
        if self.accuracy is not None:
            hidden.append(("perplexity", f"{self.perplexity:,.4f} of hidden tokens"))
            hidden.append(("loss", f"{self.loss:.4f} nats/token"))
            hidden.append(("accuracy", f"{100 * self.accuracy:.2f} % of {self.tokens:,} hidden tokens"))
        if self.follows_accuracy is not None:
            share = f"{100 * self.follows_accuracy:.2f} % right of {self.rows:,} windows, half of which follow"
            hidden += [("next sentence", f"{share} ({self.follows_loss:.4f} nats)")]
        return [*hidden, *protocol_values(self.protocol)]


def score_masked(
    model: EncoderModel,
    tokens: Integer[np.ndarray, " tokens"],
    rate: float,
    *,
    seed: int = SEED,
    protocol: Mapping[str, Any] | None = None,
) -> MaskedScore:
    """Go through a text window by window with `rate` of its tokens hidden, the same for every model of that context."""
    marks = 2 if model.spec.objective == "masked" else len(SPECIAL_TOKENS)
    context = min(model.spec.context, len(tokens) + marks)  # of a shorter text one window that is as long as the text
    spec = model.spec
    windows = MaskedWindows(len(tokens), context, 1, seed, rate, spec.objective, spec.vocabulary, spec.special_tokens)
    sums = {"hidden": [0.0, 0, 0], "follows": [0.0, 0, 0]}  # the loss, the right answers, the questions
    rows = 0

    def add(what: str, logits: Float[Tensor, "asked classes"], wanted: Int[Tensor, " asked"]) -> None:
        loss = functional.cross_entropy(logits.double(), wanted, reduction="sum").item()
        right = int((logits.argmax(-1) == wanted).sum())
        sums[what] = [old + new for old, new in zip(sums[what], (loss, right, len(wanted)), strict=True)]

    with measuring(model) as device:
        together = max(1, tokens_per_batch(device, model.spec.vocabulary) // context)  # so that their logits fit
        for numbers in windows.evaluation_batches(tokens):
            inputs, targets = (torch.from_numpy(part).to(device) for part in numbers)
            rows += len(inputs)
            for some, wanted in zip(inputs.split(together), targets[:, 1:].split(together), strict=True):
                if windows.num_predicted:
                    asked = wanted >= 0
                    add("hidden", model(some)[:, 1:][asked], wanted[asked])
            if windows.is_paired:
                add("follows", model.follows(inputs), targets[:, 0])
    (loss, accuracy, tokens_asked), (follows_loss, follows_accuracy, _) = (
        (total / asked if asked else None, right / asked if asked else None, asked)
        for total, right, asked in sums.values()
    )
    loss = follows_loss if loss is None else loss
    how: dict[str, Any] = {"read": f"{rows:,} windows of {context} places, one after the other"}
    if windows.num_predicted:
        how["hidden"] = f"{windows.num_predicted} of {windows.text_tokens} tokens a window, seed {seed}"
    if left := len(tokens) - rows * windows.text_tokens:
        how["left out"] = f"the last {left:,} tokens"
    return MaskedScore(
        loss=math.nan if loss is None else loss,
        accuracy=accuracy,
        tokens=tokens_asked,
        rows=rows,
        follows_loss=follows_loss,
        follows_accuracy=follows_accuracy,
        protocol={**(protocol or {}), **how},
    )
