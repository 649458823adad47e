"""The step of a decoder on a GPU: memory that is there from the beginning, and one CUDA graph for each token.

At batch 1 a GPU waits for the next kernel to be launched, hundreds of them for each token. A step of fixed shapes
(`DecoderModel.step`) is recorded once and replayed as a whole.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy

import torch
from jaxtyping import Int
from torch import Tensor

from lemma.layers.positions import RotaryPart
from lemma.layers.state import State
from lemma.models.base import LanguageModel
from lemma.models.decoder import Cache, DecoderModel, DecoderSlots


@contextmanager
def steady_attention() -> Iterator[None]:
    """Leave cuDNN's attention out for a while: it makes a plan for every length, and so for every token."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


WORTH_RECORDING = 16  # tokens: recording takes as long as a few dozen steps
Step = Callable[[Int[Tensor, "batch 1"], State], tuple[Tensor, State]]
"""Reads one token of each text: `logits, state = step(tokens, state)`."""


class GraphedStep:
    """A decoder's step, replayed from a CUDA graph while there is room; afterwards the model itself reads on."""

    def __init__(self, model: DecoderModel, slots: DecoderSlots, beyond: Step) -> None:
        self.model, self.beyond = model, beyond
        self._record(slots)

    def _record(self, slots: DecoderSlots) -> None:
        self.slots, self.tokens = slots, slots.seen.new_zeros(len(slots.seen), 1)
        begin, side = slots.places.clone(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # so that libraries have their workspaces
                self.model.step(self.tokens, slots)
                slots.places.copy_(begin)  # there may be room for one token only
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.logits = self.model.step(self.tokens, slots).float()
        slots.places.copy_(begin)

    def __call__(self, tokens: Int[Tensor, "batch 1"], state: State) -> tuple[Tensor, State]:
        """Read one token of each text."""
        if not isinstance(state, DecoderSlots):
            return self.beyond(tokens, state)
        if state.full:
            return self.beyond(tokens, state.cache())
        if state is not self.slots:  # some texts have ended: fewer rows, other shapes
            self._record(state)
        self.tokens.copy_(tokens)
        self.graph.replay()
        state.count += 1
        return self.logits, state


def fast_step(
    model: LanguageModel, state: State, beyond: Step, tokens: int, dtype: torch.dtype | None = None
) -> tuple[Step, State]:
    """Return the fastest step for this many more tokens, and the state in the form that it reads.

    `beyond` is the model's own step. In bfloat16 the model's matrices are copied, and the cache is converted.
    """
    if not isinstance(model, DecoderModel) or not isinstance(state, Cache) or not model.has_slots() or not state.layers:
        return beyond, state
    limit = state.seen.shape[1] + tokens
    limit = limit if model.window is None else min(limit, model.window)
    if limit - state.seen.shape[1] < WORTH_RECORDING:
        return beyond, state
    if dtype is not None and next(model.parameters()).dtype == torch.float32:
        model = deepcopy(model).to(dtype)
        layers = tuple(tuple(one.to(dtype) for one in layer) for layer in state.layers)
        state = Cache(state.seen, state.window, layers)
    for part in model.modules():
        if isinstance(part, RotaryPart):
            part.reach(limit)
    slots = DecoderSlots(state, limit)
    return GraphedStep(model, slots, beyond), slots
