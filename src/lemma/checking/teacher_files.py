"""Files in which a teacher decides: marks changed by hand, a queue of answers to look at, and earlier marks.

Overrides are tables `[[overrides]]` with student, question, points and a comment. A queue has tables `[[answers]]`,
each with an answer that all its students share; the teacher fills in `points` or `read_as`. Decisions are never lost:
a queue that is written again keeps its decided answers, in their order, before new ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from lemma.errors import InputError, describe_unknown
from lemma.files import parse_json, write_atomically
from lemma.spec.base import exists, parse_toml

MAX_FILE_BYTES = 2**26
QUEUE_FIELDS = ("question", "answer", "students", "why", "of", "points", "read_as", "comment")
OVERRIDE_FIELDS = ("student", "question", "points", "comment")
QUEUE_HEADER = """\
# Answers that a teacher has to look at, each once for all students who wrote it. Fill in one of
#   points = 1.5            points of this answer, for every student who wrote it
#   read_as = "V*d + d"     the answer as Lemma can read it
# and grade again with the same --queue. Decisions stay in this file.
"""


@dataclass(frozen=True)
class Decision:
    """A decision of a teacher on an answer: its points, or how it is read."""

    points: float | None = None
    read_as: str = ""
    comment: str = ""

    def __bool__(self) -> bool:
        return self.points is not None or bool(self.read_as)


@dataclass(frozen=True)
class QueuedAnswer:
    """An answer to look at, with all students who wrote it."""

    question: str
    answer: str
    students: tuple[str, ...] = ()
    why: str = ""
    of: float = 0  # points of a right answer
    decision: Decision = field(default_factory=Decision)

    def to_toml(self) -> str:
        """Return the table of the answer in TOML, with the decision or a line to fill in."""
        lines = ["[[answers]]", f"question = {quote_toml(self.question)}", f"answer = {quote_toml(self.answer)}"]
        lines.append(f"students = [{', '.join(map(quote_toml, self.students))}]")
        lines += [f"why = {quote_toml(self.why)}", f"of = {self.of:g}"]
        decision = self.decision
        if decision.points is not None:
            lines.append(f"points = {decision.points!r}")
        if decision.read_as:
            lines.append(f"read_as = {quote_toml(decision.read_as)}")
        if decision.comment:
            lines.append(f"comment = {quote_toml(decision.comment)}")
        return "\n".join([*lines, *([] if decision else ["# points = "])])


@dataclass(frozen=True)
class Override:
    """A mark that a teacher changed by hand."""

    student: str
    question: str
    points: float
    comment: str = ""


@dataclass(frozen=True)
class MarkChange:
    """A mark that differs from that of an earlier grading."""

    student: str
    question: str
    before: float | None  # None without a mark then
    after: float | None
    why: str


def quote_toml(text: str) -> str:
    r"""Return a text as a TOML string: several lines between triple quotes, as they were written.

    >>> print(quote_toml("dz = y\ndU = h"))
    '''
    dz = y
    dU = h'''
    """
    is_printable = all(character.isprintable() or character == "\n" for character in text)
    if is_printable and "'" not in text:
        return f"'''\n{text}'''" if "\n" in text else f"'{text}'"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + "".join(each if each.isprintable() else f"\\u{ord(each):04X}" for each in escaped) + '"'


def join_comment(changed: str, comment: str) -> str:
    """Return what a teacher decided, followed by the comment.

    >>> join_comment("Changed by hand.", "right on paper")
    'Changed by hand: right on paper.'
    """
    return f"{changed.rstrip('.')}: {comment.rstrip('.')}." if changed and comment else changed or comment


def read_queue(path: Path, points: Mapping[str, float]) -> list[QueuedAnswer]:
    """Read a queue; [] if there is no file yet. `points` are those of the questions, by id."""
    if not exists(path):
        return []
    answers: list[QueuedAnswer] = []
    for number, table in enumerate(_read_tables(path, "answers", QUEUE_FIELDS), 1):
        label = f"{path}: answer {number}"
        question = _find_name(label, "question", table.get("question"), points)
        value, read_as, answer = table.get("points"), table.get("read_as", ""), table.get("answer")
        if not isinstance(answer, str) or not isinstance(read_as, str):
            raise InputError(f"{label}: answer and read_as: texts are expected.")
        if value is not None and read_as:
            raise InputError(f"{label}: has points and read_as. Leave one out.")
        decided_points = None if value is None else _read_points(label, value, points[question])
        decision = Decision(decided_points, read_as, _read_comment(label, table))
        students, why = table.get("students", []), str(table.get("why", ""))
        students = tuple(map(str, students)) if isinstance(students, list) else ()
        answers.append(QueuedAnswer(question, answer, students, why, points[question], decision))
    keys = [(each.question, each.answer) for each in answers]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice:
        raise InputError(f"{path}: the answer '{twice[1][:40]}' to {twice[0]} is listed twice. Leave one out.")
    return answers


def merge_queue(previous: Sequence[QueuedAnswer], current: Sequence[QueuedAnswer]) -> list[QueuedAnswer]:
    """Return the decided answers of a queue and those that are still to be looked at, in order, then new ones."""
    by_key = {(each.question, each.answer): each for each in current}
    merged: list[QueuedAnswer] = []
    for entry in previous:
        new = by_key.pop((entry.question, entry.answer), None)
        if new is not None:
            merged.append(replace(new, decision=entry.decision))
        elif entry.decision or entry.decision.comment:
            merged.append(entry)
    return [*merged, *by_key.values()]


def write_queue(path: Path, answers: Sequence[QueuedAnswer]) -> None:
    """Write a queue, unless the file says the same already: then a teacher's own comments in it stay."""
    text = "\n\n".join([QUEUE_HEADER.rstrip("\n"), *(each.to_toml() for each in answers)]) + "\n"
    if exists(path):
        old = path.read_text(encoding="utf-8-sig", errors="replace")
        try:
            if parse_toml(old) == parse_toml(text):
                return
        except ValueError:
            pass
    write_atomically(path, text)


