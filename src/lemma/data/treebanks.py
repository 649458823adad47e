"""Dependency treebanks: CoNLL-U files, splits, the parser's lexicon, sentences of plain text, and trees as numbers.

A CoNLL-U file has one word per line in ten columns, and a blank line after each sentence. Rows that are not words of
the tree, multiword tokens (`1-2`) and empty nodes (`1.1`), are skipped and counted. Whatever else makes a sentence not
a tree is an error with its file and line: missing heads, several roots, cycles.
"""

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from lemma.data.batches import PAD
from lemma.data.corpora import TREEBANKS, fetch_corpus
from lemma.data.splits import Splits, describe_overlaps, resolve_user_path, split_files
from lemma.data.text import decode_span, open_text
from lemma.errors import DataError, describe_unknown
from lemma.files import Progress, files_hash, parse_json, text_hash, write_atomically
from lemma.spec.base import exists
from lemma.spec.data import TreebankSpec

CONLLU_SUFFIXES = {".conllu", ".conll"}
NUM_COLUMNS = 10
NO_WORD, UNKNOWN_WORD, ROOT = 0, 1, 2  # padding, a word that is not in the lexicon, the position above the root
NUM_RESERVED = 3
PREFIX_LENGTHS, SUFFIX_LENGTHS = (1, 2, 3), (1, 2, 3, 4)
NUM_PIECES = len(PREFIX_LENGTHS) + len(SUFFIX_LENGTHS) + 2  # with the complete word and its shape
LEXICON_FORMAT = 1
MAX_CACHED_WORDS = 1 << 20
DIGIT = re.compile(r"\d")

NumberedRow = tuple[int, list[str]]  # a line's number and its columns


@dataclass(frozen=True)
class Sentence:
    """A sentence and its dependency tree.

    >>> Sentence(("I", "prefer", "it"), (2, 0, 2), ("nsubj", "root", "dobj")).arcs()
    [(2, 1, 'nsubj'), (0, 2, 'root'), (2, 3, 'dobj')]
    """

    words: tuple[str, ...]
    heads: tuple[int, ...]  # the head of each word, counted from 1; 0 for the root
    relations: tuple[str, ...]  # of each word to its head
    tags: tuple[str, ...] = ()  # universal parts of speech, if the file gives them
    name: str = ""  # its id in the file
    label: str = ""  # its class, if the file gives one

    @property
    def text(self) -> str:
        """Words joined by spaces; white space within a word becomes an underscore."""
        return " ".join("_".join(word.split()) for word in self.words)

    def arcs(self) -> list[tuple[int, int, str]]:
        """Return every arc as (head, dependent, relation), words counted from 1."""
        return [(head, index + 1, self.relations[index]) for index, head in enumerate(self.heads)]

    def punctuation_mask(self) -> tuple[bool, ...]:
        """Return for each word whether it is punctuation, by its part of speech or else by its relation to its head."""
        tags = self.tags or ("_",) * len(self.words)
        return tuple(
            tag == "PUNCT" or (tag == "_" and relation == "punct")
            for tag, relation in zip(tags, self.relations, strict=True)
        )


# CoNLL-U files


def read_conllu(path: Path) -> tuple[tuple[Sentence, ...], list[str]]:
    """Return the dependency trees of a CoNLL-U file, and notes on rows that were skipped."""
    skipped: dict[str, int] = {}
    sentences = tuple(sentence for _, sentence in iter_sentences(path, skipped))
    return sentences, [f"{path.name}: {count:,} {kind}" for kind, count in skipped.items() if count]


def iter_sentences(path: Path, skipped: dict[str, int] | None = None) -> Iterator[tuple[int, Sentence]]:
    """Yield (first line, sentence) for each sentence of a CoNLL-U file; count skipped rows by kind in `skipped`."""
    skipped = {} if skipped is None else skipped
    skipped |= {"multiword tokens": 0, "empty nodes": 0}
    is_empty = True
    for rows in _sentence_rows(path):
        is_empty = False
        yield rows[0][0], _parse_sentence(rows, skipped, path)
    if is_empty:
        raise DataError(f"{path}: no sentence in it. A CoNLL-U file has one word per line and ten columns.")


