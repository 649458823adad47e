"""From a cell of the grid to a run: its sizes and its steps, as the budget allows them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemma.data import Dataset
from lemma.errors import RunError
from lemma.runs import RunFolder
from lemma.runs.folder import SPEC, is_begun
from lemma.spec import ModelSpec, Recipe, StudySpec
from lemma.studies.budget import fit_parameters
from lemma.studies.clock import fit_steps, measure_speed, spread_validations
from lemma.studies.grid import Cell, open_grid
from lemma.studies.keeping import read_plain, write_plain


@dataclass(frozen=True)
class Plan:
    """A run that is ready to start."""

    cell: Cell
    model: ModelSpec
    recipe: Recipe
    path: Path
    data_hash: str
    trial_speed: float | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """What makes two runs the same: the model, the recipe and the text."""
        return {"model": self.model.to_dict(), "recipe": self.recipe.to_dict(), "data": self.data_hash}


def size_cells(study: StudySpec, vocabulary: int) -> list[Cell]:
    """Open the grid and give each model its vocabulary and the sizes that meet the budget of parameters."""
    return [_sized(study, cell, vocabulary) for cell in open_grid(study)]


def _sized(study: StudySpec, cell: Cell, vocabulary: int) -> Cell:
    model = cell.model.replace(vocabulary=vocabulary)
    if study.budget.parameters:
        model = fit_parameters(model, study.budget.parameters, cell.fixed).model
    return cell.with_model(model)


def plan_run(study: StudySpec, cell: Cell, dataset: Dataset, out: Path) -> Plan:
    """Settle the number of steps, if need be by a trial of speed, and refuse a folder that holds another run."""
    plan = known_plan(study, cell, dataset, out)
    if plan is None:
        speed = measure_speed(cell.model, cell.recipe, study.data, dataset)
        write_plain(_speed_file(cell, out), {"of": _speed_of(cell, dataset), "tokens_per_second": speed})
        plan = known_plan(study, cell, dataset, out)
    assert plan is not None
    return plan


def known_plan(study: StudySpec, cell: Cell, dataset: Dataset, out: Path) -> Plan | None:
    """The plan as far as it needs no trial: None if there is a budget of seconds and the speed is not known yet."""
    speed = _kept_speed(cell, dataset, out) if study.budget.seconds else None
    if study.budget.seconds and speed is None:
        return None
    recipe = spread_validations(fit_steps(cell.model, cell.recipe, study.budget, speed), study.validations)
    plan = Plan(cell, cell.model, recipe, out / "runs" / cell.name, dataset.hash, speed)
    refuse_other_run(plan)
    return plan


def _kept_speed(cell: Cell, dataset: Dataset, out: Path) -> float | None:
    """The speed of a row is measured once: all its seeds, and a study that goes on later, take the same steps."""
    kept = read_plain(_speed_file(cell, out)) or {}
    return float(kept["tokens_per_second"]) if kept.get("of") == _speed_of(cell, dataset) else None


def _speed_file(cell: Cell, out: Path) -> Path:
    return out / "speeds" / f"{cell.row_name}.json"


def _speed_of(cell: Cell, dataset: Dataset) -> dict[str, Any]:
    """What a speed depends on: all of a run but its seed."""
    return {"model": cell.model.to_dict(), "recipe": cell.recipe.replace(seed=0).to_dict(), "data": dataset.hash}


def refuse_other_run(plan: Plan) -> None:
    """Refuse to go on in a folder where a run of another model, recipe or text stands, or what is not a run."""
    if not is_begun(plan.path):
        return
    if plan.path.is_dir() and not (plan.path / SPEC).exists():
        found = ", ".join(sorted(entry.name for entry in plan.path.iterdir()))
        raise RunError(
            f"{plan.path} is not a run, and this study needs that folder for one: {SPEC} is missing, but it holds "
            f"{found}. Move that away, or choose another --out."
        )
    held = RunFolder.open(plan.path)
    for where, got, asked in (
        ("", held.spec.to_dict(), plan.model.to_dict()),
        ("recipe ", held.recipe.to_dict(), plan.recipe.to_dict()),
        ("text ", {"hash": held.data_hash}, {"hash": plan.data_hash}),
    ):
        if word := next((word for word in {**got, **asked} if got.get(word) != asked.get(word)), None):
            raise RunError(
                f"{plan.path} holds a run with {where}{word} {got.get(word)}, this study asks for {asked.get(word)}. "
                "Choose another --out, or remove that folder."
            )
