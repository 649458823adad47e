"""Sheets and marks in the formats of the tools that teachers use: Gradescope, LTI, Otter, nbgrader, Lambda Feedback.

Gradescope and LTI receive marks. Otter and nbgrader run code in a student's notebook: for these a sheet becomes tests
or test cells that call Lemma. Lambda Feedback calls `evaluation_function`.
"""

import io
import keyword
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from datetime import UTC, datetime
from pathlib import Path
from pprint import pformat
from typing import Any

from lemma.checking.exercises.base import Exercise, ValueExercise
from lemma.checking.grading import NO_FILES, ClassMarks, TeacherFiles, check_sheet
from lemma.checking.marking import Marker, StudentMarks, mark_answers
from lemma.checking.sheet_kinds import GradientCheck
from lemma.checking.sheets import Sheet, SheetQuestion, read_sheet
from lemma.errors import InputError, describe_unknown
from lemma.files import atomic_rewrite, write_atomically
from lemma.report.result import as_json, check_save_path

FORMATS = ("gradescope", "lti", "otter", "nbgrader")
SHEETS_VARIABLE = "LEMMA_SHEETS"  # the environment variable with the folder of sheets, where nbgrader grades
# nbgrader removes these blocks from the notebook that it releases, and inserts them again before it grades
SOLUTION_BLOCK = "### BEGIN SOLUTION\n{}\n### END SOLUTION"
HIDDEN_TESTS_BLOCK = "### BEGIN HIDDEN TESTS\n{}\n### END HIDDEN TESTS"
OTTER_TEST = """\
# For the autograder only: SHEET holds what the sheet keeps from students, such as partial credit.
from otter.test_files import test_case

OK_FORMAT = False
name = {name!r}
points = None
SHEET = {sheet}


def earned(env, points):
    import lemma

    mark = lemma.check.sheet(SHEET, {{{answers}}})[{id!r}]
    assert mark.points >= points, ' '.join([mark.verdict + '.', *mark.remarks])
"""
OTTER_CASE = """

@test_case(points={step})
def test_{number}(env):
    earned(env, {total})
"""


def write_sheet_as(
    format: str,
    questions: Path | str | Mapping[str, Any],
    answers: Sequence[Path | str | Mapping[str, Any]],
    out: Path | str,
    files: TeacherFiles = NO_FILES,
) -> Path:
    """Write a sheet, or the marks of answers to it, in one of FORMATS; return the path that was written.

    Args:
        questions: the sheet, as a file or a mapping.
        answers: files or mappings of answers, for gradescope and lti; empty for otter and nbgrader.
        out: the file to write; for otter a folder of test files, for the class of gradescope a folder of folders.
        files: decisions of a teacher, for gradescope and lti.
    """
    if format not in FORMATS:
        raise InputError(describe_unknown("format", format, FORMATS))
    target, needs_answers = Path(out), format in ("gradescope", "lti")
    if needs_answers != bool(answers):
        reason = "needs the answers to mark" if needs_answers else "collects the answers itself; name only the sheet"
        raise InputError(f"format {format}: {reason}.")
    if format == "otter":
        tests = otter_tests(read_sheet(questions))
        with atomic_rewrite(target, tests) as folder:
            for name, text in tests.items():
                (folder / name).write_text(text, encoding="utf-8")
        return target
    is_folder = format == "gradescope" and target.suffix != ".json"
    if not is_folder:
        check_save_path(target, [".ipynb"] if format == "nbgrader" else [".json"])
    if format == "nbgrader":
        content = as_json(nbgrader_notebook(read_sheet(questions)), indent=1)
    else:
        marks = check_sheet(questions, answers, files)
        if is_folder:
            return _write_gradescope_folders(marks, target)
        if format == "lti":
            content = as_json(lti_scores(marks))
        elif isinstance(marks, ClassMarks):
            raise InputError(
                "format gradescope: for a class, name a folder: --out results/ holds one for each student."
            )
        else:
            content = as_json(gradescope_results(marks))
    write_atomically(target, content)
    return target


def _write_gradescope_folders(marks: StudentMarks | ClassMarks, target: Path) -> Path:
    """Write results.json of each student in a folder named after the submission; return the folder of them all."""
    students = marks.students if isinstance(marks, ClassMarks) else (marks,)
    names: dict[str, StudentMarks] = {}
    for student in students:
        name = (
            re.sub(r"[^\w@.+ -]", "_", student.submission or student.student or "submission").strip(" .")[:100] or "_"
        )
        number, unique = 2, name
        while unique.casefold() in map(str.casefold, names):  # file systems may not tell case apart
            unique, number = f"{name}-{number}", number + 1
        names[unique] = student
    if target.exists() and not target.is_dir():
        raise InputError(f"format gradescope: {target} is a file; name a folder for the results of a class.")
    for name, student in names.items():
        folder = target / name
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "results.json", as_json(gradescope_results(student)))
    return target


