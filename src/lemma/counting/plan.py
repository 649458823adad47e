"""A plan of training and generating: what fits on a device, how long it takes, and the largest batch and context.

Memory is read off the trainer's own step, followed without memory (`training_step.py`); what is alive after each of its
operations is a polynomial of the batch and of the context, and the largest ones are roots of these. Time is a roofline:
each operation takes as long as its FLOPs or its bytes need, whichever is more.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, Literal

import numpy as np
import torch

from lemma.counting import measure
from lemma.counting.count import count, plain_kernels
from lemma.counting.polynomial import Polynomial, of, symbol
from lemma.counting.probe import Values
from lemma.counting.solve import largest_within
from lemma.counting.subject import BATCH, SOURCE, TIME, Subject
from lemma.counting.training_step import PARTS, FollowedStep, Moment, StepSettings, follow_step
from lemma.counting.writing import write
from lemma.errors import InputError, LedgerError, unknown
from lemma.report.result import Block, Heading, Items, Result, Table, Text
from lemma.spec.recipe import Recipe

GIB = 2**30
DAY = 86_400
TOKENS_PER_PARAMETER = 20  # compute-optimal (Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models")
EFFICIENCY = 0.6
RESERVE = 0.05
LONGEST = 2**24
"""The largest batch or context that is looked for."""
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Device:
    """A GPU, or a CPU: what of its memory PyTorch sees, in bytes, bytes a second, and FLOPs a second by precision.

    FLOPs are those of dense matrix products in the makers' data sheets; those of float32 are TF32's, which the trainer
    allows on a GPU.
    """

    name: str
    memory: float
    bandwidth: float | None
    flops: Mapping[str, float]
    workspace: int = 16 * 2**20
    """Bytes that cuBLAS takes for itself, in the forward and in the backward thread."""
    gpu: bool = True


HOPPER = 64 * 2**20


def _gpu(name: str, gib: float, terabytes: float, bfloat16: float, tf32: float, workspace: int = 2**24) -> Device:
    rates = {"bfloat16": bfloat16 * 1e12, "float32": tf32 * 1e12}
    return Device(name, gib * GIB, terabytes * 1e12, {word: rate for word, rate in rates.items() if rate}, workspace)


DEVICES = {
    device.name.lower(): device
    for device in (
        _gpu("B200", 178.4, 7.7, 2250, 1125, HOPPER),
        _gpu("H200", 139.8, 4.8, 989, 495, HOPPER),
        _gpu("H100", 79.2, 3.35, 989, 495, HOPPER),
        _gpu("H100-PCIe", 79.2, 2.0, 756, 378, HOPPER),
        _gpu("A100-80GB", 79.2, 2.04, 312, 156),
        _gpu("A100-40GB", 39.4, 1.56, 312, 156),
        _gpu("L40S", 44.4, 0.864, 362, 183),
        _gpu("L4", 22.0, 0.3, 121, 60),
        _gpu("A10", 22.0, 0.6, 125, 62.5),
        _gpu("RTX-4090", 23.6, 1.01, 165, 82.6),
        _gpu("RTX-3090", 23.6, 0.936, 71, 35.6),
        _gpu("T4", 14.6, 0.32, 0, 8.1),
    )
}


def device_of(
    gpu: str | None, memory: float | None = None, flops: float | None = None, bandwidth: float | None = None
) -> Device:
    """A device by its name, or one of your own numbers; these replace those of the name.

    >>> device_of("h200").bandwidth, device_of(None, memory=80e9).memory
    (4800000000000.0, 80000000000.0)
    """
    for word, value in (("memory", memory), ("flops", flops), ("bandwidth", bandwidth)):
        if value is not None and not (isinstance(value, int | float) and value > 0):
            raise InputError(f"{word} = {value!r}: a number above 0 is expected, as in {word}=80e9.")
    if gpu is None and memory is not None:
        found = Device("own device", memory, None, {})
    elif str(gpu).lower() == "cpu":
        import os

        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
        found = Device("cpu", memory or whole, None, {}, 0, gpu=False)
    elif gpu is None and torch.cuda.is_available():
        seen = torch.cuda.get_device_properties(0)
        known = next((one for one in DEVICES.values() if one.name.replace("-", " ") in seen.name), None)
        found = replace(known or Device(seen.name, 0, None, {}), name=seen.name, memory=seen.total_memory)
    else:
        chosen = str(gpu or "H100").lower().replace(" ", "-").replace("_", "-")
        if chosen not in DEVICES:
            names = [device.name for device in DEVICES.values()]
            raise InputError(
                unknown("gpu", str(gpu), [*names, "cpu"])
                + " Or give numbers of your own: memory=80e9 flops=312e12 bandwidth=2e12."
            )
        found = DEVICES[chosen]
    rates = dict.fromkeys(PRECISIONS, flops) if flops else found.flops
    return replace(found, memory=memory or found.memory, bandwidth=bandwidth or found.bandwidth, flops=rates)


@dataclass(frozen=True)
class PlanSettings:
    """How a model is to be trained, and on what."""

    device: Device
    batch: int = 32
    precision: str = "bfloat16"
    optimizer: str = "adamw"
    recompute: Literal["none", "layers"] = "none"
    shards: int = 1
    accumulate: int = 1
    efficiency: float = EFFICIENCY
    """The share of the roofline that is reached."""
    reserve: float = RESERVE
    """The share of the memory that is left to the driver and to gaps between blocks."""

    def __post_init__(self) -> None:
        for name in ("batch", "shards", "accumulate"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} = {value!r}: a whole number from 1 up is expected, as in {name}=8.")
        if self.precision not in PRECISIONS:
            raise InputError(unknown("precision", str(self.precision), PRECISIONS))
        if self.device.flops and self.precision not in self.device.flops:
            raise InputError(f"precision = {self.precision!r}: {self.device.name} has none. Use precision=float32.")
        if self.recompute not in ("none", "layers"):
            raise InputError(unknown("recompute", str(self.recompute), ("none", "layers")))
        for name in ("efficiency", "reserve"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value <= 1 or (name == "efficiency" and not value):
                raise InputError(f"{name} = {value!r}: a share between 0 and 1 is expected, as in {name}=0.5.")
        if self.batch % (self.shards * self.accumulate):
            cuts = self.shards * self.accumulate
            raise InputError(
                f"batch = {self.batch} cannot be cut into equal parts for {self.shards} shards × accumulate "
                f"{self.accumulate}. Nearest batch: {max(1, round(self.batch / cuts)) * cuts}."
            )

    @property
    def rows(self) -> int:
        """Sequences that one device reads at once."""
        return self.batch // (self.shards * self.accumulate)

    @property
    def budget(self) -> int:
        """Bytes that may be used."""
        return int(self.device.memory * (1 - self.reserve))

    def step(self) -> StepSettings:
        """The same for one step."""
        recipe = Recipe.read({"optimizer": self.optimizer, "accumulate": self.accumulate, "batch": self.batch}, "plan")
        return StepSettings(self.device.gpu, PRECISIONS[self.precision], recipe, self.recompute == "layers")

    def parts_of(self, step: FollowedStep, moment: Moment) -> dict[str, int]:
        """What one device holds at a moment.

        With shards (FSDP), weights, gradients and the optimizer's state are cut into as many, and two layers' weights
        are gathered at a time. What cuBLAS takes is added.
        """
        held: dict[str, int] = dict(zip(PARTS, moment.parts, strict=True))
        held["buffers"] += self.device.workspace
        if self.shards > 1:
            held |= {part: -(-held[part] // self.shards) for part in ("weights", "gradients", "optimizer")}
            held["buffers"] += 2 * step.largest_layer
        return held


@dataclass(frozen=True)
class Largest:
    """The largest batch or context that fits: the root of a formula."""

    name: str
    root: int
    formula: str
    moment: str
    followed: bool
    """Whether a step was followed there and fits."""

    def __str__(self) -> str:
        if not self.root:
            return f"none: not even {self.name} = 1 fits ({self.formula}, {self.moment})"
        return f"{self.name} = {self.root:,}, the root of {self.formula} ({self.moment})"


class Planner:
    """Follows steps of one subject at several sizes; each once."""

    def __init__(self, subject: Subject, settings: PlanSettings) -> None:
        self.subject, self.settings = subject, settings
        self._steps: dict[tuple[int, ...], FollowedStep] = {}
        self.values = {**subject.sizes(True)}
        if BATCH in self.values:
            self.values[BATCH] = settings.rows

    def at(self, **sizes: int) -> FollowedStep:
        """A step at the planned sizes but for these; a source is as long as the target if it was."""
        values = {**self.values, **sizes}
        if TIME in sizes and self.values.get(SOURCE) == self.values[TIME]:
            values[SOURCE] = sizes[TIME]
        key = tuple(values.values())
        if key not in self._steps:
            self._steps[key] = follow_step(self.subject, self.settings.step(), values)
        return self._steps[key]

    def total(self, step: FollowedStep, moment: Moment) -> int:
        """All that one device holds at a moment."""
        return sum(self.settings.parts_of(step, moment).values())

    def peak(self, step: FollowedStep) -> Moment:
        """The moment at which one device holds most."""
        return max(step.moments, key=partial(self.total, step))

    def through(self, name: str, points: Sequence[int]) -> list[tuple[FollowedStep, Sequence[Moment]]]:
        """Steps at several values of one size, with the moments that belong together.

        Steps of different operations, which a special size may cause, have their peaks in common only.
        """
        steps = [self.at(**{name: point}) for point in points]
        alike = len({len(step.moments) for step in steps}) == 1
        return [(step, step.moments if alike else [self.peak(step)]) for step in steps]

    def largest(self, name: str, points: Sequence[int]) -> Largest:
        """The largest value of a size at which all moments fit, and the formula of the moment that is in its way."""
        budget, followed = self.settings.budget, self.through(name, points)
        held = np.array([[self.total(step, moment) for moment in moments] for step, moments in followed], dtype=float)

        def heights(value: int) -> np.ndarray:
            weights = [prod((value - o) / (p - o) for o in points if o != p) for p in points]
            return np.asarray(weights) @ held

        root = bisect_right(range(1, LONGEST + 1), budget, key=lambda value: heights(value).max())
        place = int(heights(min(root + 1, LONGEST)).argmax())
        exact = [self.total(step, moments[place]) for step, moments in followed]
        polynomial = interpolated(symbol(name), points, exact)
        root = largest_within(polynomial, name, budget, range(1, LONGEST + 1)) or 0
        fits = False
        if 0 < root < LONGEST:
            step = self.at(**{name: root})
            fits = self.total(step, self.peak(step)) <= budget
        equation = f"{in_figures(polynomial, name)} = {budget:,}"
        return Largest(name, root, equation, followed[0][1][place].where, fits)


def interpolated(variable: Polynomial, points: Sequence[int], values: Sequence[int]) -> Polynomial:
    """The polynomial through these points (Lagrange).

    >>> interpolated(symbol("B"), (1, 2, 3), (6, 11, 18)) == symbol("B") ** 2 + 2 * symbol("B") + 3
    True
    """
    whole = of(0)
    for point, value in zip(points, values, strict=True):
        term = of(value)
        for other in points:
            if other != point:
                term = term * (variable - other) / (point - other)
        whole = whole + term
    return whole


@dataclass(frozen=True)
class GenerationCosts:
    """What generating costs, in the plan's precision, on one device."""

    weights: int
    cache: int
    """Bytes of the state of one sequence of T tokens."""
    prefill_flops: int
    prefill_seconds: float | None
    token_seconds: float | None
    """For one sequence: all weights and the cache are read."""
    sequences: int
    """How many fit next to the weights."""
    together_seconds: float | None
    """For a token of each of these."""


