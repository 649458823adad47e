"""The words of a text and how often each occurs; a corpus is counted in a stream."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from lemma.data.corpora import CORPORA
from lemma.data.library import corpus_files
from lemma.data.reading import decode, open_text
from lemma.data.sections import Section
from lemma.data.sources import whole_source


def count_words(names: Sequence[str]) -> Counter[str]:
    """Count the words of corpora by name, each with all its parts, and of files."""
    counts: Counter[str] = Counter()
    for name in names:
        for section in _sections(name):
            for words in split_stream(decode(section)):
                counts.update(words)
    return counts


def split_stream(pieces: Iterable[str]) -> Iterator[list[str]]:
    """Words between white space; one that a piece breaks off is joined with its rest.

    >>> list(split_stream(["to be o", "r n", "ot "]))
    [['to', 'be'], ['or'], ['not']]
    """
    rest = ""
    for piece in pieces:
        *words, rest = f"{rest}{piece}|".split()  # the mark makes the last word the unfinished one, be it empty
        rest = rest[:-1]
        yield words
    if rest:
        yield [rest]


def _sections(name: str) -> Iterator[Section]:
    if name in CORPORA:
        yield from map(open_text, corpus_files(CORPORA[name]))
    else:
        yield from whole_source([name]).splits["text"]
