"""Search: images by text or image, texts by image. Exact, or with faiss among more than a million images."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8

from lemma.data.corpora import IMAGES
from lemma.data.images import decode_image, import_pillow, list_images
from lemma.data.tables import SEPARATED, Column, read_table
from lemma.errors import DataError, InputError, RunError, SpecError
from lemma.files import Progress, atomic_replace, data_home, real_path, text_hash
from lemma.models.dual_encoder import CrossAttentionModel
from lemma.report.numbers import pluralize
from lemma.retrieval.embedding import Embedder
from lemma.retrieval.index import ImageSource, Index, open_images, update_index
from lemma.retrieval.result import Hit, IndexCounts, QueryHits, SearchResult
from lemma.runs.load import Run

EXAMPLE = "As in: lemma search RUN --images FOLDER --query 'a red heart'"
TEXT_COLUMNS = frozenset({"texts", "caption", "captions", "sentence", "title", "description", "name", "query"})
BLOCK_ROWS = 1 << 14  # rows multiplied at once: their scores fit the cache, and no more of a mapped file is touched
EXACT = "exact"
APPROXIMATE = "approximate: faiss searched the nearest cells"
FAISS_THRESHOLD = 1_000_000  # with more vectors faiss is used, if it is installed
CELLS_PER_PROBE = 16  # one cell in this many is looked at
CLUSTERED_BLOCK = 1 << 16
SAMPLES_PER_CELL = 64  # vectors per cell that the cells are learned from


# The request


@dataclass(frozen=True)
class SearchRequest:
    """What is looked for, and among what; settings that do not go together are refused."""

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
            raise SpecError(f"k = {self.k!r}: give the number of results, a whole number of at least 1.")
        if (self.query is None) == (self.image is None):
            given = "neither" if self.query is None else "both"
            raise InputError(f"query or image: give exactly one of them to search for, got {given}. {EXAMPLE}")
        among_images = self.images is not None or self.index is not None
        if self.query is not None and self.texts is not None:
            raise InputError("query and texts: texts are ranked for an image. Give image instead of query.")
        if among_images == (self.texts is not None):
            given = "both" if among_images else "neither"
            raise InputError(
                f"images (or index) or texts: give exactly one of them to search in, got {given}. {EXAMPLE}"
            )
        if self.text_column is not None and self.texts is None:
            raise InputError("text_column names a column of texts, but no texts are given.")


def search_run(run: Run, request: SearchRequest, progress: Progress | None = None) -> SearchResult:
    """Find the images, or the texts, that are nearest to what is looked for."""
    embedder = Embedder(run.merge_lora())
    texts = validate_texts([request.query] if isinstance(request.query, str) else list(request.query or []))
    if request.query is not None and not texts:
        raise InputError(f"query is an empty list: there is nothing to search for. {EXAMPLE}")
    assert embedder.towers  # another kind of run is refused before anything is read
    import_pillow()
    image = None if request.image is None else Path(request.image)
    if image is not None and not image.exists():
        raise InputError(f"{image}: there is no such image. Check the name and the current folder.")
    if image is not None and image.is_dir():
        raise InputError(f"{image} is a folder. Give an image to search for; a folder to search in is given as images.")
    if request.texts is not None:
        assert image is not None
        where = str(request.texts)
        if not isinstance(request.texts, (str, Path)):
            among, where = validate_texts(list(request.texts), "text"), "the given texts"
        elif where in IMAGES:
            listing = list_images(where, progress=progress)
            among = [caption for one in listing.images for caption in one.captions]
        else:
            among = read_texts(Path(request.texts), request.text_column)
        return search_texts(embedder, image, among, where, request.k)
    queries = [] if image else text_queries(embedder, texts)
    place = Path(request.index) if request.index else None
    opened = open_index(embedder, request.images, place, progress)
    if image:
        queries = [image_query(embedder, image, framed=" framed" in opened.index.header.run)]
    return search_images(embedder, opened, queries, request.k, request.faiss)


def validate_texts(texts: Sequence[object], kind: str = "query") -> list[str]:
    """The texts, each with something in it."""
    for place, text in enumerate(texts, start=1):
        which = kind if len(texts) == 1 else f"{kind} {place}"
        if not isinstance(text, str):
            raise InputError(f"{which} is {text!r} ({type(text).__name__}), not a text. Put it in quotes.")
        if not text.strip():
            raise InputError(f"{which} is empty: there is nothing to search for. As in: --query 'a red heart'")
    return [str(text) for text in texts]


def read_texts(path: Path, column: str | None = None) -> list[str]:
    """Read texts from a file: one per line, or a column of a CSV, TSV or JSONL table."""
    if path.suffix.lower() in {*SEPARATED, ".jsonl"} or column is not None:
        wanted = [Column("text", column, TEXT_COLUMNS)]
        return list(read_table(path, wanted, any_width=False).cells["text"])
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file. Give one with one text per line, or a CSV table.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a text in UTF-8 ({error}).") from None
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise DataError(f"{path}: the file is empty. Give one with one text per line.")
    return found


# Queries and indexes


@dataclass(frozen=True)
class SearchQuery:
    """What is looked for, a text or an image, as a vector."""

    name: str
    vector: Float32[np.ndarray, " shared"]
    note: str = ""
    tokens: np.ndarray | None = None
    image: Path | None = None


def text_queries(embedder: Embedder, texts: Sequence[str]) -> list[SearchQuery]:
    """Texts to look for; one of which the tokenizer knows nothing is refused."""
    vectors, read = embedder.text_vectors(texts)
    for text, known in zip(texts, read.has_known_tokens, strict=True):
        if not known:
            raise InputError(
                f"the query '{text}' has no token that the run's tokenizer knows "
                f"({embedder.run.tokenizer.description}). Use words from the captions."
            )
    return [
        SearchQuery(text, vectors[place], read.notes[place], read.rows.pad([place])[0])
        for place, text in enumerate(texts)
    ]


def image_query(embedder: Embedder, path: Path, framed: bool = False) -> SearchQuery:
    """An image to look for."""
    pixels = decode_image(path, embedder.side, crop_margins=framed)
    return SearchQuery(path.name, embedder.image_vectors(pixels[None])[0], image=path)


@dataclass(frozen=True)
class OpenedIndex:
    """An index with its images, if they are still there, and what was done to update it."""

    index: Index
    images: ImageSource | None
    counts: IndexCounts
    notes: tuple[str, ...] = ()


def open_index(
    embedder: Embedder, images: str | Path | None, folder: Path | None, progress: Progress | None = None
) -> OpenedIndex:
    """Update the index of some images; without any, take the one in `place` as it is."""
    if images is None:
        assert folder is not None
        index = Index.open(folder)
        if index.header.run.partition(" ")[0] != embedder.hash:
            raise RunError(
                f"{folder} holds vectors of another run than {embedder.run.path}. Search it with the run that made it; "
                f"or make it again: lemma search {embedder.run.path} --index {folder} --images {index.header.images}"
            )
        if not len(index):
            raise DataError(f"{folder}: the index is empty. To fill it: --images FOLDER.")
        try:
            source = open_images(index.header.images)
        except (DataError, OSError):  # it can be searched without them
            source = None
        broken = tuple((entry.name, entry.broken) for entry in index.unreadable)
        return OpenedIndex(index, source, IndexCounts(len(index), unreadable=broken))
    source = open_images(images, progress)
    made_by = f"{embedder.fingerprint(source.crop_margins)} {source.name}"
    done = update_index(folder or data_home() / "indexes" / text_hash(made_by)[:32], embedder, source, progress)
    broken = tuple((entry.name, entry.broken) for entry in done.index.unreadable)
    if not len(done.index):
        why = f": {broken[0][0]}: {broken[0][1]}" if broken else ""
        raise DataError(f"{source.name}: it has no image that can be searched ({len(broken)} broken{why}).")
    counts = IndexCounts(len(done.index), done.new, done.removed, broken)
    return OpenedIndex(done.index, source, counts, (done.note,) if done.note else ())


# The nearest vectors


class NearestRows(NamedTuple):
    """The rows nearest to each query, the nearest first, with their scores; of equal ones the earlier row first."""

    rows: Int64[np.ndarray, "queries found"]
    scores: Float32[np.ndarray, "queries found"]


def find_nearest(
    vectors: Float32[np.ndarray, "rows width"],
    queries: Float32[np.ndarray, "queries width"],
    k: int,
    block: int = BLOCK_ROWS,
) -> NearestRows:
    """The k rows with the largest product with each query, block by block: cosines, where all have length 1.

    >>> rows = np.array([[1, 0], [0, 1], [1, 0]], dtype=np.float32)
    >>> found = find(rows, np.array([[0.6, 0.8]], dtype=np.float32), 2)
    >>> found.rows.tolist(), found.scores.round(2).tolist()
    ([[1, 0]], [[0.800000011920929, 0.6000000238418579]])
    """
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    found = min(k, len(vectors))
    rows = [np.zeros(0, dtype=np.int64) for _ in queries]
    scores = [np.zeros(0, dtype=np.float32) for _ in queries]
    for first in range(0, len(vectors), block):
        products = queries @ np.asarray(vectors[first : first + block]).T
        for query, new in enumerate(products):
            places = np.arange(len(new))
            if len(scores[query]) == k:  # only what is above the least so far
                places = np.flatnonzero(new > scores[query][-1])
            if len(places) > k:
                bound = np.partition(new[places], -k)[-k]
                above, level = places[new[places] > bound], places[new[places] == bound]
                places = np.sort(np.concatenate([above, level[: k - len(above)]]))
            joined = np.concatenate([scores[query], new[places]])
            order = np.argsort(-joined, kind="stable")[:k]  # earlier rows come first among equals
            rows[query] = np.concatenate([rows[query], places + first])[order]
            scores[query] = joined[order]
    shape = (len(queries), found)
    return NearestRows(np.array(rows, dtype=np.int64).reshape(shape), np.array(scores, dtype=np.float32).reshape(shape))


def find_nearest_faiss(
    index: Index, queries: Float32[np.ndarray, "queries width"], k: int, num_probes: int | None = None
) -> NearestRows:
    """The k nearest among the vectors of the `looked` cells nearest to each query, by default one cell in sixteen.

    Vectors are divided among √n cells by k-means (Jégou et al. 2011, an inverted file without compression); with all
    cells looked at, the result is exact. The cells are kept next to the index, and made again when it has changed.
    """
    try:
        import faiss  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(
            "faiss is not installed. Install it: pip install 'lemma-lm[faiss]'; or leave it out."
        ) from None
    path = index.folder / f"cells-{index.header.generation}-{index.header.rows}.faiss"
    if not path.exists():
        for old in index.folder.glob("cells-*.faiss"):
            old.unlink(missing_ok=True)
        with atomic_replace(path) as temporary:
            rows, width = index.vectors.shape
            count = max(1, round(math.sqrt(rows)))
            made = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, count, faiss.METRIC_INNER_PRODUCT)
            sample = np.random.default_rng(0).permutation(rows)[: SAMPLES_PER_CELL * count]
            made.train(np.ascontiguousarray(index.vectors[np.sort(sample)]))
            for first in range(0, rows, CLUSTERED_BLOCK):
                made.add(np.ascontiguousarray(index.vectors[first : first + CLUSTERED_BLOCK]))
            faiss.write_index(made, str(temporary))
    cells: Any = faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
    cells.nprobe = min(cells.nlist, num_probes or max(1, cells.nlist // CELLS_PER_PROBE))
    scores, rows = cells.search(np.ascontiguousarray(queries, dtype=np.float32), min(k, len(index)))
    return NearestRows(rows.astype(np.int64), scores.astype(np.float32))


# Searching


def search_images(
    embedder: Embedder, opened: OpenedIndex, queries: Sequence[SearchQuery], k: int, faiss: bool | None = None
) -> SearchResult:
    """The images nearest to each query; a query that is itself among them is left out."""
    index, images = opened.index, opened.images
    reranker = get_reranker(embedder.run)
    wanted = max(k, reranker.spec.candidates if reranker else 0) + 1
    clustered = faiss if faiss is not None else len(index) > FAISS_THRESHOLD and find_spec("faiss") is not None
    vectors = np.stack([query.vector for query in queries])
    nearest = find_nearest_faiss(index, vectors, wanted) if clustered else find_nearest(index.vectors, vectors, wanted)
    answers = []
    for query, rows, scores in zip(queries, *nearest, strict=True):
        own, hits = real_path(query.image) if query.image else None, []
        for row, score in zip(rows[rows >= 0], scores[rows >= 0], strict=True):
            name = index.entry(int(row)).name
            caption, path = (images.caption(name), images.path(name)) if images else ("", None)
            if own is None or path is None or real_path(path) != own:
                hits.append(Hit(0, name, float(score), caption, path=path))
        if reranker and images and query.tokens is not None:
            paths = [hit.path for hit in hits[: reranker.spec.candidates] if hit.path]
            with suppress(DataError):  # as they were if an image cannot be read any more
                pixels = [decode_image(path, embedder.side, crop_margins=images.crop_margins) for path in paths]
                tokens = np.tile(query.tokens, (len(pixels), 1))
                hits = rerank(hits, score_pairs(reranker, np.stack(pixels), tokens))
        answers.append(QueryHits(query.name, _numbered(hits[:k]), query.note, query.image))
    notes = list(opened.notes)
    if reranker and any(hit.reranked_score is None for answer in answers for hit in answer.hits[:1]):
        notes.append("not re-ranked: that needs a text query, and the image files")
    elif reranker:
        notes.append(_reranked_note(reranker))
    where, how = images.name if images else index.header.images, APPROXIMATE if clustered else EXACT
    run = str(embedder.run.path)
    return SearchResult(run, "images", where, tuple(answers), opened.counts, how, index.folder, tuple(notes))


def search_texts(embedder: Embedder, image: Path, texts: Sequence[str], source: str, k: int) -> SearchResult:
    """The texts nearest to an image; those of which the tokenizer knows nothing are left out, and counted."""
    query = image_query(embedder, image)
    vectors, read = embedder.text_vectors(texts)
    known = np.flatnonzero(read.has_known_tokens)
    if not len(known):
        raise InputError(
            f"{source}: the run's tokenizer knows no token of any of the {len(texts):,} texts. "
            "Use words from the captions."
        )
    reranker = get_reranker(embedder.run)
    candidates = reranker.spec.candidates if reranker else 0
    nearest = find_nearest(vectors[known], query.vector[None], max(k, candidates))
    rows = known[nearest.rows[0]]
    hits = [Hit(0, texts[int(row)], float(score)) for row, score in zip(rows, nearest.scores[0], strict=True)]
    unknown = len(texts) - len(known)
    notes = (f"{pluralize(unknown, 'text')} left out: the tokenizer knows no token of them",) if unknown else ()
    if reranker:
        tokens = read.rows.pad(rows[:candidates])
        pixels = decode_image(image, embedder.side)
        hits = rerank(hits, score_pairs(reranker, np.tile(pixels, (len(tokens), 1, 1, 1)), tokens))
        notes += (_reranked_note(reranker),)
    answer = QueryHits(query.name, _numbered(hits[:k]), image=image)
    run = str(embedder.run.path)
    return SearchResult(run, "texts", source, (answer,), IndexCounts(len(known)), EXACT, notes=notes)


def _numbered(hits: Sequence[Hit]) -> tuple[Hit, ...]:
    return tuple(replace(hit, rank=rank) for rank, hit in enumerate(hits, start=1))


# Re-ranking: the first few hits are scored again by attention between patches and words


def get_reranker(run: Run) -> CrossAttentionModel | None:
    """The model of a run that re-ranks; None if it does not."""
    return run.module if isinstance(run.module, CrossAttentionModel) else None


@torch.inference_mode()
def score_pairs(
    model: CrossAttentionModel, pixels: UInt8[np.ndarray, "pairs 3 side side"], tokens: Int64[np.ndarray, "pairs time"]
) -> Float32[np.ndarray, " pairs"]:
    """The logit of each pair of an image and a text: the dual encoder's, and what cross-attention adds to it."""
    device = next(model.parameters()).device
    images, texts = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in (pixels, tokens))
    logits = model.logits(model.towers.patches(images), model.towers.words(texts), texts >= 0)
    return logits.float().cpu().numpy()


def rerank(hits: Sequence[Hit], scores: Float32[np.ndarray, " candidates"]) -> list[Hit]:
    """The first hits ordered by their new scores, equal ones as they were; then the rest.

    >>> hits = [Hit(0, name, 0.5) for name in "abcd"]
    >>> [hit.name for hit in reranked(hits, np.array([0.1, 0.9, 0.1], dtype=np.float32))]
    ['b', 'a', 'c', 'd']
    """
    order = np.argsort(-scores, kind="stable")
    first = [replace(hits[place], reranked_score=float(scores[place])) for place in order]
    return [*first, *hits[len(scores) :]]


def _reranked_note(model: CrossAttentionModel) -> str:
    first = model.spec.candidates
    return f"the first {first} were re-ranked by attention between patches and words; the second score is its logit"
