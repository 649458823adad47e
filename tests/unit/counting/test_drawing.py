"""Drawings: shapes compared with real runs, layout, and the self-attention example compared with torch."""

import math
import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

from lemma.counting.drawing import Drawing, draw
from lemma.counting.drawing.layout import LayoutBlock, arrange
from lemma.counting.drawing.scene import Box, FlowLine, TextLine, text_width
from lemma.counting.examples import self_attention
from lemma.counting.fit import path_pattern
from lemma.counting.polynomial import ONE, Polynomial, symbol
from lemma.counting.subject import Subject, factory_subject, resolve_subject
from lemma.errors import CountingError, InputError

MODELS = ["self-attention", "feed-forward", "attentive", "lstm", "decoder", "torch-transformer", "table-a5"]
HELD_OUT = {  # differ from the probe sizes, and T from all other sizes
    "feed-forward": {"V": 31, "d": 11, "d_h": 13, "N": 10, "B": 10, "T": 23},
    "attentive": {"V": 31, "d": 11, "d_k": 13, "d_v": 17, "d_h": 19, "N": 10, "B": 10, "T": 23},
    "lstm": {"V": 31, "d": 11, "D": 13, "L": 10, "B": 14, "T": 17},
    "decoder": {"V": 31, "d": 35, "L": 5, "h": 5, "d_h": 55, "d_ff": 37, "T": 19, "B": 10},
}


def subject(name: str) -> Subject:
    return factory_subject(self_attention, {}, name) if name == "self-attention" else resolve_subject(name)


@cache
def drawing(name: str) -> Drawing:
    return draw(subject(name))


def shape_at(shape: tuple[Polynomial, ...], values: dict[str, int]) -> tuple[int, ...]:
    return tuple(int(size.at(values)) for size in shape)


def reference_attention(module: nn.Module, X: Tensor) -> dict[str, Tensor]:
    """Return multi-head self-attention, computed head by head with matrix products."""
    W = dict(module.named_parameters())
    Q, K, V = ([X @ w for w in W[name]] for name in ("W_Q", "W_K", "W_V"))
    scores = [q @ k.T for q, k in zip(Q, K, strict=True)]
    scaled = [s / math.sqrt(K[0].shape[1]) for s in scores]
    A = [s.exp() / s.exp().sum(1, keepdim=True) for s in scaled]
    heads = [a @ v for a, v in zip(A, V, strict=True)]
    concat = torch.cat(heads, dim=1)
    stacked = {"Q": Q, "K": K, "V": V, "scores": scores, "scaled": scaled, "A": A, "heads": heads}
    full = {"X": X, "concat": concat, "Y": concat @ W["W_O"]}
    return {name: torch.stack(list_) for name, list_ in stacked.items()} | full


def test_self_attention_shapes_match_reference_at_held_out_size() -> None:
    values = {"E": 11, "H": 13, "M_QK": 17, "M_V": 19, "S": 23}
    module = self_attention(E=11, H=13, M_QK=17, M_V=19)
    real = reference_attention(module, torch.randn(23, 11)) | dict(module.named_parameters())
    samples = {node.name: shape_at(node.shape, values) for node in drawing("self-attention").nodes}
    assert samples == {name: tuple(tensor.shape) for name, tensor in real.items()}


def test_self_attention_output_matches_reference() -> None:
    module, X = self_attention(E=6, H=3, M_QK=4, M_V=5), torch.randn(7, 6)
    torch.testing.assert_close(module(X), reference_attention(module, X)["Y"])


def test_self_attention_matches_torch_multihead_attention() -> None:
    E, H = 12, 3
    M = E // H
    module, reference = self_attention(E=E, H=H, M_QK=M, M_V=M), nn.MultiheadAttention(E, H, bias=False)
    ours = dict(module.named_parameters())
    stacked = [ours[name].permute(0, 2, 1).reshape(H * M, E) for name in ("W_Q", "W_K", "W_V")]
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat(stacked))
        reference.out_proj.weight.copy_(ours["W_O"].T)
    X = torch.randn(5, E)
    torch.testing.assert_close(module(X), reference(X, X, X)[0])


