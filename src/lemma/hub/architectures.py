"""Hugging Face's architectures as our specs, and their tensors as ours; both ways, without reading a file.

    spec = spec_from_config(config)                            # the dictionary of config.json
    for name, tensor in weights_from(config, tensors): ...     # their tensors, one at a time, by our names
    config = config_from_spec(spec)                            # a native class of transformers
    for name, tensor in weights_to(spec, weights): ...         # our tensors by their names

A model becomes one of ours, not a wrapper: what differs between the architectures is a setting of our specs. Where
our tensor is made of several of theirs (queries, keys and values in one matrix), or is written otherwise (transposed,
interleaved, without the one that Gemma's norms add), a `Piece` says how.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from lemma.errors import RunError, SpecError
from lemma.models.base import weights_of
from lemma.models.build import build_empty
from lemma.spec.models import Decoder, ModelSpec
from lemma.spec.positions import LinearScaling, Llama3Scaling, Rotary, YarnScaling

Config = Mapping[str, Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """One of our tensors and those of theirs that it is made of.

    Stacked: their rows one after the other. Transposed: one of theirs, as GPT-2 writes its matrices. Interleaved:
    queries, keys and values head by head, as GPT-NeoX writes them. Plus one: of Gemma's norms, which multiply by 1 + w.
    """

    ours: str
    theirs: tuple[str, ...]
    form: Literal["stacked", "transposed", "interleaved", "plus one"] = "stacked"
    rows: tuple[int, ...] = ()
    """The rows of each of theirs, where there are several."""
    heads: int = 1
    halves: int = 0
    """On the way out, the rotated width of a head whose pairs are to become halves; 0 if none are."""
    turned_rows: int = 0
    """How many of our rows are queries and keys."""
    head_width: int = 1

    def shapes(self, shape: Shape) -> list[Shape]:
        """The shapes that theirs must have for ours to have this one."""
        if self.form == "transposed":
            return [shape[::-1]]
        return [(rows, *shape[1:]) for rows in self.rows] or [shape]

    def join(self, tensors: list[Tensor]) -> Tensor:
        """Ours, from theirs."""
        match self.form:
            case "transposed":
                return tensors[0].T.contiguous()
            case "interleaved":
                return tensors[0].unflatten(0, (self.heads, 3, -1)).transpose(0, 1).flatten(0, 2)
            case "plus one":
                return tensors[0].float() + 1  # half precision would round the sum
        return torch.cat(tensors) if len(tensors) > 1 else tensors[0]

    def split(self, tensor: Tensor) -> list[Tensor]:
        """Theirs, from ours."""
        if self.halves:
            tensor = _halved(tensor, self.turned_rows, self.head_width, self.halves)
        match self.form:
            case "transposed":
                return [tensor.T.contiguous()]
            case "interleaved":
                return [tensor.unflatten(0, (3, self.heads, -1)).transpose(0, 1).flatten(0, 2).contiguous()]
            case "plus one":
                return [tensor.float() - 1]
        return [part.contiguous() for part in tensor.split(self.rows)] if len(self.theirs) > 1 else [tensor]


def _halved(tensor: Tensor, rows: int, head_width: int, turned: int) -> Tensor:
    """Bring pairs of neighbouring rows of queries and keys half the rotated width apart, head by head."""
    order = torch.cat([torch.arange(0, turned, 2), torch.arange(1, turned, 2), torch.arange(turned, head_width)])
    heads = tensor[:rows].unflatten(0, (-1, head_width))[:, order.to(tensor.device)].flatten(0, 1)
    return torch.cat([heads, tensor[rows:]])


@dataclass(frozen=True)
class Names:
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


LLAMA = Names(
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
GPT2 = Names(
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
NEOX = Names(
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
IGNORED = re.compile(
    r"(^|\.)(rotary_emb\.inv_freq|(attn|attention)\.(masked_)?bias|(h|layers)\.\d+\.attn\.bias|position_ids)$"
)
"""Constants that older versions of transformers stored next to the weights."""


# From a configuration to a spec.


def _required(config: Config, name: str) -> int:
    number = config.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        said = "does not say" if number is None else f"says {name} = {number!r}, where a whole number is expected as"
        raise RunError(f"config.json of a {config.get('model_type')} model {said} {name}. The folder is damaged.")
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
THEIR_ACTIVATIONS = {"gelu": "gelu_pytorch_tanh", "gelu-exact": "gelu", "relu": "relu", "silu": "silu"}


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
        "base": float(options.get("rope_theta", config.get("rotary_emb_base", 10_000.0))),
        "share": float(options.get("partial_rotary_factor", config.get("rotary_pct", share))),
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
    default = ["sliding_attention" if window and layer >= first else "full_attention" for layer in range(depth)]
    kinds = set(config.get("layer_types") or default)
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


@dataclass(frozen=True)
class Architecture:
    """One of their architectures: how its configuration is read, and what its tensors are called."""

    title: str
    classes: tuple[str, ...]
    """The classes of transformers whose checkpoints are read; the first is what is written."""
    family: type[ModelSpec]
    words: Callable[[Config], dict[str, Any]]
    names: Names

    def pieces(self, spec: Any) -> Iterator[Piece]:
        """All tensors of a model of this architecture."""
        return decoder_pieces(spec, self.names, type_of(self))


ARCHITECTURES: dict[str, Architecture] = {
    "gpt2": Architecture("GPT-2", ("GPT2LMHeadModel", "GPT2Model"), Decoder, _gpt2, GPT2),
    "llama": Architecture("Llama", ("LlamaForCausalLM", "LlamaModel"), Decoder, _llama, LLAMA),
    "mistral": Architecture("Mistral", ("MistralForCausalLM", "MistralModel"), Decoder, _mistral, LLAMA),
    "qwen2": Architecture("Qwen2", ("Qwen2ForCausalLM", "Qwen2Model"), Decoder, _qwen2, LLAMA),
    "qwen3": Architecture("Qwen3", ("Qwen3ForCausalLM", "Qwen3Model"), Decoder, _qwen3, LLAMA),
    "gpt_neox": Architecture("GPT-NeoX", ("GPTNeoXForCausalLM", "GPTNeoXModel"), Decoder, _neox, NEOX),
    "gemma": Architecture("Gemma", ("GemmaForCausalLM", "GemmaModel"), Decoder, _gemma, LLAMA),
}
"""By `model_type` of their config.json."""


def type_of(architecture: Architecture) -> str:
    """The `model_type` of an architecture."""
    return next(name for name, known in ARCHITECTURES.items() if known is architecture)


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
    if not set(classes) & set(found.classes):
        raise RunError(
            f"config.json is of a {', '.join(map(str, classes))}, whose output is not that of a language model. "
            f"Supported of {found.title}: {', '.join(found.classes)}."
        )
    return found


def spec_from_config(config: Config) -> ModelSpec:
    """The spec of the model that a config.json describes.

    >>> sizes = {"vocab_size": 100, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    >>> more = {"intermediate_size": 20, "max_position_embeddings": 64}
    >>> spec_from_config({"model_type": "llama", **sizes, **more}).sizes()
    {'V': 100, 'd': 12, 'L': 2, 'h': 3, 'd_h': 12, 'd_ff': 20, 'T': 64}
    """
    architecture = architecture_of(config)
    words = architecture.words(config)
    try:
        return architecture.family.read({name: value for name, value in words.items() if value is not None}, "config")
    except SpecError as error:
        raise RunError(f"config.json describes no {architecture.title} that can be built: {error}") from None


# From their tensors to ours.


def decoder_pieces(spec: Decoder, names: Names, kind: str) -> Iterator[Piece]:
    """All tensors of a decoder, in our order, with those of theirs; of biases too that only one side has."""
    norm_form = "plus one" if kind == "gemma" else "stacked"
    head, heads, groups = spec.attention // spec.heads, spec.heads, spec.key_value_heads or spec.heads
    rows = (heads * head, groups * head, groups * head) if len(names.query_key_value) > 1 else ()
    inner = (spec.inner, spec.inner) if len(names.widen) > 1 else ()
    places = spec.positions
    pairs = places.turned(head) if isinstance(places, Rotary) and places.layout == "pairs" else 0
    turned = {"halves": pairs, "turned_rows": (heads + groups) * head, "head_width": head}

    def norm(ours: str, theirs: str) -> Iterator[Piece]:
        yield Piece(f"{ours}.weight", (f"{theirs}.weight",), norm_form)
        if spec.norm == "layer":
            yield Piece(f"{ours}.bias", (f"{theirs}.bias",))

    def linear(ours: str, theirs: tuple[str, ...], rows: tuple[int, ...] = (), **how: Any) -> Iterator[Piece]:
        form = "transposed" if kind == "gpt2" else "stacked"
        yield Piece(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), how.pop("form", form), rows, **how)
        yield Piece(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs), "stacked", rows)

    yield Piece("embedding.weight", (f"{names.prefix}{names.embedding}.weight",))
    if names.positions:
        yield Piece("positions.weight", (f"{names.prefix}{names.positions}.weight",))
    for layer in range(spec.depth):
        ours, theirs = f"layers.{layer}", f"{names.prefix}{names.layer}.{layer}"
        yield from norm(f"{ours}.attention_norm", f"{theirs}.{names.attention_norm}")
        joined = tuple(f"{theirs}.{name}" for name in names.query_key_value)
        form = {"gpt2": "transposed", "gpt_neox": "interleaved"}.get(kind, "stacked")
        for piece in linear(f"{ours}.attention.query_key_value", joined, rows, form=form):
            form = "interleaved" if kind == "gpt_neox" else piece.form
            yield Piece(piece.ours, piece.theirs, form, piece.rows, heads, **turned)
        if spec.query_key_norm:
            for name, their in (("query_norm", names.query_norm), ("key_norm", names.key_norm)):
                one = {**turned, "turned_rows": head}
                yield Piece(f"{ours}.attention.{name}.weight", (f"{theirs}.{their}.weight",), norm_form, **one)
        yield from linear(f"{ours}.attention.output", (f"{theirs}.{names.attention_output}",))
        yield from norm(f"{ours}.feed_forward_norm", f"{theirs}.{names.feed_forward_norm}")
        widen = "gate_widen" if spec.gated else "widen"
        yield from linear(f"{ours}.feed_forward.{widen}", tuple(f"{theirs}.{name}" for name in names.widen), inner)
        yield from linear(f"{ours}.feed_forward.narrow", (f"{theirs}.{names.narrow}",))
    yield from norm("norm", f"{names.prefix}{names.norm}")
    if not spec.tied:
        yield Piece("output.weight", (f"{names.output}.weight",))


def weights_from(config: Config, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Our weights by name, each made of their tensors when it is asked for; a tied one is there once.

    `tensors` may be lazy: every tensor is looked up once, one of ours at a time. A tensor that is missing, that is not
    known or that has another shape than the configuration says is a RunError.
    """
    architecture, spec = architecture_of(config), spec_from_config(config)
    shapes = shapes_of(spec)
    pieces = {piece.ours: piece for piece in architecture.pieces(spec) if piece.ours in shapes}
    names = _spelled(tensors, [name for piece in pieces.values() for name in piece.theirs], architecture)
    for ours, shape in shapes.items():
        piece = pieces[ours]
        parts: list[Tensor] = []
        for name, expected in zip(piece.theirs, piece.shapes(shape), strict=True):
            part = tensors[names[name]]
            if tuple(part.shape) != expected:
                raise RunError(
                    f"the tensor {names[name]} has the shape {_sized(part.shape)}, expected {_sized(expected)} by "
                    "config.json. The weights belong to another configuration."
                )
            parts.append(part)
        yield ours, piece.join(parts)


def shapes_of(spec: ModelSpec) -> dict[str, Shape]:
    """The shapes of a model's weights by name, a tied one once; read off a model without memory."""
    return {name: tuple(tensor.shape) for name, tensor in weights_of(build_empty(spec), frozen=True).items()}


def _sized(shape: Collection[int]) -> str:
    return " × ".join(map(str, shape)) or "a single number"


def _spelled(tensors: Mapping[str, Tensor], wanted: list[str], architecture: Architecture) -> dict[str, str]:
    """The name in the file of each tensor that is wanted; what is missing or too many is a RunError."""
    prefix, output = architecture.names.prefix, f"{architecture.names.output}.weight"
    spelled: dict[str, str] = {}
    for name in tensors:
        if IGNORED.search(name):
            continue
        usual = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        if usual in ("lm_head.weight", "embed_out.weight"):
            usual = output
        elif usual not in wanted and prefix + usual in wanted:  # of the model without its output layer
            usual = prefix + usual
        spelled[usual] = name
    missing = [name for name in wanted if name not in spelled]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise RunError(
            f"the tensor {missing[0]} is missing{more}, which a {architecture.title} of this config.json has. The "
            "folder is incomplete, or its weights belong to another configuration."
        )
    extra = [name for usual, name in spelled.items() if usual not in wanted and usual != output]
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise RunError(
            f"the tensor {extra[0]}{more} is not part of a {architecture.title} of this config.json: its shape is "
            f"{_sized(tensors[extra[0]].shape)}, expected no such tensor."
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
    yield Need(f"value_width={spec.attention}", spec.value_width in (None, spec.attention))
    yield Need("no logit_cap", spec.logit_cap is None)


def _whole_heads(spec: Decoder) -> Iterator[Need]:
    yield Need(f"attention_width={spec.width}", spec.attention == spec.width)
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
        "head_dim": spec.attention // spec.heads,
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
        "activation_function": THEIR_ACTIVATIONS[spec.activation],
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


def _their_sizes(spec: Decoder) -> dict[str, Any]:
    return {
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.heads,
        "intermediate_size": spec.inner,
        "max_position_embeddings": spec.context,
        "hidden_act": THEIR_ACTIVATIONS[spec.activation],
    }


Written = tuple[Callable[[Any], Iterator[Need]], Callable[[Any, str], dict[str, Any]]]
WRITTEN: dict[str, Written] = {
    "gpt2": (_gpt2_needs, _their_gpt2),
    "qwen2": (_qwen2_needs, _their_llama),
    "llama": (_llama_needs, _their_llama),
    "mistral": (_mistral_needs, _their_llama),
    "qwen3": (_qwen3_needs, _their_llama),
    "gpt_neox": (_neox_needs, _their_neox),
    "gemma": (_gemma_needs, _their_llama),
}
"""What each architecture asks of a spec, and how its configuration is written; the first that fits is taken."""


def native_architecture(spec: ModelSpec) -> str:
    """The `model_type` in which a model of this spec can be written exactly; a RunError says what stands in the way."""
    missing: dict[str, list[str]] = {}
    for kind, (needs, _) in WRITTEN.items():
        if not isinstance(spec, ARCHITECTURES[kind].family):
            continue
        common = _decoder_needs(spec) if isinstance(spec, Decoder) else ()
        missing[kind] = [need.setting for need in (*needs(spec), *common) if not need.met]
        if not missing[kind]:
            return kind
    if not missing:
        families = {architecture.family.model_fields["family"].default for architecture in ARCHITECTURES.values()}
        raise RunError(
            f"a model of the family {spec.family} cannot be written for transformers: it has no native class for it. "
            f"Families that have one: {', '.join(sorted(families))}."
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
    return {
        "architectures": [ARCHITECTURES[kind].classes[0]],
        "model_type": kind,
        **WRITTEN[kind][1](spec, kind),
        "tie_word_embeddings": getattr(spec, "tied", True),
    }


def weights_to(spec: ModelSpec, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Their tensors by name, from ours, one of ours at a time; biases and positions that we do not have are zeros."""
    kind = native_architecture(spec)
    architecture = ARCHITECTURES[kind]
    shapes = shapes_of(spec_from_config(config_from_spec(spec)))  # of the model that transformers will build
    for piece in architecture.pieces(spec):
        if piece.ours not in shapes:
            continue
        shape = shapes[piece.ours]
        tensor = weights.get(piece.ours)
        if tensor is None and (piece.ours.endswith(".bias") or piece.ours == "positions.weight"):
            tensor = torch.zeros(shape, dtype=weights["embedding.weight"].dtype)
        if tensor is None or tuple(tensor.shape) != shape:
            got = "missing" if tensor is None else _sized(tensor.shape)
            raise RunError(f"the weights do not belong to this spec: {piece.ours} is {got}, expected {_sized(shape)}.")
        yield from zip(piece.theirs, piece.split(tensor), strict=True)
