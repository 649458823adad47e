"""GGUF files (llama.cpp), in and out: metadata in Hugging Face's words, tensors one at a time, the tokenizer."""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Engine
from torch import Tensor

from lemma.data.tokenizers import Tokenizer
from lemma.errors import RunError, unknown
from lemma.hub.pretrained import Pretrained

ARCHITECTURES = {"llama": "llama", "mistral": "mistral", "qwen2": "qwen2", "qwen3": "qwen3"}
"""GGUF's architectures and Hugging Face's model types."""
TURNED = ("llama", "mistral")
"""Those whose queries and keys GGUF permutes, so that the pairs that rotary positions turn are adjacent."""
WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
PARTS = {
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
SIZES = {
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
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
"""GGUF's types of tokens."""


def need_gguf() -> None:
    """Refuse where the package for GGUF is missing."""
    if find_spec("gguf") is None:
        raise RunError("GGUF files need the package gguf, which is not installed here: pip install 'lemma[gguf]'")


def open_gguf(path: Path) -> Pretrained:
    """Open a GGUF file: its metadata are read, its tensors stay where they are."""
    need_gguf()
    about, stored = read_header(path)
    config = config_of(about, stored, path)
    tensors = GgufTensors(path, stored, config)
    return Pretrained(path, config, tensors, (path,), lambda: read_tokenizer(about, config, path))


class StoredTensor(NamedTuple):
    """Where a tensor lies in a file, and how it is quantized."""

    shape: tuple[int, ...]
    """As in torch: rows first."""
    quantization: Any
    place: int
    bytes: int


MAGIC, VERSIONS = b"GGUF", (2, 3)
TEXT, LIST = 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The types of values, as `struct` calls them."""
ALIGNMENT = 32


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Read the metadata of a file and where its tensors lie (the package's own reader takes many seconds for it)."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    size = path.stat().st_size
    with path.open("rb") as file:

        def read(count: int) -> bytes:
            if count > size - file.tell():
                raise RunError(f"{path} is cut off, or not a GGUF file. Download it again.")
            return file.read(count)

        def number(code: str) -> Any:
            return struct.unpack(f"<{code}", read(struct.calcsize(f"<{code}")))[0]

        def numbers(count: int) -> tuple[int, ...]:
            return struct.unpack(f"<{count}Q", read(8 * count))

        def text() -> str:
            return read(number("Q")).decode("utf-8", "replace")

        def value(kind: int) -> Any:
            if kind == TEXT:
                return text()
            if kind == LIST:
                inner, length = number("I"), number("Q")
                if inner not in NUMBERS:
                    return [value(inner) for _ in range(length)]
                code = NUMBERS[inner]
                return list(struct.unpack(f"<{length}{code}", read(length * struct.calcsize(f"<{code}"))))
            return number(NUMBERS[kind])

        if read(4) != MAGIC or number("I") not in VERSIONS:
            raise RunError(f"{path} is not a GGUF file of version 2 or 3.")
        count, entries = number("Q"), number("Q")
        try:
            about = {text(): value(number("I")) for _ in range(entries)}
            listed = [(text(), numbers(number("I")), number("I"), number("Q")) for _ in range(count)]
        except (KeyError, struct.error, MemoryError, RecursionError) as error:
            raise RunError(f"{path} is damaged: its header cannot be read ({error}). Download it again.") from None
        start = file.tell()
    step = about.get("general.alignment", ALIGNMENT)
    start += -start % step
    found: dict[str, StoredTensor] = {}
    for name, sizes, kind, place in listed:
        quantization = GGMLQuantizationType(kind)
        block, width = GGML_QUANT_SIZES[quantization]
        found[name] = StoredTensor(sizes[::-1], quantization, start + place, prod(sizes) // block * width)
        if found[name].place + found[name].bytes > size:
            raise RunError(f"{path} is cut off: {name} ends past its {size:,} bytes. Download it again.")
    return about, found


def config_of(about: Mapping[str, Any], tensors: Mapping[str, StoredTensor], path: Path) -> dict[str, Any]:
    """The metadata of a file in the words of Hugging Face's config.json."""
    name = str(about.get("general.architecture"))
    if name not in ARCHITECTURES:
        raise RunError(f"{path}: {unknown('architecture', name, ARCHITECTURES)}")
    found: dict[str, Any] = {word: about.get(f"{name}.{key}") for word, key in SIZES.items()}
    for word in ("rms_norm_eps", "rope_theta"):  # kept there in float32: the shortest number that gives it
        if found[word] is not None:
            found[word] = float(str(np.float32(found[word])))
    heads, width = found["num_attention_heads"], found["hidden_size"]
    if not isinstance(heads, int) or not isinstance(width, int) or isinstance(found["num_key_value_heads"], list):
        raise RunError(f"{path}: its layers are not all of the same sizes, or sizes are missing; it cannot be read.")
    found["head_dim"] = found["head_dim"] or width // heads
    turned = about.get(f"{name}.rope.dimension_count", found["head_dim"])
    scaling = about.get(f"{name}.rope.scaling.type", "none")
    if turned != found["head_dim"] or "rope_freqs.weight" in tensors or scaling not in ("none", "linear"):
        raise RunError(
            f"{path}: its rotary positions are scaled in a way that GGUF keeps as bare numbers ({scaling}). "
            "Take the Hugging Face folder of this model."
        )
    if scaling == "linear":
        found["rope_scaling"] = {"rope_type": "linear", "factor": about[f"{name}.rope.scaling.factor"]}
    ids = {word: about.get(f"tokenizer.ggml.{word}") for word in ("bos_token_id", "eos_token_id")}
    return {
        "model_type": ARCHITECTURES[name],
        **{word: value for word, value in found.items() if value is not None},
        **{word: value for word, value in ids.items() if value is not None},
        "num_key_value_heads": found["num_key_value_heads"] or heads,
        "rope_theta": found["rope_theta"] or 10000.0,
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in tensors,
    }


class GgufTensors(Mapping[str, Tensor]):
    """The tensors of a file by Hugging Face's names, each dequantized to float32 when it is asked for."""

    def __init__(self, path: Path, stored: Mapping[str, StoredTensor], config: Mapping[str, Any]) -> None:
        self.path, self.stored = path, stored
        self.names = {huggingface_name(name): name for name in stored}
        self.heads: dict[str, int] = {}
        if config["model_type"] in TURNED:
            self.heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}

    def __getitem__(self, name: str) -> Tensor:
        from gguf.quants import dequantize

        own = self.names[name]
        shape, quantization, place, size = self.stored[own]
        raw = np.fromfile(self.path, np.uint8, size, offset=place)  # not mapped: the pages would stay in memory
        try:
            numbers = dequantize(raw.reshape(shape[0], -1), quantization)
        except NotImplementedError:
            raise RunError(
                f"{self.path}: {own} is of the type {quantization.name}, which the package gguf cannot dequantize. "
                "Take a file of another quantization, such as Q8_0."
            ) from None
        tensor = torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float32).reshape(shape))
        heads = self.heads.get(own.split(".")[-2], 0)
        return apart(tensor, heads) if heads else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def huggingface_name(name: str) -> str:
    """Hugging Face's name of a tensor of GGUF.

    >>> huggingface_name("blk.3.attn_q.weight")
    'model.layers.3.self_attn.q_proj.weight'
    """
    if name in WHOLE or not name.startswith("blk."):
        return WHOLE.get(name, name)
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{PARTS.get(part, part)}.{kind}"


