"""Sheets and marks in the formats of the tools that teachers use: Gradescope, LTI, Otter, nbgrader, Lambda Feedback.

Gradescope and LTI receive marks. Otter and nbgrader run code in a student's notebook: for these a sheet becomes tests
or test cells that call Lemma. Lambda Feedback calls `evaluation_function`.
"""

import io
import keyword
import re
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from datetime import UTC, datetime
from pathlib import Path
from pprint import pformat
from typing import Any

from lemma.checking.grading import ClassMarks, check_sheet
from lemma.checking.marking import Marker, StudentMarks, mark_answers
from lemma.checking.sheets import Sheet, SheetQuestion, read_sheet
from lemma.errors import InputError, describe_unknown
from lemma.files import atomic_rewrite, write_atomically
from lemma.report.result import as_json, check_target

FORMATS = ("gradescope", "lti", "otter", "nbgrader")
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
) -> Path:
    """Write a sheet, or the marks of answers to it, in one of FORMATS; return the path that was written.

    Args:
        questions: the sheet, as a file or a mapping.
        answers: files or mappings of answers, for gradescope and lti; empty for otter and nbgrader.
        out: the file to write; for otter a folder of test files.
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
    check_target(target, [".ipynb"] if format == "nbgrader" else [".json"])
    if format == "nbgrader":
        content = as_json(nbgrader_notebook(read_sheet(questions)), indent=1)
    else:
        marks = check_sheet(questions, answers)
        if format == "lti":
            content = as_json(lti_scores(marks))
        elif isinstance(marks, ClassMarks):
            raise InputError("format gradescope: Gradescope marks one student at a time. Name one file of answers.")
        else:
            content = as_json(gradescope_results(marks))
    write_atomically(target, content)
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


def points(sheet: Mapping[str, Any], id: str, answers: Mapping[str, Any]) -> float:
    """Return the points of the answer to question `id`, with nothing on stderr: the last line of an nbgrader test cell.

    nbgrader takes any other output, such as a verdict, for full marks.

    Args:
        answers: the answers by the question's id; earlier ones are needed where the question builds on them.
    """
    with redirect_stderr(io.StringIO()):  # nbgrader takes a warning for a failure
        return float(mark_answers(sheet, answers)[id].points)


def variable_names(sheet: Sheet) -> dict[str, str]:
    """Return the name of the notebook variable that holds each answer, by the question's id.

    >>> questions = [SheetQuestion(id=id, kind="parameters", model="lora") for id in ("Q1", "2 b", "2-b", "if")]
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
    fields = [other.model_dump(mode="json", exclude_defaults=True, exclude={"text"}) for other in selected]
    return {"questions": fields}, [other.id for other in selected if other.id != question.id]


def possible_fractions(question: SheetQuestion) -> list[float]:
    """Return the fractions of its points that an answer to a question can earn, in increasing order and without 0.

    >>> possible_fractions(SheetQuestion(id="Q", kind="gradient", cell="rnn", lines=("dU", "db2"), partial=True))
    [0.5, 1.0]
    """
    follow_through = {question.follow_through} if question.builds_on else set()
    if question.kind == "gradient" and question.partial:
        lines = len(question.lines)
        fractions = {
            (right + num_following * question.follow_through) / lines
            for right in range(lines + 1)
            for num_following in range(lines + 1 - right if follow_through else 1)
        }
    else:
        fractions = {1.0, *question.credit.values(), *follow_through}
    return sorted(fraction for fraction in fractions if fraction > 0)


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


def nbgrader_notebook(sheet: Sheet) -> dict[str, Any]:
    """Return the source notebook of an nbgrader assignment: text, a cell for the answer and a test cell per question.

    The test cells return the points as a number, which nbgrader reads as partial credit. They are hidden tests, since
    the sheet says what earns partial credit. Solutions are filled in where the model has them.
    """
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
        name, (fields, earlier) = names[question.id], _sheet_for_question(sheet, question)
        instructions = {"gradient": f"the gradients {', '.join(question.lines)}, a line each,", "number": "a number"}
        task = f"{question.text}\n\nAssign {instructions.get(question.kind, 'a formula')} as a text to `{name}`."
        unit = "point" if question.points == 1 else "points"
        heading = f"## {question.id} ({question.points:g} {unit})"
        add_cell("markdown", f"question-{number}", f"{heading}\n\n{task.strip()}")
        solution = SOLUTION_BLOCK.format(f"{name} = {marker.questions[question.id].solution!r}")
        add_cell("code", f"answer-{number}", f"# {name} = '…'\n{solution}", "solution")
        answers = [f"{id!r}: globals().get({names[id]!r}, '')" for id in earlier] + [f"{question.id!r}: {name}"]
        test = (
            "from lemma.checking.formats import points\n\n"
            f"sheet = {pformat(fields, width=100, sort_dicts=False)}\n"
            f"points(sheet, {question.id!r}, {{{', '.join(answers)}}})"
        )
        graded = f"# {name} is graded here.\n{HIDDEN_TESTS_BLOCK.format(test)}"
        add_cell("code", f"test-{number}", graded, "grade", points=question.points)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
