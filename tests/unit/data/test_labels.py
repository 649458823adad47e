"""Labelled texts: splits, truncation, limits and errors."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lemma.data.labels import LabelledExamples, prepare_labels
from lemma.data.splits import Splits, assign_splits, normalise_text, stratified_order
from lemma.data.tokenizers import train_tokenizer
from lemma.errors import DataError
from lemma.spec.data import BytePairs, Characters, LabelsSpec, Words

Write = Callable[..., Path]
SPLITS = ("train", "validation", "test")


def table(rows: list[tuple[str, str]]) -> str:
    return "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows)


def make_rows(count: int, labels: str = "ab") -> list[tuple[str, str]]:
    return [(f"the text of number {number} is {label}", label) for number in range(count) for label in labels]


def prepared(
    path: Path, *, length: int = 32, special_tokens: bool = False, **words: object
) -> Splits[LabelledExamples]:
    spec = LabelsSpec.model_validate({"labels": str(path), "tokenizer": "words", **words})
    return prepare_labels(spec, length=length, special_tokens=special_tokens)


def test_a_tenth_per_label_goes_to_validation_and_test(write: Write) -> None:
    data = prepared(write(table(make_rows(100)), "a.tsv"))
    assert data.split_names == SPLITS
    counts = {split: Counter(label for _, label in data.item(split).texts) for split in SPLITS}
    assert counts == {"train": {"a": 80, "b": 80}, "validation": {"a": 10, "b": 10}, "test": {"a": 10, "b": 10}}
    assert sorted(text for split in SPLITS for text in data.item(split).texts) == sorted(make_rows(100))


def test_near_duplicate_texts_share_a_split(write: Write) -> None:
    rows = [row for text, label in make_rows(60) for row in [(text, label), (f" {text.upper()} ", label)]]
    data = prepared(write(table(rows), "a.tsv"))
    seen = [{normalise_text(text) for text, _ in data.item(split).texts} for split in SPLITS]
    assert all(seen) and not seen[0] & seen[1] and not seen[0] & seen[2] and not seen[1] & seen[2]
    assert sum(len(data.item(split).texts) for split in SPLITS) == len(rows)


def test_label_splits_do_not_depend_on_row_order(write: Write) -> None:
    rows = make_rows(50, "abc")
    item = prepared(write(table(rows), "a.tsv"), limit=30)
    random.Random(1).shuffle(rows)
    other = prepared(write(table(rows), "b.tsv"), limit=30)
    assert [item.item(split).texts for split in SPLITS] == [other.item(split).texts for split in SPLITS]
    assert item.tokenizer.hash == other.tokenizer.hash and item.hash != other.hash


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.dictionaries(st.text(min_size=1), st.integers(1, 9), min_size=1, max_size=60),
    share=st.floats(0.01, 0.49),
    strata=st.integers(1, 4),
)
def test_held_out_fraction_is_bounded_per_stratum(sizes: dict[str, int], share: float, strata: int) -> None:
    stratum = {key: str(len(key) % strata) for key in sizes}
    split = assign_splits(sizes, stratum, share)
    assert split.keys() == sizes.keys()
    for name in set(stratum.values()):
        total = sum(size for key, size in sizes.items() if stratum[key] == name)
        for part in ("validation", "test"):
            reserved = sum(size for key, size in sizes.items() if stratum[key] == name and split[key] == part)
            assert reserved <= (max(1, round(share * total)) if total >= 4 else 0)


@settings(max_examples=50, deadline=None)
@given(labels=st.lists(st.sampled_from("aaabc"), min_size=1, max_size=80))
def test_first_examples_are_stratified_by_label(labels: list[str]) -> None:
    order, counts = stratified_order(labels), Counter(labels)
    assert sorted(order) == list(range(len(labels)))
    for size in range(len(counts), len(labels) + 1):
        samples = Counter(labels[index] for index in order[:size])
        assert samples.keys() == counts.keys()
        assert all(abs(samples[label] - size * counts[label] / len(labels)) <= len(counts) for label in counts)


def test_limits_are_nested_and_keep_held_out_texts(write: Write) -> None:
    path = write(table([*make_rows(60), *make_rows(20, "c")]), "a.tsv")
    few, more, full = (prepared(path, limit=limit) for limit in (10, 30, None))
    assert set(few.item("train").texts) < set(more.item("train").texts) < set(full.item("train").texts)
    assert [len(data.item("train").texts) for data in (few, more)] == [10, 30]
    assert (
        few.item("test").texts == full.item("test").texts
        and few.item("validation").texts == full.item("validation").texts
    )
    assert few.labels == ("a", "b", "c")


def test_limit_is_checked_against_labels_and_texts(write: Write) -> None:
    path = write(table(make_rows(20, "abc")), "a.tsv")
    with pytest.raises(DataError, match=r"limit=2 leaves no text for some of the 3 labels. Set limit=3"):
        prepared(path, limit=2)
    assert any("limit=500 is more than the 48 training texts" in note for note in prepared(path, limit=500).notes)


def test_conflicting_labels_are_resolved_by_majority(write: Write) -> None:
    rows = [*make_rows(30), ("twice", "a"), ("Twice", "a"), ("twice", "b"), ("even", "a"), ("even", "b")]
    data = prepared(write(table(rows), "a.tsv"))
    saved = [row for split in SPLITS for row in data.item(split).texts]
    assert sorted(row for row in saved if row[0].lower() == "twice") == [("Twice", "a"), ("twice", "a")]
    assert not any(row[0] == "even" for row in saved)
    assert any(note.startswith("3 texts were left out") for note in data.notes)


@pytest.mark.parametrize("special_tokens", [False, True])
def test_encoding_keeps_text_order_with_optional_special_tokens(write: Write, special_tokens: bool) -> None:
    data = prepared(write(table(make_rows(20)), "a.tsv"), special_tokens=special_tokens)
    vocabulary = data.tokenizer.vocabulary
    assert data.sizes() == {"classes": 2, "vocabulary": vocabulary + 3 * special_tokens}
    examples = data.item("train")
    for index, (text, label) in enumerate(data.item("train").texts):
        inputs, targets = examples.batch([index])
        ids = data.tokenizer.encode(text).tolist()
        assert inputs.tolist() == [[vocabulary, *ids, vocabulary + 1] if special_tokens else ids]
        assert targets.tolist() == [[data.labels.index(label)]]
    assert len(examples) == examples.lengths.sum()


@pytest.mark.parametrize("special_tokens", [False, True])
def test_long_texts_are_truncated_and_counted(write: Write, special_tokens: bool) -> None:
    rows = [*make_rows(20), *((f"{text} and more and more", label) for text, label in make_rows(3))]
    data = prepared(write(table(rows), "a.tsv"), length=7 + 2 * special_tokens, special_tokens=special_tokens)
    assert data.notes[-1] == f"6 of 46 texts are longer than {7 + 2 * special_tokens} tokens: their start was kept"
    longest = next(index for index, (text, _) in enumerate(data.item("train").texts) if text.endswith("more"))
    (row,), _ = data.item("train").batch([longest])
    ids = data.tokenizer.encode(data.item("train").texts[longest].text)[:7]
    np.testing.assert_array_equal(row[1:-1] if special_tokens else row, ids)


@pytest.mark.parametrize("kind", [Words(), BytePairs(vocabulary=300), Characters()])
def test_truncating_before_tokenizing_gives_the_same_tokens(kind: Words | BytePairs | Characters) -> None:
    from lemma.data.store import truncate_text

    text = "  it's  12 times,\n\nthe worst\tof-times " * 20
    tokenizer = train_tokenizer(kind, [text])
    for length in (1, 2, 5, 40):
        begun = tokenizer.encode(truncate_text(text, tokenizer.kind, length))
        np.testing.assert_array_equal(begun[:length], tokenizer.encode(text)[:length])
        assert len(begun) > length


def test_unknown_label_text_characters_are_skipped_with_a_note(write: Write) -> None:
    path = write(table([(f"aab{'ab' * (n % 7)} {n % 10}{n // 10}", "xy"[n % 2]) for n in range(40)]), "a.tsv")
    tokenizer = prepared(path, tokenizer="characters").tokenizer
    other = write("text,label\naaé,x\néé,y\n", "b.csv")
    for special_tokens in (False, True):
        data = prepare_labels(
            LabelsSpec(labels=str(other)),
            evaluation=True,
            tokenizer=tokenizer,
            labels=["x", "y"],
            length=9,
            special_tokens=special_tokens,
        )
        assert "3 characters that the tokenizer does not know were left out" in data.notes
        assert "1 texts hold nothing that the tokenizer knows" in data.notes
        assert (data.item("text").lengths > 0).all()


def test_tokenizer_is_trained_on_training_texts_only(write: Write) -> None:
    rows = [(f"word{number} of {label}", label) for number in range(40) for label in "ab"]
    data = prepared(write(table(rows), "a.tsv"))
    trained = {text.split()[0] for text, _ in data.item("train").texts}
    assert {text.split()[0] for text, _ in data.item("test").texts} - trained
    assert data.tokenizer.vocabulary == 2 + len(trained | {"of", "a", "b"})


def test_tokenizer_is_cached_per_set_of_texts(write: Write, home: Path) -> None:
    path = write(table(make_rows(20)), "a.tsv")
    for words in ({}, {}, {"limit": 12}, {"tokenizer": "characters"}):
        prepared(path, **words)
    assert len(list((home / "tokenizers").iterdir())) == 3


MISTAKES = [
    ([(f"t{n}", "one") for n in range(9)], "all 9 texts have one label, 'one'; at least two are needed"),
    ([*make_rows(9), ("rare", "c")], r"line 20: the label 'c' has 1 text to train on; each needs 2"),
    ([(f"t{n}", f"l{n}") for n in range(9)], "9 of 9 labels have fewer than 2 texts to train on, such as 'l0'"),
    (
        [("t1", "a"), ("t2", "a"), ("t3", "b"), ("t4", "b")],
        "4 texts, 4 of them different, leave none for validation and test",
    ),
]


@pytest.mark.parametrize(("rows", "message"), MISTAKES)
def test_untrainable_label_files_are_rejected(write: Write, rows: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepared(write(table(rows), "a.tsv"))


def test_rare_labels_stay_in_the_training_split(write: Write) -> None:
    data = prepared(write(table([*make_rows(20), ("first c", "c"), ("second c", "c")]), "a.tsv"))
    assert Counter(label for _, label in data.item("train").texts)["c"] == 2 and data.labels == ("a", "b", "c")


def test_unknown_label_is_named_with_its_line(write: Write) -> None:
    path, other = write(table(make_rows(20)), "a.tsv"), write("good,a\nbad,c\n", "b.csv")
    data = prepared(path)
    message = r"b\.csv, line 2: unknown label 'c'.*Choices: a, b"
    with pytest.raises(DataError, match=message):
        prepare_labels(
            LabelsSpec(labels=str(other)),
            evaluation=True,
            tokenizer=data.tokenizer,
            labels=data.labels,
            length=8,
            special_tokens=False,
        )
    with pytest.raises(DataError, match=message):
        prepare_labels(LabelsSpec(labels=str(other)), length=8, special_tokens=False, labels=data.labels)


def test_other_label_file_is_evaluated_fully_or_on_one_split(write: Write) -> None:
    data = prepared(write(table(make_rows(20)), "a.tsv"))
    rows = [("same text", "b"), ("same text", "a"), *make_rows(10)]
    kwargs = {"tokenizer": data.tokenizer, "labels": data.labels, "length": 8, "special_tokens": False}
    full = prepare_labels(LabelsSpec(labels=str(write(table(rows), "b.tsv"))), evaluation=True, **kwargs)
    assert full.split_names == ("text",) and list(full.item("text").texts) == rows
    assert full.item("text").classes.tolist() == [data.labels.index(label) for _, label in rows]
    test = prepare_labels(
        LabelsSpec(labels=str(write(table(make_rows(20)), "a.tsv"))), evaluation=True, split="test", **kwargs
    )
    assert (
        test.split_names == ("test",)
        and test.item("test").texts == data.item("test").texts
        and test.description.endswith("(test)")
    )
    with pytest.raises(DataError, match="there is no split 'train'"):
        test.item("train")
