"""Pretrained models in the files of other libraries: found, opened, and their weights put into our own modules.

A model is a Hugging Face folder, a `.gguf` file, a file of llama2.c, or one of the names that `lemma data` lists. All
come to the same: a configuration and tensors with Hugging Face's names, read one at a time, and a tokenizer.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lemma.data.corpora import MODELS, corpus_files
from lemma.data.files import files_hash
from lemma.data.tokenizers import Tokenizer
from lemma.errors import RunError
from lemma.hub.architectures import (
    Piece,
    StoredTensors,
    architecture_of,
    pieces_of,
    spec_from_config,
    weights_from,
)
from lemma.models.base import store_by_columns, weights_of
from lemma.models.build import blank
from lemma.report.progress import observer, watched_reading
from lemma.spec.models import Encoder, ModelSpec

CONFIG = "config.json"
GGUF, LLAMA2C = (".gguf",), (".bin", ".data")


def is_pretrained(path: Path) -> bool:
    """Whether a path is, by its look, a pretrained model: a folder with a config.json, a file of one, or a name."""
    if path.is_dir():
        return (path / CONFIG).is_file()
    return path.suffix in (*GGUF, *LLAMA2C, ".json") if path.is_file() else str(path) in MODELS


@dataclass(frozen=True)
class Pretrained:
    """A model in the files of another library; only its configuration is read before more is asked for."""

    path: Path
    config: Mapping[str, Any]
    """As in Hugging Face's config.json."""
    tensors: StoredTensors
    """By Hugging Face's names; each is read when it is asked for."""
    files: tuple[Path, ...]
    """All that the model's answers depend on."""
    read_tokenizer: Callable[[], Tokenizer]

    @cached_property
    def spec(self) -> ModelSpec:
        """The model as one of our own specs."""
        with self.named():
            spec = spec_from_config(self.config)
            if isinstance(spec, Encoder):  # of BERT's special tokens only its tokenizer knows
                with suppress(RunError):
                    return spec.replace(special_tokens=self.tokenizer.mask_tokens or spec.special_tokens)
            return spec

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer, with its special tokens, stop tokens and chat template."""
        return self.read_tokenizer()

    @cached_property
    def hash(self) -> str:
        """The SHA-256 over its files, which tells this model from all others."""
        return files_hash(self.files)

    @property
    def pieces(self) -> dict[str, Piece]:
        """Of which tensors of Hugging Face's each matrix of ours is made, by our modules' paths."""
        return self.pieces_of(self.spec)

    def pieces_of(self, spec: ModelSpec) -> dict[str, Piece]:
        """The same of a model that is made of it: itself, or a classifier as transformers' own class is."""
        found = pieces_of(architecture_of(self.config), spec)
        return {piece.ours.removesuffix(".weight"): piece for piece in found if piece.ours.endswith(".weight")}

    def model(self, dropout: float = 0.0, by_columns: bool = False) -> nn.Module:
        """Build the model without drawing weights, then fill in blocks of one tensor at a time: no more is there twice.

        `by_columns` brings large maps into the order that decoding reads fastest.
        """
        module = blank(self.spec, dropout)
        if by_columns:
            store_by_columns(module, filled=False)
        own = weights_of(module, frozen=True)
        with self.named(), torch.no_grad():
            shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
            for name, blocks in weights_from(self.config, self.tensors, shapes):
                row = 0
                for block in blocks:
                    own[name][row : row + len(block)].copy_(block)
                    row += len(block)
        return module

    @contextmanager
    def named(self) -> Iterator[None]:
        """Name the folder or file in what is refused."""
        try:
            yield
        except RunError as error:
            raise RunError(str(error) if str(error).startswith(str(self.path)) else f"{self.path}: {error}") from None


def open_pretrained(path: Path) -> Pretrained:
    """Open a pretrained model; what cannot be read is refused with the reason, before anything is loaded."""
    if not path.exists() and str(path) in MODELS:
        path = corpus_files(MODELS[str(path)], watched_reading(observer()))[0]
    if path.suffix in GGUF:
        from lemma.hub.gguf import open_gguf

        return open_gguf(path)
    if path.suffix in LLAMA2C:
        from lemma.hub.llama2c import open_llama2c

        return open_llama2c(path)
    from lemma.hub.huggingface import open_folder

    return open_folder(path)
