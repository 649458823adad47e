"""Plain HTTP: what is refused, with which status and which words."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from lemma.api import application
from lemma.errors import InputError, RunError
from search_runs import untrained_run


def ask(address: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Send a request as it is; the status, the JSON and the headers of the answer."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    given = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    request = urllib.request.Request(address + path, data, given)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read()), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), dict(error.headers)


WRONG: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"model": "trigam"}, 404, "model", "Did you mean 'trigram'"),
    ({"model": None}, 400, "model", "which of trigram, decoder"),
    ({"temperature": -0.5}, 400, "temperature", "greater than or equal to 0"),
    ({"temperature": "hot"}, 400, "temperature", "valid number"),
    ({"temperature": True}, 400, "temperature", "valid number"),
    ({"top_p": 1.5}, 400, "top_p", "less than or equal to 1"),
    ({"max_tokens": 0}, 400, "max_tokens", "greater than or equal to 1"),
    ({"max_tokens": 4097}, 400, "max_tokens", "less than or equal to 4096"),
    ({"n": 17}, 400, "n", "less than or equal to 16"),
    ({"n": 16, "prompt": ["a"] * 5}, 400, "n", "80 texts"),
    ({"prompt": ["a"] * 65}, 400, "prompt", "at most 64"),
    ({"prompt": [464, 3797]}, 400, "prompt", "not tokens"),
    ({"prompt": "Ω"}, 400, None, "'Ω'"),
    ({"prompt": "\ud800"}, 400, None, "surrogate"),
    ({"model": "bytes", "prompt": "ab" * 20_000}, 400, None, "at most 32,768"),
    ({"stop": ["a"] * 5}, 400, "stop", "at most 4"),
    ({"stop": ""}, 400, "stop", "end the text at once"),
    ({"logprobs": 0}, 400, "logprobs", "not supported"),
    ({"presence_penalty": 1}, 400, "presence_penalty", "not supported"),
    ({"temprature": 1}, 400, "temprature", "Did you mean 'temperature'"),
]


@pytest.mark.parametrize(("words", "status", "param", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_word_is_named(
    words: dict[str, Any], status: int, param: str | None, message: str, address: str
) -> None:
    for more in ({}, {"stream": True}):
        got, told, _ = ask(address, "/v1/completions", {"model": "trigram", "prompt": "a", **words, **more})
        assert (got, told["error"]["param"], told["error"]["type"]) == (status, param, "invalid_request_error")
        assert message in told["error"]["message"]


def test_words_that_ask_for_nothing_are_taken(address: str) -> None:
    neutral = {"presence_penalty": 0, "logit_bias": {}, "logprobs": None, "best_of": 1, "user": "me", "suffix": None}
    assert ask(address, "/v1/completions", {"model": "trigram", "prompt": "a", **neutral})[0] == 200


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"model": "trigram", "temperature": NaN}']
)
def test_a_body_that_is_no_object_of_json_is_refused(body: bytes, address: str) -> None:
    status, told, _ = ask(address, "/v1/completions", body)
    assert status == 400 and "JSON" in told["error"]["message"]


def test_bodies_have_a_size_and_a_kind(address: str) -> None:
    status, told, _ = ask(address, "/v1/completions", {"model": "trigram", "prompt": "a" * 1_100_000})
    assert status == 413 and "1,048,576" in told["error"]["message"]
    assert ask(address, "/v1/completions", {"model": "trigram"}, content_type="text/plain")[0] == 415


def test_what_is_not_there_is_said_in_the_same_form(address: str) -> None:
    status, told, _ = ask(address, "/v1/embeddings", {"input": "a"})
    assert status == 404 and "/v1/embeddings" in told["error"]["message"]
    assert ask(address, "/v1/completions")[0] == 405
    assert ask(address, "/look?model=decoder")[1]["error"]["param"] == "text"


def test_another_sites_page_gets_nothing(address: str, runs: dict[str, Path]) -> None:
    status, _, headers = ask(address, "/v1/models", origin="https://elsewhere.example")
    assert status == 200 and not [name for name in headers if name.lower().startswith("access-control")]
    assert ask(address, "/v1/models", sec_fetch_site="cross-site")[0] == 403


def test_a_server_for_this_machine_answers_to_local_names_only(runs: dict[str, Path]) -> None:
    testing = pytest.importorskip("fastapi.testclient", reason="needs the package that FastAPI's test client needs")
    app = application(runs["trigram"], hosts={"localhost"})
    for host, status in (("localhost:8000", 200), ("elsewhere.example", 403)):
        assert testing.TestClient(app).get("/v1/models", headers={"host": host}).status_code == status


def test_runs_that_write_nothing_are_refused_with_what_they_are_for(tmp_path: Path, runs: dict[str, Path]) -> None:
    with pytest.raises(RunError, match="lemma search"):
        application(untrained_run(tmp_path / "pictures"))
    with pytest.raises(RunError, match="both named trigram"):
        application(runs["trigram"], runs["trigram"])
    with pytest.raises(RunError, match="at least one"):
        application()


def test_without_fastapi_it_says_what_to_install(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lemma.api.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"fastapi, not installed here: pip install 'lemma-lm\[serve\]'"):
        application(runs["trigram"])


def test_tabs_show_what_the_verbs_do(address: str, runs: dict[str, Path]) -> None:
    def page(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(address + path, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    import lemma

    status, heads = page("/look?model=decoder&text=the+cat")
    assert status == 200 and "Attention of decoder" in heads and "1 layer, 2 heads, 7 tokens" in heads
    assert (
        page("/look?model=trigram&text=the")[0] == 400 and "no attention heads" in page("/look?model=trigram&text=a")[1]
    )
    assert page("/look?model=decoder&text=" + "a" * 4001)[0] == 400
    total = sum(parameter.numel() for parameter in lemma.load(runs["trigram"]).module.parameters())
    assert f"{total:,}" in page("/count?model=trigram")[1]
    assert json.loads(page("/evaluate?model=trigram")[1])["perplexity"] == 12.25