def format_conllu(sentences: Iterable[Sentence]) -> str:
    """Return the text of a CoNLL-U file with these sentences; columns without a value are `_`."""
    lines: list[str] = []
    for sentence in sentences:
        lines += [f"# sent_id = {sentence.name}"] if sentence.name else []
        lines += [f"# label = {sentence.label}"] if sentence.label else []
        lines.append(f"# text = {' '.join(sentence.words)}")
        tags = sentence.tags or ("_",) * len(sentence.words)
        columns = zip(sentence.words, tags, sentence.heads, sentence.relations, strict=True)
        for number, (word, tag, head, relation) in enumerate(columns, start=1):
            lines.append(f"{number}\t{word}\t_\t{tag}\t_\t_\t{head}\t{relation}\t_\t_")
        lines.append("")
    return "".join(f"{line}\n" for line in lines)


def iter_depth_first(heads: Sequence[int]) -> Iterator[int]:
    """Yield the numbers of the words below the root depth first; words in or below a cycle are left out.

    `heads` holds the head of each word, counted from 1; 0 is the root.
    """
    dependents: list[list[int]] = [[] for _ in range(len(heads) + 1)]
    for word, head in enumerate(heads, start=1):
        dependents[head].append(word)
    stack = dependents[0][::-1]
    while stack:
        word = stack.pop()
        yield word
        stack.extend(reversed(dependents[word]))


def _sentence_rows(path: Path) -> Iterator[list[NumberedRow]]:
    """Yield the lines of each sentence as (line number, columns), comments included; blank lines separate them."""
    rows: list[NumberedRow] = []
    pending, number = "", 0
    for text in chain(decode_span(open_text(path)), ["\n\n"]):  # a blank line ends the last sentence
        *lines, pending = (pending + text).split("\n")
        for line in lines:
            number += 1
            if line.strip():
                rows.append((number, line.rstrip("\r").split("\t")))
                continue
            if any(not columns[0].startswith("#") for _, columns in rows):
                yield rows
            rows = []


def _parse_sentence(rows: list[NumberedRow], skipped: dict[str, int], path: Path) -> Sentence:
    """Build a sentence from its rows (line number, columns); count rows that are not words in `skipped`, by kind."""
    comments = {"sent_id": "", "label": ""}
    lines: list[int] = []
    words: list[list[str]] = []
    for line, columns in rows:
        if columns[0].startswith("#"):
            key, _, value = columns[0].lstrip("# ").partition("=")
            if key.strip() in comments:
                comments[key.strip()] = value.strip()
        elif len(columns) != NUM_COLUMNS:
            raise DataError(f"{path}, line {line}: {NUM_COLUMNS} columns between tabs expected, got {len(columns)}.")
        elif "-" in columns[0] or "." in columns[0]:
            skipped["multiword tokens" if "-" in columns[0] else "empty nodes"] += 1
        else:
            lines.append(line)
            words.append(columns)
    if not words:
        raise DataError(f"{path}, line {rows[0][0]}: a sentence without words. Leave it out.")
    for number, (line, columns) in enumerate(zip(lines, words, strict=True), start=1):
        if columns[0] != str(number):
            raise DataError(f"{path}, line {line}: the word's number is {columns[0][:20]!r}, expected {number}.")
    heads = _parse_heads(words, lines, path)
    forms, tags, relations = (tuple(columns[index] for columns in words) for index in (1, 3, 7))
    for line, form, relation in zip(lines, forms, relations, strict=True):
        if not form.strip() or relation in ("", "_"):
            raise DataError(f"{path}, line {line}: the word or its relation (column 8) is missing.")
    return Sentence(forms, heads, relations, tags, comments["sent_id"], comments["label"])


def _parse_heads(words: Sequence[Sequence[str]], lines: Sequence[int], path: Path) -> tuple[int, ...]:
    """Return the head of each word, counted from 1 (0: root); raise a DataError if they form no tree.

    `words` has the columns of each word's row, and `lines` its line number for errors.
    """
    heads: list[int] = []
    for line, columns in zip(lines, words, strict=True):
        head = columns[6]
        if not (head.isascii() and head.isdigit() and len(head) <= 9):
            expected = f"a number from 0 to {len(words)} expected"
            raise DataError(f"{path}, line {line}: the head (column 7) is {head[:20]!r}, {expected}.")
        if int(head) > len(words) or head == columns[0]:
            raise DataError(
                f"{path}, line {line}: word {columns[0]} of {len(words)} cannot have word {head} as its head."
            )
        heads.append(int(head))
    roots = [index for index, head in enumerate(heads) if head == 0]
    if len(roots) > 1:
        raise DataError(f"{path}, line {lines[roots[1]]}: a second root; a sentence has exactly one word with head 0.")
    reached = set(iter_depth_first(heads))
    for word, line in enumerate(lines, start=1):
        if word not in reached:
            raise DataError(f"{path}, line {line}: word {word} hangs in a cycle and not below a root.")
    return tuple(heads)


