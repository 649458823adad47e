"""Configurations of transformers as subjects: sizes, formulas at sizes that were not probed, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lemma
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
