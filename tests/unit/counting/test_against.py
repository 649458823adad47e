"""Comparison with other counting tools: fake tools defined here, and real tools if installed."""

import sys
from collections import OrderedDict
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lemma.counting import against as comparing
from lemma.counting.against import TOOLS, ToolCount, compare_tools, count_exactly
from lemma.counting.subject import resolve_subject
from lemma.errors import InputError

DECODER = {"V": 300, "d": 32, "h": 4, "L": 2, "T": 16}
PARAMETERS = 300 * 32 + 16 * 32 + 2 * (12 * 32**2 + 13 * 32) + 2 * 32


def installed(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(tool) is None, reason=f"{tool} is not installed")


@pytest.fixture(scope="module")
def decoder():
    return resolve_subject("decoder", DECODER)


def use_tool(monkeypatch: pytest.MonkeyPatch, reading) -> None:
    monkeypatch.setitem(TOOLS, "made-up", reading)


def test_exact_figures_add_up_to_pytorch_totals(decoder) -> None:
    exact, values = count_exactly(decoder), decoder.sizes(True)
    with FlopCounterMode(display=False) as counter:
        decoder.build(values)(*decoder.build_inputs(values).args)
    assert exact.total_flops == counter.get_total_flops()
    assert exact.total_parameters == PARAMETERS
    assert exact.flops["layers.1.feed_forward.widen"] == 2 * 16 * 32 * 128
    assert exact.functions["layers.0.attention"] == ("scaled_dot_product_attention",)


def test_correct_tool_has_no_reasons(decoder, monkeypatch) -> None:
    exact = count_exactly(decoder)
    use_tool(monkeypatch, lambda base: ToolCount(exact.total_parameters, exact.total_flops, "all", exact.flops))
    (row,) = compare_tools(decoder, ["made-up"]).rows
    assert (row.parameters_ratio, row.flops_ratio, row.reasons) == (1.0, 1.0, ())


def test_omitted_module_is_reported_with_its_function(decoder, monkeypatch) -> None:
    exact = count_exactly(decoder)
    saved = {path: count for path, count in exact.flops.items() if not path.endswith("attention")}
    use_tool(monkeypatch, lambda base: ToolCount(PARAMETERS - 512, sum(saved.values()), "no attention", saved))
    (row,) = compare_tools(decoder, ["made-up"]).rows
    left_out = 2 * 4 * 16 * 16 * 32
    assert row.reasons == (
        f"parameters: positions ({exact.classes['positions']}): not counted",
        "FLOPs: layers.*.attention (Attention): scaled_dot_product_attention not counted (65,536)",
    )
    assert row.flops_ratio == pytest.approx(1 - left_out / exact.total_flops)


def test_overcounted_and_unattributed_flops_are_reported(decoder, monkeypatch) -> None:
    exact = count_exactly(decoder)
    more = {**exact.flops, "norm": 7000, "output": exact.flops["output"] + 9000}
    use_tool(monkeypatch, lambda base: ToolCount(PARAMETERS + 9600, exact.total_flops + 16_500, "", more))
    (row,) = compare_tools(decoder, ["made-up"]).rows
    assert row.reasons == (
        "parameters: embedding (Embedding): counted twice",
        "FLOPs: output (Linear): 316,200 instead of 307,200; norm (LayerNorm): 7,000 where no matrices are multiplied; "
        "counted in no module: 500",
    )


def test_parameters_missing_in_many_modules_have_no_reason(decoder, monkeypatch) -> None:
    exact = count_exactly(decoder)
    reserved = sum(count for path, count in exact.parameters.items() if "layers" not in path)
    use_tool(monkeypatch, lambda base: ToolCount(reserved, exact.total_flops, "", exact.flops))
    (row,) = compare_tools(decoder, ["made-up"]).rows
    assert row.parameters == reserved and row.reasons == ()


def test_missing_tool_row_shows_the_install_command(decoder, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "calflops", None)
    (row,) = compare_tools(decoder, ["calflops"]).rows
    assert row.reasons == ("not installed: pip install calflops",)
    assert row.parameters is None


def test_missing_dependency_of_a_tool_is_reported(decoder, monkeypatch) -> None:
    def needy(plain):
        raise ModuleNotFoundError("No module named 'accelerate.hooks'", name="accelerate.hooks")

    use_tool(monkeypatch, needy)
    (row,) = compare_tools(decoder, ["made-up"]).rows
    assert row.reasons == ("not installed (it needs accelerate): pip install accelerate",)


def test_failing_or_printing_tool_is_isolated(decoder, monkeypatch, capsys) -> None:
    def failing(plain):
        print("noise")
        raise RuntimeError("cannot trace this\nand more")

    use_tool(monkeypatch, failing)
    (row,) = compare_tools(decoder, ["made-up"]).rows
    assert row.reasons == ("failed: RuntimeError: cannot trace this",)
    assert capsys.readouterr().out == ""


def test_tools_skip_models_too_large_for_memory(decoder, monkeypatch) -> None:
    monkeypatch.setattr(comparing, "MAX_RUN_BYTES", 4 * PARAMETERS - 1)
    use_tool(monkeypatch, lambda base: pytest.fail("it was run"))
    (row,) = compare_tools(decoder, ["made-up"]).rows
    assert row.reasons[0].startswith("not run")


def test_unknown_tool_suggests_the_nearest(decoder) -> None:
    with pytest.raises(InputError, match="Did you mean 'torchinfo'"):
        compare_tools(decoder, ["torch-info"])


