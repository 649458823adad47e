"""What became of a run, kept as JSON beside its folder, so that a study that goes on later has it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lemma.runs import write_atomically
from lemma.studies.outcome import Measures


def keep_measures(run: Path, identity: Mapping[str, Any], measures: Measures) -> None:
    """Write down what was measured of the run in the folder `run`."""
    write_plain(_beside(run), {"of": identity, "measures": measures.to_dict()})


def keep_failure(run: Path, reason: str) -> None:
    """Write down why a run failed; the next call of the study tries it again."""
    write_plain(_beside(run), {"failed": reason})


def kept_measures(run: Path, identity: Mapping[str, Any]) -> Measures | None:
    """Read what was measured of a run of this identity; None if there is nothing, or nothing readable."""
    kept = read_plain(_beside(run))
    if not kept or kept.get("of") != identity:
        return None
    try:
        return Measures.read(kept["measures"])
    except (KeyError, TypeError):  # written by another version of Lemma: measured again
        return None


def kept_failure(run: Path) -> str | None:
    """Read why a run failed when it was last tried."""
    kept = read_plain(_beside(run))
    return kept.get("failed") if kept else None


def read_plain(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if the file is missing or damaged, for all that is kept here can be made again."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def write_plain(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _beside(run: Path) -> Path:
    return run.with_name(f"{run.name}.json")
