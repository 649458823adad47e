"""Splits provided as files: used unchanged, hashed, compared with each other, or rejected."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lemma.data.corpora import Corpus
from lemma.data.graphs import prepare_graph
from lemma.data.images import prepare_images
from lemma.data.labels import prepare_labels
from lemma.data.pairs import prepare_pairs
from lemma.data.store import prepare_text
from lemma.data.treebanks import Sentence, format_conllu, prepare_treebank
from lemma.errors import DataError, SpecError
from lemma.spec.data import DataSpec, GraphSpec, ImagesSpec, LabelsSpec, PairsSpec, TreebankSpec

Write = Callable[..., Path]


def sha(*paths: Path) -> str:
    sums = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()


def joined_hash(**hashes: str) -> str:
    return hashlib.sha256(" ".join(f"{split} {custom}" for split, custom in hashes.items()).encode()).hexdigest()


# Text


def test_text_split_files_have_exactly_their_tokens(write: Write) -> None:
    a, v, t, u = (write(f"{word} one two\nthree {word}\n" * 9, f"{word}.txt") for word in ("aa", "vv", "tt", "uu"))
    spec = DataSpec(text=(str(a),), validation=str(v), test=(str(t), str(u)), tokenizer={"kind": "characters"})
    data = prepare_text(spec)
    assert data.split_names == ("train", "validation", "test")
    names = data.tokenizer
    for split, text in {"train": a.read_text(), "validation": v.read_text()}.items():
        assert data.item(split).tolist() == names.encode_lossy(text)[0].tolist()
    assert data.item("test").tolist() == names.encode_lossy(t.read_text() + u.read_text())[0].tolist()
    assert names.vocabulary == len(set(a.read_text())), "only training text teaches the tokenizer"
    assert data.split_hashes == {"train": sha(a), "validation": sha(v), "test": sha(t, u)}
    assert data.hash == joined_hash(**data.split_hashes)
    assert prepare_text(spec.replace(test=None)).hash != data.hash != prepare_text(spec.replace(validation=None)).hash


def test_missing_text_split_file_is_replaced_by_a_held_out_split(write: Write) -> None:
    a, t = (
        write("".join(f"line {number} of the text\n" for number in range(100)), "a.txt"),
        write("other\n" * 9, "t.txt"),
    )
    base = prepare_text(DataSpec(text=(str(a),), tokenizer={"kind": "words"}))
    tested = prepare_text(DataSpec(text=(str(a),), test=str(t), tokenizer={"kind": "words"}))
    validated = prepare_text(DataSpec(text=(str(a),), validation=str(t), tokenizer={"kind": "words"}))
    assert (base.split_names, base.split_hashes, base.overlaps) == (("train", "validation"), {}, ())
    for split in ("train", "validation"):
        assert tested.item(split).tolist() == base.item(split).tolist()
    assert validated.split_names == ("train", "validation")
    assert len(validated.item("train")) == len(base.item("train")) + len(base.item("validation"))


def test_overlapping_lines_of_splits_are_counted_but_not_removed(write: Write) -> None:
    a = write("same line\n\nonly here\nsame line\nand here", "a.txt")
    v, t = write("same line\nnew\n  same line \n\n", "v.txt"), write("new\nnewer\nsame line", "t.txt")
    data = prepare_text(DataSpec(text=(str(a),), validation=str(v), test=str(t), tokenizer={"kind": "words"}))
    assert data.overlaps == (
        "2 of the 3 lines of the validation split are in the train split too",
        "1 of the 3 lines of the test split is in the train split too",
        "2 of the 3 lines of the test split are in the validation split too",
    )
    again = prepare_text(DataSpec(text=(str(a),), validation=str(v), test=str(t), tokenizer={"kind": "words"}))
    assert again.overlaps == data.overlaps, "the stored tokens keep them"


def test_provided_split_replaces_the_corpus_split(toy: Corpus, write: Write) -> None:
    ours = write("be not\n" * 3, "v.txt")
    data = prepare_text(DataSpec(text=("toy",), validation=str(ours), tokenizer={"kind": "words"}))
    custom = prepare_text(DataSpec(text=("toy",), tokenizer={"kind": "words"}))
    assert data.item("train").tolist() == custom.item("train").tolist()
    assert len(data.item("validation")) == 9 != len(custom.item("validation"))
    assert "toy: its own validation split is not used, since another is given" in data.notes


def test_missing_text_split_file_is_named(write: Write) -> None:
    spec = DataSpec(text=(str(write("some text\n" * 9)),), validation="nowhere/v.txt")
    with pytest.raises(DataError, match=r"^nowhere/v\.txt: there is no such file\."):
        prepare_text(spec)


# Labels

ROWS = [(f"text {number} of {label}", label) for number in range(10) for label in "ab"]


def labelled(rows: Sequence[tuple[str, str]]) -> str:
    return "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows)


def labels(spec: dict[str, object], **words: object) -> object:
    return prepare_labels(
        LabelsSpec.model_validate({"tokenizer": "words", **spec}), length=9, special_tokens=False, **words
    )


def test_labelled_split_files_have_exactly_their_rows(write: Write) -> None:
    rare = [*ROWS, ("text 0 of a", "b"), ("only one", "c"), ("text 1 of a", "a"), ("text 1 of a", "b")]
    a, v, t = (write(labelled(rows), f"{name}.tsv") for name, rows in {"a": rare, "v": ROWS[:3], "t": ROWS[4:]}.items())
    data = labels({"labels": str(a), "validation": str(v), "test": str(t)})
    assert sorted(data.item("train").texts) == sorted(rare)
    assert [list(data.item(split).texts) for split in ("validation", "test")] == [ROWS[:3], ROWS[4:]]
    assert data.labels == ("a", "b", "c") and data.item("validation").classes.tolist() == [0, 1, 0]
    assert data.split_hashes == {"train": sha(a), "validation": sha(v), "test": sha(t)}
    assert data.hash == joined_hash(**data.split_hashes)
    assert "3 of the 3 texts of the validation split are in the train split too" in data.overlaps
    assert len(data.overlaps) == 2, "validation and test share nothing"


@pytest.mark.parametrize(("given", "drawn"), [("validation", "test"), ("test", "validation")])
def test_missing_label_split_is_held_out_from_training(write: Write, given: str, drawn: str) -> None:
    a, v = write(labelled(ROWS), "a.tsv"), write(labelled([("TEXT 3  of a", "a"), ("new", "b")]), "v.tsv")
    data, base = labels({"labels": str(a), given: str(v)}), labels({"labels": str(a)})
    sizes = {split: len(data.item(split).texts) for split in data.split_names}
    assert sizes == {"train": 18, given: 2, drawn: 2}
    assert sorted([*data.item("train").texts, *data.item(drawn).texts]) == sorted(ROWS)
    if drawn == "test":
        assert data.item("test").texts == base.item("test").texts
    assert len(data.overlaps) == 1 and data.overlaps[0].startswith("1 of the 2 texts")


def test_unknown_label_in_a_split_names_its_line(write: Write) -> None:
    a, v = write(labelled(ROWS), "a.tsv"), write(labelled([("new", "b"), ("newer", "bb")]), "v.tsv")
    with pytest.raises(DataError, match=r"v\.tsv, line 3: .*'bb'"):
        labels({"labels": str(a), "validation": str(v)})
    with pytest.raises(DataError, match=r"nowhere\.tsv: there is no such file"):
        labels({"labels": str(a), "test": "nowhere.tsv"})


def test_evaluation_of_other_labels_uses_their_test_file(write: Write) -> None:
    a, t = write(labelled(ROWS), "a.tsv"), write(labelled(ROWS[:5]), "t.tsv")
    names = labels({"labels": str(a)})
    kwargs = {"tokenizer": names.tokenizer, "labels": names.labels, "evaluation": True}
    data = labels({"labels": str(a), "test": str(t)}, **kwargs)
    assert data.split_names == ("test",) and list(data.item("test").texts) == ROWS[:5]
    assert labels({"labels": str(a), "validation": str(t)}, **kwargs).split_names == ("validation",)


# Pairs


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    return "source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in rows)


def test_pair_split_files_have_exactly_their_pairs(write: Write) -> None:
    rows = [(f"word {number}", f"drow {number}") for number in range(6)]
    a, v, t = (
        write(pairs([*rows, rows[0]]), "a.tsv"),
        write(pairs(rows[:2] * 2), "v.tsv"),
        write(pairs([("x", "y")]), "t.tsv"),
    )
    spec = PairsSpec(pairs=str(a), validation=str(v), test=str(t), tokenizer={"kind": "characters"})
    data = prepare_pairs(spec, length=16)
    assert sorted(data.item("train").pairs) == sorted([*rows, rows[0]])
    assert list(data.item("validation").pairs) == rows[:2] * 2 and list(data.item("test").pairs) == [("x", "y")]
    assert data.overlaps == ("4 of the 4 pairs of the validation split are in the train split too",)
    assert data.hash == joined_hash(train=sha(a), validation=sha(v), test=sha(t))
    only = prepare_pairs(spec.replace(test=None, held_out=0.2), length=16)
    assert {split: len(only.item(split).pairs) for split in only.split_names} == {
        "train": 5,
        "validation": 4,
        "test": 1,
    }


# Treebanks


def tree(*words: str) -> Sentence:
    return Sentence(words, tuple(range(len(words))), ("root", *["dep"] * (len(words) - 1)), ("X",) * len(words))


def test_conllu_split_files_are_used_with_dev_as_alias(write: Write) -> None:
    a, v, t = (
        write(format_conllu([tree(*text.split()) for text in texts]), f"{name}.conllu")
        for name, texts in {"a": ["a b", "c", "d e"], "v": ["c", "f"], "t": ["g", "a b", "c"]}.items()
    )
    spec = TreebankSpec(treebank=str(a), validation=str(v), test=str(t))
    data = prepare_treebank(spec, minimum_count=1, buckets=9)
    assert [len(data.item(split).sentences) for split in ("train", "validation", "test")] == [3, 2, 3]
    assert data.overlaps == (
        "1 of the 2 sentences of the validation split is in the train split too",
        "2 of the 3 sentences of the test split are in the train split too",
        "1 of the 3 sentences of the test split is in the validation split too",
    )
    assert data.split_hashes == {"train": sha(a), "validation": sha(v), "test": sha(t)} and data.hash == sha(a, v, t)
    assert TreebankSpec.read({"treebank": str(a), "dev": str(v), "test": str(t)}, "data") == spec
    with pytest.raises(SpecError, match="validation is given twice, once as 'dev'"):
        TreebankSpec.read({"treebank": str(a), "validation": str(v), "dev": str(v)}, "data")
    reserved = prepare_treebank(TreebankSpec(treebank=str(a), test=str(t)), minimum_count=1, buckets=9)
    assert [len(reserved.item(split).sentences) for split in ("train", "validation", "test")] == [2, 1, 3]


# Images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of ten grey images, the last a copy of the first, and three tables of captions."""
    root = tmp_path / "shown"
    root.mkdir()
    for shade in range(10):
        Image.new("L", (6, 6), 20 * (shade % 9)).save(root / f"{shade}.png")
    for name, rows in {"captions": range(5), "v": (5, 6, 1), "t": (7, 8, 9)}.items():
        lines = "".join(f"{index}.png,image {index} of {name}\n" for index in rows)
        (root / f"{name}.csv").write_text("image,caption\n" + lines)
    return root


