"""What every spec is: frozen, closed to unknown fields, read from TOML and from `key=value` settings."""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args, get_origin

from annotated_types import Le
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from lemma.errors import SpecError, describe_unknown
from lemma.spec.settings import SYNONYMS


@dataclass(frozen=True)
class Letter:
    """The textbook's letter for a field: a second name for it, and its symbol in formulas."""

    name: str


class Spec(BaseModel):
    """A frozen description. The sentence under each field is its help text everywhere."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    renamed: ClassVar[Mapping[str, str]] = {}
    """Names of fields in files of earlier versions, and their names now."""

    @classmethod
    def letters(cls) -> dict[str, str]:
        """Map each textbook letter to its field.

        >>> from lemma.spec.models import FeedForward
        >>> FeedForward.letters()["d_h"]
        'hidden'
        """
        return {letter: name for name, field in cls.model_fields.items() if (letter := letter_of(field))}

    @classmethod
    def setting_names(cls) -> list[str]:
        """Every setting by its names: fields, each with its letter after it."""
        return [word for name, field in cls.model_fields.items() for word in (name, letter_of(field)) if word]

    @model_validator(mode="before")
    @classmethod
    def _read_letters(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        letters, named = cls.letters(), {}
        for word, value in data.items():
            name = letters.get(word, cls.renamed.get(word, word))
            if name in named:
                raise ValueError(f"{name} is given twice, once as '{word}'")
            named[name] = value
            field = cls.model_fields.get(name)
            if field is not None and isinstance(value, int):
                check_number(word, value, field)
            for text in value if isinstance(value, list | tuple) else [value]:
                if isinstance(text, str) and not is_utf8(text):
                    raise ValueError(f"{word} = {short_repr(text)}: the name is not UTF-8. Rename the file or folder.")
        return named

    @classmethod
    def read(cls, settings: Mapping[str, Any], source: str) -> Self:
        """Validate settings; a mistake becomes a SpecError that starts with `where`."""
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise SpecError(explain_validation(error, source, cls)) from None

    def replace(self, **settings: Any) -> Self:
        """Return a copy with some settings changed, validated like a new one."""
        letters = type(self).letters()
        named = {letters.get(word, word): value for word, value in settings.items()}
        return type(self).read({**self.to_dict(), **named}, source=getattr(self, "family", type(self).__name__.lower()))

    def with_data_sizes(self, sizes: Mapping[str, int]) -> Self:
        """Return a copy of the sizes that the data have: vocabulary, relations, classes."""
        return self.replace(**sizes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for TOML or JSON; what is unset (None) is left out."""
        return self.model_dump(mode="json", exclude_none=True)


def is_utf8(text: str) -> bool:
    """Whether a string can be written as UTF-8; names of files that are not hold surrogates.

    >>> is_utf8("café"), is_utf8("caf\\udce9")
    (True, False)
    """
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


MAX_LINE_LENGTH = 2000
MAX_NUMBER, MAX_DEPTH = 10**9, 1000
"""The largest whole number that a setting may have, and the largest number of layers."""


def check_number(name: str, value: int, field: FieldInfo) -> None:
    """Refuse true or false where a number is expected, and numbers that no machine can do anything with."""
    if isinstance(value, bool):
        if not _accepts_bool(field.annotation):
            raise ValueError(f"{name} = {str(value).lower()}: a number is expected, as in {name}={field.get_default()}")
        return
    limit = MAX_DEPTH if "depth" in name or name.startswith("L") else MAX_NUMBER
    limit = next((bound.le for bound in field.metadata if isinstance(bound, Le) and type(bound.le) is int), limit)
    if not -limit <= value <= limit:
        raise ValueError(f"{name} = {short_repr(value)}: at most {limit:,} is possible")


def _accepts_bool(annotation: Any) -> bool:
    """Whether true and false are values of a field: it says so, or it is not said to be a number."""
    parts = get_args(annotation)
    if not parts:
        return annotation not in (int, float)
    kinds = [type(part) for part in parts] if get_origin(annotation) is Literal else parts
    return any(kind is bool or (kind not in (int, float, type(None)) and _accepts_bool(kind)) for kind in kinds)


def short_repr(value: Any) -> str:
    """A value in a message, cut where it is long.

    >>> shown("a" * 100), shown(10**5000)
    ("'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…", 'a number of more than 4,000 digits')
    """
    try:
        written = repr(value)
    except ValueError:
        return "a number of more than 4,000 digits"
    except RecursionError:
        return "a deeply nested value"
    return written if len(written) <= 64 else f"{written[:60]}…"


def letter_of(field: FieldInfo) -> str | None:
    """Return the field's textbook letter, if it has one."""
    return next((mark.name for mark in field.metadata if isinstance(mark, Letter)), None)


