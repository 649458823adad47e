"""Sheets of questions and the grading of answers."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from lemma.checking.formulas import judge_formula
from lemma.checking.gradients import CELLS, GradientReport, find_cell, judge_gradients
from lemma.checking.numbers import Change, judge_number, read_claim
from lemma.checking.question import Verdict, shown
from lemma.counting.count import QUANTITIES, Conventions, count
from lemma.counting.subject import subject_of
from lemma.data.files import write_atomically
from lemma.errors import InputError, unknown
from lemma.report.text import fit
from lemma.spec.base import Spec, parse_value, parse_words

# The little Markdown that sheets and answers are written in: headings, fenced blocks, and the lines between.


LARGEST_FILE = 2**20
SUFFIXES = (".toml", ".md", ".markdown")
FENCE = re.compile(r"\s*(```+|~~~+)\s*(\w*)")


@dataclass
class Section:
    """What stands under one heading: plain lines, and fenced blocks with the language they name."""

    heading: str
    lines: list[str] = field(default_factory=list)
    blocks: list[tuple[str, str]] = field(default_factory=list)


def read_text(path: Path) -> str:
    """Read a sheet or an answers file, if it is one and not too large."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}.")
    try:
        content = path.read_bytes()[: LARGEST_FILE + 1]
        if len(content) > LARGEST_FILE:
            raise InputError(f"{path}: has more than {LARGEST_FILE:,} bytes; that is no sheet and no answer to one.")
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        raise InputError(f"{path}: {reason}.") from None


def sections(text: str) -> tuple[Section, list[Section]]:
    r"""Split a text at its headings: what stands under the title, and every section of the second level.

    >>> top, (first,) = sections("# Week 3\n## Q1\nHow many?\n```\nV*d\n```\n")
    >>> top.heading, first.heading, first.lines, first.blocks
    ('Week 3', 'Q1', ['How many?'], [('', 'V*d')])
    """
    found = [Section("")]
    for line in _pieces(text):
        if isinstance(line, tuple):
            found[-1].blocks.append(line)
        elif line.startswith("## "):
            found.append(Section(line[3:].strip()))
        elif line.startswith("# ") and len(found) == 1 and not found[0].heading:
            found[0].heading = line[2:].strip()
        else:
            found[-1].lines.append(line)
    return found[0], found[1:]


def _pieces(text: str) -> Iterator[str | tuple[str, str]]:
    """Lines, and fenced blocks with their language; one that is not closed ends with the text."""
    lines = iter(text.splitlines())
    for line in lines:
        opening = FENCE.fullmatch(line.rstrip())
        if opening is None:
            yield line
            continue
        block: list[str] = []
        for inner in lines:
            if inner.strip() == opening[1]:
                break
            block.append(inner)
        yield opening[2], "\n".join(block)


# A sheet of questions, read and checked before anything is marked.


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


# A student's answers, read without trusting them.


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
    return _answers_from_toml(path, text) if path.suffix.lower() == ".toml" else _answers_from_markdown(text)


def _answers_from_toml(path: Path, text: str) -> Answers:
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


def _answers_from_markdown(text: str) -> Answers:
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


# One answer judged: how much of it is right, what may be said of it, and what may always be said.


@dataclass(frozen=True)
class Judgement:
    """The part that is right, the reason in full, a hint that gives nothing away, and the right answer if known."""

    share: float
    reason: str
    hint: str
    right: str | None = None


def judge(question: Question, answer: str) -> Judgement:
    """Judge an answer to a question; an `InputError` says why it cannot be read."""
    return JUDGES[question.kind](question, answer)


def _formula(question: Question, answer: str) -> Judgement:
    asked = question.kind if question.kind == "flops" else "parameters"
    verdict = judge_formula(question.model, asked, answer, question.words, _conventions(question))
    right = (
        verdict.right if verdict.right == shown(verdict.right_at) else f"{verdict.right} = {shown(verdict.right_at)}"
    )
    return Judgement(float(verdict.equal), _words(verdict), _direction(verdict, "the model's sizes"), right)


def _number(question: Question, answer: str) -> Judgement:
    verdict = judge_number(
        question.model, question.quantity, _claim(question, answer), question.words, _conventions(question)
    )
    exact = Fraction(verdict.right_at)
    near = verdict.yours_at is not None and abs(verdict.yours_at - exact) <= Fraction(question.tolerance) * abs(exact)
    if verdict.equal and not near:
        coarse = f"Not right: {answer} is rounded too far."
        return Judgement(0.0, coarse, coarse, verdict.right)
    return Judgement(float(verdict.equal), _words(verdict), _direction(verdict, ""), verdict.right)


def _claim(question: Question, answer: str) -> str:
    """The number as it is asked for: a student's own sizes do not count."""
    if question.change:
        number = answer.lower().partition("from")[0].strip()
        return f"{number}{'' if '%' in number or 'cent' in number else ' %'} {question.change}"
    if isinstance(read_claim(answer), Change):
        raise InputError("a plain number is asked for, not a change in per cent.")
    return answer


