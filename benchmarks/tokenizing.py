"""How fast does text become byte pairs? Lemma's way, on one core and on all, against the tokenizers library alone.

Run: python -m benchmarks.tokenizing [--size MEGABYTES] [--text FILE]
"""

import argparse
import os
import resource
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.compare import machine
from benchmarks.memory import generate_text
from lemma.data.encoding import encode_batches
from lemma.data.store import SAMPLE, EncodedText, batch_pieces, encode_pieces
from lemma.data.text import open_text, read_pieces, sample_text
from lemma.data.tokenizers import Tokenizer, train_tokenizer
from lemma.spec.data import BytePairs

VOCABULARY = 8192


def encode_with_library(tokenizer: Tokenizer, path: Path) -> int:
    """Encode the lines of a file with the library's own batches, on as many threads as it takes; count the ids."""
    engine, count, lines, size = tokenizer._engine, 0, [], 0
    with path.open(encoding="utf-8", newline="") as file:
        for line in file:
            lines.append(line)
            size += len(line)
            if size >= 1 << 22:
                count += _encoded(engine, lines)
                lines, size = [], 0
    return count + _encoded(engine, lines)


def _encoded(engine: object, lines: list[str]) -> int:
    encodings = engine.encode_batch_fast(lines, add_special_tokens=False)  # pyright: ignore
    return len(np.concatenate([np.array(encoding.ids, dtype=np.uint16) for encoding in encodings])) if lines else 0


def by_lemma(tokenizer: Tokenizer, path: Path, processes: int) -> int:
    """Encode a file as `prepare` does; count the ids."""
    batches = batch_pieces([read_pieces(open_text(path), tokenizer.kind)])
    encoded: Iterable[EncodedText] = (encode_pieces(tokenizer, batch) for batch in batches)
    if processes > 1:
        encoded = encode_batches(tokenizer, batches, processes)
    return sum(len(encoding.ids) for encoding in encoded)


def peak_megabytes() -> str:
    """The most memory that this process has held, and the largest of the processes that it started and that ended."""
    current, largest = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return f"{current / unit:,.0f} MB, in a worker {largest / unit:,.0f} MB"


def main(arguments: Sequence[str] = ()) -> int:
    """Print megabytes per second for each way."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tokenizing", description=__doc__)
    parser.add_argument("--size", type=int, default=1000, help="megabytes of generated text (default 1000)")
    parser.add_argument("--text", type=Path, help="a file of your own instead")
    args = parser.parse_args(arguments)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with TemporaryDirectory(prefix="lemma-tokenizing-") as folder:
        path = args.text or Path(folder) / "text.txt"
        if args.text is None:
            generate_text(path, args.size * 1_000_000)
        megabytes = path.stat().st_size / 1e6
        windows = sample_text([open_text(path)], SAMPLE)
        pieces = (piece for window in windows for piece in read_pieces(window, "byte-pairs"))
        started = time.perf_counter()
        tokenizer = train_tokenizer(BytePairs(vocabulary=VOCABULARY), pieces)
        print(f"{megabytes:,.0f} MB through {tokenizer.description}; {machine()}")
        print(f"trained on {SAMPLE / 1e6:.1f} MB in {time.perf_counter() - started:.1f} s", flush=True)
        contestants = {f"Lemma, {cores} processes": lambda: by_lemma(tokenizer, path, cores)} if cores > 1 else {}
        contestants["Lemma, one process"] = lambda: by_lemma(tokenizer, path, 1)
        contestants["tokenizers alone, all threads"] = lambda: encode_with_library(tokenizer, path)
        for name, run in contestants.items():
            started, before = time.perf_counter(), os.times()
            count = run()
            seconds, after = time.perf_counter() - started, os.times()
            used = sum(after[:4]) - sum(before[:4])
            print(
                f"{name:<30} {megabytes / seconds:7.1f} MB/s, {megabytes / used:.1f} MB per second of processor   "
                f"{count:,} ids, {used:.1f} s of processor; peak memory so far {peak_megabytes()}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
