"""Hugging Face's architectures as Lemma specs, and their tensors as Lemma's; both ways, without reading a file.

    spec = spec_from_config(config)                            # the dictionary of config.json
    for name, blocks in weights_from_hf(config, tensors): ...  # their tensors, one at a time, by Lemma's names
    config = config_from_spec(spec)                            # of a native class of transformers
    for name, tensor in weights_to_hf(spec, weights): ...      # Lemma's tensors by their names

A model becomes one of Lemma's, not a wrapper: what differs between the architectures is a setting of the specs.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lemma.errors import RunError, SpecError
from lemma.hub.tensor_maps import BERT, GEMMA, GPT2, LLAMA, NEOX, T5, NameTable, Shape, StoredTensors, TensorMap
from lemma.models.base import named_weights
from lemma.models.build import build_uninitialized
from lemma.spec.models import Classifier, Decoder, Encoder, EncoderDecoder, ModelSpec
from lemma.spec.positions import NoScaling, Relative, Rotary

Config = Mapping[str, Any]
Settings = dict[str, Any]
IGNORED_TENSORS = re.compile(
    r"(^|\.)(rotary_emb\.inv_freq|(attn|attention)\.(masked_)?bias|position_ids|(en|de)coder\.embed_tokens\.weight"
    r"|cls\.predictions\.(decoder\.)?bias)$"
)
"""Constants that older versions of transformers stored next to the weights, and second names of some of them."""


@dataclass(frozen=True)
class Architecture:
    """An architecture of transformers: how its config.json is read and written, and what its tensors are called."""

    model_type: str
    title: str  # in messages
    names: NameTable
    entries: "Entries"  # keys of config.json that hold settings of a spec
    settings: Settings  # of all its models
    family: type[ModelSpec] = Decoder
    class_names: tuple[str, ...] = ()  # of transformers; made from the title if unset
    fixed: Mapping[str, tuple[Any, str]] = field(default_factory=dict)  # options of one value only, with the reason
    constants: Mapping[str, Any] = field(default_factory=dict)  # options that are written and not read
    exact: Collection[str] = ()  # biases that a spec must have, where others are written as zeros
    is_tied: bool = False  # where config.json does not say whether the output shares the embedding
    ignored_prefixes: tuple[str, ...] = ()  # of tensors that are not needed
    read_more: Callable[[Config], Settings] = lambda config: {}
    write_more: Callable[[Any], dict[str, Any]] = lambda spec: {}
    """For any spec of the family: what an architecture cannot express is found by reading it again."""

    def read_settings(self, config: Config) -> Settings:
        """Return the settings of Lemma's spec by field name that a config.json describes; None means the default."""
        for option, (expected, reason) in self.fixed.items():
            if (actual := config.get(option)) is not None and actual != expected:
                raise RunError(f"config.json: {option} = {actual!r} is not supported: {reason}.")
        settings = _read_entries(config, self.entries) | self.settings
        settings["tied"] = _read_flag(config, "tie_word_embeddings", self.is_tied)
        return settings | self.read_more(config)

    def write_config(self, spec: ModelSpec) -> dict[str, Any]:
        """Return the content of a config.json of this architecture that describes the spec's model."""
        has_next_sentence = getattr(spec, "objective", None) == "both"
        header = {"architectures": [self.classes[1 if has_next_sentence else 0]], "model_type": self.model_type}
        entries = _write_entries(spec, self.entries) | self.write_more(spec)
        return header | entries | {**self.constants, "tie_word_embeddings": getattr(spec, "tied", True)}

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of transformers' classes whose checkpoints can be read; the first is written into config.json."""
        name = self.title.replace("-", "")
        return self.class_names or (f"{name}ForCausalLM", f"{name}Model")

    @property
    def classifier_class(self) -> str:
        """Name of transformers' class of text classifiers with this decoder."""
        return f"{self.classes[1].removesuffix('Model')}ForSequenceClassification"


# Configurations to specs and back