def test_query_key_value_parameters_do_not_depend_on_heads() -> None:
    """Problem D3: H heads of width d/H cost what one of width d costs."""
    total = Polynomial({})
    for node in drawing("self-attention").nodes:
        if node.name in ("W_Q", "W_K", "W_V"):
            total = total + math.prod(node.shape, start=ONE)
    E, H = symbol("E"), symbol("H")
    assert total.substitute("M_QK", E / H).substitute("M_V", E / H) == 3 * E**2


def test_self_attention_formulas_match_expected_text() -> None:
    formulas = [node.formula for node in drawing("self-attention").nodes if node.formula]
    assert formulas == [
        "Q = X W_Q",
        "K = X W_K",
        "V = X W_V",
        "scores = Q Kᵀ",
        "scaled = scores / √M_QK",
        "A = softmax(scaled) over S",
        "heads = A V",
        "concat = heads, axes H × M_V → H·M_V",
        "Y = concat W_O",
    ]


def test_hidden_layer_input_has_a_separate_name() -> None:
    hidden = {
        name: next(node.formula for node in drawing(name).nodes if node.name == "hidden")
        for name in ("feed-forward", "attentive")
    }
    assert hidden == {"feed-forward": "hidden = windows Wᵀ + b", "attentive": "hidden = attended Wᵀ + b"}


def test_attention_scale_is_read_from_the_run() -> None:
    formulas = {node.name: node.formula for node in drawing("attentive").nodes}
    assert formulas["scores"] == "scores = sums / √d_k"  # the module multiplies by d_k to the power −½
    assert {node.name: node.formula for node in draw(_module(lambda module, x: x * 3**-0.5)).nodes}["product"] == (
        "product = x ∗ 0.5774"
    )


@pytest.mark.parametrize("name", HELD_OUT)
def test_drawn_shapes_match_module_outputs_at_held_out_size(name: str) -> None:
    values, returned = HELD_OUT[name], {}
    module = subject(name).build(values, "cpu").eval()
    for path, part in module.named_modules():
        part.register_forward_hook(lambda *args, path=path: returned.update({path: _first(args[2])}))
    inputs = subject(name).build_inputs(values, "cpu")
    module(*inputs.args, **inputs.kwargs)
    samples = {
        node.path: shape_at(node.shape, values) for node in drawing(name).nodes if node.step in ("linear", "lstm")
    }
    assert samples == {path: tuple(returned[path].shape) for path in samples}
    assert samples.keys() == {path for path in returned if _is_drawn(module.get_submodule(path), path)}


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def _is_drawn(part: nn.Module, path: str) -> bool:
    """Return whether a module is drawn: of equal layers only the first is."""
    return isinstance(part, (nn.Linear, nn.LSTM)) and not any(
        word.isdigit() and word != "0" for word in path.split(".")
    )


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_is_drawn_with_shape_and_count(name: str) -> None:
    sizes = subject(name).sizes(with_inputs=True) | ({"L": 3} if "L" in subject(name).symbols else {})
    module = subject(name).build(sizes)
    reserved = [node for node in drawing(name).nodes if node.kind == "parameter"]
    count = sum(int((math.prod(node.shape, start=ONE) * node.repeats).at(sizes)) for node in reserved)
    assert count == sum(parameter.numel() for parameter in module.parameters())
    patterns = {path_pattern(parameter) for parameter, _ in module.named_parameters()}
    assert {path_pattern(node.name.replace("…", "")) for node in reserved} == patterns


def test_repeated_layers_are_framed_once_with_their_count() -> None:
    texts = {text.bold: text.regular for text in drawing("decoder").shapes if isinstance(text, TextLine) and text.bold}
    assert re.fullmatch(r"layers, (\w+?)[₂₃] is the next one's \1", texts["× L"])
    assert [shape.kind for shape in drawing("decoder").shapes if isinstance(shape, Box)].count("frame") == 1


