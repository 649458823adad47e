"""Marking one student's answers to a sheet: `lemma check sheet`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from lemma.checking.question_kinds import (
    MAX_MARKING_STEPS,
    Assessment,
    EarlierAnswer,
    PreparedQuestion,
    prepare_question,
)
from lemma.checking.sheets import (
    Sheet,
    SheetQuestion,
    StudentAnswer,
    Submission,
    read_answers,
    read_sheet,
    sanitize_name,
)
from lemma.checking.teacher_files import Decision, MarkChange, join_comment
from lemma.checking.written_answers import AnswerReading
from lemma.counting.polynomial import work_limit
from lemma.errors import InputError, describe_unknown
from lemma.report.result import Block, Heading, Pre, Result, Table, Text

MAX_ANSWER_CHARS = 2000
MAX_UNKNOWN_ANSWERS = 10

AnswerId = tuple[Any, ...]
"""A question's id, an answer to it, and the ids of the answers to the earlier questions that it builds on."""


def mark_answers(
    sheet: Path | str | Mapping[str, Any],
    answers: Path | str | Mapping[str, Any],
) -> "StudentMarks":
    """Mark one student's answers to a sheet.

    >>> sheet = {"questions": [{"id": "Q1", "points": 2, "kind": "parameters", "model": "lora"}]}
    >>> mark_answers(sheet, {"Q1": "R*(W_in + W_out) + W_in*W_out"})["Q1"].points
    2.0
    """
    marker, submission = Marker(read_sheet(sheet)), read_answers(answers)
    marker.mark(submission)
    marker.diagnose()
    return marker.mark(submission)


