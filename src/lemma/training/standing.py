"""Where a run stands: plain numbers that go into every checkpoint."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from lemma.training.parallel import Team


@dataclass
class Standing:
    """Steps taken, time spent, the last and the best validation, and what was warned of."""

    step: int = 0
    tokens: int = 0
    """Tokens predicted so far, by the whole team."""
    seconds: float = 0.0
    training_loss: float | None = None
    validation_loss: float | None = None
    perplexity: float | None = None
    best_loss: float | None = None
    best_perplexity: float | None = None
    best_step: int | None = None
    without_better: int = 0
    """Validations since the best one."""
    warnings: dict[str, str] = field(default_factory=dict)
    """What was warned of, by kind: each is said once a run."""

    def judge(self, loss: float, perplexity: float) -> bool:
        """Take in a validation; return whether it is the best so far."""
        self.validation_loss, self.perplexity = loss, perplexity
        better = loss < (math.inf if self.best_loss is None else self.best_loss)  # what is no number is not better
        self.without_better = 0 if better else self.without_better + 1
        if better:
            self.best_loss, self.best_perplexity, self.best_step = loss, perplexity, self.step
        return better


class Meter:
    """Sums of loss and gradient norm since the last reading, kept on the device so that no step waits for them."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.reset(0.0)

    def reset(self, seconds: float, sums: Sequence[float] = (0.0, 0.0), steps: int = 0) -> None:
        """Begin anew, or where a checkpoint left off."""
        self.sums = torch.tensor(sums, dtype=torch.float64, device=self.team.device)
        self.steps, self.since = steps, seconds

    def add(self, loss: Float[Tensor, ""], norm: Float[Tensor, ""]) -> None:
        """Count one step."""
        self.sums += torch.stack((loss, norm))
        self.steps += 1

    def team_sums(self) -> tuple[float, float]:
        """Return both sums, averaged over the team; this waits for the device."""
        loss, norm = self.team.mean(self.sums).tolist()
        return loss, norm

    def means(self) -> tuple[float, float]:
        """Return the mean loss and gradient norm since the last reading."""
        loss, norm = self.team_sums()
        return loss / max(1, self.steps), norm / max(1, self.steps)
