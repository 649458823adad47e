"""Updates of low rank beside frozen matrices: W + (alpha / rank) B A (Hu et al. 2022).

A is drawn and B is zero, as in the paper: the first output is the base's, to the last bit. Dropout acts on what goes
into A. Where a matrix is not applied to vectors that pass by here but handed to a kernel (recurrent layers, the joint
matrix of torch's attention), what goes into A cannot be reached: there whole columns of A are dropped, which is to drop
a coordinate of the inputs for the whole batch and for all steps of time at once. Of an embedding, whose input is the
token itself, a token's whole update is dropped.
"""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from lemma.adaptation.kernels import run_recurrent

HALVES = (torch.float16, torch.bfloat16)  # too coarse for the small steps of what learns


class Update(nn.Module):
    """scale · B A, of the shape of one matrix: rows are what comes out, columns what goes in."""

    def __init__(self, weight: Tensor, rank: int, scale: float, dropout: float = 0.0, transposed: bool = False) -> None:
        super().__init__()
        rows, columns = reversed(weight.shape) if transposed else weight.shape
        like = {"device": weight.device, "dtype": torch.float32 if weight.dtype in HALVES else weight.dtype}
        self.A = nn.Parameter(torch.empty(rank, columns, **like))
        self.B = nn.Parameter(torch.zeros(rows, rank, **like))
        self.scale, self.dropout, self.transposed = scale, dropout, transposed
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))  # uniform within ±1/√columns

    def forward(self, inputs: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*batch rows"]:
        """Apply it to vectors, through the narrow middle."""
        inputs = inputs.to(self.A.dtype)
        if self.training and self.dropout:
            inputs = functional.dropout(inputs, self.dropout)
        return functional.linear(functional.linear(inputs, self.A), self.B) * self.scale

    def look_up(self, tokens: Int[Tensor, "*batch"], padding: int | None) -> Float[Tensor, "*batch columns"]:
        """Its rows of some tokens; the row of padding never learns."""
        picked = functional.embedding(tokens, self.B, padding)
        if self.training and self.dropout:
            picked = picked * functional.dropout(torch.ones_like(picked[..., :1]), self.dropout)
        return picked @ self.A * self.scale

    def delta(self) -> Float[Tensor, "one other"]:
        """The whole update, as its matrix is written."""
        return self._product(self.A)

    def beside(self, weight: Float[Tensor, "one other"]) -> Float[Tensor, "one other"]:
        """The updated matrix for one use; in training, columns of A are dropped."""
        A = self.A
        if self.training and self.dropout:
            A = A * functional.dropout(torch.ones_like(A[:1]), self.dropout)
        return weight + self._product(A).to(weight.dtype)

    def _product(self, A: Tensor) -> Tensor:
        product = self.B @ A * self.scale
        return product.mT if self.transposed else product

    def extra_repr(self) -> str:
        """Rank and scale."""
        return f"rank={self.A.shape[0]}, scale={self.scale:g}"


class Beside(nn.Module):
    """A module with updates beside it; what it is asked for and has not, its base is asked for."""

    base: Any

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "base":
                raise
            return getattr(self.base, name)


class LoraMap(Beside):
    """A linear map with an update of low rank: W x + b + scale · B A x."""

    def __init__(self, base: nn.Module, update: Update) -> None:
        super().__init__()
        self.base, self.update = base, update

    def forward(self, inputs: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*batch rows"]:
        """Add what the update makes of the inputs."""
        outputs = self.base(inputs)
        return outputs + self.update(inputs).to(outputs.dtype)

    @property
    def weight(self) -> Tensor:
        """The updated matrix, for those who read it themselves, such as torch's attention its output map."""
        return self.update.beside(self.base.weight)


class LoraEmbedding(Beside):
    """An embedding with an update of low rank: E[token] + scale · B[token] A."""

    def __init__(self, base: nn.Embedding, update: Update) -> None:
        super().__init__()
        self.base, self.update, self.padding = base, update, base.padding_idx

    def forward(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch width"]:
        """Add the tokens' rows of the update."""
        vectors = self.base(tokens)
        return vectors + self.update.look_up(tokens, self.padding).to(vectors.dtype)

    @property
    def weight(self) -> Tensor:
        """The updated matrix, for those who read it themselves."""
        return self.update.beside(self.base.weight)


class LoraMatrices(Beside):
    """Any module that has matrices of its own, run with their updated values in their place."""

    def __init__(self, base: nn.Module, updates: dict[str, Update]) -> None:
        super().__init__()
        self.base, self.updates = base, nn.ModuleDict(updates)

    def __getattr__(self, name: str) -> Any:
        updates = self.__dict__.get("_modules", {}).get("updates", ())
        return self.updated(name) if name in updates else super().__getattr__(name)

    def updated(self, name: str) -> Tensor:
        """One matrix with its update, for one use."""
        update: Any = self.updates[name]
        return update.beside(getattr(self.base, name))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the base with its matrices updated."""
        updated = {name: self.updated(name) for name in self.updates}
        if isinstance(self.base, nn.RNNBase):
            return run_recurrent(self.base, updated, inputs, named)
        return functional_call(self.base, updated, inputs, named)

    def extra_repr(self) -> str:
        """What super says: and so decoding leaves this a module, as `functional_call` needs its base to be one."""
        return super().extra_repr()


Lora = LoraMap | LoraEmbedding | LoraMatrices
