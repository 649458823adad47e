"""Runs in other forms: a plain run without a base, a folder for transformers, a GGUF file, a folder for peft."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Engine
from torch import Tensor, nn

from lemma.adaptation.adapt import merge_lora
from lemma.adaptation.lora import LowRankUpdate
from lemma.data.tokenizers import PRETRAINED, Tokenizer
from lemma.data.treebanks import Lexicon
from lemma.errors import RunError, SpecError, describe_unknown
from lemma.files import atomic_replace
from lemma.hub.architectures import native_architecture
from lemma.hub.gguf import is_lemma_gguf, write_gguf
from lemma.hub.huggingface import write_folder
from lemma.hub.peft import read_peft, write_peft
from lemma.hub.pretrained import check_export_target, export_folder, forget_opened
from lemma.models.base import LanguageModel
from lemma.models.build import build_uninitialized
from lemma.report.result import Block, Result, Text
from lemma.runs.checkpoint import named_weights
from lemma.runs.folder import PretrainedRun, RunFolder, check_run_target, check_utf8_path
from lemma.runs.load import (
    always_trainable,
    build_run_uninitialized,
    check_finished,
    check_no_adapters,
    check_not_base,
    load_model,
    make_adaptation_spec,
)
from lemma.spec.base import Spec
from lemma.spec.data import PretrainedData
from lemma.spec.models import Classifier
from lemma.spec.recipe import Recipe


@dataclass(frozen=True)
class ExportResult(Result):
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


def export_run(path: Path, to: str, out: Path, overwrite: bool = False) -> ExportResult:
    """Write a run in another form: merged, huggingface, gguf or peft."""
    if to not in FORMATS:
        raise SpecError(describe_unknown("export: to", to, FORMATS))
    folder = RunFolder.open(path)
    check_finished(folder)
    if to in ("merged", "peft") and folder.adaptation is None:
        raise RunError(
            f"{path} is not an adapted run: it has no base, and need not be {FORMATS[to][0]}. "
            f"To write it for transformers: lemma export {path} --to huggingface --out FOLDER"
        )
    check_not_base(folder, out)
    check_utf8_path(out)
    if to == "merged":
        check_run_target(out, overwrite)
    elif to != "gguf":
        check_export_target(out, overwrite)
    return FORMATS[to][1](folder, out, overwrite)


def merged_model(folder: RunFolder) -> nn.Module:
    """The model of a finished run, its updates folded in if it was adapted."""
    model = load_model(folder)
    return merge_lora(model) if folder.adaptation else model


def _export_merged(folder: RunFolder, out: Path, overwrite: bool) -> ExportResult:
    return _write_merged_run(folder, merged_model(folder), out, overwrite, f"merged from {folder.path}")


def _language_model(folder: RunFolder) -> tuple[dict[str, Tensor], Tokenizer]:
    """The weights and the tokenizer of a run that others can read: a model with a text tokenizer."""
    model, tokenizer = merged_model(folder), folder.vocabulary()
    if not isinstance(tokenizer, Tokenizer):
        raise RunError(f"{folder.path} is of the family {folder.spec.family}, which other libraries have no form for.")
    return named_weights(model, include_frozen=True), tokenizer


def _export_huggingface(folder: RunFolder, out: Path, overwrite: bool) -> ExportResult:
    weights, tokenizer = _language_model(folder)
    with export_folder(out, overwrite) as temporary:
        kept = write_folder(temporary, folder.spec, weights, tokenizer, folder.labels())
    return _make_result(out, "a folder for transformers", kept)


def _export_gguf(folder: RunFolder, out: Path, overwrite: bool) -> ExportResult:
    if out.suffix != ".gguf":
        raise SpecError(f"export: out = {out}: a file is written; its name must end in .gguf.")
    if out.exists():
        if not out.is_file() or not is_lemma_gguf(out):
            raise RunError(f"{out} already exists, and Lemma did not write it. Name a new file.")
        if not overwrite:
            raise RunError(f"{out} already exists. To replace it: --overwrite, in Python overwrite=True.")
    weights, tokenizer = _language_model(folder)
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with atomic_replace(out) as temporary:
        kept = write_gguf(temporary, folder.spec, weights, tokenizer, folder.path.name)
    forget_opened(out)
    return _make_result(out, "a GGUF file", kept)


def _export_peft(folder: RunFolder, out: Path, overwrite: bool) -> ExportResult:
    model, base = load_model(folder), folder.base()
    pieces, task, where = None, None, base.path
    if isinstance(base, PretrainedRun):
        where = base.source.path
        if isinstance(model, LanguageModel):
            pieces = base.source.tensor_maps
        elif isinstance(folder.spec, Classifier):
            with suppress(RunError):  # a classifier that transformers has no class for keeps our names
                native_architecture(folder.spec)
                pieces, task = base.source.tensor_maps_of(folder.spec), "SEQ_CLS"
    write_peft(model, out, str(where), pieces, task, overwrite)
    return _make_result(out, "a folder for peft", named_weights(model))


FORMATS: dict[str, tuple[str, Callable[[RunFolder, Path, bool], ExportResult]]] = {
    "merged": ("merged", _export_merged),
    "huggingface": ("written for transformers", _export_huggingface),
    "gguf": ("written as GGUF", _export_gguf),
    "peft": ("written for peft", _export_peft),
}
"""The forms that a run can be written in, and what that is called."""


def save_model(
    model: Any, tokenizer: Any, out: Path, labels: Sequence[str] = (), overwrite: bool = False
) -> ExportResult:
    """Write a model that was trained elsewhere as a finished run; of its data nothing is known."""
    model = unwrap_model(model)
    spec = getattr(model, "spec", None)
    if not isinstance(spec, Spec):
        raise RunError(
            f"runs.save: a model of Lemma's is expected, as lemma.models.build.build makes one, got "
            f"{type(model).__name__}. A transformers model needs no saving here: its folder is accepted as a run."
        )
    words = Tokenizer(tokenizer.to_str()) if isinstance(tokenizer, Engine) else tokenizer
    wanted = {"graph": type(None), "treebank": Lexicon}.get(getattr(spec, "data_kind", ""), Tokenizer)
    if not isinstance(words, wanted):
        raise RunError(
            f"runs.save: {wanted.__name__.replace('NoneType', 'None')} is expected as tokenizer, got "
            f"{type(words).__name__}. Give what the model's tokens come from; of a tokenizer of transformers, its "
            "backend_tokenizer."
        )
    weights = {
        name.replace("_orig_mod.", ""): tensor for name, tensor in named_weights(model, include_frozen=True).items()
    }
    expected = named_weights(build_uninitialized(spec), include_frozen=True)  # pyright: ignore
    shapes = {name: tensor.shape for name, tensor in expected.items()}
    if {name: tensor.shape for name, tensor in weights.items()} != shapes:
        raise RunError("runs.save: the weights are not those of the model's spec. Give the model as it was built.")
    if isinstance(words, Tokenizer) and words.kind != PRETRAINED:
        fitting = spec.with_data_sizes({"vocabulary": words.vocabulary})
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
    return _make_result(out, "a run", weights)


def unwrap_model(model: Any) -> Any:
    """Return the model inside what torch.compile, DDP and others put around it, in any order."""
    while isinstance(model, nn.Module) and "spec" not in vars(model):
        children = dict(model.named_children())
        inner = children.get("_orig_mod", children.get("module"))
        if inner is None:
            break
        model = inner
    return model


def import_run(path: Path, peft_folder: Path, out: Path, overwrite: bool = False) -> ExportResult:
    """Put LoRA weights that peft wrote next to a base; as a plain run where no method of ours describes them."""
    base = RunFolder.open(path)
    check_finished(base)
    check_no_adapters(base)
    check_not_base(base, out)
    check_run_target(out, overwrite)  # before anything is read
    pieces = base.source.tensor_maps if isinstance(base, PretrainedRun) else None
    adaptation = read_peft(peft_folder, merged_model(base), pieces)
    for name, parameter in adaptation.model.named_parameters():  # such as the head of a classifier, as its base has it
        if any(fnmatch(name, pattern) for pattern in always_trainable(base.spec, adaptation.method)):
            parameter.requires_grad_(True)
    about = f"from {peft_folder}"
    spec = make_adaptation_spec(base, out, adaptation.method)
    folder = RunFolder(out, base.spec, base.recipe, base.data, base.data_hash, spec)
    if not _can_be_reloaded(folder, adaptation.model):
        plain = _write_merged_run(base, merge_lora(adaptation.model), out, overwrite, f"{about}, merged")
        return replace(plain, what="a plain run (merged: the adapter holds whole modules next to LoRA's updates)")
    weights = named_weights(adaptation.model)
    folder.create(base.vocabulary(), overwrite, base.labels(), result=(weights, _summary(base, out, about)))
    return _make_result(out, "an adapted run", weights)


def _can_be_reloaded(folder: RunFolder, model: nn.Module) -> bool:
    """Whether the method of a run makes a model of the same parts, so that it can be loaded again."""
    fresh = build_run_uninitialized(folder)
    same = {name: tensor.shape for name, tensor in named_weights(model).items()}
    scales = [[part.scale for part in whole.modules() if isinstance(part, LowRankUpdate)] for whole in (fresh, model)]
    return {name: tensor.shape for name, tensor in named_weights(fresh).items()} == same and scales[0] == scales[1]


def _write_merged_run(folder: RunFolder, model: nn.Module, out: Path, overwrite: bool, about: str) -> ExportResult:
    plain = RunFolder(out, folder.spec, folder.recipe, folder.data, folder.data_hash)
    weights = named_weights(model, include_frozen=True)
    plain.create(folder.vocabulary(), overwrite, folder.labels(), result=(weights, _summary(folder, out, about)))
    return _make_result(out, "a plain run", weights)


def _summary(folder: RunFolder, out: Path, about: str) -> dict[str, Any]:
    return {**(folder.summary() or {}), "path": str(out), "made": about}


def _make_result(out: Path, what: str, weights: Mapping[str, Tensor]) -> ExportResult:
    files = [out] if out.is_file() else [file for file in out.rglob("*") if file.is_file()]
    parameters = sum(tensor.numel() for tensor in weights.values())
    return ExportResult(out, what, parameters, sum(file.stat().st_size for file in files))
