"""Plain HTTP requests: validation errors, status codes, messages."""

import dataclasses
import gzip
import inspect
import json
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

import lemma
from lemma.api import application
from lemma.cli.main import main
from lemma.errors import InputError, RunError
from lemma.spec.models import Graph


def ask(address: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Send a raw request and return status, JSON and headers of the response."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    settings = {
        "content-type": "application/json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    request = urllib.request.Request(address + path, data, settings)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read()), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), dict(error.headers)


WRONG: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"model": "trigam"}, 404, "model", "Did you mean 'trigram'"),
    ({"model": None}, 400, "model", "which of trigram, decoder"),
    ({"temperature": -0.5}, 400, "temperature", "greater than or equal to 0"),
    ({"temperature": True}, 400, "temperature", "valid number"),
    ({"top_p": 1.5}, 400, "top_p", "less than or equal to 1"),
    ({"max_tokens": -1}, 400, "max_tokens", "greater than or equal to 0"),
    ({"max_tokens": 4097}, 400, "max_tokens", "at most 4096 tokens"),
    ({"n": 17}, 400, "n", "less than or equal to 16"),
    ({"n": 16, "prompt": ["a"] * 5}, 400, "n", "80 texts"),
    ({"prompt": ["a"] * 65}, 400, "prompt", "at most 64"),
    ({"prompt": []}, 400, "prompt", "at least 1"),
    ({"prompt": ["a", 5]}, 400, "prompt", "valid string"),
    ({"prompt": [[5], ["a"]]}, 400, "prompt", "valid integer"),
    ({"prompt": [5, 464]}, 400, "prompt", "token 464 is not one of 0 to "),
    ({"prompt": "Ω"}, 400, "prompt", "'Ω'"),
    ({"prompt": "\ud800"}, 400, "prompt", "surrogate"),
    ({"model": "bytes", "prompt": "ab" * 20_000}, 400, "prompt", "at most 32,768"),
    ({"model": "decoder", "prompt": "the cat sat on"}, 400, "prompt", "has 14 tokens; the context of decoder has 12."),
    ({"stop": ["a"] * 5}, 400, "stop", "at most 4"),
    ({"stop": ""}, 400, "stop", "end the text at once"),
    ({"logprobs": 21}, 400, "logprobs", "less than or equal to 20"),
    ({"presence_penalty": 3}, 400, "presence_penalty", "less than or equal to 2"),
    ({"logit_bias": {"a": 1}}, 400, "logit_bias", "pattern"),
    ({"logit_bias": {"999": 1}}, 400, "logit_bias", "token 999 is outside"),
    ({"best_of": 2}, 400, "best_of", "not supported"),
    ({"temprature": 1}, 400, "temprature", "Did you mean 'temperature'"),
]


@pytest.mark.parametrize(("words", "status", "param", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_invalid_field_is_named(
    words: dict[str, Any], status: int, param: str | None, message: str, address: str
) -> None:
    for more in ({}, {"stream": True}):
        actual, messages, _ = ask(address, "/v1/completions", {"model": "trigram", "prompt": "a", **words, **more})
        assert (actual, messages["error"]["param"], messages["error"]["type"]) == (
            status,
            param,
            "invalid_request_error",
        )
        assert message in messages["error"]["message"]


WRONG_MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"role": "user", "content": None}, "messages.1.content: a message of the role user needs a text"),
    ({"role": "user"}, "messages.1.content: a message of the role user needs a text"),
    ({"content": "a"}, "messages.1.role: field required"),
    ({"role": "tool", "content": "a"}, 'messages.1.role = "tool": input should be'),
    ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages.1.content.0.text = 5: input should be"),
    ({"role": "user", "content": [{"type": "image_url"}]}, 'messages.1.content.0.type = "image_url": input should be'),
    (
        {"role": "assistant", "tool_calls": [{"id": "a"}]},
        'messages.1.tool_calls = [{"id": "a"}]: this is not supported',
    ),
    ({"role": "assistant", "refusal": "no"}, 'messages.1.refusal = "no": this is not supported'),
    ({"role": "user", "content": "a", "mood": "good"}, 'messages.1.mood = "good": extra inputs are not permitted'),
]


