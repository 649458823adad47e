"""Steps of optimizers agree with torch.optim, schedules with closed forms."""

from math import cos, pi, sqrt
from typing import Any

import numpy as np
import pytest
import torch

import lemma
from lemma.checking.exercises.optimizers import OptimizerExercise
from lemma.errors import LemmaError

START, GRADIENTS = [1.0, -2.0], [[0.5, 1.0], [-1.0, 2.0], [0.25, -3.0]]
OPTIMIZERS: list[tuple[dict[str, Any], Any, dict[str, Any]]] = [
    ({"optimizer": "sgd", "weight_decay": 0.1}, torch.optim.SGD, {"weight_decay": 0.1}),
    ({"optimizer": "momentum", "momentum": 0.8}, torch.optim.SGD, {"momentum": 0.8}),
    ({"optimizer": "nesterov", "momentum": 0.8}, torch.optim.SGD, {"momentum": 0.8, "nesterov": True}),
    ({"optimizer": "adagrad", "eps": 1e-2}, torch.optim.Adagrad, {"eps": 1e-2}),
    ({"optimizer": "rmsprop", "decay": 0.95, "eps": 1e-2}, torch.optim.RMSprop, {"alpha": 0.95, "eps": 1e-2}),
    ({"optimizer": "adam", "eps": 1e-2}, torch.optim.Adam, {"eps": 1e-2}),
    ({"optimizer": "adam", "weight_decay": 0.3}, torch.optim.Adam, {"weight_decay": 0.3}),
    ({"optimizer": "adamw", "weight_decay": 0.3}, torch.optim.AdamW, {"weight_decay": 0.3}),
    ({"optimizer": "adamw", "beta1": 0.5, "beta2": 0.75}, torch.optim.AdamW, {"betas": (0.5, 0.75), "weight_decay": 0}),
]


def values_of(**fields: Any) -> dict[str, Any]:
    """Return all right values of an exercise by name."""
    return {value.name: value.values for value in OptimizerExercise.read(fields, "optimizer").expected_values()}


@pytest.mark.parametrize(("fields", "optimizer_class", "options"), OPTIMIZERS)
@pytest.mark.parametrize("clip_norm", [0, 1.5])
def test_steps_are_those_of_torch(
    fields: dict[str, Any], optimizer_class: Any, options: dict[str, Any], clip_norm: float
) -> None:
    parameter = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    optimizer = optimizer_class([parameter], lr=0.1, **options)
    actual = values_of(start=START, gradients=GRADIENTS, learning_rate=0.1, clip_norm=clip_norm, **fields)
    for step, gradient in enumerate(GRADIENTS, 1):
        parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        if clip_norm:
            torch.nn.utils.clip_grad_norm_([parameter], clip_norm)
        optimizer.step()
        np.testing.assert_allclose(actual[f"theta{step}"], parameter.detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("loss", "start", "function"),
    [
        ("(w - 3)^2", [1.0], lambda w: (w[0] - 3) ** 2),
        ("w1^2 + 3*w1*w2 + exp(w2)", [1.0, 0.5], lambda w: w[0] ** 2 + 3 * w[0] * w[1] + torch.exp(w[1])),
        ("sum(w * w) / 2", [1.0, 2.0], lambda w: (w * w).sum() / 2),
    ],
)
def test_gradients_of_a_loss_are_those_of_autograd(loss: str, start: list[float], function: Any) -> None:
    parameter = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    actual = values_of(optimizer="adam", start=start, loss=loss, steps=3, learning_rate=0.1)
    for step in (1, 2, 3):
        optimizer.zero_grad()
        function(parameter).backward()
        optimizer.step()
        np.testing.assert_allclose(np.ravel(actual[f"theta{step}"]), parameter.detach().numpy(), rtol=1e-6)


