"""Headers of GGUF files: metadata, and where each tensor lies. The package's own reader takes many seconds for it."""

import math
import struct
from collections.abc import Mapping
from contextlib import nullcontext
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from lemma.errors import RunError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
TEXT, LIST = 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The types of values with their codes in `struct`."""
DEFAULT_ALIGNMENT = 32  # bytes
MAX_HEADER_BYTES = 64 << 20  # a vocabulary of 256,000 tokens takes 15 MB
MAX_DIMENSIONS = 4
MAX_LIST_DEPTH = 4
TYPE_NAMES = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false"}
Value = TypeVar("Value", int, float, str, bool)


class StoredTensor(NamedTuple):
    """Location of a tensor in a GGUF file, and its quantization."""

    shape: tuple[int, ...]  # as in torch: rows first
    quantization: Any
    offset: int
    size: int  # bytes


class Metadata:
    """Metadata of a GGUF file; every value is read with the type that it must have."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self.values, self.path = values, path

    def get(self, key: str, kind: type[Value]) -> Value | None:
        """Return the value of a key; None if the file lacks it, a RunError if it is not of type `kind`."""
        value = self.values.get(key)
        if isinstance(value, list):
            raise RunError(f"{self.path}: {key} is a list: layers that differ in their sizes cannot be read.")
        return None if value is None else self._check_type(key, value, kind)

    def get_list(self, key: str, kind: type[Value], length: int | None = None) -> list[Value] | None:
        """Return the list of a key, whose values are of type `kind`; None if the file lacks it.

        A wrong type, or another `length`, is a RunError.
        """
        values = self.values.get(key)
        if values is None:
            return None
        if not isinstance(values, list) or length not in (None, len(values)):
            size = "" if length is None else f" of {length:,} values, one per token"
            raise RunError(f"{self.path}: {key} is not a list{size}. The file is damaged: download it again.")
        return [self._check_type(key, value, kind) for value in values]

    def _check_type(self, key: str, value: Any, kind: type[Value]) -> Value:
        """Return a value of type `kind`; integers are converted to floats, any other type is a RunError."""
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
            raise RunError(
                f"{self.path}: {key} = {repr(value)[:100]} is not {TYPE_NAMES[kind]}. The file is damaged: download it "
                "again."
            )
        return value


def read_header(path: Path) -> tuple[Metadata, dict[str, StoredTensor]]:
    """Read the header of a GGUF file: its metadata, and the location of each tensor by name."""
    file_size = path.stat().st_size
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) if file_size else nullcontext(b"") as data:
        reader = HeaderReader(data, path)
        if data[reader.skip(4) : 4] != MAGIC or reader.read_integer("I") not in VERSIONS:
            raise RunError(f"{path} is not a GGUF file of version 2 or 3.")
        num_tensors, num_entries = reader.read_numbers(2, "Q")
        values = {reader.read_text(): reader.read_value(reader.read_integer("I")) for _ in range(num_entries)}
        metadata = Metadata(values, path)
        alignment = metadata.get("general.alignment", int)
        alignment = DEFAULT_ALIGNMENT if alignment is None else alignment
        if alignment < 1 or alignment & (alignment - 1):
            raise RunError(f"{path} is damaged: general.alignment = {alignment} is not a power of two.")
        tensors: dict[str, StoredTensor] = {}
        for _ in range(num_tensors):
            name, tensor = _read_tensor_entry(reader, alignment)
            if name in tensors:
                raise RunError(f"{path} is damaged: it has two tensors {name}. Download it again.")
            tensors[name] = tensor
    start = reader.offset + -reader.offset % alignment  # offsets count from the end of the header
    tensors = {name: tensor._replace(offset=start + tensor.offset) for name, tensor in tensors.items()}
    end, previous = start, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].offset):
        if tensor.offset < end:
            raise RunError(f"{path} is damaged: the tensors {previous} and {name} overlap. Download it again.")
        end, previous = tensor.offset + tensor.size, name
    if end > file_size:
        raise RunError(f"{path} is cut off: {previous} ends past its {file_size:,} bytes. Download it again.")
    return metadata, tensors


class HeaderReader:
    """Reader of consecutive values in a GGUF header; reading past the file or MAX_HEADER_BYTES is a RunError."""

    def __init__(self, data: bytes | mmap, path: Path) -> None:
        self.data, self.path = data, path
        self.offset = 0

    def skip(self, count: int) -> int:
        """Advance by `count` bytes and return the offset before."""
        if count > len(self.data) - self.offset:
            raise RunError(f"{self.path} is cut off, or not a GGUF file. Download it again.")
        if count > MAX_HEADER_BYTES - self.offset:
            raise RunError(f"{self.path} is damaged: its header has more than {MAX_HEADER_BYTES:,} bytes.")
        self.offset += count
        return self.offset - count

    def read_numbers(self, count: int, code: str) -> tuple[Any, ...]:
        """Read `count` numbers of a type, given by its format character in the module struct, such as "f"."""
        return struct.unpack_from(f"<{count}{code}", self.data, self.skip(count * struct.calcsize(f"<{code}")))

    def read_integer(self, code: str = "Q") -> int:
        """Read an integer of a type, given by its format character in the module struct; "Q" is 64 bits unsigned."""
        return self.read_numbers(1, code)[0]

    def read_text(self) -> str:
        """Read a text that is preceded by its length in bytes."""
        length = self.read_integer()
        start = self.skip(length)
        return self.data[start : start + length].decode("utf-8", "replace")

    def read_value(self, kind: int, depth: int = 0) -> Any:
        """Read a number, text or list, by GGUF's code of its type (`kind`); `depth` counts the lists around it."""
        if kind == TEXT:
            return self.read_text()
        if kind == LIST and depth < MAX_LIST_DEPTH:
            item_kind, length = self.read_integer("I"), self.read_integer()
            if item_kind in NUMBERS:
                return list(self.read_numbers(length, NUMBERS[item_kind]))
            return [self.read_value(item_kind, depth + 1) for _ in range(length)]
        if kind not in NUMBERS:
            raise RunError(f"{self.path} is damaged: its header has a value of the type {kind}. Download it again.")
        return self.read_numbers(1, NUMBERS[kind])[0]


def _read_tensor_entry(reader: HeaderReader, alignment: int) -> tuple[str, StoredTensor]:
    """Read a tensor's name and location from the header; its offset counts from the header's end.

    Args:
        alignment: bytes of which every offset must be a multiple.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    path, name, dimensions = reader.path, reader.read_text(), reader.read_integer("I")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise RunError(f"{path} is damaged: {name} has {dimensions:,} dimensions, expected 1 to {MAX_DIMENSIONS}.")
    sizes, kind, offset = reader.read_numbers(dimensions, "Q"), reader.read_integer("I"), reader.read_integer()
    if kind not in {quantization.value for quantization in GGMLQuantizationType}:
        raise RunError(f"{path}: {name} is of the type {kind}, which the package gguf does not know.")
    quantization = GGMLQuantizationType(kind)
    block_length, block_bytes = GGML_QUANT_SIZES[quantization]
    if not all(sizes) or sizes[0] % block_length:
        raise RunError(f"{path} is damaged: {name} of the sizes {sizes} cannot be of the type {quantization.name}.")
    if offset % alignment:
        raise RunError(f"{path} is damaged: {name} begins at {offset:,}, which is no multiple of {alignment}.")
    return name, StoredTensor(sizes[::-1], quantization, offset, prod(sizes) // block_length * block_bytes)
