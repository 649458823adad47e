"""Studies that are told by their kind: built in, or from a file that names it."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lemma.errors import SpecError
from lemma.spec.base import Spec
from lemma.spec.toml import read_toml


def named_table(name: str, known: Mapping[str, Spec], kinds: Collection[str]) -> dict[str, Any] | None:
    """The words of a study that is built in, or of a file of one of these kinds; None if the name means neither."""
    if name in known:
        return known[name].to_dict()
    path = Path(name)
    if not path.is_file():
        return None
    try:
        table = read_toml(path)
    except SpecError:
        return None  # whoever reads it next says what is wrong with it
    return {"name": path.stem, **table} if table.get("kind") in kinds else None
