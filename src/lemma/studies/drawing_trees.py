"""The trees that a body reads which goes along arcs: a parser's run draws them, or a CoNLL-U file holds them."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from shlex import quote

import torch

from lemma.data import Drawer, DrawnText, drawn_text, holds_trees, trees_in
from lemma.errors import RunError, SpecError
from lemma.looking.splitting import split_sentence
from lemma.models.trees import predict_trees
from lemma.runs import RunFolder, load, run_hash
from lemma.spec import BodySpec, LabelsSpec, Parser, Tree
from lemma.studies.drawn_trees import kept_trees
from lemma.training import Observer

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
) -> Drawer | None:
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


def parser_drawer(path: Path, watcher: Observer) -> Drawer:
    """A parser's run as what draws trees; those of many texts are kept in the data home."""
    if not path.exists():
        raise SpecError(f"--parser {path}: there is no such folder; a parser's run is expected. To train one: {FIRST}")
    folder = RunFolder.open(path)
    if not isinstance(folder.spec, Parser):
        raise SpecError(f"{path} is a run of the family {folder.spec.family}, no parser. To train one: {FIRST}")
    if not folder.finished:
        raise RunError(f"{path} is not finished. To finish it: lemma train --resume {quote(str(path))}")
    own = run_hash(folder)
    return Drawer(own, lambda texts: kept_trees(texts, own, partial(draw_texts, path, watcher=watcher)))


def draw_texts(parser: Path, texts: Sequence[str], watcher: Observer) -> Iterator[DrawnText]:
    """Parse texts sentence by sentence, some at a time so that it can be watched."""
    run = load(parser, "cuda" if torch.cuda.is_available() else "cpu")
    watcher.begin("drawing trees", len(texts), "texts")
    for start in range(0, len(texts), AT_ONCE):
        cut = [sentences_of(text) for text in texts[start : start + AT_ONCE]]
        trees = predict_trees(run.parser, run.lexicon, [words for sentences in cut for words in sentences])
        found = iter(tree.sentence for tree in trees)
        yield from (drawn_text([next(found) for _ in sentences]) for sentences in cut)
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
