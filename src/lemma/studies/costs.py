"""Studies that train nothing: what layers cost by formula, and the time they take (problems D3 and C4)."""

import math
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lemma.counting.account import Account
from lemma.counting.count import count
from lemma.counting.subject import resolve_subject
from lemma.errors import SpecError
from lemma.layers.attention import Attention, AttentionShape
from lemma.models.recurrent import build_recurrent
from lemma.report.curves import Curve, Plot
from lemma.report.progress import Observer
from lemma.report.result import Heading, Text
from lemma.spec.studies import HeadsStudy, LengthStudy
from lemma.studies.cells import CellOutcome, StudyCell
from lemma.studies.experiment import Experiment
from lemma.studies.result import StudyResult, StudyTable
from lemma.studies.timing import Quartiles, device_of, quartiles, time_in_turns, time_ratio
from lemma.training.devices import fork_random
from lemma.training.session import seed_random

Vectors = Float[Tensor, "batch time width"]
TIMING_NOTE = (
    "Times: median of the rounds with the quartiles in brackets. All models run in one process, once a round, each "
    "round beginning with another one; ratios are taken round by round."
)


@dataclass(frozen=True)
class LayerCost:
    """Costs of a layer at one size: counts by formula, and measured times in seconds."""

    settings: Mapping[str, Any]
    counts: Mapping[str, int]
    forward: Quartiles
    both: Quartiles  # forward and backward
    forward_ratio: Quartiles  # against the baseline, as the next
    both_ratio: Quartiles

    def to_dict(self, flat: bool = False) -> dict[str, Any]:
        """Return a JSON-ready dictionary of settings, counts and times; with `flat`, for CSV, without nested tables."""
        times = {name: asdict(getattr(self, name)) for name in ("forward", "both", "forward_ratio", "both_ratio")}
        ends = {f"{name}_{end}": value for name, time in times.items() for end, value in time.items()}
        return {**self.settings, **self.counts, **(ends if flat else times)}

    def cells(self) -> list[str]:
        """Return the table cells of this layer, times in milliseconds."""
        times = (self.forward.scale(1e3), self.forward_ratio, self.both.scale(1e3), self.both_ratio)
        return [
            *map(str, self.settings.values()),
            *(f"{number:,}" for number in self.counts.values()),
            *map(str, times),
        ]

    @property
    def ratio_text(self) -> str:
        """Return the times as ratios to the baseline's: "forward 1.2 ×, forward and backward 1.3 ×"."""
        return f"forward {self.forward_ratio} ×, forward and backward {self.both_ratio} ×"


@dataclass(frozen=True)
class RaceCosts:
    """The costs of all layers of one cell, which were timed in turns: a race."""

    rows: tuple[LayerCost, ...]


