"""Everything a run tells the world: metrics.jsonl, TensorBoard if asked, and the observer. Only the leader tells."""

import math
from collections.abc import Mapping
from typing import Any

from lemma.errors import SpecError
from lemma.runs import RunFolder
from lemma.runs.folder import TENSORBOARD
from lemma.training.parallel import Team
from lemma.training.progress import Observer, Silent


class Journal:
    """The rows of one run."""

    def __init__(self, folder: RunFolder, observer: Observer, team: Team, step: int) -> None:
        self.metrics, self.leads = folder.metrics, team.leads
        self.observer = observer if team.leads else Silent()
        # a graph's steps read all of it, so that its few labelled nodes a second say nothing
        self.untold = {"tokens_per_second"} if folder.spec.family == "graph" else set()
        self.board = board_kind()(str(folder.path / TENSORBOARD), purge_step=step + 1) if self._boards(folder) else None
        self.observer.begin("training", folder.recipe.steps, "steps", step)

    def _boards(self, folder: RunFolder) -> bool:
        return self.leads and folder.recipe.tensorboard

    def write(self, row: Mapping[str, float]) -> None:
        """Write a row of metrics; what is no number has no place in JSON and is left out."""
        if not self.leads:
            return
        finite = {name: value for name, value in row.items() if math.isfinite(value)}
        self.metrics.append(finite)
        self.observer.report({name: value for name, value in finite.items() if name not in self.untold})
        if self.board:
            for name, value in finite.items():
                self.board.add_scalar(name, value, finite["step"])

    def close(self) -> None:
        """End the observer's phase and the TensorBoard file."""
        self.observer.end()
        if self.board:
            self.board.close()


def board_kind() -> type[Any]:
    """Return TensorBoard's writer, or say how to get it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SpecError(
            "recipe.tensorboard = true: TensorBoard is not installed. "
            "pip install 'lemma[tensorboard]', or leave the word out: metrics.jsonl is always written."
        ) from None
    return SummaryWriter
