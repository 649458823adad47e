"""LoRA in the form of the peft library: a folder with adapter_config.json and adapter_model.safetensors.

A map's matrices are named `base_model.model.PATH.lora_A.weight` (rank × inputs) and `lora_B.weight` (outputs × rank),
an embedding's `lora_embedding_A` (rank × tokens) and `lora_embedding_B` (width × rank). What learns as a whole, such as
a classifier's head, stands beside them under its own name, and its module in `modules_to_save`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lemma.adaptation import Adaptation, adapt_model
from lemma.adaptation.adapting import refuse_adapted
from lemma.adaptation.lora import wrap
from lemma.adaptation.tree import besides
from lemma.data.atomic import replacing
from lemma.errors import RunError, SpecError
from lemma.interop.peft_names import PREFIX, matrices_at, sort_tensors, whole_modules
from lemma.interop.peft_options import options_of, read_options
from lemma.interop.peft_updates import copy, exportable, named, new_updates, targets_of_whole
from lemma.spec import Frozen

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
WRITTEN = {CONFIG, WEIGHTS, "README.md"}
Module = TypeVar("Module", bound=nn.Module)


def write_peft(model: nn.Module, folder: Path | str, base: str | None = None) -> None:
    """Write a model's updates, and what of it learns as a whole, as peft's folder; `base` says of which model.

    Matrices of recurrent layers and the joint matrix of torch's attention have no form there: a SpecError says so.
    """
    updates = [exportable(path, wrapper) for path, wrapper in besides(model)]
    if not updates:
        raise SpecError("this model has no LoRA updates to write. Adapt it with lora first.")
    whole = whole_modules(model)
    options = options_of(model, {path: wrapper.update for path, wrapper in updates}, whole, base)
    tensors = {name: value for path, wrapper in updates for name, value in named(path, wrapper).items()}
    tensors |= {f"{PREFIX}{name}": value for values in whole.values() for name, value in values.items()}
    kept = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}  # none shares memory
    with _new_folder(Path(folder)) as temporary:
        (temporary / CONFIG).write_text(json.dumps(options, indent=2), encoding="utf-8")
        save_file(kept, temporary / WEIGHTS, {"format": "pt"})


def read_peft(folder: Path | str, model: Module) -> Adaptation[Module]:
    """Put the updates of peft's folder beside the matrices of a base model, and what it saved whole into it.

    What cannot be had here, such as DoRA or trained biases, is refused by its name, and then nothing has changed. The
    method that is returned says all, unless the folder's patterns give some matrices ranks or scales of their own.
    """
    folder = Path(folder)
    refuse_adapted(model)
    options = read_options(_config(folder), folder / CONFIG)
    found = sort_tensors(_weights(folder), folder / WEIGHTS)
    chosen = matrices_at(model, found.updates, folder)
    updates = new_updates(chosen, found, options, folder)
    whole = targets_of_whole(model, found, chosen, folder)
    adapt_model(model, Frozen())
    for target, value in whole:
        copy(target, value)
    places = list({id(matrix.weight): matrix for matrix in chosen.values()}.values())
    paths = tuple(matrix.path for matrix in places)
    return Adaptation(wrap(model, places, updates), options.plain(paths), paths)


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """A folder that is there whole or not at all; one that holds other things is never replaced."""
    others = [inner.name for inner in path.iterdir() if inner.name not in WRITTEN] if path.is_dir() else []
    if others or path.is_file():
        raise RunError(f"{path} is there already and holds {others[0] if others else 'a file'}. Name a new folder.")
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.mkdir()
        yield temporary


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{folder / CONFIG} is missing: this is no folder of peft's.") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / CONFIG} is damaged: {error}.") from None
    if not isinstance(config, dict):
        raise RunError(f"{folder / CONFIG} is damaged: a table of options was expected.")
    return config


def _weights(folder: Path) -> dict[str, Tensor]:
    if not (folder / WEIGHTS).exists() and (folder / PICKLED).exists():
        raise RunError(
            f"{folder / PICKLED} is a pickle, which may run any code: it is not read. Save the adapter again with "
            "peft's save_pretrained(safe_serialization=True)."
        )
    try:
        return load_file(folder / WEIGHTS)
    except FileNotFoundError:
        raise RunError(f"{folder / WEIGHTS} is missing.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{folder / WEIGHTS} is damaged: {error}.") from None
