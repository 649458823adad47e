"""LoRA on one matrix, as an example to be counted."""

from torch import nn

from lemma.adaptation.adapting import adapt_model
from lemma.spec import Lora


def lora_matrix(W_in: int = 200, W_out: int = 50, R: int = 5) -> nn.Module:
    """One matrix and its LoRA update (problem E5): R(W_in + W_out) numbers learn beside W_in·W_out that do not."""
    return adapt_model(nn.Linear(W_in, W_out, bias=False), Lora(rank=R, targets=("*",))).model
