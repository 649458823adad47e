"""Warnings of training appear exactly under their conditions."""

import math

import pytest

from lemma.errors import TrainingError
from lemma.spec.recipe import Recipe
from lemma.training.session import chance_warning, check_finite, epochs_warning, validation_warning

RECIPE = Recipe(steps=1000, warm_up=50)


@pytest.mark.parametrize(
    ("step", "loss", "warned"),
    [(200, math.log(65), True), (200, 9.0, True), (199, math.log(65), False), (200, 0.9 * math.log(65), False)],
)
def test_loss_at_chance_warns_after_enough_steps(step: int, loss: float, warned: bool) -> None:
    message = chance_warning(RECIPE, step, loss, 65)
    assert bool(message) == warned
    assert not message or ("4.174" in message and "learning_rate" in message)


def test_chance_warning_waits_for_the_warm_up() -> None:
    assert chance_warning(Recipe(steps=1000, warm_up=400), 700, 5.0, 65) is None
    assert chance_warning(Recipe(steps=1000, warm_up=400), 800, 5.0, 65)


@pytest.mark.parametrize(
    ("step", "validation", "training", "warned"),
    [
        (500, 1.0, 2.0, True),
        (100, 1.0, 2.0, False),  # the mean training loss lags while the loss falls fast
        (500, 1.7, 2.0, False),  # dropout and short contexts explain this difference
        (500, 0.01, 0.05, False),  # both memorized the text
        (500, 2.0, 1.0, False),
    ],
)
def test_validation_loss_far_below_training_warns(step: int, validation: float, training: float, warned: bool) -> None:
    assert bool(validation_warning(RECIPE, step, validation, training)) == warned


def test_warning_names_high_dropout_as_a_cause() -> None:
    assert "dropout = 0.5" in (validation_warning(Recipe(dropout=0.5), 500, 1.0, 2.0) or "")


def test_text_repeated_for_many_epochs_warns() -> None:
    assert epochs_warning(Recipe(steps=5000, batch=64), 1_003_854, 256) is None  # the usual run on Shakespeare
    assert "1,000 times" in (epochs_warning(Recipe(steps=1000, batch=10), 100, 10) or "")


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (2.0, math.nan), (2.0, -math.inf)])
def test_nonfinite_loss_or_gradient_names_its_step(loss: float, norm: float) -> None:
    with pytest.raises(TrainingError, match=r"At step 7 .*No checkpoint had been saved"):
        check_finite(loss, norm, range(7, 8), 0.1, 0)
    with pytest.raises(TrainingError, match=r"Between steps 5 and 7 .*checkpoint of step 4 is good"):
        check_finite(loss, norm, range(5, 8), 0.1, 4)


def test_finite_values_pass() -> None:
    assert check_finite(2.0, 1.0, range(1, 2), 0.1, 0) is None
