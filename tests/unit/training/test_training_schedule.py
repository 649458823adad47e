"""Learning rates against PyTorch's scheduler; intervals of validation, logs and checkpoints."""

from itertools import pairwise

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from lemma.spec.recipe import Recipe
from lemma.training.optimizer import learning_rate, should_log, should_save, should_validate


def due(when, recipe: Recipe) -> list[int]:
    return [step for step in range(1, recipe.steps + 1) if when(recipe, step)]


def test_cosine_schedule_matches_pytorch() -> None:
    recipe = Recipe(steps=60, warm_up=20, learning_rate=0.4, final_rate=0.25)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.4)
    scheduler = CosineAnnealingLR(optimizer, T_max=40, eta_min=0.1)
    for step in range(20, 61):
        assert learning_rate(recipe, step) == pytest.approx(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()


def test_warm_up_is_linear() -> None:
    recipe = Recipe(steps=60, warm_up=20, learning_rate=0.4)
    assert [learning_rate(recipe, step) for step in range(1, 21)] == pytest.approx(
        [0.02 * step for step in range(1, 21)]
    )


@pytest.mark.parametrize("warm_up", [0, 10, 500])
def test_learning_rate_is_valid_for_any_warm_up(warm_up: int) -> None:
    rates = [learning_rate(Recipe(steps=10, warm_up=warm_up), step) for step in range(1, 11)]
    assert all(0 < rate <= 2e-3 for rate in rates)


@pytest.mark.parametrize("steps", [1, 7, 10, 99, 100, 1000, 12345])
def test_default_schedule_has_ten_validations_and_a_hundred_logs(steps: int) -> None:
    recipe = Recipe(steps=steps)
    validations, rows = due(should_validate, recipe), due(should_log, recipe)
    assert len(validations) in ({steps} if steps < 10 else {9, 10}) and validations[-1] == rows[-1] == steps
    assert set(validations) <= set(rows) and len(rows) <= 220
    assert len(rows) >= min(steps, 100) and due(should_save, recipe) == validations


def test_explicit_intervals_are_respected() -> None:
    recipe = Recipe(steps=20, evaluate_every=6, checkpoint_every=8)
    assert due(should_validate, recipe) == [6, 12, 18, 20] and due(should_save, recipe) == [8, 16, 20]


def test_linear_wsd_and_constant_schedules_match_their_formulas() -> None:
    recipe = Recipe(steps=100, warm_up=20, learning_rate=1.0, final_rate=0.2)
    linear = [learning_rate(recipe.replace(schedule="linear"), step) for step in range(20, 101)]
    assert linear == pytest.approx([1 - 0.8 * done / 80 for done in range(81)])
    wsd = [learning_rate(recipe.replace(schedule="wsd"), step) for step in range(20, 101)]
    assert wsd == pytest.approx([1.0] * 61 + [1 - 0.8 * done / 20 for done in range(1, 21)])
    assert {learning_rate(recipe.replace(schedule="constant"), step) for step in range(20, 101)} == {1.0}


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd", "constant"])
@pytest.mark.parametrize("warm_up", [0, 45, 95])
def test_schedules_are_continuous_after_warm_up(schedule: str, warm_up: int) -> None:
    recipe = Recipe(steps=100, warm_up=warm_up, learning_rate=1.0, final_rate=0.1, schedule=schedule)
    rates = [learning_rate(recipe, step) for step in range(1, 101)]
    steepest = max(before - after for before, after in pairwise(rates))
    assert max(rates) == pytest.approx(1.0, abs=0.01) and steepest < 2 * 0.9 / min(20, 100 - warm_up)
    assert rates[-1] == pytest.approx(1.0 if schedule == "constant" else 0.1)
