"""A sheet of questions, read and checked before anything is marked."""

import re
import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from lemma.errors import InputError, unknown
from lemma.ledger.counting import QUANTITIES
from lemma.ledger.gradients import CELLS
from lemma.ledger.gradients.judge import find_cell
from lemma.ledger.sheets.markdown import Section, read_text, sections
from lemma.ledger.sources import subject_of
from lemma.spec.base import Spec
from lemma.spec.words import parse_value, parse_words

KINDS = ("parameters", "flops", "number", "gradient")
HEADING = re.compile(r"(?P<id>\S+?)[:.]?(?:\s+(?P<text>.*?))?(?:\s*\((?P<points>\d+(?:\.\d+)?) points?\))?")
FIELD = re.compile(r"\s*(?:[-*]\s+)?(?P<key>[a-z_]+)\s*:\s*(?P<value>\S.*)")


class Question(Spec):
    """One question: what is asked for, of which model or cell, and what it is worth."""

    id: Annotated[str, Field(min_length=1, max_length=100)]
    """The name by which answers refer to it."""
    text: str = ""
    """The question as the student reads it."""
    points: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1
    """What a right answer is worth."""
    kind: str
    """What is asked for: the formula of parameters or flops, a number, or gradients."""
    model: str = ""
    """The model that a formula or a number is about."""
    words: dict[str, Any] = Field(default_factory=dict)
    """The model's words, as a table or as key=value."""
    quantity: str = "parameters"
    """What a number counts."""
    change: str = ""
    """The sizes between which a change in per cent is asked for, as in: from 2 to 4 layers."""
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.01
    """How far a rounded number may be off, as a part of the right one."""
    cell: str = ""
    """The cell that gradients are about."""
    lines: tuple[str, ...] = ()
    """The gradients asked for."""
    partial: bool = False
    """Whether every right gradient earns its part of the points."""
    multiply_add: Literal[1, 2] = 2
    """What a multiply–add counts as."""
    causal: Literal["full", "half"] = "full"
    """Whether causal attention counts in full."""
    show_answer: bool = False
    """Whether the student may see the right answer."""

    @field_validator("words", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return parse_words(value.replace(",", " ").split()) if isinstance(value, str) else value

    @field_validator("lines", mode="before")
    @classmethod
    def _lines(cls, value: Any) -> Any:
        return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value

    @field_validator("kind")
    @classmethod
    def _kind(cls, value: str) -> str:
        return _one_of("kind", value, KINDS)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "gradient":
            _check_gradients(self.cell, self.lines)
        elif not self.model:
            raise ValueError(f"model: a question of kind {self.kind} needs one, as in model = 'decoder'.")
        else:
            _one_of("quantity", self.quantity, QUANTITIES)
        return self


@dataclass(frozen=True)
class Sheet:
    """All questions of a sheet."""

    title: str
    questions: tuple[Question, ...]


def read_sheet(path: Path) -> Sheet:
    """Read a sheet; a mistake in it is named with the file, the question and the field."""
    text = read_text(path)
    table = _from_toml(path, text) if path.suffix.lower() == ".toml" else _from_markdown(path, text)
    usual = {"show_answer": table["show_answer"]} if "show_answer" in table else {}
    listed = table.get("questions")
    if not isinstance(listed, list) or not listed or not all(isinstance(one, dict) for one in listed):
        raise InputError(f"{path}: questions: the sheet has none. Write [[questions]] in TOML, ## Q1 in Markdown.")
    questions = tuple(_question(path, number, {**usual, **words}) for number, words in enumerate(listed, 1))
    ids = [question.id.casefold() for question in questions]
    twice = next((question.id for question in questions if ids.count(question.id.casefold()) > 1), None)
    if twice is not None:
        raise InputError(f"{path}: question {twice}: id: there are two of that name.")
    return Sheet(str(table.get("title") or path.stem), questions)


def _from_toml(path: Path, text: str) -> dict[str, Any]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML: {error}.") from None
    known = ("title", "show_answer", "questions")
    for word in table:
        if word not in known:
            raise InputError(unknown(f"{path}: the word", word, known))
    return table


def _from_markdown(path: Path, text: str) -> dict[str, Any]:
    top, below = sections(text)
    whole, _ = _fields(path, top, ("title", "show_answer"))
    return {"title": top.heading, **whole, "questions": [_asked(path, section) for section in below]}


def _asked(path: Path, section: Section) -> dict[str, Any]:
    heading = HEADING.fullmatch(section.heading)
    if heading is None:
        raise InputError(f"{path}: question {section.heading!r}: id: the heading has no name. Write ## Q1 (2 points).")
    found, prose = _fields(path, section, tuple(Question.model_fields))
    points = {"points": float(heading["points"])} if heading["points"] else {}
    said = "\n".join(part for part in (heading["text"] or "", *prose) if part).strip()
    return {"id": heading["id"], "text": said, **points, **found}


def _fields(path: Path, section: Section, known: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """The words of a section, and the lines that are no words but text."""
    found: dict[str, Any] = {}
    prose: list[str] = []
    for line in section.lines:
        match = FIELD.fullmatch(line)
        key = match["key"] if match else ""
        if match and key in known:
            found[key] = parse_value(match["value"].strip())
        elif key and get_close_matches(key, known, n=1, cutoff=0.8):
            raise InputError(unknown(f"{path}: question {section.heading}: the word", key, known))
        else:
            prose.append(line)
    for language, block in section.blocks:
        if language == "toml":
            found |= _block(path, section.heading, block)
        else:
            prose += ["```", block, "```"]
    return found, prose


def _block(path: Path, heading: str, block: str) -> dict[str, Any]:
    try:
        return tomllib.loads(block)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: question {heading}: the block is not valid TOML: {error}.") from None


def _question(path: Path, number: int, words: dict[str, Any]) -> Question:
    where = f"{path}: question {words.get('id', number)}"
    try:
        question = Question.read(words, where)
        if question.model:
            subject_of(question.model, question.words)
    except InputError as error:
        lines = str(error).splitlines()
        raise InputError("\n".join(line if line.startswith(where) else f"{where}: {line}" for line in lines)) from None
    return question


def _check_gradients(cell: str, lines: tuple[str, ...]) -> None:
    described = find_cell(_one_of("cell", cell, CELLS))
    if not lines:
        raise ValueError(f"lines: name the gradients asked for, such as {', '.join(described.gradients[:2])}.")
    for name in lines:
        _one_of("lines", described.canonical(name), described.gradients)


def _one_of(field: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(unknown(field, value, known))
    return value
