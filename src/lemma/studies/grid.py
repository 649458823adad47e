"""Language models on one text, with equal budgets: at every point of a grid of settings, or searched by Optuna."""

import itertools
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from lemma.data.store import prepare_text
from lemma.errors import RunError, SpecError, describe_unknown
from lemma.optional import import_optional
from lemma.report.progress import Observer, reading_progress
from lemma.runs.load import Run
from lemma.spec.base import Spec, assign_settings
from lemma.spec.choose import Choice, choose, read_model
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import Recipe
from lemma.spec.studies import GridStudy, TuneStudy
from lemma.studies.budget import fit_parameters, fit_schedule, fit_steps, measure_speed, tokens_per_step
from lemma.studies.cells import (
    RESERVED_SETTINGS,
    CellOutcome,
    StudyCell,
    check_reserved,
    format_settings,
    group_rows,
    has_setting,
)
from lemma.studies.experiment import RunPlan, TitledObserver, TrainingExperiment, hold_lock, read_json, write_json
from lemma.studies.grid_report import ChosenRate, report_grid
from lemma.studies.measures import SPLIT, VALIDATION_TOKENS, LanguageMeasures, Row, Scorer, measure_run
from lemma.studies.result import StudyResult
from lemma.studies.timing import TIME_NEUTRAL_SETTINGS, describe_hardware, device_of, time_steps


def expand_grid(study: GridStudy) -> tuple[StudyCell, ...]:
    """Return the cells of a study: every model at every grid point with every seed; seeds vary fastest.

    >>> from lemma.spec.studies import read_study
    >>> [cell.name for cell in expand_grid(read_study("table-a5", {"seeds": [1], "grid.context": [3], "claims": []}))]
    ['table-a5-depth-2-context-3-seed-1', 'table-a5-depth-4-context-3-seed-1']
    """
    bases = {model.title: choose(model.model) for model in study.models}
    _check_settings(study, bases)
    cells: dict[str, StudyCell] = {}
    for model in study.models:
        base = bases[model.title]
        specs: dict[str, type[Spec]] = {"model": type(base.model), "recipe": Recipe}
        shared = {name: value for name, value in study.settings.items() if has_setting(specs, name)}
        for values in itertools.product(*study.grid.values()):
            point = dict(zip(study.grid, values, strict=True))
            model_settings: dict[str, Any] = {}
            recipe_settings: dict[str, Any] = {}
            for settings in (shared, model.settings, point):
                distributed = assign_settings(settings, specs)
                model_settings |= distributed["model"]
                recipe_settings |= distributed["recipe"]
            model_spec = base.model.replace(**model_settings)
            for seed in study.seeds:
                recipe = base.recipe.replace(**recipe_settings, seed=seed)
                fixed = frozenset(model_settings), frozenset(recipe_settings)
                cell = StudyCell(model.title, point, seed, model_spec, recipe, *fixed)
                if other := cells.get(cell.name.lower()):
                    raise SpecError(
                        f"study: '{other}' and '{cell}' would both run in the folder {cell.name}. "
                        "Give the models or the values names that differ in letters or digits."
                    )
                cells[cell.name.lower()] = cell
    return tuple(cells.values())


def _check_settings(study: GridStudy, bases: Mapping[str, Choice]) -> None:
    """Raise a SpecError for a shared setting that no model has, a setting that its model lacks, or a reserved one.

    `bases` are the models by title.
    """
    specs = {title: {"model": type(base.model), "recipe": Recipe} for title, base in bases.items()}
    names = {
        title: [name for spec in of_model.values() for name in spec.setting_names() if name not in RESERVED_SETTINGS]
        for title, of_model in specs.items()
    }
    for setting in study.settings:
        if not any(has_setting(of_model, setting) for of_model in specs.values()):
            all_names = dict.fromkeys(itertools.chain(*names.values()))
            raise SpecError(describe_unknown("study.settings: setting", setting, all_names))
    for model in study.models:
        of_model = specs[model.title]
        for source, settings in (("study.grid", study.grid), ("study.models", model.settings)):
            for setting in settings:
                if not has_setting(of_model, setting):
                    title = f"{source}: {model.title}: setting"
                    raise SpecError(describe_unknown(title, setting, names[model.title]))
        in_grid, in_model = (assign_settings(settings, of_model) for settings in (study.grid, model.settings))
        for owner, settings in in_grid.items():
            if twice := sorted(settings.keys() & in_model[owner].keys()):
                raise SpecError(f"study: {model.title} sets {twice[0]}, which the grid sets too. Take one away.")
    settings = [*study.settings, *study.grid, *(name for model in study.models for name in model.settings)]
    if study.tune and "learning_rate" in settings:
        raise SpecError(
            "study: tune chooses learning_rate, which the settings or the grid set too. Take that away, or set "
            "tune=false."
        )
    check_reserved(settings, RESERVED_SETTINGS)


