"""AdamW and Muon, their state by parameter name, and the learning-rate schedule."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from inspect import Parameter, signature, unwrap
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from lemma.errors import SpecError, TrainingError
from lemma.layers.positions import LearnedEmbedding
from lemma.spec.recipe import MuonSpec, Recipe
from lemma.training.devices import shard_like

BETA1 = 0.9
LOOKUP_TABLES = (nn.Embedding, LearnedEmbedding)  # their rows are looked up, not multiplied


def build_optimizer(model: nn.Module, recipe: Recipe, capturable: bool = False) -> AdamW:
    """Return AdamW (or Muon) in two groups: matrices decay; biases, norms, embeddings and positions do not.

    Decay is decoupled from the gradient (Loshchilov & Hutter 2019). With Muon the inner matrices are a third group; the
    output layer stays with AdamW. If `capturable` by a CUDA graph, the learning rate is a tensor on the GPU.
    """
    tables = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, LOOKUP_TABLES)
        for parameter in module.parameters(recurse=False)
    }
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
        groups[parameter.dim() >= 2 and id(parameter) not in tables].append(parameter)
    decay = {True: recipe.weight_decay, False: 0.0}
    options: list[dict[str, Any]] = [
        {"params": group, "weight_decay": decay[decays]} for decays, group in groups.items() if group
    ]
    device = next(model.parameters()).device
    rate = torch.tensor(recipe.learning_rate, device=device) if capturable else recipe.learning_rate
    settings: dict[str, Any] = {"lr": rate, "betas": (BETA1, recipe.beta2), "fused": True, "capturable": capturable}
    if not isinstance(recipe.optimizer, MuonSpec):
        return LightAdamW(options, **settings)
    outputs = [layer for name in ("output", "head") if isinstance(layer := getattr(model, name, None), nn.Linear)]
    output_ids = {id(parameter) for layer in outputs for parameter in layer.parameters()}
    inner = [matrix for matrix in groups[True] if matrix.dim() == 2 and id(matrix) not in output_ids]
    inner_ids = {id(matrix) for matrix in inner}
    for group in options:
        group["params"] = [parameter for parameter in group["params"] if id(parameter) not in inner_ids]
    options = [group for group in options if group["params"]]
    if inner:
        ratio = recipe.optimizer.learning_rate / recipe.learning_rate
        muon = {"momentum": recipe.optimizer.momentum, "ratio": ratio, "weight_decay": recipe.weight_decay}
        options.append({"params": inner, **muon})
    return Muon(options, **settings)


class LightAdamW(AdamW):
    """AdamW without the decorators that import PyTorch's compiler, which would double the time of `import torch`."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as AdamW does."""
        unwrap(AdamW.add_param_group)(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients, as AdamW does."""
        unwrap(AdamW.zero_grad)(self, set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update the parameters from their gradients; return the loss of `closure` if one is passed."""
        return unwrap(AdamW.step)(self, closure)


class Muon(LightAdamW):
    """Muon (Jordan et al. 2024) for groups with a `momentum`, AdamW for the others.

    M ← μM + (1−μ)G; the step is Nesterov's (1−μ)G + μM with all singular values near 1, times √max(1, rows/columns).
    Matrices of one shape are orthogonalized in one batch. The learning rate of these groups is multiplied by `ratio`.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update inner matrices by Muon, all other parameters by AdamW.

        Return the loss of `closure` if one is passed.
        """
        all_groups = self.param_groups
        try:
            self.param_groups = [group for group in all_groups if "momentum" not in group]
            loss = super().step(closure)
        finally:
            self.param_groups = all_groups
        for group in (group for group in all_groups if "momentum" in group):
            shapes: defaultdict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    shapes[matrix.shape].append(matrix)
            rate = group["lr"] * group["ratio"]
            for (rows, columns), matrices in shapes.items():
                gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
                for matrix in matrices:
                    if "mean" not in self.state[matrix]:
                        self.state[matrix]["mean"] = torch.zeros_like(matrix)
                means = [self.state[matrix]["mean"] for matrix in matrices]
                torch._foreach_lerp_(means, gradients, 1 - group["momentum"])  # pyright: ignore[reportPrivateImportUsage]
                blended = torch._foreach_lerp(gradients, means, group["momentum"])  # pyright: ignore[reportPrivateImportUsage]
                nesterov = torch.stack(blended)
                steps = orthogonalize(nesterov).to(nesterov.dtype)
                steps *= rate * math.sqrt(max(1, rows / columns))
                for matrix, step in zip(matrices, steps.unbind(), strict=True):
                    matrix.mul_(1 - rate * group["weight_decay"]).sub_(step)
        return loss


def orthogonalize(matrices: Float[Tensor, "count rows columns"]) -> Float[Tensor, "count rows columns"]:
    """Return matrices with singular values near 1 (0.7 to 1.2), by five Newton–Schulz steps in bfloat16.

    X ← aX + (bXXᵀ + c(XXᵀ)²)X has the same singular vectors; a, b, c are Jordan's, chosen for the steepest rise.
    """
    rows_first = matrices.mT if matrices.shape[-2] > matrices.shape[-1] else matrices
    X = rows_first.bfloat16()
    X = X / X.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        square = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315), X, beta=3.4445)
    return X.mT if rows_first is not matrices else X


