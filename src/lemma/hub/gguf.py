"""GGUF files (llama.cpp), in and out: metadata as Hugging Face's config.json, tensors one at a time."""

import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lemma.data.tokenizers import Tokenizer
from lemma.errors import RunError, describe_unknown
from lemma.hub.architectures import config_from_spec, weights_to_hf
from lemma.hub.gguf_header import Metadata, StoredTensor, read_header
from lemma.hub.gguf_tokenizer import read_tokenizer, write_tokenizer
from lemma.hub.pretrained import Pretrained
from lemma.hub.tensor_maps import StoredTensors
from lemma.layers.positions import rotary_frequencies
from lemma.spec.models import Classifier, Decoder, ModelSpec
from lemma.spec.positions import NoScaling, Rotary

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""Hugging Face's model types and GGUF's architectures; a llama with a sliding window is of type mistral."""
PERMUTED = ("llama", "mistral")
"""Model types whose queries and keys GGUF permutes."""
EXPORT_KEY = "lemma.export"
"""Metadata entry of the files that Lemma writes."""
MODEL_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
METADATA_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
}
"""Keys of config.json and of GGUF's metadata."""
FLOAT_KEYS = ("rms_norm_eps", "rope_theta")
CHUNK = 1 << 18  # numbers that are dequantized at once


def require_gguf() -> None:
    """Raise a RunError if the Python package gguf is not installed."""
    if find_spec("gguf") is None:
        raise RunError("GGUF files need the package gguf, which is not installed here: pip install 'lemma-lm[gguf]'")


# Reading


def open_gguf(path: Path) -> Pretrained:
    """Open a GGUF file as a pretrained model: metadata are read now, tensors when they are asked for."""
    require_gguf()
    metadata, stored = read_header(path)
    config = config_from_metadata(metadata, stored)
    tensors = GgufTensors(path, stored, config)
    return Pretrained(path, config, tensors, (path,), lambda: read_tokenizer(metadata, config["vocab_size"]))


