"""Runs in other forms: a plain run without a base, a folder for transformers, a GGUF file, a folder for peft."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Engine
from torch import Tensor, nn

from lemma.adaptation.adapt import merged
from lemma.adaptation.lora import Update
from lemma.data.files import replacing
from lemma.data.tokenizers import PRETRAINED, Tokenizer
from lemma.data.treebanks import Lexicon
from lemma.errors import RunError, SpecError, unknown
from lemma.hub.architectures import native_architecture
from lemma.hub.gguf import write_gguf, wrote_gguf
from lemma.hub.huggingface import write_folder
from lemma.hub.peft import read_peft, write_peft
from lemma.hub.pretrained import exporting, forget_opened, refuse_existing_export
from lemma.models.base import LanguageModel
from lemma.models.build import blank
from lemma.report.result import Block, Result, Text
from lemma.runs.checkpoint import weights_of
from lemma.runs.folder import PretrainedRun, RunFolder, refuse_name, refuse_occupied
from lemma.runs.load import (
    adaptation_of,
    always_learned,
    model_to_fill,
    refuse_adapters,
    refuse_own_base,
    refuse_unfinished,
    whole_model,
)
from lemma.spec.base import Spec
from lemma.spec.data import PretrainedData
from lemma.spec.models import Classifier
from lemma.spec.recipe import Recipe


@dataclass(frozen=True)
class Rewritten(Result):
    """What was written, where, and of how many parameters."""

    title = "Run in another form"

    path: Path
    what: str
    parameters: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"path": str(self.path), "what": self.what, "parameters": self.parameters, "bytes": self.bytes}

    def blocks(self) -> Iterator[Block]:
        """What was written, and where it is."""
        yield Text(f"{self.what}: {self.parameters:,} parameters, {self.bytes:,} bytes\nIt is in {self.path}")


def export_run(path: Path, to: str, out: Path, overwrite: bool = False) -> Rewritten:
    """Write a run in another form: merged, huggingface, gguf or peft."""
    if to not in FORMS:
        raise SpecError(unknown("export: to", to, FORMS))
    folder = RunFolder.open(path)
    refuse_unfinished(folder)
    if to in ("merged", "peft") and folder.adaptation is None:
        raise RunError(
            f"{path} is not an adapted run: it has no base, and need not be {FORMS[to][0]}. "
            f"To write it for transformers: lemma export {path} --to huggingface --out FOLDER"
        )
    refuse_own_base(folder, out)
    refuse_name(out)
    if to == "merged":
        refuse_occupied(out, overwrite)
    elif to != "gguf":
        refuse_existing_export(out, overwrite)
    return FORMS[to][1](folder, out, overwrite)


def plain_model(folder: RunFolder) -> nn.Module:
    """The model of a finished run, its updates folded in if it was adapted."""
    model = whole_model(folder)
    return merged(model) if folder.adaptation else model


def _merge(folder: RunFolder, out: Path, overwrite: bool) -> Rewritten:
    return _write_plain(folder, plain_model(folder), out, overwrite, f"merged from {folder.path}")


def _language_model(folder: RunFolder) -> tuple[dict[str, Tensor], Tokenizer]:
    """The weights and the tokenizer of a run that others can read: a model with a text tokenizer."""
    model, tokenizer = plain_model(folder), folder.vocabulary()
    if not isinstance(tokenizer, Tokenizer):
        raise RunError(f"{folder.path} is of the family {folder.spec.family}, which other libraries have no form for.")
    return weights_of(model, frozen=True), tokenizer


def _huggingface(folder: RunFolder, out: Path, overwrite: bool) -> Rewritten:
    weights, tokenizer = _language_model(folder)
    with exporting(out, overwrite) as temporary:
        kept = write_folder(temporary, folder.spec, weights, tokenizer, folder.labels())
    return _rewritten(out, "a folder for transformers", kept)


def _gguf(folder: RunFolder, out: Path, overwrite: bool) -> Rewritten:
    if out.suffix != ".gguf":
        raise SpecError(f"export: out = {out}: a file is written; its name must end in .gguf.")
    if out.exists():
        if not out.is_file() or not wrote_gguf(out):
            raise RunError(f"{out} already exists, and Lemma did not write it. Name a new file.")
        if not overwrite:
            raise RunError(f"{out} already exists. To replace it: --overwrite, in Python overwrite=True.")
    weights, tokenizer = _language_model(folder)
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as temporary:
        kept = write_gguf(temporary, folder.spec, weights, tokenizer, folder.path.name)
    forget_opened(out)
    return _rewritten(out, "a GGUF file", kept)


def _peft(folder: RunFolder, out: Path, overwrite: bool) -> Rewritten:
    model, base = whole_model(folder), folder.base()
    pieces, task, where = None, None, base.path
    if isinstance(base, PretrainedRun):
        where = base.source.path
        if isinstance(model, LanguageModel):
            pieces = base.source.pieces
        elif isinstance(folder.spec, Classifier):
            with suppress(RunError):  # a classifier that transformers has no class for keeps our names
                native_architecture(folder.spec)
                pieces, task = base.source.pieces_of(folder.spec), "SEQ_CLS"
    write_peft(model, out, str(where), pieces, task, overwrite)
    return _rewritten(out, "a folder for peft", weights_of(model))


FORMS: dict[str, tuple[str, Callable[[RunFolder, Path, bool], Rewritten]]] = {
    "merged": ("merged", _merge),
    "huggingface": ("written for transformers", _huggingface),
    "gguf": ("written as GGUF", _gguf),
    "peft": ("written for peft", _peft),
}
"""The forms that a run can be written in, and what that is called."""


def save_model(model: Any, tokenizer: Any, out: Path, labels: Sequence[str] = (), overwrite: bool = False) -> Rewritten:
    """Write a model that was trained elsewhere as a finished run; of its data nothing is known."""
    model = unwrap_model(model)
    spec = getattr(model, "spec", None)
    if not isinstance(spec, Spec):
        raise RunError(
            f"runs.save: a model of Lemma's is expected, as lemma.models.build.build makes one, got "
            f"{type(model).__name__}. A transformers model needs no saving here: its folder is accepted as a run."
        )
    words = Tokenizer(tokenizer.to_str()) if isinstance(tokenizer, Engine) else tokenizer
    wanted = {"graph": type(None), "treebank": Lexicon}.get(getattr(spec, "learns", ""), Tokenizer)
    if not isinstance(words, wanted):
        raise RunError(
            f"runs.save: {wanted.__name__.replace('NoneType', 'None')} is expected as tokenizer, got "
            f"{type(words).__name__}. Give what the model's tokens come from; of a tokenizer of transformers, its "
            "backend_tokenizer."
        )
    weights = {name.replace("_orig_mod.", ""): tensor for name, tensor in weights_of(model, frozen=True).items()}
    shapes = {name: tensor.shape for name, tensor in weights_of(blank(spec), frozen=True).items()}  # pyright: ignore
    if {name: tensor.shape for name, tensor in weights.items()} != shapes:
        raise RunError("runs.save: the weights are not those of the model's spec. Give the model as it was built.")
    if isinstance(words, Tokenizer) and words.kind != PRETRAINED:
        fitting = spec.sized({"vocabulary": words.vocabulary})
        if fitting != spec:
            raise RunError(
                f"runs.save: the tokenizer has {words.vocabulary:,} tokens, and the model is one of "
                f"{getattr(spec, 'vocabulary', 'other sizes'):,}. Give the tokenizer that its tokens come from."
            )
    classes = getattr(spec, "classes", 0)
    if len(labels) != classes:
        raise RunError(f"runs.save: the model has {classes} classes, and {len(labels)} labels are given.")
    data = PretrainedData(pretrained="trained elsewhere")
    folder = RunFolder(out, spec, Recipe(), data, "")  # pyright: ignore[reportArgumentType]
    summary = {"path": str(out), "family": folder.spec.family, "made": "of a model trained elsewhere"}
    folder.create(words, overwrite, labels, result=(weights, summary))
    return _rewritten(out, "a run", weights)


def unwrap_model(model: Any) -> Any:
    """Return the model inside what torch.compile, DDP and others put around it, in any order."""
    while isinstance(model, nn.Module) and "spec" not in vars(model):
        children = dict(model.named_children())
        inner = children.get("_orig_mod", children.get("module"))
        if inner is None:
            break
        model = inner
    return model


def import_run(path: Path, peft_folder: Path, out: Path, overwrite: bool = False) -> Rewritten:
    """Put LoRA weights that peft wrote next to a base; as a plain run where no method of ours describes them."""
    base = RunFolder.open(path)
    refuse_unfinished(base)
    refuse_adapters(base)
    refuse_own_base(base, out)
    refuse_occupied(out, overwrite)  # before anything is read
    pieces = base.source.pieces if isinstance(base, PretrainedRun) else None
    adaptation = read_peft(peft_folder, plain_model(base), pieces)
    for name, parameter in adaptation.model.named_parameters():  # such as the head of a classifier, as its base has it
        if any(fnmatch(name, pattern) for pattern in always_learned(base.spec, adaptation.method)):
            parameter.requires_grad_(True)
    about = f"from {peft_folder}"
    spec = adaptation_of(base, out, adaptation.method)
    folder = RunFolder(out, base.spec, base.recipe, base.data, base.data_hash, spec)
    if not _says_all(folder, adaptation.model):
        plain = _write_plain(base, merged(adaptation.model), out, overwrite, f"{about}, merged")
        return replace(plain, what="a plain run (merged: the adapter holds whole modules next to LoRA's updates)")
    weights = weights_of(adaptation.model)
    folder.create(base.vocabulary(), overwrite, base.labels(), result=(weights, _summary(base, out, about)))
    return _rewritten(out, "an adapted run", weights)


def _says_all(folder: RunFolder, model: nn.Module) -> bool:
    """Whether the method of a run makes a model of the same parts, so that it can be loaded again."""
    fresh = model_to_fill(folder)
    same = {name: tensor.shape for name, tensor in weights_of(model).items()}
    scales = [[part.scale for part in whole.modules() if isinstance(part, Update)] for whole in (fresh, model)]
    return {name: tensor.shape for name, tensor in weights_of(fresh).items()} == same and scales[0] == scales[1]


def _write_plain(folder: RunFolder, model: nn.Module, out: Path, overwrite: bool, about: str) -> Rewritten:
    plain = RunFolder(out, folder.spec, folder.recipe, folder.data, folder.data_hash)
    weights = weights_of(model, frozen=True)
    plain.create(folder.vocabulary(), overwrite, folder.labels(), result=(weights, _summary(folder, out, about)))
    return _rewritten(out, "a plain run", weights)


def _summary(folder: RunFolder, out: Path, about: str) -> dict[str, Any]:
    return {**(folder.summary() or {}), "path": str(out), "made": about}


def _rewritten(out: Path, what: str, weights: Mapping[str, Tensor]) -> Rewritten:
    files = [out] if out.is_file() else [file for file in out.rglob("*") if file.is_file()]
    parameters = sum(tensor.numel() for tensor in weights.values())
    return Rewritten(out, what, parameters, sum(file.stat().st_size for file in files))
