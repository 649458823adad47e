"""The base class of all specs, and reading of settings from TOML and from `key=value` arguments."""

import json
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args, get_origin

from annotated_types import Le
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from lemma.errors import SpecError, describe_unknown
from lemma.spec.settings import SYNONYMS

if TYPE_CHECKING:
    from lemma.spec.plugins import PluginGroup


@dataclass(frozen=True)
class Letter:
    """Textbook letter of a field: a second name for it, and its symbol in formulas."""

    name: str


class Spec(BaseModel):
    """Base class of specs: frozen, validated settings. The sentence under each field is its help text everywhere."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    renamed: ClassVar[Mapping[str, str]] = {}
    """Names of fields in files of earlier versions, and their names now."""

    @classmethod
    def letters(cls) -> dict[str, str]:
        """Return the names of the fields by their textbook letters.

        >>> from lemma.spec.models import FeedForward
        >>> FeedForward.letters()["d_h"]
        'hidden'
        """
        return {letter: name for name, field in cls.model_fields.items() if (letter := letter_of(field))}

    @classmethod
    def setting_names(cls) -> list[str]:
        """Return the names of all settings: each field, followed by its letter if it has one."""
        return [
            name for field_name, field in cls.model_fields.items() for name in (field_name, letter_of(field)) if name
        ]

    @model_validator(mode="before")
    @classmethod
    def _read_letters(cls, data: Any) -> Any:
        """Return settings with letters and old names replaced by field names, and check numbers and text."""
        if not isinstance(data, Mapping):
            return data
        letters, values = cls.letters(), {}
        for key, value in data.items():
            name = letters.get(key, cls.renamed.get(key, key))
            if name in values:
                raise ValueError(f"{name} is given twice, once as '{key}'")
            values[name] = value
            field = cls.model_fields.get(name)
            if field is not None and isinstance(value, int):
                check_number(key, value, field)
            for text in value if isinstance(value, list | tuple) else [value]:
                if isinstance(text, str) and not is_utf8(text):
                    raise ValueError(f"{key} = {short_repr(text)}: the name is not UTF-8. Rename the file or folder.")
        return values

    @classmethod
    def read(cls, settings: Mapping[str, Any], source: str) -> Self:
        """Validate settings and return the spec; a mistake is a SpecError whose message starts with `source`."""
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise SpecError(explain_validation(error, source, cls)) from None

    def replace(self, **settings: Any) -> Self:
        """Return a validated copy with some settings, by field name or letter, changed."""
        letters = type(self).letters()
        changes = {letters.get(key, key): value for key, value in settings.items()}
        source = getattr(self, "family", type(self).__name__.lower())
        return type(self).read({**self.to_dict(), **changes}, source)

    def with_data_sizes(self, sizes: Mapping[str, int]) -> Self:
        """Return a copy with these sizes, which the data determine: vocabulary, relations or classes, by field name."""
        return self.replace(**sizes)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as TOML- and JSON-compatible values, without those that are None."""
        return self.model_dump(mode="json", exclude_none=True)


def kind_validator(
    noun: str, kinds: Collection[str], group: "PluginGroup[Any] | None" = None, default: str | None = None
) -> BeforeValidator:
    """Return a pydantic validator that turns the kind of a nested spec, such as "rotary", into {"kind": "rotary"}.

    Args:
        noun: name of the setting, for errors.
        kinds: built-in kinds.
        group: plugins with further kinds.
        default: kind of a table without one; None if it must have one.
    """

    def read(value: Any) -> Any:
        """Convert a kind to a table with this kind; tables and specs are returned as they are."""
        if default and isinstance(value, Mapping) and "kind" not in value:
            return {"kind": default, **value}
        if isinstance(value, bool | int | float):
            value = str(value)
        if not isinstance(value, str):
            return value
        if value not in kinds and not (group and group.provides(value)):
            raise ValueError(describe_unknown(noun, value, [*kinds, *(group.names() if group else ())]))
        return {"kind": value}

    return BeforeValidator(read)


def is_utf8(text: str) -> bool:
    r"""Return whether a text can be encoded as UTF-8; file names that are not UTF-8 hold surrogates.

    >>> is_utf8("café"), is_utf8("caf\udce9")
    (True, False)
    """
    return not any("\ud800" <= character <= "\udfff" for character in text)


