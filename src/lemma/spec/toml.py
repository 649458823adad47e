"""Specs in and out of TOML files."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lemma.errors import SpecError


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; a mistake in it is named with its place."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(f"{path}: there is no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read as a text file ({error}).") from None
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path}: not valid TOML: {error}.") from None


def to_toml(table: Mapping[str, Any]) -> str:
    """Write a table of plain values, nested tables last.

    >>> print(to_toml({"family": "rnn", "width": 8, "positions": {"kind": "none"}}))
    family = "rnn"
    width = 8
    <BLANKLINE>
    [positions]
    kind = "none"
    <BLANKLINE>
    """
    return "\n".join(_lines(table, ())) + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping) and value is not None}
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, nested in tables.items():
        header = ".".join(_key(step) for step in (*path, key))
        lines += ["", f"[{header}]", *_lines(nested, (*path, key))]
    return lines


def _key(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() and key.isascii() else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + " }"
    raise TypeError(f"TOML has no way to write {type(value).__name__}")


def _text(value: str) -> str:
    """Quote text; TOML's escapes are JSON's, but for the delete character, which JSON leaves bare."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
