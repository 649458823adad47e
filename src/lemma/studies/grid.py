"""Language models on one text, at every place of a grid, with equal budgets: the studies families, table-a5 and others.

The file says which cells a study has, how one is trained, and what is measured of it; `grid_report` what they show.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lemma.data.splits import Splits
from lemma.data.store import TokenArray, prepare
from lemma.errors import SpecError, unknown
from lemma.report.progress import Observer, watched_reading
from lemma.runs.load import Run
from lemma.spec.base import Spec, distribute
from lemma.spec.choose import Choice, choose
from lemma.spec.recipe import Recipe
from lemma.spec.studies import ComparedModel, GridStudy
from lemma.studies.budget import fit_parameters, fit_steps, measure_speed, spread_validations
from lemma.studies.experiment import (
    CellOutcome,
    RunPlan,
    StudyCell,
    TrainingExperiment,
    read_json,
    write_json,
)
from lemma.studies.grid_report import report_grid
from lemma.studies.measures import SPLIT, LanguageMeasures, Scorer, has_all, measure
from lemma.studies.result import StudyResult
from lemma.studies.timing import describe_hardware, device_of

FROM_TOKENIZER = "It comes from the tokenizer, the same for every run: set data.tokenizer.vocabulary."
RESERVED = {
    "vocabulary": FROM_TOKENIZER,
    "V": FROM_TOKENIZER,
    "seed": "Give the study `seeds`, as in seeds=[1,2,3].",
    "family": "Name another model, as in model = 'lstm'.",
}


# The cells: models × grid × seeds.


def open_grid(study: GridStudy) -> tuple[StudyCell, ...]:
    """The cells of a study: seeds run fastest, models slowest.

    >>> from lemma.spec.studies import read_study
    >>> [cell.name for cell in open_grid(read_study("table-a5", {"seeds": [1], "grid.context": [3], "claims": []}))]
    ['table-a5-depth-2-context-3-seed-1', 'table-a5-depth-4-context-3-seed-1']
    """
    bases = {model.title: choose(model.model) for model in study.models}
    _refuse_foreign_settings(study, bases)
    cells: dict[str, StudyCell] = {}
    for model in study.models:
        for values in itertools.product(*study.grid.values()):
            point = dict(zip(study.grid, values, strict=True))
            for seed in study.seeds:
                cell = _cell(study, model, bases[model.title], point, seed)
                if other := cells.get(cell.name.lower()):
                    raise SpecError(
                        f"study: '{other}' and '{cell}' would both run in the folder {cell.name}. "
                        "Give the models or the values names that differ in letters or digits."
                    )
                cells[cell.name.lower()] = cell
    return tuple(cells.values())


def _cell(study: GridStudy, model: ComparedModel, base: Choice, point: Mapping[str, Any], seed: int) -> StudyCell:
    kinds: dict[str, type[Spec]] = {"model": type(base.model), "recipe": Recipe}
    shared = {word: value for word, value in study.settings.items() if knows(kinds, word)}
    of_model: dict[str, Any] = {}
    of_recipe: dict[str, Any] = {}
    for words in (shared, model.settings, point):
        shares = distribute(words, kinds)
        of_model |= shares["model"]
        of_recipe |= shares["recipe"]
    recipe = base.recipe.replace(**of_recipe, seed=seed)
    return StudyCell(model.title, point, seed, base.model.replace(**of_model), recipe, frozenset(of_model))


def knows(kinds: Mapping[str, type[Spec]], word: str) -> bool:
    """Whether one of these specs has a setting of that name."""
    return any(word.partition(".")[0] in kind.known_words() for kind in kinds.values())


def refuse_reserved(words: Sequence[str], reserved: Mapping[str, str]) -> None:
    """Refuse a setting that the study sets itself, and say where it comes from."""
    for word in words:
        if word in reserved:
            raise SpecError(f"study: '{word}' is not a setting of single runs. {reserved[word]}")


def _refuse_foreign_settings(study: GridStudy, bases: Mapping[str, Choice]) -> None:
    """Refuse settings that no model has, that a model does not have, or that are not the study's to set."""
    kinds = {title: {"model": type(base.model), "recipe": Recipe} for title, base in bases.items()}
    known = {
        title: [word for kind in some.values() for word in kind.known_words() if word not in RESERVED]
        for title, some in kinds.items()
    }
    for word in study.settings:
        if not any(knows(some, word) for some in kinds.values()):
            everything = dict.fromkeys(itertools.chain(*known.values()))
            raise SpecError(unknown("study.settings: the setting", word, everything))
    for model in study.models:
        own = kinds[model.title]
        for where, words in (("study.grid", study.grid), ("study.models", model.settings)):
            for word in words:
                if not knows(own, word):
                    raise SpecError(unknown(f"{where}: for {model.title}, the setting", word, known[model.title]))
        ours, theirs = (distribute(words, own) for words in (study.grid, model.settings))
        for owner, words in ours.items():
            if both := sorted(words.keys() & theirs[owner].keys()):
                raise SpecError(f"study: {model.title} sets {both[0]}, which the grid sets too. Take one away.")
    of_models = [word for model in study.models for word in model.settings]
    refuse_reserved([*study.settings, *study.grid, *of_models], RESERVED)