class CostExperiment(Experiment[RaceCosts]):
    """Base class of experiments that count layers by formula and time them in turns; each cell is one race."""

    stores_measures = False
    formulas: Mapping[str, str]  # by what they count
    convention: str  # how the formulas count
    baseline: Any  # the layer with which all others are compared
    baseline_name: str
    no_plot_reason: str  # for results without a plot

    def __init__(self, spec: HeadsStudy | LengthStudy, out: Path, observer: Observer) -> None:
        self.spec, self.out, self.observer = spec, out, observer
        self.device = device_of(spec)
        check_memory(spec, self.device)

    @abstractmethod
    def timed_layers(self, point: Mapping[str, Any]) -> dict[Any, tuple[dict[str, Any], Callable[[], Vectors]]]:
        """Return, by name of each layer to time at a grid point, its settings and a function that runs it forward."""

    @abstractmethod
    def count_costs(self, settings: Mapping[str, Any]) -> dict[str, int]:
        """Return the counts of a layer with these settings, such as "parameters" and "flops"."""

    @abstractmethod
    def conclude(self, rows: Sequence[LayerCost]) -> Iterator[str]:
        """Yield the sentences of the conclusion, from the costs of all layers."""

    @abstractmethod
    def plots(self, rows: Sequence[LayerCost]) -> Iterator[Plot]:
        """Yield plots of times, or of ratios of times."""

    def random_inputs(self, length: int) -> Vectors:
        """Return random vectors of shape (batch, length, width)."""
        return torch.randn(self.spec.batch, length, self.spec.width, device=self.device)

    def run(self, cell: StudyCell, observer: Observer) -> RaceCosts:
        """Time all layers of a cell in turns, forward and with backward; return their times and counts."""

        @torch.no_grad()
        def infer(forward: Callable[[], Vectors]) -> None:
            """Run a layer forward, without gradients."""
            forward()

        def train(forward: Callable[[], Vectors]) -> None:
            """Run a layer forward and backward."""
            forward().sum().backward()

        observer.start("timing", 2, "races")
        with fork_random(torch.device(self.device)):
            timed_layers = {str(name): layer for name, layer in self.timed_layers(cell.point).items()}
        times = []
        for done, act in enumerate((infer, train), start=1):
            calls = {name: partial(act, forward) for name, (_, forward) in timed_layers.items()}
            times.append(time_in_turns(calls, self.spec.repetitions, self.device))
            observer.advance(done)
        observer.finish()
        rows = []
        for name, (settings, _) in timed_layers.items():
            medians = [quartiles(seconds[name]) for seconds in times]
            ratios = [time_ratio(seconds[name], seconds[str(self.baseline)]) for seconds in times]
            rows.append(LayerCost(settings, self.count_costs(settings), *medians, *ratios))
        return RaceCosts(tuple(rows))

    def report(self, outcomes: tuple[CellOutcome[RaceCosts], ...], interrupted: bool) -> StudyResult:
        """Build the report: counts and times of all layers that were timed."""
        rows = tuple(row for outcome in outcomes if outcome.measures for row in outcome.measures.rows)
        times = ["forward ms", f"× {self.baseline_name}", "forward+backward ms", f"× {self.baseline_name} "]
        missing = [
            f"{outcome.cell} {f'failed: {outcome.reason}' if outcome.reason else 'not run yet'}"
            for outcome in outcomes
            if not outcome.measures
        ]
        nothing = ("No race finished, so that there is nothing to compare.",)
        reason = self.no_plot_reason
        return self.make_result(
            outcomes,
            interrupted,
            self.device,
            table=StudyTable(
                header=[*rows[0].settings, *rows[0].counts, *times] if rows else ["race"],
                rows=[row.cells() for row in rows],
                records=[row.to_dict(flat=True) for row in rows],
                caption=TIMING_NOTE,
                notes=missing,
                left=(),
            ),
            conclusion=tuple(self.conclude(rows)) if rows else nothing,
            formulas=self.formulas,
            convention=self.convention,
            plots=tuple(self.plots(rows)) if rows and not reason else (),
            terminal_blocks=(Text(reason, "note", blank_before=True),) if reason else (),
            page_blocks=(Heading("Plots"), Text(reason)) if reason else (),
            rows=rows,
            extra={
                "formulas": dict(self.formulas),
                "convention": self.convention,
                "against": self.baseline_name,
                "rows": [row.to_dict() for row in rows],
            },
        )


def format_formula(account: Account, name: str) -> str:
    """Write the formula of the quantity `name` with Unicode symbols: 3·d²."""
    return account.quantities[name].write_formula(account.order, "unicode")


def zero_inputs(d: int, B: int = 1, T: int = 64) -> Vectors:
    """Return zeros of shape (B, T, d), the inputs with which the operations of a layer are counted."""
    return torch.zeros(B, T, d)


def spread_curve(title: str, x: Sequence[float], spreads: Sequence[Quartiles], dashed: bool = False) -> Curve:
    """Build a curve of medians with a band between the quartiles."""
    low, median, high = (tuple(getattr(spread, end) for spread in spreads) for end in ("low", "median", "high"))
    return Curve(title, tuple(map(float, x)), median, low, high, dashed, dots=True)


# Heads (problem D3): one head against many.


def bare_attention(d: int = 64, h: int = 4) -> Attention:
    """Build attention of width d with h heads as problem D3 counts it: no biases, no output map."""
    return Attention(AttentionShape(d, h, causal=False, value_output="none", bias=False))


bare_attention.inputs = zero_inputs  # pyright: ignore[reportFunctionMemberAccess]


def explicit_attention(attention: Attention, inputs: Vectors) -> Vectors:
    """Return the outputs of attention for inputs, computed with the T × T weights in memory, unlike a fused kernel."""
    batch, time, width = inputs.shape
    joined = attention.query_key_value(inputs).view(batch, time, 3, attention.heads, -1).permute(2, 0, 3, 1, 4)
    queries, keys, values = joined.unbind(0)
    weights = (queries @ keys.mT * attention.scale).softmax(-1)
    return (weights @ values).transpose(1, 2).reshape(batch, time, width)


