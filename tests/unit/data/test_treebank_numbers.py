"""Trees as numbers: the lexicon, the rows of a batch, and the order of batches."""

from pathlib import Path

import numpy as np
import pytest

from lemma.data.batches import BucketedExamples
from lemma.data.treebanks import NO_WORD, NUM_PIECES, ROOT, UNKNOWN_WORD, Lexicon, Trees
from lemma.errors import DataError
from treebanks import B1, tiny


def test_saved_lexicon_is_loaded_unchanged(tmp_path: Path) -> None:
    lexicon = Lexicon.from_sentences(tiny(), minimum_count=2, buckets=99)
    lexicon.save(tmp_path / "lexicon.json")
    again = Lexicon.load(tmp_path / "lexicon.json")
    assert (again.hash, again.words, again.relations) == (lexicon.hash, lexicon.words, lexicon.relations)
    assert (again.encode(B1.words) == lexicon.encode(B1.words)).all()
    (tmp_path / "lexicon.json").write_text('{"format": 9}')
    with pytest.raises(DataError, match="not a lexicon"):
        Lexicon.load(tmp_path / "lexicon.json")


def test_rare_words_are_represented_by_spelling_only() -> None:
    lexicon = Lexicon.from_sentences(tiny(), minimum_count=2, buckets=10_007)
    rows = lexicon.encode(["prefer", "Prefer", "preferring", "", "日本"])
    assert rows[0, 0] == rows[1, 0] > ROOT and (rows[2:, 0] == UNKNOWN_WORD).all()
    assert (rows[0, 1:4] == rows[2, 1:4]).all() and rows[0, 7] != rows[2, 7]  # same prefix, different suffix
    assert rows.shape == (5, 1 + NUM_PIECES) and rows.min() >= 0 and rows[:, 1:].max() < 10_007


def test_treebank_batch_holds_root_words_and_padding() -> None:
    lexicon = Lexicon.from_sentences(tiny(), minimum_count=1, buckets=99)
    rows, targets = Trees(tiny(), lexicon).batch([1, 0])
    assert (rows[:, 0, 0] == ROOT).all() and (rows[0, 4:, 0] == NO_WORD).all()
    assert rows[1, 1:, 0].tolist() == lexicon.encode(B1.words)[:, 0].tolist()
    assert targets[1, :, 0].tolist() == list(B1.heads)
    assert [lexicon.relations[number] for number in targets[1, :, 1]] == list(B1.relations)
    assert (targets[0, 3:] == -1).all()


def test_epoch_reads_each_sentence_once_in_seeded_order() -> None:
    lengths = np.random.default_rng(0).integers(1, 40, 1000)
    order = BucketedExamples(lengths, batch=10, seed=3)
    batches = np.stack([order.examples(step) for step in range(order.steps)])
    assert sorted(batches.ravel().tolist()) == list(range(1000))
    again = BucketedExamples(lengths, batch=10, seed=3)
    assert (again.examples(150) == order.examples(150)).all() and (again.examples(7) == batches[7]).all()
    assert (order.examples(100) != batches[0]).any()
    padding = sum(int((lengths[batch].max() - lengths[batch]).sum()) for batch in batches)
    assert padding < 0.05 * lengths.sum()


def test_small_treebank_repeats_to_fill_a_batch() -> None:
    order = BucketedExamples(np.array([3, 5]), batch=5, seed=1)
    assert len(order.examples(0)) == 5 and set(order.examples(0).tolist()) == {0, 1}
