"""Tokenizers agree with the tokenizers library and with brute force."""

import random
from itertools import pairwise, product
from math import log, prod
from typing import Any

import pytest
from tokenizers import Tokenizer, models

import lemma
from lemma.checking.exercises.tokenization import TokenizationExercise
from lemma.errors import LemmaError


def value_of(name: str, **fields: Any) -> Any:
    """Return a right value of an exercise by its name."""
    exercise = TokenizationExercise.read(fields, "tokenization")
    values = {value.name: value for value in exercise.expected_values()}
    value = values.get(name) or exercise.find_value(name)
    assert value is not None
    return value.values if value.is_numeric else value.values[0]


@pytest.mark.parametrize("seed", range(15))
def test_merges_encode_as_in_the_tokenizers_library(seed: int) -> None:
    generator = random.Random(seed)
    corpus = " ".join("".join(generator.choices("abc", k=generator.randint(1, 6))) for _ in range(8))
    exercise = TokenizationExercise.read({"corpus": corpus, "end_of_word": "none"}, "tokenization")
    merges = [
        tuple(pair[0].split()) for pair in next(v for v in exercise.expected_values() if v.name == "merges").values
    ]
    symbols = dict.fromkeys(["a", "b", "c", *("".join(pair) for pair in merges)])
    tokenizer = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(symbols)}, merges))
    for _ in range(10):
        word = "".join(generator.choices("abc", k=generator.randint(1, 8)))
        (actual,) = value_of(f"tokens({word})", corpus=corpus, end_of_word="none")
        assert actual.split() == tokenizer.encode(word).tokens


def brute_force_orders(words: dict[str, int], merges: int) -> set[tuple[tuple[str, str], ...]]:
    """Return all orders in which most frequent pairs can be merged."""
    orders: set[tuple[tuple[str, str], ...]] = set()

    def follow(rows: dict[str, list[str]], done: tuple[tuple[str, str], ...]) -> None:
        counts: dict[tuple[str, str], int] = {}
        for word, row in rows.items():
            for pair in pairwise(row):
                counts[pair] = counts.get(pair, 0) + words[word]
        best = max(counts.values(), default=0)
        if len(done) == merges or best < 2:
            orders.add(done)
            return
        for pair in (pair for pair, count in counts.items() if count == best):
            merged = {}
            for word, row in rows.items():
                new: list[str] = []
                for symbol in row:
                    if new and (new[-1], symbol) == pair:
                        new[-1] += symbol
                    else:
                        new.append(symbol)
                merged[word] = new
            follow(merged, (*done, pair))

    follow({word: list(word) for word in words}, ())
    return orders


@pytest.mark.parametrize("seed", range(6))
def test_exactly_the_orders_of_most_frequent_pairs_are_right(seed: int) -> None:
    generator = random.Random(seed)
    words = {"".join(generator.choices("ab", k=4)): generator.randint(1, 3) for _ in range(2)}
    orders = brute_force_orders(words, 2)
    fields = {"words": words, "end_of_word": "none", "max_merges": 2}
    length = max(map(len, orders))
    if length < 2:
        return
    for texts in product(
        ["a a", "a b", "b a", "b b"], ["a a", "a b", "b a", "b b", "aa a", "ab a", "ab b", "b ab", "aa b"]
    ):
        claimed = tuple(tuple(text.split()) for text in texts)
        spelled = {tuple("".join(pair) for pair in order) for order in orders}
        report = lemma.check.exercise("tokenization", fields, f"merges = [{', '.join(texts)}]")
        assert bool(report) == (claimed in orders), (texts, orders, spelled)


