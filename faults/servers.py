"""A server under slow clients, broken bodies, floods and disconnects: it goes on answering everybody else."""

import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import lemma
from faults import Row, small_run

PATIENCE = 10.0
"""Seconds within which a good request must be answered while others misbehave."""


def servers(folder: Path, share: float, seed: int = 1) -> Iterator[Row]:
    """Misbehaving clients of several kinds, each followed by a good request."""
    chance = random.Random(seed)
    run = small_run(folder, "served")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            lemma.serve(run, port=port)
        finally:
            os._exit(0)
    address = f"http://127.0.0.1:{port}"
    body = json.dumps({"model": run.name, "prompt": "the", "max_tokens": 4}).encode()
    endless = json.dumps({"model": run.name, "prompt": "the", "max_tokens": 10_000, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    bodies = [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"prompt": 1}', b'{"max_tokens": 1e400}', b"[" * 50_000]
    bodies += [
        json.dumps({"model": run.name, "prompt": "the " * 10_000}).encode(),
        b'{"model": "' + b"a" * 100_000 + b'"}',
    ]
    kept: list[socket.socket] = []

    def send(content: bytes, keep: bool = False) -> None:
        one = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        one.sendall(content)
        if keep:
            kept.append(one)
        else:
            one.close()

    def broken() -> None:
        content = chance.choice(bodies)
        send(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content, keep=True)

    def flood() -> None:
        several = [threading.Thread(target=lambda: _asked(address, body)) for _ in range(20)]
        for one in several:
            one.start()
        for one in several:
            one.join()

    clients = {
        "half-open connections": lambda: send(head.encode()[: chance.randrange(len(head))], keep=True),
        "bodies that never come": lambda: send(f"{head}Content-Length: 1000\r\n\r\n{{".encode(), keep=True),
        "broken bodies": broken,
        "disconnects in the answer": lambda: send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body),
        "answers that are never read": lambda: send(
            f"{head}Content-Length: {len(endless)}\r\n\r\n".encode() + endless, keep=True
        ),
        "no HTTP at all": lambda: send(chance.randbytes(500)),
        "floods": flood,
    }
    try:
        _wait(address)
        for what, misbehave in clients.items():
            row = Row("servers", what)
            for _ in range(max(1, round(20 * share))):
                misbehave()
                row.add(_asked(address, body))
            yield row
    finally:
        for one in kept:
            one.close()
        os.kill(child, signal.SIGTERM)
        time.sleep(0.2)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _asked(address: str, body: bytes) -> str | None:
    """What is wrong with the answer to a good request; a 429 that says when to come back is right too."""
    request = Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=PATIENCE) as answer:
            return None if json.load(answer)["choices"] else "an answer without a text"
    except OSError as error:
        busy = getattr(error, "code", 0) == 429 and getattr(error, "headers", {}).get("Retry-After")
        return None if busy else f"{type(error).__name__}: {error}"


def _wait(address: str) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            urlopen(f"{address}/v1/models", timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the server does not begin to answer")
