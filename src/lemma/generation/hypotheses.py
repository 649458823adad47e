"""Beam search over a batch of sources: the likeliest beginnings side by side, each growing by one token a step.

A source has k places. Of all ways to lengthen its beginnings by one token, the likeliest fill its free places; one that
ends with <end> keeps its place for good, so that the beam grows narrower, and a beam of 1 takes the likeliest token
always. Whatever has not ended when there is no room left is cut off there, and competes as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lemma.errors import InputError
from lemma.generation.bare import bare
from lemma.models import EncoderDecoderModel, Writing
from lemma.spec import MARKS


@dataclass(frozen=True)
class Translation:
    """The tokens written for a source, marks left out."""

    tokens: tuple[int, ...]
    score: float
    """Σ log p of its tokens, of <end> too, in nats."""
    normalised: float
    """The score over (number of those tokens)^length_penalty: what the beam compares."""
    finished: bool
    """Whether it ends with <end>, and not for want of room."""


Lanes = Float[Tensor, "sources lanes"]
Chosen = Int[Tensor, "sources lanes"]


class Hypotheses:
    """What is being written for the sources of one batch; those that are done leave it."""

    def __init__(
        self, model: EncoderDecoderModel, sources: Sequence[Sequence[int]], beam: int, penalty: float, most: int
    ) -> None:
        self.vocabulary, self.most, self.penalty = model.spec.vocabulary, most, penalty
        self.start, self.end, self.mask = range(self.vocabulary - len(MARKS), self.vocabulary)
        self.step = bare(model).step
        source = _padded([[*ids, self.end] for ids in sources], next(model.parameters()).device)
        self.state: Writing = model.begin(source)
        self.numbers, self.free = list(range(len(sources))), [beam] * len(sources)
        self.scores: Lanes = torch.zeros(len(sources), 1, dtype=torch.float64, device=source.device)
        self.written = torch.full((len(sources), 1, 1), self.start, device=source.device)
        self.best: dict[int, Translation] = {}

    def run(self) -> list[Translation]:
        """Write until every source has its best translation."""
        length = 0
        while self.numbers:
            length += 1
            self._take(*self._lengthened(), length)
        return [self.best[number] for number in sorted(self.best)]

    def _lengthened(self) -> tuple[Lanes, Chosen, Chosen]:
        """The likeliest ways to lengthen what is there: their scores, the lanes they come from, their new tokens."""
        logits, self.state = self.step(self.written[:, :, -1].reshape(-1, 1), self.state)
        exact = torch.promote_types(logits.dtype, torch.float32)
        log = logits[:, -1].log_softmax(-1, dtype=exact).index_fill(-1, self._never(logits), -torch.inf)
        if log.isnan().any():
            raise InputError(
                "the model's logits are not numbers (NaN): its weights are damaged. Use an earlier checkpoint."
            )
        sums = (self.scores[..., None] + log.unflatten(0, self.scores.shape)).flatten(1)
        width = min(max(self.free), sums.shape[1])
        chosen = sums.argmax(1, keepdim=True) if width == 1 else sums.topk(width).indices  # of equals, the lowest id
        return sums.gather(1, chosen), chosen // self.vocabulary, chosen % self.vocabulary

    def _never(self, like: Tensor) -> Int[Tensor, "two"]:
        return torch.tensor([self.start, self.mask], device=like.device)

    def _take(self, values: Lanes, parents: Chosen, tokens: Chosen, length: int) -> None:
        """Fill the free places, set aside what has ended, and go on with the sources that are not done."""
        rank, free = torch.arange(values.shape[1], device=values.device), torch.tensor(self.free, device=values.device)
        values = values.masked_fill(rank >= free[:, None], -torch.inf)
        longer = self.written.gather(1, parents[..., None].expand(-1, -1, length))
        longer = torch.cat([longer, tokens[..., None]], dim=2)
        ended = (tokens == self.end) & values.isfinite()
        self._set_aside(ended, values, longer, finished=True)
        values = values.masked_fill(ended, -torch.inf)
        if length == self.most:
            self._set_aside(values.isfinite(), values, longer, finished=False)
        self._go_on(values, parents, longer, length)

    def _set_aside(self, which: Tensor, values: Lanes, written: Tensor, finished: bool) -> None:
        """Keep the best of what is complete; each takes one of its source's places."""
        rows = which.nonzero()[:, 0].tolist()
        for row, score, tokens in zip(rows, values[which].tolist(), written[which].tolist(), strict=True):
            number, said = self.numbers[row], tokens[1:-1] if finished else tokens[1:]
            found = Translation(tuple(said), score, score / (len(tokens) - 1) ** self.penalty, finished)
            self.free[row] -= 1
            self.best[number] = max(self.best.get(number, found), found, key=lambda one: one.normalised)

    def _go_on(self, values: Lanes, parents: Chosen, written: Tensor, length: int) -> None:
        hopes = values.amax(1).tolist()
        rows = [row for row, hope in enumerate(hopes) if length < self.most and self._may_win(row, hope)]
        index = torch.tensor(rows, dtype=torch.long, device=values.device)
        self._select(index, parents[index], whole=len(rows) == len(hopes))
        self.scores, self.written = values[index], written[index]
        self.numbers, self.free = [self.numbers[row] for row in rows], [self.free[row] for row in rows]

    def _may_win(self, row: int, hope: float) -> bool:
        """Whether the likeliest beginning of a source may still become better than its best translation.

        No token makes a score higher, and no translation is longer than there is room for.
        """
        best = self.best.get(self.numbers[row])
        return hope > -torch.inf and (best is None or hope / self.most**self.penalty > best.normalised)

    def _select(self, index: Int[Tensor, "kept"], parents: Chosen, whole: bool) -> None:
        """Give every lane the state of the one it comes from; nothing moves where all stays in its place."""
        lanes = self.scores.shape[1]
        rows = (index[:, None] * lanes + parents).flatten()
        if not whole or parents.shape[1] != lanes:
            self.state = self.state.rows(rows)
        elif lanes > 1:
            self.state = self.state.reordered(rows)


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "rows time"]:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[-1] * (longest - len(row))] for row in rows], device=device)
