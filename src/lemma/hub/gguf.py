"""GGUF files (llama.cpp), in and out: metadata in Hugging Face's words, tensors one at a time, the tokenizer."""

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Engine
from torch import Tensor

from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError, RunError, describe_unknown
from lemma.hub.architectures import config_from_spec, weights_to_hf
from lemma.hub.pretrained import Pretrained
from lemma.hub.tensor_maps import StoredTensors
from lemma.layers.positions import rotary_frequencies
from lemma.spec.models import Classifier, Decoder, ModelSpec
from lemma.spec.positions import NoScaling, Rotary

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""Hugging Face's model types and GGUF's architectures; of a llama with a sliding window the type is mistral."""
EXPORT_KEY = "lemma.export"
"""Metadata entry of the files that Lemma writes."""
PERMUTED = ("llama", "mistral")
"""Those whose queries and keys GGUF permutes, so that the pairs that rotary positions turn are adjacent."""
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
"""Hugging Face's words for GGUF's metadata."""
FLOATS = ("rms_norm_eps", "rope_theta")
"""Those that are not whole numbers."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""GGUF's types of tokens."""


def require_gguf() -> None:
    """Refuse where the package for GGUF is missing."""
    if find_spec("gguf") is None:
        raise RunError("GGUF files need the package gguf, which is not installed here: pip install 'lemma-lm[gguf]'")


def open_gguf(path: Path) -> Pretrained:
    """Open a GGUF file: its metadata are read, its tensors stay where they are."""
    require_gguf()
    metadata, stored = read_header(path)
    config = config_from_metadata(metadata, stored)
    tensors = GgufTensors(path, stored, config)
    return Pretrained(path, config, tensors, (path,), lambda: read_tokenizer(metadata, config))


class StoredTensor(NamedTuple):
    """Where a tensor lies in a file, and how it is quantized."""

    shape: tuple[int, ...]
    """As in torch: rows first."""
    quantization: Any
    offset: int
    size: int


MAGIC, VERSIONS = b"GGUF", (2, 3)
TEXT, LIST = 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The types of values, as `struct` calls them."""
ALIGNMENT = 32
MAX_HEADER_BYTES = 64 << 20
"""Bytes of the longest header; that of a vocabulary of 256,000 tokens has 15 MB."""
MAX_DIMENSIONS, MAX_LIST_DEPTH = 4, 4
CHUNK = 1 << 18
"""Numbers that are dequantized at once."""
Value = TypeVar("Value", int, float, str, bool)


class Metadata:
    """The metadata of a GGUF file; every value is read with the type that it must have."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self.values, self.path = values, path

    def get(self, key: str, kind: type[Value]) -> Value | None:
        """Return a value, or None if the file does not have it; another type is a RunError."""
        value = self.values.get(key)
        if isinstance(value, list):
            raise RunError(f"{self.path}: {key} is a list: layers that differ in their sizes cannot be read.")
        return None if value is None else self._typed(key, value, kind)

    def get_list(self, key: str, kind: type[Value], length: int | None = None) -> list[Value] | None:
        """Return a list of values of one type, or None if the file does not have it."""
        values = self.values.get(key)
        if values is None:
            return None
        if not isinstance(values, list) or length not in (None, len(values)):
            size = "" if length is None else f" of {length:,} values, one per token"
            raise RunError(f"{self.path}: {key} is not a list{size}. The file is damaged: download it again.")
        return [self._typed(key, value, kind) for value in values]

    def _typed(self, key: str, value: Any, kind: type[Value]) -> Value:
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
            shown = repr(value)[:100]
            raise RunError(
                f"{self.path}: {key} = {shown} is not {TYPES[kind]}. The file is damaged: download it again."
            )
        return value


TYPES = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false"}