class Marker:
    """Marks answers to one sheet; each distinct answer is assessed once, however many students give it.

    Creating it raises an InputError if a model cannot be asked what the sheet asks.

    Args:
        decisions: what a teacher decided on answers, by the id of the question and the answer.
    """

    def __init__(self, sheet: Sheet, decisions: Mapping[tuple[str, str], Decision] | None = None) -> None:
        self.sheet, self.decisions = sheet, decisions or {}
        self.questions: dict[str, PreparedQuestion] = {}
        for question in sheet.questions:
            self.questions[question.id] = prepare_question(question, self.questions, sheet.source)
        self.assessments: dict[AnswerId, Assessment] = {}
        self.uses: Counter[AnswerId] = Counter()
        comparing = [question.question for question in self.questions.values() if question.compares_mistakes]
        # marks depend on the mistakes of these, so that they are looked for even if there is little time
        self._diagnosed_first = {id for question in comparing for id in (question.id, *question.builds_on)}
        self._readings: dict[tuple[str, str], Sequence[AnswerReading]] = {}
        self._selected_readings: dict[AnswerId, AnswerReading] = {}

    def mark(self, submission: Submission) -> "StudentMarks":
        """Return the marks of one student's submission; no error in an answer stops the marking of the others."""
        ids, marks = dict[str, AnswerId](), list[Mark]()
        for question in self.sheet.questions:
            answer = submission.answers.get(question.id.casefold()) or StudentAnswer(question.id, "")
            decision = self.decisions.get((question.id, answer.text), Decision())
            answer_error = "" if decision.read_as else answer.error
            text = "" if answer_error else decision.read_as or answer.text
            ids[question.id] = (question.id, text, *(ids[name] for name in question.builds_on))
            error = submission.error or (answer_error and f"Cannot be read: {answer_error}.")
            assessment = Assessment(error=error) if error else self._assess(ids[question.id]) if text else None
            mark = _make_mark(question, answer.text, assessment)
            if decision.read_as:
                mark = replace(mark, changed=f"Read by hand as: {decision.read_as}", comment=decision.comment)
            if decision.points is not None and not submission.error:
                mark = mark.with_points(decision.points, "Decided by hand.", decision.comment)
            marks.append(mark)
        ids_on_sheet = {id.casefold() for id in self.questions}
        unknown = [sanitize_name(answer.name) for id, answer in submission.answers.items() if id not in ids_on_sheet]
        notes = [describe_unknown("question", name, self.questions) for name in unknown[:MAX_UNKNOWN_ANSWERS]]
        if (more := len(unknown) - MAX_UNKNOWN_ANSWERS) > 0:
            notes.append(f"{more:,} more answers to questions that are not on the sheet.")
        student, user, source = submission.student, submission.user, submission.source
        return StudentMarks(self.sheet.title, student, tuple(marks), tuple(notes), user, source, submission.name)

    def diagnose(self, seconds: float = inf) -> int:
        """Explain wrong answers, the most frequent first; return how many are left when the time is up."""
        waiting = [id for id, result in self.assessments.items() if result.needs_diagnosis]
        waiting.sort(key=lambda id: -self.uses[id])
        deadline = monotonic() + seconds
        for done, id in enumerate(waiting):
            if monotonic() > deadline:
                return len(waiting) - done
            self.assessments[id] = self._parse_and_assess(id, diagnose=True)
        return 0

    def _assess(self, id: AnswerId) -> Assessment:
        """Return the assessment of the answer `id` (question, text, earlier answers), computed once; count its uses."""
        self.uses[id] += 1
        if id not in self.assessments:
            self.assessments[id] = self._parse_and_assess(id, diagnose=id[0] in self._diagnosed_first)
        return self.assessments[id]

    @work_limit(MAX_MARKING_STEPS)
    def _parse_and_assess(self, id: AnswerId, diagnose: bool) -> Assessment:
        """Parse and assess an answer, and with `diagnose` explain a wrong one; an exception becomes its error."""
        question_id, text, *earlier_ids = id
        question = self.questions[question_id]
        earlier: list[EarlierAnswer] = []
        for key in earlier_ids:
            reading = self._selected_readings.get(key) or AnswerReading(key[1], None)
            earlier.append(
                EarlierAnswer(self.questions[key[0]], reading.text, reading.answer, self.assessments.get(key))
            )
        try:
            if (question_id, text) not in self._readings:
                self._readings[question_id, text] = question.read(text)
            if id not in self._selected_readings or not diagnose:
                self._selected_readings[id] = choose_reading(question, self._readings[question_id, text], earlier)
            reading = self._selected_readings[id]
            assessment = question.assess(reading.text, reading.answer, earlier, diagnose)
        except InputError as error:
            return Assessment(error=f"Cannot be read: {error}")
        except Exception as error:  # nothing a student writes may stop the marking of the rest
            return Assessment(error=f"Cannot be judged ({type(error).__name__}).")
        if reading.note:
            reason, hint = f"{assessment.reason}\n{reading.note}", f"{assessment.hint}\n{reading.note}"
            assessment = replace(assessment, reason=reason, hint=hint)
        return assessment


def choose_reading(
    question: PreparedQuestion, readings: Sequence[AnswerReading], earlier: Sequence[EarlierAnswer]
) -> AnswerReading:
    """Return the reading of an answer that earns most; raise an InputError if only a doubtful reading earns that."""
    if len(readings) == 1:
        return readings[0]
    best: tuple[float, AnswerReading] | None = None
    doubt: tuple[float, AnswerReading] | None = None
    error: InputError | None = None
    has_sure = any(reading.is_sure for reading in readings)
    for reading in readings:
        try:
            fraction = question.assess(reading.text, reading.answer, earlier, diagnose=False).fraction
        except InputError as raised:
            error = error or raised
            continue
        if reading.is_sure or not has_sure:
            best = (fraction, reading) if best is None or fraction > best[0] else best
        else:
            doubt = (fraction, reading) if doubt is None or fraction > doubt[0] else doubt
        if best and best[0] == 1:
            return best[1]
    if error and (best is None or not doubt or doubt[0] <= best[0]):
        raise error
    if best and doubt and doubt[0] > best[0]:
        texts = [" ".join(reading.text.split())[:60] for reading in (best[1], doubt[1])]
        raise InputError(f"it can be read as '{texts[0]}' or as '{texts[1]}'.")
    assert best is not None, "there is a reading"
    return best[1]


