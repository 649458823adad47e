"""AdamW, its state by parameter name, and the learning-rate schedule."""

import math
from collections.abc import Mapping

from torch import Tensor, nn
from torch.optim import AdamW

from lemma.layers.positions import LearnedPart
from lemma.spec.recipe import Recipe

BETA1 = 0.9
TABLES = (nn.Embedding, LearnedPart)  # their rows are looked up, not multiplied


def optimizer_for(model: nn.Module, recipe: Recipe) -> AdamW:
    """Build AdamW with two groups: matrices decay; biases, norms, embeddings and positions do not.

    Decay is apart from the gradient (Loshchilov & Hutter 2019).
    """
    tables = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, TABLES)
        for parameter in module.parameters(recurse=False)
    }
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
        groups[parameter.dim() >= 2 and id(parameter) not in tables].append(parameter)
    decay = {True: recipe.weight_decay, False: 0.0}
    return AdamW(
        [{"params": group, "weight_decay": decay[decays]} for decays, group in groups.items() if group],
        lr=recipe.learning_rate,
        betas=(BETA1, recipe.beta2),
        fused=True,
    )


def clip(model: nn.Module, largest: float) -> Tensor:
    """Scale the gradient down to a norm of at most `largest`, unless that is 0; return its norm before."""
    if largest:
        return nn.utils.clip_grad_norm_(model.parameters(), largest, foreach=True)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return nn.utils.get_total_norm(gradients, foreach=True)


def memory_of(optimizer: AdamW, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's memory as `parameter:quantity` → tensor: both moments and the count of steps."""
    return {
        f"{name}:{quantity}": tensor
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        for quantity, tensor in optimizer.state[parameter].items()
    }


def restore_memory(optimizer: AdamW, model: nn.Module, memory: Mapping[str, Tensor]) -> None:
    """Give an optimizer the memory of another run of the same model."""
    parameters = dict(model.named_parameters())
    for key, tensor in memory.items():
        name, _, quantity = key.rpartition(":")
        parameter = parameters[name]
        optimizer.state[parameter][quantity] = tensor.to(parameter.device, copy=True)


# What a recipe plans for each step, counted from 1: the learning rate, and when to log, validate and save.


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
    return step % (recipe.evaluate_every or math.ceil(recipe.steps / VALIDATIONS)) == 0 or step == recipe.steps


def saves(recipe: Recipe, step: int) -> bool:
    """Whether a checkpoint follows this step; by default after each validation."""
    if recipe.checkpoint_every is None:
        return validates(recipe, step)
    return step % recipe.checkpoint_every == 0 or step == recipe.steps
