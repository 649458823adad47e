"""Folders of images: captions, skipped files, splits and caches."""

import json
import os
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lemma.data import images as pixels
from lemma.data.batches import ExampleSet
from lemma.data.images import CaptionedImages, prepare_images
from lemma.data.splits import Splits
from lemma.data.tokenizers import train_tokenizer
from lemma.errors import DataError
from lemma.spec.data import BytePairs, Characters, ImagesSpec, Words

Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return a function that makes a folder of grey images of different shades with a table of captions."""

    def make(rows: Sequence[tuple[str, str]], images: Sequence[str] | None = None, table: str = "captions.csv") -> Path:
        root = tmp_path / "pictures"
        for shade, name in enumerate(dict.fromkeys([name for name, _ in rows] if images is None else images)):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (10, 10), shade).save(root / name)
        (root / table).parent.mkdir(parents=True, exist_ok=True)
        (root / table).write_text("image,caption\n" + "".join(f'"{name}","{text}"\n' for name, text in rows))
        return root

    return make


def many(count: int) -> list[tuple[str, str]]:
    return [(f"{number}.png", f"number {number}") for number in range(count)]


def prepared(root: Path | str, **words: object) -> Splits[CaptionedImages]:
    spec = ImagesSpec.model_validate({"images": str(root), "tokenizer": "words", **words})
    return prepare_images(spec, side=4, length=8, special_tokens=True)


def evaluated(root: Path, **words: str) -> Splits[CaptionedImages]:
    tokenizer = train_tokenizer(BytePairs(vocabulary=300), ["number one two three"])
    spec = ImagesSpec(images=str(root), **words)
    return prepare_images(spec, evaluation=True, side=4, length=8, special_tokens=True, tokenizer=tokenizer)


def named(data: Splits[CaptionedImages]) -> dict[str, tuple[str, ...]]:
    return {image.name: image.captions for split in data.split_names for image in data.item(split).images}


def test_images_stay_paired_with_their_captions(folder: Folder) -> None:
    data = prepared(folder(many(50)))
    for split in data.split_names:
        tokens = data.item(split)
        for index, image in enumerate(data.item(split).images):
            shade, text = tokens.batch([index])
            assert (shade == int(Path(image.name).stem)).all()
            names = data.tokenizer.encode_lossy(image.captions[0])[0].tolist()
            start = data.tokenizer.vocabulary
            assert text.tolist() == [[start, *names, start + 1]]


def test_image_splits_are_disjoint_tenths(folder: Folder) -> None:
    data = prepared(folder(many(50)))
    names = {split: {image.name for image in data.item(split).images} for split in data.split_names}
    assert {split: len(subset) for split, subset in names.items()} == {"train": 40, "validation": 5, "test": 5}
    assert not any(item & other for item, other in combinations(names.values(), 2))
    assert data.sizes() == {"vocabulary": data.tokenizer.vocabulary + 3}


def test_tokenizer_is_trained_on_training_captions_only(folder: Folder) -> None:
    data = prepared(folder([(f"{number}.png", f"word{number}") for number in range(20)]))
    tokenizer = data.tokenizer
    trained = {word for number in range(20) if tokenizer.encode(word := f"word{number}").tolist() != [tokenizer.unk]}
    assert trained == {image.captions[0] for image in data.item("train").images}


def test_identical_image_files_share_a_split(folder: Folder) -> None:
    rows = many(15)
    root = folder([*rows, *((f"copies/{name}", f"copy of {name}") for name, _ in rows)])
    for name, _ in rows:
        (root / "copies" / name).write_bytes((root / name).read_bytes())
    data = prepared(root)
    split_of = {image.name: split for split in data.split_names for image in data.item(split).images}
    assert all(split_of[name] == split_of[f"copies/{name}"] for name, _ in rows)
    assert any(sentence.startswith("15 images are the same file as another") for sentence in data.notes)


def test_image_splits_are_stable_when_images_are_added(folder: Folder) -> None:
    def split_of(count: int) -> dict[str, str]:
        data = prepared(folder(many(count)))
        return {image.name: split for split in data.split_names for image in data.item(split).images}

    before, after = split_of(100), split_of(110)
    assert sum(after[name] != split for name, split in before.items()) < 12


def test_one_of_several_captions_is_chosen(folder: Folder) -> None:
    rows = [(f"{number}.png", caption) for number in range(8) for caption in ("a", "a b", "a b c", "a")]
    data = prepared(folder(rows))
    assert set(named(data).values()) == {("a", "a b", "a b c")}
    tokens = data.item("train")
    assert tokens.lengths.tolist() == [5] * len(data.item("train").images)
    lengths = [int((tokens.batch([0, 1], choice)[1] >= 0).sum(axis=1).max()) for choice in range(4)]
    assert lengths == [3, 4, 5, 3]
    each = tokens.batch([0, 1], np.array([0, 2]))[1]
    assert (each >= 0).sum(axis=1).tolist() == [3, 5]


def test_batches_have_the_shapes_of_an_example_set(folder: Folder) -> None:
    tokens: ExampleSet = prepared(folder(many(20))).item("train")
    images, text = tokens.batch([3, 1, 2])
    assert images.shape == (3, 3, 4, 4) and images.dtype == np.uint8 and images.flags.writeable
    assert text.shape == (3, int(tokens.lengths[[3, 1, 2]].max())) and text.dtype == np.int64
    assert len(tokens) == int(tokens.lengths.sum())


def test_long_captions_are_truncated_and_counted(folder: Folder) -> None:
    data = prepared(folder([(f"{number}.png", "a b c d e f g h i j") for number in range(10)]))
    assert data.item("train").lengths.max() == 8
    assert "10 of 10 captions are longer than 8 tokens: their start was kept" in data.notes


def test_unusable_images_are_skipped_with_a_note(folder: Folder, tmp_path: Path) -> None:
    good = many(20)
    wrong = [("../secret.png", "x"), ("/etc/passwd", "x"), ("sub/../../secret.png", "x"), ("gone.png", "x")]
    invalid = [("empty.png", "x"), ("half.png", "x"), ("text.png", "x"), ("locked.png", "x")]
    root = folder([*good, *wrong, *invalid], [*(name for name, _ in good + invalid), "silent.png"])
    Image.new("L", (10, 10)).save(tmp_path / "secret.png")
    (root / "empty.png").write_bytes(b"")
    (root / "half.png").write_bytes((root / "0.png").read_bytes()[:40])
    (root / "text.png").write_text("no image")
    (root / "locked.png").chmod(0)
    data = prepared(root)
    saved = {name for name, _ in good} | ({"locked.png"} if os.access(root / "locked.png", os.R_OK) else set())
    assert set(named(data)) == saved
    message = "\n".join(data.notes)
    assert (
        "3 paths lead out of the folder, and were not read: ../secret.png, /etc/passwd, sub/../../secret.png" in message
    )
    assert "1 image of the table is not in the folder: gone.png" in message
    assert "1 image has no caption: silent.png" in message
    assert f"{24 - len(saved)} images cannot be read: empty.png (the file is empty), half.png (" in message
    again = prepared(root)
    assert again.notes == data.notes


def test_folder_without_usable_images_lists_the_reasons(folder: Folder) -> None:
    root = folder(many(5))
    for number in range(5):
        (root / f"{number}.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"no image could be read: 5 images cannot be read: 0\.png \(the file is e"):
        prepared(root)
    root = folder([("a.png", "x")], [])
    for number in range(5):
        (root / f"{number}.png").unlink()
    with pytest.raises(DataError, match=r"none of its 1 rows names an image in .*not in the folder: a\.png"):
        prepared(root)


def test_too_few_images_can_be_evaluated_but_not_trained_on(folder: Folder) -> None:
    root = folder(many(3))
    with pytest.raises(DataError, match=r"3 different images are too few .* Give at least 4"):
        prepared(root)
    data = evaluated(root)
    assert data.split_names == ("images",) and len(data.item("images").images) == 3
    assert {split: len(prepared(folder(many(4))).item(split).images) for split in ("train", "validation", "test")} == {
        "train": 2,
        "validation": 1,
        "test": 1,
    }


def test_image_folder_is_evaluated_fully_or_on_one_split(folder: Folder) -> None:
    root = folder(many(30))
    data = prepared(root)
    check = {"side": 4, "length": 8, "special_tokens": True, "tokenizer": data.tokenizer}
    assert len(prepare_images(ImagesSpec(images=str(root)), evaluation=True, **check).item("images").images) == 30
    test = prepare_images(ImagesSpec(images=str(root)), evaluation=True, split="test", **check)
    assert test.split_names == ("test",) and test.item("test").images == data.item("test").images
    assert (test.item("test").pixels == data.item("test").pixels).all()
    with pytest.raises(DataError, match=r"unknown split 'tset'\. Did you mean 'test'"):
        prepare_images(ImagesSpec(images=str(root)), evaluation=True, split="tset", **check)
    with pytest.raises(DataError, match="there is no split 'train' in"):
        test.item("train")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "filename;description\nx/1.png;one\n2.png;two\n"),
        ("a.tsv", "x\\1.png\tone\n2.png\ttwo\n"),
        ("a.tsv", "id\tname\tpath\n7\tone\t./x/1.png\n8\ttwo\t2.png\n"),
        ("a.csv", "1.png,one\n2.png,two\n"),
        ("x/a.jsonl", '{"file": "x/1.png", "text": "one"}\n{"file": "2.png", "text": "two"}\n'),
    ],
)
def test_captions_are_read_from_every_table_format(folder: Folder, name: str, content: str) -> None:
    root = folder([], ["x/1.png", "2.png"])
    (root / "captions.csv").unlink()
    (root / name).write_text(content)
    data = evaluated(root)
    assert named(data) == {"x/1.png": ("one",), "2.png": ("two",)}
    assert "column" in data.notes[0]


def test_caption_equal_to_a_column_name_is_not_a_header(folder: Folder) -> None:
    root = folder([], ["1.png", "2.png"])
    (root / "captions.csv").write_text("1.png,name\n2.png,title\n")
    assert named(evaluated(root)) == {"1.png": ("name",), "2.png": ("title",)}


def test_caption_columns_and_tables_can_be_chosen(folder: Folder, tmp_path: Path) -> None:
    root = folder(many(5))
    (tmp_path / "other.csv").write_text("caption,image,what,where\nno,no.png,yes,1.png\n")
    kwargs = {"captions": str(tmp_path / "other.csv"), "image": "where", "caption": "what"}
    assert named(evaluated(root, **kwargs)) == {"1.png": ("yes",)}
    (root / "second.csv").write_text("image,caption\n2.png,second\n")
    assert named(evaluated(root, captions="second.csv")) == {"2.png": ("second",)}
    with pytest.raises(
        DataError, match=r"2 tables \(captions\.csv, second\.csv\)\. Choose the table of the captions: captions=FILE"
    ):
        evaluated(root)


def test_file_names_match_across_unicode_normalization(folder: Folder) -> None:
    root = folder([("cafe\u0301.png", "coffee")], ["caf\u00e9.png"])
    assert set(named(evaluated(root)).values()) == {("coffee",)}


def test_ambiguous_file_name_is_rejected(folder: Folder) -> None:
    root = folder([("1.png", "one"), ("2.png", "two")], ["x/1.png", "y/1.png", "x/2.png"])
    data = evaluated(root)
    assert named(data) == {"x/2.png": ("two",)}
    assert any("1 image of the table is not in the folder: 1.png" in sentence for sentence in data.notes)


def test_missing_caption_table_error_shows_an_example(folder: Folder) -> None:
    root = folder(many(5))
    (root / "captions.csv").unlink()
    with pytest.raises(DataError, match=r"no table says what the images show[\s\S]*image,caption\n  dogs/rex\.jpg,"):
        prepared(root)


def test_image_path_must_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"unknown set of images 'emojy'\. Did you mean 'emoji'"):
        prepared("emojy")
    with pytest.raises(DataError, match="there is no such folder"):
        prepared(tmp_path / "nowhere")
    (tmp_path / "a.csv").write_text("image,caption\n")
    with pytest.raises(DataError, match="this is not a folder"):
        prepared(tmp_path / "a.csv")
    with pytest.raises(DataError, match=r"captions = 'a\.csv': emoji has captions of its own"):
        prepared("emoji", captions="a.csv")


def test_pixels_are_memory_mapped_and_cached(folder: Folder, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder(many(20))
    first = prepared(root)
    monkeypatch.setattr(pixels, "decode_images", None)
    again = prepared(root, held_out=0.3)
    for data in (first, again):
        assert all(isinstance(data.item(split).pixels, np.memmap) for split in data.split_names)
    assert len(again.item("test").images) == 6 and len(list((home / "pictures").iterdir())) == 1


@pytest.mark.parametrize("damage", ["shorter", "longer", "header", "missing"])
def test_damaged_image_cache_is_rebuilt(folder: Folder, home: Path, damage: str) -> None:
    root = folder(many(20))
    before = np.array(prepared(root).item("train").pixels)
    (cache,) = (home / "pictures").iterdir()
    if damage in ("shorter", "longer"):
        (cache / "pixels.bin").write_bytes(b"\0" if damage == "shorter" else b"\0" * 10_000)
    elif damage == "header":
        (cache / "manifest.json").write_text(json.dumps([1, 2]))
    else:
        (cache / "pixels.bin").unlink()
    assert (prepared(root).item("train").pixels == before).all()


def test_interrupted_decoding_leaves_no_files(folder: Folder, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(paths: Sequence[Path], side: int, *, crop_margins: bool) -> object:
        yield np.zeros((3, side, side), np.uint8)
        raise KeyboardInterrupt

    root = folder(many(20))
    with monkeypatch.context() as patch:
        patch.setattr(pixels, "decode_images", stopped)
        with pytest.raises(KeyboardInterrupt):
            prepared(root)
    assert list((home / "pictures").iterdir()) == []
    assert len(prepared(root).item("train").images) == 16


def test_image_hash_depends_only_on_files_and_table(folder: Folder) -> None:
    root = folder(many(20))
    first = prepared(root)
    assert prepared(root, held_out=0.2).hash == first.hash and len(first.hash) == 64
    Image.new("L", (10, 10), 99).save(root / "3.png")
    second = prepared(root)
    assert second.hash != first.hash
    shades = np.concatenate([second.item(split).pixels.max(axis=(1, 2, 3)) for split in second.split_names])
    assert 99 in shades and 3 not in shades
    with (root / "captions.csv").open("a") as file:
        file.write("4.png,another\n")
    assert prepared(root).hash not in (first.hash, second.hash)


def test_decoding_progress_is_reported(folder: Folder) -> None:
    messages: list[tuple[str, int, int]] = []
    spec = ImagesSpec.model_validate({"images": str(folder(many(20))), "tokenizer": "words"})
    prepare_images(spec, side=4, length=8, special_tokens=True, progress=lambda *row: messages.append(row))
    last = {description: (done, total) for description, done, total in messages}
    assert list(last)[:2] == ["reading images", "decoding images"]
    assert all(done == total > 0 for done, total in last.values())


def test_unknown_word_captions_are_counted_with_distinct_ids(folder: Folder) -> None:
    root = folder([("a.png", "zebra one"), ("b.png", "Zebra  one"), ("c.png", "zebra"), ("d.png", "a yak")])
    existing = train_tokenizer(Words(), ["a red heart"] * 3)
    data = prepare_images(
        ImagesSpec(images=str(root)), evaluation=True, side=4, length=8, special_tokens=True, tokenizer=existing
    )
    assert "4 of 4 captions hold words that the tokenizer does not know" in data.notes
    assert "3 captions hold nothing that the tokenizer knows" in data.notes
    message = [image.captions[0].lower().split() for image in data.item("images").images]
    names = data.item("images").caption_ids
    assert [[name == other for other in names] for name in names] == [
        [name == other for other in message] for name in message
    ]


def test_whitespace_only_caption_counts_as_unknown(folder: Folder) -> None:
    root = folder([("a.png", "ж ж"), ("b.png", "a b")])
    names = train_tokenizer(Characters(), [" a b"])
    data = prepare_images(
        ImagesSpec(images=str(root)), evaluation=True, side=4, length=8, special_tokens=True, tokenizer=names
    )
    assert "1 captions hold nothing that the tokenizer knows" in data.notes


def test_rows_without_caption_are_skipped_named_and_counted(folder: Folder) -> None:
    root = folder([*many(12), ("3.png", " "), ("12.png", "")])
    data = prepared(root)
    assert "2 captions are empty: line 14, line 15" in data.notes
    assert "1 image has no caption: 12.png" in data.notes
    assert sum(len(data.item(split).images) for split in data.split_names) == 12
    (root / "captions.csv").write_text("image,caption\n1.png,\n")
    with pytest.raises(DataError, match="in all of its 1 rows something is empty"):
        prepared(root)
