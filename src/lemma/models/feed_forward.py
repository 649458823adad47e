"""Window models of the next token: feed-forward (problem A1) and attentive (problem A4)."""

from abc import abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.layers.feed_forward import ACTIVATIONS
from lemma.layers.recording import LISTENERS, AttentionRecord, mask_to_bias
from lemma.layers.state import State, TokenWindow, sliding_windows, window_mask
from lemma.models.base import LanguageModel, Tokens, init_embedding
from lemma.spec.models import Attentive, FeedForward, LanguageSpec


class WindowModel(LanguageModel):
    """A model of the next token given the N−1 before it; all windows of a sequence are read at once."""

    embedding: nn.Embedding
    output: nn.Linear

    def __init__(self, spec: LanguageSpec, context: int) -> None:
        super().__init__(spec)
        self.span = context - 1

    def init_weights(self) -> None:
        """Draw the initial embedding; the linear layers keep PyTorch's initial weights."""
        init_embedding(self.embedding)

    @property
    def receptive_field(self) -> int:
        """Number N−1 of tokens in the window on which logits depend."""
        return self.span

    @abstractmethod
    def read(self, tokens: Int[Tensor, "batch joined"], time: int) -> Float[Tensor, "batch time vector_width"]:
        """Return the output layer's input after each of the last `time` tokens; those before are only their context."""

    def forward(self, tokens: Tokens, state: State | None = None) -> tuple[Float[Tensor, "batch time V"], TokenWindow]:
        """Return the logits of the token after each of `tokens`, and the last N−1 tokens as the new state."""
        window = state if isinstance(state, TokenWindow) else TokenWindow(tokens[:, :0], self.span)
        return self.output(self.read(window.with_context(tokens), tokens.shape[1])), window.append(tokens)

    def vectors(self, tokens: Tokens) -> Float[Tensor, "batch time vector_width"]:
        """Return the output layer's input after each token; padding (−1), at the right, changes none before it."""
        return self.read(tokens.clamp(min=0), tokens.shape[1])


class FeedForwardModel(WindowModel):
    """The feed-forward model, and the attentive one, which has an attention head over its window.

    softmax(U σ(W [e_{t−N+1}; …; e_{t−1}] + b)) (Bengio et al. 2003; problem A1), with V(d + d_h) + ((N−1)d + 1)d_h
    parameters. With a head (problems A2 and A4), W reads its output: V(d + d_h) + 2 d_k d + d_v d + (d_v + 1) d_h
    parameters, whatever N.
    """

    def __init__(self, spec: FeedForward | Attentive, dropout: float = 0.0) -> None:
        super().__init__(spec, spec.context)
        self.embedding, self.head = nn.Embedding(spec.vocabulary, spec.width), None
        inputs = self.span * spec.width
        if isinstance(spec, Attentive):
            self.head, inputs = WindowHead(spec.width, spec.key_width, spec.value_width), spec.value_width
        self.hidden = nn.Linear(inputs, spec.hidden)
        self.activation = ACTIVATIONS[spec.activation]
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(spec.hidden, spec.vocabulary, bias=False)

    @property
    def vector_width(self) -> int:
        """Width of the hidden layer."""
        return self.hidden.out_features

    def read(self, tokens: Int[Tensor, "batch joined"], time: int) -> Float[Tensor, "batch time hidden"]:
        """Return the hidden layer's output after each of the last `time` tokens; those before are only context."""
        embedded = self.dropout(self.embedding(tokens))
        if self.head is None:  # drawings show these variables, so that each has a name of its own
            windows = sliding_windows(embedded, time, self.span).flatten(2)
            hidden = self.hidden(windows)
        else:
            attended = self.head(embedded, time, self.span)
            hidden = self.hidden(attended)
        return self.dropout(self.activation(hidden))


class WindowHead(nn.Module):
    """An attention head with a query for the last word of each window only (problem A2).

    a = Σ_i α_i W^v e_i with α = softmax_i((W^q e_last)·(W^k e_i)/√d_k).
    """

    def __init__(self, width: int, key_width: int, value_width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, key_width, bias=False)
        self.key = nn.Linear(width, key_width, bias=False)
        self.value = nn.Linear(width, value_width, bias=False)

    def forward(
        self, embedded: Float[Tensor, "batch joined width"], time: int, span: int
    ) -> Float[Tensor, "batch time value_width"]:
        """Return the attention output after each of the last `time` words, over the `span` words that end with it."""
        queries, keys, values = self.query(embedded[:, -time:]), self.key(embedded), self.value(embedded)
        if LISTENERS.active:  # as one head over all words, in which each word sees its window
            ends = torch.arange(keys.shape[1] - time, keys.shape[1], device=keys.device)[:, None]
            positions = torch.arange(keys.shape[1], device=keys.device)
            bias = mask_to_bias((positions <= ends) & (positions > ends - span), keys)
            record = AttentionRecord(queries[:, None], keys[:, None], values[:, None], keys.shape[-1] ** -0.5, bias)
            for listener in LISTENERS.active:
                listener.on_attention(record)
        windows = sliding_windows(keys, time, span)
        scores = torch.einsum("btk,btsk->bts", queries, windows) * windows.shape[-1] ** -0.5
        mask = window_mask(embedded.shape[1], time, span, embedded.device)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return torch.einsum("bts,btsv->btv", scores.softmax(-1), sliding_windows(values, time, span))
