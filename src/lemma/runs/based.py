"""The first weights of a run: new ones, or those of a base with what its adaptation adds.

The hash of a run is that of the weights it holds; that of an adapted run tells its own and its base's.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from shlex import quote

from torch import Tensor, nn

from lemma.adaptation import adapt_model, merged
from lemma.data.hashing import text_sum
from lemma.errors import RunError
from lemma.models import ClassifierModel, CrossAttentionModel, build
from lemma.runs.folder import ADAPTATION, WEIGHTS, RunFolder
from lemma.runs.weights import hash_of, put_weights, read_weights, refuse_other_spec, weights_of
from lemma.spec import AdaptationSpec, Classifier, CrossAttention, DualEncoder, Method, ModelSpec

BODY = "body."
HEAD = ("head.*",)
OUTPUT = ("output.*",)
MEETING = ("image_projection.*", "text_projection.*", "log_scale")
"""Where a dual encoder's towers meet."""
TOWERS = "towers."


def first_model(folder: RunFolder, dropout: float = 0.0) -> nn.Module:
    """Build the model of a run as it begins: with new weights, or with its base's and what the adaptation adds."""
    model = build(folder.spec, dropout)
    if folder.adaptation is None:
        return model
    base = folder.base()
    refuse_other_base(folder, base)
    put_base(model, plain_weights(base), base.path)
    method = folder.adaptation.method
    return adapt_model(model, method, always_learned(folder.spec, method)).model


def always_learned(spec: ModelSpec, method: Method) -> tuple[str, ...]:
    """What learns whatever the method: the head of a classifier, what a re-ranker adds to its dual encoder.

    Where all else is frozen, a language model's output layer, and the maps of a dual encoder to the shared space.
    """
    if isinstance(spec, Classifier):
        return HEAD
    if isinstance(spec, CrossAttention):
        return CrossAttentionModel.added
    last = MEETING if isinstance(spec, DualEncoder) else OUTPUT
    return last if method.kind == "frozen" else ()


def put_base(model: nn.Module, weights: Mapping[str, Tensor], where: Path) -> None:
    """Give a model the weights of its base, or else the body of a classifier or the dual encoder of a re-ranker.

    What a body leaves out is not asked for.
    """
    body, own = model, weights
    if isinstance(model, ClassifierModel):
        body, own = model.body, _inside(weights, BODY) or weights
    elif isinstance(model, CrossAttentionModel) and not _inside(weights, TOWERS):
        body = model.towers
    wanted = weights_of(body, frozen=True)
    put_weights(body, {name: own[name] for name in wanted if name in own}, where, frozen=True)


def _inside(weights: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """The weights of a part, by their names in it."""
    return {name.removeprefix(part): tensor for name, tensor in weights.items() if name.startswith(part)}


def plain_weights(folder: RunFolder) -> dict[str, Tensor]:
    """All weights of a finished run; those of an adapted one with its updates folded in."""
    refuse_unfinished(folder)
    if folder.adaptation:
        return weights_of(merged(whole_model(folder)), frozen=True)
    weights, trained = read_weights(folder.path / WEIGHTS)
    refuse_other_spec(folder.path / WEIGHTS, trained, folder.spec)
    return weights


def whole_model(folder: RunFolder) -> nn.Module:
    """The model of a finished run with all its weights."""
    model = first_model(folder)
    weights, trained = read_weights(folder.path / WEIGHTS)
    refuse_other_spec(folder.path / WEIGHTS, trained, folder.spec, folder.method)
    put_weights(model, weights, folder.path / WEIGHTS)
    return model


def run_hash(folder: RunFolder) -> str:
    """The hash that tells what a run answers from all others: its weights and its tokenizer, or method and base."""
    own = hash_of(folder.path / WEIGHTS)
    if folder.adaptation is None:
        words = folder.vocabulary()
        return text_sum(f"{own} {words.hash}") if words else own
    return text_sum(f"{own} {json.dumps(folder.adaptation.method.to_dict())} on {folder.adaptation.base_hash}")


def refuse_unfinished(base: RunFolder) -> None:
    """Refuse a base that has not come to its end."""
    if not base.finished:
        command = f"lemma train --resume {quote(str(base.path))}"
        raise RunError(f"{base.path} is not finished, so that it cannot be a base yet. To finish it: {command}")


def refuse_own_base(base: RunFolder, out: Path) -> None:
    """Refuse to write where the base stands, or the base that it needs itself: both would be lost."""
    folder: RunFolder | None = base
    while folder is not None:
        if folder.path.resolve() == out.resolve():
            raise RunError(f"{out} is the base itself, or one that it needs, and would be lost. Choose another place.")
        folder = folder.base() if folder.adaptation else None


def refuse_adapters(base: RunFolder) -> None:
    """Refuse a base that has adapters: they cannot be folded into weights that others could be put beside."""
    if base.adaptation and base.adaptation.method.kind == "adapters":
        raise RunError(
            f"{base.path} was adapted with adapters, and so cannot be a base itself. Adapt {base.base().path} instead, "
            "or take lora or full."
        )


def refuse_other_base(folder: RunFolder, base: RunFolder) -> None:
    """Refuse a base whose weights are not those that the run was adapted from."""
    assert folder.adaptation is not None
    if (got := run_hash(base)) != folder.adaptation.base_hash:
        raise RunError(
            f"{folder.path} was adapted from weights and a tokenizer with the SHA-256 {folder.adaptation.base_hash}, "
            f"but those of {base.path} have {got}: it was trained anew or changed. Give the old base's folder in "
            f"{folder.path / ADAPTATION}, or adapt again."
        )


def adaptation_of(base: RunFolder, out: Path, method: Method) -> AdaptationSpec:
    """What an adapted run in `out` says of its base: where it is, seen from there, and which weights it has."""
    refuse_unfinished(base)
    refuse_own_base(base, out)
    here, there = out.resolve(), base.path.resolve()
    try:
        path = os.path.relpath(there, here)
    except ValueError:  # another drive
        path = str(there)
    return AdaptationSpec(method=method, base=path, base_hash=run_hash(base))
