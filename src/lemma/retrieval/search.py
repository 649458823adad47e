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
from lemma.retrieval.index import Index, OpenedIndex, count_index, open_images, update_index
from lemma.retrieval.result import Hit, IndexCounts, QueryHits, SearchResult
from lemma.runs.load import Run

EXAMPLE = "As in: lemma search RUN --images FOLDER --query 'a red heart'"
TEXT_COLUMNS = frozenset({"texts", "caption", "captions", "sentence", "title", "description", "name", "query"})
BLOCK_ROWS = 1 << 14  # rows multiplied at once: their scores fit the cache, and no more of a mapped file is touched
EXACT = "exact"
APPROXIMATE = "approximate: faiss searched the nearest cells"
FAISS_THRESHOLD = 1_000_000  # with more vectors faiss is used, if it is installed
CELLS_PER_PROBE = 16  # one cell in this many is searched
FAISS_BLOCK_ROWS = 1 << 16
SAMPLES_PER_CELL = 64  # vectors per cell that the cells are learned from


# Requests


@dataclass(frozen=True)
class SearchRequest:
    """Queries and the images to search; settings that do not go together raise an error."""

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
            count = "neither" if self.query is None else "both"
            raise InputError(f"query or image: give exactly one of them to search for, got {count}. {EXAMPLE}")
        in_images = self.images is not None or self.index is not None
        if self.query is not None and self.texts is not None:
            raise InputError("query and texts: texts are ranked for an image. Give image instead of query.")
        if in_images == (self.texts is not None):
            count = "both" if in_images else "neither"
            raise InputError(
                f"images (or index) or texts: give exactly one of them to search in, got {count}. {EXAMPLE}"
            )
        if self.text_column is not None and self.texts is None:
            raise InputError("text_column names a column of texts, but no texts are given.")


def search_run(run: Run, request: SearchRequest, progress: Progress | None = None) -> SearchResult:
    """Search with a run's model: images for a text or image query, or texts for an image query.

    The request names the query, the images or texts to search in, and the number of hits.
    """
    embedder = Embedder(run.merge_lora())
    query_texts = validate_texts([request.query] if isinstance(request.query, str) else list(request.query or []))
    if request.query is not None and not query_texts:
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
        texts, source = _read_request_texts(request.texts, request.text_column, progress)
        return search_texts(embedder, image, texts, source, request.k)
    queries = [] if image else text_queries(embedder, query_texts)
    opened = open_index(embedder, request.images, Path(request.index) if request.index else None, progress)
    if image:
        queries = [image_query(embedder, image, crop_margins=" framed" in opened.index.header.run)]
    return search_images(embedder, opened, queries, request.k, request.faiss)


def _read_request_texts(
    texts: str | Path | Sequence[str], column: str | None, progress: Progress | None
) -> tuple[list[str], str]:
    """Return the texts to search in (of a file, a list or a built-in set), and a description of their source."""
    if not isinstance(texts, str | Path):
        return validate_texts(list(texts), "text"), "the given texts"
    if str(texts) in IMAGES:
        listing = list_images(str(texts), progress=progress)
        return [caption for image in listing.examples for caption in image.captions], str(texts)
    return read_texts(Path(texts), column), str(texts)


def validate_texts(texts: Sequence[object], kind: str = "query") -> list[str]:
    """Return the texts; raise InputError if one is empty or not a string. `kind` names them in the error."""
    for number, text in enumerate(texts, start=1):
        name = kind if len(texts) == 1 else f"{kind} {number}"
        if not isinstance(text, str):
            raise InputError(f"{name} is {text!r} ({type(text).__name__}), not a text. Put it in quotes.")
        if not text.strip():
            raise InputError(f"{name} is empty: there is nothing to search for. As in: --query 'a red heart'")
    return [str(text) for text in texts]