class HeaderReader:
    """Reads values of a GGUF header one after the other; past the end of the file or of LARGEST_HEADER is an error."""

    def __init__(self, data: bytes | mmap, path: Path) -> None:
        self.data, self.path = data, path
        self.offset = 0

    def skip(self, count: int) -> int:
        """Move past some bytes and return where they begin."""
        if count > len(self.data) - self.offset:
            raise RunError(f"{self.path} is cut off, or not a GGUF file. Download it again.")
        if count > MAX_HEADER_BYTES - self.offset:
            raise RunError(f"{self.path} is damaged: its header has more than {MAX_HEADER_BYTES:,} bytes.")
        self.offset += count
        return self.offset - count

    def numbers(self, count: int, code: str) -> tuple[Any, ...]:
        """Read numbers of one type."""
        return struct.unpack_from(f"<{count}{code}", self.data, self.skip(count * struct.calcsize(f"<{code}")))

    def integer(self, code: str = "Q") -> int:
        """Read one whole number."""
        return self.numbers(1, code)[0]

    def text(self) -> str:
        """Read a text with its length before it."""
        length = self.integer()
        start = self.skip(length)
        return self.data[start : start + length].decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        """Read a value of metadata."""
        if kind == TEXT:
            return self.text()
        if kind == LIST and depth < MAX_LIST_DEPTH:
            inner, length = self.integer("I"), self.integer()
            if inner in NUMBERS:
                return list(self.numbers(length, NUMBERS[inner]))
            return [self.value(inner, depth + 1) for _ in range(length)]
        if kind not in NUMBERS:
            raise RunError(f"{self.path} is damaged: its header has a value of the type {kind}. Download it again.")
        return self.numbers(1, NUMBERS[kind])[0]


def read_header(path: Path) -> tuple[Metadata, dict[str, StoredTensor]]:
    """Read the metadata of a file and where its tensors lie (the package's own reader takes many seconds for it)."""
    size = path.stat().st_size
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) if size else nullcontext(b"") as data:
        reader = HeaderReader(data, path)
        if data[reader.skip(4) : 4] != MAGIC or reader.integer("I") not in VERSIONS:
            raise RunError(f"{path} is not a GGUF file of version 2 or 3.")
        tensors, entries = reader.numbers(2, "Q")
        metadata = Metadata({reader.text(): reader.value(reader.integer("I")) for _ in range(entries)}, path)
        alignment = metadata.get("general.alignment", int)
        alignment = ALIGNMENT if alignment is None else alignment
        if alignment < 1 or alignment & (alignment - 1):
            raise RunError(f"{path} is damaged: general.alignment = {alignment} is not a power of two.")
        stored: dict[str, StoredTensor] = {}
        for _ in range(tensors):
            name, tensor = read_stored_tensor(reader, alignment)
            if name in stored:
                raise RunError(f"{path} is damaged: it has two tensors {name}. Download it again.")
            stored[name] = tensor
    start = reader.offset + -reader.offset % alignment  # offsets count from the end of the header
    stored = {name: tensor._replace(place=start + tensor.offset) for name, tensor in stored.items()}
    end, before = start, ""
    for name, tensor in sorted(stored.items(), key=lambda item: item[1].offset):
        if tensor.offset < end:
            raise RunError(f"{path} is damaged: the tensors {before} and {name} overlap. Download it again.")
        end, before = tensor.offset + tensor.size, name
    if end > size:
        raise RunError(f"{path} is cut off: {before} ends past its {size:,} bytes. Download it again.")
    return metadata, stored


