"""Search: images by text or image, texts by image."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8

from lemma.data.corpora import IMAGES
from lemma.data.files import Progress, data_home, replacing, text_hash
from lemma.data.images import decode_image, list_images, pillow
from lemma.errors import DataError, InputError, RunError, SpecError
from lemma.models.dual_encoder import CrossAttentionModel
from lemma.retrieval.index import (
    Embedder,
    Index,
    Pictures,
    Tokenised,
    checked_texts,
    open_pictures,
    read_texts,
    update_index,
)
from lemma.retrieval.result import Answer, Counts, Hit, SearchResult
from lemma.runs.load import Run

# What is looked for, as a vector of the shared space: texts and pictures.


@dataclass(frozen=True)
class Query:
    """What is looked for: a text or a picture, as a vector."""

    name: str
    vector: Float32[np.ndarray, "shared"]
    remark: str = ""
    tokens: np.ndarray | None = None
    picture: Path | None = None


def text_queries(embedder: Embedder, texts: Sequence[str]) -> list[Query]:
    """Texts to look for; one of which the tokenizer knows nothing is refused."""
    vectors, read = embedder.texts(texts)
    for text, known in zip(texts, read.known, strict=True):
        if not known:
            raise InputError(
                f"the query '{text}' holds nothing that the run's tokenizer knows "
                f"({embedder.run.tokenizer.about}). Use words that the captions have."
            )
    return [
        Query(text, vectors[place], read.remarks[place], read.rows.padded([place])[0])
        for place, text in enumerate(texts)
    ]


def picture_query(embedder: Embedder, path: Path, framed: bool = False) -> Query:
    """A picture to look for."""
    pixels = decode_image(path, embedder.side, framed=framed)
    return Query(path.name, embedder.pictures(pixels[None])[0], picture=path)


# Which vectors are nearest to a query: exact, by one product with all of them, block by block.


BLOCK = 1 << 14
"""Rows that are multiplied at once: their scores fit the cache, and of a mapped file only so much is touched."""

Queries = Float32[np.ndarray, "queries width"]


class Nearest(NamedTuple):
    """The rows nearest to each query, the nearest first, with their scores; of equal ones the earlier row first."""

    rows: Int64[np.ndarray, "queries found"]
    scores: Float32[np.ndarray, "queries found"]


def find(vectors: Float32[np.ndarray, "rows width"], queries: Queries, k: int, block: int = BLOCK) -> Nearest:
    """The k rows with the largest product with each query: cosines, where all have length 1.

    >>> rows = np.array([[1, 0], [0, 1], [1, 0]], dtype=np.float32)
    >>> found = find(rows, np.array([[0.6, 0.8]], dtype=np.float32), 2)
    >>> found.rows.tolist(), found.scores.round(2).tolist()
    ([[1, 0]], [[0.800000011920929, 0.6000000238418579]])
    """
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    best = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)) for _ in queries]
    for first in range(0, len(vectors), block):
        products = queries @ np.asarray(vectors[first : first + block]).T
        best = [_joined(one, first, scores, k) for one, scores in zip(best, products, strict=True)]
    found = min(k, len(vectors))
    rows = np.array([rows for rows, _ in best], dtype=np.int64).reshape(len(queries), found)
    return Nearest(rows, np.array([scores for _, scores in best], dtype=np.float32).reshape(len(queries), found))


Best = tuple[Int64[np.ndarray, "found"], Float32[np.ndarray, "found"]]


def _joined(best: Best, first: int, scores: Float32[np.ndarray, "block"], k: int) -> Best:
    """The best of those so far and of a block; sorting is stable, so that earlier rows come first among equals."""
    places = _largest(scores, k, best[1][-1] if len(best[1]) == k else None)
    rows, values = np.concatenate([best[0], places + first]), np.concatenate([best[1], scores[places]])
    order = np.argsort(-values, kind="stable")[:k]
    return rows[order], values[order]


def _largest(scores: Float32[np.ndarray, "block"], k: int, least: float | None) -> Int64[np.ndarray, "found"]:
    """The places of the k largest scores in their order, only of such as beat what is there already."""
    places = np.arange(len(scores)) if least is None else np.flatnonzero(scores > least)
    if len(places) <= k:
        return places
    inside = scores[places]
    bound = np.partition(inside, len(inside) - k)[len(inside) - k]
    above, level = places[inside > bound], places[inside == bound]
    return np.sort(np.concatenate([above, level[: k - len(above)]]))


# Past a million vectors: faiss looks only where a query's neighbours are likely (an inverted file, not exact).
#
# Vectors are divided among √n cells by k-means (Jégou et al. 2011, product IVF without compression); a query is
# compared
# with the vectors of the nearest cells. With all cells looked at, the result is the exact one.


MANY = 1_000_000
"""From so many vectors on faiss is used where it is installed."""
SHARE = 16
"""One cell in so many is looked at."""
CLUSTERED_BLOCK = 1 << 16
SAMPLES = 64
"""Vectors a cell that the cells are learned from."""


def installed() -> bool:
    """Whether faiss can be used."""
    try:
        import faiss  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return False
    return True


def find_clustered(index: Index, queries: Queries, k: int, looked: int | None = None) -> Nearest:
    """The k nearest among the vectors of the `looked` cells nearest to each query, one in sixteen if not told."""
    cells: Any = _cells(index)
    cells.nprobe = min(cells.nlist, looked or max(1, cells.nlist // SHARE))
    scores, rows = cells.search(np.ascontiguousarray(queries, dtype=np.float32), min(k, len(index)))
    return Nearest(rows.astype(np.int64), scores.astype(np.float32))


def _faiss() -> Any:
    try:
        import faiss  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError("faiss is not installed. Install it: pip install 'lemma[faiss]'; or leave it out.") from None
    return faiss


def _cells(index: Index) -> Any:
    """The cells of an index, kept beside it; made anew whenever the index has changed."""
    faiss = _faiss()
    path = index.place / f"cells-{index.head.generation}-{index.head.rows}.faiss"
    if not path.exists():
        _remove_others(path)
        with replacing(path) as temporary:
            faiss.write_index(_divided(faiss, index), str(temporary))
    return faiss.read_index(str(path), faiss.IO_FLAG_MMAP)


def _divided(faiss: Any, index: Index) -> Any:
    rows, width = index.vectors.shape
    count = max(1, round(math.sqrt(rows)))
    cells = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, count, faiss.METRIC_INNER_PRODUCT)
    sample = np.random.default_rng(0).permutation(rows)[: SAMPLES * count]
    cells.train(np.ascontiguousarray(index.vectors[np.sort(sample)]))
    for first in range(0, rows, CLUSTERED_BLOCK):
        cells.add(np.ascontiguousarray(index.vectors[first : first + CLUSTERED_BLOCK]))
    return cells


def _remove_others(path: Path) -> None:
    for old in path.parent.glob("cells-*.faiss"):
        old.unlink(missing_ok=True)


# The seam of the re-ranker: the first few that were found, looked at once more and put in a new order.


Pairs = tuple[UInt8[np.ndarray, "pairs 3 side side"], Int64[np.ndarray, "pairs time"]]
"""Candidates: pixels and tokens, one of the two the same in every pair."""
Rescore = Callable[[Pairs], Float32[np.ndarray, "pairs"]]


def rescorer(run: Run) -> tuple[Rescore, int] | None:
    """How a run scores pairs of a picture and a text once more, and how many of those found; None if it does not."""
    model = run.module
    if not isinstance(model, CrossAttentionModel):
        return None
    return lambda pairs: cross_scores(model, pairs), model.spec.candidates


def said_again(candidates: int) -> str:
    """How a result says that the first few were ranked once more."""
    return f"the first {candidates} were ranked again, by the second figure: patches look at words"


@torch.inference_mode()
def cross_scores(model: CrossAttentionModel, pairs: Pairs) -> Float32[np.ndarray, "pairs"]:
    """The logit of each pair: the dual encoder's, and what looking at patches and words adds to it."""
    device = next(model.parameters()).device
    pixels, tokens = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in pairs)
    logits = model.logits(model.towers.patches(pixels), model.towers.words(tokens), tokens >= 0)
    return logits.float().cpu().numpy()


