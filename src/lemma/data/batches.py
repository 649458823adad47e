"""Which stretches of the training text make up each batch: pure functions of the seed and the step.

A stretch is `stretch` tokens to read and, one further on, as many to predict: tokens[offset : offset + stretch + 1].
Being pure, the order needs no state to be saved: a resumed run asks for the next step and gets what it would have got.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from lemma.errors import DataError

Offsets = Int64[np.ndarray, "batch"]


@dataclass(frozen=True)
class RandomWindows:
    """Stretches drawn anew for every step, uniformly and independently; for models without a memory."""

    length: int
    stretch: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        _check_length(self.length, self.stretch, 1)

    def offsets(self, step: int) -> Offsets:
        """Where the stretches of a step start.

        >>> RandomWindows(length=1000, stretch=64, batch=3, seed=1).offsets(0).shape
        (3,)
        """
        return _random(self.seed, step).integers(0, self.length - self.stretch, size=self.batch)


@dataclass(frozen=True)
class Streams:
    """As many contiguous streams as the batch has rows, for models that carry their state from step to step.

    In an epoch each row reads its own share of the text from start to end. Each epoch moves all shares by a random
    phase, so that the text is not always cut at the same places; the tokens this leaves out are others every time.
    """

    length: int
    stretch: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        _check_length(self.length, self.stretch, self.batch)

    @property
    def steps(self) -> int:
        """Steps an epoch: as many as fit with room for a phase of one stretch, but at least one."""
        return max((self.length - self.stretch) // (self.stretch * self.batch), 1)

    def offsets(self, step: int) -> Offsets:
        """Where the stretches of a step start: within an epoch, each where that of the step before ended.

        >>> streams = Streams(length=1000, stretch=10, batch=2, seed=1)
        >>> streams.offsets(1) - streams.offsets(0)
        array([10, 10])
        """
        epoch, place = divmod(step, self.steps)
        share = self.steps * self.stretch
        phase = _random(self.seed, epoch).integers(0, self.length - share * self.batch)
        return phase + np.arange(self.batch) * share + place * self.stretch

    def fresh(self, step: int) -> bool:
        """Whether the streams start anew at this step, so that the state must be reset."""
        return step % self.steps == 0


def _random(seed: int, number: int) -> np.random.Generator:
    return np.random.default_rng([seed, number])


def _check_length(length: int, stretch: int, rows: int) -> None:
    if length > stretch * rows:
        return
    together = f" with batch {rows}" if rows > 1 else ""
    smaller = max((length - 1) // rows, 0)
    step = f" or set stretch={smaller}" if smaller else ""
    step += f" or batch={(length - 1) // stretch}" if rows > 1 and length > stretch else ""
    raise DataError(
        f"the training text has {length:,} tokens; stretch {stretch}{together} needs at least {stretch * rows + 1:,}. "
        f"Give more text{step}."
    )
