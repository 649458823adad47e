"""Marking a class: answers in files, folders or a table; points by student and question, and frequent mistakes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

from lemma.checking.marking import Mark, Marker, StudentMarks, change_blocks, escape_spreadsheet_cell
from lemma.checking.question_kinds import NOT_DIAGNOSED, UNEXPLAINED
from lemma.checking.sheets import (
    SUFFIXES,
    Sheet,
    Submission,
    answer_text,
    collect_answers,
    read_answers,
    read_sheet,
    sanitize_name,
)
from lemma.checking.teacher_files import (
    MarkChange,
    QueuedAnswer,
    compare_marks,
    merge_queue,
    read_overrides,
    read_queue,
    resolve_overrides,
    write_queue,
)
from lemma.data.tables import SEPARATED, open_table
from lemma.errors import InputError, describe_unknown
from lemma.files import real_path
from lemma.report.result import Block, Facts, Fold, Heading, Items, Pre, Result, Table, Text, to_plain
from lemma.spec.base import exists

MAX_TABLE_BYTES = 2**26
DIAGNOSIS_SECONDS = 30.0  # for explaining wrong answers; marks never depend on it
MAX_LISTED_STUDENTS = 6
MAX_DETAILED_MISTAKES, MAX_PRINTED_MISTAKES = 25, 8
MAX_CELL_CHARS = 300
VERDICT_HEADINGS = {
    "right": "right",
    "partly right": "partly",
    "follow-through": "follows",
    "wrong": "wrong",
    "unreadable": "unread",
    "not answered": "blank",
}
STUDENT_COLUMNS = ("student", "name", "student name", "full name", "username", "email", "email address")
USER_COLUMNS = ("user", "user id", "user_id", "userid", "id", "sid", "student id", "id number")
FIRST_NAME_COLUMNS = ("first name", "first_name", "given name")
LAST_NAME_COLUMNS = ("last name", "last_name", "surname", "family name")


@dataclass(frozen=True)
class TeacherFiles:
    """Files in which a teacher decides, see `teacher_files`; None for those that are not used.

    Attributes:
        overrides: marks changed by hand.
        previous: marks.json of an earlier grading, to report what changed.
        queue: answers to look at, read and written.
        queues_undiagnosed: whether the queue has wrong answers without an explanation too.
    """

    overrides: Path | str | None = None
    previous: Path | str | None = None
    queue: Path | str | None = None
    queues_undiagnosed: bool = False


NO_FILES = TeacherFiles()


def check_sheet(
    sheet: Path | str | Mapping[str, Any],
    answers: Sequence[Path | str | Mapping[str, Any]],
    files: TeacherFiles = NO_FILES,
) -> "StudentMarks | ClassMarks":
    """Mark answers to a sheet: one file or mapping as a student, several files, a folder or a table as a class."""
    if not answers:
        raise InputError("check sheet: ANSWERS expected behind the sheet: files, a folder or a table of a class.")
    first = answers[0]
    if len(answers) == 1:
        path = None if isinstance(first, Mapping) else Path(first)
        if path is None or not (path.suffix.lower() in SEPARATED or (exists(path) and path.is_dir())):
            marks = _mark_submissions(read_sheet(sheet), [read_answers(first)], files, [], inf)
            return replace(marks.students[0], changes=marks.changes)
    paths = [source for source in answers if not isinstance(source, Mapping)]
    if len(paths) < len(answers):
        raise InputError("check sheet: a class is given as files, a folder or a table; a mapping is one student.")
    return mark_class(sheet, paths, files=files)


def mark_class(
    sheet: Path | str | Mapping[str, Any],
    sources: Sequence[Path | str],
    seconds: float = DIAGNOSIS_SECONDS,
    files: TeacherFiles = NO_FILES,
) -> "ClassMarks":
    """Mark the answers of a class; an answer that cannot be read never stops the marking of the others.

    Wrong answers are explained for this many seconds, the most frequent first.
    """
    questions, submissions = read_sheet(sheet), list[Submission]()
    skipped: list[str] = []
    sheet_path = None if isinstance(sheet, Mapping) else real_path(Path(sheet))
    for source in map(Path, sources):
        if exists(source) and source.is_dir():
            submissions += _read_folder(source, sheet_path, skipped)
        elif source.suffix.lower() in SEPARATED:
            submissions += _read_answer_table(source, questions, skipped)
        elif exists(source):
            submissions.append(_read_file(source, source.stem))
        else:
            raise InputError(f"{source}: there is no such file or folder of answers.")
    if not submissions:
        endings = f"{', '.join(SUFFIXES)}, or rows of a table ({', '.join(sorted(SEPARATED))})"
        raise InputError(f"{', '.join(map(str, sources))}: nothing to mark. Answers are files that end in {endings}.")
    counts = Counter(submission.student for submission in submissions)
    submissions = [
        replace(submission, student=f"{submission.student} ({submission.source})")
        if counts[submission.student] > 1
        else submission
        for submission in submissions
    ]
    return _mark_submissions(questions, submissions, files, skipped, seconds)


def _mark_submissions(
    sheet: Sheet, submissions: Sequence[Submission], files: TeacherFiles, skipped: Sequence[str], seconds: float
) -> "ClassMarks":
    """Mark submissions, with the decisions of a teacher's files; write the queue if there is one."""
    points = {question.id: question.points for question in sheet.questions}
    queue = read_queue(Path(files.queue), points) if files.queue else []
    overrides = read_overrides(files.overrides) if files.overrides else []
    decisions = {(entry.question, entry.answer): entry.decision for entry in queue if entry.decision}
    marker = Marker(sheet, decisions)
    for submission in submissions:
        marker.mark(submission)
    undiagnosed = marker.diagnose(seconds)
    students = [marker.mark(submission) for submission in submissions]
    if files.queue:
        waiting = _list_waiting(submissions, students, {*decisions}, files.queues_undiagnosed)
        write_queue(Path(files.queue), merge_queue(queue, waiting))
    if files.overrides:
        names = {marks.user: marks.student for marks in students if marks.user}
        names |= {marks.student: marks.student for marks in students}
        changed = resolve_overrides(files.overrides, overrides, names, points)
        students = [_apply_overrides(marks, changed) for marks in students]
    marks = ClassMarks(sheet.title, tuple(points), tuple(students), tuple(skipped), undiagnosed)
    if not files.previous:
        return marks
    current = {(student.student, mark.id): mark.to_dict() for student in students for mark in student.marks}
    return replace(marks, changes=compare_marks(files.previous, current))


