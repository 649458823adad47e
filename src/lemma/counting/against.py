"""Comparison with other counting tools: their figures next to the exact ones, and the module that differs."""

import io
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lemma.counting.fit import path_pattern
from lemma.counting.measure import MetaGroupedMM, output_tensors, product_flops, reference_kernels, track_paths
from lemma.counting.subject import Inputs, Subject
from lemma.errors import InputError, describe_unknown
from lemma.report.result import Block, Heading, Result, Table, Text
from lemma.report.text import format_table, wrap_lines

MAX_RUN_BYTES = 2**32  # bytes of parameters up to which a model is really run, since these tools need real tensors
PRODUCT_FUNCTIONS = ("scaled_dot_product_attention", "multi_head_attention_forward", "einsum", "linear", "lstm", "gru")
PRODUCT_FUNCTIONS += ("matmul", "bmm", "addmm", "baddbmm", "grouped_mm", "conv1d", "conv2d", "conv3d")
MULTIPLY_ADDS = "multiply–adds, ×2 here"
MAX_NAMED, MAX_COMBINED = 2, 3  # modules that differ, and modules that sum up to a difference


@dataclass(frozen=True)
class ToolRow:
    """The figures of one tool, their ratio to the exact ones and the reasons; or the reason why it has none."""

    tool: str
    parameters: int | None = None
    parameters_ratio: float | None = None
    flops: float | None = None
    flops_ratio: float | None = None
    convention: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[str, ...]:
        numbers = ["–" if value is None else f"{value:,.0f}" for value in (self.parameters, self.flops)]
        ratios = ["" if value is None else f"{value:.3f}" for value in (self.parameters_ratio, self.flops_ratio)]
        return self.tool, numbers[0], ratios[0], numbers[1], ratios[1], self.convention


@dataclass(frozen=True)
class ToolComparison(Result):
    """Numbers of other tools, their ratio to the exact ones, and the module that explains the difference."""

    model: str
    parameters: int
    flops: int
    rows: tuple[ToolRow, ...]
    header = ("tool", "parameters", "ratio", "forward FLOPs", "ratio", "what it counts")

    @property
    def title(self) -> str:
        return self.model

    @property
    def all_rows(self) -> tuple[ToolRow, ...]:
        convention = "matrix products, multiply–add = 2, attention in full"
        return ToolRow("lemma", self.parameters, 1.0, self.flops, 1.0, convention), *self.rows

    def blocks(self) -> Iterator[Block]:
        header, *table = format_table([self.header[:-1], *(row.cells[:-1] for row in self.all_rows)])
        lines = [self.model, header]
        for row, line in zip(self.all_rows, table, strict=True):
            lines += [line, *(wrap_lines(f"    {note}") for note in (row.convention, *row.reasons) if note)]
        yield Text("\n".join(lines))

    def details(self) -> Iterator[Block]:
        rows = [[row.cells, *(("", "", "", "", "", reason) for reason in row.reasons)] for row in self.all_rows]
        yield Heading(self.model, 1)
        yield Table(self.header, [cells for row in rows for cells in row], left=(0, 5), breakable=(5,))

    def to_dict(self) -> dict[str, Any]:
        tools = [
            {name.replace("flops", "operations"): value for name, value in vars(row).items()}
            | {"reasons": list(row.reasons)}
            for row in self.rows
        ]
        return {"model": self.model, "parameters": self.parameters, "operations": self.flops, "tools": tools}

    def records(self) -> list[dict[str, Any]]:
        return [{**tool, "reasons": "; ".join(tool["reasons"])} for tool in self.to_dict()["tools"]]


