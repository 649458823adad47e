"""A whole class marked: answers in files, folders or a table; points by student and question, and frequent slips."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

from lemma.checking.sheets import (
    NOT_DIAGNOSED,
    SUFFIXES,
    UNEXPLAINED,
    Marker,
    Sheet,
    StudentMarks,
    Submission,
    answer_text,
    collect_answers,
    escape_spreadsheet_cell,
    read_answers,
    read_sheet,
    sanitize_name,
)
from lemma.checking.sheets import mark_answers as mark_student
from lemma.data.tables import SEPARATED, open_table
from lemma.errors import InputError, describe_unknown
from lemma.files import real_path
from lemma.report.result import Block, Facts, Fold, Heading, Items, Result, Table, Text
from lemma.spec.base import exists

MAX_TABLE_BYTES = 2**26
DIAGNOSIS_SECONDS = 30.0
"""Seconds for the reasons of wrong answers; marks never depend on it."""
MAX_DETAILED_MISTAKES, MAX_PRINTED_MISTAKES, MAX_CELL_CHARS = 25, 8, 300
VERDICT_HEADINGS = {"right": "right", "partly right": "partly", "follow-through": "follows", "wrong": "wrong"}
VERDICT_HEADINGS |= {"unreadable": "unread", "not answered": "blank"}
"""Every verdict, and its short name for the head of a column."""
STUDENT_COLUMNS = ("student", "name", "student name", "full name", "username", "email", "email address")
USER_COLUMNS = ("user", "user id", "user_id", "userid", "id", "sid", "student id", "id number")
FIRST_NAME_COLUMNS, LAST_NAME_COLUMNS = (
    ("first name", "first_name", "given name"),
    ("last name", "last_name", "surname", "family name"),
)


@dataclass(frozen=True)
class SharedMistake:
    """A mistake in the answers to one question, and who made it."""

    question: str
    text: str
    students: tuple[str, ...]


@dataclass(frozen=True)
class ClassMarks(Result):
    """The marks of a class. What it shows is for the teacher: slips give away what is right."""

    title: str
    questions: tuple[str, ...]
    students: tuple[StudentMarks, ...]
    left_out: tuple[str, ...] = ()
    """What was found and not marked, with the reason."""
    undiagnosed: int = 0
    """How many different wrong answers were marked without looking for the reason, when time was up."""

    def __getitem__(self, student: str) -> StudentMarks:
        found = next((one for one in self.students if one.student == student), None)
        if found is None:
            raise InputError(describe_unknown("student", student, [one.student for one in self.students]))
        return found

    @property
    def of(self) -> float:
        """The points that can be had."""
        return self.students[0].of

    @property
    def mistakes(self) -> list[SharedMistake]:
        """The mistakes, the most frequent first, then wrong answers without an explanation."""
        found: dict[tuple[str, str], list[str]] = {}
        for student in self.students:
            for mark in student.marks:
                for text in dict.fromkeys(text for text in mark.mistakes if text != NOT_DIAGNOSED):
                    found.setdefault((mark.id, text), []).append(student.student)
        slips = [SharedMistake(question, text, tuple(students)) for (question, text), students in found.items()]
        order = self.questions.index
        return sorted(slips, key=lambda slip: (slip.text == UNEXPLAINED, -len(slip.students), order(slip.question)))

    @property
    def notes(self) -> list[str]:
        """What a teacher has to look at: files left out, students whose answers could not be read, and the rest."""
        notes = [*self.left_out]
        for one in self.students:
            broken = [mark for mark in one.marks if mark.verdict == "unreadable"]
            if broken and len(broken) == len(one.marks) and len({mark.reason for mark in broken}) == 1:
                notes.append(f"{one.student}: {broken[0].reason}")
            elif broken:
                listed = ", ".join(mark.id for mark in broken)
                notes.append(f"{one.student}: {listed} cannot be read. Look at {'it' if len(broken) == 1 else 'them'}.")
            notes += [f"{one.student}: {stranger}" for stranger in one.notes]
        if self.undiagnosed:
            notes.append(f"Wrong answers that were marked but not diagnosed, since time was up: {self.undiagnosed:,}.")
        return notes

    def counts(self, question: int) -> Counter[str]:
        """How many students have each verdict."""
        return Counter(student.marks[question].verdict for student in self.students)

    def _tables(self) -> tuple[Table, Table]:
        """Points by student, and verdicts by question."""
        rows = [(one.student, f"{one.points:g}", *(f"{mark.points:g}" for mark in one.marks)) for one in self.students]
        means = [mean(one.marks[place].points for one in self.students) for place in range(len(self.questions))]
        total = ("mean", f"{mean(one.points for one in self.students):.2f}", *(f"{value:.2f}" for value in means))
        students = Table(("student", "points", *self.questions), rows, total=total)
        used = [
            name for name in VERDICT_HEADINGS if any(self.counts(place)[name] for place in range(len(self.questions)))
        ]
        worth = [mark.of for mark in self.students[0].marks]
        questions = Table(
            ("question", "mean", *(VERDICT_HEADINGS[verdict] for verdict in used)),
            [
                (name, f"{value:.2f} of {points:g}", *(str(self.counts(place)[verdict]) for verdict in used))
                for place, (name, value, points) in enumerate(zip(self.questions, means, worth, strict=True))
            ],
            bars=[value / points for value, points in zip(means, worth, strict=True)],
        )
        return students, questions

    def _mistake_blocks(self, most: int) -> list[Block]:
        slips = self.mistakes
        if not slips:
            return []
        rows = [(slip.question, slip.text[:MAX_CELL_CHARS], str(len(slip.students))) for slip in slips[:most]]
        more = len(slips) - len(rows)
        caption = f"{more:,} more in the JSON file." if more else ""
        return [
            Heading("The most frequent slips"),
            Table(("", "slip", "students"), rows, is_text=True, caption=caption),
        ]

    def blocks(self) -> list[Block]:
        """Points by student, verdicts by question, the most frequent slips."""
        students, questions = self._tables()
        found: list[Block] = [Heading(f"{self.title}: {len(self.students)} students, {self.of:g} points", 1)]
        found += [students, Heading("Questions"), questions, *self._mistake_blocks(MAX_PRINTED_MISTAKES)]
        return [*found, *([Heading("To be looked at"), Items(self.notes)] if self.notes else [])]

    def details(self) -> list[Block]:
        """The same, and all answers of every student."""
        students, questions = self._tables()
        points = [one.points for one in self.students]
        found: list[Block] = [
            Heading(self.title, 1),
            Text("For the teacher: slips give away what is right.", "note"),
            Facts(
                {
                    "students": f"{len(points)}",
                    "points to be had": f"{self.of:g}",
                    "mean": f"{mean(points):.2f}",
                    "median": f"{median(points):.2f}",
                    "lowest to highest": f"{min(points):g} to {max(points):g}",
                }
            ),
            *self._mistake_blocks(MAX_DETAILED_MISTAKES),
            Heading("Questions"),
            questions,
        ]
        found += [Heading("To be looked at"), Items(self.notes)] if self.notes else []
        found += [Heading("Students"), students, Heading("Answers")]
        for one in self.students:
            rows = []
            for mark in one.marks:
                slips = (slip for slip in mark.mistakes if slip not in (NOT_DIAGNOSED, UNEXPLAINED))
                said = "\n".join(dict.fromkeys((*mark.remarks, *slips)))
                answer = "; ".join(mark.answer[:MAX_CELL_CHARS].splitlines())
                cells = (answer, mark.verdict, f"{mark.points:g} of {mark.of:g}", said)
                rows.append((mark.id, *cells))
            table = Table(("", "answer", "verdict", "points", "remarks"), rows, is_text=True)
            found.append(Fold(f"{one.student}: {one.summary}", [table]))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, the slips included."""
        students = [
            {
                **one.to_dict(),
                "user": one.user,
                "source": one.source,
                "marks": [{**mark.to_dict(), "slips": list(mark.mistakes)} for mark in one.marks],
            }
            for one in self.students
        ]
        questions = [
            {"id": name, "mean": mean(one.marks[place].points for one in self.students), **self.counts(place)}
            for place, name in enumerate(self.questions)
        ]
        slips = [{**vars(slip), "students": list(slip.students), "count": len(slip.students)} for slip in self.mistakes]
        about = {"title": self.title, "of": self.of, "students": students, "questions": questions, "slips": slips}
        return {**about, "left_out": list(self.left_out), "undiagnosed": self.undiagnosed}

    def records(self) -> list[dict[str, Any]]:
        """A row for each student: points by question and in all, then the verdicts and what is said of them."""
        rows: list[dict[str, Any]] = []
        for one in self.students:
            row: dict[str, Any] = {"student": one.student, "user": one.user, "source": one.source}
            row |= {mark.id: mark.points for mark in one.marks} | {"points": one.points, "of": one.of}
            row |= {f"{mark.id} verdict": mark.verdict for mark in one.marks}
            row |= {f"{mark.id} remarks": " ".join(mark.remarks) for mark in one.marks}
            rows.append({name: escape_spreadsheet_cell(value) for name, value in row.items()})
        return rows


