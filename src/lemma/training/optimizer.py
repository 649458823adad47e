"""AdamW and Muon, their state by parameter name, and the learning-rate schedule."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature, unwrap
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from lemma.errors import SpecError, TrainingError
from lemma.layers.positions import LearnedEmbedding
from lemma.spec.recipe import MuonSpec, Recipe
from lemma.training.distributed import shard_like

BETA1 = 0.9
LOOKUP_TABLES = (nn.Embedding, LearnedEmbedding)  # their rows are looked up, not multiplied


def build_optimizer(model: nn.Module, recipe: Recipe, capturable: bool = False) -> AdamW:
    """Build AdamW with two groups: matrices decay; biases, norms, embeddings and positions do not.

    Decay is apart from the gradient (Loshchilov & Hutter 2019). With Muon the matrices inside the model are a group of
    its own; the output layer stays with AdamW. What is recorded as a CUDA graph has its learning rate on the GPU.
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
    chosen: list[dict[str, Any]] = [
        {"params": group, "weight_decay": decay[decays]} for decays, group in groups.items() if group
    ]
    device = next(model.parameters()).device
    rate = torch.tensor(recipe.learning_rate, device=device) if capturable else recipe.learning_rate
    settings: dict[str, Any] = {"lr": rate, "betas": (BETA1, recipe.beta2), "fused": True, "capturable": capturable}
    if not isinstance(recipe.optimizer, MuonSpec):
        return LightAdamW(chosen, **settings)
    ends = [end for name in ("output", "head") if isinstance(end := getattr(model, name, None), nn.Linear)]
    last = {id(parameter) for end in ends for parameter in end.parameters()}
    inside = [matrix for matrix in groups[True] if matrix.dim() == 2 and id(matrix) not in last]
    moved = {id(matrix) for matrix in inside}
    for group in chosen:
        group["params"] = [parameter for parameter in group["params"] if id(parameter) not in moved]
    chosen = [group for group in chosen if group["params"]]
    if inside:
        ratio = recipe.optimizer.learning_rate / recipe.learning_rate
        muon = {"momentum": recipe.optimizer.momentum, "ratio": ratio, "weight_decay": recipe.weight_decay}
        chosen.append({"params": inside, **muon})
    return Muon(chosen, **settings)


