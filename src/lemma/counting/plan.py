"""A plan of training and generating: what fits on a device, how long it takes, and the largest batch and context.

Memory is read off the trainer's own step, traced without memory (`training_step.py`); what is alive after each of its
operations is a polynomial of the batch and of the context, and the largest ones are roots of these. Time is a roofline:
each operation takes as long as its FLOPs or its bytes need, whichever is more.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any, Literal

import numpy as np

from lemma.counting import measure
from lemma.counting.count import count
from lemma.counting.devices import PRECISIONS, Device
from lemma.counting.fit import Sizes
from lemma.counting.parallelism import DEGREES, ParallelCosts, ParallelModel, Work, estimate_parallel
from lemma.counting.polynomial import Polynomial, as_polynomial, symbol
from lemma.counting.subject import BATCH, SOURCE, TIME, Subject
from lemma.counting.training_step import BACKWARD, PARTS, UPDATE, Moment, StepSettings, StepTrace, trace_step
from lemma.counting.writing import write_formula
from lemma.errors import CountingError, InputError, describe_unknown
from lemma.report.numbers import format_bytes, format_seconds, pluralize
from lemma.report.result import Block, Heading, Items, Result, Table, Text
from lemma.spec.recipe import Recipe

DAY = 86_400
TOKENS_PER_PARAMETER = 20  # compute-optimal (Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models")
EFFICIENCY = 0.6
RESERVE = 0.05
MAX_SIZE = 2**24
"""The largest batch or context that is looked for."""
MAX_GUESSES = 12  # after which the largest batch or context is found by halving
MAX_OPERATIONS = 10_000  # of a step that is traced only to find the largest batch or context


Ends = tuple[int | Fraction, int | Fraction]
SHARDED_PARTS = ("weights", "gradients", "optimizer")


@dataclass(frozen=True)
class PlanSettings:
    """The devices and the settings of a planned training."""

    device: Device
    batch: int = 32
    precision: str = "bfloat16"
    optimizer: str = "adamw"
    recompute: Literal["none", "layers"] = "none"
    data: int = 1  # replicas, which average their gradients (DDP)
    shards: int = 1  # devices that share the weights, gradients and optimizer of a replica (FSDP)
    tensor: int = 1  # devices that share each split linear layer
    pipeline: int = 1  # stages that share the layers
    accumulate: int = 1  # micro-batches
    efficiency: float = EFFICIENCY  # fraction of the roofline that is reached
    reserve: float = RESERVE  # fraction of the memory that is left to the driver and to fragmentation

    def __post_init__(self) -> None:
        for name in ("batch", *DEGREES, "accumulate"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} = {value!r}: a whole number from 1 up is expected, as in {name}=8.")
        if self.precision not in PRECISIONS:
            raise InputError(describe_unknown("precision", str(self.precision), PRECISIONS))
        if self.device.flops and self.precision not in self.device.flops:
            raise InputError(f"precision = {self.precision!r}: {self.device.name} has none. Use precision=float32.")
        if self.recompute not in ("none", "layers"):
            raise InputError(describe_unknown("recompute: value", str(self.recompute), ("none", "layers")))
        for name in ("efficiency", "reserve"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value <= 1 or (name == "efficiency" and not value):
                raise InputError(f"{name} = {value!r}: a fraction between 0 and 1 is expected, as in {name}=0.5.")
        cuts = self.data * self.shards * self.accumulate
        if self.batch % cuts:
            raise InputError(
                f"batch = {self.batch} cannot be cut into equal parts for data {self.data} × shards {self.shards} × "
                f"accumulate {self.accumulate}. Nearest batch: {max(1, round(self.batch / cuts)) * cuts}."
            )

    @property
    def devices(self) -> int:
        """Return the number of devices."""
        return self.data * self.shards * self.tensor * self.pipeline

    @property
    def rows(self) -> int:
        """Return the number of sequences that one device processes in one forward pass."""
        return self.batch // (self.data * self.shards * self.accumulate)

    @property
    def activation_bytes(self) -> int:
        """Return the bytes of a number that is sent as an activation."""
        return PRECISIONS[self.precision].itemsize

    def stride(self, degree: str) -> int:
        """Return the difference of the numbers of neighbours of a degree: tensor innermost, then shards, then data."""
        inner = {"tensor": 1, "shards": self.tensor, "data": self.tensor * self.shards}
        return inner.get(degree, self.tensor * self.shards * self.data)

    @property
    def budget(self) -> int:
        """Return the bytes of device memory that a training may use."""
        return int(self.device.memory * (1 - self.reserve))

    def step_settings(self, split: Mapping[str, str]) -> StepSettings:
        """Return device, precision and recipe with which a training step is traced; `split` as in `StepSettings`."""
        recipe = Recipe.read({"optimizer": self.optimizer, "accumulate": self.accumulate, "batch": self.batch}, "plan")
        return StepSettings(self.device.gpu, PRECISIONS[self.precision], recipe, self.recompute == "layers", split)

    def memory_parts(self, step: StepTrace, moment: Moment, ends: Ends = (1, 1)) -> dict[str, int | Fraction]:
        """Return the bytes on one device at a moment of a traced step, by part ("weights", "gradients", …).

        With a pipeline it is the larger of the first and the last stage, which have the fractions `ends` of what is
        outside the layers. The workspace of cuBLAS, and with shards two gathered layers, are added to the buffers.
        """
        stages = []
        for factors in self.memory_factors(ends):
            sizes: dict[str, int | Fraction] = {}
            for part, row in zip(PARTS, factors, strict=True):
                size = sum(n * factor for n, factor in zip(moment.amounts(part), row, strict=True))
                sizes[part] = size.numerator if size.denominator == 1 else size
            sizes["buffers"] += self.device.workspace
            if self.shards > 1:
                _, _, undivided, split = moment.amounts("weights")
                local = undivided + Fraction(split, self.tensor)
                sizes["buffers"] += 2 * step.largest_layer * (local / (undivided + split) if undivided + split else 1)
            stages.append(sizes)
        return max(stages, key=lambda sizes: sum(sizes.values()))

    def memory_factors(self, ends: Ends) -> list[list[tuple[int | Fraction, ...]]]:
        """Return by which bytes are multiplied on the first and last stage: by part, then by kind (`KINDS`).

        With shards (FSDP), weights, gradients and the optimizer's state are divided by their number; gradients of
        several micro-batches are added up before that. The first stage of a pipeline keeps the activations of as many
        micro-batches as there are stages (1F1B), the last one those of one, and the logits.
        """
        stages = [(ends[0], False, min(self.pipeline, self.accumulate)), (ends[1], True, 1)]
        factors = []
        for outside, is_last, in_flight in stages if self.pipeline > 1 else [(1, True, 1)]:
            rows = []
            for part in PARTS:
                is_sharded = part in SHARDED_PARTS and (part != "gradients" or self.accumulate == 1)
                times = Fraction(in_flight if part == "activations" else 1, self.shards if is_sharded else 1)
                ends_factor = outside if part in SHARDED_PARTS else int(is_last or part != "logits")
                layers, tensor = Fraction(1, self.pipeline), Fraction(1, self.tensor)
                rows.append(tuple(times * n for n in (ends_factor, ends_factor * tensor, layers, layers * tensor)))
            factors.append(rows)
        return factors


@dataclass(frozen=True)
class Largest:
    """The largest batch or context that fits."""

    name: str  # B or T
    root: int  # the largest value at which a step was followed and fits; 0 if not even 1 fits
    formula: str  # the equation whose root it is, proved at `root` and at the next value; empty if none was proved
    moment: str  # when the next value does not fit
    followed: bool  # whether steps were followed at `root` and at the next value: the first fits, the second does not
    limit: str = ""  # why no larger value was looked for, where the next one was not found too large

    def __str__(self) -> str:
        if not self.root:
            return f"none: not even {self.name} = 1 fits ({self.moment or self.limit})"
        if self.limit:
            return f"{self.name} = {self.root:,} fits; {self.limit}"
        why = f"the root of {self.formula}" if self.formula else f"{self.name} = {self.root + 1:,} does not fit"
        return f"{self.name} = {self.root:,}, {why} ({self.moment})"


class Planner:
    """Traces steps of one subject at several sizes, each once."""

    def __init__(
        self,
        subject: Subject,
        settings: PlanSettings,
        model: ParallelModel | None = None,
        steps: dict[Any, StepTrace] | None = None,
    ) -> None:
        """Check the settings; `model` and traced `steps` may be shared by the planners of one subject."""
        self.subject, self.settings = subject, settings
        self._steps: dict[Any, StepTrace] = {} if steps is None else steps
        self.sizes = {**subject.sizes(True)}
        if BATCH in self.sizes:
            self.sizes[BATCH] = settings.rows
        self.model = model or (ParallelModel(subject, self.sizes) if settings.devices > 1 else None)
        if self.model and (obstacle := self.model.find_obstacle(settings.tensor, settings.pipeline)):
            raise InputError(obstacle)
        self.ends, self.weight_fraction = self._divide_weights(self.model) if self.model else ((1, 1), 1.0)

    def _divide_weights(self, model: ParallelModel) -> tuple[Ends, float]:
        """Return the fractions of weights outside the layers on the first and last stage, and of all on a device."""
        tensor, pipeline, shards = self.settings.tensor, self.settings.pipeline, self.settings.shards
        stages = model.stages(tensor, pipeline)
        outside = [sum(weight.count() for weight in stage if not weight.in_layers) for stage in stages]
        total = sum(parameter.numel() for parameter in model.module.parameters())
        all_outside = total - sum(weight.count() for stage in stages for weight in stage if weight.in_layers)
        largest = max(sum(weight.count(tensor) for weight in stage) for stage in stages)
        ends = tuple(Fraction(number, max(1, all_outside)) for number in (outside[0], outside[-1]))
        return ends, largest / max(1, total) / shards  # pyright: ignore[reportReturnType]

    def trace(self, **sizes: int) -> StepTrace:
        """Trace a training step at the planned sizes, changed by `sizes`; each is traced once.

        If the source is planned as long as the target, a changed T changes S, too.
        """
        values = {**self.sizes, **sizes}
        if TIME in sizes and self.sizes.get(SOURCE) == self.sizes[TIME]:
            values[SOURCE] = sizes[TIME]
        split = self.model.split.roles if self.model and self.settings.tensor > 1 else {}
        key = (*values.values(), self.settings.accumulate > 1, bool(split))
        if key not in self._steps:
            self._steps[key] = trace_step(self.subject, self.settings.step_settings(split), values)
        return self._steps[key]

    def total_bytes(self, step: StepTrace, moment: Moment) -> int | Fraction:
        """Return the bytes on one device at a moment of a traced step."""
        return sum(self.settings.memory_parts(step, moment, self.ends).values())

    def peak_moment(self, step: StepTrace) -> Moment:
        """Return the moment of a traced step with the most bytes on one device."""
        factors = np.array(self.settings.memory_factors(self.ends), dtype=float)  # stage, part, kind
        totals = np.einsum("mkp,spk->ms", step.amounts, factors)
        return step.moments[int(totals.max(axis=1).argmax())]

    def measure_work(self, step: StepTrace) -> Work:
        """Return the FLOPs, bytes and time of computing a step on one device, on the busiest stage of a pipeline."""
        settings, device = self.settings, self.settings.device
        rate, bandwidth = device.flops.get(settings.precision), device.bandwidth
        flops = moved = backward = micro_batch = update = 0.0
        for kernel, times in step.kernels.items():
            number = times / (settings.pipeline if kernel.kind.in_layers else 1)
            number /= settings.tensor if kernel.kind.is_split and kernel.phase != UPDATE else 1
            seconds = max(kernel.flops / rate, kernel.bytes_moved / bandwidth) if rate and bandwidth else 0
            if kernel.phase == UPDATE:
                update += times * self.weight_fraction * seconds
                moved += times * self.weight_fraction * kernel.bytes_moved
                continue
            micro_batch += number * seconds
            flops += number * kernel.flops * settings.accumulate
            moved += number * kernel.bytes_moved * settings.accumulate
            backward += number * kernel.flops * settings.accumulate * (kernel.phase == BACKWARD)
        if not rate or not bandwidth:
            return Work(round(flops), round(moved), backward_fraction=backward / max(1, flops))
        efficiency = settings.efficiency
        seconds = micro_batch / efficiency, update / efficiency
        return Work(round(flops), round(moved), rate * efficiency, *seconds, backward / max(1, flops))

    def find_largest(self, name: str, start: int) -> Largest:
        """Find the largest value of size `name` (B or T) at which a step fits into memory, starting at `start`.

        Memory is a polynomial of the size only between values at which kernels change, so the root of a polynomial
        through the nearest values is a guess, and steps traced at the guess and at the next value decide.
        """
        budget = self.settings.budget
        peaks: dict[int, int | Fraction] = {}
        operations: dict[int, int] = {}
        low, high, guess = 0, MAX_SIZE + 1, start
        limit, failure = f"no larger {name} is looked for", None
        while low + 1 < high:
            try:
                step = self.trace(**{name: guess})
            except CountingError as error:
                high, limit, failure = guess, f"{name} = {guess:,} fails: {error}", error
            else:
                peaks[guess], operations[guess] = self.total_bytes(step, self.peak_moment(step)), len(step.moments)
                low, high = (guess, high) if peaks[guess] <= budget else (low, guess)
            guess = _guess_root(peaks, budget, low, high)
            if low and (failure or len(peaks) > MAX_GUESSES):
                guess = min(guess, (low + high) // 2)
            if low and operations[low] > 1.5 * operations[min(operations)]:  # a loop over tokens takes time at each
                guess = min(guess, low * MAX_OPERATIONS // operations[low])
                if guess <= low:
                    return Largest(name, low, "", "", False, f"at larger {name} a step has too many operations")
        if high not in peaks:
            if not low and failure:
                raise failure
            return Largest(name, low, "", "", False, limit)
        step = self.trace(**{name: high})
        moment = self.peak_moment(step)
        polynomial = self._prove_formula(name, low, step.moments.index(moment), [*peaks]) if low else None
        formula = f"{format_polynomial(polynomial, name)} = {budget:,}" if polynomial is not None else ""
        return Largest(name, low, formula, moment.label, True)

    def _prove_formula(self, name: str, root: int, index: int, values: Sequence[int]) -> Polynomial | None:
        """Fit a polynomial of size `name` to the bytes at the moment `index` of steps that were traced at `values`.

        `root` is the largest size that fits; None is returned if the polynomial fails at `root` + 1.
        """
        spacing, proof = max(1, root // 64), self.trace(**{name: root + 1})
        nearest = sorted({*values} - {root + 1}, key=lambda value: abs(value - root))[:3]
        for points in (nearest, [value for value in (root, root - spacing, root - 2 * spacing) if value > 0]):
            steps = [self.trace(**{name: value}) for value in points]
            if len(points) < 3 or any(len(step.moments) != len(proof.moments) for step in steps):
                continue
            polynomial = interpolate(
                symbol(name), points, [self.total_bytes(step, step.moments[index]) for step in steps]
            )
            has_round_numbers = all(number.denominator <= self.settings.devices for number in polynomial.terms.values())
            if has_round_numbers and polynomial.at({name: root + 1}) == self.total_bytes(proof, proof.moments[index]):
                return polynomial
        return None


def _guess_root(heights: Mapping[int, int | Fraction], budget: int, low: int, high: int) -> int:
    """Guess the largest value between `low` and `high` at which a rising function is at most `budget`.

    `heights` has values of the function; a parabola through the nearest three is solved.

    >>> _guess_root({4: 40, 8: 80, 16: 160}, 1000, 16, 1000)
    100
    """
    if not low:  # nothing fits so far
        return 1
    ends = [value for value in (low, high) if value in heights]
    nearest = sorted((value for value in heights if value not in ends), key=lambda value: abs(value - ends[0]))
    points = [*ends, *nearest][:3]
    if len(points) == 1:
        return min(high - 1, 2 * low)
    parabola = interpolate(symbol("n"), points, [heights[point] for point in points])

    def height(value: int) -> Fraction:
        return parabola.at({"n": value})

    if height(high - 1) <= height(low + 1):  # what bends down is no guide
        return (low + high) // 2 if high in heights else min(high - 1, 2 * low)
    return max(low + 1, bisect_right(range(low + 1, high), budget, key=height) + low)


def interpolate(variable: Polynomial, points: Sequence[int], values: Sequence[int | Fraction]) -> Polynomial:
    """Return the polynomial in `variable` that takes `values` at `points` (Lagrange).

    >>> interpolate(symbol("B"), (1, 2, 3), (6, 11, 18)) == symbol("B") ** 2 + 2 * symbol("B") + 3
    True
    """
    polynomial = as_polynomial(0)
    for point, value in zip(points, values, strict=True):
        term = as_polynomial(value)
        for other in points:
            if other != point:
                term = term * (variable - other) / (point - other)
        polynomial = polynomial + term
    return polynomial


@dataclass(frozen=True)
class GenerationCosts:
    """The costs of generating text, in the plan's precision, on one device."""

    weights: int
    cache: int  # bytes of the state of one sequence of T tokens
    prefill_flops: int
    prefill_seconds: float | None
    token_seconds: float | None  # for a token of one sequence: all weights and the cache are read
    sequences: int  # that fit next to the weights
    together_seconds: float | None  # for a token of each of these


