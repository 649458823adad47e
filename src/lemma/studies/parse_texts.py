"""Trees that were drawn once, kept in the data home: one file for each parser, by the hash of each text."""

import hashlib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from shlex import quote

import numpy as np
import torch

from lemma.data.files import home_folder, replacing
from lemma.data.labels import ParsedText, TreeSource, holds_trees, parsed_text, trees_in
from lemma.errors import RunError, SpecError
from lemma.inspection.trees import split_sentence
from lemma.models.parser import predict_trees
from lemma.runs.folder import RunFolder
from lemma.runs.load import load, run_hash
from lemma.spec.data import LabelsSpec
from lemma.spec.models import BodySpec, Parser, Tree
from lemma.training.progress import Observer

FORMAT = 1
FEW = 100
"""So few texts are sooner parsed again than kept."""
DIGEST = 16  # bytes

OFTEN = 2048
"""Texts after which what was drawn is written down, so that an interruption costs little."""

Draw = Callable[[Sequence[str]], Iterable[ParsedText]]


def kept_trees(texts: Sequence[str], parser: str, draw: Draw) -> list[ParsedText]:
    """The trees of texts by the parser of that hash; those that were not kept before are drawn now, and kept."""
    if len(texts) < FEW:
        return list(draw(texts))
    path = home_folder("trees") / f"{parser[:32]}-{FORMAT}.npz"
    kept, digests = _read(path), [_digest(text) for text in texts]
    missing = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in kept}
    drawn = draw(list(missing.values())) if missing else ()
    for number, (digest, one) in enumerate(zip(missing, drawn, strict=True), start=1):
        kept[digest] = one
        if number % OFTEN == 0 or number == len(missing):
            _write(path, kept)
    return [kept[digest] for digest in digests]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=DIGEST).digest()


def _write(path: Path, kept: Mapping[bytes, ParsedText]) -> None:
    words = "\n".join(one.text for one in kept.values())  # no word holds white space
    governors = [place for one in kept.values() for place in one.heads]
    columns = {
        "texts": np.frombuffer(b"".join(kept), np.uint8),
        "words": np.frombuffer(words.encode(), np.uint8),
        "governors": np.array(governors, np.int32),
    }
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)


def _read(path: Path) -> dict[bytes, ParsedText]:
    """What was kept; nothing if it is damaged, so that all is drawn again."""
    try:
        with np.load(path, allow_pickle=False) as held:
            texts, words = held["texts"].tobytes(), held["words"].tobytes().decode().split("\n")
            governors = held["governors"].tolist()
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return {}
    digests = [texts[start : start + DIGEST] for start in range(0, len(texts), DIGEST)]
    bounds = np.cumsum([0, *(len(line.split()) for line in words)]).tolist()
    if len(digests) != len(words) or bounds[-1] != len(governors):
        return {}
    drawn = (
        ParsedText(tuple(line.split()), tuple(governors[start:end]))
        for line, (start, end) in zip(words, pairwise(bounds), strict=True)
    )
    return dict(zip(digests, drawn, strict=True))


# The trees that a body reads which goes along arcs: a parser's run draws them, or a CoNLL-U file holds them.


MOST_WORDS = 257
"""Words of a text that are parsed: one more than a classifier reads, so that it is known to be longer."""
LONGEST = 100
"""Words of a sentence; a longer one is cut, since scores grow with the square."""
AT_ONCE = 512
"""Texts parsed before progress is shown."""
ENDS = frozenset({".", "!", "?", "...", "…"})
CLOSING = frozenset({'"', "'", "”", "’", ")", "]", "}", "»", "''"})
FIRST = "lemma train parser --treebank ewt --out runs/parser"


