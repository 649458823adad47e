"""Plans of several devices: what is split, what fits, when sending takes longest, which split is the fastest."""

import json
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import lemma.api as lemma
from lemma.cli.main import app
from lemma.counting.devices import DEVICES, get_device
from lemma.counting.parallelism import ParallelModel, estimate_parallel, group_speed
from lemma.counting.plan import Planner, PlanSettings
from lemma.counting.subject import resolve_subject
from lemma.counting.tensor_split import find_split
from lemma.counting.training_step import KINDS, PARTS, Kind, StepSettings, trace_step
from lemma.errors import InputError

RUNNER = CliRunner()
SMALL: dict[str, Any] = {"d": 32, "L": 4, "h": 4, "T": 16, "V": 60}
LLAMA = {"d": 24, "L": 2, "h": 8, "h_kv": 4, "d_h": 6, "d_ff": 40, "V": 30, "T": 8, "B": 2}


def small_plan(**settings: Any) -> Any:
    return lemma.count.plan("decoder", **{"gpu": "H100", "batch": 16, **SMALL, **settings})


def transfers(plan: Any) -> dict[tuple[str, str], Any]:
    return {(transfer.degree, transfer.content): transfer for transfer in plan.parallel.transfers}


# What a device has


@pytest.mark.parametrize("gpu", [True, False])
def test_tensor_parallel_memory_and_work_are_those_of_a_really_smaller_module(gpu: bool) -> None:
    """A Llama with half of the heads and half of the hidden units at the same width is one of two devices."""
    subject = resolve_subject("llama", LLAMA)
    precision = torch.bfloat16 if gpu else torch.float32
    split = find_split(subject, subject.sizes(True)).roles
    half = resolve_subject("llama", {**LLAMA, "h": 4, "h_kv": 2, "d_ff": 20})
    full, expected = (
        trace_step(item, StepSettings(gpu, precision, split=roles)) for item, roles in ((subject, split), (half, {}))
    )
    settings = PlanSettings(get_device("H100" if gpu else "cpu"), batch=2, tensor=2, precision=str(precision)[6:])
    assert len(full.moments) == len(expected.moments)
    for moment, other in zip(full.moments, expected.moments, strict=True):
        parts = settings.memory_parts(full, moment)
        parts["buffers"] -= settings.device.workspace
        assert tuple(parts.values()) == other.parts, moment.label
    divided = sum(n * Fraction(kernel.flops, 1 + kernel.kind.is_split) for kernel, n in full.kernels.items())
    assert divided == expected.flops


def test_pipeline_stages_add_up_to_the_model() -> None:
    subject = resolve_subject("decoder", {**SMALL, "tied": False})
    model = ParallelModel(subject, {**subject.sizes(True), "B": 2})
    total = sum(parameter.numel() for parameter in model.module.parameters())
    stages = model.stages(1, 4)
    assert sum(weight.count() for stage in stages for weight in stage) == total
    outside = [{weight.name.partition(".")[0] for weight in stage if not weight.in_layers} for stage in stages]
    assert outside == [{"embedding", "positions"}, set(), set(), {"norm", "output"}]
    tied = ParallelModel(resolve_subject("decoder", SMALL), {**subject.sizes(True), "B": 2}).stages(1, 2)
    assert all("embedding.weight" in {weight.name for weight in stage} for stage in tied)


@pytest.mark.parametrize(("stages", "micro_batches", "in_flight"), [(2, 8, 2), (4, 8, 4), (4, 2, 2)])
def test_first_stage_keeps_activations_of_as_many_micro_batches_as_stages(
    stages: int, micro_batches: int, in_flight: int
) -> None:
    settings = PlanSettings(get_device("H100"), batch=8, pipeline=stages, accumulate=micro_batches)
    ends = Fraction(2, 3), Fraction(1, 3)
    first, last = (dict(zip(PARTS, rows, strict=True)) for rows in settings.memory_factors(ends))
    layers, outside = KINDS.index(Kind(True, False)), KINDS.index(Kind(False, False))
    assert first["activations"][layers] == Fraction(in_flight, stages) and first["activations"][outside] == in_flight
    assert last["activations"][layers] == Fraction(1, stages) == first["weights"][layers] == last["optimizer"][layers]
    assert (first["logits"][outside], last["logits"][outside]) == (0, 1)
    assert (first["weights"][outside], last["weights"][outside]) == ends


def test_accumulated_gradients_of_shards_are_whole() -> None:
    """FSDP adds up the gradients of micro-batches before it reduces and scatters them."""
    one, several = (small_plan(shards=2, accumulate=accumulate, memory=1e9, gpu=None) for accumulate in (1, 2))
    assert several.parts["gradients"] > 1.9 * several.parts["weights"] > one.parts["gradients"]