def config_from_metadata(metadata: Metadata, tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """Return the config.json that is equivalent to the metadata of a GGUF file.

    Args:
        tensors: by GGUF name; which ones there are tells whether there are biases and a tied output.
    """
    path, architecture = metadata.path, metadata.get("general.architecture", str)
    if architecture not in ARCHITECTURES.values():
        choices = sorted(set(ARCHITECTURES.values()))
        raise RunError(f"{path}: {describe_unknown('architecture', str(architecture), choices)}")
    config: dict[str, Any] = {
        key: metadata.get(f"{architecture}.{gguf_key}", float if key in FLOAT_KEYS else int)
        for key, gguf_key in METADATA_KEYS.items()
    }
    for key in FLOAT_KEYS:
        if config[key] is not None:
            config[key] = _shortest_float(config[key])
    for key in ("hidden_size", "num_attention_heads"):
        if not config[key] or config[key] < 1:
            raise RunError(
                f"{path}: {architecture}.{METADATA_KEYS[key]} is {config[key]}, expected a size. Download it again."
            )
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise RunError(f"{path} has no matrix token_embd.weight: it is not a whole model. Download it again.")
    heads = config["num_attention_heads"]
    head_width = config["head_dim"] or config["hidden_size"] // heads
    rotary_dim = metadata.get(f"{architecture}.rope.dimension_count", int)
    if rotary_dim not in (None, head_width):
        raise RunError(
            f"{path}: rotary positions turn {rotary_dim} of {head_width} coordinates of a head, which is read from "
            "Hugging Face folders only. Take the folder of this model."
        )
    base = config["rope_theta"] or 10000.0
    divisors = tensors.get(ROPE_DIVISORS)
    config |= {
        "head_dim": head_width,
        "rope_theta": base,
        "rope_scaling": _read_scaling(metadata, f"{architecture}.rope.", divisors, base),
        **{key: metadata.get(f"tokenizer.ggml.{key}", int) for key in ("bos_token_id", "eos_token_id")},
    }
    return {
        "model_type": "mistral" if architecture == "llama" and config["sliding_window"] else architecture,
        **{key: value for key, value in config.items() if value is not None},
        "num_key_value_heads": config["num_key_value_heads"] or heads,
        "vocab_size": embedding.shape[0],
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in tensors,
    }


def _shortest_float(value: float) -> float:
    """Return the shortest decimal number that rounds to the same float32."""
    return float(str(np.float32(value)))


ROPE_DIVISORS = "rope_freqs.weight"
"""Divisors of the angles of rotary positions, by which Llama 3's scaling is stored instead of its settings."""
LLAMA3_CONTEXT, LLAMA3_SLOW, LLAMA3_FAST = 8192, 1.0, 4.0
"""Settings of all of Meta's models that have this scaling."""


def _read_scaling(metadata: Metadata, prefix: str, divisors: StoredTensor | None, base: float) -> dict[str, Any] | None:
    """Return the scaling of rotary positions in a GGUF file as `rope_scaling` of config.json; None without scaling.

    Args:
        prefix: of the metadata keys, such as "llama.rope.".
        divisors: location of the tensor that divides the angles, by which Llama 3's scaling is stored.
        base: base of the rotary angles (`rope_theta`).
    """
    path, kind = metadata.path, metadata.get(f"{prefix}scaling.type", str) or "linear"
    factor = metadata.get(f"{prefix}scaling.factor", float) or metadata.get(f"{prefix}scale_linear", float) or 1.0
    factor = _shortest_float(factor)
    if divisors is not None and (kind == "none" or factor == 1):
        values = np.fromfile(path, "<f4", prod(divisors.shape), offset=divisors.offset).astype(np.float64)
        llama3 = llama3_settings(values, base) if divisors.quantization.name == "F32" else None
        if llama3 is not None:
            return llama3
        raise RunError(
            f"{path}: {ROPE_DIVISORS} scales rotary positions in a way that is not Llama 3's. Take the Hugging Face "
            "folder of this model."
        )
    if kind not in ("none", "linear", "yarn") or divisors is not None:
        stored = f" with {ROPE_DIVISORS}" if divisors else ""
        raise RunError(
            f"{path}: the scaling {kind!r} of its rotary positions{stored} is not supported. "
            "Supported: linear, yarn, and Llama 3's."
        )
    if kind == "none" or factor == 1:
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    settings: dict[str, Any] = {
        "original_max_position_embeddings": metadata.get(f"{prefix}scaling.original_context_length", int),
        "beta_fast": metadata.get(f"{prefix}scaling.yarn_beta_fast", float),
        "beta_slow": metadata.get(f"{prefix}scaling.yarn_beta_slow", float),
    }
    attention_factor = metadata.get(f"{prefix}scaling.yarn_attn_factor", float)
    if attention_factor := attention_factor or metadata.get(f"{prefix}scaling.attn_factor", float):
        settings["attention_factor"] = float(attention_factor * (0.1 * np.log(factor) + 1))
    settings = {key: value for key, value in settings.items() if value is not None}
    return {"rope_type": "yarn", "factor": factor, **settings}


def llama3_settings(divisors: Float[np.ndarray, " pairs"], base: float) -> dict[str, Any] | None:
    """Return `rope_scaling` of Llama 3's kind that divides rotary angles of this base by `divisors`; None if none does.

    A slow angle is divided by the factor, a fast one by 1. Between them 1/divisor is linear in the angle, which gives
    the two bounds where they are not those of Meta's models.

    >>> llama3_settings(np.array([1.0, 1.0, 8.0, 8.0]), 1e8)["factor"]
    8.0
    """
    factor = float(divisors.max())
    if not (divisors >= 1).all() or factor == 1:
        return None
    turns = LLAMA3_CONTEXT * base ** (-np.arange(len(divisors)) / len(divisors)) / (2 * np.pi)
    smooth = (1 / divisors - 1 / factor) / (1 - 1 / factor)  # 0 for slow angles, 1 for fast ones
    is_between = (smooth > 1e-5) & (smooth < 1 - 1e-5)
    bounds = [(LLAMA3_SLOW, LLAMA3_FAST)]
    if is_between.sum() > 1:
        slope, intercept = np.polyfit(turns[is_between], smooth[is_between], 1)
        bounds.append((-intercept / slope, (1 - intercept) / slope))
    for slow, fast in bounds:
        expected = ((turns - slow) / (fast - slow)).clip(0, 1)
        if np.allclose(1 / (expected + (1 - expected) / factor), divisors, rtol=1e-5, atol=0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": float(slow),
                "high_freq_factor": float(fast),
                "original_max_position_embeddings": LLAMA3_CONTEXT,
            }
    return None


class GgufTensors(StoredTensors):
    """Tensors of a GGUF file by Hugging Face's names, each dequantized to float32 when it is asked for."""

    def __init__(self, path: Path, stored: Mapping[str, StoredTensor], config: Mapping[str, Any]) -> None:
        self.path, self.stored = path, stored
        self.entries = {huggingface_name(name): name for name in stored if name != ROPE_DIVISORS}
        self.permuted_heads = permuted_heads(config)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, by its name in transformers, without reading it."""
        return self.stored[self.entries[name]].shape

    def __getitem__(self, name: str) -> Tensor:
        tensor = torch.cat(list(self._dequantize(name)))
        heads = self.permuted_heads.get(self.entries[name].split(".")[-2], 0)
        return pairs_to_halves(tensor, heads) if heads else tensor

    def blocks(self, name: str) -> Iterator[Tensor]:
        """Yield blocks of a tensor's rows, or the complete tensor if its rows must be permuted."""
        is_permuted = self.entries[name].split(".")[-2] in self.permuted_heads
        return iter([self[name]]) if is_permuted else self._dequantize(name)

    def _dequantize(self, name: str) -> Iterator[Tensor]:
        """Yield blocks of a tensor's rows in float32, in the order of the file."""
        from gguf.quants import dequantize

        stored_name = self.entries[name]
        shape, quantization, offset, size = self.stored[stored_name]
        rows, width = (shape[0], prod(shape[1:])) if len(shape) > 1 else (1, prod(shape))
        rows_per_block = max(1, CHUNK // width)
        with self.path.open("rb") as file:  # not mapped: the pages would stay in memory
            file.seek(offset)
            for row in range(0, rows, rows_per_block):
                count = min(rows_per_block, rows - row)
                data = np.frombuffer(file.read(size // rows * count), np.uint8).reshape(count, -1)
                numbers = np.empty((count, width), dtype=np.float32)
                try:
                    numbers[:] = dequantize(data, quantization)
                except NotImplementedError:
                    raise RunError(
                        f"{self.path}: {stored_name} is of the type {quantization.name}, which the package gguf cannot "
                        "dequantize. Take a file of another quantization, such as Q8_0."
                    ) from None
                yield torch.from_numpy(numbers.reshape(count, *shape[1:]) if len(shape) > 1 else numbers[0])


def huggingface_name(name: str) -> str:
    """Convert a tensor's name in GGUF to that in transformers.

    >>> huggingface_name("blk.3.attn_q.weight")
    'model.layers.3.self_attn.q_proj.weight'
    """
    if name in MODEL_TENSORS or not name.startswith("blk."):
        return MODEL_TENSORS.get(name, name)
    _, layer, part, suffix = name.split(".")
    return f"model.layers.{layer}.{LAYER_TENSORS.get(part, part)}.{suffix}"


def pairs_to_halves(tensor: Tensor, heads: int) -> Tensor:
    """Return a query or key matrix with the rows of each head reordered: first those at even indices, then the odd."""
    return tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()


def permuted_heads(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of heads in "attn_q" and "attn_k" if GGUF permutes the rows of these matrices, otherwise {}.

    GGUF puts the two coordinates that rotary positions turn together next to each other.

    Args:
        config: content of config.json.
    """
    is_permuted = config["model_type"] in PERMUTED
    return {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]} if is_permuted else {}


# Writing


def write_gguf(
    path: Path, spec: ModelSpec, weights: Mapping[str, Tensor], tokenizer: Tokenizer, name: str
) -> dict[str, Tensor]:
    """Write a decoder with Llama's layout and its tokenizer to a new GGUF file; return the tensors by GGUF name.

    The numbers are float32; `name` is the model's name in the metadata.
    """
    require_gguf()
    from gguf import GGUFValueType, GGUFWriter

    if isinstance(spec, Classifier):
        raise RunError("GGUF is written for language models, not for a classifier. For transformers: --to huggingface")
    config = config_from_spec(spec)
    kind = str(config["model_type"])
    architecture = ARCHITECTURES.get(kind)
    if architecture is None or config.get("attention_bias"):
        raise RunError(
            f"GGUF is written for decoders of Llama's kind; this one is like {kind}'s. Train one with: "
            "positions=rotary norm=rms gated=true activation=silu bias=false. For transformers: --to huggingface"
        )
    writer = GGUFWriter(path, architecture)
    writer.add_uint32(EXPORT_KEY, 1)
    writer.add_file_type(0)
    writer.add_name(name)
    for key, gguf_key in METADATA_KEYS.items():
        value = config.get(key)
        if value is not None:
            value_type = GGUFValueType.FLOAT32 if isinstance(value, float) else GGUFValueType.UINT32
            writer.add_key_value(f"{architecture}.{gguf_key}", value, value_type)
    writer.add_uint32(f"{architecture}.attention.value_length", config["head_dim"])
    writer.add_uint32(f"{architecture}.rope.dimension_count", config["head_dim"])
    _write_scaling(writer, spec, config["rope_parameters"])
    writer.add_vocab_size(config["vocab_size"])
    write_tokenizer(writer, tokenizer, config["vocab_size"])
    tensors = dict(_gguf_tensors(spec, weights, config))
    for gguf_name, tensor in tensors.items():
        writer.add_tensor(gguf_name, tensor.numpy().view(WritableArray))
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    except OSError:
        for file in writer.fout or ():
            with suppress(OSError):
                file.close()
        raise
    return tensors


def _gguf_tensors(
    spec: ModelSpec, weights: Mapping[str, Tensor], config: Mapping[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """Yield (GGUF name, float32 tensor in GGUF's order of rows) for the weights of a model with this config.json."""
    model_names = {hf_name: name for name, hf_name in MODEL_TENSORS.items()}
    layer_names = {hf_name: name for name, hf_name in LAYER_TENSORS.items()}
    heads = permuted_heads(config)
    for hf_name, tensor in weights_to_hf(spec, weights):
        if hf_name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        tensor = tensor.detach().float().cpu().contiguous()
        if not hf_name.startswith("model.layers."):
            yield model_names.get(hf_name, hf_name), tensor
            continue
        _, _, layer, path = hf_name.split(".", 3)
        module, _, suffix = path.rpartition(".")
        part = layer_names[module]
        if part in heads:  # the opposite of `pairs_to_halves`
            tensor = tensor.unflatten(0, (heads[part], 2, -1)).transpose(1, 2).flatten(0, 2).contiguous()
        yield f"blk.{layer}.{part}.{suffix}", tensor


def _write_scaling(writer: Any, spec: ModelSpec, rope: Mapping[str, Any]) -> None:
    """Write the scaling of rotary positions with a GGUFWriter: as settings, or Llama 3's as the divisor of each angle.

    Args:
        rope: `rope_parameters` of config.json.
    """
    from gguf import RopeScalingType

    kind = rope["rope_type"]
    if kind == "llama3":
        assert isinstance(spec, Decoder) and isinstance(spec.positions, Rotary)
        width, base = spec.positions.rotary_dim(spec.head_width), spec.positions.base
        unscaled, _ = rotary_frequencies(width, base, NoScaling())
        scaled, _ = rotary_frequencies(width, base, spec.positions.scaling)
        writer.add_tensor(ROPE_DIVISORS, (unscaled / scaled).float().numpy().view(WritableArray))
    elif kind != "default":
        writer.add_rope_scaling_type(RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        if not rope.get("truncate", True):
            raise RunError("GGUF has YaRN's scaling by whole pairs only (whole_pairs=true). Write --to huggingface")
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        if attention_factor := rope.get("attention_factor"):
            writer.add_rope_scaling_yarn_attn_factor(float(attention_factor / (0.1 * np.log(rope["factor"]) + 1)))


class WritableArray(np.ndarray):
    """A NumPy array whose `tofile`, which a GGUFWriter calls, raises the disk's error instead of hiding it."""

    def tofile(self, fid: Any, sep: str = "", format: str = "%s") -> None:
        """Write the array's bytes to an open file; the other parameters are ignored."""
        fid.write(np.ascontiguousarray(self).data)


def is_lemma_gguf(path: Path) -> bool:
    """Return whether a file is a GGUF that Lemma wrote and no other program has quantized since."""
    with path.open("rb") as file:
        head = file.read(4096)  # the first entries of the metadata
    file_type = b"general.file_type" + struct.pack("<II", 4, 0)  # GGUF's type 4, uint32, and its value
    return head.startswith(b"GGUF") and EXPORT_KEY.encode() in head and file_type in head
