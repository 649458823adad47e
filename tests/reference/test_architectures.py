"""Hugging Face architectures as Lemma models against transformers: tiny random weights, nothing downloaded."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lemma.counting.count import count
from lemma.counting.subject import resolve_subject
from lemma.errors import RunError
from lemma.generation.beam import Beam, translate
from lemma.generation.engine import generate
from lemma.generation.sampling import Sampling
from lemma.hub.architectures import config_from_spec, spec_from_config, weights_to_hf
from lemma.hub.architectures import weights_from_hf as blocks_from
from lemma.hub.tensor_maps import StoredTensors
from lemma.layers.recording import record_attention
from lemma.models.build import build, build_uninitialized
from lemma.runs.checkpoint import named_weights
from lemma.spec.models import Classifier, Decoder, Encoder, EncoderDecoder, Lstm
from lemma.testing import contract_violations

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")


class Loaded(dict[str, Tensor], StoredTensors):
    """A mapping of tensors already in memory."""

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(dict.__getitem__(self, name).shape)


def weights_from(config: Any, tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Return Lemma's weights by name, with blocks concatenated."""
    stored = tensors if isinstance(tensors, StoredTensors) else Loaded(tensors)
    return ((name, torch.cat(list(blocks))) for name, blocks in blocks_from(config, stored))


TOKENS = torch.randint(37, (2, 23), generator=torch.Generator().manual_seed(3))
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SIZES = {
    "vocab_size": 37,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "intermediate_size": 20,
    "max_position_embeddings": 64,
    **NO_TOKENS,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
GPT2 = {"vocab_size": 37, "n_embd": 24, "n_layer": 3, "n_head": 3, "n_positions": 64, **NO_TOKENS}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {**GPT2, "n_inner": 20}),
    "gpt2-relu-untied": ("GPT2", {**GPT2, "activation_function": "relu", "tie_word_embeddings": False}),
    "llama": ("Llama", {**GROUPED, "head_dim": 6, "rms_norm_eps": 1e-3}),
    "llama-biases": ("Llama", {**GROUPED, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama3": ("Llama", {**GROUPED, "rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, **LLAMA3}}),
    "llama-linear": (
        "Llama",
        {**GROUPED, "rope_parameters": {"rope_type": "linear", "rope_theta": 99.0, "factor": 2.0}},
    ),
    "llama-yarn": (
        "Llama",
        {
            **GROUPED,
            "head_dim": 12,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "beta_fast": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "mistral": ("Mistral", {**GROUPED, "sliding_window": 5}),
    "mistral-whole": ("Mistral", {**GROUPED, "sliding_window": None, "head_dim": 10}),
    "qwen2": ("Qwen2", GROUPED),
    "qwen2-window": ("Qwen2", {**GROUPED, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}),
    "qwen3": ("Qwen3", {**GROUPED, "head_dim": 10}),
    "qwen3-biases": ("Qwen3", {**GROUPED, "head_dim": 4, "attention_bias": True, "tie_word_embeddings": True}),
    "neox": ("GPTNeoX", {**SIZES, "hidden_size": 32, "num_attention_heads": 4}),
    "neox-sequential": (
        "GPTNeoX",
        {
            **SIZES,
            "num_attention_heads": 3,
            "use_parallel_residual": False,
            "attention_bias": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
        },
    ),
    "gemma": ("Gemma", {**GROUPED, "head_dim": 6, "num_key_value_heads": 1}),
}


BERT = {**SIZES, "num_attention_heads": 3}
T5 = {"vocab_size": 37, "d_model": 24, "d_kv": 10, "d_ff": 20, "num_heads": 3, "num_layers": 2, "num_decoder_layers": 3}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", BERT),
    "bert-relu-untied": ("BertForMaskedLM", {**BERT, "hidden_act": "relu", "tie_word_embeddings": False}),
    "bert-both": ("BertForPreTraining", BERT),
    "t5": ("T5ForConditionalGeneration", {**T5, "decoder_start_token_id": 0}),
    "t5-few-buckets": (
        "T5ForConditionalGeneration",
        {**T5, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "decoder_start_token_id": 0},
    ),
    "t5-v1.1": (
        "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "decoder_start_token_id": 0},
    ),
}


