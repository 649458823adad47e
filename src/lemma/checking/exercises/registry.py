"""Reading exercises: from files, from fields, from the arguments of a command, and those that come with Lemma."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from lemma.checking.exercises.base import Exercise
from lemma.errors import SpecError, describe_unknown
from lemma.report.result import Block, Result, Table, Text
from lemma.report.text import format_table, wrap_lines
from lemma.spec.base import parse_value, read_toml
from lemma.spec.exercises import KINDS

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
    exercise_class = load_kind(stated)
    if not isinstance(source, Mapping) and (
        code_keys := [name for name in exercise_class.typed_fields if name in table]
    ):
        raise SpecError(
            f"{label}: {code_keys[0]} names code to run, which a file must not do. If you trust it, name it yourself: "
            f"{code_keys[0]}=file.py:function"
        )
    return exercise_class.read({**table, **fields}, label)


def split_arguments(
    kind: str, arguments: Sequence[str], fields: Mapping[str, Any] | None = None
) -> tuple[Exercise, list[str]]:
    """Return the exercise and the answer that the arguments of `lemma check KIND` state.

    An argument is the name or file of an exercise, if it comes first; a field, as in width=4; or a line of the answer.
    `fields` are further fields.
    """
    exercise_class = load_kind(kind)
    names = {*exercise_class.setting_names(), *exercise_class.renamed}
    source, remaining, stated = "", list(arguments), dict[str, Any]()
    if remaining and (remaining[0] in list_library() or remaining[0].endswith(".toml")):
        source = remaining.pop(0)
    elif remaining and not fields and exercise_class.first_field and "=" not in remaining[0]:
        stated[exercise_class.first_field] = parse_value(remaining.pop(0))
    answers: list[str] = []
    starts = {argument.partition("=")[0].strip() for argument in remaining}
    spaced: list[str] = []  # fields with a blank before the sign
    for argument in remaining:
        name, sign, value = argument.partition("=")
        has_blank, name = name != name.strip(), name.strip()
        # where letters are sizes and answers too, N=7e9 is a field, and 'N = 7e9' an answer
        is_answer = exercise_class.is_answer(argument.partition("=")[0], value, starts) or (
            has_blank and name in stated
        )
        if sign and name in names and not value.startswith("=") and not is_answer:
            stated[name] = parse_value(value.strip())
            spaced += [argument] if has_blank else []
        else:
            answers.append(argument)
    if not answers and not source and spaced and len(spaced) < len(stated) and remaining[-1] == spaced[-1]:
        answers.append(spaced[-1])  # 'lr = 0.01' after fields without blanks
        del stated[spaced[-1].partition("=")[0].strip()]
    return read_exercise(source, kind, **stated, **(fields or {})), answers


def describe_fields(kind: str) -> str:
    """Return a table of the fields of a kind, with their defaults and help texts."""
    exercise_class = load_kind(kind)
    rows: list[tuple[str, str]] = []
    for name, field in exercise_class.model_fields.items():
        if name not in exercise_class.common_fields:
            default = "" if field.is_required() else field.get_default(call_default_factory=True)
            default_text = "" if default in ("", (), {}, None, 0) and default is not False else f"={default}"
            rows.append((f"{name}{default_text}", describe_choices(field.description or "", field.annotation)))
    return wrap_lines("\n".join(format_table([("Fields", ""), *rows], left=(0, 1))))


def describe_choices(description: str, annotation: Any) -> str:
    """Return the description of a field, with its choices if these are words that it does not name.

    >>> describe_choices("Cells.", Literal["fencepost", "length"])
    'Cells. Choices: fencepost, length.'
    """
    choices = [choice for choice in get_args(annotation) if isinstance(choice, str) and choice]
    if get_origin(annotation) is not Literal or all(choice in description for choice in choices):
        return description
    return f"{description} Choices: {', '.join(choices)}."


@dataclass(frozen=True)
class ExerciseList(Result):
    """The exercises that come with Lemma: name, kind and title of each."""

    rows: tuple[tuple[str, str, str], ...]

    def blocks(self) -> list[Block]:
        """Return a table of the exercises, and the command that checks the first."""
        name, kind, _ = self.rows[0]
        example = f"Fields and names of the first: lemma check {kind} {name} --names"
        return [Table(("exercise", "kind", "title"), self.rows, is_text=True), Text(example, "note")]

    def to_dict(self) -> dict[str, Any]:
        """Return name, kind and title of each exercise as plain values for JSON."""
        return {"exercises": [dict(zip(("name", "kind", "title"), row, strict=True)) for row in self.rows]}


def list_exercises(kind: str = "") -> ExerciseList:
    """Return the exercises that come with Lemma: those of one kind, or all."""
    if kind:
        load_kind(kind)
    tables = {name: read_toml(path) for name, path in list_library().items()}
    rows = [(name, str(table["kind"]), str(table.get("title", ""))) for name, table in tables.items()]
    selected = [row for row in rows if kind in ("", row[1])]
    if not selected:
        raise SpecError(
            f"there are no exercises of kind {kind}. Write one: lemma check {kind} --names lists its fields."
        )
    return ExerciseList(tuple(sorted(selected, key=lambda row: list(KINDS).index(row[1]))))