def read_overrides(path: Path | str) -> list[Override]:
    """Read the marks that a teacher changed by hand; students and questions are looked up by `find_override`."""
    overrides: list[Override] = []
    for number, table in enumerate(_read_tables(Path(path), "overrides", OVERRIDE_FIELDS), 1):
        label = f"{path}: override {number}"
        student, question = table.get("student"), table.get("question")
        if not isinstance(student, str | int) or not isinstance(question, str | int):
            raise InputError(f"{label}: student and question are needed, as in student = 'Ada', question = 'Q1'.")
        points = _read_points(label, table.get("points"), float("inf"))
        overrides.append(Override(str(student), str(question), points, _read_comment(label, table)))
    return overrides


def resolve_overrides(
    path: Path | str, overrides: Sequence[Override], students: Mapping[str, str], points: Mapping[str, float]
) -> dict[tuple[str, str], Override]:
    """Return the overrides by student and question.

    Args:
        students: the name of a student in the marks by that name and by the user's id.
        points: the points of the questions, by id.

    Raises:
        InputError: for an unknown student or question, for more points than a question has, for two of the same mark.
    """
    resolved: dict[tuple[str, str], Override] = {}
    for number, override in enumerate(overrides, 1):
        label = f"{path}: override {number}"
        student = students[_find_name(label, "student", override.student, students)]
        question = _find_name(label, "question", override.question, points)
        _read_points(label, override.points, points[question])
        if (student, question) in resolved:
            raise InputError(f"{label}: {student}, {question} is changed twice. Leave one out.")
        resolved[student, question] = override
    return resolved


def compare_marks(previous: Path | str, current: Mapping[tuple[str, str], Mapping[str, Any]]) -> tuple[MarkChange, ...]:
    """Return the marks that differ from those in a marks.json.

    Args:
        previous: the file that an earlier grading wrote.
        current: for student and question: answer, verdict, points, of, reason, changed, comment.
    """
    before = _read_marks(Path(previous))
    changes: list[MarkChange] = []
    for student, question in dict.fromkeys((*current, *before)):
        old, new = before.get((student, question)), current.get((student, question))
        if old is None or new is None:
            why = "not graded then" if old is None else "not among the answers now"
            points = [None if mark is None else float(mark["points"]) for mark in (old, new)]
            changes.append(MarkChange(student, question, points[0], points[1], why))
        elif abs(float(old["points"]) - float(new["points"])) > 1e-9 or old.get("of") != new.get("of"):
            changes.append(
                MarkChange(student, question, float(old["points"]), float(new["points"]), _explain_change(old, new))
            )
    return tuple(changes)


