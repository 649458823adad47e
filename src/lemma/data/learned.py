"""The tokenizer of examples: learned from their training texts, and kept in the data home."""

import hashlib
import json
from collections.abc import Iterator, Sequence

from lemma.data.dataset import SAMPLE
from lemma.data.encoding import utf8_size
from lemma.data.hashing import text_sum
from lemma.data.home import home_folder
from lemma.data.learn import learn_tokenizer
from lemma.data.progress import Advance, Progress, counting
from lemma.data.store import FORMAT
from lemma.data.tokenizer import Tokenizer
from lemma.errors import DataError
from lemma.spec import TokenizerSpec


def learned_tokenizer(spec: TokenizerSpec, texts: Sequence[str], progress: Progress | None = None) -> Tokenizer:
    """Learn a tokenizer from texts, or take the one that was learned from the same texts before."""
    key = text_sum(json.dumps([FORMAT, "texts", spec.to_dict(), _sum(texts)]))[:32]
    path = home_folder("tokenizers") / f"{key}.json"
    try:
        return Tokenizer.load(path)
    except DataError:  # not there yet, or damaged
        tokenizer = _learn(spec, texts, progress)
        tokenizer.save(path)
        return tokenizer


def _learn(spec: TokenizerSpec, texts: Sequence[str], progress: Progress | None) -> Tokenizer:
    limit = SAMPLE if spec.kind == "byte-pairs" else None
    total = sum(map(utf8_size, texts))
    advance = counting(progress, "learning the tokenizer", min(limit or total, total))
    return learn_tokenizer(spec, _first(texts, limit, advance))


def _first(texts: Sequence[str], limit: int | None, advance: Advance) -> Iterator[str]:
    """The first texts, of at most so many bytes together; they come in a drawn order."""
    done = 0
    for text in texts:
        if limit is not None and done >= limit:
            return
        yield text
        done += utf8_size(text)
        advance(utf8_size(text))


def _sum(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode()
        digest.update(len(content).to_bytes(8))
        digest.update(content)
    return digest.hexdigest()
