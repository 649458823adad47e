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
    for word, value in words.items():
        head, _, rest = word.partition(".")
        owner = next((where for where, kind in kinds.items() if head in kind.known_words()), None)
        if owner is None:
            raise SpecError(unknown("the word", head, _all_words(kinds)))
        name = kinds[owner].letters().get(head, head)
        shares[owner][name] = _nest(shares[owner].get(name), rest, value) if rest else value
    return shares


def _all_words(kinds: Mapping[str, type[Spec]]) -> list[str]:
    return list(dict.fromkeys(word for kind in kinds.values() for word in kind.known_words() if word != "family"))


def _nest(existing: Any, path: str, value: Any) -> dict[str, Any]:
    table = {"kind": existing} if isinstance(existing, str) else dict(existing or {})
    return {**table, path: value}
