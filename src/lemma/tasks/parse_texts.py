"""Trees of plain texts, drawn by a parser's run for a model that reads trees; those of many texts are cached."""

import hashlib
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from shlex import quote

import numpy as np
import torch

from lemma.data.labels import ParsedWords, TreeSource, has_trees, join_parses, read_tree_source
from lemma.data.splits import split_files
from lemma.errors import RunError, SpecError
from lemma.files import atomic_replace, home_folder
from lemma.models.parser import ParserModel, predict_trees
from lemma.report.progress import Observer
from lemma.runs.folder import RunFolder
from lemma.runs.load import load, run_hash
from lemma.spec.data import LabelsSpec
from lemma.spec.models import BodySpec, Parser, Tree

MAX_WORDS = 257
"""Words of a text that are parsed: one more than a classifier reads, so that it is known to be longer."""
MAX_SENTENCE = 100
"""Words of a sentence; a longer one is cut, since scores grow with the square."""
BATCH_TEXTS = 512
"""Texts parsed before progress is shown."""
TRAIN_COMMAND = "lemma train parser --treebank ewt --out runs/parser"

FORMAT = 1
MIN_CACHED_TEXTS = 100
"""So few texts are sooner parsed again than cached."""
DIGEST_BYTES = 16  # bytes
SAVE_INTERVAL = 2048
"""Texts after which the cache is written, so that an interruption costs little."""


def tree_source_for(
    body: BodySpec, data: LabelsSpec, parser: str | Path | None, observer: Observer, evaluated_run: Path | None = None
) -> TreeSource | None:
    """What gives the trees of labelled texts to a body that reads trees; any other needs none.

    `judged` is the run that is to be judged by them, if it is not one to be trained.
    """
    if not isinstance(body, Tree):
        if parser is not None:
            raise SpecError(f"parser = {parser}: only a tree body reads trees; {body.family} reads the text itself.")
        return None
    labels, files = data.labels, split_files(data)
    if has_trees(labels):
        for split, file in files.items():
            if not has_trees(file):
                raise SpecError(f"--{split} {file}: {labels} holds trees, and so must this file. Give a CoNLL-U file.")
        return read_tree_source(Path(labels), *map(Path, files.values()))
    if parser is None:
        then = f"evaluate {quote(str(evaluated_run))}" if evaluated_run else "train tree"
        out = "" if evaluated_run else " --out RUN"
        raise SpecError(
            f"a tree body reads trees, and {labels} holds texts: a parser has to draw them. Train one, then name it:\n"
            f"  {TRAIN_COMMAND}\n"
            f"  lemma {then} --labels {quote(labels)} --parser runs/parser{out}\n"
            "A CoNLL-U file with a comment '# label = NAME' for each sentence needs no parser."
        )
    return parser_trees(Path(parser), observer)


def parser_trees(path: Path, observer: Observer) -> TreeSource:
    """A parser's run as a source of trees; those of many texts are cached in the data home."""
    if not path.exists():
        raise SpecError(
            f"--parser {path}: there is no such folder; a parser's run is expected. To train one: {TRAIN_COMMAND}"
        )
    folder = RunFolder.open(path)
    if not isinstance(folder.spec, Parser):
        raise SpecError(
            f"{path} is a run of the family {folder.spec.family}, not a parser. To train one: {TRAIN_COMMAND}"
        )
    if not folder.is_finished:
        raise RunError(f"{path} is not finished. To finish it: lemma train --resume {quote(str(path))}")
    own = run_hash(folder)
    return TreeSource(own, lambda texts: cached_trees(texts, own, partial(parse_batches, path, observer=observer)))


def cached_trees(
    texts: Sequence[str], parser: str, parse: Callable[[Sequence[str]], Iterable[ParsedWords]]
) -> list[ParsedWords]:
    """The trees of texts by the parser of that hash; those that are not cached are drawn now, and cached."""
    if len(texts) < MIN_CACHED_TEXTS:
        return list(parse(texts))
    cache = home_folder("trees") / f"{parser[:32]}-{FORMAT}.npz"
    known = _read(cache)
    digests = [hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest() for text in texts]
    missing = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in known}
    drawn = parse(list(missing.values())) if missing else ()
    for number, (digest, one) in enumerate(zip(missing, drawn, strict=True), start=1):
        known[digest] = one
        if number % SAVE_INTERVAL == 0 or number == len(missing):
            _write(cache, known)
    return [known[digest] for digest in digests]