Verdict = Literal["right", "partly right", "follow-through", "wrong", "unreadable", "not answered"]


@dataclass(frozen=True)
class Mark:
    """The mark of one answer; true if the answer is right."""

    id: str  # of the question
    text: str  # the question
    answer: str
    verdict: Verdict
    reason: str
    points: float  # those it earned
    of: float  # those of a right answer
    right_answer: str | None = None  # if the sheet allows it to be shown
    mistakes: tuple[str, ...] = ()  # those that explain the answer, for the teacher only
    changed: str = ""  # what a teacher decided, such as "Changed by hand."; "" for an automatic mark
    comment: str = ""  # the teacher's

    def __bool__(self) -> bool:
        return self.verdict == "right"

    def with_points(self, points: float, changed: str, comment: str) -> "Mark":
        """Return the mark with points that a teacher gave; the verdict follows from these."""
        verdict: Verdict = "right" if points >= self.of else "partly right" if points else "wrong"
        mistakes = () if verdict == "right" or self.verdict == "unreadable" else self.mistakes
        reason = "" if self.verdict == "unreadable" or verdict != self.verdict else self.reason
        return replace(
            self,
            points=points,
            verdict=verdict,
            reason=reason,
            mistakes=mistakes,
            changed=changed,
            comment=comment,
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """The lines of the reason, and the right answer if the sheet shows it."""
        has_solution = self.right_answer and self.verdict != "right"
        solution = f"The right answer: {self.right_answer}" if has_solution else ""
        changed = join_comment(self.changed, self.comment)
        return tuple(note for note in (*self.reason.splitlines(), solution, changed) if note)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for the student, without the mistakes, which are the teacher's."""
        return {name: value for name, value in asdict(self).items() if name != "mistakes"}


def _make_mark(question: SheetQuestion, text: str, assessment: Assessment | None) -> Mark:
    """Turn the assessment of an answer, None if there is no answer, into a mark that shows what the sheet allows."""
    shortened = text if len(text) <= MAX_ANSWER_CHARS else f"{text[:MAX_ANSWER_CHARS]}…"
    mark = Mark(question.id, question.statement, shortened, "not answered", "", 0, question.points)
    if assessment is None:
        return mark
    if assessment.error:
        return replace(mark, verdict="unreadable", reason=assessment.error, mistakes=("cannot be read",))
    verdict: Verdict = "partly right" if assessment.fraction else "wrong"
    if assessment.error_sources:
        verdict = "follow-through"
    elif assessment.fraction == 1:
        verdict = "right"
    feedback = {"reason": assessment.hint}
    if question.show_answer:
        feedback = {"reason": assessment.reason, "right_answer": assessment.right_answer}
    if question.hint and verdict != "right":
        feedback["reason"] = f"{feedback['reason']}\nHint: {question.hint}"
    points = round(assessment.fraction * question.points, 2)
    return replace(mark, verdict=verdict, points=points, mistakes=assessment.mistakes, **feedback)


@dataclass(frozen=True)
class StudentMarks(Result):
    """The marks of one student; true if every answer is right. `marks["Q1"]` is the mark of that question."""

    json_names = ("title", "student", "points", "of", "marks", "notes")

    title: str
    student: str
    marks: tuple[Mark, ...]
    notes: tuple[str, ...] = ()  # messages about answers to questions that are not on the sheet
    user: str = ""  # the student's id at a learning platform
    source: str = ""  # the file, or the line of a table
    submission: str = ""  # name of the submission: its file or folder
    changes: tuple[MarkChange, ...] | None = None  # since an earlier grading; None if it was not compared

    def __bool__(self) -> bool:
        return all(self.marks)

    def __getitem__(self, id: str) -> Mark:
        mark = next((mark for mark in self.marks if mark.id.casefold() == str(id).casefold()), None)
        if mark is None:
            raise InputError(describe_unknown("question", str(id), [mark.id for mark in self.marks]))
        return mark

    @property
    def points(self) -> float:
        """The points that the student earned, summed over all questions."""
        return round(sum(mark.points for mark in self.marks), 2)

    @property
    def of(self) -> float:
        """The highest possible points: those of a student with only right answers."""
        return round(sum(mark.of for mark in self.marks), 2)

    @property
    def summary(self) -> str:
        """The points that the student earned, such as "3 of 8 points"."""
        return f"{self.points:g} of {self.of:g} points"

    def blocks(self) -> list[Block]:
        """Return a line with verdict and points for each answer, with its remarks, and the points in all."""
        id_width = max(len(mark.id) for mark in self.marks)
        verdict_width = max(12, *(len(mark.verdict) for mark in self.marks))
        lines = [self._heading]
        for mark in self.marks:
            lines.append(f"{mark.id:<{id_width}}  {mark.verdict:<{verdict_width}}  {mark.points:>5g} of {mark.of:g}")
            lines += [f"{'':<{id_width}}  {note}" for note in mark.remarks]
        return [Text("\n".join([*lines, *self.notes, self.summary])), *change_blocks(self.changes)]

    def details(self) -> list[Block]:
        """Return a section for each question with its text, the answer, verdict, points and remarks."""
        blocks: list[Block] = [Heading(self._heading, 1), Text(self.summary, "strong")]
        kinds = {"right": "good", "wrong": "bad", "unreadable": "bad", "not answered": "strong"}
        for mark in self.marks:
            blocks += [Heading(mark.id), *([Text(mark.text)] if mark.text else [])]
            blocks += [Pre([(mark.answer, "")])] if mark.answer else []
            verdict = f"{mark.verdict}, {mark.points:g} of {mark.of:g} points"
            blocks.append(Text(verdict, kinds.get(mark.verdict, "warning")))  # pyright: ignore[reportArgumentType]
            blocks += [Pre([("\n".join(mark.remarks), "")])] if mark.remarks else []
        return [*blocks, *(Text(note, "note") for note in self.notes), *change_blocks(self.changes)]

    @property
    def _heading(self) -> str:
        """The title of the sheet and the name of the student, as far as known."""
        return ": ".join(filter(None, (self.title, self.student)))

    def records(self) -> list[dict[str, Any]]:
        """Return a row by column name for each question: id, answer, verdict, points and reason."""
        names = ("id", "answer", "verdict", "points", "of", "reason", "changed", "comment")
        return [{name: escape_spreadsheet_cell(getattr(mark, name)) for name in names} for mark in self.marks]


def change_blocks(changes: Sequence[MarkChange] | None) -> list[Block]:
    """Return a heading and a table of the marks that changed since an earlier grading; [] if none was compared."""
    if changes is None:
        return []
    heading = Heading("Marks that changed")
    if not changes:
        return [heading, Text("None.")]
    rows = [
        (change.student, change.question, *(f"{each:g}" if each is not None else "" for each in points), change.why)
        for change in changes
        for points in [(change.before, change.after)]
    ]
    return [heading, Table(("student", "question", "before", "after", "why"), rows, is_text=True)]


def escape_spreadsheet_cell(value: Any) -> Any:
    """Return a table cell with a ' before text that a spreadsheet would take for a formula; other values unchanged.

    >>> escape_spreadsheet_cell("=1+1"), escape_spreadsheet_cell("V*d"), escape_spreadsheet_cell(2.5)
    ("'=1+1", 'V*d', 2.5)
    """
    starts = ("=", "+", "-", "@", "\t", "\r")
    return f"'{value}" if isinstance(value, str) and value.startswith(starts) else value