# The lexicon


class Lexicon:
    """Words and relations of a training treebank, saved as JSON in the run folder.

    A word is lower-cased and its digits become 0. Its pieces are its first and last letters and its shape, each hashed
    to one of `buckets` rows, so that something is known about a word never seen before.

    >>> lexicon = Lexicon(["the", "flight"], ["det", "root"], buckets=1000)
    >>> lexicon.encode(["The", "Flights"])[:, 0].tolist(), lexicon.relation_id("det")
    ([3, 1], 0)
    """

    def __init__(self, words: Sequence[str], relations: Sequence[str], buckets: int) -> None:
        self.words, self.relations, self.buckets = tuple(words), tuple(relations), buckets
        self._word_ids = {word: index + NUM_RESERVED for index, word in enumerate(words)}
        self._relation_ids = {relation: index for index, relation in enumerate(relations)}
        self._encoded: dict[str, list[int]] = {}
        self.hash = text_hash(self._json())

    @classmethod
    def from_sentences(cls, sentences: Iterable[Sentence], minimum_count: int, buckets: int) -> "Lexicon":
        """Build a lexicon of all relations and of words that occur `minimum_count` times.

        `buckets` is the number of hash buckets for pieces of words.
        """
        words: Counter[str] = Counter()
        relations: Counter[str] = Counter()
        for sentence in sentences:
            words.update(map(normalise_word, sentence.words))
            relations.update(sentence.relations)
        frequent = [word for word in _sort_by_frequency(words) if words[word] >= minimum_count]
        return cls(frequent, _sort_by_frequency(relations), buckets)

    @property
    def vocabulary(self) -> int:
        """Number of words, the three reserved ones included."""
        return len(self.words) + NUM_RESERVED

    @property
    def description(self) -> str:
        """Vocabulary size and number of relations as text."""
        return f"words of a treebank, V = {self.vocabulary:,}, {len(self.relations)} relations"

    def __repr__(self) -> str:
        return f"<Lexicon: {self.description}>"

    def encode(self, words: Sequence[str]) -> Int64[np.ndarray, "words columns"]:
        """Return a row for each word: its id, then those of its pieces (prefixes, suffixes, spelling and shape)."""
        return np.array([self._encode_word(word) for word in words], np.int64).reshape(len(words), 1 + NUM_PIECES)

    def relation_id(self, relation: str) -> int:
        """Return the id of a dependency relation; −1 for an unknown one."""
        return self._relation_ids.get(relation, -1)

    def _encode_word(self, word: str) -> list[int]:
        """Return the row of one word as `encode` does, cached."""
        ids = self._encoded.get(word)
        if ids is None:
            pieces = [zlib.crc32(piece.encode("utf-8", "surrogatepass")) % self.buckets for piece in word_pieces(word)]
            ids = [self._word_ids.get(normalise_word(word), UNKNOWN_WORD), *pieces]
            if len(self._encoded) < MAX_CACHED_WORDS:
                self._encoded[word] = ids
        return ids

    def save(self, path: str | Path) -> None:
        """Write the lexicon to a JSON file."""
        write_atomically(Path(path), self._json())

    @classmethod
    def load(cls, path: str | Path) -> "Lexicon":
        """Read a lexicon from a JSON file that `save` wrote."""
        try:
            values = parse_json(Path(path).read_bytes())
            if values["format"] != LEXICON_FORMAT:
                raise ValueError(f"its format is {values['format']}, not {LEXICON_FORMAT}")
            words, relations = ([str(name) for name in values[key]] for key in ("words", "relations"))
            return cls(words, relations, int(values["buckets"]))
        except FileNotFoundError:
            raise DataError(f"{path}: there is no such lexicon.") from None
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DataError(f"{path}: not a lexicon ({error}).") from None

    def _json(self) -> str:
        """Return the content of the lexicon's JSON file."""
        content = {"format": LEXICON_FORMAT, "buckets": self.buckets, "relations": self.relations, "words": self.words}
        return json.dumps(content, ensure_ascii=False, indent=0) + "\n"


