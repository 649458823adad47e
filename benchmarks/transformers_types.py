"""Formulas of many model types of transformers, compared with the module at sizes that were not probed.

`python -m benchmarks.transformers_types [TYPE…]` counts a small model of each type and compares parameters, FLOPs and
cache bytes, by the formulas, with modules that transformers builds at other depths, widths and lengths: the sum of its
parameters, PyTorch's own FLOP counter, the tensors in the cache it returns. Types that are not in `TYPES` can be named.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.compare import machine

TYPES = (  # by year
    *(
        "openai-gpt",
        "bert",
        "gpt2",
        "xlnet",
        "roberta",
        "ctrl",
        "albert",
        "distilbert",
        "xlm",
        "t5",
        "bart",
        "camembert",
    ),
    *("electra", "longformer", "reformer", "funnel", "deberta", "deberta-v2", "pegasus", "prophetnet", "mt5", "mbart"),
    *("big_bird", "m2m_100", "marian", "led", "fnet", "rembert", "roformer", "nystromformer", "gpt_neo", "gptj"),
    *("opt", "bloom", "gpt_neox", "codegen", "xglm", "longt5", "switch_transformers", "umt5", "pegasus_x", "biogpt"),
    *("llama", "mpt", "falcon", "gpt_bigcode", "persimmon", "mistral", "mixtral", "phi", "rwkv", "nllb-moe", "mamba"),
    *("gemma", "qwen2", "qwen2_moe", "stablelm", "starcoder2", "dbrx", "olmo", "cohere", "jamba", "recurrent_gemma"),
    *("phi3", "jetmoe", "gemma2", "mamba2", "falcon_mamba", "nemotron", "olmoe", "phimoe", "granite", "granitemoe"),
    *("minicpm3", "zamba", "zamba2", "bamba", "olmo2", "cohere2", "glm", "diffllama", "deepseek_v2", "modernbert"),
    *(
        "deepseek_v3",
        "glm4",
        "gemma3_text",
        "gemma3n_text",
        "llama4_text",
        "qwen3",
        "qwen3_moe",
        "qwen3_next",
        "bitnet",
    ),
    *("granitemoehybrid", "falcon_h1", "smollm3", "arcee", "minimax", "ernie4_5", "ernie4_5_moe", "hunyuan_v1_dense"),
    *("hunyuan_v1_moe", "dots1", "glm4_moe", "exaone4", "gpt_oss", "seed_oss", "lfm2", "lfm2_moe", "doge", "apertus"),
    *("xlstm", "olmo3", "flex_olmo", "kimi_linear", "deepseek_v32", "deepseek_v4", "qwen3_5_text", "gemma4_text"),
    *("longcat_flash", "olmo_hybrid", "nemotron_h", "minimax_m2", "glm_moe_dsa"),
)
SIZES = {  # of the small models, by the names of fields
    97: ("vocab_size",),
    64: ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"),
    96: ("hidden_size", "n_embd", "d_model", "emb_dim", "dim"),
    60: (
        "intermediate_size",
        "ffn_hidden_size",
        "n_inner",
        "d_ff",
        "ffn_dim",
        "encoder_ffn_dim",
        "decoder_ffn_dim",
        "hidden_dim",
        "d_inner",
    ),
    40: ("moe_intermediate_size", "expert_ffn_hidden_size", "shared_expert_intermediate_size", "embedding_size"),
    16: ("head_dim", "d_kv", "kv_channels", "v_head_dim", "qk_nope_head_dim", "linear_key_head_dim"),
    24: ("linear_value_head_dim", "q_lora_rank", "mamba_d_head", "mamba_head_dim"),
    32: ("kv_lora_rank",),
    8: (
        "num_experts",
        "n_routed_experts",
        "num_local_experts",
        "moe_num_experts",
        "sliding_window",
        "qk_rope_head_dim",
    ),
    7: ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "num_encoder_layers"),
    5: ("decoder_layers", "num_decoder_layers"),
    4: (
        "linear_num_key_heads",
        "num_attention_heads",
        "n_head",
        "n_heads",
        "num_heads",
        "encoder_attention_heads",
        "decoder_attention_heads",
    ),
    2: ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_experts_per_tok", "moe_topk", "moe_k"),
}
MORE_SIZES = {8: ("linear_num_value_heads", "mamba_n_heads", "n_mamba_heads", "mamba_num_heads", "state_size")}
FIELD_SIZES = {name: size for table in (SIZES, MORE_SIZES) for size, names in table.items() for name in names}
SPECIAL: dict[str, dict[str, Any]] = {  # where the sizes above do not suit; None leaves the default
    "bamba": {"attn_layer_indices": [3, 7], "num_hidden_layers": 8},
    "codegen": {"rotary_dim": 8},
    "deepseek_v4": {
        "head_dim": 32,
        "num_key_value_heads": 1,
        "o_groups": 2,
        "o_lora_rank": 16,
        "index_n_heads": 4,
        "index_head_dim": 16,
        "index_topk": 4,
    },
    "falcon_h1": {"mamba_d_ssm": 192},
    "gemma3n_text": {"num_hidden_layers": 10, "num_kv_shared_layers": 2},
    "gemma4_text": {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 97},
    "gpt_neo": {"num_layers": 8, "attention_types": [[["global", "local"], 4]]},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": ["linear_attention"] * 3 + ["full_attention"], "num_hidden_layers": 8},
    "kimi_linear": {"linear_head_dim": 16, "linear_num_heads": 4},
    "led": {"attention_window": 64},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention"], "num_hidden_layers": 6},
    "longformer": {"attention_window": 64},
    "mamba2": {"num_heads": 8, "head_dim": 24},
    "nemotron": {"num_key_value_heads": 2},
    "olmo_hybrid": {"linear_num_value_heads": 4},
    "reformer": {"axial_pos_embds": False, "axial_pos_shape": [8, 8], "axial_pos_embds_dim": [32, 64]},
    "zamba2": {
        "layers_block_type": ["linear_attention"] * 5 + ["hybrid"],
        "num_hidden_layers": 12,
        "num_key_value_heads": 4,
        "kv_channels": None,
    },
}
DEPTHS, WIDTHS, LENGTHS, BATCHES = (6, 9, 8, 11, 13, 16), (144, 192, 288, 336), (14, 21, 26, 40), (1, 3, 2)
NUM_COMPARISONS, TIME_LIMIT = 6, 240  # sizes per type; processor seconds of one type


def small_fields(kind: str) -> dict[str, Any]:
    """Return fields of a small configuration of this type: known sizes, and special tokens of a small vocabulary."""
    from transformers import AutoConfig

    default = AutoConfig.for_model(kind)
    values = default.to_dict()
    fields = {name: FIELD_SIZES[name] for name, value in values.items() if name in FIELD_SIZES and type(value) is int}
    tokens = [name for name, value in values.items() if name.endswith("_token_id") and type(value) is int]
    if "kv_lora_rank" in values:  # all heads share one latent vector, and `head_dim` is that of rotary positions
        fields |= {"num_key_value_heads": fields["num_attention_heads"], "head_dim": fields["qk_rope_head_dim"]}
    fields |= {name: number for number, name in enumerate(tokens)} | SPECIAL.get(kind, {})
    return repeat_lists({name: value for name, value in fields.items() if value is not None})


def repeat_lists(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Repeat the lists of kinds of layers as often as there are layers."""
    depth = fields.get("num_hidden_layers", 0)
    lists = {name: fields[name] for name in ("layer_types", "layers_block_type") if name in fields}
    return {**fields, **{name: [kinds[index % len(kinds)] for index in range(depth)] for name, kinds in lists.items()}}


