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

from lemma.data.corpora import MODELS, fetch_corpus
from lemma.data.foreign import reading_foreign_file
from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError, RunError, StorageError
from lemma.files import (
    atomic_replace,
    check_replaceable,
    data_home,
    file_checksum,
    file_hash,
    files_hash,
    home_folder,
    matches_checksum,
    read_checked_json,
    real_path,
    restore_moved_folder,
    text_hash,
    verify_file,
    with_checksum,
    write_atomically,
)
from lemma.hub.architectures import (
    StoredTensors,
    TensorMap,
    architecture_of,
    spec_from_config,
    tensor_maps_of,
    weights_from_hf,
)
from lemma.models.build import build_uninitialized
from lemma.models.weights import named_weights, store_column_major
from lemma.report.progress import make_observer, reading_progress
from lemma.spec.base import exists
from lemma.spec.models import Encoder, ModelSpec

CONFIG, CHECKSUMS, OPENED_FOLDER = "config.json", "lemma.json", "opened"
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
    extra_files: tuple[Path, ...] = ()
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
    def tensor_maps(self) -> dict[str, TensorMap]:
        """Of which tensors of Hugging Face's each matrix of ours is made, by our modules' paths."""
        return self.tensor_maps_of(self.spec)

    def tensor_maps_of(self, spec: ModelSpec) -> dict[str, TensorMap]:
        """The same of a model that is made of it: itself, or a classifier as transformers' own class is."""
        found = tensor_maps_of(architecture_of(self.config), spec)
        return {piece.name.removesuffix(".weight"): piece for piece in found if piece.name.endswith(".weight")}

    def model(self, dropout: float = 0.0, by_columns: bool = False) -> nn.Module:
        """Build the model without drawing weights, then fill in blocks of one tensor at a time: no more is there twice.

        `by_columns` brings large maps into the order that decoding reads fastest.
        """
        for file in (*self.files, *self.extra_files):
            verify_pretrained_file(file)
        with reading_foreign_file(self.path), torch.no_grad():
            module = build_uninitialized(self.spec, dropout)
            if by_columns:
                store_column_major(module, copy_values=False)
            own = named_weights(module, include_frozen=True)
            shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
            for name, blocks in weights_from_hf(self.config, self.tensors, shapes):
                row = 0
                for block in blocks:
                    own[name][row : row + len(block)].copy_(block)
                    row += len(block)
            return module


def verify_pretrained_file(path: Path) -> None:
    """Compare a file of a pretrained model with the checksum that there is of it.

    A folder that Lemma wrote lists its own (`lemma.json`); in Hugging Face's cache a file is named by it. Of any other
    file the SHA-256 is kept in the data home when it is first opened, and a change is a warning: it may be meant.
    """
    if (path.parent / CHECKSUMS).is_file():
        listed = read_checked_json(path.parent / CHECKSUMS).get("files")
        if isinstance(listed, dict) and path.name in listed:
            try:
                verify_file(path, listed[path.name], CHECKSUMS)
            except RunError as error:
                raise RunError(f"{error} If it was changed on purpose, remove {path.parent / CHECKSUMS}.") from None
            return
    real = real_path(path)
    if real.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", real.name):
        if not matches_checksum(real, real.name, lambda: file_hash(real)):
            raise RunError(f"{path} is damaged: it does not have the SHA-256 {real.name}. Download it again.")
        return
    if message := change_since_opened(path):
        warnings.warn(message, stacklevel=2)
    elif _read_record(real) is None:
        with suppress(StorageError, DataError):  # a data home that cannot be written
            home_folder(OPENED_FOLDER)
            content = with_checksum(
                {"path": str(real), "since": time.strftime("%Y-%m-%d %H:%M"), "hash": file_hash(real)}
            )
            write_atomically(_record_path(real), json.dumps(content, indent=1) + "\n")


def change_since_opened(path: Path) -> str | None:
    """Describe how a file differs from what it was when it was first opened; None if it does not, or was never opened.

    The record is not replaced, so that the change is reported until the old file is back or the record is removed.
    """
    real = real_path(path)
    first = _read_record(real)
    if first is None or matches_checksum(real, str(first.get("hash")), lambda: file_hash(real)):
        return None
    return (
        f"{path} has changed since it was opened here on {first.get('since')}, with the SHA-256 {first.get('hash')}. "
        f"If nobody replaced it, it is damaged: get it again. If you replaced it: rm {quote(str(_record_path(real)))}"
    )


def forget_opened(path: Path) -> None:
    """Forget the checksum of a file that Lemma itself has replaced."""
    with suppress(OSError):
        _record_path(real_path(path)).unlink(missing_ok=True)


def _read_record(real: Path) -> dict[str, Any] | None:
    """Read the record of a file's first opening; None if it is missing or damaged."""
    try:
        return read_checked_json(_record_path(real))
    except (RunError, StorageError):
        return None


def _record_path(real: Path) -> Path:
    """Return the file in the data home that holds the checksum of a model of another program."""
    return data_home() / OPENED_FOLDER / f"{text_hash(str(real))[:32]}.json"


@contextmanager
def export_folder(path: Path, overwrite: bool) -> Iterator[Path]:
    """Fill a folder for another library that becomes `path`, with checksums by which Lemma recognises its own."""
    check_export_target(path, overwrite)
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    with atomic_replace(path) as temporary:
        temporary.mkdir()
        yield temporary
        sums = {file.name: file_checksum(file) for file in sorted(temporary.iterdir())}
        (temporary / CHECKSUMS).write_text(
            json.dumps(with_checksum({"files": sums}), indent=1) + "\n", encoding="utf-8"
        )


def check_export_target(path: Path, overwrite: bool) -> None:
    """Refuse to write a folder where something is, unless Lemma wrote it, nobody changed it, and it may be replaced."""
    restore_moved_folder(path)
    if not exists(path):
        return
    if not path.is_dir():
        raise RunError(f"{path} already exists and is a file. Name a new folder.")
    names = {entry.name for entry in path.iterdir()}
    if not names:
        return
    try:
        listed = read_checked_json(path / CHECKSUMS).get("files") if CHECKSUMS in names else {}
        if foreign := sorted(names - {CHECKSUMS, *(listed or {})}):
            raise RunError(f"it holds {foreign[0]}")
        for name in sorted(names - {CHECKSUMS}):
            verify_file(path / name, (listed or {})[name], CHECKSUMS)
    except RunError as error:
        raise RunError(
            f"{path} already exists, and is not as Lemma wrote it: {str(error).rstrip('.')}. Name a new folder."
        ) from None
    if not overwrite:
        raise RunError(f"{path} already exists. To replace it: --overwrite, in Python overwrite=True.")
    check_replaceable(path)


def open_pretrained(path: Path) -> Pretrained:
    """Open a pretrained model; what cannot be read is refused with the reason, before anything is loaded."""
    if not exists(path) and str(path) in MODELS:
        path = fetch_corpus(MODELS[str(path)], reading_progress(make_observer()))[0]
    with reading_foreign_file(path):
        if path.suffix in GGUF:
            from lemma.hub.gguf import open_gguf

            return open_gguf(path)
        if path.suffix in LLAMA2C:
            from lemma.hub.llama2c import open_llama2c

            return open_llama2c(path)
        from lemma.hub.huggingface import open_folder

        return open_folder(path)
