"""A classifier: a body that reads a text, what is taken of its vectors, and one linear map to the classes."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.models.body import Body
from lemma.spec import Classifier

FIRST = 0.02  # the spread of the head's first weights


class ClassifierModel(nn.Module):
    """The head reads the body's vectors; what the body has beyond them is taken away."""

    stateful: ClassVar[bool] = False

    def __init__(self, spec: Classifier, body: Body, dropout: float = 0.0) -> None:
        super().__init__()
        self.spec, self.body = spec, body
        for name in body.outward:
            delattr(body, name)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(body.vector_width, spec.classes)

    def start(self) -> None:
        """Draw a head that begins by finding all classes about equally likely."""
        nn.init.normal_(self.head.weight, std=FIRST)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch classes"]:
        """Return the logits of each text's class."""
        there = (tokens if tokens.dim() == 2 else tokens[..., 0]) >= 0  # beside a tree's words stand its arcs
        taken = pooled(self.body.vectors(tokens), there, self.spec.pooling)
        return self.head(self.dropout(taken))


def pooled(vectors: Float[Tensor, "batch time width"], there: Tensor, pooling: str) -> Float[Tensor, "batch width"]:
    """Take the first vector of each row, the last one that is there, or the mean of those that are there.

    >>> rows, there = torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]])
    >>> [pooled(rows, there, name).item() for name in ("first", "last", "mean")]
    [1.0, 3.0, 2.0]
    """
    if pooling == "first":
        return vectors[:, 0]
    number = there.sum(1).clamp(min=1)
    if pooling == "last":
        return vectors[torch.arange(len(vectors), device=vectors.device), number - 1]
    return vectors.masked_fill(~there[..., None], 0.0).sum(1) / number[:, None]
