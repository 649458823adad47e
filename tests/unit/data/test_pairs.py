"""Pairs of texts: splits, encoding and evaluation."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lemma.data.pairs import Pair, TokenPairs, prepare_pairs
from lemma.data.splits import Splits, normalise_text
from lemma.errors import DataError
from lemma.spec.data import PairsSpec

Write = Callable[..., Path]
SPLITS = ("train", "validation", "test")


def table(pairs: list[tuple[str, str]]) -> str:
    return "source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in pairs)


def reversals(count: int) -> list[tuple[str, str]]:
    return [(str(number), str(number)[::-1]) for number in range(100, 100 + count)]


def prepared(path: Path, length: int = 16, **words: object) -> Splits[TokenPairs]:
    spec = PairsSpec.model_validate({"pairs": str(path), "tokenizer": "characters", "held_out": 0.1, **words})
    return prepare_pairs(spec, length=length)


def test_pairs_are_split_by_source(write: Write) -> None:
    pairs = [
        pair for source, two in reversals(100) for pair in [(source, two), (f" {source}", two + "0"), (source, "1")]
    ]
    data = prepared(write(table(pairs), "a.tsv"))
    sources = [{normalise_text(pair.source) for pair in data.item(split).pairs} for split in SPLITS]
    assert [len(source) for source in sources] == [80, 10, 10] and len(set.union(*sources)) == 100
    assert sum(len(data.item(split).pairs) for split in SPLITS) == len(set(pairs))


def test_pair_splits_ignore_row_order_and_duplicates(write: Write) -> None:
    pairs = reversals(60)
    item = prepared(write(table(pairs), "a.tsv"))
    shuffled = [*pairs, *pairs[:7]]
    random.Random(2).shuffle(shuffled)
    other = prepared(write(table(shuffled), "b.tsv"))
    assert [item.item(split).pairs for split in SPLITS] == [other.item(split).pairs for split in SPLITS]
    assert "7 pairs are in the file more than once and count once" in other.notes


def test_sources_end_with_end_and_targets_are_between_start_and_end(write: Write) -> None:
    data = prepared(write(table([("ab", "ba"), ("abc", "c"), ("a", "a"), ("b", "bbb"), ("c", "abcabc")] * 1), "a.tsv"))
    size = data.tokenizer.vocabulary
    assert data.sizes() == {"vocabulary": size + 3}
    for split in SPLITS:
        pairs, tokens = data.item(split).pairs, data.item(split)
        sources, targets = tokens.batch(range(len(pairs)))
        for index, pair in enumerate(pairs):
            source, target = (data.tokenizer.encode_lossy(text)[0].tolist() for text in pair)
            assert [token for token in sources[index] if token >= 0] == [*source, size + 1]
            assert [token for token in targets[index] if token >= 0] == [size, *target, size + 1]
        assert len(tokens) == tokens.lengths.sum() == (sources >= 0).sum() + (targets >= 0).sum()


def test_tokenizer_is_trained_on_both_sides_of_training_pairs(write: Write) -> None:
    pairs = [(f"s{chr(0x4E00 + n)}", f"t{chr(0x5E00 + n)}") for n in range(40)]
    data = prepared(write(table(pairs), "a.tsv"))
    alphabet = {character for pair in data.item("train").pairs for text in pair for character in text}
    assert data.tokenizer.vocabulary == len(alphabet)
    assert any("characters that the tokenizer does not know" in note for note in data.notes)


def test_overlong_pairs_are_evaluated_but_not_trained_on(write: Write) -> None:
    pairs = [
        *reversals(40),
        *((f"{n}" * 4, "1") for n in range(1000, 1010)),
        *(("1" + str(n), "9" * 9) for n in range(5)),
    ]
    data = prepared(write(table(pairs), "a.tsv"), length=9)
    assert sum(len(data.item(split).pairs) for split in SPLITS) == 55
    saved = [pair for split in SPLITS for pair in data.item(split).pairs if max(map(len, pair)) + 1 <= 9]
    assert len(saved) == 40 == sum(len(data.item(split).lengths) for split in SPLITS)
    assert max(int(data.item(split).sources.lengths.max()) for split in SPLITS) <= 9
    trained = len(data.item("train").pairs)
    long = trained - len(data.item("train").lengths)
    assert f"train: {long} of {trained} pairs are longer than 9 tokens on a side" in data.notes
    with pytest.raises(
        DataError, match=r"none of the .* training pairs fits into 2 tokens per side. Set a larger context"
    ):
        prepared(write(table(pairs), "a.tsv"), length=2)


def test_all_targets_of_a_source_are_its_references(write: Write) -> None:
    data = prepared(write(table(reversals(20)), "a.tsv"))
    other = write("Hi.,Hola.\nGo.,Ve.\nHi.,Buenas.\n", "b.csv")
    checked = prepare_pairs(PairsSpec(pairs=str(other)), evaluation=True, tokenizer=data.tokenizer, length=8)
    assert checked.split_names == ("pairs",)
    assert checked.item("pairs").pairs == (Pair("Hi.", "Hola."), Pair("Go.", "Ve."), Pair("Hi.", "Buenas."))
    assert checked.item("pairs").references() == {"Hi.": ("Hola.", "Buenas."), "Go.": ("Ve.",)}


def test_swapping_columns_swaps_source_and_target(write: Write) -> None:
    path = write("id,en,es\n1,Hi.,Hola.\n2,Go.,Ve.\n3,No.,Pues no.\n4,Yes.,Sí.\n5,So.,Así.\n", "a.csv")
    data = prepared(path, source="es", target="2")
    assert Pair("Ve.", "Go.") in [pair for split in SPLITS for pair in data.item(split).pairs]


def test_too_few_sources_are_rejected(write: Write) -> None:
    with pytest.raises(DataError, match=r"3 different sources are too few.*Give at least 4"):
        prepared(write(table([*reversals(3), ("100", "2")]), "a.tsv"))


def test_one_split_of_a_pair_file_can_be_evaluated(write: Write) -> None:
    path = write(table(reversals(50)), "a.tsv")
    data = prepared(path)
    test = prepare_pairs(
        PairsSpec(pairs=str(path), held_out=0.1), evaluation=True, tokenizer=data.tokenizer, length=16, split="test"
    )
    assert test.item("test").pairs == data.item("test").pairs
    np.testing.assert_array_equal(test.item("test").targets.tokens, data.item("test").targets.tokens)
    with pytest.raises(DataError, match="Did you mean 'test'"):
        prepare_pairs(PairsSpec(pairs=str(path)), evaluation=True, tokenizer=data.tokenizer, length=16, split="tset")
