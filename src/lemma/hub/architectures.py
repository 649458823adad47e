"""Hugging Face's architectures as our specs, and their tensors as ours; both ways, without reading a file.

    spec = spec_from_config(config)                            # the dictionary of config.json
    for name, blocks in weights_from(config, tensors): ...     # their tensors, one at a time, by our names
    config = config_from_spec(spec)                            # a native class of transformers
    for name, tensor in weights_to(spec, weights): ...         # our tensors by their names

A model becomes one of ours, not a wrapper: what differs between the architectures is a setting of our specs. Where
our tensor is made of several of theirs (queries, keys and values in one matrix), or is written otherwise (transposed,
interleaved, without the one that Gemma's norms add), a `Piece` says how.
"""

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from lemma.errors import RunError, SpecError
from lemma.models.build import build_uninitialized
from lemma.models.weights import named_weights
from lemma.spec.models import Classifier, Decoder, Encoder, EncoderDecoder, ModelSpec
from lemma.spec.positions import LinearScaling, Llama3Scaling, Relative, Rotary, YarnScaling

Config = Mapping[str, Any]
Shape = tuple[int, ...]
Layout = Literal["stacked", "transposed", "interleaved", "plus one", "reversed"]


@dataclass(frozen=True)
class TensorMap:
    """One of our tensors and those of theirs that it is made of.

    Stacked: their rows one after the other. Transposed: one of theirs, as GPT-2 writes its matrices. Interleaved:
    queries, keys and values head by head, as GPT-NeoX writes them. Plus one: of Gemma's norms, which multiply by 1 + w.
    Reversed: rows in the opposite order, as BERT's two answers whether a sentence follows.
    """

    name: str
    hf_names: tuple[str, ...]
    layout: Layout = "stacked"
    row_counts: tuple[int, ...] = ()
    """The rows of each of theirs, where there are several."""
    heads: int = 1
    rotary_dim: int = 0
    """On the way out, the rotated width of a head whose pairs are to become halves; 0 if none are."""
    rotary_rows: int = 0
    """How many of our rows are queries and keys."""
    head_width: int = 1

    def hf_shapes(self, shape: Shape) -> list[Shape]:
        """The shapes that theirs must have for ours to have this one."""
        if self.layout == "transposed":
            return [shape[::-1]]
        return [(rows, *shape[1:]) for rows in self.row_counts] or [shape]

    def from_hf(self, tensors: list[Tensor]) -> Tensor:
        """Ours, from theirs."""
        match self.layout:
            case "transposed":
                return tensors[0].T.contiguous()
            case "interleaved":
                return tensors[0].unflatten(0, (self.heads, 3, -1)).transpose(0, 1).flatten(0, 2)
            case "plus one":
                return tensors[0].float() + 1  # half precision would round the sum
            case "reversed":
                return tensors[0].flip(0)
        return torch.cat(tensors) if len(tensors) > 1 else tensors[0]

    def to_hf(self, tensor: Tensor) -> list[Tensor]:
        """Theirs, from ours."""
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
        return [part.contiguous() for part in tensor.split(self.row_counts)] if len(self.hf_names) > 1 else [tensor]


def _pairs_to_halves(tensor: Tensor, rows: int, head_width: int, turned: int) -> Tensor:
    """Bring pairs of neighbouring rows of queries and keys half the rotated width apart, head by head."""
    order = torch.cat([torch.arange(0, turned, 2), torch.arange(1, turned, 2), torch.arange(turned, head_width)])
    heads = tensor[:rows].unflatten(0, (-1, head_width))[:, order.to(tensor.device)].flatten(0, 1)
    return torch.cat([heads, tensor[rows:]])


@dataclass(frozen=True)
class DecoderNames:
    """What the tensors of a decoder are called; those of a layer come after `layer`."""

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
)
IGNORED_TENSORS = re.compile(
    r"(^|\.)(rotary_emb\.inv_freq|(attn|attention)\.(masked_)?bias|position_ids|(en|de)coder\.embed_tokens\.weight"
    r"|cls\.predictions\.(decoder\.)?bias)$"
)
"""Constants that older versions of transformers stored next to the weights, and second names of some of them."""


# From a configuration to a spec.


def _required(config: Config, name: str) -> int:
    number = config.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 2**31:
        said = f"says {name} = {number!r}; expected a positive whole number"
        said = f"does not say {name}" if number is None else said
        raise RunError(f"config.json of a {config.get('model_type')} model {said}. The folder is damaged.")
    return number


def _flag(config: Config, name: str, default: bool) -> bool:
    value = config.get(name)
    return default if value is None else bool(value)


