"""Reading exercises: from files, from fields, from the arguments of a command, and those that come with Lemma."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from lemma.checking.exercises.base import Exercise
from lemma.spec.exercises import KINDS
from lemma.errors import SpecError, describe_unknown
from lemma.report.text import format_table
from lemma.spec.base import parse_value, read_toml, short_repr

LIBRARY = Path(__file__).parent / "library"


def load_kind(name: str) -> type[Exercise]:
    """Return the class of a kind of exercise."""
    if name not in KINDS:
        raise SpecError(describe_unknown("kind", name, KINDS))
    module, _, class_name = KINDS[name].path.partition(":")
    return getattr(import_module(f"lemma.checking.exercises.{module}"), class_name)


def list_library() -> dict[str, Path]:
    """Return the files of the exercises that come with Lemma, by name."""
    return {path.stem: path for path in sorted(LIBRARY.glob("*.toml"))}


def read_exercise(source: str | Path | Mapping[str, Any], kind: str = "", **fields: Any) -> Exercise:
    """Return an exercise.

    Args:
        source: name of an exercise that comes with Lemma, a TOML file, or the fields; "" for `fields` alone.
        kind: its kind; "" where the source states it.
        fields: further fields, which replace those of the source.

    >>> read_exercise({"kind": "position", "scheme": "alibi", "heads": 8}).kind
    'position'
    """
    label = "the exercise"
    if isinstance(source, Mapping):
        table = dict(source)
    elif not source:
        table = {}
    else:
        path, label = Path(source), str(source)
        if label in list_library() and not path.is_file():
            path = list_library()[label]
        if not path.suffix and not path.exists():
            raise SpecError(f"{describe_unknown('exercise', label, list_library())} Or give a TOML file.")
        table = read_toml(path)
    stated = table.pop("kind", kind)
    if kind and stated != kind:
        raise SpecError(f"{label} is an exercise of kind {stated}. Check it with: lemma check {stated} {label} …")
    if not stated:
        raise SpecError(f"{label}: kind is missing. Choices: {', '.join(KINDS)}.")
    return load_kind(stated).read({**table, **fields}, label)


def split_arguments(
    kind: str, arguments: Sequence[str], fields: Mapping[str, Any] | None = None
) -> tuple[Exercise, list[str]]:
    """Return the exercise and the answer that the arguments of `lemma check KIND` state.

    An argument is the name or file of an exercise, if it comes first; a field, as in width=4; or a line of the answer.
    `fields` are further fields.
    """
    names = load_kind(kind).setting_names()
    source, remaining = "", list(arguments)
    if remaining and (remaining[0] in list_library() or remaining[0].endswith(".toml")):
        source = remaining.pop(0)
    stated: dict[str, Any] = {}
    answers: list[str] = []
    for argument in remaining:
        name, sign, value = argument.partition("=")
        if sign and name.strip() in names and not value.startswith("="):
            stated[name.strip()] = parse_value(value.strip())
        else:
            answers.append(argument)
    return read_exercise(source, kind, **stated, **(fields or {})), answers


def describe_fields(kind: str) -> str:
    """Return a table of the fields of a kind, with their defaults and help texts."""
    exercise_class = load_kind(kind)
    rows = [
        (name, "" if field.is_required() else short_repr(field.get_default()), field.description or "")
        for name, field in exercise_class.model_fields.items()
        if name not in exercise_class.common_fields
    ]
    return "\n".join(format_table([("field", "default", ""), *rows], left=(0, 1, 2)))