def _apply_overrides(marks: StudentMarks, overrides: Mapping[tuple[str, str], Any]) -> StudentMarks:
    """Return a student's marks with those that are changed by hand."""
    changed: list[Mark] = []
    for mark in marks.marks:
        override = overrides.get((marks.student, mark.id))
        changed.append(mark.with_points(override.points, "Changed by hand.", override.comment) if override else mark)
    return replace(marks, marks=tuple(changed))


def _list_waiting(
    submissions: Sequence[Submission],
    students: Sequence[StudentMarks],
    decided: set[tuple[str, str]],
    includes_undiagnosed: bool,
) -> list[QueuedAnswer]:
    """Return the answers that a teacher has to look at or decided on, each once with all students who wrote it."""
    waiting: dict[tuple[str, str], QueuedAnswer] = {}
    for submission, marks in zip(submissions, students, strict=True):
        for mark in marks.marks:
            answer = submission.answers.get(mark.id.casefold())
            if answer is None or not answer.text or submission.error:
                continue
            key = (mark.id, answer.text)
            unexplained = any(text.endswith((UNEXPLAINED, NOT_DIAGNOSED)) for text in mark.mistakes)
            if mark.verdict == "unreadable":
                why = mark.reason
            elif mark.verdict in ("wrong", "partly right") and unexplained and includes_undiagnosed:
                why = f"{mark.verdict}: {'; '.join(mark.mistakes)}"
            elif key in decided:
                why = "decided"
            else:
                continue
            previous = waiting.get(key)
            names = (*(previous.students if previous else ()), marks.student or "the student")
            waiting[key] = QueuedAnswer(*key, names, previous.why if previous else why, mark.of)
    return list(waiting.values())


