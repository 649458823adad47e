"""From a run folder back to a model that can be used."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from torch import Tensor, nn

from lemma.data import Lexicon, Tokenizer
from lemma.errors import RunError
from lemma.models import LanguageModel, ParserModel, build
from lemma.runs.checkpoint import Checkpoint, latest_good
from lemma.runs.folder import WEIGHTS, RunFolder
from lemma.runs.weights import put_weights, read_weights, refuse_other_spec
from lemma.spec import DataSpec, ModelSpec, Recipe, TreebankSpec


@dataclass(frozen=True)
class Run:
    """A trained model with all that belongs to it."""

    path: Path
    spec: ModelSpec
    recipe: Recipe
    data: DataSpec | TreebankSpec
    data_hash: str
    vocabulary: Tokenizer | Lexicon
    module: nn.Module
    summary: dict[str, Any] | None
    note: str | None = None
    """Why these are not the weights of a finished run, if they are not."""

    @property
    def model(self) -> LanguageModel:
        """The language model; a parser's run has none."""
        if not isinstance(self.module, LanguageModel):
            raise RunError(
                f"{self.path} holds a parser and no language model: it draws trees. "
                f"As in: lemma look parse {quote(str(self.path))} --text '…'"
            )
        return self.module

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the language model; a parser's run has a lexicon instead."""
        if not isinstance(self.vocabulary, Tokenizer):
            raise RunError(
                f"{self.path} holds a parser, which reads whole words and has no tokenizer. "
                f"To see its trees and heads: lemma look parse {quote(str(self.path))} --text '…'"
            )
        return self.vocabulary

    @property
    def parser(self) -> ParserModel:
        """The parser; any other run has none."""
        if not isinstance(self.module, ParserModel):
            raise RunError(f"{self.path} holds a model of the family {self.spec.family}, no parser.")
        return self.module

    @property
    def lexicon(self) -> Lexicon:
        """The words and relations that the parser knows."""
        if not isinstance(self.vocabulary, Lexicon):
            raise RunError(f"{self.path} holds a model of the family {self.spec.family}, which has no lexicon.")
        return self.vocabulary


def load(path: Path | str, device: str = "cpu") -> Run:
    """Load a run, its model ready for use; where the end is missing or damaged, the last good checkpoint serves."""
    folder = RunFolder.open(Path(path))
    weights, note = _weights(folder)
    model = build(folder.spec)
    put_weights(model, weights, folder.path / WEIGHTS)
    if note:
        warnings.warn(note, stacklevel=2)
    return Run(
        path=folder.path,
        spec=folder.spec,
        recipe=folder.recipe,
        data=folder.data,
        data_hash=folder.data_hash,
        vocabulary=folder.vocabulary(),
        module=model.to(device).eval(),
        summary=folder.summary(),
        note=note,
    )


def _weights(folder: RunFolder) -> tuple[dict[str, Tensor], str | None]:
    if not folder.finished:
        return _last_good(
            folder, f"{folder.path} is not finished (lemma train --resume {quote(str(folder.path))} goes on)."
        )
    try:
        weights, trained = read_weights(folder.path / WEIGHTS)
    except RunError as error:
        return _last_good(folder, str(error))
    refuse_other_spec(folder.path / WEIGHTS, trained, folder.spec)
    return weights, None


def _last_good(folder: RunFolder, reason: str) -> tuple[dict[str, Tensor], str]:
    checkpoint = latest_good(folder.checkpoints)
    if checkpoint is None:
        raise RunError(f"{reason} There is no checkpoint to take weights from either.")
    refuse_other_spec(folder.checkpoints, checkpoint.state.get("spec", {}), folder.spec)
    weights = kept_weights(checkpoint, folder.recipe)
    return weights, f"{reason} These are its {folder.recipe.keep} weights up to step {checkpoint.step}."


def kept_weights(checkpoint: Checkpoint, recipe: Recipe) -> dict[str, Tensor]:
    """Return the best or the last weights, as the recipe has it; where the last are the best, they stand once."""
    last = checkpoint.tensors["model"]
    return dict(checkpoint.tensors.get("best", last) if recipe.keep == "best" else last)