# The experiment.


class GridExperiment(TrainingExperiment[LanguageMeasures]):
    """Train every model at every place of the grid with every seed, on one text and one budget."""

    spec: GridStudy
    measures = LanguageMeasures
    keeps_checkpoints = True

    def __init__(self, spec: GridStudy, out: Path, observer: Observer) -> None:
        self.spec, self.out, self.observer = spec, out, observer
        self.dataset = prepare(spec.data, progress=watched_reading(observer))
        self.dataset.tokenizer.encode(spec.prompt)  # a prompt that cannot be read is an error now, not after an hour
        self.sized = tuple(map(self._sized, open_grid(spec)))

    def _sized(self, cell: StudyCell) -> StudyCell:
        """The cell with the vocabulary of the text, and the sizes that meet the budget of parameters."""
        assert cell.model is not None
        model = cell.model.replace(vocabulary=self.dataset.tokenizer.vocabulary)
        if self.spec.budget.parameters:
            model = fit_parameters(model, self.spec.budget.parameters, cell.fixed).model
        return replace(cell, model=model)

    def cells(self) -> tuple[StudyCell, ...]:
        """Models × grid × seeds."""
        return self.sized

    def plan(self, cell: StudyCell) -> RunPlan | None:
        """Model, recipe and steps; None if there is a budget of seconds and the speed is not known yet."""
        assert cell.model is not None
        budget, speed = self.spec.budget, None
        if budget.seconds:
            kept = read_json(self._speed_file(cell)) or {}
            if kept.get("of") != self._speed_of(cell):
                return None
            speed = float(kept["tokens_per_second"])
        recipe = spread_validations(fit_steps(cell.model, cell.recipe, budget, speed), self.spec.validations)
        scorer = Scorer(self.dataset)
        return RunPlan(self.path(cell), cell.model, recipe, self.spec.data, self.dataset, scorer, trial_speed=speed)

    def run(self, cell: StudyCell, observer: Observer) -> LanguageMeasures:
        """Settle the number of steps, if need be by a speed trial, then train and measure.

        The speed of a row is measured once: all its seeds, and a study that goes on later, take the same steps.
        """
        if self.plan(cell) is None:
            assert cell.model is not None
            speed = measure_speed(cell.model, cell.recipe, self.spec.data, self.dataset)
            write_json(self._speed_file(cell), {"of": self._speed_of(cell), "tokens_per_second": speed})
        return super().run(cell, observer)

    def _speed_file(self, cell: StudyCell) -> Path:
        return self.out / "speeds" / f"{cell.row_name}.json"

    def _speed_of(self, cell: StudyCell) -> dict[str, Any]:
        """What a speed depends on: everything of a run but its seed."""
        assert cell.model is not None
        recipe = cell.recipe.replace(seed=0)
        return {"model": cell.model.to_dict(), "recipe": recipe.to_dict(), "data": self.dataset.hash}

    def measure(self, run: Run, plan: RunPlan) -> LanguageMeasures:
        """Score, samples, loops and what else the study asks for."""
        assert isinstance(plan.evaluate, Scorer)
        return measure(run, plan, self.spec, plan.evaluate)

    def is_complete(self, measures: LanguageMeasures) -> bool:
        """Whether all that the study asks for by now was measured; if not, the run is measured again."""
        return has_all(measures.more, self.spec)

    def report(self, outcomes: tuple[CellOutcome[LanguageMeasures], ...], interrupted: bool) -> StudyResult:
        """Table, claims, conclusion, curves and samples."""
        hardware = describe_hardware(device_of(self.sized[0].recipe))
        return report_grid(self.spec, outcomes, describe_text(self.dataset), hardware, self.out, interrupted)


def describe_text(dataset: Splits[TokenArray]) -> dict[str, str]:
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
