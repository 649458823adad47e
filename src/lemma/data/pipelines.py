"""The three kinds of tokenizer as pipelines of the `tokenizers` library.

Whatever loads their JSON (the library itself, transformers) finds the same ids, because nothing is added to the
pipeline outside it. `<eos>` is a plain entry of the vocabulary, not an "added token" that the library would look for
inside the text: text that spells "<eos>" stays text. (Byte-pairs cannot even merge into it, as GPT-2's rule parts
letters from signs; among words, the word `<eos>` is the token, as in the Penn Treebank the word `<unk>` is.)
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

_LONG_RUN = re.compile(r"\S{100}|\s{100}")
EOS = "<eos>"
UNK = "<unk>"

# What Python's str.split() splits at, spelled out: the regular expressions of the library know four characters fewer.
_SPACES = r"\t-\r\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"


def characters_pipeline(alphabet: Iterable[str]) -> Tokenizer:
    """One token a character; a character outside the alphabet is an error."""
    engine = Tokenizer(models.WordLevel(_number(alphabet)))
    engine.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    engine.decoder = decoders.Fuse()
    return engine


def words_pipeline(words: Iterable[str]) -> Tokenizer:
    """Words between white space; a newline is `<eos>`, a word that is not in the list `<unk>`."""
    engine = Tokenizer(models.WordLevel(_number([UNK, EOS, *words]), unk_token=UNK))
    engine.normalizer = normalizers.Replace("\n", f" {EOS} ")
    engine.pre_tokenizer = pre_tokenizers.Split(Regex(f"[{_SPACES}]+"), "removed")
    line_end = decoders.Replace(Regex(f" ?(?<![^ ]){EOS}(?![^ ]) ?"), "\n")
    # A word never holds a space, so that this decoder for word pieces takes every word for a new one.
    engine.decoder = decoders.Sequence([decoders.WordPiece(prefix=" ", cleanup=False), decoders.Fuse(), line_end])
    return engine


def byte_pairs_pipeline(vocabulary: Mapping[str, int], merges: Iterable[tuple[str, str]]) -> Tokenizer:
    """Byte-level byte-pair encoding with GPT-2's rule for the first cut."""
    engine = Tokenizer(models.BPE(dict(vocabulary), list(merges)))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    engine.decoder = decoders.ByteLevel()
    return engine


def learn_byte_pairs(pieces: Iterable[str], size: int) -> Tokenizer:
    """Learn merges from text until the vocabulary, with all 256 bytes and `<eos>`, has this size.

    A pair seen only once is not merged, so a short text yields a smaller vocabulary. Of equally frequent pairs the
    library merges the one whose parts were learned first. Runs longer than 100 characters are cut for learning only.
    """
    engine = byte_pairs_pipeline({}, [])
    bytes_first = pre_tokenizers.ByteLevel.alphabet()
    trainer: Any = trainers.BpeTrainer(
        vocab_size=size - 1, min_frequency=2, initial_alphabet=bytes_first, show_progress=False
    )
    engine.train_from_iterator(_cut_long_runs(pieces), trainer)
    model = json.loads(engine.to_str())["model"]
    return byte_pairs_pipeline({**model["vocab"], EOS: len(model["vocab"])}, [tuple(pair) for pair in model["merges"]])


def _cut_long_runs(pieces: Iterable[str]) -> Iterator[str]:
    """Learning takes time in the square of the longest word: text without spaces would take hours."""
    for piece in pieces:
        start = 0
        for run in _LONG_RUN.finditer(piece):
            yield piece[start : run.end()]
            start = run.end()
        yield piece[start:]


def _number(tokens: Iterable[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _frame(engine: Tokenizer) -> tuple[Any, ...]:
    """What decides how text is cut, in the library's own words: everything but the vocabulary."""
    plan = json.loads(engine.to_str())
    return plan["model"]["type"], plan["normalizer"], plan["pre_tokenizer"], plan["added_tokens"]


_FRAMES = {
    "characters": _frame(characters_pipeline([])),
    "words": _frame(words_pipeline([])),
    "byte-pairs": _frame(byte_pairs_pipeline({}, [])),
}


def kind_of(engine: Tokenizer) -> str | None:
    """Which of the three kinds a pipeline is; None if it is none of them.

    >>> kind_of(characters_pipeline("abc")), kind_of(words_pipeline(["a"]))
    ('characters', 'words')
    """
    return next((kind for kind, frame in _FRAMES.items() if frame == _frame(engine)), None)