@pytest.mark.parametrize(("message", "said"), WRONG_MESSAGES, ids=lambda value: str(value)[:40])
def test_invalid_nested_field_is_named_with_its_path(message: dict[str, Any], said: str, address: str) -> None:
    messages = [{"role": "user", "content": "a"}, message]
    status, reported, _ = ask(address, "/v1/chat/completions", {"model": "trigram", "messages": messages})
    assert status == 400 and reported["error"]["param"] == "messages" and said in reported["error"]["message"]


CHAT = {"model": "trigram", "messages": [{"role": "user", "content": "the"}], "max_tokens": 3}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"tool_choice": "none", "parallel_tool_calls": False, "functions": [], "function_call": "auto"},
        {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "reasoning_effort": "low"},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"n": 1, "response_format": {"type": "text"}, "modalities": ["text"], "logprobs": False, "stop": []},
        {"max_tokens": None, "max_completion_tokens": 2, "logit_bias": None, "seed": None, "verbosity": "medium"},
        {"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}]}]},
        {
            "messages": [
                {"role": "user", "content": "a", "name": "me"},
                {"role": "assistant", "content": None, "tool_calls": [], "function_call": None, "annotations": []},
                {"role": "assistant"},
                {"role": "user", "content": []},
            ]
        },
    ],
    ids=lambda value: str(value)[:40],
)
def test_fields_sent_by_real_clients_are_accepted(fields: dict[str, Any], address: str) -> None:
    body = json.dumps({**CHAT, **fields}).encode()
    request = urllib.request.Request(f"{address}/v1/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("parallel_tool_calls", 1),
        ("response_format", {"type": "json_object"}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy"}),
        ("web_search_options", {}),
    ],
)
def test_unsupported_field_is_rejected_by_name(field: str, value: Any, address: str) -> None:
    status, messages, _ = ask(address, "/v1/chat/completions", {**CHAT, field: value})
    assert (status, messages["error"]["param"]) == (400, field)
    assert messages["error"]["message"] == f"{field} = {json.dumps(value)}: this is not supported. Leave it out."


def test_every_openai_client_field_may_be_null(address: str) -> None:
    openai = pytest.importorskip("openai", reason="needs openai's client")
    resources = openai.resources
    routes = {
        "/v1/chat/completions": (resources.chat.completions.Completions, {"messages": CHAT["messages"]}),
        "/v1/completions": (resources.completions.Completions, {"prompt": "the"}),
    }
    for route, (kind, needed) in routes.items():
        names = {*inspect.signature(kind.create).parameters} - {"self", "timeout"}
        fields = [name for name in names if not name.startswith("extra_")]
        assert len(fields) > 15
        body = {**dict.fromkeys(fields), **needed, "model": "trigram"}
        assert ask(address, route, body)[0] == 200


def test_response_message_can_be_sent_back_in_a_chat(address: str) -> None:
    message = ask(address, "/v1/chat/completions", CHAT)[1]["choices"][0]["message"]
    messages = [*CHAT["messages"], message, {"role": "user", "content": "a"}]
    assert ask(address, "/v1/chat/completions", {**CHAT, "messages": messages})[0] == 200


def test_token_limit_caps_requests_without_max_tokens(runs: dict[str, Path]) -> None:
    client = client_of(runs["trigram"], runs["spanish"], tokens=8)
    text, talk = {"model": "trigram", "prompt": "the"}, {**CHAT, "max_tokens": None}
    usage = client.post("/v1/completions", json=text).json()["usage"]
    assert usage["completion_tokens"] <= 8
    assert client.post("/v1/chat/completions", json=talk).json()["usage"]["completion_tokens"] <= 8
    assert client.post("/v1/completions", json={**text, "max_tokens": 8}).status_code == 200
    routes = {"/v1/completions": (text, ["max_tokens"]), "/v1/chat/completions": (talk, ["max_completion_tokens"])}
    routes["/v1/chat/completions"][1].append("max_tokens")
    for route, (body, names) in routes.items():
        for name in names:
            answer = client.post(route, json={**body, name: 9})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, name)
            assert error["message"] == f"{name} = 9: this server writes at most 8 tokens a text."
    translated = client.post("/v1/completions", json={"model": "spanish", "prompt": "the cat sat"}).json()
    assert translated["usage"]["completion_tokens"] <= 8
    assert client.post("/v1/completions", json={**text, "model": "spanish", "max_tokens": 9}).status_code == 400
    page = client.get("/").text
    assert 'max="8"' in page and 'value="8"' in page


