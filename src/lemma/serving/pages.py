"""The workbench page and what its tabs show; generating goes through the API."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from lemma.serving.formats import json_response
from lemma.serving.openapi import ERRORS
from lemma.serving.requests import ApiError, to_api_error
from lemma.serving.runs import ServedRun, find_run
from lemma.serving.service import Service, await_with_client

FRAME_POLICY = "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src data: blob:; frame-ancestors 'self'"
SCRIPT_FRAME_POLICY = f"{FRAME_POLICY}; script-src 'unsafe-inline'; sandbox allow-scripts allow-downloads"
ASSETS = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
MAX_LOOK_CHARACTERS = 4000  # of a text to look at: an address holds no more
MAX_WAITING_PAGES = 8  # looks and counts that wait for their turn
TEMPLATES = Environment(loader=PackageLoader("lemma.serving", "assets"), autoescape=True)
FRAME_TEMPLATE = TEMPLATES.get_template("framed.html")
HTML_TYPE = "text/html; charset=utf-8"


def add_pages(app: FastAPI, service: Service) -> None:
    """Add the page, its assets and the routes of its tabs."""
    for path, (name, media_type) in ASSETS.items():
        text = (files("lemma.serving") / "assets" / name).read_text(encoding="utf-8")
        if media_type == "text/html":
            text = TEMPLATES.from_string(text).render(max_tokens=service.limits.tokens)
        app.get(path, include_in_schema=False)(_asset(text, f"{media_type}; charset=utf-8"))

    @app.get(
        "/look", summary="Every attention head on a text, as a page", responses=ERRORS, response_class=HTMLResponse
    )
    async def look(request: Request, model: str, text: str) -> Response:
        run = find_run(service.served, model)

        async def make_page() -> str:
            if len(text) > MAX_LOOK_CHARACTERS:
                message = f"the text has {len(text):,} characters; at most {MAX_LOOK_CHARACTERS:,} can be looked at."
                raise ApiError(400, message, "text")
            render = await asyncio.wrap_future(run.thread.submit(partial(run.model.look, text)))
            return await asyncio.wrap_future(service.page_worker.submit(render))

        return await _frame_response(request, service, run, make_page(), SCRIPT_FRAME_POLICY)

    @app.get(
        "/count", summary="The formulas of a run's model, as a page", responses=ERRORS, response_class=HTMLResponse
    )
    async def count(request: Request, model: str) -> Response:
        run = find_run(service.served, model)

        def render() -> str:
            if run.name not in service.count_pages:  # it is the same every time
                service.count_pages[run.name] = FRAME_TEMPLATE.render(content=Markup(run.model.count_page()))
            return service.count_pages[run.name]

        async def make_page() -> str:
            return await asyncio.wrap_future(service.page_worker.submit(render))

        return await _frame_response(request, service, run, make_page(), FRAME_POLICY)

    @app.get("/evaluate", summary="A run's summary", responses=ERRORS)
    async def evaluate(model: str) -> Response:
        run = find_run(service.served, model)
        if run.run.summary is None:
            message = f"{run.name} has no summary: it is pretrained, or its training is not finished."
            raise ApiError(404, message, "model")
        return json_response(run.run.summary)


def _asset(text: str, media_type: str) -> Callable[[], Any]:
    async def asset() -> Response:
        return Response(text, media_type=media_type, headers={"cache-control": "no-cache"})

    return asset


async def _frame_response(
    request: Request, service: Service, run: ServedRun, make_page: Coroutine[Any, Any, str], policy: str
) -> Response:
    """Return a page for a frame, made in other threads; an error becomes a page with its message."""
    status, headers = 200, {"content-security-policy": policy}
    try:
        if service.pages_waiting >= MAX_WAITING_PAGES:
            make_page.close()
            message = f"{MAX_WAITING_PAGES} pages are being made already. Try again in a few seconds."
            raise ApiError(429, message, code="busy", headers={"retry-after": "5"})
        service.pages_waiting += 1
        try:
            page = await await_with_client(request, make_page, service.limits.seconds)
        finally:
            service.pages_waiting -= 1
    except Exception as error:
        api_error = to_api_error(run.error_if_gone(error))
        if api_error is None:
            raise
        status, headers = api_error.status, headers | api_error.headers
        page = FRAME_TEMPLATE.render(content=Markup("<p class='trouble'>{}</p>").format(api_error.message))
    return Response(page, status, headers, HTML_TYPE)