def spec_from_config(config: Config) -> ModelSpec:
    """Return the spec of the model that a config.json describes.

    >>> sizes = {"vocab_size": 100, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    >>> more = {"intermediate_size": 20, "max_position_embeddings": 64}
    >>> spec_from_config({"model_type": "llama", **sizes, **more}).sizes()
    {'V': 100, 'd': 12, 'L': 2, 'h': 3, 'd_h': 12, 'd_ff': 20, 'T': 64}
    """
    architecture = architecture_of(config)
    try:
        settings = {name: value for name, value in architecture.read_settings(config).items() if value is not None}
        spec = architecture.family.read(settings, "config")
        if isinstance(spec, Decoder) and architecture.classifier_class in (config.get("architectures") or ()):
            classes = len(config.get("id2label") or ()) or config.get("num_labels") or 2
            return Classifier(body=spec, classes=classes, head_bias=False)
        return spec
    except RunError:
        raise
    except (SpecError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise RunError(f"config.json describes no {architecture.title} that can be built: {error}") from None


def config_from_spec(spec: ModelSpec) -> dict[str, Any]:
    """Return the config.json of a native class of transformers that computes exactly what a model of this spec does.

    >>> config = config_from_spec(Decoder(width=12, depth=2, heads=3))
    >>> config["model_type"], config["architectures"], config["n_embd"]
    ('gpt2', ['GPT2LMHeadModel'], 12)
    """
    architecture = native_architecture(spec)
    if not isinstance(spec, Classifier):
        return architecture.write_config(spec)
    return architecture.write_config(spec.body) | {
        "architectures": [architecture.classifier_class],
        "num_labels": spec.classes,
        "problem_type": "single_label_classification",
    }


def architecture_of(config: Config) -> Architecture:
    """Return the architecture that a config.json names; an unsupported one is a RunError that lists the others."""
    supported = f"Supported: {', '.join(architecture.title for architecture in ARCHITECTURES.values())}"
    if "auto_map" in config:
        raise RunError(
            "config.json names Python code of its own to run (auto_map), which is never done here. "
            f"{supported}, as transformers' own classes."
        )
    if config.get("quantization_config"):
        raise RunError("config.json: quantized weights (quantization_config) are not supported; take the plain ones.")
    kind = config.get("model_type")
    architecture = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if architecture is None:
        problem = "says no model_type" if kind is None else f"is of a {kind!r} model, which is not supported"
        raise RunError(f"config.json {problem}. {supported} (model_type {', '.join(ARCHITECTURES)}).")
    classes = config.get("architectures") or architecture.classes
    classes = list(map(str, classes)) if isinstance(classes, list | tuple) else [str(classes)]
    readable = [*architecture.classes, *([architecture.classifier_class] if architecture.family is Decoder else [])]
    if not set(classes) & set(readable):
        raise RunError(
            f"config.json is of a {', '.join(classes)}, whose output is not that of a language model. "
            f"Supported of {architecture.title}: {', '.join(readable)}."
        )
    return architecture


def native_architecture(spec: ModelSpec) -> Architecture:
    """Return the architecture of transformers that expresses models of this spec exactly.

    Without one, a RunError names the settings that differ.
    """
    body = spec.body if isinstance(spec, Classifier) else spec
    if isinstance(spec, Classifier) and isinstance(body, Encoder):
        raise RunError(
            "a classifier made of an encoder cannot be written for transformers exactly: its BERT has a layer with "
            "tanh before the classes. Adapt a decoder, or write what LoRA has learned: --to peft"
        )
    candidates = [ARCHITECTURES[kind] for kind in EXPORT_ORDER if isinstance(body, ARCHITECTURES[kind].family)]
    if not candidates:
        families = {architecture.family.model_fields["family"].default for architecture in ARCHITECTURES.values()}
        hint = " What LoRA has learned: --to peft; a run without its base: --to merged"
        raise RunError(
            f"a model of the family {body.family} cannot be written for transformers: it has no native class for it. "
            f"Families that have one: {', '.join(sorted(families))}.{hint if isinstance(spec, Classifier) else ''}"
        )
    needs: dict[str, list[str]] = {}
    for architecture in candidates:
        try:
            needed = _needed_settings(body, architecture)
        except RunError:  # it cannot have these sizes at all
            continue
        if isinstance(spec, Classifier):  # theirs is one matrix on the vector of the last token
            needed += ["pool=last"] if spec.pooling != "last" else []
            needed += ["head_bias=false"] if spec.head_bias else []
        if not needed:
            return architecture
        needs[architecture.title] = needed
    message = f"this {spec.family} cannot be written for transformers exactly: no native class has all of its settings."
    if needs:
        nearest = min(needs, key=lambda title: len(needs[title]))
        message += f" The nearest is {nearest}, which needs {', '.join(needs[nearest])}. Train one with these settings."
    raise RunError(message)


BIASED_PARTS = ("query_key_value", "attention_output", "feed_forward")
ZERO_FILLED = {"bias", *(f"{part}_bias" for part in BIASED_PARTS), "output_bias", "segments"}
"""Settings whose tensors are written as zeros where a spec does not have them."""


def _needed_settings(spec: ModelSpec, architecture: Architecture) -> list[str]:
    """List the settings that a spec must change to be expressed by an architecture, as "name=value".

    They are those that differ after writing the spec to a config.json and reading it again.
    """
    actual = _comparable_settings(spec)
    expected = _comparable_settings(spec_from_config(architecture.write_config(spec)))
    needed: list[str] = []
    for name, value in expected.items():
        is_zero_filled = name in ZERO_FILLED and name not in architecture.exact and not actual[name]
        if actual.get(name, value) == value or is_zero_filled:
            continue
        if isinstance(value, float):
            value = f"{value:g}"
        needed.append(f"no {name}" if value is None else f"{name}={str(value).lower()}")
    return needed


def _comparable_settings(spec: ModelSpec) -> dict[str, Any]:
    """Return the settings of a spec that affect the computation by name, with defaults filled in."""
    assert isinstance(spec, Decoder | Encoder | EncoderDecoder)
    settings = {name: getattr(spec, name) for name in type(spec).model_fields if name != "special_tokens"}
    positions = spec.positions
    settings["positions"] = "learned" if positions.kind == "none" else positions.kind  # learned ones may be zero
    if isinstance(positions, Rotary):
        settings["positions.share"] = positions.share
    settings |= {"attention_width": spec.query_width, "feed_forward": spec.feed_forward_width}
    if isinstance(spec, Decoder):
        settings["key_value_heads"] = spec.key_value_heads or spec.heads
        settings["value_width"] = None if spec.value_width == spec.query_width else spec.value_width
        settings["scaled_embedding"] = spec.has_scaled_embedding
        del settings["bias"]
        settings |= {f"{part}_bias": spec.has_bias(part) for part in BIASED_PARTS}
    return settings


# Tensors to weights and back


def weights_from_hf(
    config: Config, tensors: StoredTensors, shapes: Mapping[str, Shape] | None = None
) -> Iterator[tuple[str, Iterator[Tensor]]]:
    """Yield (name in Lemma, blocks of rows) of each weight, read from the tensors of a checkpoint.

    A RunError names a tensor that is missing, unexpected, or of another shape than the configuration says.

    Args:
        tensors: of the checkpoint by their names in transformers; each is read once.
        shapes: shape of each weight by Lemma's name, if the model is built already; otherwise they are computed.
    """
    architecture, spec = architecture_of(config), spec_from_config(config)
    shapes = shapes or weight_shapes(spec)
    maps = {
        tensor_map.name: tensor_map for tensor_map in tensor_maps_of(architecture, spec) if tensor_map.name in shapes
    }
    expected_names = [name for tensor_map in maps.values() for name in tensor_map.hf_names]
    stored_names = _match_names(tensors, expected_names, architecture)
    output = stored_names.get(architecture.names.output) if getattr(spec, "tied", False) else None
    if output and not torch.equal(tensors[output], tensors[stored_names[maps["embedding.weight"].hf_names[0]]]):
        raise RunError(
            f"config.json says that the output layer shares the embedding (tie_word_embeddings), and {output} is "
            "another matrix. Set tie_word_embeddings to false in config.json to use it."
        )
    for name, shape in shapes.items():
        tensor_map = maps[name]
        sources = [stored_names[hf_name] for hf_name in tensor_map.hf_names]
        for source, expected in zip(sources, tensor_map.hf_shapes(shape), strict=True):
            if (actual := tensors.shape(source)) != expected:
                raise RunError(
                    f"the tensor {source} has the shape {_format_shape(actual)}, expected {_format_shape(expected)} by "
                    "config.json. The weights belong to another configuration."
                )
        if tensor_map.layout == "stacked":
            yield name, (block for source in sources for block in tensors.blocks(source))
        else:
            yield name, iter([tensor_map.from_hf([tensors[source] for source in sources])])


def weights_to_hf(spec: ModelSpec, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield (name in transformers, tensor) for all weights of a model.

    Biases and positions that only transformers' model has are zeros.
    """
    architecture = native_architecture(spec)
    body = spec.body if isinstance(spec, Classifier) else spec
    shapes = weight_shapes(spec_from_config(config_from_spec(body)))  # of the model that transformers will build
    if isinstance(spec, Classifier):
        shapes = {f"body.{name}": shape for name, shape in shapes.items()}
        shapes |= {"head.weight": tuple(weights["head.weight"].shape)}
    for tensor_map in tensor_maps_of(architecture, spec):
        name = tensor_map.name
        if name not in shapes:
            continue
        shape, tensor = shapes[name], weights.get(name)
        is_optional = name.endswith(".bias") or name.removeprefix("body.") in ("positions.weight", "segments.weight")
        if tensor is None and is_optional:
            tensor = torch.zeros(shape, dtype=next(iter(weights.values())).dtype)
        if tensor is None or tuple(tensor.shape) != shape:
            actual = "missing" if tensor is None else _format_shape(tensor.shape)
            raise RunError(
                f"the weights do not belong to this spec: {name} is {actual}, expected {_format_shape(shape)}."
            )
        yield from zip(tensor_map.hf_names, tensor_map.to_hf(tensor), strict=True)
        if tensor_map.hf_names == ("cls.predictions.decoder.bias",):
            yield "cls.predictions.bias", tensor.clone()  # which BERT has too, and does not read


def tensor_maps_of(architecture: Architecture, spec: ModelSpec) -> list[TensorMap]:
    """Return a map between each of Lemma's tensors and transformers' of it, for a model of this spec."""
    if not isinstance(spec, Classifier):
        return [*architecture.names.tensor_maps(spec)]
    maps = architecture.names.tensor_maps(spec.body)
    body = [replace(each, name=f"body.{each.name}") for each in maps if not each.name.startswith("output.")]
    return [*body, TensorMap("head.weight", ("score.weight",))]


def weight_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Return the shape of each weight of a model by its name, without allocating the model."""
    weights = named_weights(build_uninitialized(spec), include_frozen=True)
    return {name: tuple(tensor.shape) for name, tensor in weights.items()}


def _format_shape(shape: Collection[int]) -> str:
    """Return a shape as text, such as "3 × 4"."""
    return " × ".join(map(str, shape)) or "a single number"


def _match_names(tensors: StoredTensors, expected: Collection[str], architecture: Architecture) -> dict[str, str]:
    """Return the name in a checkpoint of each tensor, by the name in `expected`; recognise names of older versions.

    Missing and unexpected tensors are a RunError.
    """
    expected = dict.fromkeys(expected)
    prefix, output = architecture.names.prefix, architecture.names.output
    stored_names: dict[str, str] = {}
    unexpected: list[str] = []
    for stored in tensors:
        name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", stored))
        if name in ("lm_head.weight", "embed_out.weight"):
            name = output
        if name not in expected and prefix + name in expected:  # saved from the model without its output layer
            name = prefix + name
        if name in expected or name == output:
            stored_names[name] = stored
        elif not IGNORED_TENSORS.search(stored) and not name.startswith(architecture.ignored_prefixes):
            unexpected.append(stored)
    if "shared.weight" in expected and output not in stored_names and "shared.weight" in stored_names:
        stored_names[output] = stored_names["shared.weight"]  # transformers 5 ties T5's where the file has one matrix
    missing = [name for name in expected if name not in stored_names]
    if missing:
        raise RunError(
            f"the tensor {missing[0]} is missing{_and_more(missing)}, which a {architecture.title} of this config.json "
            "has. The folder is incomplete, or its weights belong to another configuration."
        )
    if unexpected:
        raise RunError(
            f"the tensor {unexpected[0]}{_and_more(unexpected)} is not part of a {architecture.title} of this "
            f"config.json: its shape is {_format_shape(tensors.shape(unexpected[0]))}, expected no such tensor."
        )
    return stored_names


def _and_more(names: Collection[str]) -> str:
    """Return " and N more" with the number of names after the first; "" if there is only one."""
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


# Entries of config.json

REQUIRED = object()
Entries = Mapping[str, tuple[str, Any]]
"""Keys of config.json in their order, each with the setting that it holds and its default, or REQUIRED for a size.

A setting is a field of a spec, or `head_width`, or `attention_bias` for the biases of all maps of attention.
"""
SIZES: Entries = {
    "vocab_size": ("vocabulary", REQUIRED),
    "hidden_size": ("width", REQUIRED),
    "num_hidden_layers": ("depth", REQUIRED),
    "num_attention_heads": ("heads", REQUIRED),
    "intermediate_size": ("feed_forward", REQUIRED),
    "max_position_embeddings": ("context", REQUIRED),
}
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


def _read_entries(config: Config, entries: Entries) -> Settings:
    """Return spec settings by name, read from the keys of config.json in `entries`; None means the spec's default."""
    settings: Settings = {}
    for key, (name, default) in entries.items():
        if default is REQUIRED:
            value = _read_size(config, key)
        elif name == "positions":
            value = _read_rotary(config, default)
        else:
            value = _read_flag(config, key, default) if isinstance(default, bool) else config.get(key, default)
        if name == "activation":
            value = _read_activation(value)
        elif name == "residual":
            value = "parallel" if value else "sequential"
        settings[name] = value
    width, heads = settings["width"], settings["heads"]
    if "head_width" in settings:
        query_width = heads * (settings.pop("head_width") or width // heads)
        settings["attention_width"] = None if query_width == width else query_width
    if settings.get("key_value_heads") in (0, heads):
        settings["key_value_heads"] = None
    if "attention_bias" in settings:
        has_bias = settings.pop("attention_bias")
        settings |= {"query_key_value_bias": has_bias, "attention_output_bias": has_bias}
    return settings


def _read_activation(name: Any) -> str:
    """Return Lemma's name of an activation function that config.json names; an unknown one is a RunError."""
    if name not in ACTIVATIONS:
        raise RunError(
            f"config.json: the activation {name!r} is not supported. Supported: {', '.join(sorted(ACTIVATIONS))}."
        )
    return ACTIVATIONS[name]


def _read_size(config: Config, key: str) -> int:
    """Return the positive integer `key` of config.json; another value is a RunError."""
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
        problem = f"says {key} = {value!r}; expected a positive whole number"
        problem = f"does not say {key}" if value is None else problem
        raise RunError(f"config.json of a {config.get('model_type')} model {problem}. The folder is damaged.")
    return value


def _read_flag(config: Config, key: str, default: bool) -> bool:
    """Return the boolean `key` of config.json; `default` if it is missing or null."""
    value = config.get(key)
    return default if value is None else bool(value)


def _write_entries(spec: Any, entries: Entries) -> dict[str, Any]:
    """Return the keys of config.json that are listed in `entries`, with the values of a spec."""
    settings = _comparable_settings(spec) | {
        "head_width": spec.head_width,
        "activation": HF_ACTIVATIONS[spec.activation],
    }
    settings["attention_bias"] = settings.get("query_key_value_bias") or settings.get("attention_output_bias")
    settings["residual"] = settings.get("residual") == "parallel"
    config: dict[str, Any] = {}
    for key, (name, default) in entries.items():
        config |= _write_rotary(spec, default) if name == "positions" else {key: settings[name]}
    return config


# Rotary positions

ROPE_SCALINGS = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "slow",
        "high_freq_factor": "fast",
        "original_max_position_embeddings": "original_context",
    },
    "yarn": {
        "factor": "factor",
        "beta_fast": "fast",
        "beta_slow": "slow",
        "original_max_position_embeddings": "original_context",
        "truncate": "whole_pairs",
        "attention_factor": "attention_factor",
    },
}
"""By rope type, the entries of `rope_parameters` and the fields of our scalings."""


def _read_rotary(config: Config, default_share: float) -> Settings:
    """Return the rotary positions of config.json as settings of a spec's `positions`.

    They are in `rope_parameters`, or in `rope_theta` and `rope_scaling` of earlier versions of transformers. Without
    an entry, the rotated fraction of a head is `default_share`.
    """
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping) or any(isinstance(value, Mapping) for value in parameters.values()):
        raise RunError(
            f"config.json: rotary positions that differ between layers are not supported; got {parameters!r}."
        )
    parameters = {
        **{key: config[key] for key in ("rope_theta", "partial_rotary_factor") if key in config},
        **parameters,
    }
    positions: Settings = {
        "kind": "rotary",
        "layout": "halves",
        "base": float(parameters.get("rope_theta") or config.get("rotary_emb_base") or 10_000.0),
        "share": float(parameters.get("partial_rotary_factor") or config.get("rotary_pct") or default_share),
    }
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind in ("default", None):
        return positions
    supported = f"Supported: {', '.join(('default', *ROPE_SCALINGS))}."
    if kind == "dynamic":
        raise RunError(
            "config.json: the rope type 'dynamic' is not supported: it turns early tokens otherwise once the text "
            f"is longer, so that reading token by token would not equal reading at once. {supported}"
        )
    if kind not in ROPE_SCALINGS:
        raise RunError(f"config.json: the rope type {kind!r} is not supported. {supported}")
    scaling: Settings = {field: parameters.get(key) for key, field in ROPE_SCALINGS[kind].items()}
    if kind != "linear":
        scaling["original_context"] = scaling["original_context"] or config.get("max_position_embeddings")
    if kind == "yarn":
        original = int(scaling["original_context"] or 1)
        scaling["factor"] = scaling["factor"] or _read_size(config, "max_position_embeddings") / original
        scaling |= {"slow": scaling["slow"] or None, "fast": scaling["fast"] or None}
        mscale, mscale_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
        if scaling["attention_factor"] is None and mscale and mscale_all:
            log = 0.1 * math.log(scaling["factor"])
            scaling["attention_factor"] = (mscale * log + 1) / (mscale_all * log + 1)
    given = {field: value for field, value in scaling.items() if value is not None}
    return positions | {"scaling": {"kind": kind, **given}}