def gradescope_results(marks: StudentMarks) -> dict[str, Any]:
    """Return the content of Gradescope's results/results.json: a test for each question, visible to the student."""
    tests = [
        {
            "name": mark.id,
            "number": str(number),
            "score": mark.points,
            "max_score": mark.of,
            "status": "passed" if mark else "failed",
            "output": "\n".join([f"{mark.verdict}.", *mark.remarks]),
            "output_format": "text",
            "name_format": "text",
            "visibility": "visible",
        }
        for number, mark in enumerate(marks.marks, 1)
    ]
    output = "\n".join([marks.summary, *marks.notes])
    return {"score": marks.points, "output": output, "output_format": "text", "visibility": "visible", "tests": tests}


def lti_scores(marks: StudentMarks | ClassMarks, timestamp: datetime | None = None) -> list[dict[str, Any]]:
    """Return score objects of LTI's Assignment and Grade Services 2.0, one per student, to be posted to a line item.

    An answer that could not be read leaves the grading to a person: gradingProgress is PendingManual then. The user is
    the `user` that the answers name, else the student.
    """
    stamp = (timestamp or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="milliseconds")
    scores = []
    for student in marks.students if isinstance(marks, ClassMarks) else (marks,):
        if not (student.user or student.student):
            raise InputError(f"{student.source or 'the answers'}: whose are they? Write user = '…', the platform's id.")
        verdicts = {mark.verdict for mark in student.marks}
        comments = (f"{mark.id}: {mark.points:g} of {mark.of:g} ({mark.verdict})." for mark in student.marks)
        scores.append(
            {
                "userId": student.user or student.student,
                "timestamp": stamp,
                "scoreGiven": student.points,
                "scoreMaximum": student.of,
                "activityProgress": "Initialized" if verdicts == {"not answered"} else "Completed",
                "gradingProgress": "PendingManual" if "unreadable" in verdicts else "FullyGraded",
                "comment": " ".join(comments),
            }
        )
    return scores