def reordered(scores: Float32[np.ndarray, "candidates"]) -> list[int]:
    """The places of the candidates in their new order; equal ones stay as they were.

    >>> reordered(np.array([0.1, 0.9, 0.1], dtype=np.float32))
    [1, 0, 2]
    """
    return np.argsort(-scores, kind="stable").tolist()


# An index opened for a search: brought up to date with its pictures, or as it stands.


@dataclass(frozen=True)
class Shelf:
    """An index with the pictures that it is of, if they are still there, and what was done for it."""

    index: Index
    pictures: Pictures | None
    counts: Counts
    notes: tuple[str, ...] = ()


def open_shelf(
    embedder: Embedder, images: str | Path | None, place: Path | None, progress: Progress | None = None
) -> Shelf:
    """Bring the index of some pictures up to date; without any, take the one in `place` as it stands."""
    if images is None:
        assert place is not None
        return _standing(embedder, place)
    pictures = open_pictures(images, progress)
    done = update_index(place or usual_place(embedder, pictures), embedder, pictures, progress)
    broken = tuple((entry.name, entry.broken) for entry in done.index.broken)
    if not len(done.index):
        why = f": {broken[0][0]}: {broken[0][1]}" if broken else ""
        raise DataError(f"{pictures.name}: there is no picture to search in it ({len(broken)} broken{why}).")
    counts = Counts(len(done.index), done.new, done.removed, broken)
    return Shelf(done.index, pictures, counts, (done.note,) if done.note else ())


