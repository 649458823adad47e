"""The API described: as an OpenAPI document, and as a page for people that needs no network."""

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from jinja2 import Template
from pydantic.json_schema import models_json_schema

from lemma.serving.formats import JSON_TYPE, json_response
from lemma.serving.requests import IGNORED_FIELDS, NOOP_VALUES, ChatRequest, CompletionRequest, EmbeddingRequest

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


def body_schema(model: type[Any]) -> dict[str, Any]:
    """Return the OpenAPI extension of a route whose body is read by `read_body`."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {JSON_TYPE: {"schema": schema}}}}


def add_description(app: FastAPI, docs_template: Template, run_names: Iterable[str], needs_key: bool) -> None:
    """Add the routes /openapi.json and /docs."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _make_document(app, list(run_names), needs_key)
        return app.openapi_schema

    app.openapi = describe

    @app.get("/openapi.json", include_in_schema=False)
    async def document() -> Response:
        return json_response(describe())

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        page = docs_template.render(api=describe(), fields=_schema_fields)
        return Response(page, media_type="text/html; charset=utf-8")


def _make_document(app: FastAPI, run_names: list[str], needs_key: bool) -> dict[str, Any]:
    document = get_openapi(title="Lemma", version="1", description=DESCRIPTION, routes=app.routes)
    models = (CompletionRequest, ChatRequest, EmbeddingRequest)
    _, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    components = document.setdefault("components", {})
    components["schemas"] = components.get("schemas", {}) | schemas["$defs"]
    for model in models:
        model_field = {"enum": [*run_names, None], "description": MODEL_FIELD}
        schemas["$defs"][model.__name__]["properties"]["model"] = model_field
    if needs_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _schema_fields(schema: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the fields of a schema that are read: name, type with its bounds, and meaning."""
    unread = NOOP_VALUES.keys() | IGNORED_FIELDS
    return [
        (name, _describe_type(field), field.get("description", ""))
        for name, field in schema.get("properties", {}).items()
        if name not in unread
    ]


def _describe_type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_describe_type(option) for option in field["anyOf"] if option.get("type") != "null")
    if "$ref" in field:
        return field["$ref"].rpartition("/")[2]
    if "enum" in field:
        return " or ".join(f'"{value}"' for value in field["enum"] if value is not None)
    name = field.get("type", "value") + (f" of {_describe_type(field['items'])}" if "items" in field else "")
    bounds = [f"{sign} {field[key]:g}" for key, sign in BOUNDS.items() if key in field]
    return f"{name} ({', '.join(bounds)})" if bounds else name
