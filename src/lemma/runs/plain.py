"""Plain values in JSON files, with damage named."""

import json
from pathlib import Path
from typing import Any

from lemma.errors import RunError


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object; a missing or damaged one is a RunError that names it."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is missing.") from None
    except (ValueError, OSError) as error:
        raise RunError(f"{path} is damaged: {error}.") from None
    if not isinstance(values, dict):
        raise RunError(f"{path} is damaged: it holds no JSON object.")
    return values
