"""Labelled texts with trees as numbers: words and heads, truncated and padded together."""

from pathlib import Path

import numpy as np
import pytest

from lemma.data.batches import TokenRows
from lemma.data.labels import (
    LabelledExamples,
    ParsedWords,
    attach_heads,
    join_parses,
    read_label_file,
    read_tree_source,
)
from lemma.data.treebanks import Sentence, format_conllu, read_conllu
from lemma.errors import DataError
from treebanks import B1, tiny


def labelled(lengths: list[int]) -> LabelledExamples:
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    return LabelledExamples(TokenRows(np.arange(bounds[-1]), bounds), np.arange(len(lengths)))


def test_tree_batch_holds_words_and_heads_with_padding() -> None:
    examples = attach_heads(labelled([3, 1]), [(1, -1, 1), (-1,)])
    assert isinstance(examples, LabelledExamples)
    batch, classes = examples.batch([1, 0])
    assert batch.tolist() == [[[3, -1], [-1, -1], [-1, -1]], [[0, 1], [1, -1], [2, 1]]]
    assert classes.tolist() == [[1], [0]] and examples.lengths.tolist() == [3, 1]


def test_arcs_to_truncated_words_are_dropped() -> None:
    examples = attach_heads(labelled([2, 1]), [(2, 0, -1), ()])
    assert examples.batch([0, 1])[0][..., 1].tolist() == [[-1, 0], [-1, -1]]


def test_arcs_of_a_text_are_offset_sentence_arcs() -> None:
    text = join_parses([B1, tiny()[1], B1])
    expected = []
    for start, sentence in ((0, B1), (7, tiny()[1]), (10, B1)):
        expected += [start + head - 1 if head else -1 for head in sentence.heads]
    assert list(text.heads) == expected and len(text.words) == 17


def test_whitespace_in_words_becomes_an_underscore() -> None:
    text = join_parses([Sentence(("1 000", "euro\u00a0s"), (2, 0), ("nummod", "root"))])
    assert text == ParsedWords(("1_000", "euro_s"), (1, -1)) and text.text.split() == list(text.words)


def test_labelled_treebank_gives_texts_labels_and_trees(tmp_path: Path) -> None:
    path = tmp_path / "trees.conllu"
    sentences = [Sentence(s.words, s.heads, s.relations, label=f"l{index % 2}") for index, s in enumerate(tiny())]
    path.write_text(format_conllu(sentences))
    assert read_conllu(path)[0] == tuple(
        Sentence(s.words, s.heads, s.relations, ("_",) * len(s.words), label=s.label) for s in sentences
    )
    table = read_label_file(str(path))
    assert [example.label for example in table.examples] == [s.label for s in sentences]
    assert [item.heads for item in read_tree_source(path).parse(table.texts)] == [
        tuple(head - 1 for head in s.heads) for s in sentences
    ]


def test_sentence_without_label_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "trees.conllu"
    path.write_text(format_conllu([Sentence(("a",), (0,), ("root",), label="x"), Sentence(("b",), (0,), ("root",))]))
    with pytest.raises(DataError, match=r"line 5: the sentence has no label.*# label = NAME"):
        read_label_file(str(path))
