"""The same merges learned by the `tokenizers` library, to compare with."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from lemma.errors import InputError

END = "\U0010fffd"
"""Stands for the end of word: a private character that comes after all others, and so is numbered after them."""


def library_merges(words: Mapping[str, int], merges: int, minimum: int, end_of_word: bool) -> list[tuple[str, str]]:
    """The library's first merges, each as the texts of its two parts, with END for the end of word."""
    alphabet = set().union(*words)
    if end_of_word and max(alphabet) >= END:
        raise InputError("the text holds the last private character, which the comparison needs for the end of word.")
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    size = len(alphabet) + end_of_word + merges
    trainer: Any = trainers.BpeTrainer(vocab_size=size, min_frequency=minimum, show_progress=False)
    engine.train_from_iterator(_lines(words, END if end_of_word else ""), trainer)
    return [(left, right) for left, right in json.loads(engine.to_str())["model"]["merges"]]


def _lines(words: Mapping[str, int], end: str) -> Iterator[str]:
    for word, times in words.items():
        step = max(1, 10_000 // len(word))  # a frequent word in portions, so that no line is very long
        for done in range(0, times, step):
            yield f"{word}{end} " * min(step, times - done)
