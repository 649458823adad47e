"""Traces of byte-pair encoding match the tokenizers library and brute-force counts."""

import json
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from lemma.checking.worked.bpe import BytePairTrace, count_words, trace_byte_pairs
from lemma.errors import InputError

END = "\U0010ffff"  # sorts after every character, as the end of word does in the trace
TEXTS = st.lists(st.text("abcdé猫\N{GRINNING FACE}", min_size=1, max_size=9), min_size=1, max_size=15).map(" ".join)


def library_merges(text: str, merges: int, minimum: int, end: str) -> list[tuple[str, str]]:
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    size = len(set(text + end) - set(" \n\t\r")) + merges
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=minimum, show_progress=False)
    engine.train_from_iterator([word + end for word in text.split()], trainer)
    return [(left, right) for left, right in json.loads(engine.to_str())["model"]["merges"]]


def merged_pairs(trace: BytePairTrace) -> list[tuple[str, str]]:
    end = trace.end_of_word
    return [tuple(part.replace(end, END) if end else part for part in step.parts) for step in trace.steps]  # type: ignore[misc]


@given(text=TEXTS, minimum=st.integers(1, 3), end=st.booleans())
def test_merges_match_the_tokenizers_library(text: str, minimum: int, end: bool) -> None:
    trace = trace_byte_pairs(text, minimum=minimum, end_of_word=r"\w" if end else "", library=True)
    assert merged_pairs(trace) == library_merges(text, 10_000, minimum, END if end else "")
    assert trace.library is not None
    assert trace.library.agrees


@given(text=TEXTS)
def test_pair_counts_match_a_recount_at_every_step(text: str) -> None:
    trace = trace_byte_pairs(text)
    before = trace.start
    for step in trace.steps:
        counts: Counter[str] = Counter()
        for word in before:
            for left, right in pairwise(word.symbols):
                counts[f"{left} {right}"] += word.times
        assert {item.pair: item.count for item in step.counts} == counts
        assert step.count == max(counts.values())
        assert [item.count for item in step.counts] == sorted(counts.values(), reverse=True)
        assert step.counts[0].pair == step.pair
        assert {step.pair, *step.ties} == {pair for pair, count in counts.items() if count == step.count}
        before = step.words
    assert before == trace.segmentation
    assert all("".join(word.spelled) == word.word + r"\w" for word in trace.segmentation)
    assert max((item.count for item in trace.left), default=0) < 2


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return real text: the docstrings of Python's standard library."""
    import argparse
    import decimal
    import typing

    path = tmp_path_factory.mktemp("book") / "book.txt"
    parts = [Path(module.__file__).read_text(encoding="utf-8") for module in (argparse, decimal, typing)]
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


@pytest.mark.parametrize("end", [r"\w", ""])
def test_merges_on_real_text_match_the_tokenizers_library(book: Path, end: str) -> None:
    trace = trace_byte_pairs(text=book, merges=60, end_of_word=end)
    full = book.read_text(encoding="utf-8")
    pairs = library_merges(full, 60, 2, END if end else "")
    assert len(trace.steps) == 60
    assert merged_pairs(trace) == pairs
    assert all(len(step.counts) == 10 for step in trace.steps)
    assert all(step.counts[0].count == step.count for step in trace.steps)
    assert trace.words == len(full.split())
    assert "after 60 merges, as asked" in str(trace)