def test_openapi_schema_lists_exactly_the_accepted_fields(address: str) -> None:
    schemas = ask(address, "/openapi.json")[1]["components"]["schemas"]
    bodies = {
        "/v1/completions": ("CompletionRequest", {"prompt": "the", "max_tokens": 1}),
        "/v1/chat/completions": ("ChatRequest", {"messages": CHAT["messages"], "max_tokens": 1}),
    }
    for route, (kind, needed) in bodies.items():
        properties = schemas[kind]["properties"]
        assert {"user", "tools", "parallel_tool_calls"} <= {*properties} and schemas[kind][
            "additionalProperties"
        ] is False
        for name in properties:
            body = {"model": "trigram", **needed, **({} if name in (*needed, "model") else {name: None})}
            assert ask(address, route, body)[0] == 200, name
    assert "object" not in {name for schema in schemas.values() for name in schema.get("properties", ())}


def test_wrong_method_gets_405_for_any_body(address: str) -> None:
    for path in ("/health", "/v1/models", "/v1/models/trigram", "/metrics", "/look", "/count", "/", "/docs"):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json"):
            status, messages, headers = ask(address, path, b"a=b", content_type=kind)
            assert (
                status == 405 and "this route takes GET" in messages["error"]["message"] and headers["allow"] == "GET"
            )
    assert ask(address, "/v1/imagine", b"a=b", content_type="text/plain")[0] == 404
    assert ask(address, "/v1/chat/completions", b"a=b", content_type="text/plain")[0] == 415


@pytest.mark.parametrize("key", ["", " ", "\t", "a b", "é"])
def test_blank_or_non_ascii_api_key_is_rejected(
    key: str, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=r"api_key \(LEMMA_API_KEY\)"):
        application(runs["trigram"], api_key=key)
    monkeypatch.setenv("LEMMA_API_KEY", key)
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(runs["trigram"]), "--port", "0"])
    assert ended.value.code == 2 and "LEMMA_API_KEY" in capsys.readouterr().err


def test_empty_host_name_is_rejected(runs: dict[str, Path]) -> None:
    for settings in ({"host": ""}, {"allow_hosts": ["box.example", " "]}):
        with pytest.raises(InputError, match="the name or address of a machine is expected"):
            lemma.serve(runs["trigram"], port=0, **settings)


def test_files_that_are_not_runs_are_skipped_with_a_warning(tmp_path: Path, runs: dict[str, Path]) -> None:
    (tmp_path / "report.json").write_text('{"a": 1}')
    (tmp_path / "notes.txt").write_text("a")
    with pytest.warns(UserWarning, match="Skipped a file that is not a run") as warned:
        client = client_of(tmp_path / "notes.txt", runs["trigram"], tmp_path / "report.json")
    assert len(warned) == 2 and [item["id"] for item in client.get("/v1/models").json()["data"]] == ["trigram"]
    for wrong in ((tmp_path / "report.json",), (tmp_path / "notes.txt", tmp_path / "report.json")):
        with pytest.raises(InputError):
            application(*wrong)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    for wrong in ("nowhere", "broken.gguf", "."):
        with pytest.raises(InputError):
            application(runs["trigram"], tmp_path / wrong)


def test_neutral_field_values_are_accepted(address: str) -> None:
    neutral = {"response_format": {"type": "text"}, "logit_bias": {}, "best_of": 1, "user": "me", "suffix": None}
    assert ask(address, "/v1/completions", {"model": "trigram", "prompt": "a", **neutral})[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        *(b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"model": "trigram", "temperature": NaN}'),
        b'{"model": "trigram", "user": ' + b"[" * 20 + b"]" * 20 + b"}",
    ],
)
def test_body_must_be_a_json_object(body: bytes, address: str) -> None:
    status, messages, _ = ask(address, "/v1/completions", body)
    assert status == 400 and "JSON" in messages["error"]["message"]


