"""A model in training: its weights, optimizer, batches and running figures, its checkpoints, and sanity checks."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from lemma.files import home_folder
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
from lemma.tasks.base import Task, check_penalties
from lemma.tasks.registry import task_for
from lemma.training.devices import (
    Distributed,
    Forward,
    GraphedTrainingStep,
    check_kernels,
    check_layers,
    choose_arithmetic,
    fork_random,
    matmul_precision,
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

RANK_SEED_STRIDE = 1_000_003  # between the seeds of two processes, whose dropout must differ


@dataclass(frozen=True)
class TrainingHooks:
    """User-supplied functions that replace a part of training, or are called after every step."""

    optimizer: Callable[[nn.Module], Optimizer] | None = None  # the learning rates of its groups are their peaks
    schedule: Callable[[int], float] | None = None  # learning rate of a step (from 1) as a fraction of the peak
    on_step: "Callable[[Session], object] | None" = None  # called after each step; True ends training

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
    """Progress of a run: the figures that go into every checkpoint."""

    step: int = 0
    tokens: int = 0  # tokens predicted so far, by all processes
    seconds: float = 0.0
    training_loss: float | None = None
    validation_loss: float | None = None
    perplexity: float | None = None
    best_loss: float | None = None
    best_perplexity: float | None = None
    best_step: int | None = None
    figures: dict[str, float] = field(default_factory=dict)  # of the last validation, such as UAS
    best_figures: dict[str, float] = field(default_factory=dict)
    without_better: int = 0  # validations since the best one
    interval: list[float] = field(default_factory=lambda: [0.0, 0])  # sum and number of training losses since then
    recent: list[list[float]] = field(default_factory=list)  # of the last: training loss before, loss
    warnings: dict[str, str] = field(default_factory=dict)  # messages by kind; each is given once per run
    tokenizer_sample: str = ""  # sentence on the part of the text that the tokenizer was trained on, if not all of it

    def record_validation(self, loss: float, perplexity: float) -> bool:
        """Record the figures of a validation; return whether its loss is the lowest so far."""
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
        """Train one step: compute the gradients of the next batch, clip them, and update the weights."""
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
        """Return the learning rate of a step (from 1) by the recipe's schedule or the user's function."""
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
        """Set the running sums of metrics to zero, or to `sums` of a checkpoint over its last `steps` steps.

        They are on the device, so that no step waits for them. `seconds` is the training time at their start.
        """
        count = 2 + len(self.terms)
        values = [*sums, *[0.0] * count][:count]  # a resumed run may report other terms than before
        self.sums = torch.tensor(values, dtype=torch.float64, device=self.processes.device)
        self.summed_steps, self.row_start = steps, seconds

    def compute_gradients(self) -> list[Float[Tensor, ""]]:
        """Accumulate the gradients of the step's batch, part by part; return its loss and the other logged terms."""
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
        """Raise TrainingError if the mean loss or gradient norm of the last `steps` steps is infinite or NaN."""
        last = self.state.step
        check_finite(loss, norm, range(last - steps + 1, last + 1), self.applied_rate, self.saved_step)

    def synchronize(self) -> tuple[float, float, dict[str, float]]:
        """Wait for the device; return mean loss, mean gradient norm and other means by term since the last row."""
        steps = max(1, self.summed_steps)
        loss, norm, *terms = (self.processes.mean(self.sums) / steps).tolist()
        self.check_finite(loss, norm, steps)
        now = time.perf_counter()
        self.state.seconds += now - self.clock_start
        self.clock_start = now
        return loss, norm, dict(zip(self.terms, terms, strict=True))

    def restart_clock(self) -> None:
        """Start counting the seconds of training from now."""
        self.clock_start = time.perf_counter()

    def metrics_row(self) -> dict[str, float]:
        """Return a row of metrics (name → value) about the steps since the last row, and start the next sums."""
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
        """Evaluate the model in the main process, and copy its weights if they are the best so far.

        Returns the figures (name → value) for the row of metrics. The precision is that of training;
        `revalidate_in_float32` gives the final figures.
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
        """Evaluate the last and the best weights again with `evaluate` in float32, if validations ran in bfloat16."""
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
        """Yield the model for evaluation in the block; gradients, dropout and random state stay as they were.

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
        """Log a message unless it is None or one of this kind was logged in this run already."""
        if message and kind not in self.state.warnings:
            self.state.warnings[kind] = message
            self.log_message(message)

    def _compile_loss(self) -> Forward:
        """Return the module of model and loss, compiled and tried on a part of a batch, or uncompiled if that fails.

        Of layers of one shape, one is compiled for all, which takes seconds for any number of them. The compiled module
        shares the parameters. The code is cached in the data home for later runs.
        """
        inputs, targets = (tensor.chunk(self.recipe.accumulate)[0] for tensor in self.batches.batch(0))

        self.log_message("compiling the model, which takes some seconds the first time")
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(home_folder("compiled")))
        compiled: Forward = self.wrapped_loss if self.layers else torch.compile(self.wrapped_loss, dynamic=False)
        for layer in self.layers:
            layer.compile(dynamic=False)
        try:
            with self.arithmetic.autocast():
                objective, _, _ = compiled(inputs, targets, None)
            objective.backward()
            self.optimizer.zero_grad(set_to_none=True)
        except Exception as error:  # whatever the compiler, its C++ or its GPU back end may raise
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            self.warn("compile", f"torch.compile is not possible here ({reason}); training goes on uncompiled.")
            for layer in self.layers:
                layer._compiled_call_impl = None
            return self.wrapped_loss
        return compiled

    def _record_step(self) -> GraphedTrainingStep | None:
        """Return a training step recorded as a CUDA graph; None, with a warning, if it cannot be recorded."""

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
    """Set the seeds of the random generators of the CPU and of `device` only.

    `torch.manual_seed` would also seed all other GPUs, and those of a program that has not used its GPUs yet.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


# Checkpoints, from which a run continues bit for bit. The carried state is stored for the global batch in the order of
# its rows, so a run can be resumed with another number of processes or parts. Random states are restored only if the
# number of processes is the same.


def save_session(session: Session, folder: RunFolder) -> None:
    """Write a checkpoint of a session to a run folder; all processes take part, the main one writes."""
    session.synchronize()
    state, processes = session.state, session.processes
    random = {"cpu": torch.get_rng_state()}
    if processes.device.type == "cuda":
        random["cuda"] = torch.cuda.get_rng_state(processes.device)
    carried = [carried_state.tensors() for carried_state in session.carried_states if carried_state is not None]
    tensors: dict[str, dict[str, Tensor]] = {
        "model": processes.collect(named_weights(session.model)),
        "optimizer": processes.collect(optimizer_state(session.optimizer, session.model)),
        "random": {name: processes.gather(random_state[None]) for name, random_state in random.items()},
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
        "reading": _reading_settings(session),
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
    """Raise RunError if a run has no checkpoint to resume from, or its data or tokenizer have changed."""
    folder.check_resumable()
    if data.hash != folder.data_hash:
        raise RunError(
            f"{folder.path} was trained on the {data.kind} with hash {folder.data_hash[:12]}…, this one has "
            f"{data.hash[:12]}…. Give the same {data.kind}, or train a new run."
        )
    vocabulary = folder.vocabulary()
    if vocabulary is not None and data.tokenizer is not None and data.tokenizer.hash != vocabulary.hash:
        raise RunError(
            f"{folder.path} has another tokenizer ({vocabulary.description}) than {data.tokenizer.description}."
        )


def restore_latest(session: Session, folder: RunFolder) -> None:
    """Load weights, optimizer and random state from the run's last good checkpoint into a session, if there is one."""
    damage: list[str] = []
    checkpoint = read_latest_checkpoint(folder.checkpoints, damage.append)
    if checkpoint:
        if folder.metrics.path.exists():
            folder.metrics.check(checkpoint.state.get("metrics"), f"the checkpoint of step {checkpoint.step}")
        _restore_checkpoint(session, checkpoint, folder)
    for message in damage:
        session.warn(message, message)
    session.processes.any(True)  # a barrier: all have read before the main process removes later checkpoints
    if session.processes.is_main:
        folder.rewind(session.state.step)


