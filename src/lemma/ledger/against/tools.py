"""Other tools that count, each behind one function. None of them is needed: they are imported when asked for."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from lemma.ledger.against.plain import INSIDE, Plain, path_within

MULTIPLY_ADDS = "multiply–adds, ×2 here"


@dataclass(frozen=True)
class Reading:
    """What a tool says: its parameters, its operations with a multiply–add as two, and what it counts in its own words.

    `modules` are the operations of every module without those of the modules in it, where the tool tells them, and
    `holdings` its parameters likewise.
    """

    parameters: int
    operations: float
    convention: str
    modules: Mapping[str, float]
    holdings: Mapping[str, float] | None = None
    remark: str = ""


def with_torchinfo(plain: Plain) -> Reading:
    """`torchinfo.summary`."""
    from torchinfo import summary  # pyright: ignore[reportMissingImports]

    found = summary(plain, input_data=[plain.signal], verbose=0)
    names = {id(module): name for name, module in plain.named_modules()}
    leaves = ((names[layer.layer_id], 2 * layer.macs) for layer in found.summary_list if layer.is_leaf_layer)
    return Reading(found.total_params, 2 * found.total_mult_adds, MULTIPLY_ADDS, _within(leaves))


def with_fvcore(plain: Plain) -> Reading:
    """`fvcore.nn.FlopCountAnalysis`."""
    from fvcore.nn import FlopCountAnalysis, parameter_count  # pyright: ignore[reportMissingImports]

    found = FlopCountAnalysis(plain, (plain.signal,)).unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    whole = {name: 2 * count for name, count in found.by_module().items()}
    own = ((name, count - _of_children(plain, name, whole)) for name, count in whole.items())
    skipped = ", ".join(sorted(name.removeprefix("aten::") for name in found.unsupported_ops()))
    remark = f"it says that it skips {skipped}" if skipped else ""
    return Reading(parameter_count(plain)[""], 2 * found.total(), MULTIPLY_ADDS, _within(own), remark=remark)


def with_calflops(plain: Plain) -> Reading:
    """`calflops.calculate_flops`."""
    from calflops import calculate_flops  # pyright: ignore[reportMissingImports]

    operations, _, parameters = calculate_flops(plain, args=[plain.signal], print_results=False, output_as_string=False)
    return Reading(int(parameters), operations, "FLOPs, some elementwise work counted", plain.noted)


def with_ptflops(plain: Plain) -> Reading:
    """`ptflops.get_model_complexity_info`."""
    from ptflops import get_model_complexity_info  # pyright: ignore[reportMissingImports]

    products, parameters = get_model_complexity_info(
        plain, (1,), input_constructor=lambda _: {"signal": plain.signal}, as_strings=False, print_per_layer_stat=False
    )
    if products is None:
        raise RuntimeError("it gave up; its message went to its own output")
    modules = {path: 2 * count for path, count in plain.noted.items()}
    return Reading(int(parameters), 2 * products, MULTIPLY_ADDS, modules)


def with_thop(plain: Plain) -> Reading:
    """`thop.profile`."""
    from thop import profile  # pyright: ignore[reportMissingImports]

    products, parameters, layers = profile(plain, inputs=(plain.signal,), verbose=False, ret_layer_info=True)
    inside = layers.get(INSIDE, (products, parameters, {}))
    modules, holdings = _own_of_thop("", inside, 0), _own_of_thop("", inside, 1)
    doubled = {path: 2 * count for path, count in modules.items()}
    return Reading(int(parameters), 2 * products, MULTIPLY_ADDS, doubled, holdings)


TOOLS: dict[str, Callable[[Plain], Reading]] = {
    "torchinfo": with_torchinfo,
    "fvcore": with_fvcore,
    "calflops": with_calflops,
    "ptflops": with_ptflops,
    "thop": with_thop,
}


def _within(counts: Iterable[tuple[str, float]]) -> dict[str, float]:
    inside: dict[str, float] = {}
    for name, count in counts:
        path = path_within(name)
        if path is not None:
            inside[path] = inside.get(path, 0) + count  # a module may be listed once for every call
    return inside


def _of_children(plain: nn.Module, name: str, whole: Mapping[str, float]) -> float:
    children = (f"{name}.{child}".removeprefix(".") for child, _ in plain.get_submodule(name).named_children())
    return sum(whole.get(child, 0) for child in children)


def _own_of_thop(path: str, layer: Sequence[Any], column: int) -> dict[str, float]:
    children = layer[2]
    own = {path: layer[column] - sum(child[column] for child in children.values())}
    for name, child in children.items():
        own |= _own_of_thop(f"{path}.{name}".removeprefix("."), child, column)
    return own
