"""Streams, disconnecting and slow clients, failures and shutdown."""

import dataclasses
import http.client
import json
import logging
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from lemma.processes import child_environment, python_command
from lemma.runs.load import load
from lemma.serving import server
from served_runs import running
from stand_ins import Script

pytest.importorskip("fastapi", reason="needs FastAPI")


def pieces(address: str, **words: Any) -> list[str]:
    body = json.dumps({"stream": True, "temperature": 0, **words}).encode()
    request = urllib.request.Request(f"{address}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.read().decode("ascii").split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    return [choice["text"] for chunk in chunks for choice in chunk["choices"] if choice["text"]]


def test_streams_send_complete_characters(runs: dict[str, Path]) -> None:
    run = load(runs["bytes"])
    script = run.tokenizer.encode("ñ€x😀日").tolist()
    assert len(script) == 2 + 3 + 1 + 4 + 3
    spoken = dataclasses.replace(run, module=Script(run.tokenizer.vocabulary, script))
    with running(spoken) as address:
        full = pieces(address, prompt="a", max_tokens=len(script), logprobs=0)
        assert full == ["ñ", "€", "x", "😀", "日"]  # with logprobs each token is sent separately
        assert "".join(pieces(address, prompt="a", max_tokens=len(script))) == "ñ€x😀日"
        assert pieces(address, prompt="a", max_tokens=len(script), stop="€x") == ["ñ"]
        assert "".join(pieces(address, prompt="a", max_tokens=len(script), stop=["日!", "😀x"])) == "ñ€x😀日"


class Slow(Script):
    """A slow model that counts its steps and the most concurrent ones."""

    steps = now = most = 0

    def forward(self, tokens: torch.Tensor, state: Any = None) -> Any:
        self.steps, self.now = self.steps + 1, self.now + 1
        self.most = max(self.most, self.now)
        time.sleep(0.005)
        self.now -= 1
        return super().forward(tokens, state)


def test_each_run_is_stepped_by_one_thread(runs: dict[str, Path]) -> None:
    run = load(runs["trigram"])
    model = Slow(run.tokenizer.vocabulary, [1, 2, 3, 4] * 20)
    with running(dataclasses.replace(run, module=model)) as address, ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda _: "".join(pieces(address, prompt="a", max_tokens=40)), range(4)))
    assert (
        model.most == 1 and len({*texts}) == 1 and len(texts[0]) == 40 and model.steps < 4 * 41
    )  # requests are batched


@pytest.mark.parametrize("stream", [True, False])
def test_client_disconnect_ends_generation(stream: bool, runs: dict[str, Path]) -> None:
    run, model = slow_run(runs)
    with running(run) as address:
        with send(address, max_tokens=2000, stream=stream):
            while model.steps < 20:
                time.sleep(0.01)
        time.sleep(0.2)
        done = model.steps
        assert pieces(address, prompt="a", max_tokens=2)  # served after the first request was cancelled
        time.sleep(0.1)
        assert done < 400 and model.steps <= done + 3


def send(address: str, **words: Any) -> socket.socket:
    """Send a request and leave the response unread."""
    body = json.dumps({"prompt": "a", "temperature": 0, **words}).encode()
    host, port = address.removeprefix("http://").split(":")
    line = socket.create_connection((host, int(port)))
    head = ["host: x", "content-type: application/json", f"content-length: {len(body)}", "", ""]
    line.sendall("\r\n".join(["POST /v1/completions HTTP/1.1", *head]).encode() + body)
    return line


def slow_run(runs: dict[str, Path]) -> tuple[Any, Slow]:
    run = load(runs["trigram"])
    model = Slow(run.tokenizer.vocabulary, [1, 2, 3, 4] * 500)
    return dataclasses.replace(run, module=model), model


