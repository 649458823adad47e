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
from lemma.hub.architectures import ARCHITECTURES, config_from_spec, weights_to_hf
from lemma.hub.pretrained import CONFIG, Pretrained
from lemma.hub.tensor_maps import StoredTensors
from lemma.models.base import save_tensors
from lemma.spec.models import Classifier, ModelSpec

WEIGHTS, INDEX, TOKENIZER = "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
TRANSFORMERS_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
PICKLES = (*TRANSFORMERS_PICKLES, "model.pt", "model.pth", "consolidated.00.pth")
SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
VOCABULARIES = ("vocab.json", "vocab.txt", *SENTENCEPIECE)
"""Files from which transformers can make a tokenizer.json."""
FLOATS = {"F64", "F32", "F16", "BF16"}
BERT_TOKENIZER_CONFIG = {
    "tokenizer_class": "BertTokenizer",
    **{f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")},
}
"""Defaults of transformers where tokenizer_config.json of a BERT does not say them."""


def open_folder(path: Path) -> Pretrained:
    """Open a Hugging Face folder, or the config.json in it, as a pretrained model; weights are read when asked for."""
    folder, config_path = (path.parent, path) if path.is_file() else (path, path / CONFIG)
    config = read_json(config_path)
    if "model_type" not in config:
        raise RunError(f"{config_path} has no model_type: it is not the configuration of a Hugging Face model.")
    names = config.get("architectures")
    readable = {name for architecture in ARCHITECTURES.values() for name in architecture.classes}
    known = [name for name in names if name in readable] if isinstance(names, list) else []
    tensors = FolderTensors(folder, *known[:1])

    def read_tokenizer() -> Tokenizer:
        """Read the folder's tokenizer; without one, raise an error that says how to get it."""
        ids = {name: config.get(name) for name in ("bos_token_id", "eos_token_id")}
        defaults = BERT_TOKENIZER_CONFIG if config["model_type"] == "bert" else None
        try:
            return Tokenizer.load(folder / TOKENIZER, config.get("vocab_size"), defaults, **ids)
        except DataError as error:
            if (folder / TOKENIZER).exists():
                raise RunError(f"{error}") from None
            raise RunError(_explain_missing_tokenizer(folder)) from None

    def existing(*names: str) -> tuple[Path, ...]:
        """Return the paths of those files that the folder has."""
        return tuple(folder / name for name in names if (folder / name).is_file())

    files = (*existing(CONFIG, TOKENIZER, INDEX), *tensors.shards)
    extra_files = existing(TOKENIZER_CONFIG, GENERATION_FILE, TEMPLATE_FILE)
    return Pretrained(path, config, tensors, files, read_tokenizer, extra_files)


def _explain_missing_tokenizer(folder: Path) -> str:
    """Return an error message that says how to get the missing tokenizer.json of a folder."""
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
        f"(pip install transformers{packages}): {_rewrite_command('AutoTokenizer', folder)}"
    )


def _rewrite_command(class_name: str, folder: Path) -> str:
    """Return a shell command that loads a folder with a class of transformers and saves it there in today's format."""
    path = repr(str(folder))
    code = f"from transformers import {class_name} as T; T.from_pretrained({path}).save_pretrained({path})"
    return f"python -c {quote(code)}"


