"""Where Lemma keeps what it can make or fetch again: corpora, tokenizers and token stores."""

import os
from pathlib import Path

from lemma.errors import DataError


def data_home() -> Path:
    """The folder of all cached data: $LEMMA_HOME, else $XDG_CACHE_HOME/lemma, else ~/.cache/lemma."""
    if chosen := os.environ.get("LEMMA_HOME"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lemma"


def home_folder(name: str) -> Path:
    """The folder of that name in the data home, made if it is not there yet."""
    folder = data_home() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be made ({error.strerror}). Set LEMMA_HOME to a folder that can be written."
        ) from None
    return folder
