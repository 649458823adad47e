import math
import time
from collections.abc import Callable

import numpy as np
import pytest

from lemma.errors import SpecError
from lemma.models.base import count_parameters
from lemma.models.build import build, count_spec_parameters
from lemma.spec.models import Attentive, Decoder, FeedForward, Gru, Lstm, ModelSpec, Rnn, TableA5
from lemma.spec.recipe import Recipe
from lemma.spec.studies import StudyBudget
from lemma.studies.budget import fit_parameters, fit_schedule, fit_steps
from lemma.studies.costs import judge_time_ratio
from lemma.studies.timing import Quartiles, describe_hardware, quartiles, time_in_turns, time_ratio, time_steps

from families import SMALL


def half_up(size: float) -> int:
    return max(1, math.floor(size + 0.5))


def feed_forward(factor: float) -> int:
    """Return the parameters of A1 at V = 65, N = 8."""
    width, hidden = half_up(64 * factor), half_up(256 * factor)
    return 65 * (width + hidden) + (7 * width + 1) * hidden


def attentive(factor: float) -> int:
    """Return the parameters of A4 at V = 65."""
    width, key, value, hidden = (half_up(size * factor) for size in (64, 64, 128, 256))
    return 65 * (width + hidden) + 2 * key * width + value * width + (value + 1) * hidden


def gated(gates: int) -> Callable[[float], int]:
    def count(factor: float) -> int:
        width, hidden = half_up(128 * factor), half_up(256 * factor)
        return 65 * width + gates * hidden * (width + hidden + 1) + (hidden + 1) * 65

    return count


def table_a5(factor: float) -> int:
    """Return the parameters of A5 at V = 65 and two layers."""
    embedding, width, inner = half_up(64 * factor), 8 * half_up(64 * factor), half_up(512 * factor)
    layer = 8 * width**2 + 8 * width + 2 * width * inner + width + inner + 6 * width
    return 65 * embedding + (embedding + 1) * width + 2 * layer + (width + 1) * 65


FORMULAS: list[tuple[ModelSpec, Callable[[float], int]]] = [
    (FeedForward(V=65), feed_forward),
    (Attentive(V=65), attentive),
    (Rnn(V=65), gated(1)),
    (Gru(V=65), gated(3)),
    (Lstm(V=65), gated(4)),
    (TableA5(V=65), table_a5),
]


@pytest.mark.parametrize("budget", [3_000, 77_777, 1_000_000])
@pytest.mark.parametrize(("spec", "formula"), FORMULAS, ids=lambda item: getattr(item, "family", ""))
def test_fitted_size_is_nearest_to_the_budget(spec: ModelSpec, formula: Callable[[float], int], budget: int) -> None:
    model = fit_parameters(spec, budget)
    brute_force = min(abs(formula(index / 10_000) - budget) for index in range(1, 60_000))
    assert abs(count_spec_parameters(model) - budget) == brute_force


@pytest.mark.parametrize("name", SMALL)
def test_fitted_parameters_match_the_built_model(name: str) -> None:
    model = fit_parameters(SMALL[name], 4_000)
    parameters = count_parameters(build(model))
    assert parameters == count_spec_parameters(model)
    assert abs(parameters / 4_000 - 1) < 0.35, "these are so small that one unit of a head is much"


def test_scaling_preserves_preset_ratios() -> None:
    model = fit_parameters(Attentive(V=65), 500_000)
    assert isinstance(model, Attentive)
    factor = model.hidden / 256
    assert (model.width, model.key_width, model.value_width) == tuple(half_up(size * factor) for size in (64, 64, 128))


def test_heads_divide_the_attention_width() -> None:
    for budget in range(20_000, 60_000, 1_000):
        model = fit_parameters(Decoder(V=65, heads=6, width=48, depth=2), budget)
        assert isinstance(model, Decoder)
        assert model.width % 6 == 0
    model = fit_parameters(Decoder(V=65, heads=6, attention_width=24), 500_000)
    assert isinstance(model, Decoder)
    assert model.attention_width is not None
    assert model.attention_width % 6 == 0


def test_fixed_sizes_are_respected_while_others_scale() -> None:
    lstm = fit_parameters(Lstm(V=65, width=17), 90_000, fixed={"width"})
    assert isinstance(lstm, Lstm)
    nearest = min(
        range(1, 400), key=lambda hidden: abs(65 * 17 + 4 * hidden * (18 + hidden) + 65 * (hidden + 1) - 90_000)
    )
    assert (lstm.width, lstm.hidden) == (17, nearest)
    decoder = fit_parameters(Decoder(V=65, width=64), 300_000, fixed={"width"})
    assert isinstance(decoder, Decoder)
    assert decoder.width == 64
    assert abs(count_spec_parameters(decoder) / 300_000 - 1) < 0.001, "the feed-forward layers take up the rest"


def test_tied_sizes_grow_together() -> None:
    model = fit_parameters(Lstm(V=65, width=64, hidden=64, tied=True), 100_000)
    assert isinstance(model, Lstm)
    assert model.width == model.hidden > 64


def test_impossible_budgets_are_explained() -> None:
    with pytest.raises(SpecError, match=r"50,000 is too little .* vocabulary of 60,000, it has 180,0"):
        fit_parameters(Lstm(V=60_000), 50_000)
    with pytest.raises(SpecError, match=r"rnn has no size left to choose, since width=128, hidden=256 is fixed"):
        fit_parameters(Rnn(), 50_000, fixed={"width", "hidden"})


