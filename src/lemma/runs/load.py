"""Loading of runs and pretrained models."""

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lemma.adaptation.adapt import adapt_model, copy_merged, merge_lora
from lemma.data.tokenizers import Tokenizer
from lemma.data.treebanks import Lexicon
from lemma.errors import RunError
from lemma.files import real_path, text_hash
from lemma.models.base import LanguageModel, has_hooks, store_column_major
from lemma.models.build import build, build_uninitialized
from lemma.models.classifier import ClassifierModel
from lemma.models.dual_encoder import CrossAttentionModel
from lemma.runs.checkpoint import (
    check_weights_spec,
    load_weights,
    named_weights,
    read_header,
    read_latest_checkpoint,
    read_weights,
)
from lemma.runs.folder import ADAPTATION, WEIGHTS, PretrainedRun, RunFolder
from lemma.spec.data import AnyDataSpec
from lemma.spec.models import Classifier, CrossAttention, DualEncoder, ModelSpec
from lemma.spec.recipe import AdaptationSpec, Method, Recipe

BODY = "body."
HEAD = ("head.*",)
OUTPUT = ("output.*",)
PROJECTIONS = ("image_projection.*", "text_projection.*", "log_scale")  # from a dual encoder's towers to their space
TOWERS = "towers."


def build_run_uninitialized(folder: RunFolder) -> nn.Module:
    """Return the model of a run for `load_weights`: initial weights are not drawn, those of a base are loaded.

    The random state of the caller stays as it is, whatever an adaptation or the family of a plugin draws.
    """
    with torch.random.fork_rng(devices=[]):
        return build_initial_model(folder, builder=build_uninitialized)


def build_initial_model(
    folder: RunFolder, dropout: float = 0.0, builder: Callable[..., nn.Module] = build
) -> nn.Module:
    """Return the model of a run before training: with new weights, or adapted, with the weights of its base.

    `builder` builds a model from a spec and a dropout.
    """
    if folder.adaptation is None:
        return builder(folder.spec, dropout)
    base = folder.base()
    check_base_hash(folder, base)
    if isinstance(base, PretrainedRun) and base.spec == folder.spec:
        model = base.source.model(dropout)
    else:
        model = builder(folder.spec, dropout)
        load_base_weights(model, read_merged_weights(base), base.path)
    method = folder.adaptation.method
    return adapt_model(model, method, always_trainable(folder.spec, method)).model


def always_trainable(spec: ModelSpec, method: Method) -> tuple[str, ...]:
    """Return patterns of the names of the parameters that are trained with any adaptation method.

    They are a classifier's head and the new layers of a re-ranker; with the method `frozen` also a language model's
    output layer, or a dual encoder's projections to the shared space.
    """
    if isinstance(spec, Classifier):
        return HEAD
    if isinstance(spec, CrossAttention):
        return CrossAttentionModel.new_parameters
    if method.kind != "frozen":
        return ()
    return PROJECTIONS if isinstance(spec, DualEncoder) else OUTPUT


def load_base_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Copy the weights of a base into a model, or into the part that a classifier or re-ranker has from the base.

    Weights that the part does not have are ignored; `path` is the base, for errors.
    """
    target = model
    if isinstance(model, ClassifierModel):
        target, weights = model.body, _weights_under(weights, BODY) or weights
    elif isinstance(model, CrossAttentionModel) and not _weights_under(weights, TOWERS):
        target = model.towers
    names = named_weights(target, include_frozen=True)
    load_weights(target, {name: weights[name] for name in names if name in weights}, path, frozen=True)


def _weights_under(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the weights whose names start with a prefix, with the prefix removed from the names."""
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def read_merged_weights(folder: RunFolder) -> dict[str, Tensor]:
    """Return all weights of a finished run by name, with LoRA updates merged into their matrices."""
    check_finished(folder)
    if isinstance(folder, PretrainedRun):
        return named_weights(folder.source.model(), include_frozen=True)
    if folder.adaptation:
        return named_weights(merge_lora(load_model(folder)), include_frozen=True)
    weights, trained = read_weights(folder.path / WEIGHTS)
    check_weights_spec(folder.path / WEIGHTS, trained, folder.spec)
    return weights


