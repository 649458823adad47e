"""Problem C8: multi-head attention as a sum over heads, with one matrix a head from the inputs to the outputs.

Y = Σ_h softmax(Q_h K_hᵀ/√D_k) X W^(h) with W^(h) = W_h^(v) W_h^(o). Where the maps have biases, each row also gets
b^(v) W^(o) + b^(o), since the weights of a row sum to 1.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from lemma.ledger.identities.identity import Identity, drawn, filled, gap, in_float64
from lemma.ledger.identities.report import Finding, IdentityReport, residual
from lemma.parts import Attention, AttentionShape
from lemma.spec import Spec


class Sizes(Spec):
    """How many inputs, how wide, how many heads."""

    N: int = Field(default=10, ge=1, le=2000)
    """Number of inputs."""
    D: int = Field(default=32, ge=1, le=2048)
    """Their width."""
    H: int = Field(default=4, ge=1)
    """Number of heads; each is D/H wide."""
    bias: bool = False
    """Whether the four maps have biases."""
    seed: int = Field(default=1, ge=0)
    """Fixes inputs and weights."""

    @model_validator(mode="after")
    def _heads_divide(self) -> "Sizes":
        if self.D % self.H:
            raise ValueError(f"H = {self.H} does not divide D = {self.D}.")
        return self


def run(sizes: Sizes) -> IdentityReport:
    """Compare PyTorch's multi-head attention with the sum over heads."""
    inputs, layer = drawn(sizes.N, sizes.D, seed=sizes.seed), _layer(sizes)
    with torch.no_grad():
        theirs = layer(*[inputs[None]] * 3, need_weights=False)[0][0]
        summed = sum_over_heads(layer, inputs)
        parts = torch.stack([head_output(layer, inputs, head) for head in range(sizes.H)])
        ours = () if sizes.bias else _ours(layer, inputs)
    size = max(1.0, float(theirs.abs().max()))
    return IdentityReport(
        "c8",
        IDENTITY.title,
        "Y = Σ_h softmax(Q_h K_hᵀ/√D_k) X W^(h) with W^(h) = W_h^(v) W_h^(o).",
        sizes.to_dict(),
        (
            residual("torch.nn.MultiheadAttention − the sum over heads, largest entry", gap(theirs, summed) / size),
            *(
                residual(
                    f"lemma.parts.Attention, value–output {name} − the sum, largest entry", gap(one, summed) / size
                )
                for name, one in zip(("separate", "merged"), ours, strict=False)
            ),
            _rank(layer, sizes),
        ),
        ("head", "‖W^(h)‖", "share of ‖Y‖² if alone"),
        tuple(_row(layer, parts, head) for head in range(sizes.H)),
        (
            f"W^(h) is {sizes.D} × {sizes.D}, yet of rank D/H = {sizes.D // sizes.H} at most: merged it has D² numbers "
            "a head, apart 2D²/H.",
            *(["With biases every row also gets b^(v)W^(o) + b^(o), since weights sum to 1."] if sizes.bias else []),
        ),
    )


def sum_over_heads(layer: nn.MultiheadAttention, inputs: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    """Σ_h softmax(Q_h K_hᵀ/√D_k) X W^(h), and what the biases add."""
    heads = torch.stack([head_output(layer, inputs, head) for head in range(layer.num_heads)])
    return heads.sum(0) + constant(layer)


def head_output(layer: nn.MultiheadAttention, inputs: Float[Tensor, "N D"], head: int) -> Float[Tensor, "N D"]:
    """One term of the sum: softmax(Q_h K_hᵀ/√D_k) X W^(h)."""
    rows = slice(head * layer.head_dim, (head + 1) * layer.head_dim)
    query, key, _ = layer.in_proj_weight.chunk(3)
    shifts = layer.in_proj_bias.chunk(3) if layer.in_proj_bias is not None else (query.new_zeros(len(query)),) * 3
    queries, keys = inputs @ query[rows].T + shifts[0][rows], inputs @ key[rows].T + shifts[1][rows]
    return (queries @ keys.T * layer.head_dim**-0.5).softmax(-1) @ inputs @ head_matrix(layer, head)


def head_matrix(layer: nn.MultiheadAttention, head: int) -> Float[Tensor, "D D"]:
    """W^(h) = W_h^(v) W_h^(o); PyTorch keeps both transposed."""
    rows = slice(head * layer.head_dim, (head + 1) * layer.head_dim)
    value = layer.in_proj_weight.chunk(3)[2][rows]
    return value.T @ layer.out_proj.weight[:, rows].T


def constant(layer: nn.MultiheadAttention) -> Tensor | float:
    """What the biases of values and output add to every row."""
    if layer.in_proj_bias is None:
        return 0.0
    return layer.in_proj_bias.chunk(3)[2] @ layer.out_proj.weight.T + layer.out_proj.bias


def _layer(sizes: Sizes) -> nn.MultiheadAttention:
    return filled(lambda: nn.MultiheadAttention(sizes.D, sizes.H, bias=sizes.bias, batch_first=True), sizes.seed)


def _ours(layer: nn.MultiheadAttention, inputs: Float[Tensor, "N D"]) -> tuple[Float[Tensor, "N D"], ...]:
    """Our own attention with the same weights: value and output maps apart, and merged into W^(h)."""
    shape = AttentionShape(layer.embed_dim, layer.num_heads, causal=False, bias=False)
    with in_float64():
        apart, merged = Attention(shape), Attention(replace(shape, value_output="merged"))
    apart.query_key_value.weight.copy_(layer.in_proj_weight)
    apart.output.weight.copy_(layer.out_proj.weight)
    merged.get_parameter("query_key.weight").copy_(layer.in_proj_weight[: 2 * layer.embed_dim])
    matrices = [head_matrix(layer, head) for head in range(layer.num_heads)]
    merged.output.weight.copy_(torch.cat(matrices).T)
    return apart(inputs[None])[0][0], merged(inputs[None])[0][0]


def _rank(layer: nn.MultiheadAttention, sizes: Sizes) -> Finding:
    ranks = [int(torch.linalg.matrix_rank(head_matrix(layer, head).detach())) for head in range(sizes.H)]
    return Finding("largest rank of a W^(h)", max(ranks), sizes.D // sizes.H, 0.0, "a count")


def _row(layer: nn.MultiheadAttention, parts: Float[Tensor, "H N D"], head: int) -> tuple[float | int, ...]:
    share = float(parts[head].square().sum() / parts.sum(0).square().sum())
    return head, float(head_matrix(layer, head).detach().norm()), share


IDENTITY = Identity("c8", ("sum-over-heads", "heads"), "Multi-head attention as a sum over heads", Sizes, run)
