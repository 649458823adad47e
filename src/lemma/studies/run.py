"""Running a study: each cell trained once, whatever happens in between."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from lemma.data import Dataset, prepare
from lemma.errors import LemmaError, SpecError, unknown
from lemma.runs import RunFolder, write_atomically
from lemma.runs.folder import is_begun, remove_unbegun
from lemma.spec import StudySpec, to_toml
from lemma.studies.announcing import Announcing
from lemma.studies.grid import Cell
from lemma.studies.hardware import describe_hardware
from lemma.studies.keeping import keep_failure, keep_measures, kept_failure, kept_measures
from lemma.studies.measuring import SPLIT, Judge, device_of, measure
from lemma.studies.more import has_all
from lemma.studies.outcome import Measures, Outcome
from lemma.studies.plan import Plan, known_plan, plan_run, size_cells
from lemma.studies.result import StudyResult
from lemma.training import Observer, Silent, resume, train, watched_reading


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


def describe_data(dataset: Dataset) -> dict[str, str]:
    """What the text is, in words."""
    lengths = {
        split: f"{len(dataset.tokens(split)):,} tokens, {dataset.bytes(split):,} bytes" for split in ("train", SPLIT)
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
    dataset: Dataset
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
