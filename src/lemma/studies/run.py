"""What is measured of a trained model: its score, what it says, the loop it falls into."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lemma.data.files import write_atomically
from lemma.data.splits import Splits
from lemma.data.store import TokenArray, prepare
from lemma.data.tokenizers import Tokenizer
from lemma.errors import LemmaError, RunError, SpecError, TrainingError, unknown
from lemma.generation.decode import Generation, generate_text
from lemma.generation.sampling import Sampling
from lemma.models.base import LanguageModel
from lemma.report.progress import Observer, Silent, watched_reading
from lemma.runs.folder import RunFolder, is_begun, remove_unbegun
from lemma.runs.load import Run, load
from lemma.spec.base import to_toml
from lemma.spec.recipe import Recipe
from lemma.spec.studies import StudySpec
from lemma.studies.cells import (
    Announcing,
    Cell,
    CurvePoint,
    Loop,
    Measures,
    Outcome,
    Plan,
    Talk,
    describe_hardware,
    keep_failure,
    keep_measures,
    kept_failure,
    kept_measures,
    known_plan,
    plan_run,
    size_cells,
)
from lemma.studies.measures import has_all, measure_more
from lemma.studies.result import StudyResult
from lemma.tasks.language import PerplexityScore, TextSource, perplexity
from lemma.training.loop import resume, train

TEMPERATURE = 0.8
SPLIT = "validation"


class Judge:
    """Gives a model its score, a full pass over the validation text, and remembers those that it gave."""

    def __init__(self, dataset: Splits[TokenArray]) -> None:
        self.dataset = dataset
        self.given: dict[float, PerplexityScore] = {}

    def __call__(self, model: LanguageModel) -> PerplexityScore:
        """Read the whole validation text."""
        source = TextSource(self.dataset.tokenizer.about, self.dataset.hash, SPLIT)
        tokens = self.dataset.tokens(SPLIT)
        score = perplexity(model, tokens, bytes=tokens.bytes, source=source)
        self.given[score.loss] = score
        return score

    def of(self, run: Run) -> PerplexityScore:
        """The score of a finished run: the one that training ended with, if it was given here, or else a new pass."""
        summary = run.summary or {}
        ended_with = summary["best_loss"] if run.recipe.keep == "best" else summary["validation_loss"]
        return self.given.get(ended_with) or self(run.model)


def measure(plan: Plan, study: StudySpec, judge: Judge) -> Measures:
    """Load a finished run and measure all that the report shows."""
    run = load(plan.path, device_of(plan.recipe))
    if run.note:  # the weights are not those that the run ended with
        raise RunError(run.note)
    scored = judge.of(run)
    if not math.isfinite(scored.perplexity):
        raise TrainingError(f"{plan.path}: the validation loss is {scored.loss}, so that there is no perplexity.")
    summary: Mapping[str, Any] = run.summary or {}
    return Measures(
        model=plan.model.to_dict(),
        recipe=plan.recipe.to_dict(),
        parameters=summary["parameters"],
        tokens=summary["tokens"],
        seconds=summary["seconds"],
        tokens_per_second=summary["tokens_per_second"],
        loss=scored.loss,
        perplexity=scored.perplexity,
        bits_per_byte=scored.bits_per_byte,
        protocol=scored.protocol.to_dict(),
        curve=read_curve(RunFolder.open(plan.path)),
        sample=talk(run.model, run.tokenizer, study, TEMPERATURE),
        greedy=talk(run.model, run.tokenizer, study, 0.0),
        trial_speed=plan.trial_speed,
        more=measure_more(run, plan, study, judge.dataset),
    )


def device_of(recipe: Recipe) -> str:
    """Where a run of this recipe is measured: where it was trained."""
    return device_named(recipe.device)


def device_named(name: str) -> str:
    """The device that a spec's `device` means here."""
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


def read_curve(folder: RunFolder) -> tuple[CurvePoint, ...]:
    """The validations of a run on its way."""
    rows = [row for row in folder.metrics.rows() if "validation_loss" in row]
    return tuple(CurvePoint(row["tokens"], row["seconds"], row["validation_loss"]) for row in rows)


def talk(model: LanguageModel, tokenizer: Tokenizer, study: StudySpec, temperature: float) -> Talk:
    """Let a model go on from the study's prompt; an `<eos>` does not end it, since loops may lead through it."""
    settings = Sampling(tokens=study.sample_tokens, temperature=temperature, stop_at_eos=False)
    [said] = generate_text(model, tokenizer, [study.prompt], settings)
    return Talk(said.prompt, said.text, cut_loop(said, tokenizer))


def cut_loop(said: Generation, tokenizer: Tokenizer) -> Loop | None:
    """Find where in the text the first round of a loop begins and ends.

    A token may be a part of a character, or bring a space with it only behind another: so the places are where the
    text of the first tokens parts from the text of them all.
    """
    if said.loop is None:
        return None
    last = tokenizer.encode(said.prompt).tolist()[-1:]
    lead = len(tokenizer.decode(last))
    ends = (
        _shared(said.text, tokenizer.decode([*last, *said.tokens[:count]])[lead:])
        for count in (said.loop.onset, said.loop.onset + said.loop.period)
    )
    return Loop(said.loop.onset, said.loop.period, said.loop.proved, said.loop.state, *ends)


