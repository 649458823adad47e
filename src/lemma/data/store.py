"""The token store: one memory-mapped file with the tokens of all splits, and a JSON header beside it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Integer

from lemma.data.atomic import new_folder
from lemma.errors import DataError

FORMAT = 1
HEADER = "store.json"
TOKENS = "tokens.bin"


@dataclass(frozen=True)
class Encoded:
    """A piece of text as ids, the UTF-8 bytes they express and the characters they could not."""

    ids: Integer[np.ndarray, "tokens"]
    bytes: int = 0
    left_out: int = 0


@dataclass(frozen=True)
class _Extent:
    """Where a split lies in the file, and what it holds."""

    start: int
    tokens: int
    bytes: int
    left_out: int


class TokenStore:
    """The tokens of each split, read from disk as they are touched."""

    def __init__(self, folder: Path) -> None:
        try:
            header = _read_header(folder)
            self._tokens = np.memmap(folder / TOKENS, dtype=header["dtype"], mode="r")
            self._extents = {name: _Extent(**extent) for name, extent in header["splits"].items()}
            self.data_hash: str = header["data_hash"]
            self.tokenizer_hash: str = header["tokenizer_hash"]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(f"{folder}: no readable token store ({error}). Remove the folder.") from None
        if len(self._tokens) != sum(extent.tokens for extent in self._extents.values()):
            raise DataError(f"{folder}: the token file is not as long as its header says. Remove the folder.")
        self.folder = folder

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self._extents)

    def __getitem__(self, split: str) -> Integer[np.ndarray, "tokens"]:
        extent = self._extent(split)
        return self._tokens[extent.start : extent.start + extent.tokens]

    def bytes(self, split: str) -> int:
        """The UTF-8 bytes of the text that the split's tokens express."""
        return self._extent(split).bytes

    def left_out(self, split: str) -> int:
        """How many characters of the split's text the tokenizer could not express."""
        return self._extent(split).left_out

    def _extent(self, split: str) -> _Extent:
        if split not in self._extents:
            raise DataError(f"there is no split '{split}' in this text. It has: {', '.join(self._extents)}.")
        return self._extents[split]


def _read_header(folder: Path) -> dict[str, Any]:
    header = json.loads((folder / HEADER).read_text(encoding="utf-8"))
    if header["format"] != FORMAT:
        raise ValueError(f"its format is {header['format']}, not {FORMAT}")
    return header


def write_store(
    folder: Path, splits: Mapping[str, Iterable[Encoded]], *, vocabulary: int, data_hash: str, tokenizer_hash: str
) -> TokenStore:
    """Write the splits one after the other as they are encoded; the folder appears only when all is there."""
    dtype = "uint16" if vocabulary <= 1 << 16 else "uint32"
    with new_folder(folder) as temporary:
        with (temporary / TOKENS).open("wb") as file:
            extents = _write_splits(file, splits, np.dtype(dtype))
        header = {"format": FORMAT, "dtype": dtype, "data_hash": data_hash, "tokenizer_hash": tokenizer_hash}
        header["splits"] = {name: asdict(extent) for name, extent in extents.items()}
        (temporary / HEADER).write_text(json.dumps(header, indent=2), encoding="utf-8")
    return TokenStore(folder)


def _write_splits(file: BinaryIO, splits: Mapping[str, Iterable[Encoded]], dtype: np.dtype) -> dict[str, _Extent]:
    extents: dict[str, _Extent] = {}
    start = 0
    for name, pieces in splits.items():
        extents[name] = _write_split(file, pieces, dtype, start)
        if not extents[name].tokens:
            raise DataError(
                f"the split '{name}' has no tokens: its text is too short, or holds nothing that the tokenizer knows. "
                "Give more text or another tokenizer."
            )
        start += extents[name].tokens
    return extents


def _write_split(file: BinaryIO, pieces: Iterable[Encoded], dtype: np.dtype, start: int) -> _Extent:
    tokens = size = left_out = 0
    for piece in pieces:
        file.write(piece.ids.astype(dtype).tobytes())  # not through the map: its touched pages would count as memory
        tokens, size, left_out = tokens + len(piece.ids), size + piece.bytes, left_out + piece.left_out
    return _Extent(start, tokens, size, left_out)
