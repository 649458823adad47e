"""What encoders, translators and classifiers learn: each a model and its objective in one module."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.models import ClassifierModel, EncoderDecoderModel, EncoderModel
from lemma.objectives import cross_entropy, next_sentence, teacher_forcing, translation

Learned = tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...], None]
"""What is minimised, the terms that are reported, and no state."""


class MaskedLesson(nn.Module):
    """An encoder that says what was hidden, whether two stretches follow each other, or both (problem E3)."""

    terms: tuple[str, ...]

    def __init__(self, model: EncoderModel, hidden: int) -> None:
        """Take the model, and how many tokens of every row are to be predicted."""
        super().__init__()
        self.model, self.hidden = model, hidden
        self.terms = ("loss", "next_sentence") if model.spec.objective == "both" else ("loss",)

    def forward(
        self, inputs: Int[Tensor, "rows context"], targets: Int[Tensor, "rows context"], state: Any = None
    ) -> Learned:
        """Return the mean loss of what was hidden, and that of which stretches follow; their sum is minimised."""
        vectors = self.model.vectors(inputs)
        losses = []
        if self.model.output is not None:
            asked, tokens = self._asked(vectors, targets)
            losses.append(cross_entropy(self.model.output(asked), tokens).loss)
        if self.model.follow is not None:
            losses.append(next_sentence(self.model.follow(vectors[:, 0]), targets).loss)
        return torch.stack(losses).sum(), tuple(losses), None

    def _asked(
        self, vectors: Float[Tensor, "rows context width"], targets: Int[Tensor, "rows context"]
    ) -> tuple[Float[Tensor, "rows hidden width"], Int[Tensor, "rows hidden"]]:
        """The places that are to be predicted, as many in every row: the output layer need read no others."""
        inner = targets[:, 1:]  # the first place says what follows what
        places = (inner >= 0).byte().argsort(dim=1, descending=True, stable=True)[:, : self.hidden]
        picked = (places + 1)[..., None].expand(-1, -1, vectors.shape[-1])
        return vectors.gather(1, picked), inner.gather(1, places)


class TranslationLesson(nn.Module):
    """An encoder–decoder that writes each target token from the source and the target tokens before it."""

    terms = ("loss",)

    def __init__(self, model: EncoderDecoderModel, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(
        self, sources: Int[Tensor, "rows source"], targets: Int[Tensor, "rows target"], state: Any = None
    ) -> Learned:
        """Return the smoothed mean loss, to be minimised, and the true one, to be reported."""
        fed, _ = teacher_forcing(targets)
        objective, loss = translation(self.model(sources, fed), targets, self.smoothing)
        return objective, (loss,), None


class ClassificationLesson(nn.Module):
    """A classifier that says which class each text belongs to."""

    terms = ("loss",)

    def __init__(self, model: ClassifierModel, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, texts: Int[Tensor, "rows time"], classes: Int[Tensor, "rows 1"], state: Any = None) -> Learned:
        """Return the smoothed mean loss, to be minimised, and the true one, to be reported."""
        objective, loss = cross_entropy(self.model(texts), classes[:, 0], self.smoothing)
        return objective, (loss,), None
