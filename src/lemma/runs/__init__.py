"""Runs: the folder of a trained model, checkpoints, loading, export and verification."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lemma.runs.export import ExportResult


def save(
    model: Any, tokenizer: Any, out: Path | str, *, labels: Sequence[str] = (), overwrite: bool = False
) -> "ExportResult":
    """Save a model that was trained elsewhere, such as in a custom training loop, as a finished run.

    Args:
        model: A model that `lemma.models.build.build` made; compiled or wrapped by DDP too.
        tokenizer: The tokenizer that its tokens come from, Lemma's or one of the tokenizers library; None for data
            without text.
        out: The run folder to write.
        labels: The names of a classifier's classes.

    >>> lemma.runs.save(model, data.tokenizer, "runs/mine")  # doctest: +SKIP
    """
    from lemma.runs.export import save_model

    return save_model(model, tokenizer, Path(out), labels, overwrite)
