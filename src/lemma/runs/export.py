"""Export of runs: as a run without a base, a folder for transformers, a GGUF file, a folder for peft; and import."""

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
from lemma.spec.data import PretrainedData
from lemma.spec.models import Classifier, ModelSpec
from lemma.spec.recipe import Recipe


@dataclass(frozen=True)
class ExportResult(Result):
    """Description, path and size of an export."""

    title = "Exported run"

    path: Path
    what: str
    parameters: int
    bytes: int

    def blocks(self) -> Iterator[Block]:
        """Yield a text with the kind, size and path of the export."""
        yield Text(f"{self.what}: {self.parameters:,} parameters, {self.bytes:,} bytes\nIt is in {self.path}")


def export_run(path: Path, to: str, out: Path, overwrite: bool = False) -> ExportResult:
    """Export the run at `path` to a file or folder `out` in the format `to`: merged, huggingface, gguf or peft."""
    if to not in FORMATS:
        raise SpecError(describe_unknown("export: format", to, FORMATS))
    folder = RunFolder.open(path)
    check_finished(folder)
    if to in ("merged", "peft") and folder.adaptation is None:
        form = "merged" if to == "merged" else "written for peft"
        raise RunError(
            f"{path} is not an adapted run: it has no base, and need not be {form}. "
            f"To write it for transformers: lemma export {path} --to huggingface --out FOLDER"
        )
    check_not_base(folder, out)
    check_utf8_path(out)
    if to == "merged":
        check_run_target(out, overwrite)
    elif to != "gguf":
        check_export_target(out, overwrite)
    return FORMATS[to](folder, out, overwrite)


def load_merged_model(folder: RunFolder) -> nn.Module:
    """Return the model of a finished run, with LoRA updates merged into its matrices."""
    model = load_model(folder)
    return merge_lora(model) if folder.adaptation else model


def _export_merged(folder: RunFolder, out: Path, overwrite: bool) -> ExportResult:
    """Write an adapted run as a run `out` without a base."""
    return _write_merged_run(folder, load_merged_model(folder), out, overwrite, f"merged from {folder.path}")


def _load_text_model(folder: RunFolder) -> tuple[dict[str, Tensor], Tokenizer]:
    """Return the merged weights of a run by name, and its tokenizer; raise RunError without a tokenizer."""
    model, tokenizer = load_merged_model(folder), folder.vocabulary()
    if not isinstance(tokenizer, Tokenizer):
        raise RunError(f"{folder.path} is of the family {folder.spec.family}, which other libraries have no form for.")
    return named_weights(model, include_frozen=True), tokenizer


def _export_huggingface(folder: RunFolder, out: Path, overwrite: bool) -> ExportResult:
    """Write a run as a folder `out` for transformers."""
    weights, tokenizer = _load_text_model(folder)
    with export_folder(out, overwrite) as temporary:
        written = write_folder(temporary, folder.spec, weights, tokenizer, folder.labels())
    return _make_result(out, "a folder for transformers", written)


def _export_gguf(folder: RunFolder, out: Path, overwrite: bool) -> ExportResult:
    """Write a run as a GGUF file `out`."""
    if out.suffix != ".gguf":
        raise SpecError(f"export: out = {out}: a file is written; its name must end in .gguf.")
    if out.exists():
        if not out.is_file() or not is_lemma_gguf(out):
            raise RunError(f"{out} already exists, and Lemma did not write it. Name a new file.")
        if not overwrite:
            raise RunError(f"{out} already exists. To replace it: --overwrite, in Python overwrite=True.")
    weights, tokenizer = _load_text_model(folder)
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with atomic_replace(out) as temporary:
        written = write_gguf(temporary, folder.spec, weights, tokenizer, folder.path.name)
    forget_opened(out)
    return _make_result(out, "a GGUF file", written)


def _export_peft(folder: RunFolder, out: Path, overwrite: bool) -> ExportResult:
    """Write the LoRA updates of an adapted run as a folder `out` for peft."""
    model, base = load_model(folder), folder.base()
    tensor_maps, task, base_path = None, None, base.path
    if isinstance(base, PretrainedRun):
        base_path = base.source.path
        if isinstance(model, LanguageModel):
            tensor_maps = base.source.tensor_maps
        elif isinstance(folder.spec, Classifier):
            with suppress(RunError):  # a classifier that transformers has no class for keeps Lemma's names
                native_architecture(folder.spec)
                tensor_maps, task = base.source.tensor_maps_of(folder.spec), "SEQ_CLS"
    write_peft(model, out, str(base_path), tensor_maps, task, overwrite)
    return _make_result(out, "a folder for peft", named_weights(model))


FORMATS: dict[str, Callable[[RunFolder, Path, bool], ExportResult]] = {
    "merged": _export_merged,
    "huggingface": _export_huggingface,
    "gguf": _export_gguf,
    "peft": _export_peft,
}