def test_schedules_are_closed_forms() -> None:
    shared = {"learning_rate": 2.0, "warmup": 10, "total_steps": 110, "min_rate": 0.5}
    for step in (0, 5, 10, 35, 60, 110, 200):
        warmed = min(1.0, step / 10)
        progress = min(1.0, max(0.0, (step - 10) / 100))
        if step < 10:
            expected = {"cosine": 2 * warmed, "linear": 2 * warmed, "constant": 2 * warmed}
        else:
            expected = {
                "cosine": 0.5 + 0.75 * (1 + cos(pi * progress)),
                "linear": 2 - 1.5 * progress,
                "constant": 2.0,
            }
        for schedule, rate in expected.items():
            assert values_of(schedule=schedule, step=step, **shared)["rate"] == pytest.approx(rate)
    assert values_of(schedule="noam", width=64, warmup=16, step=64)["rate"] == pytest.approx(1 / 8 / 8)
    assert values_of(schedule="inverse-sqrt", learning_rate=1, warmup=16, step=64)["rate"] == pytest.approx(0.5)
    assert values_of(schedule="step-decay", gamma=0.5, every=10, step=25, learning_rate=1)["rate"] == 0.25


def test_forms_of_momentum_are_accepted_unless_one_is_stated() -> None:
    fields = {"optimizer": "momentum", "start": 1, "gradients": "1 1", "learning_rate": 0.1, "momentum": 0.9}
    for velocity, theta in ((1.9, 0.71), (-0.19, 0.71), (0.19, 0.971)):
        lines = [f"v2 = {velocity}", f"theta2 = {theta}"]
        assert lemma.check.exercise("optimizer", fields, *lines)
        report = lemma.check.exercise("optimizer", {**fields, "form": "pytorch"}, *lines)
        assert bool(report) == (velocity == 1.9)


def test_a_negligible_epsilon_may_be_left_out() -> None:
    fields = {"optimizer": "adam", "start": 2, "gradients": "0.4", "learning_rate": 1}
    assert lemma.check.exercise("optimizer", fields, "theta1 = 1")
    assert lemma.check.exercise("optimizer", fields, "theta1 = 1.000000025")
    report = lemma.check.exercise("optimizer", fields, "theta1 = 1", "theta1 = 1.0", "m1 = 3")
    assert [line.right for line in report.lines] == [True, True, False]
    assert not lemma.check.exercise("optimizer", {**fields, "eps": 0.1, "epsilon": "outside"}, "theta1 = 1")
    exact = 2 - 0.4 / (0.4 + 0.1), 2 - 0.4 / sqrt(0.16 + 0.1)
    report = lemma.check.exercise("optimizer", {**fields, "eps": 0.1}, f"theta1 = {exact[1]:.4f}")
    assert report and "inside" in str(report)
    report = lemma.check.exercise("optimizer", {**fields, "eps": 0.1, "epsilon": "outside"}, f"theta1 = {exact[1]:.4f}")
    assert not report and "inside" in str(report)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"start": 1}, "give gradients"),
        ({"start": "1 2", "gradients": "1 2 3"}, "needs 2 numbers"),
        ({"start": 1, "gradients": "x"}, "not a number"),
        ({"start": 1, "loss": "w^"}, "loss"),
        ({"start": 1, "loss": "w1*w2"}, "do not fit 1"),
        ({"start": 1, "gradients": "1 " * 30}, "at most 20 steps"),
        ({"optimizer": "clipping", "gradients": "1 2"}, "clip_norm are needed"),
        ({"schedule": "cosine", "warmup": 10}, "total_steps is needed"),
        ({"start": 1, "gradients": 1, "steps": 10**9}, "at most 20"),
        ({"start": 1, "loss": "exp(exp(exp(w*1000)))", "learning_rate": 1}, ""),
    ],
)
def test_statements_that_make_no_exercise_are_explained(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LemmaError, match=message):
        lemma.check.exercise("optimizer", fields, "1")


def test_the_largest_exercise_is_checked_in_time() -> None:
    from time import perf_counter

    names = [f"w{index}" for index in range(1, 13)]
    loss = " + ".join(f"({name} - 1)^2*tanh({name})" for name in names)
    fields = {"optimizer": "adam", "start": [0.5] * 12, "loss": loss, "steps": 20}
    start = perf_counter()
    assert not lemma.check.exercise("optimizer", fields, "theta20 = [1, 2]")
    assert perf_counter() - start < 2