def images(root: Path, **words: object) -> object:
    spec = ImagesSpec.model_validate({"images": str(root), "tokenizer": "words", **words})
    return prepare_images(spec, side=3, length=8, special_tokens=True)


def test_caption_split_tables_have_exactly_their_images(folder: Path) -> None:
    data = images(folder, captions="captions.csv", validation="v.csv", test=str(folder / "t.csv"))
    names = {split: sorted(image.name for image in data.item(split).images) for split in data.split_names}
    expected = {"train": range(5), "validation": (1, 5, 6), "test": (7, 8, 9)}
    assert names == {split: [f"{index}.png" for index in positions] for split, positions in expected.items()}
    tables = {"train": "captions", "validation": "v", "test": "t"}
    for split in data.split_names:
        for image, pixels in zip(data.item(split).images, data.item(split).pixels, strict=True):
            assert np.unique(pixels).tolist() == [20 * (int(image.name[0]) % 9)]
            assert image.captions == (f"image {image.name[0]} of {tables[split]}",)
    assert data.overlaps == (
        "1 of the 3 images of the validation split is in the train split too",
        "1 of the 3 images of the test split is in the train split too",
    )
    single = images(folder, validation="v.csv", test="t.csv")
    assert single.hash == data.hash == joined_hash(**data.split_hashes), (
        "the table that is left over is that of training"
    )