def _shared(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


# Running a study: each cell trained once, whatever happens in between.


def run_study(
    spec: StudySpec, out: Path, *, observer: Observer | None = None, only: Collection[str] | None = None
) -> StudyResult:
    """Run a study in the folder `out`, save its table and report there, and return what it came to.

    A finished run is not repeated and an interrupted one goes on, so that a study that was stopped is finished by the
    same call. A run that fails becomes a row with its reason, and is tried again by the next call. `only` names the
    contenders or runs to train now; of the others what is there is shown.
    """
    watcher = observer or Silent()
    dataset = prepare(spec.data, progress=watched_reading(watcher))
    dataset.tokenizer.encode(spec.prompt)  # a prompt that cannot be read is an error now, not after an hour
    cells = size_cells(spec, dataset.tokenizer.vocabulary)
    work = Work(spec, dataset, out)
    work.refuse_other_runs(cells)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "study.toml", to_toml(spec.to_dict()))
    runs, interrupted = work.run(cells, select(cells, only), watcher)
    hardware = describe_hardware(device_of(cells[0].recipe))
    result = StudyResult(spec, runs, describe_data(dataset), hardware, out, interrupted)
    result.save()
    return result


def select(cells: Sequence[Cell], only: Collection[str] | None) -> list[Cell]:
    """The cells of the contenders or runs that are named; all of them if nothing is."""
    names = {name: None for cell in cells for name in (cell.contender, cell.name)}
    for name in only or ():
        if name not in names:
            raise SpecError(unknown("only", name, names))
    return [cell for cell in cells if only is None or {cell.contender, cell.name} & set(only)]


def describe_data(dataset: Splits[TokenArray]) -> dict[str, str]:
    """What the text is, in words."""
    lengths = {
        split: f"{len(dataset.tokens(split)):,} tokens, {dataset.tokens(split).bytes:,} bytes"
        for split in ("train", SPLIT)
    }
    return {
        "text": dataset.about,
        "tokenizer": dataset.tokenizer.about,
        "training text": lengths["train"],
        "validation text": lengths[SPLIT],
        "SHA-256": dataset.hash,
    }


@dataclass(frozen=True)
class Work:
    """A study with its text and its folder."""

    spec: StudySpec
    dataset: Splits[TokenArray]
    out: Path

    def refuse_other_runs(self, cells: Sequence[Cell]) -> None:
        """Refuse a folder of another study before anything is trained."""
        for cell in cells:
            known_plan(self.spec, cell, self.dataset, self.out)

    def run(self, cells: Sequence[Cell], chosen: Sequence[Cell], watcher: Observer) -> tuple[tuple[Outcome, ...], bool]:
        """Finish the chosen cells one by one; return the outcomes of all, and whether Ctrl-C came in between."""
        done: dict[str, Outcome] = {}
        interrupted = False
        try:
            for number, cell in enumerate(chosen, start=1):
                title = f"run {number} of {len(chosen)}: {cell}"
                done[cell.name] = self.finish(cell, Announcing(watcher, title))
        except KeyboardInterrupt:
            interrupted = True
        return tuple(done.get(cell.name) or self.look(cell) for cell in cells), interrupted

    def look(self, cell: Cell) -> Outcome:
        """What is there of a cell that is not run now."""
        plan = known_plan(self.spec, cell, self.dataset, self.out)
        measures = self._whole(kept_measures(plan.path, plan.identity)) if plan else None
        return Outcome(cell, measures, None if measures else kept_failure(self.out / "runs" / cell.name))

    def finish(self, cell: Cell, watcher: Observer) -> Outcome:
        """Bring a cell to its end; whatever goes wrong becomes its reason, and the study goes on."""
        try:
            plan = plan_run(self.spec, cell, self.dataset, self.out)
            return Outcome(cell, self._kept(plan) or self._measured(plan, watcher))
        except Exception as error:
            reason = str(error) if isinstance(error, LemmaError) else f"{type(error).__name__}: {error}"
            keep_failure(self.out / "runs" / cell.name, reason)
            watcher.say(f"failed: {reason}")
            return Outcome(cell, reason=reason)

    def _kept(self, plan: Plan) -> Measures | None:
        finished = is_begun(plan.path) and RunFolder.open(plan.path).finished
        return self._whole(kept_measures(plan.path, plan.identity)) if finished else None

    def _whole(self, measures: Measures | None) -> Measures | None:
        """What was kept, unless the study has asked for more since: then the run is measured again."""
        return measures if measures and has_all(measures.more, self.spec) else None

    def _measured(self, plan: Plan, watcher: Observer) -> Measures:
        judge = Judge(self.dataset)
        self._train(plan, judge, watcher)
        measures = measure(plan, self.spec, judge)
        keep_measures(plan.path, plan.identity, measures)
        return measures

    def _train(self, plan: Plan, judge: Judge, watcher: Observer) -> None:
        given = {"evaluate": judge, "sample": lambda model: [], "observer": watcher}
        if not is_begun(plan.path):
            remove_unbegun(plan.path)
            result = train(plan.model, plan.recipe, self.spec.data, self.dataset, plan.path, **given)
        elif RunFolder.open(plan.path).finished:
            return
        else:
            result = resume(plan.path, self.dataset, **given)
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