def _write_rotary(spec: Decoder, default_share: float) -> dict[str, Any]:
    """Return a spec's rotary positions as entries of config.json, as transformers 5 has them.

    The rotated fraction of a head is written only if the architecture's default of it, `default_share`, is not 1.
    """
    positions = spec.positions if isinstance(spec.positions, Rotary) else Rotary()
    parameters: dict[str, Any] = {"rope_theta": positions.base}
    scaling = positions.scaling
    if isinstance(scaling, NoScaling):
        parameters["rope_type"] = "default"
    else:
        parameters["rope_type"] = scaling.kind
        values = {key: getattr(scaling, field) for key, field in ROPE_SCALINGS[scaling.kind].items()}
        parameters |= {key: value for key, value in values.items() if value is not None}
    config = {"rope_theta": positions.base, "rope_parameters": parameters}
    if default_share == 1:
        return config
    if positions.share != 1:
        parameters["partial_rotary_factor"] = positions.share
    return {"rotary_pct": positions.share, "rotary_emb_base": positions.base, **config}


# The architectures

LLAMA_ENTRIES: Entries = {
    **SIZES,
    "hidden_act": ("activation", "silu"),
    "num_key_value_heads": ("key_value_heads", None),
    "head_dim": ("head_width", None),
    "rms_norm_eps": ("norm_epsilon", 1e-6),
    "rope_parameters": ("positions", 1.0),
}
ATTENTION_BIAS: Entries = {"attention_bias": ("attention_bias", False)}
GEMMA_ENTRIES: Entries = {
    # `_read_gemma` reads hidden_act, which counts only without hidden_activation
    **{key: entry for key, entry in LLAMA_ENTRIES.items() if key != "hidden_act"},
    "head_dim": ("head_width", 256),
    **ATTENTION_BIAS,
}
GPT2_ENTRIES: Entries = {
    "vocab_size": ("vocabulary", REQUIRED),
    "n_positions": ("context", REQUIRED),
    "n_embd": ("width", REQUIRED),
    "n_layer": ("depth", REQUIRED),
    "n_head": ("heads", REQUIRED),
    "n_inner": ("feed_forward", None),
    "activation_function": ("activation", "gelu_new"),
    "layer_norm_epsilon": ("norm_epsilon", 1e-5),
}
NEOX_ENTRIES: Entries = {
    **SIZES,
    "hidden_act": ("activation", "gelu"),
    "layer_norm_eps": ("norm_epsilon", 1e-5),
    "attention_bias": ("attention_bias", True),
    "use_parallel_residual": ("residual", True),
    "rope_parameters": ("positions", 0.25),
}
BERT_ENTRIES: Entries = {
    **SIZES,
    "hidden_act": ("activation", "gelu"),
    "layer_norm_eps": ("norm_epsilon", 1e-12),
    "type_vocab_size": ("segments", 2),
}
T5_ENTRIES: Entries = {
    "vocab_size": ("vocabulary", REQUIRED),
    "d_model": ("width", REQUIRED),
    "d_kv": ("head_width", REQUIRED),
    "d_ff": ("feed_forward", REQUIRED),
    "num_layers": ("encoder_depth", REQUIRED),
    "num_decoder_layers": ("decoder_depth", None),
    "num_heads": ("heads", REQUIRED),
    "n_positions": ("context", None),
    "layer_norm_epsilon": ("norm_epsilon", 1e-6),
}
LLAMA_SETTINGS = {"gated": True, "norm": "rms", "bias": False}


