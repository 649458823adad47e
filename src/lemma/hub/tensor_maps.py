"""How the tensors of Hugging Face's models become Lemma's, and back: names, stacking, transposition."""

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal

import torch
from torch import Tensor

from lemma.spec.models import ModelSpec
from lemma.spec.positions import Rotary

Shape = tuple[int, ...]
Layout = Literal["stacked", "transposed", "interleaved", "plus one", "reversed"]


@dataclass(frozen=True)
class TensorMap:
    """Correspondence of a tensor of Lemma's and the tensors of a Hugging Face checkpoint that hold the same numbers.

    The layout "stacked" is their rows one after the other; "transposed" one matrix, as GPT-2 stores it; "interleaved"
    queries, keys and values head by head, as in GPT-NeoX; "plus one" Gemma's norms, which multiply by 1 + w; "reversed"
    rows in the opposite order, as BERT's answers whether a sentence follows.
    """

    name: str
    hf_names: tuple[str, ...]
    layout: Layout = "stacked"
    row_counts: tuple[int, ...] = ()  # of each of theirs, where there are several
    heads: int = 1
    rotary_dim: int = 0  # rotated width of a head whose pairs become halves on export; 0 to leave the order
    rotary_rows: int = 0  # those of queries and keys
    head_width: int = 1  # rows of one head

    @property
    def hf_modules(self) -> list[str]:
        """Paths of the modules in transformers that have the tensors `hf_names` as weights."""
        return [name.removesuffix(".weight") for name in self.hf_names]

    def hf_shapes(self, shape: Shape) -> list[Shape]:
        """Return the shape of each tensor of transformers (`hf_names`) if Lemma's tensor has this shape."""
        if self.layout == "transposed":
            return [shape[::-1]]
        return [(rows, *shape[1:]) for rows in self.row_counts] or [shape]

    def from_hf(self, tensors: list[Tensor]) -> Tensor:
        """Return Lemma's tensor, made of those of transformers in the order of `hf_names`."""
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
        """Return the tensors of transformers, in the order of `hf_names`, made of Lemma's tensor."""
        if self.rotary_dim:
            even, odd = torch.arange(0, self.rotary_dim, 2), torch.arange(1, self.rotary_dim, 2)
            order = torch.cat([even, odd, torch.arange(self.rotary_dim, self.head_width)]).to(tensor.device)
            heads = tensor[: self.rotary_rows].unflatten(0, (-1, self.head_width))[:, order].flatten(0, 1)
            tensor = torch.cat([heads, tensor[self.rotary_rows :]])
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


