"""`lemma serve` on the command line."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from lemma.cli.main import main
from served_runs import untrained

pytest.importorskip("fastapi", reason="needs FastAPI")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("served"), "trigram")


def test_serve_runs_until_ctrl_c_and_exits_with_0(run: Path) -> None:
    words = [sys.executable, "-m", "lemma", "serve", str(run), "--port", "0", "--json"]
    quiet = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=quiet) as server:
        assert server.stdout and server.stderr
        printed = ""
        for line in server.stdout:
            printed += line
            if line == "}\n":
                break
        ready = json.loads(printed)
        assert ready["models"] == ["trigram"] and ready["local"] is True
        with urllib.request.urlopen(f"{ready['address']}/v1/models", timeout=20) as answer:
            assert json.loads(answer.read())["data"][0]["id"] == "trigram"
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
        assert server.stderr.read() == "" and server.stdout.read() == ""


def exit_status(*words: object) -> int:
    with pytest.raises(SystemExit) as left:
        main(["serve", *map(str, words)])
    return int(left.value.code or 0)


def test_occupied_port_is_rejected_with_a_free_suggestion(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        assert exit_status(run, "--port", port) == 2
    output = capsys.readouterr().err
    assert f"port {port} on 127.0.0.1 is in use. The next free one: --port " in output
    free = int(output.split("--port ")[1])
    assert port < free <= port + 100
    with socket.socket() as other:
        other.bind(("127.0.0.1", free))


def test_unservable_runs_are_rejected(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(tmp_path / "none", "--port", 0) == 2
    assert "there is no such folder" in " ".join(capsys.readouterr().err.split())
    assert exit_status(run, "--host", "no.such.host.invalid") == 2 and "no.such.host" in capsys.readouterr().err
    assert exit_status(run, "--port", 70000) == 2 and "65535" in capsys.readouterr().err


def test_public_host_without_key_prints_a_warning() -> None:
    from lemma.serving.server import Ready

    words = str(Ready("http://0.0.0.0:8000", ("a",), local=False))
    assert "there is no password" in words and max(map(len, words.splitlines())) <= 80
    assert "password" not in str(Ready("http://127.0.0.1:8000", ("a",), local=True))