class HeadsExperiment(CostExperiment):
    """Experiment that times attention with every number of heads, on every path (fused, explicit), at every length."""

    spec: HeadsStudy

    def __init__(self, spec: HeadsStudy, out: Path, observer: Observer) -> None:
        super().__init__(spec, out, observer)
        sizes = {"d": spec.width, "h": spec.heads[0]}
        self.account = count(resolve_subject(bare_attention, sizes), ["parameters", "flops"])
        names = {"parameters": "parameters", "operations, forward": "flops"}
        self.formulas = {title: format_formula(self.account, name) for title, name in names.items()}
        convention = self.account.quantities["flops"].convention
        self.convention = f"Operations: {convention}. Softmax apart: h·B·T rows, h·B·T² exponentials."
        self.baseline, self.baseline_name = spec.heads[0], f"h={spec.heads[0]}"
        self.baseline_text = "one" if self.baseline == 1 else str(self.baseline)
        reason = "No plot: one number of heads makes no line. Give several, as in heads=[1,2,4]."
        self.no_plot_reason = reason if len(spec.heads) == 1 else ""

    def cells(self) -> list[StudyCell]:
        """Return a cell for every length and attention path."""
        points = [{"T": length, "path": path} for length in self.spec.lengths for path in self.spec.paths]
        return [StudyCell("heads", point, None) for point in points]

    def timed_layers(self, point: Mapping[str, Any]) -> dict[Any, tuple[dict[str, Any], Callable[[], Vectors]]]:
        """Return, by number of heads, the settings of attention at a grid point and a function that runs it forward."""

        def make_forward(heads: int) -> Callable[[], Vectors]:
            """Return a function that runs a new attention layer with this number of heads forward on fixed inputs."""
            seed_random(self.spec.seed, torch.device(self.device))
            attention = bare_attention(self.spec.width, heads).to(self.device)
            inputs = self.random_inputs(point["T"])
            if point["path"] == "explicit":
                return partial(explicit_attention, attention, inputs)
            return lambda: attention(inputs)[0]

        settings = {heads: {"T": point["T"], "h": heads, "path": point["path"]} for heads in self.spec.heads}
        return {heads: (settings[heads], make_forward(heads)) for heads in self.spec.heads}

    def count_costs(self, settings: Mapping[str, Any]) -> dict[str, int]:
        """Return parameters, FLOPs and exponentials of attention with these settings."""
        sizes = {"d": self.spec.width, "h": settings["h"], "B": self.spec.batch, "T": settings["T"]}
        counts = {name: self.account.quantities[name].at(sizes) or 0 for name in ("parameters", "flops")}
        return {**counts, "exponentials": settings["h"] * self.spec.batch * settings["T"] ** 2}

    def conclude(self, rows: Sequence[LayerCost]) -> Iterator[str]:
        """Yield sentences on how counts and times depend on the number of heads."""
        for name, title in (("parameters", "Parameters"), ("flops", "Operations")):
            terms = self.account.quantities[name].polynomial.terms
            verdict = "whatever the number of heads: the claim holds."
            if "h" in {symbol for monomial in terms for symbol, _ in monomial}:
                verdict = "which depends on h: the claim is false."
            yield f"{title} by formula: {format_formula(self.account, name)}, {verdict}"
        for row in rows:
            length, heads, path = (row.settings[name] for name in ("T", "h", "path"))
            if heads == max(self.spec.heads) and len(self.spec.heads) > 1:
                verdict = judge_time_ratio(row.both_ratio)
                times = f"{heads} heads take {row.ratio_text} the time of {self.baseline_text}"
                yield f"T = {length}, {path}: {times}: {verdict}."

    def plots(self, rows: Sequence[LayerCost]) -> Iterator[Plot]:
        """Yield a plot of time ratios against the number of heads for each attention path."""
        for path in self.spec.paths:
            curves = []
            for length in self.spec.lengths:
                at_length = [row for row in rows if row.settings["T"] == length and row.settings["path"] == path]
                heads = [row.settings["h"] for row in at_length]
                forward, both = [row.forward_ratio for row in at_length], [row.both_ratio for row in at_length]
                if at_length:
                    curves.append(spread_curve(f"T = {length}, forward", heads, forward))
                    curves.append(spread_curve(f"T = {length}, forward+backward", heads, both, dashed=True))
            multiple = f"Time of h heads as a multiple of that of {self.baseline_text}"
            caption = (
                f"{multiple}, {path} attention, width {self.spec.width}; the band holds the middle half of the "
                "rounds. By formula the products are the same for all: 1."
            )
            if curves:
                axis = f"time / time of h = {self.baseline}"
                yield Plot("heads h", axis, tuple(curves), log_x=True, caption=caption)