def _sort_by_frequency(counts: Counter[str]) -> list[str]:
    """Return the counted words, the most frequent first, equally frequent ones in alphabetical order."""
    return sorted(counts, key=lambda word: (-counts[word], word))


def normalise_word(word: str) -> str:
    """Return a word in lower case with 0 for every digit.

    >>> normalise_word("B2B")
    'b0b'
    """
    return DIGIT.sub("0", word.lower())


def word_shape(word: str) -> str:
    """Return the shape of a word: X for upper case, x for lower case, 0 for digits and . for others, runs shortened.

    >>> word_shape("Mary's"), word_shape("42nd"), word_shape("--")
    ('Xx.x', '0x', '.')
    """
    kinds = ("X" if c.isupper() else "x" if c.isalpha() else "0" if c.isdigit() else "." for c in word)
    return re.sub(r"(.)\1+", r"\1", "".join(kinds))


def word_pieces(word: str) -> list[str]:
    """Return the prefixes, suffixes, normalised spelling and shape of a word, each marked by its kind.

    >>> word_pieces("Walked")[:4]
    ['<w', '<wa', '<wal', 'd>']
    """
    letters = normalise_word(word)
    prefixes = [f"<{letters[:length]}" for length in PREFIX_LENGTHS]
    suffixes = [f"{letters[-length:]}>" for length in SUFFIX_LENGTHS]
    return [*prefixes, *suffixes, f"<{letters}>", f"shape {word_shape(word)}"]


# Plain English text cut into sentences and words, as in the treebanks of Universal Dependencies

MAX_WORDS = 257  # of a text: one more than a classifier reads, so that a longer text is recognised
MAX_SENTENCE = 100  # words; a longer sentence is cut, since the scores of a parser grow with the square
SENTENCE_ENDS = frozenset({".", "!", "?", "...", "…"})
AFTER_END = frozenset({'"', "'", "”", "’", ")", "]", "}", "»", "''"})
CLITIC = re.compile(r"(?i)(?<=\w)(n['’]t|['’](?:s|re|ve|ll|d|m))$")
OPENING = re.compile(r"^([\"'“‘¿¡(\[{<«]+)(?=.)")
CLOSING = re.compile(r"(?<=[^.…])(\.\.\.|…|[.,;:!?\"'”’)\]}>»%])$")
ABBREVIATION = re.compile(r"(?i)^(?:[a-z]\.)+$|^(?:mr|mrs|ms|dr|prof|st|vs|etc|inc|co|jr|sr)\.$")


def split_sentences(text: str) -> list[list[str]]:
    """Split the first `MAX_WORDS` words of a text into sentences, each a list of words.

    >>> split_sentences('"Is it?" Yes! So be it')
    [['"', 'Is', 'it', '?', '"'], ['Yes', '!'], ['So', 'be', 'it']]
    """
    sentences: list[list[str]] = []
    remaining = MAX_WORDS
    for line in text.splitlines():
        words = split_words(line)[:remaining]
        remaining -= len(words)
        start = 0
        for end, word in enumerate(words, start=1):
            following = words[end] if end < len(words) else ""
            is_closing = word in AFTER_END and end > 1 and words[end - 2] in SENTENCE_ENDS
            is_end = (word in SENTENCE_ENDS or is_closing) and following not in SENTENCE_ENDS | AFTER_END
            if is_end or end == len(words) or end - start == MAX_SENTENCE:
                sentences.append(words[start:end])
                start = end
    return sentences


def split_words(line: str) -> list[str]:
    """Split a sentence into words nearly as the English treebanks do; clitics and punctuation are words too.

    >>> split_words("I don't know (yet), Dr. Who.")
    ['I', 'do', "n't", 'know', '(', 'yet', ')', ',', 'Dr.', 'Who', '.']
    """
    words: list[str] = []
    for chunk in line.split():
        after: list[str] = []
        if opening := OPENING.match(chunk):
            words += opening[1]
            chunk = chunk[opening.end() :]
        while not ABBREVIATION.match(chunk) and not CLITIC.search(chunk) and (closing := CLOSING.search(chunk)):
            after.insert(0, closing[1])
            chunk = chunk[: closing.start()]
        if clitic := CLITIC.search(chunk):
            after.insert(0, clitic[1])
            chunk = chunk[: clitic.start()]
        words += [*([chunk] if chunk else []), *after]
    return words


