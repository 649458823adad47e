"""Sheets of questions and the marking of one student's answers; both are files in TOML or Markdown.

A sheet in TOML has a title, `show_answer`, and a table `[[questions]]` for each question with the fields of
`SheetQuestion`. In Markdown each question is a section, such as `## Q1: How many? (2 points)`, whose fields are lines
such as `kind: parameters`, or a fenced block of TOML. Answers are a table `[answers]` with a line for each question, or
a section for each; formulas may be written in $…$ or in a fenced block. In Python both may be mappings instead.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator

from lemma.checking.accounts import account_for, symbol_aliases
from lemma.checking.cells import CELL_NAMES, Sample, find_cell
from lemma.checking.check_formula import check_formula
from lemma.checking.compare_formula import FormulaQuestion, Verdict, format_number, has_symbols, read_question
from lemma.checking.expressions import Evaluator, ShapeError, limited_work
from lemma.checking.gradients import check_gradients, read_derivation
from lemma.checking.numbers import WrittenNumber, check_number, read_number
from lemma.checking.read_formula import read_formula, substitute
from lemma.counting.account import Account, Part
from lemma.counting.count import QUANTITIES, Conventions
from lemma.counting.polynomial import ONE, Calculator, Rational, as_polynomial, symbol, work_limit
from lemma.counting.subject import resolve_subject
from lemma.counting.writing import write_formula
from lemma.errors import InputError, describe_unknown
from lemma.report.result import Block, Heading, Pre, Result, Text
from lemma.spec.base import Spec, parse_settings, parse_toml, parse_value

MAX_FILE_BYTES, MAX_ANSWER_CHARS, MAX_NAME_CHARS = 2**20, 2000, 100
MAX_UNKNOWN_ANSWERS = 10
MARKING_WORK_LIMIT = 40_000
"""Steps of work for one answer, see `work_limit`: a class hands in many."""
NOT_DIAGNOSED, UNEXPLAINED = "not diagnosed", "wrong, without a simple explanation"
SUFFIXES = (".toml", ".md", ".markdown")
QUESTION_KINDS = ("parameters", "flops", "formula", "number", "gradient")
FENCE = re.compile(r"\s*(```+|~~~+)\s*(\w*)")
HEADING = re.compile(r"(?P<id>\S+?)[:.]?(?:\s+(?P<text>.*?))?(?:\s*\((?P<points>\d+(?:\.\d+)?) points?\))?")
FIELD = re.compile(r"\s*(?:[-*]\s+)?(?P<key>[a-z_]+)\s*:\s*(?P<value>\S.*)")
PERCENT_FACTOR = re.compile(r"(?<![\w.,])100\s*[*·×(]|[*·×)]\s*100(?![\w.,])")
"""A factor of 100 in a question's value: the answer is asked for in per cent."""
MATH_DELIMITERS = re.compile(r"\s*(?:\$\$(.*)\$\$|\$(.*)\$|\\\[(.*)\\\]|\\\((.*)\\\)|`(.*)`)\s*", re.DOTALL)


def _read(path: Path) -> str:
    """Read a sheet or an answers file, if it is one and not too large."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}.")
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is not a file.")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise InputError(
                f"{path}: has more than {MAX_FILE_BYTES:,} bytes; that is neither a sheet nor an answer to one."
            )
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        raise InputError(f"{path}: {reason}.") from None


def _toml(text: str, where: str, known: Iterable[str] = ()) -> dict[str, Any]:
    """Read TOML with known keys only."""
    try:
        table = parse_toml(text)
    except ValueError as error:
        raise InputError(f"{where} not valid TOML: {error}.") from None
    for word in table:
        if known and word not in known:
            raise InputError(describe_unknown(f"{where} the setting", word, known))
    return table


@dataclass
class MarkdownSection:
    """What is under one heading: plain lines, and fenced blocks with the language they name."""

    heading: str
    lines: list[str] = field(default_factory=list)
    blocks: list[tuple[str, str]] = field(default_factory=list)


def split_sections(text: str) -> tuple[MarkdownSection, list[MarkdownSection]]:
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
    kind: str = ""
    """What is asked for: the formula of parameters or flops, one made of these, a number, or gradients."""
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
    credit: dict[str, Annotated[float, Field(gt=0, lt=1)]] = Field(default_factory=dict)
    """Other formulas or numbers that earn a part of the points, each with its share."""
    value: str = ""
    """The right number or formula in terms of earlier questions, as in: 16*Q1."""
    builds_on: tuple[str, ...] = ()
    """The earlier questions whose answers it uses: what is right with the student's own ones earns points too."""
    follow_through: Annotated[float, Field(ge=0, le=1)] = 1
    """The share of the points for an answer that is right only with the student's own wrong earlier ones."""
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

    @field_validator("lines", "builds_on", mode="before")
    @classmethod
    def _lines(cls, value: Any) -> Any:
        return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.kind:
            raise ValueError(
                f"kind: is missing. Say what is asked for: {', '.join(QUESTION_KINDS[:-1])} or {QUESTION_KINDS[-1]}."
            )
        _one_of("kind", self.kind, QUESTION_KINDS)
        if self.value and self.kind not in ("number", "formula"):
            raise ValueError(f"value: only a question of kind number or formula has one, not one of kind {self.kind}.")
        if self.kind == "gradient":
            if self.credit:
                raise ValueError("credit: is for formulas and numbers. For gradients write partial = true.")
            cell = find_cell(_one_of("cell", self.cell, CELL_NAMES))
            if not self.lines:
                raise ValueError(f"lines: name the gradients asked for, such as {', '.join(cell.gradients[:2])}.")
            for name in self.lines:
                _one_of("lines", cell.canonical(name), cell.gradients)
        elif self.value and (self.model or self.change):
            raise ValueError("value: says what is right; a model or a change would say it again. Leave them out.")
        elif self.kind == "formula" and not self.value:
            raise ValueError("value: a question of kind formula needs one, as in value = '16*Q1'.")
        elif not self.value and not self.model:
            raise ValueError(f"model: a question of kind {self.kind} needs one, as in model = 'decoder'.")
        else:
            _one_of("quantity", self.quantity, QUANTITIES)
        return self

    @property
    def counted_quantity(self) -> str:
        """The quantity of the model that the answer is compared with."""
        return self.quantity if self.kind == "number" else self.kind

    @property
    def conventions(self) -> Conventions:
        """How its FLOPs are counted."""
        return Conventions(self.multiply_add, self.causal)