def compare_tools(subject: Subject, tools: Sequence[str] | None = None) -> ToolComparison:
    """Count a subject's parameters and FLOPs with other tools ("fvcore", …) on the CPU, and compare with Lemma's.

    Each tool gets a new copy of the module at the requested sizes; by default all tools are run.
    """
    tools = tuple(TOOLS) if tools is None else tools
    wrong = next((tool for tool in tools if tool not in TOOLS), None)
    if wrong is not None:
        raise InputError(describe_unknown("tool", wrong, TOOLS))
    exact = count_exactly(subject)
    rows = tuple(_compare_tool(tool, subject, exact) for tool in tools)
    return ToolComparison(subject.name, exact.total_parameters, exact.total_flops, rows)


def _compare_tool(tool: str, subject: Subject, exact: "ExactCounts") -> ToolRow:
    """Count a subject with one tool; return its counts with explained differences, or the reason why it failed."""
    if 4 * exact.total_parameters > MAX_RUN_BYTES:
        reason = f"not run: it needs real tensors, more than {MAX_RUN_BYTES // 2**30} GiB of them"
        return ToolRow(tool, reasons=(reason,))
    values = subject.sizes(with_inputs=True)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            module = SelfFeedingModule(subject.build(values, "cpu"), subject.build_inputs(values, "cpu"))
            tool_count = TOOLS[tool](module)
    except ImportError as error:
        missing = (error.name or tool).partition(".")[0]
        needed = "" if missing == tool else f" (it needs {missing})"
        return ToolRow(tool, reasons=(f"not installed{needed}: pip install {missing}",))
    except Exception as error:  # another tool may fail in any way
        reason = f"failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
        return ToolRow(tool, reasons=(reason,))
    reasons = []
    if tool_count.parameters != exact.total_parameters and (why := _explain_parameters(tool_count, exact)):
        reasons.append(f"parameters: {why}")
    if tool_count.flops != exact.total_flops:
        reasons += [f"FLOPs: {_explain_flops(tool_count, exact)}", *([tool_count.note] if tool_count.note else [])]
    return ToolRow(
        tool,
        tool_count.parameters,
        tool_count.parameters / exact.total_parameters if exact.total_parameters else None,
        tool_count.flops,
        tool_count.flops / exact.total_flops if exact.total_flops else None,
        tool_count.convention,
        tuple(reasons),
    )


@dataclass(frozen=True)
class ExactCounts:
    """Parameters and forward FLOPs of every module, without those of the modules in it.

    Attributes:
        classes: the class name of every module.
        functions: the functions with matrix products that a module itself calls.
    """

    parameters: Mapping[str, int]
    flops: Mapping[str, int]
    classes: Mapping[str, str]
    functions: Mapping[str, Sequence[str]]

    @cached_property
    def total_parameters(self) -> int:
        return sum(self.parameters.values())

    @cached_property
    def total_flops(self) -> int:
        return sum(self.flops.values())


def count_exactly(subject: Subject) -> ExactCounts:
    """Count a subject's parameters and forward FLOPs per module at its requested sizes, on the meta device."""
    values = subject.sizes(with_inputs=True)
    module, inputs = subject.build(values), subject.build_inputs(values)
    parameters: Counter[str] = Counter()
    for name, parameter in module.named_parameters():
        parameters[name.rpartition(".")[0]] += parameter.numel()
    classes = {path: type(part).__name__ for path, part in module.named_modules()}
    functions: dict[str, dict[str, None]] = {}

    class FunctionNames(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "").strip("_")
            if name in PRODUCT_FUNCTIONS:
                functions.setdefault(tracker.current, {})[name] = None
            return func(*args, **(kwargs or {}))

    with MetaGroupedMM(), reference_kernels():
        with track_paths(module) as tracker, torch.no_grad(), FunctionNames():
            module(*inputs.args, **inputs.kwargs)
        flops = {path: row[0] for path, row in product_flops(module, inputs).items() if row[0]}
    return ExactCounts(parameters, flops, classes, {path: tuple(names) for path, names in functions.items()})