def mark_class(
    sheet: Path | str | Mapping[str, Any], sources: Sequence[Path | str], seconds: float = DIAGNOSIS_SECONDS
) -> ClassMarks:
    """Mark a class: files of answers, folders of such files, tables with a row for each student (or each answer).

    What one student wrote, or failed to write, never stops the marking of the others. After `seconds` no more reasons
    of wrong answers are looked for; those that most students gave come first.
    """
    marker, found = Marker(read_sheet(sheet)), list[Submission]()
    left_out: list[str] = []
    own = None if isinstance(sheet, Mapping) else real_path(Path(sheet))
    for source in map(Path, sources):
        if exists(source) and source.is_dir():
            found += _read_folder(source, own, left_out)
        elif source.suffix.lower() in SEPARATED:
            found += _read_answer_table(source, marker.sheet, left_out)
        elif exists(source):
            found.append(_read_file(source, source.stem))
        else:
            raise InputError(f"{source}: there is no such file or folder of answers.")
    if not found:
        endings = f"{', '.join(SUFFIXES)}, or rows of a table ({', '.join(sorted(SEPARATED))})"
        raise InputError(f"{', '.join(map(str, sources))}: nothing to mark. Answers are files that end in {endings}.")
    twice = {name for name, times in Counter(one.student for one in found).items() if times > 1}
    named = [replace(one, student=f"{one.student} ({one.source})") if one.student in twice else one for one in found]
    for one in named:
        marker.mark(one)
    undiagnosed = marker.diagnose(seconds)
    questions = tuple(question.id for question in marker.sheet.questions)
    return ClassMarks(marker.sheet.title, questions, tuple(map(marker.mark, named)), tuple(left_out), undiagnosed)


