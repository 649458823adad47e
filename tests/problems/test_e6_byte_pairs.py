"""Problem E6: byte-pair encoding of "abbc abb abc abb" with an end-of-word symbol."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from lemma.checking.worked.bpe import BytePairTrace, trace_byte_pairs
from lemma.data.corpora import CORPORA, fetch_corpus
from lemma.errors import DataError

LAST = "\U0010ffff"  # the last character in sort order represents the end of word in the library


@pytest.fixture(scope="module")
def trace() -> BytePairTrace:
    return trace_byte_pairs("abbc abb abc abb")


def test_first_step_counts_the_pairs(trace: BytePairTrace) -> None:
    counts = {count.pair: count.count for count in trace.steps[0].counts}
    assert counts == {"a b": 4, "b b": 3, "b c": 2, r"c \w": 2, r"b \w": 2}


def test_merges_match_the_problem_and_stop(trace: BytePairTrace) -> None:
    merges = [(step.symbol, step.pair, step.count) for step in trace.steps]
    assert merges == [("A", "a b", 4), ("B", "A b", 3), ("C", r"c \w", 2), ("D", r"B \w", 2)]
    assert trace.stopped == "no pair occurs twice"
    assert all(item.count == 1 for item in trace.left)


def test_tie_is_reported_with_its_rule(trace: BytePairTrace) -> None:
    assert [step.ties for step in trace.steps] == [(), (), (r"B \w",), ()]
    assert "of equally frequent pairs" in trace.tie_rule
    assert trace.tie_rule in " ".join(str(trace).split())


def test_final_segmentation_matches_the_problem(trace: BytePairTrace) -> None:
    assert {item.word: item.symbols for item in trace.segmentation} == {
        "abbc": ("B", "C"),
        "abb": ("D",),
        "abc": ("A", "C"),
    }
    assert trace.to_dict()["symbols"] == {"A": "ab", "B": "abb", "C": r"c\w", "D": r"abb\w"}


@pytest.mark.parametrize("end", [r"\w", ""])
def test_shakespeare_merges_match_the_tokenizers_library(end: str) -> None:
    try:
        (path,) = fetch_corpus(CORPORA["shakespeare"])
    except DataError as error:
        pytest.skip(str(error))
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words = [word + (LAST if end else "") for word in path.read_text(encoding="utf-8").split()]
    size = len(set("".join(words))) + 50
    engine.train_from_iterator([" ".join(words)], trainers.BpeTrainer(vocab_size=size, show_progress=False))
    expected = [[part.replace(LAST, end) for part in pair] for pair in json.loads(engine.to_str())["model"]["merges"]]
    trace = trace_byte_pairs(text="shakespeare", merges=50, end_of_word=end)
    assert [list(step.parts) for step in trace.steps] == expected
    assert len(expected) == 50