def _read_qwen_window(config: Config) -> Settings:
    """Return the sliding window of a Qwen config.json as settings; it must be the same in all layers."""
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    depth, first = _read_size(config, "num_hidden_layers"), config.get("max_window_layers", 28)
    kinds = set(config.get("layer_types") or ())
    if not kinds:  # the first layers see all
        kinds = {"sliding_attention"} if window and first < depth else set()
        kinds |= {"full_attention"} if not window or first > 0 else set()
    if len(kinds) > 1:
        raise RunError(
            "config.json: a sliding window in some layers only is not supported (layer_types, or max_window_layers = "
            f"{first} of {depth} layers). Supported: the same in all layers."
        )
    return {"window": window if kinds == {"sliding_attention"} else None}


def _write_qwen_window(spec: Decoder) -> dict[str, Any]:
    """Return a spec's sliding window as entries of a Qwen config.json."""
    config: dict[str, Any] = {"use_sliding_window": spec.window is not None, "sliding_window": spec.window}
    if spec.window is not None:
        config |= {"max_window_layers": 0, "layer_types": ["sliding_attention"] * spec.depth}
    return config


def _read_gemma(config: Config) -> Settings:
    """Return the activation function of a Gemma config.json as settings."""
    activation = config.get("hidden_activation") or config.get("hidden_act") or "gelu_pytorch_tanh"
    return {"activation": "gelu" if activation == "gelu" else _read_activation(activation)}  # the first release's name


