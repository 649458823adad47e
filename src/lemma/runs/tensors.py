"""Named tensors in safetensors files: written whole, read with damage named."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lemma.errors import RunError

ENTRY = "lemma"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any] | None = None) -> None:
    """Write tensors, from whatever device, with a few plain values about them in the file's header.

    The header's own entries come in any order, so these are one entry: equal tensors then give equal files.
    """
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(on_cpu, path, {ENTRY: json.dumps(about or {})})


def read_header(path: Path) -> dict[str, Any]:
    """Read what is said about the tensors of a file, without them."""
    try:
        with safe_open(path, framework="pt") as file:
            return json.loads((file.metadata() or {}).get(ENTRY, "{}"))
    except FileNotFoundError:
        raise RunError(f"{path} is missing.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}.") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors in their order by name, and what is said about them; a damaged file is a RunError that names it.

    Each is copied: where safetensors puts one in memory depends on the file's header, and kernels round misaligned
    numbers differently.
    """
    about = read_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in sorted(file.keys())}, about
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}.") from None
