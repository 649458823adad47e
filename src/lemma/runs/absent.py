"""Runs whose model needs another package: what is not installed is named, and nothing in a run says what to import."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lemma.errors import RunError
from lemma.spec import NEW_FAMILIES, POSITIONS

TAGGED = {"family": NEW_FAMILIES, "positions": POSITIONS}


def refuse_absent(table: Mapping[str, Any], path: Path) -> None:
    """Refuse a run of which a family or kind of positions is neither Lemma's nor brought by an installed package."""
    for what, name in named(table):
        group = TAGGED[what]
        if name not in group.own() and not group.brings(name):
            raise RunError(
                f"{path} holds a model whose {what} is '{name}'. That is none of Lemma's own, and the package that "
                f"brings it is not installed. Install that package, and try again."
            )


def named(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every family and every kind of positions that a spec names, in its body and towers too.

    >>> list(named({"family": "classifier", "body": {"family": "bag", "positions": {"kind": "fading"}}}))
    [('family', 'classifier'), ('family', 'bag'), ('positions', 'fading')]
    """
    for word, value in table.items():
        if word == "family" and isinstance(value, str):
            yield word, value
        elif word == "positions" and isinstance(value, Mapping):
            yield word, str(value.get("kind"))
        elif isinstance(value, Mapping):
            yield from named(value)
