"""Which text asks and which is asked, in one call of attention."""

from lemma.errors import InputError
from lemma.looking.words import Word, counted
from lemma.parts import AttentionRecord

Words = tuple[Word, ...]
CROSS = ("cross", "encoder_attn", "encdec", "multihead_attn")  # how models call attention to another text


def sides(record: AttentionRecord, tokens: Words, source: Words) -> tuple[Words, Words, bool]:
    """Return the words that ask, those that are asked, and whether the two are different texts.

    Their numbers tell the texts apart; where both texts are equally long, the module's path does. A model that reads
    windows gives its last words.
    """
    new, known = record.queries.shape[-2], record.keys.shape[-2]
    if not source:
        return _last(tokens, new, record), _last(tokens, known, record), False
    name = record.name.lower()
    if new == known and (new != len(tokens) or (new == len(source) and _in_encoder(name))):
        return _last(source, new, record), _last(source, known, record), False
    if known == len(source) and (known != new or any(word in name for word in CROSS)):
        return _last(tokens, new, record), source, True
    return _last(tokens, new, record), _last(tokens, known, record), False


def _in_encoder(name: str) -> bool:
    return "encoder" in name.split(".")


def _last(words: Words, count: int, record: AttentionRecord) -> Words:
    if count > len(words):
        raise InputError(
            f"'{record.name}' attends with {counted(count, 'token')}, but got {counted(len(words), 'word')}. "
            "Give one word for each token, and source_words for the text of an encoder."
        )
    return words[len(words) - count :]
