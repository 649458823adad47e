"""Searching: pictures by a text or by a picture, and texts by a picture."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from lemma.data.images.decoding import decode, quietly
from lemma.errors import DataError, InputError
from lemma.retrieval.clustered import MANY, find_clustered, installed
from lemma.retrieval.embedding import Embedder
from lemma.retrieval.queries import Query, picture_query
from lemma.retrieval.ranking import Nearest, find
from lemma.retrieval.reranking import reordered, rescorer, said_again
from lemma.retrieval.result import Answer, Counts, Hit, SearchResult
from lemma.retrieval.shelf import Shelf
from lemma.retrieval.texts import Tokenised

EXACT = "exact"
CLUSTERED = "not exact: faiss looked at the nearest cells"


def search_shelf(
    embedder: Embedder, shelf: Shelf, queries: Sequence[Query], k: int, faiss: bool | None = None
) -> SearchResult:
    """The pictures nearest to each query; a query that is itself among them is left out."""
    again = rescorer(embedder.run)
    wanted = max(k, again[1] if again else 0) + 1
    clustered = faiss if faiss is not None else len(shelf.index) > MANY and installed()
    vectors = np.stack([query.vector for query in queries])
    nearest = find_clustered(shelf.index, vectors, wanted) if clustered else find(shelf.index.vectors, vectors, wanted)
    answers = tuple(
        _answer(embedder, shelf, query, Nearest(rows[rows >= 0], scores[rows >= 0]), k)
        for query, rows, scores in zip(queries, *nearest, strict=True)
    )
    index = shelf.index
    how, notes = CLUSTERED if clustered else EXACT, list(shelf.notes)
    if again and any(hit.again is None for answer in answers for hit in answer.hits[:1]):
        notes.append("not ranked again: that needs a text to look for, and the pictures themselves")
    elif again:
        notes.append(said_again(again[1]))
    where = shelf.pictures.name if shelf.pictures else index.head.pictures
    return SearchResult(
        str(embedder.run.path), "pictures", where, answers, shelf.counts, how, index.place, tuple(notes)
    )


def _answer(embedder: Embedder, shelf: Shelf, query: Query, nearest: Nearest, k: int) -> Answer:
    own = query.picture.resolve() if query.picture else None
    hits = [_hit(shelf, int(row), float(score)) for row, score in zip(*nearest, strict=True)]
    kept = [hit for hit in hits if own is None or hit.path is None or hit.path.resolve() != own]
    ranked = _ranked_again(embedder, shelf, query, kept)[:k]
    numbered = tuple(replace(hit, rank=rank) for rank, hit in enumerate(ranked, start=1))
    return Answer(query.name, numbered, query.remark, query.picture)


def _hit(shelf: Shelf, row: int, score: float) -> Hit:
    name = shelf.index.entry(row).name
    if shelf.pictures is None:
        return Hit(0, name, score)
    return Hit(0, name, score, shelf.pictures.caption(name), path=shelf.pictures.path(name))


def _ranked_again(embedder: Embedder, shelf: Shelf, query: Query, hits: list[Hit]) -> list[Hit]:
    """The first few in the order of the re-ranker, where the run is one and the pictures can be read."""
    again = rescorer(embedder.run)
    if again is None or query.tokens is None or shelf.pictures is None:
        return hits
    rescore, candidates = again
    try:
        with quietly():
            pixels = [
                decode(hit.path, embedder.side, framed=shelf.pictures.framed) for hit in hits[:candidates] if hit.path
            ]
    except DataError:
        return hits
    scores = rescore((np.stack(pixels), np.tile(query.tokens, (len(pixels), 1))))
    return _in_order(hits, scores)


def _in_order(hits: list[Hit], scores: Float32[np.ndarray, "candidates"]) -> list[Hit]:
    first, rest = hits[: len(scores)], hits[len(scores) :]
    scored = [replace(hit, again=float(score)) for hit, score in zip(first, scores, strict=True)]
    return [scored[place] for place in reordered(scores)] + rest


def search_texts(embedder: Embedder, path: Path, texts: Sequence[str], where: str, k: int) -> SearchResult:
    """The texts that are nearest to a picture; those of which the tokenizer knows nothing are left out, and counted."""
    query = picture_query(embedder, path)
    vectors, read = embedder.texts(texts)
    known = np.flatnonzero(read.known)
    if not len(known):
        raise InputError(f"{where}: the run's tokenizer knows nothing of any of its {len(texts):,} texts.")
    again = rescorer(embedder.run)
    nearest = find(vectors[known], query.vector[None], max(k, again[1] if again else 0))
    rows = known[nearest.rows[0]]
    hits = [Hit(0, texts[int(row)], float(score)) for row, score in zip(rows, nearest.scores[0], strict=True)]
    if again:
        hits = _texts_again(embedder, path, read, rows, hits)
    numbered = tuple(replace(hit, rank=rank) for rank, hit in enumerate(hits[:k], start=1))
    unknown = len(texts) - len(known)
    notes = (f"{unknown:,} texts hold nothing that the tokenizer knows, and were left out",) if unknown else ()
    notes += (said_again(again[1]),) if again else ()
    answer = Answer(query.name, numbered, picture=path)
    return SearchResult(str(embedder.run.path), "texts", where, (answer,), Counts(len(known)), EXACT, notes=notes)


def _texts_again(embedder: Embedder, path: Path, read: Tokenised, rows: np.ndarray, hits: list[Hit]) -> list[Hit]:
    again = rescorer(embedder.run)
    assert again is not None
    rescore, candidates = again
    tokens = read.rows.beside(rows[:candidates])
    with quietly():
        pixels = decode(path, embedder.side)
    return _in_order(hits, rescore((np.tile(pixels, (len(tokens), 1, 1, 1)), tokens)))
