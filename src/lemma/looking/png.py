"""A matrix of weights as a small PNG, one pixel a cell; cells that may not be seen are transparent."""

import base64
import struct
import zlib

import numpy as np
from jaxtyping import Bool, Float

from lemma.looking.palette import COLOURS, levels

PALETTE = bytes(3) + b"".join(bytes.fromhex(colour[1:]) for colour in COLOURS)  # entry 0 is the empty one


def png(weights: Float[np.ndarray, "new known"], allowed: Bool[np.ndarray, "new known"]) -> bytes:
    """The bytes of the picture (PNG 1.2: header, palette, transparency of its first entry, rows, end)."""
    pixels = np.where(allowed, levels(weights) + 1, 0).astype(np.uint8)
    height, width = pixels.shape
    rows = np.pad(pixels, ((0, 0), (1, 0))).tobytes()  # each row begins with 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = [
        (b"IHDR", header),
        (b"PLTE", PALETTE),
        (b"tRNS", b"\0"),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def data_address(weights: Float[np.ndarray, "new known"], allowed: Bool[np.ndarray, "new known"]) -> str:
    """The picture as an address that needs no file."""
    return "data:image/png;base64," + base64.b64encode(png(weights, allowed)).decode()