def load_model(folder: RunFolder) -> nn.Module:
    """Return the model of a finished run; LoRA updates and adapters stay separate modules."""
    if isinstance(folder, PretrainedRun):
        return folder.source.model()
    model = build_run_uninitialized(folder)
    weights, trained = read_weights(folder.path / WEIGHTS)
    check_weights_spec(folder.path / WEIGHTS, trained, folder.spec, folder.method)
    load_weights(model, weights, folder.path / WEIGHTS)
    return model


def run_hash(folder: RunFolder) -> str:
    """Return a hash that identifies a run: of weights and tokenizer or, if adapted, of updates, method and base."""
    if isinstance(folder, PretrainedRun):
        return folder.source.hash
    weights = str(read_header(folder.path / WEIGHTS).get("sha256", ""))
    if folder.adaptation is None:
        vocabulary = folder.vocabulary()
        return text_hash(f"{weights} {vocabulary.hash}") if vocabulary else weights
    return text_hash(f"{weights} {json.dumps(folder.adaptation.method.to_dict())} on {folder.adaptation.base_hash}")


def check_finished(base: RunFolder) -> None:
    """Raise a RunError if a run that is to be a base is not finished."""
    base.check_complete()
    if not base.is_finished:
        command = f"lemma train --resume {quote(str(base.path))}"
        raise RunError(f"{base.path} is not finished, so that it cannot be a base yet. To finish it: {command}")


def check_not_base(base: RunFolder, out: Path) -> None:
    """Raise a RunError if `out` is the path of the base, or of a run that the base was adapted from."""
    folder: RunFolder | None = base
    while folder is not None:
        if real_path(folder.path) == real_path(out):
            raise RunError(f"{out} is the base itself, or one that it needs, and would be lost. Choose another place.")
        folder = folder.base() if folder.adaptation else None


def check_no_adapters(base: RunFolder) -> None:
    """Raise a RunError if a base was adapted with adapters, which cannot be merged into its weights."""
    if base.adaptation and base.adaptation.method.kind == "adapters":
        raise RunError(
            f"{base.path} was adapted with adapters, and so cannot be a base itself. Adapt {base.base().path} instead, "
            "or take lora or full."
        )


def check_base_hash(folder: RunFolder, base: RunFolder) -> None:
    """Raise a RunError if the weights of a base have changed since the run was adapted from it."""
    assert folder.adaptation is not None
    actual = run_hash(base)
    if actual != folder.adaptation.base_hash:
        raise RunError(
            f"{folder.path} was adapted from weights and a tokenizer with the SHA-256 {folder.adaptation.base_hash}, "
            f"but those of {base.path} have {actual}: it was trained again or changed. Give the old base's folder in "
            f"{folder.path / ADAPTATION}, or adapt again."
        )


def make_adaptation_spec(base: RunFolder, out: Path, method: Method) -> AdaptationSpec:
    """Return the spec of a run in `out` that is adapted from a base by a method.

    The base is recorded by its path relative to `out`, or by the name of a pretrained model.
    """
    check_finished(base)
    check_not_base(base, out)
    if isinstance(base, PretrainedRun) and not base.path.exists():
        return AdaptationSpec(method=method, base=str(base.path), base_hash=run_hash(base))
    base_path = real_path(base.path)
    try:
        path = os.path.relpath(base_path, real_path(out))
    except ValueError:  # another drive
        path = str(base_path)
    return AdaptationSpec(method=method, base=path, base_hash=run_hash(base))


Kind = TypeVar("Kind", bound=nn.Module)


