"""The tune study: settings of one model searched by Optuna."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from lemma.optional import import_optional
from lemma.report.progress import Observer
from lemma.spec.studies import GridStudy, TuneStudy
from lemma.studies.cells import CellOutcome, StudyCell
from lemma.studies.experiment import TitledObserver
from lemma.studies.grid import GridExperiment
from lemma.studies.measures import LanguageMeasures
from lemma.studies.result import StudyResult


class TuneExperiment(GridExperiment):
    """Search the settings of one model by Optuna: trial by trial, seed by seed, each a row of the table.

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
        """Return the runs of one combination of settings, one per seed."""
        model = self.spec.models[0]
        fields = {name: getattr(self.spec, name) for name in GridStudy.model_fields}
        study = GridStudy(**{**fields, "models": (model.replace(settings={**model.settings, **point}),)})
        return [replace(cell, point=dict(point)) for cell in self.fit_cells(study)]

    def prepare(self, cells: Sequence[StudyCell]) -> None:
        """Ask Optuna for settings, train them, and tell it the loss; give up what is worse than the best by pairs."""
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
                failed_before = {cell.name: self.failure_time(cell)}
                outcome = self.final_outcome(cell, failed_before) or self.run_cell(cell, observer)
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
        """Report as on a grid, and say how many trials were given up."""
        result = super().report(outcomes, interrupted)
        given_up = sum(0 < len(row.measures) < len(self.spec.seeds) for row in result.rows)
        trials = f"{len(result.rows)} of {self.spec.trials} trials"
        search = f"Optuna's TPE, {trials}; {given_up} were given up before their last seed"
        return replace(result, data={**result.data, "search": search})


def suggest_value(trial: Any, setting: str, values: Sequence[Any]) -> Any:
    """Draw a value of a setting: from a range between two numbers, else one of the choices."""
    types = {type(value) for value in values}
    if len(values) != 2 or not types <= {int, float} or values[0] >= values[1]:
        return trial.suggest_categorical(setting, list(values))
    log = values[0] > 0 and values[1] >= 10 * values[0]
    if types == {int}:
        return trial.suggest_int(setting, *values, log=log)
    return float(f"{trial.suggest_float(setting, *map(float, values), log=log):.3g}")