def parse_batches(parser: Path, texts: Sequence[str], observer: Observer) -> Iterator[ParsedWords]:
    """Parse texts sentence by sentence, some at a time so that it can be watched."""
    run = load(parser, "cuda" if torch.cuda.is_available() else "cpu")
    model = run.require(ParserModel, "a parser")
    observer.start("drawing trees", len(texts), "texts")
    for start in range(0, len(texts), BATCH_TEXTS):
        cut = [split_sentences(text) for text in texts[start : start + BATCH_TEXTS]]
        trees = predict_trees(model, run.lexicon, [words for sentences in cut for words in sentences])
        found = iter(tree.sentence for tree in trees)
        yield from (join_parses([next(found) for _ in sentences]) for sentences in cut)
        observer.advance(min(start + BATCH_TEXTS, len(texts)))
    observer.finish()


def _write(path: Path, trees: Mapping[bytes, ParsedWords]) -> None:
    words = "\n".join(one.text for one in trees.values())  # no word holds white space
    heads = [place for one in trees.values() for place in one.heads]
    columns = {
        "texts": np.frombuffer(b"".join(trees), np.uint8),
        "words": np.frombuffer(words.encode(), np.uint8),
        "governors": np.array(heads, np.int32),
    }
    with atomic_replace(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)


def _read(path: Path) -> dict[bytes, ParsedWords]:
    """What was known; nothing if it is damaged, so that all is drawn again."""
    try:
        with np.load(path, allow_pickle=False) as held:
            texts, words = held["texts"].tobytes(), held["words"].tobytes().decode().split("\n")
            heads = held["governors"].tolist()
    except (OSError, ValueError, LookupError, EOFError, RuntimeError, struct.error, zlib.error, zipfile.BadZipFile):
        return {}
    digests = [texts[start : start + DIGEST_BYTES] for start in range(0, len(texts), DIGEST_BYTES)]
    bounds = np.cumsum([0, *(len(line.split()) for line in words)]).tolist()
    if len(digests) != len(words) or bounds[-1] != len(heads):
        return {}
    drawn = (
        ParsedWords(tuple(line.split()), tuple(heads[start:end]))
        for line, (start, end) in zip(words, pairwise(bounds), strict=True)
    )
    return dict(zip(digests, drawn, strict=True))


def split_sentences(text: str) -> list[list[str]]:
    """The first words of a text, cut into sentences: at line breaks, and after a full stop and what closes behind it.

    >>> sentences_of('"Is it?" Yes! So be it')
    [['"', 'Is', 'it', '?', '"'], ['Yes', '!'], ['So', 'be', 'it']]
    """
    found: list[list[str]] = []
    room = MAX_WORDS
    for line in text.splitlines():
        words = split_words(line)[:room]
        room, start = room - len(words), 0
        for place, word in enumerate(words, start=1):
            after = words[place] if place < len(words) else ""
            ends = word in SENTENCE_ENDS or (word in AFTER_END and place > 1 and words[place - 2] in SENTENCE_ENDS)
            if (
                (ends and after not in SENTENCE_ENDS | AFTER_END)
                or place == len(words)
                or place - start == MAX_SENTENCE
            ):
                found.append(words[start:place])
                start = place
    return found


SENTENCE_ENDS = frozenset({".", "!", "?", "...", "…"})
AFTER_END = frozenset({'"', "'", "”", "’", ")", "]", "}", "»", "''"})
CLITIC = re.compile(r"(?i)(?<=\w)(n['’]t|['’](?:s|re|ve|ll|d|m))$")
OPENING = re.compile(r"^([\"'“‘¿¡(\[{<«]+)(?=.)")
CLOSING = re.compile(r"(?<=[^.…])(\.\.\.|…|[.,;:!?\"'”’)\]}>»%])$")
ABBREVIATION = re.compile(r"(?i)^(?:[a-z]\.)+$|^(?:mr|mrs|ms|dr|prof|st|vs|etc|inc|co|jr|sr)\.$")


def split_words(line: str) -> list[str]:
    """Cut a sentence into words as UD's English treebanks do, nearly: what is cut already stays as it is.

    >>> split_sentence("I don't know (yet), Dr. Who.")
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
