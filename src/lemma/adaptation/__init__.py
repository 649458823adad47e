"""Adapting any model: a frozen body, all of it, adapters behind its modules, or LoRA beside its matrices."""

from lemma.adaptation.adapting import (
    Adaptation,
    Learned,
    adapt_model,
    trainable,
    trainable_bytes,
    trainable_number,
)
from lemma.adaptation.bottleneck import Adapter
from lemma.adaptation.example import lora_matrix
from lemma.adaptation.folding import Folded, fold, merged
from lemma.adaptation.low_rank import LoraEmbedding, LoraMap, LoraMatrices, Update

__all__ = [
    "Adaptation",
    "Adapter",
    "Folded",
    "Learned",
    "LoraEmbedding",
    "LoraMap",
    "LoraMatrices",
    "Update",
    "adapt_model",
    "fold",
    "lora_matrix",
    "merged",
    "trainable",
    "trainable_bytes",
    "trainable_number",
]
