"""From pieces of text to ids, on all cores: processes that each have the tokenizer, and get batches of pieces in turn.

A worker is this module run as a program. It reads the tokenizer and then batches from stdin, each as its length and
JSON, and writes for each a line of JSON and the ids.
"""

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import IO, Any

import numpy as np
from jaxtyping import Integer

from lemma.data.text import DOCUMENT_END
from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError

BATCH = 1 << 18
"""Characters that are encoded as one batch."""
WORTH_PROCESSES = 1 << 25
"""Bytes from which on text is encoded by several processes; below, starting them takes longer."""
SLOW = ("byte-pairs", "pretrained")
"""The kinds of tokenizer that take longer than sending text to a process and ids back."""

CONTINUES, BEGINS, FOLLOWS = range(3)
Piece = tuple[str, int]
"""A text, and whether it goes on with a document, begins the first one, or one after another."""


@dataclass(frozen=True)
class Encoded:
    """Pieces of text as ids, the UTF-8 bytes they express and the characters they could not."""

    ids: Integer[np.ndarray, "tokens"]
    bytes: int = 0
    left_out: int = 0


def utf8_size(text: str) -> int:
    """The number of bytes a text takes in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def encode_pieces(tokenizer: Tokenizer, pieces: Sequence[Piece]) -> Encoded:
    """Encode pieces in order, with one `<eos>` between two documents if the tokenizer has it.

    Before each document comes what a pretrained model expects at the begin of a text.
    """
    found: list[np.ndarray] = []
    size = missing = 0
    for text, place in pieces:
        if place == FOLLOWS and tokenizer.eos is not None and tokenizer.eos not in tokenizer.before:
            found.append(np.array([tokenizer.eos]))
        if place != CONTINUES and tokenizer.before and not tokenizer.after:  # an encoder's windows have their own
            found.append(np.array(tokenizer.before))
        ids, left_out = tokenizer.encode_known(text, continued=place == CONTINUES)
        found.append(ids)
        size, missing = size + utf8_size(tokenizer.decode(ids) if left_out else text), missing + left_out
    return Encoded(found[0] if len(found) == 1 else np.concatenate(found), size, missing)


def batched(documents: Iterable[Iterable[str]]) -> Iterator[list[Piece]]:
    """The pieces of documents in batches; an end of document within one begins another."""
    batch: list[Piece] = []
    size, next_place = 0, BEGINS
    for document in documents:
        for text in document:
            if text == DOCUMENT_END:
                next_place = FOLLOWS
                continue
            batch.append((text, next_place))
            size, next_place = size + len(text), CONTINUES
            if size >= BATCH:
                yield batch
                batch, size = [], 0
        next_place = FOLLOWS
    if batch:
        yield batch


def encode_batches(tokenizer: Tokenizer, batches: Iterable[list[Piece]], processes: int) -> Iterator[Encoded]:
    """Encode batches in their order; of each process at most one waits for those before it."""
    if processes == 1:
        yield from (encode_pieces(tokenizer, batch) for batch in batches)
        return
    workers = [start_worker(tokenizer) for _ in range(processes)]
    idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def encode(batch: list[Piece]) -> Encoded:
        worker = idle.get()
        try:
            return _asked(worker, batch)
        finally:
            idle.put(worker)

    ahead: deque[Future[Encoded]] = deque()
    threads = ThreadPoolExecutor(processes, "encoding")
    try:
        for batch in batches:
            ahead.append(threads.submit(encode, batch))
            if len(ahead) > 2 * processes:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        for worker in workers:  # also those in the middle of a batch that nobody waits for
            worker.kill()
        threads.shutdown(cancel_futures=True)
        for worker in workers:
            worker.communicate()


def start_worker(tokenizer: Tokenizer) -> "subprocess.Popen[bytes]":
    """Start a process that encodes with this tokenizer."""
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "lemma.data.encoding"]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert worker.stdin is not None
    _write(worker.stdin, tokenizer.settings())
    return worker


def _asked(worker: "subprocess.Popen[bytes]", batch: list[Piece]) -> Encoded:
    assert worker.stdin is not None and worker.stdout is not None
    try:
        _write(worker.stdin, batch)
        said = json.loads(worker.stdout.readline())
        if "error" in said:
            raise DataError(said["error"])
        ids = np.frombuffer(worker.stdout.read(4 * said["tokens"]), dtype="<u4")
        return Encoded(ids, said["bytes"], said["left_out"])
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(f"a process that encodes text has ended ({error}). Is there enough memory?") from None


def _write(stream: IO[bytes], value: Any) -> None:
    content = json.dumps(value, ensure_ascii=False).encode()
    stream.write(len(content).to_bytes(8))
    stream.write(content)
    stream.flush()


def work(stdin: IO[bytes], stdout: IO[bytes]) -> None:
    """Encode what is read until it ends."""
    tokenizer: Tokenizer | None = None
    while size := int.from_bytes(stdin.read(8)):
        value = json.loads(stdin.read(size))
        if tokenizer is None:
            tokenizer = Tokenizer(**value)
            continue
        try:
            found = encode_pieces(tokenizer, value)
        except DataError as error:
            stdout.write(json.dumps({"error": str(error)}).encode() + b"\n")
        else:
            said = {"tokens": len(found.ids), "bytes": found.bytes, "left_out": found.left_out}
            stdout.write(json.dumps(said).encode() + b"\n" + found.ids.astype("<u4").tobytes())
        stdout.flush()


if __name__ == "__main__":
    work(sys.stdin.buffer, sys.stdout.buffer)
