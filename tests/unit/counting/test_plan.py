"""Plans: memory compared with PyTorch's allocator, largest sizes, rooflines, bounds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from typer.testing import CliRunner

import lemma
from lemma.cli.main import app
from lemma.counting.devices import get_device
from lemma.counting.plan import Planner, PlanSettings, interpolate
from lemma.counting.polynomial import symbol
from lemma.counting.solve import largest_below, read_bound
from lemma.counting.subject import Subject, resolve_subject
from lemma.counting.training_step import PARTS, StepSettings, find_layers, trace_step
from lemma.errors import CountingError, InputError
from lemma.spec.recipe import Recipe
from lemma.tasks.registry import task_for
from lemma.training.optimizer import build_optimizer, clip_gradients

CPU = StepSettings(gpu=False, precision=torch.float32)
SMALL = {"d": 32, "L": 2, "h": 2, "V": 300, "T": 32, "B": 4}
RUNNER = CliRunner()


def allocated_bytes(subject: Subject, recompute: bool = False, accumulate: int = 1) -> int:
    """Return the peak of bytes allocated by PyTorch during a second training step, by its profiler."""
    values, recipe = subject.sizes(True), Recipe(accumulate=accumulate, batch=accumulate)
    model: Any = subject.build(values, "cpu").train()
    loss = task_for(model.spec).loss(model, recipe)
    inputs = subject.build_inputs(values, "cpu").args
    first = inputs[0]
    targets = torch.zeros(len(first), inputs[1].shape[1] + 1, dtype=torch.long) if len(inputs) > 1 else first
    if recompute:
        for _, layer in list(find_layers(model)):
            forward = layer.forward
            layer.forward = lambda *args, forward=forward, **named: checkpoint(
                forward, *args, use_reentrant=False, **named
            )
    optimizer = build_optimizer(model, recipe)

    def step() -> None:
        for _ in range(accumulate):
            objective, _, _ = loss(first, targets, None)
            objective.backward()
            del objective
        clip_gradients(model, recipe.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    saved = [tensor for state in optimizer.state.values() for tensor in state.values()]
    present = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers(), *inputs, *saved])
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        step()
    now = most = 0
    for event in watched.profiler.kineto_results.events():  # pyright: ignore[reportOptionalMemberAccess]
        if event.name() == "[memory]":
            now += event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]
            most = max(most, now)
    return present + most


@pytest.mark.parametrize(
    ("model", "sizes", "recompute"),
    [
        ("decoder", {**SMALL, "L": 4, "V": 50}, True),
        ("decoder", {**SMALL, "B": 9, "T": 64, "positions": "rotary", "h_kv": 1}, False),
        ("lstm", {"B": 16, "T": 48}, False),
        ("encoder-decoder", {"d": 32, "L_enc": 1, "L_dec": 2, "B": 6, "T": 24}, False),
        ("encoder-decoder", {"d": 32, "L_enc": 1, "L_dec": 2, "B": 6, "T": 24}, True),
        ("encoder", {"d": 32, "L": 2, "B": 6, "T": 32}, False),
    ],
)
def test_planned_memory_matches_the_cpu_allocator(model: str, sizes: dict[str, Any], recompute: bool) -> None:
    subject = resolve_subject(model, sizes)
    planned = trace_step(subject, StepSettings(False, torch.float32, recompute=recompute)).peak.total
    assert planned == pytest.approx(allocated_bytes(subject, recompute), rel=0.10 if model == "lstm" else 0.01)


@pytest.mark.parametrize("settings", [CPU, StepSettings(), StepSettings(recompute=True)])
def test_fake_tensors_are_traced_like_real_ones(settings: StepSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = resolve_subject("decoder", {**SMALL, "L": 1})
    real = trace_step(subject, settings)
    monkeypatch.setattr("lemma.counting.training_step.MAX_QUICK_STEP", 0)
    fake = trace_step(subject, settings)
    assert [moment.parts for moment in fake.moments] == [moment.parts for moment in real.moments]
    assert fake.kernels == real.kernels


def test_gradients_persist_during_accumulation() -> None:
    subject = resolve_subject("decoder", SMALL)
    settings = StepSettings(False, torch.float32, Recipe(accumulate=2, batch=8))
    planned = trace_step(subject, settings).peak
    assert planned.total == pytest.approx(allocated_bytes(subject, accumulate=2), rel=0.01)
    assert dict(zip(PARTS, planned.parts, strict=True))["gradients"] == planned.parts[0]


def test_step_flops_match_its_matrix_products() -> None:
    tokens, d, length, vocabulary = 4 * 32, 32, 32, 300
    output, last = 2 * tokens * d * vocabulary, 2 * tokens * 4 * d * d
    layer = 2 * tokens * 12 * d**2 + 4 * tokens * length * d
    step, again = (
        trace_step(resolve_subject("decoder", SMALL), StepSettings(False, torch.float32, recompute=recompute))
        for recompute in (False, True)
    )
    assert step.flops == 3 * (2 * layer + output)
    assert again.flops == step.flops + 2 * (layer - last)  # the output of a layer is not recomputed


def both_directions(d: int = 8) -> torch.nn.LSTM:
    return torch.nn.LSTM(d, d, 2, bidirectional=True, batch_first=True)


both_directions.inputs = lambda d=8, B=2, T=5: torch.zeros(B, T, d)  # pyright: ignore[reportFunctionMemberAccess]


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("decoder", {"V": 9000, "d": 32, "L": 1, "h": 2, "T": 16, "B": 2, "tied": False}),  # the fused output layer
        ("decoder", {"V": 9000, "d": 32, "L": 1, "h": 2, "h_kv": 1, "T": 16, "B": 2, "positions": "rotary"}),
        ("lstm", {"V": 90, "d": 16, "D": 16, "L": 2, "T": 8, "B": 3}),
        ("gru", {"V": 90, "d": 16, "D": 24, "L": 1, "T": 8, "B": 3}),
        ("encoder-decoder", {"d": 32, "L_enc": 1, "L_dec": 1, "T": 8, "B": 2}),
        (both_directions, {"d": 8, "B": 2, "T": 5}),  # inputs without a gradient
    ],
)
def test_planned_step_flops_match_count(model: Any, sizes: dict[str, Any]) -> None:
    counted = lemma.count(model, quantities=["flops", "backward"], **sizes)
    expected = (counted.flops.total or 0) + (counted.backward.total or 0)
    subject = resolve_subject(model, sizes)
    for settings in (CPU, StepSettings(True, torch.float32), StepSettings()):
        assert trace_step(subject, settings).flops == expected


def test_gpt2_flops_per_token_match_between_plan_and_count() -> None:
    step = trace_step(resolve_subject("decoder", {"V": 50257, "d": 768, "L": 12, "h": 12, "T": 1024}), StepSettings())
    assert step.flops == 1024 * 854_438_400


def test_gpu_plan_uses_bfloat16_activations_and_weight_copies() -> None:
    subject = resolve_subject("decoder", {**SMALL, "V": 5000, "d": 64, "d_h": 64})
    lower, full = (trace_step(subject, StepSettings(True, dtype)) for dtype in (torch.bfloat16, torch.float32))
    positions = 4 * 32 * 5000
    half, total = (dict(zip(PARTS, item.peak.parts, strict=True)) for item in (lower, full))
    # bfloat16: logarithms (2 bytes), their copy for the loss (4) and its gradient (4); float32: three times 4 bytes
    assert half["logits"] == pytest.approx(10 * positions, rel=0.01)
    assert total["logits"] == pytest.approx(12 * positions, rel=0.01)
    assert half["activations"] < 0.8 * total["activations"]
    assert half["buffers"] > total["buffers"]  # the copies of weights
    assert half["weights"] == total["weights"]


def planner(memory: float, **settings: Any) -> Planner:
    return Planner(
        resolve_subject("decoder", SMALL), PlanSettings(get_device(None, memory=memory), batch=4, **settings)
    )


def fits(plan: Planner, **sizes: int) -> bool:
    step = plan.trace(**sizes)
    return plan.total_bytes(step, plan.peak_moment(step)) <= plan.settings.budget


def test_batch_of_zero_is_refused() -> None:
    with pytest.raises(InputError, match="batch = 0"):
        lemma.count.plan("decoder", gpu="H100", batch=0)


def test_largest_batch_and_context_fit_exactly() -> None:
    plan = planner(60e6, precision="float32")
    for name, start in (("B", 4), ("T", 32)):
        largest = plan.find_largest(name, start)
        assert largest.root > start and largest.followed and "the root of" in str(largest)
        assert fits(plan, **{name: largest.root}) and not fits(plan, **{name: largest.root + 1})


def test_largest_sizes_are_exact_for_nonpolynomial_memory() -> None:
    # the fused output layer processes 8192 rows at a time, so memory has a bend at B·T = 8192
    subject = resolve_subject("decoder", {"V": 9000, "d": 16, "L": 1, "h": 1, "T": 2048})
    plan = Planner(subject, PlanSettings(get_device(None, memory=2e9), batch=2))
    for name, start in (("B", 2), ("T", 2048)):
        largest = plan.find_largest(name, start)
        assert fits(plan, **{name: largest.root}) and not fits(plan, **{name: largest.root + 1})
        assert "the root of" in str(largest) and "−" not in largest.formula


class Limited(torch.nn.Module):
    """A model of a fixed number of positions."""

    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(40, d))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table[torch.arange(tokens.shape[1])].expand(len(tokens), -1, -1) * tokens[..., None]


def limited(d: int = 8) -> Limited:
    return Limited(d)


limited.inputs = lambda d=8, B=2, T=20: torch.zeros(B, T)  # pyright: ignore[reportFunctionMemberAccess]


def test_largest_context_is_limited_by_the_model() -> None:
    plan = Planner(resolve_subject(limited, {"B": 2, "T": 20}), PlanSettings(get_device(None, memory=1e9), batch=2))
    largest = plan.find_largest("T", 20)
    assert largest.root == 40 and not largest.followed and "T = 41 fails" in str(largest)


def test_too_little_memory_fits_no_batch() -> None:
    assert str(planner(17e6).find_largest("B", 4)).startswith("none: not even B = 1 fits")


def test_sharding_divides_weights_and_gathers_two_layers() -> None:
    full, cut = planner(1e9), planner(1e9, shards=4)
    step = trace_step(resolve_subject("decoder", SMALL), full.settings.step_settings({}))
    item, four = (plan.settings.memory_parts(step, step.moments[-1]) for plan in (full, cut))
    for part in ("weights", "gradients", "optimizer"):
        assert four[part] == -(-item[part] // 4)
    layer = 12 * 32**2 + 13 * 32
    assert four["buffers"] - item["buffers"] == 2 * 4 * layer


def test_plan_reports_memory_time_tokens_and_generation(tmp_path: Path) -> None:
    small: dict[str, Any] = {name: value for name, value in SMALL.items() if name != "B"}
    plan = lemma.count.plan("decoder", gpu="H200", batch=4, efficiency=0.5, **small)
    assert (
        plan.fits
        and plan.peak == sum(plan.parts.values())
        and plan.parameters == 12 * 2 * 32**2 + 13 * 2 * 32 + (300 + 32 + 2) * 32
    )
    single = plan.compute_seconds or 0, plan.bandwidth_seconds or 0
    assert single[0] == plan.flops / 989e12 and single[1] == plan.bytes_moved / 4.8e12
    assert 0.999 * max(single) / 0.5 <= (plan.seconds or 0) <= 1.001 * sum(single) / 0.5
    assert plan.tokens_per_day == pytest.approx(4 * 32 / (plan.seconds or 0) * 86_400)
    assert plan.optimal_tokens == 20 * plan.parameters
    costs = plan.generation
    assert costs is not None and costs.weights == 2 * plan.parameters
    assert costs.cache == 2 * 2 * 32 * 32 * 2  # keys and values of two layers in bfloat16
    assert costs.sequences == (plan.settings.budget - costs.weights - 64 * 2**20) // costs.cache
    page = plan.save(tmp_path / "plan.html").read_text(encoding="utf-8")
    assert "It fits" in page and "Hoffmann" in page
    assert json.loads(plan.save(tmp_path / "plan.json").read_text())["fits"] is True


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gpu": "H300"}, "H200"),
        ({"memory": -1}, "memory"),
        ({"gpu": "T4", "precision": "bfloat16"}, "precision=float32"),
        ({"batch": 10, "shards": 4}, "Nearest batch"),
        ({"recompute": "all"}, "layers"),
        ({"efficiency": 0}, "efficiency=0.5"),
    ],
)
def test_invalid_plan_settings_are_explained(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        lemma.count.plan("decoder", **settings)


def test_exit_code_reports_whether_the_plan_fits() -> None:
    words = ["count", "decoder", "--plan", "d=16", "h=2", "L=1", "T=8", "batch=2", "--json"]
    fits = RUNNER.invoke(app, [*words, "gpu=L4"])
    assert fits.exit_code == 0 and json.loads(fits.stdout)["device"]["name"] == "L4"
    assert RUNNER.invoke(app, [*words, "memory=1e6"]).exit_code == 1


def test_interpolated_polynomial_passes_through_its_points() -> None:
    d = symbol("d")
    assert interpolate(d, (2, 5, 7), (9, 54, 104)) == 2 * d**2 + d - 1


@pytest.mark.parametrize("shape", [lambda d: 3 * d**2 + 10, lambda d: d**3 - 6 * d**2 + 11 * d, lambda d: d * 7 / 2])
def test_largest_below_matches_brute_force(shape: Callable[[Any], Any]) -> None:
    for bound in (1, 7, 100, 999):
        saved = [value for value in range(1, 60) if shape(value) <= bound]
        assert largest_below(shape(symbol("d")), "d", bound, range(1, 60)) == (max(saved) if saved else None)


def test_bounds_are_read_with_units() -> None:
    readings = {
        "activations <= 80GB for d": ("activations", True, 80 * 10**9, "d"),
        "cache < 1.5 GiB for T": ("cache", True, 3 * 2**29 - 1, "T"),
        "parameters ≥ 7B for L": ("parameters", False, 7 * 10**9, "L"),
        "flops > 1e12 for B": ("flops", False, 10**12 + 1, "B"),
    }
    for text, (quantity, most, value, unknown) in readings.items():
        bound = read_bound(text)
        assert bound is not None
        assert (bound.quantity, bound.is_upper, bound.value, bound.unknown) == (quantity, most, value, unknown)
    for wrong in ("activations <= 80GB", "activations <= 80XB for d", "<= 3 for d"):
        with pytest.raises(InputError):
            read_bound(wrong)
    for comma in (
        "cache < 0,5 GB for T",
        "cache < 1,5 GB for T",
        "cache < 0,537 GB for T",
        "cache < 1e999999999 for T",
    ):
        with pytest.raises(InputError, match="is not a number"):
            read_bound(comma)
    thousands = read_bound("cache <= 1,500.5 MB for T")
    assert thousands is not None and thousands.value == 1_500_500_000


def test_solved_width_is_the_largest_within_the_bound() -> None:
    result: Any = lemma.count.solve("decoder", "parameters <= 1M for d", L=3)
    counted = {
        d: lemma.count("decoder", quantities=["parameters"], L=3, d=d).parameters.total
        for d in (result.size, result.next_size[0])
    }
    assert counted[result.size] == result.value <= 10**6 < (counted[result.next_size[0]] or 0) == result.next_size[1]
    assert result.size % 4 == 0 and result.root >= result.size  # four heads divide it
    smallest: Any = lemma.count.solve("decoder", "optimizer >= 8M for L")
    assert smallest.value >= 8 * 10**6 > smallest.next_size[1] and smallest.next_size[0] == smallest.size - 1
    with pytest.raises(CountingError, match="follow no formula"):
        lemma.count.solve("lstm", "activations >= 1MB for B", B=3, T=5)
    with pytest.raises(InputError, match="do not depend on B"):
        lemma.count.solve("decoder", "parameters <= 1M for B")
    with pytest.raises((InputError, CountingError)):
        lemma.count.solve("decoder", "parametres <= 1M for d")


def test_command_solves_a_bound_for_a_size() -> None:
    done = RUNNER.invoke(app, ["count", "decoder", "--solve", "parameters <= 1e6", "for", "d", "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["value"] <= 10**6
    assert RUNNER.invoke(app, ["count", "decoder", "--solve", "parameters <= 5 for d"]).exit_code == 1