@dataclass(frozen=True)
class SplitCosts:
    """Memory and time of a step with one split of the devices."""

    settings: PlanSettings
    peak: int
    seconds: float | None
    limit: str  # what takes the longest

    @property
    def fits(self) -> bool:
        return self.peak <= self.settings.budget

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as values for JSON."""
        degrees = {name: getattr(self.settings, name) for name in (*DEGREES, "accumulate")}
        return {**degrees, "peak": self.peak, "fits": self.fits, "seconds_per_step": self.seconds, "limit": self.limit}


@dataclass(frozen=True)
class Plan(Result):
    """The memory and time of a training, the largest batch and context that fit, and the costs of generating."""

    model: str
    symbols: Sizes
    settings: PlanSettings
    parameters: int
    active: int
    formula: str
    parts: Mapping[str, int]
    part_formulas: Mapping[str, str]
    where: str
    largest: Sequence[Largest]
    flops: int  # of a step on one device
    flops_per_token: float
    bytes_moved: int
    compute_seconds: float | None
    bandwidth_seconds: float | None
    seconds: float | None  # of a step, by the roofline of each operation, at the stated efficiency
    tokens: int  # of a step on all devices
    generation: GenerationCosts | None
    parallel: ParallelCosts | None = None  # of several devices
    alternatives: Sequence["SplitCosts"] = ()  # other splits of as many devices, the best first
    notes: Sequence[str] = ()

    @property
    def title(self) -> str:
        return f"Plan: {self.model} on {self.settings.device.name}"

    @property
    def peak(self) -> int:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return self.peak <= self.settings.budget

    @property
    def tokens_per_day(self) -> float | None:
        """Return the tokens trained on per day by all devices; None if the time of a step is unknown."""
        return None if self.seconds is None else self.tokens / self.seconds * DAY

    @property
    def optimal_tokens(self) -> int:
        """Return the compute-optimal number of training tokens: 20 per parameter (Hoffmann et al. 2022)."""
        return TOKENS_PER_PARAMETER * self.active

    def blocks(self) -> Iterator[Block]:
        settings, device = self.settings, self.settings.device
        yield Heading(self.title, 1)
        sizes = ", ".join(f"{name} = {value:,}" for name, value in self.symbols.items())
        active = f"; {self.active:,} are active for a token" if self.active != self.parameters else ""
        yield Text(f"{sizes}\nparameters P = {self.formula}{active}")
        options = [f"batch {settings.batch}", settings.precision, settings.optimizer]
        options += [f"recompute {settings.recompute}"] if settings.recompute != "none" else []
        if settings.devices > 1:
            degrees = " × ".join(f"{name} {getattr(settings, name)}" for name in DEGREES if getattr(settings, name) > 1)
            rows = pluralize(settings.rows, "sequence")
            options += [f"{settings.devices:,} devices ({degrees}), {rows} at a time on each"]
        options += [f"accumulate {settings.accumulate}"] if settings.accumulate > 1 else []
        yield Text(", ".join(options) + "; Lemma's trainer, not compiled")
        if self.alternatives:
            names = (*DEGREES, "accumulate", "memory", "step", "limited by")
            rows = [
                (
                    *(str(getattr(costs.settings, name)) for name in (*DEGREES, "accumulate")),
                    format_bytes(costs.peak) + ("" if costs.fits else " (too large)"),
                    format_seconds(costs.seconds),
                    costs.limit,
                )
                for costs in self.alternatives
            ]
            title = f"The fastest splits of {settings.devices} devices; the first is planned"
            yield Table(names, rows, title, left=(7,), breakable=(7,))
        rows = [
            (part, format_bytes(size), f"{size / max(1, self.peak):.1%}", self.part_formulas.get(part, ""))
            for part, size in self.parts.items()
        ]
        total = ("peak", format_bytes(self.peak), "100.0%", "")
        yield Table(
            ("memory of a step", "bytes", "share", "formula"),
            rows,
            f"Memory at the peak ({self.where})",
            total=total,
            left=(0, 3),
            breakable=(3,),
            formulas=(3,),
        )
        verdict = "It fits" if self.fits else "It does not fit"
        of_all = f"{format_bytes(settings.budget)} ({1 - settings.reserve:.0%} of {format_bytes(device.memory)})"
        yield Text(f"{verdict}: {format_bytes(self.peak)} of {of_all}.", "good" if self.fits else "bad")
        titles = {BATCH: "batch" + (" at a time on one device" if settings.devices > 1 else ""), TIME: "context"}
        yield Items([f"largest {titles[largest.name]}: {largest}" for largest in self.largest])
        if self.parallel:
            yield from self.parallel.blocks()
        yield Table(("", ""), list(self._time_rows()), "Time", is_text=True)
        if self.generation:
            yield Table(("", ""), list(self._generation_rows(self.generation)), "Generating", is_text=True)
        if self.notes:
            yield Items(list(self.notes), "note")

    def _time_rows(self) -> Iterator[tuple[str, str]]:
        """Yield label and text of each row of the table of training time."""
        settings = self.settings
        yield "FLOPs per token", f"{self.flops_per_token:,.0f} (forward and backward)"
        yield "FLOPs per step", f"{self.flops:.4g} on each device"
        yield "bytes moved per step", format_bytes(self.bytes_moved)
        if self.seconds is None or self.tokens_per_day is None:
            needed = "flops=… and bandwidth=…" + (" link=… and network=…" if self.parallel else "")
            yield "time", f"not known: give {needed} of the device"
        else:
            bound = "FLOPs" if (self.compute_seconds or 0) > (self.bandwidth_seconds or 0) else "bandwidth"
            compute, bandwidth = format_seconds(self.compute_seconds), format_seconds(self.bandwidth_seconds)
            limits = f"FLOPs alone {compute}, bytes alone {bandwidth}"
            hidden = ", sending overlapped" if self.parallel else ""
            estimate = f"{format_seconds(self.seconds)} at {settings.efficiency:.0%} of the roofline{hidden}"
            yield "time per step", f"{estimate}; {bound} is the tighter limit ({limits})"
            if self.parallel:
                yield from self.parallel.time_rows()
            yield "tokens per day", f"{self.tokens_per_day:,.0f}"
        optimal = self.optimal_tokens
        flops = self.flops_per_token * optimal
        days = f", {optimal / self.tokens_per_day:,.2f} days" if self.tokens_per_day else ""
        yield (
            "compute-optimal",
            f"{optimal:,} tokens, {TOKENS_PER_PARAMETER} a parameter (Hoffmann et al. 2022): {flops:.3g} FLOPs{days}",
        )

    def _generation_rows(self, costs: GenerationCosts) -> Iterator[tuple[str, str]]:
        """Yield label and text of each row of the table of generation costs."""
        length = self.symbols.get(TIME, 1)
        yield "weights", f"{format_bytes(costs.weights)} in {self.settings.precision}"
        yield (
            f"prefill of {length:,} tokens",
            f"{costs.prefill_flops:.4g} FLOPs"
            + (f", {format_seconds(costs.prefill_seconds)}" if costs.prefill_seconds else ""),
        )
        if costs.token_seconds is not None:
            yield "each further token", f"{format_seconds(costs.token_seconds)} for one sequence"
        if costs.cache:
            yield "cache of a sequence", f"{format_bytes(costs.cache)} at {length:,} tokens"
            yield "sequences that fit", f"{costs.sequences:,}"
            if costs.together_seconds and costs.sequences:
                rate = costs.sequences / costs.together_seconds
                yield "all of them", f"{format_seconds(costs.together_seconds)} a token, {rate:,.0f} tokens/s"

    def to_dict(self) -> dict[str, Any]:
        settings = self.settings
        device_names = ("name", "memory", "bandwidth", "link", "network", "node")
        device = {name: getattr(settings.device, name) for name in device_names}
        option_names = ("batch", "precision", "optimizer", "recompute", *DEGREES, "accumulate", "efficiency", "reserve")
        return {
            "model": self.model,
            "symbols": dict(self.symbols),
            "device": {**device, "flops": dict(settings.device.flops)},
            "settings": {name: getattr(settings, name) for name in option_names},
            "parameters": self.parameters,
            "active_parameters": self.active,
            "formula": self.formula,
            "memory": {"parts": dict(self.parts), "formulas": dict(self.part_formulas), "peak": self.peak},
            "where": self.where,
            "budget": settings.budget,
            "fits": self.fits,
            "largest": {largest.name: dict(vars(largest)) for largest in self.largest},
            "flops_per_step": self.flops,
            "flops_per_token": self.flops_per_token,
            "bytes_moved_per_step": self.bytes_moved,
            "compute_seconds": self.compute_seconds,
            "bandwidth_seconds": self.bandwidth_seconds,
            "seconds_per_step": self.seconds,
            "tokens_per_step": self.tokens,
            "tokens_per_day": self.tokens_per_day,
            "compute_optimal_tokens": self.optimal_tokens,
            "generation": None if self.generation is None else dict(vars(self.generation)),
            "parallel": None if self.parallel is None else self.parallel.to_dict(),
            "alternatives": [costs.to_dict() for costs in self.alternatives],
            "notes": list(self.notes),
        }

    def records(self) -> list[dict[str, Any]]:
        return [{"part": part, "bytes": size} for part, size in self.parts.items()]


def plan(subject: Subject, settings: PlanSettings) -> Plan:
    """Plan a training: trace its step for memory and time, find the largest batch and context, estimate generation."""
    planner = Planner(subject, settings)
    values, device = planner.sizes, settings.device
    step = planner.trace()
    moment = planner.peak_moment(step)
    account = count(subject, ["parameters", *(["active"] if subject.make_inputs else [])])
    parameters = account.parameters
    largest = [planner.find_largest(BATCH, settings.rows)] if BATCH in values else []
    notes = [
        device.note,
        f"The efficiency of {settings.efficiency:.0%} is assumed, not measured: set it with efficiency=…",
        f"{settings.reserve:.0%} of the memory is left to the driver and to fragmentation: reserve=…",
    ]
    if TIME in values:
        try:
            largest.append(planner.find_largest(TIME, values[TIME]))
        except CountingError as error:
            notes.append(f"No largest context: {error}")
    if settings.recompute == "layers" and planner.trace().layers == 0:
        notes.append("This model has no list of layers, so that nothing is recomputed.")
    rates, work = device.flops.get(settings.precision), planner.measure_work(step)
    compute = work.flops / rates if rates else None
    bandwidth = work.bytes_moved / device.bandwidth if device.bandwidth else None
    seconds = parallel = None
    if work.micro_batch_seconds is not None and work.update_seconds is not None:
        seconds = settings.accumulate * work.micro_batch_seconds + work.update_seconds
    if planner.model:
        parallel = estimate_parallel(planner.model, settings, work)
        seconds = parallel.overlapped_seconds
        notes += list(_parallel_notes(parallel, settings))
    tokens = settings.batch * values.get(TIME, 1)
    formula = parameters.write_formula(account.order, "unicode")
    number = parameters.total
    return Plan(
        model=subject.name,
        symbols=values,
        settings=settings,
        parameters=number or 0,
        active=(account.active.total if "active" in account.quantities else None) or number or 0,
        formula=f"{formula} = {parameters.number}",
        parts={part: ceil(size) for part, size in settings.memory_parts(step, moment, planner.ends).items()},
        part_formulas=_part_formulas(planner),
        where=moment.label,
        largest=largest,
        flops=work.flops,
        flops_per_token=step.flops * settings.accumulate * settings.data * settings.shards / tokens,
        bytes_moved=work.bytes_moved,
        compute_seconds=compute,
        bandwidth_seconds=bandwidth,
        seconds=seconds,
        tokens=tokens,
        generation=_estimate_generation(subject, settings, values),
        parallel=parallel,
        notes=[note for note in notes if note],
    )


def _parallel_notes(parallel: ParallelCosts, settings: PlanSettings) -> Iterator[str]:
    """Yield notes on what the figures of several devices assume."""
    device = settings.device
    yield (
        "Bytes are those that one device sends in a step, by ring algorithms: 2·(N−1)/N of what is all-reduced, "
        "(N−1)/N of what is gathered or reduce-scattered. Weights and gradients have 4 bytes, activations "
        f"{settings.activation_bytes}."
    )
    if device.link and device.network:
        yield (
            f"Each device sends {device.link / 1e9:,g} GB/s within a node of {device.node} (link=…, node=…) and "
            f"{device.network / 1e9:,g} GB/s to other nodes (network=…), and receives as much."
        )
    if settings.tensor > 1 and parallel.undivided:
        yield f"Tensor parallelism leaves whole on each device: {parallel.undivided}."


def _part_formulas(planner: Planner) -> dict[str, str]:
    """Return a formula, as text, of the bytes of each part at the peak: in B, or in the number of parameters P.

    A formula in B goes through two batch sizes and is proved at a third; a part without such a formula is left out.
    """
    settings, rows = planner.settings, planner.settings.rows
    over = f"/{settings.shards}" if settings.shards > 1 else ""
    is_cut = settings.tensor > 1 or settings.pipeline > 1  # then no device has a share of all weights alike
    formulas = {} if is_cut else {"weights": f"4·P{over}"}
    peak = planner.trace().moments.index(planner.peak_moment(planner.trace()))
    batches = (rows, 2 * rows, 3 * rows)
    steps = [planner.trace(B=batch) for batch in batches] if BATCH in planner.sizes else []
    if steps and len({len(step.moments) for step in steps}) == 1:
        for part in PARTS[1:]:
            *sizes, third = (settings.memory_parts(step, step.moments[peak], planner.ends)[part] for step in steps)
            polynomial = interpolate(symbol(BATCH), batches[:2], sizes)
            has_round_numbers = all(number.denominator <= settings.devices for number in polynomial.terms.values())
            if has_round_numbers and polynomial.at({BATCH: batches[2]}) == third:
                formulas[part] = format_polynomial(polynomial, BATCH)
    if settings.optimizer == "adamw" and not is_cut:
        formulas["optimizer"] = f"8·P{over} + a count of steps for each tensor"
    return formulas


def _estimate_generation(subject: Subject, settings: PlanSettings, values: Sizes) -> GenerationCosts | None:
    """Estimate prefill, decoding and cache costs for T tokens; None if the module has no state or no FLOPs."""
    device, dtype = settings.device, PRECISIONS[settings.precision]
    sizes = {**values, BATCH: 1} if BATCH in values else dict(values)
    cache = forward = 0
    with suppress(Exception):  # not every module has a state, or runs on the meta device
        module = subject.build(sizes).to(dtype).eval()
        inputs = subject.build_inputs(sizes)
        cache = sum(amount for (amount,) in measure.state_bytes(module, inputs).values())
        forward = sum(row[0] for row in measure.product_flops(module, inputs).values())
    if not forward or not cache:
        return None
    weights = sum(parameter.numel() for parameter in subject.build(sizes).parameters()) * dtype.itemsize
    rates, speed = device.flops.get(settings.precision), device.bandwidth
    capacity = max(0, settings.budget - weights - device.workspace)
    sequences = capacity // cache
    length = sizes.get(TIME, 1)

    def seconds(sequences: int) -> float | None:
        if not rates or not speed:
            return None
        needed = max((weights + sequences * cache) / speed, sequences * forward / length / rates)
        return needed / settings.efficiency

    prefill = max(forward / rates, weights / speed) / settings.efficiency if rates and speed else None
    return GenerationCosts(weights, cache, forward, prefill, seconds(1), sequences, seconds(sequences))


def format_polynomial(polynomial: Polynomial, name: str) -> str:
    """Write a polynomial of the symbol `name` as text, with commas in long numbers."""
    terms = [Polynomial({monomial: number}) for monomial, number in sorted(polynomial.terms.items(), reverse=True)]
    text = " + ".join(write_formula(term, (name,), "unicode") for term in terms) or "0"
    return re.sub(r"\d{4,}", lambda number: f"{int(number[0]):,}", text.replace("+ −", "− "))
