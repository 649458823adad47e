"""All ways to adapt one base to one task, side by side: the board that answers E5 by measurement."""

import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lemma.adaptation import merged
from lemma.errors import SpecError
from lemma.objectives import teacher_forcing
from lemma.runs import RunFolder, first_model, load
from lemma.runs.folder import refuse_occupied
from lemma.spec import METHODS, ModelSpec, Pooling, Recipe, distribute
from lemma.studies.adapted import Adapted
from lemma.studies.adapting import Plan, adapted_by, finished_by, is_same, leads, plan_adaptation
from lemma.studies.announcing import Announcing
from lemma.studies.asking import Asked
from lemma.studies.base_at_work import Base, base_of, lost_by
from lemma.studies.board import Board, BoardRow
from lemma.studies.hardware import describe_hardware
from lemma.studies.lessons import AnyLesson, LabelsLesson, PairsLesson
from lemma.studies.measuring import device_of
from lemma.studies.peak import peak_of_step
from lemma.studies.timing import race, ratio, spread
from lemma.training import Observer, Session, Team, TrainingResult
from lemma.typeset import fit


@dataclass(frozen=True)
class Unfinished:
    """A comparison that was interrupted, and how far it came."""

    training: TrainingResult
    method: str
    interrupted: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"interrupted": self.method, "training": self.training.to_dict()}

    def __str__(self) -> str:
        where = f"step {self.training.steps:,} of {self.training.planned_steps:,}"
        return fit(f"Interrupted in {self.method}, at {where}. The same command goes on where it stopped.")


ALL = "all"
TEXTS = 32
"""Texts that are read at once when the time of inference is taken."""
STRETCH = 64
"""Tokens of each of them, where they are cut from running text and the context allows it."""
ROUNDS = 15
MERGED = "merged"


def adapt_to(
    run: Path | str,
    asked: Asked,
    method: str,
    words: Mapping[str, Any],
    out: Path,
    watcher: Observer,
    overwrite: bool = False,
    rerank: bool = False,
) -> Adapted | Board | Unfinished | TrainingResult:
    """Adapt a run by one method, or by all of them into folders of their own, with the board that compares them."""
    if method == ALL and asked.kind == "images":
        raise SpecError("adapt: the board compares methods on labels, text or pairs. Name one method for images.")
    if method == ALL:
        return compare_methods(run, asked, words, out, watcher, overwrite)
    if leads():
        refuse_occupied(out, overwrite)  # known now, not after the data were read
    plan = plan_adaptation(run, asked, method, words, watcher, rerank=rerank)
    return adapted_by(plan, out, watcher, overwrite)


def compare_methods(
    run: Path | str, asked: Asked, words: Mapping[str, Any], out: Path, watcher: Observer, overwrite: bool
) -> Board | Unfinished:
    """Adapt a base by every method into a folder of its own below `out`, measure each, and write the board."""
    refuse_strange_words(words)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SpecError("adapt: --method all measures time and memory of one process. Run it without torchrun.")
    plans: dict[str, Plan] = {}
    for name in METHODS:
        ready = next((plan.lesson for plan in plans.values()), None)
        plans[name] = plan_for(run, asked, name, words, watcher, ready)
        if not is_same(plans[name], out / name):  # known now, not after an hour
            refuse_occupied(out / name, overwrite)
    base = base_of(plans["full"])
    adapted: dict[str, Adapted] = {}
    for number, (name, plan) in enumerate(plans.items(), start=1):
        announced = Announcing(watcher, f"{number} of {len(plans)}: {name}")
        done = finished_by(plan, out / name, announced, overwrite)
        if isinstance(done, TrainingResult):
            return Unfinished(done, name)
        adapted[name] = done
    board = measured(plans, adapted, base, out, watcher)
    board.save()
    return board


def refuse_strange_words(words: Mapping[str, Any]) -> None:
    """Refuse a word that neither the recipe nor any method knows."""
    distribute(words, {"recipe": Recipe, "model": Pooling, **METHODS})


