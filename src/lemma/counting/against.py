"""The figures of other counting tools next to the exact ones."""

import io
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from functools import cached_property
from html import escape
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lemma.counting.measure import Whereabouts, followed, products
from lemma.counting.probe import pattern_of
from lemma.counting.subject import Inputs, Subject
from lemma.errors import InputError, unknown
from lemma.report.text import fit, table

# A module that any tool can run: one tensor in, and only tensors out.


INSIDE = "module"


class Plain(nn.Module):
    """Runs a module on inputs of its own, since some tools pass one tensor only and some trace only tensors.

    Tools see the module itself, under the name `module`, called as ever. Some write what they count on the parts, as
    `__flops__`, and take it away at the end: it is `noted` here while it is there.
    """

    def __init__(self, module: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.module, self.inputs = module, inputs
        self.noted: dict[str, float] = {}

    def forward(self, signal: Tensor) -> tuple[Tensor, ...]:
        """Run the module, whatever was passed in."""
        outputs = self.module(*self.inputs.positional, **self.inputs.named)
        self.noted = {path: part.__dict__.get("__flops__", 0) for path, part in self.module.named_modules()}
        return tuple(_tensors(outputs))

    @property
    def signal(self) -> Tensor:
        """Something to pass in."""
        return torch.zeros(1)


def path_within(path: str) -> str | None:
    """The path of a part within the module; None for what is around it.

    >>> path_within("module.layers.0"), path_within("module"), path_within("")
    ('layers.0', '', None)
    """
    first, _, rest = path.partition(".")
    return rest if first == INSIDE else None


def _tensors(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, dict):
        yield from _tensors(list(outputs.values()))
    elif isinstance(outputs, (tuple, list)):
        for output in outputs:
            yield from _tensors(output)


# The exact figures of a module, module by module, and the functions that do the work.


ATTENTION = ("scaled_dot_product_attention", "multi_head_attention_forward")
NOTED = (*ATTENTION, "matmul", "bmm", "addmm", "baddbmm", "einsum", "linear", "lstm", "gru")


@dataclass(frozen=True)
class Exact:
    """Parameters and forward operations of every module, without those of the modules in it."""

    parameters: Mapping[str, int]
    operations: Mapping[str, int]
    kinds: Mapping[str, str]
    """The class of every module."""
    functions: Mapping[str, tuple[str, ...]]
    """The functions that a module itself calls and that multiply."""

    @cached_property
    def all_parameters(self) -> int:
        """The whole module's."""
        return sum(self.parameters.values())

    @cached_property
    def all_operations(self) -> int:
        """The whole module's."""
        return sum(self.operations.values())


def exact_figures(subject: Subject) -> Exact:
    """Read a subject at its own sizes, on the meta device."""
    values = subject.sizes(running=True)
    module, inputs = subject.build(values), subject.inputs(values)
    counted: Counter[str] = Counter()
    for name, parameter in module.named_parameters():
        counted[name.rpartition(".")[0]] += parameter.numel()
    kinds = {path: type(part).__name__ for path, part in module.named_modules()}
    functions = functions_called(module, inputs)
    operations = {path: row[0] for path, row in products(module, inputs).items() if row[0]}
    return Exact(counted, operations, kinds, functions)


def grouped(counts: Mapping[str, float]) -> dict[str, float]:
    """Add up what belongs to repeated layers."""
    groups: dict[str, float] = {}
    for path, count in counts.items():
        groups[pattern_of(path)] = groups.get(pattern_of(path), 0) + count
    return groups


def functions_called(module: nn.Module, inputs: Inputs) -> dict[str, tuple[str, ...]]:
    """Run a module and note which functions that multiply are called in each of its parts."""
    with followed(module) as where, torch.no_grad(), Noted(where) as noted:
        module(*inputs.positional, **inputs.named)
    return {path: tuple(dict.fromkeys(names)) for path, names in noted.found.items()}


class Noted(TorchFunctionMode):
    """Notes the names of functions under the path at which they are called."""

    def __init__(self, where: Whereabouts) -> None:
        super().__init__()
        self.where = where
        self.found: dict[str, list[str]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note it and call it."""
        name = getattr(func, "__name__", "").strip("_")
        if name in NOTED:
            self.found.setdefault(self.where.now, []).append(name)
        return func(*args, **(kwargs or {}))


# Other tools that count, each behind one function. None of them is needed: they are imported when asked for.


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


# Which module explains that a tool's number is not the exact one.


MOST_NAMED = 2
MOST_TOGETHER = 3


class Wording(NamedTuple):
    """How to speak of what is counted in one place and not in the other."""

    missing: str
    superfluous: str


WORK = Wording("its work", "where no matrices are multiplied")
PARAMETERS = Wording("its parameters", "for parameters it has none of, or shares")


def why_parameters(reading: Reading, exact: Exact) -> str:
    """The modules whose parameters make up the difference."""
    difference = reading.parameters - exact.all_parameters
    if not difference:
        return ""
    mine, kinds = grouped(exact.parameters), _kinds(exact)
    return _made_up_of(difference, mine, kinds) or _parting(
        mine, grouped(reading.holdings or {}), kinds, {}, PARAMETERS
    )


def why_operations(reading: Reading, exact: Exact) -> str:
    """The modules at which the numbers part, and what was counted outside of any."""
    if reading.operations == exact.all_operations:
        return ""
    functions = {pattern_of(path): ", ".join(names) for path, names in exact.functions.items()}
    said = _parting(grouped(exact.operations), grouped(reading.modules), _kinds(exact), functions, WORK)
    outside = reading.operations - sum(reading.modules.values())
    return said + (f"; counted in no module: {outside:,.0f}" if outside else "")


def _parting(
    mine: Mapping[str, float],
    theirs: Mapping[str, float],
    kinds: Mapping[str, str],
    done: Mapping[str, str],
    what: Wording,
) -> str:
    """The modules whose numbers are farthest apart, in words."""
    apart = {path: abs(theirs.get(path, 0) - mine.get(path, 0)) for path in {**mine, **theirs}}
    worst = sorted((path for path in apart if apart[path]), key=lambda path: -apart[path])
    named = [
        _at(_named(path, kinds), mine.get(path, 0), theirs.get(path, 0), what, done.get(path, ""))
        for path in worst[:MOST_NAMED]
    ]
    return "; ".join(named + ([f"{len(worst) - MOST_NAMED} more"] if len(worst) > MOST_NAMED else []))


def _at(where: str, mine: float, theirs: float, what: Wording, done: str) -> str:
    if not mine:
        return f"{where}: {theirs:,.0f} {what.superfluous}"
    if not theirs:
        return f"{where}: {done or what.missing} not counted ({mine:,.0f})"
    return f"{where}: {theirs:,.0f} instead of {mine:,.0f}"


def _made_up_of(difference: float, groups: Mapping[str, float], kinds: Mapping[str, str]) -> str:
    """The fewest groups that sum up to the difference; nothing if none do."""
    counted = [path for path, count in groups.items() if count]
    for number in range(1, min(MOST_TOGETHER, len(counted)) + 1):
        for chosen in combinations(counted, number):
            if sum(groups[path] for path in chosen) == abs(difference):
                verb = "counted twice" if difference > 0 else "not counted"
                return f"{', '.join(_named(path, kinds) for path in chosen)}: {verb}"
    return ""


def _named(path: str, kinds: Mapping[str, str]) -> str:
    kind = kinds.get(path, "")
    return f"{path} ({kind})" if path and kind else path or kind


def _kinds(exact: Exact) -> dict[str, str]:
    return {pattern_of(path): kind for path, kind in exact.kinds.items()}


# The table of what other tools say.


HEADS = ("tool", "parameters", "ratio", "forward FLOPs", "ratio", "what it counts")


@dataclass(frozen=True)
class Row:
    """What one tool says beside the exact figures, and why; or why it says nothing."""

    tool: str
    parameters: int | None = None
    parameters_ratio: float | None = None
    operations: float | None = None
    operations_ratio: float | None = None
    convention: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[str, ...]:
        """Its cells in the table."""
        ratios = [_ratio(self.parameters_ratio), _ratio(self.operations_ratio)]
        return self.tool, _number(self.parameters), ratios[0], _number(self.operations), ratios[1], self.convention


@dataclass(frozen=True)
class Comparison:
    """Each tool's numbers, their ratio to the exact ones, and the module that explains the difference."""

    model: str
    parameters: int
    operations: int
    rows: tuple[Row, ...]

    @property
    def exact(self) -> Row:
        """The exact figures as a row."""
        return Row(
            "lemma", self.parameters, 1.0, self.operations, 1.0, "matrix products, multiply–add = 2, attention in full"
        )

    def __str__(self) -> str:
        rows = (self.exact, *self.rows)
        lines = table([HEADS[:-1], *(row.cells[:-1] for row in rows)])
        said = [lines[0]]
        for row, line in zip(rows, lines[1:], strict=True):
            said += [line, *(fit(f"    {about}") for about in (row.convention, *row.reasons) if about)]
        return "\n".join([self.model, *said])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        exact = {"parameters": self.parameters, "operations": self.operations}
        return {
            "model": self.model,
            **exact,
            "tools": [{**asdict(row), "reasons": list(row.reasons)} for row in self.rows],
        }

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{escape(head)}</th>" for head in HEADS)
        rows = "".join(_html(row) for row in (self.exact, *self.rows))
        return f"<table><caption>{escape(self.model)}</caption><tr>{heads}</tr>{rows}</table>"


def _html(row: Row) -> str:
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in row.cells)
    reasons = "<br>".join(escape(reason) for reason in row.reasons)
    below = (
        f'<tr><td></td><td colspan="5" style="text-align: left"><small>{reasons}</small></td></tr>' if reasons else ""
    )
    return f"<tr>{cells}</tr>{below}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


# A model counted by other tools, and their numbers judged by the exact ones.


LARGEST_RUN = 2**32
"""Bytes of parameters up to which a model is really run, since these tools need real tensors."""


def against(subject: Subject, tools: Sequence[str] = tuple(TOOLS)) -> Comparison:
    """Count a subject with other tools, each on a fresh copy on the CPU, at the sizes asked for."""
    wrong = next((tool for tool in tools if tool not in TOOLS), None)
    if wrong is not None:
        raise InputError(unknown("tool", wrong, TOOLS))
    exact = exact_figures(subject)
    rows = tuple(_row(tool, subject, exact) for tool in tools)
    return Comparison(subject.name, exact.all_parameters, exact.all_operations, rows)


def _row(tool: str, subject: Subject, exact: Exact) -> Row:
    if 4 * exact.all_parameters > LARGEST_RUN:
        return Row(tool, reasons=(f"not run: it needs real tensors, more than {LARGEST_RUN // 2**30} GiB of them",))
    values = subject.sizes(running=True)
    try:
        with quiet():
            reading = TOOLS[tool](Plain(subject.build(values, "cpu"), subject.inputs(values, "cpu")))
    except ImportError as error:
        return Row(tool, reasons=(_not_installed(tool, error),))
    except Exception as error:  # a stranger's tool may fail in any way
        return Row(tool, reasons=(f"failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}",))
    reasons = {"parameters: ": why_parameters(reading, exact), "FLOPs: ": why_operations(reading, exact)}
    said = [about + reason for about, reason in reasons.items() if reason]
    said += [reading.remark] if reading.remark and reading.operations != exact.all_operations else []
    return Row(
        tool,
        reading.parameters,
        _compare_ratio(reading.parameters, exact.all_parameters),
        reading.operations,
        _compare_ratio(reading.operations, exact.all_operations),
        reading.convention,
        tuple(said),
    )


def _not_installed(tool: str, error: ImportError) -> str:
    missing = (error.name or tool).partition(".")[0]
    needed = "" if missing == tool else f" (it needs {missing})"
    return f"not installed{needed}: pip install {missing}"


def _compare_ratio(theirs: float, exact: int) -> float | None:
    return theirs / exact if exact else None


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what tools print and warn about to themselves."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