@dataclass(frozen=True)
class Plan(Result):
    """Whether a training fits, how long it takes, what is the largest that fits, and what generating costs."""

    model: str
    symbols: Values
    settings: PlanSettings
    parameters: int
    active: int
    formula: str
    parts: Mapping[str, int]
    part_formulas: Mapping[str, str]
    where: str
    largest: Sequence[Largest]
    flops: int
    """Of a step, on one device."""
    moved: int
    compute_seconds: float | None
    bandwidth_seconds: float | None
    seconds: float | None
    """A step, by the roofline of each operation, at the stated efficiency."""
    tokens: int
    """Tokens of a step, on all devices."""
    generation: GenerationCosts | None
    notes: Sequence[str] = ()

    @property
    def title(self) -> str:
        """What is planned."""
        return f"Plan: {self.model} on {self.settings.device.name}"

    @property
    def peak(self) -> int:
        """The most that one device holds."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether it fits."""
        return self.peak <= self.settings.budget

    @property
    def tokens_per_day(self) -> float | None:
        """At the stated efficiency."""
        return None if self.seconds is None else self.tokens / self.seconds * DAY

    @property
    def optimal_tokens(self) -> int:
        """The compute-optimal number of tokens: 20 a parameter (Hoffmann et al. 2022)."""
        return TOKENS_PER_PARAMETER * self.active

    def blocks(self) -> Iterator[Block]:
        """Memory, the largest that fits, time, the budget of tokens, generation."""
        settings, device = self.settings, self.settings.device
        yield Heading(self.title, 1)
        sizes = ", ".join(f"{name} = {value:,}" for name, value in self.symbols.items())
        active = f"; {self.active:,} are active for a token" if self.active != self.parameters else ""
        yield Text(f"{sizes}\nparameters P = {self.formula}{active}")
        how = [f"batch {settings.batch}", settings.precision, settings.optimizer]
        how += [f"recompute {settings.recompute}"] if settings.recompute != "none" else []
        how += [f"{settings.shards} shards, {settings.rows} sequences on each"] if settings.shards > 1 else []
        how += [f"accumulate {settings.accumulate}"] if settings.accumulate > 1 else []
        yield Text(", ".join(how) + "; Lemma's trainer, not compiled")
        rows = [
            (part, in_bytes(held), f"{held / max(1, self.peak):.1%}", self.part_formulas.get(part, ""))
            for part, held in self.parts.items()
        ]
        total = ("peak", in_bytes(self.peak), "100.0%", "")
        yield Table(
            ("memory of a step", "bytes", "share", "formula"),
            rows,
            f"Memory at the peak ({self.where})",
            total=total,
            left=(0, 3),
            flexible=(3,),
            formulas=(3,),
        )
        verdict = "It fits" if self.fits else "It does not fit"
        of_all = f"{in_bytes(settings.budget)} ({1 - settings.reserve:.0%} of {in_bytes(device.memory)})"
        yield Text(f"{verdict}: {in_bytes(self.peak)} of {of_all}.", "good" if self.fits else "bad")
        words = {BATCH: "batch" + (" of one device" if settings.shards > 1 else ""), TIME: "context"}
        yield Items([f"largest {words[one.name]}: {one}" for one in self.largest])
        yield Table(("", ""), list(self._time()), "Time", plain=True)
        if self.generation:
            yield Table(("", ""), list(self._generation(self.generation)), "Generating", plain=True)
        if self.notes:
            yield Items(list(self.notes), "note")

    def _time(self) -> Iterator[tuple[str, str]]:
        settings = self.settings
        yield "FLOPs per token", f"{self.flops * settings.shards / self.tokens:,.0f} (forward and backward)"
        yield "FLOPs per step", f"{self.flops:.4g} on each device"
        yield "bytes moved per step", in_bytes(self.moved)
        if self.seconds is None or self.tokens_per_day is None:
            yield "time", "not known: give flops=… and bandwidth=… of the device"
        else:
            bound = "FLOPs" if (self.compute_seconds or 0) > (self.bandwidth_seconds or 0) else "bandwidth"
            alone = f"FLOPs alone {in_seconds(self.compute_seconds)}, bytes alone {in_seconds(self.bandwidth_seconds)}"
            share = f"{in_seconds(self.seconds)} at {settings.efficiency:.0%} of the roofline"
            yield "time per step", f"{share}; {bound} is the tighter limit ({alone})"
            yield "tokens per day", f"{self.tokens_per_day:,.0f}"
        optimal = self.optimal_tokens
        flops = self.flops * settings.shards / self.tokens * optimal
        days = f", {optimal / self.tokens_per_day:,.2f} days" if self.tokens_per_day else ""
        yield (
            "compute-optimal",
            f"{optimal:,} tokens, {TOKENS_PER_PARAMETER} a parameter (Hoffmann et al. 2022): {flops:.3g} FLOPs{days}",
        )

    def _generation(self, costs: GenerationCosts) -> Iterator[tuple[str, str]]:
        length = self.symbols.get(TIME, 1)
        yield "weights", f"{in_bytes(costs.weights)} in {self.settings.precision}"
        yield (
            f"prefill of {length:,} tokens",
            f"{costs.prefill_flops:.4g} FLOPs"
            + (f", {in_seconds(costs.prefill_seconds)}" if costs.prefill_seconds else ""),
        )
        if costs.token_seconds is not None:
            yield "each further token", f"{in_seconds(costs.token_seconds)} for one sequence"
        if costs.cache:
            yield "cache of a sequence", f"{in_bytes(costs.cache)} at {length:,} tokens"
            yield "sequences that fit", f"{costs.sequences:,}"
            if costs.together_seconds and costs.sequences:
                rate = costs.sequences / costs.together_seconds
                yield "all of them", f"{in_seconds(costs.together_seconds)} a token, {rate:,.0f} tokens/s"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        settings = self.settings
        device = {name: getattr(settings.device, name) for name in ("name", "memory", "bandwidth")}
        chosen = ("batch", "precision", "optimizer", "recompute", "shards", "accumulate", "efficiency", "reserve")
        return {
            "model": self.model,
            "symbols": dict(self.symbols),
            "device": {**device, "flops": dict(settings.device.flops)},
            "settings": {name: getattr(settings, name) for name in chosen},
            "parameters": self.parameters,
            "active_parameters": self.active,
            "formula": self.formula,
            "memory": {"parts": dict(self.parts), "formulas": dict(self.part_formulas), "peak": self.peak},
            "where": self.where,
            "budget": settings.budget,
            "fits": self.fits,
            "largest": {one.name: {**vars(one)} for one in self.largest},
            "flops_per_step": self.flops,
            "flops_per_token": self.flops * settings.shards / self.tokens,
            "bytes_moved_per_step": self.moved,
            "compute_seconds": self.compute_seconds,
            "bandwidth_seconds": self.bandwidth_seconds,
            "seconds_per_step": self.seconds,
            "tokens_per_step": self.tokens,
            "tokens_per_day": self.tokens_per_day,
            "compute_optimal_tokens": self.optimal_tokens,
            "generation": None if self.generation is None else dict(vars(self.generation)),
            "notes": list(self.notes),
        }

    def records(self) -> list[dict[str, Any]]:
        """One row for every part of the memory."""
        return [{"part": part, "bytes": held} for part, held in self.parts.items()]


