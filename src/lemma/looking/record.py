"""From one record of attention to its heads: the weights worked out again, measured and matched with patterns."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lemma.errors import InputError
from lemma.looking.head import Head
from lemma.looking.patterns import distances, match, places_of
from lemma.looking.sides import sides
from lemma.looking.statistics import statistics
from lemma.looking.words import Word
from lemma.parts import AttentionRecord

MASKED = -1e30  # some models add the least number there is instead of −∞


def heads_of(
    number: int, record: AttentionRecord, tokens: tuple[Word, ...], source: tuple[Word, ...], only: int | None
) -> Iterator[Head]:
    """The heads of one call of attention; of several rows of a batch, the last is looked at."""
    asking, known, cross = sides(record, tokens, source)
    record = _last_row(record)
    scores, added = _array(record.scores()), _added(record)
    if np.isnan(scores).any():
        raise InputError(f"layer {number} ({record.name}): scores that are no numbers (NaN). The weights are damaged.")
    common = {"layer": number, "name": record.name, "scale": float(record.scale)}
    common |= {"asking": asking, "known": known, "cross": cross}
    for index in range(len(scores)) if only is None else [only]:
        parts = {"added": None if added is None else added[index], **_vectors(record, index)}
        yield Head(head=index, **common, **parts, **_measured(scores[index], asking, known, cross))


def _vectors(record: AttentionRecord, index: int) -> dict[str, Any]:
    values = None if record.values is None else _array(record.values)[index]
    return {"queries": _array(record.queries)[index], "keys": _array(record.keys)[index], "values": values}


def _measured(
    scores: Float[np.ndarray, "new known"], asking: tuple[Word, ...], known: tuple[Word, ...], cross: bool
) -> dict[str, Any]:
    """Weights from scores, and all that is said about them."""
    allowed = scores > MASKED
    scores = np.where(allowed, scores, -np.inf)
    weights = _softmax(scores)
    places = places_of(asking, known, cross)
    return {
        "scores": scores,
        "allowed": allowed,
        "weights": weights,
        "statistics": statistics(weights, allowed, None if cross else np.abs(distances(asking, known))),
        "matches": tuple(match(name, weights, allowed, where) for name, where in places.items()),
    }


def _last_row(record: AttentionRecord) -> AttentionRecord:
    """The last row of a batch, in single precision or better."""
    precision = torch.promote_types(record.queries.dtype, torch.float32)
    fields = {field: getattr(record, field) for field in ("queries", "keys", "values", "bias")}
    kept = {field: _row(value).to("cpu", precision) for field, value in fields.items() if value is not None}
    line = None if record.line is None else record.line.to("cpu", precision)
    return replace(record, **kept, line=line)


def _row(tensor: Tensor) -> Tensor:
    return tensor[-1:] if tensor.dim() == 4 else tensor


def _array(tensor: Tensor) -> np.ndarray:
    return tensor[-1].numpy()


def _softmax(scores: Float[np.ndarray, "new known"]) -> Float[np.ndarray, "new known"]:
    """Row by row, in single precision or better; a row that may see nothing is zero."""
    most = scores.max(1, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(np.isfinite(most), most, 0.0))
    total = powers.sum(1, keepdims=True)
    return np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)


def _added(record: AttentionRecord) -> Float[np.ndarray, "heads new known"] | None:
    """What is added to the scaled scores where a key may be seen; None where that is nothing anywhere."""
    shape = (1, record.queries.shape[1], record.queries.shape[2], record.keys.shape[2])
    bias = torch.zeros(shape) if record.bias is None else record.bias.expand(shape)
    if record.line is not None:
        bias = bias + record.by_distance(record.steps())
    finite = bias.masked_fill(bias <= MASKED, 0.0)
    return _array(finite) if finite.any() else None
