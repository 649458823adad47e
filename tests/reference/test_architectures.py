"""Hugging Face's architectures as our models, against transformers itself: tiny random ones, nothing downloaded."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lemma.errors import RunError
from lemma.generation.decode import Sampling, generate
from lemma.hub.architectures import config_from_spec, spec_from_config, weights_from, weights_to
from lemma.layers.recording import record_attention
from lemma.models.base import LanguageModel
from lemma.models.build import build
from lemma.models.contract import broken_promises
from lemma.runs.checkpoint import weights_of
from lemma.spec.models import Decoder, Lstm

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

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
    "neox": ("GPTNeoX", {**SIZES, "num_attention_heads": 3}),
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


def theirs(name: str) -> nn.Module:
    """A model of transformers with random weights, norms and biases too."""
    kind, settings = DECODERS[name]
    config = getattr(transformers, f"{kind}Config")(**settings)
    config._attn_implementation = "eager"
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def ours(model: Any) -> LanguageModel:
    """The same model as one of ours."""
    config = model.config.to_dict()
    made = build(spec_from_config(config)).eval()
    weights = dict(weights_from(config, model.state_dict()))
    own = weights_of(made)
    assert own.keys() == weights.keys()
    with torch.no_grad():
        for path, weight in own.items():
            weight.copy_(weights[path])
    assert isinstance(made, LanguageModel)
    return made


def near(one: Tensor, other: Tensor) -> None:
    assert one.shape == other.shape
    assert (one - other).abs().max().item() < 1e-5


@pytest.mark.parametrize("name", DECODERS)
def test_logits_are_theirs_at_once_and_token_by_token(name: str) -> None:
    model = theirs(name)
    mine = ours(model)
    with torch.no_grad():
        wanted = model(TOKENS).logits
        near(mine(TOKENS)[0], wanted)
        state, steps = None, []
        for step in TOKENS.split(1, dim=1):
            logits, state = mine(step, state)
            steps.append(logits)
    near(torch.cat(steps, dim=1), wanted)


@pytest.mark.parametrize("name", DECODERS)
def test_greedy_text_is_theirs(name: str) -> None:
    model: Any = theirs(name)
    prompt = TOKENS[:1, :7]
    wanted = model.generate(prompt, do_sample=False, max_new_tokens=25)[0, 7:].tolist()
    [got] = generate(ours(model), prompt.tolist(), Sampling(tokens=25, temperature=0))
    assert list(got.tokens) == wanted


@pytest.mark.parametrize("name", DECODERS)
def test_recorded_attention_is_theirs(name: str) -> None:
    model = theirs(name)
    mine = ours(model)
    with torch.no_grad():
        wanted = model(TOKENS, output_attentions=True).attentions
        with record_attention(mine) as records:
            mine(TOKENS)
    assert [record.name for record in records] == [f"layers.{layer}.attention" for layer in range(3)]
    for record, weights in zip(records, wanted, strict=True):
        near(record.weights(), weights)


@pytest.mark.parametrize("name", DECODERS)
def test_a_model_of_their_architecture_keeps_the_contract(name: str) -> None:
    model: Any = theirs(name)
    assert broken_promises(build(spec_from_config(model.config.to_dict()))) == {}


@pytest.mark.parametrize("name", DECODERS)
def test_parameters_are_as_many_as_theirs(name: str) -> None:
    model = theirs(name)
    assert sum(p.numel() for p in ours(model).parameters()) == sum(p.numel() for p in model.parameters())


def test_a_sliding_window_keeps_no_more_than_it_needs() -> None:
    mine = ours(theirs("mistral"))
    with torch.no_grad():
        _, state = mine(TOKENS)
        _, state = mine(TOKENS[:, :1], state)
    assert {tensor.shape[-2] for name, tensor in state.tensors().items() if name != "seen"} == {4}  # w − 1
    assert mine.receptive_field == 3 * 4 + 1


def test_a_checkpoint_of_earlier_versions_is_read_too() -> None:
    model: Any = theirs("llama3")
    config = model.config.to_dict()
    told = config.pop("rope_parameters")
    scaling = {("type" if word == "rope_type" else word): value for word, value in told.items() if word != "rope_theta"}
    old = {**config, "rope_theta": told["rope_theta"], "rope_scaling": scaling}
    assert spec_from_config(old) == spec_from_config(model.config.to_dict())
    gpt2: Any = theirs("gpt2")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in gpt2.state_dict().items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 64, 64)  # the causal mask, once stored next to the weights
    weights = dict(weights_from(gpt2.config.to_dict(), bare))
    near(weights["layers.0.attention.output.weight"], bare["h.0.attn.c_proj.weight"].T)


LLAMA = {"model_type": "llama", **SIZES}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "mamba"}, "'mamba' model, which is not supported. Supported: GPT-2, Llama"),
        ({}, "no model_type"),
        ({**LLAMA, "auto_map": {"AutoModel": "x.y"}}, "code of its own"),
        ({**LLAMA, "quantization_config": {"bits": 4}}, "quantized"),
        ({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
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
def test_what_cannot_be_read_is_refused_with_the_reason(config: dict[str, Any], words: str) -> None:
    with pytest.raises(RunError, match=words.replace("(", r"\(")):
        spec_from_config(config)


def test_wrong_tensors_are_refused_by_name_and_shape() -> None:
    model: Any = theirs("llama")
    config, tensors = model.config.to_dict(), model.state_dict()
    name = "model.layers.1.self_attn.k_proj.weight"
    with pytest.raises(RunError, match=f"{name} is missing"):
        list(weights_from(config, {path: tensor for path, tensor in tensors.items() if path != name}))
    with pytest.raises(RunError, match=f"{name} has the shape 5 × 24, expected 12 × 24"):
        list(weights_from(config, tensors | {name: torch.zeros(5, 24)}))
    with pytest.raises(RunError, match=r"model\.extra\.weight is not part of a Llama .* 7 × 2"):
        list(weights_from(config, tensors | {"model.extra.weight": torch.zeros(7, 2)}))


def test_tensors_are_looked_up_one_at_a_time() -> None:
    model: Any = theirs("llama")
    asked: list[str] = []

    class Lazy(dict[str, Tensor]):
        def __getitem__(self, name: str) -> Tensor:
            asked.append(name)
            return super().__getitem__(name)

    weights = weights_from(model.config.to_dict(), Lazy(model.state_dict()))
    assert next(weights)[0] == "embedding.weight" and asked == ["model.embed_tokens.weight"]
    list(weights)
    assert sorted(asked) == sorted(model.state_dict())


OURS: dict[str, tuple[str, Decoder]] = {
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


def in_transformers(spec: Any, weights: dict[str, Tensor]) -> Any:
    """A native model of transformers with these weights of ours; no weight may be missing or too many."""
    config = config_from_spec(spec)
    kind = transformers.AutoConfig.for_model(**config)
    model = getattr(transformers, config["architectures"][0])(kind).eval()
    tensors = dict(weights_to(spec, weights))
    found = model.load_state_dict({name.replace("embed_out.", "lm_head."): t for name, t in tensors.items()}, False)
    tied = {"lm_head.weight"} if config["tie_word_embeddings"] else set()
    assert not found.unexpected_keys and set(found.missing_keys) <= tied
    return model


@pytest.mark.parametrize("name", OURS)
def test_a_model_of_ours_computes_the_same_in_transformers(name: str) -> None:
    kind, spec = OURS[name]
    torch.manual_seed(1)
    mine = build(spec).eval()
    for parameter in mine.parameters():
        nn.init.normal_(parameter, std=0.3)
    model = in_transformers(spec, weights_of(mine))
    assert model.config.model_type == kind
    with torch.no_grad():
        near(model(TOKENS).logits, mine(TOKENS)[0])


SAME_BIASES: dict[str, dict[str, bool]] = {  # unset is as `bias`, which is off
    "mistral-whole": dict.fromkeys(("query_key_value_bias", "attention_output_bias", "feed_forward_bias"), False)
}


@pytest.mark.parametrize("name", DECODERS)
def test_out_and_in_again_is_the_same(name: str) -> None:
    model: Any = theirs(name)
    mine = ours(model)
    spec, weights = mine.spec, weights_of(mine)
    config = config_from_spec(spec)
    assert config["model_type"] == ("llama" if name == "mistral-whole" else model.config.model_type)
    assert spec_from_config(config).to_dict() == {**spec.to_dict(), **SAME_BIASES.get(name, {})}
    again = dict(weights_from(config, dict(weights_to(spec, weights))))
    assert again.keys() == weights.keys()
    assert all(torch.equal(again[path], weights[path]) for path in weights)
    with torch.no_grad():
        near(in_transformers(spec, weights)(TOKENS).logits, model(TOKENS).logits)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Lstm(), "family lstm cannot be written .* Families that have one: decoder"),
        (Decoder(positions="alibi"), "nearest is GPT-2, which needs positions=learned. Train"),
        (Decoder(norm="rms", bias=False, positions="rotary"), "nearest is Llama, which needs gated=true"),
        (Decoder(value_output="merged"), "GPT-2, which needs value_output=separate"),
        (Decoder(logit_cap=30.0), "GPT-2, which needs no logit_cap"),
    ],
)
def test_what_has_no_native_class_is_refused_with_the_nearest(spec: Any, words: str) -> None:
    with pytest.raises(RunError, match=words):
        config_from_spec(spec)