def transformers_model(name: str) -> nn.Module:
    """Return a transformers model with random weights, norms and biases."""
    kind, settings = DECODERS.get(name) or OTHERS[name]
    torch.manual_seed(7)
    if name in DECODERS:
        config = getattr(transformers, f"{kind}Config")(**settings)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    else:
        config = getattr(transformers, f"{kind.partition('For')[0]}Config")(**settings)
        config._attn_implementation = "eager"
        model = getattr(transformers, kind)(config).eval()
    model.config.architectures = [type(model).__name__]
    if name == "t5-v1.1":  # with an untied output matrix
        model.lm_head.weight = nn.Parameter(torch.empty(37, 24))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def lemma_model(model: Any) -> Any:
    """Return the same model as a Lemma model."""
    config = model.config.to_dict()
    built = build_uninitialized(spec_from_config(config)).eval()
    weights = dict(weights_from(config, model.state_dict()))
    custom = named_weights(built)
    assert custom.keys() == weights.keys()
    with torch.no_grad():
        for path, weight in custom.items():
            weight.copy_(weights[path])
    return built


def assert_near(one: Tensor, other: Tensor) -> None:
    assert one.shape == other.shape
    assert (one - other).abs().max().item() < 1e-5


@pytest.mark.parametrize("name", DECODERS)
def test_decoder_logits_match_transformers_full_and_incremental(name: str) -> None:
    model = transformers_model(name)
    actual = lemma_model(model)
    with torch.no_grad():
        expected = model(TOKENS).logits
        assert_near(actual(TOKENS)[0], expected)
        state, steps = None, []
        for step in TOKENS.split(1, dim=1):
            logits, state = actual(step, state)
            steps.append(logits)
    assert_near(torch.cat(steps, dim=1), expected)


@pytest.mark.parametrize("name", DECODERS)
def test_greedy_tokens_match_transformers(name: str) -> None:
    model: Any = transformers_model(name)
    prompt = TOKENS[:1, :7]
    expected = model.generate(prompt, do_sample=False, max_new_tokens=25)[0, 7:].tolist()
    [actual] = generate(lemma_model(model), prompt.tolist(), Sampling(tokens=25, temperature=0))
    assert list(actual.tokens) == expected


@pytest.mark.parametrize("name", DECODERS)
def test_recorded_attention_matches_transformers(name: str) -> None:
    model = transformers_model(name)
    actual = lemma_model(model)
    with torch.no_grad():
        expected = model(TOKENS, output_attentions=True).attentions
        with record_attention(actual) as records:
            actual(TOKENS)
    assert [record.name for record in records] == [f"layers.{layer}.attention" for layer in range(3)]
    for record, weights in zip(records, expected, strict=True):
        assert_near(record.weights(), weights)


@pytest.mark.parametrize("name", DECODERS)
def test_hugging_face_architectures_satisfy_the_contract(name: str) -> None:
    model: Any = transformers_model(name)
    assert contract_violations(build(spec_from_config(model.config.to_dict()))) == {}


@pytest.mark.parametrize("name", [*DECODERS, *OTHERS])
def test_parameter_counts_match_transformers(name: str) -> None:
    model = transformers_model(name)
    unused = {"bert": 37, "bert-relu-untied": 37, "bert-both": 37}.get(name, 0)  # an unused second bias
    unused = unused if "cls.predictions.decoder.bias" in dict(model.named_parameters()) else 0
    assert (
        sum(p.numel() for p in lemma_model(model).parameters()) == sum(p.numel() for p in model.parameters()) - unused
    )


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "qwen2", "qwen3", "neox", "gemma", "bert", "t5-v1.1"])
def test_parameter_formulas_match_transformers(name: str) -> None:
    model: Any = transformers_model(name)
    account = count(resolve_subject(spec_from_config(model.config.to_dict())), ["parameters"])
    assert not account.parameters.refused
    assert account.parameters.total == sum(parameter.numel() for parameter in model.parameters())


