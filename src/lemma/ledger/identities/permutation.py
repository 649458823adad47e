"""Problem C11: self-attention is permutation-equivariant, unless it has positions or a causal mask."""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from lemma.ledger.identities.identity import Identity, drawn, filled, gap
from lemma.ledger.identities.report import EXACT, Finding, IdentityReport, residual
from lemma.parts import Attention, AttentionShape, sinusoids
from lemma.spec import Alibi, Rotary, Spec

Map = Callable[[Float[Tensor, "N D"]], Float[Tensor, "N D"]]
VISIBLE = 1e-6  # a difference that is no rounding


class Sizes(Spec):
    """How many inputs, how wide, how many heads."""

    N: int = Field(default=12, ge=3, le=2000)
    """Number of inputs."""
    D: int = Field(default=32, ge=1, le=2048)
    """Their width."""
    H: int = Field(default=4, ge=1)
    """Number of heads; each is D/H wide."""
    seed: int = Field(default=1, ge=0)
    """Fixes inputs, weights and the permutation."""

    @model_validator(mode="after")
    def _heads_divide(self) -> "Sizes":
        if self.D % self.H:
            raise ValueError(f"H = {self.H} does not divide D = {self.D}.")
        return self


def run(sizes: Sizes) -> IdentityReport:
    """Permute the inputs of PyTorch's and of our own attention: their outputs are permuted alike, or are not."""
    inputs = drawn(sizes.N, sizes.D, seed=sizes.seed)
    order = permutation(sizes.N, sizes.seed)
    cases = _cases(sizes)
    gaps = {name: unfaithful(attend, inputs, order) for name, (attend, _) in cases.items()}
    return IdentityReport(
        "c11",
        IDENTITY.title,
        "Self-attention without positions is permutation-equivariant: f(PX) = P f(X).",
        sizes.to_dict(),
        tuple(_finding(name, gaps[name], equivariant) for name, (_, equivariant) in cases.items()),
        ("case", "largest entry of f(PX) − P f(X)"),
        tuple(gaps.items()),
        (f"P: {' '.join(map(str, order.tolist()[:16]))}{' …' if sizes.N > 16 else ''}",),
    )


def permutation(N: int, seed: int) -> Tensor:
    """A permutation that keeps not all distances: neither the identity nor the reversal."""
    order = torch.randperm(N, generator=torch.Generator().manual_seed(seed))
    return order.roll(1) if bool((order.diff().abs() == 1).all()) else order


def unfaithful(attend: Map, inputs: Float[Tensor, "N D"], order: Tensor) -> float:
    """How far the outputs of permuted inputs lie from the permuted outputs."""
    with torch.no_grad():
        return gap(attend(inputs[order]), attend(inputs)[order])


def _finding(name: str, size: float, equivariant: bool) -> Finding:
    return residual(f"{name}: f(PX) − P f(X)", size, EXACT if equivariant else VISIBLE, different=not equivariant)


def _cases(sizes: Sizes) -> dict[str, tuple[Map, bool]]:
    """What is tried, and whether it is equivariant."""
    shape = AttentionShape(sizes.D, sizes.H, causal=False)
    plain = filled(lambda: Attention(shape), sizes.seed)
    theirs = filled(lambda: nn.MultiheadAttention(sizes.D, sizes.H, batch_first=True), sizes.seed)
    table = sinusoids(sizes.N, sizes.D, 10_000.0).double()
    others = {"causal mask": replace(shape, causal=True), "ALiBi": replace(shape, positions=Alibi())}
    if shape.head_width % 2 == 0:
        others["rotary positions"] = replace(shape, positions=Rotary())
    return {
        "no positions, no mask": (lambda x: plain(x[None])[0][0], True),
        "torch.nn.MultiheadAttention": (lambda x: theirs(*[x[None]] * 3, need_weights=False)[0][0], True),
        "sinusoidal positions added": (lambda x: plain(x[None] + table)[0][0], False),
        **{name: (_running(one, sizes.seed), False) for name, one in others.items()},
    }


def _running(shape: AttentionShape, seed: int) -> Map:
    part = filled(lambda: Attention(shape), seed)
    return lambda x: part(x[None])[0][0]


IDENTITY = Identity("c11", ("permutation", "equivariance"), "Self-attention is permutation-equivariant", Sizes, run)