def usual_place(embedder: Embedder, pictures: Pictures) -> Path:
    """Where an index is kept unless another place is named: in the data home, by run and folder."""
    return data_home() / "indexes" / text_hash(f"{embedder.made_by(pictures.framed)} {pictures.name}")[:32]


def _standing(embedder: Embedder, place: Path) -> Shelf:
    index = Index.open(place)
    if index.head.run.partition(" ")[0] != embedder.hash:
        raise RunError(
            f"{place} holds vectors of another run than {embedder.run.path}. Search it with the run that made it; or "
            f"make it anew: lemma search {embedder.run.path} --index {place} --images {index.head.pictures}"
        )
    if not len(index):
        raise DataError(f"{place}: the index holds no picture. To fill it: --images FOLDER.")
    broken = tuple((entry.name, entry.broken) for entry in index.broken)
    return Shelf(index, _still_there(index), Counts(len(index), broken=broken))


def _still_there(index: Index) -> Pictures | None:
    """The pictures of an index, if they can be opened; it can be searched without them."""
    try:
        return open_pictures(index.head.pictures)
    except (DataError, OSError):
        return None


# Searching: pictures by a text or by a picture, and texts by a picture.


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
        pixels = [
            decode_image(hit.path, embedder.side, framed=shelf.pictures.framed) for hit in hits[:candidates] if hit.path
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
    tokens = read.rows.padded(rows[:candidates])
    pixels = decode_image(path, embedder.side)
    return _in_order(hits, rescore((np.tile(pixels, (len(tokens), 1, 1, 1)), tokens)))


# What a person may ask of a search, checked: which words go together, and what is missing.


AS_IN = "As in: lemma search RUN --images FOLDER --query 'a red heart'"


@dataclass(frozen=True)
class Wanted:
    """What is looked for, and among what."""

    images: str | Path | None = None
    query: str | Sequence[str] | None = None
    image: str | Path | None = None
    texts: str | Path | Sequence[str] | None = None
    text_column: str | None = None
    k: int = 10
    index: str | Path | None = None
    faiss: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 1:
            raise SpecError(f"k = {self.k!r}: how many results, a whole number from 1 on.")
        if (self.query is None) == (self.image is None):
            given = "neither" if self.query is None else "both"
            raise InputError(f"query or image: one of them is looked for, got {given}. {AS_IN}")
        pictures = self.images is not None or self.index is not None
        if self.query is not None and self.texts is not None:
            raise InputError("query and texts: texts are ranked for a picture. Give an image in the query's place.")
        if pictures == (self.texts is not None):
            given = "both" if pictures else "neither"
            raise InputError(f"images (or index) or texts: one of them is searched, got {given}. {AS_IN}")
        if self.text_column is not None and self.texts is None:
            raise InputError("text_column names a column of texts, but no texts are given.")


def search_run(run: Run, wanted: Wanted, progress: Progress | None = None) -> SearchResult:
    """Find the pictures, or the texts, that are nearest to what is wanted."""
    embedder = Embedder(run)
    queries = checked_texts([wanted.query] if isinstance(wanted.query, str) else list(wanted.query or []))
    if wanted.query is not None and not queries:
        raise InputError(f"query: there is none. {AS_IN}")
    assert embedder.towers  # another kind of run is refused before anything is read
    pillow()
    image = None if wanted.image is None else _file(Path(wanted.image))
    with run.folded():
        if wanted.texts is not None:
            assert image is not None
            return search_texts(embedder, image, *_texts(wanted, progress), wanted.k)
        return _search_pictures(embedder, wanted, queries, image, progress)


def _search_pictures(
    embedder: Embedder, wanted: Wanted, queries: Sequence[str], image: Path | None, progress: Progress | None
) -> SearchResult:
    sought = [] if image else text_queries(embedder, queries)
    shelf = open_shelf(embedder, wanted.images, Path(wanted.index) if wanted.index else None, progress)
    if image:
        sought = [picture_query(embedder, image, " framed" in shelf.index.head.run)]
    return search_shelf(embedder, shelf, sought, wanted.k, wanted.faiss)


def _texts(wanted: Wanted, progress: Progress | None) -> tuple[list[str], str]:
    """The texts and where they are from: given as they are, a set's captions, or a file's."""
    if not isinstance(wanted.texts, (str, Path)):
        return checked_texts(list(wanted.texts or []), "text"), "the texts given"
    if str(wanted.texts) in IMAGES:
        listing = list_images(str(wanted.texts), progress=progress)
        return [caption for picture in listing.images for caption in picture.captions], str(wanted.texts)
    return read_texts(Path(wanted.texts), wanted.text_column), str(wanted.texts)


def _file(path: Path) -> Path:
    if not path.exists():
        raise InputError(f"{path}: there is no such picture. Check the name and the folder it is looked for in.")
    if path.is_dir():
        raise InputError(f"{path} is a folder. Give a picture to look for; a folder is searched by images.")
    return path
