"""The page, and what its tabs show: heads, the account, the summary."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from html import escape
from importlib.resources import files
from typing import TypeVar

from fastapi import FastAPI, Request, Response

from lemma.web.completing import json_response
from lemma.web.refusal import Refusal, refusal_of
from lemma.web.served import Served, find

ASSETS = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js"}
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
MOST_CHARACTERS = 4000  # of a text to look at: an address holds no more
INSIDE = "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src data: blob:; frame-ancestors 'self'"
WITH_SCRIPT = f"{INSIDE}; script-src 'unsafe-inline'; sandbox allow-scripts allow-downloads"
Result = TypeVar("Result")


def add_pages(app: FastAPI, served: dict[str, Served]) -> None:
    """Add the page and its tabs; generating goes through the API."""
    for path, name in ASSETS.items():
        app.get(path)(_asset(name))
    counting = ThreadPoolExecutor(1, "lemma-count")  # its first time takes seconds: the run goes on writing meanwhile

    @app.get("/look")
    async def look(model: str, text: str) -> Response:
        one = find(served, model)
        return await _framed(one.submit, lambda: one.verbs.look(one.run, _short(text)), WITH_SCRIPT)

    @app.get("/count")
    async def count(model: str) -> Response:
        one = find(served, model)
        return await _framed(counting.submit, lambda: _plain_page(one.verbs.count(one.run)), INSIDE)

    @app.get("/evaluate")
    async def evaluate(model: str) -> Response:
        one = find(served, model)
        if one.run.summary is None:
            raise Refusal(404, f"{one.name} is not finished, and has no summary yet.", "model")
        return json_response(one.run.summary)


def _asset(name: str) -> Callable[[Request], Response]:
    """What answers with a file of the page."""
    text = (files("lemma.web") / "assets" / name).read_text(encoding="utf-8")
    kind = KINDS[name.rpartition(".")[2]]

    async def asset(request: Request) -> Response:
        return Response(text, media_type=f"{kind}; charset=utf-8", headers={"cache-control": "no-cache"})

    return asset  # pyright: ignore[reportReturnType]


async def _framed(submit: Callable[..., object], work: Callable[[], str], policy: str) -> Response:
    """A page for a frame, made in a thread; an error becomes a page that says so."""
    headers = {"content-security-policy": policy}
    try:
        page = await asyncio.wrap_future(submit(work))  # pyright: ignore[reportArgumentType]
    except Exception as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
        page = _plain_page(f"<p class='trouble'>{escape(refusal.message)}</p>")
        return Response(page, refusal.status, headers, "text/html; charset=utf-8")
    return Response(page, 200, headers, "text/html; charset=utf-8")


def _plain_page(body: str) -> str:
    style = "<link rel='stylesheet' href='/page.css'>"
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>Lemma</title>{style}<body class='framed'>{body}"
    )


def _short(text: str) -> str:
    if len(text) > MOST_CHARACTERS:
        raise Refusal(400, f"the text has {len(text):,} characters; at most {MOST_CHARACTERS:,} are looked at.", "text")
    return text
