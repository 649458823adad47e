"""Runs in other forms: a plain run without a base, a folder for transformers, a GGUF file, a folder for peft."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lemma.adaptation.adapt import merged
from lemma.adaptation.lora import Update
from lemma.errors import RunError
from lemma.hub.peft import read_peft, write_peft
from lemma.models.build import build
from lemma.report.result import Block, Result, Text
from lemma.runs.checkpoint import weights_of
from lemma.runs.folder import RunFolder
from lemma.runs.load import (
    adaptation_of,
    first_model,
    plain_weights,
    put_base,
    refuse_adapters,
    refuse_own_base,
    refuse_unfinished,
    whole_model,
)


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


def merge_run(path: Path, out: Path, overwrite: bool = False) -> Rewritten:
    """Write an adapted run as a plain one, with all its weights and no base."""
    folder = _adapted(path, "merged")
    refuse_own_base(folder, out)
    return _write_plain(folder, merged(whole_model(folder)), out, overwrite, f"merged from {folder.path}")


def export_run(path: Path, out: Path) -> Rewritten:
    """Write the LoRA weights of an adapted run as a folder that peft loads next to the plain base."""
    folder = _adapted(path, "written for peft")
    assert folder.adaptation is not None
    model = whole_model(folder)
    write_peft(model, out, base=str(folder.base().path))
    return _rewritten(out, "a folder for peft", weights_of(model))


def import_run(path: Path, peft_folder: Path, out: Path, overwrite: bool = False) -> Rewritten:
    """Put LoRA weights that peft wrote next to a base; as a plain run where no method of ours describes them."""
    base = RunFolder.open(path)
    refuse_unfinished(base)
    refuse_adapters(base)
    model = build(base.spec)
    put_base(model, plain_weights(base), base.path)
    adaptation = read_peft(peft_folder, model)
    about = f"from {peft_folder}"
    spec = adaptation_of(base, out, adaptation.method)
    folder = RunFolder(out, base.spec, base.recipe, base.data, base.data_hash, spec)
    if not _says_all(folder, adaptation.model):
        return _write_plain(base, merged(adaptation.model), out, overwrite, f"{about}, merged")
    folder.create(base.vocabulary(), overwrite, base.labels())
    weights = weights_of(adaptation.model)
    folder.finish(weights, _summary(base, out, about))
    return _rewritten(out, "an adapted run", weights)


def _says_all(folder: RunFolder, model: nn.Module) -> bool:
    """Whether the method of a run makes a model of the same parts, so that it can be loaded again."""
    fresh = first_model(folder)
    same = {name: tensor.shape for name, tensor in weights_of(model).items()}
    scales = [[part.scale for part in whole.modules() if isinstance(part, Update)] for whole in (fresh, model)]
    return {name: tensor.shape for name, tensor in weights_of(fresh).items()} == same and scales[0] == scales[1]


def _adapted(path: Path, what: str) -> RunFolder:
    folder = RunFolder.open(path)
    if folder.adaptation is None:
        raise RunError(f"{path} is not an adapted run: it has no base, and need not be {what}.")
    refuse_unfinished(folder)
    return folder


def _write_plain(folder: RunFolder, model: nn.Module, out: Path, overwrite: bool, about: str) -> Rewritten:
    plain = RunFolder(out, folder.spec, folder.recipe, folder.data, folder.data_hash)
    plain.create(folder.vocabulary(), overwrite, folder.labels())
    weights = weights_of(model, frozen=True)
    plain.finish(weights, _summary(folder, out, about))
    return _rewritten(out, "a plain run", weights)


def _summary(folder: RunFolder, out: Path, about: str) -> dict[str, Any]:
    return {**(folder.summary() or {}), "path": str(out), "made": about}


def _rewritten(out: Path, what: str, weights: Mapping[str, Tensor]) -> Rewritten:
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    return Rewritten(out, what, sum(tensor.numel() for tensor in weights.values()), size)