class GridExperiment(TrainingExperiment[LanguageMeasures]):
    """Experiment that trains every model at every point of the grid with every seed, on one text and one budget."""

    spec: GridStudy
    measures_type = LanguageMeasures
    keeps_checkpoints = True

    def __init__(self, spec: GridStudy, out: Path, observer: Observer) -> None:
        self.spec, self.out, self.observer = spec, out, observer
        self.dataset = prepare_text(spec.data, progress=reading_progress(observer))
        self.dataset.tokenizer.encode(spec.prompt)  # a prompt that cannot be read is an error now, not after an hour
        self.adjustments: dict[str, None] = {}  # notes on settings that did not fit, and what was done instead
        self.all_cells = list(self.fit_cells(spec))

    def fit_cells(self, study: GridStudy) -> Iterator[StudyCell]:
        """Yield the cells of a study with models sized to the tokenizer and the parameter budget."""
        for cell in expand_grid(study):
            assert cell.model is not None
            model = cell.model.replace(vocabulary=self.dataset.tokenizer.vocabulary)
            if study.budget.parameters:
                model = fit_parameters(model, study.budget.parameters, cell.fixed_sizes)
            yield replace(cell, model=model)

    def cells(self) -> list[StudyCell]:
        """Return all cells, with models sized to the budget."""
        return self.all_cells

    def trials(self, cells: Sequence[StudyCell]) -> list[StudyCell]:
        """Return cells of short runs, one per learning rate and row of `cells`, with a seed that no other run has."""
        if self.spec.tune is None:
            return []
        rows = {cell.row_name: cell for cell in cells}
        seed = max(self.spec.seeds) + 1
        return [
            replace(cell, point={**cell.point, "learning_rate": rate}, seed=seed, is_trial=True)
            for cell in rows.values()
            for rate in self.spec.tune.learning_rate
        ]

    def choose_rate(self, cell: StudyCell) -> ChosenRate | None:
        """Return the learning rate whose trial has the lowest perplexity, and all results; None until all ended."""
        outcomes = [self.load_outcome(trial) for trial in self.trials([cell])]
        if any(outcome.measures is None and outcome.reason is None for outcome in outcomes):
            return None
        perplexities = {
            outcome.cell.point["learning_rate"]: outcome.measures.perplexity if outcome.measures else None
            for outcome in outcomes
        }
        finished = {rate: perplexity for rate, perplexity in perplexities.items() if perplexity is not None}
        if not finished:
            return None
        tokens = sum(outcome.measures.tokens for outcome in outcomes if outcome.measures)
        return ChosenRate(min(finished, key=finished.__getitem__), perplexities, tokens)

    def plan_inputs(self, cell: StudyCell) -> tuple[Hashable, ...] | None:
        """Return (tokens/s if the budget is in seconds, learning rate if tuned); None until both are known."""
        speed = rate = None
        if self.spec.budget.seconds:
            path, identity = self._speed_key(cell)
            stored = read_json(path) or {}
            if stored.get("of") != identity:
                return None
            speed = float(stored["tokens_per_second"])
        if self.spec.tune and not cell.is_trial:
            chosen = self.choose_rate(cell)
            if chosen is None:
                return None
            rate = chosen.rate
        return speed, rate

    def make_plan(self, cell: StudyCell, *inputs: Any) -> RunPlan:
        """Return the plan to train a cell; `inputs` are its tokens/s and tuned learning rate, each None if not used."""
        speed, rate = inputs
        assert cell.model is not None
        tune, validations = self.spec.tune, self.spec.validations
        recipe = fit_steps(cell.model, cell.recipe, self.spec.budget, speed)
        if tune and cell.is_trial:
            steps = max(1, round(tune.share * recipe.steps))
            changes = {"steps": steps, "learning_rate": cell.point["learning_rate"], "seed": cell.seed}
            recipe, validations = recipe.replace(**changes, evaluate_every=None), 1
        elif rate is not None:
            recipe = recipe.replace(learning_rate=rate)
        step_tokens = tokens_per_step(cell.model, recipe)
        validation_tokens = min(VALIDATION_TOKENS, len(self.dataset.item(SPLIT)))
        recipe, notes = fit_schedule(recipe, cell.recipe_settings, validations, step_tokens, validation_tokens)
        if not cell.is_trial:
            self.adjustments |= dict.fromkeys(notes)
        validates_once = (recipe.evaluate_every or 1) >= recipe.steps  # at its end, where all of the text is read
        max_tokens = None if validates_once and not cell.is_trial else VALIDATION_TOKENS
        scorer = Scorer(self.dataset, max_tokens, full_pass=not cell.is_trial)
        return RunPlan(self.path(cell), cell.model, recipe, self.spec.data, self.dataset, scorer, trial_speed=speed)

    def prepare(self, cells: Sequence[StudyCell]) -> None:
        """Measure the speed of each row if the budget is in seconds, and log settings that had to be changed.

        The speed of a row is measured once: all its seeds, and a study that is continued later, take the same steps.
        """
        for cell in {cell.row_name: cell for cell in reversed(cells)}.values():
            with suppress(Exception):  # the cell will say what is wrong with it
                self._measure_speed(cell)
        for note in self.adjustments:
            self.observer.log(note)

    def run(self, cell: StudyCell, observer: Observer) -> LanguageMeasures:
        """Train and measure a cell; raise RunError if no trial of a learning rate finished."""
        self._measure_speed(cell)
        if self.plan(cell) is None:
            reasons = [outcome.reason for outcome in map(self.load_outcome, self.trials([cell])) if outcome.reason]
            raise RunError(f"no learning rate of tune finished: {reasons[0] if reasons else 'none was tried'}")
        return super().run(cell, observer)

    def _measure_speed(self, cell: StudyCell) -> None:
        """Measure and store the training speed of a cell's row, unless the budget is not in seconds or it is stored."""
        path, identity = self._speed_key(cell)
        if self.spec.budget.seconds and (read_json(path) or {}).get("of") != identity:
            assert cell.model is not None
            speed = measure_speed(cell.model, cell.recipe, self.spec.data, self.dataset)
            write_json(path, {"of": identity, "tokens_per_second": speed})

    def _speed_key(self, cell: StudyCell) -> tuple[Path, dict[str, Any]]:
        """Return the file that stores a row's speed, and its identity: model, recipe without seed, and data."""
        if cell.is_trial:
            cell = replace(cell, point={name: cell.point[name] for name in self.spec.grid})
        assert cell.model is not None
        recipe = cell.recipe.replace(seed=0).to_dict()
        identity = {"model": cell.model.to_dict(), "recipe": recipe, "data": self.dataset.hash}
        return self.out / "speeds" / f"{cell.row_name}.json", identity

    def measure(self, run: Run, plan: RunPlan) -> LanguageMeasures:
        """Measure score, samples, loops and everything else the study asks for; for a trial only the score matters."""
        assert isinstance(plan.evaluate, Scorer)
        is_trial = plan.path.parent != self.out / "runs"
        study = self.spec.replace(sample_tokens=1, measures=()) if is_trial else self.spec
        return measure_run(run, plan, study, plan.evaluate)

    def is_complete(self, cell: StudyCell, measures: LanguageMeasures) -> bool:
        """Return whether stored measures include all that the study requests, at the requested length."""
        names = () if cell.is_trial else self.spec.measures
        return all(
            name in measures.more and measures.more[name].get("beyond", self.spec.beyond) == self.spec.beyond
            for name in names
        )

    def time_rows(self, rows: Sequence[Row], hardware: Mapping[str, str], may_time: bool) -> dict[str, list[float]]:
        """Time training steps of all rows' models in turns; return the seconds per token by row title, cached on disk.

        Rows whose steps cannot differ share a timing. If nothing is cached and `may_time` is False, the result is
        empty. `hardware` is what `describe_hardware` returns.
        """
        models: dict[str, tuple[ModelSpec, Recipe]] = {}
        keys: dict[str, str] = {}
        for row in rows:
            if row.first:
                recipe = {name: value for name, value in row.first.recipe.items() if name not in TIME_NEUTRAL_SETTINGS}
                keys[row.title] = json.dumps([row.first.model, recipe], sort_keys=True)
                models[keys[row.title]] = read_model(row.first.model, "study"), Recipe.read(row.first.recipe, "study")
        identity = {"models": sorted(models), "hardware": dict(hardware), "data": self.dataset.hash}
        with hold_lock(self.out / "runs" / ".speed.lock", self.observer):  # another call here would disturb the times
            stored = read_json(self.out / "speed.json") or {}
            if stored.get("of") != identity:
                if not models or not may_time:
                    return {}
                self.observer.log("timing a training step of each model, in turns")
                stored = {"of": identity, "seconds": time_steps(models, self.dataset.item("train"))}
                write_json(self.out / "speed.json", stored)
        return {title: stored["seconds"][key] for title, key in keys.items() if key in stored["seconds"]}

    def report(self, outcomes: tuple[CellOutcome[LanguageMeasures], ...], interrupted: bool) -> StudyResult:
        """Build the report: table, claims, curves, speed and chosen learning rates."""
        train, validation = (
            f"{len(tokens):,} tokens, {tokens.bytes:,} bytes" for tokens in map(self.dataset.item, ("train", SPLIT))
        )
        data = {
            "text": self.dataset.description,
            "tokenizer": self.dataset.tokenizer.description,
            "training text": train,
            "validation text": validation,
            "SHA-256": self.dataset.hash,
            **({"overlap": "; ".join(self.dataset.overlaps)} if self.dataset.overlaps else {}),
            **({"adapted": "; ".join(self.adjustments)} if self.adjustments else {}),
        }
        hardware = describe_hardware(device_of(self.all_cells[0].recipe))
        rows = group_rows(outcomes)
        seconds = self.time_rows(rows, hardware, not interrupted)
        rates = {}
        if self.spec.tune:
            cells = {(cell.condition, cell.point_text): cell for cell in self.all_cells}
            for row in rows:
                if chosen := self.choose_rate(cells[row.condition, format_settings(row.point)]):
                    rates[row.title] = chosen
        return report_grid(self.spec, outcomes, data, hardware, self.out, interrupted, seconds, rates)


