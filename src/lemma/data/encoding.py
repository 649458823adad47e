"""Encoding of long texts on all cores: child processes that each have the tokenizer and get batches in turn.

A worker is this module run as a program. It reads the tokenizer's settings and then batches of pieces from stdin, and
writes for each batch a message and the ids. (A `ProcessPoolExecutor` would import the user's script again, and threads
of the `tokenizers` library are four times slower per core than `BytePairEncoder`, which caches chunks of text.)
"""

import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import IO

import numpy as np

from lemma.data.store import EncodedText, Piece, encode_pieces
from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError
from lemma.processes import read_message, start_child, write_message

Worker = subprocess.Popen[bytes]


def encode_batches(tokenizer: Tokenizer, batches: Iterable[list[Piece]], processes: int) -> Iterator[EncodedText]:
    """Encode batches of text pieces in `processes` child processes; yield one result per batch, in order.

    At most two batches per process are held in memory.
    """
    workers = [start_worker(tokenizer) for _ in range(processes)]
    idle = deque(workers)

    def encode(batch: list[Piece]) -> EncodedText:
        worker = idle.popleft()  # there are as many threads as workers
        try:
            return _request(worker, batch)
        finally:
            idle.append(worker)

    pending: deque[Future[EncodedText]] = deque()
    threads = ThreadPoolExecutor(processes, "encoding")
    try:
        for batch in batches:
            pending.append(threads.submit(encode, batch))
            if len(pending) > 2 * processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for worker in workers:  # also those in the middle of a batch that nobody waits for
            worker.kill()
        threads.shutdown(cancel_futures=True)
        for worker in workers:
            worker.communicate()


def start_worker(tokenizer: Tokenizer) -> Worker:
    """Start a child process that encodes batches with this tokenizer; return its handle."""
    worker = start_child("lemma.data.encoding", TOKENIZERS_PARALLELISM="false")
    assert worker.stdin is not None
    write_message(worker.stdin, tokenizer.settings())
    return worker


def _request(worker: Worker, batch: list[Piece]) -> EncodedText:
    """Send a batch of pieces to a worker and wait for the encoded text."""
    assert worker.stdin is not None and worker.stdout is not None
    try:
        write_message(worker.stdin, batch)
        answer = read_message(worker.stdout)
        if answer is None:
            raise OSError("without an answer")
        if "error" in answer:
            raise DataError(answer["error"])
        ids = worker.stdout.read(4 * answer["tokens"])
        if len(ids) < 4 * answer["tokens"]:
            raise OSError("in the middle of its answer")
        return EncodedText(np.frombuffer(ids, dtype="<u4"), answer["bytes"], answer["dropped"])
    except OSError as error:
        raise DataError(f"a process that encodes text has ended ({error}). Is there enough memory?") from None


def run_worker(stdin: IO[bytes], stdout: IO[bytes]) -> None:
    """Read a tokenizer's settings and then batches of pieces from `stdin`; write each batch's ids to `stdout`.

    End when `stdin` closes, even in the middle of a batch, as when the parent was killed.
    """
    settings = read_message(stdin)
    if settings is None:
        return
    tokenizer = Tokenizer(**settings)
    while (batch := read_message(stdin)) is not None:
        try:
            encoded = encode_pieces(tokenizer, batch)
        except DataError as error:
            write_message(stdout, {"error": str(error)})
            continue
        answer = {"tokens": len(encoded.ids), "bytes": encoded.bytes, "dropped": encoded.dropped_characters}
        write_message(stdout, answer, encoded.ids.astype("<u4").tobytes())


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        run_worker(sys.stdin.buffer, sys.stdout.buffer)
