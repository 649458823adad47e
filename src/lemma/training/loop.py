"""Training: one loop, from a fresh model or from a checkpoint to a finished run."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from lemma.runs import RunFolder, first_model, only_writer
from lemma.runs.folder import refuse_occupied
from lemma.spec import AdaptationSpec, AnyDataSpec, ModelSpec, Recipe
from lemma.training.finishing import Sample, Stopped, finish
from lemma.training.heap import steady_heap
from lemma.training.interrupt import Stop, stoppable
from lemma.training.journal import Journal, board_kind
from lemma.training.keeping import refuse_finished, refuse_other_text, restore_latest, save_session
from lemma.training.lesson import Evaluate
from lemma.training.lessons import AnyData, refuse_other_kind
from lemma.training.optimizer import clip, set_rate
from lemma.training.parallel import Team, teamwork
from lemma.training.precision import fork_random, matrix_products, product_precision
from lemma.training.progress import Observer, Silent
from lemma.training.result import TrainingResult
from lemma.training.schedule import learning_rate, logs, saves, validates
from lemma.training.session import Session

AGREE_EVERY = 10  # steps after which a team asks whether one of its processes was told to stop


def advance(session: Session, folder: RunFolder, journal: Journal, evaluate: Evaluate, stop: Stop) -> Stopped:
    """The loop: step after step until all are taken, validation stops improving, or someone asks to stop."""
    recipe, standing = session.recipe, session.standing
    while not (stopped := reason_to_stop(session, stop)):
        take_step(session)
        journal.observer.advance(standing.step)
        if logs(recipe, standing.step):
            row = session.measure()
            if validates(recipe, standing.step):
                row |= session.validate(evaluate)
            journal.write(row)
        if saves(recipe, standing.step):
            save_session(session, folder)
    return stopped


def take_step(session: Session) -> None:
    """One step: the batch's gradients, clipped, move the weights."""
    session.standing.step += 1
    set_rate(session.optimizer, learning_rate(session.recipe, session.standing.step))
    terms = session.gradients()
    norm = clip(session.model, session.recipe.clip)
    session.count(terms, norm)
    session.optimizer.step()
    session.optimizer.zero_grad(set_to_none=True)


def reason_to_stop(session: Session, stop: Stop) -> Stopped | None:
    """Say why the loop ends here, or None if it goes on; every process of a team says the same."""
    recipe, standing, team = session.recipe, session.standing, session.team
    if standing.step >= recipe.steps:
        return "done"
    if recipe.patience and standing.without_better >= recipe.patience:
        return "early"
    if team.size > 1 and standing.step % AGREE_EVERY:
        return None
    return "interrupted" if team.agree(stop.asked) else None


@dataclass(frozen=True)
class Surroundings:
    """What training is handed from outside: how to validate, how to sample, whom to tell."""

    evaluate: Evaluate
    sample: Sample
    observer: Observer = field(default_factory=Silent)


def train(
    model_spec: ModelSpec,
    recipe: Recipe,
    data_spec: AnyDataSpec,
    dataset: AnyData,
    out: Path,
    *,
    evaluate: Evaluate,
    sample: Sample,
    observer: Observer | None = None,
    overwrite: bool = False,
    adaptation: AdaptationSpec | None = None,
) -> TrainingResult:
    """Train a new model into the folder `out`; its vocabulary is the tokenizer's, or the treebank's.

    With an `adaptation` it starts from the weights of a base, of which it keeps only what it changed.
    """
    given = Surroundings(evaluate, sample, observer or Silent())
    refuse_other_kind(model_spec, dataset)
    with _at_work(recipe) as team:
        if team.leads:
            refuse_occupied(out, overwrite)
        spec = model_spec.sized(dataset.sizes())
        folder = RunFolder(out, spec, recipe, data_spec, dataset.hash, adaptation)
        begin = time.perf_counter()
        session = _session(folder, dataset, team, given)
        if team.leads:
            folder.create(dataset.tokenizer, overwrite, getattr(dataset, "labels", ()))
        return _complete(session, folder, given, time.perf_counter() - begin)


def resume(
    path: Path,
    dataset: AnyData,
    *,
    evaluate: Evaluate,
    sample: Sample,
    observer: Observer | None = None,
    changes: Mapping[str, Any] | None = None,
) -> TrainingResult:
    """Go on with a run from its last good checkpoint, or from the start if it had none; `changes` are recipe words."""
    given = Surroundings(evaluate, sample, observer or Silent())
    folder = RunFolder.open(path)
    refuse_finished(folder)
    refuse_other_text(folder, dataset)
    folder = replace(folder, recipe=folder.recipe.replace(**(changes or {})))
    with _at_work(folder.recipe) as team:
        begin = time.perf_counter()
        session = _session(folder, dataset, team, given)
        restore_latest(session, folder)
        return _complete(session, folder, given, time.perf_counter() - begin)


@contextmanager
def _at_work(recipe: Recipe) -> Iterator[Team]:
    """Join the team, and leave the program's random state and arithmetic as they were."""
    with (
        teamwork(recipe) as team,
        fork_random(team.device),
        steady_heap(team.device),
        matrix_products(product_precision(team.device)),
    ):
        yield team


def _session(folder: RunFolder, dataset: AnyData, team: Team, given: Surroundings) -> Session:
    if folder.recipe.tensorboard:
        board_kind()  # an early word if it is missing
    tell = given.observer.say if team.leads else Silent().say
    tokens: Any = dataset.tokens("train")
    return Session(folder.spec, folder.recipe, tokens, team, tell, partial(first_model, folder))


def _complete(session: Session, folder: RunFolder, given: Surroundings, setup_seconds: float) -> TrainingResult:
    """Run the loop to its end, save where it stands, and finish the run unless it was interrupted."""
    with ExitStack() as stack:
        if session.team.leads:
            stack.enter_context(only_writer(folder.path))
        stack.enter_context(closing(session.feed))
        stop = stack.enter_context(stoppable(session.team.size > 1))
        journal = stack.enter_context(closing(Journal(folder, given.observer, session.team, session.standing.step)))
        session.restart_clock()
        stopped = advance(session, folder, journal, given.evaluate, stop)
        if session.unsaved():
            save_session(session, folder)
        return finish(session, folder, given.sample, stopped, setup_seconds)
