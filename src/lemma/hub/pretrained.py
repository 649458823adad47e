"""Pretrained models in the files of other libraries: opening them, and loading their weights into Lemma's modules.

A model is a Hugging Face folder, a `.gguf` file, a file of llama2.c, or one of the names that `lemma data` lists. Each
becomes a configuration and tensors with Hugging Face's names, read one at a time, and a tokenizer.
"""

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
    file_hash,
    files_hash,
    home_folder,
    matches_checksum,
    read_checked_json,
    real_path,
    restore_moved_folder,
    text_hash,
    verify_file,
    write_checked_json,
    write_checksums,
)
from lemma.hub.architectures import architecture_of, spec_from_config, tensor_maps_of, weights_from_hf
from lemma.hub.tensor_maps import StoredTensors, TensorMap
from lemma.models.base import named_weights, store_column_major
from lemma.models.build import build_uninitialized
from lemma.report.progress import make_observer, reading_progress
from lemma.spec.base import exists
from lemma.spec.models import Encoder, ModelSpec

CONFIG = "config.json"
CHECKSUMS = "lemma.json"  # in a folder that Lemma wrote
OPENED_FOLDER = "opened"  # in the data home: records of the files that were opened
GGUF_SUFFIX = ".gguf"
LLAMA2C_SUFFIXES = (".bin", ".data")


def is_pretrained(path: Path) -> bool:
    """Return whether a path may be a pretrained model: a folder with config.json, a model file, or a known name."""
    if not exists(path):
        return str(path) in MODELS
    if path.is_dir():
        return exists(path / CONFIG) and (path / CONFIG).is_file()
    return path.is_file() and path.suffix in (GGUF_SUFFIX, *LLAMA2C_SUFFIXES, ".json")


