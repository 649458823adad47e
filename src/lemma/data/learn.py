"""Learning a tokenizer from the training text, always the same one from the same text."""

from collections import Counter
from collections.abc import Iterable

from lemma.data.encoders import split_words
from lemma.data.pipelines import EOS, UNK, characters_pipeline, learn_byte_pairs, words_pipeline
from lemma.data.tokenizer import Tokenizer
from lemma.errors import DataError
from lemma.spec import BytePairs, Characters, Words

DIFFERENT_WORDS = 500_000
"""As many different words are counted at once; past that the rarest so far are dropped to keep memory flat."""
LONGEST_WORD = 100
"""A longer word is none, and becomes `<unk>`: a text without white space must not become its own vocabulary."""


def learn_tokenizer(spec: Characters | Words | BytePairs, pieces: Iterable[str]) -> Tokenizer:
    """Learn the tokenizer that `spec` describes from pieces of training text.

    Characters are numbered in the order of their code points; words by how often they were seen, and equally frequent
    ones in the order of their code points.

    >>> learn_tokenizer(Words(minimum_count=2), ["b a b c", " a c a"]).decode([2, 3, 4])
    'a b c'
    """
    if isinstance(spec, Characters):
        engine = characters_pipeline(_alphabet(pieces))
    elif isinstance(spec, Words):
        engine = words_pipeline(_frequent(_count_words(pieces), spec))
    else:
        engine = learn_byte_pairs(pieces, spec.vocabulary)
    return Tokenizer(engine.to_str(pretty=True))


def _alphabet(pieces: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    for piece in pieces:
        seen.update(set(piece))
    return sorted(seen)


def _count_words(pieces: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for piece in pieces:
        words = split_words(piece)
        if max(map(len, words), default=0) > LONGEST_WORD:
            words = [word for word in words if len(word) <= LONGEST_WORD]
        counts.update(words)
        _drop_rarest(counts, DIFFERENT_WORDS)
    return counts


def _drop_rarest(counts: Counter[str], limit: int) -> None:
    floor = 1
    while len(counts) > limit:
        for word in [word for word, count in counts.items() if count <= floor]:
            del counts[word]
        floor += 1


def _frequent(counts: Counter[str], spec: Words) -> list[str]:
    seen = [(-count, word) for word, count in counts.items() if count >= spec.minimum_count and word not in (UNK, EOS)]
    if not seen:
        raise DataError(_no_words(spec.minimum_count))
    room = None if spec.vocabulary is None else spec.vocabulary - 2
    return [word for _, word in sorted(seen)[:room]]


def _no_words(minimum_count: int) -> str:
    if minimum_count == 1:
        return (
            f"the training text has no words: nothing of at most {LONGEST_WORD} characters between white space. "
            "Take characters or byte-pairs for it."
        )
    return f"no word is seen {minimum_count} times in the training text. Set a lower minimum_count or give more text."
