"""Texts to search by or among: read from a file, and turned into the tokens that a text tower reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from lemma.data import Rows, Tokenizer
from lemma.data.encoding import encode_texts, unknown_tokens
from lemma.data.images.levelling import levelled
from lemma.data.marking import finished
from lemma.data.records import SEPARATED
from lemma.data.tables import Column, read_table
from lemma.errors import DataError, InputError
from lemma.spec import BodySpec, Transformer, longest

CALLED = frozenset({"texts", "caption", "captions", "sentence", "title", "description", "name", "query"})


@dataclass(frozen=True)
class Tokenised:
    """Texts as rows of tokens, what each leaves unread, and whether anything of it is known."""

    rows: Rows
    known: Bool[np.ndarray, "texts"]
    remarks: tuple[str, ...]


def tokenise(texts: Sequence[str], tokenizer: Tokenizer, body: BodySpec) -> Tokenised:
    """Turn texts into tokens as in training: cut to what the body reads, between marks for a Transformer."""
    texts, marked = [levelled(text) for text in texts], isinstance(body, Transformer)
    room = longest(body) - 2 * marked
    rows, _ = encode_texts(tokenizer, texts, lambda size: None)
    told = [_remark(text, tokenizer, int(length), room) for text, length in zip(texts, rows.lengths, strict=True)]
    known = ~unknown_tokens(rows, tokenizer)[1]
    return Tokenised(finished(rows, tokenizer, longest(body), marked), known, tuple(told))


def _remark(text: str, tokenizer: Tokenizer, length: int, room: int) -> str:
    ids, left_out = tokenizer.encode_known(text)
    strange = int((ids == tokenizer.unk).sum()) if tokenizer.unk is not None else 0
    remarks = [
        f"{_counted(left_out, 'character')} left out: the tokenizer does not know them" if left_out else "",
        f"{_counted(strange, 'word')} of {length} not known" if strange else "",
        f"only the first {room} of {length} tokens were read" if length > room else "",
    ]
    return "; ".join(filter(None, remarks))


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def checked_texts(texts: Sequence[object], what: str = "query") -> list[str]:
    """The texts, each with something in it."""
    for place, text in enumerate(texts, start=1):
        which = what if len(texts) == 1 else f"{what} {place}"
        if not isinstance(text, str):
            raise InputError(f"{which} is {text!r} ({type(text).__name__}), and no text. Put it in quotes.")
        if not text.strip():
            raise InputError(f"{which} is empty: there is nothing to look for. As in: --query 'a red heart'")
    return [str(text) for text in texts]


def read_texts(path: Path, column: str | None = None) -> list[str]:
    """Read texts from a file: one a line, or a column of a CSV, TSV or JSONL table."""
    if path.suffix.lower() in {*SEPARATED, ".jsonl"} or column is not None:
        wanted = [Column("text", column, CALLED)]
        return list(read_table(path, wanted, any_width=False, is_header=_looks).cells["text"])
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file. Give one with a text a line, or a CSV table.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a text in UTF-8 ({error}).") from None
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise DataError(f"{path}: the file is empty. Give one with a text a line.")
    return found


def _looks(first: Sequence[str]) -> bool:
    return bool({cell.strip().casefold() for cell in first} & {"text", *CALLED})
