"""From a session to a checkpoint and back, bit for bit.

The carried state is stored for the whole batch in the order of its rows, so that a run may be resumed with another
number of processes or parts. Random states are restored only if the number of processes is the same.
"""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from lemma.data.splits import Splits
from lemma.errors import RunError
from lemma.runs.checkpoint import Checkpoint, latest_good, put_weights, refuse_other_spec, save, weights_of
from lemma.runs.folder import RunFolder, only_writer
from lemma.tasks.registry import task_for
from lemma.training.optimizer import memory_of, restore_memory
from lemma.training.session import Session, TrainingState


def save_session(session: Session, folder: RunFolder) -> None:
    """Save a checkpoint of a session; all processes take part and the first one writes."""
    session.settle()
    state, sums, processes = session.state, session.sums, session.processes
    random = {"cpu": torch.get_rng_state()}
    if processes.device.type == "cuda":
        random["cuda"] = torch.cuda.get_rng_state(processes.device)
    carried = [part.tensors() for part in session.carried if part is not None]
    tensors: dict[str, dict[str, Tensor]] = {
        "model": weights_of(session.model),
        "optimizer": memory_of(session.optimizer, session.model),
        "random": {name: processes.gather(one[None]) for name, one in random.items()},
        "carried": {
            name: processes.gather(torch.cat([part[name] for part in carried])) for name in (carried or [{}])[0]
        },
    }
    if session.best and state.best_step != state.step:
        tensors["best"] = session.best
    values = {
        "standing": asdict(state),
        "meter": {"seconds": sums.since, "sums": sums.totals(), "steps": sums.steps},
        "reading": _reading(session),
        "spec": session.model.spec.to_dict(),
        "threads": torch.get_num_threads(),
    }
    if processes.leads:
        folder.metrics.sync()
        save(folder.checkpoints, Checkpoint(state.step, tensors, values))
    session.saved = state.step
    session.restart_clock()


def refuse_finished(folder: RunFolder) -> None:
    """Refuse to resume a finished run without a checkpoint: it would begin again and lose its weights."""
    if folder.finished and not any(folder.checkpoints.glob("step-*")):
        how = "Adapt its base again with more steps." if folder.adaptation else "Train a new run, or adapt this one."
        raise RunError(f"{folder.path} is finished, and keeps no checkpoint to resume from. {how}")


def refuse_other_data(folder: RunFolder, data: Splits[Any]) -> None:
    """Refuse to resume with other data, or with the same data cut by another tokenizer."""
    if data.hash != folder.data_hash:
        what = task_for(folder.spec).option
        raise RunError(
            f"{folder.path} was trained on the {what} with hash {folder.data_hash[:12]}…, this one has "
            f"{data.hash[:12]}…. Give the same {what}, or train a new run."
        )
    own = folder.vocabulary()
    if own is not None and data.tokenizer is not None and data.tokenizer.hash != own.hash:
        raise RunError(f"{folder.path} has another tokenizer ({own.about}) than {data.tokenizer.about}.")


def restore_latest(session: Session, folder: RunFolder) -> None:
    """Put a session where the last good checkpoint was saved, if there is one, and the folder with it."""
    damage: list[str] = []
    checkpoint = latest_good(folder.checkpoints, damage.append)
    if checkpoint:
        restore_session(session, checkpoint, folder)
    for message in damage:
        session.warn(message, message)
    session.processes.any(True)  # all have read before the first one tidies up
    if session.processes.leads:
        with only_writer(folder.path):
            folder.rewind(session.state.step)


def restore_session(session: Session, checkpoint: Checkpoint, folder: RunFolder) -> None:
    """Put a session where a checkpoint was saved."""
    where = folder.checkpoints / f"step-{checkpoint.step}"
    state, tensors, processes = checkpoint.state, checkpoint.tensors, session.processes
    refuse_other_spec(where, state["spec"], folder.spec)
    put_weights(session.model, tensors["model"], where)
    restore_memory(session.optimizer, session.model, tensors["optimizer"])
    before = session.state.warnings
    session.state = TrainingState(**state["standing"])
    session.state.warnings |= before
    session.sums.reset(**state["meter"])
    session.best = dict(tensors.get("best", tensors["model"])) if session.state.best_step is not None else None
    session.saved = checkpoint.step
    threads = torch.get_num_threads()  # of another number sums are split, and so rounded, differently
    saved_with = state.get("threads", threads)  # older checkpoints do not say
    if saved_with != threads and processes.device.type == "cpu":
        message = (
            f"The checkpoint of step {checkpoint.step} was saved with {saved_with} CPU threads and this process has "
            f"{threads}, so the run may not continue bit for bit; set OMP_NUM_THREADS={saved_with} for that."
        )
        session.warn(message, message)
    reading = {_FORMER.get(name, name): value for name, value in state["reading"].items()}
    if reading == _reading(session) and tensors.get("carried"):
        _restore_carried(session, dict(tensors["carried"]))
    random = tensors["random"]
    if len(random["cpu"]) == processes.size:
        torch.set_rng_state(random["cpu"][processes.rank])
        if "cuda" in random and processes.device.type == "cuda":
            torch.cuda.set_rng_state(random["cuda"][processes.rank], processes.device)


_FORMER = {"stretch": "sequence_length"}
"""Names in checkpoints of version 0.1."""


def _reading(session: Session) -> dict[str, int]:
    recipe = session.recipe
    return {"batch": recipe.batch, "sequence_length": session.batches.length, "seed": recipe.seed}


def _restore_carried(session: Session, tensors: dict[str, Tensor]) -> None:
    device, parts = session.processes.device, session.recipe.accumulate
    with session.evaluating():  # a state of the model's own kind, to be filled with the saved tensors
        kind = session.model(torch.zeros(1, 1, dtype=torch.long, device=device))[1]
    rows = session.processes.rows(session.recipe.batch)
    cut = {name: tensors[name][rows].to(device).chunk(parts) for name in kind.tensors()}
    # copied, as a part of a tensor may be misaligned in memory, which kernels round differently
    session.carried = [kind.with_tensors({name: cut[name][part].clone() for name in cut}) for part in range(parts)]