ACTIVATIONS = {
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_python_tanh": "gelu",
    "gelu_fast": "gelu",
    "gelu": "gelu-exact",
    "gelu_python": "gelu-exact",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
HF_ACTIVATIONS = {"gelu": "gelu_pytorch_tanh", "gelu-exact": "gelu", "relu": "relu", "silu": "silu"}


def _activation(name: Any) -> str:
    if name not in ACTIVATIONS:
        raise RunError(
            f"config.json: the activation {name!r} is not supported. Supported: {', '.join(sorted(ACTIVATIONS))}."
        )
    return ACTIVATIONS[name]


def _refuse(config: Config, **reasons: str) -> None:
    """Refuse options that are switched on and change what the model computes."""
    for option, reason in reasons.items():
        if config.get(option):
            raise RunError(f"config.json: {option} = {config[option]!r} is not supported: {reason}.")


ROPES = ("default", "linear", "llama3", "yarn")


def _rotary(config: Config, share: float = 1.0) -> dict[str, Any]:
    """Rotary positions from `rope_parameters`, or from `rope_theta` and `rope_scaling` of earlier versions."""
    said = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(said, Mapping) or any(isinstance(value, Mapping) for value in said.values()):
        raise RunError(f"config.json: rotary positions that differ between layers are not supported; got {said!r}.")
    options = {**{name: config[name] for name in ("rope_theta", "partial_rotary_factor") if name in config}, **said}
    kind = options.get("rope_type", options.get("type", "default"))
    words: dict[str, Any] = {
        "kind": "rotary",
        "layout": "halves",
        "base": float(options.get("rope_theta") or config.get("rotary_emb_base") or 10_000.0),
        "share": float(options.get("partial_rotary_factor") or config.get("rotary_pct") or share),
    }
    trained = options.get("original_max_position_embeddings") or config.get("max_position_embeddings")
    match kind:
        case "default" | None:
            return words
        case "linear":
            scaling: dict[str, Any] = {"factor": options.get("factor")}
        case "llama3":
            scaling = {
                "factor": options.get("factor"),
                "slow": options.get("low_freq_factor"),
                "fast": options.get("high_freq_factor"),
                "original_context": trained,
            }
        case "yarn":
            scaling = {
                "factor": options.get("factor") or _required(config, "max_position_embeddings") / int(trained or 1),
                "slow": options.get("beta_slow") or 1.0,
                "fast": options.get("beta_fast") or 32.0,
                "original_context": trained,
                "attention_factor": options.get("attention_factor"),
                "whole_pairs": _flag(options, "truncate", True),
            }
            grown, all_grown = options.get("mscale"), options.get("mscale_all_dim")
            if scaling["attention_factor"] is None and grown and all_grown:
                log = 0.1 * math.log(scaling["factor"])
                scaling["attention_factor"] = (grown * log + 1) / (all_grown * log + 1)
        case "dynamic":
            raise RunError(
                "config.json: the rope type 'dynamic' is not supported: it turns early tokens otherwise once the text "
                "is longer, so that reading token by token would not equal reading at once. "
                f"Supported: {', '.join(ROPES)}."
            )
        case _:
            raise RunError(f"config.json: the rope type {kind!r} is not supported. Supported: {', '.join(ROPES)}.")
    return words | {"scaling": {"kind": kind, **{name: value for name, value in scaling.items() if value is not None}}}


def _llama_words(config: Config, epsilon: float = 1e-6) -> dict[str, Any]:
    """What all architectures of Llama's layout share."""
    width, heads = _required(config, "hidden_size"), _required(config, "num_attention_heads")
    head_width = config.get("head_dim") or width // heads
    groups = config.get("num_key_value_heads") or heads
    return {
        "vocabulary": _required(config, "vocab_size"),
        "width": width,
        "depth": _required(config, "num_hidden_layers"),
        "heads": heads,
        "attention_width": None if head_width * heads == width else head_width * heads,
        "key_value_heads": None if groups == heads else groups,
        "feed_forward": _required(config, "intermediate_size"),
        "gated": True,
        "context": _required(config, "max_position_embeddings"),
        "positions": _rotary(config),
        "norm": "rms",
        "norm_epsilon": config.get("rms_norm_eps", epsilon),
        "activation": _activation(config.get("hidden_act", "silu")),
        "bias": False,
        "tied": _flag(config, "tie_word_embeddings", False),
    }


def _llama(config: Config) -> dict[str, Any]:
    _refuse(config, rope_interleaved="Llama's pairs are expected to lie half a head apart")
    attention = _flag(config, "attention_bias", False)
    biases = {"query_key_value_bias": attention, "attention_output_bias": attention}
    return _llama_words(config) | biases | {"feed_forward_bias": _flag(config, "mlp_bias", False)}


def _mistral(config: Config) -> dict[str, Any]:
    return _llama_words(config) | {"window": config.get("sliding_window", 4096)}


def _window(config: Config) -> int | None:
    """The sliding window of Qwen's, which must be the same in all layers."""
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    depth, first = _required(config, "num_hidden_layers"), config.get("max_window_layers", 28)
    kinds = set(config.get("layer_types") or ())
    if not kinds:  # the first layers see all
        kinds = {"sliding_attention"} if window and first < depth else set()
        kinds |= {"full_attention"} if not window or first > 0 else set()
    if len(kinds) > 1:
        raise RunError(
            "config.json: a sliding window in some layers only is not supported (layer_types, or max_window_layers = "
            f"{first} of {depth} layers). Supported: the same in all layers."
        )
    return window if kinds == {"sliding_attention"} else None


def _qwen2(config: Config) -> dict[str, Any]:
    return _llama_words(config) | {"query_key_value_bias": True, "window": _window(config)}


def _qwen3(config: Config) -> dict[str, Any]:
    attention = _flag(config, "attention_bias", False)
    words = {"query_key_value_bias": attention, "attention_output_bias": attention}
    return _llama_words({"head_dim": 128, **config}) | words | {"query_key_norm": True, "window": _window(config)}


def _gemma(config: Config) -> dict[str, Any]:
    _refuse(config, use_bidirectional_attention="this decoder sees earlier tokens only")
    said = config.get("hidden_activation") or config.get("hidden_act") or "gelu_pytorch_tanh"
    activation = "gelu_pytorch_tanh" if said == "gelu" else said  # what the first release called gelu is its tanh form
    attention = _flag(config, "attention_bias", False)
    tied = {"tie_word_embeddings": _flag(config, "tie_word_embeddings", True)}
    return _llama_words({"head_dim": 256, **config, **tied, "hidden_act": activation}) | {
        "query_key_value_bias": attention,
        "attention_output_bias": attention,
        "scaled_embedding": True,
    }


def _gpt2(config: Config) -> dict[str, Any]:
    _refuse(
        config,
        scale_attn_by_inverse_layer_idx="attention has one scale in all layers here",
        add_cross_attention="this decoder has no source",
    )
    if not _flag(config, "scale_attn_weights", True):
        raise RunError("config.json: scale_attn_weights = false is not supported: attention is scaled here.")
    return {
        "vocabulary": _required(config, "vocab_size"),
        "width": _required(config, "n_embd"),
        "depth": _required(config, "n_layer"),
        "heads": _required(config, "n_head"),
        "feed_forward": config.get("n_inner"),
        "context": _required(config, "n_positions"),
        "positions": "learned",
        "norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
        "activation": _activation(config.get("activation_function", "gelu_new")),
        "tied": _flag(config, "tie_word_embeddings", True),
    }


def _neox(config: Config) -> dict[str, Any]:
    attention = _flag(config, "attention_bias", True)
    return {
        "vocabulary": _required(config, "vocab_size"),
        "width": _required(config, "hidden_size"),
        "depth": _required(config, "num_hidden_layers"),
        "heads": _required(config, "num_attention_heads"),
        "feed_forward": _required(config, "intermediate_size"),
        "context": _required(config, "max_position_embeddings"),
        "positions": _rotary(config, share=0.25),
        "residual": "parallel" if _flag(config, "use_parallel_residual", True) else "sequential",
        "norm_epsilon": config.get("layer_norm_eps", 1e-5),
        "activation": _activation(config.get("hidden_act", "gelu")),
        "query_key_value_bias": attention,
        "attention_output_bias": attention,
        "tied": _flag(config, "tie_word_embeddings", False),
    }


def _bert(config: Config) -> dict[str, Any]:
    _refuse(config, is_decoder="this encoder sees both sides", add_cross_attention="this encoder has no source")
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise RunError(
            f"config.json: position_embedding_type = {config['position_embedding_type']!r} is not supported."
        )
    vocabulary = _required(config, "vocab_size")
    both = "BertForPreTraining" in (config.get("architectures") or ())
    return {
        "vocabulary": vocabulary,
        "width": _required(config, "hidden_size"),
        "depth": _required(config, "num_hidden_layers"),
        "heads": _required(config, "num_attention_heads"),
        "feed_forward": _required(config, "intermediate_size"),
        "context": _required(config, "max_position_embeddings"),
        "positions": "learned",
        "norm_place": "post",
        "norm_epsilon": config.get("layer_norm_eps", 1e-12),
        "activation": _activation(config.get("hidden_act", "gelu")),
        "objective": "both" if both else "masked",
        "segments": config.get("type_vocab_size", 2),
        "embedding_norm": True,
        "output_transform": True,
        "output_bias": True,
        "special_tokens": (101, 102, 103) if vocabulary > 103 else None,  # of all of Google's; a tokenizer knows better
        "tied": _flag(config, "tie_word_embeddings", True),
    }


def _t5(config: Config) -> dict[str, Any]:
    width, heads = _required(config, "d_model"), _required(config, "num_heads")
    inner = heads * _required(config, "d_kv")
    *gate, activation = str(config.get("feed_forward_proj", "relu")).split("-")
    if gate not in ([], ["gated"]):
        raise RunError(f"config.json: feed_forward_proj = {config['feed_forward_proj']!r} is not supported.")
    scaled = _flag(config, "scale_decoder_outputs", _flag(config, "tie_word_embeddings", True))
    start = config.get("decoder_start_token_id")
    start = config.get("pad_token_id", 0) if start is None else start
    end = config.get("eos_token_id", 1)
    depth = _required(config, "num_layers")
    return {
        "vocabulary": _required(config, "vocab_size"),
        "width": width,
        "heads": heads,
        "attention_width": None if inner == width else inner,
        "feed_forward": _required(config, "d_ff"),
        "gated": bool(gate),
        "context": config.get("n_positions") or 512,
        "positions": {
            "kind": "relative",
            "buckets": config.get("relative_attention_num_buckets", 32),
            "farthest": config.get("relative_attention_max_distance", 128),
        },
        "scaled_scores": False,
        "norm": "rms",
        "norm_epsilon": config.get("layer_norm_epsilon", 1e-6),
        "activation": _activation("gelu_new" if gate and activation == "gelu" else activation),
        "bias": False,
        "tied": scaled and _flag(config, "tie_word_embeddings", True),
        "special_tokens": (start, end, start) if isinstance(start, int) and isinstance(end, int) else None,
        "encoder_depth": depth,
        "decoder_depth": config.get("num_decoder_layers") or depth,
        "scaled_output": scaled,
    }


# All tensors of a model: ours, and what they are made of.


def decoder_tensor_maps(spec: Decoder, names: DecoderNames, kind: str) -> Iterator[TensorMap]:
    """All tensors of a decoder with those of theirs; of biases too that only one side has."""
    matrix: Layout = "transposed" if kind == "gpt2" else "stacked"
    scale: Layout = "plus one" if kind == "gemma" else "stacked"
    head, heads, groups = spec.query_width // spec.heads, spec.heads, spec.key_value_heads or spec.heads
    rows = (heads * head, groups * head, groups * head) if len(names.query_key_value) > 1 else ()
    inner = (spec.feed_forward_width, spec.feed_forward_width) if len(names.widen) > 1 else ()
    places = spec.positions
    pairs = places.rotary_dim(head) if isinstance(places, Rotary) and places.layout == "pairs" else 0

    def norm(ours: str, theirs: str) -> Iterator[TensorMap]:
        yield TensorMap(f"{ours}.weight", (f"{theirs}.weight",), scale)
        if spec.norm == "layer":
            yield TensorMap(f"{ours}.bias", (f"{theirs}.bias",))

    def linear(ours: str, theirs: tuple[str, ...], rows: tuple[int, ...] = ()) -> Iterator[TensorMap]:
        yield TensorMap(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), matrix, rows)
        yield TensorMap(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs), "stacked", rows)

    yield TensorMap("embedding.weight", (f"{names.prefix}{names.embedding}.weight",))
    if names.positions:
        yield TensorMap("positions.weight", (f"{names.prefix}{names.positions}.weight",))
    for layer in range(spec.depth):
        ours, theirs = f"layers.{layer}", f"{names.prefix}{names.layer}.{layer}"
        yield from norm(f"{ours}.attention_norm", f"{theirs}.{names.attention_norm}")
        joined = tuple(f"{theirs}.{name}" for name in names.query_key_value)
        for piece in linear(f"{ours}.attention.query_key_value", joined, rows):
            form: Layout = "interleaved" if kind == "gpt_neox" else piece.layout
            turned = (heads + groups) * head
            yield replace(piece, layout=form, heads=heads, rotary_dim=pairs, rotary_rows=turned, head_width=head)
        if spec.query_key_norm:
            for name, their in (("query_norm", names.query_norm), ("key_norm", names.key_norm)):
                piece = TensorMap(f"{ours}.attention.{name}.weight", (f"{theirs}.{their}.weight",), scale)
                yield replace(piece, rotary_dim=pairs, rotary_rows=head, head_width=head)
        yield from linear(f"{ours}.attention.output", (f"{theirs}.{names.attention_output}",))
        yield from norm(f"{ours}.feed_forward_norm", f"{theirs}.{names.feed_forward_norm}")
        widen = "gate_widen" if spec.gated else "widen"
        yield from linear(f"{ours}.feed_forward.{widen}", tuple(f"{theirs}.{name}" for name in names.widen), inner)
        yield from linear(f"{ours}.feed_forward.narrow", (f"{theirs}.{names.narrow}",))
    yield from norm("norm", f"{names.prefix}{names.norm}")
    if not spec.tied:
        yield TensorMap("output.weight", (f"{names.output}.weight",))