def _read_bert(config: Config) -> Settings:
    """Return the objective and special tokens of a BERT config.json as settings."""
    has_next_sentence = "BertForPreTraining" in (config.get("architectures") or ())
    is_large = _read_size(config, "vocab_size") > 103
    return {
        "objective": "both" if has_next_sentence else "masked",
        "special_tokens": (101, 102, 103) if is_large else None,  # of all of Google's; a tokenizer knows better
    }


def _read_t5(config: Config) -> Settings:
    """Return the settings of a T5 config.json that cannot be read key by key, such as positions and activation."""
    *gate, activation = str(config.get("feed_forward_proj", "relu")).split("-")
    if gate not in ([], ["gated"]):
        raise RunError(f"config.json: feed_forward_proj = {config['feed_forward_proj']!r} is not supported.")
    if gate and activation == "gelu":
        activation = "gelu_new"  # a gated gelu is its tanh form
    is_tied = _read_flag(config, "tie_word_embeddings", True)
    scaled_output = _read_flag(config, "scale_decoder_outputs", is_tied)
    start, end = config.get("decoder_start_token_id"), config.get("eos_token_id", 1)
    start = config.get("pad_token_id", 0) if start is None else start
    return {
        "decoder_depth": config.get("num_decoder_layers") or config.get("num_layers"),
        "context": config.get("n_positions") or 512,
        "gated": bool(gate),
        "activation": _read_activation(activation),
        "positions": {
            "kind": "relative",
            "buckets": config.get("relative_attention_num_buckets", 32),
            "farthest": config.get("relative_attention_max_distance", 128),
        },
        "tied": scaled_output and is_tied,
        "scaled_output": scaled_output,
        "special_tokens": (start, end, start) if isinstance(start, int) and isinstance(end, int) else None,
    }


