"""The board of an adaptation: what each method costs, what it gains, and which is best for whom (problem E5)."""

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lemma.adaptation.adapt import merged
from lemma.counting.count import trainable_text
from lemma.data.labels import Labelled
from lemma.data.pairs import TokenPairs
from lemma.data.splits import Splits
from lemma.errors import SpecError
from lemma.report.page import facts, grid, html_paragraph, json_text, page, section, write_files
from lemma.report.progress import Observer
from lemma.report.text import fit, label, paragraph, table
from lemma.runs.folder import RunFolder, refuse_occupied
from lemma.runs.load import first_model, load
from lemma.spec.base import distribute
from lemma.spec.models import ModelSpec, Pooling
from lemma.spec.recipe import METHODS, Recipe
from lemma.studies.cells import Announcing, Spread, describe_hardware, peak_of_step, race, ratio, spread
from lemma.studies.run import device_of
from lemma.tasks.base import DataArgs, Headline
from lemma.tasks.translation import teacher_forcing
from lemma.training.adapt import (
    AdaptationPlan,
    Adapted,
    AdaptedBase,
    Forgetting,
    adapt_run,
    finish_run,
    is_same,
    leads,
    plan_adaptation,
)
from lemma.training.distributed import Distributed
from lemma.training.result import TrainingResult
from lemma.training.session import Session

REPORT = "board.html"
NONE = "–"
MEGA = 1e6
GUESSING = "No method is told apart from always naming the commonest class: give more texts or steps to compare them."
ALIKE = 1.05
"""Times within this ratio of the least count as alike: the noise of a shared machine is larger than less."""
HOW = (
    "Memory: all tensors at the fullest moment of one training step. Inference: one pass over the same batch, all "
    "methods in turns in one process, median of the rounds; merged: updates folded into plain weights. Forgetting: "
    "perplexity of the base's own held-out data with the base's weights and with the adapted ones."
)
FOOTER = "Made by Lemma. This page needs no network and no script. The figures stand unrounded in board.json."


@dataclass(frozen=True)
class BoardRow:
    """One method: what came of it, and what it cost."""

    adapted: Adapted
    peak_bytes: int
    unmerged: Spread
    """Milliseconds of a pass as the run is loaded."""
    merged: Spread | None
    """The same with updates folded in, where there are any that can be."""
    slower: Spread
    """The pass's time against that of the fully tuned model, which has nothing added."""
    forgetting: Forgetting | None

    @property
    def method(self) -> str:
        """The method's name."""
        return self.adapted.method.kind

    @property
    def figure(self) -> Headline:
        """What it is judged by."""
        return self.adapted.score.headline

    @property
    def fastest(self) -> float:
        """The milliseconds of a pass in its quickest form."""
        return min(self.unmerged.median, self.merged.median if self.merged else self.unmerged.median)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            **self.adapted.to_dict(),
            "peak_bytes": self.peak_bytes,
            "inference_ms": self.unmerged.median,
            "inference_merged_ms": self.merged.median if self.merged else None,
            "inference_against_full": {
                "median": self.slower.median,
                "low": self.slower.low,
                "high": self.slower.high,
            },
            "forgetting": self.forgetting.to_dict() if self.forgetting else None,
        }


@dataclass(frozen=True)
class Scenario:
    """A person with a need, and what counts for them."""

    says: str
    measured: str
    cost: Callable[[BoardRow], float]
    unit: str
    scale: float = 1.0


SCENARIOS = (
    Scenario("Many tasks on one base", "stored bytes a task", lambda row: row.adapted.stored_bytes, "kB", 1e3),
    Scenario("Little memory to train in", "peak training memory", lambda row: row.peak_bytes, "MB", MEGA),
    Scenario("Answers at once", "inference time, merged where possible", lambda row: row.fastest, "ms"),
)


