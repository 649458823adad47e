"""Pretrained models in the files of other libraries: found, opened, and their weights put into our own modules.

A model is a Hugging Face folder, a `.gguf` file, a file of llama2.c, or one of the names that `lemma data` lists. All
come to the same: a configuration and tensors with Hugging Face's names, read one at a time, and a tokenizer.
"""

import json
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import nn

from lemma.data.corpora import MODELS, corpus_files
from lemma.data.files import (
    check_file,
    check_once,
    data_home,
    file_hash,
    file_sum,
    files_hash,
    home_folder,
    read_sealed,
    real_path,
    refuse_protected,
    replacing,
    restore,
    seal,
    text_hash,
    write_atomically,
)
from lemma.data.foreign import reading_foreign_file
from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError, RunError, StorageError
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
from lemma.spec.base import exists
from lemma.spec.models import Encoder, ModelSpec

CONFIG, SUMS, OPENED = "config.json", "lemma.json", "opened"
GGUF, LLAMA2C = (".gguf",), (".bin", ".data")


def is_pretrained(path: Path) -> bool:
    """Whether a path is, by its look, a pretrained model: a folder with a config.json, a file of one, or a name."""
    if not exists(path):
        return str(path) in MODELS
    if path.is_dir():
        return exists(path / CONFIG) and (path / CONFIG).is_file()
    return path.is_file() and path.suffix in (*GGUF, *LLAMA2C, ".json")


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
    more: tuple[Path, ...] = ()
    """Files that say how it is used: its special tokens, its chat template. They are not in its hash."""

    @cached_property
    def spec(self) -> ModelSpec:
        """The model as one of our own specs."""
        with reading_foreign_file(self.path):
            spec = spec_from_config(self.config)
            if isinstance(spec, Encoder):  # of BERT's special tokens only its tokenizer knows
                with suppress(RunError):
                    return spec.replace(special_tokens=self.tokenizer.mask_tokens or spec.special_tokens)
            return spec

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer, with its special tokens, stop tokens and chat template."""
        with reading_foreign_file(self.path):
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
        for file in (*self.files, *self.more):
            recognise(file)
        with reading_foreign_file(self.path), torch.no_grad():
            module = blank(self.spec, dropout)
            if by_columns:
                store_by_columns(module, filled=False)
            own = weights_of(module, frozen=True)
            shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
            for name, blocks in weights_from(self.config, self.tensors, shapes):
                row = 0
                for block in blocks:
                    own[name][row : row + len(block)].copy_(block)
                    row += len(block)
            return module


def recognise(path: Path) -> None:
    """Compare a file of a pretrained model with the checksum that there is of it.

    A folder that Lemma wrote lists its own (`lemma.json`); in Hugging Face's cache a file is named by it. Of any other
    file the SHA-256 is kept in the data home when it is first opened, and a change is a warning: it may be meant.
    """
    if (path.parent / SUMS).is_file():
        listed = read_sealed(path.parent / SUMS).get("files")
        if isinstance(listed, dict) and path.name in listed:
            try:
                check_file(path, listed[path.name], SUMS)
            except RunError as error:
                raise RunError(f"{error} If it was changed on purpose, remove {path.parent / SUMS}.") from None
            return
    real = real_path(path)
    if real.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", real.name):
        if not check_once(real, real.name, lambda: file_hash(real)):
            raise RunError(f"{path} is damaged: it does not have the SHA-256 {real.name}. Download it again.")
        return
    if message := change_since_opened(path):
        warnings.warn(message, stacklevel=2)
    elif _first_opened(real) is None:
        with suppress(StorageError, DataError):  # a data home that cannot be written
            home_folder(OPENED)
            content = seal({"path": str(real), "since": time.strftime("%Y-%m-%d %H:%M"), "hash": file_hash(real)})
            write_atomically(_record(real), json.dumps(content, indent=1) + "\n")


def change_since_opened(path: Path) -> str | None:
    """Describe how a file differs from what it was when it was first opened; None if it does not, or was never opened.

    The record is not replaced, so that the change is reported until the old file is back or the record is removed.
    """
    real = real_path(path)
    first = _first_opened(real)
    if first is None or check_once(real, str(first.get("hash")), lambda: file_hash(real)):
        return None
    return (
        f"{path} has changed since it was opened here on {first.get('since')}, with the SHA-256 {first.get('hash')}. "
        f"If nobody replaced it, it is damaged: get it again. If you replaced it: rm {quote(str(_record(real)))}"
    )


def forget_opened(path: Path) -> None:
    """Forget the checksum of a file that Lemma itself has replaced."""
    with suppress(OSError):
        _record(real_path(path)).unlink(missing_ok=True)


def _first_opened(real: Path) -> dict[str, Any] | None:
    """Read the record of a file's first opening; None if it is missing or damaged."""
    try:
        return read_sealed(_record(real))
    except (RunError, StorageError):
        return None


def _record(real: Path) -> Path:
    """Return the file in the data home that holds the checksum of a model of another program."""
    return data_home() / OPENED / f"{text_hash(str(real))[:32]}.json"


@contextmanager
def exporting(path: Path, overwrite: bool) -> Iterator[Path]:
    """Fill a folder for another library that becomes `path`, with checksums by which Lemma recognises its own."""
    refuse_existing_export(path, overwrite)
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.mkdir()
        yield temporary
        sums = {file.name: file_sum(file) for file in sorted(temporary.iterdir())}
        (temporary / SUMS).write_text(json.dumps(seal({"files": sums}), indent=1) + "\n", encoding="utf-8")


def refuse_existing_export(path: Path, overwrite: bool) -> None:
    """Refuse to write a folder where something is, unless Lemma wrote it, nobody changed it, and it may be replaced."""
    restore(path)
    if not exists(path):
        return
    if not path.is_dir():
        raise RunError(f"{path} already exists and is a file. Name a new folder.")
    names = {entry.name for entry in path.iterdir()}
    if not names:
        return
    try:
        listed = read_sealed(path / SUMS).get("files") if SUMS in names else {}
        if foreign := sorted(names - {SUMS, *(listed or {})}):
            raise RunError(f"it holds {foreign[0]}")
        for name in sorted(names - {SUMS}):
            check_file(path / name, (listed or {})[name], SUMS)
    except RunError as error:
        raise RunError(
            f"{path} already exists, and is not as Lemma wrote it: {str(error).rstrip('.')}. Name a new folder."
        ) from None
    if not overwrite:
        raise RunError(f"{path} already exists. To replace it: --overwrite, in Python overwrite=True.")
    refuse_protected(path)


def open_pretrained(path: Path) -> Pretrained:
    """Open a pretrained model; what cannot be read is refused with the reason, before anything is loaded."""
    if not exists(path) and str(path) in MODELS:
        path = corpus_files(MODELS[str(path)], watched_reading(observer()))[0]
    with reading_foreign_file(path):
        if path.suffix in GGUF:
            from lemma.hub.gguf import open_gguf

            return open_gguf(path)
        if path.suffix in LLAMA2C:
            from lemma.hub.llama2c import open_llama2c

            return open_llama2c(path)
        from lemma.hub.huggingface import open_folder

        return open_folder(path)
