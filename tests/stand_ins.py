"""Models with predetermined next tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lemma.layers.state import State, TokenWindow
from lemma.models.base import LanguageModel
from lemma.spec.models import FeedForward


class CertainModel(LanguageModel):
    """A model of `vocabulary` tokens without trained parameters."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__(FeedForward(V=vocabulary))
        self.parameter = torch.nn.Parameter(torch.zeros(()))

    def certain(self, tokens: Tensor) -> Tensor:
        """Return logits with near-certain next tokens."""
        return torch.nn.functional.one_hot(tokens, self.spec.vocabulary).double() * 50


class Table(CertainModel):
    """A model that looks up the next token by the last `span` tokens."""

    def __init__(self, vocabulary: int, span: int, follow: Callable[[tuple[int, ...]], int]) -> None:
        super().__init__(vocabulary)
        self.span, self.follow = span, follow

    @property
    def receptive_field(self) -> int:
        return self.span

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, TokenWindow]:
        window = state if isinstance(state, TokenWindow) else TokenWindow(tokens[:, :0], self.span)
        merged, nexts = torch.cat([window.tokens, tokens], dim=1).tolist(), []
        for row in merged:
            ends = range(len(row) - tokens.shape[1] + 1, len(row) + 1)
            nexts.append([self.follow(tuple(row[max(0, end - self.span) : end])) for end in ends])
        return self.certain(torch.tensor(nexts)), window.append(tokens)


@dataclass(frozen=True)
class Count(State):
    """State that counts the tokens read, optionally modulo a period."""

    read: Tensor

    @property
    def about(self) -> str:
        return "the number of tokens"

    def tensors(self) -> dict[str, Tensor]:
        return {"read": self.read}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "Count":
        return Count(tensors["read"])


class Script(CertainModel):
    """A model that generates a fixed script, repeated at its end, regardless of its input tokens."""

    def __init__(self, vocabulary: int, script: Sequence[int], modulo: int = 2**40) -> None:
        super().__init__(vocabulary)
        self.script, self.modulo = torch.tensor(script), modulo

    @property
    def receptive_field(self) -> None:
        return None

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, Count]:
        batch, time = tokens.shape
        read = state.read if isinstance(state, Count) else torch.zeros(batch, dtype=torch.long)
        positions = read[:, None] + torch.arange(time)
        return self.certain(self.script[positions % len(self.script)]), Count((read + time) % self.modulo)
