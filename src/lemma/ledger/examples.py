"""Factories by name, as examples of what can be counted, and of how a factory says what it is called with."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lemma.adaptation import lora_matrix
from lemma.errors import InputError
from lemma.ledger.drawing.attention import self_attention
from lemma.parts import WindowHead

Feed = Callable[..., Any]
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None}  # special tokens have no place in a small vocabulary


def called_with(feed: Feed, **ladders: list[int]) -> Callable[[Any], Any]:
    """Let a factory know what its modules are called with, and at which sizes some symbols may be probed."""

    def mark(factory: Any) -> Any:
        factory.inputs, factory.ladders = feed, ladders
        return factory

    return mark


def _vectors(d: int, B: int = 1, T: int = 64) -> Tensor:
    return torch.zeros(B, T, d)


def _two_streams(d: int, B: int = 1, S: int = 64, T: int = 64) -> tuple[Tensor, Tensor]:
    return torch.zeros(B, S, d), torch.zeros(B, T, d)


def _ids(B: int = 1, T: int = 64) -> dict[str, Any]:
    return {"input_ids": torch.zeros(B, T, dtype=torch.long), "use_cache": True}


@called_with(_two_streams)
def torch_transformer(d: int = 512, h: int = 8, L_enc: int = 6, L_dec: int = 6, d_ff: int = 2048) -> nn.Module:
    """`torch.nn.Transformer`."""
    return nn.Transformer(d, h, L_enc, L_dec, d_ff, dropout=0.0, batch_first=True)


@called_with(_vectors)
def torch_lstm(d: int = 128, D: int = 256, L: int = 2) -> nn.Module:
    """`torch.nn.LSTM`, with its two biases a gate."""
    return nn.LSTM(d, D, L, batch_first=True)


@called_with(_ids)
def gpt2(V: int = 50_257, d: int = 768, L: int = 12, h: int = 12, T: int = 1024) -> nn.Module:
    """The transformers library's GPT-2, small by default: 124,439,808 parameters."""
    config, model = _from_transformers("GPT2Config"), _from_transformers("GPT2LMHeadModel")
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return model(config(vocab_size=V, n_embd=d, n_layer=L, n_head=h, n_positions=T, **dropout, **NO_TOKENS))


@called_with(_ids, h=[12, 24, 36, 48, 72], h_kv=[2, 3, 4, 6, 12], d_h=[2, 4, 6, 8, 10])
def llama(
    V: int = 32_000, d: int = 4096, L: int = 32, h: int = 32, h_kv: int = 8, d_h: int = 128, d_ff: int = 11_008
) -> nn.Module:
    """The transformers library's Llama with grouped heads: h of queries and h_kv of keys and values, each d_h wide."""
    config, model = _from_transformers("LlamaConfig"), _from_transformers("LlamaForCausalLM")
    sizes = {"hidden_size": d, "num_hidden_layers": L, "num_attention_heads": h, "num_key_value_heads": h_kv}
    return model(config(vocab_size=V, intermediate_size=d_ff, head_dim=d_h, **sizes, **NO_TOKENS))


def _inputs(W_in: int, B: int = 1, T: int = 64) -> Tensor:
    return torch.zeros(B, T, W_in)


def window_head(d: int = 64, d_k: int = 64, d_v: int = 64) -> nn.Module:
    """The head of problem A3: queries and keys of width d_k, values of width d_v, no biases."""
    return WindowHead(d, d_k, d_v)


def _from_transformers(name: str) -> Any:
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
    "lora": called_with(_inputs)(lora_matrix),
}