def test_body_size_and_content_type_are_checked(address: str) -> None:
    status, messages, _ = ask(address, "/v1/completions", {"model": "trigram", "prompt": "a" * 1_100_000})
    assert status == 413 and "1,048,576" in messages["error"]["message"]
    assert ask(address, "/v1/completions", {"model": "trigram"}, content_type="text/plain")[0] == 415
    status, messages, _ = ask(address, "/v1/completions", gzip.compress(b"{}"), content_encoding="gzip")
    assert status == 415 and "'Content-Encoding: gzip'" in messages["error"]["message"]


def test_large_rejected_upload_still_gets_the_error(address: str) -> None:
    body = {"model": "trigram", "prompt": "a" * 8_000_000}
    for _ in range(3):  # a server that closed at once would reset the connection while the body is being sent
        status, messages, _ = ask(address, "/v1/completions", body, origin="https://elsewhere.example")
        assert status == 403 and "elsewhere.example" in messages["error"]["message"]


def test_head_equals_get_without_body(address: str) -> None:
    for path in ("/", "/health", "/v1/models", "/v1/models/trigram"):
        request = urllib.request.Request(address + path, method="HEAD")
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.status == 200 and int(answer.headers["content-length"]) > 0 and answer.read() == b""


def test_unknown_routes_use_the_same_error_format(address: str) -> None:
    status, messages, _ = ask(address, "/v1/imagine", {"input": "a"})
    assert status == 404 and "/v1/imagine" in messages["error"]["message"]
    status, messages, _ = ask(address, "/v1/embeddings", {"input": "a", "model": "trigram"})
    assert status == 400 and "makes no vectors" in messages["error"]["message"]
    status, messages, _ = ask(address, "/v1/completions")
    assert status == 405 and "this route takes POST" in messages["error"]["message"]
    assert ask(address, "/look?model=decoder")[1]["error"]["param"] == "text"


def test_cross_origin_requests_are_rejected(address: str) -> None:
    assert ask(address, "/v1/models", origin="https://elsewhere.example")[0] == 403
    assert ask(address, "/v1/models", origin="null")[0] == 403
    status, _, headers = ask(address, "/v1/models", origin=address)
    assert status == 200 and not [name for name in headers if name.lower().startswith("access-control")]
    for site in ("cross-site", "same-site"):
        assert ask(address, "/v1/models", sec_fetch_site=site)[0] == 403


def client_of(*runs: Any, **settings: Any) -> Any:
    testing = pytest.importorskip("fastapi.testclient", reason="needs the package that FastAPI's test client needs")
    return testing.TestClient(application(*runs, **settings))


def test_requests_to_unknown_hosts_are_rejected(runs: dict[str, Path]) -> None:
    local, open_to_all = (client_of(runs["trigram"], hosts=hosts) for hosts in ({"localhost"}, {"*", "box.example"}))
    answers = {"localhost:8000": (200, 403), "elsewhere.example": (403, 403), "10.0.0.7:80": (403, 200)}
    for host, expected in {**answers, "box.example": (403, 200), "[::1]:80": (403, 200)}.items():
        actual = tuple(item.get("/v1/models", headers={"host": host}).status_code for item in (local, open_to_all))
        assert actual == expected, host


def test_api_key_protects_every_route(runs: dict[str, Path]) -> None:
    client = client_of(runs["trigram"], api_key="s3cret")
    routes = [route.path for route in client.app.routes]
    assert {"/", "/docs", "/health", "/metrics", "/v1/completions", "/count", "/page.js"} <= {*routes}
    for path in (*routes, "/nowhere"):
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Basic !"},
            {"authorization": "s3cret"},
        ):
            answer = client.request("POST" if "completions" in path else "GET", path, headers=headers)
            assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith("Basic"), path
    assert client.get("/health", headers={"authorization": "Bearer s3cret"}).json()["status"] == "ok"
    assert client.get("/", auth=("anyone", "s3cret")).status_code == 200


