"""Tokenizers: decode∘encode is the identity, fast encoders match the library, cuts never change the tokens."""

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lemma.data.text import find_last_cut
from lemma.data.tokenizers import BytePairEncoder, Tokenizer, train_tokenizer
from lemma.spec.data import BytePairs, Characters, Words

FRAGMENTS = [
    "the",
    "The",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "'s",
    "'ll",
    "12",
    "3",
    "<eos>",
    "<",
    ">",
    "eos",
    "<unk>",
]
FRAGMENTS += [
    ".",
    "...",
    "!",
    "é",
    "中文",
    "🙂",
    "\x00",
    "\x1c",
    "\x1f",
    "\x85",
    "\xa0",
    "\u2028",
    "\u3000",
    "\ufeff",
    "a",
    "b",
]
TRAINING = [" ".join(FRAGMENTS) * 3 + "".join(FRAGMENTS) * 5 + "the  the\n\nthe\n \nthe. The... <eos><eos>" * 9]
TOKENIZERS = {
    "characters": train_tokenizer(Characters(), TRAINING),
    "words": train_tokenizer(Words(), TRAINING),
    "byte-pairs": train_tokenizer(BytePairs(vocabulary=400), TRAINING),
}
any_text = st.text()  # Hypothesis leaves out lone surrogates: exactly what is valid UTF-8
mixed = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=25).map("".join)
known = st.lists(st.sampled_from(FRAGMENTS), max_size=25).map("".join)


def library_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizers.Tokenizer.from_str(tokenizer.json).encode(text, add_special_tokens=False).ids


@settings(deadline=None)
@given(any_text | mixed)
def test_byte_pairs_round_trip_any_string(text: str) -> None:
    tokenizer = TOKENIZERS["byte-pairs"]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos not in ids


@settings(deadline=None)
@given(known)
def test_known_characters_round_trip(text: str) -> None:
    assert TOKENIZERS["characters"].decode(TOKENIZERS["characters"].encode(text)) == text


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from(["the", "The", "12", "a", "中文🙂"]), max_size=5), min_size=1, max_size=5))
def test_words_round_trip_with_normalized_whitespace(lines: list[list[str]]) -> None:
    tokenizer = train_tokenizer(Words(), ["the The 12 a 中文🙂"])
    text = "\n".join(" ".join(line) for line in lines)
    assert tokenizer.decode(tokenizer.encode(text.replace(" ", " \t "))) == text


@pytest.mark.parametrize("kind", ["words", "byte-pairs"])
@settings(deadline=None)
@given(text=any_text | mixed)
@example(text="\x00\x1c\x1f\x00\x1c")  # whitespace to Python, symbols to GPT-2's rule
def test_fast_encoder_matches_the_library(kind: str, text: str) -> None:
    assert TOKENIZERS[kind].encode(text).tolist() == library_ids(TOKENIZERS[kind], text)


@settings(deadline=None)
@given(known)
def test_fast_character_encoder_matches_the_library(text: str) -> None:
    assert TOKENIZERS["characters"].encode(text).tolist() == library_ids(TOKENIZERS["characters"], text)


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(deadline=None)
@given(text=mixed, length=st.integers(0, 60))
def test_incremental_encoding_does_not_change_tokens(kind: str, text: str, length: int) -> None:
    tokenizer, cut = TOKENIZERS[kind], find_last_cut(text[:length], kind)
    full, _ = tokenizer.encode_lossy(text)
    parts = [tokenizer.encode_lossy(part)[0] for part in (text[:cut], text[cut:])]
    assert np.concatenate(parts).tolist() == full.tolist()


@settings(deadline=None)
@given(st.lists(mixed, max_size=8))
def test_chunk_cache_eviction_does_not_change_ids(texts: list[str]) -> None:
    class SmallCacheTokenizer(BytePairEncoder):
        MEMORY = 5

    tokenizer = TOKENIZERS["byte-pairs"]
    forgetful = SmallCacheTokenizer(tokenizers.Tokenizer.from_str(tokenizer.json))
    assert [forgetful.encode_batch([text])[0].tolist() for text in texts] == [
        tokenizer.encode(text).tolist() for text in texts
    ]
