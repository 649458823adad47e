"""A model in training: its optimizer, its batches, its loss, and the moves that the loop is made of."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lemma.layers.state import State
from lemma.models.build import build
from lemma.runs.checkpoint import weights_of
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import Recipe
from lemma.tasks.registry import task_for
from lemma.training.distributed import Distributed, refuse_uneven, without_sync
from lemma.training.optimizer import clip, learning_rate, optimizer_for, set_rate
from lemma.training.precision import (
    Forward,
    choose_arithmetic,
    compiled,
    fork_random,
    matrix_products,
    refuse_missing_kernels,
)
from lemma.training.progress import nothing_learned, read_too_often, refuse_no_number, too_good

SEED_STEP = 1_000_003  # between the random states of two processes, whose dropout is not to be the same


@dataclass
class TrainingState:
    """Where a run is: plain numbers that go into every checkpoint."""

    step: int = 0
    tokens: int = 0
    """Tokens predicted so far, by all processes."""
    seconds: float = 0.0
    training_loss: float | None = None
    validation_loss: float | None = None
    perplexity: float | None = None
    best_loss: float | None = None
    best_perplexity: float | None = None
    best_step: int | None = None
    figures: dict[str, float] = field(default_factory=dict)
    """Further figures of the last validation, such as UAS and LAS."""
    best_figures: dict[str, float] = field(default_factory=dict)
    """Those of the best one."""
    without_better: int = 0
    """Validations since the best one."""
    warnings: dict[str, str] = field(default_factory=dict)
    """Warnings by kind: each is given once per run."""

    def judge(self, loss: float, perplexity: float) -> bool:
        """Take in a validation; return whether it is the best so far."""
        self.validation_loss, self.perplexity = loss, perplexity
        better = loss < (math.inf if self.best_loss is None else self.best_loss)  # NaN is not better
        self.without_better = 0 if better else self.without_better + 1
        if better:
            self.best_loss, self.best_perplexity, self.best_step = loss, perplexity, self.step
            self.best_figures = dict(self.figures)
        return better


class StepSums:
    """Sums of loss, gradient norm and other terms since the last row, on the device: no step waits for them."""

    def __init__(self, processes: Distributed, terms: Sequence[str] = ()) -> None:
        self.processes, self.terms = processes, tuple(terms)
        self.reset(0.0)

    def reset(self, seconds: float, sums: Sequence[float] | None = None, steps: int = 0) -> None:
        """Begin again, or where a checkpoint left off."""
        count = 2 + len(self.terms)
        known = list(sums or ())[:count]  # a resumed run may report other terms than before
        self.sums = torch.tensor(
            known + [0.0] * (count - len(known)), dtype=torch.float64, device=self.processes.device
        )
        self.steps, self.since = steps, seconds

    def add(self, loss: Float[Tensor, ""], norm: Float[Tensor, ""], terms: Sequence[Float[Tensor, ""]] = ()) -> None:
        """Count one step."""
        self.sums += torch.stack((loss, norm, *terms))
        self.steps += 1

    def totals(self) -> list[float]:
        """Return the sums, averaged over the processes; this waits for the device."""
        return self.processes.mean(self.sums).tolist()

    def means(self) -> tuple[float, float, dict[str, float]]:
        """Return the mean loss, gradient norm and other terms since the last row."""
        loss, norm, *terms = (total / max(1, self.steps) for total in self.totals())
        return loss, norm, dict(zip(self.terms, terms, strict=True))


class Session:
    """A model in training."""

    def __init__(
        self,
        spec: ModelSpec,
        recipe: Recipe,
        examples: Any,
        processes: Distributed,
        tell: Callable[[str], None],
        first: Callable[[float], nn.Module] | None = None,
    ) -> None:
        """Begin with what `first` makes for a dropout, or else with a new model of the spec."""
        refuse_uneven(recipe, processes)
        torch.manual_seed(recipe.seed)
        self.task, self.processes, self.tell = task_for(spec), processes, tell
        model: Any = first(recipe.dropout) if first else build(spec, recipe.dropout)
        self.model: Any = model.to(processes.device).train()
        self.batches = self.task.batches(self.model, examples, recipe, processes)
        self.recipe = recipe = self.batches.recipe
        if self.batches.note:
            tell(self.batches.note)
        self.optimizer = optimizer_for(self.model, recipe)
        loss = self.task.loss(self.model, recipe, self.batches)
        self.chance = loss.chance
        self.state, self.sums = TrainingState(), StepSums(processes, loss.terms[1:])
        self.carried: list[State | None] = [None] * recipe.accumulate
        self.best: dict[str, Tensor] | None = None
        self.saved = 0
        # a recurrent model runs in one kernel already, and batches of other shapes are compiled again
        stateful = getattr(self.model, "stateful", False)
        compilable = not stateful and self.batches.fixed_shape and loss.compilable
        self.arithmetic = choose_arithmetic(recipe, processes.device, compilable)
        refuse_missing_kernels(self.model, self.arithmetic)
        self.shared = processes.wrap(loss)
        self.loss: Forward = self._compiled() if self.arithmetic.compiles else self.shared
        if self.task.text_checks:
            self.warn("read_too_often", read_too_often(recipe, len(examples), self.batches.length))
        torch.manual_seed(recipe.seed + SEED_STEP * (processes.rank + 1))
        self.restart_clock()

    def step(self) -> None:
        """One step: the batch's gradients, clipped, move the weights."""
        self.state.step += 1
        set_rate(self.optimizer, learning_rate(self.recipe, self.state.step))
        loss, *others = self.gradients()
        norm = clip(self.model, self.recipe.clip)
        self.sums.add(loss, norm, others)
        self.state.tokens += self.batches.tokens_per_step
        if self.processes.device.type == "cpu" and not math.isfinite(float(loss + norm)):  # looking costs nothing there
            self.refuse_no_number(float(loss), float(norm), 1)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def gradients(self) -> list[Float[Tensor, ""]]:
        """Read the step's batch, part by part, and leave its gradients; return its loss and other terms."""
        step, parts = self.state.step - 1, self.recipe.accumulate
        if self.batches.restarts(step):
            self.carried = [None] * parts
        inputs, targets = (tensor.chunk(parts) for tensor in self.batches.batch(step))
        totals = [torch.zeros((), device=self.processes.device) for _ in range(1 + len(self.sums.terms))]
        for part in range(parts):
            with without_sync(self.shared) if part < parts - 1 else nullcontext():
                with self.arithmetic.autocast():
                    objective, terms, state = self.loss(inputs[part], targets[part], self.carried[part])
                weight = self.batches.weight(targets[part], parts)
                (objective * weight).backward()
            self.carried[part] = state.detach() if state else None
            for total, term in zip(totals, terms, strict=True):
                total += term.detach() * weight
        return totals

    def refuse_no_number(self, loss: float, norm: float, steps: int) -> None:
        """Stop with a TrainingError if the loss or the gradient was infinite or NaN in the last few steps."""
        last = self.state.step
        rate = learning_rate(self.recipe, last)
        refuse_no_number(loss, norm, range(last - steps + 1, last + 1), rate, self.saved)

    def settle(self) -> tuple[float, float, dict[str, float]]:
        """Wait for the device, stop the clock, and return the mean loss, gradient norm and terms since the last row."""
        loss, norm, terms = self.sums.means()
        self.refuse_no_number(loss, norm, max(1, self.sums.steps))
        now = time.perf_counter()
        self.state.seconds += now - self.mark
        self.mark = now
        return loss, norm, terms

    def restart_clock(self) -> None:
        """Count the seconds of training from here on."""
        self.mark = time.perf_counter()

    def measure(self) -> dict[str, float]:
        """Return a row of metrics over the steps since the last row."""
        loss, norm, terms = self.settle()
        state, steps = self.state, self.sums.steps
        state.training_loss = loss
        speed = steps * self.batches.tokens_per_step / (state.seconds - self.sums.since)
        self.sums.reset(state.seconds)
        if self.chance:
            self.warn("nothing_learned", nothing_learned(self.recipe, state.step, loss, *self.chance))
        return {
            "step": state.step,
            "tokens": state.tokens,
            "loss": loss,
            **terms,
            "learning_rate": learning_rate(self.recipe, state.step),
            "gradient_norm": norm,
            "tokens_per_second": speed,
            "seconds": state.seconds,
        }

    def validate(self, evaluate: Callable[[Any], Any]) -> dict[str, float]:
        """Have the first process validate, keep the weights if they are the best; return the columns of a row."""
        score = (math.nan, math.nan)
        if self.processes.leads:
            with self.evaluating():
                result = evaluate(self.model)
            score = (result.loss, result.perplexity)
            self.state.figures = dict(getattr(result, "figures", {}))
        loss, perplexity = self.processes.broadcast(score)
        if self.state.judge(loss, perplexity):
            self.best = {name: tensor.cpu().clone() for name, tensor in weights_of(self.model).items()}
        training = self.state.training_loss
        if training is not None and self.task.text_checks:
            self.warn("too_good", too_good(self.recipe, self.state.step, loss, training))
        self.restart_clock()
        return {"validation_loss": loss, "perplexity": perplexity, **self.state.figures}

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Use the model as it is, in full precision, without a trace in gradients, dropout or random state."""
        self.model.eval()
        try:
            with torch.no_grad(), fork_random(self.processes.device), matrix_products("highest"):
                yield
        finally:
            self.model.train()

    def warn(self, kind: str, message: str | None) -> None:
        """Say something once per run."""
        if message and kind not in self.state.warnings:
            self.state.warnings[kind] = message
            self.tell(message)

    def _compiled(self) -> Forward:
        inputs, targets = (tensor.chunk(self.recipe.accumulate)[0] for tensor in self.batches.batch(0))

        def attempt(loss: Forward) -> None:
            with self.arithmetic.autocast():
                objective, _, _ = loss(inputs, targets, None)
            objective.backward()
            self.optimizer.zero_grad(set_to_none=True)

        # a graph's gradients are overwritten by its next run, so that they can neither be added up nor be shared
        graphs = self.processes.device.type == "cuda" and self.recipe.accumulate == 1 and self.processes.size == 1
        return compiled(self.shared, attempt, lambda message: self.warn("compile", message), graphs)
