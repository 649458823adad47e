import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lemma.data import text as reading_module
from lemma.data.corpora import Corpus
from lemma.data.splits import Splits
from lemma.data.store import TokenArray, TokenStore, prepare_text, read_tokens
from lemma.data.text import TextSpan
from lemma.data.tokenizers import train_tokenizer
from lemma.errors import DataError
from lemma.spec.data import BytePairs, Characters, DataSpec, Words

TEXT = "".join(f"line {number}: the quick brown fox, größer als {number * 37 % 101} 中\n" for number in range(200))
KINDS = {"characters": Characters(), "words": Words(), "byte-pairs": BytePairs(vocabulary=300)}


def spec_of(*paths: Path | str, kind: str = "characters", held_out: float = 0.1) -> DataSpec:
    return DataSpec(text=tuple(map(str, paths)), tokenizer=KINDS[kind], held_out=held_out)


def folder_of(dataset: Splits[TokenArray]) -> Path:
    return Path(str(np.asarray(dataset.item("train")).base.base.filename)).parent  # pyright: ignore


def decoded(dataset: Splits[TokenArray]) -> dict[str, str]:
    return {split: dataset.tokenizer.decode(dataset.item(split)) for split in dataset.split_names}


@pytest.mark.parametrize("kind", KINDS)
def test_splits_decode_to_the_file_with_a_training_split_tokenizer(
    kind: str, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_module, "BLOCK", 500)  # many pieces
    dataset = prepare_text(spec_of(write(TEXT), kind=kind))
    texts = decoded(dataset)
    merged = texts["train"] + texts["validation"]
    if kind == "words":  # a number that occurs only in the last lines is unknown
        assert dataset.item("validation").tolist().count(dataset.tokenizer.unk or 0) > 0
        assert dataset.item("train").tolist().count(dataset.tokenizer.unk or 0) == 0
    else:
        assert merged == TEXT
        single = train_tokenizer(KINDS[kind], [texts["train"]])
        assert single.hash == dataset.tokenizer.hash
    assert dataset.item("train").bytes + dataset.item("validation").bytes == len(TEXT.encode())
    assert dataset.item("validation").bytes / len(TEXT.encode()) == pytest.approx(0.1, abs=0.01)


def test_validation_only_characters_are_skipped_and_counted(write: Callable[..., Path]) -> None:
    dataset = prepare_text(spec_of(write("abc\n" * 90 + "aé🙂c\n" * 10), held_out=0.2))
    assert dataset.tokenizer.vocabulary == 4
    assert (dataset.item("train").dropped_characters, dataset.item("validation").dropped_characters) == (0, 20)
    assert decoded(dataset)["validation"] == "ac\n" * 10
    assert dataset.item("validation").bytes == 30  # only bytes that tokens encode


def test_dataset_hash_is_sha256_of_the_file_or_of_joined_hashes(
    write: Callable[..., Path],
) -> None:
    paths = [write(TEXT, "a.txt"), write(TEXT[::-1], "b.txt")]
    sums = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    assert prepare_text(spec_of(paths[0])).hash == sums[0]
    assert prepare_text(spec_of(*paths)).hash == hashlib.sha256("".join(sums).encode()).hexdigest()
    assert prepare_text(spec_of(*paths)).description == f"{paths[0]}, {paths[1]}"


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_joined_in_order_with_eos_between_them(kind: str, write: Callable[..., Path]) -> None:
    first, second = "one two\n", "three four three four three four one two\n"
    dataset = prepare_text(spec_of(write(first, "z.txt"), write(second, "a.txt"), kind=kind, held_out=0.2))
    tokens = np.concatenate([dataset.item(split) for split in dataset.split_names]).tolist()
    encode = dataset.tokenizer.encode
    between = [] if dataset.tokenizer.eos is None else [dataset.tokenizer.eos]
    assert tokens[: len(encode(first)) + len(between)] == encode(first).tolist() + between
    assert len(dataset.split_names) == 2


def test_second_preparation_reads_files_only_for_checksums(write: Callable[..., Path], home: Path) -> None:
    path, messages = write(TEXT), []
    first = prepare_text(
        spec_of(path), progress=lambda description, done, total: messages.append((description, done, total))
    )
    names = list(dict.fromkeys(description for description, _, _ in messages))
    assert names == ["checking the files", "training the tokenizer", "tokenising"]
    for name in names:
        done = [done for description, done, _ in messages if description == name]
        total = next(total for description, _, total in messages if description == name)
        assert done == sorted(done)
        assert (done[0], done[-1]) == (0, total)
    messages.clear()
    second = prepare_text(
        spec_of(path), progress=lambda description, done, total: messages.append((description, done, total))
    )
    assert {description for description, _, _ in messages} == {"checking the files"}
    assert folder_of(second) == folder_of(first)
    assert decoded(second) == decoded(first)
    assert len(list((home / "stores").iterdir())) == len(list((home / "tokenizers").iterdir())) == 1


