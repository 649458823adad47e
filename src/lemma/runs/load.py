"""From a run folder back to a model that can be used."""

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from torch import Tensor, nn

from lemma.adaptation import fold
from lemma.data import Lexicon, Tokenizer
from lemma.errors import RunError
from lemma.models import (
    ClassifierModel,
    CrossAttentionModel,
    DualEncoderModel,
    EncoderDecoderModel,
    EncoderModel,
    GraphModel,
    LanguageModel,
    ParserModel,
)
from lemma.runs.based import first_model
from lemma.runs.checkpoint import Checkpoint, latest_good
from lemma.runs.folder import WEIGHTS, RunFolder
from lemma.runs.weights import put_weights, read_weights, refuse_other_spec
from lemma.spec import AdaptationSpec, AnyDataSpec, ModelSpec, Recipe

USES = {
    "parser": "a parser and no language model: it draws trees. As in: lemma look parse {} --text '…'",
    "encoder": "an encoder, which says what was hidden and does not write on. To adapt it: lemma adapt {} --labels …",
    "encoder-decoder": "a translator, which writes the target of a source. As in: lemma generate {} --source '…'",
    "classifier": "a classifier, which names the class of a text. As in: lemma generate {} --source '…'",
    "dual-encoder": "a dual encoder, which writes nothing. As in: lemma search {} --images FOLDER --query '…'",
    "cross-attention": "a re-ranker, which writes nothing. As in: lemma search {} --images FOLDER --query '…'",
    "graph": "a model of a graph's nodes, which writes nothing. To see how well it names them: lemma evaluate {}",
    "tree": "a body of a classifier, which writes nothing.",
}
"""What runs hold that are no language models, and what they are for."""


@dataclass(frozen=True)
class Run:
    """A trained model with all that belongs to it."""

    path: Path
    spec: ModelSpec
    recipe: Recipe
    data: AnyDataSpec
    data_hash: str
    vocabulary: Tokenizer | Lexicon | None
    module: nn.Module
    summary: dict[str, Any] | None
    note: str | None = None
    """Why these are not the weights of a finished run, if they are not."""
    labels: tuple[str, ...] = ()
    """The names of a classifier's classes."""
    adaptation: AdaptationSpec | None = None
    """How it was adapted, and from what, if it was."""

    @property
    def model(self) -> LanguageModel:
        """The language model; a parser's run has none, nor has one of an encoder, a translator or a classifier."""
        if not isinstance(self.module, LanguageModel):
            use = USES[self.spec.family].format(quote(str(self.path)))
            raise RunError(f"{self.path} holds {use}")
        return self.module

    def folded(self) -> AbstractContextManager[Any]:
        """A while in which LoRA's updates are in the plain weights, so that the model is as fast as its base."""
        updated = self.adaptation is not None and self.adaptation.method.kind == "lora"
        return fold(self.module) if updated else nullcontext()

    @property
    def encoder(self) -> EncoderModel:
        """The encoder; any other run has none."""
        if not isinstance(self.module, EncoderModel):
            raise RunError(f"{self.path} holds a model of the family {self.spec.family}, no encoder.")
        return self.module

    @property
    def translator(self) -> EncoderDecoderModel:
        """The encoder–decoder; any other run has none."""
        if not isinstance(self.module, EncoderDecoderModel):
            if use := USES.get(self.spec.family):
                raise RunError(f"{self.path} answers no source: it holds {use.format(quote(str(self.path)))}")
            raise RunError(
                f"{self.path} holds a model of the family {self.spec.family}, which answers no source. "
                f"To let it write on: lemma generate {quote(str(self.path))} --prompt '…'"
            )
        return self.module

    @property
    def classifier(self) -> ClassifierModel:
        """The classifier; any other run has none."""
        if not isinstance(self.module, ClassifierModel):
            raise RunError(
                f"{self.path} holds a model of the family {self.spec.family}, no classifier. To make one of it: "
                f"lemma adapt {quote(str(self.path))} --labels FILE.csv --out RUN"
            )
        return self.module

    @property
    def dual_encoder(self) -> DualEncoderModel:
        """The dual encoder, a re-ranker's too; any other run has none."""
        if isinstance(self.module, CrossAttentionModel):
            return self.module.towers
        if not isinstance(self.module, DualEncoderModel):
            raise RunError(
                f"{self.path} holds a model of the family {self.spec.family}, which knows no pictures. To train one "
                "that does: lemma train dual-encoder --images emoji --out RUN"
            )
        return self.module

    @property
    def reranker(self) -> CrossAttentionModel:
        """The re-ranker; any other run has none."""
        if not isinstance(self.module, CrossAttentionModel):
            raise RunError(
                f"{self.path} holds a model of the family {self.spec.family}, no re-ranker. To make one of a dual "
                f"encoder: lemma adapt {quote(str(self.path))} --rerank --images emoji --out RUN"
            )
        return self.module

    @property
    def graph(self) -> GraphModel:
        """The graph model; any other run has none."""
        if not isinstance(self.module, GraphModel):
            raise RunError(f"{self.path} holds a model of the family {self.spec.family}, no graph model.")
        return self.module

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the language model; a parser's run has a lexicon instead."""
        if self.vocabulary is None:
            raise RunError(f"{self.path} holds {USES['graph'].format(quote(str(self.path)))}")
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
    model = first_model(folder)
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
        labels=folder.labels(),
        adaptation=folder.adaptation,
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
    refuse_other_spec(folder.path / WEIGHTS, trained, folder.spec, folder.method)
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
