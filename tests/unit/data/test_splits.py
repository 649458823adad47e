"""Splits of all kinds of data."""

import numpy as np
import pytest

from lemma.data.splits import ExampleFile, Splits, assign_splits, prepare_examples, shuffle_keys, split_groups
from lemma.data.store import TokenArray
from lemma.errors import DataError


def splits_of(**items: list[int]) -> Splits[list[int]]:
    return Splits("text", items, None, "hash", "toy", {"vocabulary": 3})


def test_unknown_split_error_lists_the_splits() -> None:
    with pytest.raises(DataError, match=r"no split 'test' in toy\. It has: train, validation\."):
        splits_of(train=[1], validation=[2]).item("test")
    toy = ExampleFile(["a", "b"], "hash", "toy")
    with pytest.raises(DataError, match=r"unknown split 'tset'\. Did you mean 'test'"):
        prepare_examples(
            "labels",
            toy,
            {},
            lambda: ({"train": ["a"], "test": ["b"]}, ()),
            key=str,
            noun="texts",
            is_builtin=True,
            evaluation=True,
            split="tset",
            name="text",
        )


def test_selected_split_is_named_in_the_description() -> None:
    data = splits_of(train=[1], test=[2]).select("test")
    assert (data.split_names, data.item("test"), data.description) == (("test",), [2], "toy (test)")


def test_split_sizes_are_returned_as_a_copy() -> None:
    data = splits_of(train=[1])
    data.sizes()["vocabulary"] = 99
    assert data.sizes() == {"vocabulary": 3}


def test_items_follow_the_split_of_their_group() -> None:
    groups = {str(key): [f"{key}b", f"{key}a"] for key in range(50)}
    assigned = assign_splits(dict.fromkeys(groups, 2), dict.fromkeys(groups, ""), 0.1)
    splits = split_groups(groups, assigned)
    assert {name: len(subset) for name, subset in splits.items()} == {"train": 80, "validation": 10, "test": 10}
    for name, subset in splits.items():
        keys = [key for key in shuffle_keys(groups, "order") if assigned[key] == name]
        assert subset == [text for key in keys for text in sorted(groups[key])]


def test_token_array_slices_are_plain_arrays() -> None:
    tokens = np.arange(5, dtype=np.uint16).view(TokenArray)
    tokens.bytes, tokens.dropped_characters = 9, 1
    assert type(tokens[1:3]) is np.ndarray and type(tokens[np.array([2])]) is np.ndarray
    assert type(tokens[0]) is np.uint16 and type(tokens + 1) is np.ndarray and isinstance(tokens.max(), np.uint16)
    assert (tokens.bytes, tokens.dropped_characters, len(tokens)) == (9, 1, 5)