@dataclass(frozen=True)
class Board:
    """All methods on one base and one task."""

    rows: tuple[BoardRow, ...]
    base: Path
    data: str
    hardware: Mapping[str, str]
    out: Path
    note: str = ""
    """What could not be measured, and why."""

    @property
    def header(self) -> list[str]:
        """The name of the table's corner, and the methods."""
        return ["", *(row.method for row in self.rows)]

    def lines(self) -> list[list[str]]:
        """The board as a person reads it: a line for each quantity, a column for each method."""
        name = self.rows[0].figure.name
        lines: list[tuple[str, Callable[[BoardRow], str]]] = [
            ("learned parameters", lambda row: f"{row.adapted.learned:,}"),
            ("share of all", lambda row: f"{100 * row.adapted.learned / row.adapted.parameters:.2f} %"),
            ("stored a task, bytes", lambda row: f"{row.adapted.stored_bytes:,}"),
            ("peak memory, MB", lambda row: f"{row.peak_bytes / MEGA:,.1f}"),
            ("training, s", lambda row: f"{row.adapted.training.seconds:,.1f}"),
            ("inference, ms", lambda row: f"{row.unmerged.median:.3g}"),
            ("  against full", lambda row: f"{row.slower.median:.2f}"),
            ("  quartiles", lambda row: f"{row.slower.low:.2f}–{row.slower.high:.2f}"),
            ("inference merged, ms", lambda row: f"{row.merged.median:.3g}" if row.merged else NONE),
            (name, lambda row: row.figure.shown),
            ("  95 % interval", lambda row: row.figure.interval),
            *([("  by guessing", lambda row: row.figure.guess)] if self.rows[0].figure.guessed is not None else []),
            ("base perplexity", lambda row: f"{row.forgetting.before:,.2f}" if row.forgetting else NONE),
            ("  after adapting", lambda row: f"{row.forgetting.after:,.2f}" if row.forgetting else NONE),
        ]
        return [[title, *(cell(row) for row in self.rows)] for title, cell in lines]

    @property
    def formulas(self) -> dict[str, str]:
        """The parameters that each method learns, as formulas read off its module."""
        return {row.method: row.adapted.formula for row in self.rows}

    @property
    def winners(self) -> list[str]:
        """One sentence for each scenario, and before them one where no method has learned the task."""
        guessing = [GUESSING] if all(row.figure.guesses for row in self.rows) else []
        return [*guessing, *(winner(scenario, self.rows) for scenario in SCENARIOS)]

    def __str__(self) -> str:
        head = f"{self.base} adapted to {self.data}"
        formulas = [label(f"  {name}", formula, 11) for name, formula in self.formulas.items()]
        parts = [
            head,
            "",
            *table([self.header, *self.lines()], rule=True),
            "",
            "Learned, by formula:",
            *formulas,
            "",
        ]
        hardware = "; ".join(self.hardware.values())
        said = [paragraph(sentence) for sentence in (*self.winners, "", HOW, self.note, hardware)]
        return "\n".join([*parts, *said, f"Board: {self.out / REPORT}"])

    def _repr_html_(self) -> str:
        return self._table() + facts(self.formulas) + "".join(map(html_paragraph, self.winners))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "base": str(self.base),
            "data": self.data,
            "hardware": dict(self.hardware),
            "rows": [row.to_dict() for row in self.rows],
            "winners": self.winners,
            "note": self.note,
            "board": str(self.out / REPORT),
        }

    def save(self, folder: Path | None = None) -> Path:
        """Write the board as a page, Markdown, CSV and JSON into a folder; return the page's path."""
        place = folder or self.out
        files = {
            "board.md": self._markdown(),
            "board.csv": self._csv(),
            "board.json": json_text(self.to_dict()),
            REPORT: self._page(),
        }
        write_files(place, files)
        return place / REPORT

    def _table(self) -> str:
        return grid(self.header, [("", cells) for cells in self.lines()])

    def _markdown(self) -> str:
        table = [self.header, ["---", *["--:" for _ in self.rows]], *self.lines()]
        rows = "\n".join(f"| {' | '.join(line)} |" for line in table)
        formulas = "".join(f"- {name}: {formula}\n" for name, formula in self.formulas.items())
        return f"{rows}\n\n{formulas}\n" + "".join(f"- {sentence}\n" for sentence in self.winners) + f"\n{HOW}\n"

    def _csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.header, *self.lines()])
        return text.getvalue()

    def _page(self) -> str:
        head = f"<header>{html_paragraph('Adaptation', 'kicker')}<h1>Ways to adapt</h1>"
        head += f"{html_paragraph(f'{self.base} adapted to {self.data}', 'question')}</header>"
        found = f'<div class="finding">{"".join(map(html_paragraph, self.winners))}</div>'
        measured = section("Measured", self._table(), html_paragraph(f"{HOW} {self.note}".strip(), "note"))
        formulas = section("Learned parameters by formula", facts(self.formulas))
        where = section("Hardware", facts(self.hardware))
        return page("Ways to adapt", [head, found, measured, formulas, where, f"<footer>{FOOTER}</footer>"])


def winner(scenario: Scenario, rows: Sequence[BoardRow]) -> str:
    """Name the method that costs least among those that do the task as well as the best, as far as can be told."""
    best = max(rows, key=lambda row: row.figure.goodness)
    good = [row for row in rows if row.figure.reaches(best.figure)]
    least = min(scenario.cost(row) for row in good)
    alike = [row for row in good if scenario.cost(row) <= ALIKE * least]
    chosen = min(alike, key=lambda row: (-row.figure.goodness, scenario.cost(row)))
    cost = f"{scenario.cost(chosen) / scenario.scale:,.4g} {scenario.unit}"
    others = [row.method for row in alike if row is not chosen]
    same = f" ({' and '.join(others)}: about the same)" if others else ""
    said = f"{scenario.says}: {chosen.method}, by {scenario.measured} ({cost}){same}."
    cheaper = [row for row in rows if row not in good and scenario.cost(row) < least]
    if not cheaper:
        return said
    names = " and ".join(row.method for row in cheaper)
    return f"{said} Cheaper, but worse at the task: {names}."