def judge_time_ratio(ratio: Quartiles) -> str:
    """Return "faster", "slower" or "no difference beyond the spread", from the quartiles of a ratio of times.

    >>> judge_time_ratio(Quartiles(1.3, 1.2, 1.4)), judge_time_ratio(Quartiles(1.0, 0.9, 1.1))
    ('slower', 'no difference beyond the spread')
    """
    if ratio.low > 1:
        return "slower"
    return "faster" if ratio.high < 1 else "no difference beyond the spread"


# Length (problem C4): recurrent layers against attention as the text grows longer.


ATTENTION = "attention"
MAX_LINEAR_EXPONENT = 1.2  # an exponent up to which time is said to grow as T


def layer_factory(kind: str, heads: int) -> Callable[..., nn.Module]:
    """Return a function that builds a layer of width d: recurrent of this kind, or causal attention with output map."""

    def layer(d: int = 64) -> nn.Module:
        """Build the layer of width d."""
        if kind == ATTENTION:
            return Attention(AttentionShape(d, heads))
        return build_recurrent(kind, d, d, 1, 1, 0.0)  # pyright: ignore[reportArgumentType]

    layer.inputs, layer.__name__ = zero_inputs, kind  # pyright: ignore[reportFunctionMemberAccess]
    layer.probe_sizes = {"d": [heads * number for number in (2, 3, 4, 5, 6)]}  # pyright: ignore[reportFunctionMemberAccess]
    return layer


def serial_steps(kind: str, length: int) -> int:
    """Return the number of sequential steps: `length` for a recurrent layer, 1 for attention."""
    return 1 if kind == ATTENTION else length


class LengthExperiment(CostExperiment):
    """Experiment that times every kind of layer at every length of text."""

    spec: LengthStudy

    def __init__(self, spec: LengthStudy, out: Path, observer: Observer) -> None:
        super().__init__(spec, out, observer)
        subjects = {kind: resolve_subject(layer_factory(kind, spec.heads), {"d": spec.width}) for kind in spec.models}
        self.accounts = {kind: count(subject, ["parameters", "flops"]) for kind, subject in subjects.items()}
        self.convention = f"Operations: {next(iter(self.accounts.values())).quantities['flops'].convention}."
        self.formulas = {}
        for kind, account in self.accounts.items():
            self.formulas[f"{kind}, parameters"] = format_formula(account, "parameters")
            self.formulas[f"{kind}, operations forward"] = format_formula(account, "flops")
            self.formulas[f"{kind}, steps in a row"] = "1" if kind == ATTENTION else "T"
        self.baseline = self.baseline_name = ATTENTION if ATTENTION in spec.models else spec.models[0]
        reason = "No plot: one length makes no line. Give several, as in lengths=[16,32,64]."
        self.no_plot_reason = reason if len(spec.lengths) == 1 else ""

    def cells(self) -> list[StudyCell]:
        """Return a cell for every length."""
        return [StudyCell("length", {"T": length}, None) for length in self.spec.lengths]

    def timed_layers(self, point: Mapping[str, Any]) -> dict[Any, tuple[dict[str, Any], Callable[[], Vectors]]]:
        """Return, by kind of layer, its settings at a grid point and a function that runs it forward."""

        def make_forward(kind: str) -> Callable[[], Vectors]:
            """Return a function that runs a new layer of this kind forward on fixed inputs."""
            seed_random(self.spec.seed, torch.device(self.device))
            layer = layer_factory(kind, self.spec.heads)(self.spec.width).to(self.device)
            inputs = self.random_inputs(point["T"])
            return lambda: layer(inputs)[0]

        return {kind: ({"T": point["T"], "layer": kind}, make_forward(kind)) for kind in self.spec.models}

    def count_costs(self, settings: Mapping[str, Any]) -> dict[str, int]:
        """Return parameters, FLOPs and serial steps of a layer with these settings."""
        kind, sizes = settings["layer"], {"d": self.spec.width, "B": self.spec.batch, "T": settings["T"]}
        quantities = self.accounts[kind].quantities
        counts = {name: quantities[name].at(sizes) or 0 for name in ("parameters", "flops")}
        return {**counts, "steps in a row": serial_steps(kind, settings["T"])}

    def rows_of_layer(self, rows: Sequence[LayerCost], kind: str) -> list[LayerCost]:
        """Return the costs of one kind of layer, shortest text first."""
        return sorted((row for row in rows if row.settings["layer"] == kind), key=lambda row: row.settings["T"])

    def conclude(self, rows: Sequence[LayerCost]) -> Iterator[str]:
        """Yield sentences on how layers' times grow with length, their ratios at the longest, and where they cross."""
        yield "Steps that must wait for each other: T in a recurrent layer, one in attention, whatever T."
        for kind in self.spec.models:
            of_layer = self.rows_of_layer(rows, kind)
            if len(of_layer) > 1:
                shorter, longer = of_layer[-2:]
                lengths = shorter.settings["T"], longer.settings["T"]
                exponent = math.log(longer.both.median / shorter.both.median) / math.log(lengths[1] / lengths[0])
                growth = "about as T" if exponent < MAX_LINEAR_EXPONENT else "faster than T"
                time = f"from T = {lengths[0]} to {lengths[1]} its time (forward and backward)"
                yield f"{kind}: {time} grows as T^{exponent:.2f}, {growth}."
        max_length = max(self.spec.lengths)
        for row in rows:
            if row.settings["T"] == max_length and row.settings["layer"] != self.baseline:
                kind = row.settings["layer"]
                yield f"At T = {max_length}, {kind} takes {row.ratio_text} the time of {self.baseline}."
        if self.baseline != ATTENTION:
            return
        for kind in self.spec.models:
            for shorter, longer in pairwise(self.rows_of_layer(rows, kind)):
                if kind != ATTENTION and shorter.both_ratio.median > 1 > longer.both_ratio.median:
                    lengths = f"T = {shorter.settings['T']} and T = {longer.settings['T']}"
                    yield f"Between {lengths} its T² products make attention slower than {kind} here."
                    break

    def plots(self, rows: Sequence[LayerCost]) -> Iterator[Plot]:
        """Yield plots of times against length, forward and with backward."""
        for name, title in (("forward", "forward"), ("both", "forward and backward")):
            curves = []
            for kind in self.spec.models:
                of_layer = self.rows_of_layer(rows, kind)
                times = [getattr(row, name).scale(1e3) for row in of_layer]
                curves.append(spread_curve(kind, [row.settings["T"] for row in of_layer], times))
            caption = (
                f"Time of one layer, {title}, against the length of the text (width {self.spec.width}, batch "
                f"{self.spec.batch}); the band holds the middle half of the rounds."
            )
            yield Plot("length T", "milliseconds", tuple(curves), log_x=True, log_y=True, caption=caption)


