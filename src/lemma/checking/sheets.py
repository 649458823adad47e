"""Sheets of questions and the marking of answers; both are files in TOML or Markdown.

A sheet in TOML has a title, `show_answer`, and a table `[[questions]]` for each question with the fields of
`SheetQuestion`. In Markdown each question is a section, such as `## Q1: How many? (2 points)`, whose fields are lines
such as `kind: parameters`, or a fenced block of TOML. Answers are a table `[answers]` with a line for each question, or
a section for each; formulas may be written in $…$ or in a fenced block.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from lemma.checking.cells import CELLS, find_cell
from lemma.checking.formulas import judge_formula
from lemma.checking.gradients import judge_gradients
from lemma.checking.numbers import judge_number, read_number
from lemma.checking.question import shown
from lemma.counting.count import QUANTITIES, Conventions, count
from lemma.counting.subject import subject_of
from lemma.errors import InputError, unknown
from lemma.report.result import Block, Heading, Pre, Result, Text
from lemma.spec.base import Spec, parse_settings, parse_value

LARGEST_FILE, LONGEST_SHOWN = 2**20, 2000
SUFFIXES = (".toml", ".md", ".markdown")
KINDS = ("parameters", "flops", "number", "gradient")
FENCE = re.compile(r"\s*(```+|~~~+)\s*(\w*)")
HEADING = re.compile(r"(?P<id>\S+?)[:.]?(?:\s+(?P<text>.*?))?(?:\s*\((?P<points>\d+(?:\.\d+)?) points?\))?")
FIELD = re.compile(r"\s*(?:[-*]\s+)?(?P<key>[a-z_]+)\s*:\s*(?P<value>\S.*)")
MATHEMATICS = re.compile(r"\s*(?:\$\$(.*)\$\$|\$(.*)\$|\\\[(.*)\\\]|\\\((.*)\\\)|`(.*)`)\s*", re.DOTALL)


def _read(path: Path) -> str:
    """Read a sheet or an answers file, if it is one and not too large."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}.")
    try:
        content = path.read_bytes()[: LARGEST_FILE + 1]
        if len(content) > LARGEST_FILE:
            raise InputError(
                f"{path}: has more than {LARGEST_FILE:,} bytes; that is neither a sheet nor an answer to one."
            )
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        raise InputError(f"{path}: {reason}.") from None


def _toml(text: str, where: str, known: Iterable[str] = ()) -> dict[str, Any]:
    """Read TOML with known keys only."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where} not valid TOML: {error}.") from None
    for word in table:
        if known and word not in known:
            raise InputError(unknown(f"{where} the setting", word, known))
    return table


@dataclass
class MarkdownSection:
    """What is under one heading: plain lines, and fenced blocks with the language they name."""

    heading: str
    lines: list[str] = field(default_factory=list)
    blocks: list[tuple[str, str]] = field(default_factory=list)


def sections(text: str) -> tuple[MarkdownSection, list[MarkdownSection]]:
    r"""Split a text at its headings: what is under the title, and every section of the second level.

    >>> top, (first,) = sections("# Week 3\n## Q1\nHow many?\n```\nV*d\n```\n")
    >>> top.heading, first.heading, first.lines, first.blocks
    ('Week 3', 'Q1', ['How many?'], [('', 'V*d')])
    """
    found, lines = [MarkdownSection("")], iter(text.splitlines())
    for line in lines:
        if fence := FENCE.fullmatch(line.rstrip()):
            block: list[str] = []
            for inner in lines:  # a block that is not closed ends with the text
                if inner.strip() == fence[1]:
                    break
                block.append(inner)
            found[-1].blocks.append((fence[2], "\n".join(block)))
        elif line.startswith("## "):
            found.append(MarkdownSection(line[3:].strip()))
        elif line.startswith("# ") and len(found) == 1 and not found[0].heading:
            found[0].heading = line[2:].strip()
        else:
            found[-1].lines.append(line)
    return found[0], found[1:]


class SheetQuestion(Spec):
    """One question: what is asked for, of which model or cell, and what it is worth."""

    renamed: ClassVar[Mapping[str, str]] = {"words": "settings"}

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
    settings: dict[str, Any] = Field(default_factory=dict)
    """The model's settings, as a table or as key=value."""
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

    @field_validator("settings", mode="before")
    @classmethod
    def _settings(cls, value: Any) -> Any:
        return parse_settings(value.replace(",", " ").split()) if isinstance(value, str) else value

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
            cell = find_cell(_one_of("cell", self.cell, CELLS))
            if not self.lines:
                raise ValueError(f"lines: name the gradients asked for, such as {', '.join(cell.gradients[:2])}.")
            for name in self.lines:
                _one_of("lines", cell.canonical(name), cell.gradients)
        elif not self.model:
            raise ValueError(f"model: a question of kind {self.kind} needs one, as in model = 'decoder'.")
        else:
            _one_of("quantity", self.quantity, QUANTITIES)
        return self


