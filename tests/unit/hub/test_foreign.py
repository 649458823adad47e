"""Files of other programs whose fields are wrong: an error of Lemma's that names the file, in bounded time."""

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from faults.foreign import TEXT, TensorInfo, flipped, foreign, gguf_bytes, good_gguf, use, written
from lemma.data.foreign import reading_foreign_file
from lemma.errors import DataError, LemmaError, RunError, StorageError
from lemma.hub.llama2c import open_llama2c
from lemma.hub.pretrained import open_pretrained

pytest.importorskip("gguf")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))


def changed(path: Path, tokenizer: str = "llama", **fields: Any) -> Path:
    """Write a small GGUF file with other values of metadata; __ stands for a dot."""
    metadata, tensors = good_gguf(tokenizer)
    path.write_bytes(gguf_bytes({**metadata, **{key.replace("__", "."): v for key, v in fields.items()}}, tensors)[0])
    return path


@pytest.mark.filterwarnings("ignore")
def test_a_share_of_the_campaign_finds_only_errors_of_lemma(tmp_path: Path) -> None:
    for row in foreign(tmp_path / "campaign", 0.02):
        assert not row.failures, row.what


def test_every_surprise_names_the_file_and_keeps_its_cause() -> None:
    for surprise in (KeyError("a"), ValueError(), TypeError("b"), struct.error("c"), MemoryError(), RecursionError()):
        message = rf"^x\.gguf is damaged .*{type(surprise).__name__}"
        with pytest.raises(RunError, match=message) as caught, reading_foreign_file("x.gguf"):
            raise surprise
        assert caught.value.__cause__ is surprise
    with pytest.raises(DataError, match=r"^x\.gguf: no tokens$"), reading_foreign_file("x.gguf"):
        raise DataError("no tokens")
    with pytest.raises(StorageError, match=r"^x\.gguf cannot be read"), reading_foreign_file("x.gguf"):
        raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("alignment", [(5, -32), (4, 0), (4, 48), (6, 32.0), (8, "32"), (7, True)])
def test_an_alignment_that_is_no_power_of_two_is_refused(alignment: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"model\.gguf.*general\.alignment"):
        open_pretrained(changed(tmp_path / "model.gguf", general__alignment=alignment))


def test_tensors_lie_at_aligned_offsets_in_the_file_without_overlap(tmp_path: Path) -> None:
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
def test_a_tensor_that_cannot_be_is_refused(tensor: TensorInfo, message: str, tmp_path: Path) -> None:
    metadata, tensors = good_gguf("llama")
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(metadata, [*tensors, tensor])[0])
    with pytest.raises(RunError, match=rf"model\.gguf.*{message}"):
        open_pretrained(path)


@pytest.mark.parametrize("tokenizer", ["llama", "gpt2"])
def test_a_very_long_token_takes_neither_time_nor_memory(tokenizer: str, tmp_path: Path) -> None:
    tokens = (9, (TEXT, [*"abcdefghijk", "<s>", "</s>", "x" * 200_000]))
    path = changed(
        tmp_path / "model.gguf", tokenizer, tokenizer__ggml__tokens=tokens, tokenizer__ggml__merges=(9, (TEXT, []))
    )
    if tokenizer == "llama":
        with pytest.raises(DataError, match=r"model\.gguf: .*200,000 characters"):
            _ = open_pretrained(path).tokenizer
    else:
        assert open_pretrained(path).tokenizer.vocabulary == 14


def test_more_layers_than_any_model_has_are_refused_before_any_is_built(tmp_path: Path) -> None:
    source = open_pretrained(changed(tmp_path / "model.gguf", llama__block_count=(4, 2**31 - 1)))
    with pytest.raises(RunError, match=r"model\.gguf: .*depth = 2147483647"):
        source.model()


def test_a_header_larger_than_any_real_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = changed(tmp_path / "model.gguf")
    monkeypatch.setattr("lemma.hub.gguf.LARGEST_HEADER", 500)
    with pytest.raises(RunError, match=r"model\.gguf is damaged: its header has more than 500 bytes"):
        open_pretrained(path)


def test_flipped_bytes_of_a_llama2c_file_are_errors_of_lemma(tmp_path: Path) -> None:
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
    for place in (4, 8, 13):
        path.write_bytes(good[: start + place] + b"\xff" * 4 + good[start + place + 4 :])
        with pytest.raises(LemmaError):
            _ = open_llama2c(path).tokenizer
            raise RunError("a change of no effect")


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_hidden_layers", 10**9), ("hidden_size", 2**31 - 1), ("rms_norm_eps", "x"), ("rope_parameters", [[1]])],
)
def test_a_config_of_impossible_values_is_an_error_that_names_the_folder(
    field: str, value: Any, tmp_path: Path
) -> None:
    folder = written(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(RunError, match="model"):
        open_pretrained(folder).model()
