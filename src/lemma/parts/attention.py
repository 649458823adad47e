"""Attention: the window head of the sources, and causal multi-head attention with its keys and values."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from lemma.parts.window import present, slide


class WindowHead(nn.Module):
    """One head asked by each window's last word only (problem A2).

    a = Σ_i α_i W^v e_i with α = softmax_i((W^q e_last)·(W^k e_i)/√d_k).
    """

    def __init__(self, width: int, key_width: int, value_width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, key_width, bias=False)
        self.key = nn.Linear(width, key_width, bias=False)
        self.value = nn.Linear(width, value_width, bias=False)

    def forward(
        self, embedded: Float[Tensor, "batch joined width"], time: int, span: int
    ) -> Float[Tensor, "batch time value_width"]:
        """Attend within the windows that end at the last `time` words; each word's key and value is made once."""
        queries = self.query(embedded[:, -time:])
        keys = slide(self.key(embedded), time, span)
        scores = torch.einsum("btk,btsk->bts", queries, keys) * keys.shape[-1] ** -0.5
        there = present(embedded.shape[1], time, span, embedded.device)
        if there is not None:
            scores = scores.masked_fill(~there, float("-inf"))
        return torch.einsum("bts,btsv->btv", scores.softmax(-1), slide(self.value(embedded), time, span))


KeyValues = Float[Tensor, "batch two heads time head_width"]
"""The keys and values of one layer for all tokens read so far, side by side."""


class CausalAttention(nn.Module):
    """Multi-head self-attention over the past, through PyTorch's fused kernel.

    Each head: softmax(Q Kᵀ/√(d_h/h)) V over the tokens up to its own. The heads' total width may differ from the
    stream's.
    """

    def __init__(self, width: int, heads: int, attention_width: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query_key_value = nn.Linear(width, 3 * attention_width, bias=bias)
        self.output = nn.Linear(attention_width, width, bias=bias)

    def forward(
        self, stream: Float[Tensor, "batch time width"], past: KeyValues | None = None
    ) -> tuple[Float[Tensor, "batch time width"], KeyValues]:
        """Attend from every new token to the past and to the new tokens up to itself."""
        batch, time, _ = stream.shape
        joined = self.query_key_value(stream).view(batch, time, 3, self.heads, -1).permute(0, 2, 3, 1, 4)
        memory = joined.narrow(1, 1, 2)
        if past is None:
            queries, keys, values = joined.unbind(1)  # one backward for all three
        else:
            memory = torch.cat([past, memory], dim=3)
            queries, (keys, values) = joined.select(1, 0), memory.unbind(1)
        mask = None if time == 1 or past is None else _mask(time, keys)
        mixed = functional.scaled_dot_product_attention(
            queries, keys, values, mask, self.dropout if self.training else 0.0, past is None
        )
        return self.output(mixed.transpose(1, 2).reshape(batch, time, -1)), memory


def _mask(new: int, keys: Tensor) -> Bool[Tensor, "new known"]:
    """Which tokens each new token may see, where the kernel's own causal mask will not do."""
    known = keys.shape[-2]
    return torch.ones(new, known, dtype=torch.bool, device=keys.device).tril(known - new)
