"""Invalid files of other programs raise a Lemma error that names the file, in bounded time."""

import json
import random
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from faults.foreign import SPEC, TEXT, TensorInfo, flipped, foreign, gguf_bytes, good_gguf, use, write_files
from lemma.adaptation.adapt import adapt_model
from lemma.data.foreign import reading_foreign_file
from lemma.errors import DataError, LemmaError, MemoryLimitError, RunError, StorageError
from lemma.hub.llama2c import open_llama2c
from lemma.hub.peft import matches_path, read_peft, write_peft
from lemma.hub.pretrained import open_pretrained
from lemma.models.build import build
from lemma.spec.recipe import Lora

pytest.importorskip("gguf")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))


def changed(path: Path, tokenizer: str = "llama", **fields: Any) -> Path:
    """Write a small GGUF file with changed metadata; __ stands for a dot."""
    metadata, tensors = good_gguf(tokenizer)
    path.write_bytes(gguf_bytes({**metadata, **{key.replace("__", "."): v for key, v in fields.items()}}, tensors)[0])
    return path


@pytest.mark.filterwarnings("ignore")
def test_mutated_files_raise_only_lemma_errors(tmp_path: Path) -> None:
    for row in foreign(tmp_path / "campaign", 0.02):
        assert not row.failures, row.description


def test_unexpected_errors_name_the_file_and_keep_their_cause() -> None:
    for surprise in (KeyError("a"), ValueError(), TypeError("b"), struct.error("c"), RecursionError()):
        message = rf"^x\.gguf is damaged .*{type(surprise).__name__}"
        with pytest.raises(RunError, match=message) as caught, reading_foreign_file("x.gguf"):
            raise surprise
        assert caught.value.__cause__ is surprise
    for surprise in (MemoryError(), RuntimeError("DefaultCPUAllocator: not enough memory")):
        with pytest.raises(MemoryLimitError, match=r"^x\.gguf needs more memory"), reading_foreign_file("x.gguf"):
            raise surprise
    with pytest.raises(DataError, match=r"^x\.gguf: no tokens$"), reading_foreign_file("x.gguf"):
        raise DataError("no tokens")
    with pytest.raises(StorageError, match=r"^x\.gguf cannot be read"), reading_foreign_file("x.gguf"):
        raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("alignment", [(5, -32), (4, 0), (4, 48), (6, 32.0), (8, "32"), (7, True)])
def test_gguf_alignment_must_be_a_power_of_two(alignment: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"model\.gguf.*general\.alignment"):
        open_pretrained(changed(tmp_path / "model.gguf", general__alignment=alignment))


def test_gguf_tensor_offsets_must_be_aligned_and_disjoint(tmp_path: Path) -> None:
    metadata, tensors = good_gguf("llama")
    path = tmp_path / "model.gguf"
    for offset, message in ((4, "no multiple of 32"), (0, "overlap"), (1 << 40, "cut off")):
        path.write_bytes(gguf_bytes(metadata, [*tensors[:3], tensors[3]._replace(offset=offset), *tensors[4:]])[0])
        with pytest.raises(RunError, match=rf"model\.gguf.*{message}"):
            open_pretrained(path)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TensorInfo("a", (8, 8), dimensions=5), "5 dimensions"),
        (TensorInfo("a", (8, 0)), "cannot be of the type F32"),
        (TensorInfo("a", (8, 8), kind=2), "cannot be of the type Q4_0"),
        (TensorInfo("a", (8, 8), kind=999), "of the type 999"),
        (TensorInfo("token_embd.weight", (8, 14)), "two tensors token_embd.weight"),
    ],
    ids=str,
)
def test_impossible_gguf_tensors_are_rejected(tensor: TensorInfo, message: str, tmp_path: Path) -> None:
    metadata, tensors = good_gguf("llama")
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(metadata, [*tensors, tensor])[0])
    with pytest.raises(RunError, match=rf"model\.gguf.*{message}"):
        open_pretrained(path)


@pytest.mark.parametrize("tokenizer", ["llama", "gpt2"])
def test_very_long_token_costs_no_time_or_memory(tokenizer: str, tmp_path: Path) -> None:
    tokens = (9, (TEXT, [*"abcdefghijk", "<s>", "</s>", "x" * 200_000]))
    path = changed(
        tmp_path / "model.gguf", tokenizer, tokenizer__ggml__tokens=tokens, tokenizer__ggml__merges=(9, (TEXT, []))
    )
    if tokenizer == "llama":
        with pytest.raises(DataError, match=r"model\.gguf: .*200,000 characters"):
            _ = open_pretrained(path).tokenizer
    else:
        assert open_pretrained(path).tokenizer.vocabulary == 14


