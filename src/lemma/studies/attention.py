"""What the heads of a trained model do on held-out text: how widely and how far each looks."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lemma.models import evaluating
from lemma.parts import AttentionRecord, tap
from lemma.runs import Run
from lemma.studies.pieces import in_batches, pieces_of

PIECES = 32


def measure_attention(run: Run, tokens: np.ndarray, trained: int, beyond: int) -> dict[str, Any]:
    """The mean entropy (nats) and mean distance (tokens) of every head, over all rows of its attention.

    Read in pieces of the trained length. A model without attention has no layers here.
    """
    device = next(run.model.parameters()).device
    pieces = pieces_of(tokens, min(trained, len(tokens)), PIECES)
    sums: dict[str, Float[Tensor, "two heads"]] = {}
    with torch.inference_mode(), evaluating(run.model):
        for batch in in_batches(pieces):
            with tap(run.model) as records:
                run.model(batch.to(device))
            for place, record in enumerate(records):
                name = f"{place}: {record.name}"
                sums[name] = sums.get(name, torch.zeros(())) + len(batch) * habits(record)
    layers = [(name.partition(": ")[2], total / len(pieces)) for name, total in sums.items()]
    return {
        "pieces": len(pieces),
        "layers": [
            {"name": name, "entropy": means[0].tolist(), "distance": means[1].tolist()} for name, means in layers
        ],
    }


def habits(record: AttentionRecord) -> Float[Tensor, "two heads"]:
    """Mean entropy −Σ α ln α and mean distance Σ α |t₁ − t₂| of each head, over the rows of one call."""
    weights = record.weights().double()
    entropy = torch.special.entr(weights).sum(-1)
    distance = (weights * record.distances().abs()).sum(-1)
    real = record.counted()
    rows = (weights.sum(-1) > 0) & (True if real is None else real)
    return torch.stack(
        [(habit * rows).sum((0, 2)) / rows.sum((0, 2)).clamp(min=1) for habit in (entropy, distance)]
    ).cpu()