def other_sizes(sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield changes of depths, widths, lengths and others, none of which was probed or asked for."""
    widths, lengths, batches = cycle(WIDTHS), cycle(LENGTHS), cycle(BATCHES)
    for number, depth in enumerate((*DEPTHS, *DEPTHS)):
        changes = {letter: depth - index for index, letter in enumerate(("L", "L_enc", "L_dec")) if letter in sizes}
        changes |= {"B": next(batches), "T": next(lengths)}
        changes |= {"S": next(lengths)} if "S" in sizes else {}
        if number % 3 != 1 and "d" in sizes:
            changes["d"] = next(widths)
        if number % 2:
            changes |= {letter: 72 + 8 * number for letter in ("d_ff", "d_ff_enc", "d_ff_dec") if letter in sizes}
            changes |= {letter: 101 for letter in ("V",) if letter in sizes}
        yield changes


def run_module(module: Any, inputs: Any) -> tuple[int, int]:
    """Return the FLOPs of a forward pass by PyTorch's counter, and the bytes of the tensors in the cache."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        outputs = module(*inputs.args, **inputs.kwargs)
    names = ("past_key_values", "cache_params", "mems", "state")
    cache = next((value for name in names if (value := getattr(outputs, name, None)) is not None), None)
    tensors: dict[int, torch.Tensor] = {}
    stack, seen = [cache], set[int]()
    while stack:
        value = stack.pop()
        if id(value) in seen or value is None:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            tensors[id(value)] = value
        elif isinstance(value, (list, tuple)):
            stack += value
        elif isinstance(value, dict):
            stack += value.values()
        elif hasattr(value, "__dict__"):
            stack += [inner for name, inner in vars(value).items() if name[0] != "_"]  # others are bookkeeping
    return counter.get_total_flops(), sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def compare(kind: str) -> dict[str, Any]:
    """Count a small model of this type and compare it with modules of other sizes."""
    import torch
    import transformers

    from lemma.counting.count import count
    from lemma.counting.transformers_models import FIELDS, config_subject

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    start = time.process_time()
    fields = small_fields(kind)
    subject = config_subject({"model_type": kind, **fields}, {"B": 2, "T": 12}, kind)
    account = count(subject, ["parameters", "active", "flops", "cache"])
    spent = time.process_time() - start
    result: dict[str, Any] = {"type": kind, "seconds": spent, "formulas": {}, "wrong": [], "outside": 0, "compared": 0}
    for name, quantity in account.quantities.items():
        result["formulas"][name] = [quantity.formula, *quantity.notes]
        if quantity.refused:
            result.setdefault("refused", {})[name] = dict(quantity.refused)
    all_sizes = subject.sizes(True)
    known = {**transformers.AutoConfig.for_model(kind).to_dict(), **fields}
    names = {letter: next((name for name in options if name in known), "") for letter, options in FIELDS.items()}
    names["L_enc"] = names["L_enc"] or names["L"]  # of T5, whose decoder has a number of its own
    for changes in other_sizes(all_sizes):
        if result["compared"] == NUM_COMPARISONS:
            break
        sizes = {**all_sizes, **changes}
        for letter, tie in subject.defaults.items():
            sizes[letter] = int(tie.at(sizes))
        try:
            changed: dict[str, Any] = {names[letter]: size for letter, size in sizes.items() if names.get(letter)}
            if "attention_types" in fields and "num_layers" in changed:
                changed["num_layers"] += changed["num_layers"] % 2
                sizes["L"] = changed["num_layers"]
                changed["attention_types"] = [[["global", "local"], sizes["L"] // 2]]
            config = transformers.AutoConfig.for_model(kind, **repeat_lists({**fields, **changed}))
            config._experts_implementation = "eager"  # grouped products are not counted by PyTorch's counter
            with torch.device("meta"):
                module = type(subject.build(subject.symbols))(config).eval()
            with_run = True
        except Exception as error:
            result.setdefault("not built", []).append(f"{changes}: {error}"[:300])
            continue
        actual = {"parameters": sum(parameter.numel() for parameter in module.parameters())}
        try:
            with torch.device("cpu"):
                module = type(module)(config).eval()
                actual["flops"], actual["cache"] = run_module(module, subject.build_inputs(sizes, "cpu"))
        except Exception as error:
            result.setdefault("not run", []).append(f"{changes}: {error}"[:300])
            with_run = False
        inside = False
        for name, number in actual.items():
            quantity = account.quantities.get(name)
            if quantity is None or quantity.refused:
                continue
            own = {letter: size for letter, size in sizes.items() if letter in quantity.compared_at}
            expected = quantity.evaluate(own)
            if expected is None:
                result["outside"] += 1
            else:
                inside = True
                if (
                    name == "flops"
                    and expected > number
                    and any("as matrix products" in note for note in quantity.notes)
                ):
                    assert quantity.recount  # PyTorch's counter does not know such products
                    number = quantity.recount(own, expected) or number
                if expected != number:
                    result["wrong"].append(f"{name} at {changes}: formula {expected:,}, module {number:,}")
        result["compared"] += inside and with_run
    return result


def compare_apart(kind: str) -> dict[str, Any]:
    """Compare in a process of its own, with a time limit."""
    command = [sys.executable, "-m", "benchmarks.transformers_types", "--json", kind]
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "LEMMA_HOME": home, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode < 0:
        return {"type": kind, "error": f"took more than {TIME_LIMIT} s of processor time"}
    with suppress(ValueError, IndexError):
        return json.loads(done.stdout.strip().splitlines()[-1])
    return {"type": kind, "error": (done.stderr.strip().splitlines() or ["no output"])[-1]}


def describe(result: Mapping[str, Any]) -> str:
    """Return one word or sentence on a type."""
    if "error" in result:
        return f"refused: {result['error']}"
    if result["wrong"]:
        return f"WRONG {len(result['wrong'])} times: {result['wrong'][0]}"
    if "refused" in result:
        (path, reason), *_ = next(iter(result["refused"].values())).items()
        return f"no formula of {', '.join(result['refused'])}: {path} {reason}"
    return f"exact at {result['compared']}"


def main(names: list[str]) -> int:
    """Compare all types, or those named; return the number of types with a formula that is wrong."""
    num_wrong = num_refused = 0
    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(compare_apart, names or TYPES):
            print(f"{result['type']:20} {result.get('seconds', 0):6.1f} s  {describe(result)}", flush=True)
            num_wrong += bool(result.get("wrong"))
            num_refused += "error" in result or "refused" in result
            if "RESULTS" in os.environ:  # a file for all formulas
                with Path(os.environ["RESULTS"]).open("a", encoding="utf-8") as file:
                    print(json.dumps(result), file=file)
    print(f"{len(names or TYPES)} types: {num_wrong} wrong, {num_refused} without a formula of some quantity")
    return num_wrong


if __name__ == "__main__":
    if sys.argv[1:2] == ["--json"]:
        resource.setrlimit(resource.RLIMIT_CPU, (TIME_LIMIT, TIME_LIMIT))
        print(json.dumps(compare(sys.argv[2])))
    else:
        print(machine())
        sys.exit(main(sys.argv[1:]) > 0)