MAX_LINE_LENGTH = 2000  # characters of a message about one mistake
MAX_NUMBER = 10**9  # the largest whole number that a setting may have
MAX_DEPTH = 1000  # layers


def check_number(name: str, value: int, field: FieldInfo) -> None:
    """Raise a ValueError for a boolean where a number is expected, and for a number beyond the limit of its field.

    `name` is the setting as the user typed it.
    """
    if isinstance(value, bool):
        if not _accepts_bool(field.annotation):
            raise ValueError(f"{name} = {str(value).lower()}: a number is expected, as in {name}={field.get_default()}")
        return
    if field.annotation is str:  # a text such as a formula, which may be a number alone
        return
    limit = MAX_DEPTH if "depth" in name or name.startswith("L") else MAX_NUMBER
    limit = next((bound.le for bound in field.metadata if isinstance(bound, Le) and type(bound.le) is int), limit)
    if not -limit <= value <= limit:
        raise ValueError(f"{name} = {short_repr(value)}: at most {limit:,} is possible")


def _accepts_bool(annotation: Any) -> bool:
    """Return whether a field with this type annotation accepts true and false."""
    parts = get_args(annotation)
    if not parts:
        return annotation not in (int, float)
    types = [type(part) for part in parts] if get_origin(annotation) is Literal else parts
    return any(part is bool or (part not in (int, float, type(None)) and _accepts_bool(part)) for part in types)


def short_repr(value: Any) -> str:
    """Return the `repr` of a value for a message, shortened if it is long.

    >>> short_repr("a" * 100), short_repr(10**5000)
    ("'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…", 'a number of more than 4,000 digits')
    """
    try:
        text = repr(value)
    except ValueError:
        return "a number of more than 4,000 digits"
    except RecursionError:
        return "a deeply nested value"
    return text if len(text) <= 64 else f"{text[:60]}…"


def letter_of(field: FieldInfo) -> str | None:
    """Return a field's textbook letter; None without one."""
    return next((item.name for item in field.metadata if isinstance(item, Letter)), None)


def explain_validation(error: ValidationError, source: str, spec_class: type[Spec]) -> str:
    """Return pydantic's errors as text, a line per mistake: setting (after `source`), its value, what was expected."""
    return "\n".join(_explain_mistake(mistake, source, spec_class) for mistake in error.errors())


def _explain_mistake(mistake: Any, source: str, spec_class: type[Spec]) -> str:
    """Return the message for an item of pydantic's `errors()`; `source` is the spec as messages name it."""
    kind, location, context = mistake["type"], mistake["loc"], mistake.get("ctx", {})
    path = ".".join([source, *(str(step)[:64] for step in location)]).strip(".")
    if kind == "extra_forbidden":
        parent, name, choices = path.rpartition(".")[0], str(location[-1]), _settings_at(spec_class, location)
        if choices:
            return describe_unknown(f"{parent}: setting", name, choices)
        hint = f", or say {name}=…, which is of the {source}" if name in spec_class.setting_names() else ""
        return f"{parent} has no settings, so none called '{name[:64]}'. Leave it out{hint}."
    if kind == "value_error":
        return str(context["error"])[:MAX_LINE_LENGTH]
    if kind == "union_tag_invalid":
        tag, value, choices = (str(context[key]).replace("'", "") for key in ("discriminator", "tag", "expected_tags"))
        return describe_unknown(f"{path}.{tag}", value, choices.split(", "))
    value = short_repr(mistake["input"])
    match kind:
        case "union_tag_not_found":
            tag = str(context["discriminator"]).replace("'", "")
            reason = f"it must say its {tag}"
        case "tuple_type" | "list_type":
            reason = f"a list is expected, as in {location[-1]}=[…]"
        case "dict_type" | "mapping_type":
            reason = f"a table is expected, as in {location[-1]}.name=…"
        case "model_type":
            first = _settings_at(spec_class, (*location, ""))[0]
            reason = f"it has settings of its own, as in {path.rpartition(' ')[2]}.{first}=…"
        case _:
            reason = f"{mistake['msg'][0].lower()}{mistake['msg'][1:]}"
    return f"{path} = {value}: {reason}."