def evaluation_function(response: Any, answer: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Mark one response for Lambda Feedback; return `is_correct` and `feedback`.

    Args:
        answer: not used, since the right answer is read off the model.
        params: the fields of a sheet's question.

    >>> evaluation_function("W_in*W_out", "", {"kind": "parameters", "model": "lora"})
    {'is_correct': False, 'feedback': "Not right: too small at the model's sizes."}
    """
    fields = {name: value for name, value in params.items() if name not in ("submission_context", "id", "builds_on")}
    mark = mark_answers({"questions": [{**fields, "id": "response"}]}, {"response": response})["response"]
    return {"is_correct": bool(mark), "feedback": "\n".join(mark.remarks) or f"{mark.verdict.capitalize()}."}


def points(sheet: Path | str | Mapping[str, Any], id: str, answers: Mapping[str, Any]) -> float:
    """Return the points of the answer to question `id`, with nothing on stderr: the last line of an nbgrader test cell.

    nbgrader takes any other output, such as a verdict, for full marks.

    Args:
        sheet: the sheet; its file is looked for in the folder $LEMMA_SHEETS first.
        answers: the answers by the question's id; earlier ones are needed where the question builds on them.
    """
    if not isinstance(sheet, Mapping):
        folder = os.environ.get(SHEETS_VARIABLE, "")
        moved = Path(folder) / Path(sheet).name
        sheet = moved if folder and moved.is_file() else Path(sheet)
    with redirect_stderr(io.StringIO()):  # nbgrader takes a warning for a failure
        return float(mark_answers(sheet, answers)[id].points)


def variable_names(sheet: Sheet) -> dict[str, str]:
    """Return the name of the notebook variable that holds each answer, by the question's id.

    >>> fields = {"kind": "parameters", "model": "lora"}
    >>> questions = [SheetQuestion.model_validate({"id": id, **fields}) for id in ("Q1", "2 b", "2-b", "if")]
    >>> list(variable_names(Sheet("", tuple(questions))).values())
    ['Q1', 'q2_b', 'q2_b_', 'if_']
    """
    names: dict[str, str] = {}
    for question in sheet.questions:
        name = re.sub(r"\W", "_", question.id, flags=re.ASCII)
        name = name if name.isidentifier() else f"q{name}"
        while name in names.values() or keyword.iskeyword(name) or name in ("lemma", "env", "points"):
            name += "_"
        names[question.id] = name
    return names


def _sheet_for_question(sheet: Sheet, question: SheetQuestion) -> tuple[dict[str, Any], list[str]]:
    """Return a sheet, as plain values, of a question and those it builds on, and the ids of those it builds on."""
    needed = {question.id}
    for earlier in reversed(sheet.questions):
        needed |= {*earlier.builds_on} if earlier.id in needed else set()
    selected = [other for other in sheet.questions if other.id in needed]
    fields = [
        # the text of a question for a number may say its unit
        other.model_dump(
            mode="json", exclude_defaults=True, exclude={"hint", *([] if other.kind == "number" else ["text"])}
        )
        for other in selected
    ]
    return {"questions": fields}, [other.id for other in selected if other.id != question.id]


def possible_fractions(question: SheetQuestion) -> list[float]:
    """Return the fractions of its points that an answer to a question can earn, in increasing order and without 0.

    >>> fields = {"id": "Q", "kind": "gradient", "cell": "rnn", "lines": ["dU", "db2"], "partial": True}
    >>> possible_fractions(SheetQuestion.model_validate(fields))
    [0.5, 1.0]
    """
    follow_through = {question.follow_through} if question.builds_on else set()
    if question.partial and isinstance(question.fields, Exercise):
        lines = len(_asked_names(question))
        fractions = {
            (right + num_following * question.follow_through) / lines
            for right in range(lines + 1)
            for num_following in range(lines + 1 - right if follow_through else 1)
        }
    else:
        fractions = {1.0, *question.credit.values(), *follow_through}
    return sorted(fraction for fraction in fractions if fraction > 0)


def _asked_names(question: SheetQuestion) -> Sequence[str]:
    """Return the names of the values or lines that a question asks for; [] if it asks for a formula or number."""
    fields = question.fields
    return getattr(fields, "asks", ()) or (fields.main_names() if isinstance(fields, ValueExercise) else ())


def otter_tests(sheet: Sheet) -> dict[str, str]:
    """Return the texts of Otter's test files by file name: a file per question, a test per step of partial credit."""
    Marker(sheet)  # raises an error if a model cannot be asked what the sheet asks
    names, files = variable_names(sheet), dict[str, str]()
    for question in sheet.questions:
        fields, earlier = _sheet_for_question(sheet, question)
        name = names[question.id]
        text = OTTER_TEST.format(
            name=name,
            sheet=pformat(fields, width=110, sort_dicts=False),
            answers=", ".join(f"{id!r}: env.get({names[id]!r}, '')" for id in (*earlier, question.id)),
            id=question.id,
        )
        before = 0.0
        for number, fraction in enumerate(possible_fractions(question), 1):
            total = round(fraction * question.points, 2)
            text += OTTER_CASE.format(step=round(total - before, 2), number=number, total=total)
            before = total
        files[f"{name}.py"] = text
    return files


def _describe_answer(question: SheetQuestion) -> str:
    """Return what a student assigns in a notebook, such as "the gradients dU, db2, a line each,"."""
    if not isinstance(question.fields, Exercise):
        return "a number" if question.kind == "number" else "a formula"
    names = ", ".join(_asked_names(question))
    if not names:
        return "your lines"
    noun = "gradients" if isinstance(question.fields, GradientCheck) else "values"
    return f"the {noun} {names}, a line each," if "," in names else f"a line {names} = …"


def nbgrader_notebook(sheet: Sheet) -> dict[str, Any]:
    """Return the source notebook of an nbgrader assignment: text, a cell for the answer and a test cell per question.

    The test cells return the points as a number, which nbgrader reads as partial credit. They read the sheet from its
    file, so that neither the released notebook nor the feedback of nbgrader, which shows hidden tests, holds what is
    right or what earns partial credit.
    """
    path = Path(sheet.source)
    if not path.is_file():
        raise InputError("format nbgrader: give the sheet as a file: tests read it from there where you grade.")
    marker, names = Marker(sheet), variable_names(sheet)
    cells: list[dict[str, Any]] = []

    def add_cell(kind: str, id: str, source: str, *roles: str, **metadata: Any) -> None:
        """Append a cell to the notebook; `roles` are "grade" or "solution", `metadata` goes to nbgrader's."""
        flags = {"grade": "grade" in roles, "solution": "solution" in roles, "locked": "solution" not in roles}
        nbgrader = {**flags, "grade_id": id, "schema_version": 3, "task": False, **metadata}
        output = {"execution_count": None, "outputs": []} if kind == "code" else {}
        content = {"cell_type": kind, "id": id, "metadata": {"nbgrader": nbgrader}, **output}
        cells.append({**content, "source": source.splitlines(keepends=True)})

    add_cell("markdown", "title", f"# {sheet.title}")
    for number, question in enumerate(sheet.questions, 1):
        name, (_, earlier) = names[question.id], _sheet_for_question(sheet, question)
        task = f"{question.statement}\n\nAssign {_describe_answer(question)} as a text to `{name}`."
        unit = "point" if question.points == 1 else "points"
        heading = f"## {question.id} ({question.points:g} {unit})"
        add_cell("markdown", f"question-{number}", f"{heading}\n\n{task.strip()}")
        solution = SOLUTION_BLOCK.format(f"{name} = {marker.questions[question.id].solution!r}")
        add_cell("code", f"answer-{number}", f"# {name} = '…'\n{solution}", "solution")
        answers = [f"{id!r}: globals().get({names[id]!r}, '')" for id in earlier] + [f"{question.id!r}: {name}"]
        test = (
            "from lemma.checking.formats import points\n\n"
            f"points({str(path.resolve())!r}, {question.id!r}, {{{', '.join(answers)}}})"
        )
        graded = f"# {name} is graded here.\n{HIDDEN_TESTS_BLOCK.format(test)}"
        add_cell("code", f"test-{number}", graded, "grade", points=question.points)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
