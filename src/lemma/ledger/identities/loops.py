"""Problem B8: at temperature 0 a model whose memory is its last N−1 tokens must come back to a state, and then loops.

Each token follows from the N−1 before it. There are V^(N−1) such states, so that within so many steps one comes back;
all that followed it follows again, for ever.
"""

import torch
from pydantic import Field, model_validator
from torch import nn

from lemma.ledger.identities.identity import Identity, filled
from lemma.ledger.identities.report import Finding, IdentityReport
from lemma.models import build
from lemma.spec import FeedForward, Spec

MODELS, ROUNDS, LARGEST = 20, 10, 4096
SHOWN = 8


class Sizes(Spec):
    """Of which n-gram models."""

    V: int = Field(default=12, ge=2, le=64)
    """Words of the vocabulary."""
    N: int = Field(default=3, ge=2, le=6)
    """Words of an n-gram; 3 is the trigram model."""
    seed: int = Field(default=1, ge=0)
    """Fixes the weights of all models."""

    @model_validator(mode="after")
    def _few_states(self) -> "Sizes":
        if (states := self.V ** (self.N - 1)) > LARGEST:
            raise ValueError(f"V = {self.V}, N = {self.N}: V^(N−1) = {states:,} states; at most {LARGEST:,} are tried.")
        return self


def run(sizes: Sizes) -> IdentityReport:
    """Decode twenty models with random weights greedily, and watch for the state that comes back."""
    bound = sizes.V ** (sizes.N - 1)
    loops = [_loop(sizes, number) for number in range(MODELS)]
    within = sum(onset + period <= bound for onset, period, _ in loops)
    broken = sum(differences for _, _, differences in loops)
    return IdentityReport(
        "b8",
        IDENTITY.title,
        "A neural n-gram model decoded at temperature 0 repeats its last N−1 tokens, and from there loops for ever.",
        sizes.to_dict(),
        (
            Finding(
                f"of {MODELS} models, those that loop within V^(N−1) = {bound:,} steps", within, MODELS, 0, "a count"
            ),
            Finding(f"tokens that break a loop in {ROUNDS} more rounds of each", broken, 0, 0, "a count"),
        ),
        ("model", "onset", "period"),
        tuple((str(number + 1), onset, period) for number, (onset, period, _) in enumerate(loops[:SHOWN])),
        ("The loop of a trigram model starts where a bigram comes back; its period is the distance between the two.",),
    )


def _loop(sizes: Sizes, number: int) -> tuple[int, int, int]:
    """Where the loop of a model begins, how long it is, and how many later tokens break it."""
    spec = FeedForward(vocabulary=sizes.V, width=6, hidden=12, context=sizes.N)
    model = filled(lambda: build(spec), sizes.seed + 1000 * number)
    _enliven(model)
    span, seen = sizes.N - 1, {}
    tokens = [0] * span
    while tuple(tokens[-span:]) not in seen:
        seen[tuple(tokens[-span:])] = len(tokens)
        tokens.append(_next(model, tokens[-span:]))
    onset, period = seen[tuple(tokens[-span:])] - span, len(tokens) - seen[tuple(tokens[-span:])]
    return onset, period, _differences(model, tokens, span, period)


def _enliven(model: nn.Module) -> None:
    """Weights so large that the text wanders before it loops."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(parameter.shape[-1] ** 0.5)


def _next(model: nn.Module, last: list[int]) -> int:
    with torch.no_grad():
        return int(model(torch.tensor([last]))[0][0, -1].argmax())


def _differences(model: nn.Module, tokens: list[int], span: int, period: int) -> int:
    """Let the model go on, and count the tokens that are not those of a period before."""
    tokens, wrong = list(tokens), 0
    for _ in range(min(ROUNDS * period, 200)):
        tokens.append(_next(model, tokens[-span:]))
        wrong += tokens[-1] != tokens[-1 - period]
    return wrong


IDENTITY = Identity("b8", ("loops", "greedy"), "Greedy decoding of an n-gram model loops", Sizes, run)
