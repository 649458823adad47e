"""Answers of students, read from TOML, Markdown or mappings.

Answers are a table `[answers]` with a line for each question, or a Markdown section for each; formulas may be written
in $…$ or in a fenced block.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lemma.checking.sheets import parse_table, read_text, split_sections
from lemma.errors import InputError

MAX_NAME_CHARS = 100
_MATH_DELIMITERS = re.compile(r"\s*(?:\$\$(.*)\$\$|\$(.*)\$|\\\[(.*)\\\]|\\\((.*)\\\)|`(.*)`)\s*", re.DOTALL)


@dataclass(frozen=True)
class StudentAnswer:
    """An answer to one question.

    Attributes:
        name: the question's name as the student wrote it.
        text: the answer.
        error: why the answer cannot be read; "" if it can.
    """

    name: str
    text: str
    error: str = ""


@dataclass(frozen=True)
class Submission:
    """Everything that one student handed in.

    Attributes:
        answers: the answers by the casefolded name of their question.
        user: the student's id at a learning platform, if the file has one.
        source: the file, or the line of a table.
        error: why nothing of it can be read; "" if it can.
    """

    student: str
    answers: Mapping[str, StudentAnswer] = field(default_factory=dict)
    user: str = ""
    source: str = ""
    error: str = ""


def read_answers(source: Path | str | Mapping[str, Any]) -> Submission:
    """Read a student's name and answers; an answer that cannot be read does not affect the others."""
    if isinstance(source, Mapping):
        return Submission("", collect_answers((str(name), answer_text(value)) for name, value in source.items()))
    path = Path(source)
    text = read_text(path)
    if path.suffix.lower() == ".toml":
        table = parse_table(text, f"{path}:", ("student", "user", "answers"))
        answers = table.get("answers")
        if not isinstance(answers, dict):
            raise InputError(f'{path}: there is no table [answers]. Write one with a line for each question: Q1 = "…".')
        student, user = sanitize_name(table.get("student")), sanitize_name(table.get("user"))
        pairs = [(name, answer_text(value)) for name, value in answers.items()]
    else:  # the first word of a heading names the question; fenced blocks are the answer if there are some
        top, sections = split_sections(text)
        student, user, pairs = sanitize_name(top.heading), "", []
        for section in sections:
            name = (section.heading.split() or [""])[0].rstrip(":.")
            pairs.append((name, _strip_delimiters("\n".join([block for _, block in section.blocks] or section.lines))))
    return Submission(student, collect_answers(pairs), user, str(path))


def collect_answers(pairs: Iterable[tuple[str, str | None]]) -> dict[str, StudentAnswer]:
    """Return answers by the casefolded name of their question; one given twice, or as None, has an error."""
    answers: dict[str, StudentAnswer] = {}
    for name, text in pairs:
        previous = answers.get(name.casefold())
        error = "" if text is not None else "expected a text, a number or lines"
        answers[name.casefold()] = StudentAnswer(
            name,
            text or (previous.text if previous else ""),
            "it is answered more than once" if previous else error,
        )
    return answers


def sanitize_name(value: Any) -> str:
    """Return a name from a file in a form that is safe to print: one line, not too long, no control characters.

    >>> sanitize_name("Ada\\x1b[31m  Lovelace"), sanitize_name(None), sanitize_name(7)
    ('Ada�[31m Lovelace', '', '7')
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    text = value if isinstance(value, str) else hex(value) if abs(value) > 10**MAX_NAME_CHARS else str(value)
    text = " ".join(text[: 10 * MAX_NAME_CHARS].split())[:MAX_NAME_CHARS]
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def answer_text(value: Any) -> str | None:
    """Return a value of TOML or Python as the text of an answer; None if it is not an answer."""
    if isinstance(value, list | tuple) and all(isinstance(line, str) for line in value):
        return "\n".join(value).strip()
    if isinstance(value, str):
        return _strip_delimiters(value)
    try:
        return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    except ValueError:  # more digits than Python writes
        return None


def _strip_delimiters(text: str) -> str:
    """Remove the delimiters of mathematics or code around all of a text."""
    match = _MATH_DELIMITERS.fullmatch(text)
    inner = next(part for part in match.groups() if part is not None) if match else text
    return inner.strip() if not match or not re.search(r"[$`]", inner) else text.strip()
