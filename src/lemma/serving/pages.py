"""The workbench page and what its tabs show, and the API described, as an OpenAPI document and as a page."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from lemma.serving.formats import json_response
from lemma.serving.requests import REQUESTS, ApiError, StrictModel, to_api_error
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
DESCRIPTION = "Models trained or opened with Lemma, behind the API that OpenAI's clients speak."
MODEL_FIELD = "The name of a run; may be left out where only one is served."
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "a field is wrong; `error.param` names it"},
    401: {"description": "the API key is missing or wrong"},
    403: {"description": "another host or origin"},
    404: {"description": "there is no such model or route"},
    410: {"description": "the run's folder has vanished"},
    413: {"description": "the body is too large"},
    415: {"description": "the body is not JSON"},
    429: {"description": "too many requests; `Retry-After` says when to come back"},
    503: {"description": "the server is stopping; of /health also: a run cannot write"},
    504: {"description": "the time limit is over"},
}
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<", "maxItems": "at most"}


def add_pages(app: FastAPI, service: Service) -> None:
    """Add the routes of the web page, its assets and its tabs to the application."""
    for path, (name, media_type) in ASSETS.items():
        text = (files("lemma.serving") / "assets" / name).read_text(encoding="utf-8")
        if media_type == "text/html":
            text = TEMPLATES.from_string(text).render(max_tokens=service.limits.tokens)
        app.get(path, include_in_schema=False)(_asset(text, f"{media_type}; charset=utf-8"))

    @app.get("/look", summary="Every attention head on a text, as a page", response_class=HTMLResponse)
    async def look(request: Request, model: str, text: str) -> Response:
        run = find_run(service.served, model)

        async def make_page() -> str:
            if len(text) > MAX_LOOK_CHARACTERS:
                message = f"the text has {len(text):,} characters; at most {MAX_LOOK_CHARACTERS:,} can be looked at."
                raise ApiError(400, message, "text")
            render = await asyncio.wrap_future(run.thread.submit(partial(run.look, text)))
            return await asyncio.wrap_future(service.page_worker.submit(render))

        return await _frame_response(request, service, run, make_page(), SCRIPT_FRAME_POLICY)

    @app.get("/count", summary="The formulas of a run's model, as a page", response_class=HTMLResponse)
    async def count(request: Request, model: str) -> Response:
        run = find_run(service.served, model)

        def render() -> str:
            if run.name not in service.count_pages:  # it is the same every time
                service.count_pages[run.name] = FRAME_TEMPLATE.render(content=Markup(run.count_page()))
            return service.count_pages[run.name]

        async def make_page() -> str:
            return await asyncio.wrap_future(service.page_worker.submit(render))

        return await _frame_response(request, service, run, make_page(), FRAME_POLICY)

    @app.get("/evaluate", summary="A run's summary")
    async def evaluate(model: str) -> Response:
        run = find_run(service.served, model)
        if run.run.summary is None:
            message = f"{run.name} has no summary: it is pretrained, or its training is not finished."
            raise ApiError(404, message, "model")
        return json_response(run.run.summary)


def _asset(text: str, media_type: str) -> Callable[[], Any]:
    """Return a route function whose response is a fixed text of this media type."""

    async def asset() -> Response:
        return Response(text, media_type=media_type, headers={"cache-control": "no-cache"})

    return asset


async def _frame_response(
    request: Request, service: Service, run: ServedRun, make_page: Coroutine[Any, Any, str], policy: str
) -> Response:
    """Return the HTML page of `make_page`, or one with its error, with `policy` as its content security policy."""
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
        status, headers = api_error.status, headers | dict(api_error.headers or {})
        page = FRAME_TEMPLATE.render(content=Markup("<p class='trouble'>{}</p>").format(api_error.message))
    return Response(page, status, headers, HTML_TYPE)


def add_description(app: FastAPI, run_names: Sequence[str]) -> None:
    """Add the route /docs to the application, and the names of the runs to its OpenAPI document."""

    def describe() -> dict[str, Any]:
        document = app.openapi_schema or FastAPI.openapi(app)
        for model in REQUESTS:
            fields = document["components"]["schemas"][model.__name__]["properties"]
            fields["model"] = {"enum": [*run_names, None], "description": MODEL_FIELD}
        return document

    app.openapi = describe

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        tables = {model.__name__: _list_fields(model, describe()) for model in REQUESTS}
        return Response(TEMPLATES.get_template("docs.html").render(api=describe(), tables=tables), media_type=HTML_TYPE)


def _list_fields(model: type[StrictModel], document: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return (name, type with bounds, meaning) of each field of a request that the server reads."""
    fields = document["components"]["schemas"][model.__name__]["properties"]
    return [(name, _describe_type(fields[name]), fields[name].get("description", "")) for name in model.used_fields()]


def _describe_type(field: dict[str, Any]) -> str:
    """Return the type of a field of a JSON schema in words, such as "number (≥ 0)"."""
    if "anyOf" in field:
        return " or ".join(_describe_type(option) for option in field["anyOf"] if option.get("type") != "null")
    if "$ref" in field:
        return field["$ref"].rpartition("/")[2]
    if "enum" in field:
        return " or ".join(f'"{value}"' for value in field["enum"] if value is not None)
    name = field.get("type", "value") + (f" of {_describe_type(field['items'])}" if "items" in field else "")
    bounds = [f"{sign} {field[key]:g}" for key, sign in BOUNDS.items() if key in field]
    return f"{name} ({', '.join(bounds)})" if bounds else name