def test_sliding_window_cache_has_minimal_size() -> None:
    actual = lemma_model(transformers_model("mistral"))
    with torch.no_grad():
        _, state = actual(TOKENS)
        _, state = actual(TOKENS[:, :1], state)
    assert {tensor.shape[-2] for name, tensor in state.tensors().items() if name != "seen"} == {4}  # w − 1
    assert actual.receptive_field == 3 * 4 + 1


def test_checkpoints_of_earlier_transformers_versions_load() -> None:
    model: Any = transformers_model("llama3")
    config = model.config.to_dict()
    messages = config.pop("rope_parameters")
    scaling = {
        ("type" if word == "rope_type" else word): value for word, value in messages.items() if word != "rope_theta"
    }
    old = {**config, "rope_theta": messages["rope_theta"], "rope_scaling": scaling}
    assert spec_from_config(old) == spec_from_config(model.config.to_dict())
    gpt2: Any = transformers_model("gpt2")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in gpt2.state_dict().items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 64, 64)  # the causal mask, once stored next to the weights
    weights = dict(weights_from(gpt2.config.to_dict(), bare))
    assert_near(weights["layers.0.attention.output.weight"], bare["h.0.attn.c_proj.weight"].T)


@pytest.mark.parametrize("name", [name for name in OTHERS if name.startswith("bert")])
def test_encoder_matches_transformers_with_segments_and_padding(name: str) -> None:
    model = transformers_model(name)
    actual = lemma_model(model)
    ends = (actual.spec.special_ids[1] == TOKENS).long()
    padded = torch.nn.functional.pad(TOKENS, (0, 5), value=-1)
    seen = padded >= 0
    types = torch.nn.functional.pad((ends.cumsum(1) - ends).clamp(max=1), (0, 5))
    assert types.max() == 1
    with torch.no_grad():
        expected = model(padded.clamp(min=0), attention_mask=seen.long(), token_type_ids=types, output_attentions=True)
        logits = expected.prediction_logits if name == "bert-both" else expected.logits
        assert_near(actual(padded)[:, :23], logits[:, :23])
        with record_attention(actual) as records:
            actual(TOKENS)
        if name == "bert-both":  # class 0 means that the segment follows
            assert_near(actual.follows(padded), expected.seq_relationship_logits.flip(1))
    for record, weights in zip(records, expected.attentions, strict=True):
        assert_near(record.weights(), weights[:, :, :23, :23])


@pytest.mark.parametrize("name", [name for name in OTHERS if name.startswith("t5")])
def test_encoder_decoder_matches_transformers_full_and_incremental(name: str) -> None:
    model = transformers_model(name)
    actual = lemma_model(model)
    source, target = TOKENS.clone(), TOKENS[:, :17].flip(1)
    source[1, 19:] = -1
    seen = (source >= 0).long()
    with torch.no_grad():
        expected = model(source.clamp(min=0), seen, target, output_attentions=True)
        assert_near(actual(source, target), expected.logits)
        state, steps = actual.begin(source), []
        for step in target.split(1, dim=1):
            logits, state = actual.step(step, state)
            steps.append(logits)
        assert_near(torch.cat(steps, dim=1), expected.logits)
        with record_attention(actual) as records:
            actual(source, target)
    by_name = {record.name: record.weights() for record in records}
    for side, weights in (("encoder", expected.encoder_attentions), ("decoder", expected.decoder_attentions)):
        for layer, item in enumerate(weights):
            rows = slice(19) if side == "encoder" else slice(None)  # padding rows are unused
            assert_near(by_name[f"{side}.layers.{layer}.attention"][:, :, rows], item[:, :, rows])
    for layer, item in enumerate(expected.cross_attentions):
        assert_near(by_name[f"decoder.layers.{layer}.source_attention"], item)