def bert_tensor_maps(spec: Encoder) -> Iterator[TensorMap]:
    """All tensors of an encoder, with those of BERT."""

    def both(ours: str, *theirs: str, form: Layout = "stacked") -> Iterator[TensorMap]:
        rows = (spec.query_width,) * len(theirs) if len(theirs) > 1 else ()
        for part in ("weight", "bias"):
            yield TensorMap(f"{ours}.{part}", tuple(f"{name}.{part}" for name in theirs), form, rows)

    yield TensorMap("embedding.weight", ("bert.embeddings.word_embeddings.weight",))
    yield TensorMap("positions.weight", ("bert.embeddings.position_embeddings.weight",))
    yield TensorMap("segments.weight", ("bert.embeddings.token_type_embeddings.weight",))
    yield from both("embedding_norm", "bert.embeddings.LayerNorm")
    for layer in range(spec.depth):
        ours, theirs = f"encoder.layers.{layer}", f"bert.encoder.layer.{layer}"
        maps = [f"{theirs}.attention.self.{name}" for name in ("query", "key", "value")]
        yield from both(f"{ours}.attention.query_key_value", *maps)
        yield from both(f"{ours}.attention.output", f"{theirs}.attention.output.dense")
        yield from both(f"{ours}.attention_norm", f"{theirs}.attention.output.LayerNorm")
        yield from both(f"{ours}.feed_forward.widen", f"{theirs}.intermediate.dense")
        yield from both(f"{ours}.feed_forward.narrow", f"{theirs}.output.dense")
        yield from both(f"{ours}.feed_forward_norm", f"{theirs}.output.LayerNorm")
    yield from both("output.transform", "cls.predictions.transform.dense")
    yield from both("output.norm", "cls.predictions.transform.LayerNorm")
    yield TensorMap("output.map.weight", ("cls.predictions.decoder.weight",))
    bias = "cls.predictions.bias" if spec.tied else "cls.predictions.decoder.bias"  # two names for one, if it is tied
    yield TensorMap("output.map.bias", (bias,))
    yield from both("follow.transform", "bert.pooler.dense")
    yield from both("follow.map", "cls.seq_relationship", form="reversed")