def read_texts(path: Path, column: str | None = None) -> list[str]:
    """Read texts from a file: one per line, or `column` of a CSV, TSV or JSONL table."""
    if path.suffix.lower() in {*SEPARATED, ".jsonl"} or column is not None:
        return list(read_table(path, [Column("text", column, TEXT_COLUMNS)], any_width=False).cells["text"])
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file. Give one with one text per line, or a CSV table.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a text in UTF-8 ({error}).") from None
    texts = [line.strip() for line in lines if line.strip()]
    if not texts:
        raise DataError(f"{path}: the file is empty. Give one with one text per line.")
    return texts


# Queries and indexes


@dataclass(frozen=True)
class SearchQuery:
    """A text or an image to search for, with its vector."""

    name: str
    vector: Float32[np.ndarray, " shared"]
    note: str = ""  # what of the text was not read
    tokens: np.ndarray | None = None
    image: Path | None = None


def text_queries(embedder: Embedder, texts: Sequence[str]) -> list[SearchQuery]:
    """Embed texts as queries; raise InputError for a text without any token that the tokenizer knows."""
    vectors, tokenized = embedder.text_vectors(texts)
    for text, is_known in zip(texts, tokenized.is_known, strict=True):
        if not is_known:
            raise InputError(
                f"the query '{text}' has no token that the run's tokenizer knows "
                f"({embedder.run.tokenizer.description}). Use words from the captions."
            )
    return [
        SearchQuery(text, vectors[index], tokenized.notes[index], tokenized.rows.pad([index])[0])
        for index, text in enumerate(texts)
    ]


def image_query(embedder: Embedder, path: Path, crop_margins: bool = False) -> SearchQuery:
    """Embed an image file as a query; `crop_margins` removes transparent margins."""
    pixels = decode_image(path, embedder.image_side, crop_margins=crop_margins)
    return SearchQuery(path.name, embedder.image_vectors(pixels[None])[0], image=path)


def open_index(
    embedder: Embedder, images: str | Path | None, folder: Path | None, progress: Progress | None = None
) -> OpenedIndex:
    """Update and open the index of a folder or built-in set of images; without images, open the one in `folder`.

    By default the index is in the data folder.
    """
    if images is None:
        assert folder is not None
        return _open_existing(embedder, folder)
    source = open_images(images, progress)
    key = text_hash(f"{embedder.fingerprint(source.crop_margins)} {source.name}")[:32]
    opened = update_index(folder or data_home() / "indexes" / key, embedder, source, progress)
    if not opened.counts.indexed:
        unreadable = opened.counts.unreadable
        example = f": {unreadable[0][0]}: {unreadable[0][1]}" if unreadable else ""
        raise DataError(f"{source.name}: it has no image that can be searched ({len(unreadable)} broken{example}).")
    return opened


def _open_existing(embedder: Embedder, folder: Path) -> OpenedIndex:
    """Open the index in a folder unchanged; raise RunError if another run made it."""
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
    return OpenedIndex(index, source, count_index(index))


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
    """Find for each query the k rows of `vectors` with the largest dot product, `block` rows at a time.

    Dot products are cosines if all vectors have length 1.

    >>> rows = np.array([[1, 0], [0, 1], [1, 0]], dtype=np.float32)
    >>> nearest = find_nearest(rows, np.array([[0.6, 0.8]], dtype=np.float32), 2)
    >>> nearest.rows.tolist(), nearest.scores.round(2).tolist()
    ([[1, 0]], [[0.800000011920929, 0.6000000238418579]])
    """
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    rows = [np.zeros(0, dtype=np.int64) for _ in queries]
    scores = [np.zeros(0, dtype=np.float32) for _ in queries]
    for first in range(0, len(vectors), block):
        products = queries @ np.asarray(vectors[first : first + block]).T
        for query, new in enumerate(products):
            candidates = np.arange(len(new))
            if len(scores[query]) == k:  # only those above the least score so far
                candidates = np.flatnonzero(new > scores[query][-1])
            merged = np.concatenate([scores[query], new[candidates]])
            order = np.argsort(-merged, kind="stable")[:k]  # earlier rows come first among equals
            rows[query] = np.concatenate([rows[query], candidates + first])[order]
            scores[query] = merged[order]
    shape = (len(queries), min(k, len(vectors)))
    return NearestRows(np.array(rows, dtype=np.int64).reshape(shape), np.array(scores, dtype=np.float32).reshape(shape))