def read_stored_tensor(reader: HeaderReader, alignment: int) -> tuple[str, StoredTensor]:
    """Read a tensor's name, shape, quantization and offset from a header, and check that they are possible."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    path, name, dimensions = reader.path, reader.text(), reader.integer("I")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise RunError(f"{path} is damaged: {name} has {dimensions:,} dimensions, expected 1 to {MAX_DIMENSIONS}.")
    sizes, kind, offset = reader.numbers(dimensions, "Q"), reader.integer("I"), reader.integer()
    if kind not in {known.value for known in GGMLQuantizationType}:
        raise RunError(f"{path}: {name} is of the type {kind}, which the package gguf does not know.")
    quantization = GGMLQuantizationType(kind)
    block, width = GGML_QUANT_SIZES[quantization]
    if not all(sizes) or sizes[0] % block:
        raise RunError(f"{path} is damaged: {name} of the sizes {sizes} cannot be of the type {quantization.name}.")
    if offset % alignment:
        raise RunError(f"{path} is damaged: {name} begins at {offset:,}, which is no multiple of {alignment}.")
    return name, StoredTensor(sizes[::-1], quantization, offset, prod(sizes) // block * width)


def config_from_metadata(metadata: Metadata, tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """The metadata of a file in the words of Hugging Face's config.json."""
    path, name = metadata.path, metadata.get("general.architecture", str)
    if name not in ARCHITECTURES.values():
        raise RunError(f"{path}: {describe_unknown('architecture', str(name), sorted(set(ARCHITECTURES.values())))}")
    found: dict[str, Any] = {
        word: metadata.get(f"{name}.{key}", float if word in FLOATS else int) for word, key in METADATA_KEYS.items()
    }
    for word in FLOATS:  # kept there in float32: the shortest number that gives it
        if found[word] is not None:
            found[word] = float(str(np.float32(found[word])))
    for word in ("hidden_size", "num_attention_heads"):
        if not found[word] or found[word] < 1:
            raise RunError(
                f"{path}: {name}.{METADATA_KEYS[word]} is {found[word]}, expected a size. Download it again."
            )
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise RunError(f"{path} has no matrix token_embd.weight: it is not a whole model. Download it again.")
    heads, width = found["num_attention_heads"], found["hidden_size"]
    found["head_dim"] = found["head_dim"] or width // heads
    turned = metadata.get(f"{name}.rope.dimension_count", int)
    if turned not in (None, found["head_dim"]):
        raise RunError(
            f"{path}: rotary positions turn {turned} of {found['head_dim']} coordinates of a head, which is read from "
            "Hugging Face folders only. Take the folder of this model."
        )
    found["rope_theta"] = found["rope_theta"] or 10000.0
    found["rope_scaling"] = _scaling(metadata, f"{name}.rope.", tensors.get(ROPE_DIVISORS), found["rope_theta"])
    ids = {word: metadata.get(f"tokenizer.ggml.{word}", int) for word in ("bos_token_id", "eos_token_id")}
    return {
        "model_type": "mistral" if name == "llama" and found["sliding_window"] else name,
        **{word: value for word, value in found.items() if value is not None},
        **{word: value for word, value in ids.items() if value is not None},
        "num_key_value_heads": found["num_key_value_heads"] or heads,
        "vocab_size": embedding.shape[0],
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in tensors,
    }


ROPE_DIVISORS = "rope_freqs.weight"
"""What each angle of rotary positions is divided by: so Llama 3's scaling is written, whose settings are not."""
ORIGINAL, SLOW, FAST = 8192, 1.0, 4.0
"""The settings of all of Meta's models that have it."""


def _scaling(metadata: Metadata, prefix: str, divisors: StoredTensor | None, base: float) -> dict[str, Any] | None:
    """How angles are scaled, in the words of `rope_scaling` in config.json; None if they are not."""
    path, kind = metadata.path, metadata.get(f"{prefix}scaling.type", str) or "linear"
    factor = metadata.get(f"{prefix}scaling.factor", float) or metadata.get(f"{prefix}scale_linear", float) or 1.0
    factor = float(str(np.float32(factor)))
    if divisors is not None and (kind == "none" or factor == 1):
        numbers = np.fromfile(path, "<f4", prod(divisors.shape), offset=divisors.offset).astype(np.float64)
        if divisors.quantization.name == "F32" and (settings := llama3_settings(numbers, base)) is not None:
            return settings
        raise RunError(
            f"{path}: {ROPE_DIVISORS} scales rotary positions in a way that is not Llama 3's. Take the Hugging Face folder "
            "of this model."
        )
    if kind not in ("none", "linear", "yarn") or divisors is not None:
        raise RunError(
            f"{path}: the scaling {kind!r} of its rotary positions{' with ' + ROPE_DIVISORS if divisors else ''} is not "
            "supported. Supported: linear, yarn, and Llama 3's."
        )
    if kind == "none" or factor == 1:
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    original = metadata.get(f"{prefix}scaling.original_context_length", int)
    betas = {f"beta_{side}": metadata.get(f"{prefix}scaling.yarn_beta_{side}", float) for side in ("fast", "slow")}
    words = {"original_max_position_embeddings": original, **betas}
    grown = metadata.get(f"{prefix}scaling.yarn_attn_factor", float)
    if grown := grown or metadata.get(f"{prefix}scaling.attn_factor", float):
        words["attention_factor"] = float(grown * (0.1 * np.log(factor) + 1))
    return {
        "rope_type": "yarn",
        "factor": factor,
        **{word: value for word, value in words.items() if value is not None},
    }