def test_openapi_document_describes_every_route(address: str) -> None:
    status, document, _ = ask(address, "/openapi.json")
    fields = document["components"]["schemas"]["CompletionRequest"]["properties"]
    assert status == 200 and {"prompt", "logprobs", "truncate_prompt_tokens"} <= {*fields}
    assert {"/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/metrics"} <= {*document["paths"]}
    with urllib.request.urlopen(f"{address}/docs", timeout=20) as answer:
        page = answer.read().decode()
    for path, kind in {"/metrics": "text/plain", "/look": "text/html", "/v1/models": "application/json"}.items():
        assert list(document["paths"][path]["get"]["responses"]["200"]["content"]) == [kind]
        with urllib.request.urlopen(f"{address}{path}?model=decoder&text=a", timeout=20) as answer:
            assert answer.headers["content-type"].startswith(kind)
    assert "POST /v1/completions" in page and "truncate_prompt_tokens" in page and "http" not in page.split("<main>")[1]


def test_metrics_count_requests_and_tokens(runs: dict[str, Path]) -> None:
    client = client_of(runs["trigram"])
    request = {"prompt": "the", "max_tokens": 7, "n": 2}
    for _ in range(3):
        assert client.post("/v1/completions", json=request).status_code == 200
    assert client.post("/v1/completions", json={"prompt": 5}).status_code == 400
    lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[0] != "#")
    assert lines['lemma_generated_tokens_total{model="trigram"}'] == "42"
    assert lines['lemma_prompt_tokens_total{model="trigram"}'] == "9"
    assert lines['lemma_requests_total{route="/v1/completions",status="200"}'] == "3"
    assert lines['lemma_requests_total{route="/v1/completions",status="400"}'] == "1"
    assert lines['lemma_first_token_seconds_bucket{model="trigram",le="+Inf"}'] == "3"
    assert lines['lemma_requests{model="trigram"}'] == "0"


def test_deleted_run_returns_410_instead_of_500(tmp_path: Path, runs: dict[str, Path]) -> None:
    copy = Path(shutil.copytree(runs["decoder"], tmp_path / "lost"))
    client = client_of(copy)
    shutil.rmtree(copy)
    assert client.get("/count?model=lost").status_code == 410 and "vanished" in client.get("/count?model=lost").text
    assert client.get("/v1/models").json()["data"][0]["id"] == "lost"
    assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200  # its weights are in memory


def test_application_rejects_unservable_runs_and_settings(runs: dict[str, Path]) -> None:
    web = dataclasses.replace(lemma.load(runs["trigram"]), spec=Graph(), module=torch.nn.Linear(1, 1))
    with pytest.raises(RunError, match="not a language model"):
        application(web)
    with pytest.raises(RunError, match="both named trigram"):
        application(runs["trigram"], runs["trigram"])
    with pytest.raises(RunError, match="at least one"):
        application()
    with pytest.raises(InputError, match="device = 'gpu': give auto"):
        application(runs["trigram"], device="gpu")
    with pytest.raises(InputError, match=r"batch \(--max-batch\) = 0 is less than 1"):
        application(runs["trigram"], batch=0)
    with pytest.raises(InputError, match="Did you mean 'batch'"):
        application(runs["trigram"], batches=3)


def test_missing_fastapi_error_says_what_to_install(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lemma.api.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"fastapi, not installed here: pip install 'lemma-lm\[serve\]'"):
        application(runs["trigram"])


def test_page_tabs_show_results_of_the_verbs(address: str, runs: dict[str, Path]) -> None:
    def page(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(address + path, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    status, heads = page("/look?model=decoder&text=the+cat")
    assert status == 200 and "Attention of decoder" in heads and "1 layer, 2 heads, 7 tokens" in heads
    assert (
        page("/look?model=trigram&text=the")[0] == 400 and "no attention heads" in page("/look?model=trigram&text=a")[1]
    )
    assert page("/look?model=decoder&text=" + "a" * 4001)[0] == 400
    total = sum(parameter.numel() for parameter in lemma.load(runs["trigram"]).module.parameters())
    assert f"{total:,}" in page("/count?model=trigram")[1]
    assert json.loads(page("/evaluate?model=trigram")[1])["perplexity"] == 12.25
