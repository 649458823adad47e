import os
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from lemma.data import text as reading_module
from lemma.data.text import TextSpan, find_last_cut, next_character_offset, open_text, read_pieces
from lemma.errors import DataError

KINDS = ("characters", "words", "byte-pairs")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["word " * 400, "Wörter, 中文 🙂\n" * 90, "x" * 3000, " \n" * 900, "a\r\nb\r\n" * 300])
def test_text_blocks_are_bounded_and_join_to_the_text(
    kind: str, text: str, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_module, "BLOCK", 64)
    path = write(text)
    pieces = list(read_pieces(TextSpan(path, 0, path.stat().st_size), kind))
    assert "".join(pieces) == text
    assert len(pieces) > 5
    assert max(map(len, pieces)) < 2 * 64


def test_span_is_read_from_start_to_stop(write: Callable[..., Path]) -> None:
    assert list(read_pieces(TextSpan(write("0123456789"), 3, 7), "characters")) == ["3456"]


@settings(deadline=None)
@given(st.text(max_size=20), st.integers(0, 60))
def test_next_character_boundary_is_computed_from_any_byte(
    tmp_path_factory: pytest.TempPathFactory, text: str, offset: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "characters.txt"
    path.write_bytes(text.encode())
    starts = [len(text[:count].encode()) for count in range(len(text) + 1)]
    offset = min(offset, starts[-1])
    assert next_character_offset(path, offset) == min(start for start in starts if start >= offset)


def test_byte_order_mark_is_dropped_and_line_ends_are_preserved(write: Callable[..., Path]) -> None:
    full = open_text(write(b"\xef\xbb\xbfa\r\nb"))
    assert (full.start, full.stop) == (3, 7)
    assert "".join(read_pieces(full, "characters")) == "a\r\nb"


@pytest.mark.parametrize("before", [0, 1, 61, 62, 63, 64, 65, 200])
@pytest.mark.parametrize(
    ("wrong", "offset"), [(b"\xff", 0), (b"\xe4\xb8x", 0), (b"\xf0\x9f\x99", 0), ("ü".encode() + b"\x80", 2)]
)
def test_invalid_utf8_is_named_with_its_exact_offset(
    before: int, wrong: bytes, offset: int, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_module, "BLOCK", 64)
    path = write(b"a" * before + wrong)
    with pytest.raises(DataError, match=rf"text\.txt: byte {before + offset} \(0x{wrong[offset]:02x}\).*iconv"):
        list(read_pieces(TextSpan(path, 0, path.stat().st_size), "words"))


def test_utf16_is_recognised(write: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"byte 0 .*iconv -f utf-16"):
        open_text(write("Text".encode("utf-16")))


@pytest.mark.parametrize("content", [b"", b" \n\t\r\n", b"\xef\xbb\xbf"])
def test_empty_text_file_is_rejected(content: bytes, write: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"text\.txt: the file is empty, or nothing but white space\. Give"):
        open_text(write(content))


def test_non_file_path_is_rejected_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file\. Check"):
        open_text(tmp_path / "missing.txt")
    with pytest.raises(DataError, match=r"a folder, not a text file. Name the files in it"):
        open_text(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        open_text(Path("long" * 999))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        open_text(tmp_path / "pipe")


def test_unreadable_file_is_an_error(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    path = write("text")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied\)"):
        open_text(path)


def test_regex_splits_words_like_python() -> None:
    """Compare all code points that could be taken for a space, and many others, with the library's first split."""
    rule = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)

    def parts(text: str) -> list[str]:
        return [part for part, _ in rule.pre_tokenize_str(text)]

    doubtful = {"Zs", "Zl", "Zp", "Cc", "Cf"}
    for point in [point for point in range(0x110000) if unicodedata.category(chr(point)) in doubtful or point < 0x800]:
        character = chr(point)
        for text in (f"a{character}\nb", f"a\n{character}b", f"a{character} b", f"a {character}b"):
            cut = find_last_cut(text, "byte-pairs")
            assert parts(text[:cut]) + parts(text[cut:]) == parts(text), hex(point)


def test_tokenization_boundary_is_detected_wherever_present() -> None:
    assert find_last_cut("one" + "x" * 9000, "byte-pairs") == 0
    assert find_last_cut("one two" + "x" * 9000, "byte-pairs") == 3
    assert find_last_cut("one two" + "x" * 9000, "words") == 4
    assert find_last_cut("a  b\n\nc", "byte-pairs") == 0
