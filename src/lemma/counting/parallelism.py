"""Several devices as algebra: the bytes that each sends in a step, by collective, and when they take longest.

A step runs on data × shards × tensor × pipeline devices. Conventions, which the plan states next to its figures: bytes
are those that one device sends in one step, with ring algorithms, in which an all-reduce among N devices sends
2·(N−1)/N of its bytes, and an all-gather or a reduce-scatter (N−1)/N. Weights and gradients have 4 bytes, as in
Lemma's trainer; activations those of the plan's precision. Scalars, such as the loss and the norm of the gradient, are
left out.

Devices are numbered with tensor parallelism innermost, then shards, then replicas, then stages of the pipeline, so
that a node has whole groups where it can.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from itertools import product
from math import ceil, prod
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from lemma.counting.count import DEFAULT_CONVENTIONS, SubjectCounter
from lemma.counting.devices import Device
from lemma.counting.fit import FitResult, Read, Readings, Sizes, fit_groups, path_pattern
from lemma.counting.measure import DEFAULT_LIMITS, find_tied_names
from lemma.counting.polynomial import ZERO, Polynomial, sum_polynomials
from lemma.counting.subject import BATCH, TIME, Subject
from lemma.counting.tensor_split import COLUMN, ROW, TensorSplit, find_split, small_inputs
from lemma.counting.training_step import find_layers
from lemma.counting.writing import write_formula
from lemma.errors import CountingError
from lemma.report.numbers import format_bytes, format_seconds
from lemma.report.result import Block, Items, Table, Text

if TYPE_CHECKING:
    from lemma.counting.plan import PlanSettings

MAX_TENSOR = 64  # tensor-parallel devices that are tried to say which numbers are possible
DEGREES = ("data", "shards", "tensor", "pipeline")
WEIGHT_BYTES = 4
Traffic = Literal["forward", "backward", "repeated", "boundary"]


@dataclass(frozen=True)
class Transfer:
    """Bytes that each device sends in a step in one kind of collective, on the busiest stage of the pipeline."""

    collective: str  # all-reduce, all-gather, reduce-scatter or send
    content: str
    degree: str  # among which devices: one of `DEGREES`
    devices: int  # N
    sent: int  # bytes
    payload: str  # formula of the bytes of which a ring sends a part
    limit: float  # bytes that are sent for N → ∞
    formula: str  # of `sent`, in N and the model's symbols
    seconds: float | None  # None if the speed of the cables is not known


@dataclass(frozen=True)
class Weight:
    """A parameter, and what parallelism does to it."""

    name: str
    shape: tuple[int, ...]
    in_layers: bool
    divided: int | None  # the dimension that tensor parallelism divides
    is_trainable: bool

    def count(self, tensor: int = 1, shards: int = 1) -> int:
        """Return the numbers on one tensor-parallel device, padded so that its rows can be cut into `shards`."""
        local = (size // tensor if index == self.divided else size for index, size in enumerate(self.shape))
        first, *columns = [*local] or [1]
        return ceil(first / shards) * shards * prod(columns)


class ParallelModel:
    """A subject's parameters and activations as parallel training needs them; read off the module when first used."""

    def __init__(self, subject: Subject, sizes: Sizes) -> None:
        self.subject, self.sizes = subject, dict(sizes)
        self.counter = SubjectCounter(subject, DEFAULT_CONVENTIONS, DEFAULT_LIMITS)
        self.module = subject.build(sizes)
        self.layer_paths = [path for path, _ in find_layers(self.module)]
        self._splits: dict[tuple[int, ...], TensorSplit] = {}
        self._stages: dict[tuple[int, int], list[list[Weight]]] = {}
        self.has_formulas = True

    def copy(self, rows: int, has_formulas: bool) -> "ParallelModel":
        """Return the model with micro-batches of another size; without formulas, figures scale with the tokens."""
        other = copy(self)
        other.sizes = {**self.sizes, **({BATCH: rows} if BATCH in self.sizes else {})}
        other.has_formulas = has_formulas
        return other

    @cached_property
    def split(self) -> TensorSplit:
        """Return how the layers split at the planned widths, with few tokens."""
        return self._find_split(small_inputs(self.sizes))

    def _find_split(self, sizes: Sizes) -> TensorSplit:
        """Return how the layers split at these sizes; each is read once."""
        key = tuple(sizes.values())
        if key not in self._splits:
            self.counter.reader.check_time()
            self._splits[key] = find_split(self.subject, sizes)
        return self._splits[key]

    def find_obstacle(self, tensor: int, pipeline: int) -> str:
        """Return why the model cannot be split so, as a sentence; "" if it can."""
        if tensor == pipeline == 1:
            return ""
        try:
            split = self.split
        except CountingError as error:
            return f"Tensor and pipeline parallelism cannot be planned: {error}"
        if tensor > 1 and not split.roles:
            return f"tensor = {tensor}: this model has no layers with linear layers that could be split."
        if tensor > 1 and (obstacle := split.find_obstacle(tensor)):
            possible = [str(number) for number in range(1, MAX_TENSOR + 1) if not split.find_obstacle(number)]
            return f"tensor = {tensor}: {obstacle}. Possible: {', '.join(possible)}."
        if pipeline == 1:
            return ""
        lists = sorted({path.rpartition(".")[0] for path in self.layer_paths})
        if len(lists) != 1:
            number = f"{len(lists)} lists of layers ({', '.join(lists)})" if lists else "no list of layers"
            return f"pipeline = {pipeline}: one list of layers is cut into stages; this model has {number}."
        if list(split.layers) != self.layer_paths:
            return f"pipeline = {pipeline}: this model does not call its layers once each, one after the other."
        layers = len(self.layer_paths)
        if layers % pipeline:
            divisors = [str(number) for number in range(1, layers + 1) if layers % number == 0]
            return f"pipeline = {pipeline} does not divide the {layers} layers. Possible: {', '.join(divisors)}."
        return ""

    def stages(self, tensor: int, pipeline: int) -> list[list[Weight]]:
        """Return the parameters of each stage of the pipeline; tied ones may be on the first and on the last stage."""
        if (tensor, pipeline) not in self._stages:
            self._stages[tensor, pipeline] = self._find_stages(tensor, pipeline)
        return self._stages[tensor, pipeline]

    def _find_stages(self, tensor: int, pipeline: int) -> list[list[Weight]]:
        """Return the parameters of each stage, with what tensor parallelism does to them."""
        order = {path: index for index, path in enumerate(self.layer_paths)}
        modules, tied = dict(self.module.named_modules()), find_tied_names(self.module)
        stages: list[list[Weight]] = [[] for _ in range(pipeline)]
        for name, parameter in self.module.named_parameters():
            path, _, attribute = name.rpartition(".")
            layer = next((index for prefix, index in order.items() if name.startswith(f"{prefix}.")), None)
            role = self.split.roles.get(path) if tensor > 1 else None
            divided = None
            if role == COLUMN or (role == ROW and attribute == "weight"):
                is_transposed = attribute == "weight" and not isinstance(modules[path], nn.Linear)
                divided = int((role == ROW) != is_transposed)
            weight = Weight(name, tuple(parameter.shape), layer is not None, divided, parameter.requires_grad)
            stage = 0 if layer is None else layer * pipeline // len(order)
            if layer is None and pipeline > 1:
                uses = [other.rpartition(".")[0] in self.split.called_after for other in (name, *tied.get(name, ()))]
                stage = -1 if uses[0] else 0
                if any(uses) and not uses[0]:
                    stages[-1].append(weight)
            stages[stage].append(weight)
        return stages

    def parameter_formula(self, weights: Sequence[Weight]) -> Polynomial | None:
        """Return the sum of these parameters' numbers as a formula; None if there is none at the planned sizes."""
        reader, requested = self.counter.reader, self.subject.sizes(False)
        patterns = {path_pattern(reader.kinds.rename(weight.name, requested)) for weight in weights}

        def read(sizes: Sizes) -> Readings:
            shapes = reader.shapes(sizes)
            return {path: (prod(shape),) for path, shape in shapes.items() if path_pattern(path) in patterns}

        key = f"parameters {sha256(' '.join(sorted(patterns)).encode()).hexdigest()[:16]}"
        return self._fit(key, read, False, requested, sum(weight.count() for weight in weights))

    def traffic(self, which: Traffic) -> tuple[Polynomial | None, int]:
        """Return the numbers sent in one micro-batch: as a formula or None, and at the planned sizes.

        `which` is a field of `TensorSplit`. The formula is compared with the module at the planned widths with few
        tokens; without one, the numbers are taken to be in proportion to the tokens.
        """

        def read(sizes: Sizes) -> Readings:
            return self.counter.reader.kinds.rename_all(getattr(self._find_split(sizes), which), sizes)

        few = small_inputs(self.sizes)
        number = sum(amount for (amount,) in getattr(self.split, which).values())
        formula = self._fit(f"{which} traffic", read, True, few, number)
        if formula is not None:
            return formula, int(self.evaluate(formula))
        tokens, few_tokens = (sizes.get(BATCH, 1) * sizes.get(TIME, 1) for sizes in (self.sizes, few))
        return None, ceil(number * tokens / few_tokens)

    def _fit(self, key: str, read: Read, with_inputs: bool, sizes: Sizes, number: int) -> Polynomial | None:
        """Fit the sum of what `read` returns; None unless the formula gives `number` at `sizes`."""
        if not number:
            return ZERO
        if not self.has_formulas:
            return None
        reader = self.counter.reader
        kinds = reader.kinds if reader.kinds.containers else None

        def fit() -> FitResult:
            with reader.time_limit(DEFAULT_LIMITS.seconds):
                return fit_groups(read, reader.probe_sizes(with_inputs), kinds)

        try:
            fit_result = self.counter.cache.get_or_fit(key, fit)
        except CountingError:
            return None
        formula = sum_polynomials(group.total for group in fit_result.fits.values())
        names = {*sizes, *reader.kinds.derived}
        has_formula = not fit_result.failures and formula.symbols <= names
        return formula if has_formula and self.evaluate(formula, sizes) == number else None

    def evaluate(self, formula: Polynomial, sizes: Sizes | None = None) -> int | Fraction:
        """Return the value of a formula at sizes, by default the planned ones."""
        sizes = sizes or self.sizes
        derived = {name: size.at(sizes) for name, size in self.counter.reader.kinds.derived.items()}
        return formula.at({**sizes, **derived})


