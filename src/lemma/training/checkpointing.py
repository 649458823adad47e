"""From a session to a checkpoint and back, bit for bit.

The carried state is stored for the global batch in the order of its rows, so a run can be resumed with another number
of processes or parts. Random states are restored only if the number of processes is the same.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from lemma.data.splits import Splits
from lemma.errors import RunError
from lemma.runs.checkpoint import (
    Checkpoint,
    check_weights_spec,
    load_weights,
    named_weights,
    read_latest_checkpoint,
    save_checkpoint,
)
from lemma.runs.folder import RunFolder
from lemma.training.distributed import Distributed, shard_like
from lemma.training.optimizer import load_optimizer_state, optimizer_state
from lemma.training.session import Session, TrainingState


def save_session(session: Session, folder: RunFolder) -> None:
    """Save a checkpoint of a session; all processes take part and the main one writes."""
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
    """Raise RunError if a run has no checkpoint to continue from, or the data or the tokenizer are others."""
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
    """Restore a session, and its folder, from the last good checkpoint, if there is one."""
    damage: list[str] = []
    checkpoint = read_latest_checkpoint(folder.checkpoints, damage.append)
    if checkpoint:
        if folder.metrics.path.exists():
            folder.metrics.check(checkpoint.state.get("metrics"), f"the checkpoint of step {checkpoint.step}")
        _restore(session, checkpoint, folder)
    for message in damage:
        session.warn(message, message)
    session.processes.any(True)  # a barrier: all have read before the main process removes later checkpoints
    if session.processes.is_main:
        folder.rewind(session.state.step)


def _restore(session: Session, checkpoint: Checkpoint, folder: RunFolder) -> None:
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
    _restore_random_states(session.processes, tensors["random"])


def _restore_carried_states(
    session: Session, saved_reading: Mapping[str, int], carried: Mapping[str, Tensor] | None
) -> None:
    """Restore the states of a recurrent model, unless the resumed run reads the text in another way."""
    renamed = {"stretch": "sequence_length"}  # the name in checkpoints of version 0.1
    if not carried or {renamed.get(name, name): value for name, value in saved_reading.items()} != _reading(session):
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


def _restore_random_states(processes: Distributed, random: Mapping[str, Tensor]) -> None:
    if len(random["cpu"]) != processes.size:
        return
    torch.set_rng_state(random["cpu"][processes.rank].clone())  # torch reads past the end of a slice, and crashes
    if "cuda" in random and processes.device.type == "cuda":
        torch.cuda.set_rng_state(random["cuda"][processes.rank].clone(), processes.device)


def _optimizer_name(session: Session) -> str:
    kind = session.recipe.optimizer.kind
    return type(session.optimizer).__name__ if kind == "custom" else kind


def _reading(session: Session) -> dict[str, int]:
    """Return the settings that decide which tokens a step reads."""
    recipe = session.recipe
    return {"batch": recipe.batch, "sequence_length": session.batches.length, "seed": recipe.seed}