@pytest.mark.parametrize("seed", range(15))
def test_longest_matches_are_those_of_the_tokenizers_library(seed: int) -> None:
    generator = random.Random(seed)
    pieces = {"".join(generator.choices("ab", k=generator.randint(1, 3))) for _ in range(4)}
    pieces |= {"##" + "".join(generator.choices("ab", k=generator.randint(1, 3))) for _ in range(5)}
    vocabulary = {piece: index for index, piece in enumerate([*sorted(pieces), "[UNK]"])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    for _ in range(10):
        word = "".join(generator.choices("ab", k=generator.randint(1, 7)))
        fields = {"algorithm": "wordpiece", "pieces": sorted(pieces), "encode": word}
        (actual,) = value_of(f"tokens({word})", **fields)
        assert actual.split() == tokenizer.encode(word).tokens


@pytest.mark.parametrize("seed", range(15))
def test_the_best_segmentation_is_that_of_all(seed: int) -> None:
    generator = random.Random(seed)
    pieces = {"a", "b", *("".join(generator.choices("ab", k=generator.randint(2, 3))) for _ in range(4))}
    probabilities = {piece: generator.uniform(0.01, 0.2) for piece in sorted(pieces)}
    word = "".join(generator.choices("ab", k=6))
    segmentations = []
    for cuts in product([False, True], repeat=5):
        parts, start = [], 0
        for index, cut in enumerate(cuts, 1):
            if cut:
                parts.append(word[start:index])
                start = index
        parts.append(word[start:])
        if all(part in probabilities for part in parts):
            segmentations.append((prod(probabilities[part] for part in parts), tuple(parts)))
    fields = {"algorithm": "unigram", "probabilities": probabilities, "encode": word}
    best, parts = max(segmentations)
    assert " ".join(parts) in value_of(f"tokens({word})", **fields)
    assert value_of(f"probability({word})", **fields) == pytest.approx(best)
    assert value_of(f"log_probability({word})", **fields) == pytest.approx(log(best))
    assert value_of(f"total_probability({word})", **fields) == pytest.approx(sum(value for value, _ in segmentations))
    assert value_of(f"num_segmentations({word})", **fields) == len(segmentations)


def test_rules_for_ties() -> None:
    fields = {"corpus": "cd ab cd ab", "end_of_word": "none", "max_merges": 1}
    assert lemma.check.exercise("tokenization", fields, "merge1 = c d")
    assert lemma.check.exercise("tokenization", fields, "merge1 = a b")
    assert not lemma.check.exercise("tokenization", {**fields, "ties": "first"}, "merge1 = a b")
    assert not lemma.check.exercise("tokenization", {**fields, "ties": "alphabetical"}, "merge1 = c d")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "a corpus is needed"),
        ({"words": "low 5, lower"}, "no number"),
        ({"words": "{low: 0}"}, "whole numbers from 1"),
        ({"corpus": "a" * 2000}, "at most 1000"),
        ({"corpus": "a_b", "end_of_word": "_"}, "the words use it"),
        ({"given_merges": "abc", "encode": "abc"}, "no pair"),
        ({"algorithm": "unigram", "encode": "a", "probabilities": "{a: 0}"}, "above 0"),
        ({"algorithm": "unigram", "encode": "a", "probabilities": "{a: 1}", "remove": "b"}, "none of the pieces"),
        ({"algorithm": "wordpiece"}, "a corpus is needed"),
    ],
)
def test_statements_that_make_no_exercise_are_explained(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LemmaError, match=message):
        lemma.check.exercise("tokenization", fields, "1")


def test_the_largest_exercise_is_checked_in_time() -> None:
    from time import perf_counter

    generator = random.Random(1)
    words = ["".join(generator.choices("abcdefgh", k=16)) for _ in range(58)]
    start = perf_counter()
    fields = {"corpus": " ".join(words), "encode": words[:20]}
    lemma.check.exercise("tokenization", fields, "merges = [a b, c d, e f]")
    assert perf_counter() - start < 2
    start = perf_counter()
    lemma.check.exercise("tokenization", {**fields, "algorithm": "wordpiece", "max_merges": 30}, "merges = [a b, c d]")
    assert perf_counter() - start < 2