def test_missing_image_split_is_held_out_from_training(folder: Path) -> None:
    data = images(folder, captions="captions.csv", test="t.csv", held_out=0.2)
    assert {split: len(data.item(split).images) for split in data.split_names} == {
        "train": 4,
        "validation": 1,
        "test": 3,
    }
    with pytest.raises(DataError, match=r"validation = 'v\.csv': emoji has captions of its own"):
        images(Path("emoji"), validation="v.csv")
    (folder / "w.csv").write_text("image,caption\nno.png,nothing\n")
    with pytest.raises(DataError, match=r"w\.csv: none of its 1 rows names an image"):
        images(folder, captions="captions.csv", validation="w.csv")


# Graphs


def test_node_split_files_have_exactly_their_nodes(write: Write) -> None:
    n, v, t = write("1\n34\n", "n.txt"), write("2\n3\n2\n\n", "v.txt"), write("3\n30\n31\n", "t.txt")
    spec = GraphSpec(graph="karate", labelled=str(n), validation=str(v), test=str(t))
    data = prepare_graph(spec, seed=1)
    assert {split: data.item(split).nodes.tolist() for split in data.split_names} == {
        "train": [0, 33],
        "validation": [1, 2],
        "test": [2, 29, 30],
    }
    assert data.overlaps == ("1 of the 3 nodes of the test split is in the validation split too",)
    assert "v.txt: 1 lines name a node again: each node counts once" in data.notes
    base = prepare_graph(GraphSpec(graph="karate"), seed=1)
    assert data.split_hashes == {"graph": base.hash, "train": sha(n), "validation": sha(v), "test": sha(t)}
    assert data.hash == joined_hash(**data.split_hashes) and base.split_hashes == {}