def t5_tensor_maps(spec: EncoderDecoder) -> Iterator[TensorMap]:
    """All tensors of an encoder–decoder, with those of T5."""
    yield TensorMap("embedding.weight", ("shared.weight",))
    for side, depth in (("encoder", spec.encoder_depth), ("decoder", spec.decoder_depth)):
        first = f"{side}.block.0.layer.0.SelfAttention"
        yield TensorMap(f"{side}.biases.weight", (f"{first}.relative_attention_bias.weight",))
        yield TensorMap(f"{side}.norm.weight", (f"{side}.final_layer_norm.weight",))
        for layer in range(depth):
            ours, theirs = f"{side}.layers.{layer}", f"{side}.block.{layer}.layer"
            own, source = f"{theirs}.0.SelfAttention", f"{theirs}.1.EncDecAttention"
            last = f"{theirs}.{1 if side == 'encoder' else 2}"
            width = spec.query_width
            named = tuple(f"{own}.{name}.weight" for name in "qkv")
            yield TensorMap(f"{ours}.attention.query_key_value.weight", named, row_counts=(width,) * 3)
            yield TensorMap(f"{ours}.attention.output.weight", (f"{own}.o.weight",))
            yield TensorMap(f"{ours}.attention_norm.weight", (f"{theirs}.0.layer_norm.weight",))
            named = tuple(f"{source}.{name}.weight" for name in "kv")
            yield TensorMap(f"{ours}.source_attention.query.weight", (f"{source}.q.weight",))
            yield TensorMap(f"{ours}.source_attention.key_value.weight", named, row_counts=(width,) * 2)
            yield TensorMap(f"{ours}.source_attention.output.weight", (f"{source}.o.weight",))
            yield TensorMap(f"{ours}.source_norm.weight", (f"{theirs}.1.layer_norm.weight",))
            dense = f"{last}.DenseReluDense"
            gated = (f"{dense}.wi_0.weight", f"{dense}.wi_1.weight")
            yield TensorMap(f"{ours}.feed_forward.gate_widen.weight", gated, row_counts=(spec.feed_forward_width,) * 2)
            yield TensorMap(f"{ours}.feed_forward.widen.weight", (f"{dense}.wi.weight",))
            yield TensorMap(f"{ours}.feed_forward.narrow.weight", (f"{dense}.wo.weight",))
            yield TensorMap(f"{ours}.feed_forward_norm.weight", (f"{last}.layer_norm.weight",))
    yield TensorMap("output.weight", ("lm_head.weight",))


@dataclass(frozen=True)
class Architecture:
    """One of their architectures: how its configuration is read, and what its tensors are called."""

    title: str
    classes: tuple[str, ...]
    """The classes of transformers whose checkpoints are read; the first is what is written."""
    family: type[ModelSpec]
    read_settings: Callable[[Config], dict[str, Any]]
    """The settings of our spec that a configuration says."""
    tensor_maps: Callable[[Any], Iterator[TensorMap]]
    """All tensors of a model of this architecture."""
    prefix: str
    """What the names of tensors begin with, those of the output layer excepted."""
    output: str = "lm_head.weight"
    """The output matrix, which a checkpoint may hold though it is that of the embedding."""
    ignored_prefixes: tuple[str, ...] = ()
    """Beginnings of the names of tensors that are not needed."""