# Treebanks as data


@dataclass(frozen=True)
class Trees:
    """Sentences with dependency trees, and their words as rows of ids: bounds[i] to bounds[i + 1] are sentence i's.

    Without a lexicon there are no ids: such trees are only compared with.
    """

    sentences: tuple[Sentence, ...]
    lexicon: Lexicon | None = field(default=None, repr=False)

    @cached_property
    def rows(self) -> Int64[np.ndarray, "words columns"]:
        """Rows of ids of all sentences' words, as `Lexicon.encode` returns them."""
        return np.concatenate([self._lexicon.encode(sentence.words) for sentence in self.sentences])

    @cached_property
    def targets(self) -> Int64[np.ndarray, "words two"]:
        """Head (counted from 1, 0 for the root) and relation id of each word; −1 for a relation the lexicon lacks."""
        arcs = [
            (head, self._lexicon.relation_id(relation))
            for sentence in self.sentences
            for head, relation in zip(sentence.heads, sentence.relations, strict=True)
        ]
        return np.array(arcs, dtype=np.int64)

    @cached_property
    def bounds(self) -> Int64[np.ndarray, " sentences_and_one"]:
        """Index of each sentence's first row, and the number of rows."""
        return np.cumsum([0, *(len(sentence.words) for sentence in self.sentences)])

    @property
    def lengths(self) -> Int64[np.ndarray, " sentences"]:
        """Number of words of each sentence."""
        return np.diff(self.bounds)

    @property
    def _lexicon(self) -> Lexicon:
        """The lexicon, which must be set; raise a DataError if there are no sentences."""
        if not self.sentences:
            raise DataError("no sentences to train or evaluate on. Give a treebank that holds some.")
        assert self.lexicon is not None
        return self.lexicon

    def __len__(self) -> int:
        """Return the number of words in all sentences."""
        return int(self.bounds[-1])

    def batch(
        self, indices: Sequence[int] | np.ndarray
    ) -> tuple[Int64[np.ndarray, "batch positions columns"], Int64[np.ndarray, "batch words two"]]:
        """Return the inputs (ids of the root and the words) and the targets (heads and relations) of some sentences.

        Shorter sentences are padded with 0, and their targets with −1.
        """
        longest = int(self.lengths[indices].max())
        rows = np.full((len(indices), longest + 1, 1 + NUM_PIECES), NO_WORD, dtype=np.int64)
        targets = np.full((len(indices), longest, 2), PAD, dtype=np.int64)
        rows[:, 0, 0] = ROOT
        for row, index in enumerate(indices):
            words = slice(self.bounds[index], self.bounds[index + 1])
            length = words.stop - words.start
            rows[row, 1 : length + 1] = self.rows[words]
            targets[row, :length] = self.targets[words]
        return rows, targets


def prepare_treebank(
    spec: TreebankSpec,
    *,
    minimum_count: int,
    buckets: int,
    lexicon: Lexicon | None = None,
    progress: Progress | None = None,
) -> Splits[Trees]:
    """Read and split a treebank for training.

    The splits are those provided by the user, else the treebank's, or else evenly spaced sentences are held out. The
    lexicon is built from the training sentences (`Lexicon.from_sentences`), unless that of a trained model is passed.
    """
    files = _find_files(spec.treebank, progress)
    provided = {split: [_resolve_user_file(file)] for split, file in split_files(spec).items()}
    replaced = [
        f"{spec.treebank}: its own {split} split, since another is given" for split in provided if split in files
    ]
    files |= provided
    sentences, notes = _read_files(files)
    if "validation" not in sentences:
        train, validation = hold_out_sentences(sentences["train"], spec.held_out)
        sentences = {**sentences, "train": train, "validation": validation}
    lexicon = lexicon or Lexicon.from_sentences(sentences["train"], minimum_count, buckets)
    words = {split: [sentence.words for sentence in split_sentences] for split, split_sentences in sentences.items()}
    return Splits(
        kind="treebank",
        items={split: Trees(split_sentences, lexicon) for split, split_sentences in sentences.items()},
        tokenizer=lexicon,
        hash=files_hash(chain.from_iterable(files.values())),
        description=spec.treebank,
        model_sizes={"vocabulary": lexicon.vocabulary, "relations": len(lexicon.relations)},
        notes=(*notes, *replaced),
        split_hashes={split: files_hash(paths) for split, paths in files.items()} if provided else {},
        overlaps=describe_overlaps(words, "sentences") if provided else (),
    )