@pytest.mark.parametrize("name", [name for name in OTHERS if name.startswith("t5")])
def test_encoder_decoder_generation_matches_transformers(name: str) -> None:
    model: Any = transformers_model(name)
    actual = lemma_model(model)
    source = [int(token) for token in TOKENS[0] if token > 1]
    ids = torch.tensor([[*source, 1]])
    settings = {"do_sample": False, "max_new_tokens": 20, "bad_words_ids": [[0]], "use_cache": False}
    expected = model.generate(ids, **settings)[0, 1:].tolist()
    [got] = translate(actual, [source], Beam(beam=1, tokens=20))
    assert [*got.tokens, *([1] if got.finished else [])] == expected


def test_untied_output_contradicting_the_config_is_rejected() -> None:
    model: Any = transformers_model("gpt2")
    tensors = model.state_dict() | {"lm_head.weight": torch.zeros(37, 24)}
    with pytest.raises(RunError, match="tie_word_embeddings"):
        list(weights_from(model.config.to_dict(), tensors))


LLAMA = {"model_type": "llama", **SIZES}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "mamba"}, "'mamba' model, which is not supported. Supported: GPT-2, Llama"),
        ({}, "no model_type"),
        ({**LLAMA, "auto_map": {"AutoModel": "x.y"}}, "code of its own"),
        ({**LLAMA, "quantization_config": {"bits": 4}}, "quantized"),
        (
            {**LLAMA, "architectures": ["LlamaForTokenClassification"]},
            "Supported of Llama: .*LlamaForSequenceClassification",
        ),
        ({**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        ({**LLAMA, "rope_scaling": {"type": "longrope"}}, "'longrope' is not supported. Supported: default, linear"),
        ({**LLAMA, "hidden_act": "mish"}, "'mish' is not supported"),
        ({**LLAMA, "hidden_size": None}, "does not say hidden_size"),
        ({**LLAMA, "hidden_size": "wide"}, "hidden_size = 'wide'"),
        ({**LLAMA, "num_attention_heads": 5, "head_dim": 5}, "even width"),
        ({**LLAMA, "model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1}, "some layers only"),
        ({"model_type": "gpt2", **GPT2, "scale_attn_by_inverse_layer_idx": True}, "one scale in all layers"),
    ],
)
def test_unsupported_configs_are_rejected_with_the_reason(config: dict[str, Any], words: str) -> None:
    with pytest.raises(RunError, match=words.replace("(", r"\(")):
        spec_from_config(config)


@pytest.mark.parametrize("name", ["gpt2", "llama-yarn", "qwen2-window", "neox", "bert", "t5"])
def test_invalid_config_values_raise_run_errors(name: str) -> None:
    model: Any = transformers_model(name)
    config = model.config.to_dict()
    ropes = config.get("rope_parameters") or {}
    wrong: list[Any] = [None, "x", -1, 0, 1.5, [], {}, ["x"], {"x": {}}, float("nan"), 10**400, True]
    changed = [{**config, key: value} for key in config for value in wrong]
    changed += [{**config, "rope_parameters": {**ropes, key: value}} for key in ropes for value in wrong]
    rejected = 0
    for item in changed:
        try:
            spec_from_config(item)
        except RunError:
            rejected += 1
    assert 0 < rejected < len(changed)


def test_wrong_tensors_are_rejected_by_name_and_shape() -> None:
    model: Any = transformers_model("llama")
    config, tensors = model.config.to_dict(), model.state_dict()
    name = "model.layers.1.self_attn.k_proj.weight"
    with pytest.raises(RunError, match=f"{name} is missing"):
        list(weights_from(config, {path: tensor for path, tensor in tensors.items() if path != name}))
    with pytest.raises(RunError, match=f"{name} has the shape 5 × 24, expected 12 × 24"):
        list(weights_from(config, tensors | {name: torch.zeros(5, 24)}))
    with pytest.raises(RunError, match=r"model\.extra\.weight is not part of a Llama .* 7 × 2"):
        list(weights_from(config, tensors | {"model.extra.weight": torch.zeros(7, 2)}))


def test_tensors_are_loaded_one_at_a_time() -> None:
    model: Any = transformers_model("llama")
    request: list[str] = []

    class Lazy(Loaded):
        def __getitem__(self, name: str) -> Tensor:
            request.append(name)
            return super().__getitem__(name)

    weights = weights_from(model.config.to_dict(), Lazy(model.state_dict()))
    assert next(weights)[0] == "embedding.weight" and request == ["model.embed_tokens.weight"]
    list(weights)
    assert sorted(request) == sorted(model.state_dict())


OURS: dict[str, tuple[str, Any]] = {
    "encoder": (
        "bert",
        Encoder(
            vocabulary=37, width=24, depth=2, heads=3, context=30, positions="learned", norm_place="post", tied=False,
            embedding_norm=True, output_transform=True, bias=False, activation="silu",
        ),
    ),
    "encoder-decoder": (
        "t5",
        EncoderDecoder(
            vocabulary=37, width=24, heads=3, encoder_depth=2, decoder_depth=1, positions="relative", norm="rms",
            bias=False, scaled_scores=False, scaled_output=True, gated=True, activation="silu",
        ),
    ),
    "plain": ("gpt2", Decoder(vocabulary=37, width=24, depth=2, heads=3, context=30)),
    "no positions, no biases": (
        "gpt2",
        Decoder(vocabulary=37, width=24, depth=2, heads=3, context=30, bias=False, positions="none", tied=False),
    ),
    "exact gelu": ("gpt2", Decoder(vocabulary=37, width=24, depth=1, heads=3, context=30, activation="gelu-exact")),
    "pairs": (
        "llama",
        Decoder(
            vocabulary=37, width=24, depth=2, heads=6, key_value_heads=2, context=30, positions="rotary", norm="rms",
            gated=True, activation="silu", bias=False,
        ),
    ),
    "pairs and norms of queries": (
        "qwen3",
        Decoder(
            vocabulary=37, width=24, depth=2, heads=3, context=30, norm="rms", gated=True, query_key_norm=True,
            positions="rotary", bias=False, query_key_value_bias=True, window=6,
        ),
    ),
    "partial pairs": (
        "gpt_neox",
        Decoder(vocabulary=37, width=24, depth=2, heads=3, context=30, positions={"kind": "rotary", "share": 0.5}),
    ),
    "some biases": (
        "llama",
        Decoder(
            vocabulary=37, width=24, depth=2, heads=3, context=30, positions="rotary", norm="rms", gated=True,
            attention_output_bias=False,
        ),
    ),
}  # fmt: skip


def load_in_transformers(spec: Any, weights: dict[str, Tensor], folder: Path) -> Any:
    """Load an exported folder as a native transformers model without missing or unexpected weights."""
    config = config_from_spec(spec)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(dict(weights_to_hf(spec, weights)), folder / "model.safetensors", {"format": "pt"})
    kind = getattr(transformers, config["architectures"][0])
    model, result = kind.from_pretrained(folder, output_loading_info=True)
    assert not result["unexpected_keys"] and not result["missing_keys"] and not result["mismatched_keys"]
    return model.eval()


@pytest.mark.parametrize("name", OURS)
def test_exported_model_matches_in_transformers(name: str, tmp_path: Path) -> None:
    kind, spec = OURS[name]
    torch.manual_seed(1)
    actual = build(spec).eval()
    for parameter in actual.parameters():
        nn.init.normal_(parameter, std=0.3)
    model = load_in_transformers(spec, named_weights(actual), tmp_path)
    assert model.config.model_type == kind
    pair = (TOKENS, TOKENS[:, :9]) if kind == "t5" else (TOKENS,)
    more = {"attention_mask": torch.ones_like(TOKENS), "decoder_input_ids": pair[1]} if kind == "t5" else {}
    with torch.no_grad():
        logits = actual(*pair)
        assert_near(model(TOKENS, **more).logits, logits[0] if isinstance(logits, tuple) else logits)


FIRST = {spelled: name for name, (spelled, _) in reversed(DECODERS.items())}


@pytest.mark.parametrize("name", FIRST.values())
def test_exported_classifier_matches_in_transformers(name: str, tmp_path: Path) -> None:
    body = lemma_model(transformers_model(name)).spec
    spec = Classifier(body=body, classes=3, head_bias=False)
    torch.manual_seed(1)
    actual = build(spec).eval()
    for parameter in actual.parameters():
        nn.init.normal_(parameter, std=0.3)
    model = load_in_transformers(spec, named_weights(actual), tmp_path)
    assert type(model).__name__.endswith("ForSequenceClassification")
    assert spec_from_config(config_from_spec(spec)) == spec
    model.config.pad_token_id = 36
    padded = TOKENS.clamp(max=35)
    padded[1, 15:] = 36
    with torch.no_grad():
        assert_near(model(padded).logits, actual(padded.masked_fill(padded == 36, -1)))


SAME_BIASES: dict[str, dict[str, bool]] = {  # unset is as `bias`, which is off
    "mistral-whole": dict.fromkeys(("query_key_value_bias", "attention_output_bias", "feed_forward_bias"), False)
}


@pytest.mark.parametrize("name", [*DECODERS, *OTHERS])
def test_export_and_import_round_trip(name: str, tmp_path: Path) -> None:
    model: Any = transformers_model(name)
    actual = lemma_model(model)
    spec, weights = actual.spec, named_weights(actual)
    config = config_from_spec(spec)
    assert config["model_type"] == ("llama" if name == "mistral-whole" else model.config.model_type)
    assert spec_from_config(config).to_dict() == {**spec.to_dict(), **SAME_BIASES.get(name, {})}
    again = dict(weights_from(config, dict(weights_to_hf(spec, weights))))
    assert again.keys() == weights.keys()
    assert all(torch.equal(again[path], weights[path]) for path in weights)
    more = {"decoder_input_ids": TOKENS[:, :9]} if name.startswith("t5") else {}
    with torch.no_grad():
        assert_near(load_in_transformers(spec, weights, tmp_path)(TOKENS, **more)[0], model(TOKENS, **more)[0])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Lstm(), "family lstm cannot be written .* Families that have one: decoder"),
        (Decoder(positions="alibi"), "nearest is GPT-2, which needs positions=learned. Train"),
        (Decoder(norm="rms", bias=False, positions="rotary"), "nearest is Llama, which needs gated=true"),
        (Decoder(value_output="merged"), "GPT-2, which needs value_output=separate"),
        (Classifier(body=Decoder()), "GPT-2, which needs head_bias=false. Train"),
        (Classifier(body=Decoder(), pool="mean", head_bias=False), "GPT-2, which needs pool=last. Train"),
        (Classifier(body=Encoder()), "tanh before the classes"),
        (Classifier(body=Lstm()), "family lstm cannot be written"),
        (Decoder(logit_cap=30.0), "GPT-2, which needs no logit_cap"),
        (Encoder(positions="learned", norm_place="post"), "BERT, which needs embedding_norm=true, output_transform"),
        (EncoderDecoder(norm="rms", bias=False, positions="relative"), "T5, which needs scaled_scores=false, scaled_o"),
    ],
)
def test_spec_without_native_class_names_the_nearest(spec: Any, words: str) -> None:
    with pytest.raises(RunError, match=words):
        config_from_spec(spec)