def fetch(address: str, path: str = "/v1/completions", **words: Any) -> tuple[int, Any, str]:
    body = json.dumps({"prompt": "a", "temperature": 0, **words}).encode() if "v1" in path else None
    request = urllib.request.Request(address + path, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def test_excess_requests_get_429_with_retry_after(runs: dict[str, Path]) -> None:
    run, model = slow_run(runs)
    with running(run, batch=1, waiting=2) as address:
        lines = [send(address, max_tokens=1500) for _ in range(3)]
        while model.steps < 5:
            time.sleep(0.01)
        time.sleep(0.1)
        status, headers, output = fetch(address)
        assert status == 429 and "has 3 requests already" in output and 1 <= int(headers["retry-after"]) <= 60
        lines.pop().close()  # a waiting client leaves and frees its slot
        time.sleep(0.1)
        lines.append(send(address, max_tokens=1500))
        time.sleep(0.1)
        assert fetch(address)[0] == 429
        for line in lines:
            line.close()
        time.sleep(0.1)
        assert fetch(address, max_tokens=2)[0] == 200


def test_disconnected_client_frees_its_row(runs: dict[str, Path]) -> None:
    run, model = slow_run(runs)
    with running(run, batch=2) as address, ThreadPoolExecutor(1) as pool:
        going = pool.submit(pieces, address, prompt="a", max_tokens=100)
        line = send(address, max_tokens=2000, stream=True)
        line.recv(10)
        line.close()
        start = model.steps
        assert "".join(pieces(address, prompt="a", max_tokens=2))
        assert model.steps - start < 40 and len("".join(going.result(20))) == 100


def test_requests_exceeding_the_time_limit_fail(runs: dict[str, Path]) -> None:
    run, _ = slow_run(runs)
    with running(run, seconds=0.3) as address:
        status, _, output = fetch(address, max_tokens=2000)
        assert status == 504 and "more than 0.3 s" in output
        status, _, output = fetch(address, max_tokens=2000, stream=True)
        assert status == 200 and "more than 0.3 s" in output.strip().rsplit("data: ", 1)[1]


def test_slow_and_silent_clients_do_not_block_others(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lemma.serving.server.SECONDS_FOR_HEAD", 0.3)
    monkeypatch.setattr("lemma.serving.requests.SECONDS_FOR_BODY", 0.3)
    with running(runs["trigram"]) as address:
        host, port = address.removeprefix("http://").split(":")
        silent, halting, lingering = (socket.create_connection((host, int(port)), timeout=5) for _ in range(3))
        halting.sendall(b"POST /v1/completions HTT")
        head = (
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{"
        )
        lingering.sendall(head)
        start = time.monotonic()
        assert fetch(address)[0] == 200 and time.monotonic() - start < 0.3
        assert silent.recv(10) == b"" and halting.recv(10) == b""  # disconnected by the server
        assert b" 408 " in lingering.recv(100)


def test_disconnect_during_upload_is_not_logged_as_error(
    runs: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("uvicorn.error")
    with running(runs["trigram"]) as address:
        log.setLevel(logging.ERROR)
        log.addHandler(caplog.handler)
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as line:
            head = ["POST /v1/completions HTTP/1.1", "host: x", "content-type: application/json", "content-length: 50"]
            line.sendall("\r\n".join([*head, "", "{"]).encode())
            while not running.server.server_state.tasks:
                time.sleep(0.01)
        while running.server.server_state.tasks:
            time.sleep(0.01)
    log.removeHandler(caplog.handler)
    assert not caplog.records  # no traceback in the server's terminal


def test_stopping_server_finishes_short_requests(runs: dict[str, Path]) -> None:
    run, model = slow_run(runs)
    with running(run, grace=0.7) as address, ThreadPoolExecutor(2) as pool:
        short = pool.submit(pieces, address, prompt="a", max_tokens=50)
        long = pool.submit(fetch, address, max_tokens=2000, stream=True)
        while model.steps < 20:
            time.sleep(0.01)
        running.server.handle_exit(2, None)
        assert len("".join(short.result(20))) == 50
        status, _, output = long.result(20)
        assert status == 200 and "the server is stopping" in output.strip().rsplit("data: ", 1)[1]
    assert model.steps < 400


def open_stalled_connection(address: str) -> socket.socket:
    """Open a connection that requests a long response and reads nothing."""
    line = send(address, prompt="a" * 30_000, max_tokens=1, echo=True, n=16, stream=True)
    service: Any = running.server._service
    [item] = service.served.values()
    while not (item.jobs and all(job.first_event_at for job in item.jobs)):
        time.sleep(0.01)
    time.sleep(0.1)
    assert len(item.jobs) == 1  # the response exceeds the socket buffers
    return line


@pytest.fixture
def small_send_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrink the server's send buffers."""

    def bind(host: str, port: int, real: Any = server.bind) -> socket.socket:
        bound = real(host, port)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return bound

    monkeypatch.setattr(server, "bind", bind)


@pytest.mark.usefixtures("small_send_buffer")
def test_non_reading_client_is_disconnected(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SECONDS_FOR_READER", 0.4)
    with running(runs["trigram"]) as address, open_stalled_connection(address):
        [item] = running.server._service.served.values()
        time.sleep(0.8)
        assert not item.jobs


@pytest.mark.usefixtures("small_send_buffer")
def test_non_reading_client_frees_its_row_after_timeout(runs: dict[str, Path]) -> None:
    with running(runs["trigram"], seconds=0.5) as address, open_stalled_connection(address):
        [item] = running.server._service.served.values()
        time.sleep(1.5)
        assert not item.jobs


@pytest.mark.usefixtures("small_send_buffer")
@pytest.mark.parametrize("signals", [1, 2])
def test_non_reading_client_does_not_delay_shutdown(signals: int, runs: dict[str, Path]) -> None:
    with running(runs["trigram"], grace=0.2 if signals == 1 else 20) as address, open_stalled_connection(address):
        for _ in range(signals):
            running.server.handle_exit(2, None)
        start = time.monotonic()
        while running.server.server_state.tasks:
            time.sleep(0.01)
        assert time.monotonic() - start < 2 and not running.server.force_exit


def test_slow_page_does_not_delay_shutdown(runs: dict[str, Path]) -> None:
    release = threading.Event()
    with running(runs["trigram"], grace=0.0) as address, ThreadPoolExecutor(1) as pool:
        [item] = running.server._service.served.values()
        item.count_page = lambda: str(release.wait(8))
        request = pool.submit(fetch, address, "/count?model=trigram")
        while not running.server.server_state.tasks:
            time.sleep(0.01)
        running.server.handle_exit(2, None)
        start = time.monotonic()
        while running.server.server_state.tasks:  # a remaining task would be killed with a traceback
            time.sleep(0.01)
        assert time.monotonic() - start < 2
        release.set()
        with pytest.raises(http.client.RemoteDisconnected):
            request.result(4)


def test_server_shutdown_waits_for_model_threads(runs: dict[str, Path]) -> None:
    run, model = slow_run(runs)
    step = model.forward
    model.forward = lambda *given: (time.sleep(0.5), step(*given))[1]  # pyright: ignore[reportAttributeAccessIssue]
    with running(run, grace=0.0) as address, send(address, max_tokens=20):
        time.sleep(0.2)
        running.server.handle_exit(2, None)
        [item] = running.server._service.served.values()
    assert not item.thread._thread.is_alive()


def test_server_continues_after_a_failed_step(runs: dict[str, Path]) -> None:
    run, model = slow_run(runs)
    with running(run) as address:
        model.forward = lambda tokens, state=None: 1 / 0  # pyright: ignore[reportAttributeAccessIssue]
        assert fetch(address)[0] == 500
        del model.forward
        assert fetch(address)[0] == 200


def test_stream_of_a_failing_model_ends_with_an_error(runs: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    run, model = slow_run(runs)
    with running(run) as address, ThreadPoolExecutor(1) as pool:
        log = logging.getLogger("uvicorn.error")
        log.setLevel(logging.ERROR)
        log.addHandler(caplog.handler)
        answer = pool.submit(fetch, address, max_tokens=2000, stream=True)
        while model.steps < 20:
            time.sleep(0.01)
        model.forward = lambda tokens, state=None: 1 / 0  # pyright: ignore[reportAttributeAccessIssue]
        status, _, output = answer.result(10)  # the stream is complete
        assert status == 200 and "internal error" in output.strip().rsplit("data: ", 1)[1]
        log.removeHandler(caplog.handler)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]


def broken_engine(run: Any, rows: int) -> Any:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_requests_fail_until_the_engine_can_be_recreated(runs: dict[str, Path]) -> None:
    run, model = slow_run(runs)
    with running(run) as address, ThreadPoolExecutor(2) as pool:
        [item] = running.server._service.served.values()
        engine = item.thread._make_engine
        waiting = [pool.submit(fetch, address, max_tokens=2000, stream=stream) for stream in (True, False)]
        while model.steps < 5:
            time.sleep(0.01)
        item.thread._make_engine = lambda: broken_engine(run, 1)
        model.forward = lambda tokens, state=None: 1 / 0  # pyright: ignore[reportAttributeAccessIssue]
        (streamed, _, events), (failed, _, output) = (answer.result(10) for answer in waiting)
        assert streamed == 200 and "illegal memory access" in events and failed == 500 and "cannot be created" in output
        for stream in (True, False):
            status, _, output = fetch(address, stream=stream)
            assert status == 500 and "engine cannot be created (RuntimeError: CUDA error: an illegal" in output
        status, _, output = fetch(address, "/health")
        assert status == 503 and "illegal memory access" in output and fetch(address, "/metrics")[0] == 200
        del model.forward
        item.thread._make_engine = engine
        assert fetch(address, max_tokens=2)[0] == 200 and fetch(address, "/health")[0] == 200


def test_server_without_engine_does_not_start(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from lemma.api import application

    monkeypatch.setattr("lemma.generation.engine.BatchEngine.__init__", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        application(runs["trigram"])


def test_request_rejected_by_the_engine_fails_immediately(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lemma.errors import InputError
    from lemma.generation.engine import BatchEngine

    def refuse(*_: Any) -> None:
        raise InputError("prompt: no room.")

    with running(runs["trigram"]) as address:
        monkeypatch.setattr(BatchEngine, "add", refuse)
        for more in ({}, {"echo": True}, {"stream": True, "echo": True}):
            status, _, output = fetch(address, **more)
            assert status == 400 and "no room" in output


def test_error_in_one_request_does_not_affect_others(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from lemma.serving.jobs import GenerationJob

    run, _ = slow_run(runs)
    tell = GenerationJob.receive

    def receive_or_fail(job: GenerationJob, events: Any) -> None:
        if job.request.max_tokens == 7:
            raise ZeroDivisionError
        tell(job, events)

    monkeypatch.setattr(GenerationJob, "receive", receive_or_fail)
    with running(run) as address, ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(fetch, address, max_tokens=size) for size in (7, 20, 7, 20, 7, 20)]
        assert [answer.result(10)[0] for answer in answers] == [500, 200] * 3


def test_attention_page_runs_in_the_model_thread(runs: dict[str, Path]) -> None:
    threads: list[str] = []
    with running(runs["decoder"]) as address:
        [item] = running.server._service.served.values()

        def look(text: str, real: Any = item.look) -> Any:
            threads.append(threading.current_thread().name)
            return real(text)

        item.look = look
        status, _, page = fetch(address, "/look?model=decoder&text=the")
        assert status == 200 and "Attention of decoder" in page and threads == ["lemma decoder"]


@pytest.fixture
def hanging(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a run whose chat template hangs until the end of the test."""
    run, release = load(runs["trigram"]), threading.Event()
    run.tokenizer.config["chat_template"] = "{{ messages }}"
    monkeypatch.setattr("lemma.data.tokenizers.render_chat", lambda *_, **__: release.wait(60) and "a")
    yield run
    release.set()


def test_hanging_chat_template_does_not_block_others(hanging: Any, runs: dict[str, Path]) -> None:
    with running(hanging, runs["decoder"], seconds=2.0) as address, ThreadPoolExecutor(6) as pool:
        chats = [
            pool.submit(ask_chat, address, model="trigram", messages=[{"role": "user", "content": "a"}])
            for _ in range(6)  # more than rendering threads
        ]
        time.sleep(0.3)
        for path, more in (("/health", {}), ("/v1/completions", {"model": "trigram"}), ("/v1/completions", {})):
            start = time.monotonic()
            status, _, _ = fetch(address, path, **{"model": "decoder", "max_tokens": 2, **more})
            assert status == 200 and time.monotonic() - start < 1
        assert {chat.result(10)[0] for chat in chats} == {504}
        assert not running.server._service.served["trigram"].jobs


def ask_chat(address: str, **words: Any) -> tuple[int, str]:
    body = json.dumps(words).encode()
    request = urllib.request.Request(f"{address}/v1/chat/completions", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_server_stops_despite_a_hanging_template(hanging: Any) -> None:
    with running(hanging, grace=0.3) as address, ThreadPoolExecutor(1) as pool:
        chat = pool.submit(ask_chat, address, messages=[{"role": "user", "content": "a"}])
        time.sleep(0.3)
        start = time.monotonic()
        running.server.handle_exit(2, None)
        status, output = chat.result(5)
        assert status == 503 and "stopping" in output and time.monotonic() - start < 2


def test_process_exits_despite_a_hanging_template(runs: dict[str, Path]) -> None:
    program = """
import sys, threading, urllib.request, lemma, lemma.data.tokenizers
run = lemma.load(sys.argv[1])
run.tokenizer.config["chat_template"] = "{{ messages }}"
hanging = threading.Event()
lemma.data.tokenizers.render_chat = lambda *_, **__: (print("hanging", flush=True), threading.Event().wait())
def chat(address):
    body = b'{"messages": [{"role": "user", "content": "a"}]}'
    request = urllib.request.Request(address + "/v1/chat/completions", body, {"content-type": "application/json"})
    threading.Thread(target=urllib.request.urlopen, args=(request,), daemon=True).start()
lemma.serve(run, port=0, grace=0.2, on_ready=lambda ready: chat(ready.address))
"""
    command = python_command("-c", program, str(runs["trigram"]))
    with subprocess.Popen(
        command, env=child_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout and server.stdout.readline() == "hanging\n"
        start = time.monotonic()
        server.send_signal(signal.SIGTERM)
        server.wait(20)
        assert time.monotonic() - start < 5


def test_count_page_is_cached_with_bounded_waiting(runs: dict[str, Path]) -> None:
    from fastapi.testclient import TestClient

    from lemma.api import application
    from lemma.serving.pages import MAX_WAITING_PAGES

    built, counted = application(runs["trigram"]), []
    client, service = TestClient(built), built.state.service
    item = service.served["trigram"]
    item.count_page = lambda: counted.append(1) or "<p>12</p>"
    for _ in range(3):
        assert "<p>12</p>" in client.get("/count?model=trigram").text
    service.pages_waiting = MAX_WAITING_PAGES
    answer = client.get("/count?model=trigram")
    assert answer.status_code == 429 and answer.headers["retry-after"] and len(counted) == 1
