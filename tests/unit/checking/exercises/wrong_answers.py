"""Wrong answers of students and what a checker must say about them, from the TOML files in `wrong_answers`.

A file holds tables `[[exercise]]`, each with `kind`, `fields`, the `right` answers, and a list `wrong` of tables with
`answer` (a line or several) and `says`, words that the report must hold; a wrong answer without a simple cause has
`says = ""`. `right` holds answers in different notations, all of which must be accepted.
"""

import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "wrong_answers"


def load_exercises() -> list[dict[str, Any]]:
    """Return all exercises with their right and wrong answers."""
    return [
        {"file": path.stem, **table}
        for path in sorted(FOLDER.glob("*.toml"))
        for table in tomllib.loads(path.read_text(encoding="utf-8"))["exercise"]
    ]