def find_nearest_faiss(
    index: Index, queries: Float32[np.ndarray, "queries width"], k: int, num_probes: int | None = None
) -> NearestRows:
    """Find the k nearest vectors with faiss, in the `num_probes` cells nearest to each query, by default 1 of 16.

    Vectors are divided among √n cells by k-means (Jégou et al. 2011, an inverted file without compression); if all
    cells are searched, the result is exact. The cells are stored in the index folder, and made again when the index
    changes.
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
            num_cells = max(1, round(math.sqrt(rows)))
            built = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, num_cells, faiss.METRIC_INNER_PRODUCT)
            sample = np.random.default_rng(0).permutation(rows)[: SAMPLES_PER_CELL * num_cells]
            built.train(np.ascontiguousarray(index.vectors[np.sort(sample)]))
            for first in range(0, rows, FAISS_BLOCK_ROWS):
                built.add(np.ascontiguousarray(index.vectors[first : first + FAISS_BLOCK_ROWS]))
            faiss.write_index(built, str(temporary))
    cells: Any = faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
    cells.nprobe = min(cells.nlist, num_probes or max(1, cells.nlist // CELLS_PER_PROBE))
    scores, rows = cells.search(np.ascontiguousarray(queries, dtype=np.float32), min(k, len(index)))
    return NearestRows(rows.astype(np.int64), scores.astype(np.float32))


# Searching


def search_images(
    embedder: Embedder, opened: OpenedIndex, queries: Sequence[SearchQuery], k: int, faiss: bool | None = None
) -> SearchResult:
    """Find the k images nearest to each query; a query image that is itself in the index is left out.

    `faiss` selects approximate (True) or exact (False) search; None chooses by size.
    """
    index, images = opened.index, opened.images
    reranker = get_reranker(embedder.run)
    count = max(k, reranker.spec.candidates if reranker else 0) + 1
    use_faiss = faiss if faiss is not None else len(index) > FAISS_THRESHOLD and find_spec("faiss") is not None
    vectors = np.stack([query.vector for query in queries])
    nearest = find_nearest_faiss(index, vectors, count) if use_faiss else find_nearest(index.vectors, vectors, count)
    answers = []
    for query, rows, scores in zip(queries, *nearest, strict=True):
        query_path, hits = real_path(query.image) if query.image else None, []
        for row, score in zip(rows[rows >= 0], scores[rows >= 0], strict=True):
            name = index.entry(int(row)).name
            caption, path = (images.caption(name), images.path(name)) if images else ("", None)
            if query_path is None or path is None or real_path(path) != query_path:
                hits.append(Hit(0, name, float(score), caption, path=path))
        if reranker and images and query.tokens is not None:
            paths = [hit.path for hit in hits[: reranker.spec.candidates] if hit.path]
            with suppress(DataError):  # not re-ranked if an image can no longer be read
                pixels = [decode_image(path, embedder.image_side, crop_margins=images.crop_margins) for path in paths]
                tokens = np.tile(query.tokens, (len(pixels), 1))
                hits = rerank(hits, score_pairs(reranker, np.stack(pixels), tokens))
        answers.append(QueryHits(query.name, _number_hits(hits[:k]), query.note, query.image))
    notes = [opened.note] if opened.note else []
    if reranker and any(hit.reranked_score is None for answer in answers for hit in answer.hits[:1]):
        notes.append("not re-ranked: that needs a text query, and the image files")
    elif reranker:
        notes.append(_rerank_note(reranker))
    return SearchResult(
        run=str(embedder.run.path),
        kind="images",
        source=images.name if images else index.header.images,
        answers=tuple(answers),
        counts=opened.counts,
        method=APPROXIMATE if use_faiss else EXACT,
        index=index.folder,
        notes=tuple(notes),
    )


def search_texts(embedder: Embedder, image: Path, texts: Sequence[str], source: str, k: int) -> SearchResult:
    """Find the k texts nearest to an image; texts without any known token are skipped and counted.

    `source` describes the texts in the result.
    """
    query = image_query(embedder, image)
    vectors, tokenized = embedder.text_vectors(texts)
    usable = np.flatnonzero(tokenized.is_known)
    if not len(usable):
        raise InputError(
            f"{source}: the run's tokenizer knows no token of any of the {len(texts):,} texts. "
            "Use words from the captions."
        )
    reranker = get_reranker(embedder.run)
    candidates = reranker.spec.candidates if reranker else 0
    nearest = find_nearest(vectors[usable], query.vector[None], max(k, candidates))
    rows = usable[nearest.rows[0]]
    hits = [Hit(0, texts[int(row)], float(score)) for row, score in zip(rows, nearest.scores[0], strict=True)]
    unknown = len(texts) - len(usable)
    notes = (f"{pluralize(unknown, 'text')} left out: the tokenizer knows no token of them",) if unknown else ()
    if reranker:
        tokens = tokenized.rows.pad(rows[:candidates])
        pixels = np.tile(decode_image(image, embedder.image_side), (len(tokens), 1, 1, 1))
        hits = rerank(hits, score_pairs(reranker, pixels, tokens))
        notes += (_rerank_note(reranker),)
    answer = QueryHits(query.name, _number_hits(hits[:k]), image=image)
    run = str(embedder.run.path)
    return SearchResult(run, "texts", source, (answer,), IndexCounts(len(usable)), EXACT, notes=notes)


def _number_hits(hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """Return the hits with ranks from 1 in their order."""
    return tuple(replace(hit, rank=rank) for rank, hit in enumerate(hits, start=1))


# Re-ranking: the first few hits are scored again by attention between patches and words


def get_reranker(run: Run) -> CrossAttentionModel | None:
    """Return the re-ranking model of a run; None if the run is a plain dual encoder."""
    return run.module if isinstance(run.module, CrossAttentionModel) else None


@torch.inference_mode()
def score_pairs(
    model: CrossAttentionModel, pixels: UInt8[np.ndarray, "pairs 3 side side"], tokens: Int64[np.ndarray, "pairs time"]
) -> Float32[np.ndarray, " pairs"]:
    """Return the logit of each image–text pair: the dual encoder's plus that of cross-attention."""
    device = next(model.parameters()).device
    images, texts = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in (pixels, tokens))
    logits = model.logits(model.towers.patches(images), model.towers.words(texts), texts >= 0)
    return logits.float().cpu().numpy()


def rerank(hits: Sequence[Hit], scores: Float32[np.ndarray, " candidates"]) -> list[Hit]:
    """Sort the first `len(scores)` hits by their new scores, equal ones in the old order; the other hits follow.

    >>> hits = [Hit(0, name, 0.5) for name in "abcd"]
    >>> [hit.name for hit in rerank(hits, np.array([0.1, 0.9, 0.1], dtype=np.float32))]
    ['b', 'a', 'c', 'd']
    """
    order = np.argsort(-scores, kind="stable")
    first = [replace(hits[index], reranked_score=float(scores[index])) for index in order]
    return [*first, *hits[len(scores) :]]


def _rerank_note(model: CrossAttentionModel) -> str:
    """Return a note on how many hits of each query the model re-ranks."""
    first = model.spec.candidates
    return f"the first {first} were re-ranked by attention between patches and words; the second score is its logit"