def test_token_store_depends_on_text_tokenizer_and_fraction(write: Callable[..., Path]) -> None:
    folders = {folder_of(prepare_text(spec_of(write(TEXT))))}
    folders.add(folder_of(prepare_text(spec_of(write(TEXT), held_out=0.3))))
    folders.add(folder_of(prepare_text(spec_of(write(TEXT), kind="words"))))
    changed = prepare_text(spec_of(write(TEXT.replace("line 199", "LINE 199"))))
    assert "LINE" in decoded(changed)["validation"] or changed.item("validation").dropped_characters == 4
    assert len(folders | {folder_of(changed)}) == 4


def test_cached_tokenizer_is_not_reused_for_another_split(write: Callable[..., Path]) -> None:
    path = write("abc\n" * 75 + "abd\n" * 25)
    assert prepare_text(spec_of(path, held_out=0.1)).tokenizer.vocabulary == 5
    assert prepare_text(spec_of(path, held_out=0.3)).tokenizer.vocabulary == 4


def test_damaged_store_or_tokenizer_is_rebuilt(write: Callable[..., Path], home: Path) -> None:
    first = prepare_text(spec_of(write(TEXT)))
    before = decoded(first)
    (folder_of(first) / "tokens.bin").write_bytes(b"half")
    next((home / "tokenizers").iterdir()).write_text("{")
    again = prepare_text(spec_of(write(TEXT)))
    assert decoded(again) == before
    assert tuple(TokenStore(folder_of(first)).splits) == ("train", "validation")


def test_passed_tokenizer_is_used_unchanged(write: Callable[..., Path], home: Path) -> None:
    tokenizer = train_tokenizer(Characters(), ["abc "])
    dataset = prepare_text(spec_of(write("abcdé " * 50)), tokenizer=tokenizer)
    assert dataset.tokenizer is tokenizer
    assert dataset.item("train").dropped_characters == 2 * 45
    assert not (home / "tokenizers").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_bytes_late_in_the_text_leave_no_files(kind: str, write: Callable[..., Path], home: Path) -> None:
    path = write(TEXT.encode() * 40 + b"caf\xe9 au lait")
    with pytest.raises(DataError, match=rf"text\.txt: byte {len(TEXT.encode()) * 40 + 3} \(0xe9\) is not UTF-8"):
        prepare_text(spec_of(path, kind=kind))
    assert not list((home / "stores").rglob("*"))


def test_ctrl_c_while_tokenizing_leaves_no_files(write: Callable[..., Path], home: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if what == "tokenising" and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_text(spec_of(write(TEXT)), progress=interrupt)
    assert not list((home / "stores").iterdir())


def test_unknown_name_suggests_the_closest_corpus(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"unknown text 'shakespear'\. Did you mean 'shakespeare'\?.*Or give the path of a"
    ):
        prepare_text(spec_of("shakespear"))
    with pytest.raises(DataError, match=r"book\.txt: there is no such file"):
        prepare_text(spec_of(tmp_path / "book.txt"))


def test_duplicate_text_argument_is_rejected(write: Callable[..., Path], toy: Corpus) -> None:
    path = write(TEXT)
    with pytest.raises(DataError, match=r"text\.txt is given twice"):
        prepare_text(spec_of(path, path.parent / "." / "x" / ".." / path.name))
    with pytest.raises(DataError, match="toy is given twice"):
        prepare_text(spec_of("toy", "toy"))


def test_corpora_and_files_can_be_mixed(toy: Corpus, write: Callable[..., Path]) -> None:
    path = write("be not\n" * 20)
    dataset = prepare_text(spec_of(path, "toy", held_out=0.5))
    assert decoded(dataset) == {
        "train": "to be or not\n" * 9 + "to be" + "be not\n" * 10,
        "validation": "not to be\n" * 4 + "be not\n" * 10,
    }
    assert dataset.description == f"toy, {path}"


def test_other_text_is_tokenized_with_the_passed_tokenizer(toy: Corpus, write: Callable[..., Path]) -> None:
    tokenizer = train_tokenizer(Characters(), ["this not be\n"])
    dataset = read_tokens([str(write("this, this"))], tokenizer)
    assert dataset.split_names == ("text",)
    assert (decoded(dataset)["text"], dataset.item("text").dropped_characters, dataset.item("text").bytes) == (
        "this this",
        1,
        9,
    )
    reserved = read_tokens(["toy"], tokenizer)
    assert reserved.description == "toy (validation)"
    assert decoded(reserved)["text"] == "not to be\n" * 4
    assert reserved.hash == toy.hash


def test_corpus_test_split_is_read_if_present(toy: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def split(files: list[Path]) -> dict[str, list[TextSpan]]:
        return {"train": [], "validation": [TextSpan(files[0], 0, 9)], "test": [TextSpan(files[1], 0, 4)]}

    monkeypatch.setitem(vars(toy), "split", split)
    dataset = read_tokens(["toy"], train_tokenizer(Characters(), ["not "]))
    assert (dataset.description, decoded(dataset)) == ("toy (test)", {"text": "not "})


def test_text_without_known_characters_is_rejected(write: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match="the split 'text' has no tokens"):
        read_tokens([str(write("中文"))], train_tokenizer(Characters(), ["abc"]))


def test_data_home_can_be_removed_at_any_time(write: Callable[..., Path], home: Path) -> None:
    before = decoded(prepare_text(spec_of(write(TEXT))))
    shutil.rmtree(home)
    assert decoded(prepare_text(spec_of(write(TEXT)))) == before
