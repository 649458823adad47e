"""The diary of a run: `metrics.jsonl`, one JSON object a line."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemma.data.atomic import write_atomically
from lemma.errors import RunError


@dataclass(frozen=True)
class Metrics:
    """Lines with a `step` each, in the order of their steps."""

    path: Path

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """Read all lines; a last one that was only half written when the run was killed is left out."""
        if not self.path.exists():
            return []
        *whole, _half = self.path.read_bytes().split(b"\n")
        return [self._row(number, line) for number, line in enumerate(whole, start=1)]

    def _row(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            return json.loads(line)
        except ValueError as error:
            raise RunError(f"{self.path}, line {number}, is damaged: {error}.") from None

    def drop_after(self, step: int) -> None:
        """Forget the lines after a step, which a run that resumes there will write anew."""
        kept = [json.dumps(row) + "\n" for row in self.rows() if row["step"] <= step]
        write_atomically(self.path, "".join(kept))

    def sync(self) -> None:
        """Make sure that the lines are on the disk before a checkpoint counts on them."""
        if self.path.exists():
            with self.path.open("rb+") as file:
                os.fsync(file.fileno())
