"""All that changes while a model is trained, and the way to a checkpoint and back, bit for bit."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from lemma.data.splits import Splits
from lemma.errors import RunError, SpecError, TrainingError
from lemma.layers.state import State
from lemma.models.base import count_parameters
from lemma.models.build import build
from lemma.runs.checkpoint import (
    Checkpoint,
    check_weights_spec,
    load_weights,
    named_weights,
    read_latest_checkpoint,
    save_checkpoint,
)
from lemma.runs.folder import RunFolder
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import Recipe
from lemma.tasks.base import check_penalties
from lemma.tasks.registry import task_for
from lemma.training.distributed import (
    Distributed,
    check_layers,
    recompute_layers,
    shard_like,
    skip_gradient_sync,
)
from lemma.training.optimizer import (
    build_custom_optimizer,
    build_optimizer,
    clip_gradients,
    learning_rate,
    load_optimizer_state,
    optimizer_state,
)
from lemma.training.precision import (
    CudaGraphStep,
    Forward,
    check_kernels,
    choose_arithmetic,
    compile_module,
    fork_random,
    matmul_precision,
)


@dataclass(frozen=True)
class TrainingHooks:
    """What a person gives as functions in place of a part of training, or to see every step."""

    optimizer: Callable[[nn.Module], Optimizer] | None = None
    """Makes the optimizer of a model; the learning rates of its groups are their peaks."""
    schedule: Callable[[int], float] | None = None
    """The learning rate of a step, counted from 1, as a share of the peak."""
    on_step: "Callable[[Session], object] | None" = None
    """Called after every step; training ends there if it returns True."""


RANK_SEED_STRIDE = 1_000_003  # between the random states of two processes, whose dropout is not to be the same


def seed_random(seed: int, device: torch.device) -> None:
    """Seed the generators of the CPU and of `device`, the ones that `fork_random` restores.

    `torch.manual_seed` would also seed all other GPUs, and those of a program that has not used its GPUs yet.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


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
    interval: list[float] = field(default_factory=lambda: [0.0, 0])
    """The sum of the training losses since the last validation, and their number."""
    recent: list[list[float]] = field(default_factory=list)
    """Of the last validations, the mean training loss before each, and its own loss."""
    warnings: dict[str, str] = field(default_factory=dict)
    """Warnings by kind: each is given once per run."""
    tokenizer_sample: str = ""
    """On how much of the training text the tokenizer was trained, in words, where that is not all of it."""

    def record_validation(self, loss: float, perplexity: float) -> bool:
        """Take in a validation; return whether it is the best so far."""
        self.validation_loss, self.perplexity = loss, perplexity
        better = loss < (math.inf if self.best_loss is None else self.best_loss)  # NaN is not better
        self.without_better = 0 if better else self.without_better + 1
        if better:
            self.best_loss, self.best_perplexity, self.best_step = loss, perplexity, self.step
            self.best_figures = dict(self.figures)
        return better