# What cannot be split


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("decoder", {"tensor": 8}, r"tensor = 8: .*such as a head. Possible: 1, 2, 4."),
        ("decoder", {"tensor": 3}, "it does not divide the width 32 of layers.0.attention.output"),
        ("decoder", {"pipeline": 3}, "pipeline = 3 does not divide the 4 layers. Possible: 1, 2, 4."),
        ("decoder", {"pipeline": 8}, "does not divide the 4 layers"),
        ("decoder", {"data": 3}, "batch = 16 cannot be cut into equal parts for data 3 × shards 1 × accumulate 1"),
        ("decoder", {"data": 0}, "data = 0: a whole number from 1 up"),
        ("decoder", {"tensor": 2.5}, "tensor = 2.5: a whole number from 1 up"),
        ("decoder", {"devices": 0}, "devices = 0: a whole number"),
        ("decoder", {"devices": True}, "devices = True: a whole number"),
        ("decoder", {"devices": 8, "tensor": 3}, "devices = 8 is not a multiple of what is set: tensor = 3"),
        ("decoder", {"devices": 8, "tensor": 8}, "such as a head. Possible: 1, 2, 4"),
        ("decoder", {"devices": 7, "batch": 5}, "batch = 5 cannot be cut"),
        ("decoder", {"link": "fast"}, "link = 'fast'"),
        ("decoder", {"node": 0}, "node=8"),
        ("lstm", {"tensor": 2}, "no layers with linear layers that could be split"),
        ("lstm", {"pipeline": 2}, "this model has no list of layers"),
        ("encoder-decoder", {"pipeline": 2}, r"2 lists of layers \(decoder.layers, encoder.layers\)"),
    ],
)
def test_impossible_splits_are_explained(model: str, settings: dict[str, Any], message: str) -> None:
    sizes = SMALL if model == "decoder" else {}
    with pytest.raises(InputError, match=message):
        lemma.count.plan(model, **{"gpu": "H100", "batch": 16, **sizes, **settings})


def test_norms_across_heads_and_router_are_not_split() -> None:
    """OLMo 2 normalizes all heads together, so that no device can compute a part of them alone."""
    sizes = {"d": 24, "L": 2, "h": 4, "d_ff": 40, "V": 30, "T": 8, "B": 1, "num_key_value_heads": 4}
    subject = resolve_subject("olmo2", sizes)
    assert "share outputs of" in find_split(subject, subject.sizes(True)).find_obstacle(2)
    mixture = resolve_subject("mixtral", {**sizes, "num_local_experts": 4})
    roles = find_split(mixture, mixture.sizes(True)).roles
    assert {path.split(".")[3] for path in roles} == {"self_attn"}


# Time


def test_speed_of_groups_counts_network_cards_of_a_node() -> None:
    device = DEVICES["h100"]
    assert group_speed(device, 8, 4) == device.network  # one device of each node
    assert group_speed(device, 4, 2) == device.link and group_speed(device, 4, 4) == 2 * (device.network or 0)
    assert group_speed(get_device(None, memory=1e9), 1, 2) is None


@pytest.mark.parametrize("settings", [{"data": 4}, {"shards": 4}, {"tensor": 2}, {"pipeline": 2, "accumulate": 4}])
def test_thresholds_are_where_real_plans_cross(settings: dict[str, int]) -> None:
    """Sending takes longer than computing just above the threshold, and not just below, by the plan's own figures."""
    plan = small_plan(link=1e12, network=1e12, flops=1e13, bandwidth=1e13, **settings)
    ((degree, devices),) = ((name, number) for name, number in settings.items() if name != "accumulate")
    (threshold,) = plan.parallel.thresholds
    (*_, sent) = (transfer for transfer in plan.parallel.transfers if transfer.content != "tied gradients")
    total = sum(t.sent for t in plan.parallel.transfers if t.content != "tied gradients")
    assert threshold.degree == degree == sent.degree
    rate = 1e13 * plan.settings.efficiency

    def is_longer(number: float) -> bool:
        computing = plan.flops * devices / number / rate
        fraction = 1 if degree == "pipeline" else (number - 1) / number / ((devices - 1) / devices)
        return total * fraction / 1e12 > computing

    above = threshold.sequential
    assert above > 1 and is_longer(above * 1.001) and not is_longer(above * 0.999)
    assert threshold.overlapped <= above


def test_threshold_outside_of_a_node_uses_the_network() -> None:
    fast = small_plan(data=4, flops=1e12, link=1e13, network=1e13, node=4).parallel.thresholds[0]
    slow = small_plan(data=4, flops=1e12, link=1e13, network=1e9, node=4).parallel.thresholds[0]
    assert fast.sequential > 4 == slow.sequential  # as soon as a second node is needed