def _one_of(field: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(describe_unknown(field, value, known))
    return value


@dataclass(frozen=True)
class Sheet:
    """All questions of a sheet."""

    title: str
    questions: tuple[SheetQuestion, ...]
    source: str = "the sheet"
    """The file, for what is wrong in it."""


def read_sheet(source: Path | str | Mapping[str, Any]) -> Sheet:
    """Read a sheet; a mistake in it is named with the file, the question and the field."""
    path = Path("the sheet") if isinstance(source, Mapping) else Path(source)
    if isinstance(source, Mapping):
        table = dict(source)
        if extra := set(table) - {"title", "show_answer", "questions"}:
            raise InputError(
                describe_unknown("the sheet: the setting", str(min(extra, key=str)), ("title", "questions"))
            )
    elif path.suffix.lower() == ".toml":
        table = _toml(_read(path), f"{path}:", ("title", "show_answer", "questions"))
    else:
        top, below = split_sections(_read(path))
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
            if not fields.get("id"):
                raise InputError(f"id: is missing. Name question {number} for the answers, as in id = 'Q{number}'.")
            question = SheetQuestion.read({**usual, **fields}, where)
            if question.model:
                resolve_subject(question.model, question.settings)
            question = question.model_copy(update={"builds_on": _earlier(question, questions)})
        except InputError as error:
            said = (line if line.startswith(where) else f"{where}: {line}" for line in str(error).splitlines())
            raise InputError("\n".join(said)) from None
        questions.append(question)
    ids = [question.id.casefold() for question in questions]
    twice = next((question.id for question in questions if ids.count(question.id.casefold()) > 1), None)
    if twice is not None:
        raise InputError(f"{path}: question {twice}: id: there are two of that name.")
    return Sheet(str(table.get("title") or path.stem), tuple(questions), str(path))


def _earlier(question: SheetQuestion, before: Sequence[SheetQuestion]) -> tuple[str, ...]:
    """The questions it builds on, by their ids; an InputError if nothing follows from these."""
    known = {one.id.casefold(): one for one in before}
    if question.value:
        if not before:
            raise InputError(f"value: '{question.value}' needs earlier questions, and there are none.")
        if question.kind == "formula":  # it may have sizes of the models too
            found = [one for one in before if re.search(rf"(?<!\w){re.escape(one.id)}(?!\w)", question.value)]
        else:
            used = read_formula(question.value, [one.id for one in before]).symbols
            found = [one for one in before if one.id in used]
        if not found:
            raise InputError(f"value: '{question.value}' names no earlier question, such as {before[-1].id}.")
    else:
        found = []
        for name in question.builds_on:
            if name.casefold() not in known:
                raise InputError(f"builds_on: there is no question {name} before it.")
            found.append(known[name.casefold()])
    for one in found:
        if question.value:
            fits, needed = one.kind != "gradient", "one that asks for a formula or a number"
        elif question.kind == "gradient":
            fits, needed = one.cell == question.cell, f"one about gradients of the cell {question.cell}"
        else:
            fits = (
                one.kind == question.counted_quantity != question.kind
                and one.model == question.model
                and len(found) == 1
            )
            needed = f"one question for the formula of the {question.counted_quantity} of {question.model}, and here a number"
        if not fits:
            raise InputError(
                f"{'value' if question.value else 'builds_on'}: {one.id} does not fit: expected {needed}. "
                "What is computed from other answers is a number or a formula with a value, as in value = '16*Q1'."
            )
    return tuple(one.id for one in found)


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
            raise InputError(describe_unknown(f"{path}: question {section.heading}: the setting", key, known))
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
    error: str = ""


@dataclass(frozen=True)
class Submission:
    """What one student handed in: the answers by question, in small letters."""

    student: str
    answers: Mapping[str, StudentAnswer] = field(default_factory=dict)
    user: str = ""
    """The student's id at a learning platform, where the file gives one."""
    source: str = ""
    """The file, or the line of a table."""
    error: str = ""
    """Why nothing of it can be read."""


def read_answers(source: Path | str | Mapping[str, Any]) -> Submission:
    """Read a student's name and answers; one that cannot be read spoils no other."""
    if isinstance(source, Mapping):
        return Submission("", collect_answers((str(name), answer_text(value)) for name, value in source.items()))
    path, user = Path(source), ""
    text = _read(path)
    if path.suffix.lower() == ".toml":
        table = _toml(text, f"{path}:", ("student", "user", "answers"))
        answers, student, user = (
            table.get("answers"),
            sanitize_name(table.get("student")),
            sanitize_name(table.get("user")),
        )
        if not isinstance(answers, dict):
            raise InputError(f'{path}: there is no table [answers]. Write one with a line for each question: Q1 = "…".')
        pairs = [(name, answer_text(value)) for name, value in answers.items()]
    else:  # the first word of a heading names the question; fenced blocks are the answer if there are some
        top, below = split_sections(text)
        student, pairs = sanitize_name(top.heading), []
        for section in below:
            name = (section.heading.split() or [""])[0].rstrip(":.")
            pairs.append((name, _unwrapped("\n".join([block for _, block in section.blocks] or section.lines))))
    return Submission(student, collect_answers(pairs), user, str(path))


def collect_answers(pairs: Iterable[tuple[str, str | None]]) -> dict[str, StudentAnswer]:
    """Answers by the name of their question in small letters; one given twice, or None, cannot be read."""
    found: dict[str, StudentAnswer] = {}
    for name, answer in pairs:
        before = found.get(name.casefold())
        kept = answer or (before.text if before else "")
        reason = "" if answer is not None else "expected a text, a number or lines"
        found[name.casefold()] = StudentAnswer(name, kept, "it is answered more than once" if before else reason)
    return found


def sanitize_name(value: Any) -> str:
    """A name that a file gives, as it may be printed: one line, not too long, no control characters.

    >>> shown_name("Ada\\x1b[31m  Lovelace"), shown_name(None), shown_name(7)
    ('Ada�[31m Lovelace', '', '7')
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    text = value if isinstance(value, str) else hex(value) if abs(value) > 10**MAX_NAME_CHARS else str(value)
    text = " ".join(text[: 10 * MAX_NAME_CHARS].split())[:MAX_NAME_CHARS]
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def answer_text(value: Any) -> str | None:
    """A value of TOML or Python as text; None if it is not an answer."""
    if isinstance(value, list | tuple) and all(isinstance(line, str) for line in value):
        return "\n".join(value).strip()
    if isinstance(value, str):
        return _unwrapped(value)
    try:
        return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    except ValueError:  # more digits than Python writes
        return None


def _unwrapped(text: str) -> str:
    """Without the signs of mathematics or code around all of it."""
    match = MATH_DELIMITERS.fullmatch(text)
    inner = next(part for part in match.groups() if part is not None) if match else text
    return inner.strip() if not match or not re.search(r"[$`]", inner) else text.strip()


@dataclass(frozen=True)
class Assessment:
    """What is said of one answer: to the teacher in full, and as a hint that gives nothing away."""

    fraction: float = 0.0
    """The part of the points that it earns."""
    reason: str = ""
    hint: str = ""
    right_answer: str | None = None
    mistakes: tuple[str, ...] = ()
    value: Fraction | None = None
    """The student's own number, for the questions that build on it."""
    follows_from: tuple[str, ...] = ()
    """The earlier questions with whose answers, as the student gave them, it is right."""
    error: str = ""
    is_diagnosed: bool = False


AnswerId = tuple[Any, ...]
"""A question's id, an answer to it, and such keys of the earlier questions that it builds on."""


class Marker:
    """Marks answers to one sheet. Each distinct answer is judged once, however many students give it.

    A model that cannot be asked what the sheet asks is the sheet's mistake, and refused here.
    """

    def __init__(self, sheet: Sheet) -> None:
        self.sheet = sheet
        self.questions = {question.id: question for question in sheet.questions}
        self.accounts: dict[str, Account] = {}
        self.aliases: dict[str, dict[str, str]] = {}
        self.expected_values: dict[str, Fraction] = {}
        self.expected_formulas: dict[str, Rational] = {}
        self.assessments: dict[AnswerId, Assessment] = {}
        self.uses: Counter[AnswerId] = Counter()
        for question in sheet.questions:
            field = "value" if question.value else "change" if question.change else "model"
            try:
                if question.kind != "gradient":
                    self._prepare(question)
                field = "credit"
                for answer in question.credit:
                    self._same(question, answer, answer)
            except InputError as error:
                raise InputError(f"{sheet.source}: question {question.id}: {field}: {error}") from None

    @work_limit(MARKING_WORK_LIMIT)
    def _prepare(self, question: SheetQuestion) -> None:
        if question.kind == "formula":
            accounts = [self.accounts[name] for name in question.builds_on if name in self.accounts]
            if not accounts:
                raise InputError(f"'{question.value}' builds on numbers only. Ask for a number: kind = 'number'.")
            symbols, defaults = dict(accounts[0].symbols), dict(accounts[0].defaults)
            for account in accounts[1:]:
                for name, size in account.symbols.items():
                    if symbols.setdefault(name, size) != size:
                        raise InputError(f"{name} is {symbols[name]} in one of the models and {size} in another.")
                defaults |= account.defaults
            quantity = next(iter(accounts[0].quantities.values()))
            account = Account(question.value, symbols, {"formula": quantity}, defaults)
            names = {alias: name for one in question.builds_on for alias, name in self.aliases.get(one, {}).items()}
            self.accounts[question.id], self.aliases[question.id] = account, names
            right = self.expected_formulas[question.id] = self._built(question, self.expected_formulas)
            self.expected_values[question.id] = right.at(symbols)
            return
        if question.value:
            formula = read_formula(question.value, [one.id for one in self.sheet.questions])
            self.expected_values[question.id] = formula.at(self.expected_values)
            self.expected_formulas[question.id] = Rational(as_polynomial(self.expected_values[question.id]))
            return
        subject, counted = resolve_subject(question.model, question.settings), question.counted_quantity
        account = account_for(subject, (counted,), question.conventions)
        figure, there = account.quantities[counted], account.quantities[counted].at(account.symbols)
        if there is None or (figure.refused and question.kind != "number"):
            raise InputError(f"the {counted} of {question.model} follow no formula. Ask for something else.")
        self.accounts[question.id] = account
        self.aliases[question.id] = symbol_aliases(subject.spec, account.symbols)
        self.expected_values[question.id] = Fraction(there)
        if question.change:
            self.expected_values[question.id] = Fraction(self._against_model(question, "1 %").right_at)
        right = as_polynomial(self.expected_values[question.id]) if question.kind == "number" else figure.polynomial
        self.expected_formulas[question.id] = substitute(Rational(right), account.defaults)

    def _built(self, question: SheetQuestion, formulas: Mapping[str, Rational]) -> Rational:
        """What a formula question asks for, where the answers to the earlier questions are these."""
        account, calculator = self.accounts[question.id], Calculator()
        names = {**self.aliases[question.id], **{name: name for name in account.order}}
        known = [*question.builds_on, *(name for name in names if name not in question.builds_on)]
        formula = substitute(
            read_formula(question.value, known), {name: symbol(f"?{name}") for name in question.builds_on}
        )
        for name in question.builds_on:  # an id may be a symbol of another question's formula
            formula = substitute(formula, {f"?{name}": formulas[name]}, calculator)
        meant = {alias: symbol(name) for alias, name in names.items() if alias != name}
        return substitute(substitute(formula, meant), account.defaults)

    def _asked(self, question: SheetQuestion, answer: str) -> FormulaQuestion:
        return read_question(
            self.accounts[question.id], question.kind, answer, self.aliases[question.id], question.settings
        )

    def _own_formula(self, question: SheetQuestion, answer: str) -> Rational:
        """A formula that a student gave, in the symbols of its question."""
        return substitute(self._asked(question, answer).answer, self.accounts[question.id].defaults)

    def mark(self, submission: Submission) -> "StudentMarks":
        """Mark what one student handed in; nothing in it stops the marking."""
        texts = {one.id: submission.answers.get(one.id.casefold()) for one in self.sheet.questions}
        keys: dict[str, AnswerId] = {}
        marks = []
        for question in self.sheet.questions:
            answer = texts[question.id] or StudentAnswer(question.id, "")
            text = "" if answer.error else answer.text
            keys[question.id] = (question.id, text, *(keys[name] for name in question.builds_on))
            shown = answer.text[:MAX_ANSWER_CHARS]
            marked = Mark(question.id, question.text, shown, "not answered", "", 0, question.points)
            unreadable = submission.error or (answer.error and f"Cannot be read: {answer.error}.")
            if text and not unreadable:
                judged = self._judge(keys[question.id])
                unreadable = judged.error
                verdict = "right" if judged.fraction == 1 else "partly right" if judged.fraction else "wrong"
                verdict = "follow-through" if judged.follows_from else verdict
                points = round(judged.fraction * question.points, 2)
                marked = replace(marked, verdict=verdict, reason=judged.hint, points=points, mistakes=judged.mistakes)
                if question.show_answer:
                    marked = replace(marked, reason=judged.reason, right_answer=judged.right_answer)
            if unreadable:
                slip = ("cannot be read",)
                marked = replace(
                    marked, verdict="unreadable", reason=unreadable, points=0, mistakes=slip, right_answer=None
                )
            marks.append(marked)
        known = {name.casefold() for name in self.questions}
        strangers = [one.name for key, one in submission.answers.items() if key not in known]
        said = [
            describe_unknown("question", sanitize_name(name), self.questions)
            for name in strangers[:MAX_UNKNOWN_ANSWERS]
        ]
        more = len(strangers) - len(said)
        said += [f"{more:,} more answers to questions that are not on the sheet."] if more else []
        about = (self.sheet.title, submission.student, tuple(marks), tuple(said))
        return StudentMarks(*about, submission.user, submission.source)

    def diagnose(self, seconds: float | None = None) -> int:
        """Look for the reasons of wrong answers, the most frequent first; return how many are left when time is up."""
        waiting = [
            key for key, one in self.assessments.items() if one.fraction < 1 and not (one.error or one.is_diagnosed)
        ]
        waiting.sort(key=lambda key: -self.uses[key])
        until = None if seconds is None else monotonic() + seconds
        for done, key in enumerate(waiting):
            if until is not None and monotonic() > until:
                return len(waiting) - done
            self.assessments[key] = self._attempt(key, diagnose=True)
        return 0

    def _judge(self, key: AnswerId) -> Assessment:
        self.uses[key] += 1
        if key not in self.assessments:
            self.assessments[key] = self._attempt(key, diagnose=False)
        return self.assessments[key]

    @work_limit(MARKING_WORK_LIMIT)
    def _attempt(self, key: AnswerId, diagnose: bool) -> Assessment:
        question, answer, earlier = self.questions[key[0]], key[1], key[2:]
        try:
            if question.kind == "gradient":
                return self._judge_gradients(question, answer, earlier, diagnose)
            judged = self._judge_answer(question, answer, diagnose)
            if judged.fraction < 1:
                shares = [share for other, share in question.credit.items() if self._same(question, answer, other)]
                if shares:
                    judged = replace(judged, fraction=max(shares), hint="Right in part.")
                carried, wrong_before = 0.0, False
                if question.builds_on and self._carried(question, answer, earlier):
                    wrong_before = any(
                        self.assessments[one].fraction < 1 or self.assessments[one].follows_from for one in earlier
                    )
                    carried = question.follow_through if wrong_before else 1.0
                if carried > judged.fraction:
                    said = f"Right with your own answer to {' and '.join(question.builds_on)}."
                    own = question.builds_on if wrong_before else ()
                    judged = replace(judged, fraction=carried, hint=said, reason=said, mistakes=(), follows_from=own)
            return judged
        except InputError as error:
            return Assessment(error=f"Cannot be read: {error}")
        except Exception as error:  # nothing a student writes may stop the marking of the rest
            return Assessment(error=f"Cannot be judged ({type(error).__name__}).")

    def _judge_answer(self, question: SheetQuestion, answer: str, diagnose: bool) -> Assessment:
        """Judge a formula or a number by itself."""
        if question.kind == "formula":
            account, right = self.accounts[question.id], self.expected_formulas[question.id]
            asked, exact = self._asked(question, answer), self.expected_values[question.id]
            yours = substitute(asked.answer, account.defaults)
            value, where, remarks = yours.at(account.symbols), " at the model's sizes", asked.notes
            written = write_formula(right, account.order)
            right, equal, diagnosis = f"{written} = {format_number(exact)}", yours == right, ()
            if equal and asked.has_wrong_number:
                equal, diagnosis = (
                    False,
                    (f"The formula is right, but not the number after it: {format_number(exact)}.",),
                )
            if has_symbols(written) and yours.constant is not None:
                said, slip = "Not right: a formula is asked for, not a number.", "a number in place of a formula"
                return Assessment(0.0, said, said, right, (slip,), value, is_diagnosed=True)
            headline = f"Equal: {right}." if equal else f"Not equal: {written} is right."
        elif question.value:
            exact, yours = self.expected_values[question.id], self._read_number(question, answer)
            equal, right, headline, diagnosis = (
                yours.is_right(exact),
                format_number(exact),
                f"{format_number(exact)} is right.",
                (),
            )
            value, where, remarks = yours.value, "", ()
        else:
            if question.kind == "number":
                self._read_number(question, answer)  # refuses a percentage
                verdict, where = self._against_model(question, answer, diagnose=diagnose), ""
                right = verdict.right
            else:
                where = " at the model's sizes"
                asked = (question.model, question.kind, answer, question.settings, question.conventions)
                verdict = check_formula(*asked, diagnose=diagnose)  # pyright: ignore[reportArgumentType]
                number = format_number(verdict.right_at)
                right = verdict.right if verdict.right == number else f"{verdict.right} = {number}"
                if has_symbols(verdict.right) and not has_symbols(verdict.yours):
                    said, slip = "Not right: a formula is asked for, not a number.", "a number in place of a formula"
                    return Assessment(0.0, said, said, right, (slip,), Fraction(verdict.yours_at), is_diagnosed=True)
            equal, headline, diagnosis = verdict.equal, verdict.headline, verdict.diagnosis
            exact, value, remarks = Fraction(verdict.right_at), Fraction(verdict.yours_at), verdict.remarks
        if equal and question.kind == "number" and abs(value - exact) > Fraction(question.tolerance) * abs(exact):
            coarse = f"Not right: {answer} is rounded too far."
            return Assessment(0.0, coarse, coarse, right, ("rounded too far",), value, is_diagnosed=True)
        hint = "Right." if equal else "Not right."
        if not equal and value != exact:
            hint = f"Not right: {'too large' if value > exact else 'too small'}{where}."
        slip = " ".join(diagnosis[1:] if question.change else diagnosis)  # of a change, both numbers are said first
        if not slip or slip.startswith("No simple explanation"):
            slip = UNEXPLAINED if diagnose else NOT_DIAGNOSED
        slips = () if equal else (slip,)
        reason = " ".join([hint if question.kind == "number" and question.value else headline, *diagnosis, *remarks])
        return Assessment(float(equal), reason, hint, right, slips, value, is_diagnosed=diagnose)

    def _claimed(self, question: SheetQuestion, answer: str) -> str:
        """Return a number as it is to be read: a change gets the sheet's sizes, whatever the student's."""
        if question.change:
            number = answer.lower().partition("from")[0].strip()
            return f"{number}{'' if '%' in number or 'cent' in number else ' %'} {question.change}"
        return answer

    def _read_number(self, question: SheetQuestion, answer: str) -> WrittenNumber:
        """Read a number; in an answer to a value with a factor of 100, which is in per cent, the sign % is a unit."""
        number = read_number(self._claimed(question, answer))
        if question.change:
            return number
        if number.start or (number.is_percent and not question.value):
            raise InputError("a plain number is asked for, not a change in per cent.")
        if number.is_percent and PERCENT_FACTOR.search(question.value):
            return replace(number, value=100 * number.value, unit=100 * number.unit)
        return number

    def _against_model(
        self, question: SheetQuestion, answer: str, account: Account | None = None, diagnose: bool = False
    ) -> Verdict:
        """The verdict on a number, by the model's own account or by another."""
        asked = (question.model, question.quantity, self._claimed(question, answer))
        return check_number(*asked, question.settings, question.conventions, diagnose, account)

    def _same(self, question: SheetQuestion, answer: str, other: str) -> bool:
        """Whether two answers are the same formula or, as far as the first is printed, the same number."""
        if question.kind == "number":
            mine, theirs = (self._read_number(question, one) for one in (answer, other))
            return mine.matches(theirs.value)
        return self._own_formula(question, answer) == self._own_formula(question, other)

    def _carried(self, question: SheetQuestion, answer: str, earlier: Sequence[AnswerId]) -> bool:
        """Whether an answer is right with the student's own earlier ones, wrong or right."""
        if any(not key[1] or self.assessments[key].value is None for key in earlier):
            return False
        if question.kind == "formula":
            formulas: dict[str, Rational] = {}
            for key in earlier:
                one, number = self.questions[key[0]], Rational(as_polynomial(self.assessments[key].value or 0))
                formulas[one.id] = number if one.kind == "number" else self._own_formula(one, key[1])
            try:
                asked, mine = self._asked(question, answer), self._own_formula(question, answer)
                if mine.constant is not None or asked.has_wrong_number:  # no number is a formula
                    return False
                return mine == self._built(question, formulas)
            except InputError:  # the student's own formulas lead to a division by zero, or to too much work
                return False
        tolerance = Fraction(question.tolerance)
        if question.value:
            own = {key[0]: self.assessments[key].value or Fraction(0) for key in earlier}
            claim = self._read_number(question, answer)
            try:
                exact = read_formula(question.value, [*own]).at(own)
            except InputError:  # the student's own numbers lead to a division by zero
                return False
            return claim.matches(exact) and abs(claim.value - exact) <= tolerance * abs(exact)
        account, counted = self.accounts[question.id], question.counted_quantity
        try:
            formula = read_question(account, counted, earlier[0][1], self.aliases[question.id]).answer_polynomial
            if formula is None:
                return False
            quantity = replace(account.quantities[counted], groups=(Part("", formula, ONE),), refused={}, measured={})
            own_account = replace(account, quantities={counted: quantity})
            verdict = self._against_model(question, answer, own_account)
        except InputError:  # the student's formula cannot be taken at these sizes
            return False
        exact = Fraction(verdict.right_at)
        return verdict.equal and abs(verdict.yours_at - exact) <= tolerance * abs(exact)

    @work_limit(None)  # gradients are judged in tensors, within bounds of their own
    def _judge_gradients(
        self, question: SheetQuestion, answer: str, earlier: Sequence[AnswerId], diagnose: bool
    ) -> Assessment:
        """Judge gradients line by line; a wrong one may follow from gradients that the student derived before."""
        cell, lines = find_cell(question.cell), answer.splitlines()
        before = [line for key in earlier for line in key[1].splitlines()]
        settled, attempted = _earlier_gradients(question.cell, before)
        report = check_gradients(question.cell, lines, diagnose, derived_before=settled, attempted_before=attempted)

        def outcomes(judged: Any) -> dict[str, str]:
            found = {}
            for name in question.lines:
                said = {verdict.outcome for verdict in judged if verdict.name == cell.canonical(name)}
                found[name] = "missing" if not said else "right" if said == {"right"} else "wrong"
            return found

        wanted, carried = outcomes(report.checked), False
        if before and "wrong" in wanted.values() and (own := follow_through_samples(question.cell, before)):
            there = outcomes(check_gradients(question.cell, lines, False, own, settled, attempted).checked)
            follows = {name for name, outcome in wanted.items() if outcome == "wrong" and there[name] == "right"}
            wanted, carried = {**wanted, **dict.fromkeys(follows, "follows")}, bool(follows)
        worth = {"right": 1.0, "follows": question.follow_through}
        shares = [worth.get(outcome, 0.0) for outcome in wanted.values()]
        share = sum(shares) / len(shares) if question.partial else min(shares)
        taken = sorted({name for verdict in report.checked for name in verdict.taken})
        hint = ", ".join(f"{name} {outcome}" for name, outcome in wanted.items()) + "."
        hint += f" Those that follow are right with your own answer to {' and '.join(question.builds_on)}." * carried
        hint += f" Taken as given: {', '.join(taken)}." if taken else ""
        said = [f"{one.name}: {'; '.join(one.notes)}" for one in report.checked if one.notes]
        slips = [f"{name} is missing" for name, outcome in wanted.items() if outcome == "missing"]
        following = {cell.canonical(name) for name, outcome in wanted.items() if outcome == "follows"}
        for one in report.checked:
            if one.outcome == "wrong" and one.name not in following:
                slips.append(f"{one.name}: {re.sub(r'^relative error [^:;]*[:;] ', '', one.reason)}")
        only = question.builds_on if carried and {*wanted.values()} <= {"right", "follows"} else ()
        return Assessment(share, "\n".join([hint, *said]), hint, None, tuple(slips), None, only, is_diagnosed=diagnose)


def _earlier_gradients(cell: str, lines: Sequence[str]) -> tuple[set[str], set[str]]:
    """Return the gradients that these lines of an earlier answer get right, and those that they get wrong."""
    try:
        judged = check_gradients(cell, lines, diagnose=False).checked if lines else ()
    except InputError:
        return set(), set()
    right = {verdict.name for verdict in judged if verdict.outcome == "right"}
    return right, ({verdict.name for verdict in judged} & {*find_cell(cell).gradients}) - right


@limited_work(60_000)
def follow_through_samples(name: str, lines: Sequence[str]) -> tuple[Sample, ...]:
    """The samples of a cell in which backpropagation goes on from the gradients that these lines give; none if right.

    Where autograd arrives at a value whose gradient a line gives, it takes that gradient from there on: what is then
    found for the values before it is what follows from the student's own mistake.
    """
    cell, changed = find_cell(name), []
    try:
        derivation = read_derivation(cell, lines)
    except InputError:
        return ()
    for sample in cell.samples:
        given = dict(sample.values)
        own: dict[str, torch.Tensor] = {}
        for line in derivation:
            try:
                value = Evaluator(given)(line.expression)
            except ShapeError:
                continue
            if line.name in cell.gradients and value.shape == given[line.name].shape and value.isfinite().all():
                own[line.name] = value
            if line.name in own or line.name not in cell.all_names:
                given[line.name] = value
        if all(torch.allclose(value, sample.values[gradient]) for gradient, value in own.items()):
            return ()
        values = {one: sample.values[one].clone() for one in (*cell.sizes, *cell.input_sides)}
        for one in cell.input_sides:
            values[one].requires_grad_(f"d{one}" in cell.gradients)
        with torch.enable_grad():
            for equation in cell.equations:
                values[equation.name] = Evaluator(values)(equation.expression)
                gradient = own.get(f"d{equation.name}")
                if gradient is not None:
                    values[equation.name].register_hook(lambda _, gradient=gradient: gradient)
        sources = [values[gradient[1:]] for gradient in cell.gradients]
        found = dict(zip(cell.gradients, torch.autograd.grad(values["loss"], sources), strict=True))
        changed.append(Sample(sample.size_names, {**sample.values, **found, **own}))
    return tuple(changed)


@dataclass(frozen=True)
class Mark:
    """One answer and what it is worth; it is true if it is right.

    `right` is the right answer, where the sheet allows it to be shown. `slips` are for the teacher alone.
    """

    id: str
    text: str
    answer: str
    verdict: Literal["right", "partly right", "follow-through", "wrong", "unreadable", "not answered"]
    reason: str
    points: float
    of: float
    right_answer: str | None = None
    mistakes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.verdict == "right"

    @property
    def remarks(self) -> tuple[str, ...]:
        """All there is to say about it."""
        right = f"The right answer: {self.right_answer}" if self.right_answer and self.verdict != "right" else ""
        return tuple(remark for remark in (*self.reason.splitlines(), right) if remark)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, without the slips."""
        return {name: value for name, value in asdict(self).items() if name != "slips"}


@dataclass(frozen=True)
class StudentMarks(Result):
    """All marks of one student; true if every answer is right. `marked["Q1"]` is the mark of that question."""

    title: str
    student: str
    marks: tuple[Mark, ...]
    notes: tuple[str, ...] = ()
    """What is said of answers to questions that are not on the sheet."""
    user: str = ""
    """The student's id at a learning platform."""
    source: str = ""
    """The file, or the line of a table."""

    def __bool__(self) -> bool:
        return all(self.marks)

    def __getitem__(self, id: str) -> Mark:
        found = next((mark for mark in self.marks if mark.id.casefold() == str(id).casefold()), None)
        if found is None:
            raise InputError(describe_unknown("question", str(id), [mark.id for mark in self.marks]))
        return found

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
        second = max(12, *(len(mark.verdict) for mark in self.marks))
        lines = [": ".join(filter(None, (self.title, self.student)))]
        for mark in self.marks:
            lines.append(f"{mark.id:<{width}}  {mark.verdict:<{second}}  {mark.points:>5g} of {mark.of:g}")
            lines += [f"{'':<{width}}  {remark}" for remark in mark.remarks]
        return [Text("\n".join([*lines, *self.notes, self.summary]))]

    def details(self) -> list[Block]:
        """The same with questions and answers; these are in blocks, where nothing in them has a meaning."""
        found: list[Block] = [
            Heading(": ".join(filter(None, (self.title, self.student))), 1),
            Text(self.summary, "strong"),
        ]
        for mark in self.marks:
            found += [Heading(mark.id), *([Text(mark.text)] if mark.text else [])]
            found += [Pre([(mark.answer, "")])] if mark.answer else []
            kind = {"right": "good", "wrong": "bad", "unreadable": "bad", "not answered": "strong"}
            said = f"{mark.verdict}, {mark.points:g} of {mark.of:g} points"
            found.append(Text(said, kind.get(mark.verdict, "warning")))  # pyright: ignore[reportArgumentType]
            found += [Pre([("\n".join(mark.remarks), "")])] if mark.remarks else []
        return [*found, *(Text(stranger, "note") for stranger in self.notes)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        about = {"title": self.title, "student": self.student, "points": self.points, "of": self.of}
        return {**about, "marks": [mark.to_dict() for mark in self.marks], "strangers": list(self.notes)}

    def records(self) -> list[dict[str, Any]]:
        """A row for each question."""
        names = ("id", "answer", "verdict", "points", "of", "reason")
        return [{name: escape_spreadsheet_cell(getattr(mark, name)) for name in names} for mark in self.marks]


def escape_spreadsheet_cell(value: Any) -> Any:
    """A value for a cell of a table that no spreadsheet takes for a formula.

    >>> inert("=1+1"), inert("V*d"), inert(2.5)
    ("'=1+1", 'V*d', 2.5)
    """
    starts = ("=", "+", "-", "@", "\t", "\r")
    return f"'{value}" if isinstance(value, str) and value.startswith(starts) else value


def mark_answers(sheet: Path | str | Mapping[str, Any], answers: Path | str | Mapping[str, Any]) -> StudentMarks:
    """Mark one student's answers to a sheet; both are files in TOML or Markdown, or mappings.

    >>> sheet = {"questions": [{"id": "Q1", "points": 2, "kind": "parameters", "model": "lora"}]}
    >>> mark(sheet, {"Q1": "R*(W_in + W_out) + W_in*W_out"})["Q1"].points
    2.0
    """
    marker, submission = Marker(read_sheet(sheet)), read_answers(answers)
    marker.mark(submission)
    marker.diagnose()
    return marker.mark(submission)
