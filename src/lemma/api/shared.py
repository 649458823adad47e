"""What the verbs share: runs loaded, words sorted, progress watched."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lemma.errors import SpecError, unknown

if TYPE_CHECKING:
    from lemma.runs import Run
    from lemma.training import Observer

Texts = str | Path | Sequence[str | Path]


def load(run: Path | str, device: str = "auto") -> Run:
    """Load a run: its spec, recipe, tokenizer and model."""
    import torch

    from lemma.runs import load as load_run

    return load_run(run, ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)


def watch(progress: bool) -> Observer:
    """Who is told of the progress: of several processes the first only."""
    from lemma.training import Silent, observer

    leads = os.environ.get("RANK", "0") == "0"
    return observer() if progress and leads else Silent()


COLUMNS = (
    "source_column",
    "target_column",
    "text_column",
    "label_column",
    "image_column",
    "caption_column",
    "captions",
    "nodes",
    "parser",
)


def columns_of(words: dict[str, Any]) -> dict[str, Any]:
    """Take the words that say which columns of a file are meant out of the others."""
    named = {word: words.pop(word) for word in COLUMNS if word in words}
    return {word: value for word, value in named.items() if value is not None}


def opened(run: Path | str | Run) -> Run:
    """A run as it is, or loaded from its folder."""
    return load(run) if isinstance(run, (str, Path)) else run


def refuse_unknown(settings: dict[str, Any], known: Iterable[str], verb: str) -> None:
    """Refuse a word that a verb does not know."""
    for word in settings:
        if word not in known:
            raise SpecError(unknown(f"{verb}: the word", word, known))
