"""Sheets and marks in the formats of the tools that teachers use: Gradescope, LTI, Otter, nbgrader, Lambda Feedback.

Gradescope and LTI are given marks. Otter and nbgrader run code of their own in a student's notebook: for these a sheet
becomes tests or test cells that call Lemma. Lambda Feedback calls `evaluation_function`.
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
from lemma.checking.sheets import Marker, Sheet, SheetQuestion, StudentMarks, mark_answers, read_sheet
from lemma.counting.writing import write_formula
from lemma.errors import InputError, describe_unknown
from lemma.files import atomic_rewrite, write_atomically
from lemma.report.result import as_json, check_target

FORMATS = ("gradescope", "lti", "otter", "nbgrader")
SOLUTION_BLOCK = "### BEGIN SOLUTION\n{}\n### END SOLUTION"
HIDDEN_TESTS_BLOCK = "### BEGIN HIDDEN TESTS\n{}\n### END HIDDEN TESTS"
"""What nbgrader takes out of the notebook that it releases and puts back before it grades."""
GRADER_NOTICE = "# For the autograder only: SHEET holds what the sheet keeps from students, such as partial credit."


def write_sheet_as(
    format: str,
    questions: Path | str | Mapping[str, Any],
    answers: Sequence[Path | str | Mapping[str, Any]],
    out: Path | str,
) -> Path:
    """Write a sheet, or the marks of answers to it, in one of `FORMATS`."""
    if format not in FORMATS:
        raise InputError(describe_unknown("format", format, FORMATS))
    target, of_answers = Path(out), format in ("gradescope", "lti")
    if of_answers != bool(answers):
        needed = "needs the answers to mark" if of_answers else "collects the answers itself; name only the sheet"
        raise InputError(f"format {format}: {needed}.")
    if format == "otter":
        tests = otter_tests(read_sheet(questions))
        with atomic_rewrite(target, tests) as folder:
            for name, text in tests.items():
                (folder / name).write_text(text, encoding="utf-8")
        return target
    check_target(target, [".ipynb"] if format == "nbgrader" else [".json"])
    if format == "nbgrader":
        write_atomically(target, as_json(nbgrader_notebook(read_sheet(questions)), indent=1))
        return target
    marks = check_sheet(questions, answers)
    if format == "gradescope":
        if isinstance(marks, ClassMarks):
            raise InputError("format gradescope: Gradescope marks one student at a time. Name one file of answers.")
        write_atomically(target, as_json(gradescope_results(marks)))
    else:
        write_atomically(target, as_json(lti_scores(marks)))
    return target


def gradescope_results(marked: StudentMarks) -> dict[str, Any]:
    """What Gradescope reads from results/results.json: a test for each question, with what the student may see."""
    tests = [
        {
            "name": one.id,
            "number": str(number),
            "score": one.points,
            "max_score": one.of,
            "status": "passed" if one else "failed",
            "output": "\n".join([f"{one.verdict}.", *one.remarks]),
            "output_format": "text",
            "name_format": "text",
            "visibility": "visible",
        }
        for number, one in enumerate(marked.marks, 1)
    ]
    said = "\n".join([marked.summary, *marked.notes])
    return {"score": marked.points, "output": said, "output_format": "text", "visibility": "visible", "tests": tests}


def lti_scores(marks: StudentMarks | ClassMarks, timestamp: datetime | None = None) -> list[dict[str, Any]]:
    """Score objects of LTI's Assignment and Grade Services 2.0, one for each student, to be posted to a line item.

    An answer that could not be read leaves the grading to a person: gradingProgress is PendingManual then. The user is
    the `user` that the answers name, else the student.
    """
    stamp = (timestamp or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="milliseconds")
    scores = []
    for one in marks.students if isinstance(marks, ClassMarks) else (marks,):
        if not (one.user or one.student):
            raise InputError(f"{one.source or 'the answers'}: whose are they? Write user = '…', the platform's id.")
        verdicts = {each.verdict for each in one.marks}
        scores.append(
            {
                "userId": one.user or one.student,
                "timestamp": stamp,
                "scoreGiven": one.points,
                "scoreMaximum": one.of,
                "activityProgress": "Initialized" if verdicts == {"not answered"} else "Completed",
                "gradingProgress": "PendingManual" if "unreadable" in verdicts else "FullyGraded",
                "comment": " ".join(
                    f"{each.id}: {each.points:g} of {each.of:g} ({each.verdict})." for each in one.marks
                ),
            }
        )
    return scores


def evaluation_function(response: Any, answer: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Judge one response as Lambda Feedback asks for it: `params` has the fields of a sheet's question.

    `answer` is not needed: what is right is read off the model.

    >>> evaluation_function("W_in*W_out", "", {"kind": "parameters", "model": "lora"})
    {'is_correct': False, 'feedback': "Not right: too small at the model's sizes."}
    """
    fields = {name: value for name, value in params.items() if name not in ("submission_context", "id", "builds_on")}
    marked = mark_answers({"questions": [{**fields, "id": "response"}]}, {"response": response})["response"]
    return {"is_correct": bool(marked), "feedback": "\n".join(marked.remarks) or f"{marked.verdict.capitalize()}."}