def llama3_settings(divisors: Float[np.ndarray, " pairs"], base: float) -> dict[str, Any] | None:
    """The settings of Llama 3's scaling that divide the angles by these numbers; None if there are none.

    A slow angle is divided by the factor, a fast one by 1. Between them 1/divisor is linear in the angle, which gives
    the two bounds where they are not the usual ones.

    >>> llama3_settings(np.array([1.0, 1.0, 8.0, 8.0]), 1e8)["factor"]
    8.0
    """
    factor = float(divisors.max())
    if not (divisors >= 1).all() or factor == 1:
        return None
    turns = ORIGINAL * base ** (-np.arange(len(divisors)) / len(divisors)) / (2 * np.pi)
    kept = (1 / divisors - 1 / factor) / (1 - 1 / factor)
    inside = (kept > 1e-5) & (kept < 1 - 1e-5)
    bounds = [(SLOW, FAST)]
    if inside.sum() > 1:
        slope, shift = np.polyfit(turns[inside], kept[inside], 1)
        bounds.append((-shift / slope, (1 - shift) / slope))
    for slow, fast in bounds:
        again = ((turns - slow) / (fast - slow)).clip(0, 1)
        if np.allclose(1 / (again + (1 - again) / factor), divisors, rtol=1e-5, atol=0):
            words = {"low_freq_factor": float(slow), "high_freq_factor": float(fast)}
            return {"rope_type": "llama3", "factor": factor, **words, "original_max_position_embeddings": ORIGINAL}
    return None


