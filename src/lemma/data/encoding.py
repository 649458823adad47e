"""Documents into tokens, piece by piece."""

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Int64

from lemma.data.examples import Rows
from lemma.data.progress import Advance
from lemma.data.reading import read_pieces
from lemma.data.sections import Section
from lemma.data.store import Encoded
from lemma.data.tokenizer import Tokenizer

BLOCK = 1 << 20
"""Characters of short texts that are encoded at once."""
BLANKS = " \t\n\r\v\f\u00a0\u3000"


def read_documents(documents: Iterable[Section], kind: str, advance: Advance) -> Iterator[str]:
    """Read documents one after the other in pieces, telling of each piece when it is done with."""
    for document in documents:
        for piece in read_pieces(document, kind):
            yield piece
            advance(utf8_size(piece))


def encode_documents(tokenizer: Tokenizer, documents: Iterable[Section], advance: Advance) -> Iterator[Encoded]:
    """Encode documents in order, with one `<eos>` between two of them if the tokenizer has it."""
    for number, document in enumerate(documents):
        if number and tokenizer.eos is not None:
            yield Encoded(np.array([tokenizer.eos]))
        for piece in read_documents([document], tokenizer.kind, advance):
            yield encode_piece(tokenizer, piece)


def encode_piece(tokenizer: Tokenizer, piece: str) -> Encoded:
    """Encode what the tokenizer can express of a piece of text."""
    ids, left_out = tokenizer.encode_known(piece)
    return Encoded(ids, utf8_size(tokenizer.decode(ids) if left_out else piece), left_out)


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], advance: Advance) -> tuple[Rows, int]:
    """Encode texts, a row each; beside them how many characters the tokenizer could not express."""
    tokens, bounds = [np.zeros(0, dtype=np.int32)], [np.zeros(1, dtype=np.int64)]
    left_out = 0
    for block in _blocks(texts):
        ids, places = tokenizer.encode_all(block)
        known = ids >= 0
        tokens.append(ids[known].astype(np.int32))
        bounds.append(bounds[-1][-1] + np.cumsum(np.concatenate([[0], known]))[places[1:]])
        left_out += len(ids) - len(tokens[-1])
        advance(sum(map(utf8_size, block)))
    return Rows(np.concatenate(tokens), np.concatenate(bounds)), left_out


def unknown_tokens(rows: Rows, tokenizer: Tokenizer) -> tuple[Bool[np.ndarray, "rows"], Bool[np.ndarray, "rows"]]:
    """Which rows hold a word that the tokenizer does not know, and which hold nothing that it knows but white space."""
    strange = rows.tokens == (-1 if tokenizer.unk is None else tokenizer.unk)
    blank = np.isin(rows.tokens, tokenizer.encode_known(BLANKS)[0])
    return _counted(strange, rows) > 0, _counted(~strange & ~blank, rows) == 0


def _counted(tokens: Bool[np.ndarray, "tokens"], rows: Rows) -> Int64[np.ndarray, "rows"]:
    """How many of each row's tokens are such."""
    return np.diff(np.concatenate([[0], np.cumsum(tokens)])[rows.bounds])


def opening(text: str, kind: str, length: int) -> str:
    """As much of a text as its first `length` tokens can need, and one more: no token holds white space within.

    >>> opening("it was the best of times, it was the worst of times", "words", 3)
    'it was the best'
    """
    if kind == "characters" or len(text) <= 2 * length:
        return text
    found = re.match(rf"(?:\s*+\S++){{{length + 1}}}", text)
    return found[0] if found else text


def _blocks(texts: Sequence[str]) -> Iterator[list[str]]:
    """Some texts at a time, of about so many characters together."""
    block: list[str] = []
    size = 0
    for text in texts:
        block.append(text)
        size += len(text)
        if size >= BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block


def utf8_size(text: str) -> int:
    """The number of bytes a text takes in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())
