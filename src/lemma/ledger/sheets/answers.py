"""A student's answers, read without trusting them."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemma.errors import InputError, unknown
from lemma.ledger.sheets.markdown import Section, read_text, sections

MATHEMATICS = re.compile(r"\s*(?:\$\$(.*)\$\$|\$(.*)\$|\\\[(.*)\\\]|\\\((.*)\\\)|`(.*)`)\s*", re.DOTALL)


@dataclass(frozen=True)
class Answers:
    """What was answered to each question, and what cannot be read and why; by the question's name in small letters."""

    student: str
    given: Mapping[str, str]
    unreadable: Mapping[str, str]
    names: Mapping[str, str]
    """The names of the questions as the student wrote them."""


def read_answers(path: Path) -> Answers:
    """Read a file of answers; one that cannot be read spoils no other."""
    text = read_text(path)
    return _from_toml(path, text) if path.suffix.lower() == ".toml" else _from_markdown(text)


def _from_toml(path: Path, text: str) -> Answers:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML: {error}.") from None
    for word in table:
        if word not in ("student", "answers"):
            raise InputError(unknown(f"{path}: the word", word, ("student", "answers")))
    answers = table.get("answers")
    if not isinstance(answers, dict):
        raise InputError(f'{path}: there is no table [answers]. Write one with a line for each question: Q1 = "…".')
    return _gathered(str(table.get("student", "")), [(name, _plain(value)) for name, value in answers.items()])


def _from_markdown(text: str) -> Answers:
    top, below = sections(text)
    return _gathered(top.heading, [(_name(section.heading), _written(section)) for section in below])


def _gathered(student: str, pairs: list[tuple[str, str | None]]) -> Answers:
    names = {name.casefold(): name for name, _ in pairs}
    given = {name.casefold(): answer for name, answer in pairs if answer}
    unreadable = {name.casefold(): "expected a text, a number or lines" for name, answer in pairs if answer is None}
    keys = [name.casefold() for name, _ in pairs]
    unreadable |= {key: "it is answered more than once" for key in keys if keys.count(key) > 1}
    return Answers(student, given, unreadable, names)


def _plain(value: Any) -> str | None:
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value).strip()
    if isinstance(value, str):
        return _unwrapped(value)
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _written(section: Section) -> str:
    """The fenced blocks if there are some, else all lines."""
    return _unwrapped("\n".join([block for _, block in section.blocks] or section.lines))


def _unwrapped(text: str) -> str:
    """Without the marks of mathematics or code around all of it."""
    match = MATHEMATICS.fullmatch(text)
    inner = next(part for part in match.groups() if part is not None) if match else text
    return inner.strip() if not match or not re.search(r"[$`]", inner) else text.strip()


def _name(heading: str) -> str:
    """The first word of a heading, which names the question."""
    return (heading.split() or [""])[0].rstrip(":.")