class GgufTensors(StoredTensors):
    """The tensors of a file by Hugging Face's names, each dequantized to float32 when it is asked for."""

    def __init__(self, path: Path, stored: Mapping[str, StoredTensor], config: Mapping[str, Any]) -> None:
        self.path, self.stored = path, stored
        self.names = {huggingface_name(name): name for name in stored if name != ROPE_DIVISORS}
        self.heads: dict[str, int] = {}
        if config["model_type"] in PERMUTED:
            self.heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self.stored[self.names[name]].shape

    def __getitem__(self, name: str) -> Tensor:
        tensor = torch.cat(list(self._dequantized(name)))
        heads = self.heads.get(self.names[name].split(".")[-2], 0)
        return pairs_to_halves(tensor, heads) if heads else tensor

    def blocks(self, name: str) -> Iterator[Tensor]:
        """Some rows at once; all of them where they have to be put in another order."""
        turned = self.names[name].split(".")[-2] in self.heads
        return iter([self[name]]) if turned else self._dequantized(name)

    def _dequantized(self, name: str) -> Iterator[Tensor]:
        from gguf.quants import dequantize

        own = self.names[name]
        shape, quantization, place, size = self.stored[own]
        rows, wide = (shape[0], prod(shape[1:])) if len(shape) > 1 else (1, prod(shape))
        some = max(1, CHUNK // wide)
        with self.path.open("rb") as file:  # not mapped: the pages would stay in memory
            file.seek(place)
            for row in range(0, rows, some):
                count = min(some, rows - row)
                raw = np.frombuffer(file.read(size // rows * count), np.uint8).reshape(count, -1)
                numbers = np.empty((count, wide), dtype=np.float32)
                try:
                    numbers[:] = dequantize(raw, quantization)
                except NotImplementedError:
                    raise RunError(
                        f"{self.path}: {own} is of the type {quantization.name}, which the package gguf cannot "
                        "dequantize. Take a file of another quantization, such as Q8_0."
                    ) from None
                yield torch.from_numpy(numbers.reshape(count, *shape[1:]) if len(shape) > 1 else numbers[0])

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def huggingface_name(name: str) -> str:
    """Hugging Face's name of a tensor of GGUF.

    >>> huggingface_name("blk.3.attn_q.weight")
    'model.layers.3.self_attn.q_proj.weight'
    """
    if name in MODEL_TENSORS or not name.startswith("blk."):
        return MODEL_TENSORS.get(name, name)
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{LAYER_TENSORS.get(part, part)}.{kind}"


def pairs_to_halves(tensor: Tensor, heads: int) -> Tensor:
    """Rows of queries or keys whose pairs are adjacent, as halves: the first of each pair, then the second."""
    return tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()


def halves_to_pairs(tensor: Tensor, heads: int) -> Tensor:
    """The inverse of `apart`."""
    return tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2).contiguous()


def write_gguf(
    path: Path, spec: ModelSpec, weights: Mapping[str, Tensor], tokenizer: Tokenizer, name: str
) -> dict[str, Tensor]:
    """Write a model of Llama's kind in float32, with its tokenizer; return the tensors that were written."""
    require_gguf()
    from gguf import GGUFValueType, GGUFWriter

    if isinstance(spec, Classifier):
        raise RunError("GGUF is written for language models, not for a classifier. For transformers: --to huggingface")
    config = config_from_spec(spec)
    kind = str(config["model_type"])
    architecture = ARCHITECTURES.get(kind)
    scaling = config.get("rope_parameters") or {}
    if architecture is None or config.get("attention_bias"):
        raise RunError(
            f"GGUF is written for decoders of Llama's kind; this one is like {kind}'s. Train one with: "
            "positions=rotary norm=rms gated=true activation=silu bias=false. For transformers: --to huggingface"
        )
    writer = GGUFWriter(path, architecture)
    writer.add_uint32(EXPORT_KEY, 1)
    writer.add_file_type(0)
    writer.add_name(name)
    words = {**config, "rope_theta": scaling.get("rope_theta", config.get("rope_theta", 10000.0))}
    words.setdefault("head_dim", words["hidden_size"] // words["num_attention_heads"])
    for word, key in METADATA_KEYS.items():
        value = words.get(word)
        if value is not None:
            writer.add_key_value(
                f"{architecture}.{key}",
                value,
                GGUFValueType.FLOAT32 if isinstance(value, float) else GGUFValueType.UINT32,
            )
    writer.add_uint32(f"{architecture}.attention.value_length", words["head_dim"])
    writer.add_uint32(f"{architecture}.rope.dimension_count", words["head_dim"])
    _write_scaling(writer, spec, scaling)
    writer.add_vocab_size(words["vocab_size"])
    _write_tokenizer(writer, tokenizer, words["vocab_size"])
    heads = {"q_proj": words["num_attention_heads"], "k_proj": words.get("num_key_value_heads")}
    names = {theirs: own for own, theirs in MODEL_TENSORS.items()} | {
        theirs: own for own, theirs in LAYER_TENSORS.items()
    }
    written: dict[str, Tensor] = {}
    for theirs, tensor in weights_to_hf(spec, weights):
        if theirs == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        tensor = tensor.detach().float().cpu().contiguous()
        own = names.get(theirs, theirs)
        if theirs.startswith("model.layers."):
            _, _, layer, rest = theirs.split(".", 3)
            part, _, end = rest.rpartition(".")
            own = f"blk.{layer}.{names[part]}.{end}"
            groups = heads.get(part.rpartition(".")[2]) if kind in PERMUTED else None
            tensor = halves_to_pairs(tensor, groups) if groups else tensor
        written[own] = tensor
        writer.add_tensor(own, tensor.numpy().view(WrittenArray))
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
    return written


class WrittenArray(np.ndarray):
    """An array whose `tofile` says why a disk refuses, which numpy's does not."""

    def tofile(self, fid: Any, sep: str = "", format: str = "%s") -> None:
        """Write the numbers as bytes."""
        fid.write(np.ascontiguousarray(self).data)


def is_lemma_gguf(path: Path) -> bool:
    """Check whether a file is as Lemma writes GGUF: marked, and not quantized by another program since."""
    with path.open("rb") as file:
        head = file.read(4096)  # the first entries of the metadata
    plain = b"general.file_type" + struct.pack("<II", 4, 0)  # GGUF's type 4, uint32, and its value
    return head.startswith(b"GGUF") and EXPORT_KEY.encode() in head and plain in head


def _write_scaling(writer: Any, spec: ModelSpec, scaling: Mapping[str, Any]) -> None:
    """Write how rotary positions are scaled: by settings, or Llama 3's as what each angle is divided by."""
    from gguf import RopeScalingType

    kind = scaling.get("rope_type", "default")
    if kind == "llama3":
        assert isinstance(spec, Decoder) and isinstance(spec.positions, Rotary)
        width, base = spec.positions.rotary_dim(spec.query_width // spec.heads), spec.positions.base
        plain, scaled = (rotary_frequencies(width, base, how)[0] for how in (NoScaling(), spec.positions.scaling))
        writer.add_tensor(ROPE_DIVISORS, (plain / scaled).float().numpy().view(WrittenArray))
    elif kind != "default":
        writer.add_rope_scaling_type(RopeScalingType(kind))
        writer.add_rope_scaling_factor(scaling["factor"])
    if kind == "yarn":
        if not scaling.get("truncate", True):
            raise RunError("GGUF has YaRN's scaling by whole pairs only (whole_pairs=true). Write --to huggingface")
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])
        if grown := scaling.get("attention_factor"):
            writer.add_rope_scaling_yarn_attn_factor(float(grown / (0.1 * np.log(scaling["factor"]) + 1)))


def _write_tokenizer(writer: Any, tokenizer: Tokenizer, vocabulary: int) -> None:
    """Write byte-pairs as GGUF knows them: byte-level, or pieces with scores."""
    plan = tokenizer.pipeline()
    model, decoder = plan["model"], json.dumps(plan["decoder"])
    if model["type"] != "BPE" or not ("ByteLevel" in decoder or model.get("byte_fallback")):
        raise RunError(
            f"GGUF has tokenizers of byte-pairs only, and this one is of {tokenizer.kind}. "
            "Train with tokenizer=byte-pairs. For transformers: --to huggingface"
        )
    added = {token["id"]: token for token in plan["added_tokens"]}
    numbers = {**model["vocab"], **{token["content"]: number for number, token in added.items()}}
    tokens, kinds = [f"[PAD{number}]" for number in range(vocabulary)], [UNUSED] * vocabulary
    for token, number in numbers.items():
        special = (number in added and added[number]["special"]) or number == tokenizer.eos
        byte = bool(model.get("byte_fallback")) and token.startswith("<0x")
        other = BYTE if byte else USER_DEFINED if number in added else NORMAL
        tokens[number], kinds[number] = token, CONTROL if special else other
        if token == model.get("unk_token"):
            kinds[number] = UNKNOWN
    merges = [tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    if model.get("byte_fallback"):
        writer.add_tokenizer_model("llama")
        scores = dict.fromkeys(tokens, 0.0)
        for rank, (left, right) in reversed(list(enumerate(merges, start=1))):
            scores[left + right] = -float(rank)
        writer.add_token_scores([scores[token] for token in tokens])
        writer.add_add_space_prefix("Prepend" in json.dumps(plan["normalizer"]))
    else:
        cuts = {name: json.loads(make().__getstate__()) for name, make in PRE_TOKENIZERS.items() if name != "default"}
        rule = next((name for name, cut in cuts.items() if _same_cut(cut, plan["pre_tokenizer"])), None)
        if rule is None:
            raise RunError("the rule by which this tokenizer first cuts a text has no name in GGUF.")
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(rule)
        writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    special = {"bos": tokenizer.bos, "eos": tokenizer.eos, "unk": tokenizer.unk}
    for word, number in special.items():
        if number is not None:
            getattr(writer, f"add_{word}_token_id")(number)
    writer.add_add_bos_token(bool(tokenizer.prefix))
    if isinstance(template := tokenizer.config.get("chat_template"), str):
        writer.add_chat_template(template)


def _same_cut(one: Any, other: Any) -> bool:
    """Whether two pre-tokenizers cut in the same way; what only concerns offsets is left out."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = (one.keys() | other.keys()) - {"trim_offsets"}
        return all(_same_cut(one.get(key), other.get(key)) for key in keys)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same_cut, one, other))
    return one == other


# The tokenizer: byte-level byte-pairs ("gpt2") or pieces with scores ("llama").

MAX_SPLIT_CHARACTERS = 1 << 28
"""Characters of all splits of all pieces of a vocabulary; 256,000 pieces of 16 have a quarter of it."""

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(numbers: str) -> Callable[[], Any]:
    rule = f"{CONTRACTIONS}{numbers}|{SIGNS}"
    return lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(rule), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _plain() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _digits() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _plain()])


PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "default": _plain,
    "gpt-2": _plain,
    "smollm": _digits,
    "starcoder": _digits,
    "llama-bpe": _split(r"\p{N}{1,3}"),
    "qwen2": _split(r"\p{N}"),
}
"""How text is first cut, by the names that llama.cpp gives to the rules."""


def read_tokenizer(metadata: Metadata, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a file, as a pipeline of the tokenizers library."""
    path, prefix = metadata.path, "tokenizer.ggml."
    tokens = metadata.get_list(f"{prefix}tokens", str)
    if not tokens:
        raise RunError(f"{path} has no tokenizer (tokenizer.ggml.tokens). Take a file that has one.")
    kinds = metadata.get_list(f"{prefix}token_type", int, len(tokens)) or [NORMAL] * len(tokens)
    named = {word: metadata.get(f"{prefix}{word}_token_id", int) for word in ("bos", "eos", "unknown", "padding")}
    words = {word: tokens[token] for word, token in named.items() if token is not None and 0 <= token < len(tokens)}
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    added = [token for token, kind in zip(tokens, kinds, strict=True) if kind == USER_DEFINED]
    model, adds_bos = metadata.get(f"{prefix}model", str), metadata.get(f"{prefix}add_bos_token", bool)
    begin = words.get("bos") if (model == "llama" if adds_bos is None else adds_bos) else None
    if model == "gpt2":
        rule = metadata.get(f"{prefix}pre", str) or "default"
        if rule not in PRE_TOKENIZERS:
            raise RunError(
                f"{path}: {describe_unknown('its tokenizer', rule, PRE_TOKENIZERS)} Take the model's Hugging Face folder."
            )
        merges = [tuple(merge.split(" ", 1)) for merge in metadata.get_list(f"{prefix}merges", str) or []]
        numbers = {token: number for number, token in enumerate(tokens)}
        engine = Engine(models.BPE(numbers, merges, ignore_merges=rule == "llama-bpe"))  # pyright: ignore
        if rule == "qwen2":
            engine.normalizer = normalizers.NFC()
        engine.pre_tokenizer, engine.decoder = PRE_TOKENIZERS[rule](), decoders.ByteLevel()
        _add_special(engine, special, added, begin)
    elif model == "llama":
        scores = metadata.get_list(f"{prefix}scores", float, len(tokens)) or [0.0] * len(tokens)
        space = metadata.get(f"{prefix}add_space_prefix", bool) is not False
        missing = words.get(
            "unknown", next((t for t, kind in zip(tokens, kinds, strict=True) if kind == UNKNOWN), None)
        )
        engine = sentencepiece_pipeline(tokens, scores, missing, special, begin, added, space)
    else:
        raise RunError(f"{path}: {describe_unknown('its kind of tokenizer', str(model), ('gpt2', 'llama'))}")
    settings = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    own: dict[str, Any] = {name: words[word] for name, word in settings.items() if word in words}
    if template := metadata.get("tokenizer.chat_template", str):
        own["chat_template"] = template
    stops = {"eos_token_id": [named["eos"]]} if named["eos"] is not None else {}
    return Tokenizer(
        engine.to_str(), str(path), config=own, generation=stops, vocabulary=max(config["vocab_size"], len(tokens))
    )


def sentencepiece_pipeline(
    tokens: Sequence[str],
    scores: Sequence[float],
    unknown: str | None = None,
    special: Sequence[str] = (),
    bos: str | None = None,
    added: Sequence[str] = (),
    space: bool = True,
) -> Engine:
    """Pieces with scores, the best pair merged first (SentencePiece's BPE), with single bytes for what is left.

    A merge is any split of a piece into two others; it comes as early as its piece's score is high. All splits of all
    pieces are tried, so very long pieces, which no real vocabulary has, are refused.
    """
    if sum(len(piece) ** 2 for piece in tokens) > MAX_SPLIT_CHARACTERS:
        longest = max(map(len, tokens))
        raise DataError(f"a vocabulary with pieces of up to {longest:,} characters cannot be read. Is it damaged?")
    numbers = {token: number for number, token in enumerate(tokens)}
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, score in zip(tokens, scores, strict=True):
        cuts = [(piece[:place], piece[place:]) for place in range(1, len(piece))]
        pairs = [pair for pair in cuts if pair[0] in numbers and pair[1] in numbers]
        for left, right in sorted(pairs, key=lambda pair: (numbers[pair[0]], numbers[pair[1]])):
            merges.append((score, len(left), len(right), left, right))
    merges.sort(key=lambda merge: merge[:3], reverse=True)
    pairs = [(left, right) for *_, left, right in merges]
    engine = Engine(models.BPE(numbers, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    lead = [normalizers.Prepend("▁")] if space else []
    engine.normalizer = normalizers.Sequence([*lead, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if space else []
    back = decoders.Replace("▁", " ")
    engine.decoder = decoders.Sequence([back, decoders.ByteFallback(), decoders.Fuse(), *strip])
    _add_special(engine, [*special, *([unknown] if unknown else [])], added, bos)
    return engine


def _add_special(engine: Engine, special: Sequence[str], added: Sequence[str], begin: str | None) -> None:
    engine.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    engine.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    if begin is not None:
        place = (begin, engine.token_to_id(begin))
        engine.post_processor = processors.TemplateProcessing(single=f"{begin} $A", special_tokens=[place])