def test_token_budget_is_not_exceeded_by_steps() -> None:
    recipe = fit_steps(Lstm(), Recipe(batch=10, sequence_length=20), StudyBudget(tokens=1_999))
    assert recipe.steps == 9
    assert fit_steps(Decoder(context=50), Recipe(batch=10), StudyBudget(tokens=1_999)).steps == 3, (
        "sequence_length is the context"
    )
    assert fit_steps(Lstm(), recipe, StudyBudget()) == recipe
    with pytest.raises(
        SpecError, match=r"budget.tokens = 199 is less than one step of lstm: batch 10 × sequence_length 20 = 200"
    ):
        fit_steps(Lstm(), recipe, StudyBudget(tokens=199))


def test_time_budget_is_converted_by_measured_speed() -> None:
    recipe = Recipe(batch=10, sequence_length=20)
    assert fit_steps(Lstm(), recipe, StudyBudget(seconds=3.0), speed=1_000.0).steps == 15
    assert fit_steps(Lstm(), recipe, StudyBudget(seconds=0.01), speed=1_000.0).steps == 1


def test_validations_are_evenly_spread_by_default() -> None:
    assert fit_schedule(Recipe(steps=101), (), 5)[0].evaluate_every == 21
    assert fit_schedule(Recipe(steps=101, evaluate_every=7), (), 5)[0].evaluate_every == 7
    assert fit_schedule(Recipe(steps=101), (), None)[0].evaluate_every == 11


@pytest.mark.parametrize(
    ("steps", "warm_up", "is_set", "expected"),
    [
        (19, 50, False, 1),  # the default never reached its learning rate
        (200, 50, False, 20),
        (2000, 50, False, 50),
        (19, 50, True, 1),
        (100, 50, True, 50),  # as asked
        (9, 2, True, 2),
    ],
)
def test_warm_up_is_short_compared_with_the_run(steps: int, warm_up: int, is_set: bool, expected: int) -> None:
    recipe, output = fit_schedule(Recipe(steps=steps, warm_up=warm_up), {"warm_up"} if is_set else (), 1)
    assert recipe.warm_up == expected
    assert bool(output) == (is_set and expected != warm_up), "a note says that the requested warm-up was shortened"


def test_validations_take_no_longer_than_training() -> None:
    short, output = fit_schedule(Recipe(steps=19), (), 5, step_tokens=1024, validation_tokens=111_000)
    assert short.evaluate_every == 19
    assert output == ["validated once, not 5: more would take longer than 19 steps"]
    long, output = fit_schedule(Recipe(steps=1000), (), 5, step_tokens=1024, validation_tokens=111_000)
    assert long.evaluate_every == 200 and not output
    assert fit_schedule(Recipe(steps=19, evaluate_every=2), (), 5, 1024, 111_000)[0].evaluate_every == 2


def test_step_timing_distinguishes_a_twice_larger_model() -> None:
    tokens, recipe = np.arange(4000, dtype=np.int32) % 7, Recipe(batch=4, sequence_length=16, device="cpu")
    width = {name: (Rnn(V=7, width=8, hidden=hidden), recipe) for name, hidden in (("small", 8), ("large", 400))}
    seconds = time_steps(width, tokens)
    assert {len(second) for second in seconds.values()} == {20}
    assert time_ratio(seconds["large"], seconds["small"]).low > 1


def test_interleaved_timing_detects_the_slower_function() -> None:
    calls: list[str] = []

    def runner(name: str, seconds: float):
        def run() -> None:
            calls.append(name)
            time.sleep(seconds)

        return run

    seconds = time_in_turns({"quick": runner("quick", 0.003), "slow": runner("slow", 0.009)}, 3)
    assert [len(times) for times in seconds.values()] == [3, 3]
    assert time_ratio(seconds["slow"], seconds["quick"]).low > 1.5
    assert calls[4:] == ["quick", "slow", "slow", "quick", "quick", "slow"], "each round begins with another one"


def test_fast_functions_are_repeated_within_a_measurement() -> None:
    calls = []
    time_in_turns({"a": lambda: calls.append(1)}, 1)
    assert len(calls) > 100


def test_timing_spread_is_the_quartiles() -> None:
    assert quartiles([4.0, 1.0, 3.0, 2.0, 5.0]) == Quartiles(3.0, 2.0, 4.0)
    assert quartiles([7.0]) == Quartiles(7.0, 7.0, 7.0)
    assert time_ratio([2.0, 8.0], [1.0, 4.0]) == Quartiles(2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("times", "message"),
    [((1.2, 1.1, 1.3), "slower"), ((0.8, 0.7, 0.9), "faster"), ((1.1, 0.9, 1.3), "no difference beyond the spread")],
)
def test_time_ratio_is_judged_by_its_quartiles(times: tuple[float, float, float], message: str) -> None:
    assert judge_time_ratio(Quartiles(*times)) == message


@pytest.mark.parametrize(("threads", "message"), [(1, ", 1 thread"), (2, ", 2 threads"), (16, ", 16 threads")])
def test_single_thread_uses_the_singular(threads: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    assert describe_hardware()["processor"].endswith(message)
