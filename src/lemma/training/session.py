"""Where a run stands: plain numbers that go into every checkpoint."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from lemma.data.batches import ExampleSet
from lemma.data.graphs import GraphNodes
from lemma.layers.state import State
from lemma.models.build import build
from lemma.runs.checkpoint import weights_of
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import Recipe
from lemma.training.batches import feed_for, fitting
from lemma.training.distributed import Team, delay_sharing, refuse_uneven
from lemma.training.losses import AnyLesson, Evaluate, RerankingLesson, ShapedLesson, lesson_of
from lemma.training.optimizer import learning_rate, optimizer_for
from lemma.training.precision import (
    Forward,
    choose_arithmetic,
    compiled,
    fork_random,
    matrix_products,
    refuse_missing_kernels,
)
from lemma.training.progress import nothing_learned, read_too_often, refuse_no_number, too_good


@dataclass
class Standing:
    """Steps taken, time spent, the last and the best validation, and what was warned of."""

    step: int = 0
    tokens: int = 0
    """Tokens predicted so far, by the whole team."""
    seconds: float = 0.0
    training_loss: float | None = None
    validation_loss: float | None = None
    perplexity: float | None = None
    best_loss: float | None = None
    best_perplexity: float | None = None
    best_step: int | None = None
    figures: dict[str, float] = field(default_factory=dict)
    """What else the last validation came to, such as UAS and LAS."""
    best_figures: dict[str, float] = field(default_factory=dict)
    """The same of the best one."""
    without_better: int = 0
    """Validations since the best one."""
    warnings: dict[str, str] = field(default_factory=dict)
    """What was warned of, by kind: each is said once a run."""

    def judge(self, loss: float, perplexity: float) -> bool:
        """Take in a validation; return whether it is the best so far."""
        self.validation_loss, self.perplexity = loss, perplexity
        better = loss < (math.inf if self.best_loss is None else self.best_loss)  # what is no number is not better
        self.without_better = 0 if better else self.without_better + 1
        if better:
            self.best_loss, self.best_perplexity, self.best_step = loss, perplexity, self.step
            self.best_figures = dict(self.figures)
        return better


class Meter:
    """Sums of loss, gradient norm and other terms since the last reading, on the device: no step waits for them."""

    def __init__(self, team: Team, terms: Sequence[str] = ()) -> None:
        self.team, self.terms = team, tuple(terms)
        self.reset(0.0)

    def reset(self, seconds: float, sums: Sequence[float] | None = None, steps: int = 0) -> None:
        """Begin anew, or where a checkpoint left off."""
        count = 2 + len(self.terms)
        known = list(sums or ())[:count]  # a run that goes on may report other terms than before
        self.sums = torch.tensor(known + [0.0] * (count - len(known)), dtype=torch.float64, device=self.team.device)
        self.steps, self.since = steps, seconds

    def add(self, loss: Float[Tensor, ""], norm: Float[Tensor, ""], terms: Sequence[Float[Tensor, ""]] = ()) -> None:
        """Count one step."""
        self.sums += torch.stack((loss, norm, *terms))
        self.steps += 1

    def team_sums(self) -> list[float]:
        """Return the sums, averaged over the team; this waits for the device."""
        return self.team.mean(self.sums).tolist()

    def means(self) -> tuple[float, float, dict[str, float]]:
        """Return the mean loss, gradient norm and other terms since the last reading."""
        loss, norm, *terms = (total / max(1, self.steps) for total in self.team_sums())
        return loss, norm, dict(zip(self.terms, terms, strict=True))


# All that changes while a model is trained, and the moves that the loop is made of.


APART = 1_000_003  # between the random states of two processes, whose dropout is not to be the same


class Session:
    """A model in training: its optimizer, its batches, where it stands."""

    def __init__(
        self,
        spec: ModelSpec,
        recipe: Recipe,
        tokens: np.ndarray | ExampleSet | GraphNodes,
        team: Team,
        tell: Callable[[str], None],
        first: Callable[[float], nn.Module] | None = None,
    ) -> None:
        """Begin with what `first` makes for a dropout, or else with a new model of the spec."""
        refuse_uneven(recipe, team)
        recipe = fitting(recipe, tokens, team, tell)
        torch.manual_seed(recipe.seed)
        self.recipe, self.team, self.tell = recipe, team, tell
        model: Any = first(recipe.dropout) if first else build(spec, recipe.dropout)
        self.model: Any = model.to(team.device).train()
        self.feed = feed_for(self.model, tokens, recipe, team)
        self.optimizer = optimizer_for(self.model, recipe)
        lesson = lesson_of(self.model, recipe, team, self.feed)
        self.chance: tuple[int, str, str] | None = getattr(lesson, "chance", None)
        self.standing, self.meter = Standing(), Meter(team, lesson.terms[1:])
        self.carried: list[State | None] = [None] * recipe.accumulate
        self.best: dict[str, Tensor] | None = None
        self.saved = 0
        self.arithmetic = choose_arithmetic(recipe, team.device, self._worth_compiling(lesson))
        refuse_missing_kernels(self.model, self.arithmetic)
        self.shared = team.wrap(lesson)
        self.lesson: Forward = self._compiled() if self.arithmetic.compiles else self.shared
        self.apart = getattr(self.feed, "apart", False)  # its loss and its number of readings are like no text's
        if not self.apart:
            self.warn("read_too_often", read_too_often(recipe, len(tokens), self.feed.stretch))
        torch.manual_seed(recipe.seed + APART * (team.rank + 1))
        self.restart_clock()

    @property
    def tokens_a_step(self) -> int:
        """Tokens predicted at each step, by the whole team."""
        return self.feed.tokens_a_step

    def unsaved(self) -> bool:
        """Whether there are steps that no checkpoint knows of."""
        return self.saved != self.standing.step

    def gradients(self) -> list[Float[Tensor, ""]]:
        """Read the step's batch, part by part, and leave its gradients; return its loss and other terms."""
        step, parts = self.standing.step - 1, self.recipe.accumulate
        if self.feed.fresh(step):
            self.carried = [None] * parts
        inputs, targets = (tensor.chunk(parts) for tensor in self.feed.batch(step))
        totals = [torch.zeros((), device=self.team.device) for _ in range(1 + len(self.meter.terms))]
        for part in range(parts):
            with delay_sharing(self.shared) if part < parts - 1 else nullcontext():
                with self.arithmetic.autocast():
                    objective, terms, state = self.lesson(inputs[part], targets[part], self.carried[part])
                share = self.feed.share(targets[part], parts)
                (objective * share).backward()
            self.carried[part] = state.detach() if state else None
            for total, term in zip(totals, terms, strict=True):
                total += term.detach() * share
        return totals

    def count(self, terms: Sequence[Float[Tensor, ""]], norm: Float[Tensor, ""]) -> None:
        """Count a step; on a CPU, where looking costs nothing, see at once that loss and gradient are numbers."""
        loss, *others = terms
        self.meter.add(loss, norm, others)
        self.standing.tokens += self.tokens_a_step
        if self.team.device.type == "cpu" and not math.isfinite(float(loss + norm)):
            self.refuse_no_number(float(loss), float(norm), 1)

    def refuse_no_number(self, loss: float, norm: float, steps: int) -> None:
        """Stop with a TrainingError if loss or gradient were no number in the last few steps."""
        last = self.standing.step
        rate = learning_rate(self.recipe, last)
        refuse_no_number(loss, norm, range(last - steps + 1, last + 1), rate, self.saved)

    def settle(self) -> tuple[float, float, dict[str, float]]:
        """Wait for the device, stop the clock, and return the mean loss, gradient norm and terms since the last row."""
        loss, norm, terms = self.meter.means()
        self.refuse_no_number(loss, norm, max(1, self.meter.steps))
        now = time.perf_counter()
        self.standing.seconds += now - self.mark
        self.mark = now
        return loss, norm, terms

    def restart_clock(self) -> None:
        """Let the seconds of training run from here on: what came before was something else."""
        self.mark = time.perf_counter()

    def measure(self) -> dict[str, float]:
        """Return a row of metrics over the steps since the last row."""
        loss, norm, terms = self.settle()
        standing, steps = self.standing, self.meter.steps
        standing.training_loss = loss
        speed = steps * self.tokens_a_step / (standing.seconds - self.meter.since)
        self.meter.reset(standing.seconds)
        if self.chance:
            self.warn("nothing_learned", nothing_learned(self.recipe, standing.step, loss, *self.chance))
        return {
            "step": standing.step,
            "tokens": standing.tokens,
            "loss": loss,
            **terms,
            "learning_rate": learning_rate(self.recipe, standing.step),
            "gradient_norm": norm,
            "tokens_per_second": speed,
            "seconds": standing.seconds,
        }

    def validate(self, evaluate: Evaluate) -> dict[str, float]:
        """Have the leader validate the model, keep the weights if they are the best; return the columns of a row."""
        score = (math.nan, math.nan)
        if self.team.leads:
            with self.aside():
                result = evaluate(self.model)
            score = (result.loss, result.perplexity)
            self.standing.figures = dict(getattr(result, "figures", {}))
        loss, perplexity = self.team.hear(score)
        if self.standing.judge(loss, perplexity):
            self.best = {name: tensor.cpu().clone() for name, tensor in weights_of(self.model).items()}
        training = self.standing.training_loss
        if training is not None and not self.apart:
            self.warn("too_good", too_good(self.recipe, self.standing.step, loss, training))
        self.restart_clock()
        return {"validation_loss": loss, "perplexity": perplexity, **self.standing.figures}

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Use the model as it is, in full precision, without a trace in gradients, dropout or random state."""
        self.model.eval()
        try:
            with torch.no_grad(), fork_random(self.team.device), matrix_products("highest"):
                yield
        finally:
            self.model.train()

    def warn(self, kind: str, message: str | None) -> None:
        """Say something once a run."""
        if message and kind not in self.standing.warnings:
            self.standing.warnings[kind] = message
            self.tell(message)

    def _worth_compiling(self, lesson: AnyLesson) -> bool:
        """A recurrent model runs in one kernel already, what is uneven is compiled anew, listeners must not be."""
        stateful = getattr(self.model, "stateful", False)
        return not stateful and self.feed.even and not isinstance(lesson, ShapedLesson | RerankingLesson)

    def _compiled(self) -> Forward:
        inputs, targets = (tensor.chunk(self.recipe.accumulate)[0] for tensor in self.feed.batch(0))

        def attempt(lesson: Forward) -> None:
            with self.arithmetic.autocast():
                objective, _, _ = lesson(inputs, targets, None)
            objective.backward()
            self.optimizer.zero_grad(set_to_none=True)

        # a graph's gradients are overwritten by its next run, so that they can neither be added up nor be shared
        graphs = self.team.device.type == "cuda" and self.recipe.accumulate == 1 and self.team.size == 1
        return compiled(self.shared, attempt, lambda message: self.warn("compile", message), graphs)
