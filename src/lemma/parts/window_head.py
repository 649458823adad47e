"""The attention head of the sources, asked by each window's last word only (problem A2)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lemma.parts.tap import EARS, AttentionRecord, announce, bias_of
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
        queries, words = self.query(embedded[:, -time:]), self.key(embedded)
        contents = self.value(embedded)
        if EARS.listeners:
            announce(_record(queries, words, contents, span))
        keys = slide(words, time, span)
        scores = torch.einsum("btk,btsk->bts", queries, keys) * keys.shape[-1] ** -0.5
        there = present(embedded.shape[1], time, span, embedded.device)
        if there is not None:
            scores = scores.masked_fill(~there, float("-inf"))
        return torch.einsum("bts,btsv->btv", scores.softmax(-1), slide(contents, time, span))


def _record(queries: Tensor, keys: Tensor, values: Tensor, span: int) -> AttentionRecord:
    """The same attention as one head over all words, of which each sees those of its window."""
    seen = _band(queries.shape[1], keys.shape[1], span, keys.device)
    scale = keys.shape[-1] ** -0.5
    return AttentionRecord(queries[:, None], keys[:, None], values[:, None], scale, bias_of(seen, keys))


def _band(time: int, joined: int, span: int, device: torch.device) -> Bool[Tensor, "time joined"]:
    ends = torch.arange(joined - time, joined, device=device)[:, None]
    places = torch.arange(joined, device=device)
    return (places <= ends) & (places > ends - span)