@dataclass(frozen=True)
class Run:
    """A trained model in memory, with its spec, recipe, data and vocabulary."""

    path: Path
    spec: ModelSpec
    recipe: Recipe
    data: AnyDataSpec
    data_hash: str
    vocabulary: Tokenizer | Lexicon | None
    module: nn.Module
    summary: dict[str, Any] | None
    note: str | None = None  # why these are not the weights of a finished run
    labels: tuple[str, ...] = ()  # of a classifier
    adaptation: AdaptationSpec | None = None

    @property
    def model(self) -> LanguageModel:
        """The language model; for a run of another kind, raises a RunError that says how to use it."""
        return self.require(LanguageModel, "a language model")

    def require(self, model_class: type[Kind], expected: str, hint: str = "") -> Kind:
        """Return the model if it is of `model_class`, else raise a RunError that says how to use the run.

        For a re-ranker, the dual encoder inside it counts too.

        Args:
            expected: The expected kind of model in words, for the message.
            hint: How to get one; "{}" stands for the path of the run.
        """
        if isinstance(self.module, model_class):
            return self.module
        if isinstance(self.module, CrossAttentionModel) and isinstance(self.module.towers, model_class):
            return self.module.towers
        path = quote(str(self.path))
        message = f"{self.path} holds a model of the family {self.spec.family}, not {expected}."
        raise RunError(f"{message} It is {self.spec.usage.format(path)} {hint.format(path)}".rstrip())

    def merge_lora(self) -> "Run":
        """Return a copy of the run with LoRA updates merged into the matrices, which runs as fast as the base.

        A model with hooks or patched forwards is used as it is, since a copy would not call them.
        """
        has_lora = self.adaptation is not None and self.adaptation.method.kind == "lora"
        return replace(self, module=copy_merged(self.module)) if has_lora and not has_hooks(self.module) else self

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; raises a RunError for a run without one, such as a parser's."""
        if self.vocabulary is None:
            raise RunError(f"{self.path} holds {self.spec.usage.format(quote(str(self.path)))}")
        if not isinstance(self.vocabulary, Tokenizer):
            raise RunError(
                f"{self.path} holds a parser, which reads whole words and has no tokenizer. "
                f"To see its trees and heads: lemma look parse {quote(str(self.path))} --text '…'"
            )
        return self.vocabulary

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the token ids of a conversation in the model's chat template, up to where the assistant answers.

        >>> run.chat([{"role": "user", "content": "Why is the sky blue?"}])  # doctest: +SKIP
        """
        return self.tokenizer.encode(self.tokenizer.chat(messages)).tolist()

    @property
    def lexicon(self) -> Lexicon:
        """Words and relations of a parser; raises a RunError for a run of another kind."""
        if not isinstance(self.vocabulary, Lexicon):
            raise RunError(f"{self.path} holds a model of the family {self.spec.family}, which has no lexicon.")
        return self.vocabulary


def load(path: Path | str, device: str = "cpu") -> Run:
    """Load a run or a pretrained model onto a device, ready for use.

    If the final weights are missing or damaged, those of the last good checkpoint are loaded, with a warning. `path` is
    a run folder, a Hugging Face folder, a `.gguf` file or the name of a pretrained model.
    """
    folder = RunFolder.open(Path(path))
    if isinstance(folder, PretrainedRun):
        if len(folder.source.tensors):  # raises an error if they are missing
            folder.vocabulary()  # cached; read before the weights, since reading takes memory for a moment
        model, note = folder.source.model(by_columns=device == "cpu"), None
    else:
        weights, note = _read_run_weights(folder)
        model = build_run_uninitialized(folder)
        load_weights(model, weights, folder.path / WEIGHTS)
    if note:
        warnings.warn(note, stacklevel=2)
    model = model.to(device).eval()
    store_column_major(model)
    return Run(
        path=folder.path,
        spec=folder.spec,
        recipe=folder.recipe,
        data=folder.data,
        data_hash=folder.data_hash,
        vocabulary=folder.vocabulary(),
        module=model,
        summary=folder.summary(),
        note=note,
        labels=folder.labels(),
        adaptation=folder.adaptation,
    )


def _read_run_weights(folder: RunFolder) -> tuple[dict[str, Tensor], str | None]:
    """Return the weights of a run by name, and None; if unfinished, those of a checkpoint, and a note about that."""
    folder.check_complete()
    if not folder.is_finished:
        command = f"lemma train --resume {quote(str(folder.path))}"
        return _checkpoint_weights(folder, f"{folder.path} is not finished ({command} goes on).")
    try:
        weights, trained = read_weights(folder.path / WEIGHTS)
    except RunError as error:
        return _checkpoint_weights(folder, str(error))
    check_weights_spec(folder.path / WEIGHTS, trained, folder.spec, folder.method)
    return weights, None


def _checkpoint_weights(folder: RunFolder, reason: str) -> tuple[dict[str, Tensor], str]:
    """Return the weights of the last good checkpoint by name, and a note about that, which begins with `reason`."""
    checkpoint = read_latest_checkpoint(folder.checkpoints)
    if checkpoint is None:
        raise RunError(f"{reason} There is no checkpoint to take weights from either.")
    check_weights_spec(folder.checkpoints, checkpoint.state.get("spec", {}), folder.spec)
    keep, tensors = folder.recipe.keep, checkpoint.tensors  # stored once if the last weights are the best
    weights = tensors["best" if keep == "best" and "best" in tensors else "model"]
    return dict(weights), f"{reason} These are its {keep} weights up to step {checkpoint.step}."