def read_trees(name: str, progress: Progress | None = None, split: str | None = None) -> Splits[Trees]:
    """Read dependency trees to compare with, as one split: a file as a whole, or one split of a treebank or folder.

    `name` is a built-in treebank or a path; `split` is by default the first of test, validation and train that exists.
    """
    files = _find_files(name, progress)
    split = split or next(part for part in ("test", "validation", "train") if part in files)
    if split not in files:
        raise DataError(describe_unknown("split", split, files))
    description = f"{name} ({split})" if len(files) > 1 or name in TREEBANKS else name
    sentences, notes = _read_files({split: files[split]})
    trees = {split: Trees(sentences[split])}
    return Splits("treebank", trees, None, files_hash(files[split]), description, {}, tuple(notes))


def hold_out_sentences(
    sentences: tuple[Sentence, ...], fraction: float
) -> tuple[tuple[Sentence, ...], tuple[Sentence, ...]]:
    """Split sentences into training and validation; every 1/`fraction`-th sentence is for validation.

    >>> train, validation = hold_out_sentences(tuple("abcdefghij"), 0.2)
    >>> "".join(train), "".join(validation)
    ('abcdfghi', 'ej')
    """
    count = len(sentences)
    if count < 2:
        raise DataError("a treebank of one sentence leaves none to validate on. Give more, or --validation FILE.")
    fraction = min(max(fraction, 1 / count), 1 - 1 / count)
    validation = {i for i in range(count) if int((i + 1) * fraction + 1e-9) > int(i * fraction + 1e-9)}
    train = tuple(sentence for i, sentence in enumerate(sentences) if i not in validation)
    return train, tuple(sentences[i] for i in sorted(validation))


def _read_files(files: Mapping[str, Sequence[Path]]) -> tuple[dict[str, tuple[Sentence, ...]], list[str]]:
    """Read CoNLL-U files by split; return the sentences of each split, and notes on rows that were skipped."""
    splits: dict[str, tuple[Sentence, ...]] = {}
    notes: list[str] = []
    for split, paths in files.items():
        contents, file_notes = zip(*map(read_conllu, paths), strict=True)
        splits[split] = tuple(chain.from_iterable(contents))
        notes += chain.from_iterable(file_notes)
    return splits, notes


def _find_files(name: str, progress: Progress | None) -> dict[str, list[Path]]:
    """Return the files of a built-in treebank, a folder or a single file by split, as their names indicate.

    All files are `train` if no name indicates a training split.
    """
    if name in TREEBANKS:
        paths = fetch_corpus(TREEBANKS[name], progress)
    elif exists(Path(name)) and Path(name).is_dir():
        paths = sorted(file for file in Path(name).iterdir() if file.suffix in CONLLU_SUFFIXES)
        if not paths:
            raise DataError(f"{name}: no CoNLL-U file ({', '.join(sorted(CONLLU_SUFFIXES))}) in this folder.")
    else:
        return {"train": [_resolve_user_file(name)]}
    files: dict[str, list[Path]] = {"train": [], "validation": [], "test": []}
    keywords = {"train": "train", "dev": "validation", "valid": "validation", "test": "test"}
    for path in paths:
        files[next((split for word, split in keywords.items() if word in path.stem.lower()), "train")].append(path)
    files = {split: split_paths for split, split_paths in files.items() if split_paths}
    return files if "train" in files else {"train": list(paths)}


def _resolve_user_file(name: str) -> Path:
    """Return the path of a user's CoNLL-U file; a folder or an unknown name is an error."""
    path = resolve_user_path("treebank", name, TREEBANKS, "a CoNLL-U file")
    if exists(path) and path.is_dir():
        raise DataError(f"{path}: this is a folder; a CoNLL-U file is expected here.")
    return path
