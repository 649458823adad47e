"""What the window models share: they see exactly the last N−1 tokens, and all windows of a stretch at once."""

from abc import abstractmethod

from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.models.language_model import LanguageModel
from lemma.parts import State, Window
from lemma.spec import LanguageSpec


class WindowModel(LanguageModel):
    """A model of the next token given the N−1 before it."""

    output: nn.Linear

    def __init__(self, spec: LanguageSpec, context: int) -> None:
        super().__init__(spec)
        self.span = context - 1

    @property
    def reach(self) -> int:
        """N−1."""
        return self.span

    @abstractmethod
    def read(self, joined: Int[Tensor, "batch joined"], time: int) -> Float[Tensor, "batch time vector_width"]:
        """Return what the output layer reads after each of the last `time` of these tokens."""

    def forward(
        self, tokens: Int[Tensor, "batch time"], state: State | None = None
    ) -> tuple[Float[Tensor, "batch time vocabulary"], Window]:
        """Predict the token after each of `tokens` from its window."""
        window = state if isinstance(state, Window) else Window.empty(tokens, self.span)
        return self.output(self.read(window.joined(tokens), tokens.shape[1])), window.read(tokens)

    def vectors(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vector_width"]:
        """Read every window; no window reaches to its right, where padding is."""
        return self.read(tokens.clamp(min=0), tokens.shape[1])