def _one_of(field: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(unknown(field, value, known))
    return value


@dataclass(frozen=True)
class Sheet:
    """All questions of a sheet."""

    title: str
    questions: tuple[SheetQuestion, ...]


def read_sheet(path: Path) -> Sheet:
    """Read a sheet; a mistake in it is named with the file, the question and the field."""
    text = _read(path)
    if path.suffix.lower() == ".toml":
        table = _toml(text, f"{path}:", ("title", "show_answer", "questions"))
    else:
        top, below = sections(text)
        whole, _ = _fields(path, top, ("title", "show_answer"))
        table = {"title": top.heading, **whole, "questions": []}
        for section in below:
            named = HEADING.fullmatch(section.heading)
            if named is None:
                raise InputError(
                    f"{path}: question {section.heading!r}: id: the heading has no name. Write ## Q1 (2 points)."
                )
            found, prose = _fields(path, section, (*SheetQuestion.model_fields, *SheetQuestion.renamed))
            points = {"points": float(named["points"])} if named["points"] else {}
            said = "\n".join(part for part in (named["text"] or "", *prose) if part).strip()
            table["questions"].append({"id": named["id"], "text": said, **points, **found})
    usual = {"show_answer": table["show_answer"]} if "show_answer" in table else {}
    listed = table.get("questions")
    if not isinstance(listed, list) or not listed or not all(isinstance(one, dict) for one in listed):
        raise InputError(f"{path}: questions: the sheet has none. Write [[questions]] in TOML, ## Q1 in Markdown.")
    questions: list[SheetQuestion] = []
    for number, fields in enumerate(listed, 1):
        where = f"{path}: question {fields.get('id', number)}"
        try:
            question = SheetQuestion.read({**usual, **fields}, where)
            if question.model:
                subject_of(question.model, question.settings)
        except InputError as error:
            said = (line if line.startswith(where) else f"{where}: {line}" for line in str(error).splitlines())
            raise InputError("\n".join(said)) from None
        questions.append(question)
    ids = [question.id.casefold() for question in questions]
    twice = next((question.id for question in questions if ids.count(question.id.casefold()) > 1), None)
    if twice is not None:
        raise InputError(f"{path}: question {twice}: id: there are two of that name.")
    return Sheet(str(table.get("title") or path.stem), tuple(questions))


def _fields(path: Path, section: MarkdownSection, known: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """The fields of a section, and the lines that are no fields but text."""
    found: dict[str, Any] = {}
    prose: list[str] = []
    for line in section.lines:
        match = FIELD.fullmatch(line)
        key = match["key"] if match else ""
        if match and key in known:
            found[key] = parse_value(match["value"].strip())
        elif key and get_close_matches(key, known, n=1, cutoff=0.8):
            raise InputError(unknown(f"{path}: question {section.heading}: the setting", key, known))
        else:
            prose.append(line)
    for language, block in section.blocks:
        if language == "toml":
            found |= _toml(block, f"{path}: question {section.heading}: the block is")
        else:
            prose += ["```", block, "```"]
    return found, prose


@dataclass(frozen=True)
class StudentAnswer:
    """An answer, and the name of its question as the student wrote it; or why it cannot be read."""

    name: str
    text: str
    unreadable: str = ""


def read_answers(path: Path) -> tuple[str, dict[str, StudentAnswer]]:
    """Read a student's name and answers, by question in small letters; one that cannot be read spoils no other."""
    text = _read(path)
    pairs: list[tuple[str, str | None]] = []
    if path.suffix.lower() == ".toml":
        table = _toml(text, f"{path}:", ("student", "answers"))
        answers, student = table.get("answers"), str(table.get("student", ""))
        if not isinstance(answers, dict):
            raise InputError(f'{path}: there is no table [answers]. Write one with a line for each question: Q1 = "…".')
        pairs += [(name, _plain(value)) for name, value in answers.items()]
    else:  # the first word of a heading names the question; fenced blocks are the answer if there are some
        top, below = sections(text)
        student = top.heading
        for section in below:
            name = (section.heading.split() or [""])[0].rstrip(":.")
            pairs.append((name, _unwrapped("\n".join([block for _, block in section.blocks] or section.lines))))
    found: dict[str, StudentAnswer] = {}
    for name, answer in pairs:
        before = found.get(name.casefold())
        kept = answer or (before.text if before else "")
        reason = "" if answer is not None else "expected a text, a number or lines"
        found[name.casefold()] = StudentAnswer(name, kept, "it is answered more than once" if before else reason)
    return student, found


def _plain(value: Any) -> str | None:
    """A value of TOML as text; None if it is not an answer."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value).strip()
    if isinstance(value, str):
        return _unwrapped(value)
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _unwrapped(text: str) -> str:
    """Without the signs of mathematics or code around all of it."""
    match = MATHEMATICS.fullmatch(text)
    inner = next(part for part in match.groups() if part is not None) if match else text
    return inner.strip() if not match or not re.search(r"[$`]", inner) else text.strip()


def judge(question: SheetQuestion, answer: str) -> tuple[float, str, str, str | None]:
    """Judge an answer to a question; an `InputError` says why it cannot be read.

    Returns the part that is right, the reason in full, a hint that gives nothing away, and the right answer if known.
    """
    conventions = Conventions(question.multiply_add, question.causal)
    if question.kind == "gradient":
        report = judge_gradients(question.cell, answer.splitlines())
        wanted: dict[str, str] = {}
        for name in question.lines:
            own = find_cell(question.cell).canonical(name)
            outcomes = {verdict.outcome for verdict in report.judged if verdict.name == own}
            wanted[name] = "missing" if not outcomes else "right" if outcomes == {"right"} else "wrong"
        right = sum(outcome == "right" for outcome in wanted.values())
        share = right / len(wanted) if question.partial else float(right == len(wanted))
        taken = sorted({name for verdict in report.judged for name in verdict.taken})
        hint = ", ".join(f"{name} {outcome}" for name, outcome in wanted.items()) + "."
        hint += f" Taken as given: {', '.join(taken)}." if taken else ""
        said = [f"{one.name}: {'; '.join(one.remarks)}" for one in report.judged if one.remarks]
        return share, "\n".join([hint, *said]), hint, None
    if question.kind == "number":
        claimed, where = answer, ""
        if question.change:  # a student's own sizes do not count
            number = answer.lower().partition("from")[0].strip()
            claimed = f"{number}{'' if '%' in number or 'cent' in number else ' %'} {question.change}"
        elif read_number(answer).start:
            raise InputError("a plain number is asked for, not a change in per cent.")
        verdict = judge_number(question.model, question.quantity, claimed, question.settings, conventions)
        right, exact = verdict.right, Fraction(verdict.right_at)
        if verdict.equal and abs(verdict.yours_at - exact) > Fraction(question.tolerance) * abs(exact):
            coarse = f"Not right: {answer} is rounded too far."
            return 0.0, coarse, coarse, right
    else:
        asked, where = "flops" if question.kind == "flops" else "parameters", " at the model's sizes"
        verdict = judge_formula(question.model, asked, answer, question.settings, conventions)
        number = shown(verdict.right_at)
        right = verdict.right if verdict.right == number else f"{verdict.right} = {number}"
    hint = "Right." if verdict.equal else "Not right."
    if not verdict.equal and verdict.yours_at != verdict.right_at:
        hint = f"Not right: {'too large' if verdict.yours_at > verdict.right_at else 'too small'}{where}."
    return float(verdict.equal), " ".join([verdict.headline, *verdict.diagnosis, *verdict.remarks]), hint, right


@dataclass(frozen=True)
class Mark:
    """One answer and what it is worth. `right` is the right answer, where the sheet allows it to be shown."""

    id: str
    text: str
    answer: str
    verdict: Literal["right", "partly right", "wrong", "unreadable", "not answered"]
    reason: str
    points: float
    of: float
    right: str | None = None

    @property
    def remarks(self) -> tuple[str, ...]:
        """All there is to say about it."""
        right = f"The right answer: {self.right}" if self.right and self.verdict != "right" else ""
        return tuple(remark for remark in (*self.reason.splitlines(), right) if remark)


@dataclass(frozen=True)
class Marked(Result):
    """All marks of one student."""

    title: str
    student: str
    marks: tuple[Mark, ...]
    strangers: tuple[str, ...] = ()
    """What is said of answers to questions that are not on the sheet."""

    @property
    def points(self) -> float:
        """All points together."""
        return round(sum(mark.points for mark in self.marks), 2)

    @property
    def of(self) -> float:
        """The points that can be had."""
        return round(sum(mark.of for mark in self.marks), 2)

    @property
    def summary(self) -> str:
        """The points in words."""
        return f"{self.points:g} of {self.of:g} points"

    def blocks(self) -> list[Block]:
        """A line for each answer, and under it what there is to say."""
        width = max(len(mark.id) for mark in self.marks)
        lines = [": ".join(filter(None, (self.title, self.student)))]
        for mark in self.marks:
            lines.append(f"{mark.id:<{width}}  {mark.verdict:<12}  {mark.points:>5g} of {mark.of:g}")
            lines += [f"{'':<{width}}  {remark}" for remark in mark.remarks]
        return [Text("\n".join([*lines, *self.strangers, self.summary]))]

    def details(self) -> list[Block]:
        """The same with questions and answers; these are in blocks, where nothing in them has a meaning."""
        found: list[Block] = [
            Heading(": ".join(filter(None, (self.title, self.student))), 1),
            Text(self.summary, "strong"),
        ]
        for mark in self.marks:
            found += [Heading(mark.id), *([Text(mark.text)] if mark.text else [])]
            found += [Pre([(mark.answer, "")])] if mark.answer else []
            kind = {"right": "good", "partly right": "warning", "not answered": "strong"}.get(mark.verdict, "bad")
            found.append(Text(f"{mark.verdict}, {mark.points:g} of {mark.of:g} points", kind))  # pyright: ignore[reportArgumentType]
            found += [Pre([("\n".join(mark.remarks), "")])] if mark.remarks else []
        return [*found, *(Text(stranger, "note") for stranger in self.strangers)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        about = {"title": self.title, "student": self.student, "points": self.points, "of": self.of}
        return {**about, "marks": [asdict(mark) for mark in self.marks], "strangers": list(self.strangers)}


def mark(sheet: Path | str, answers: Path | str) -> Marked:
    """Mark a student's answers to a sheet; both are files in TOML or Markdown."""
    asked, (student, given) = read_sheet(Path(sheet)), read_answers(Path(answers))
    for question in asked.questions:  # what the model cannot be asked is the sheet's mistake and not the student's
        if question.kind == "gradient":
            continue
        place, quantity = f"{sheet}: question {question.id}", question.kind
        try:
            quantity = question.quantity if quantity == "number" else quantity
            account = count(subject_of(question.model, question.settings), (quantity,))
            if question.change:
                judge(question, "1 %")
        except InputError as error:
            raise InputError(f"{place}: {'change' if question.change else 'model'}: {error}") from None
        figure = account.quantities[quantity]
        if figure.at(account.symbols) is None or (figure.refused and question.kind != "number"):
            raise InputError(f"{place}: kind: the {quantity} of {question.model} follow no formula.")
    ids = [question.id for question in asked.questions]
    known = {name.casefold() for name in ids}
    strangers = (unknown("question", one.name[:100], ids) for key, one in given.items() if key not in known)
    return Marked(asked.title, student, tuple(_mark(one, given) for one in asked.questions), tuple(strangers))


def _mark(question: SheetQuestion, given: Mapping[str, StudentAnswer]) -> Mark:
    answer = given.get(question.id.casefold(), StudentAnswer(question.id, ""))
    blank = Mark(question.id, question.text, answer.text[:LONGEST_SHOWN], "not answered", "", 0, question.points)
    if answer.unreadable:
        return replace(blank, verdict="unreadable", reason=f"Cannot be read: {answer.unreadable}.")
    if not answer.text:
        return blank
    try:
        share, reason, hint, right = judge(question, answer.text)
    except InputError as error:
        return replace(blank, verdict="unreadable", reason=f"Cannot be read: {error}")
    except Exception as error:  # nothing a student writes may stop the marking of the rest
        return replace(blank, verdict="unreadable", reason=f"Cannot be judged ({type(error).__name__}).")
    verdict = "right" if share == 1 else "partly right" if share else "wrong"
    marked = replace(blank, verdict=verdict, reason=hint, points=round(share * question.points, 2))
    return replace(marked, reason=reason, right=right) if question.show_answer else marked