def _direction(verdict: Verdict, where: str) -> str:
    """Whether it is too large or too small, and nothing else."""
    if verdict.equal:
        return "Right."
    if verdict.yours_at is None or verdict.yours_at == verdict.right_at:
        return "Not right."
    how = "too large" if verdict.yours_at > verdict.right_at else "too small"
    return f"Not right: {how}" + (f" at {where}." if where else ".")


def _gradients(question: Question, answer: str) -> Judgement:
    report = judge_gradients(question.cell, answer.splitlines())
    cell = find_cell(question.cell)
    wanted = {name: _outcome(report, cell.canonical(name)) for name in question.lines}
    right = sum(outcome == "right" for outcome in wanted.values())
    share = right / len(wanted) if question.partial else float(right == len(wanted))
    taken = sorted({name for verdict in report.judged for name in verdict.taken})
    hint = ", ".join(f"{name} {outcome}" for name, outcome in wanted.items()) + "."
    hint += f" Taken as given: {', '.join(taken)}." if taken else ""
    said = [f"{one.name}: {'; '.join(one.remarks)}" for one in report.judged if one.remarks]
    return Judgement(share, "\n".join([hint, *said]), hint)


def _outcome(report: GradientReport, name: str) -> str:
    outcomes = {verdict.outcome for verdict in report.judged if verdict.name == name}
    return "missing" if not outcomes else "right" if outcomes == {"right"} else "wrong"


def _conventions(question: Question) -> Conventions:
    return Conventions(question.multiply_add, question.causal)


JUDGES: dict[str, Callable[[Question, str], Judgement]] = {
    "parameters": _formula,
    "flops": _formula,
    "number": _number,
    "gradient": _gradients,
}


def _words(verdict: Verdict) -> str:
    """What a verdict says, in one line: the sheet wraps it where it stands."""
    return " ".join([verdict.headline, *verdict.diagnosis])


# Marks: per question the verdict, the reason and the points.


Outcome = Literal["right", "partly right", "wrong", "unreadable", "not answered"]


@dataclass(frozen=True)
class Mark:
    """One answer and what it is worth. `right` is the right answer, where the sheet allows it to be shown."""

    id: str
    text: str
    answer: str
    verdict: Outcome
    reason: str
    points: float
    of: float
    right: str | None = None

    def become(self, verdict: Outcome, reason: str, points: float = 0, right: str | None = None) -> "Mark":
        """The same answer, judged."""
        return replace(self, verdict=verdict, reason=reason, points=points, right=right)

    @property
    def remarks(self) -> tuple[str, ...]:
        """All there is to say about it."""
        right = f"The right answer: {self.right}" if self.right and self.verdict != "right" else ""
        return tuple(remark for remark in (*self.reason.splitlines(), right) if remark)