def _settings_at(spec_class: type[Spec], path: Sequence[int | str]) -> list[str]:
    """Return the names of all settings of the (nested) spec in which the last step of an error's path is a setting."""
    classes = [spec_class]
    for step in path[:-1]:
        annotations = [each.model_fields[step].annotation for each in classes if step in each.model_fields]
        tagged = [each for each in classes if (tag := each.model_fields.get("kind")) and tag.default == step]
        classes = [inner for annotation in annotations for inner in _spec_classes_in(annotation)] or tagged or classes
    is_top_level = classes == [spec_class]
    names = (name for each in classes for name in each.setting_names() if is_top_level or name != "kind")
    return list(dict.fromkeys(names))


def _spec_classes_in(annotation: Any) -> list[type[Spec]]:
    """Return the spec classes that occur in a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return [annotation]
    return [spec_class for part in get_args(annotation) for spec_class in _spec_classes_in(part)]


def exists(path: Path) -> bool:
    """Return whether a path exists; False for a name that no file can have."""
    with suppress(OSError):
        return path.exists()
    return False


def read_toml(path: Path) -> dict[str, Any]:
    """Read the TOML file at a path as a dictionary; a mistake is a SpecError that names the file and the line."""
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


# Python's parser takes time and memory in the square of both.
MAX_TOML_BYTES = 1 << 20
MAX_KEY_DOTS = 64


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML text as a dictionary; any mistake is a ValueError with a short message."""
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
    """Return a table of TOML-compatible values as TOML text, with nested tables last.

    >>> print(to_toml({"family": "rnn", "width": 8, "positions": {"kind": "none"}}))
    family = "rnn"
    width = 8
    <BLANKLINE>
    [positions]
    kind = "none"
    <BLANKLINE>
    """
    return "\n".join(_format_toml_lines(table, ())) + "\n"


def _format_toml_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    """Return the TOML lines of a table; `path` are the keys that lead to it."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping) and value is not None}
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lines = [f"{_format_key(key)} = {_format_value(value)}" for key, value in plain.items()]
    for key, nested in tables.items():
        header = ".".join(_format_key(step) for step in (*path, key))
        lines += ["", f"[{header}]", *_format_toml_lines(nested, (*path, key))]
    return lines


def _format_key(key: str) -> str:
    """Return a key in TOML, quoted if needed."""
    return key if key.replace("-", "").replace("_", "").isalnum() and key.isascii() else _quote_text(key)


def _format_value(value: Any) -> str:
    """Return a value in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _quote_text(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_format_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_format_key(key)} = {_format_value(item)}" for key, item in value.items()) + " }"
    raise TypeError(f"TOML has no way to write {type(value).__name__}")


