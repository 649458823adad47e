"""Perplexity: a full pass in which every token but the first is predicted exactly once."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lemma.errors import DataError, InputError
from lemma.evaluation.reading import Reading, plan
from lemma.evaluation.score import Protocol, Score, Source
from lemma.models import LanguageModel, evaluating
from lemma.models.measuring import LOGITS, POSITIONS
from lemma.objectives import causal


def perplexity(
    model: LanguageModel,
    tokens: Int[np.ndarray, "time"] | Int[Tensor, "time"],
    *,
    bytes: int | None = None,
    context: int | None = None,
    stride: int | None = None,
    streams: int | None = None,
    batch: int | None = None,
    precision: Literal["float32", "bfloat16"] = "float32",
    source: Source | None = None,
) -> Score:
    """Measure how well a model predicts a text: exp(−1/n Σ log p(token | tokens before it)).

    Each window reads up to `context` tokens (the model's reach if unset) and scores its last `stride`; the first
    window scores all of its own. Half the context is usual for a Transformer; stride 1 gives every token its full
    context. Window models always have that, at no cost. A recurrent model without a given context carries its
    state: through `streams` stretches side by side, each but the first warmed up on the tokens before it, or through
    the whole text with streams=1. `bytes` is the size of the whole text in UTF-8; `batch` the number of tokens read
    at once, which moves speed and memory only; bfloat16 runs under autocast, float32 with the weights as they are.
    """
    text = _checked(tokens, model.spec.vocabulary)
    reading = plan(model, len(text) - 1, context, stride, streams)
    with _measuring(model, precision) as device:
        total = _total_loss(model, text, reading, batch or _positions(device, model.spec.vocabulary), device)
    protocol = _protocol(reading, precision, source or Source())
    return Score(total / reading.places, reading.places, bytes, protocol)


def _checked(tokens: np.ndarray | Tensor, vocabulary: int) -> np.ndarray:
    text = tokens.cpu().numpy() if isinstance(tokens, Tensor) else tokens
    if text.ndim != 1 or len(text) < 2:
        raise DataError(f"perplexity needs a row of at least 2 tokens, got shape {text.shape}. Give a longer text.")
    lowest, highest = int(text.min()), int(text.max())
    if lowest < 0 or highest >= vocabulary:
        wrong = lowest if lowest < 0 else highest
        raise InputError(
            f"token {wrong} is outside the model's vocabulary of {vocabulary}. Use the tokenizer it was trained with."
        )
    return text


def _positions(device: torch.device, vocabulary: int) -> int:
    kind = "cpu" if device.type == "cpu" else "cuda"
    return max(1, min(POSITIONS[kind], LOGITS[kind] // vocabulary))


@contextmanager
def _measuring(model: LanguageModel, precision: str) -> Iterator[torch.device]:
    """Switch dropout and gradients off, and autocast on if asked for; leave the model as it was."""
    device = next(model.parameters()).device
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
    with evaluating(model), torch.no_grad(), autocast:
        yield device


def _total_loss(
    model: LanguageModel, text: np.ndarray, reading: Reading, positions: int, device: torch.device
) -> float:
    total = torch.zeros((), dtype=torch.float64, device=device)
    for rows, stretches in reading.batches(positions):
        state = None
        for columns in stretches:
            inputs, targets = (torch.from_numpy(part).to(device) for part in reading.cut(text, rows, columns))
            logits, state = model(inputs, state)
            warming = max(0, reading.warm_up - columns.start) if rows.start else 0
            total += _sum_of_losses(logits[:, warming:], targets[:, warming:])
    return total.item()


def _sum_of_losses(
    logits: Float[Tensor, "rows time vocabulary"], targets: Int[Tensor, "rows time"]
) -> Float[Tensor, ""]:
    exact = logits.float() if logits.dtype == torch.bfloat16 else logits
    return causal(exact, targets, reduction="none").sum(dtype=torch.float64)


def _protocol(reading: Reading, precision: str, source: Source) -> Protocol:
    return Protocol(
        tokenizer=source.tokenizer,
        data_hash=source.data_hash,
        split=source.split,
        context=reading.context,
        stride=reading.stride,
        streams=reading.rows if reading.carried else None,
        warm_up=reading.warm_up,
        precision=precision,
        left_out=tuple(_left_out(reading, source)),
    )


def _left_out(reading: Reading, source: Source) -> Iterator[str]:
    yield "the first token, which has nothing before it (its bytes count in bits per byte)"
    if source.unknown_characters:
        yield f"{source.unknown_characters:,} characters that are not in the tokenizer's alphabet"
    if reading.rows == 1:
        return
    if not reading.carried:
        least = reading.warm_up + 1
        yield f"what lies further back than its window: past the first, a token sees {least} to {reading.length} tokens"
    elif reading.context is None:
        yield f"what lies further back than the {reading.warm_up} tokens that warm each stream but the first up"
