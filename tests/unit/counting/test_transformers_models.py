"""Configurations of transformers as subjects: sizes, formulas at sizes that were not probed, refusals."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import lemma
from benchmarks.transformers_types import NUM_COMPARISONS, compare
from lemma.counting.count import count
from lemma.counting.subject import resolve_subject
from lemma.counting.transformers_models import config_subject, extend_list
from lemma.errors import RunError, SpecError

pytest.importorskip("transformers")
SMALL = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 90, "intermediate_size": 60}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 16}
EXPERTS = {**GROUPED, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", **SMALL},
    "gemma3_text": {"model_type": "gemma3_text", **GROUPED, "sliding_window": 8},
    "gpt_oss": {"model_type": "gpt_oss", **GROUPED, "num_local_experts": 8, "sliding_window": 8},
    "qwen3_moe": {"model_type": "qwen3_moe", **EXPERTS},
    "t5": {"model_type": "t5", "d_model": 96, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4, "d_kv": 16},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_of_a_configuration_hold_at_sizes_that_were_not_probed(name: str) -> None:
    import transformers

    parameters = count(config_subject(CONFIGS[name], {}, name), ["parameters"]).parameters
    assert not parameters.refused
    config = dict(CONFIGS[name])
    depth = "num_layers" if name == "t5" else "num_hidden_layers"
    width = "d_model" if name == "t5" else "hidden_size"
    for layers, wide in ((5, 144), (8, 240), (13, 192)):
        sized = transformers.AutoConfig.for_model(**{**config, depth: layers, width: wide})
        classes = {
            "t5": transformers.AutoModelForSeq2SeqLM,
            "bert": transformers.AutoModelForMaskedLM,
        }
        with torch.device("meta"):
            module = classes.get(name, transformers.AutoModelForCausalLM).from_config(sized)
        sizes = {**parameters.compared_at, "d": wide, "L_enc" if name == "t5" else "L": layers}
        assert parameters.evaluate(sizes) == sum(parameter.numel() for parameter in module.parameters())


def test_flops_and_cache_of_layers_in_turns_hold_at_sizes_that_were_not_probed() -> None:
    account = count(config_subject(CONFIGS["gemma3_text"], {}, "gemma"), ["flops", "cache"])
    cache = account.cache
    assert cache.formula == "8*(w-1)*h_kv*d_h*B*(L - m) + 8*m*h_kv*d_h*B*T"
    assert cache.rules["m"].write() == "floor(L/6)"
    assert cache.domain.ordered == {"w": "T"} and "this formula holds where w ≤ T" in cache.notes
    assert not account.flops.domain.ordered  # a mask leaves out no products
    assert cache.evaluate({**cache.compared_at, "T": 5}) is None
    for quantity in account.quantities.values():
        for sizes in ({"L": 4, "T": 40, "B": 3}, {"L": 14, "d": 192, "T": 33}, {"L": 19, "w": 12, "h_kv": 4}):
            sizes = {**quantity.compared_at, **sizes}
            assert quantity.recount is not None and quantity.domain.contains(sizes)
            assert quantity.evaluate(sizes) == quantity.recount(sizes, 0)


def test_configuration_file_that_lemma_cannot_run_is_counted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["qwen3_moe"]), encoding="utf-8")
    for model in (tmp_path, tmp_path / "config.json", str(tmp_path)):
        subject = resolve_subject(model, {"d": 48, "num_hidden_layers": 4})
        assert subject.symbols["d"] == 48 and subject.symbols["L"] == 4 and subject.symbols["E"] == 8
    assert resolve_subject("qwen3_moe", {"d_h": 24, "d": 96, "h": 4, "h_kv": 2}).symbols["d_h"] == 24
    assert "E" in lemma.count(tmp_path, quantities=["parameters"]).parameters.formula


def test_model_type_is_a_model_with_the_library_s_own_sizes() -> None:
    assert lemma.count("mixtral", quantities=["parameters"]).parameters.total == 46_702_792_704


def test_code_of_a_configuration_is_refused(tmp_path: Path) -> None:
    config = {**CONFIGS["qwen3_moe"], "auto_map": {"AutoModel": "code.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises((RunError, SpecError), match="auto_map"):
        lemma.count(tmp_path)
    with pytest.raises(SpecError, match=r"unknown model_type 'qwen9'"):
        config_subject({"model_type": "qwen9"}, {}, "config.json")
    with pytest.raises(SpecError, match=r"unknown setting 'hiden_size'. Did you mean 'hidden_size'"):
        config_subject(CONFIGS["bert"], {"hiden_size": 8}, "config.json")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": None}, "names no model_type"),
        ({"model_type": ["llama"]}, "names no model_type"),
        ({"hidden_size": 0}, "hidden_size = 0, where a whole number from 1 up is expected"),
        ({"hidden_size": "64"}, "no configuration of the type qwen3_moe: Field 'hidden_size' expected int, got str"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1,000,000,000, where at most 10,000 layers are expected"),
        ({"num_key_value_heads": 3}, "num_attention_heads = 4, where a multiple of num_key_value_heads = 3 is"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok = 9, where at most num_local_experts = 8 is expected"),
        ({"layer_types": ["full_attention"]}, "must be equal to the number of `layer_types`"),
        ({"torch_dtype": "bfloat17"}, "AttributeError: module 'torch' has no attribute 'bfloat17'"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "names LlamaForCausalLMEagle3, and transformers has no such"),
        ({"architectures": ["AutoTokenizer"]}, "transformers has no such model"),
        ({"architectures": ["LlamaForCausalLM"]}, "names LlamaForCausalLM, a model of the type llama, but model_type"),
    ],
)
def test_wrong_configurations_are_refused_in_one_sentence(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        config_subject({**CONFIGS["qwen3_moe"], **fields}, {}, "config.json")
    text = str(caught.value)
    assert text.startswith("config.json") and message in text and "\n" not in text and len(text) < 500


def test_depth_of_an_irregular_list_cannot_be_set() -> None:
    irregular = {**CONFIGS["gpt_oss"], "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}
    kinds = [0, 1, 0, 0, 1, 1, 0]
    layers = [irregular["layer_types"][kind] for kind in kinds]
    config = {**irregular, "num_hidden_layers": len(kinds), "layer_types": layers}
    with pytest.raises(SpecError, match=r"`num_hidden_layers` \(9\) must be equal"):
        config_subject(config, {"num_hidden_layers": 9}, "config.json")


def test_fields_that_change_no_amount_do_not_make_a_count_fail() -> None:
    fields = {"attn_implementation": "flash_attention_2", "return_dict": False}
    subject = config_subject({**CONFIGS["qwen3_moe"], **fields}, {}, "config.json")
    assert "L" in count(subject, ["flops"]).flops.formula


def test_classifier_without_a_padding_token_has_a_formula() -> None:
    named = {**CONFIGS["qwen3_moe"], "architectures": ["Qwen3MoeForSequenceClassification"]}
    assert count(config_subject(named, {}, "config.json"), ["parameters"]).parameters.formula.startswith("d*(V + 3)")


def test_unknown_model_type_lists_the_closest_only() -> None:
    with pytest.raises(SpecError, match=r"The closest of \d+ choices: qwen3_moe, ") as caught:
        config_subject({"model_type": "qwen3_mo"}, {}, "config.json")
    assert len(str(caught.value)) < 500


def test_chunks_of_attention_bound_the_cache() -> None:
    fields = {**GROUPED, "num_hidden_layers": 8, "intermediate_size_mlp": 80, "num_local_experts": 8}
    fields |= {"model_type": "llama4_text", "attention_chunk_size": 8}
    cache = count(config_subject(fields, {"T": 20}, "llama4"), ["cache"]).cache
    assert cache.formula == "8*(C-1)*h_kv*d_h*B*(L - m) + 8*m*h_kv*d_h*B*T"
    assert cache.domain.ordered == {"C": "T"} and cache.rules["m"].write() == "floor(L/4)"
    assert cache.recount
    sizes = {**cache.compared_at, "L": 13, "C": 12, "T": 40}
    assert cache.evaluate(sizes) == cache.recount(sizes, 0)


def test_configuration_that_does_not_run_is_not_probed_in_vain() -> None:
    config = {**CONFIGS["bert"], "model_type": "helium", "head_dim": 16, "num_key_value_heads": 2}
    start = time.process_time()
    account = count(config_subject(config, {}, "config.json"), ["parameters", "flops"])
    assert time.process_time() - start < 15
    assert "L" in account.parameters.formula
    assert "cannot be run" in account.flops.refused[""]


def test_lists_per_layer_follow_the_depth() -> None:
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    config = {**CONFIGS["gpt_oss"], "num_hidden_layers": 6, "layer_types": kinds}
    subject = config_subject(config, {}, "config.json")
    cache = count(subject, ["cache"]).cache
    assert cache.rules["m"].write() == "floor(L/3)"
    with pytest.raises(ValueError, match="no rule"):
        extend_list([1, 2, 1, 1, 2], 7)
    irregular = {**config, "layer_types": ["full_attention"] * 2 + kinds[:4]}
    assert "L" not in config_subject(irregular, {}, "config.json").symbols


def test_pixels_are_the_inputs_of_a_model_of_images() -> None:
    account = lemma.count("vit", quantities=["parameters", "flops"])
    assert account.parameters.total == 86_567_656 - 998 * 769  # of ViT-B/16: two classes in place of 1000
    assert {"I", "P", "C_in"} <= account.symbols.keys() and "T" not in account.symbols
    (rule,) = account.flops.rules.values()
    assert rule.write(("I", "P")) == "floor(I/P)"
    tokens, d = 14 * 14 + 1, 768
    per_layer = 2 * tokens * (12 * d * d) + 4 * tokens * tokens * d
    assert account.flops.total == 2 * 196 * d * 768 + 12 * per_layer + 2 * d * 2


def test_text_part_of_a_model_of_text_and_images() -> None:
    text = {**GROUPED, "sliding_window": 8}
    both = config_subject({"model_type": "gemma3", "text_config": text}, {"T": 20}, "config.json")
    assert both.name == "config.json, text part" and both.input_sizes["T"] == 20
    alone = config_subject({"model_type": "gemma3_text", **text}, {}, "gemma3_text")
    assert both.symbols == alone.symbols
    with pytest.raises(SpecError, match=r"wav2vec2 read input_values.* file\.py:function"):
        config_subject({"model_type": "wav2vec2"}, {}, "config.json")


QWEN3_30B_A3B = {
    "vocab_size": 151_936,
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}


@pytest.mark.parametrize(
    ("model_type", "settings", "num_experts", "num_used", "per_expert", "published"),
    [  # experts of all layers, those of them that a token uses, and parameters of one; billions in all and active
        ("mixtral", {}, 32 * 8, 32 * 2, 3 * 4096 * 14336, (46.7, 12.9)),
        ("qwen3_moe", QWEN3_30B_A3B, 48 * 128, 48 * 8, 3 * 2048 * 768, (30.5, 3.3)),
        ("gpt_oss", {"num_hidden_layers": 24, "num_local_experts": 32}, 24 * 32, 24 * 4, 3 * 2880 * 2881, (20.9, 3.6)),
        ("deepseek_v3", {}, 58 * 256, 58 * 8, 3 * 7168 * 2048, (671.0, 37.5)),
    ],
)
def test_active_parameters_of_published_mixtures(
    model_type: str,
    settings: dict[str, Any],
    num_experts: int,
    num_used: int,
    per_expert: int,
    published: tuple[float, float],
) -> None:
    account = lemma.count(model_type, quantities=["parameters", "active"], **settings)
    total, active = account.parameters.total, account.active.total
    assert total and active and total - active == (num_experts - num_used) * per_expert
    table = 201_088 * 2880 if model_type == "gpt_oss" else 0  # OpenAI leaves embeddings out of what is active
    assert (total / 1e9, (active - table) / 1e9) == pytest.approx(published, abs=0.07)


@pytest.mark.parametrize("model_type", ["gpt_neo", "lfm2", "mamba2", "phi", "xlnet"])
def test_formulas_hold_in_modules_that_transformers_builds_at_other_sizes(model_type: str) -> None:
    """Lists of kinds, layers of convolution and attention, scans, rotary parts of heads, and a state only in eval mode.

    `python -m benchmarks transformers` compares a hundred types.
    """
    result = compare(model_type)
    assert result["wrong"] == [] and "refused" not in result
    assert result["compared"] == NUM_COMPARISONS and result["outside"] == 0