def _restore_checkpoint(session: Session, checkpoint: Checkpoint, folder: RunFolder) -> None:
    """Load weights, optimizer state, progress and random state of a checkpoint into a session."""
    path = folder.checkpoints / f"step-{checkpoint.step}"
    values, tensors = checkpoint.state, checkpoint.tensors
    check_weights_spec(path, values["spec"], folder.spec)
    current = named_weights(session.model)
    weights = {name: shard_like(tensor, current.get(name, tensor)) for name, tensor in tensors["model"].items()}
    load_weights(session.model, weights, path)
    optimizer = _optimizer_name(session)
    saved_optimizer = values.get("optimizer", optimizer)  # missing in older checkpoints
    if saved_optimizer == optimizer:
        load_optimizer_state(session.optimizer, session.model, tensors["optimizer"])
    warnings = session.state.warnings
    session.state = TrainingState(**values["standing"])
    session.state.warnings |= warnings
    session.reset_sums(**values["meter"])
    session.best_weights = dict(tensors.get("best", tensors["model"])) if session.state.best_step is not None else None
    session.saved_step = checkpoint.step
    if saved_optimizer != optimizer:
        message = (
            f"The checkpoint of step {checkpoint.step} holds the memory of {saved_optimizer}, another optimizer than "
            f"{optimizer}: that of this one begins empty."
        )
        session.warn(message, message)
    threads = torch.get_num_threads()  # sums are split, and so rounded, differently by another number
    saved_threads = values.get("threads", threads)  # missing in older checkpoints
    if saved_threads != threads and session.processes.device.type == "cpu":
        message = (
            f"The checkpoint of step {checkpoint.step} was saved with {saved_threads} CPU threads and this process has "
            f"{threads}, so the run may not continue bit for bit; set OMP_NUM_THREADS={saved_threads} for that."
        )
        session.warn(message, message)
    _restore_carried_states(session, values["reading"], tensors.get("carried"))
    random, processes = tensors["random"], session.processes
    if len(random["cpu"]) == processes.size:
        torch.set_rng_state(random["cpu"][processes.rank].clone())  # torch reads past the end of a slice, and crashes
        if "cuda" in random and processes.device.type == "cuda":
            torch.cuda.set_rng_state(random["cuda"][processes.rank].clone(), processes.device)


