"""How the tensors of Hugging Face's models become Lemma's, and back: names, stacking, transposition."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from lemma.spec.models import Decoder, Encoder, EncoderDecoder
from lemma.spec.positions import Rotary

Shape = tuple[int, ...]
Layout = Literal["stacked", "transposed", "interleaved", "plus one", "reversed"]


@dataclass(frozen=True)
class TensorMap:
    """A tensor of Lemma's and the tensors of a Hugging Face checkpoint that hold the same numbers.

    Attributes:
        name: Lemma's name.
        hf_names: Hugging Face's names.
        layout: "stacked" is their rows one after the other; "transposed" one matrix, as GPT-2 stores it; "interleaved"
            queries, keys and values head by head, as in GPT-NeoX; "plus one" Gemma's norms, which multiply by 1 + w;
            "reversed" rows in the opposite order, as BERT's answers whether a sentence follows.
        row_counts: The rows of each of theirs, where there are several.
        heads: Attention heads of an interleaved tensor.
        rotary_dim: Rotated width of a head whose neighbouring pairs become halves on export; 0 to leave the order.
        rotary_rows: The number of rows that are queries and keys.
        head_width: The rows of one head.
    """

    name: str
    hf_names: tuple[str, ...]
    layout: Layout = "stacked"
    row_counts: tuple[int, ...] = ()
    heads: int = 1
    rotary_dim: int = 0
    rotary_rows: int = 0
    head_width: int = 1

    def hf_shapes(self, shape: Shape) -> list[Shape]:
        """Return the shapes that their tensors must have for Lemma's to have this one."""
        if self.layout == "transposed":
            return [shape[::-1]]
        return [(rows, *shape[1:]) for rows in self.row_counts] or [shape]

    def from_hf(self, tensors: list[Tensor]) -> Tensor:
        """Build Lemma's tensor from theirs."""
        match self.layout:
            case "transposed":
                return tensors[0].T.contiguous()
            case "interleaved":
                return tensors[0].unflatten(0, (self.heads, 3, -1)).transpose(0, 1).flatten(0, 2)
            case "plus one":
                return tensors[0].float() + 1  # half precision would round the sum
            case "reversed":
                return tensors[0].flip(0)
            case "stacked":
                return torch.cat(tensors) if len(tensors) > 1 else tensors[0]

    def to_hf(self, tensor: Tensor) -> list[Tensor]:
        """Build their tensors from Lemma's."""
        if self.rotary_dim:
            tensor = _pairs_to_halves(tensor, self.rotary_rows, self.head_width, self.rotary_dim)
        match self.layout:
            case "transposed":
                return [tensor.T.contiguous()]
            case "interleaved":
                return [tensor.unflatten(0, (3, self.heads, -1)).transpose(0, 1).flatten(0, 2).contiguous()]
            case "plus one":
                return [tensor.float() - 1]
            case "reversed":
                return [tensor.flip(0)]
            case "stacked":
                if len(self.hf_names) == 1:
                    return [tensor]
                return [part.contiguous() for part in tensor.split(self.row_counts)]


def _pairs_to_halves(tensor: Tensor, rows: int, head_width: int, rotary_dim: int) -> Tensor:
    """Move pairs of neighbouring rows of queries and keys half the rotated width apart, head by head."""
    even, odd = torch.arange(0, rotary_dim, 2), torch.arange(1, rotary_dim, 2)
    order = torch.cat([even, odd, torch.arange(rotary_dim, head_width)])
    heads = tensor[:rows].unflatten(0, (-1, head_width))[:, order.to(tensor.device)].flatten(0, 1)
    return torch.cat([heads, tensor[rows:]])


class StoredTensors(Mapping[str, Tensor]):
    """Tensors of a model in files, by Hugging Face's names; each is read when it is asked for."""

    @abstractmethod
    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor without reading it."""

    def blocks(self, name: str) -> Iterator[Tensor]:
        """Read a tensor in blocks of its rows, so that one that must be converted is never in memory twice."""
        yield self[name]


# Decoders


@dataclass(frozen=True)
class DecoderNames:
    """Names of a decoder's tensors, those of a layer relative to it, and the layouts they are stored in."""

    prefix: str
    embedding: str
    layer: str
    attention_norm: str
    query_key_value: tuple[str, ...]
    attention_output: str
    feed_forward_norm: str
    widen: tuple[str, ...]
    narrow: str
    norm: str
    output: str
    positions: str = ""
    query_norm: str = ""
    key_norm: str = ""
    matrix_layout: Layout = "stacked"
    is_interleaved: bool = False  # queries, keys and values
    norm_layout: Layout = "stacked"


