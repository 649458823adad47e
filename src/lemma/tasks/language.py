"""Language modelling: perplexity with its protocol."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lemma.data.splits import Splits
from lemma.data.store import TokenArray
from lemma.errors import DataError, InputError
from lemma.models.base import LOGITS, POSITIONS, LanguageModel, evaluating
from lemma.report.text import label
from lemma.spec.models import Decoder
from lemma.tasks.losses import causal

# How a text is cut into rows that are read side by side.
#
# Windows and streams are the same cut: row k reads `length` tokens from token k·`scored` on and scores the last
# `scored` of them; the first row scores all of its own. Windows are short and many, streams long and few.


WARM_UP = 128  # tokens a recurrent model reads before it scores; what it remembers of older ones is faint
MOST_STREAMS = 32  # more rows a step gain little on two cores
NOT_SCORED = -100  # the target that cross-entropy passes over


@dataclass(frozen=True)
class Reading:
    """A cut of a text's `places`, the tokens that have a next one.

    >>> tokens = np.arange(6)
    >>> windows = Reading(places=5, length=3, scored=2, carried=False)
    >>> windows.cut(tokens, range(windows.rows), range(3))
    (array([[0, 1, 2],
           [2, 3, 4]]), array([[   1,    2,    3],
           [-100,    4,    5]]))
    """

    places: int
    length: int
    scored: int
    carried: bool
    """Whether the rows are streams, whose state carries all that counts, or windows."""
    context: int | None = None
    stride: int | None = None

    @property
    def rows(self) -> int:
        """How many rows cover all places."""
        return 1 + max(0, -(-(self.places - self.length) // self.scored))

    @property
    def warm_up(self) -> int:
        """Tokens each row but the first reads without scoring."""
        return self.length - self.scored if self.rows > 1 else 0

    def cut(self, tokens: np.ndarray, rows: range, columns: range) -> tuple[np.ndarray, np.ndarray]:
        """Return some columns of some rows and their targets, `NOT_SCORED` where nothing is scored."""
        starts = np.arange(rows.start, rows.stop)[:, None] * self.scored
        within = np.arange(columns.start, columns.stop)
        places = starts + within
        inputs, targets = (tokens[np.minimum(index, self.places)].astype(np.int64) for index in (places, places + 1))
        targets[(places >= self.places) | ((starts > 0) & (within < self.warm_up))] = NOT_SCORED
        return inputs, targets

    def batches(self, positions: int) -> Iterator[tuple[range, list[range]]]:
        """Go through the rows, some at a time, each time with the stretches of columns to read one after the other.

        About `positions` tokens are read at once. Streams all run side by side, since the next stretch has to wait
        for the state of the one before.
        """
        together = self.rows if self.carried else max(1, positions // self.length)
        stretches = _parts(self.length, max(1, positions // together))
        for rows in _parts(self.rows, together):
            yield rows, stretches


def _parts(whole: int, most: int) -> list[range]:
    return [range(start, min(start + most, whole)) for start in range(0, whole, most)]


def plan(model: LanguageModel, places: int, context: int | None, stride: int | None, streams: int | None) -> Reading:
    """Choose how to read a text: streams where a carried state gives each token its full context, else windows."""
    context, stride = _settle(model, context, stride)
    if context == model.reach and stride in (None, 1):
        length, scored = _stream(places, model.reach, streams)
        return Reading(places, length, scored, True, context, stride)
    if streams is not None:
        raise InputError(f"streams = {streams} needs a carried state, not windows of {context} tokens; leave it out.")
    length = min(context or places, places)
    return Reading(places, length, min(stride or length, length), False, context, stride)


def _settle(model: LanguageModel, context: int | None, stride: int | None) -> tuple[int | None, int | None]:
    """Fill in what was not given: the model's reach, and the stride that it can afford."""
    context = _usual_context(model) if context is None else context
    if context is None:
        if stride is not None:
            raise InputError(f"stride = {stride} needs a context: this model's memory has no bound. Give context too.")
        return None, None
    if context < 1 or (model.reach and context > model.reach):
        bounds = f"between 1 and {model.reach}, the tokens the model sees" if model.reach else "at least 1"
        raise InputError(f"context = {context} is not {bounds}.")
    stride = _usual_stride(model, context) if stride is None else stride
    if not 1 <= stride <= context:
        raise InputError(f"stride = {stride} is not between 1 and the context {context}.")
    return context, stride


def _usual_context(model: LanguageModel) -> int | None:
    """What the model sees; of a Transformer that sees everything, the context it was trained for."""
    return model.spec.context if model.reach is None and isinstance(model.spec, Decoder) else model.reach