@dataclass(frozen=True)
class SharedMistake:
    """A mistake in the answers to one question, and the students who made it."""

    question: str
    text: str
    students: tuple[str, ...]

    def name_students(self, limit: int = MAX_LISTED_STUDENTS) -> str:
        """Return the number of students with their names, as in "2: Ada, Bo", at most `limit` names."""
        names = ", ".join(self.students[:limit])
        more = len(self.students) - limit
        return f"{len(self.students)}: {names}{f' and {more} more' if more > 0 else ''}"


def _answer_blocks(marks: StudentMarks) -> list[Block]:
    """Return a student's answers as they were written, each with its verdict, points, remarks and mistakes."""
    blocks: list[Block] = []
    for mark in marks.marks:
        blocks.append(Text(f"{mark.id}: {mark.verdict}, {mark.points:g} of {mark.of:g}", "strong"))
        blocks += [Pre([(mark.answer, "")])] if mark.answer else []
        mistakes = (text for text in mark.mistakes if text not in (NOT_DIAGNOSED, UNEXPLAINED))
        notes = dict.fromkeys((*mark.remarks, *mistakes))
        blocks += [Pre([("\n".join(notes), "prompt")])] if notes else []
    return blocks


@dataclass(frozen=True)
class ClassMarks(Result):
    """The marks of a class, for the teacher: mistakes give away what is right."""

    title: str
    questions: tuple[str, ...]  # their ids
    students: tuple[StudentMarks, ...]
    left_out: tuple[str, ...] = ()  # messages about files and columns that were not marked
    undiagnosed: int = 0  # how many different wrong answers were not explained when the time was up
    changes: tuple[MarkChange, ...] | None = None  # since an earlier grading; None if it was not compared

    def __getitem__(self, student: str) -> StudentMarks:
        marks = next((marks for marks in self.students if marks.student == student), None)
        if marks is None:
            raise InputError(describe_unknown("student", student, [marks.student for marks in self.students]))
        return marks

    @property
    def of(self) -> float:
        """The highest possible points: those of a student with only right answers."""
        return self.students[0].of

    @property
    def mistakes(self) -> list[SharedMistake]:
        """The mistakes with the students who made them, the most frequent first, unexplained wrong answers last."""
        students: dict[tuple[str, str], list[str]] = {}
        for marks in self.students:
            for mark in marks.marks:
                for text in dict.fromkeys(text for text in mark.mistakes if not text.endswith(NOT_DIAGNOSED)):
                    students.setdefault((mark.id, text), []).append(marks.student)
        mistakes = [SharedMistake(question, text, tuple(names)) for (question, text), names in students.items()]
        order = self.questions.index
        return sorted(
            mistakes, key=lambda each: (each.text.endswith(UNEXPLAINED), -len(each.students), order(each.question))
        )

    @property
    def notes(self) -> list[str]:
        """Sentences on what a teacher has to look at, such as answers that cannot be read."""
        notes = [*self.left_out]
        for marks in self.students:
            unreadable = [mark for mark in marks.marks if mark.verdict == "unreadable"]
            if len(unreadable) == len(marks.marks) and len({mark.reason for mark in unreadable}) == 1:
                notes.append(f"{marks.student}: {unreadable[0].reason}")
            elif unreadable:
                ids, pronoun = ", ".join(mark.id for mark in unreadable), "it" if len(unreadable) == 1 else "them"
                notes.append(f"{marks.student}: {ids} cannot be read. Look at {pronoun}.")
            notes += [f"{marks.student}: {note}" for note in marks.notes]
        if self.undiagnosed:
            notes.append(f"Wrong answers that were marked but not diagnosed, since time was up: {self.undiagnosed:,}.")
        return notes

    def count_verdicts(self, question: int) -> Counter[str]:
        """Count the students by verdict on the question of this index."""
        return Counter(marks.marks[question].verdict for marks in self.students)

    def blocks(self) -> list[Block]:
        """Return tables of the points, the verdicts and the most frequent mistakes, and the notes."""
        students, questions = self._tables()
        title = Heading(f"{self.title}: {len(self.students)} students, {self.of:g} points", 1)
        mistakes = self._mistake_blocks(MAX_PRINTED_MISTAKES)
        changes = change_blocks(self.changes)
        return [title, students, Heading("Questions"), questions, *mistakes, *self._note_blocks, *changes]

    def details(self) -> list[Block]:
        """Return the tables that are printed, statistics of the points, and every student's answers, folded."""
        students, questions = self._tables()
        points = [marks.points for marks in self.students]
        facts = {
            "students": f"{len(points)}",
            "points to be had": f"{self.of:g}",
            "mean": f"{mean(points):.2f}",
            "median": f"{median(points):.2f}",
            "lowest to highest": f"{min(points):g} to {max(points):g}",
        }
        answers = [Fold(f"{marks.student}: {marks.summary}", _answer_blocks(marks)) for marks in self.students]
        introduction = Text("For the teacher: mistakes give away what is right.", "note")
        mistakes = self._mistake_blocks(MAX_DETAILED_MISTAKES)
        overview = [Heading(self.title, 1), introduction, Facts(facts), *mistakes, Heading("Questions"), questions]
        notes = [*self._note_blocks, *change_blocks(self.changes)]
        return [*overview, *notes, Heading("Students"), students, Heading("Answers"), *answers]

    def _mean_points(self) -> list[float]:
        """Return the mean points of all students for each question, in the order of the sheet."""
        return [mean(marks.marks[index].points for marks in self.students) for index in range(len(self.questions))]

    def _tables(self) -> tuple[Table, Table]:
        """Return a table of the points by student and question, and a table of the verdicts by question."""
        means, max_points = self._mean_points(), [mark.of for mark in self.students[0].marks]
        rows = [(marks.student, *(f"{each.points:g}" for each in (marks, *marks.marks))) for marks in self.students]
        overall = mean(marks.points for marks in self.students)
        total = ("mean", *(f"{value:.2f}" for value in (overall, *means)))
        students = Table(("student", "points", *self.questions), rows, total=total)
        counts = [self.count_verdicts(index) for index in range(len(self.questions))]
        used = [verdict for verdict in VERDICT_HEADINGS if any(count[verdict] for count in counts)]
        header = ("question", "mean", *(VERDICT_HEADINGS[verdict] for verdict in used))
        columns = zip(self.questions, means, max_points, counts, strict=True)
        rows = [
            (id, f"{value:.2f} of {points:g}", *(str(count[verdict]) for verdict in used))
            for id, value, points, count in columns
        ]
        bars = [value / points for value, points in zip(means, max_points, strict=True)]
        return students, Table(header, rows, bars=bars)

    def _mistake_blocks(self, limit: int) -> list[Block]:
        """Return a heading and a table of at most `limit` mistakes; [] if there are none."""
        mistakes = self.mistakes
        rows = [(each.question, each.text[:MAX_CELL_CHARS], each.name_students()) for each in mistakes[:limit]]
        more = len(mistakes) - len(rows)
        caption = f"{more:,} more in the JSON file." if more else ""
        table = Table(("", "mistake", "students"), rows, is_text=True, caption=caption)
        return [Heading("The most frequent mistakes"), table] if mistakes else []

    @property
    def _note_blocks(self) -> list[Block]:
        """A heading and a list of the notes; [] if there are none."""
        return [Heading("To be looked at"), Items(self.notes)] if self.notes else []

    def to_dict(self) -> dict[str, Any]:
        """Return title, points, students, questions and mistakes as plain values for JSON, in full."""
        students: list[dict[str, Any]] = []
        for marks in self.students:
            answers = [{**mark.to_dict(), "mistakes": mark.mistakes} for mark in marks.marks]
            students.append({**marks.to_dict(), "user": marks.user, "source": marks.source, "marks": answers})
        questions = [
            {"id": id, "mean": value, **self.count_verdicts(index)}
            for index, (id, value) in enumerate(zip(self.questions, self._mean_points(), strict=True))
        ]
        mistakes = [{**vars(mistake), "count": len(mistake.students)} for mistake in self.mistakes]
        details: dict[str, Any] = {"mistakes": mistakes, "left_out": self.left_out, "undiagnosed": self.undiagnosed}
        if self.changes is not None:
            details["changes"] = [vars(change) for change in self.changes]
        return to_plain({"title": self.title, "of": self.of, "students": students, "questions": questions, **details})

    def records(self) -> list[dict[str, Any]]:
        """Return a row by column name for each student: points by question and in all, verdicts, answers, remarks."""
        rows: list[dict[str, Any]] = []
        for marks in self.students:
            row: dict[str, Any] = {"student": marks.student, "user": marks.user, "source": marks.source}
            row |= {mark.id: mark.points for mark in marks.marks} | {"points": marks.points, "of": marks.of}
            row |= {f"{mark.id} verdict": mark.verdict for mark in marks.marks}
            row |= {f"{mark.id} answer": mark.answer for mark in marks.marks}
            row |= {f"{mark.id} remarks": " ".join(mark.remarks) for mark in marks.marks}
            rows.append({name: escape_spreadsheet_cell(value) for name, value in row.items()})
        return rows