class SelfFeedingModule(nn.Module):
    """Runs a module on inputs of its own, since some tools pass one tensor only and some trace only tensors.

    Tools see the module itself, under the name `module`, called as usual. calflops writes what it counts on the parts,
    as `__flops__`, and takes it away at the end: it is read here while it is there.
    """

    def __init__(self, module: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.module, self.inputs, self.signal = module, inputs, torch.zeros(1)  # something to pass in
        self.flops_by_path: dict[str, float] = {}

    def forward(self, signal: Tensor) -> tuple[Tensor, ...]:
        """Ignore `signal`, run the wrapped module on its own inputs, and return the tensors of its output."""
        outputs = self.module(*self.inputs.args, **self.inputs.kwargs)
        self.flops_by_path = {path: part.__dict__.get("__flops__", 0) for path, part in self.module.named_modules()}
        return tuple(output_tensors(outputs))


@dataclass(frozen=True)
class ToolCount:
    """The figures of a tool, with a multiply–add as two."""

    parameters: int
    flops: float
    convention: str
    flops_by_path: Mapping[str, float]  # of every module without the modules in it, where the tool reports them
    note: str = ""


def count_with_torch(wrapper: SelfFeedingModule) -> ToolCount:
    """Count FLOPs with PyTorch's own `torch.utils.flop_counter.FlopCounterMode`, which has no count of parameters."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        wrapper(wrapper.signal)
    counts, root = counter.get_flop_counts(), type(wrapper).__name__
    called = (path for path, _ in wrapper.named_modules() if path and f"{root}.{path}" in counts)
    totals = {path: sum(counts[f"{root}.{path}"].values()) for path in called}
    parameters = sum(parameter.numel() for parameter in wrapper.parameters())
    exclusive = _strip_wrapper(_without_children(wrapper, totals))
    return ToolCount(parameters, counter.get_total_flops(), "matrix products in a run on a CPU", exclusive)


def count_with_torchinfo(wrapper: SelfFeedingModule) -> ToolCount:
    """Count parameters and FLOPs with `torchinfo.summary`."""
    from torchinfo import summary  # pyright: ignore[reportMissingImports]

    statistics = summary(wrapper, input_data=[wrapper.signal], verbose=0)
    names = {id(module): name for name, module in wrapper.named_modules()}
    leaves = ((names[layer.layer_id], 2 * layer.macs) for layer in statistics.summary_list if layer.is_leaf_layer)
    return ToolCount(statistics.total_params, 2 * statistics.total_mult_adds, MULTIPLY_ADDS, _strip_wrapper(leaves))


def count_with_fvcore(wrapper: SelfFeedingModule) -> ToolCount:
    """Count parameters and FLOPs with `fvcore.nn.FlopCountAnalysis`."""
    from fvcore.nn import FlopCountAnalysis, parameter_count  # pyright: ignore[reportMissingImports]

    analysis = (
        FlopCountAnalysis(wrapper, (wrapper.signal,)).unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    )
    totals = {name: 2 * count for name, count in analysis.by_module().items()}
    exclusive = _without_children(wrapper, totals)
    skipped = ", ".join(sorted(name.removeprefix("aten::") for name in analysis.unsupported_ops()))
    note = f"it says that it skips {skipped}" if skipped else ""
    return ToolCount(
        parameter_count(wrapper)[""], 2 * analysis.total(), MULTIPLY_ADDS, _strip_wrapper(exclusive), note=note
    )


def count_with_calflops(wrapper: SelfFeedingModule) -> ToolCount:
    """Count parameters and FLOPs with `calflops.calculate_flops`."""
    from calflops import calculate_flops  # pyright: ignore[reportMissingImports]

    flops, _, parameters = calculate_flops(wrapper, args=[wrapper.signal], print_results=False, output_as_string=False)
    return ToolCount(int(parameters), flops, "FLOPs, some elementwise work counted", wrapper.flops_by_path)


TOOLS: dict[str, Callable[[SelfFeedingModule], ToolCount]] = {
    "torch": count_with_torch,
    "torchinfo": count_with_torchinfo,
    "fvcore": count_with_fvcore,
    "calflops": count_with_calflops,
}


def _without_children(wrapper: nn.Module, totals: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yield (path, count) of every module without the modules in it, from `totals` with them.

    Containers that are never called may be missing in `totals`.
    """

    def inside(path: str) -> float:
        children = (f"{path}.{child}".removeprefix(".") for child, _ in wrapper.get_submodule(path).named_children())
        return sum(totals[child] if child in totals else inside(child) for child in children)

    for path, total in totals.items():
        yield path, total - inside(path)


def _strip_wrapper(counts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Remove the prefix `module.` of `SelfFeedingModule` from the paths of (path, count) pairs.

    Return counts by path.
    """
    by_path: dict[str, float] = defaultdict(int)
    for name, count in counts:
        first, _, path = name.partition(".")
        if first == "module":
            by_path[path] += count  # a module may be listed once for every call
    return by_path


def _explain_parameters(tool_count: ToolCount, exact: ExactCounts) -> str:
    """Name the fewest modules whose parameters add up to the tool's difference from `exact`; return "" if no few do."""
    difference, expected = tool_count.parameters - exact.total_parameters, _sum_by_pattern(exact.parameters)
    for number in range(1, MAX_COMBINED + 1):
        for paths in combinations([path for path, count in expected.items() if count], number):
            if sum(expected[path] for path in paths) == abs(difference):
                verb = "counted twice" if difference > 0 else "not counted"
                return f"{', '.join(_label_path(path, exact) for path in paths)}: {verb}"
    return ""


def _explain_flops(tool_count: ToolCount, exact: ExactCounts) -> str:
    """Name the modules whose FLOPs differ most between the tool and `exact`, and FLOPs counted outside any module."""
    functions = {path_pattern(path): ", ".join(names) for path, names in exact.functions.items()}
    expected, actual = _sum_by_pattern(exact.flops), _sum_by_pattern(tool_count.flops_by_path)
    parameters = _sum_by_pattern(exact.parameters)
    distances = {path: abs(actual[path] - expected[path]) for path in {**expected, **actual}}
    worst = sorted((path for path in distances if distances[path]), key=lambda path: -distances[path])
    texts: list[str] = []
    for path in worst[:MAX_NAMED]:
        if not expected[path]:
            text = f"{actual[path]:,.0f} where no matrices are multiplied"
        elif not actual[path]:
            text = f"{functions.get(path) or 'its work'} not counted ({expected[path]:,.0f})"
        elif actual[path] == 2 * parameters[path]:
            text = (
                f"each parameter used once, not for every token ({actual[path]:,.0f} instead of {expected[path]:,.0f})"
            )
        else:
            text = f"{actual[path]:,.0f} instead of {expected[path]:,.0f}"
        texts.append(f"{_label_path(path, exact)}: {text}")
    texts += [f"{len(worst) - MAX_NAMED} more"] if len(worst) > MAX_NAMED else []
    outside = tool_count.flops - sum(tool_count.flops_by_path.values())
    return "; ".join([*texts, *([f"counted in no module: {outside:,.0f}"] if outside else [])])


def _sum_by_pattern(counts: Mapping[str, float]) -> Counter[str]:
    """Add up counts over repeated layers: keys `layers.0.mlp`, `layers.1.mlp` become `layers.*.mlp`."""
    groups: Counter[str] = Counter()
    for path, count in counts.items():
        groups[path_pattern(path)] += count  # pyright: ignore[reportArgumentType]
    return groups


def _label_path(path: str, exact: ExactCounts) -> str:
    """Return a module's path pattern with its class name, such as `layers.*.mlp (Linear)`."""
    kind = {path_pattern(other): kind for other, kind in exact.classes.items()}.get(path, "")
    return f"{path} ({kind})" if path and kind else path or kind
