"""From the token store to batches on the device.

On a GPU the whole text lies in its memory if it takes less than a quarter of what is free, and batches are cut there;
otherwise a thread cuts the next batch into pinned memory while the GPU works. On a CPU they are cut as needed.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from lemma.data import Captioned, Examples, GraphNodes, RandomWindows, Streams
from lemma.spec import Decoder, Encoder, ModelSpec, NewFamily, Recipe
from lemma.training.example_feed import ExampleFeed
from lemma.training.graph_feed import GraphFeed
from lemma.training.image_feed import ImageFeed
from lemma.training.masked_feed import MaskedFeed
from lemma.training.parallel import Team

STRETCH = 64
SHARE = 4  # the text may take this part of the GPU's free memory
CHUNK = 1 << 24  # tokens moved to the GPU at once

Order = RandomWindows | Streams


def stretch_of(spec: ModelSpec, recipe: Recipe) -> int:
    """The tokens predicted a sequence: what the recipe says, or a Transformer's context, or 64."""
    if isinstance(spec, NewFamily):
        return recipe.stretch or spec.longest or STRETCH
    return recipe.stretch or (spec.context if isinstance(spec, Decoder | Encoder) else STRETCH)


class Feed:
    """The batches of a run on a CPU: each a pure function of its step, cut from the memory-mapped text."""

    even = True
    """Whether all batches are of one shape."""

    def __init__(self, tokens: Int[np.ndarray, "length"], order: Order, stretch: int, team: Team, batch: int) -> None:
        self.tokens, self.order, self.team = tokens, order, team
        self.rows, self.places = team.share(batch), np.arange(stretch + 1)
        self.stretch, self.tokens_a_step = stretch, batch * stretch

    def batch(self, step: int) -> tuple[Int[Tensor, "rows stretch"], Int[Tensor, "rows stretch"]]:
        """Return what the model reads at a step and what it is to predict: this process's rows of both."""
        joined = self.joined(step)
        return joined[:, :-1], joined[:, 1:]

    def share(self, targets: Int[Tensor, "rows stretch"], parts: int) -> float:
        """How much a part of the batch counts: as much as any other."""
        return 1 / parts

    def fresh(self, step: int) -> bool:
        """Whether a carried state is to be forgotten before this step, since the streams begin anew."""
        return isinstance(self.order, RandomWindows) or self.order.fresh(step)

    def joined(self, step: int) -> Int[Tensor, "rows stretch+1"]:
        """Return inputs and last target in one."""
        return torch.from_numpy(self.tokens[self.indices(step)].astype(np.int64))

    def indices(self, step: int) -> Int[np.ndarray, "rows stretch+1"]:
        """Return where in the text the tokens of a step lie."""
        return self.order.offsets(step)[self.rows, None] + self.places

    def close(self) -> None:
        """Let go of what was taken."""


class ResidentFeed(Feed):
    """The batches of a run whose whole text lies in the GPU's memory."""

    def __init__(self, tokens: Int[np.ndarray, "length"], order: Order, stretch: int, team: Team, batch: int) -> None:
        super().__init__(tokens, order, stretch, team, batch)
        self.resident = torch.empty(len(tokens), dtype=torch.int32, device=team.device)
        for start in range(0, len(tokens), CHUNK):  # piece by piece, so that the host's memory stays flat
            piece = torch.from_numpy(tokens[start : start + CHUNK].astype(np.int32))
            self.resident[start : start + len(piece)] = piece.to(team.device)
        self.steps = torch.from_numpy(self.places).to(team.device)

    def joined(self, step: int) -> Int[Tensor, "rows stretch+1"]:
        """Cut a batch on the GPU; only the offsets go there."""
        offsets = torch.from_numpy(self.order.offsets(step)[self.rows].astype(np.int64))
        here = offsets.pin_memory().to(self.team.device, non_blocking=True)
        return self.resident[here[:, None] + self.steps].long()


class PrefetchingFeed(Feed):
    """The batches of a run whose text is too large for the GPU: a thread is always one batch ahead."""

    def __init__(self, tokens: Int[np.ndarray, "length"], order: Order, stretch: int, team: Team, batch: int) -> None:
        super().__init__(tokens, order, stretch, team, batch)
        self.worker = ThreadPoolExecutor(1, "feed")
        self.ahead: dict[int, Future[Tensor]] = {}

    def joined(self, step: int) -> Int[Tensor, "rows stretch+1"]:
        """Take the batch that waits, and have the next one cut."""
        waiting = self.ahead.pop(step, None) or self.worker.submit(self._pinned, step)
        self.ahead = {step + 1: self.worker.submit(self._pinned, step + 1)}
        return waiting.result().to(self.team.device, non_blocking=True)

    def _pinned(self, step: int) -> Tensor:
        return super().joined(step).pin_memory()

    def close(self) -> None:
        """End the thread."""
        self.worker.shutdown(cancel_futures=True)


AnyFeed = Feed | MaskedFeed | ExampleFeed | ImageFeed | GraphFeed


def feed_for(
    model: Any, tokens: Int[np.ndarray, "length"] | Examples | Captioned | GraphNodes, recipe: Recipe, team: Team
) -> AnyFeed:
    """Choose the order and the way of a model's batches: examples, windows with hidden tokens, or stretches of text.

    A model whose state is carried from batch to batch reads contiguous streams, others windows at random places.
    """
    if isinstance(tokens, GraphNodes):
        return GraphFeed(model, tokens, recipe, team)
    if isinstance(tokens, Captioned):
        return ImageFeed(tokens, recipe, team)
    if not isinstance(tokens, np.ndarray):
        return ExampleFeed(tokens, recipe, team)
    if isinstance(model.spec, Encoder):
        return MaskedFeed(tokens, model.spec, recipe, team)
    stretch = stretch_of(model.spec, recipe)
    order = (Streams if model.stateful else RandomWindows)(len(tokens), stretch, recipe.batch, recipe.seed)
    return _kind(tokens, team.device)(tokens, order, stretch, team, recipe.batch)


def _kind(tokens: Int[np.ndarray, "length"], device: torch.device) -> type[Feed]:
    if device.type == "cpu":
        return Feed
    free, _ = torch.cuda.mem_get_info(device)
    return ResidentFeed if len(tokens) * 4 < free / SHARE else PrefetchingFeed