def check_sheet(
    sheet: Path | str | Mapping[str, Any], answers: Sequence[Path | str | Mapping[str, Any]]
) -> StudentMarks | ClassMarks:
    """Mark one student's file or mapping of answers; several files, a folder or a table are a class."""
    if not answers:
        raise InputError("check sheet: ANSWERS expected behind the sheet: files, a folder or a table of a class.")
    first = answers[0]
    if len(answers) == 1 and (isinstance(first, Mapping) or not _is_class(Path(first))):
        return mark_student(sheet, first)
    files = [one for one in answers if not isinstance(one, Mapping)]
    if len(files) < len(answers):
        raise InputError("check sheet: a class is given as files, a folder or a table; a mapping is one student.")
    return mark_class(sheet, files)


def _is_class(path: Path) -> bool:
    return (exists(path) and path.is_dir()) or path.suffix.lower() in SEPARATED


def _read_file(path: Path, name: str) -> Submission:
    """Read a student's file; what cannot be read is marked as such under the file's name."""
    try:
        read = read_answers(path)
    except InputError as error:
        return Submission(sanitize_name(name), source=str(path), error=f"Cannot be read: {error}")
    except Exception as error:  # no file may stop the others
        return Submission(sanitize_name(name), source=str(path), error=f"Cannot be read ({type(error).__name__}).")
    return replace(read, student=read.student or sanitize_name(name))


