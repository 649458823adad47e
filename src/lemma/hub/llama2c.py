"""Llama models in one file, in the layout of llama2.c: seven sizes, float32 matrices, the tokenizer."""

import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lemma.data.tokenizers import Tokenizer
from lemma.errors import RunError
from lemma.hub.gguf import pairs_to_halves
from lemma.hub.gguf_tokenizer import sentencepiece_pipeline
from lemma.hub.pretrained import Pretrained
from lemma.hub.tensor_maps import StoredTensors

HEADER_BYTES = 7 * 4
BYTE_TOKENS = range(3, 259)  # ids of the tokens of single bytes
MAX_SIZE = 1 << 24  # a larger size means that a file is something else
ROTATIONS = "rotations"  # tables of sines and cosines, which are not read


def open_llama2c(path: Path) -> Pretrained:
    """Open a file of llama2.c as a pretrained model; its tokenizer follows the weights, or is in `tokenizer.bin`."""
    with path.open("rb") as file:
        header = np.frombuffer(file.read(HEADER_BYTES), dtype="<i4").tolist()
    *sizes, vocabulary, context = header if len(header) == 7 else [0] * 7
    width, inner, depth, heads, key_value_heads = sizes
    is_tied, vocabulary = vocabulary > 0, abs(vocabulary)
    has_sizes = all(0 < size < MAX_SIZE for size in (*sizes, vocabulary, context))
    if not has_sizes or width % heads or heads % key_value_heads:
        raise RunError(
            f"{path} is not a model of llama2.c. Give a Hugging Face folder, a .gguf file, or a file whose first "
            "seven numbers are its sizes."
        )
    config = {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": is_tied,
        "bos_token_id": 1,
        "eos_token_id": [1, 2],
    }
    key_width = width // heads * key_value_heads
    layout = {  # the matrices of all layers together, except for the embedding, the last norm and the output
        "model.embed_tokens": (vocabulary, width),
        "input_layernorm": (depth, width),
        "self_attn.q_proj": (depth, width, width),
        "self_attn.k_proj": (depth, key_width, width),
        "self_attn.v_proj": (depth, key_width, width),
        "self_attn.o_proj": (depth, width, width),
        "post_attention_layernorm": (depth, width),
        "mlp.gate_proj": (depth, inner, width),
        "mlp.down_proj": (depth, width, inner),
        "mlp.up_proj": (depth, inner, width),
        "model.norm": (width,),
        ROTATIONS: (2, context, width // heads // 2),
    }
    if not is_tied:
        layout["lm_head"] = (vocabulary, width)
    size, needed = path.stat().st_size, HEADER_BYTES + 4 * sum(map(prod, layout.values()))
    if size < needed:
        raise RunError(f"{path} is cut off: it has {size:,} bytes, its header asks for {needed:,}. Get it again.")
    tensors = Llama2cTensors(path, layout, {"self_attn.q_proj": heads, "self_attn.k_proj": key_value_heads})
    has_tokenizer = size > tensors.end
    source, start = (path, tensors.end) if has_tokenizer else (path.with_name("tokenizer.bin"), 0)
    files = (path,) if has_tokenizer or not source.is_file() else (path, source)
    return Pretrained(path, config, tensors, files, lambda: _read_tokenizer(source, start, vocabulary, context))


class Llama2cTensors(StoredTensors):
    """Matrices of a llama2.c file by Hugging Face's names.

    Attributes:
        entries: (offset in bytes, shape, number of heads whose rows are to be permuted or 0) of each matrix.
    """

    def __init__(self, path: Path, layout: Mapping[str, tuple[int, ...]], permuted_heads: Mapping[str, int]) -> None:
        self.path = path
        self.entries = {}
        self.end = HEADER_BYTES  # offset of the first byte after the matrices
        for name, shape in layout.items():
            names, part, heads = [f"{name}.weight"], shape, permuted_heads.get(name, 0)
            if name != ROTATIONS and not name.startswith(("model.", "lm_head")):
                names, part = [f"model.layers.{layer}.{name}.weight" for layer in range(shape[0])], shape[1:]
            for full_name in names:
                if name != ROTATIONS:
                    self.entries[full_name] = (self.end, part, heads)
                self.end += 4 * prod(part)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, by its name in transformers, without reading it."""
        return self.entries[name][1]

    def __getitem__(self, name: str) -> Tensor:
        offset, shape, heads = self.entries[name]
        tensor = torch.from_numpy(np.fromfile(self.path, "<f4", prod(shape), offset=offset).reshape(shape))
        return pairs_to_halves(tensor, heads) if heads else tensor


def _read_tokenizer(path: Path, start: int, vocabulary: int, context: int) -> Tokenizer:
    """Return the tokenizer whose tokens and scores are in a file, from the byte offset `start` on.

    Args:
        vocabulary: number of tokens.
        context: maximum length of a text in tokens.
    """
    if not path.is_file():
        raise RunError(f"{path} is missing: a model of llama2.c has its tokenizer there. Put it next to the model.")
    content = path.read_bytes()[start:]
    tokens, scores, offset = list[str](), list[float](), 4
    try:
        for _ in range(vocabulary):
            score, length = struct.unpack_from("<fI", content, offset)
            tokens.append(content[offset + 8 : offset + 8 + length].decode("utf-8", "replace").replace(" ", "▁"))
            scores.append(score)
            offset += 8 + length
        if offset > len(content):
            raise struct.error
    except struct.error:
        raise RunError(f"{path} is cut off: it holds {len(tokens):,} of {vocabulary:,} tokens. Get it again.") from None
    tokens[:3] = "<unk>", "<s>", "</s>"
    for token in BYTE_TOKENS:
        tokens[token] = f"<0x{token - BYTE_TOKENS.start:02X}>"
    engine = sentencepiece_pipeline(tokens, scores, unknown="<unk>", special=("<s>", "</s>"), bos="<s>")
    config = {"bos_token": "<s>", "eos_token": "<s>", "unk_token": "<unk>", "model_max_length": context}
    # The models of llama2.c end a text where the next begins.
    generation = {"bos_token_id": 1, "eos_token_id": [1, 2]}
    return Tokenizer(engine.to_str(), str(path), config=config, generation=generation, vocabulary=vocabulary)