LLAMA = DecoderNames(
    prefix="model.",
    embedding="embed_tokens",
    layer="layers",
    attention_norm="input_layernorm",
    query_key_value=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_output="self_attn.o_proj",
    feed_forward_norm="post_attention_layernorm",
    widen=("mlp.gate_proj", "mlp.up_proj"),
    narrow="mlp.down_proj",
    norm="norm",
    output="lm_head",
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
)
GEMMA = replace(LLAMA, norm_layout="plus one")
GPT2 = DecoderNames(
    prefix="transformer.",
    embedding="wte",
    layer="h",
    attention_norm="ln_1",
    query_key_value=("attn.c_attn",),
    attention_output="attn.c_proj",
    feed_forward_norm="ln_2",
    widen=("mlp.c_fc",),
    narrow="mlp.c_proj",
    norm="ln_f",
    output="lm_head",
    positions="wpe",
    matrix_layout="transposed",
)
NEOX = DecoderNames(
    prefix="gpt_neox.",
    embedding="embed_in",
    layer="layers",
    attention_norm="input_layernorm",
    query_key_value=("attention.query_key_value",),
    attention_output="attention.dense",
    feed_forward_norm="post_attention_layernorm",
    widen=("mlp.dense_h_to_4h",),
    narrow="mlp.dense_4h_to_h",
    norm="final_layer_norm",
    output="embed_out",
    is_interleaved=True,
)


def decoder_tensor_maps(spec: Decoder, names: DecoderNames) -> Iterator[TensorMap]:
    """List all tensors that a decoder may have, also biases that only one side has."""
    heads, key_value_heads = spec.heads, spec.key_value_heads or spec.heads
    head_width = spec.head_width
    row_counts = ()
    if len(names.query_key_value) > 1:
        row_counts = (heads * head_width, key_value_heads * head_width, key_value_heads * head_width)
    rotary_dim = 0
    if isinstance(spec.positions, Rotary) and spec.positions.layout == "pairs":
        rotary_dim = spec.positions.rotary_dim(head_width)

    def norm(name: str, hf_name: str) -> Iterator[TensorMap]:
        yield TensorMap(f"{name}.weight", (f"{hf_name}.weight",), names.norm_layout)
        if spec.norm == "layer":
            yield TensorMap(f"{name}.bias", (f"{hf_name}.bias",))

    def linear(name: str, hf_names: tuple[str, ...], row_counts: tuple[int, ...] = ()) -> Iterator[TensorMap]:
        yield TensorMap(f"{name}.weight", _with_suffix(hf_names, "weight"), names.matrix_layout, row_counts)
        yield TensorMap(f"{name}.bias", _with_suffix(hf_names, "bias"), "stacked", row_counts)

    yield TensorMap("embedding.weight", (f"{names.prefix}{names.embedding}.weight",))
    if names.positions:
        yield TensorMap("positions.weight", (f"{names.prefix}{names.positions}.weight",))
    for index in range(spec.depth):
        layer, hf_layer = f"layers.{index}", f"{names.prefix}{names.layer}.{index}"
        yield from norm(f"{layer}.attention_norm", f"{hf_layer}.{names.attention_norm}")
        hf_names = tuple(f"{hf_layer}.{name}" for name in names.query_key_value)
        for tensor_map in linear(f"{layer}.attention.query_key_value", hf_names, row_counts):
            yield replace(
                tensor_map,
                layout="interleaved" if names.is_interleaved else tensor_map.layout,
                heads=heads,
                rotary_dim=rotary_dim,
                rotary_rows=(heads + key_value_heads) * head_width,
                head_width=head_width,
            )
        if spec.query_key_norm:
            for name, hf_name in (("query_norm", names.query_norm), ("key_norm", names.key_norm)):
                yield TensorMap(
                    f"{layer}.attention.{name}.weight",
                    (f"{hf_layer}.{hf_name}.weight",),
                    names.norm_layout,
                    rotary_dim=rotary_dim,
                    rotary_rows=head_width,
                    head_width=head_width,
                )
        yield from linear(f"{layer}.attention.output", (f"{hf_layer}.{names.attention_output}",))
        yield from norm(f"{layer}.feed_forward_norm", f"{hf_layer}.{names.feed_forward_norm}")
        widen = "gate_widen" if spec.gated else "widen"
        hf_names = tuple(f"{hf_layer}.{name}" for name in names.widen)
        widen_rows = (spec.feed_forward_width,) * 2 if len(hf_names) > 1 else ()
        yield from linear(f"{layer}.feed_forward.{widen}", hf_names, widen_rows)
        yield from linear(f"{layer}.feed_forward.narrow", (f"{hf_layer}.{names.narrow}",))
    yield from norm("norm", f"{names.prefix}{names.norm}")
    if not spec.tied:
        yield TensorMap("output.weight", (f"{names.output}.weight",))


