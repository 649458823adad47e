"""A server under slow clients, broken bodies, floods, disconnects, looping templates and failing engines."""

import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch

import lemma
from faults import Row, small_run
from lemma.adaptation.adapt import adapt_model
from lemma.generation.engine import BatchEngine
from lemma.spec.recipe import AdaptationSpec, Lora

PATIENCE = 10.0
"""Seconds within which a good request must be answered while others misbehave."""


def servers(folder: Path, fraction: float, seed: int = 1) -> Iterator[Row]:
    """Misbehaving clients, looping chat templates, engines that cannot be made, and streams of one adapted run."""
    run, trials = small_run(folder, "served"), max(1, round(20 * fraction))
    yield from _misbehaving_clients(run, trials, random.Random(seed))
    yield _looping_templates(run, max(1, trials // 4))
    yield _failing_engines(run, trials, seed)
    yield _adapted_streams(run, trials, random.Random(seed))


@contextmanager
def _serving(work: Callable[[int], object]) -> Iterator[tuple[str, int]]:
    """A server in a child process, which `work` opens at a port; its address and the child's id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            work(port)
        finally:
            os._exit(0)
    try:
        _wait(f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}", child
    finally:
        if _ended_after(child, signal.SIGTERM, 0.2) is None:
            _ended_after(child, signal.SIGKILL, PATIENCE)


def _ended_after(child: int, sent: signal.Signals, limit: float) -> float | None:
    """Send a signal to a child; return the seconds until it ended, or None if it did not within the limit."""
    start = time.monotonic()
    try:
        os.kill(child, sent)
        while time.monotonic() < start + limit:
            if os.waitpid(child, os.WNOHANG)[0]:
                return time.monotonic() - start
            time.sleep(0.02)
    except (ChildProcessError, ProcessLookupError):  # it ended before
        return 0.0
    return None


def _misbehaving_clients(run: Path, trials: int, chance: random.Random) -> Iterator[Row]:
    """Misbehaving clients of several kinds, each followed by a good request."""
    with _serving(lambda port: lemma.serve(run, port=port)) as (address, _):
        port = int(address.rpartition(":")[2])
        body = json.dumps({"model": run.name, "prompt": "the", "max_tokens": 4}).encode()
        endless = json.dumps({"model": run.name, "prompt": "the", "max_tokens": 10_000, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        bodies = [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"prompt": 1}', b'{"max_tokens": 1e400}', b"[" * 50_000]
        bodies += [
            json.dumps({"model": run.name, "prompt": "the " * 10_000}).encode(),
            b'{"model": "' + b"a" * 100_000 + b'"}',
        ]
        sockets: list[socket.socket] = []

        def send(content: bytes, keep: bool = False) -> None:
            client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
            client.sendall(content)
            if keep:
                sockets.append(client)
            else:
                client.close()

        def send_broken() -> None:
            content = chance.choice(bodies)
            send(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content, keep=True)

        def flood() -> None:
            threads = [threading.Thread(target=lambda: _send_request(address, body)) for _ in range(20)]
            for client in threads:
                client.start()
            for client in threads:
                client.join()

        clients = {
            "half-open connections": lambda: send(head.encode()[: chance.randrange(len(head))], keep=True),
            "bodies that never come": lambda: send(f"{head}Content-Length: 1000\r\n\r\n{{".encode(), keep=True),
            "broken bodies": send_broken,
            "disconnects in the answer": lambda: send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body),
            "answers that are never read": lambda: send(
                f"{head}Content-Length: {len(endless)}\r\n\r\n".encode() + endless, keep=True
            ),
            "no HTTP at all": lambda: send(chance.randbytes(500)),
            "floods": flood,
        }
        try:
            for description, misbehave in clients.items():
                row = Row("servers", description)
                for _ in range(trials):
                    misbehave()
                    row.add(_send_request(address, body))
                yield row
        finally:
            for client in sockets:
                client.close()


LOOPING = "".join(f"{{% for {name} in range(99999) %}}" for name in "abc") + "{% endfor %}" * 3
GRACE = 1.0
"""Seconds that requests have left when the server with a looping template is stopped."""


def _looping_templates(run: Path, trials: int) -> Row:
    """Conversations for a run whose chat template loops: others are answered, and the server ends when told to."""

    def serve(port: int) -> None:
        loaded = lemma.load(run)
        loaded.tokenizer.config["chat_template"] = LOOPING
        lemma.serve(loaded, port=port, grace=GRACE)

    row = Row("servers", "chat templates that loop")
    chat = json.dumps({"messages": [{"role": "user", "content": "the"}]}).encode()
    body = json.dumps({"prompt": "the", "max_tokens": 4}).encode()
    for _ in range(trials):
        with _serving(serve) as (address, child):
            for _ in range(5):
                threading.Thread(
                    target=_send_request, args=(address, chat, "/v1/chat/completions"), daemon=True
                ).start()
            time.sleep(0.3)
            row.add(_health(address, {200}))
            row.add(_send_request(address, body))
            limit = GRACE + 3
            ended = _ended_after(child, signal.SIGTERM, limit)
            row.add(None if ended is not None else f"the server does not end within {limit:g} s of SIGTERM")
    return row


def _failing_engines(run: Path, trials: int, seed: int) -> Row:
    """An engine whose steps fail and that often cannot be made again: each request gets its text or the reason."""

    def serve(port: int) -> None:
        chance, make, step = random.Random(seed), BatchEngine.__init__, BatchEngine.step
        num_engines = 0

        def make_or_fail(engine: BatchEngine, *args: Any, **settings: Any) -> None:
            nonlocal num_engines
            num_engines += 1
            if num_engines > 1 and chance.random() < 0.5:
                raise RuntimeError("CUDA error: out of memory")
            make(engine, *args, **settings)

        def step_or_fail(engine: BatchEngine) -> Any:
            if chance.random() < 0.2:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return step(engine)

        BatchEngine.__init__, BatchEngine.step = make_or_fail, step_or_fail  # pyright: ignore[reportAttributeAccessIssue]
        lemma.serve(run, port=port)

    row = Row("servers", "engines that fail and cannot be made")
    with _serving(serve) as (address, _):
        for trial in range(trials):
            body = json.dumps({"prompt": "the", "max_tokens": 4, "stream": bool(trial % 2)}).encode()
            row.add(_failed_with_reason(address, body))
            row.add(_health(address, {200, 503}))
    return row


def _failed_with_reason(address: str, body: bytes) -> str | None:
    """Return why the answer of a server with a failing engine is wrong: neither text nor a well-formed error."""
    request = Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=PATIENCE) as answer:
            content = answer.read().decode()
            return None if "choices" in content or '"error"' in content else f"an answer without a text: {content[:80]}"
    except HTTPError as error:
        message = json.load(error)["error"]["message"]
        is_explained = "out of memory" in message or "internal error" in message
        return None if error.code == 500 and is_explained else f"{error.code}: {message}"
    except (OSError, HTTPException) as error:
        return f"{type(error).__name__}: {error}"


def _health(address: str, expected: set[int]) -> str | None:
    """Return why the answer of /health is wrong, if it is."""
    try:
        with urlopen(f"{address}/health", timeout=PATIENCE) as answer:
            status = answer.status
    except HTTPError as error:
        status = error.code
    except OSError as error:
        return f"/health: {type(error).__name__}: {error}"
    return None if status in expected else f"/health: {status}"


def _adapted_streams(run: Path, trials: int, chance: random.Random) -> Row:
    """Two streams of one run with LoRA, advanced in any order: each writes what it writes alone."""
    loaded = lemma.load(run)
    model = adapt_model(loaded.module, Lora(rank=2)).model
    torch.manual_seed(chance.randrange(1000))
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.5)
    adaptation = AdaptationSpec(method=Lora(rank=2), base=str(run), base_hash="0")
    adapted = replace(loaded, module=model, adaptation=adaptation)
    row = Row("servers", "two streams of one LoRA run")

    def stream(seed: int) -> Any:
        return lemma.generate(adapted, "the", tokens=40, temperature=1.0, seed=seed, stream=True)

    for trial in range(trials):
        expected = ["".join(stream(2 * trial + number)) for number in range(2)]
        streams, pieces = {number: stream(2 * trial + number) for number in range(2)}, ["", ""]
        while streams:
            number = chance.choice(list(streams))
            piece = next(streams[number], None)
            if piece is None:
                del streams[number]
            else:
                pieces[number] += piece
        row.add(None if pieces == expected else f"{pieces} instead of {expected}")
    return row


def _send_request(address: str, body: bytes, path: str = "/v1/completions") -> str | None:
    """Return why the answer to a valid request is wrong; a 429 with a time to retry is right, too."""
    request = Request(f"{address}{path}", body, {"Content-Type": "application/json"})
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
