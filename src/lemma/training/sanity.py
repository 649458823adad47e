"""Sanity checks of a training run: each returns a warning or None, or raises."""

import math

from lemma.errors import TrainingError
from lemma.spec.recipe import Recipe

CHANCE_FRACTION = 0.98  # a loss above this fraction of the logarithm of the choices is no better than chance
SUSPICIOUS_FRACTION = 0.8  # a validation loss below this fraction of the training loss, and lower by …
SUSPICIOUS_GAP = 0.2  # … this many nats is too good to be true
COMPARED_VALIDATIONS = 4  # validations that are averaged: single ones, and single steps, vary too much
MAX_EPOCHS = 200  # reading a text more often is a mistake


def chance_warning(
    recipe: Recipe, step: int, loss: float, choices: int, noun: str = "tokens", symbol: str = "V"
) -> str | None:
    """Warn of a loss still at chance after a fifth of the steps, twice the warm-up and fifty steps.

    Chance is the logarithm of the choices: ln V among V tokens, ln B among the B captions of a batch.
    """
    chance = math.log(choices)
    if step < max(recipe.steps / 5, 2 * recipe.warm_up, 50) or loss < CHANCE_FRACTION * chance:
        return None
    return (
        f"Nothing is learned: at step {step} the loss is {loss:.3f}, guessing among {choices} {noun} gives "
        f"ln {symbol} = {chance:.3f}. Try another learning_rate (now {recipe.learning_rate:g}), and look at the "
        f"{'text' if noun == 'tokens' else noun}."
    )


def validation_warning(recipe: Recipe, step: int, validation: float, training: float) -> str | None:
    """Warn of a validation loss far below the training loss, once a third of the steps are done."""
    if step <= recipe.steps / 3 or validation >= min(SUSPICIOUS_FRACTION * training, training - SUSPICIOUS_GAP):
        return None
    cause = f"; dropout = {recipe.dropout:g} may be too much" if recipe.dropout >= 0.3 else ""
    return (
        f"Validation is much better than training: loss {validation:.3f} against {training:.3f} at step {step}. "
        f"Is the held-out text easier, or of another kind{cause}?"
    )


def epochs_warning(recipe: Recipe, tokens: int, sequence_length: int) -> str | None:
    """Warn of a text so short that the run reads it hundreds of times."""
    epochs = recipe.steps * recipe.batch * sequence_length / tokens
    if epochs < MAX_EPOCHS:
        return None
    return f"The training text has only {tokens:,} tokens: this run reads them {epochs:,.0f} times over."


def check_finite(loss: float, norm: float, steps: range, rate: float, saved_step: int) -> None:
    """Raise TrainingError if the loss or the gradient norm of these steps is infinite or NaN."""
    if math.isfinite(loss) and math.isfinite(norm):
        return
    problem = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {norm}"
    when = f"At step {steps[-1]}" if len(steps) == 1 else f"Between steps {steps[0]} and {steps[-1]}"
    checkpoint = describe_checkpoint(saved_step)
    raise TrainingError(f"{when} {problem} (learning rate {rate:.3g}). {checkpoint}. Try a lower learning_rate.")


def describe_checkpoint(saved_step: int) -> str:
    """Describe which checkpoint a failed run can be resumed from."""
    return f"The checkpoint of step {saved_step} is good" if saved_step else "No checkpoint had been saved before"
