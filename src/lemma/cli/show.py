"""How results reach the terminal: one JSON object on stdout, or the result's own words."""

import json
from typing import Annotated, Any, Protocol

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; progress goes to stderr.")]


class Result(Protocol):
    """What every verb returns."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        ...


def show(result: Result, as_json: bool) -> None:
    """Print a result."""
    typer.echo(to_json(result.to_dict()) if as_json else str(result))


def to_json(values: Any) -> str:
    """Write plain values as JSON for people and programs alike; what is no finite number becomes null."""
    return json.dumps(_finite(values), indent=2, ensure_ascii=False, allow_nan=False)


def _finite(values: Any) -> Any:
    if isinstance(values, float) and not (-float("inf") < values < float("inf")):
        return None
    if isinstance(values, dict):
        return {key: _finite(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [_finite(value) for value in values]
    return values


def sort_words(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Tell KEY=VALUE words from the names before and between them."""
    from lemma.spec import parse_words

    names = [word for word in words if "=" not in word]
    return parse_words(word for word in words if "=" in word), names
