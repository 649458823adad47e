"""Loss against position, up to several times the length a model was trained at."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from lemma.errors import RunError
from lemma.models import LanguageModel, build, evaluating
from lemma.runs import Run
from lemma.spec import Decoder
from lemma.studies.pieces import in_batches, pieces_of

PIECES = 256
BINS = 16  # points of the curve for each trained length


def measure_positions(run: Run, tokens: np.ndarray, trained: int, beyond: int) -> dict[str, Any]:
    """The mean loss at each position of pieces of held-out text, `beyond` times as long as what was trained.

    Position p has p tokens before it in the piece; all of them are seen, whatever the trained length. Neighbouring
    positions are put together, sixteen groups for each trained length.
    """
    asked = min(beyond * trained, len(tokens) - 1)
    if asked < 1:
        raise RunError(f"measures.positions: the validation text has {len(tokens)} tokens; at least 2 are needed.")
    pieces = pieces_of(tokens, asked + 1, PIECES)
    model, readable = stretched(run.model, asked)
    losses = losses_by_position(model, pieces[:, : readable + 1])
    edges = list(range(0, readable, max(1, trained // BINS)))
    bins = [(begin, min(end, readable)) for begin, end in zip(edges, [*edges[1:], readable], strict=True)]
    return {
        "trained": trained,
        "beyond": beyond,
        "readable": readable,
        "asked": asked,
        "pieces": len(pieces),
        "positions": [(begin + 1 + end) / 2 for begin, end in bins],
        "losses": [float(losses[begin:end].mean()) for begin, end in bins],
    }


def stretched(model: LanguageModel, length: int) -> tuple[LanguageModel, int]:
    """The same weights with a context of at least `length`, and how much of it the model can read.

    Without position vectors of its own a Transformer is rebuilt longer; learned vectors end where the context does.
    """
    spec = model.spec
    if not isinstance(spec, Decoder) or spec.context >= length:
        return model, length
    if spec.positions.tabled:
        return model, spec.context
    device = next(model.parameters()).device
    longer = build(spec.replace(context=length)).to(device)
    longer.load_state_dict(model.state_dict())
    assert isinstance(longer, LanguageModel)
    return longer, length


def losses_by_position(model: LanguageModel, pieces: Int[Tensor, "pieces length"]) -> Float[Tensor, "positions"]:
    """The mean loss of the second, third, … token of the pieces, each read from its beginning."""
    device = next(model.parameters()).device
    sums = torch.zeros(pieces.shape[1] - 1, dtype=torch.float64)
    with torch.inference_mode(), evaluating(model):
        for batch in in_batches(pieces):
            rows = batch.to(device)
            logits = model(rows[:, :-1])[0]
            losses = functional.cross_entropy(logits.transpose(1, 2).float(), rows[:, 1:], reduction="none")
            sums += losses.double().sum(0).cpu()
    return sums / len(pieces)