@dataclass(frozen=True)
class Marks:
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
        return f"{number(self.points)} of {number(self.of)} points"

    @property
    def heading(self) -> str:
        """The title, and whose answers these are."""
        return f"{self.title}: {self.student}" if self.student else self.title

    def __str__(self) -> str:
        width = max(len(mark.id) for mark in self.marks)
        lines = [self.heading]
        for mark in self.marks:
            lines.append(f"{mark.id:<{width}}  {mark.verdict:<12}  {number(mark.points):>5} of {number(mark.of)}")
            lines += [f"{'':<{width}}  {remark}" for remark in mark.remarks]
        return fit("\n".join([*lines, *self.strangers, self.summary]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        about = {"title": self.title, "student": self.student, "points": self.points, "of": self.of}
        return {**about, "marks": [asdict(mark) for mark in self.marks], "strangers": list(self.strangers)}


def number(value: float) -> str:
    """Points without needless decimals.

    >>> number(2.0), number(1.5)
    ('2', '1.5')
    """
    return f"{value:g}"


# Marked answers as a page that opens offline, and as Markdown; whatever a person wrote is escaped.


COLOURS = {"right": "#17803d", "partly right": "#a15c00", "wrong": "#b42318", "unreadable": "#b42318"}
STYLE = """
:root { color-scheme: light dark; }
body { margin: 2.5rem auto; max-width: 48rem; padding: 0 1.25rem; font: 1rem/1.55 system-ui, sans-serif; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
"""


def page(marked: Marks) -> str:
    """A whole page: no script, nothing fetched."""
    title = escape(marked.heading)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    whole = f"<head>{head}<style>{STYLE}</style></head><body>{body(marked)}</body>"
    return f'<!doctype html>\n<html lang="en">{whole}</html>\n'


def body(marked: Marks) -> str:
    """What stands on the page."""
    strangers = "".join(f"<p>{escape(stranger)}</p>" for stranger in marked.strangers)
    answers = "".join(_section(mark) for mark in marked.marks)
    return f"<h1>{escape(marked.heading)}</h1><p><strong>{marked.summary}</strong></p>{answers}{strangers}"


def _section(mark: Mark) -> str:
    colour = COLOURS.get(mark.verdict, "#667085")
    remarks = "".join(f"{escape(remark)}\n" for remark in mark.remarks)
    parts = {
        f"<p>{escape(mark.text)}</p>": mark.text,
        f"<pre><code>{escape(mark.answer)}</code></pre>": mark.answer,
        f'<p style="color: {colour}"><strong>{mark.verdict}</strong>, {_worth(mark)}</p>': mark.verdict,
        f"<pre>{remarks}</pre>": remarks,
    }
    return f"<h2>{escape(mark.id)}</h2>" + "".join(html for html, present in parts.items() if present)


def markdown(marked: Marks) -> str:
    """The same as Markdown; answers and remarks stand in blocks, where nothing in them means anything."""
    lines = [f"# {_quoted(marked.heading)}", "", f"**{marked.summary}**"]
    for mark in marked.marks:
        lines += ["", f"## {_quoted(mark.id)}", "", f"**{mark.verdict}**, {_worth(mark)}"]
        for block in (mark.answer, "\n".join(mark.remarks)):
            lines += ["", *_fenced(block)] if block else []
    return "\n".join([*lines, *(f"\n{_quoted(stranger)}" for stranger in marked.strangers)]) + "\n"


def _worth(mark: Mark) -> str:
    return f"{number(mark.points)} of {number(mark.of)} points"


def _fenced(block: str) -> list[str]:
    """A block within a fence longer than any in it."""
    longest = max((len(run) for run in re.findall("`+", block)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, block, fence]


def _quoted(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", " ".join(text.split()))


# Marked answers, to be shown and saved.


@dataclass(frozen=True)
class Marked(Marks):
    """All marks of one student, as a page, as Markdown and as JSON."""

    def _repr_html_(self) -> str:
        return body(self)

    def save(self, path: Path | str) -> None:
        """Write it as a page, Markdown or JSON, as the name ends."""
        writers = {".html": page, ".md": markdown, ".json": lambda one: json.dumps(one.to_dict(), indent=2) + "\n"}
        suffix = Path(path).suffix.lower()
        if suffix not in writers:
            raise InputError(f"{path}: {unknown('the ending', suffix, writers)}")
        write_atomically(Path(path), writers[suffix](self))


# From a sheet and answers to marks.


LONGEST_SHOWN = 2000


def mark(sheet: Path | str, answers: Path | str) -> Marked:
    """Mark a student's answers to a sheet; both are files in TOML or Markdown."""
    asked, given = read_sheet(Path(sheet)), read_answers(Path(answers))
    for question in asked.questions:
        _refuse_unanswerable(Path(sheet), question)
    marks = tuple(_marked(question, given) for question in asked.questions)
    return Marked(asked.title, given.student, marks, _strangers(asked, given))


def _refuse_unanswerable(path: Path, question: Question) -> None:
    """What the model cannot be asked is the sheet's mistake and not the student's."""
    if question.kind == "gradient":
        return
    asked = question.quantity if question.kind == "number" else question.kind
    try:
        account = count(subject_of(question.model, question.words), (asked,))
        if question.change:
            judge(question, "1 %")
    except InputError as error:
        field = "change" if question.change else "model"
        raise InputError(f"{path}: question {question.id}: {field}: {error}") from None
    figure = account.quantities[asked]
    if figure.at(account.symbols) is None or (figure.refused and question.kind != "number"):
        raise InputError(f"{path}: question {question.id}: kind: the {asked} of {question.model} follow no formula.")


def _marked(question: Question, answers: Answers) -> Mark:
    key = question.id.casefold()
    answer = answers.given.get(key, "")
    blank = Mark(question.id, question.text, answer[:LONGEST_SHOWN], "not answered", "", 0, question.points)
    if key in answers.unreadable:
        return blank.become("unreadable", f"Cannot be read: {answers.unreadable[key]}.")
    if not answer:
        return blank
    try:
        judged = judge(question, answer)
    except InputError as error:
        return blank.become("unreadable", f"Cannot be read: {error}")
    except Exception as error:  # nothing a student writes may stop the marking of the rest
        return blank.become("unreadable", f"Cannot be judged ({type(error).__name__}).")
    verdict = "right" if judged.share == 1 else "partly right" if judged.share else "wrong"
    points = round(judged.share * question.points, 2)
    if question.show_answer:
        return blank.become(verdict, judged.reason, points, judged.right)
    return blank.become(verdict, judged.hint, points)


def _strangers(sheet: Sheet, answers: Answers) -> tuple[str, ...]:
    """What is said of answers to questions that are not asked."""
    ids = [question.id for question in sheet.questions]
    asked = {name.casefold() for name in ids}
    return tuple(unknown("question", name[:100], ids) for key, name in answers.names.items() if key not in asked)