def drawer_for(
    body: BodySpec, labels: str, parser: str | Path | None, watcher: Observer, judged: Path | None = None
) -> TreeSource | None:
    """What draws the trees of labelled texts for a body that reads trees; any other needs none.

    `judged` is the run that is to be judged by them, if it is not one to be trained.
    """
    if not isinstance(body, Tree):
        if parser is not None:
            raise SpecError(f"parser = {parser}: only a tree body reads trees; {body.family} reads the text itself.")
        return None
    if holds_trees(labels):
        return trees_in(Path(labels))
    if parser is None:
        then = f"evaluate {quote(str(judged))}" if judged else "train tree"
        out = "" if judged else " --out RUN"
        raise SpecError(
            f"a tree body reads trees, and {labels} holds texts: a parser has to draw them. Train one, then name it:\n"
            f"  {FIRST}\n"
            f"  lemma {then} --labels {quote(labels)} --parser runs/parser{out}\n"
            "A CoNLL-U file with a comment '# label = NAME' for each sentence needs no parser."
        )
    return parser_drawer(Path(parser), watcher)


def refuse_misfit(data: LabelsSpec, body: BodySpec) -> None:
    """Refuse, before anything is read, labelled texts that a tree body cannot learn."""
    if not isinstance(body, Tree):
        return
    if data.tokenizer.kind != "words":
        raise SpecError(
            f"tokenizer = {data.tokenizer.kind}: the tokens of a tree are its words. Say tokenizer=words, or leave it "
            "to the preset: lemma train tree …"
        )
    if data.parser is not None and holds_trees(data.labels):
        raise SpecError(f"{data.labels} holds trees already: nothing is left for the parser. Leave --parser out.")


def parser_drawer(path: Path, watcher: Observer) -> TreeSource:
    """A parser's run as what draws trees; those of many texts are kept in the data home."""
    if not path.exists():
        raise SpecError(f"--parser {path}: there is no such folder; a parser's run is expected. To train one: {FIRST}")
    folder = RunFolder.open(path)
    if not isinstance(folder.spec, Parser):
        raise SpecError(f"{path} is a run of the family {folder.spec.family}, no parser. To train one: {FIRST}")
    if not folder.finished:
        raise RunError(f"{path} is not finished. To finish it: lemma train --resume {quote(str(path))}")
    own = run_hash(folder)
    return TreeSource(own, lambda texts: kept_trees(texts, own, partial(draw_texts, path, watcher=watcher)))


def draw_texts(parser: Path, texts: Sequence[str], watcher: Observer) -> Iterator[ParsedText]:
    """Parse texts sentence by sentence, some at a time so that it can be watched."""
    run = load(parser, "cuda" if torch.cuda.is_available() else "cpu")
    watcher.begin("drawing trees", len(texts), "texts")
    for start in range(0, len(texts), AT_ONCE):
        cut = [sentences_of(text) for text in texts[start : start + AT_ONCE]]
        trees = predict_trees(run.parser, run.lexicon, [words for sentences in cut for words in sentences])
        found = iter(tree.sentence for tree in trees)
        yield from (parsed_text([next(found) for _ in sentences]) for sentences in cut)
        watcher.advance(min(start + AT_ONCE, len(texts)))
    watcher.end()


def sentences_of(text: str) -> list[list[str]]:
    """The first words of a text, cut into sentences: at line breaks, and after a full stop and what closes behind it.

    >>> sentences_of('"Is it?" Yes! So be it')
    [['"', 'Is', 'it', '?', '"'], ['Yes', '!'], ['So', 'be', 'it']]
    """
    found: list[list[str]] = []
    room = MOST_WORDS
    for line in text.splitlines():
        words = split_sentence(line)[:room]
        room -= len(words)
        found += _sentences(words)
    return found


def _sentences(words: Sequence[str]) -> Iterator[list[str]]:
    start = 0
    for place, word in enumerate(words, start=1):
        after = words[place] if place < len(words) else ""
        ended = (word in ENDS or (word in CLOSING and place > 1 and words[place - 2] in ENDS)) and (
            after not in ENDS and after not in CLOSING
        )
        if ended or place == len(words) or place - start == LONGEST:
            yield list(words[start:place])
            start = place