# Whether a study of costs fits into memory, asked before anything is built.


BYTES_PER_FLOAT = 4
SQUARES_PER_HEAD = 5  # T × T matrices per head in the backward pass: scores, scaled, weights, and the gradients of two
VECTORS_PER_TOKEN = 24  # vectors per token: inputs, four gates or queries, keys and values, their states and gradients
MATRICES_PER_MODEL = 16  # d × d weights of a model, with their gradients


def estimate_bytes(spec: HeadsStudy | LengthStudy) -> int:
    """Estimate the peak bytes of a study's largest cell: Bh·T² for explicit weights, BT·d, and d² per model.

    >>> from lemma.spec.studies import STUDIES
    >>> estimate_bytes(STUDIES["heads"]) < 200_000_000 < estimate_bytes(STUDIES["heads"].replace(lengths=[4096]))
    True
    """
    length, squares = max(spec.lengths), 0
    models = len(spec.heads if isinstance(spec, HeadsStudy) else spec.models)
    if isinstance(spec, HeadsStudy) and "explicit" in spec.paths:
        squares = SQUARES_PER_HEAD * max(spec.heads) * length**2
    tokens = VECTORS_PER_TOKEN * length * spec.width
    return BYTES_PER_FLOAT * (spec.batch * (squares + tokens) + MATRICES_PER_MODEL * models * spec.width**2)


def check_memory(spec: HeadsStudy | LengthStudy, device: str) -> None:
    """Raise an error if a study needs more memory than the GPU, this machine or its container has."""
    available = math.inf
    if device == "cuda":
        available = torch.cuda.get_device_properties(0).total_memory
    elif hasattr(os, "sysconf"):
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        with suppress(OSError, ValueError):  # no container, or one without a limit ("max")
            available = min(available, float(Path("/sys/fs/cgroup/memory.max").read_text()))
    needed = estimate_bytes(spec)
    if needed > available:
        sizes = f"width={spec.width}, batch={spec.batch}, lengths up to {max(spec.lengths)}"
        raise SpecError(
            f"study {spec.name}: {sizes} would need about {needed / 2**30:,.1f} GiB; {device} has "
            f"{available / 2**30:,.1f} GiB. Take shorter lengths, or a smaller batch, width or number of heads."
        )
