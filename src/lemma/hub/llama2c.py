"""A Llama in one file, in the layout of llama2.c: seven numbers, then float32 matrices; its tokenizer after them."""

import struct
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lemma.data.tokenizers import Tokenizer
from lemma.errors import RunError
from lemma.hub.gguf import sentencepiece_pipeline
from lemma.hub.pretrained import Pretrained
from lemma.hub.tensor_maps import StoredTensors

HEADER_BYTES = 7 * 4
BYTE_TOKENS = range(3, 259)
"""The tokens of single bytes."""
MAX_SIZE = 1 << 24
"""No size of a real model is above this: a larger one tells that a file is something else."""


def open_llama2c(path: Path) -> Pretrained:
    """Open a file of llama2.c; the tokenizer is at its end, or in `tokenizer.bin` next to it."""
    with path.open("rb") as file:
        head = np.frombuffer(file.read(HEADER_BYTES), dtype="<i4").tolist()
    *sizes, vocabulary, context = head if len(head) == 7 else [0] * 7
    if (
        not all(0 < size < MAX_SIZE for size in (*sizes, abs(vocabulary), context))
        or sizes[0] % sizes[3]
        or sizes[3] % sizes[4]
    ):
        raise RunError(
            f"{path} is not a model of llama2.c. Give a Hugging Face folder, a .gguf file, or a file whose first "
            "seven numbers are its sizes."
        )
    width, inner, depth, heads, groups = sizes
    tied, vocabulary = vocabulary > 0, abs(vocabulary)
    config = {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": [1, 2],
    }
    keys = width // heads * groups
    layout = {  # of each matrix all layers together, except for the two norms and the embedding
        "model.embed_tokens": (vocabulary, width),
        "input_layernorm": (depth, width),
        "self_attn.q_proj": (depth, width, width),
        "self_attn.k_proj": (depth, keys, width),
        "self_attn.v_proj": (depth, keys, width),
        "self_attn.o_proj": (depth, width, width),
        "post_attention_layernorm": (depth, width),
        "mlp.gate_proj": (depth, inner, width),
        "mlp.down_proj": (depth, width, inner),
        "mlp.up_proj": (depth, inner, width),
        "model.norm": (width,),
        "rotations": (2, context, width // heads // 2),
    }
    if not tied:
        layout["lm_head"] = (vocabulary, width)
    size, needed = path.stat().st_size, HEADER_BYTES + 4 * sum(map(prod, layout.values()))
    if size < needed:
        raise RunError(f"{path} is cut off: it has {size:,} bytes, its header asks for {needed:,}. Get it again.")
    tensors = Llama2cTensors(path, layout, heads, groups)
    words = path if size > tensors.end else path.with_name("tokenizer.bin")
    return Pretrained(
        path,
        config,
        tensors,
        (path,) if words is path else (path, *([words] if words.is_file() else [])),
        lambda: _tokenizer(words, tensors.end if words is path else 0, vocabulary, context),
    )


class Llama2cTensors(StoredTensors):
    """The matrices of a file by Hugging Face's names, each read where it lies."""

    def __init__(self, path: Path, layout: Mapping[str, tuple[int, ...]], heads: int, groups: int) -> None:
        self.path = path
        self.turned = {"self_attn.q_proj": heads, "self_attn.k_proj": groups}
        self.places: dict[str, tuple[int, tuple[int, ...], int]] = {}  # where, which shape, heads that are turned
        self.end = HEADER_BYTES
        for name, shape in layout.items():
            whole = name.startswith(("model.", "lm_head"))
            for layer in range(1 if whole or name == "rotations" else shape[0]):
                own = shape if whole or name == "rotations" else shape[1:]
                full = f"{name}.weight" if whole else f"model.layers.{layer}.{name}.weight"
                if name != "rotations":
                    self.places[full] = (self.end, own, self.turned.get(name, 0))
                self.end += 4 * prod(own)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a matrix."""
        return self.places[name][1]

    def __getitem__(self, name: str) -> Tensor:
        place, shape, heads = self.places[name]
        numbers = torch.from_numpy(np.fromfile(self.path, "<f4", prod(shape), offset=place).reshape(shape))
        if not heads:
            return numbers
        return numbers.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(shape)  # pairs (1, 2) … to halves

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def _tokenizer(path: Path, start: int, vocabulary: int, context: int) -> Tokenizer:
    """Read the pieces with their scores: a longest length, then score, length and bytes of each."""
    if not path.is_file():
        raise RunError(f"{path} is missing: a model of llama2.c has its tokenizer there. Put it next to the model.")
    content = path.read_bytes()[start:]
    tokens, scores, place = list[str](), list[float](), 4
    try:
        for _ in range(vocabulary):
            score, length = struct.unpack_from("<fI", content, place)
            tokens.append(content[place + 8 : place + 8 + length].decode("utf-8", "replace").replace(" ", "▁"))
            scores.append(score)
            place += 8 + length
        if place > len(content):
            raise struct.error
    except struct.error:
        raise RunError(f"{path} is cut off: it holds {len(tokens):,} of {vocabulary:,} tokens. Get it again.") from None
    tokens[:3] = "<unk>", "<s>", "</s>"
    for token in BYTE_TOKENS:
        tokens[token] = f"<0x{token - BYTE_TOKENS.start:02X}>"
    engine = sentencepiece_pipeline(tokens, scores, unknown="<unk>", special=("<s>", "</s>"), bos="<s>")
    config = {"bos_token": "<s>", "eos_token": "<s>", "unk_token": "<unk>", "model_max_length": context}
    # llama2.c's own models end a text where the next begins
    generation = {"bos_token_id": 1, "eos_token_id": [1, 2]}
    return Tokenizer(engine.to_str(), str(path), config=config, generation=generation, vocabulary=vocabulary)
