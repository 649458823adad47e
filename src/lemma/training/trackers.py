"""Experiment trackers: TensorBoard, Weights & Biases, MLflow and Trackio, each fed with the rows of metrics.jsonl.

Each is an optional package with its own settings: environment variables (WANDB_MODE, MLFLOW_TRACKING_URI, TRACKIO_DIR)
say where it writes, and whether it sends anything. A resumed run starts a new one there, except in TensorBoard, where
the rows after the checkpoint are replaced.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lemma.errors import SpecError
from lemma.runs.folder import TENSORBOARD, RunFolder

PROJECT = "lemma"  # the project, or experiment, of all runs
MLFLOW_BATCH = 100  # most parameters that MLflow takes at once

Row = Mapping[str, float]
Tracker = tuple[Callable[[Row], None], Callable[[], object]]
"""Functions that log a row, and that end the run."""


def import_tracker(name: str) -> Any:
    """Import and return the package of the tracker `name`; raise SpecError with its install command without it."""
    try:
        match name:
            case "tensorboard":
                import torch.utils.tensorboard as package
            case "wandb":
                import wandb as package  # pyright: ignore[reportMissingImports]
            case "mlflow":
                import mlflow as package  # pyright: ignore[reportMissingImports]
            case _:
                import trackio as package  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise SpecError(
            f"recipe.tracker = {name}: {name} is not installed. pip install 'lemma-lm[{name}]', or leave it out: "
            "metrics.jsonl is always written."
        ) from None
    return package


def open_tracker(folder: RunFolder, step: int) -> Tracker:
    """Start a run of the recipe's tracker after `step`; return functions that log a row of metrics and end the run.

    A tracker that fails later is not used any more, and training continues.
    """
    name = folder.recipe.tracker or ""
    try:
        log, end = _start_run(name, folder, step)
    except Exception as error:  # each has its own: no key, no server, a disk that is full
        if isinstance(error, SpecError):
            raise
        raise SpecError(
            f"recipe.tracker = {name}: {name} does not begin a run ({_error_line(error)}). Set it up, or leave it out: "
            "metrics.jsonl is always written."
        ) from error
    failed = False

    def guarded(act: Callable[..., object], *row: Row) -> None:
        nonlocal failed
        if failed and row:  # the run is ended all the same
            return
        try:
            act(*row)
        except Exception as error:
            message = f"{name} takes no more rows ({_error_line(error)}). Training goes on; metrics.jsonl has all."
            if not failed:
                warnings.warn(message, stacklevel=2)
            failed = True

    return partial(guarded, log), partial(guarded, end)


def _error_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _start_run(name: str, folder: RunFolder, step: int) -> Tracker:
    """Start a run of the tracker `name`; return functions that log a row of metrics and that end the run."""
    package, title, settings = import_tracker(name), folder.path.resolve().name, _flatten_settings(folder)
    if name == "tensorboard":
        writer = package.SummaryWriter(str(folder.path / TENSORBOARD), purge_step=step + 1)

        def scalars(row: Row) -> None:
            for metric, value in row.items():
                writer.add_scalar(metric, value, row["step"])

        return scalars, writer.close
    if name == "mlflow":
        client = package.MlflowClient()
        existing = client.get_experiment_by_name(PROJECT)
        experiment = existing.experiment_id if existing else client.create_experiment(PROJECT)
        run = client.create_run(experiment, run_name=title).info.run_id
        parameters = [package.entities.Param(setting, str(value)) for setting, value in settings.items()]
        for first in range(0, len(parameters), MLFLOW_BATCH):
            client.log_batch(run, params=parameters[first : first + MLFLOW_BATCH])

        def metrics(row: Row) -> None:
            now, at = int(1000 * time.time()), int(row["step"])
            values = [package.entities.Metric(name, value, now, at) for name, value in row.items() if name != "step"]
            client.log_batch(run, metrics=values)

        return metrics, lambda: client.set_terminated(run)
    more = {"reinit": "create_new"} if name == "wandb" else {}
    tracked = package.init(project=PROJECT, name=title, config=settings, **more)

    def log(row: Row) -> None:
        tracked.log({name: value for name, value in row.items() if name != "step"}, step=int(row["step"]))

    return log, package.finish if name == "trackio" else tracked.finish  # or Trackio ends it again when Python does


def _flatten_settings(folder: RunFolder) -> dict[str, Any]:
    """Return the settings of a run by dotted names, such as model.width, recipe.steps and data.text."""
    settings: dict[str, Any] = {}

    def add(prefix: str, table: Mapping[str, Any]) -> None:
        for name, value in table.items():
            if isinstance(value, Mapping):
                add(f"{prefix}.{name}", value)
            else:
                settings[f"{prefix}.{name}"] = value

    for name, spec in (("model", folder.spec), ("recipe", folder.recipe), ("data", folder.data)):
        add(name, spec.to_dict())
    return settings
