"""Hugging Face folders: config.json, model.safetensors (whole or in shards), tokenizer.json; in and out."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from lemma.data.tokenizers import CONFIG_FILE as TOKENIZER_CONFIG
from lemma.data.tokenizers import GENERATION_FILE, TEMPLATE_FILE, Tokenizer
from lemma.errors import DataError, RunError
from lemma.files import read_json
from lemma.hub.architectures import ARCHITECTURES, StoredTensors, config_from_spec, weights_to_hf
from lemma.hub.pretrained import CONFIG, Pretrained
from lemma.models.weights import save_tensors
from lemma.spec.models import Classifier, ModelSpec

WEIGHTS, INDEX, TOKENIZER = "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
TRANSFORMERS_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
PICKLES = (*TRANSFORMERS_PICKLES, "model.pt", "model.pth", "consolidated.00.pth")
SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
VOCABULARIES = ("vocab.json", "vocab.txt", *SENTENCEPIECE)
"""What transformers can make a tokenizer.json of."""
FLOATS = {"F64", "F32", "F16", "BF16"}
BERT_TOKENIZER_CONFIG = {
    "tokenizer_class": "BertTokenizer",
    **{f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")},
}
"""What transformers takes for granted of BERT's tokenizer where tokenizer_config.json does not say it."""


def open_folder(path: Path) -> Pretrained:
    """Open a folder, or a config.json alone: a model without weights, which can be counted."""
    folder, where = (path.parent, path) if path.is_file() else (path, path / CONFIG)
    config = read_json(where)
    if "model_type" not in config:
        raise RunError(f"{where} has no model_type: it is not the configuration of a Hugging Face model.")
    tensors = FolderTensors(folder, _class_name(config))
    files = [folder / name for name in (CONFIG, TOKENIZER, INDEX) if (folder / name).is_file()]

    def tokenizer() -> Tokenizer:
        ids = {name: config.get(name) for name in ("bos_token_id", "eos_token_id")}
        try:
            usual = BERT_TOKENIZER_CONFIG if config["model_type"] == "bert" else None
            return Tokenizer.load(folder / TOKENIZER, config.get("vocab_size"), usual, **ids)
        except DataError as error:
            if (folder / TOKENIZER).exists():
                raise RunError(f"{error}") from None
            raise RunError(_without_tokenizer(folder)) from None

    more = [folder / name for name in (TOKENIZER_CONFIG, GENERATION_FILE, TEMPLATE_FILE) if (folder / name).is_file()]
    return Pretrained(path, config, tensors, (*files, *tensors.shards), tokenizer, tuple(more))


def _without_tokenizer(folder: Path) -> str:
    """Say what to do about a folder without a tokenizer.json, by what else it holds."""
    sources = [name for name in VOCABULARIES if (folder / name).is_file()]
    if "vocab.json" in sources and not (folder / "merges.txt").is_file():
        sources.remove("vocab.json")
    if not sources:
        return (
            f"{folder} has no tokenizer: neither {TOKENIZER} nor what it is made from ({', '.join(VOCABULARIES)}). "
            f"Download the model's {TOKENIZER} into it. lemma count needs none."
        )
    packages = " sentencepiece protobuf" if sources[0] in SENTENCEPIECE else ""
    return (
        f"{folder} has no {TOKENIZER}, only {sources[0]}, which it is made from. Write it with transformers "
        f"(pip install transformers{packages}): {_rewriting('AutoTokenizer', folder)}"
    )


def _rewriting(name: str, folder: Path) -> str:
    """The command that lets a class of transformers write a folder again, quoted for a shell."""
    path = repr(str(folder))
    return (
        f"python -c {quote(f'from transformers import {name} as T; T.from_pretrained({path}).save_pretrained({path})')}"
    )


def _class_name(config: Mapping[str, Any]) -> str:
    """The class of transformers that reads the weights of a configuration."""
    named = config.get("architectures")
    names = [known for architecture in ARCHITECTURES.values() for known in architecture.classes]
    return next((name for name in named if name in names), AUTO_CLASS) if isinstance(named, list) else AUTO_CLASS


AUTO_CLASS = "AutoModelForCausalLM"