def explain_validation(error: ValidationError, source: str, spec_class: type[Spec]) -> str:
    """Turn pydantic's report into one line per mistake: where, what was got, what was expected."""
    lines: list[str] = []
    for mistake in error.errors():
        path = ".".join([source, *(str(step)[:64] for step in mistake["loc"])]).strip(".")
        if mistake["type"] == "extra_forbidden":
            place, name, known = (
                path.rpartition(".")[0],
                str(mistake["loc"][-1]),
                _settings_at(spec_class, mistake["loc"]),
            )
            outer = f", or say {name}=…, which is of the {source}" if name in spec_class.setting_names() else ""
            lines.append(
                describe_unknown(f"{place}: the setting", name, known)
                if known
                else f"{place} has no settings, so none called '{name[:64]}'. Leave it out{outer}."
            )
        elif mistake["type"] == "value_error":
            lines.append(str(mistake.get("ctx", {})["error"])[:MAX_LINE_LENGTH])
        elif mistake["type"] == "union_tag_invalid":
            about = {name: str(value).replace("'", "") for name, value in mistake.get("ctx", {}).items()}
            lines.append(
                describe_unknown(f"{path}.{about['discriminator']}", about["tag"], about["expected_tags"].split(", "))
            )
        elif mistake["type"] == "union_tag_not_found":
            tag = str(mistake.get("ctx", {})["discriminator"]).replace("'", "")
            lines.append(f"{path} = {short_repr(mistake['input'])}: it must say its {tag}.")
        else:
            why = f"{mistake['msg'][0].lower()}{mistake['msg'][1:]}"
            if mistake["type"] in ("tuple_type", "list_type"):
                why = f"a list is expected, as in {mistake['loc'][-1]}=[…]"
            if mistake["type"] in ("dict_type", "mapping_type"):
                why = f"a table is expected, as in {mistake['loc'][-1]}.name=…"
            if mistake["type"] == "model_type":
                known = _settings_at(spec_class, (*mistake["loc"], ""))
                why = f"it has settings of its own, as in {path.rpartition(' ')[2]}.{known[0]}=…"
            lines.append(f"{path} = {short_repr(mistake['input'])}: {why}.")
    return "\n".join(lines)


def _settings_at(spec_class: type[Spec], path: Sequence[int | str]) -> list[str]:
    """The settings next to that at the end of a path, which goes through fields and the kinds of tagged choices."""
    kinds = [spec_class]
    for step in path[:-1]:
        fields = [one.model_fields[step].annotation for one in kinds if step in one.model_fields]
        tagged = [one for one in kinds if (tag := one.model_fields.get("kind")) and tag.default == step]
        kinds = [found for field in fields for found in _spec_classes_in(field)] or tagged or kinds
    own = kinds == [spec_class]
    return list(dict.fromkeys(word for one in kinds for word in one.setting_names() if own or word != "kind"))


def _spec_classes_in(annotation: Any) -> list[type[Spec]]:
    """The specs that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return [annotation]
    return [found for part in get_args(annotation) for found in _spec_classes_in(part)]


def exists(path: Path) -> bool:
    """Whether there is anything of that name; a name that no file can have is not an error."""
    with suppress(OSError):
        return path.exists()
    return False


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; a mistake in it is named with its place."""
    try:
        if (size := path.stat().st_size) > MAX_TOML_BYTES:
            raise SpecError(f"{path} has {size:,} bytes; a file of settings has at most {MAX_TOML_BYTES:,}.")
        return parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(f"{path}: there is no such file.") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: cannot be read as a text file ({error}).") from None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read ({error.strerror}).") from None
    except ValueError as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"{path}: not valid TOML: {error}.") from None


MAX_TOML_BYTES = 1 << 20
MAX_KEY_DOTS = 64
"""Bytes of the largest TOML file that is read, and dots of a key: Python takes time and memory in their square."""