def _restore_carried_states(
    session: Session, saved_reading: Mapping[str, int], carried: Mapping[str, Tensor] | None
) -> None:
    """Load the saved recurrent states carried between batches, if the text is read as `saved_reading` says."""
    # those of version 0.1 have former names of settings
    reading = {Recipe.renamed.get(name, name): value for name, value in saved_reading.items()}
    if not carried or reading != _reading_settings(session):
        return
    processes, num_parts = session.processes, session.recipe.accumulate
    with session.evaluating() as model:  # a state of the right class, to be filled with the saved tensors
        state = model(torch.zeros(1, 1, dtype=torch.long, device=processes.device))[1]
    rows = processes.local_rows(session.recipe.batch)
    chunks = {name: carried[name][rows].to(processes.device).chunk(num_parts) for name in state.tensors()}
    # cloned, since a slice may be misaligned in memory, which kernels round differently
    session.carried_states = [
        state.with_tensors({name: chunks[name][part].clone() for name in chunks}) for part in range(num_parts)
    ]


def _optimizer_name(session: Session) -> str:
    """Return the recipe's name of a session's optimizer; the class name of a user-supplied one."""
    kind = session.recipe.optimizer.kind
    return type(session.optimizer).__name__ if kind == "custom" else kind


def _reading_settings(session: Session) -> dict[str, int]:
    """Return the settings (name → value) that determine which tokens a step reads: batch, sequence length, seed."""
    recipe = session.recipe
    return {"batch": recipe.batch, "sequence_length": session.batches.length, "seed": recipe.seed}


# Sanity checks: each returns a warning or None, or raises

CHANCE_FRACTION = 0.98  # a loss above this fraction of the logarithm of the choices is no better than chance
SUSPICIOUS_FRACTION = 0.8  # a validation loss below this fraction of the training loss, and lower by …
SUSPICIOUS_GAP = 0.2  # … this many nats is too good to be true
COMPARED_VALIDATIONS = 4  # validations that are averaged: single ones, and single steps, vary too much
MAX_EPOCHS = 200  # reading a text more often is a mistake


def chance_warning(
    recipe: Recipe, step: int, loss: float, choices: int, noun: str = "tokens", symbol: str = "V"
) -> str | None:
    """Return a warning if the training loss is still at chance late in a run, else None.

    Late is after a fifth of the steps, twice the warm-up and fifty steps. Chance is ln(`choices`): ln V among V tokens,
    ln B among the B captions of a batch; `noun` and `symbol` name the choices in the message.
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
    """Return a warning if the validation loss is far below the training loss after a third of the steps, else None."""
    if step <= recipe.steps / 3 or validation >= min(SUSPICIOUS_FRACTION * training, training - SUSPICIOUS_GAP):
        return None
    cause = f"; dropout = {recipe.dropout:g} may be too much" if recipe.dropout >= 0.3 else ""
    return (
        f"Validation is much better than training: loss {validation:.3f} against {training:.3f} at step {step}. "
        f"Is the held-out text easier, or of another kind{cause}?"
    )


def epochs_warning(recipe: Recipe, tokens: int, sequence_length: int) -> str | None:
    """Return a warning if the run reads a text of `tokens` tokens hundreds of times, else None."""
    epochs = recipe.steps * recipe.batch * sequence_length / tokens
    if epochs < MAX_EPOCHS:
        return None
    return f"The training text has only {tokens:,} tokens: this run reads them {epochs:,.0f} times over."


def check_finite(loss: float, norm: float, steps: range, rate: float, saved_step: int) -> None:
    """Raise TrainingError with advice if the mean loss or gradient norm of these steps is infinite or NaN."""
    if math.isfinite(loss) and math.isfinite(norm):
        return
    problem = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {norm}"
    when = f"At step {steps[-1]}" if len(steps) == 1 else f"Between steps {steps[0]} and {steps[-1]}"
    checkpoint = describe_checkpoint(saved_step)
    raise TrainingError(f"{when} {problem} (learning rate {rate:.3g}). {checkpoint}. Try a lower learning_rate.")


def describe_checkpoint(saved_step: int) -> str:
    """Return a clause for an error message: which checkpoint is good, or that there is none (`saved_step` 0)."""
    return f"The checkpoint of step {saved_step} is good" if saved_step else "No checkpoint had been saved before"