def _usual_stride(model: LanguageModel, context: int) -> int:
    """One token for the window models; half the context for a Transformer, which reads a window anew at each step."""
    exact = context == model.reach and not isinstance(model.spec, Decoder)
    return 1 if exact else max(1, context // 2)


def _stream(places: int, reach: int | None, streams: int | None) -> tuple[int, int]:
    """Return the length of each stream and how much of it is scored."""
    warm_up = WARM_UP if reach is None else reach
    if streams is None:
        streams = 1 if reach else min(MOST_STREAMS, places // (8 * WARM_UP))
    elif streams < 1:
        raise InputError(f"streams = {streams} is less than 1; 1 reads the text in one pass.")
    if streams <= 1 or places <= warm_up:
        return places, places
    scored = -(-(places - warm_up) // streams)
    return warm_up + scored, scored


# The result of a measurement: a loss, what follows from it, and how it came about.


@dataclass(frozen=True)
class Source:
    """Where the tokens came from; the caller knows."""

    tokenizer: str | None = None
    data_hash: str | None = None
    split: str | None = None
    unknown_characters: int = 0
    """Characters of the text that the tokenizer could not express."""


@dataclass(frozen=True)
class Protocol:
    """All that has to be known to repeat a measurement, or to compare two."""

    tokenizer: str | None
    data_hash: str | None
    split: str | None
    context: int | None
    """The most tokens a token is predicted from; None if all before it."""
    stride: int | None
    """Tokens scored a window: 1 if each has the full context; None where the context has no bound."""
    streams: int | None
    """Stretches of the text read side by side, each with a state carried through; None where windows are read."""
    warm_up: int
    """Tokens that each stream or window but the first reads before it scores one."""
    precision: str
    left_out: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "left_out": list(self.left_out)}

    def __str__(self) -> str:
        if self.streams is None:
            return f"in windows of {self.context} tokens, stride {self.stride}"
        if self.streams == 1:
            return "in one pass"
        return f"in {self.streams} streams, each warmed up on {self.warm_up} tokens"


@dataclass(frozen=True)
class Score:
    """The mean loss of every token but the first, in nats, and the protocol it belongs to."""

    loss: float
    tokens: int
    bytes: int | None
    protocol: Protocol

    @property
    def perplexity(self) -> float:
        """exp(loss): the geometric mean of 1/p over all tokens (problem D2); infinite where that overflows."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf

    @property
    def bits_per_byte(self) -> float | None:
        """The bits of all predicted tokens over the bytes of the whole text; None if its bytes are not known.

        The first token is not predicted, so its bits are missing above while its bytes count below.
        """
        return self.loss * self.tokens / (math.log(2) * self.bytes) if self.bytes else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON: None stands for what is infinite or no number."""
        figures = {"perplexity": self.perplexity, "loss": self.loss, "bits_per_byte": self.bits_per_byte}
        finite = {name: value if value is None or math.isfinite(value) else None for name, value in figures.items()}
        return {**finite, "tokens": self.tokens, "protocol": self.protocol.to_dict()}

    def __str__(self) -> str:
        return "\n".join(label(name, value, 14) for name, value in self._lines())

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._lines())
        return f"<table>{''.join(rows)}</table>"

    def _lines(self) -> list[tuple[str, str]]:
        bits, protocol = self.bits_per_byte, self.protocol
        lines = [
            ("perplexity", f"{self.perplexity:,.4f}"),
            ("loss", f"{self.loss:.4f} nats/token"),
            ("bits per byte", None if bits is None else f"{bits:.4f}"),
            ("tokens", f"{self.tokens:,}"),
            ("tokenizer", protocol.tokenizer),
            ("split", protocol.split),
            ("data hash", protocol.data_hash),
            ("read", str(protocol)),
            *(("left out", sentence) for sentence in protocol.left_out),
        ]
        return [(name, value) for name, value in lines if value is not None]


# Perplexity: a full pass in which every token but the first is predicted exactly once.


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


# The perplexity of a split of a dataset, which knows its own tokenizer, hash, bytes and what it left out.


def perplexity_of_split(
    model: LanguageModel,
    dataset: Splits[TokenArray],
    split: str,
    *,
    context: int | None = None,
    stride: int | None = None,
) -> Score:
    """Measure a model on one split of a dataset by a full pass."""
    tokens = dataset.tokens(split)
    source = Source(dataset.tokenizer.about, dataset.hash, split, tokens.left_out)
    return perplexity(model, tokens, bytes=tokens.bytes, context=context, stride=stride, source=source)