def _read_folder(folder: Path, sheet: Path | None, left_out: list[str]) -> Iterator[Submission]:
    """Read the files of a folder, and those one level below, where each student has a folder."""
    for path in sorted(folder.iterdir()):
        try:
            inner = sorted(path.iterdir()) if path.is_dir() and not path.name.startswith(".") else [path]
        except OSError as error:
            left_out.append(f"{sanitize_name(str(path))}: left out, since it cannot be opened ({error.strerror}).")
            continue
        files = [one for one in inner if not one.name.startswith(".") and real_path(one) != sheet]
        answers = [one for one in files if one.suffix.lower() in SUFFIXES]
        left_out += [
            f"{sanitize_name(str(one))}: left out, since it does not end in {', '.join(SUFFIXES)}."
            for one in files
            if one not in answers
        ]
        for one in answers:
            yield _read_file(one, path.name if path.is_dir() and len(answers) == 1 else one.stem)


def _read_answer_table(path: Path, sheet: Sheet, left_out: list[str]) -> list[Submission]:
    """Read a table with a header: a column for the student, and one for each question; or one row for each answer."""
    header, rows = _read_rows(path)
    names = [name.strip().casefold() for name in header]
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path}: two columns are called '{sanitize_name(twice)}'. Rename one.")

    def place(known: Sequence[str]) -> int | None:
        return next((names.index(name) for name in known if name in names), None)

    ids = [question.id for question in sheet.questions]
    columns = {name: names.index(name.casefold()) for name in ids if name.casefold() in names}
    who = [at for at in (place(FIRST_NAME_COLUMNS), place(LAST_NAME_COLUMNS)) if at is not None]
    student = place([name for name in STUDENT_COLUMNS if name not in columns])
    who, user = [student] if student is not None else who, place([name for name in USER_COLUMNS if name not in columns])
    asked, answer = place(("question",)), place(("answer", "response"))
    long = not columns and asked is not None and answer is not None
    if not columns and not long:
        said = f"no column of {', '.join(map(sanitize_name, header))} is a question of the sheet: {', '.join(ids)}."
        raise InputError(f"{path}: {said}{' Is there a quote that is not closed?' if len(header) == 1 else ''}")
    who = who or ([user] if user is not None else [0])
    used = {*columns.values(), *who, user, *((asked, answer) if long else ())}
    about_people = {*STUDENT_COLUMNS, *USER_COLUMNS, *FIRST_NAME_COLUMNS, *LAST_NAME_COLUMNS, ""}
    others = [sanitize_name(header[at]) for at, name in enumerate(names) if at not in used and name not in about_people]
    left_out += [f"{path}: no question is called {', '.join(others)}."] if others else []
    found: dict[str, tuple[Submission, list[tuple[str, str | None]]]] = {}
    for line, row in rows:
        cells = [*row, *[""] * (len(header) - len(row))]
        name = sanitize_name(" ".join(cells[at] for at in who)) or f"line {line}"
        given = [(cells[asked or 0], cells[answer or 0])] if long else [(one, cells[at]) for one, at in columns.items()]
        wrong = ""
        if len(row) > len(header):
            wrong = f"Cannot be read: {path}, line {line} has {len(row)} cells where the header has {len(header)}."
        about = Submission(
            name, {}, sanitize_name(cells[user]) if user is not None else "", f"{path}, line {line}", wrong
        )
        key = name if long else str(line)
        _, pairs = found.setdefault(key, (about, []))
        pairs += [(one, answer_text(text)) for one, text in given]
    return [replace(about, answers=collect_answers(pairs)) for about, pairs in found.values()]


def _read_rows(path: Path) -> tuple[Sequence[str], list[tuple[int, Sequence[str]]]]:
    """The header, and the rows with their lines. A byte that is not UTF-8 becomes a sign that no formula has."""
    if path.is_file() and path.stat().st_size > MAX_TABLE_BYTES:
        raise InputError(f"{path}: has more than {MAX_TABLE_BYTES:,} bytes. Split the class.")
    content, readable = path.read_bytes() if path.is_file() else b"", path
    with TemporaryDirectory() as folder:
        try:
            content.decode("utf-8-sig")
        except UnicodeDecodeError:
            readable = Path(folder) / path.name
            readable.write_text(content.decode("utf-8-sig", "replace"), encoding="utf-8", newline="")
        try:
            names, listed = open_table(readable)
            rows = list(listed)
        except InputError as error:
            raise InputError(str(error).replace(str(readable), str(path))) from None
        if names is None and rows:
            (_, names), *rows = rows
        if not names:
            raise InputError(f"{path}: is empty. Expected a header with a column for each question.")
        return names, rows