def group_speed(device: Device, stride: int, devices: int) -> float | None:
    """Return the bytes per second that each device of a group sends to the next; `stride` is between their numbers.

    Inside a node it is the speed of the link. Rings through several nodes share the network cards of the group's
    devices in each node, since each ring leaves a node at another device.

    >>> from lemma.counting.devices import DEVICES
    >>> [group_speed(DEVICES["h100"], 1, 8), group_speed(DEVICES["h100"], 1, 16), group_speed(DEVICES["h100"], 8, 2)]
    [450000000000.0, 400000000000.0, 50000000000.0]
    """
    in_node = max(1, device.node // stride)
    if devices <= in_node:
        return device.link
    if device.link is None or device.network is None:
        return None if in_node > 1 else device.network
    return min(device.link, in_node * device.network)


def _multiply(factor: int | Fraction, text: str) -> str:
    """Write a number times a formula.

    >>> _multiply(Fraction(1, 2), "P"), _multiply(8, "(P_l + P_o)"), _multiply(Fraction(3, 2), "P")
    ('P/2', '8·(P_l + P_o)', '3·P/2')
    """
    factor = Fraction(factor)
    text = text if factor.numerator == 1 else f"{factor.numerator}·{text}"
    return text if factor.denominator == 1 else f"{text}/{factor.denominator}"


class TransferList:
    """Builds the transfers of one split, with the definitions of the symbols in their formulas."""

    def __init__(self, model: ParallelModel, settings: "PlanSettings") -> None:
        self.model, self.settings = model, settings
        self.definitions: dict[str, str] = {}
        self.transfers: list[Transfer] = []
        self.order = tuple(model.sizes)
        self.letter = next(letter for letter in ("N", "n", "R", "r", "N_d") if letter not in model.sizes)
        stages = model.stages(settings.tensor, settings.pipeline)
        self.weights = max(stages, key=lambda stage: sum(weight.count(settings.tensor) for weight in stage))
        if settings.shards > 1 or settings.data > 1:
            self._add_gradients()
        if settings.tensor > 1:
            self._add_tensor()
        if settings.pipeline > 1:
            self._add_pipeline()

    def _add_gradients(self) -> None:
        """Add gathered weights and summed gradients; FSDP gathers a layer's weights again for the backward pass."""
        shards, micro_batches = self.settings.shards, self.settings.accumulate
        trained, number = self._define("P_d", [w for w in self.weights if w.is_trainable], "trained parameters")
        if shards > 1:
            terms, gathered = [], 0
            for name, passes, meaning in (("P_l", 2, "parameters of the layers"), ("P_o", 1, "other parameters")):
                weights = [weight for weight in self.weights if weight.in_layers == (passes == 2)]
                if weights:
                    terms.append(_multiply(passes, name))
                    gathered += passes * self._define(name, weights, meaning)[1]
            text = f"({' + '.join(terms)})" if len(terms) > 1 else terms[0]
            self._add("all-gather", "weights", "shards", 1, WEIGHT_BYTES * micro_batches, text, gathered)
            self._add("reduce-scatter", "gradients", "shards", 1, WEIGHT_BYTES, trained, number)
        if self.settings.data > 1:
            self._add("all-reduce", "gradients", "data", 2, Fraction(WEIGHT_BYTES, shards), trained, number)

    def _define(self, name: str, weights: Sequence[Weight], meaning: str) -> tuple[str, int]:
        """Define a symbol for the number of some parameters on one device; return it and the number."""
        tensor, shards, pipeline = self.settings.tensor, self.settings.shards, self.settings.pipeline
        number, unpadded = (sum(weight.count(tensor, cuts) for weight in weights) for cuts in (shards, 1))
        formula: Polynomial | None = ZERO
        for in_layers, is_divided in product((True, False), repeat=2):
            part = [w for w in weights if (w.in_layers, w.divided is not None) == (in_layers, is_divided)]
            if part and in_layers and pipeline > 1:  # a formula knows the layers of all stages only
                part = self._find_same_in_all_stages(part)
            term = self.model.parameter_formula(part) if part else ZERO
            parts = (tensor if is_divided else 1) * (pipeline if in_layers else 1)
            formula = None if formula is None or term is None else formula + term / parts
        padding = f" + {number - unpadded:,} (rows padded for {shards} shards)" if number > unpadded else ""
        if formula is not None and self.model.evaluate(formula) == unpadded:
            figure = f"{write_formula(formula, self.order, 'unicode')}{padding} = {number:,}"
        else:  # such as stages of different layers
            figure = f"{number:,}"
        self.definitions[name] = f"{meaning} on one device = {figure}"
        return name, number

    def _find_same_in_all_stages(self, weights: Sequence[Weight]) -> list[Weight]:
        """Return the weights of all stages whose paths differ from those of `weights` only in the layer's number."""
        patterns = {path_pattern(weight.name) for weight in weights}
        stages = self.model.stages(self.settings.tensor, self.settings.pipeline)
        return [weight for stage in stages for weight in stage if path_pattern(weight.name) in patterns]

    def _add_tensor(self) -> None:
        """Add the activations, and gradients of activations, that tensor parallelism sums up."""
        settings = self.settings
        factor = Fraction(settings.activation_bytes * settings.accumulate, settings.pipeline)
        self._add_traffic("all-reduce", "activations", "tensor", 2, factor, "forward")
        if settings.recompute == "layers":
            self._add_traffic("all-reduce", "recomputed activations", "tensor", 2, factor, "repeated")
        self._add_traffic("all-reduce", "their gradients", "tensor", 2, factor, "backward")
        shared = {*self.model.split.shared_parameters(settings.tensor)}
        number = sum(w.count() for w in self.weights if w.name in shared and w.is_trainable)
        if number:
            self._add("all-reduce", "shared gradients", "tensor", 2, WEIGHT_BYTES, f"{number:,}", number)

    def _add_pipeline(self) -> None:
        """Add the activations that a stage sends to the next, and their gradients that it sends back."""
        settings, neighbours = self.settings, 2 if self.settings.pipeline > 2 else 1
        factor = neighbours * settings.activation_bytes * settings.accumulate
        self._add_traffic("send", "activations and gradients", "pipeline", 0, factor, "boundary")
        first, *_, last = self.model.stages(settings.tensor, settings.pipeline)
        names = {weight.name for weight in first}
        tied = [weight for weight in last if weight.name in names and weight.is_trainable]
        if tied:
            text, number = self._define("P_t", tied, "tied parameters of the first and the last stage")
            factor = Fraction(WEIGHT_BYTES, settings.shards)
            self._add("all-reduce", "tied gradients", "pipeline", 2, factor, text, number, devices=2)

    def _add_traffic(
        self, collective: str, content: str, degree: str, passes: int, factor: int | Fraction, which: Traffic
    ) -> None:
        """Add `factor` times what `ParallelModel.traffic` returns, a number of one micro-batch."""
        formula, number = self.model.traffic(which)
        if not number:
            return
        if formula is None:
            self._add(collective, content, degree, passes, factor, f"{number:,}", number)
        else:
            text = write_formula(formula * factor, self.order, "unicode")
            payload = f"({text})" if " " in re.sub(r"\(.*\)", "", text) else text
            self._add(collective, content, degree, passes, 1, payload, int(number * factor))

    def describe_undivided(self) -> str:
        """Return the fraction of the weights that tensor parallelism leaves whole, and their paths."""
        undivided = [weight for weight in self.weights if weight.divided is None and len(weight.shape) > 1]
        total = sum(weight.count() for weight in self.weights)
        paths = dict.fromkeys(path_pattern(weight.name).rpartition(".")[0] for weight in undivided)
        fraction = sum(weight.count() for weight in undivided) / max(1, total)
        return f"{', '.join(paths)} ({fraction:.1%} of the parameters)" if paths else ""

    def _add(
        self,
        collective: str,
        content: str,
        degree: str,
        passes: int,
        factor: int | Fraction,
        text: str,
        number: int,
        devices: int = 0,
    ) -> None:
        """Add a transfer of `factor` times `number`, whose formula is `text`.

        A ring of N devices sends `passes`·(N−1)/N of it; without passes all of it is sent.
        """
        settings, letter = self.settings, self.letter
        devices = devices or getattr(settings, degree)
        ring = Fraction(passes * (devices - 1), devices) if passes else 1
        prefix = (f"{passes}·" if passes > 1 else "") + f"({letter}−1)/{letter}·" if passes else ""
        speed, sent = group_speed(settings.device, settings.stride(degree), devices), round(factor * number * ring)
        payload = _multiply(factor, text)
        self.transfers.append(
            Transfer(
                collective,
                content,
                degree,
                devices,
                sent,
                payload,
                float(factor * number) * max(passes, 1),
                f"{prefix}{payload}",
                sent / speed if speed else None,
            )
        )


@dataclass(frozen=True)
class Work:
    """The computing of a step on one device."""

    flops: int
    bytes_moved: int
    rate: float | None = None  # FLOPs per second that are reached
    micro_batch_seconds: float | None = None  # forward and backward, of one micro-batch on one stage
    update_seconds: float | None = None
    backward_fraction: float = 0  # of the FLOPs


@dataclass(frozen=True)
class Threshold:
    """The number N of devices of one degree above which communication takes longer than computing, at a fixed batch.

    Computing F FLOPs takes F/(N·R) seconds, and sending (N−1)/N of c bytes takes (N−1)/N·c/v, which is longer where
    N > 1 + F·v/(R·c).
    """

    degree: str
    formula: str  # of N
    sequential: float  # without overlap: N above which it takes longer than all computing
    overlapped: float  # with overlap: N above which it takes longer than what can run at the same time
    speed: float


def find_threshold(transfers: Sequence[Transfer], work: Work, settings: "PlanSettings") -> Threshold | None:
    """Return the threshold of the transfers of one degree; None if a speed is not known.

    The batch and all other degrees stay as they are. Beyond a node, v is the speed of the network.
    """
    degree, device = transfers[0].degree, settings.device
    devices = getattr(settings, degree)
    transfers = [t for t in transfers if degree != "pipeline" or t.collective == "send"]  # without tied weights
    stride = settings.stride(degree)
    is_ring = transfers[0].collective != "send"
    content = sum(transfer.limit for transfer in transfers)
    in_node = max(1, device.node // stride)
    overlap = {"data": work.backward_fraction / settings.accumulate, "tensor": 0.0}.get(degree, 1.0)
    link_speed, network_speed = group_speed(device, stride, 1), group_speed(device, stride, in_node + 1)
    if link_speed is None or network_speed is None or work.rate is None:
        return None
    computing = work.flops * devices / work.rate  # seconds on one device

    def solve(fraction: float) -> tuple[float, float]:
        """Return the N above which sending takes longer than a fraction of computing, and the speed there."""
        threshold = is_ring + fraction * computing * link_speed / content
        if threshold < in_node:
            return threshold, link_speed
        return max(in_node, is_ring + (threshold - is_ring) * network_speed / link_speed), network_speed

    longer, speed = solve(1.0)
    payloads = [f"2·{t.payload}" if t.collective == "all-reduce" else t.payload for t in transfers]
    payload = f"({' + '.join(payloads)})" if len(payloads) > 1 else payloads[0]
    formula = f"{'1 + ' if is_ring else ''}F·v/(R·{payload})"
    return Threshold(degree, formula, longer, solve(overlap)[0] if overlap else 1.0, speed)


@dataclass(frozen=True)
class ParallelCosts:
    """The communication of a step on several devices, and its time next to that of computing."""

    transfers: Sequence[Transfer]
    definitions: Mapping[str, str]  # of the symbols in formulas
    letter: str  # of the number of devices in formulas
    thresholds: Sequence[Threshold]
    work: Work
    micro_batches: int
    bubble: Fraction  # fraction of a step's computing time in which a stage waits for others
    overlapped_seconds: float | None  # of a step, if all transfers that can run next to computing do
    sequential_seconds: float | None  # of a step, if none does
    undivided: str = ""  # which weights tensor parallelism leaves whole

    @property
    def sent(self) -> int:
        """Return the bytes that a device sends in a step."""
        return sum(transfer.sent for transfer in self.transfers)

    def blocks(self) -> Iterator[Block]:
        """Yield what is sent, the symbols in its formulas, and when it takes longer than computing."""
        rows = [
            (f"{t.collective} of {t.content}", f"{t.degree} {t.devices}", format_bytes(t.sent), t.formula)
            for t in self.transfers
        ]
        names = ("collective", f"{self.letter}", "bytes sent", "formula")
        yield Table(names, rows, "Between devices", left=(0, 1, 3), breakable=(0, 3), formulas=(3,))
        yield Items([f"{name}: {meaning}" for name, meaning in self.definitions.items()])
        if not self.thresholds:
            return
        rows = [
            (
                threshold.degree,
                f"{self.letter} > {threshold.formula}",
                f"{threshold.sequential:,.4g}",
                f"{threshold.overlapped:,.4g}" if threshold.overlapped > 1 else "always",
            )
            for threshold in self.thresholds
        ]
        names = ("", "communication takes longer than computing where", f"{self.letter} >", "overlapped")
        yield Table(names, rows, "Communication-bound", left=(0, 1), breakable=(1,), formulas=(1,))
        yield Text(
            "The batch and the other degrees stay as they are. Overlapped: where it takes longer than what it can run "
            f"next to. F: FLOPs of a step, of all {self.letter} devices; R: those that a device does in a second, at "
            "the efficiency assumed; v: bytes that it sends in a second.",
            "note",
        )

    def time_rows(self) -> Iterator[tuple[str, str]]:
        """Yield label and text of rows for the table of times."""
        for degree in dict.fromkeys(t.degree for t in self.transfers):
            group = [t for t in self.transfers if t.degree == degree]
            yield f"{degree}: sending", format_seconds(sum(t.seconds or 0 for t in group))
        if self.bubble:
            yield "pipeline: waiting", f"{float(self.bubble):.1%} of computing, (p−1)/(m+p−1) = {self.bubble}"
        yield "without overlap", f"{format_seconds(self.sequential_seconds)} per step, if sending stops computing"

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as values for JSON."""
        return {
            "transfers": [dict(vars(transfer)) for transfer in self.transfers],
            "definitions": dict(self.definitions),
            "devices_symbol": self.letter,
            "bytes_sent_per_step": self.sent,
            "thresholds": [dict(vars(threshold)) for threshold in self.thresholds],
            "bubble": float(self.bubble),
            "overlapped_seconds": self.overlapped_seconds,
            "sequential_seconds": self.sequential_seconds,
        }


def estimate_parallel(model: ParallelModel, settings: "PlanSettings", work: Work) -> ParallelCosts:
    """Return the transfers of a step, when they take longer than computing, and the time of the step.

    A pipeline of p stages computes m micro-batches in the time of m + p − 1, whatever the order (GPipe, 1F1B).
    All-reduces of tensor parallelism stop the computing. Gradients can be summed during the last backward pass, weights
    gathered and activations sent at any time.
    """
    built = TransferList(model, settings)
    m, p = settings.accumulate, settings.pipeline
    by_degree = {degree: [t for t in built.transfers if t.degree == degree] for degree in DEGREES}
    thresholds = [find_threshold(group, work, settings) for group in by_degree.values() if group]
    overlapped = sequential = None
    seconds = {
        degree: None if any(t.seconds is None for t in group) else sum(t.seconds or 0 for t in group)
        for degree, group in by_degree.items()
    }
    if work.micro_batch_seconds is not None and work.update_seconds is not None and None not in seconds.values():
        data, shards, tensor, sends = (seconds[degree] or 0 for degree in DEGREES)
        base = (m + p - 1) * (work.micro_batch_seconds + tensor / m) + work.update_seconds
        last_backward = work.micro_batch_seconds * work.backward_fraction
        sequential = base + data + shards + sends
        overlapped = base + max(0, data - last_backward) + max(0, shards - base) + max(0, sends - base)
    return ParallelCosts(
        built.transfers,
        built.definitions,
        built.letter,
        [threshold for threshold in thresholds if threshold],
        work,
        m,
        Fraction(p - 1, m + p - 1),
        overlapped,
        sequential,
        built.describe_undivided() if settings.tensor > 1 else "",
    )
