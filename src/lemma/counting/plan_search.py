"""The fastest split of a number of devices into data, shards, tensor and pipeline parallelism that fits into memory."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf, prod
from typing import Any

from lemma.counting.parallelism import DEGREES, ParallelCosts, ParallelModel, estimate_parallel
from lemma.counting.plan import Plan, Planner, PlanSettings, SplitCosts, plan
from lemma.counting.subject import Subject
from lemma.counting.training_step import StepTrace
from lemma.errors import InputError

MAX_DEVICES = 2**20
MAX_ROWS = 6  # splits in the table
PIPELINE_ROWS = (1, 2, 4)  # sequences of a micro-batch that are tried with a pipeline


def choose_split(subject: Subject, settings: PlanSettings, devices: int, fixed: Mapping[str, int]) -> Plan:
    """Plan with the fastest split of `devices` whose memory fits, or else with the one of the least memory.

    `fixed` has degrees, and the number of micro-batches, that are kept. Without a pipeline there are as few
    micro-batches as fit. Tensor parallelism stays within a node unless it is fixed.

    Raises:
        InputError: there is no such split.
    """
    if not isinstance(devices, int) or isinstance(devices, bool) or not 1 <= devices <= MAX_DEVICES:
        raise InputError(f"devices = {devices!r}: a whole number from 1 to {MAX_DEVICES:,} is expected.")
    replace(settings, batch=settings.batch * prod(fixed.values()), **fixed)  # raises if one is not a whole number
    sizes = {**subject.sizes(True)}
    model = ParallelModel(subject, sizes)
    steps: dict[Any, StepTrace] = {}
    costs: list[SplitCosts] = []
    obstacles: dict[str, None] = {}
    is_uneven = False
    for degrees in _list_degrees(devices, {name: size for name, size in fixed.items() if name in DEGREES}):
        tensor, pipeline = degrees["tensor"], degrees["pipeline"]
        if "tensor" not in fixed and tensor > settings.device.node:
            continue
        if obstacle := model.find_obstacle(tensor, pipeline):
            obstacles[obstacle] = None
            continue
        candidates = [
            _measure_split(subject, replace(settings, **degrees, accumulate=micro_batches), model, steps)
            for micro_batches in _list_micro_batches(settings.batch, degrees, fixed.get("accumulate"))
        ]
        is_uneven = is_uneven or not candidates
        if pipeline == 1:  # the fewest micro-batches that fit
            candidates = [next((c for c in candidates if c.fits), *candidates[-1:])] if candidates else []
        costs += sorted(candidates, key=_rank)[:1]
    if not costs:
        reason = f"batch = {settings.batch} cannot be cut into equal parts for them."
        reason = reason if is_uneven else next(iter(obstacles), "tensor parallelism stays within a node.")
        raise InputError(f"{devices} devices cannot be split{_describe(fixed)}: {reason}")
    ranked = sorted(costs, key=_rank)
    result = plan(subject, ranked[0].settings)
    return replace(result, alternatives=ranked[:MAX_ROWS])


def _rank(costs: SplitCosts) -> tuple[bool, float, int]:
    """Return a key that sorts splits: those that fit first, by time, and the others by memory."""
    seconds = inf if costs.seconds is None else costs.seconds
    return (False, seconds, costs.peak) if costs.fits else (True, costs.peak, 0)


def _describe(fixed: Mapping[str, int]) -> str:
    """Write what is fixed as a clause."""
    return f" with {', '.join(f'{name} = {number}' for name, number in fixed.items())}" if fixed else ""


def _list_degrees(devices: int, fixed: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield all degrees whose product is `devices`, with those of `fixed` as they are."""
    free = [name for name in DEGREES if name not in fixed]
    remaining, remainder = divmod(devices, prod(fixed.values()))
    if remainder or (not free and remaining != 1):
        raise InputError(f"devices = {devices} is not a multiple of what is set:{_describe(fixed)[5:]}.")

    def split(number: int, names: list[str]) -> Iterator[dict[str, int]]:
        if len(names) == 1:
            yield {names[0]: number}
            return
        for part in (part for part in range(1, number + 1) if number % part == 0):
            for degrees in split(number // part, names[1:]):
                yield {names[0]: part, **degrees}

    for degrees in split(remaining, free) if free else [{}]:
        yield {**fixed, **degrees}


def _list_micro_batches(batch: int, degrees: Mapping[str, int], fixed: int | None) -> Iterator[int]:
    """Yield numbers of micro-batches to try: powers of 2, or with a pipeline those of a few sequences each."""
    rows, remainder = divmod(batch, degrees["data"] * degrees["shards"])
    if remainder or not rows:
        return
    if fixed is not None:
        if rows % fixed == 0:
            yield fixed
    elif degrees["pipeline"] > 1:
        yield from (rows // size for size in PIPELINE_ROWS if rows % size == 0)
    else:
        yield from (2**power for power in range(rows.bit_length()) if rows % 2**power == 0)


def _measure_split(
    subject: Subject, settings: PlanSettings, model: ParallelModel, steps: dict[Any, StepTrace]
) -> SplitCosts:
    """Return memory and time of a split; `model` and `steps` are shared by all."""
    shared = model.copy(settings.rows, has_formulas=False)
    planner = Planner(subject, settings, shared, steps)
    step = planner.trace()
    peak = int(planner.total_bytes(step, planner.peak_moment(step)))
    costs = estimate_parallel(shared, settings, planner.measure_work(step))
    return SplitCosts(settings, peak, costs.overlapped_seconds, _find_limit(costs))


def _find_limit(costs: ParallelCosts) -> str:
    """Return what takes the longest: computing, waiting in a pipeline, or sending between devices of one degree."""
    work = costs.work
    if work.micro_batch_seconds is None or work.update_seconds is None or costs.overlapped_seconds is None:
        return "not known"
    computing = work.micro_batch_seconds * costs.micro_batches + work.update_seconds
    times = {"computing": computing, "waiting": float(costs.bubble / (1 - costs.bubble)) * computing}
    for transfer in costs.transfers:
        times[f"sending ({transfer.degree})"] = times.get(f"sending ({transfer.degree})", 0) + (transfer.seconds or 0)
    return max(times, key=lambda name: times[name])
