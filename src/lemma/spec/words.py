"""From `key=value` to values: each word finds the spec that knows it. Nothing is ever evaluated."""

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from lemma.errors import SpecError, unknown
from lemma.spec.base import Spec


def parse_words(words: Iterable[str]) -> dict[str, Any]:
    """Read `key=value` words; a value is a TOML literal, or else plain text.

    >>> parse_words(["width=128", "tied=true", "positions=sinusoidal", "learning_rate=1e-3"])
    {'width': 128, 'tied': True, 'positions': 'sinusoidal', 'learning_rate': 0.001}
    """
    parsed: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise SpecError(f"'{word}' is not of the form key=value, as in width=128.")
        if key.strip() in parsed:
            raise SpecError(f"'{key.strip()}' is given twice.")
        parsed[key.strip()] = parse_value(value.strip())
    return parsed


def parse_value(text: str) -> Any:
    """Read one TOML literal (number, true, false, string, list, table); anything else is plain text."""
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return document["value"] if list(document) == ["value"] else text


def distribute(words: Mapping[str, Any], kinds: Mapping[str, type[Spec]]) -> dict[str, dict[str, Any]]:
    """Give each word to the first of `kinds` that knows it; an unknown word is an error that guesses.

    A dotted word reaches into a nested choice: `positions.base=500`.
    """
    shares: dict[str, dict[str, Any]] = {where: {} for where in kinds}
    for word, value in nest(words).items():
        owner = next((where for where, kind in kinds.items() if word in kind.known_words()), None)
        if owner is None:
            raise SpecError(unknown("the word", word, _all_words(kinds)))
        shares[owner][kinds[owner].letters().get(word, word)] = value
    return shares


def nest(words: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted words into tables; the plain word beside them names the table's kind.

    >>> nest({"positions.base": 500, "positions": "sinusoidal", "width": 8})
    {'positions': {'base': 500, 'kind': 'sinusoidal'}, 'width': 8}
    """
    nested: dict[str, Any] = {}
    for word, value in words.items():
        head, *path = word.split(".")
        known = nested.get(head, {} if path or any(other.startswith(f"{head}.") for other in words) else None)
        nested[head] = value if known is None else {**_table(known), **_table(_at(path, value))}
    return nested


def _at(path: list[str], value: Any) -> Any:
    return {path[0]: _at(path[1:], value)} if path else value


def _table(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {"kind": value}


def _all_words(kinds: Mapping[str, type[Spec]]) -> list[str]:
    hidden = {"family", "kind"}  # chosen by name, not set as words
    return list(dict.fromkeys(word for kind in kinds.values() for word in kind.known_words() if word not in hidden))
