"""From pieces of text to ids, on all cores: processes that each have the tokenizer, and get batches of pieces in turn.

A worker is this module run as a program. It reads the tokenizer and then batches from stdin, each as its length and
JSON, and writes for each a line of JSON and the ids.
"""

import json
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import IO, Any

import numpy as np

from lemma.data.store import EncodedText, Piece, encode_pieces
from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError
from lemma.processes import child_environment, python_command


def encode_batches(tokenizer: Tokenizer, batches: Iterable[list[Piece]], processes: int) -> Iterator[EncodedText]:
    """Encode batches in their order by several processes; of each at most one batch waits for those before it."""
    workers = [start_worker(tokenizer) for _ in range(processes)]
    idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def encode(batch: list[Piece]) -> EncodedText:
        worker = idle.get()
        try:
            return _request(worker, batch)
        finally:
            idle.put(worker)

    ahead: deque[Future[EncodedText]] = deque()
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
    """Start a process that encodes with this tokenizer, in a session of its own: Ctrl-C reaches who started it."""
    worker = subprocess.Popen(
        python_command("-m", "lemma.data.encoding"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(TOKENIZERS_PARALLELISM="false"),
        start_new_session=True,
    )
    assert worker.stdin is not None
    _write(worker.stdin, tokenizer.settings())
    return worker


def _request(worker: "subprocess.Popen[bytes]", batch: list[Piece]) -> EncodedText:
    assert worker.stdin is not None and worker.stdout is not None
    try:
        _write(worker.stdin, batch)
        said = json.loads(worker.stdout.readline())
        if "error" in said:
            raise DataError(said["error"])
        ids = worker.stdout.read(4 * said["tokens"])
        if len(ids) < 4 * said["tokens"]:
            raise OSError("in the middle of its answer")
        return EncodedText(np.frombuffer(ids, dtype="<u4"), said["bytes"], said["left_out"])
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(f"a process that encodes text has ended ({error}). Is there enough memory?") from None


def _write(stream: IO[bytes], value: Any) -> None:
    content = json.dumps(value, ensure_ascii=False).encode()
    stream.write(len(content).to_bytes(8))
    stream.write(content)
    stream.flush()


def run_worker(stdin: IO[bytes], stdout: IO[bytes]) -> None:
    """Encode what is read until it ends, be it in the middle of a batch: who wrote it was killed."""
    tokenizer: Tokenizer | None = None
    while len(head := stdin.read(8)) == 8 and len(content := stdin.read(int.from_bytes(head))) == int.from_bytes(head):
        value = json.loads(content)
        if tokenizer is None:
            tokenizer = Tokenizer(**value)
            continue
        try:
            found = encode_pieces(tokenizer, value)
        except DataError as error:
            stdout.write(json.dumps({"error": str(error)}).encode() + b"\n")
        else:
            said = {"tokens": len(found.ids), "bytes": found.bytes, "left_out": found.dropped_characters}
            stdout.write(json.dumps(said).encode() + b"\n" + found.ids.astype("<u4").tobytes())
        stdout.flush()


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        run_worker(sys.stdin.buffer, sys.stdout.buffer)