def _decoder(
    title: str, kind: str, classes: tuple[str, ...], words: Callable[[Config], dict[str, Any]], names: DecoderNames
) -> Architecture:
    pieces = partial(decoder_tensor_maps, names=names, kind=kind)
    return Architecture(title, classes, Decoder, words, pieces, names.prefix, f"{names.output}.weight")


ARCHITECTURES: dict[str, Architecture] = {
    "gpt2": _decoder("GPT-2", "gpt2", ("GPT2LMHeadModel", "GPT2Model"), _gpt2, GPT2),
    "llama": _decoder("Llama", "llama", ("LlamaForCausalLM", "LlamaModel"), _llama, LLAMA),
    "mistral": _decoder("Mistral", "mistral", ("MistralForCausalLM", "MistralModel"), _mistral, LLAMA),
    "qwen2": _decoder("Qwen2", "qwen2", ("Qwen2ForCausalLM", "Qwen2Model"), _qwen2, LLAMA),
    "qwen3": _decoder("Qwen3", "qwen3", ("Qwen3ForCausalLM", "Qwen3Model"), _qwen3, LLAMA),
    "gpt_neox": _decoder("GPT-NeoX", "gpt_neox", ("GPTNeoXForCausalLM", "GPTNeoXModel"), _neox, NEOX),
    "gemma": _decoder("Gemma", "gemma", ("GemmaForCausalLM", "GemmaModel"), _gemma, LLAMA),
    "bert": Architecture(
        "BERT",
        ("BertForMaskedLM", "BertForPreTraining"),
        Encoder,
        _bert,
        bert_tensor_maps,
        "bert.",
        "cls.predictions.decoder.weight",
        ("bert.pooler.", "cls.seq_relationship."),
    ),
    "t5": Architecture("T5", ("T5ForConditionalGeneration",), EncoderDecoder, _t5, t5_tensor_maps, ""),
}
"""By `model_type` of their config.json."""


def architecture_of(config: Config) -> Architecture:
    """The architecture of a configuration; a RunError says what is supported if it is not."""
    supported = f"Supported: {', '.join(known.title for known in ARCHITECTURES.values())}"
    if "auto_map" in config:
        raise RunError(
            "config.json names Python code of its own to run (auto_map), which is never done here. "
            f"{supported}, as transformers' own classes."
        )
    if config.get("quantization_config"):
        raise RunError("config.json: quantized weights (quantization_config) are not supported; take the plain ones.")
    kind = config.get("model_type")
    found = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if found is None:
        said = "says no model_type" if kind is None else f"is of a {kind!r} model, which is not supported"
        raise RunError(f"config.json {said}. {supported} (model_type {', '.join(ARCHITECTURES)}).")
    classes = config.get("architectures") or found.classes
    classes = list(map(str, classes)) if isinstance(classes, list | tuple) else [str(classes)]
    known = [*found.classes, *([classifier_class(found)] if found.family is Decoder else [])]
    if not set(classes) & set(known):
        raise RunError(
            f"config.json is of a {', '.join(classes)}, whose output is not that of a language model. "
            f"Supported of {found.title}: {', '.join(known)}."
        )
    return found


def tensor_maps_of(architecture: Architecture, spec: ModelSpec) -> list[TensorMap]:
    """All tensors of a model with theirs; those of a classifier are its decoder's, and its head."""
    if not isinstance(spec, Classifier):
        return [*architecture.tensor_maps(spec)]
    body = (piece for piece in architecture.tensor_maps(spec.body) if not piece.name.startswith("output."))
    return [*(replace(piece, name=f"body.{piece.name}") for piece in body), TensorMap("head.weight", ("score.weight",))]


def classifier_class(architecture: Architecture) -> str:
    """The class of transformers for texts in classes that is made of a decoder."""
    return f"{architecture.classes[1].removesuffix('Model')}ForSequenceClassification"