def test_fifty_merges_of_a_megabyte_take_seconds(book: Path, tmp_path: Path) -> None:
    large = tmp_path / "large.txt"
    text = book.read_text(encoding="utf-8")
    large.write_text(text * (1_000_000 // len(text) + 1), encoding="utf-8")
    start = time.process_time()
    trace = trace_byte_pairs(text=str(large), merges=50)
    assert time.process_time() - start < 10
    assert len(trace.steps) == 50


def test_word_counts_do_not_depend_on_block_boundaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "to\u3000be  or\x1cnot\n\nto be — naïve 猫猫\t" * 7
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    for block in (1, 2, 3, 7, 1 << 18):
        monkeypatch.setattr("lemma.data.text.BLOCK", block)
        assert count_words([str(tmp_path / "a.txt")]) == Counter(text.split())


def test_settings_limit_the_trace() -> None:
    assert [step.pair for step in trace_byte_pairs("abab abab", merges=1).steps] == ["a b"]
    assert not trace_byte_pairs("abab abab", merges=0).steps
    assert trace_byte_pairs("abab abab", minimum=3).stopped == "no pair occurs 3 times"
    assert len(trace_byte_pairs("abcdef abcdef", show=2).steps[0].counts) == 2
    assert trace_byte_pairs("ab ab ab", minimum=1, end_of_word="").stopped == "every word is one symbol"
    assert trace_byte_pairs("ab ab", end_of_word="</w>").segmentation[0].spelled == ("ab</w>",)


def test_long_strings_show_only_their_first_merges() -> None:
    text = " ".join(f"word{index} {index * 7919}" for index in range(300))
    trace = trace_byte_pairs(text)
    assert len(trace.steps) == 20
    assert all(len(step.counts) <= 10 for step in trace.steps)
    assert len(trace_byte_pairs(text, merges=25, show=3).steps) == 25


def test_merge_symbols_use_letters_absent_from_the_text() -> None:
    names = [step.symbol for step in trace_byte_pairs("ABab ABab CDab").steps]
    assert not set(names) & set("ABCD")
    assert names[0] == "E"
    many = trace_byte_pairs(" ".join([f"{a}{b}" for a in "abcdefgh" for b in "ijklm"] * 2))
    assert not many.letters
    assert many.steps[0].symbol == many.steps[0].spelled


def test_invisible_characters_are_escaped() -> None:
    text = str(trace_byte_pairs("a\x07\x1b a\x07\x1b"))
    assert "\x07" not in text
    assert r"a \x07" in text


@pytest.mark.parametrize(
    ("string", "settings", "message"),
    [
        ("", {}, "no words"),
        (" \n\t", {}, "no words"),
        (None, {}, "give either"),
        ("a", {"text": "shakespeare"}, "give either"),
        ("ab", {"merges": -1}, "merges = -1"),
        ("ab", {"minimum": 0}, "min = 0"),
        ("ab", {"show": 0}, "show = 0"),
        ("ab", {"end_of_word": "b"}, "the text uses it"),
        ("ab", {"end_of_word": " x"}, "white space"),
        ("\ud800", {}, "not UTF-8"),
        (None, {"text": "shakespear"}, "Did you mean 'shakespeare'"),
        (None, {"text": "none.txt"}, "no such file"),
        ("\U0010ffff a", {"library": True}, "last private character"),
    ],
)
def test_invalid_input_is_explained(string: str | None, settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        trace_byte_pairs(string, **settings)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_saved_files_hold_the_complete_trace(tmp_path: Path) -> None:
    trace = trace_byte_pairs("abbc abb abc <b>")
    for name in ("a.html", "a.svg", "a.md", "a.json", "a.txt"):
        trace.save(tmp_path / name)
        assert "Byte-pair" in (tmp_path / name).read_text(encoding="utf-8") or name == "a.json"
    assert "<b>" not in (tmp_path / "a.html").read_text(encoding="utf-8")
    base = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert [step["pair"] for step in base["steps"]] == [step.pair for step in trace.steps]
    assert base["tie_rule"] == trace.tie_rule
    with pytest.raises(InputError, match=r"unknown ending of the name '\.png'"):
        trace.save(tmp_path / "a.png")
    with pytest.raises(InputError, match="no folder"):
        trace.save(tmp_path / "none" / "a.html")


def test_very_long_words_are_encoded_completely_and_shown_shortened(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("ab" * 50_000, encoding="utf-8")
    trace = trace_byte_pairs(text=tmp_path / "one.txt", merges=5, end_of_word="")
    assert [step.count for step in trace.steps] == [50_000, 49_999, 24_999, 12_499, 6_249]
    assert len(trace.segmentation[0].word) == 100_000
    assert max(map(len, str(trace).splitlines())) < 300
