"""How well an encoder says what is hidden from it: loss and accuracy over a text, the same tokens hidden always."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor
from torch.nn import functional

from lemma.data.batches import MaskedWindows
from lemma.models.base import measuring, positions_on
from lemma.models.transformer import EncoderModel
from lemma.report.statistics import Lines, lay_out, protocol_lines
from lemma.spec.models import MARKS, Encoder

SEED = 0


@dataclass(frozen=True)
class MaskedScore:
    """The mean loss of hidden tokens in nats, the share that was found; the same of what follows what, if learned."""

    loss: float
    """Of hidden tokens; of an encoder that learned only what follows what, of that."""
    accuracy: float | None
    """The share of the hidden tokens that are the likeliest; None where there are none."""
    tokens: int
    """Hidden tokens that were asked for."""
    rows: int
    follows_loss: float | None
    follows_accuracy: float | None
    protocol: Mapping[str, Any]

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return math.exp(min(self.loss, 700))

    @property
    def figures(self) -> dict[str, float]:
        """The figures that a training run writes down at each validation."""
        found = {"accuracy": self.accuracy, "next_sentence_accuracy": self.follows_accuracy}
        return {name: value for name, value in found.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON: None stands for what is infinite or no number."""
        loss = self.loss if math.isfinite(self.loss) else None
        figures = {"perplexity": None if loss is None else self.perplexity, "loss": loss, "accuracy": self.accuracy}
        follows = {"next_sentence_loss": self.follows_loss, "next_sentence_accuracy": self.follows_accuracy}
        asked = {"tokens": self.tokens, "windows": self.rows}
        return {
            **figures,
            **(follows if self.follows_loss is not None else {}),
            **asked,
            "protocol": dict(self.protocol),
        }

    def __str__(self) -> str:
        return lay_out(self._lines())

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._lines())
        return f"<table>{''.join(rows)}</table>"

    def _lines(self) -> Lines:
        hidden: Lines = []
        if self.accuracy is not None:
            hidden = [
                ("perplexity", f"{self.perplexity:,.4f} of hidden tokens"),
                ("loss", f"{self.loss:.4f} nats/token"),
            ]
            hidden += [("accuracy", f"{100 * self.accuracy:.2f} % of {self.tokens:,} hidden tokens")]
        if self.follows_accuracy is not None:
            share = f"{100 * self.follows_accuracy:.2f} % right of {self.rows:,} windows, half of which follow"
            hidden += [("next sentence", f"{share} ({self.follows_loss:.4f} nats)")]
        return [*hidden, *protocol_lines(self.protocol)]


def score_masked(
    model: EncoderModel,
    tokens: Integer[np.ndarray, "tokens"],
    rate: float,
    *,
    seed: int = SEED,
    protocol: Mapping[str, Any] | None = None,
) -> MaskedScore:
    """Go through a text window by window with `rate` of its tokens hidden, the same for every model of that context."""
    windows = _windows(model.spec, len(tokens), rate, seed)
    hidden, follows, rows = Sums(), Sums(), 0
    with measuring(model) as device:
        for numbers in windows.passes(tokens):
            inputs, targets = (torch.from_numpy(part).to(device) for part in numbers)
            rows += len(inputs)
            if windows.hidden:
                _add_hidden(hidden, model, inputs, targets)
            if windows.paired:
                follows.add(model.follows(inputs), targets[:, 0])
    loss = hidden.loss if hidden.asked else follows.loss
    return MaskedScore(
        loss=math.nan if loss is None else loss,
        accuracy=hidden.accuracy,
        tokens=hidden.asked,
        rows=rows,
        follows_loss=follows.loss,
        follows_accuracy=follows.accuracy,
        protocol={**(protocol or {}), **_how(windows, len(tokens), rows, seed)},
    )


@dataclass
class Sums:
    """The losses, the right answers and the questions of what was asked so far."""

    total: float = 0.0
    right: int = 0
    asked: int = 0

    def add(self, logits: Float[Tensor, "asked classes"], wanted: Int[Tensor, "asked"]) -> None:
        """Add some questions."""
        self.total += functional.cross_entropy(logits.double(), wanted, reduction="sum").item()
        self.right += int((logits.argmax(-1) == wanted).sum())
        self.asked += len(wanted)

    @property
    def loss(self) -> float | None:
        """The mean loss."""
        return self.total / self.asked if self.asked else None

    @property
    def accuracy(self) -> float | None:
        """The share that was right."""
        return self.right / self.asked if self.asked else None


def _windows(spec: Encoder, length: int, rate: float, seed: int) -> MaskedWindows:
    """The windows of a model; of a shorter text one that is as long as the text."""
    marks = 2 if spec.objective == "masked" else len(MARKS)
    context = min(spec.context, length + marks)
    return MaskedWindows(length, context, 1, seed, rate, spec.objective, spec.vocabulary)


def _add_hidden(
    sums: Sums, model: EncoderModel, inputs: Int[Tensor, "rows context"], targets: Int[Tensor, "rows context"]
) -> None:
    """Ask for the hidden tokens of some rows, so many at a time that their logits fit."""
    together = max(1, positions_on(inputs.device, model.spec.vocabulary) // inputs.shape[1])
    for some, wanted in zip(inputs.split(together), targets[:, 1:].split(together), strict=True):
        asked = wanted >= 0
        sums.add(model(some)[:, 1:][asked], wanted[asked])


def _how(windows: MaskedWindows, length: int, rows: int, seed: int) -> dict[str, Any]:
    read = f"{rows:,} windows of {windows.context} places, one after the other"
    rate = {"hidden": f"{windows.hidden} of {windows.taken} tokens a window, seed {seed}"} if windows.hidden else {}
    left = length - rows * windows.taken
    return {"read": read, **rate, **({"left out": f"the last {left:,} tokens"} if left else {})}
