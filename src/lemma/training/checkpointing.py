"""From a session to a checkpoint and back, bit for bit.

The carried state is stored for the whole batch in the order of its rows, so that a run may go on with another number
of processes or parts. Random states go on only if the number of processes is the same.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from lemma.errors import RunError
from lemma.layers.state import State
from lemma.runs.checkpoint import Checkpoint, latest_good, put_weights, refuse_other_spec, save, weights_of
from lemma.runs.folder import RunFolder, only_writer
from lemma.training.losses import AnyData
from lemma.training.optimizer import memory_of, restore_memory
from lemma.training.session import Session, Standing

LEARNED = {
    "parser": "trees",
    "encoder-decoder": "pairs",
    "classifier": "labels",
    "dual-encoder": "images",
    "cross-attention": "images",
    "graph": "graph",
}
"""What runs learn that do not learn text."""


def save_session(session: Session, folder: RunFolder) -> None:
    """Save where a session stands; the whole team takes part and the leader writes."""
    session.settle()
    checkpoint = Checkpoint(session.standing.step, _tensors(session), _state(session))
    if session.team.leads:
        folder.metrics.sync()
        save(folder.checkpoints, checkpoint)
    session.saved = checkpoint.step
    session.restart_clock()


def refuse_finished(folder: RunFolder) -> None:
    """Refuse to go on with a run that is finished and has no checkpoint: it would begin anew and lose its weights."""
    if folder.finished and not any(folder.checkpoints.glob("step-*")):
        how = "Adapt its base again with more steps." if folder.adaptation else "Train a new run, or adapt this one."
        raise RunError(f"{folder.path} is finished, and keeps no checkpoint to go on from. {how}")


def refuse_other_text(folder: RunFolder, dataset: AnyData) -> None:
    """Refuse to go on with another text, or with the same text cut by another tokenizer."""
    if dataset.hash != folder.data_hash:
        what = LEARNED.get(folder.spec.family, "text")
        raise RunError(
            f"{folder.path} was trained on the {what} with hash {folder.data_hash[:12]}…, this one has "
            f"{dataset.hash[:12]}…. Give the same {what}, or train a new run."
        )
    own = folder.vocabulary()
    if own is not None and dataset.tokenizer is not None and dataset.tokenizer.hash != own.hash:
        raise RunError(f"{folder.path} has another tokenizer ({own.about}) than {dataset.tokenizer.about}.")


def restore_latest(session: Session, folder: RunFolder) -> None:
    """Put a session where the last good checkpoint was saved, if there is one, and the folder with it."""
    damage: list[str] = []
    checkpoint = latest_good(folder.checkpoints, damage.append)
    if checkpoint:
        restore_session(session, checkpoint, folder)
    for message in damage:
        session.warn(message, message)
    session.team.agree(True)  # all have read before the leader tidies up
    if session.team.leads:
        with only_writer(folder.path):
            folder.rewind(session.standing.step)


def restore_session(session: Session, checkpoint: Checkpoint, folder: RunFolder) -> None:
    """Put a session where a checkpoint was saved."""
    where = folder.checkpoints / f"step-{checkpoint.step}"
    state, tensors = checkpoint.state, checkpoint.tensors
    refuse_other_spec(where, state["spec"], folder.spec)
    put_weights(session.model, tensors["model"], where)
    restore_memory(session.optimizer, session.model, tensors["optimizer"])
    before = session.standing.warnings
    session.standing = Standing(**state["standing"])
    session.standing.warnings |= before
    session.meter.reset(**state["meter"])
    session.best = dict(tensors.get("best", tensors["model"])) if session.standing.best_step is not None else None
    session.saved = checkpoint.step
    if message := other_threads(session, checkpoint):
        session.warn(message, message)
    if state["reading"] == _reading(session):
        _restore_carried(session, tensors.get("carried", {}))
    _restore_random(session, tensors["random"])


def other_threads(session: Session, checkpoint: Checkpoint) -> str | None:
    """Say if a CPU goes on with another number of threads: they split sums differently, and so round differently."""
    threads = torch.get_num_threads()
    before = checkpoint.state.get("threads", threads)  # older checkpoints do not say
    if before == threads or session.team.device.type != "cpu":
        return None
    return (
        f"The checkpoint of step {checkpoint.step} was saved with {before} CPU threads and this process has {threads}, "
        f"so the run may not go on bit for bit; set OMP_NUM_THREADS={before} for that."
    )


def _tensors(session: Session) -> dict[str, Mapping[str, Tensor]]:
    groups: dict[str, Mapping[str, Tensor]] = {
        "model": weights_of(session.model),
        "optimizer": memory_of(session.optimizer, session.model),
        "random": _random(session),
        "carried": _carried(session),
    }
    if session.best and session.standing.best_step != session.standing.step:
        groups["best"] = session.best
    return groups


def _state(session: Session) -> dict[str, Any]:
    meter = session.meter
    return {
        "standing": asdict(session.standing),
        "meter": {"seconds": meter.since, "sums": meter.team_sums(), "steps": meter.steps},
        "reading": _reading(session),
        "spec": session.model.spec.to_dict(),
        "threads": torch.get_num_threads(),
    }


def _reading(session: Session) -> dict[str, int]:
    recipe = session.recipe
    return {"batch": recipe.batch, "stretch": session.feed.stretch, "seed": recipe.seed}


def _random(session: Session) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if session.team.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(session.team.device)
    return {name: session.team.gather(state[None]) for name, state in states.items()}


def _restore_random(session: Session, states: Mapping[str, Tensor]) -> None:
    team = session.team
    if len(states["cpu"]) != team.size:
        return
    torch.set_rng_state(states["cpu"][team.rank])
    if "cuda" in states and team.device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"][team.rank], team.device)


def _carried(session: Session) -> dict[str, Tensor]:
    parts = [state.tensors() for state in session.carried if state is not None]
    names = parts[0] if parts else {}
    return {name: session.team.gather(torch.cat([part[name] for part in parts])) for name in names}


def _restore_carried(session: Session, tensors: Mapping[str, Tensor]) -> None:
    if not tensors:
        return
    rows = session.team.share(session.recipe.batch)
    kind = _any_state(session)
    own = {name: tensors[name][rows].to(session.team.device) for name in kind.tensors()}
    cut = {name: tensor.chunk(session.recipe.accumulate) for name, tensor in own.items()}
    parts = range(session.recipe.accumulate)
    # copied, as a part of a tensor may be misaligned in memory, which kernels round differently
    session.carried = [kind.with_tensors({name: cut[name][part].clone() for name in cut}) for part in parts]


def _any_state(session: Session) -> State:
    """A state of the model's own kind, to be filled with the tensors of another."""
    with session.aside():
        return session.model(torch.zeros(1, 1, dtype=torch.long, device=session.team.device))[1]