def _write_t5(spec: EncoderDecoder) -> dict[str, Any]:
    """Return a spec's positions, activation function and special tokens as entries of a T5 config.json."""
    positions = spec.positions if isinstance(spec.positions, Relative) else Relative()
    start, end, _ = spec.special_ids
    gated = f"gated-{spec.activation.removesuffix('-exact')}"
    return {
        "relative_attention_num_buckets": positions.buckets,
        "relative_attention_max_distance": positions.farthest,
        "feed_forward_proj": gated if spec.gated else HF_ACTIVATIONS[spec.activation],
        "decoder_start_token_id": start,
        "eos_token_id": end,
        "pad_token_id": start,
    }


QWEN_WINDOW = {"read_more": _read_qwen_window, "write_more": _write_qwen_window}
_ALL = (
    Architecture(
        "gpt2",
        "GPT-2",
        GPT2,
        GPT2_ENTRIES,
        {"positions": "learned"},
        class_names=("GPT2LMHeadModel", "GPT2Model"),
        fixed={
            "scale_attn_weights": (True, "attention is scaled here"),
            "scale_attn_by_inverse_layer_idx": (False, "attention has one scale in all layers here"),
            "add_cross_attention": (False, "this decoder has no source"),
        },
        constants=dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        is_tied=True,
        write_more=lambda spec: {"n_inner": spec.feed_forward},  # None stands for four times the width
    ),
    Architecture(
        "llama",
        "Llama",
        LLAMA,
        {**LLAMA_ENTRIES, **ATTENTION_BIAS, "mlp_bias": ("feed_forward_bias", False)},
        LLAMA_SETTINGS,
        fixed={"rope_interleaved": (False, "Llama's pairs are expected to lie half a head apart")},
    ),
    Architecture("mistral", "Mistral", LLAMA, {**LLAMA_ENTRIES, "sliding_window": ("window", 4096)}, LLAMA_SETTINGS),
    Architecture(
        "qwen2",
        "Qwen2",
        LLAMA,
        LLAMA_ENTRIES,
        {**LLAMA_SETTINGS, "query_key_value_bias": True},
        exact=("query_key_value_bias",),
        **QWEN_WINDOW,
    ),
    Architecture(
        "qwen3",
        "Qwen3",
        LLAMA,
        {**LLAMA_ENTRIES, "head_dim": ("head_width", 128), **ATTENTION_BIAS},
        {**LLAMA_SETTINGS, "query_key_norm": True},
        **QWEN_WINDOW,
    ),
    Architecture("gpt_neox", "GPT-NeoX", NEOX, NEOX_ENTRIES, {}),
    Architecture(
        "gemma",
        "Gemma",
        GEMMA,
        GEMMA_ENTRIES,
        {**LLAMA_SETTINGS, "scaled_embedding": True},
        fixed={"use_bidirectional_attention": (False, "this decoder sees earlier tokens only")},
        is_tied=True,
        read_more=_read_gemma,
        write_more=lambda spec: dict.fromkeys(("hidden_act", "hidden_activation"), HF_ACTIVATIONS[spec.activation]),
    ),
    Architecture(
        "bert",
        "BERT",
        BERT,
        BERT_ENTRIES,
        {"positions": "learned", "norm_place": "post"}
        | dict.fromkeys(("embedding_norm", "output_transform", "output_bias"), True),
        Encoder,
        ("BertForMaskedLM", "BertForPreTraining"),
        fixed={
            "is_decoder": (False, "this encoder sees both sides"),
            "add_cross_attention": (False, "this encoder has no source"),
            "position_embedding_type": ("absolute", "positions are absolute here"),
        },
        constants=dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
        is_tied=True,
        ignored_prefixes=("bert.pooler.", "cls.seq_relationship."),
        read_more=_read_bert,
        write_more=lambda spec: {"type_vocab_size": max(1, spec.segments)},
    ),
    Architecture(
        "t5",
        "T5",
        T5,
        T5_ENTRIES,
        {"scaled_scores": False, "norm": "rms", "bias": False},
        EncoderDecoder,
        ("T5ForConditionalGeneration",),
        constants={"is_encoder_decoder": True, "dropout_rate": 0.0},
        read_more=_read_t5,
        write_more=_write_t5,
    ),
)
ARCHITECTURES = {architecture.model_type: architecture for architecture in _ALL}
"""By `model_type` of config.json."""
EXPORT_ORDER = ("gpt2", "bert", "t5", "qwen2", "llama", "mistral", "qwen3", "gpt_neox", "gemma")
"""A model is written as the first architecture that can express it."""