# All ways to adapt one base to one task, side by side: the board that answers E5 by measurement.


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
    asked: DataArgs,
    method: str,
    words: Mapping[str, Any],
    out: Path,
    watcher: Observer,
    overwrite: bool = False,
    rerank: bool = False,
) -> Adapted | Board | Unfinished | TrainingResult:
    """Adapt a run by one method, or by all of them into folders of their own, with the board that compares them."""
    if method == ALL and asked.option == "images":
        raise SpecError("adapt: the board compares methods on labels, text or pairs. Name one method for images.")
    if method == ALL:
        return compare_methods(run, asked, words, out, watcher, overwrite)
    if leads():
        refuse_occupied(out, overwrite)  # known now, not after the data were read
    plan = plan_adaptation(run, asked, method, words, watcher, rerank=rerank)
    return adapt_run(plan, out, watcher, trainable_text, overwrite)


def compare_methods(
    run: Path | str, asked: DataArgs, words: Mapping[str, Any], out: Path, watcher: Observer, overwrite: bool
) -> Board | Unfinished:
    """Adapt a base by every method into a folder of its own below `out`, measure each, and write the board."""
    refuse_strange_words(words)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SpecError("adapt: --method all measures time and memory of one process. Run it without torchrun.")
    plans: dict[str, AdaptationPlan] = {}
    for name in METHODS:
        ready = next((plan.data for plan in plans.values()), None)
        plans[name] = plan_for(run, asked, name, words, watcher, ready)
        if not is_same(plans[name], out / name):  # known now, not after an hour
            refuse_occupied(out / name, overwrite)
    base = AdaptedBase.of(plans["full"])
    adapted: dict[str, Adapted] = {}
    for number, (name, plan) in enumerate(plans.items(), start=1):
        announced = Announcing(watcher, f"{number} of {len(plans)}: {name}")
        done = finish_run(plan, out / name, announced, trainable_text, overwrite)
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
    asked: DataArgs,
    name: str,
    words: Mapping[str, Any],
    watcher: Observer,
    data: Splits[Any] | None = None,
) -> AdaptationPlan:
    """The plan of one method; a word that only another method knows is left to that one."""
    others = {word for other, kind in METHODS.items() if other != name for word in kind.known_words()}
    own = {word: value for word, value in words.items() if word in METHODS[name].known_words() or word not in others}
    return plan_adaptation(run, asked, name, own, watcher, data)


def measured(
    plans: Mapping[str, AdaptationPlan], adapted: Mapping[str, Adapted], base: AdaptedBase, out: Path, watcher: Observer
) -> Board:
    """Take of every method what its training does not show: memory, time of inference, what it has forgotten."""
    plan = next(iter(plans.values()))
    device = device_of(plan.recipe)
    watcher.say("measuring memory, time of inference and forgetting")
    models = {name: load(one.path, device).module for name, one in adapted.items()}
    times = inference_times(models, inference_batch(plan.data, plan.model, device), device)
    lost = {name: base.forgotten(load(one.path, device)) for name, one in adapted.items()}
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
    about = plan.data.about
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


def inference_batch(data: Splits[Any], spec: ModelSpec, device: str) -> tuple[Tensor, ...]:
    """A batch of what is held out, as the model is called with it."""
    match data.tokens("validation"):
        case Labelled():
            examples = data.tokens("test")
            inputs, _ = examples.batch(np.arange(min(TEXTS, len(examples.lengths))))
            return (torch.from_numpy(inputs).to(device),)
        case TokenPairs() as examples:
            sources, targets = examples.batch(np.arange(min(TEXTS, len(examples.lengths))))
            fed, _ = teacher_forcing(torch.from_numpy(targets).to(device))
            return torch.from_numpy(sources).to(device), fed
        case text:
            length = min(STRETCH, getattr(spec, "context", STRETCH), len(text))
            rows = min(TEXTS, len(text) // length)
            tokens = np.asarray(text[: rows * length], dtype=np.int64).reshape(rows, length)
            return (torch.from_numpy(tokens).to(device),)


def peak_bytes(plan: AdaptationPlan, path: Path, device: str) -> int:
    """The most memory that one step of this method's training holds."""
    folder = RunFolder.open(path)
    recipe = folder.recipe.replace(compile=False)
    first = partial(first_model, folder)
    tokens: Any = plan.data.tokens("train")
    session = Session(folder.spec, recipe, tokens, Distributed(torch.device(device)), lambda message: None, first)
    try:
        return peak_of_step(session)
    finally:
        session.batches.close()


@torch.no_grad()
def _forward(model: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    return model(*inputs)
