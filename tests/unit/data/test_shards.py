"""Compressed shards and records give the tokens of their plain text, streamed and in parallel."""

import gzip
import io
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lemma.data.store as store
from lemma.data import text
from lemma.data.encoding import _request, encode_batches, run_worker, start_worker
from lemma.data.store import batch_pieces, encode_pieces, prepare_text
from lemma.data.text import (
    DOCUMENT_END,
    TextSpan,
    describe_shared_lines,
    open_text,
    read_pieces,
    sample_stream,
    sample_text,
)
from lemma.data.tokenizers import train_tokenizer
from lemma.errors import DataError, InputError
from lemma.spec.data import BytePairs, Characters, DataSpec
from lemma.tasks.registry import data_args
from small_runs import small_text

TEXT = small_text().replace("a", "é")
RECORDS = [TEXT[start : start + 700] for start in range(0, len(TEXT), 700)]


def zst(content: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard", reason="to read .zst: pip install zstandard")
    half = len(content) // 2  # two frames, as when shards are joined
    return b"".join(zstandard.ZstdCompressor().compress(part) for part in (content[:half], content[half:]))


def write_parquet(path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="to read .parquet: pip install pyarrow")
    import pyarrow

    table = pyarrow.table({"id": range(len(RECORDS) + 1), "text": [*RECORDS, None]})
    parquet.write_table(table, path, row_group_size=3)


JSON = "\n".join(json.dumps({"id": number, "text": text}) for number, text in enumerate([*RECORDS, None])).encode()
WRITTEN: dict[str, Callable[[Path], object]] = {
    "a.txt.gz": lambda path: path.write_bytes(gzip.compress(TEXT.encode())),
    "a.txt.zst": lambda path: path.write_bytes(zst(TEXT.encode())),
    "a.jsonl": lambda path: path.write_bytes(JSON),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress(JSON)),
    "a.ndjson.zst": lambda path: path.write_bytes(zst(JSON)),
    "a.parquet": write_parquet,
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("name", WRITTEN)
def test_shards_have_the_tokens_of_their_text_with_eos_per_record(name: str, tmp_path: Path, home: Path) -> None:
    path, base = tmp_path / name, tmp_path / "plain.txt"
    WRITTEN[name](path)
    base.write_text(TEXT, encoding="utf-8")
    tokenizer = train_tokenizer(BytePairs(vocabulary=300), [TEXT])
    data = prepare_text(DataSpec(text=(str(path),), held_out=0.2), tokenizer=tokenizer)
    train, validation = data.item("train"), data.item("validation")
    decoded = "".join(tokenizer.decode(tokens) for tokens in (train, validation))
    if "txt" in name:
        assert decoded == TEXT and train.bytes + validation.bytes == len(TEXT.encode())
    else:
        assert decoded.replace("<eos>", "") == TEXT
        expected = [token for text in RECORDS for token in (*tokenizer.encode(text).tolist(), tokenizer.eos)][:-1]
        assert [*train.tolist(), tokenizer.eos, *validation.tolist()] == expected  # cut where a record ends
    assert 0.1 < validation.bytes / len(TEXT.encode()) < 0.3
    assert len(list((home / "texts").iterdir())) == 1  # its size is cached
    assert prepare_text(DataSpec(text=(str(path),), held_out=0.2), tokenizer=tokenizer).hash == data.hash


def test_stream_sample_equals_file_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lemma.data.text.BLOCK", 1000)
    for name, content in (("plain.txt", TEXT.encode()), ("packed.txt.gz", gzip.compress(TEXT.encode()))):
        (tmp_path / name).write_bytes(content)
    base, packed = open_text(tmp_path / "plain.txt"), open_text(tmp_path / "packed.txt.gz")
    limit = len(TEXT) // 2
    windows = sample_text([base], limit)
    from_file = "".join(piece for window in windows for piece in read_pieces(window, "characters"))
    from_stream = "".join(sample_stream([packed], limit))
    assert abs(len(from_file) - len(from_stream)) < 600  # partial characters at the ends of 512 windows
    assert from_stream.replace("é", "")[:2000] == from_file.replace("é", "")[:2000]
    (tmp_path / "other.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    spec = DataSpec(text=(str(tmp_path / "packed.txt.gz"), str(tmp_path / "other.txt.gz")))
    monkeypatch.setattr(store, "SAMPLE", limit)
    message = prepare_text(spec).tokenizer_note
    assert "were trained on 0.0 of the 0.0 MB of training text, in 512 windows" in message


def test_parallel_tokenization_equals_serial_tokenization(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([JSON] * 60))
    tokenizer = train_tokenizer(BytePairs(vocabulary=300), [TEXT])
    batches = list(batch_pieces([read_pieces(open_text(path), tokenizer.kind)]))
    item = [encode_pieces(tokenizer, batch) for batch in batches]
    two = list(encode_batches(tokenizer, batches, 2))
    assert len(item) == len(two) > 1
    assert all(np.array_equal(a.ids, b.ids) and a.bytes == b.bytes for a, b in zip(item, two, strict=True))
    starts = [
        index for batch in batch_pieces([["", DOCUMENT_END], ["a", DOCUMENT_END, "b", "c"]]) for _, index in batch
    ]
    assert starts == [1, 2, 2, 0]
    assert [index for batch in batch_pieces([[DOCUMENT_END, "a"]]) for _, index in batch] == [1]
    with pytest.raises(DataError, match="U\\+D800"):
        encode_pieces(tokenizer, [("\ud800", 0)])


def test_killed_tokenizing_process_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    tokenizer = train_tokenizer(BytePairs(vocabulary=300), [TEXT])
    worker = start_worker(tokenizer)
    assert os.getsid(worker.pid) == worker.pid  # Ctrl-C reaches only the parent process
    worker.kill()
    worker.communicate()
    half = json.dumps({"tokens": 3, "bytes": 9, "left_out": {}}).encode() + b"\n" + bytes(8)
    killed: Any = SimpleNamespace(stdin=io.BytesIO(), stdout=io.BytesIO(half))
    with pytest.raises(DataError, match="has ended"):
        _request(killed, [("a", 0)])
    for size in (4, 8, 20):  # the writing process was killed
        run_worker(io.BytesIO(((100).to_bytes(8) + b"[" * 20)[:size]), io.BytesIO())
    assert capfd.readouterr().err == ""


def test_glob_patterns_list_shards_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (2, 0, 1):
        (tmp_path / f"shard-{number}.txt").write_text("abc " * 50)
    result = data_args({"text": "shard-*.txt", "validation": ["shard-[2].txt"]})
    assert [Path(name).name for name in result.name] == ["shard-0.txt", "shard-1.txt", "shard-2.txt"]
    assert [Path(name).name for name in result.settings["validation"]] == ["shard-2.txt"]
    with pytest.raises(DataError, match="no file has a name like that"):
        data_args({"text": ["other-*.txt"]})


def test_unreadable_shard_is_named(tmp_path: Path) -> None:
    wrong: dict[str, tuple[bytes, str]] = {
        "cut.txt.gz": (gzip.compress(TEXT.encode())[:-20], "damaged"),
        "other.txt.gz": (b"plain text", "damaged"),
        "cut.txt.zst": (zst(TEXT.encode())[:-20], "middle of a Zstandard frame"),
        "cut.jsonl.zst": (zst(JSON)[:-1], "middle of a Zstandard frame"),
        "long.txt.zst": (zst(TEXT.encode()) + b"more", "cannot be unpacked"),
        "empty.jsonl": (b'{"text": " "}\n', "no text in it"),
        "number.jsonl": (b'{"text": 3}\n', "line 1: an object such as"),
        "json.jsonl": (b'{"text": "a"}\n{"te', "line 2: not valid JSON"),
        "deep.jsonl": (b"[" * 100_000, "line 1: not valid JSON"),
        "utf-16.jsonl": (
            '{"text": "a"}'.encode("utf-16"),
            "not UTF-8.*: iconv -f utf-16 -t utf-8 .* > text.jsonl",
        ),
        "half.jsonl": (b'{"text": "\\ud800"}\n', "surrogate"),
        "latin.txt.gz": (gzip.compress("é".encode("latin-1") * 9), "is not UTF-8.*: gzip -dc .* \\| iconv -f windows"),
        "no.parquet": (b"PAR1", "not a readable Parquet file"),
    }
    for name, (content, reason) in wrong.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=reason) as error:
            open_text(tmp_path / name)
        assert name in str(error.value)


def test_missing_package_error_has_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    (tmp_path / "a.txt.zst").write_bytes(b"x")
    with pytest.raises(InputError, match=r"pip install 'lemma-lm\[shards\]'"):
        open_text(tmp_path / "a.txt.zst")


def test_record_characters_equal_those_of_their_texts(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(JSON)
    data = prepare_text(DataSpec(text=(str(tmp_path / "a.jsonl"),), tokenizer=Characters()))
    merged = "".join(data.tokenizer.decode(data.item(split)) for split in ("train", "validation"))
    assert merged == TEXT and DOCUMENT_END not in merged
    assert TextSpan(tmp_path / "a.jsonl", 0, 5).size == 5


def test_line_length_is_bounded_before_decompression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "DOCUMENT_LIMIT", 1000)
    path = tmp_path / "a.jsonl.gz"
    good = json.dumps({"text": "b" * 980}).encode()
    path.write_bytes(gzip.compress(good + b'\n{"text": "' + b"a" * 50_000_000 + b'"}\n'))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"a\.jsonl\.gz, line 2: a document of more than 1,000 bytes\. Split it"):
            open_text(path)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    path.write_bytes(gzip.compress(good))
    assert open_text(path).size == 980


