"""Seeing what a model does: its attention heads, its trees, and small cases worked step by step."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lemma.looking.heads import Heads
    from lemma.looking.parses import ParsedText
    from lemma.looking.reading import look_at, look_at_run
    from lemma.looking.reading_trees import parse_text

__all__ = ["Heads", "ParsedText", "look_at", "look_at_run", "parse_text"]
PLACES = {"Heads": "heads", "ParsedText": "parses", "look_at": "reading", "look_at_run": "reading"}


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is: a case worked by hand needs no torch."""
    if name in __all__:
        return getattr(import_module(f"lemma.looking.{PLACES.get(name, 'reading_trees')}"), name)
    raise AttributeError(f"module 'lemma.looking' has no attribute '{name}'")