def save_model(
    model: Any, tokenizer: Any, out: Path, labels: Sequence[str] = (), overwrite: bool = False
) -> ExportResult:
    """Write a model that was trained elsewhere, and its tokenizer, as a finished run `out` with unknown data.

    `labels` are the names of a classifier's classes.
    """
    model = unwrap_model(model)
    spec = getattr(model, "spec", None)
    if not isinstance(spec, ModelSpec):
        raise RunError(
            f"runs.save: a model of Lemma's is expected, as lemma.models.build.build makes one, got "
            f"{type(model).__name__}. A transformers model needs no saving here: its folder is accepted as a run."
        )
    vocabulary = Tokenizer(tokenizer.to_str()) if isinstance(tokenizer, Engine) else tokenizer
    expected_type = {"graph": type(None), "treebank": Lexicon}.get(spec.data_kind, Tokenizer)
    if not isinstance(vocabulary, expected_type):
        raise RunError(
            f"runs.save: {expected_type.__name__.replace('NoneType', 'None')} is expected as tokenizer, got "
            f"{type(vocabulary).__name__}. Give what the model's tokens come from; of a tokenizer of transformers, its "
            "backend_tokenizer."
        )
    parameters = named_weights(model, include_frozen=True)
    weights = {name.replace("_orig_mod.", ""): tensor for name, tensor in parameters.items()}
    if _shapes(weights) != _shapes(named_weights(build_uninitialized(spec), include_frozen=True)):
        raise RunError("runs.save: the weights are not those of the model's spec. Give the model as it was built.")
    if isinstance(vocabulary, Tokenizer) and vocabulary.kind != PRETRAINED:
        size = vocabulary.vocabulary
        if spec.with_data_sizes({"vocabulary": size}) != spec:
            raise RunError(
                f"runs.save: the tokenizer has {size:,} tokens, and the model is one of "
                f"{getattr(spec, 'vocabulary', 'other sizes'):,}. Give the tokenizer that its tokens come from."
            )
    classes = getattr(spec, "classes", 0)
    if len(labels) != classes:
        raise RunError(f"runs.save: the model has {classes} classes, and {len(labels)} labels are given.")
    folder = RunFolder(out, spec, Recipe(), PretrainedData(pretrained="trained elsewhere"), "")
    summary = {"path": str(out), "family": spec.family, "made": "of a model trained elsewhere"}
    folder.create(vocabulary, overwrite, labels, result=(weights, summary))
    return _make_result(out, "a run", weights)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the shape of each tensor by name."""
    return {name: tensor.shape for name, tensor in tensors.items()}


def unwrap_model(model: Any) -> Any:
    """Return the model inside the wrappers of torch.compile, DDP and others, in any order."""
    while isinstance(model, nn.Module) and "spec" not in vars(model):
        children = dict(model.named_children())
        inner = children.get("_orig_mod", children.get("module"))
        if inner is None:
            break
        model = inner
    return model


def import_run(path: Path, peft_folder: Path, out: Path, overwrite: bool = False) -> ExportResult:
    """Create a run in `out` from a base run at `path` and LoRA weights that peft wrote.

    It is an adapted run, or a merged one if no adaptation method of Lemma describes the weights.
    """
    base = RunFolder.open(path)
    check_finished(base)
    check_no_adapters(base)
    check_not_base(base, out)
    check_run_target(out, overwrite)  # before anything is read
    tensor_maps = base.source.tensor_maps if isinstance(base, PretrainedRun) else None
    adaptation = read_peft(peft_folder, load_merged_model(base), tensor_maps)
    for name, parameter in adaptation.model.named_parameters():  # such as the head of a classifier, as its base has it
        if any(fnmatch(name, pattern) for pattern in always_trainable(base.spec, adaptation.method)):
            parameter.requires_grad_(True)
    origin = f"from {peft_folder}"
    spec = make_adaptation_spec(base, out, adaptation.method)
    folder = RunFolder(out, base.spec, base.recipe, base.data, base.data_hash, spec)
    if not _can_be_reloaded(folder, adaptation.model):
        result = _write_merged_run(base, merge_lora(adaptation.model), out, overwrite, f"{origin}, merged")
        return replace(result, what="a plain run (merged: the adapter holds whole modules next to LoRA's updates)")
    weights = named_weights(adaptation.model)
    folder.create(base.vocabulary(), overwrite, base.labels(), result=(weights, _build_summary(base, out, origin)))
    return _make_result(out, "an adapted run", weights)


def _can_be_reloaded(folder: RunFolder, model: nn.Module) -> bool:
    """Return whether a model built from the spec and method of `folder` has the shapes and LoRA scales of `model`."""

    def scales(model: nn.Module) -> list[float]:
        """Return the scale of each LoRA update."""
        return [module.scale for module in model.modules() if isinstance(module, LowRankUpdate)]

    rebuilt = build_run_uninitialized(folder)
    return _shapes(named_weights(rebuilt)) == _shapes(named_weights(model)) and scales(rebuilt) == scales(model)


def _write_merged_run(folder: RunFolder, model: nn.Module, out: Path, overwrite: bool, origin: str) -> ExportResult:
    """Write a model as a run in `out` without a base; spec, recipe, data and tokenizer are those of `folder`.

    `origin` is the part of a sentence in its summary that says how it was made.
    """
    merged = RunFolder(out, folder.spec, folder.recipe, folder.data, folder.data_hash)
    weights = named_weights(model, include_frozen=True)
    merged.create(
        folder.vocabulary(), overwrite, folder.labels(), result=(weights, _build_summary(folder, out, origin))
    )
    return _make_result(out, "a plain run", weights)


def _build_summary(folder: RunFolder, out: Path, origin: str) -> dict[str, Any]:
    """Return the summary of `folder`, changed for a run made from it: path `out`, and `origin` as how it was made."""
    return {**(folder.summary() or {}), "path": str(out), "made": origin}


def _make_result(out: Path, description: str, weights: Mapping[str, Tensor]) -> ExportResult:
    """Return the result of an export to `out`, with the number of weights and the bytes of its files."""
    files = [out] if out.is_file() else [file for file in out.rglob("*") if file.is_file()]
    parameters = sum(tensor.numel() for tensor in weights.values())
    return ExportResult(out, description, parameters, sum(file.stat().st_size for file in files))