def apart(tensor: Tensor, heads: int) -> Tensor:
    """Rows of queries or keys whose pairs are adjacent, as halves: the first of each pair, then the second."""
    return tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()


def adjacent(tensor: Tensor, heads: int) -> Tensor:
    """The inverse of `apart`."""
    return tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2).contiguous()


# The tokenizer: byte-level byte-pairs ("gpt2") or pieces with scores ("llama").

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


FIRST_CUTS: dict[str, Callable[[], Any]] = {
    "default": _plain,
    "gpt-2": _plain,
    "smollm": _digits,
    "starcoder": _digits,
    "llama-bpe": _split(r"\p{N}{1,3}"),
    "qwen2": _split(r"\p{N}"),
}
"""How text is first cut, by the names that llama.cpp gives to the rules."""


def read_tokenizer(about: Mapping[str, Any], config: Mapping[str, Any], path: Path) -> Tokenizer:
    """The tokenizer of a file, as a pipeline of the tokenizers library."""
    said = {name.removeprefix("tokenizer.ggml."): value for name, value in about.items() if "tokenizer." in name}
    tokens = said.get("tokens")
    if not isinstance(tokens, list):
        raise RunError(f"{path} has no tokenizer (tokenizer.ggml.tokens). Take a file that has one.")
    kinds = said.get("token_type", [NORMAL] * len(tokens))
    named = {word: said.get(f"{word}_token_id") for word in ("bos", "eos", "unknown", "padding")}
    words = {word: tokens[token] for word, token in named.items() if isinstance(token, int) and token < len(tokens)}
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    added = [token for token, kind in zip(tokens, kinds, strict=True) if kind == USER_DEFINED]
    model = said.get("model")
    begin = words.get("bos") if said.get("add_bos_token", model == "llama") else None
    if model == "gpt2":
        rule = str(said.get("pre", "default"))
        if rule not in FIRST_CUTS:
            raise RunError(
                f"{path}: {unknown('its tokenizer', rule, FIRST_CUTS)} Take the model's Hugging Face folder."
            )
        merges = [tuple(merge.split(" ", 1)) for merge in said.get("merges", [])]
        numbers = {token: number for number, token in enumerate(tokens)}
        engine = Engine(models.BPE(numbers, merges, ignore_merges=rule == "llama-bpe"))  # pyright: ignore
        if rule == "qwen2":
            engine.normalizer = normalizers.NFC()
        engine.pre_tokenizer, engine.decoder = FIRST_CUTS[rule](), decoders.ByteLevel()
        _add_special(engine, special, added, begin)
    elif model == "llama":
        scores = said.get("scores", [0.0] * len(tokens))
        space = bool(said.get("add_space_prefix", True))
        missing = words.get(
            "unknown", next((t for t, kind in zip(tokens, kinds, strict=True) if kind == UNKNOWN), None)
        )
        engine = sentencepiece_pipeline(tokens, scores, missing, special, begin, added, space)
    else:
        raise RunError(f"{path}: {unknown('its kind of tokenizer', str(model), ('gpt2', 'llama'))}")
    settings = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    own: dict[str, Any] = {name: words[word] for name, word in settings.items() if word in words}
    if template := about.get("tokenizer.chat_template"):
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
    begin: str | None = None,
    added: Sequence[str] = (),
    space: bool = True,
) -> Engine:
    """Pieces with scores, the best pair merged first (SentencePiece's BPE), with single bytes for what is left.

    A merge is any split of a piece into two others; it comes as early as its piece's score is high.
    """
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
    _add_special(engine, [*special, *([unknown] if unknown else [])], added, begin)
    return engine


def _add_special(engine: Engine, special: Sequence[str], added: Sequence[str], begin: str | None) -> None:
    engine.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    engine.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    if begin is not None:
        place = (begin, engine.token_to_id(begin))
        engine.post_processor = processors.TemplateProcessing(single=f"{begin} $A", special_tokens=[place])