def test_excessive_layer_count_is_rejected_before_building(tmp_path: Path) -> None:
    source = open_pretrained(changed(tmp_path / "model.gguf", llama__block_count=(4, 2**31 - 1)))
    with pytest.raises(RunError, match=r"model\.gguf: .*depth = 2147483647"):
        source.model()


def test_oversized_gguf_header_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = changed(tmp_path / "model.gguf")
    monkeypatch.setattr("lemma.hub.gguf_header.MAX_HEADER_BYTES", 500)
    with pytest.raises(RunError, match=r"model\.gguf is damaged: its header has more than 500 bytes"):
        open_pretrained(path)


def test_corrupted_llama2c_files_raise_lemma_errors(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    sizes = (8, 8, 1, 2, 2, 300, 8)
    numbers = 300 * 8 + 8 + 4 * 64 + 8 + 3 * 64 + 8 + 2 * 8 * 2
    words = struct.pack("<i", 1) + b"".join(struct.pack("<fi", -i, 1) + b"a" for i in range(300))
    good = struct.pack("<7i", *sizes) + torch.zeros(numbers).numpy().tobytes() + words
    path.write_bytes(good)
    use(path)
    for _, make in flipped(good, 28, random.Random(1), 100):
        path.write_bytes(make())
        with pytest.raises(LemmaError):
            use(path)
            raise RunError("a change of no effect")
    start = len(good) - len(words)
    for index in (4, 8, 13):
        path.write_bytes(good[: start + index] + b"\xff" * 4 + good[start + index + 4 :])
        with pytest.raises(LemmaError):
            _ = open_llama2c(path).tokenizer
            raise RunError("a change of no effect")


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_hidden_layers", 10**9), ("hidden_size", 2**31 - 1), ("rms_norm_eps", "x"), ("rope_parameters", [[1]])],
)
def test_impossible_config_values_name_the_folder(field: str, value: Any, tmp_path: Path) -> None:
    folder = write_files(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(RunError, match="model"):
        open_pretrained(folder).model()


# peft


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """Return a peft folder of a small decoder."""
    write_peft(adapt_model(build(SPEC), Lora(rank=2, targets=("layers.*",))).model, tmp_path / "peft")
    return tmp_path / "peft"


def read_with(adapter: Path, **options: Any) -> Any:
    """Read a peft folder with changed options."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, **options}))
    return read_peft(adapter, build(SPEC))


@pytest.mark.parametrize(
    "options",
    [
        {"rank_pattern": ["narrow"]},
        {"rank_pattern": {"narrow": "2"}},
        {"rank_pattern": {"narrow": -2}},
        {"alpha_pattern": {"narrow": [1]}},
        {"r": 10**9},
        {"r": "2"},
        {"lora_alpha": None},
        {"lora_dropout": "0.1"},
        {"use_rslora": "yes"},
        {"bias": ["none"]},
    ],
    ids=str,
)
def test_invalid_peft_options_name_the_folder(options: dict[str, Any], adapter: Path) -> None:
    with pytest.raises(RunError, match="peft"):
        read_with(adapter, **options)


@pytest.mark.parametrize(
    "pattern", ["(.+)+x", "(.*)*(.*)*x", "((.|a)+)+$x", "(((a?){50}){50}){50}x", ".*" * 9 + "x", "(a?)?" * 30 + "x"]
)
def test_exponential_regex_is_matched_in_bounded_time(pattern: str, adapter: Path) -> None:
    start = time.process_time()
    try:
        read_with(adapter, rank_pattern={pattern: 3})
    except RunError as error:
        assert "peft: the regular expression" in str(error)
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "is not a regular expression"),
        (r"(a)\1", "not supported"),
        ("(?=a)", "not supported"),
        ("(?i)A", "not supported"),
    ],
)
def test_unsupported_regex_is_rejected_with_the_reason(pattern: str, message: str, adapter: Path) -> None:
    with pytest.raises(RunError, match=f"peft: .*{message}"):
        read_with(adapter, rank_pattern={pattern: 3})


def test_long_paths_bound_the_work_of_a_regex() -> None:
    assert matches_path("layers.*proj", f"layers.{'x' * 1000}.proj")
    with pytest.raises(RunError, match="too much work"):
        matches_path("layers.*.*.*proj", "x" * 1000)