def parse_toml(text: str) -> dict[str, Any]:
    """Read TOML; whatever is wrong with it is a ValueError in a few words."""
    if LONG_DOTTED_KEY.search(text):
        raise ValueError(f"a key has more than {MAX_KEY_DOTS} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(str(error) if len(str(error)) < 200 else f"{str(error)[:200]}…") from None
    except (ValueError, TypeError, OverflowError, AttributeError):  # thousands of digits, impossible dates
        raise ValueError("it holds a number or a date that cannot be read") from None


LONG_DOTTED_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{MAX_KEY_DOTS}}}""")


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
    return "\n".join(_toml_lines(table, ())) + "\n"


def _toml_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping) and value is not None}
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, nested in tables.items():
        header = ".".join(_key(step) for step in (*path, key))
        lines += ["", f"[{header}]", *_toml_lines(nested, (*path, key))]
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


def parse_settings(assignments: Iterable[str]) -> dict[str, Any]:
    """Read `key=value` settings; a value is a TOML literal, or else plain text. Nothing is ever evaluated.

    >>> parse_settings(["width=128", "tied=true", "positions=sinusoidal", "learning_rate=1e-3"])
    {'width': 128, 'tied': True, 'positions': 'sinusoidal', 'learning_rate': 0.001}
    """
    parsed: dict[str, Any] = {}
    for word in assignments:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise SpecError(f"{short_repr(word)} is not of the form key=value, as in width=128.")
        if key.strip() in parsed:
            raise SpecError(f"{short_repr(key.strip())} is given twice.")
        parsed[key.strip()] = parse_value(value.strip())
    return parsed


def parse_value(text: str) -> Any:
    """Read one TOML literal (number, true, false, string, list, table); anything else is plain text."""
    try:
        document = parse_toml(f"value = {text}")
    except ValueError:
        return text
    return document["value"] if list(document) == ["value"] else text


def distribute(
    settings: Mapping[str, Any], spec_classes: Mapping[str, type[Spec]], extra_names: Iterable[str] = ()
) -> dict[str, dict[str, Any]]:
    """Give each setting to the first of `kinds` that knows it; an unknown one is an error with a guess.

    A dotted setting reaches into a nested choice: `positions.base=500`. `others` are settings that were taken before.
    """
    shares: dict[str, dict[str, Any]] = {where: {} for where in spec_classes}
    for word, value in nest_settings(settings).items():
        owner = next((where for where, kind in spec_classes.items() if word in kind.setting_names()), None)
        if owner is None:
            now = next((kind.renamed[word] for kind in spec_classes.values() if word in kind.renamed), None)
            if now is not None:
                raise SpecError(f"the setting '{word}' is called '{now}' now. Say {now}={str(value)[:64]}")
            settable = [*(known for kind in spec_classes.values() for known in kind.setting_names()), *extra_names]
            if message := _explain_synonym(word, value, spec_classes.values(), extra_names):
                raise SpecError(message)
            # family and kind are chosen by name, not set
            raise SpecError(
                describe_unknown("the setting", word, dict.fromkeys(w for w in settable if w not in ("family", "kind")))
            )
        shares[owner][spec_classes[owner].letters().get(word, word)] = value
    return shares


def _explain_synonym(
    word: str, value: Any, spec_classes: Iterable[type[Spec]], extra_names: Iterable[str]
) -> str | None:
    """Explain a setting that another program has under this name; None for a name that none has.

    A value is repeated only where the setting takes it.
    """

    def find(name: str) -> tuple[str, type[Spec] | None] | None:
        owner = next((kind for kind in spec_classes if name in kind.setting_names()), None)
        if owner is None:
            return (name, None) if name in extra_names else None
        return owner.letters().get(name, name), owner

    related = []
    for names in SYNONYMS.get(word.lower(), ()):
        owners = [owner for name in names.removeprefix("~").split() if (owner := find(name)) is not None]
        if len(owners) < len(names.split()):
            continue
        if names.startswith("~"):
            related += owners
        elif not related:
            called = f"the setting '{word}' is called {' and '.join(name for name, _ in owners)} here"
            if all(kind is None or _accepts(kind, name, value) for name, kind in owners):
                typed = str(value).lower() if isinstance(value, bool) else str(value)[:64]
                return f"{called}. Say {' '.join(f'{name}={typed}' for name, _ in owners)}"
            return f"{called}. {_describe_fields(owners)}"
    return f"the setting '{word}' is unknown. Near it: {_describe_fields(related)}" if related else None


def _describe_fields(fields: Iterable[tuple[str, type[Spec] | None]]) -> str:
    """Return each setting with what it does."""
    about = ((name, kind.model_fields[name].description if kind else "") for name, kind in fields)
    return " ".join(f"{name}=…: {description}" for name, description in about)


def _accepts(spec_class: type[Spec], name: str, value: Any) -> bool:
    """Tell whether a setting takes a value, whether or not it goes together with the defaults of the others."""
    try:
        spec_class.model_validate({name: value})
    except ValidationError as error:
        about = ((mistake["loc"], str(mistake.get("ctx", {}).get("error", ""))) for mistake in error.errors())
        return not any(path[:1] == (name,) or text.startswith(f"{name} = ") for path, text in about)
    return True


def nest_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted settings into tables; the plain setting names the table's kind.

    >>> nest({"positions.base": 500, "positions": "sinusoidal", "width": 8})
    {'positions': {'base': 500, 'kind': 'sinusoidal'}, 'width': 8}
    >>> nest({"positions": "rotary", "positions.scaling": "linear", "positions.scaling.factor": 2})
    {'positions': {'kind': 'rotary', 'scaling': {'kind': 'linear', 'factor': 2}}}
    """
    nested: dict[str, Any] = {}
    for word, value in settings.items():
        *path, last = word.split(".")
        table = nested
        for step in path:
            table[step] = _as_table(table[step]) if step in table else {}
            table = table[step]
        inner = any(other.startswith(f"{word}.") for other in settings)
        table[last] = {**table.get(last, {}), **_as_table(value)} if inner else value
    return nested


def _as_table(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {"kind": value}