class FolderTensors(StoredTensors):
    """The tensors of a folder, each mapped from its file for as long as it is used."""

    def __init__(self, folder: Path, class_name: str = AUTO_CLASS) -> None:
        self.folder, self.class_name = folder, class_name

    @property
    def shards(self) -> tuple[Path, ...]:
        """The files that are there."""
        return tuple(sorted(self.folder.glob("model*.safetensors")))

    @cached_property
    def files(self) -> dict[str, Path]:
        """In which file each tensor is; a missing or damaged file is a RunError."""
        if (self.folder / WEIGHTS).is_file():
            return dict.fromkeys(self._names(self.folder / WEIGHTS), self.folder / WEIGHTS)
        if not (self.folder / INDEX).is_file():
            raise RunError(self._without_weights())
        named = read_json(self.folder / INDEX).get("weight_map")
        if not isinstance(named, dict) or any(Path(str(shard)).name != shard for shard in named.values()):
            raise RunError(f"{self.folder / INDEX} is damaged: its weight_map does not name files of this folder.")
        shards = sorted(set(named.values()))
        for shard in shards:
            if not (self.folder / shard).is_file():
                raise RunError(
                    f"{self.folder / shard} is missing, one of the {len(shards)} shards that {INDEX} names. "
                    "Download it again."
                )
        there = {shard: set(self._names(self.folder / shard)) for shard in shards}
        lost = next((name for name, shard in named.items() if name not in there[shard]), None)
        if lost is not None:
            raise RunError(
                f"{self.folder / named[lost]} does not hold {lost}, as {INDEX} says. Download the folder again."
            )
        return {name: self.folder / shard for name, shard in named.items()}

    def _without_weights(self) -> str:
        pickled = next((name for name in PICKLES if (self.folder / name).is_file()), None)
        if pickled is None:
            return f"{self.folder} has no weights: neither {WEIGHTS} nor {INDEX} is there. Download the folder again."
        refused = f"{self.folder / pickled} is a pickle, which may run any code: it is not read."
        if pickled not in TRANSFORMERS_PICKLES:
            return f"{refused} Download the model's {WEIGHTS}."
        return (
            f"{refused} If you trust it, write it as safetensors with transformers: "
            f"{_rewriting(self.class_name, self.folder)}"
        )

    def _names(self, path: Path) -> list[str]:
        try:
            with safe_open(path, framework="pt") as file:
                return list(file.keys())
        except (SafetensorError, OSError, ValueError) as error:
            raise RunError(f"{path} is damaged or cut off ({error}). Download it again.") from None

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor; one that is not of floats is refused."""
        with self._file(name) as file:
            found = file.get_slice(name)
            if (kind := found.get_dtype()) not in FLOATS:
                raise RunError(
                    f"{self.files[name]}: {name} is of the type {kind}; only {', '.join(sorted(FLOATS))} can be read. "
                    "Take the original weights of the model."
                )
            return tuple(found.get_shape())

    def __getitem__(self, name: str) -> Tensor:
        with self._file(name) as file:
            return file.get_tensor(name)

    @contextmanager
    def _file(self, name: str) -> Iterator[Any]:
        path = self.files[name]
        try:
            with safe_open(path, framework="pt") as file:
                yield file
        except RunError:
            raise
        except (SafetensorError, OSError, ValueError) as error:
            raise RunError(f"{path} is damaged ({error}). Download it again.") from None

    def __contains__(self, name: object) -> bool:
        return name in self.files

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def write_folder(
    folder: Path, spec: ModelSpec, weights: Mapping[str, Tensor], tokenizer: Tokenizer, labels: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Fill a folder with a model as transformers' own class reads it; return the tensors that were written.

    `labels` are the names of a classifier's classes.
    """
    config = config_from_spec(spec)
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in weights_to_hf(spec, weights)}
    if config["tie_word_embeddings"]:
        kept = {name: tensor for name, tensor in kept.items() if name not in ("lm_head.weight", "embed_out.weight")}
    stops = sorted(tokenizer.stop_tokens)
    ids: dict[str, Any] = {"bos_token_id": tokenizer.bos, "eos_token_id": stops if len(stops) > 1 else tokenizer.eos}
    config |= {"dtype": str(next(iter(kept.values())).dtype).removeprefix("torch."), **ids}
    padding = None
    if isinstance(spec, Classifier):  # it looks for the last token before the padding
        padding = tokenizer.pad
        config |= {"pad_token_id": padding, "id2label": {str(place): name for place, name in enumerate(labels)}}
        config["label2id"] = {name: place for place, name in enumerate(labels)}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_tensors(folder / WEIGHTS, _unshared(kept), {"format": "pt"})
    (folder / GENERATION_FILE).write_text(
        json.dumps({**ids, **tokenizer.generation}, indent=2) + "\n", encoding="utf-8"
    )
    tokenizer.save(folder / TOKENIZER)
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    about |= {**tokenizer.special_tokens, **tokenizer.config}
    if padding is not None:
        about["pad_token"] = about.get("pad_token") or tokenizer.token_strings([padding])[0]
    if limit := getattr(spec.body if isinstance(spec, Classifier) else spec, "context", None):
        about.setdefault("model_max_length", limit)
    (folder / TOKENIZER_CONFIG).write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return kept


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No two tensors of a file may share memory."""
    seen: set[int] = set()
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        found[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return found