class Session:
    """A model in training."""

    def __init__(
        self,
        spec: ModelSpec,
        recipe: Recipe,
        examples: Any,
        processes: Distributed,
        log_message: Callable[[str], None],
        make_model: Callable[[float], nn.Module] | None = None,
        hooks: TrainingHooks | None = None,
    ) -> None:
        """Begin with what `first` makes for a dropout, or else with a new model of the spec."""
        hooks = hooks or TrainingHooks()
        for name, said in (("optimizer", recipe.optimizer.kind), ("schedule", recipe.schedule)):
            if said == "custom" and getattr(hooks, name) is None:
                raise SpecError(
                    f"recipe.{name} = custom is a function of yours, which no file holds. Give it in Python: "
                    f"lemma.train(..., {name}=function), or lemma.resume(run, {name}=function)."
                )
        if hooks.on_step is not None and not callable(hooks.on_step):
            raise SpecError(f"on_step: a function of the session is expected, got {hooks.on_step!r}.")
        cuts = processes.size * recipe.accumulate
        if recipe.batch % cuts:
            raise SpecError(
                f"recipe.batch = {recipe.batch} cannot be cut into equal parts for {processes.size} processes × "
                f"accumulate {recipe.accumulate}. Nearest batch: {max(1, round(recipe.batch / cuts)) * cuts}."
            )
        seed_random(recipe.seed, processes.device)
        self.task, self.processes, self.log_message = task_for(spec), processes, log_message
        self.make_model, self.hooks = make_model or partial(build, spec), hooks
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
        # a recurrent model runs in one kernel already, and batches of other shapes are compiled again
        stateful = getattr(self.model, "stateful", False)
        compilable = not stateful and self.batches.fixed_shape and loss.compilable and not processes.sharded
        work = 6 * count_parameters(self.model) * recipe.steps * self.batches.tokens_per_step
        self.arithmetic = choose_arithmetic(recipe, processes.device, compilable, work)
        self.validates_in_bfloat16 = self.arithmetic.dtype != torch.float32
        """Whether validations during training are in bfloat16."""
        make = hooks.optimizer if recipe.optimizer.kind == "custom" else None
        alone = processes.size == 1 and not processes.sharded
        records = self.arithmetic.uses_cuda_graph and alone and make is None and recipe.recompute == "none"
        check_kernels(self.model, self.arithmetic)
        if recipe.recompute == "layers":
            recompute_layers(self.model)
        self.wrapped_loss = processes.wrap(loss)
        self.optimizer: Optimizer = (
            build_custom_optimizer(make, self.model) if make else build_optimizer(self.model, recipe, records)
        )
        self.applied_rate = 0.0
        """The learning rate of the latest step, in the optimizer's first group."""
        self.scheduled_rate(1)  # a schedule that is not one is refused before an older run is replaced
        self.latest = torch.zeros((), device=processes.device)
        """The loss of the latest step, of this process's share of the batch; on the device, so that nothing waits."""
        self.layers = list(loss.layers)
        self.loss: Forward = self._compile_loss() if self.arithmetic.is_compiled else self.wrapped_loss
        self.replay: CudaGraphStep | None = self._record_step() if records else None
        if self.task.text_checks:
            self.warn("read_too_often", epochs_warning(recipe, len(examples), self.batches.length))
        seed_random(recipe.seed + RANK_SEED_STRIDE * (processes.rank + 1), processes.device)
        self.restart_clock()

    def step(self) -> None:
        """One step: the batch's gradients, clipped, move the weights."""
        self.state.step += 1
        rate = self.scheduled_rate(self.state.step)
        for group in self.optimizer.param_groups:  # Muon's groups have a `ratio` to it
            own = rate * group["peak"] / self.recipe.learning_rate if "peak" in group else rate
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(own)
            else:
                group["lr"] = own
            self.applied_rate = own if group is self.optimizer.param_groups[0] else self.applied_rate
        if self.replay is not None:
            loss, norm, *others = self.replay(*self.batches.batch(self.state.step - 1))
        else:
            loss, *others = self.compute_gradients()
            norm = clip_gradients(self.model, self.recipe.clip)
        self.latest = loss if self.replay is None else loss.clone()  # a replayed graph writes to the same tensor
        self.sums += torch.stack((loss, norm, *others))
        self.summed_steps += 1
        self.state.tokens += self.batches.tokens_per_step
        if self.replay is not None:
            return
        if self.processes.device.type == "cpu" and not math.isfinite(float(loss + norm)):  # looking costs nothing there
            self.check_finite(float(loss), float(norm), 1)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def scheduled_rate(self, step: int) -> float:
        """The learning rate of a step."""
        if self.recipe.schedule != "custom" or not self.hooks.schedule:
            return learning_rate(self.recipe, step)
        share: Any = self.hooks.schedule(step)
        try:
            number = float(share)
        except (TypeError, ValueError, RuntimeError):  # the last of a tensor of several numbers
            number = math.nan
        if not 0 <= number < math.inf:
            raise SpecError(
                f"schedule: the function gives {share!r} for step {step}, and a number from 0 up is expected, a share "
                "of the peak."
            )
        return self.recipe.learning_rate * number

    def reset_sums(self, seconds: float, sums: Sequence[float] = (), steps: int = 0) -> None:
        """Begin a row of metrics, or go on with that of a checkpoint.

        The sums of loss, gradient norm and other terms are on the device, so that no step waits for them.
        """
        count = 2 + len(self.terms)
        known = [*sums, *[0.0] * count][:count]  # a resumed run may report other terms than before
        self.sums = torch.tensor(known, dtype=torch.float64, device=self.processes.device)
        self.summed_steps, self.row_start = steps, seconds

    def compute_gradients(self) -> list[Float[Tensor, ""]]:
        """Read the step's batch, part by part, and leave its gradients; return its loss and other terms."""
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
        """Stop with a TrainingError if the loss or the gradient was infinite or NaN in the last few steps."""
        last = self.state.step
        rate = self.applied_rate
        check_finite(loss, norm, range(last - steps + 1, last + 1), rate, self.saved_step)

    def synchronize(self) -> tuple[float, float, dict[str, float]]:
        """Wait for the device, stop the clock, and return the mean loss, gradient norm and terms since the last row."""
        steps = max(1, self.summed_steps)
        loss, norm, *terms = (self.processes.mean(self.sums) / steps).tolist()
        self.check_finite(loss, norm, steps)
        now = time.perf_counter()
        self.state.seconds += now - self.clock_start
        self.clock_start = now
        return loss, norm, dict(zip(self.terms, terms, strict=True))

    def restart_clock(self) -> None:
        """Count the seconds of training from here on."""
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
        """Have the first process validate, keep the weights if they are the best; return the columns of a row.

        It is done in the arithmetic of training; `confirm` gives the final figures in float32.
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
                f"At step {self.state.step} the validation loss is {loss}. {describe_checkpoint(self.saved_step)}. Try a lower "
                "learning_rate."
            )
        if self.state.record_validation(loss, perplexity) and self.processes.is_main:
            self.best_weights = {name: tensor.cpu().clone() for name, tensor in named_weights(self.full_model).items()}
        total, steps = self.state.interval
        self.state.interval = [0.0, 0]
        self.state.recent = [*self.state.recent, [total / max(1, steps), loss]][-COMPARED_VALIDATIONS:]
        if len(self.state.recent) == COMPARED_VALIDATIONS and self.task.text_checks:
            training = fmean(before for before, _ in self.state.recent[1:])  # of the steps between these validations
            validation = fmean(after for _, after in self.state.recent)
            self.warn("too_good", validation_warning(self.recipe, self.state.step, validation, training))
        self.restart_clock()
        return {"validation_loss": loss, "perplexity": perplexity, **self.state.figures}

    def revalidate_in_float32(self, evaluate: Callable[[Any], Any]) -> None:
        """Validate the last weights, and the best, in float32 where that has been done in bfloat16."""
        state = self.state
        if not self.validates_in_bfloat16 or state.validation_loss is None:
            return
        with self.evaluating() as model:
            if not self.processes.is_main:
                return
            last, lowered = evaluate(model), state.validation_loss
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
            f"{last.loss:.4f}, in bfloat16 {lowered:.4f})."
        )

    @contextmanager
    def evaluating(self, in_training_precision: bool = False) -> Iterator[Any]:
        """Use the model as it is, in full precision, without a trace in gradients, dropout or random state.

        If it `lowers`, the arithmetic is that of training. Of a sharded model the first process gets a whole copy, on
        its device for that while; the others get theirs.
        """
        # what was compiled is for batches of training
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
        """Say something once per run."""
        if message and kind not in self.state.warnings:
            self.state.warnings[kind] = message
            self.log_message(message)

    def _compile_loss(self) -> Forward:
        inputs, targets = (tensor.chunk(self.recipe.accumulate)[0] for tensor in self.batches.batch(0))

        def attempt(loss: Forward) -> None:
            with self.arithmetic.autocast():
                objective, _, _ = loss(inputs, targets, None)
            objective.backward()
            self.optimizer.zero_grad(set_to_none=True)

        self.log_message("compiling the model, which takes some seconds the first time")
        return compile_module(self.wrapped_loss, self.layers, attempt, lambda message: self.warn("compile", message))

    def _record_step(self) -> CudaGraphStep | None:
        def step(inputs: Tensor, targets: Tensor) -> list[Tensor]:
            with self.arithmetic.autocast():
                objective, (loss, *others), _ = self.loss(inputs, targets, None)
            objective.backward()
            norm = clip_gradients(self.model, self.recipe.clip)
            self.optimizer.step()
            return [term.detach() for term in (loss, norm, *others)]

        try:
            return CudaGraphStep(step, self.optimizer, *self.batches.batch(0))
        except RuntimeError as error:  # something in the step waits for the device, which cannot be recorded
            reason = str(error).strip().partition("\n")[0]
            self.warn(
                "graph", f"a step cannot be recorded as a CUDA graph ({reason}); kernels are launched one by one."
            )
            self.optimizer = build_optimizer(self.model, self.recipe)
            self.optimizer.zero_grad(set_to_none=True)
            return None


# From a session to a checkpoint and back, bit for bit.
#
# The carried state is stored for the whole batch in the order of its rows, so that a run may be resumed with another
# number of processes or parts. Random states are restored only if the number of processes is the same.


def save_session(session: Session, folder: RunFolder) -> None:
    """Save a checkpoint of a session; all processes take part and the first one writes."""
    session.synchronize()
    state, processes = session.state, session.processes
    random = {"cpu": torch.get_rng_state()}
    if processes.device.type == "cuda":
        random["cuda"] = torch.cuda.get_rng_state(processes.device)
    carried = [part.tensors() for part in session.carried_states if part is not None]
    tensors: dict[str, dict[str, Tensor]] = {
        "model": processes.collect(named_weights(session.model)),
        "optimizer": processes.collect(optimizer_state(session.optimizer, session.model)),
        "random": {name: processes.gather(one[None]) for name, one in random.items()},
        "carried": {
            name: processes.gather(torch.cat([part[name] for part in carried])) for name in (carried or [{}])[0]
        },
    }
    if session.best_weights and state.best_step != state.step:
        tensors["best"] = session.best_weights
    values = {
        "standing": asdict(state),
        "meter": {
            "seconds": session.row_start,
            "sums": processes.mean(session.sums).tolist(),
            "steps": session.summed_steps,
        },
        "reading": _reading(session),
        "spec": session.model.spec.to_dict(),
        "optimizer": _optimizer_name(session),
        "threads": torch.get_num_threads(),
    }
    if processes.is_main:
        values["metrics"] = folder.metrics.sync()
        save_checkpoint(folder.checkpoints, Checkpoint(state.step, tensors, values))
        folder.reopen()
    session.saved_step = state.step
    session.restart_clock()


def check_resumable(folder: RunFolder, data: Splits[Any]) -> None:
    """Refuse a run that has nothing to continue from, other data, or another tokenizer."""
    folder.check_resumable()
    if data.hash != folder.data_hash:
        what = task_for(folder.spec).option
        raise RunError(
            f"{folder.path} was trained on the {what} with hash {folder.data_hash[:12]}…, this one has "
            f"{data.hash[:12]}…. Give the same {what}, or train a new run."
        )
    own = folder.vocabulary()
    if own is not None and data.tokenizer is not None and data.tokenizer.hash != own.hash:
        raise RunError(f"{folder.path} has another tokenizer ({own.description}) than {data.tokenizer.description}.")


def restore_latest(session: Session, folder: RunFolder) -> None:
    """Put a session where the last good checkpoint was saved, if there is one, and the folder with it."""
    damage: list[str] = []
    checkpoint = read_latest_checkpoint(folder.checkpoints, damage.append)
    if checkpoint:
        if folder.metrics.path.exists():
            folder.metrics.check(checkpoint.state.get("metrics"), f"the checkpoint of step {checkpoint.step}")
        _restore(session, checkpoint, folder)
    for message in damage:
        session.warn(message, message)
    session.processes.any(True)  # all have read before the first one tidies up
    if session.processes.is_main:
        folder.rewind(session.state.step)


def _restore(session: Session, checkpoint: Checkpoint, folder: RunFolder) -> None:
    where = folder.checkpoints / f"step-{checkpoint.step}"
    state, tensors, processes = checkpoint.state, checkpoint.tensors, session.processes
    check_weights_spec(where, state["spec"], folder.spec)
    own = named_weights(session.model)
    weights = {name: shard_like(tensor, own.get(name, tensor)) for name, tensor in tensors["model"].items()}
    load_weights(session.model, weights, where)
    kind = _optimizer_name(session)
    former = state.get("optimizer", kind)  # older checkpoints do not say
    if former == kind:
        load_optimizer_state(session.optimizer, session.model, tensors["optimizer"])
    before = session.state.warnings
    session.state = TrainingState(**state["standing"])
    session.state.warnings |= before
    session.reset_sums(**state["meter"])
    session.best_weights = dict(tensors.get("best", tensors["model"])) if session.state.best_step is not None else None
    session.saved_step = checkpoint.step
    if former != kind:
        message = (
            f"The checkpoint of step {checkpoint.step} holds the memory of {former}, another optimizer than {kind}: "
            "that of this one begins empty."
        )
        session.warn(message, message)
    threads = torch.get_num_threads()  # of another number sums are split, and so rounded, differently
    saved_with = state.get("threads", threads)  # older checkpoints do not say
    if saved_with != threads and processes.device.type == "cpu":
        message = (
            f"The checkpoint of step {checkpoint.step} was saved with {saved_with} CPU threads and this process has "
            f"{threads}, so the run may not continue bit for bit; set OMP_NUM_THREADS={saved_with} for that."
        )
        session.warn(message, message)
    renamed = {"stretch": "sequence_length"}  # the name in checkpoints of version 0.1
    reading = {renamed.get(name, name): value for name, value in state["reading"].items()}
    carried, parts = tensors.get("carried"), session.recipe.accumulate
    if reading == _reading(session) and carried:
        with session.evaluating() as model:  # a state of the model's own kind, to be filled with the saved tensors
            kind = model(torch.zeros(1, 1, dtype=torch.long, device=processes.device))[1]
        rows = processes.local_rows(session.recipe.batch)
        cut = {name: carried[name][rows].to(processes.device).chunk(parts) for name in kind.tensors()}
        # copied, as a part of a tensor may be misaligned in memory, which kernels round differently
        session.carried_states = [
            kind.with_tensors({name: cut[name][part].clone() for name in cut}) for part in range(parts)
        ]
    random = tensors["random"]
    if len(random["cpu"]) == processes.size:
        torch.set_rng_state(random["cpu"][processes.rank].clone())  # torch reads past a part of a tensor, and crashes
        if "cuda" in random and processes.device.type == "cuda":
            torch.cuda.set_rng_state(random["cuda"][processes.rank].clone(), processes.device)


def _optimizer_name(session: Session) -> str:
    kind = session.recipe.optimizer.kind
    return type(session.optimizer).__name__ if kind == "custom" else kind


def _reading(session: Session) -> dict[str, int]:
    recipe = session.recipe
    return {"batch": recipe.batch, "sequence_length": session.batches.length, "seed": recipe.seed}


# Sanity checks that save a day.


CHANCE_FRACTION = 0.98  # a loss above this share of the logarithm of all choices is no better than guessing
SUSPICIOUS_FRACTION = (
    0.8  # validation below this share of the training loss, and by this many nats, is too good to be true
)
SUSPICIOUS_GAP = 0.2
COMPARED_VALIDATIONS = 4  # validations of which means are taken: single ones, and single steps, vary too much
MAX_EPOCHS = 200  # more passes through the same text than this are absurd


def chance_warning(
    recipe: Recipe, step: int, loss: float, choices: int, noun: str = "tokens", symbol: str = "V"
) -> str | None:
    """Warn of a loss that still stands at chance after a fifth of the steps, the warm-up twice over and fifty steps.

    Chance is the logarithm of the choices: ln V among V tokens, ln B among the B captions of a batch.
    """
    guess = math.log(choices)
    if step < max(recipe.steps / 5, 2 * recipe.warm_up, 50) or loss < CHANCE_FRACTION * guess:
        return None
    return (
        f"Nothing is learned: at step {step} the loss is {loss:.3f}, guessing among {choices} {noun} gives "
        f"ln {symbol} = {guess:.3f}. Try another learning_rate (now {recipe.learning_rate:g}), and look at the "
        f"{'text' if noun == 'tokens' else noun}."
    )


def validation_warning(recipe: Recipe, step: int, validation: float, training: float) -> str | None:
    """Warn of a validation loss far below the training loss, once the first third is over and both move slowly."""
    if step <= recipe.steps / 3 or validation >= min(SUSPICIOUS_FRACTION * training, training - SUSPICIOUS_GAP):
        return None
    cause = f"; dropout = {recipe.dropout:g} may be too much" if recipe.dropout >= 0.3 else ""
    return (
        f"Validation is much better than training: loss {validation:.3f} against {training:.3f} at step {step}. "
        f"Is the held-out text easier, or of another kind{cause}?"
    )


def epochs_warning(recipe: Recipe, tokens: int, sequence_length: int) -> str | None:
    """Warn of a text so short that the run reads it hundreds of times."""
    times = recipe.steps * recipe.batch * sequence_length / tokens
    if times < MAX_EPOCHS:
        return None
    return f"The training text has only {tokens:,} tokens: this run reads them {times:,.0f} times over."


def check_finite(loss: float, norm: float, steps: range, rate: float, saved: int) -> None:
    """Stop with a TrainingError where the loss or the gradient is infinite or NaN."""
    if math.isfinite(loss) and math.isfinite(norm):
        return
    what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {norm}"
    where = f"At step {steps[-1]}" if len(steps) == 1 else f"Between steps {steps[0]} and {steps[-1]}"
    good = describe_checkpoint(saved)
    raise TrainingError(f"{where} {what} (learning rate {rate:.3g}). {good}. Try a lower learning_rate.")


def describe_checkpoint(saved_step: int) -> str:
    """Which checkpoint is good, in words."""
    return f"The checkpoint of step {saved_step} is good" if saved_step else "No checkpoint had been saved before"