def _explain_change(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return why a mark changed, as far as the marks say it."""
    reasons: list[str] = []
    if (new.get("changed"), new.get("comment")) != (old.get("changed"), old.get("comment")):
        text = join_comment(str(new.get("changed") or ""), str(new.get("comment") or ""))
        reasons.append(text or "No longer changed by hand.")
    if old.get("answer") != new.get("answer"):
        reasons.append("The answer is another one.")
    if old.get("of") != new.get("of"):
        reasons.append(f"The question has {new.get('of'):g} points, had {old.get('of'):g}.")
    if old.get("verdict") != new.get("verdict") and not reasons:
        reasons.append(f"Was {old.get('verdict')}, is {new.get('verdict')}.")
    return " ".join(reasons) or "The sheet or Lemma changed."


def _read_marks(path: Path) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the marks in a marks.json of a student or a class, by student and question."""
    try:
        table = parse_json(_read_bytes(path))
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error}). Expected the marks.json of an earlier --out.") from None
    students = table.get("students", [table]) if isinstance(table, dict) else None
    marks: dict[tuple[str, str], Mapping[str, Any]] = {}
    try:
        for student in students or ():
            for mark in student["marks"]:
                float(mark["points"])
                marks[str(student["student"]), str(mark["id"])] = mark
    except (KeyError, TypeError, ValueError, AttributeError):
        marks = {}
    if not marks:
        raise InputError(f"{path}: holds no marks. Expected the file of an earlier --out marks.json.")
    return marks


def _read_bytes(path: Path) -> bytes:
    """Return the content of a file; raise an InputError if there is none, or too much of it."""
    try:
        if not path.is_file():
            raise InputError(f"{path}: there is no such file.")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"{path}: has more than {MAX_FILE_BYTES:,} bytes.")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from None


def _read_tables(path: Path, name: str, fields: Sequence[str]) -> list[dict[str, Any]]:
    """Return the tables [[name]] of a TOML file; raise an InputError for other keys."""
    try:
        document = parse_toml(_read_bytes(path).decode("utf-8-sig"))
    except InputError:
        raise
    except ValueError as error:  # UnicodeDecodeError is one too
        raise InputError(f"{path}: not valid TOML: {error}.") from None
    for key in document:
        if key != name:
            raise InputError(f"{path}: {describe_unknown('setting', key, [name])}")
    tables = document.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{path}: expected tables [[{name}]].")
    for number, table in enumerate(tables, 1):
        for key in table:
            if key not in fields:
                raise InputError(f"{path}: {name[:-1]} {number}: {describe_unknown('setting', key, fields)}")
    return tables


def _find_name(label: str, kind: str, name: Any, names: Mapping[str, Any]) -> str:
    """Return the key of `names` that equals a name without regard to case; raise an InputError if there is none."""
    by_name = {key.casefold(): key for key in names}
    key = by_name.get(str(name).casefold())
    if key is None:
        raise InputError(f"{label}: {describe_unknown(kind, str(name)[:100], names)}")
    return key


def _read_points(label: str, value: Any, most: float) -> float:
    """Return the points of a table; raise an InputError unless they are a number from 0 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or not 0 <= value <= most:
        limit = f"from 0 to {most:g}" if isfinite(most) else "of at least 0"
        raise InputError(f"{label}: points = {str(value)[:40]}: a number {limit} is expected.")
    return float(value)


def _read_comment(label: str, table: Mapping[str, Any]) -> str:
    """Return the comment of a table; "" without one."""
    comment = table.get("comment", "")
    if not isinstance(comment, str):
        raise InputError(f"{label}: comment: a text is expected.")
    return " ".join(comment.split())