def spec_from_config(config: Config) -> ModelSpec:
    """The spec of the model that a config.json describes.

    >>> sizes = {"vocab_size": 100, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    >>> more = {"intermediate_size": 20, "max_position_embeddings": 64}
    >>> spec_from_config({"model_type": "llama", **sizes, **more}).sizes()
    {'V': 100, 'd': 12, 'L': 2, 'h': 3, 'd_h': 12, 'd_ff': 20, 'T': 64}
    """
    architecture = architecture_of(config)
    try:
        words = {name: value for name, value in architecture.read_settings(config).items() if value is not None}
        spec = architecture.family.read(words, "config")
        if isinstance(spec, Decoder) and classifier_class(architecture) in (config.get("architectures") or ()):
            number = len(config.get("id2label") or ()) or config.get("num_labels") or 2
            return Classifier(body=spec, classes=number, head_bias=False)
        return spec
    except RunError:
        raise
    except (SpecError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise RunError(f"config.json describes no {architecture.title} that can be built: {error}") from None


# From their tensors to ours.


class StoredTensors(Mapping[str, Tensor]):
    """Tensors of a model in files, by Hugging Face's names; each is read when it is asked for."""

    @abstractmethod
    def shape(self, name: str) -> Shape:
        """The shape of a tensor, which is not read."""

    def blocks(self, name: str) -> Iterator[Tensor]:
        """A tensor as blocks of its rows: what has to be converted need not be there twice as a whole."""
        yield self[name]


def weights_from_hf(
    config: Config, tensors: StoredTensors, shapes: Mapping[str, Shape] | None = None
) -> Iterator[tuple[str, Iterator[Tensor]]]:
    """Our weights by name, each as blocks of its rows that are read as they are taken; a tied one is there once.

    Every tensor is read once, one of ours at a time. A tensor that is missing, that is not known or that has another
    shape than the configuration says is a RunError. `shapes` are those of our model, where it is there already.
    """
    architecture, spec = architecture_of(config), spec_from_config(config)
    shapes = shapes or weight_shapes(spec)
    pieces = {piece.name: piece for piece in tensor_maps_of(architecture, spec) if piece.name in shapes}
    names = _spelled(tensors, [name for piece in pieces.values() for name in piece.hf_names], architecture)
    output = names.get(architecture.output) if getattr(spec, "tied", False) else None
    if output and not torch.equal(tensors[output], tensors[names[pieces["embedding.weight"].hf_names[0]]]):
        raise RunError(
            f"config.json says that the output layer shares the embedding (tie_word_embeddings), and {output} is "
            "another matrix. Set tie_word_embeddings to false in config.json to use it."
        )
    for ours, shape in shapes.items():
        piece = pieces[ours]
        theirs = [names[name] for name in piece.hf_names]
        for name, expected in zip(theirs, piece.hf_shapes(shape), strict=True):
            if (found := tensors.shape(name)) != expected:
                raise RunError(
                    f"the tensor {name} has the shape {_sized(found)}, expected {_sized(expected)} by config.json. The "
                    "weights belong to another configuration."
                )
        if piece.layout == "stacked":
            yield ours, (block for name in theirs for block in tensors.blocks(name))
        else:
            yield ours, iter([piece.from_hf([tensors[name] for name in theirs])])


def weight_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """The shapes of a model's weights by name, a tied one once; read off a model that is never filled."""
    return {
        name: tuple(tensor.shape)
        for name, tensor in named_weights(build_uninitialized(spec), include_frozen=True).items()
    }


def _sized(shape: Collection[int]) -> str:
    return " × ".join(map(str, shape)) or "a single number"


def _spelled(tensors: StoredTensors, wanted: Collection[str], architecture: Architecture) -> dict[str, str]:
    """The name in the file of each tensor that is wanted; what is missing or too many is a RunError."""
    wanted = dict.fromkeys(wanted)
    prefix, output = architecture.prefix, architecture.output
    spelled: dict[str, str] = {}
    extra: list[str] = []
    for name in tensors:
        usual = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        usual = output if usual in ("lm_head.weight", "embed_out.weight") else usual
        if usual not in wanted and prefix + usual in wanted:  # of the model without its output layer
            usual = prefix + usual
        if usual in wanted or usual == output:
            spelled[usual] = name
        elif not IGNORED_TENSORS.search(name) and not usual.startswith(architecture.ignored_prefixes or ("\0",)):
            extra.append(name)
    if "shared.weight" in wanted and output not in spelled and "shared.weight" in spelled:
        spelled[output] = spelled["shared.weight"]  # T5's: version 5 of transformers ties what is not in the file
    missing = [name for name in wanted if name not in spelled]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise RunError(
            f"the tensor {missing[0]} is missing{more}, which a {architecture.title} of this config.json has. The "
            "folder is incomplete, or its weights belong to another configuration."
        )
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise RunError(
            f"the tensor {extra[0]}{more} is not part of a {architecture.title} of this config.json: its shape is "
            f"{_sized(tensors.shape(extra[0]))}, expected no such tensor."
        )
    return spelled


# From a spec to a configuration, and from our tensors to theirs.


@dataclass(frozen=True)
class Need:
    """What a native class asks of a spec: as a person would set it, and whether a spec has it."""

    setting: str
    met: bool


def _decoder_needs(spec: Decoder) -> Iterator[Need]:
    """What all native decoders ask."""
    yield Need("key_query=separate", spec.key_query == "separate")
    yield Need("value_output=separate", spec.value_output == "separate")
    yield Need(f"value_width={spec.query_width}", spec.value_width in (None, spec.query_width))
    yield Need("no logit_cap", spec.logit_cap is None)


def _whole_heads(spec: Decoder) -> Iterator[Need]:
    yield Need(f"attention_width={spec.width}", spec.query_width == spec.width)
    yield Need(f"key_value_heads={spec.heads}", spec.key_value_heads in (None, spec.heads))
    yield Need("gated=false", not spec.gated)
    yield Need("norm=layer", spec.norm == "layer")
    yield Need("query_key_norm=false", not spec.query_key_norm)
    yield Need("no window", spec.window is None)
    yield Need("scaled_embedding=false", not _scaled(spec))


def _gpt2_needs(spec: Decoder) -> Iterator[Need]:
    yield Need("positions=learned", spec.positions.kind in ("learned", "none"))
    yield Need("residual=sequential", spec.residual == "sequential")
    yield from _whole_heads(spec)


def _neox_needs(spec: Decoder) -> Iterator[Need]:
    yield Need("positions=rotary", spec.positions.kind == "rotary")
    yield from _whole_heads(spec)


def _llama_like(spec: Decoder) -> Iterator[Need]:
    yield Need("positions=rotary", spec.positions.kind == "rotary")
    yield Need("positions.share=1", getattr(spec.positions, "share", 1) == 1)
    yield Need("residual=sequential", spec.residual == "sequential")
    yield Need("gated=true", spec.gated)
    yield Need("norm=rms", spec.norm == "rms")


def _llama_needs(spec: Decoder) -> Iterator[Need]:
    yield from _llama_like(spec)
    yield Need("query_key_norm=false", not spec.query_key_norm)
    yield Need("no window", spec.window is None)
    yield Need("scaled_embedding=false", not _scaled(spec))


def _mistral_needs(spec: Decoder) -> Iterator[Need]:
    yield from _llama_like(spec)
    yield Need("a window", spec.window is not None)
    yield Need("bias=false", not any(_biases(spec)))
    yield Need("query_key_norm=false", not spec.query_key_norm)
    yield Need("scaled_embedding=false", not _scaled(spec))


def _qwen2_needs(spec: Decoder) -> Iterator[Need]:
    yield from _llama_like(spec)
    yield Need("query_key_value_bias=true", _biases(spec)[0])
    yield Need("attention_output_bias=false", not _biases(spec)[1])
    yield Need("feed_forward_bias=false", not _biases(spec)[2])
    yield Need("query_key_norm=false", not spec.query_key_norm)
    yield Need("scaled_embedding=false", not _scaled(spec))


def _qwen3_needs(spec: Decoder) -> Iterator[Need]:
    yield from _llama_like(spec)
    yield Need("query_key_norm=true", spec.query_key_norm)
    yield Need("feed_forward_bias=false", not _biases(spec)[2])
    yield Need("scaled_embedding=false", not _scaled(spec))


def _gemma_needs(spec: Decoder) -> Iterator[Need]:
    yield from _llama_like(spec)
    yield Need("scaled_embedding=true", _scaled(spec))
    yield Need("feed_forward_bias=false", not _biases(spec)[2])
    yield Need("query_key_norm=false", not spec.query_key_norm)
    yield Need("no window", spec.window is None)
    yield Need("activation=gelu", spec.activation != "gelu-exact")  # their "gelu" is its tanh form


def _scaled(spec: Decoder) -> bool:
    return spec.positions.scaled if spec.scaled_embedding is None else spec.scaled_embedding


def _biases(spec: Decoder) -> tuple[bool, bool, bool]:
    """Whether queries, keys and values have biases, the output map of attention, and the feed-forward layers."""
    own = (spec.query_key_value_bias, spec.attention_output_bias, spec.feed_forward_bias)
    one, two, three = (spec.bias if flag is None else flag for flag in own)
    return one, two, three


def _their_rotary(spec: Decoder) -> dict[str, Any]:
    """Rotary positions as transformers 5 writes them; the base also where other readers look for it."""
    places = spec.positions
    assert isinstance(places, Rotary)
    match places.scaling:
        case LinearScaling() as scaling:
            more: dict[str, Any] = {"rope_type": "linear", "factor": scaling.factor}
        case Llama3Scaling() as scaling:
            more = {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.slow,
                "high_freq_factor": scaling.fast,
                "original_max_position_embeddings": scaling.original_context,
            }
        case YarnScaling() as scaling:
            more = {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "beta_fast": scaling.fast,
                "beta_slow": scaling.slow,
                "original_max_position_embeddings": scaling.original_context,
                "truncate": scaling.whole_pairs,
            }
            more |= {"attention_factor": scaling.attention_factor} if scaling.attention_factor else {}
        case _:
            more = {"rope_type": "default"}
    share = {"partial_rotary_factor": places.share} if places.share != 1 else {}
    return {"rope_theta": places.base, "rope_parameters": {"rope_theta": places.base, **share, **more}}


def _their_llama(spec: Decoder, kind: str) -> dict[str, Any]:
    """A configuration of Llama's layout, and what Mistral, Qwen and Gemma add to it."""
    inward, outward, feed_forward = _biases(spec)
    config = {
        **_their_sizes(spec),
        "num_key_value_heads": spec.key_value_heads or spec.heads,
        "head_dim": spec.query_width // spec.heads,
        "rms_norm_eps": spec.norm_epsilon,
        **_their_rotary(spec),
    }
    window: dict[str, Any] = {"use_sliding_window": spec.window is not None, "sliding_window": spec.window}
    if spec.window is not None:
        window |= {"max_window_layers": 0, "layer_types": ["sliding_attention"] * spec.depth}
    match kind:
        case "llama":
            return config | {"attention_bias": inward or outward, "mlp_bias": feed_forward}
        case "mistral":
            return config | {"sliding_window": spec.window}
        case "qwen2":
            return config | window
        case "qwen3":
            return config | window | {"attention_bias": inward or outward}
    return config | {"attention_bias": inward or outward, "hidden_activation": config["hidden_act"]}


def _their_gpt2(spec: Decoder, kind: str) -> dict[str, Any]:
    return {
        "vocab_size": spec.vocabulary,
        "n_positions": spec.context,
        "n_embd": spec.width,
        "n_layer": spec.depth,
        "n_head": spec.heads,
        "n_inner": spec.feed_forward,
        "activation_function": HF_ACTIVATIONS[spec.activation],
        "layer_norm_epsilon": spec.norm_epsilon,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    }


def _their_neox(spec: Decoder, kind: str) -> dict[str, Any]:
    inward, outward, _ = _biases(spec)
    places = spec.positions
    assert isinstance(places, Rotary)
    return {
        **_their_sizes(spec),
        "layer_norm_eps": spec.norm_epsilon,
        "use_parallel_residual": spec.residual == "parallel",
        "attention_bias": inward or outward,
        "rotary_pct": places.share,
        "rotary_emb_base": places.base,
        **_their_rotary(spec),
    }


def _their_sizes(spec: Decoder | Encoder) -> dict[str, Any]:
    return {
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.heads,
        "intermediate_size": spec.feed_forward_width,
        "max_position_embeddings": spec.context,
        "hidden_act": HF_ACTIVATIONS[spec.activation],
    }


def _bert_needs(spec: Encoder) -> Iterator[Need]:
    yield Need("positions=learned", spec.positions.kind in ("learned", "none"))
    yield Need(f"attention_width={spec.width}", spec.query_width == spec.width)
    yield Need("norm=layer", spec.norm == "layer")
    yield Need("norm_place=post", spec.norm_place == "post")
    yield Need("gated=false", not spec.gated)
    yield Need("scaled_scores=true", spec.scaled_scores)
    yield Need("embedding_norm=true", spec.embedding_norm)
    yield Need("output_transform=true", spec.output_transform)
    yield Need("objective=masked or both", spec.objective != "next-sentence")


def _their_bert(spec: Encoder, kind: str) -> dict[str, Any]:
    return {
        **_their_sizes(spec),
        "layer_norm_eps": spec.norm_epsilon,
        "type_vocab_size": max(1, spec.segments),
        **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
    }


def _t5_needs(spec: EncoderDecoder) -> Iterator[Need]:
    yield Need("positions=relative", spec.positions.kind == "relative")
    yield Need("norm=rms", spec.norm == "rms")
    yield Need("norm_place=pre", spec.norm_place == "pre")
    yield Need("bias=false", not spec.bias)
    yield Need("scaled_scores=false", not spec.scaled_scores)
    yield Need(
        "activation=gelu", spec.activation != "gelu-exact" or not spec.gated
    )  # their gated gelu is its tanh form
    yield Need(f"scaled_output={str(spec.tied).lower()}", spec.scaled_output == spec.tied)


def _their_t5(spec: EncoderDecoder, kind: str) -> dict[str, Any]:
    places = spec.positions
    assert isinstance(places, Relative)
    start, end, _ = spec.special_ids
    activation = spec.activation if spec.gated else HF_ACTIVATIONS[spec.activation]
    return {
        "vocab_size": spec.vocabulary,
        "d_model": spec.width,
        "d_kv": spec.query_width // spec.heads,
        "d_ff": spec.feed_forward_width,
        "num_layers": spec.encoder_depth,
        "num_decoder_layers": spec.decoder_depth,
        "num_heads": spec.heads,
        "n_positions": spec.context,
        "relative_attention_num_buckets": places.buckets,
        "relative_attention_max_distance": places.farthest,
        "feed_forward_proj": f"gated-{activation}" if spec.gated else activation,
        "layer_norm_epsilon": spec.norm_epsilon,
        "is_encoder_decoder": True,
        "decoder_start_token_id": start,
        "eos_token_id": end,
        "pad_token_id": start,
        "dropout_rate": 0.0,
    }


Written = tuple[Callable[[Any], Iterator[Need]], Callable[[Any, str], dict[str, Any]]]
WRITTEN: dict[str, Written] = {
    "gpt2": (_gpt2_needs, _their_gpt2),
    "bert": (_bert_needs, _their_bert),
    "t5": (_t5_needs, _their_t5),
    "qwen2": (_qwen2_needs, _their_llama),
    "llama": (_llama_needs, _their_llama),
    "mistral": (_mistral_needs, _their_llama),
    "qwen3": (_qwen3_needs, _their_llama),
    "gpt_neox": (_neox_needs, _their_neox),
    "gemma": (_gemma_needs, _their_llama),
}
"""What each architecture asks of a spec, and how its configuration is written; the first that fits is taken."""


def _classifier_needs(spec: Classifier) -> Iterator[Need]:
    """What transformers' classifiers of decoders ask: one matrix on the vector of the last token."""
    yield Need("pool=last", spec.pooling == "last")
    yield Need("head_bias=false", not spec.head_bias)


def native_architecture(spec: ModelSpec) -> str:
    """The `model_type` in which a model of this spec can be written exactly; a RunError says what stands in the way."""
    missing: dict[str, list[str]] = {}
    body = spec.body if isinstance(spec, Classifier) else spec
    if isinstance(spec, Classifier) and isinstance(body, Encoder):
        raise RunError(
            "a classifier made of an encoder cannot be written for transformers exactly: its BERT has a layer with "
            "tanh before the classes. Adapt a decoder, or write what LoRA has learned: --to peft"
        )
    for kind, (needs, _) in WRITTEN.items():
        if not isinstance(body, ARCHITECTURES[kind].family):
            continue
        common = [*_decoder_needs(body)] if isinstance(body, Decoder) else []
        common += _classifier_needs(spec) if isinstance(spec, Classifier) else []
        missing[kind] = [need.setting for need in (*needs(body), *common) if not need.met]
        if not missing[kind]:
            return kind
    if not missing:
        families = {architecture.family.model_fields["family"].default for architecture in ARCHITECTURES.values()}
        raise RunError(
            f"a model of the family {body.family} cannot be written for transformers: it has no native class for it. "
            f"Families that have one: {', '.join(sorted(families))}."
            + (" What LoRA has learned: --to peft; a run without its base: --to merged" * isinstance(spec, Classifier))
        )
    nearest = min(missing, key=lambda kind: len(missing[kind]))
    raise RunError(
        f"this {spec.family} cannot be written for transformers exactly: no native class has all of its settings. The "
        f"nearest is {ARCHITECTURES[nearest].title}, which needs {', '.join(missing[nearest])}. Train one with these "
        "settings."
    )


def config_from_spec(spec: ModelSpec) -> dict[str, Any]:
    """The config.json of a native class of transformers that computes exactly what a model of this spec does.

    >>> config = config_from_spec(Decoder(width=12, depth=2, heads=3))
    >>> config["model_type"], config["architectures"], config["n_embd"]
    ('gpt2', ['GPT2LMHeadModel'], 12)
    """
    kind = native_architecture(spec)
    classes, body, more = ARCHITECTURES[kind].classes, spec, dict[str, Any]()
    name = classes[1] if getattr(spec, "objective", None) == "both" else classes[0]
    if isinstance(spec, Classifier):
        body, name = spec.body, classifier_class(ARCHITECTURES[kind])
        more = {"num_labels": spec.classes, "problem_type": "single_label_classification"}
    return {
        "architectures": [name],
        "model_type": kind,
        **WRITTEN[kind][1](body, kind),
        "tie_word_embeddings": getattr(body, "tied", True),
        **more,
    }


def weights_to_hf(spec: ModelSpec, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Their tensors by name, from ours, one of ours at a time; biases and positions that we do not have are zeros."""
    kind = native_architecture(spec)
    architecture = ARCHITECTURES[kind]
    body = spec.body if isinstance(spec, Classifier) else spec
    shapes = weight_shapes(spec_from_config(config_from_spec(body)))  # of the model that transformers will build
    if isinstance(spec, Classifier):
        shapes = {f"body.{name}": shape for name, shape in shapes.items()}
        shapes |= {"head.weight": tuple(weights["head.weight"].shape)}
    for piece in tensor_maps_of(architecture, spec):
        if piece.name not in shapes:
            continue
        shape = shapes[piece.name]
        tensor = weights.get(piece.name)
        unused = piece.name.removeprefix("body.") in ("positions.weight", "segments.weight")
        if tensor is None and (piece.name.endswith(".bias") or unused):
            tensor = torch.zeros(shape, dtype=next(iter(weights.values())).dtype)
        if tensor is None or tuple(tensor.shape) != shape:
            got = "missing" if tensor is None else _sized(tensor.shape)
            raise RunError(f"the weights do not belong to this spec: {piece.name} is {got}, expected {_sized(shape)}.")
        yield from zip(piece.hf_names, piece.to_hf(tensor), strict=True)
        if piece.hf_names == ("cls.predictions.decoder.bias",):
            yield "cls.predictions.bias", tensor.clone()  # which BERT has too, and does not read
