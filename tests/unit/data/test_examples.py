"""TokenRows compared with lists, and the order of examples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lemma.data.batches import BucketedExamples, TokenRows
from lemma.data.store import encode_texts
from lemma.data.tokenizers import train_tokenizer
from lemma.spec.data import BytePairs, Characters, Words

LISTS = st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=8)


def rows_of(lists: list[list[int]]) -> TokenRows:
    flat = np.array([token for row in lists for token in row], dtype=np.int32)
    return TokenRows(flat, np.cumsum([0, *map(len, lists)]))


def lists_of(rows: TokenRows) -> list[list[int]]:
    return [rows.tokens[start:end].tolist() for start, end in zip(rows.bounds, rows.bounds[1:], strict=False)]


@settings(max_examples=100, deadline=None)
@given(lists=LISTS, length=st.integers(0, 7), data=st.data())
def test_token_rows_behave_like_lists(lists: list[list[int]], length: int, data: st.DataObject) -> None:
    rows = rows_of(lists)
    assert lists_of(rows.truncate(length)) == [row[:length] for row in lists]
    assert lists_of(rows.fill_empty(7)) == [row or [7] for row in lists]
    assert lists_of(rows.add_affixes([1], [2, 3])) == [[1, *row, 2, 3] for row in lists]
    subset = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=9))
    assert lists_of(rows.select(subset)) == [lists[index] for index in subset]
    longest = max((len(lists[index]) for index in subset), default=0)
    padded = rows.pad(subset)
    assert padded.tolist() == [lists[index] + [-1] * (longest - len(lists[index])) for index in subset]
    assert padded.dtype == np.int64 and padded.shape == (len(subset), longest)


@pytest.mark.parametrize("kind", [Words(), BytePairs(vocabulary=300), Characters()])
def test_batch_encoding_equals_single_encoding(kind: Words | BytePairs | Characters) -> None:
    texts = ["to be", "", "or  not\nto be", "é", "that's it " * 30, " "]
    tokenizer = train_tokenizer(kind, [texts[0], *texts[4:]])
    rows, left_out = encode_texts(tokenizer, texts, lambda _: None)
    single = [tokenizer.encode_lossy(text) for text in texts]
    assert lists_of(rows) == [ids.tolist() for ids, _ in single]
    assert left_out == sum(missing for _, missing in single)


def test_epoch_reads_each_example_once_in_length_buckets() -> None:
    lengths = np.random.default_rng(1).integers(1, 100, size=640)
    order = BucketedExamples(lengths, batch=16, seed=3)
    first = np.concatenate([order.examples(step) for step in range(order.steps)])
    second = np.concatenate([order.examples(step) for step in range(order.steps, 2 * order.steps)])
    assert sorted(first) == sorted(second) == list(range(640)) and first.tolist() != second.tolist()
    padded = sum(lengths[order.examples(step)].max() * 16 for step in range(order.steps))
    assert padded < 1.1 * lengths.sum()