class StoredTensors(Mapping[str, Tensor]):
    """Tensors of a model in files, by Hugging Face's names; each is read when it is asked for."""

    entries: Any  # where each tensor is, by name

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @abstractmethod
    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor without reading it."""

    def blocks(self, name: str) -> Iterator[Tensor]:
        """Yield a tensor as consecutive blocks of rows, so that a converted one is never in memory twice."""
        yield self[name]


# Names


@dataclass(frozen=True)
class NameTable:
    """Table from Lemma's module names to those of an architecture of transformers, in the order of the model.

    `*` is the number of a layer, and {q,k,v} stands for three modules that are one of Lemma's.
    """

    names: Mapping[str, str]
    pattern: str = r"(?!)"  # of the names of modules that are stored in `layout`; all others are stacked
    layout: Layout = "stacked"
    prefix: str = ""  # what a checkpoint that was saved without its output layer leaves out
    tied: Mapping[str, str] = field(default_factory=dict)  # names that are others where the output is tied

    @property
    def output(self) -> str:
        """Name in transformers of the output layer's weight, which a checkpoint may hold even if it is tied."""
        return f"{self.names.get('output') or self.names['output.map']}.weight"

    def modules(self, spec: ModelSpec) -> Iterator[tuple[str, str]]:
        """Yield (name in Lemma, name in transformers) of each module of a model, layer by layer."""
        for (side, layers), rows in groupby(self.names.items(), lambda row: row[0].partition("layers.*")[:2]):
            names, depth = list(rows), 1
            if layers:
                depth = getattr(spec, f"{side.replace('.', '_')}depth", getattr(spec, "depth", 0))
            for index in map(str, range(depth)):
                yield from ((name.replace("*", index), hf_name.replace("*", index)) for name, hf_name in names)

    def tensor_maps(self, spec: Any) -> Iterator[TensorMap]:
        """Yield the maps of all tensors that a model of this spec may have, optional biases included."""
        heads, width, inner = spec.heads, spec.head_width, spec.feed_forward_width
        key_value_heads, positions = getattr(spec, "key_value_heads", None) or heads, spec.positions
        queries, keys, rotary_dim = heads * width, key_value_heads * width, 0
        if isinstance(positions, Rotary) and positions.layout == "pairs":
            rotary_dim = positions.rotary_dim(width)
        rotary_rows = {"query_key_value": queries + keys, "query_norm": width, "key_norm": width}
        row_counts = {"query_key_value": (queries, keys, keys), "key_value": (keys, keys), "gate_widen": (inner, inner)}
        has_head_norms = getattr(spec, "query_key_norm", False)
        for name, hf_name in self.modules(spec):
            kind, hf_modules = name.rpartition(".")[2], _expand_braces(hf_name)
            if (name == "output" and spec.tied) or (kind in ("query_norm", "key_norm") and not has_head_norms):
                continue
            layout = self.layout if re.search(self.pattern, name) else "stacked"
            for suffix in ("weight", "bias"):
                hf_names = (f"{module}.{suffix}" for module in hf_modules)
                yield TensorMap(
                    f"{name}.{suffix}",
                    tuple(self.tied.get(each, each) if spec.tied else each for each in hf_names),
                    "stacked" if suffix == "bias" and layout == "transposed" else layout,
                    row_counts[kind] if len(hf_modules) > 1 else (),
                    heads,
                    rotary_dim if kind in rotary_rows else 0,
                    rotary_rows.get(kind, 0),
                    width,
                )


def _expand_braces(name: str) -> tuple[str, ...]:
    """Return a module name once for each choice of its braces, "x.{a,b}" as ("x.a", "x.b"); without braces, itself."""
    before, brace, rest = name.partition("{")
    choices, _, after = rest.partition("}")
    return tuple(f"{before}{choice}{after}" for choice in choices.split(",")) if brace else (name,)


