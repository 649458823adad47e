"""Streams: whole characters, stop strings that come in pieces, clients that leave."""

import dataclasses
import json
import socket
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from lemma.runs.load import load
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


def test_a_character_of_several_tokens_comes_whole(runs: dict[str, Path]) -> None:
    run = load(runs["bytes"])
    script = run.tokenizer.encode("ñ€x😀日").tolist()
    assert len(script) == 2 + 3 + 1 + 4 + 3
    spoken = dataclasses.replace(run, module=Script(run.tokenizer.vocabulary, script))
    with running(spoken) as address:
        assert pieces(address, prompt="a", max_tokens=len(script)) == ["ñ", "€", "x", "😀", "日"]
        assert pieces(address, prompt="a", max_tokens=len(script), stop="€x") == ["ñ"]
        assert "".join(pieces(address, prompt="a", max_tokens=len(script), stop=["日!", "😀x"])) == "ñ€x😀日"


class Slow(Script):
    """Counts its steps and how many are taken at once, and takes its time over them."""

    steps = now = most = 0

    def forward(self, tokens: torch.Tensor, state: Any = None) -> Any:
        self.steps, self.now = self.steps + 1, self.now + 1
        self.most = max(self.most, self.now)
        time.sleep(0.005)
        self.now -= 1
        return super().forward(tokens, state)


def test_a_run_does_one_thing_at_a_time(runs: dict[str, Path]) -> None:
    run = load(runs["trigram"])
    model = Slow(run.tokenizer.vocabulary, [1, 2, 3, 4] * 20)
    with running(dataclasses.replace(run, module=model)) as address, ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda _: "".join(pieces(address, prompt="a", max_tokens=40)), range(4)))
    assert model.most == 1 and len({*texts}) == 1 and len(texts[0]) == 40


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_the_writing(stream: bool, runs: dict[str, Path]) -> None:
    run = load(runs["trigram"])
    model = Slow(run.tokenizer.vocabulary, [1, 2, 3, 4] * 500)
    with running(dataclasses.replace(run, module=model)) as address:
        body = json.dumps({"prompt": "a", "max_tokens": 2000, "stream": stream, "temperature": 0}).encode()
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as line:
            head = ["host: x", "content-type: application/json", f"content-length: {len(body)}", "", ""]
            line.sendall("\r\n".join(["POST /v1/completions HTTP/1.1", *head]).encode() + body)
            while model.steps < 20:
                time.sleep(0.01)
        time.sleep(0.4)
        done = model.steps
        assert pieces(address, prompt="a", max_tokens=2)  # its turn has come
        time.sleep(0.1)
        assert done < 400 and model.steps <= done + 3


def test_too_many_waiting_requests_are_refused_and_one_that_is_done_makes_room(runs: dict[str, Path]) -> None:
    from lemma.api import application
    from lemma.serving.requests import Refusal
    from lemma.serving.runs import MOST_WAITING

    served, go = application(runs["trigram"]).state.served["trigram"], threading.Event()
    waiting = [served.submit(go.wait) for _ in range(MOST_WAITING)]
    with pytest.raises(Refusal) as refused:
        served.submit(go.wait)
    assert refused.value.status == 429
    go.set()
    assert all(future.result(5) for future in waiting)
    assert served.submit(lambda: 7).result(5) == 7
