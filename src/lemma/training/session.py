"""A model in training: its weights, optimizer, batches and running figures, one step at a time."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from lemma.errors import SpecError, TrainingError
from lemma.layers.state import State
from lemma.models.base import count_parameters
from lemma.models.build import build
from lemma.runs.checkpoint import load_weights, named_weights
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import Recipe
from lemma.tasks.base import Task, check_penalties
from lemma.tasks.registry import task_for
from lemma.training.distributed import Distributed, check_layers, recompute_layers, skip_gradient_sync
from lemma.training.optimizer import build_custom_optimizer, build_optimizer, clip_gradients, learning_rate
from lemma.training.precision import (
    Forward,
    GraphedTrainingStep,
    check_kernels,
    choose_arithmetic,
    compile_module,
    fork_random,
    matmul_precision,
)
from lemma.training.sanity import (
    COMPARED_VALIDATIONS,
    chance_warning,
    check_finite,
    describe_checkpoint,
    epochs_warning,
    validation_warning,
)

RANK_SEED_STRIDE = 1_000_003  # between the seeds of two processes, whose dropout must differ


@dataclass(frozen=True)
class TrainingHooks:
    """User-supplied functions that replace a part of training, or see every step.

    Attributes:
        optimizer: Builds the optimizer of a model; the learning rates of its groups are their peaks.
        schedule: Returns the learning rate of a step, counted from 1, as a fraction of the peak.
        on_step: Called after every step; training ends there if it returns True.
    """

    optimizer: Callable[[nn.Module], Optimizer] | None = None
    schedule: Callable[[int], float] | None = None
    on_step: "Callable[[Session], object] | None" = None

    def check(self, recipe: Recipe) -> None:
        """Raise SpecError if a function that the recipe needs is missing, or `on_step` is not a function."""
        for name, kind in (("optimizer", recipe.optimizer.kind), ("schedule", recipe.schedule)):
            if kind == "custom" and getattr(self, name) is None:
                raise SpecError(
                    f"recipe.{name} = custom is a function of yours, which no file holds. Give it in Python: "
                    f"lemma.train(..., {name}=function), or lemma.resume(run, {name}=function)."
                )
        if self.on_step is not None and not callable(self.on_step):
            raise SpecError(f"on_step: a function of the session is expected, got {self.on_step!r}.")


@dataclass
class TrainingState:
    """Progress of a run: the numbers that go into every checkpoint.

    Attributes:
        tokens: Tokens predicted so far, by all processes.
        figures: Further figures of the last validation, such as UAS and LAS.
        without_better: Validations since the best one.
        interval: Sum of the training losses since the last validation, and their number.
        recent: For each of the last validations, the mean training loss before it, and its loss.
        warnings: Messages by kind; each is given once per run.
        tokenizer_sample: Sentence on the part of the text that the tokenizer was trained on, if not all of it.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    training_loss: float | None = None
    validation_loss: float | None = None
    perplexity: float | None = None
    best_loss: float | None = None
    best_perplexity: float | None = None
    best_step: int | None = None
    figures: dict[str, float] = field(default_factory=dict)
    best_figures: dict[str, float] = field(default_factory=dict)
    without_better: int = 0
    interval: list[float] = field(default_factory=lambda: [0.0, 0])
    recent: list[list[float]] = field(default_factory=list)
    warnings: dict[str, str] = field(default_factory=dict)
    tokenizer_sample: str = ""

    def record_validation(self, loss: float, perplexity: float) -> bool:
        """Record a validation; return whether it is the best so far."""
        self.validation_loss, self.perplexity = loss, perplexity
        is_best = loss < (math.inf if self.best_loss is None else self.best_loss)  # NaN is not
        self.without_better = 0 if is_best else self.without_better + 1
        if is_best:
            self.best_loss, self.best_perplexity, self.best_step = loss, perplexity, self.step
            self.best_figures = dict(self.figures)
        return is_best


