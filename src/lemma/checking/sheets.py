"""Sheets of questions, and answers of students, read from TOML, Markdown or mappings.

A sheet in TOML has a title, `show_answer`, and a table `[[questions]]` for each question with the fields of
`SheetQuestion` and those of its kind. In Markdown each question is a section, such as `## Q1: How many? (2 points)`,
whose fields are lines such as `kind: parameters`, or a fenced block of TOML.

Answers are a table `[answers]` with a line for each question, or a Markdown section for each; formulas may be written
in $…$ or in a fenced block.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from lemma.checking.exercises.base import Exercise
from lemma.checking.exercises.registry import list_library
from lemma.checking.sheet_kinds import FIELD_CLASSES, GradientCheck, load_fields, question_kinds, split_names
from lemma.errors import InputError, describe_unknown
from lemma.spec.base import Spec, parse_toml, parse_value, read_toml

MAX_FILE_BYTES = 2**20
SUFFIXES = (".toml", ".md", ".markdown")
_SHEET_FIELDS = ("title", "show_answer", "questions")
_FENCE = re.compile(r"\s*(```+|~~~+)\s*(\w*)")
_HEADING = re.compile(r"(?P<id>\S+?)[:.]?(?:\s+(?P<text>.*?))?(?:\s*\((?P<points>\d+(?:\.\d+)?) points?\))?")
MAX_NAME_CHARS = 100
_MATH_DELIMITERS = re.compile(r"\s*(?:\$\$(.*)\$\$|\$(.*)\$|\\\[(.*)\\\]|\\\((.*)\\\)|`(.*)`)\s*", re.DOTALL)
_FIELD = re.compile(r"\s*(?:[-*]\s+)?(?P<key>[a-z_]+)\s*:\s*(?P<value>\S.*)")


class SheetQuestion(Spec):
    """A question: how it is graded, and under `exercise` the fields of its kind.

    The fields of the kind are read from the top level too, unless a field of the same name is one of grading.
    """

    id: Annotated[str, Field(min_length=1, max_length=100)]
    """Name by which answers refer to it."""
    text: str = ""
    """Question as the student reads it; by default that of the exercise."""
    points: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1
    """Points of a right answer."""
    kind: str = ""
    """What is asked for, such as parameters, number or gradient; an exercise of Lemma's states it by itself."""
    exercise: dict[str, Any] = Field(default_factory=dict)
    """Fields of the kind; or the name of one of Lemma's exercises, or of a TOML file next to the sheet."""
    partial: bool = False
    """Whether each right value, line or gradient earns its part of the points."""
    credit: dict[str, Annotated[float, Field(gt=0, lt=1)]] = Field(default_factory=dict)
    """Other formulas or numbers that earn a part of the points, each with its fraction."""
    builds_on: Annotated[tuple[str, ...], BeforeValidator(split_names)] = ()
    """Earlier questions whose answers it uses: what is right with the student's own answers earns points too."""
    follow_through: Annotated[float, Field(ge=0, le=1)] = 1
    """Fraction of the points for an answer that is wrong only because of the student's earlier mistakes."""
    show_answer: bool = False
    """Whether the student may see the right answer."""
    hint: str = ""
    """Hint that a student sees next to an answer that is not right."""

    @model_validator(mode="before")
    @classmethod
    def _gather_exercise(cls, data: Any) -> Any:
        """Move the fields that are not those of grading into the table `exercise`."""
        if not isinstance(data, Mapping):
            return data
        exercise = data.get("exercise", {})
        if not isinstance(exercise, Mapping):
            exercise = {} if exercise == "" else _find_exercise(exercise, Path())
        fields = {name: value for name, value in data.items() if name in cls.model_fields}
        exercise_fields = {name: value for name, value in data.items() if name not in cls.model_fields}
        if twice := sorted(exercise_fields.keys() & exercise.keys()):
            raise ValueError(f"{twice[0]}: is given twice, at the top level and under exercise. Leave one out.")
        exercise_fields = {**exercise, **exercise_fields}
        kind = exercise_fields.pop("kind", "")
        if kind and fields.get("kind") and kind != fields["kind"]:
            raise ValueError(f"kind: the exercise is of kind {kind}, not {fields['kind']}. Leave kind out.")
        return {**fields, "kind": fields.get("kind") or kind, "exercise": exercise_fields}

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        """Return the question; raise a ValueError for fields that do not fit its kind."""
        if not self.kind:
            *first, last = FIELD_CLASSES
            choices = f"{', '.join(first)}, {last}, or a kind of exercise"
            raise ValueError(f"kind: is missing. Say what is asked for: {choices}.")
        try:
            fields = self.fields
        except InputError as error:
            raise ValueError(str(error)) from None
        if self.credit and isinstance(fields, Exercise):
            raise ValueError(
                "credit: is for formulas and numbers. Where values or lines are asked for: partial = true."
            )
        if self.partial and not isinstance(fields, Exercise):
            raise ValueError(
                f"partial: a question of kind {self.kind} has no parts. Other answers are listed in credit."
            )
        return self

    @cached_property
    def fields(self) -> Any:
        """The fields of the kind, validated: an exercise, or those of a formula or number."""
        field_class = load_fields(self.kind)
        names = [*type(self).model_fields, *field_class.setting_names()]
        for name in self.exercise:
            if name not in field_class.setting_names() and name not in field_class.renamed:
                raise InputError(describe_unknown("setting", name, [each for each in names if each != "id"]))
        return field_class.read(self.exercise, self.kind)

    @property
    def statement(self) -> str:
        """The question as the student reads it."""
        return self.text or getattr(self.fields, "text", "")

    @property
    def value(self) -> str:
        """The right formula or number that the sheet states; "" where a model or an exercise says what is right."""
        return str(getattr(self.fields, "value", "")) if self.kind in ("formula", "number") else ""