class FolderTensors(StoredTensors):
    """Tensors of a Hugging Face folder by name, each mapped from its file for as long as it is used."""

    def __init__(self, folder: Path, class_name: str = "AutoModelForCausalLM") -> None:
        self.folder, self.class_name = folder, class_name

    @property
    def shards(self) -> tuple[Path, ...]:
        """Paths of the folder's safetensors files."""
        return tuple(sorted(self.folder.glob("model*.safetensors")))

    @cached_property
    def entries(self) -> dict[str, Path]:
        """Path of the file that holds each tensor, by the tensor's name."""
        if (self.folder / WEIGHTS).is_file():
            return dict.fromkeys(self._read_names(self.folder / WEIGHTS), self.folder / WEIGHTS)
        if not (self.folder / INDEX).is_file():
            raise RunError(self._explain_missing_weights())
        weight_map = read_json(self.folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or any(Path(str(shard)).name != shard for shard in weight_map.values()):
            raise RunError(f"{self.folder / INDEX} is damaged: its weight_map does not name files of this folder.")
        shards = sorted(set(weight_map.values()))
        for shard in shards:
            if not (self.folder / shard).is_file():
                raise RunError(
                    f"{self.folder / shard} is missing, one of the {len(shards)} shards that {INDEX} names. "
                    "Download it again."
                )
        names = {shard: set(self._read_names(self.folder / shard)) for shard in shards}
        for name, shard in weight_map.items():
            if name not in names[shard]:
                raise RunError(
                    f"{self.folder / shard} does not hold {name}, as {INDEX} says. Download the folder again."
                )
        return {name: self.folder / shard for name, shard in weight_map.items()}

    def _explain_missing_weights(self) -> str:
        """Return an error message that says how to get the missing safetensors files."""
        pickle = next((name for name in PICKLES if (self.folder / name).is_file()), None)
        if pickle is None:
            return f"{self.folder} has no weights: neither {WEIGHTS} nor {INDEX} is there. Download the folder again."
        message = f"{self.folder / pickle} is a pickle, which may run any code: it is not read."
        if pickle not in TRANSFORMERS_PICKLES:
            return f"{message} Download the model's {WEIGHTS}."
        command = _rewrite_command(self.class_name, self.folder)
        return f"{message} If you trust it, write it as safetensors with transformers: {command}"

    def _read_names(self, path: Path) -> list[str]:
        """Return the names of the tensors in a safetensors file."""
        with _open_safetensors(path) as file:
            return list(file.keys())

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor without reading it; one that does not hold floats is a RunError."""
        with _open_safetensors(self.entries[name]) as file:
            tensor = file.get_slice(name)
            if (dtype := tensor.get_dtype()) not in FLOATS:
                raise RunError(
                    f"{self.entries[name]}: {name} is of the type {dtype}; only {', '.join(sorted(FLOATS))} can be "
                    "read. Take the original weights of the model."
                )
            return tuple(tensor.get_shape())

    def __getitem__(self, name: str) -> Tensor:
        with _open_safetensors(self.entries[name]) as file:
            return file.get_tensor(name)


@contextmanager
def _open_safetensors(path: Path) -> Iterator[Any]:
    """Yield an open safetensors file (`safe_open`); a damaged one is a RunError."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except RunError:
        raise
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path} is damaged or cut off ({error}). Download it again.") from None


def write_folder(
    folder: Path, spec: ModelSpec, weights: Mapping[str, Tensor], tokenizer: Tokenizer, labels: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Write a model and its tokenizer into a folder for transformers; return the written tensors by their names there.

    `labels` are the names of a classifier's classes.
    """
    config = config_from_spec(spec)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights_to_hf(spec, weights)}
    if config["tie_word_embeddings"]:
        tied = ("lm_head.weight", "embed_out.weight")
        tensors = {name: tensor for name, tensor in tensors.items() if name not in tied}
    stops = sorted(tokenizer.stop_tokens)
    ids: dict[str, Any] = {"bos_token_id": tokenizer.bos, "eos_token_id": stops if len(stops) > 1 else tokenizer.eos}
    config |= {"dtype": str(next(iter(tensors.values())).dtype).removeprefix("torch."), **ids}
    tokenizer_config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    tokenizer_config |= {**tokenizer.special_tokens, **tokenizer.config}
    body = spec
    if isinstance(spec, Classifier):
        body, pad = spec.body, tokenizer.pad  # transformers looks for the last token before the padding
        config |= {"pad_token_id": pad, "id2label": {str(index): name for index, name in enumerate(labels)}}
        config["label2id"] = {name: index for index, name in enumerate(labels)}
        if pad is not None:
            tokenizer_config["pad_token"] = tokenizer_config.get("pad_token") or tokenizer.token_strings([pad])[0]
    if context := getattr(body, "context", None):
        tokenizer_config.setdefault("model_max_length", context)
    _write_json(folder / CONFIG, config)
    addresses: set[int] = set()
    copies: dict[str, Tensor] = {}  # of tensors that share memory, which safetensors does not allow
    for name, tensor in tensors.items():
        copies[name] = tensor.clone() if tensor.data_ptr() in addresses else tensor
        addresses.add(tensor.data_ptr())
    save_tensors(folder / WEIGHTS, copies, {"format": "pt"})
    _write_json(folder / GENERATION_FILE, {**ids, **tokenizer.generation})
    tokenizer.save(folder / TOKENIZER)
    _write_json(folder / TOKENIZER_CONFIG, tokenizer_config, ensure_ascii=False)
    return tensors


def _write_json(path: Path, content: Mapping[str, Any], ensure_ascii: bool = True) -> None:
    """Write `content` as an indented JSON file."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=ensure_ascii) + "\n", encoding="utf-8")
