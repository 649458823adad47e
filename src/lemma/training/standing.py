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
    figures: dict[str, float] = field(default_factory=dict)
    """What else the last validation came to, such as UAS and LAS."""
    best_figures: dict[str, float] = field(default_factory=dict)
    """The same of the best one."""
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
            self.best_figures = dict(self.figures)
        return better


class Meter:
    """Sums of loss, gradient norm and other terms since the last reading, on the device: no step waits for them."""

    def __init__(self, team: Team, terms: Sequence[str] = ()) -> None:
        self.team, self.terms = team, tuple(terms)
        self.reset(0.0)

    def reset(self, seconds: float, sums: Sequence[float] | None = None, steps: int = 0) -> None:
        """Begin anew, or where a checkpoint left off."""
        count = 2 + len(self.terms)
        known = list(sums or ())[:count]  # a run that goes on may report other terms than before
        self.sums = torch.tensor(known + [0.0] * (count - len(known)), dtype=torch.float64, device=self.team.device)
        self.steps, self.since = steps, seconds

    def add(self, loss: Float[Tensor, ""], norm: Float[Tensor, ""], terms: Sequence[Float[Tensor, ""]] = ()) -> None:
        """Count one step."""
        self.sums += torch.stack((loss, norm, *terms))
        self.steps += 1

    def team_sums(self) -> list[float]:
        """Return the sums, averaged over the team; this waits for the device."""
        return self.team.mean(self.sums).tolist()

    def means(self) -> tuple[float, float, dict[str, float]]:
        """Return the mean loss, gradient norm and other terms since the last reading."""
        loss, norm, *terms = (total / max(1, self.steps) for total in self.team_sums())
        return loss, norm, dict(zip(self.terms, terms, strict=True))