def _read_file(path: Path, name: str) -> Submission:
    """Read the file of one student; a file that cannot be read becomes a submission with an error.

    `name` is the student's if the file has none.
    """
    student = sanitize_name(name)
    try:
        submission = read_answers(path)
    except InputError as error:
        return Submission(student, source=str(path), error=f"Cannot be read: {error}", name=name)
    except Exception as error:  # no file may stop the others
        error = f"Cannot be read ({type(error).__name__})."
        return Submission(student, source=str(path), error=error, name=name)
    return replace(submission, student=submission.student or student, name=name)


def _read_folder(folder: Path, sheet: Path | None, skipped: list[str]) -> Iterator[Submission]:
    """Yield the submissions in a folder of files, or of folders with the files of one student each.

    Leave out `sheet`, the file of the questions; append messages about other files that are left out to `skipped`.
    """
    for path in sorted(folder.iterdir()):
        try:
            inner = sorted(path.iterdir()) if path.is_dir() and not path.name.startswith(".") else [path]
        except OSError as error:
            skipped.append(f"{sanitize_name(str(path))}: left out, since it cannot be opened ({error.strerror}).")
            continue
        files = [file for file in inner if not file.name.startswith(".") and real_path(file) != sheet]
        answers = [file for file in files if file.suffix.lower() in SUFFIXES]
        endings = ", ".join(SUFFIXES)
        skipped_names = (sanitize_name(str(file)) for file in files if file not in answers)
        skipped += [f"{name}: left out, since it does not end in {endings}." for name in skipped_names]
        for file in answers:
            is_only_file = path.is_dir() and len(answers) == 1
            submission = _read_file(file, path.name if is_only_file else file.stem)
            yield replace(
                submission, name=path.name if is_only_file or not path.is_dir() else f"{path.name}-{file.stem}"
            )


