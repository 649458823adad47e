"""Factories by name: examples of what can be counted, and of how a factory says what its modules are called with."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lemma.adaptation.adapt import lora_matrix
from lemma.errors import InputError
from lemma.models.feed_forward import WindowHead

NO_SPECIAL_TOKENS = {"bos_token_id": None, "eos_token_id": None}  # special tokens have no place in a small vocabulary


def with_inputs(make_inputs: Callable[..., Any], **probe_sizes: list[int]) -> Callable[[Any], Any]:
    """Return a decorator that attaches `inputs` and `probe_sizes`, for `factory_subject`, to a module factory."""

    def mark(factory: Any) -> Any:
        factory.inputs, factory.probe_sizes = make_inputs, probe_sizes
        return factory

    return mark


class SelfAttention(nn.Module):
    """Multi-head self-attention step by step, in the letters of problem E2.

    Y = [A₁V₁ … A_H V_H] W_O with A = softmax(Q Kᵀ/√M_QK), where Q = X W_Q, K = X W_K, V = X W_V in each head.
    """

    def __init__(self, E: int, H: int, M_QK: int, M_V: int) -> None:
        super().__init__()
        self.W_Q = nn.Parameter(torch.randn(H, E, M_QK) / math.sqrt(E))
        self.W_K = nn.Parameter(torch.randn(H, E, M_QK) / math.sqrt(E))
        self.W_V = nn.Parameter(torch.randn(H, E, M_V) / math.sqrt(E))
        self.W_O = nn.Parameter(torch.randn(H * M_V, E) / math.sqrt(H * M_V))

    def forward(self, X: Float[Tensor, "S E"]) -> Float[Tensor, "S E"]:
        """Return multi-head self-attention of a sequence of S vectors.

        Each step is a variable of its own, for the drawing.
        """
        Q, K, V = X @ self.W_Q, X @ self.W_K, X @ self.W_V
        scores = Q @ K.transpose(-2, -1)
        scaled = scores / math.sqrt(Q.shape[-1])
        A = scaled.softmax(-1)
        heads = A @ V
        concat = heads.transpose(0, 1).flatten(1)
        Y = concat @ self.W_O
        return Y  # noqa: RET504  (the name is drawn)


@with_inputs(lambda E, S=32: torch.zeros(S, E))
def self_attention(E: int = 64, H: int = 4, M_QK: int = 16, M_V: int = 16) -> nn.Module:
    """Build problem E2's attention: width E, H heads of M_QK for queries and keys and of M_V for values; S vectors.

    >>> sum(parameter.numel() for parameter in self_attention(E=8, H=2, M_QK=4, M_V=4).parameters())  # 3·8² + 8²
    256
    """
    return SelfAttention(E, H, M_QK, M_V)


@with_inputs(lambda d, B=1, S=64, T=64: (torch.zeros(B, S, d), torch.zeros(B, T, d)))
def torch_transformer(d: int = 512, h: int = 8, L_enc: int = 6, L_dec: int = 6, d_ff: int = 2048) -> nn.Module:
    """Build `torch.nn.Transformer`."""
    return nn.Transformer(d, h, L_enc, L_dec, d_ff, dropout=0.0, batch_first=True)


@with_inputs(lambda d, B=1, T=64: torch.zeros(B, T, d))
def torch_lstm(d: int = 128, D: int = 256, L: int = 2) -> nn.Module:
    """Build `torch.nn.LSTM`, which has two biases per gate."""
    return nn.LSTM(d, D, L, batch_first=True)


def _token_inputs(B: int = 1, T: int = 64) -> dict[str, Any]:
    """Return B sequences of T zero ids as keyword arguments for a transformers model."""
    return {"input_ids": torch.zeros(B, T, dtype=torch.long), "use_cache": True}


@with_inputs(_token_inputs)
def gpt2(V: int = 50_257, d: int = 768, L: int = 12, h: int = 12, T: int = 1024) -> nn.Module:
    """Build the transformers library's GPT-2; the defaults are the small one with 124,439,808 parameters."""
    config, model = _from_transformers("GPT2Config"), _from_transformers("GPT2LMHeadModel")
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return model(config(vocab_size=V, n_embd=d, n_layer=L, n_head=h, n_positions=T, **dropout, **NO_SPECIAL_TOKENS))


@with_inputs(_token_inputs, d=[48, 96, 144, 192], h=[4, 8, 12, 16], h_kv=[1, 2, 4], d_h=[2, 4, 6, 8, 10])
def llama(
    V: int = 32_000, d: int = 4096, L: int = 32, h: int = 32, h_kv: int = 8, d_h: int = 128, d_ff: int = 11_008
) -> nn.Module:
    """Build the transformers library's Llama with h query heads and h_kv key and value heads, each of width d_h."""
    config, model = _from_transformers("LlamaConfig"), _from_transformers("LlamaForCausalLM")
    sizes = {"hidden_size": d, "num_hidden_layers": L, "num_attention_heads": h, "num_key_value_heads": h_kv}
    return model(config(vocab_size=V, intermediate_size=d_ff, head_dim=d_h, **sizes, **NO_SPECIAL_TOKENS))


def window_head(d: int = 64, d_k: int = 64, d_v: int = 64) -> nn.Module:
    """Build the attention head of problem A3: queries and keys of width d_k, values of width d_v, no biases."""
    return WindowHead(d, d_k, d_v)


def _from_transformers(name: str) -> Any:
    """Return the class of this name from the transformers library; raise InputError if it is not installed."""
    try:
        import transformers
    except ImportError:
        raise InputError("this example needs the transformers library: pip install transformers.") from None
    return getattr(transformers, name)


EXAMPLES: dict[str, Any] = {
    "torch-transformer": torch_transformer,
    "torch-lstm": torch_lstm,
    "gpt2": gpt2,
    "llama": llama,
    "self-attention": self_attention,
    "window-head": window_head,
    "lora": with_inputs(lambda W_in, B=1, T=64: torch.zeros(B, T, W_in))(lora_matrix),
}