# The tune study: settings of one model searched by Optuna.


class TuneExperiment(GridExperiment):
    """Experiment in which Optuna searches settings of one model; each trial, of all seeds, is a row of the table.

    Optuna's own order is fixed by a seed, so that a search that was stopped asks for the same trials again, and finds
    what is stored of them.
    """

    spec: TuneStudy  # pyright: ignore[reportIncompatibleVariableOverride]
    serial_reason = "each trial depends on those before it"

    def __init__(self, spec: TuneStudy, out: Path, observer: Observer) -> None:
        self.optuna = import_optional("optuna", "optuna", "study tune")
        super().__init__(spec, out, observer)
        self.all_cells.clear()
        for end in (0, -1):  # a setting that does not exist, or no value of it, is an error now
            self._trial_cells({setting: values[end] for setting, values in spec.space.items()})

    def _trial_cells(self, point: Mapping[str, Any]) -> list[StudyCell]:
        """Return the cells of one combination of settings (`point`), one per seed."""
        model = self.spec.models[0]
        fields = {name: getattr(self.spec, name) for name in GridStudy.model_fields}
        study = GridStudy(**{**fields, "models": (model.replace(settings={**model.settings, **point}),)})
        return [replace(cell, point=dict(point)) for cell in self.fit_cells(study)]

    def prepare(self, cells: Sequence[StudyCell]) -> None:
        """Run the search: let Optuna choose settings, train them seed by seed, and tell it the mean loss.

        A trial that is worse than the best by paired differences is stopped before its last seed.
        """
        self.optuna.logging.set_verbosity(self.optuna.logging.WARNING)
        search = self.optuna.create_study(sampler=self.optuna.samplers.TPESampler(seed=1))
        states, best = self.optuna.trial.TrialState, {}
        for number in range(1, self.spec.trials + 1):
            trial, losses = search.ask(), {}
            point = {name: suggest_value(trial, name, values) for name, values in self.spec.space.items()}
            for cell in self._trial_cells(point):
                if cell.name not in {known.name for known in self.all_cells}:
                    self.all_cells.append(cell)
                observer = TitledObserver(self.observer, f"trial {number} of {self.spec.trials}: {cell}")
                self.failed_before = {cell.name: self.failure_time(cell)}
                outcome = self.final_outcome(cell) or self.run_cell(cell, observer)
                if outcome.measures is None:
                    break
                losses[cell.seed] = outcome.measures.loss
                differences = [losses[seed] - best[seed] for seed in losses if seed in best]
                if differences and min(differences) > 0 and fmean(differences) > self.spec.prune:
                    break
            if len(losses) < len(self.spec.seeds):
                search.tell(trial, state=states.PRUNED if losses else states.FAIL)
                continue
            search.tell(trial, fmean(losses.values()))
            if not best or fmean(losses.values()) < fmean(best.values()):
                best = losses

    def report(self, outcomes: tuple[CellOutcome[LanguageMeasures], ...], interrupted: bool) -> StudyResult:
        """Report as for a grid, with the number of trials that were stopped early."""
        result = super().report(outcomes, interrupted)
        given_up = sum(0 < len(row.measures) < len(self.spec.seeds) for row in result.rows)
        trials = f"{len(result.rows)} of {self.spec.trials} trials"
        search = f"Optuna's TPE, {trials}; {given_up} were given up before their last seed"
        return replace(result, data={**result.data, "search": search})


def suggest_value(trial: Any, setting: str, values: Sequence[Any]) -> Any:
    """Return the value that an Optuna trial chooses for a setting: between two numbers, else one of `values`."""
    types = {type(value) for value in values}
    if len(values) != 2 or not types <= {int, float} or values[0] >= values[1]:
        return trial.suggest_categorical(setting, list(values))
    log = values[0] > 0 and values[1] >= 10 * values[0]
    if types == {int}:
        return trial.suggest_int(setting, *values, log=log)
    return float(f"{trial.suggest_float(setting, *map(float, values), log=log):.3g}")