def points(sheet: Mapping[str, Any], id: str, answers: Mapping[str, Any]) -> float:
    """The points of one answer, as nbgrader reads them from the output of a cell: a number, and nothing on stderr.

    nbgrader takes any other output, a verdict among them, for full marks.
    """
    with redirect_stderr(io.StringIO()):  # nbgrader takes a warning for a failure
        return float(mark_answers(sheet, answers)[id].points)


def variable_names(sheet: Sheet) -> dict[str, str]:
    """The name of the variable that holds the answer to each question.

    >>> questions = [SheetQuestion(id=id, kind="parameters", model="lora") for id in ("Q1", "2 b", "2-b", "if")]
    >>> list(variables(Sheet("", tuple(questions))).values())
    ['Q1', 'q2_b', 'q2_b_', 'if_']
    """
    found: dict[str, str] = {}
    for question in sheet.questions:
        name = re.sub(r"\W", "_", question.id, flags=re.ASCII)
        name = name if name.isidentifier() else f"q{name}"
        while name in found.values() or keyword.iskeyword(name) or name in ("lemma", "env", "points"):
            name += "_"
        found[question.id] = name
    return found


def _sheet_for_question(sheet: Sheet, question: SheetQuestion) -> tuple[dict[str, Any], list[str]]:
    """A sheet of one question and those that it builds on, as plain values; and the ids of these."""
    needed = {question.id}
    for one in reversed(sheet.questions):
        needed |= {*one.builds_on} if one.id in needed else set()
    kept = [one for one in sheet.questions if one.id in needed]
    fields = [one.model_dump(mode="json", exclude_defaults=True, exclude={"text"}) for one in kept]
    return {"questions": fields}, [one.id for one in kept if one.id != question.id]


def possible_fractions(question: SheetQuestion) -> list[float]:
    """The parts of its points that an answer can earn, from the least to all.

    >>> possible_shares(SheetQuestion(id="Q", kind="gradient", cell="rnn", lines=("dU", "db2"), partial=True))
    [0.5, 1.0]
    """
    carried = {question.follow_through} if question.builds_on else set()
    if question.kind == "gradient" and question.partial:
        lines = len(question.lines)
        counts = [(one, two) for one in range(lines + 1) for two in range(lines + 1 - one if carried else 1)]
        shares = {(right + follows * question.follow_through) / lines for right, follows in counts}
    else:
        shares = {1.0, *question.credit.values(), *carried}
    return sorted(share for share in shares if share > 0)


