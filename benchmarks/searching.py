"""How fast is the search? Exact over vectors mapped from the disk, warm and cold; building an index; faiss if there."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from lemma.data.tokenizers import train_tokenizer
from lemma.models.build import build
from lemma.retrieval.embedding import Embedder
from lemma.retrieval.index import Index, IndexEntry, append_entries, create_index, open_images, update_index
from lemma.retrieval.search import find_nearest, find_nearest_faiss
from lemma.runs.load import Run
from lemma.spec.data import ImagesSpec, Words
from lemma.spec.models import DualEncoder
from lemma.spec.recipe import Recipe
from lemma.studies.timing import quartiles

SIZES = (10_000, 100_000, 1_000_000)
WIDTH, TOP, ROUNDS, IMAGES = 128, 10, 25, 512
TARGET = 0.020
"""Seconds for one query among 100,000 vectors, warm."""


def unit(rows: int, seed: int) -> np.ndarray:
    """Directions around a thousand random ones, as images of a thousand kinds would have them."""
    kinds = np.random.default_rng(0).standard_normal((1000, WIDTH), dtype=np.float32)
    random = np.random.default_rng([1, seed])
    vectors = kinds[random.integers(0, len(kinds), rows)] + random.standard_normal((rows, WIDTH), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def build_index(folder: Path, rows: int) -> Index:
    """An index of random vectors on the disk."""
    folder.mkdir()
    head = create_index(folder, "benchmark", WIDTH, "nowhere").header
    for first in range(0, rows, 100_000):
        count = min(100_000, rows - first)
        entries = [IndexEntry(f"{first + number}.png", 1, 1, "0") for number in range(count)]
        head = append_entries(folder, head, entries, unit(count, first))
    return Index.open(folder)


def timed(work: Callable[[], object], rounds: int = ROUNDS, before: Callable[[], object] | None = None) -> list[float]:
    """Seconds of each round."""
    spent = []
    for _ in range(rounds):
        if before:
            before()
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return spent


def format_times(name: str, spent: list[float]) -> str:
    """The median and the quartiles, in milliseconds."""
    spread = quartiles(spent).scale(1000)
    return f"  {name:<44}{spread.median:9.2f} ms  (quartiles {spread.low:.2f} to {spread.high:.2f})"


def forget(index: Index) -> None:
    """Ask the system to drop the vectors from its memory, as far as it will."""
    handle = os.open(index.folder / index.header.vectors, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def cold(folder: Path, query: np.ndarray) -> Iterator[float]:
    """Seconds of searching an index just opened whose vectors were dropped."""
    for _ in range(3):
        index = Index.open(folder)
        forget(index)
        yield from timed(lambda index=index: find_nearest(index.vectors, query, TOP), 1)


def search_times(folder: Path, rows: int) -> float:
    """Print what searching this many vectors takes; return the median of one query."""
    index, query, queries = build_index(folder, rows), unit(1, 9), unit(32, 10)
    print(f"{rows:,} vectors of {WIDTH} numbers, the {TOP} nearest")
    opening = timed(lambda: Index.open(folder), 3)
    print(format_times("opening the index (names read)", opening))
    find_nearest(index.vectors, query, TOP)
    warm = timed(lambda: find_nearest(index.vectors, query, TOP))
    print(format_times("one query, warm", warm))
    print(format_times("32 queries at once, warm", timed(lambda: find_nearest(index.vectors, queries, TOP), 7)))
    print(format_times("one query, vectors dropped from memory", list(cold(folder, query))), flush=True)
    if find_spec("faiss") is not None:
        start = time.perf_counter()
        approximate = find_nearest_faiss(index, queries, TOP)
        built = time.perf_counter() - start
        fraction = recall(index, queries, approximate.rows)
        print(f"  faiss: cells made in {built:.1f} s; of the true {TOP} it finds {fraction:.0%}")
        print(format_times("faiss, one query, warm", timed(lambda: find_nearest_faiss(index, query, TOP))), flush=True)
    return statistics.median(warm)


def recall(index: Index, queries: np.ndarray, rows: np.ndarray) -> float:
    """Return the fraction of the exact results that the approximate search returns."""
    exact = find_nearest(index.vectors, queries, TOP).rows
    return float(np.mean([len(set(a) & set(b)) / TOP for a, b in zip(exact.tolist(), rows.tolist(), strict=True)]))


def untrained(folder: Path) -> Embedder:
    """The preset's towers with their initial weights."""
    tokenizer = train_tokenizer(Words(), ["a red heart"])
    spec = DualEncoder().with_data_sizes({"vocabulary": tokenizer.vocabulary + 3})
    run = Run(folder, spec, Recipe(), ImagesSpec(images="emoji"), "", tokenizer, build(spec, 0.0).eval(), None)
    return Embedder(run)


def build_times(folder: Path) -> None:
    """Print how fast images become an index, and what a look at one that is up to date takes."""
    from PIL import Image

    images, random = folder / "pictures", np.random.default_rng(0)
    images.mkdir()
    for number in range(IMAGES):
        small = random.integers(0, 256, (9, 9, 3)).astype(np.uint8)
        Image.fromarray(small).resize((72, 72)).save(images / f"{number}.png")
    embedder, index_folder = untrained(folder), folder / "built"
    torch.manual_seed(0)
    start = time.perf_counter()
    update_index(index_folder, embedder, open_images(images))
    spent = time.perf_counter() - start
    print(f"{IMAGES} images of 72 × 72 (PNG), the preset's towers")
    print(f"  {'read, embedded and written':<44}{IMAGES / spent:9,.0f} images/s")
    again = timed(lambda: update_index(index_folder, embedder, open_images(images)), 5)
    print(format_times("looked through again, nothing new", again), flush=True)


def main() -> int:
    """Print all; return 1 if 100,000 vectors take longer than the target."""
    medians = {}
    with tempfile.TemporaryDirectory(prefix="lemma-search-") as folder:
        for rows in SIZES:
            medians[rows] = search_times(Path(folder) / str(rows), rows)
        build_times(Path(folder))
    met = medians[100_000] < TARGET
    print(f"100,000 vectors in {1000 * TARGET:.0f} ms: {'met' if met else 'MISSED'}")
    return int(not met)