def _quote_text(value: str) -> str:
    """Return a text as a TOML string."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def parse_settings(assignments: Iterable[str]) -> dict[str, Any]:
    """Parse `key=value` settings to a dictionary; a value is a TOML literal or else plain text.

    >>> parse_settings(["width=128", "tied=true", "positions=sinusoidal", "learning_rate=1e-3"])
    {'width': 128, 'tied': True, 'positions': 'sinusoidal', 'learning_rate': 0.001}
    """
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        key = key.strip()
        if not equals or not key:
            raise SpecError(f"{short_repr(assignment)} is not of the form key=value, as in width=128.")
        if key in settings:
            raise SpecError(f"{short_repr(key)} is given twice.")
        settings[key] = parse_value(value.strip())
    return settings


def parse_value(text: str) -> Any:
    """Return the value of a TOML literal (number, true, false, string, list, table); return other text unchanged."""
    try:
        document = parse_toml(f"value = {text}")
    except ValueError:
        return text
    return document["value"] if list(document) == ["value"] else text


def assign_settings(
    settings: Mapping[str, Any], spec_classes: Mapping[str, type[Spec]], extra_names: Iterable[str] = ()
) -> dict[str, dict[str, Any]]:
    """Distribute settings over spec classes: by the key of each class, the settings of which it is the first owner.

    A dotted setting reaches into a nested spec: `positions.base=500`.

    `extra_names` are further settings, which the error about an unknown setting suggests too.
    """
    assigned: dict[str, dict[str, Any]] = {owner: {} for owner in spec_classes}
    for key, value in nest_settings(settings).items():
        owner = next((owner for owner, spec_class in spec_classes.items() if key in spec_class.setting_names()), None)
        if owner is None:
            raise SpecError(_explain_unknown(key, value, list(spec_classes.values()), extra_names))
        assigned[owner][spec_classes[owner].letters().get(key, key)] = value
    return assigned


def _explain_unknown(name: str, value: Any, spec_classes: Sequence[type[Spec]], extra_names: Iterable[str]) -> str:
    """Return the error message for the setting `name`, which none of the spec classes has."""
    for spec_class in spec_classes:
        if new_name := spec_class.renamed.get(name):
            return f"the setting '{name}' is called '{new_name}' now. Type {new_name}={str(value)[:64]}"
    if message := _explain_synonym(name, value, spec_classes, extra_names):
        return message
    choices = [*(choice for spec_class in spec_classes for choice in spec_class.setting_names()), *extra_names]
    settable = dict.fromkeys(
        choice for choice in choices if choice not in ("family", "kind")
    )  # chosen by name, not set
    return describe_unknown("setting", name, settable)


def _explain_synonym(
    name: str, value: Any, spec_classes: Iterable[type[Spec]], extra_names: Iterable[str]
) -> str | None:
    """Return the error message for a name that other programs give to a setting of these specs; None for other names.

    The message repeats the value only if the setting accepts it.
    """

    def find(synonym: str) -> tuple[str, type[Spec] | None] | None:
        """Return the field of a synonym and the class that has it (None for an extra name); None if no class has it."""
        owner = next((spec_class for spec_class in spec_classes if synonym in spec_class.setting_names()), None)
        if owner is None:
            return (synonym, None) if synonym in extra_names else None
        return owner.letters().get(synonym, synonym), owner

    related = []
    for synonyms in SYNONYMS.get(name.lower(), ()):
        fields = [field for synonym in synonyms.removeprefix("~").split() if (field := find(synonym)) is not None]
        if len(fields) < len(synonyms.split()):
            continue
        if synonyms.startswith("~"):
            related += fields
        elif not related:
            message = f"the setting '{name}' is called {' and '.join(field for field, _ in fields)} here"
            if all(owner is None or _accepts(owner, field, value) for field, owner in fields):
                typed = str(value).lower() if isinstance(value, bool) else str(value)[:64]
                return f"{message}. Type {' '.join(f'{field}={typed}' for field, _ in fields)}"
            return f"{message}. {_describe_fields(fields)}"
    return f"unknown setting '{name}'. Related: {_describe_fields(related)}" if related else None


def _describe_fields(fields: Iterable[tuple[str, type[Spec] | None]]) -> str:
    """Return "name=…: description" of (field, spec class) pairs; a name of no class, with None, has no description."""
    descriptions = ((name, owner.model_fields[name].description if owner else "") for name, owner in fields)
    return " ".join(f"{name}=…: {description}" for name, description in descriptions)


def _accepts(spec_class: type[Spec], name: str, value: Any) -> bool:
    """Return whether a setting of a spec class accepts this value, whatever the other settings are."""
    try:
        spec_class.model_validate({name: value})
    except ValidationError as error:
        mistakes = ((mistake["loc"], str(mistake.get("ctx", {}).get("error", ""))) for mistake in error.errors())
        return not any(path[:1] == (name,) or message.startswith(f"{name} = ") for path, message in mistakes)
    return True


def nest_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert dotted settings to nested tables; a plain setting becomes the `kind` of a table of that name.

    >>> nest_settings({"positions.base": 500, "positions": "sinusoidal", "width": 8})
    {'positions': {'base': 500, 'kind': 'sinusoidal'}, 'width': 8}
    >>> nest_settings({"positions": "rotary", "positions.scaling": "linear", "positions.scaling.factor": 2})
    {'positions': {'kind': 'rotary', 'scaling': {'kind': 'linear', 'factor': 2}}}
    """
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        table = nested
        for step in path:
            table[step] = _as_table(table[step]) if step in table else {}
            table = table[step]
        is_table = any(other.startswith(f"{key}.") for other in settings)
        table[last] = {**table.get(last, {}), **_as_table(value)} if is_table else value
    return nested


def _as_table(value: Any) -> dict[str, Any]:
    """Return a mapping as a dictionary, and any other value as a table with that `kind`."""
    return dict(value) if isinstance(value, Mapping) else {"kind": value}