@dataclass(frozen=True)
class Pretrained:
    """A model in the files of another library; only its configuration is read at first."""

    path: Path
    config: Mapping[str, Any]  # as in Hugging Face's config.json
    tensors: StoredTensors  # by Hugging Face's names
    files: tuple[Path, ...]  # all that the model's answers depend on
    read_tokenizer: Callable[[], Tokenizer]
    extra_files: tuple[Path, ...] = ()  # with special tokens and chat template, which are not in the model's hash

    @cached_property
    def spec(self) -> ModelSpec:
        """Lemma's spec of the model, converted from its config.json."""
        with reading_foreign_file(self.path):
            spec = spec_from_config(self.config)
            if isinstance(spec, Encoder):  # only its tokenizer knows the special tokens of a BERT
                with suppress(RunError):
                    return spec.replace(special_tokens=self.tokenizer.mask_tokens or spec.special_tokens)
            return spec

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer with its special tokens, stop tokens and chat template."""
        with reading_foreign_file(self.path):
            return self.read_tokenizer()

    @cached_property
    def hash(self) -> str:
        """SHA-256 over the files, which identifies the model."""
        return files_hash(self.files)

    @property
    def tensor_maps(self) -> dict[str, TensorMap]:
        """Map between each matrix and the checkpoint's tensors, by the path of Lemma's module."""
        return self.tensor_maps_of(self.spec)

    def tensor_maps_of(self, spec: ModelSpec) -> dict[str, TensorMap]:
        """Return the same as `tensor_maps`, for the spec of this model or of a classifier made of it."""
        maps = tensor_maps_of(architecture_of(self.config), spec)
        return {each.name.removesuffix(".weight"): each for each in maps if each.name.endswith(".weight")}

    def model(self, dropout: float = 0.0, by_columns: bool = False) -> nn.Module:
        """Return a new model with the pretrained weights, read block by block to save memory.

        Args:
            dropout: rate for later training.
            by_columns: whether large matrices are stored column by column, which decoding reads fastest.
        """
        for file in (*self.files, *self.extra_files):
            verify_pretrained_file(file)
        with reading_foreign_file(self.path), torch.no_grad():
            module = build_uninitialized(self.spec, dropout)
            if by_columns:
                store_column_major(module, copy_values=False)
            weights = named_weights(module, include_frozen=True)
            shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
            for name, blocks in weights_from_hf(self.config, self.tensors, shapes):
                row = 0
                for block in blocks:
                    weights[name][row : row + len(block)].copy_(block)
                    row += len(block)
            return module


def open_pretrained(path: Path) -> Pretrained:
    """Open a pretrained model at a path or by its name; download a named one if it is missing."""
    if not exists(path) and str(path) in MODELS:
        path = fetch_corpus(MODELS[str(path)], reading_progress(make_observer()))[0]
    with reading_foreign_file(path):
        if path.suffix == GGUF_SUFFIX:
            from lemma.hub.gguf import open_gguf

            return open_gguf(path)
        if path.suffix in LLAMA2C_SUFFIXES:
            from lemma.hub.llama2c import open_llama2c

            return open_llama2c(path)
        from lemma.hub.huggingface import open_folder

        return open_folder(path)


def verify_pretrained_file(path: Path) -> None:
    """Raise a RunError if a file of a pretrained model does not have its checksum; pass if none is known.

    A folder that Lemma wrote lists its checksums (`lemma.json`); in Hugging Face's cache a file is named by it. The
    SHA-256 of any other file is recorded in the data home when it is first opened. A change from that record is only a
    warning, since it may be on purpose.
    """
    manifest = path.parent / CHECKSUMS
    if manifest.is_file():
        checksums = read_checked_json(manifest).get("files")
        if isinstance(checksums, dict) and path.name in checksums:
            try:
                verify_file(path, checksums[path.name], CHECKSUMS)
            except RunError as error:
                raise RunError(f"{error} If it was changed on purpose, remove {manifest}.") from None
            return
    real = real_path(path)
    if real.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", real.name):
        if not matches_checksum(real, real.name, lambda: file_hash(real)):
            raise RunError(f"{path} is damaged: it does not have the SHA-256 {real.name}. Download it again.")
        return
    if message := change_since_opened(path):
        warnings.warn(message, stacklevel=2)
    elif _read_record(real) is None:
        with suppress(StorageError, DataError):  # the data home may be read-only
            home_folder(OPENED_FOLDER)
            record = {"path": str(real), "since": time.strftime("%Y-%m-%d %H:%M"), "hash": file_hash(real)}
            write_checked_json(_record_path(real), record)


def change_since_opened(path: Path) -> str | None:
    """Return a message if a file has changed since it was first opened; None if not, or if never opened.

    The record is not replaced, so that the change is reported until the old file is back or the record is removed.
    """
    real = real_path(path)
    record = _read_record(real)
    if record is None or matches_checksum(real, str(record.get("hash")), lambda: file_hash(real)):
        return None
    return (
        f"{path} has changed since it was opened here on {record.get('since')}, with the SHA-256 {record.get('hash')}. "
        f"If nobody replaced it, it is damaged: get it again. If you replaced it: rm {quote(str(_record_path(real)))}"
    )


def forget_opened(path: Path) -> None:
    """Delete the recorded checksum of a file that Lemma has replaced."""
    with suppress(OSError):
        _record_path(real_path(path)).unlink(missing_ok=True)


def _read_record(real: Path) -> dict[str, Any] | None:
    """Return the record (path, time, hash) of a file at this resolved path that was opened before; None if never."""
    try:
        return read_checked_json(_record_path(real))
    except (RunError, StorageError):
        return None


def _record_path(real: Path) -> Path:
    """Return where the data home records the checksum of the file at this resolved path."""
    return data_home() / OPENED_FOLDER / f"{text_hash(str(real))[:32]}.json"


@contextmanager
def export_folder(path: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary folder to write an export into; on success it becomes `path`, with a list of checksums."""
    check_export_target(path, overwrite)
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    with atomic_replace(path) as temporary:
        temporary.mkdir()
        yield temporary
        write_checksums(temporary, CHECKSUMS)


def check_export_target(path: Path, overwrite: bool) -> None:
    """Raise a RunError unless nothing is at `path`, or an unmodified export that `overwrite` allows to replace."""
    restore_moved_folder(path)
    if not exists(path):
        return
    if not path.is_dir():
        raise RunError(f"{path} already exists and is a file. Name a new folder.")
    names = {entry.name for entry in path.iterdir()}
    if not names:
        return
    try:
        checksums = read_checked_json(path / CHECKSUMS).get("files") if CHECKSUMS in names else None
        checksums = checksums or {}
        if unexpected := sorted(names - {CHECKSUMS, *checksums}):
            raise RunError(f"it holds {unexpected[0]}")
        for name in sorted(names - {CHECKSUMS}):
            verify_file(path / name, checksums[name], CHECKSUMS)
    except RunError as error:
        raise RunError(
            f"{path} already exists, and is not as Lemma wrote it: {str(error).rstrip('.')}. Name a new folder."
        ) from None
    if not overwrite:
        raise RunError(f"{path} already exists. To replace it: --overwrite, in Python overwrite=True.")
    check_replaceable(path)