def test_missing_node_splits_are_drawn_from_unlisted_nodes(write: Write) -> None:
    t = write("".join(f"{node}\n" for node in range(1, 20)), "t.txt")
    data = prepare_graph(GraphSpec(graph="karate", test=str(t), validation=4), seed=3)
    sizes = {split: len(data.item(split)) for split in data.split_names}
    assert sizes["test"] == 19 and sizes["validation"] == 4 and sizes["train"] >= 2 and not data.overlaps
    seen = np.concatenate([data.item(split).nodes for split in data.split_names])
    assert len(set(seen.tolist())) == len(seen)
    assert GraphSpec(graph="karate", validation="4").validation == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1\n99\n", r"v\.txt, line 2: there is no node '99' among the 34 nodes"),
        ("", r"v\.txt: the file is empty"),
    ],
)
def test_invalid_node_file_is_rejected(write: Write, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepare_graph(GraphSpec(graph="karate", validation=str(write(content, "v.txt"))), seed=1)


def test_listed_nodes_need_labels_and_training_needs_nodes(tmp_path: Path, write: Write) -> None:
    (tmp_path / "nodes.csv").write_text("id,label,age\na,x,1\nb,y,2\nc,,3\nd,x,4\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\nc,d\n")
    with pytest.raises(DataError, match=r"v\.txt, line 1: the node 'c' has no label"):
        prepare_graph(GraphSpec(graph=str(tmp_path), validation=str(write("c\n", "v.txt"))), seed=1)
    both = {"validation": str(write("a\nb\n", "v.txt")), "test": str(write("d\n", "t.txt"))}
    with pytest.raises(DataError, match="no labelled node is left to train on"):
        prepare_graph(GraphSpec(graph=str(tmp_path), **both), seed=1)
    with pytest.raises(SpecError, match="0 nodes are too few"):
        GraphSpec.read({"graph": "karate", "validation": 0}, "data")