@pytest.mark.parametrize("name", MODELS)
def test_text_stays_inside_boxes_and_page(name: str) -> None:
    page = _page_width(drawing(name))
    boxes = [shape for shape in drawing(name).shapes if isinstance(shape, Box)]
    for text in (shape for shape in drawing(name).shapes if isinstance(shape, TextLine)):
        assert text.width / 2 <= text.x <= page - text.width / 2
        around = [
            b for b in boxes if b.kind != "frame" and b.x <= text.x <= b.x + b.width and b.y <= text.y <= b.y + b.height
        ]
        assert all(text.width <= box.width for box in around)
        assert len(around) <= 1


@pytest.mark.parametrize("name", MODELS)
def test_boxes_do_not_overlap_or_cross_lines(name: str) -> None:
    boxes = [s for s in drawing(name).shapes if isinstance(s, Box) and s.kind != "frame"]
    for number, item in enumerate(boxes):
        assert not any(_overlap(item, other) for other in boxes[:number])
    for line in (shape for shape in drawing(name).shapes if isinstance(shape, FlowLine) and not shape.is_horizontal):
        for (x, y), (a, b) in pairwise(line.points):  # a curve between two points stays between them
            left, right = min(x, a) - 0.1, max(x, a) + 0.1
            inner = Box("result", left, y + 1, right - left, b - y - 2)
            assert b - y <= 2 or not any(_overlap(inner, box) for box in boxes)


def _overlap(first: Box, second: Box) -> bool:
    across = min(first.x + first.width, second.x + second.width) - max(first.x, second.x)
    down = min(first.y + first.height, second.y + second.height) - max(first.y, second.y)
    return across > 0.1 and down > 0.1


def _page_width(drawn: Drawing) -> float:
    return float(ElementTree.fromstring(drawn.svg).attrib["width"])