def _find_exercise(name: Any, folder: Path) -> dict[str, Any]:
    """Return the fields of an exercise of Lemma's, or of a TOML file relative to `folder`."""
    if not isinstance(name, str):
        raise ValueError("exercise: expected a table of fields, the name of an exercise, or a TOML file.")
    library = list_library()
    path = library.get(name) or folder / name
    if name not in library and path.suffix != ".toml":
        raise ValueError(f"exercise: {describe_unknown('exercise', name, library)} Or name a TOML file.")
    return read_toml(path)


def _resolve_files(fields: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the fields of a question with the files that they name, next to the sheet, replaced by their tables."""
    resolved = dict(fields)
    if isinstance(resolved.get("exercise"), str):
        resolved["exercise"] = _find_exercise(resolved["exercise"], folder)
    nested = resolved.get("exercise")
    for table in (resolved, nested if isinstance(nested, dict) else {}):
        for name in ("cell", "case", "model"):
            value = table.get(name)
            if isinstance(value, str) and value.endswith(".toml"):
                path = folder / value
                if name == "cell":
                    table[name] = {"name": Path(value).stem, **read_toml(path)}
                elif path.is_file():
                    table[name] = str(path)
    return resolved


@dataclass(frozen=True)
class Sheet:
    """The questions of a sheet; `source` is its file, for error messages."""

    title: str
    questions: tuple[SheetQuestion, ...]
    source: str = "the sheet"


def read_sheet(source: Path | str | Mapping[str, Any]) -> Sheet:
    """Read a sheet of questions from a TOML or Markdown file or a mapping; an error names file, question and field."""
    path = Path("the sheet") if isinstance(source, Mapping) else Path(source)
    if isinstance(source, Mapping):
        table = dict(source)
        if unknown := sorted(str(name) for name in table if name not in _SHEET_FIELDS):
            raise InputError(describe_unknown("the sheet: setting", unknown[0], ("title", "questions")))
    elif path.suffix.lower() == ".toml":
        table = parse_table(read_text(path), f"{path}:", _SHEET_FIELDS)
    else:
        table = _read_markdown(path)
    listed = table.get("questions")
    if not isinstance(listed, list) or not listed or not all(isinstance(fields, dict) for fields in listed):
        raise InputError(f"{path}: questions: the sheet has none. Write [[questions]] in TOML, ## Q1 in Markdown.")
    defaults = {"show_answer": table["show_answer"]} if "show_answer" in table else {}
    questions: list[SheetQuestion] = []
    for number, fields in enumerate(listed, 1):
        label = f"{path}: question {fields.get('id', number)}"
        try:
            if not fields.get("id"):
                raise InputError(f"id: is missing. Name question {number} for the answers, as in id = 'Q{number}'.")
            question = SheetQuestion.read(_resolve_files({**defaults, **fields}, path.parent), label)
            question = question.model_copy(update={"builds_on": _find_earlier(question, questions)})
        except (InputError, ValueError) as error:
            raise prefix_lines(InputError(str(error)), label) from None
        questions.append(question)
    ids = [question.id.casefold() for question in questions]
    duplicate = next((question.id for question in questions if ids.count(question.id.casefold()) > 1), None)
    if duplicate is not None:
        raise InputError(f"{path}: question {duplicate}: id: there are two of that name.")
    return Sheet(str(table.get("title") or path.stem), tuple(questions), str(path))


def prefix_lines(error: InputError, label: str) -> InputError:
    """Return an error whose every line starts with a label, such as the file and the question it is about."""
    lines = (line if line.startswith(label) else f"{label}: {line}" for line in str(error).splitlines())
    return InputError("\n".join(lines))


def _find_earlier(question: SheetQuestion, earlier: Sequence[SheetQuestion]) -> tuple[str, ...]:
    """Return the ids of the earlier questions that a question builds on; raise an InputError for unsuitable ones."""
    if question.value:
        ids = {other.id for other in earlier}
        words = re.findall(r"(?<![\w.])[^\W\d][\w.-]*", question.value)
        sources = [other for other in earlier if re.search(rf"(?<!\w){re.escape(other.id)}(?!\w)", question.value)]
        folded_ids = {id.casefold() for id in ids if len(id) > 1}  # a single letter may be a symbol in another case
        misspelled = [word for word in words if word not in ids and word.casefold() in folded_ids]
        if misspelled or (words and not sources and question.kind == "number"):
            choices = sorted(ids) or ["a number, since there are no earlier questions"]
            raise InputError(f"value: {describe_unknown('question', (misspelled or words)[0], choices)}")
        if question.builds_on and set(question.builds_on) != {other.id for other in sources}:
            raise InputError("builds_on: leave it out; a question with a value builds on the questions that it names.")
    else:
        by_name = {other.id.casefold(): other for other in earlier}
        if missing := [name for name in question.builds_on if name.casefold() not in by_name]:
            raise InputError(f"builds_on: there is no question {missing[0]} before it.")
        sources = [by_name[name.casefold()] for name in question.builds_on]
    for source in sources:
        expected = _describe_misfit(question, source, len(sources))
        if expected:
            raise InputError(
                f"{'value' if question.value else 'builds_on'}: {source.id} does not fit: expected {expected}. "
                "What is computed from other answers is a number or a formula with a value, as in value = '16*Q1'."
            )
    return tuple(source.id for source in sources)


def _describe_misfit(question: SheetQuestion, source: SheetQuestion, num_sources: int) -> str:
    """Return what kind of earlier question was expected if a question cannot build on `source`, else ""."""
    fields, earlier = question.fields, source.fields
    if question.value:
        return "one that asks for a formula or a number" if isinstance(earlier, Exercise) else ""
    if isinstance(fields, GradientCheck):
        same = isinstance(earlier, GradientCheck) and earlier.cell == fields.cell
        return "" if same else f"one about gradients of the cell {fields.function.name}"
    if isinstance(fields, Exercise):
        return "" if isinstance(earlier, Exercise) else "one about values or lines"
    if question.kind == "number":
        fits = source.kind == fields.quantity and earlier.model == fields.model and num_sources == 1
        return "" if fits else f"one question for the formula of the {fields.quantity} of {fields.model}"
    return "" if source.kind == question.kind else f"one for the formula of {question.kind}"


def read_text(path: Path) -> str:
    """Read a sheet or a file of answers as text; raise an InputError for other types of files and for large ones."""
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


def parse_table(text: str, label: str, fields: Iterable[str] = ()) -> dict[str, Any]:
    """Parse the text of a TOML file.

    Only `fields` are allowed as keys, if any are given; `label` is the file, for errors.
    """
    try:
        table = parse_toml(text)
    except ValueError as error:
        raise InputError(f"{label} not valid TOML: {error}.") from None
    for name in table:
        if fields and name not in fields:
            raise InputError(describe_unknown(f"{label} setting", name, fields))
    return table


@dataclass
class MarkdownSection:
    """A heading, the plain lines below it, and the fenced blocks as pairs of language and text."""

    heading: str
    lines: list[str] = field(default_factory=list)
    blocks: list[tuple[str, str]] = field(default_factory=list)


def split_sections(text: str) -> tuple[MarkdownSection, list[MarkdownSection]]:
    r"""Split Markdown at its headings; return the section of the title, and the sections of second-level headings.

    >>> top, (first,) = split_sections("# Week 3\n## Q1\nHow many?\n```\nV*d\n```\n")
    >>> top.heading, first.heading, first.lines, first.blocks
    ('Week 3', 'Q1', ['How many?'], [('', 'V*d')])
    """
    sections, lines = [MarkdownSection("")], iter(text.splitlines())
    for line in lines:
        if fence := _FENCE.fullmatch(line.rstrip()):
            block: list[str] = []
            for inner in lines:  # a block that is not closed ends with the text
                if inner.strip() == fence[1]:
                    break
                block.append(inner)
            sections[-1].blocks.append((fence[2], "\n".join(block)))
        elif line.startswith("## "):
            sections.append(MarkdownSection(line[3:].strip()))
        elif line.startswith("# ") and len(sections) == 1 and not sections[0].heading:
            sections[0].heading = line[2:].strip()
        else:
            sections[-1].lines.append(line)
    return sections[0], sections[1:]


def _read_markdown(path: Path) -> dict[str, Any]:
    """Read a sheet in Markdown as the same table that a TOML file of the sheet has."""
    top, sections = split_sections(read_text(path))
    fields, _ = _read_fields(path, top, ("title", "show_answer"))
    table = {"title": top.heading, **fields, "questions": []}
    for section in sections:
        heading = _HEADING.fullmatch(section.heading)
        if heading is None:
            raise InputError(
                f"{path}: question {section.heading!r}: id: the heading has no name. Write ## Q1 (2 points)."
            )
        fields, prose = _read_fields(path, section, _field_names(section))
        points = {"points": float(heading["points"])} if heading["points"] else {}
        text = "\n".join(part for part in (heading["text"] or "", *prose) if part).strip()
        table["questions"].append({"id": heading["id"], "text": text, **points, **fields})
    return table


def _field_names(section: MarkdownSection) -> list[str]:
    """Return the names of the fields that a section of a question in Markdown may have, by its kind."""
    lines = [match for line in section.lines if (match := _FIELD.fullmatch(line))]
    kind = next((match["value"].strip() for match in lines if match["key"] == "kind"), "")
    classes = [load_fields(kind)] if kind in question_kinds() else list(FIELD_CLASSES.values())
    names = (name for each in classes for name in (*each.setting_names(), *each.renamed))
    return list(dict.fromkeys((*SheetQuestion.model_fields, *names)))


def _read_fields(path: Path, section: MarkdownSection, names: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Split a section into its fields, by name, and its other lines; fenced TOML blocks are fields too."""
    fields: dict[str, Any] = {}
    prose: list[str] = []
    for line in section.lines:
        match = _FIELD.fullmatch(line)
        key = match["key"] if match else ""
        if match and key in names:
            fields[key] = parse_value(match["value"].strip())
        elif key and get_close_matches(key, names, n=1, cutoff=0.8):
            raise InputError(describe_unknown(f"{path}: question {section.heading}: setting", key, names))
        else:
            prose.append(line)
    for language, block in section.blocks:
        if language == "toml":
            fields |= parse_table(block, f"{path}: question {section.heading}: the block is")
        else:
            prose += ["```", block, "```"]
    return fields, prose


# Answers of students.


@dataclass(frozen=True)
class StudentAnswer:
    """An answer to one question."""

    name: str  # the question's name as the student wrote it
    text: str
    error: str = ""  # why the answer cannot be read


@dataclass(frozen=True)
class Submission:
    """Everything that one student handed in."""

    student: str
    answers: Mapping[str, StudentAnswer] = field(default_factory=dict)  # by the casefolded name of their question
    user: str = ""  # the student's id at a learning platform, if the file has one
    source: str = ""  # the file, or the line of a table
    error: str = ""  # why nothing of it can be read
    name: str = ""  # of the submission: its file or folder, or the row's student


def read_answers(source: Path | str | Mapping[str, Any]) -> Submission:
    """Read a student's answers from a TOML or Markdown file or a mapping; one unreadable answer affects no others."""
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
    """Return the answers, from pairs of question and text, by the casefolded name of their question.

    A text of None, which is no answer, and a second answer to a question become an error of the answer.
    """
    answers: dict[str, StudentAnswer] = {}
    for name, text in pairs:
        previous = answers.get(name.casefold())
        error = "" if text is not None else "expected a text, a number or lines"
        if previous:
            text = "\n".join(dict.fromkeys(filter(None, (previous.text, text))))
            error = "it is answered more than once"
        answers[name.casefold()] = StudentAnswer(name, text or "", error)
    return answers


def sanitize_name(value: Any) -> str:
    """Return a name from a file as text that is safe to print: one line, no control characters, not too long.

    Values that are neither text nor a whole number become "".

    >>> sanitize_name("Ada\\x1b[31m  Lovelace"), sanitize_name(None), sanitize_name(7)
    ('Ada�[31m Lovelace', '', '7')
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    text = value if isinstance(value, str) else hex(value) if abs(value) > 10**MAX_NAME_CHARS else str(value)
    text = " ".join(text[: 10 * MAX_NAME_CHARS].split())[:MAX_NAME_CHARS]
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def answer_text(value: Any) -> str | None:
    """Return the text of an answer from a value of TOML or Python; None if it is no text, number or list of lines."""
    if isinstance(value, list | tuple) and all(isinstance(line, str) for line in value):
        return "\n".join(value).strip()
    if isinstance(value, str):
        return _strip_delimiters(value)
    try:
        return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    except ValueError:  # more digits than Python writes
        return None


def _strip_delimiters(text: str) -> str:
    """Remove the delimiters of mathematics or code, such as $…$, around a whole text."""
    match = _MATH_DELIMITERS.fullmatch(text)
    inner = next(part for part in match.groups() if part is not None) if match else text
    return inner.strip() if not match or not re.search(r"[$`]", inner) else text.strip()