class Session:
    """A model in training.

    Attributes:
        model: The model.
        full_model: The model with all weights; None while it is sharded.
        optimizer: The optimizer.
        state: Progress of the run.
        latest: Loss of the latest step on this process's rows; on the device, so that no step waits for it.
        applied_rate: Learning rate of the latest step, in the optimizer's first group.
        carried_states: State of a recurrent model after each part of the last batch.
        best_weights: Weights of the best validation.
        saved_step: Step of the last checkpoint.
    """

    def __init__(
        self,
        spec: ModelSpec,
        recipe: Recipe,
        examples: Any,
        processes: Distributed,
        log_message: Callable[[str], None],
        make_model: Callable[[float], nn.Module] | None = None,
        hooks: TrainingHooks | None = None,
        task: Task | None = None,
    ) -> None:
        """Prepare training; `make_model(dropout)` builds the model if given, otherwise it is built from the spec."""
        self.hooks = hooks or TrainingHooks()
        self.hooks.check(recipe)
        num_parts = processes.size * recipe.accumulate
        if recipe.batch % num_parts:
            raise SpecError(
                f"recipe.batch = {recipe.batch} cannot be cut into equal parts for {processes.size} processes × "
                f"accumulate {recipe.accumulate}. Nearest batch: {max(1, round(recipe.batch / num_parts)) * num_parts}."
            )
        seed_random(recipe.seed, processes.device)
        self.task, self.processes, self.log_message = task or task_for(spec), processes, log_message
        self.make_model = make_model or partial(build, spec)
        model: Any = self.make_model(recipe.dropout)
        check_layers(model, recipe)
        self.model: Any = model.to(processes.device).train()
        self.full_model: Any = None if processes.sharded else self.model
        self.batches = self.task.batches(self.model, examples, recipe, processes)
        self.recipe = recipe = self.batches.recipe
        if self.batches.note:
            log_message(self.batches.note)
        check_penalties(self.task, recipe)
        loss = self.task.loss(self.model, recipe, self.batches)
        self.chance, self.terms, self.state = loss.chance, loss.terms[1:], TrainingState()
        self.reset_sums(0.0)
        self.carried_states: list[State | None] = [None] * recipe.accumulate
        self.best_weights: dict[str, Tensor] | None = None
        self.saved_step = 0
        self.applied_rate = 0.0
        self.latest = torch.zeros((), device=processes.device)
        # a recurrent model runs in one kernel already, and batches of varying shape would be compiled again
        is_stateful = getattr(self.model, "stateful", False)
        compilable = not is_stateful and self.batches.fixed_shape and loss.compilable and not processes.sharded
        flops = 6 * count_parameters(self.model) * recipe.steps * self.batches.tokens_per_step
        self.arithmetic = choose_arithmetic(recipe, processes.device, compilable, flops)
        self.validates_in_bfloat16 = self.arithmetic.dtype != torch.float32
        check_kernels(self.model, self.arithmetic)
        if recipe.recompute == "layers":
            recompute_layers(self.model)
        self.wrapped_loss = processes.wrap(loss)
        custom = self.hooks.optimizer if recipe.optimizer.kind == "custom" else None
        is_single = processes.size == 1 and not processes.sharded
        records = self.arithmetic.uses_cuda_graph and is_single and custom is None and recipe.recompute == "none"
        self.optimizer: Optimizer = (
            build_custom_optimizer(custom, self.model) if custom else build_optimizer(self.model, recipe, records)
        )
        self.scheduled_rate(1)  # a wrong schedule is reported before an older run is replaced
        self.layers = list(loss.layers)
        self.loss: Forward = self._compile_loss() if self.arithmetic.is_compiled else self.wrapped_loss
        self.graph_step: GraphedTrainingStep | None = self._record_step() if records else None
        if self.task.info.text_checks:
            self.warn("read_too_often", epochs_warning(recipe, len(examples), self.batches.length))
        seed_random(recipe.seed + RANK_SEED_STRIDE * (processes.rank + 1), processes.device)
        self.restart_clock()

    def step(self) -> None:
        """Compute the gradients of the next batch, clip them, and update the weights."""
        self.state.step += 1
        rate = self.scheduled_rate(self.state.step)
        for index, group in enumerate(self.optimizer.param_groups):
            group_rate = rate * group["peak"] / self.recipe.learning_rate if "peak" in group else rate
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(group_rate)
            else:
                group["lr"] = group_rate
            if index == 0:
                self.applied_rate = group_rate
        if self.graph_step is not None:  # clips and updates, too
            loss, norm, *terms = self.graph_step(*self.batches.batch(self.state.step - 1))
            self.latest = loss.clone()  # the graph writes to the same tensor again
        else:
            loss, *terms = self.compute_gradients()
            norm = clip_gradients(self.model, self.recipe.clip)
            self.latest = loss
        self.sums += torch.stack((loss, norm, *terms))
        self.summed_steps += 1
        self.state.tokens += self.batches.tokens_per_step
        if self.graph_step is not None:
            return
        if self.processes.device.type == "cpu" and not math.isfinite(float(loss + norm)):  # free on a CPU
            self.check_finite(float(loss), float(norm), 1)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def scheduled_rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        if self.recipe.schedule != "custom" or not self.hooks.schedule:
            return learning_rate(self.recipe, step)
        value: Any = self.hooks.schedule(step)
        try:
            fraction = float(value)
        except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several numbers
            fraction = math.nan
        if not 0 <= fraction < math.inf:
            raise SpecError(
                f"schedule: the function gives {value!r} for step {step}, and a number from 0 up is expected, a share "
                "of the peak."
            )
        return self.recipe.learning_rate * fraction

    def reset_sums(self, seconds: float, sums: Sequence[float] = (), steps: int = 0) -> None:
        """Start a row of metrics, or continue that of a checkpoint.

        The sums of loss, gradient norm and other terms are on the device, so that no step waits for them.
        """
        count = 2 + len(self.terms)
        values = [*sums, *[0.0] * count][:count]  # a resumed run may report other terms than before
        self.sums = torch.tensor(values, dtype=torch.float64, device=self.processes.device)
        self.summed_steps, self.row_start = steps, seconds

    def compute_gradients(self) -> list[Float[Tensor, ""]]:
        """Accumulate the gradients of the step's batch, part by part; return its loss and other terms."""
        step, parts = self.state.step - 1, self.recipe.accumulate
        if self.batches.resets_state(step):
            self.carried_states = [None] * parts
        inputs, targets = (tensor.chunk(parts) for tensor in self.batches.batch(step))
        totals = [torch.zeros((), device=self.processes.device) for _ in range(1 + len(self.terms))]
        for part in range(parts):
            with skip_gradient_sync(self.wrapped_loss) if part < parts - 1 else nullcontext():
                with self.arithmetic.autocast():
                    objective, terms, state = self.loss(inputs[part], targets[part], self.carried_states[part])
                weight = self.batches.weight(targets[part], parts)
                (objective * weight).backward()
            self.carried_states[part] = state.detach() if state else None
            for total, term in zip(totals, terms, strict=True):
                total += term.detach() * weight
        return totals

    def check_finite(self, loss: float, norm: float, steps: int) -> None:
        """Raise TrainingError if the loss or the gradient norm of the last steps is infinite or NaN."""
        last = self.state.step
        check_finite(loss, norm, range(last - steps + 1, last + 1), self.applied_rate, self.saved_step)

    def synchronize(self) -> tuple[float, float, dict[str, float]]:
        """Wait for the device, update the clock, and return mean loss, gradient norm and terms since the last row."""
        steps = max(1, self.summed_steps)
        loss, norm, *terms = (self.processes.mean(self.sums) / steps).tolist()
        self.check_finite(loss, norm, steps)
        now = time.perf_counter()
        self.state.seconds += now - self.clock_start
        self.clock_start = now
        return loss, norm, dict(zip(self.terms, terms, strict=True))

    def restart_clock(self) -> None:
        """Count the seconds of training from now on."""
        self.clock_start = time.perf_counter()

    def metrics_row(self) -> dict[str, float]:
        """Return a row of metrics over the steps since the last row."""
        loss, norm, terms = self.synchronize()
        state = self.state
        state.training_loss = loss
        state.interval = [state.interval[0] + loss * self.summed_steps, state.interval[1] + self.summed_steps]
        speed = self.summed_steps * self.batches.tokens_per_step / (state.seconds - self.row_start)
        self.reset_sums(state.seconds)
        if self.chance:
            self.warn("nothing_learned", chance_warning(self.recipe, state.step, loss, *self.chance))
        return {
            "step": state.step,
            "tokens": state.tokens,
            "loss": loss,
            **terms,
            "learning_rate": self.applied_rate,
            "gradient_norm": norm,
            "tokens_per_second": speed,
            "seconds": state.seconds,
        }

    def validate(self, evaluate: Callable[[Any], Any]) -> dict[str, float]:
        """Validate in the main process, copy the weights if they are the best, and return the columns of a row.

        The precision is that of training; `revalidate_in_float32` gives the final figures.
        """
        score = (math.nan, math.nan)
        with self.evaluating(self.validates_in_bfloat16) as model:
            if self.processes.is_main:
                result = evaluate(model)
                score = (result.loss, result.perplexity)
                self.state.figures = dict(getattr(result, "figures", {}))
        loss, perplexity = self.processes.broadcast(score)
        if not math.isfinite(loss):
            raise TrainingError(
                f"At step {self.state.step} the validation loss is {loss}. {describe_checkpoint(self.saved_step)}. Try "
                "a lower learning_rate."
            )
        if self.state.record_validation(loss, perplexity) and self.processes.is_main:
            self.best_weights = {name: tensor.cpu().clone() for name, tensor in named_weights(self.full_model).items()}
        total, steps = self.state.interval
        self.state.interval = [0.0, 0]
        self.state.recent = [*self.state.recent, [total / max(1, steps), loss]][-COMPARED_VALIDATIONS:]
        if len(self.state.recent) == COMPARED_VALIDATIONS and self.task.info.text_checks:
            training = fmean(training for training, _ in self.state.recent[1:])  # steps between these validations
            validation = fmean(validation for _, validation in self.state.recent)
            self.warn("too_good", validation_warning(self.recipe, self.state.step, validation, training))
        self.restart_clock()
        return {"validation_loss": loss, "perplexity": perplexity, **self.state.figures}

    def revalidate_in_float32(self, evaluate: Callable[[Any], Any]) -> None:
        """Validate the last and the best weights in float32, if the validations were in bfloat16."""
        state = self.state
        if not self.validates_in_bfloat16 or state.validation_loss is None:
            return
        with self.evaluating() as model:
            if not self.processes.is_main:
                return
            last, bfloat16_loss = evaluate(model), state.validation_loss
            state.validation_loss, state.perplexity = last.loss, last.perplexity
            state.figures = dict(getattr(last, "figures", {}))
            best = last
            if self.best_weights is not None and state.best_step != state.step:
                weights = {name: tensor.clone() for name, tensor in named_weights(model).items()}
                load_weights(model, self.best_weights, Path("the best weights"))
                best = evaluate(model)
                load_weights(model, weights, Path("the last weights"))
            state.best_loss, state.best_perplexity = best.loss, best.perplexity
            state.best_figures = dict(getattr(best, "figures", {}))
        self.log_message(
            f"Validations during training were in bfloat16; the final figures are in float32 (the last loss: "
            f"{last.loss:.4f}, in bfloat16 {bfloat16_loss:.4f})."
        )

    @contextmanager
    def evaluating(self, in_training_precision: bool = False) -> Iterator[Any]:
        """Yield the model for evaluation; gradients, dropout and random state stay as they were.

        It computes in float32 unless `in_training_precision`. For a sharded model, the main process gets a full copy,
        which is on the device meanwhile; the others get their shard.
        """
        # the compiled code is for the shapes of training batches
        eager = torch.compiler.set_stance("force_eager") if self.arithmetic.is_compiled else nullcontext()
        arithmetic = self.arithmetic.autocast() if in_training_precision else matmul_precision("highest")
        with eager, torch.no_grad(), fork_random(self.processes.device), arithmetic:
            if self.processes.sharded:
                weights = self.processes.collect(named_weights(self.model))
                if self.processes.is_main:
                    self.full_model = self.make_model(0.0) if self.full_model is None else self.full_model
                    load_weights(self.full_model, weights, Path("the sharded model"))
                    self.full_model.to(self.processes.device)
            model = self.full_model if self.processes.is_main else self.model
            model.eval()
            try:
                yield model
            finally:
                model.train()
                if model is not self.model:
                    model.cpu()

    def warn(self, kind: str, message: str | None) -> None:
        """Log a message, once per kind and run."""
        if message and kind not in self.state.warnings:
            self.state.warnings[kind] = message
            self.log_message(message)

    def _compile_loss(self) -> Forward:
        inputs, targets = (tensor.chunk(self.recipe.accumulate)[0] for tensor in self.batches.batch(0))

        def try_loss(loss: Forward) -> None:
            with self.arithmetic.autocast():
                objective, _, _ = loss(inputs, targets, None)
            objective.backward()
            self.optimizer.zero_grad(set_to_none=True)

        self.log_message("compiling the model, which takes some seconds the first time")
        return compile_module(self.wrapped_loss, self.layers, try_loss, lambda message: self.warn("compile", message))

    def _record_step(self) -> GraphedTrainingStep | None:
        def step(inputs: Tensor, targets: Tensor) -> list[Tensor]:
            with self.arithmetic.autocast():
                objective, (loss, *terms), _ = self.loss(inputs, targets, None)
            objective.backward()
            norm = clip_gradients(self.model, self.recipe.clip)
            self.optimizer.step()
            return [term.detach() for term in (loss, norm, *terms)]

        try:
            return GraphedTrainingStep(step, self.optimizer, *self.batches.batch(0))
        except RuntimeError as error:  # something in the step waits for the device, which cannot be recorded
            reason = str(error).strip().partition("\n")[0]
            self.warn(
                "graph", f"a step cannot be recorded as a CUDA graph ({reason}); kernels are launched one by one."
            )
            self.optimizer = build_optimizer(self.model, self.recipe)
            self.optimizer.zero_grad(set_to_none=True)
            return None


def seed_random(seed: int, device: torch.device) -> None:
    """Seed the generators of the CPU and of `device`, the ones that `fork_random` restores.

    `torch.manual_seed` would also seed all other GPUs, and those of a program that has not used its GPUs yet.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