@pytest.mark.parametrize("name", MODELS)
def test_svg_is_well_formed_self_contained_and_fits_page_width(name: str) -> None:
    root = ElementTree.fromstring(drawing(name).svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and float(root.attrib["width"]) == 800
    sizes = [float(element.attrib["font-size"]) for element in root.iter() if "font-size" in element.attrib]
    assert min(sizes) >= 12
    assert not [element for element in root.iter() if element.tag.endswith(("script", "image", "foreignObject"))]


def test_untrusted_names_are_escaped() -> None:
    odd = factory_subject(_linear, {}, "<script>&")
    assert ElementTree.fromstring(draw(odd).svg).findtext("{http://www.w3.org/2000/svg}title") == "<script>&"


def _linear(d: int = 4) -> nn.Module:
    return nn.Linear(d, 2 * d)


_linear.inputs = lambda d, T=3: torch.zeros(T, d)  # pyright: ignore[reportFunctionMemberAccess]


def _module(forward: Callable[[nn.Module, Tensor], Any]) -> Any:
    class Odd(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            self.inner = nn.Linear(d, d)
            self.spare = nn.Linear(d, 3)

        def forward(self, x: Tensor) -> Any:
            return forward(self, x)

    def odd(d: int = 4) -> nn.Module:
        return Odd(d)

    odd.inputs = lambda d, T=3: torch.zeros(T, d)  # pyright: ignore[reportFunctionMemberAccess]
    return factory_subject(odd, {})


def test_size_dependent_steps_are_refused() -> None:
    def often(module: Any, x: Tensor) -> Tensor:
        for _ in range(x.shape[0]):
            x = module.inner(x)
        return x

    with pytest.raises(CountingError, match="steps differ from size to size"):
        draw(_module(often))


def test_module_without_tensor_output_is_refused() -> None:
    with pytest.raises(CountingError, match="returns no tensor"):
        draw(_module(lambda module, x: 3))


def test_inplace_operations_are_separate_steps() -> None:
    def forward(module: Any, x: Tensor) -> Tensor:
        y = module.inner(x)
        y += x
        return y.relu_()

    assert [node.step for node in draw(_module(forward)).nodes if node.step] == ["linear", "add", "relu"]


def test_unused_parameters_are_listed() -> None:
    samples = draw(_module(lambda module, x: module.inner(x)))
    assert any(
        isinstance(s, TextLine) and s.regular == "not used here: spare.weight, spare.bias" for s in samples.shapes
    )


def test_layers_read_elsewhere_are_not_folded() -> None:
    """A mean over all layers cannot be drawn with one layer representing them."""

    class SumOfLayers(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            first = self.layers[0](x)
            return first + self.layers[1](first)

    def both(d: int = 4) -> nn.Module:
        return SumOfLayers(d)

    both.inputs = lambda d, T=3: torch.zeros(T, d)  # pyright: ignore[reportFunctionMemberAccess]
    assert [node.step for node in draw(factory_subject(both, {})).nodes if node.step] == ["linear", "linear", "add"]


def test_path_indices_that_are_not_layers_are_preserved() -> None:
    class Blocks(nn.Module):
        def __init__(self, d: int, L: int) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(d, 3 * d), nn.Linear(3 * d, d)) for _ in range(L))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    def blocks(d: int = 4, L: int = 2) -> nn.Module:
        return Blocks(d, L)

    blocks.inputs = lambda d, T=3: torch.zeros(T, d)  # pyright: ignore[reportFunctionMemberAccess]
    samples = {node.name: node for node in draw(factory_subject(blocks, {})).nodes}
    d, L = symbol("d"), symbol("L")
    assert samples["blocks.*.0.weight"].shape == (3 * d, d) and samples["blocks.*.1.weight"].shape == (d, 3 * d)
    assert samples["blocks.*.0.weight"].repeats == L


def test_input_shared_by_layers_has_a_separate_step() -> None:
    formulas = {node.name: node.formula for node in drawing("table-a5").nodes}
    assert formulas["hidden"] == "hidden = embedded"
    assert formulas["attended₂"] == "attended₂ = multi-head attention(norm1₂, embedded₂, embedded₂)"


def test_drawing_is_saved_in_every_format(tmp_path: Path) -> None:
    samples = drawing("self-attention")
    samples.save(tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == samples.svg == samples._repr_html_()
    pytest.importorskip("vl_convert")
    assert samples.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="saved as"):
        samples.save(tmp_path / "a.pdf")


def test_drawing_to_dict_holds_shapes_and_steps() -> None:
    base = drawing("self-attention").to_dict()
    assert base["symbols"] == {"E": 64, "H": 4, "M_QK": 16, "M_V": 16, "S": 32}
    (concat,) = [node for node in base["nodes"] if node["name"] == "concat"]
    assert concat["shape"] == ["S", "H*M_V"] and concat["step"] == "rearrange" and concat["reads"] == ["heads"]


def test_text_width_is_not_underestimated() -> None:
    """Compare with the advance widths of a common wide sans-serif font, in thousandths of its size."""
    advances = {"M": 863, "e": 615, "i": 278, "S": 635, "×": 838, " ": 318, "W": 989, "0": 636, "√": 637, "H": 752}
    text = "W × H  MMSS 0 ieee √"
    assert text_width(text) >= 14 * sum(advances[letter] for letter in text) / 1000 * 0.95


def test_layout_rows_fit_the_page_width() -> None:
    blocks = {("block", n): LayoutBlock(300, 20, 150) for n in range(7)}
    edges = [(("block", 0), ("block", n)) for n in range(1, 6)] + [(("block", n), ("block", 6)) for n in range(1, 6)]
    layout = arrange(blocks, edges, 700)
    assert layout.width <= 700
    assert all(layout.corners[a][1] < layout.corners[b][1] for a, b in edges)
