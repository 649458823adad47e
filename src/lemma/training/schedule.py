"""What a recipe plans for each step: the learning rate, and when to log, validate and save.

Steps count from 1 once taken: step 1 is the first.
"""

import math

from lemma.spec import Recipe

LOGS = 100
VALIDATIONS = 10


def learning_rate(recipe: Recipe, step: int) -> float:
    """The rate of a step: linear from 0 through the warm-up, then a cosine down to its final share.

    >>> recipe = Recipe(steps=100, warm_up=10, learning_rate=1.0, final_rate=0.1)
    >>> [round(learning_rate(recipe, step), 3) for step in (1, 10, 55, 100)]
    [0.1, 1.0, 0.55, 0.1]
    """
    if step <= recipe.warm_up:
        return recipe.learning_rate * step / recipe.warm_up
    done = (step - recipe.warm_up) / (recipe.steps - recipe.warm_up)
    share = recipe.final_rate + (1 - recipe.final_rate) * (1 + math.cos(math.pi * done)) / 2
    return recipe.learning_rate * share


def logs(recipe: Recipe, step: int) -> bool:
    """Whether the training loss is written down after this step: a hundred times a run, and at validations."""
    return step % max(1, recipe.steps // LOGS) == 0 or validates(recipe, step)


def validates(recipe: Recipe, step: int) -> bool:
    """Whether a validation follows this step; one follows the last in any case."""
    return step % (recipe.evaluate_every or _tenth(recipe)) == 0 or step == recipe.steps


def saves(recipe: Recipe, step: int) -> bool:
    """Whether a checkpoint follows this step; by default after each validation."""
    if recipe.checkpoint_every is None:
        return validates(recipe, step)
    return step % recipe.checkpoint_every == 0 or step == recipe.steps


def _tenth(recipe: Recipe) -> int:
    return math.ceil(recipe.steps / VALIDATIONS)
