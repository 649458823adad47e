import json
from collections import Counter
from itertools import pairwise

import pytest
from tokenizers import pre_tokenizers

from lemma.data import tokenizers as learn_module
from lemma.data.tokenizers import train_tokenizer
from lemma.errors import DataError
from lemma.spec.data import BytePairs, Characters, Words

TEXT = (
    "the cat sat on the mat, and the other cat sat on the other mat.\n"
    "A theme then: these three threads are there for the thread-bare, thin thing.\n\n"
)


def brute_force_merges(text: str, count: int) -> list[tuple[str, str]]:
    """Run textbook byte-pair encoding: recount all pairs for every merge; ties go to the older parts."""
    age = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    rule = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    words = [list(part) for part, _ in rule.pre_tokenize_str(text)]
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs = Counter(pair for word in words for pair in pairwise(word))
        best = min(pairs, key=lambda pair: (-pairs[pair], age[pair[0]], age[pair[1]]), default=None)
        if best is None or pairs[best] < 2:
            return merges
        merges.append(best)
        age.setdefault("".join(best), len(age))
        words = [_merge(word, best) for word in words]
    return merges


def _merge(word: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for part in word:
        if merged and (merged[-1], part) == pair:
            merged[-1] += part
        else:
            merged.append(part)
    return merged


@pytest.mark.parametrize(("vocabulary", "learned"), [(267, 10), (5000, 22)])
def test_byte_pair_merges_match_brute_force(vocabulary: int, learned: int) -> None:
    tokenizer = train_tokenizer(BytePairs(vocabulary=vocabulary), [TEXT])
    merges = [tuple(pair) for pair in json.loads(tokenizer.json)["model"]["merges"]]
    assert merges == brute_force_merges(TEXT, vocabulary - 257)
    assert len(merges) == learned


def test_short_text_gives_fewer_merges_and_all_bytes() -> None:
    tokenizer = train_tokenizer(BytePairs(), ["ab"])
    assert (tokenizer.vocabulary, tokenizer.eos) == (257, 256)
    assert tokenizer.decode(tokenizer.encode("xyz ü")) == "xyz ü"


def test_characters_are_numbered_by_code_point() -> None:
    tokenizer = train_tokenizer(Characters(), ["cab", "ä\nb"])
    assert tokenizer.decode(range(tokenizer.vocabulary)) == "\nabcä"


def test_words_are_numbered_by_count_then_spelling() -> None:
    tokenizer = train_tokenizer(Words(), ["b c a b\nd c ", "B <unk> <unk> <eos>"])
    assert tokenizer.decode(range(2, tokenizer.vocabulary)) == "b c B a d"
    assert (tokenizer.unk, tokenizer.eos) == (0, 1)


def test_rare_words_and_words_over_the_limit_become_unk() -> None:
    pieces = ["a a a b b b c c d"]
    assert train_tokenizer(Words(minimum_count=2), pieces).encode("a b c d e").tolist() == [2, 3, 4, 0, 0]
    limited = train_tokenizer(Words(vocabulary=4), pieces)
    assert limited.vocabulary == 4
    assert limited.encode("a b c d").tolist() == [2, 3, 0, 0]


def test_word_over_100_characters_becomes_unk() -> None:
    tokenizer = train_tokenizer(Words(), ["a " + "b" * 100 + " " + "c" * 101])
    assert tokenizer.encode("a " + "b" * 100 + " " + "c" * 101).tolist() == [2, 3, 0]


def test_text_without_frequent_words_is_rejected() -> None:
    with pytest.raises(DataError, match=r"no word is seen 2 times in the training text. Set a lower minimum_count"):
        train_tokenizer(Words(minimum_count=2), ["all words differ"])
    with pytest.raises(DataError, match=r"no words: .* Take characters or byte-pairs"):
        train_tokenizer(Words(), ["x" * 500])


def test_excess_rare_words_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn_module, "DIFFERENT_WORDS", 10)
    pieces = [f"common rare{number} other{number} common often" for number in range(50)]
    trained = train_tokenizer(Words(), pieces)
    assert trained.vocabulary <= 12 and trained.encode("common often").tolist() == [2, 3]


def test_long_words_are_split_for_training_without_losing_text() -> None:
    run, spec = "中文" * 125, BytePairs(vocabulary=300)
    by_hand = ["word " * 50 + run[:100], run[100:200], run[200:] + " " * 100, " " * 30 + "end", "short text"]
    trained = train_tokenizer(spec, ["word " * 50 + run + " " * 130 + "end", "short text"])
    assert trained.hash == train_tokenizer(spec, by_hand).hash
