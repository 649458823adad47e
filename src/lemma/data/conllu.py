"""Dependency trees in CoNLL-U files: one word per line, ten columns, a blank line after each sentence.

Rows that are not words of the tree, multiword tokens (`1-2`) and empty nodes (`1.1`), are skipped and counted. Whatever
else makes a sentence not a tree is an error with its file and line: missing heads, several roots, cycles.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from lemma.data.text import decode_span, open_text
from lemma.errors import DataError

CONLLU_SUFFIXES = {".conllu", ".conll"}
NUM_COLUMNS = 10

Row = tuple[int, list[str]]
"""A line's number and its columns."""


@dataclass(frozen=True)
class Sentence:
    """A sentence and its tree: the head of word i + 1 is `heads[i]`, 0 above the root.

    >>> Sentence(("I", "prefer", "it"), (2, 0, 2), ("nsubj", "root", "dobj")).arcs()
    [(2, 1, 'nsubj'), (0, 2, 'root'), (2, 3, 'dobj')]
    """

    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    tags: tuple[str, ...] = ()
    """Universal parts of speech, where the file gives them; they tell punctuation."""
    name: str = ""
    label: str = ""
    """The class of the sentence, where the file gives one."""

    @property
    def text(self) -> str:
        """The words with spaces between them; white space within a word becomes an underscore."""
        return " ".join("_".join(word.split()) for word in self.words)

    def arcs(self) -> list[tuple[int, int, str]]:
        """Every arc as (head, dependent, relation), words counted from 1."""
        return [(head, place + 1, self.relations[place]) for place, head in enumerate(self.heads)]

    def is_punctuation(self) -> tuple[bool, ...]:
        """Which words are punctuation, by their tags or else by their relation."""
        tags = self.tags or ("_",) * len(self.words)
        return tuple(
            tag == "PUNCT" or (tag == "_" and relation == "punct")
            for tag, relation in zip(tags, self.relations, strict=True)
        )


def read_conllu(path: Path) -> tuple[tuple[Sentence, ...], list[str]]:
    """Read the trees of a CoNLL-U file, with what was skipped in words."""
    skipped: dict[str, int] = {}
    sentences = tuple(sentence for _, sentence in iter_sentences(path, skipped))
    return sentences, [f"{path.name}: {count:,} {what}" for what, count in skipped.items() if count]


def iter_sentences(path: Path, skipped: dict[str, int] | None = None) -> Iterator[tuple[int, Sentence]]:
    """The sentences of a CoNLL-U file, each with the line on which it begins; `skipped` counts what is skipped."""
    skipped = {} if skipped is None else skipped
    skipped |= {"multiword tokens": 0, "empty nodes": 0}
    number = 0
    for number, rows in enumerate(_blocks(path), start=1):  # noqa: B007
        yield rows[0][0], _sentence(rows, skipped, path)
    if not number:
        raise DataError(f"{path}: no sentence in it. A CoNLL-U file has one word per line and ten columns.")


def format_conllu(sentences: Iterable[Sentence]) -> str:
    """Write trees as CoNLL-U; what is not known is `_`."""
    lines: list[str] = []
    for sentence in sentences:
        lines += [f"# sent_id = {sentence.name}"] if sentence.name else []
        lines += [f"# label = {sentence.label}"] if sentence.label else []
        lines.append(f"# text = {' '.join(sentence.words)}")
        tags = sentence.tags or ("_",) * len(sentence.words)
        columns = zip(sentence.words, tags, sentence.heads, sentence.relations, strict=True)
        for place, (word, tag, head, relation) in enumerate(columns, start=1):
            lines.append(f"{place}\t{word}\t_\t{tag}\t_\t_\t{head}\t{relation}\t_\t_")
        lines.append("")
    return "".join(f"{line}\n" for line in lines)


def iter_depth_first(heads: Sequence[int]) -> Iterator[int]:
    """Go through the words that hang below the root, each once; a word in or below a cycle never comes."""
    below: list[list[int]] = [[] for _ in range(len(heads) + 1)]
    for place, head in enumerate(heads, start=1):
        below[head].append(place)
    waiting = below[0][::-1]
    while waiting:
        word = waiting.pop()
        yield word
        waiting.extend(reversed(below[word]))


def _blocks(path: Path) -> Iterator[list[Row]]:
    """The lines between blank ones, where there are more than comments."""
    rows: list[Row] = []
    waiting, number = "", 0
    for text in chain(decode_span(open_text(path)), ["\n\n"]):  # a blank line ends the last sentence
        *whole, waiting = (waiting + text).split("\n")
        for line in whole:
            number += 1
            if line.strip():
                rows.append((number, line.rstrip("\r").split("\t")))
                continue
            if any(not columns[0].startswith("#") for _, columns in rows):
                yield rows
            rows = []


def _sentence(rows: list[Row], skipped: dict[str, int], path: Path) -> Sentence:
    comments = {"sent_id": "", "label": ""}
    lines: list[int] = []
    words: list[list[str]] = []
    for number, columns in rows:
        if columns[0].startswith("#"):
            key, _, value = columns[0].lstrip("# ").partition("=")
            if key.strip() in comments:
                comments[key.strip()] = value.strip()
        elif len(columns) != NUM_COLUMNS:
            raise DataError(f"{path}, line {number}: {NUM_COLUMNS} columns between tabs expected, got {len(columns)}.")
        elif "-" in columns[0] or "." in columns[0]:
            skipped["multiword tokens" if "-" in columns[0] else "empty nodes"] += 1
        else:
            lines.append(number)
            words.append(columns)
    if not words:
        raise DataError(f"{path}, line {rows[0][0]}: a sentence without words. Leave it out.")
    for place, (number, columns) in enumerate(zip(lines, words, strict=True), start=1):
        if columns[0] != str(place):
            raise DataError(f"{path}, line {number}: the word's number is {columns[0][:20]!r}, expected {place}.")
    heads: list[int] = []
    for number, columns in zip(lines, words, strict=True):
        head = columns[6]
        if not (head.isascii() and head.isdigit() and len(head) <= 9):
            expected = f"a number from 0 to {len(words)} expected"
            raise DataError(f"{path}, line {number}: the head (column 7) is {head[:20]!r}, {expected}.")
        if int(head) > len(words) or head == columns[0]:
            raise DataError(
                f"{path}, line {number}: word {columns[0]} of {len(words)} cannot have word {head} as its head."
            )
        heads.append(int(head))
    roots = [place for place, head in enumerate(heads) if head == 0]
    if len(roots) > 1:
        raise DataError(f"{path}, line {lines[roots[1]]}: a second root; a sentence has exactly one word with head 0.")
    reached = set(iter_depth_first(heads))
    if lost := next((place for place in range(1, len(heads) + 1) if place not in reached), None):
        raise DataError(f"{path}, line {lines[lost - 1]}: word {lost} hangs in a cycle and not below a root.")
    forms, tags, relations = (tuple(columns[place] for columns in words) for place in (1, 3, 7))
    for number, form, relation in zip(lines, forms, relations, strict=True):
        if not form.strip() or relation in ("", "_"):
            raise DataError(f"{path}, line {number}: the word or its relation (column 8) is missing.")
    return Sentence(forms, tuple(heads), relations, tags, comments["sent_id"], comments["label"])