def plan_for(
    run: Path | str,
    asked: Asked,
    name: str,
    words: Mapping[str, Any],
    watcher: Observer,
    lesson: AnyLesson | None = None,
) -> Plan:
    """The plan of one method; a word that only another method knows is left to that one."""
    others = {word for other, kind in METHODS.items() if other != name for word in kind.known_words()}
    own = {word: value for word, value in words.items() if word in METHODS[name].known_words() or word not in others}
    return plan_adaptation(run, asked, name, own, watcher, lesson)


def measured(
    plans: Mapping[str, Plan], adapted: Mapping[str, Adapted], base: Base, out: Path, watcher: Observer
) -> Board:
    """Take of every method what its training does not show: memory, time of inference, what it has forgotten."""
    plan = next(iter(plans.values()))
    device = device_of(plan.recipe)
    watcher.say("measuring memory, time of inference and forgetting")
    models = {name: load(one.path, device).module for name, one in adapted.items()}
    times = inference_times(models, inference_batch(plan.lesson, plan.model, device), device)
    lost = lost_by(base, adapted, device)
    rows = [
        BoardRow(
            adapted=one,
            peak_bytes=peak_bytes(plans[name], one.path, device),
            unmerged=spread(times[name]).scaled(1e3),
            merged=spread(times[merged_name(name)]).scaled(1e3) if merged_name(name) in times else None,
            slower=ratio(times[name], times["full"]),
            forgetting=lost.get(name),
        )
        for name, one in adapted.items()
    ]
    about = plan.lesson.dataset.about
    return Board(tuple(rows), plan.base.path, about, describe_hardware(device), out, base.why_not)


def merged_name(method: str) -> str:
    """What a method's merged model is called in the race."""
    return f"{method}, {MERGED}"


def inference_times(models: Mapping[str, nn.Module], inputs: tuple[Tensor, ...], device: str) -> dict[str, list[float]]:
    """Seconds of one pass over the same batch, every method in turns, LoRA with its updates beside and folded in."""
    runs = {name: partial(_forward, model, inputs) for name, model in models.items()}
    if "lora" in models:
        plain = merged(deepcopy(models["lora"]))
        runs[merged_name("lora")] = partial(_forward, plain, inputs)
    return race(runs, ROUNDS, device)


def inference_batch(lesson: AnyLesson, spec: ModelSpec, device: str) -> tuple[Tensor, ...]:
    """A batch of what is held out, as the model is called with it."""
    match lesson:
        case LabelsLesson():
            examples = lesson.dataset.tokens("test")
            inputs, _ = examples.batch(np.arange(min(TEXTS, len(examples.lengths))))
            return (torch.from_numpy(inputs).to(device),)
        case PairsLesson():
            examples = lesson.dataset.tokens("validation")
            sources, targets = examples.batch(np.arange(min(TEXTS, len(examples.lengths))))
            fed, _ = teacher_forcing(torch.from_numpy(targets).to(device))
            return torch.from_numpy(sources).to(device), fed
        case _:
            text: Any = lesson.dataset.tokens("validation")
            length = min(STRETCH, getattr(spec, "context", STRETCH), len(text))
            rows = min(TEXTS, len(text) // length)
            tokens = np.asarray(text[: rows * length], dtype=np.int64).reshape(rows, length)
            return (torch.from_numpy(tokens).to(device),)


def peak_bytes(plan: Plan, path: Path, device: str) -> int:
    """The most memory that one step of this method's training holds."""
    folder = RunFolder.open(path)
    recipe = folder.recipe.replace(compile=False)
    first = partial(first_model, folder)
    tokens: Any = plan.lesson.dataset.tokens("train")
    session = Session(folder.spec, recipe, tokens, Team(torch.device(device)), lambda message: None, first)
    try:
        return peak_of_step(session)
    finally:
        session.feed.close()


@torch.no_grad()
def _forward(model: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    return model(*inputs)
