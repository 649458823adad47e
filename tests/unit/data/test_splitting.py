from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lemma.data.text import TextSpan, hold_out, sample_text, total_size
from lemma.errors import DataError

texts = st.lists(st.text(alphabet="ab é中🙂\n", min_size=1, max_size=60), min_size=1, max_size=4)


def documents_of(folder: Path, contents: list[bytes]) -> list[TextSpan]:
    documents = []
    for number, content in enumerate(contents):
        (folder / f"{number}.txt").write_bytes(content)
        documents.append(TextSpan(folder / f"{number}.txt", 0, len(content)))
    return documents


def content_of(sections: list[TextSpan]) -> bytes:
    return b"".join(section.path.read_bytes()[section.start : section.stop] for section in sections)


@settings(deadline=None)
@given(texts=texts, share=st.floats(0.01, 0.99))
def test_splits_partition_the_text(tmp_path_factory: pytest.TempPathFactory, texts: list[str], share: float) -> None:
    contents = [text.encode() for text in texts]
    documents = documents_of(tmp_path_factory.getbasetemp(), contents)
    try:
        splits = hold_out(documents, share)
    except DataError:
        assert sum(map(len, contents)) * min(share, 1 - share) < 4  # the held-out fraction is less than a character
        return
    train, validation = content_of(splits["train"]), content_of(splits["validation"])
    assert train + validation == b"".join(contents)
    assert train.decode()
    assert validation.decode()
    total = len(train + validation)
    room = min(total * share, total * (1 - share)) / 2 + 4
    assert abs(len(validation) - total * share) <= room


def test_text_is_split_at_the_nearest_line_or_space(write: Callable[..., Path]) -> None:
    def train_of(content: str) -> str:
        path = write(content)
        return content_of(hold_out([TextSpan(path, 0, len(content))], 0.5)["train"]).decode()

    assert train_of("aaaa bb\nccc\nd eeee ffff") == "aaaa bb\nccc\n"
    assert train_of("aaaa bb\nccccc\nd eeee ff") == "aaaa bb\nccccc\n"  # 4 bytes back, 2 bytes ahead
    assert train_of("aaaaaa b cccccccc dd") == "aaaaaa b "
    assert train_of("a" * 20) == "a" * 10
    assert train_of("a\n" + "b" * 38) == "a\n" + "b" * 18  # the only line's end is too far away


def test_files_are_concatenated_in_argument_order(tmp_path: Path) -> None:
    documents = documents_of(tmp_path, [b"x" * 30, b"y" * 30, b"z" * 40])
    splits = hold_out(documents, 0.4)
    assert splits == {"train": documents[:2], "validation": documents[2:]}


def test_splitting_a_single_character_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"a text of 4 bytes leaves nothing for the split 'validation'\. Give more text"
    ):
        hold_out(documents_of(tmp_path, ["🙂".encode()]), 0.1)


def test_sample_is_bounded_spread_and_cut_between_characters(tmp_path: Path) -> None:
    contents = ["é".encode() * 30_000, "中".encode() * 50_000, b"a" * 40_000]
    documents = documents_of(tmp_path, contents)
    assert sample_text(documents, 10**6) == documents
    sample = sample_text(documents, 50_000)
    text = content_of(sample).decode()
    assert 45_000 < total_size(sample) <= 50_000 + 3 * len(sample)
    starts = [section.start + sum(map(len, contents[: int(section.path.stem)])) for section in sample]
    assert np.diff(starts) == pytest.approx(250_000 / len(sample), abs=3)
    fractions = [len("".join(c for c in text if c == character).encode()) / total_size(sample) for character in "é中a"]
    assert fractions == pytest.approx([60 / 250, 150 / 250, 40 / 250], abs=0.02)