def _with_suffix(names: tuple[str, ...], suffix: str) -> tuple[str, ...]:
    return tuple(f"{name}.{suffix}" for name in names)


# BERT and T5


def bert_tensor_maps(spec: Encoder) -> Iterator[TensorMap]:
    """List all tensors that an encoder may have, with BERT's."""

    def linear(name: str, *hf_names: str, layout: Layout = "stacked") -> Iterator[TensorMap]:
        row_counts = (spec.query_width,) * len(hf_names) if len(hf_names) > 1 else ()
        for suffix in ("weight", "bias"):
            yield TensorMap(f"{name}.{suffix}", _with_suffix(hf_names, suffix), layout, row_counts)

    yield TensorMap("embedding.weight", ("bert.embeddings.word_embeddings.weight",))
    yield TensorMap("positions.weight", ("bert.embeddings.position_embeddings.weight",))
    yield TensorMap("segments.weight", ("bert.embeddings.token_type_embeddings.weight",))
    yield from linear("embedding_norm", "bert.embeddings.LayerNorm")
    for index in range(spec.depth):
        layer, hf_layer = f"encoder.layers.{index}", f"bert.encoder.layer.{index}"
        query_key_value = [f"{hf_layer}.attention.self.{name}" for name in ("query", "key", "value")]
        yield from linear(f"{layer}.attention.query_key_value", *query_key_value)
        yield from linear(f"{layer}.attention.output", f"{hf_layer}.attention.output.dense")
        yield from linear(f"{layer}.attention_norm", f"{hf_layer}.attention.output.LayerNorm")
        yield from linear(f"{layer}.feed_forward.widen", f"{hf_layer}.intermediate.dense")
        yield from linear(f"{layer}.feed_forward.narrow", f"{hf_layer}.output.dense")
        yield from linear(f"{layer}.feed_forward_norm", f"{hf_layer}.output.LayerNorm")
    yield from linear("output.transform", "cls.predictions.transform.dense")
    yield from linear("output.norm", "cls.predictions.transform.LayerNorm")
    yield TensorMap("output.map.weight", ("cls.predictions.decoder.weight",))
    bias = "cls.predictions.bias" if spec.tied else "cls.predictions.decoder.bias"  # a tied bias has two names
    yield TensorMap("output.map.bias", (bias,))
    yield from linear("follow.transform", "bert.pooler.dense")
    yield from linear("follow.map", "cls.seq_relationship", layout="reversed")


def t5_tensor_maps(spec: EncoderDecoder) -> Iterator[TensorMap]:
    """List all tensors that an encoder–decoder may have, with T5's."""

    def linear(name: str, *hf_names: str, rows: int = 0) -> TensorMap:
        row_counts = (rows,) * len(hf_names) if rows else ()
        return TensorMap(f"{name}.weight", _with_suffix(hf_names, "weight"), row_counts=row_counts)

    width = spec.query_width
    yield linear("embedding", "shared")
    for side, depth in (("encoder", spec.encoder_depth), ("decoder", spec.decoder_depth)):
        yield linear(f"{side}.biases", f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias")
        yield linear(f"{side}.norm", f"{side}.final_layer_norm")
        for index in range(depth):
            layer, hf_layer = f"{side}.layers.{index}", f"{side}.block.{index}.layer"
            attention, cross = f"{hf_layer}.0.SelfAttention", f"{hf_layer}.1.EncDecAttention"
            last = f"{hf_layer}.{1 if side == 'encoder' else 2}"
            dense = f"{last}.DenseReluDense"
            yield linear(f"{layer}.attention.query_key_value", *(f"{attention}.{x}" for x in "qkv"), rows=width)
            yield linear(f"{layer}.attention.output", f"{attention}.o")
            yield linear(f"{layer}.attention_norm", f"{hf_layer}.0.layer_norm")
            yield linear(f"{layer}.source_attention.query", f"{cross}.q")
            yield linear(f"{layer}.source_attention.key_value", f"{cross}.k", f"{cross}.v", rows=width)
            yield linear(f"{layer}.source_attention.output", f"{cross}.o")
            yield linear(f"{layer}.source_norm", f"{hf_layer}.1.layer_norm")
            gate = (f"{dense}.wi_0", f"{dense}.wi_1")
            yield linear(f"{layer}.feed_forward.gate_widen", *gate, rows=spec.feed_forward_width)
            yield linear(f"{layer}.feed_forward.widen", f"{dense}.wi")
            yield linear(f"{layer}.feed_forward.narrow", f"{dense}.wo")
            yield linear(f"{layer}.feed_forward_norm", f"{last}.layer_norm")
    yield linear("output", "lm_head")