def _read_answer_table(path: Path, sheet: Sheet, skipped: list[str]) -> list[Submission]:
    """Read a table with a row for each student and a column for each question, or with a row for each answer.

    Columns are recognized by their names in the header; append a note on those of no use to `skipped`.
    """
    header, rows = _read_rows(path)
    names = [name.strip().casefold() for name in header]
    duplicate = next((name for name in names if name and names.count(name) > 1), None)
    if duplicate is not None:
        raise InputError(f"{path}: two columns are called '{sanitize_name(duplicate)}'. Rename one.")
    ids = [question.id for question in sheet.questions]
    answer_columns = {id: names.index(id.casefold()) for id in ids if id.casefold() in names}

    def find(choices: Sequence[str]) -> list[int]:
        """Return [index] of the first column with such a name that holds no answers; [] without such a column."""
        indices = (names.index(name) for name in choices if name in names)
        return [index for index in indices if index not in answer_columns.values()][:1]

    pair = [] if answer_columns else [*find(("question",)), *find(("answer", "response"))]
    if not answer_columns and len(pair) < 2:
        columns = ", ".join(map(sanitize_name, header))
        hint = " Is there a quote that is not closed?" if len(header) == 1 else ""
        raise InputError(f"{path}: no column of {columns} is a question of the sheet: {', '.join(ids)}.{hint}")
    user_columns = find(USER_COLUMNS)
    full_name = [*find(FIRST_NAME_COLUMNS), *find(LAST_NAME_COLUMNS)]
    name_columns = find(STUDENT_COLUMNS) or full_name or user_columns or [0]
    used = {*answer_columns.values(), *name_columns, *user_columns, *pair}
    personal = {*STUDENT_COLUMNS, *USER_COLUMNS, *FIRST_NAME_COLUMNS, *LAST_NAME_COLUMNS, ""}
    unused = [
        sanitize_name(header[index]) for index, name in enumerate(names) if index not in used and name not in personal
    ]
    skipped += [f"{path}: no question is called {', '.join(unused)}."] if unused else []

    submissions: dict[str, tuple[Submission, list[tuple[str, str | None]]]] = {}
    for line, row in rows:
        cells = [*row, *[""] * (len(header) - len(row))]
        student = sanitize_name(" ".join(cells[index] for index in name_columns)) or f"line {line}"
        user = "".join(sanitize_name(cells[index]) for index in user_columns)
        error = ""
        if len(row) > len(header):
            error = f"Cannot be read: {path}, line {line} has {len(row)} cells where the header has {len(header)}."
        submission = Submission(student, {}, user, f"{path}, line {line}", error, user or student)
        _, pairs = submissions.setdefault(student if pair else str(line), (submission, []))
        columns = {cells[pair[0]]: pair[1]} if pair else answer_columns
        pairs += [(id, answer_text(cells[index])) for id, index in columns.items()]
    return [replace(submission, answers=collect_answers(pairs)) for submission, pairs in submissions.values()]


def _read_rows(path: Path) -> tuple[Sequence[str], list[tuple[int, Sequence[str]]]]:
    """Return the header of a table and its rows as (line number, cells); invalid UTF-8 becomes U+FFFD."""
    if path.is_file() and path.stat().st_size > MAX_TABLE_BYTES:
        raise InputError(f"{path}: has more than {MAX_TABLE_BYTES:,} bytes. Split the class.")
    with TemporaryDirectory() as folder:
        readable = Path(folder) / path.name if path.is_file() else path
        try:
            if path.is_file():
                text = path.read_bytes().decode("utf-8-sig", "replace")
                readable.write_text(text, encoding="utf-8", newline="")
            names, row_iterator = open_table(readable)
            rows = list(row_iterator)
        except InputError as error:
            raise InputError(str(error).replace(str(readable), str(path))) from None
        if names is None and rows:
            (_, names), *rows = rows
        if not names:
            raise InputError(f"{path}: is empty. Expected a header with a column for each question.")
        return names, rows