def clip_gradients(model: nn.Module, max_norm: float) -> Tensor:
    """Scale all gradients in place to a total norm of at most `max_norm` (0: no limit); return the unclipped norm."""
    if max_norm:
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm, foreach=True)
    else:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients, foreach=True)
    full_tensor = getattr(norm, "full_tensor", None)  # of a sharded model
    return norm if full_tensor is None else full_tensor()


CUSTOM_OPTIMIZER_HINT = (
    "Give a function that makes the optimizer of a model: "
    "optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1)"
)


def build_custom_optimizer(make: Callable[[nn.Module], Optimizer], model: nn.Module) -> Optimizer:
    """Return the optimizer that a user's function `make` builds; its learning rates become the schedule's peaks."""
    if isinstance(make, type):
        raise SpecError(f"optimizer: {make.__name__} is a class. {CUSTOM_OPTIMIZER_HINT}")
    optimizer = make(model)
    if not isinstance(optimizer, Optimizer):
        raise SpecError(
            f"optimizer: a torch.optim.Optimizer is expected of the function, got {type(optimizer).__name__}."
        )
    closure = signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is Parameter.empty:
        raise SpecError(
            f"optimizer: {type(optimizer).__name__} computes the loss several times a step, by a closure, which "
            "training does not give it. Use another one."
        )
    optimized = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not optimized <= {id(parameter) for parameter in model.parameters()}:
        raise SpecError("optimizer: it moves tensors that are not parameters of the model that the function was given.")
    for group in optimizer.param_groups:
        group["peak"] = float(group["lr"])
    return optimizer


SCALAR_SUFFIX = "number"


def optimizer_state(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the state of an optimizer as `parameter:quantity` → tensor, such as `output.weight:exp_avg`.

    Numbers of a user-supplied optimizer become tensors, too.
    """
    state: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for quantity, value in optimizer.state[parameter].items() if parameter.requires_grad else ():
            if isinstance(value, Tensor):
                state[f"{name}:{quantity}"] = value
            elif isinstance(value, bool | int | float):
                state[f"{name}:{quantity}:{SCALAR_SUFFIX}"] = torch.tensor(value, dtype=torch.float64)
            elif value is not None:
                raise TrainingError(
                    f"{type(optimizer).__name__} keeps a {type(value).__name__} called {quantity} for each parameter, "
                    "which a checkpoint cannot hold: tensors and numbers only."
                )
    return state


def load_optimizer_state(optimizer: Optimizer, model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Load into an optimizer the state that `optimizer_state` returned for the same model."""
    parameters = dict(model.named_parameters())
    for key, tensor in saved.items():
        name, quantity, *suffix = key.split(":")
        parameter = parameters[name]
        state = optimizer.state[parameter]
        if suffix:
            state[quantity] = int(value) if (value := float(tensor)).is_integer() else value
        elif quantity in state:  # in place, since a CUDA graph reads it
            state[quantity].copy_(tensor)
        else:
            copy = tensor.to(parameter.device, copy=True)
            has_shape = tensor.shape == parameter.shape  # unlike a step count
            state[quantity] = shard_like(copy, parameter) if has_shape else copy


# Schedule: the learning rate, and when to log, validate and save. Steps are counted from 1.

WSD_DECAY_FRACTION = 0.2  # of all steps, in which wsd decays
LOGS_PER_RUN = 100
VALIDATIONS_PER_RUN = 10


def learning_rate(recipe: Recipe, step: int) -> float:
    """Return the learning rate of a step (from 1): linear from 0 in the warm-up, then down to its final fraction.

    >>> recipe = Recipe(steps=100, warm_up=10, learning_rate=1.0, final_rate=0.1)
    >>> [round(learning_rate(recipe, step), 3) for step in (1, 10, 55, 100)]
    [0.1, 1.0, 0.55, 0.1]
    >>> [round(learning_rate(recipe.replace(schedule="wsd"), step), 3) for step in (11, 80, 90, 100)]
    [1.0, 1.0, 0.55, 0.1]
    """
    if step <= recipe.warm_up:
        return recipe.learning_rate * step / recipe.warm_up
    progress = (step - recipe.warm_up) / (recipe.steps - recipe.warm_up)
    match recipe.schedule:
        case "cosine":
            remaining = (1 + math.cos(math.pi * progress)) / 2
        case "linear":
            remaining = 1 - progress
        case "wsd":
            decay = min(recipe.steps * WSD_DECAY_FRACTION, recipe.steps - recipe.warm_up)
            remaining = min(1.0, (recipe.steps - step) / decay)
        case _:  # constant; a custom schedule replaces this function
            return recipe.learning_rate
    return recipe.learning_rate * (recipe.final_rate + (1 - recipe.final_rate) * remaining)


def should_log(recipe: Recipe, step: int) -> bool:
    """Return whether metrics are logged after this step: about a hundred times per run, and at validations."""
    return step % max(1, recipe.steps // LOGS_PER_RUN) == 0 or should_validate(recipe, step)


def should_validate(recipe: Recipe, step: int) -> bool:
    """Return whether a validation follows this step; one always follows the last."""
    return step % (recipe.evaluate_every or math.ceil(recipe.steps / VALIDATIONS_PER_RUN)) == 0 or step == recipe.steps


def should_save(recipe: Recipe, step: int) -> bool:
    """Return whether a checkpoint follows this step; by default one follows each validation."""
    if recipe.checkpoint_every is None:
        return should_validate(recipe, step)
    return step % recipe.checkpoint_every == 0 or step == recipe.steps