def test_tools_receive_tensor_inputs_of_the_module(decoder, monkeypatch) -> None:
    seen = {}

    def look(plain):
        outputs = plain(plain.signal)
        seen["shapes"] = [tuple(output.shape) for output in outputs]
        seen["lookups"] = plain.get_submodule("module.embedding").weight.shape
        return ToolCount(1, 1.0, "", {})

    use_tool(monkeypatch, look)
    compare_tools(decoder, ["made-up"])
    assert seen["shapes"][0] == (1, 16, 300) and seen["lookups"] == (300, 32)


def fake_module(name: str, monkeypatch: pytest.MonkeyPatch, **contents) -> None:
    module = ModuleType(name)
    module.__dict__.update(contents)
    monkeypatch.setitem(sys.modules, name, module)


def two_layers(d: int = 4, D: int = 6) -> nn.Module:
    return nn.Sequential(OrderedDict(widen=nn.Linear(d, D), narrow=nn.Linear(D, d)))


two_layers.inputs = lambda d, B=3: torch.zeros(B, d)  # type: ignore[attr-defined]


def test_torchinfo_is_read_by_leaf_module(monkeypatch) -> None:
    def summary(model, input_data, verbose):
        model(*input_data)
        leaves = [SimpleNamespace(layer_id=id(m), macs=5, is_leaf_layer=True) for m in model.module]
        return SimpleNamespace(total_params=58, total_mult_adds=10, summary_list=leaves)

    fake_module("torchinfo", monkeypatch, summary=summary)
    (row,) = compare_tools(resolve_subject(two_layers), ["torchinfo"]).rows
    assert (row.parameters, row.flops) == (58, 20)
    assert row.reasons == ("FLOPs: widen (Linear): 10 instead of 144; narrow (Linear): 10 instead of 144",)


def test_calflops_module_attributes_are_reported(monkeypatch) -> None:
    def calculate_flops(model, args, print_results, output_as_string):
        for part in model.modules():
            part.__flops__ = 0
        model.module[1].register_forward_hook(lambda module, *rest: setattr(module, "__flops__", 144))
        model(*args)
        return 144, 72, 58

    fake_module("calflops", monkeypatch, calculate_flops=calculate_flops)
    (row,) = compare_tools(resolve_subject(two_layers), ["calflops"]).rows
    assert row.reasons == ("FLOPs: widen (Linear): linear not counted (144)",)


@pytest.mark.parametrize("tool", [pytest.param(tool, marks=installed(tool)) for tool in TOOLS])
def test_installed_tools_count_linear_layers(tool: str) -> None:
    (row,) = compare_tools(resolve_subject(two_layers), [tool]).rows
    assert row.parameters == 58
    assert row.flops_ratio == pytest.approx(1, abs=0.25), row  # some count biases


class Wraps(nn.Module):
    """A module in a list, which is never called itself, next to products that PyTorch's counter does not know."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(d, d), nn.Linear(d, d)])
        self.scale = nn.Parameter(torch.ones(d))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return (x * self.scale).sum(-1)


def wraps(d: int = 4) -> nn.Module:
    return Wraps(d)


wraps.inputs = lambda d, B=3: torch.zeros(B, d)  # type: ignore[attr-defined]


def test_pytorch_counter_is_compared_by_module() -> None:
    (row,) = compare_tools(resolve_subject(wraps), ["torch"]).rows
    assert (row.parameters, row.flops) == (2 * 20 + 4, 2 * 2 * 3 * 16)
    assert row.flops_ratio == pytest.approx(192 / (192 + 2 * 3 * 4))
    assert row.reasons == ("FLOPs: Wraps: its work not counted (24)",)


def test_mixture_of_experts_is_compared_with_its_grouped_products() -> None:
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "T": 8}
    sizes |= {"vocab_size": 40, "moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
    (row,) = compare_tools(resolve_subject("qwen3_moe", sizes), ["torch"]).rows
    experts = 2 * 8 * 2 * (3 * 32 * 24 + 32)
    assert f"(Qwen3MoeExperts): grouped_mm not counted ({experts:,})" in row.reasons[0]


def test_tool_that_uses_each_parameter_once_is_explained(monkeypatch) -> None:
    counts = {"widen": 2 * (24 + 6), "narrow": 2 * 24 * 3}
    use_tool(monkeypatch, lambda base: ToolCount(58, sum(counts.values()), "", counts))
    (row,) = compare_tools(resolve_subject(two_layers), ["made-up"]).rows
    assert row.reasons == ("FLOPs: widen (Linear): each parameter used once, not for every token (60 instead of 144)",)


@installed("fvcore")
def test_fvcore_omits_attention(decoder) -> None:
    (row,) = compare_tools(decoder, ["fvcore"]).rows
    assert "layers.*.attention (Attention): scaled_dot_product_attention not counted (65,536)" in str(row.reasons)


def test_tool_comparison_renders_in_every_format(decoder, monkeypatch) -> None:
    use_tool(monkeypatch, lambda base: ToolCount(PARAMETERS, 579_584.0, "<half>", {}))
    result = compare_tools(decoder, ["made-up"])
    lines = str(result).splitlines()
    assert lines[2].split()[:5] == ["lemma", "35,584", "1.000", "1,159,168", "1.000"]
    assert lines[3].split()[0] == "matrix" and lines[5].split() == ["<half>"]  # the conventions of each tool
    assert lines[4].split() == ["made-up", "35,584", "1.000", "579,584", "0.500"]
    assert lines[1].index("forward FLOPs") + len("forward FLOPs") == lines[2].index("1,159,168") + len("1,159,168")
    assert "&lt;half&gt;" in result._repr_html_() and "<half>" not in result._repr_html_()
    base = result.to_dict()
    assert base["parameters"] == 35_584 and base["tools"][0]["operations_ratio"] == 0.5