def test_parquet_cell_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="to read .parquet: pip install pyarrow")
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a" * 500_000] * 100}), path, compression="zstd")
    monkeypatch.setattr(text, "BATCH_BYTES", 1 << 20)
    batches = []
    batch = pyarrow.parquet.ParquetFile.iter_batches
    monkeypatch.setattr(
        pyarrow.parquet.ParquetFile,
        "iter_batches",
        lambda *args, **named: (batches.append(item.nbytes) or item for item in batch(*args, **named)),
    )
    assert path.stat().st_size < 100_000 and open_text(path).size == 50_000_000 + 99
    assert max(batches) < 10_000_000, "a dictionary gives many rows one long cell"
    monkeypatch.setattr(text, "DOCUMENT_LIMIT", 1000)
    other = tmp_path / "b.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a" * 1000, "b" * 1001]}), other)
    with pytest.raises(DataError, match=r"b\.parquet: a document of more than 1,000 characters"):
        open_text(other)


def test_decompression_bomb_table_is_rejected_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "ROW_GROUP_LEAST", 1 << 20)
    pyarrow = pytest.importorskip("pyarrow", reason="to read .parquet: pip install pyarrow")
    pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"id": [1], "text": ["a" * 7_000_000]})
    pyarrow.parquet.write_table(table, path, compression="zstd", use_dictionary=False)
    with pytest.raises(
        DataError, match=r"row group 1 packs 7,0\d\d,\d+ bytes into [\d,]+, more than text can be packed"
    ):
        open_text(path)


def test_overlap_of_very_long_lines_is_counted_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "BLOCK", 10)
    lines = {
        "train": "abc\n" + "0123456789" * 3 + "tail\nxyz",
        "validation": "xyz\n" + "0123456789" * 3 + "tail\nnew\n",
    }
    splits = {}
    for name, content in lines.items():
        (tmp_path / name).write_text(content)
        splits[name] = [TextSpan(tmp_path / name, 0, len(content))]
    assert describe_shared_lines(splits) == ["5 of the 6 lines of the validation split are in the train split too"]