def plan(subject: Subject, settings: PlanSettings) -> Plan:
    """Plan the training of a subject, and generating with it."""
    planner = Planner(subject, settings)
    values, device = planner.values, settings.device
    step = planner.at()
    moment = planner.peak(step)
    account = count(subject, ["parameters", *(["active"] if subject.feed else [])])
    parameters = account.parameters
    batch_points = (settings.rows, 2 * settings.rows) if settings.rows > 1 else (2, 4)
    largest = [planner.largest(BATCH, batch_points)] if BATCH in values else []
    notes = [
        f"The efficiency of {settings.efficiency:.0%} is assumed, not measured: set it with efficiency=…",
        "Time between devices is not counted." if settings.shards > 1 else "",
        f"{settings.reserve:.0%} of the memory is left to the driver and to gaps between blocks: reserve=…",
    ]
    if TIME in values:
        length = values[TIME]
        points = (max(1, length // 2), length, 2 * length) if length > 1 else (1, 2, 3)
        try:
            largest.append(planner.largest(TIME, points))
        except LedgerError as error:
            notes.append(f"No largest context: {error}")
    if settings.recompute == "layers" and planner.at().layers == 0:
        notes.append("This model has no list of layers, so that nothing is recomputed.")
    rates, accumulate = device.flops.get(settings.precision), settings.accumulate
    compute = step.flops * accumulate / rates if rates else None
    bandwidth = step.moved * accumulate / device.bandwidth if device.bandwidth else None
    seconds = None
    if rates and device.bandwidth:
        needed = sum(max(f / rates, m / device.bandwidth) * n for (f, m), n in step.kernels.items())
        seconds = needed * accumulate / settings.efficiency
    tokens = settings.batch * values.get(TIME, 1)
    formula = parameters.quantity.formula(account.order, "unicode")
    number = parameters.total
    return Plan(
        model=subject.name,
        symbols=values,
        settings=settings,
        parameters=number or 0,
        active=(account.active.total if "active" in account.quantities else number) or 0,
        formula=f"{formula} = {parameters.number}",
        parts=settings.parts_of(step, moment),
        part_formulas=_part_formulas(planner, batch_points),
        where=moment.where,
        largest=largest,
        flops=step.flops * accumulate,
        moved=step.moved * accumulate,
        compute_seconds=compute,
        bandwidth_seconds=bandwidth,
        seconds=seconds,
        tokens=tokens,
        generation=_generation(subject, settings, values),
        notes=[note for note in notes if note],
    )


def _part_formulas(planner: Planner, points: Sequence[int]) -> dict[str, str]:
    """What each part is at the peak: in the parameters P where it is made of weights, else in the batch."""
    settings = planner.settings
    over = f"/{settings.shards}" if settings.shards > 1 else ""
    found = {"weights": f"4·P{over}"}
    peak = planner.at().moments.index(planner.peak(planner.at()))
    followed = planner.through(BATCH, points) if BATCH in planner.values else []
    if not followed or any(len(moments) <= peak for _, moments in followed):
        return found
    for part in PARTS[1:]:
        held = [settings.parts_of(step, moments[peak])[part] for step, moments in followed]
        found[part] = in_figures(interpolated(symbol(BATCH), points, held), BATCH)
    if settings.optimizer == "adamw":
        found["optimizer"] = f"8·P{over} + a count of steps for each tensor"
    return found


def _generation(subject: Subject, settings: PlanSettings, values: Values) -> GenerationCosts | None:
    """What generating costs: a forward pass over T tokens, then one token at a time with the state of those before."""
    device, dtype = settings.device, PRECISIONS[settings.precision]
    one = {**values, BATCH: 1} if BATCH in values else dict(values)
    cache = forward = 0
    with suppress(Exception):  # not every module has a state, or runs on the meta device
        module = subject.build(one).to(dtype).eval()
        inputs = subject.inputs(one)
        cache = sum(amount for (amount,) in measure.state_bytes(module, inputs).values())
        with plain_kernels():
            forward = sum(row[0] for row in measure.products(module, inputs).values())
    if not forward or not cache:
        return None
    weights = sum(parameter.numel() for parameter in subject.build(one).parameters()) * dtype.itemsize
    rates, speed = device.flops.get(settings.precision), device.bandwidth
    room = max(0, settings.budget - weights - device.workspace)
    sequences = room // cache
    length = one.get(TIME, 1)

    def seconds(sequences: int) -> float | None:
        if not rates or not speed:
            return None
        needed = max((weights + sequences * cache) / speed, sequences * forward / length / rates)
        return needed / settings.efficiency

    prefill = max(forward / rates, weights / speed) / settings.efficiency if rates and speed else None
    return GenerationCosts(weights, cache, forward, prefill, seconds(1), sequences, seconds(sequences))


def in_figures(polynomial: Polynomial, name: str) -> str:
    """A polynomial of one symbol term by term, its long numbers in groups of three digits."""
    terms = [Polynomial({monomial: number}) for monomial, number in sorted(polynomial.terms.items(), reverse=True)]
    written = " + ".join(write(term, (name,), "unicode") for term in terms) or "0"
    return re.sub(r"\d{4,}", lambda number: f"{int(number[0]):,}", written.replace("+ −", "− "))


def in_bytes(number: float) -> str:
    """Bytes as people read them.

    >>> in_bytes(512), in_bytes(1_500_000), in_bytes(15.56 * 2**30)
    ('512 B', '1.43 MiB', '15.56 GiB')
    """
    for unit, size in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:,.2f} {unit}"
    return f"{number:,.0f} B"


def in_seconds(number: float | None) -> str:
    """A time as people read it.

    >>> in_seconds(0.0123), in_seconds(2.5), in_seconds(None)
    ('12.3 ms', '2.5 s', 'not known')
    """
    if number is None:
        return "not known"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number * 1e6:.3g} µs"