class LightAdamW(AdamW):
    """AdamW by its own code without the guards around it, which import PyTorch's compiler: as long again as PyTorch."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters."""
        unwrap(AdamW.add_param_group)(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients."""
        unwrap(AdamW.zero_grad)(self, set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Move the weights by their gradients."""
        return unwrap(AdamW.step)(self, closure)


class Muon(LightAdamW):
    """Muon (Jordan et al. 2024) for groups with a `momentum`, AdamW for the others.

    M ← μM + (1−μ)G; the step is that of Nesterov's momentum, (1−μ)G + μM, with all its singular values near 1, times
    √max(1, rows/columns). Matrices of one shape are made orthogonal in one batch. `ratio` times the learning rate is
    that of these groups.
    """

    def batched_momentum(self, matrices: Sequence[nn.Parameter]) -> Float[Tensor, "count rows columns"]:
        """The momentum of matrices of one shape in one tensor; that of each in `state` is a part of it."""
        known = [self.state[matrix].get("mean") for matrix in matrices]
        first = known[0]
        if (
            first is not None
            and first._base is not None
            and len(first._base) == len(known)  # fewer have a gradient this time
            and all(one is not None and one._base is first._base for one in known)
        ):
            return first._base
        joined = torch.stack(
            [torch.zeros_like(m) if one is None else one for m, one in zip(matrices, known, strict=True)]
        )
        for matrix, part in zip(matrices, joined.unbind(), strict=True):
            self.state[matrix]["mean"] = part
        return joined

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Move the weights by their gradients."""
        every = self.param_groups
        try:
            self.param_groups = [group for group in every if "momentum" not in group]
            loss = super().step(closure)
        finally:
            self.param_groups = every
        for group in (group for group in every if "momentum" in group):
            shapes: defaultdict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    shapes[matrix.shape].append(matrix)
            rate = group["lr"] * group["ratio"]
            for (rows, columns), matrices in shapes.items():
                gradients = torch.stack([matrix.grad for matrix in matrices if matrix.grad is not None])
                momentum = self.batched_momentum(matrices).lerp_(gradients, 1 - group["momentum"])
                steps = orthogonalize(gradients.lerp_(momentum, group["momentum"])).to(gradients.dtype)
                steps *= rate * math.sqrt(max(1, rows / columns))
                for matrix, step in zip(matrices, steps.unbind(), strict=True):
                    matrix.mul_(1 - rate * group["weight_decay"]).sub_(step)
        return loss


def orthogonalize(matrices: Float[Tensor, "count rows columns"]) -> Float[Tensor, "count rows columns"]:
    """Bring all singular values near 1 (0.7 to 1.2) by five steps of Newton and Schulz, in bfloat16.

    X ← aX + (bXXᵀ + c(XXᵀ)²)X has the same singular vectors; a, b, c are Jordan's, chosen for the steepest rise.
    """
    wide = matrices.mT if matrices.shape[-2] > matrices.shape[-1] else matrices
    found = wide.bfloat16()
    found = found / found.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        square = found @ found.mT
        found = torch.baddbmm(
            found, torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315), found, beta=3.4445
        )
    return found.mT if wide is not matrices else found


def clip_gradients(model: nn.Module, max_norm: float) -> Tensor:
    """Scale the gradient down to a norm of at most `largest`, unless that is 0; return its norm before."""
    if max_norm:
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm, foreach=True)
    else:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients, foreach=True)
    whole = getattr(norm, "full_tensor", None)  # of a sharded model
    return norm if whole is None else whole()


CUSTOM_OPTIMIZER_HINT = (
    "Give a function that makes the optimizer of a model: "
    "optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1)"
)


def build_custom_optimizer(make: Callable[[nn.Module], Optimizer], model: nn.Module) -> Optimizer:
    """A person's own optimizer of a model: its groups' learning rates are their peaks, which the schedule scales."""
    if isinstance(make, type):
        raise SpecError(f"optimizer: {make.__name__} is a class. {CUSTOM_OPTIMIZER_HINT}")
    made = make(model)
    if not isinstance(made, Optimizer):
        raise SpecError(f"optimizer: a torch.optim.Optimizer is expected of the function, got {type(made).__name__}.")
    closure = signature(made.step).parameters.get("closure")
    if closure is not None and closure.default is Parameter.empty:
        raise SpecError(
            f"optimizer: {type(made).__name__} computes the loss several times a step, by a closure, which training "
            "does not give it. Use another one."
        )
    theirs = {id(parameter) for group in made.param_groups for parameter in group["params"]}
    if not theirs <= {id(parameter) for parameter in model.parameters()}:
        raise SpecError("optimizer: it moves tensors that are not parameters of the model that the function was given.")
    for group in made.param_groups:
        group["peak"] = float(group["lr"])
    return made


SCALAR_SUFFIX = "number"


def optimizer_state(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's memory as `parameter:quantity` → tensor: both moments and the count of steps.

    Of a person's own optimizer plain numbers are kept too.
    """
    memory: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for quantity, value in optimizer.state[parameter].items() if parameter.requires_grad else ():
            if isinstance(value, Tensor):
                memory[f"{name}:{quantity}"] = value
            elif isinstance(value, bool | int | float):
                memory[f"{name}:{quantity}:{SCALAR_SUFFIX}"] = torch.tensor(value, dtype=torch.float64)
            elif value is not None:
                raise TrainingError(
                    f"{type(optimizer).__name__} keeps a {type(value).__name__} called {quantity} for each parameter, "
                    "which a checkpoint cannot hold: tensors and numbers only."
                )
    return memory


def load_optimizer_state(optimizer: Optimizer, model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Give an optimizer the memory of another run of the same model."""
    parameters = dict(model.named_parameters())
    for key, tensor in saved.items():
        name, quantity, *number = key.split(":")
        parameter, kept = parameters[name], optimizer.state[parameters[name]]
        if number:
            kept[quantity] = int(value) if (value := float(tensor)).is_integer() else value
        elif quantity in kept:  # where a CUDA graph reads it
            kept[quantity].copy_(tensor)
        else:
            here = tensor.to(parameter.device, copy=True)
            same = tensor.shape == parameter.shape  # not a count of steps
            kept[quantity] = shard_like(here, parameter) if same else here


# What a recipe plans for each step, counted from 1: the learning rate, and when to log, validate and save.


WSD_DECAY_FRACTION = 0.2  # of all steps, in which wsd goes down
LOGS_PER_RUN = 100
VALIDATIONS_PER_RUN = 10


def learning_rate(recipe: Recipe, step: int) -> float:
    """The rate of a step: linear from 0 through the warm-up, then down to its final share as the schedule says.

    >>> recipe = Recipe(steps=100, warm_up=10, learning_rate=1.0, final_rate=0.1)
    >>> [round(learning_rate(recipe, step), 3) for step in (1, 10, 55, 100)]
    [0.1, 1.0, 0.55, 0.1]
    >>> [round(learning_rate(recipe.replace(schedule="wsd"), step), 3) for step in (11, 80, 90, 100)]
    [1.0, 1.0, 0.55, 0.1]
    """
    if step <= recipe.warm_up:
        return recipe.learning_rate * step / recipe.warm_up
    done = (step - recipe.warm_up) / (recipe.steps - recipe.warm_up)
    match recipe.schedule:
        case "cosine":
            left = (1 + math.cos(math.pi * done)) / 2
        case "linear":
            left = 1 - done
        case "wsd":
            decay = min(recipe.steps * WSD_DECAY_FRACTION, recipe.steps - recipe.warm_up)
            left = min(1.0, (recipe.steps - step) / decay)
        case _:  # constant; a function of a person's own takes the place of this one
            return recipe.learning_rate
    return recipe.learning_rate * (recipe.final_rate + (1 - recipe.final_rate) * left)


def should_log(recipe: Recipe, step: int) -> bool:
    """Whether the training loss is written down after this step: a hundred times a run, and at validations."""
    return step % max(1, recipe.steps // LOGS_PER_RUN) == 0 or should_validate(recipe, step)


def should_validate(recipe: Recipe, step: int) -> bool:
    """Whether a validation follows this step; one follows the last in any case."""
    return step % (recipe.evaluate_every or math.ceil(recipe.steps / VALIDATIONS_PER_RUN)) == 0 or step == recipe.steps


def should_save(recipe: Recipe, step: int) -> bool:
    """Whether a checkpoint follows this step; by default after each validation."""
    if recipe.checkpoint_every is None:
        return should_validate(recipe, step)
    return step % recipe.checkpoint_every == 0 or step == recipe.steps
