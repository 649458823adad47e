"""Documents into tokens, piece by piece."""

from collections.abc import Iterable, Iterator

import numpy as np

from lemma.data.progress import Advance
from lemma.data.reading import read_pieces
from lemma.data.sections import Section
from lemma.data.store import Encoded
from lemma.data.tokenizer import Tokenizer


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


def utf8_size(text: str) -> int:
    """The number of bytes a text takes in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())