def test_bubble_lengthens_the_computing() -> None:
    plan = small_plan(pipeline=4, accumulate=8)
    assert plan.parallel.bubble == Fraction(3, 11)
    work = plan.parallel.work
    assert plan.seconds == pytest.approx(11 * work.micro_batch_seconds + work.update_seconds)
    assert plan.parallel.sequential_seconds > plan.seconds


def test_formulas_of_a_decoder_are_the_textbook_ones() -> None:
    sent = transfers(small_plan(data=2, shards=2, tensor=2, precision="bfloat16"))
    assert sent["shards", "weights"].formula == "(N−1)/N·4·(2·P_l + P_o)"
    assert sent["data", "gradients"].formula == "2·(N−1)/N·2·P_d"
    # two all-reduces of B·T·d numbers of 2 bytes in each layer and direction (Shoeybi et al. 2019)
    for content in ("activations", "their gradients"):
        transfer = sent["tensor", content]
        assert transfer.sent == 2 * 1 / 2 * 2 * 2 * 4 * (4 * 16 * 32)
        assert transfer.formula == "2·(N−1)/N·4·d·L·T·B"
    recomputed = transfers(small_plan(tensor=2, recompute="layers"))["tensor", "recomputed activations"]
    assert recomputed.formula == "2·(N−1)/N·2·d·L·T·B"  # the last sum of a layer is not needed again


def test_unknown_speed_gives_bytes_without_time() -> None:
    plan = small_plan(data=4, memory=1e9, gpu=None)
    assert plan.seconds is None and plan.parallel.sent > 0 and not plan.parallel.thresholds
    assert "link=…" in str(plan)


# The fastest split


def test_chosen_split_is_the_best_of_all_planned_ones() -> None:
    """Measure every split of 4 devices one by one; the search's best is the fastest that fits."""
    options: dict[str, Any] = {"flops": 1e13, "bandwidth": 1e12, "link": 2e9, "network": 1e9}
    subject = resolve_subject("decoder", {**SMALL, "V": 600})
    plans = []
    for degrees in product((1, 2, 4), repeat=4):
        if prod(degrees) == 4:
            splits = dict(zip(("data", "shards", "tensor", "pipeline"), degrees, strict=True))
            settings = PlanSettings(get_device(None, memory=1e12, **options), batch=16, accumulate=2, **splits)  # pyright: ignore[reportArgumentType]
            planner = Planner(subject, settings)
            step = planner.trace()
            assert planner.model is not None
            peak = max(planner.total_bytes(step, moment) for moment in step.moments)
            costs = estimate_parallel(planner.model, settings, planner.measure_work(step))
            plans.append((peak, costs.overlapped_seconds or 0))
    assert len(plans) == 10
    memory = float(sorted(peak for peak, _ in plans)[4]) / 0.95 + 1  # half of them fit
    best = min(seconds for peak, seconds in plans if peak <= 0.95 * memory)
    chosen = small_plan(devices=4, accumulate=2, gpu=None, memory=memory, V=600, **options)
    assert chosen.fits and chosen.seconds == pytest.approx(best, rel=1e-9)
    assert best > min(seconds for _, seconds in plans)  # faster ones do not fit
    first = chosen.alternatives[0]
    assert first.settings == chosen.settings and first.peak == pytest.approx(chosen.peak, rel=1e-6)
    assert first.seconds == pytest.approx(chosen.seconds, rel=1e-9)
    fitting = [costs.seconds for costs in chosen.alternatives if costs.fits]
    assert fitting == sorted(fitting)


def test_fixed_degrees_are_kept_and_too_little_memory_is_reported() -> None:
    chosen = small_plan(devices=8, tensor=2, shards=1, pipeline=1)
    assert chosen.settings.tensor == 2 and chosen.settings.data == 4 and chosen.settings.devices == 8
    small = small_plan(devices=2, memory=1e6)
    assert not small.fits and "too large" in str(small)
    assert small_plan(devices=1).parallel is None


def test_command_plans_several_devices() -> None:
    words = ["count", "decoder", "--plan", *(f"{name}={size}" for name, size in SMALL.items())]
    done = RUNNER.invoke(app, [*words, "gpu=H100", "devices=2", "batch=8", "link=NVLink", "network=400Gb/s", "--json"])
    result = json.loads(done.stdout)
    assert done.exit_code == 0 and result["device"]["link"] == 450e9 and result["device"]["network"] == 50e9
    assert len(result["alternatives"]) > 1 and result["parallel"]["transfers"][0]["sent"] > 0
    degrees = [result["settings"][name] for name in ("data", "shards", "tensor", "pipeline")]
    assert degrees[0] * degrees[1] * degrees[2] * degrees[3] == 2
    text = RUNNER.invoke(app, [*words, "gpu=H100", "data=2", "batch=8"], env={"COLUMNS": "80"}).stdout
    assert "all-reduce of gradients" in text and max(map(len, text.splitlines())) <= 80