def otter_tests(sheet: Sheet) -> dict[str, str]:
    """Otter's test files in its exception-based form, by file name; a case for each step of partial credit."""
    Marker(sheet)  # what the models cannot be asked is said now
    named, files = variable_names(sheet), dict[str, str]()
    for question in sheet.questions:
        plain, earlier = _sheet_for_question(sheet, question)
        given = ", ".join(f"{id!r}: env.get({named[id]!r}, '')" for id in (*earlier, question.id))
        lines = [
            GRADER_NOTICE,
            "from otter.test_files import test_case",
            "",
            "OK_FORMAT = False",
            f"name = {named[question.id]!r}",
            "points = None",
            f"SHEET = {pformat(plain, width=110, sort_dicts=False)}",
            "",
            "",
            "def earned(env, points):",
            "    import lemma",
            "",
            f"    mark = lemma.check.sheet(SHEET, {{{given}}})[{question.id!r}]",
            "    assert mark.points >= points, ' '.join([mark.verdict + '.', *mark.remarks])",
        ]
        before = 0.0
        for number, share in enumerate(possible_fractions(question), 1):
            total = round(share * question.points, 2)
            lines += ["", "", f"@test_case(points={round(total - before, 2)})", f"def test_{number}(env):"]
            lines += [f"    earned(env, {total})"]
            before = total
        files[f"{named[question.id]}.py"] = "\n".join(lines) + "\n"
    return files


def nbgrader_notebook(sheet: Sheet) -> dict[str, Any]:
    """The source notebook of an nbgrader assignment: text, a cell for the answer and a test cell for each question.

    The test cells give the points as a number, so that nbgrader gives partial credit. They are hidden tests, since the
    sheet says what earns partial credit. Solutions are filled in where the model has them.
    """
    marker, named = Marker(sheet), variable_names(sheet)
    cells: list[dict[str, Any]] = []

    def add(kind: str, id: str, source: str, *roles: str, **more: Any) -> None:
        about = {"grade": "grade" in roles, "solution": "solution" in roles, "locked": "solution" not in roles}
        meta = {**about, "grade_id": id, "schema_version": 3, "task": False, **more}
        output = {"execution_count": None, "outputs": []} if kind == "code" else {}
        content = {"cell_type": kind, "id": id, "metadata": {"nbgrader": meta}, **output}
        cells.append({**content, "source": source.splitlines(keepends=True)})

    add("markdown", "title", f"# {sheet.title}")
    for number, question in enumerate(sheet.questions, 1):
        name, (plain, earlier) = named[question.id], _sheet_for_question(sheet, question)
        asked = {"gradient": f"the gradients {', '.join(question.lines)}, a line each,", "number": "a number"}
        said = f"{question.text}\n\nAssign {asked.get(question.kind, 'a formula')} as a text to `{name}`."
        worth = f"{question.points:g} point{'s' * (question.points != 1)}"
        add("markdown", f"question-{number}", f"## {question.id} ({worth})\n\n{said.strip()}")
        if question.kind == "gradient":
            right = "\n".join(f"{line} = …" for line in question.lines)
        elif question.kind == "formula":
            right = write_formula(marker.expected_formulas[question.id], marker.accounts[question.id].order)
        elif question.kind == "number":
            exact = marker.expected_values[question.id]
            right = str(exact) if exact.denominator == 1 else f"{float(exact):.4g}"
        else:
            account = marker.accounts[question.id]
            right = account.quantities[question.kind].write_formula(account.order)
        add("code", f"answer-{number}", f"# {name} = '…'\n{SOLUTION_BLOCK.format(f'{name} = {right!r}')}", "solution")
        given = [f"{id!r}: globals().get({named[id]!r}, '')" for id in earlier] + [f"{question.id!r}: {name}"]
        test = f"from lemma.checking.formats import points\n\nsheet = {pformat(plain, width=100, sort_dicts=False)}\n"
        test += f"points(sheet, {question.id!r}, {{{', '.join(given)}}})"
        graded = f"# {name} is graded here.\n{HIDDEN_TESTS_BLOCK.format(test)}"
        add("code", f"test-{number}", graded, "grade", points=question.points)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
