"""Problem C1: one LSTM step by its formulas, beside PyTorch's cell.

Γ = σ(W[a; x] + b) for the gates u, f, o; c̃ = tanh(W_c[a; x] + b_c); c_t = Γ_f∗c_{t−1} + Γ_u∗c̃; a_t = Γ_o∗tanh(c_t);
ŷ = softmax(W_y a_t + b_y).
"""

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from lemma.ledger.identities.identity import Identity, drawn, filled, gap
from lemma.ledger.identities.report import IdentityReport, residual
from lemma.spec import Spec

GATES = "ufco"
"""The order in which PyTorch stacks them: input (here update), forget, cell (here the candidate), output."""


class Sizes(Spec):
    """How many units, inputs and classes."""

    D: int = Field(default=6, ge=1, le=1024)
    """Units."""
    d: int = Field(default=4, ge=1, le=1024)
    """Numbers of the input."""
    V: int = Field(default=5, ge=2, le=10_000)
    """Classes."""
    seed: int = Field(default=1, ge=0)
    """Fixes all numbers."""


def run(sizes: Sizes) -> IdentityReport:
    """One step by the formulas and by torch.nn.LSTMCell, from the same weights."""
    cell = filled(lambda: nn.LSTMCell(sizes.d, sizes.D), sizes.seed)
    output = filled(lambda: nn.Linear(sizes.D, sizes.V), sizes.seed + 50)
    x, a, c = (drawn(size, seed=sizes.seed + 90 + place) for place, size in enumerate((sizes.d, sizes.D, sizes.D)))
    with torch.no_grad():
        theirs, state = cell(x[None], (a[None], c[None]))
        chances = output(theirs).softmax(-1)[0]
        mine, mine_state = step(cell, x, a, c)
        scores = (output.weight @ mine + output.bias).exp()
    return IdentityReport(
        "c1",
        IDENTITY.title,
        "c_t = Γ_f∗c_{t−1} + Γ_u∗c̃, a_t = Γ_o∗tanh(c_t), ŷ = softmax(W_y a_t + b_y), with [a; x] stacked.",
        sizes.to_dict(),
        (
            residual("c_t − torch.nn.LSTMCell's, largest entry", gap(mine_state, state[0])),
            residual("a_t − torch.nn.LSTMCell's, largest entry", gap(mine, theirs[0])),
            residual("ŷ − softmax of the output layer, largest entry", gap(scores / scores.sum(), chances)),
        ),
    )


def step(
    cell: nn.LSTMCell, x: Float[Tensor, "d"], a: Float[Tensor, "D"], c: Float[Tensor, "D"]
) -> tuple[Float[Tensor, "D"], Float[Tensor, "D"]]:
    """a_t and c_t by the formulas, from the cell's weights taken apart gate by gate."""
    stacked = torch.cat([a, x])
    weights = torch.cat([cell.weight_hh, cell.weight_ih], dim=1).chunk(4)
    biases = (cell.bias_ih + cell.bias_hh).chunk(4)
    before = {gate: W @ stacked + b for gate, W, b in zip(GATES, weights, biases, strict=True)}
    gates = {gate: 1 / (1 + (-before[gate]).exp()) for gate in "ufo"}
    state = gates["f"] * c + gates["u"] * before["c"].tanh()
    return gates["o"] * state.tanh(), state


IDENTITY = Identity("c1", ("lstm", "lstm-step"), "One LSTM step by its formulas", Sizes, run)