LLAMA = NameTable(
    {
        "embedding": "model.embed_tokens",
        "layers.*.attention_norm": "model.layers.*.input_layernorm",
        "layers.*.attention.query_key_value": "model.layers.*.self_attn.{q,k,v}_proj",
        "layers.*.attention.query_norm": "model.layers.*.self_attn.q_norm",
        "layers.*.attention.key_norm": "model.layers.*.self_attn.k_norm",
        "layers.*.attention.output": "model.layers.*.self_attn.o_proj",
        "layers.*.feed_forward_norm": "model.layers.*.post_attention_layernorm",
        "layers.*.feed_forward.gate_widen": "model.layers.*.mlp.{gate,up}_proj",
        "layers.*.feed_forward.narrow": "model.layers.*.mlp.down_proj",
        "norm": "model.norm",
        "output": "lm_head",
    },
    prefix="model.",
)
GEMMA = replace(LLAMA, pattern="norm$", layout="plus one")
GPT2 = NameTable(
    {
        "embedding": "transformer.wte",
        "positions": "transformer.wpe",
        "layers.*.attention_norm": "transformer.h.*.ln_1",
        "layers.*.attention.query_key_value": "transformer.h.*.attn.c_attn",
        "layers.*.attention.output": "transformer.h.*.attn.c_proj",
        "layers.*.feed_forward_norm": "transformer.h.*.ln_2",
        "layers.*.feed_forward.widen": "transformer.h.*.mlp.c_fc",
        "layers.*.feed_forward.narrow": "transformer.h.*.mlp.c_proj",
        "norm": "transformer.ln_f",
        "output": "lm_head",
    },
    pattern=r"(attention|feed_forward)\.",
    layout="transposed",
    prefix="transformer.",
)
NEOX = NameTable(
    {
        "embedding": "gpt_neox.embed_in",
        "layers.*.attention_norm": "gpt_neox.layers.*.input_layernorm",
        "layers.*.attention.query_key_value": "gpt_neox.layers.*.attention.query_key_value",
        "layers.*.attention.output": "gpt_neox.layers.*.attention.dense",
        "layers.*.feed_forward_norm": "gpt_neox.layers.*.post_attention_layernorm",
        "layers.*.feed_forward.widen": "gpt_neox.layers.*.mlp.dense_h_to_4h",
        "layers.*.feed_forward.narrow": "gpt_neox.layers.*.mlp.dense_4h_to_h",
        "norm": "gpt_neox.final_layer_norm",
        "output": "embed_out",
    },
    pattern="query_key_value$",
    layout="interleaved",
    prefix="gpt_neox.",
)
BERT = NameTable(
    {
        "embedding": "bert.embeddings.word_embeddings",
        "positions": "bert.embeddings.position_embeddings",
        "segments": "bert.embeddings.token_type_embeddings",
        "embedding_norm": "bert.embeddings.LayerNorm",
        "encoder.layers.*.attention.query_key_value": "bert.encoder.layer.*.attention.self.{query,key,value}",
        "encoder.layers.*.attention.output": "bert.encoder.layer.*.attention.output.dense",
        "encoder.layers.*.attention_norm": "bert.encoder.layer.*.attention.output.LayerNorm",
        "encoder.layers.*.feed_forward.widen": "bert.encoder.layer.*.intermediate.dense",
        "encoder.layers.*.feed_forward.narrow": "bert.encoder.layer.*.output.dense",
        "encoder.layers.*.feed_forward_norm": "bert.encoder.layer.*.output.LayerNorm",
        "output.transform": "cls.predictions.transform.dense",
        "output.norm": "cls.predictions.transform.LayerNorm",
        "output.map": "cls.predictions.decoder",
        "follow.transform": "bert.pooler.dense",
        "follow.map": "cls.seq_relationship",
    },
    pattern="follow.map$",
    layout="reversed",
    prefix="bert.",
    tied={"cls.predictions.decoder.bias": "cls.predictions.bias"},
)
T5 = NameTable(
    {
        "embedding": "shared",
        "encoder.biases": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        "encoder.norm": "encoder.final_layer_norm",
        "encoder.layers.*.attention.query_key_value": "encoder.block.*.layer.0.SelfAttention.{q,k,v}",
        "encoder.layers.*.attention.output": "encoder.block.*.layer.0.SelfAttention.o",
        "encoder.layers.*.attention_norm": "encoder.block.*.layer.0.layer_norm",
        "encoder.layers.*.feed_forward.gate_widen": "encoder.block.*.layer.1.DenseReluDense.wi_{0,1}",
        "encoder.layers.*.feed_forward.widen": "encoder.block.*.layer.1.DenseReluDense.wi",
        "encoder.layers.*.feed_forward.narrow": "encoder.block.*.layer.1.DenseReluDense.wo",
        "encoder.layers.*.feed_forward_norm": "encoder.block.*.layer.1.layer_norm",
        "decoder.biases": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        "decoder.norm": "decoder.final_layer_norm",
        "decoder.layers.*.attention.query_key_value": "decoder.block.*.layer.0.SelfAttention.{q,k,v}",
        "decoder.layers.*.attention.output": "decoder.block.*.layer.0.SelfAttention.o",
        "decoder.layers.*.attention_norm": "decoder.block.*.layer.0.layer_norm",
        "decoder.layers.*.source_attention.query": "decoder.block.*.layer.1.EncDecAttention.q",
        "decoder.layers.*.source_attention.key_value": "decoder.block.*.layer.1.EncDecAttention.{k,v}",
        "decoder.layers.*.source_attention.output": "decoder.block.*.layer.1.EncDecAttention.o",
        "decoder.layers.*.source_norm": "decoder.block.*.layer.1.layer_norm",
        "decoder.layers.*.feed_forward.gate_widen": "decoder.block.*.layer.2.DenseReluDense.wi_{0,1}",
        "decoder.layers.*.feed_forward.widen": "decoder.block.*.layer.2.DenseReluDense.wi",
        "decoder.layers.*.feed_forward.narrow": "decoder.block.*.layer.2.DenseReluDense.wo",
        "decoder.layers.*.feed_forward_norm": "decoder.block.*.layer.2.layer_norm",
        "output": "lm_head",
    }
)
