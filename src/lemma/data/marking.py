"""Texts of their own as rows of tokens: cut to length, between two marks where a model wants these."""

from collections import Counter
from collections.abc import Mapping, Sequence

from lemma.data.encoding import encode_texts, opening, unknown_tokens, utf8_size
from lemma.data.examples import Rows
from lemma.data.progress import Progress, counting
from lemma.data.tokenizer import Tokenizer
from lemma.errors import DataError


def encode_marked(
    texts: Mapping[str, Sequence[str]],
    tokenizer: Tokenizer,
    length: int,
    marked: bool,
    what: str,
    progress: Progress | None = None,
) -> tuple[dict[str, Rows], list[str]]:
    """The texts of each split as rows of at most `length` tokens, with what had to be cut or left out said.

    With `marked` a text stands between `<start>` and `<end>`, which count; `what` is what the texts are called.
    """
    room = length - 2 * marked
    if room < 1:
        raise DataError(f"{length} tokens are too few for a text{' and its two marks' if marked else ''}.")
    openings = {split: [opening(text, tokenizer.kind, room) for text in some] for split, some in texts.items()}
    advance = counting(progress, "tokenising", sum(utf8_size(text) for some in openings.values() for text in some))
    encoded: dict[str, Rows] = {}
    counts: Counter[str] = Counter()
    for split, some in openings.items():
        rows, missing = encode_texts(tokenizer, some, advance)
        counts += _counts(rows, tokenizer, missing, room)
        encoded[split] = finished(rows, tokenizer, length, marked)
    return encoded, _told(counts, length, what)


def finished(rows: Rows, tokenizer: Tokenizer, length: int, marked: bool) -> Rows:
    """Cut rows to length; a row of no tokens at all gets one, since every model has to read something."""
    if marked:
        return rows.cut(length - 2).marked([tokenizer.vocabulary], [tokenizer.vocabulary + 1])
    return rows.cut(length).filled(tokenizer.eos or 0)


def _counts(rows: Rows, tokenizer: Tokenizer, missing: int, room: int) -> Counter[str]:
    strange, empty = (int(rows_of.sum()) for rows_of in unknown_tokens(rows, tokenizer))
    long = int((rows.lengths > room).sum())
    return Counter(texts=len(rows.lengths), long=long, strange=strange, empty=empty, characters=missing)


def _told(counts: Counter[str], length: int, what: str) -> list[str]:
    long = f"{counts['long']:,} of {counts['texts']:,} {what} are longer than {length:,} tokens: their start was kept"
    characters = f"{counts['characters']:,} characters that the tokenizer does not know were left out"
    strange = f"{counts['strange']:,} of {counts['texts']:,} {what} hold words that the tokenizer does not know"
    empty = f"{counts['empty']:,} {what} hold nothing that the tokenizer knows"
    told = {"long": long, "characters": characters, "strange": strange, "empty": empty}
    return [sentence for what, sentence in told.items() if counts[what]]
