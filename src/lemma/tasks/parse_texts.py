"""Trees of plain texts from a parser's run, for a model that reads trees; those of many texts are cached."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from shlex import quote

import torch

from lemma.data.labels import ParsedWords, TreeSource, has_trees, join_parses, read_tree_source
from lemma.data.splits import split_files
from lemma.data.treebanks import split_sentences
from lemma.errors import RunError, SpecError
from lemma.files import home_folder, write_atomically
from lemma.models.parser import ParserModel, predict_trees
from lemma.report.progress import Observer
from lemma.runs.folder import RunFolder
from lemma.runs.load import load, run_hash
from lemma.spec.data import LabelsSpec
from lemma.spec.models import BodySpec, Parser, Tree

TRAIN_COMMAND = "lemma train parser --treebank ewt --out runs/parser"
BATCH_TEXTS = 512  # texts parsed between two updates of the progress
MIN_CACHED_TEXTS = 100  # fewer texts are parsed again
SAVE_INTERVAL = 2048  # texts after which the cache is written, so that an interruption costs little


def tree_source_for(
    body: BodySpec, data: LabelsSpec, observer: Observer, evaluated_run: Path | None = None
) -> TreeSource | None:
    """Return where a tree model's dependency trees of labelled texts come from; None for other models.

    `evaluated_run` is the run to evaluate on these texts, if they are not to train one.
    """
    parser = data.parser
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
        command = f"evaluate {quote(str(evaluated_run))}" if evaluated_run else "train tree"
        out = "" if evaluated_run else " --out RUN"
        raise SpecError(
            f"a tree body reads trees, and {labels} holds texts: a parser has to draw them. Train one, then name it:\n"
            f"  {TRAIN_COMMAND}\n"
            f"  lemma {command} --labels {quote(labels)} --parser runs/parser{out}\n"
            "A CoNLL-U file with a comment '# label = NAME' for each sentence needs no parser."
        )
    return parser_trees(Path(parser), observer)


def parser_trees(path: Path, observer: Observer) -> TreeSource:
    """Return the source of dependency trees that runs the parser at `path`; trees of many texts are cached on disk."""
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
    parser_hash = run_hash(folder)
    return TreeSource(
        parser_hash, lambda texts: cached_trees(texts, parser_hash, partial(parse_batches, path, observer=observer))
    )


def cached_trees(
    texts: Sequence[str], parser: str, parse: Callable[[Sequence[str]], Iterable[ParsedWords]]
) -> list[ParsedWords]:
    """Return the tree of each text, cached under the hash `parser`; texts not in the cache are parsed by `parse`."""
    if len(texts) < MIN_CACHED_TEXTS:
        return list(parse(texts))
    cache = home_folder("trees") / f"{parser[:32]}.json"
    trees = _read_cache(cache)
    digests = [hashlib.blake2b(text.encode(), digest_size=16).hexdigest() for text in texts]
    missing = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in trees}
    parsed = parse(list(missing.values())) if missing else ()
    for number, (digest, tree) in enumerate(zip(missing, parsed, strict=True), start=1):
        trees[digest] = tree
        if number % SAVE_INTERVAL == 0 or number == len(missing):
            _write_cache(cache, trees)
    return [trees[digest] for digest in digests]


def parse_batches(parser: Path, texts: Sequence[str], observer: Observer) -> Iterator[ParsedWords]:
    """Yield the dependency tree of each text, parsed sentence by sentence with the run at `parser`."""
    run = load(parser, "cuda" if torch.cuda.is_available() else "cpu")
    model = run.require(ParserModel, "a parser")
    observer.start("drawing trees", len(texts), "texts")
    for start in range(0, len(texts), BATCH_TEXTS):
        batch = [split_sentences(text) for text in texts[start : start + BATCH_TEXTS]]
        trees = predict_trees(model, run.lexicon, [words for sentences in batch for words in sentences])
        parsed = iter(tree.sentence for tree in trees)
        yield from (join_parses([next(parsed) for _ in sentences]) for sentences in batch)
        observer.advance(min(start + BATCH_TEXTS, len(texts)))
    observer.finish()


def _write_cache(path: Path, trees: Mapping[str, ParsedWords]) -> None:
    """Write trees, by the hash of their texts, to the cache file `path`."""
    rows = {digest: [tree.text, tree.heads] for digest, tree in trees.items()}  # no word holds white space
    write_atomically(path, json.dumps(rows, ensure_ascii=False))


def _read_cache(path: Path) -> dict[str, ParsedWords]:
    """Return the trees in the cache file `path` by the hash of their texts; none if the file is missing or damaged."""
    try:
        rows = json.loads(path.read_bytes())
        trees = {digest: ParsedWords(tuple(text.split()), tuple(heads)) for digest, (text, heads) in rows.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
    return trees if all(len(tree.words) == len(tree.heads) for tree in trees.values()) else {}
