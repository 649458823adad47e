"""Sequences of different lengths in the rows of one preallocated cache."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lemma.generation.sampling import Sampling
from lemma.generation.sequences import TokenSequence
from lemma.layers.state import State
from lemma.models.base import fast_copy, has_hooks
from lemma.models.decoder import CACHE_ALIGNMENT, DecoderCache, DecoderModel, DecoderSlotCache

Logits = Float[Tensor, "rows vocabulary"]


class SlotBatch:
    """A decoder's sequences of different lengths in the rows of one `DecoderSlotCache`; rows and capacity double.

    On a GPU, where another shape is another graph, there are `rows` rows from the beginning, and capacity is never
    given back.
    """

    def __init__(self, model: DecoderModel, rows: int, dtype: torch.dtype | None) -> None:
        self.model, self.dtype, self.window = model, dtype, model.window
        uses_graphs = next(model.parameters()).is_cuda and not has_hooks(model)
        if dtype is not None and uses_graphs and next(model.parameters()).dtype == torch.float32:
            from lemma.generation.cuda_graphs import cast_copy  # needed on a GPU only

            self.model = cast_copy(model, dtype).model
        else:
            self.dtype = None
        self.has_fixed_shape = uses_graphs
        self.min_rows = rows if uses_graphs else 1
        self.sequences: list[TokenSequence | None] = []
        self.lengths: list[int] = []
        self.slots: DecoderSlotCache | None = None
        self.step_model: Callable[[Tensor, DecoderSlotCache], Logits] | None = None

    @property
    def num_active(self) -> int:
        """Number of rows with a sequence."""
        return len(self.sequences) - self.sequences.count(None)

    def admit(
        self, sequences: Sequence[TokenSequence], state: State, state_rows: Sequence[int], padding: Sequence[int] = ()
    ) -> bool:
        """Copy the KV caches of sequences into free slots; return False, without copying, if the state has none.

        Args:
            state: from which the sequences continue; only a decoder's has a KV cache, until its window is full.
            state_rows: row of each sequence in the state.
            padding: number of tokens at the end of each sequence's row that are padding, to be overwritten; default 0.
        """
        cache = state.to_cache() if isinstance(state, DecoderSlotCache) else state  # of a sequence that was alone
        if not isinstance(cache, DecoderCache) or not cache.layers or cache.tokens.shape[1] == cache.window:
            return False
        cache = cache if self.dtype is None else cache.to(self.dtype)
        longest = cache.tokens.shape[1]
        self.slots = self.slots or DecoderSlotCache(cache, longest + 1)
        if self.sequences.count(None) < len(sequences) or longest >= self.slots.capacity:
            self._resize(len(sequences), longest)
        rows = [row for row, sequence in enumerate(self.sequences) if sequence is None][: len(sequences)]
        for row, sequence, padded in zip(rows, sequences, padding or [0] * len(sequences), strict=True):
            self.sequences[row], self.lengths[row] = sequence, longest - padded
        self.slots.write_rows(rows, cache, state_rows)
        return True

    def drop_finished(self) -> None:
        """Free the rows of stopped sequences; shrink where a quarter of the rows or of the capacity is enough."""
        for row, sequence in enumerate(self.sequences):
            if sequence and sequence.stop_reason:
                self.sequences[row], self.lengths[row] = None, 0
        if self.slots is None or self.has_fixed_shape:
            return
        if not self.num_active:
            self.slots, self.sequences, self.lengths, self.step_model = None, [], [], None
            return
        has_spare_rows = 4 * self.num_active <= len(self.sequences)
        has_spare_capacity = 4 * max(self.lengths) < self.slots.capacity > CACHE_ALIGNMENT
        if has_spare_rows or has_spare_capacity:
            self._resize()

    def step(self) -> tuple[list[TokenSequence], Logits, dict[TokenSequence, DecoderCache]]:
        """Read the last token of each sequence; return the sequences, the logits after these tokens, and the caches of
        sequences that leave the batch since their window is full now.
        """
        assert self.slots is not None
        if max(self.lengths) >= self.slots.capacity:
            self._resize()
        slots = self.slots
        assert self.step_model is not None
        slots.lengths.copy_(torch.tensor(self.lengths))  # free rows write at 0, where nobody reads
        tokens = [[sequence.last_token if sequence else 0] for sequence in self.sequences]
        view = slots if self.has_fixed_shape else slots.narrow(max(self.lengths) + 1)
        logits = self.step_model(torch.tensor(tokens, device=slots.lengths.device), view)
        active = [(row, sequence) for row, sequence in enumerate(self.sequences) if sequence]
        windows: dict[TokenSequence, DecoderCache] = {}
        for row, sequence in active:
            self.lengths[row] += 1
            if self.lengths[row] == self.window:
                window = slots.tokens[row, None, : self.window].clone()  # before the row is reused
                windows[sequence] = DecoderCache(window, self.window)
                self.sequences[row], self.lengths[row] = None, 0
        logits = logits if len(active) == len(logits) else logits[[row for row, _ in active]]
        return [sequence for _, sequence in active], logits, windows

    def _resize(self, num_new: int = 0, length: int = 0) -> None:
        """Move the sequences to slots with `num_new` more rows and a capacity of `length` tokens, with a new step."""
        assert self.slots is not None
        rows = [row for row, sequence in enumerate(self.sequences) if sequence]
        batch = max(self.min_rows, 1 << (max(1, len(rows) + num_new) - 1).bit_length())
        capacity = self.slots.capacity if self.has_fixed_shape else CACHE_ALIGNMENT
        while capacity <= max((length, *self.lengths)):
            capacity *= 2
        index = torch.tensor(rows, dtype=torch.long, device=self.slots.row_index.device)
        self.slots = self.slots.resize(index, batch, capacity)
        self.sequences = [*(self.sequences[row] for row in rows), *[None] * (batch - len(rows))]
        self.lengths = [*(self.lengths[row] for row in rows), *[0] * (batch - len(rows))]
        self.model.ensure_rotary_length(capacity)
        self.step_model = self._capture_step(self.slots) if self.has_fixed_shape else self._torch_step()

    def _torch_step(self) -> Callable[[Tensor, DecoderSlotCache], Logits]:
        """Return a function (tokens, slots) → logits that runs the model by PyTorch, without a CUDA graph."""
        step = fast_copy(self.model).step
        return lambda tokens, slots: step(tokens, slots)[:, -1]

    def _capture_step(self, slots: DecoderSlotCache) -> Callable[[Tensor, DecoderSlotCache], Logits]:
        """Return a function (tokens, slots) → logits that replays a CUDA graph, captured on these slots."""
        from lemma.generation.cuda_graphs import MIN_TRITON_TOKENS, CudaGraphStep  # needed on a GPU only

        logits_only = Sampling(tokens=MIN_TRITON_TOKENS, logprobs=0)  # each sequence has settings of its own
        graph = CudaGraphStep(self.model, slots, self.model, logits_only)

        def replay(tokens: Tensor, slots: DecoderSlotCache) -> Logits:
            slots.length = 0  # lengths differ: the slots are never full as a whole
            return graph(tokens, slots, [])[0][:, -1]

        return replay
