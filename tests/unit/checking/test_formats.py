"""Marks in the formats of other tools, read by those tools if installed."""

import ast
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import lemma
from lemma.checking.formats import (
    evaluation_function,
    gradescope_results,
    lti_scores,
    nbgrader_notebook,
    otter_tests,
    points,
    possible_fractions,
)
from lemma.checking.grading import mark_class
from lemma.checking.marking import mark_answers
from lemma.checking.sheets import SheetQuestion, read_sheet
from lemma.errors import InputError
from lemma.spec.base import to_toml

LORA_FORMULA = "R*(W_in + W_out) + W_in*W_out"
SHEET: dict[str, Any] = {
    "title": "Week 4",
    "questions": [
        {"id": "Q1", "points": 2, "kind": "parameters", "model": "lora", "credit": {"W_in*W_out": 0.25}},
        {"id": "2.b", "text": "How many bytes?", "kind": "number", "model": "lora", "builds_on": ["Q1"]}
        | {"follow_through": 0.5},
        {"id": "Q3", "points": 3, "kind": "gradient", "cell": "rnn", "lines": ["dz2", "dU", "db2"], "partial": True},
        {"id": "Q4", "kind": "gradient", "cell": "rnn", "lines": ["dz1", "dH"], "partial": True, "builds_on": ["Q3"]}
        | {"follow_through": 0.5},
    ],
}
VARIABLES = {"Q1": "Q1", "2.b": "q2_b", "Q3": "Q3", "Q4": "Q4"}
HIDDEN_GRADIENTS = "dz1 = ((y - y_hat) @ U.T) * h * (1 - h)\ndH = h_prev.T @ dz1"
RIGHT = "dz2 = y_hat - y\ndU = h.T @ dz2\ndb2 = dz2"
STUDENTS: list[dict[str, Any]] = [
    {
        "Q1": LORA_FORMULA,
        "2.b": "11250",
        "Q3": "dz2 = y_hat - y\ndU = h.T @ dz2\ndb2 = dz2",
        "Q4": HIDDEN_GRADIENTS.replace("y - y_hat", "dz2"),
    },
    {"Q1": "W_in W_out", "2.b": "10,000", "Q3": "dz2 = y - y_hat\ndU = h.T @ dz2", "Q4": HIDDEN_GRADIENTS},
    {"Q1": "V*(", "2.b": 7, "Q3": ["dU = h"], "Q4": object()},
    {"Q1": "11250"},
]
POINTS = [[2, 1, 3, 1], [0.5, 0.5, 1, 0.75], [0, 0, 0, 0], [0, 0, 0, 0]]


def save_sheet(folder: Path, sheet: dict[str, Any], name: str = "week.toml") -> Path:
    """Write a sheet as a TOML file."""
    head = to_toml({key: value for key, value in sheet.items() if key != "questions"})
    tables = [f"[[questions]]\n{to_toml(question)}".replace("\n[", "\n[questions.") for question in sheet["questions"]]
    (folder / name).write_text("\n".join([head, *tables]), encoding="utf-8")
    return folder / name


def test_marks_match_expected_points() -> None:
    assert [[mark.points for mark in mark_answers(SHEET, settings).marks] for settings in STUDENTS] == POINTS


def test_gradescope_results_have_a_test_per_question() -> None:
    result = gradescope_results(mark_answers(SHEET, STUDENTS[1]))
    assert result == json.loads(json.dumps(result))
    assert set(result) <= {"score", "output", "output_format", "visibility", "tests"}
    assert result["score"] == sum(gradescope_result["score"] for gradescope_result in result["tests"]) == 2.75
    assert [
        (gradescope_result["name"], gradescope_result["score"], gradescope_result["max_score"])
        for gradescope_result in result["tests"]
    ] == [
        ("Q1", 0.5, 2),
        ("2.b", 0.5, 1),
        ("Q3", 1, 3),
        ("Q4", 0.75, 1),
    ]
    assert {gradescope_result["status"] for gradescope_result in result["tests"]} == {"failed"}
    assert [
        gradescope_result["status"]
        for gradescope_result in gradescope_results(mark_answers(SHEET, STUDENTS[0]))["tests"]
    ] == ["passed"] * 4
    assert "base" not in json.dumps(result) and "repair" not in json.dumps(result)  # nothing that the sheet hides


def test_lti_scores_have_a_score_per_student(tmp_path: Path) -> None:
    table = tmp_path / "class.csv"
    table.write_text(f'student,user_id,Q1\nAda,u-1,"{LORA_FORMULA}"\nBo,u-2,V*(\nCy,,\n', encoding="utf-8")
    marks = mark_class(SHEET, [table])
    scores = lti_scores(marks, datetime(2026, 5, 4, 3, 2, 1, 987654, tzinfo=UTC))
    assert [(score["userId"], score["scoreGiven"], score["scoreMaximum"]) for score in scores] == [
        ("u-1", 2, 7),
        ("u-2", 0, 7),
        ("Cy", 0, 7),
    ]
    assert [score["gradingProgress"] for score in scores] == ["FullyGraded", "PendingManual", "FullyGraded"]
    assert [score["activityProgress"] for score in scores] == ["Completed", "Completed", "Initialized"]
    assert {score["timestamp"] for score in scores} == {"2026-05-04T03:02:01.987+00:00"}
    now = lti_scores(marks)[0]["timestamp"]
    assert abs((datetime.fromisoformat(now) - datetime.now(UTC)).total_seconds()) < 60
    with pytest.raises(InputError, match="whose are they"):
        lti_scores(mark_answers(SHEET, {"Q1": "R"}))


def test_lambda_feedback_returns_a_boolean_and_feedback() -> None:
    lora = {"kind": "parameters", "model": "lora"}
    assert evaluation_function(LORA_FORMULA, "", lora) == {"is_correct": True, "feedback": "Right."}
    partly = evaluation_function("W_in*W_out", None, {**lora, "credit": {"W_in*W_out": 0.5}})
    assert partly == {"is_correct": False, "feedback": "Right in part."}
    rendered = evaluation_function("W_in*W_out", None, {**lora, "show_answer": True})
    assert "leaves out" in rendered["feedback"] and LORA_FORMULA.replace(" ", "")[:2] in rendered["feedback"]
    for response in ("", None, object(), {"a": 1}, "(" * 9999, 11250, ["x"], "os:system", True):
        result = evaluation_function(response, "", lora)
        assert result["is_correct"] is False and result["feedback"] and result == json.loads(json.dumps(result))
    with pytest.raises(InputError, match="Did you mean 'model'"):
        evaluation_function("R", "", {"kind": "parameters", "modell": "lora"})


def test_points_are_returned_as_a_float() -> None:
    assert [points(SHEET, "Q1", settings) for settings in STUDENTS] == [2.0, 0.5, 0.0, 0.0]
    assert type(points(SHEET, "Q1", STUDENTS[0])) is float


def test_partial_credit_steps_cover_all_combinations() -> None:
    questions = [SheetQuestion.model_validate(fields) for fields in SHEET["questions"]]
    thirds = [1 / 3, 2 / 3, 1]
    assert [possible_fractions(question) for question in questions] == [
        [0.25, 1],
        [0.5, 1],
        thirds,
        [0.25, 0.5, 0.75, 1],
    ]


def test_sheet_text_is_never_written_as_code(tmp_path: Path) -> None:
    hostile = "x'\"]}); import os; os.system('touch ran') #\n"
    question = {"id": hostile[:90], "text": f"{hostile}`\n```", "kind": "parameters", "model": "lora"}
    table = {"title": hostile, "questions": [question, {**question, "id": "if"}, {**question, "id": "1 2"}]}
    sheet = read_sheet(save_sheet(tmp_path, table))
    files = otter_tests(sheet)
    cells = [cell for cell in nbgrader_notebook(sheet)["cells"] if cell["cell_type"] == "code"]
    for source in [*files.values(), *("".join(cell["source"]) for cell in cells)]:
        tree = ast.parse(source)
        names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        names += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert {*names} <= {"lemma", "otter.test_files", "lemma.checking.formats"}
        calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
        assert not any("system" in call or "eval" in call for call in calls)
    assert all(name.removesuffix(".py").isidentifier() for name in files) and len(files) == 3


def release_notebook(notebook: dict[str, Any]) -> str:
    """Return a source notebook after nbgrader has cleared solutions and hidden tests."""
    saved: list[str] = []
    for cell in notebook["cells"]:
        hidden = False
        for line in "".join(cell["source"]).splitlines():
            hidden = hidden or "### BEGIN" in line
            saved += [] if hidden else [line]
            hidden = hidden and "### END" not in line
    return "\n".join(saved)


def test_released_notebook_hides_answers_credits_and_values(tmp_path: Path) -> None:
    questions = [
        {"id": "Q1", "kind": "parameters", "model": "lora", "credit": {"W_in*W_out": 0.25}, "text": "How many?"},
        {"id": "Q2", "kind": "number", "value": "16*Q1", "credit": {"12345": 0.5}},
        {"id": "Q3", "kind": "formula", "value": "7*Q1", "builds_on": ["Q1"], "follow_through": 0.375},
        {"id": "Q4", "kind": "gradient", "cell": "rnn", "lines": ["dz2"]},
        {"id": "Q5", "kind": "position", "width": 4, "position": 3, "asks": ["PE"]},
        {"id": "Q6", "kind": "number", "value": 98765, "unit": "bytes"},
    ]
    notebook = nbgrader_notebook(read_sheet(save_sheet(tmp_path, {"title": "Week 5", "questions": questions})))
    rendered = release_notebook(notebook)
    assert "How many?" in rendered and "Q4" in rendered
    secrets = ("W_in*W_out", "0.25", "16*Q1", "12345", "7*Q1", "0.375", "credit", "98765", "0.141", "R*")
    for secret in (*secrets, "W_in", "sheet ="):
        assert secret not in rendered, secret
    # nbgrader's feedback shows hidden tests, and in every other cell what the student wrote
    tests = "".join("".join(cell["source"]) for cell in notebook["cells"] if cell["metadata"]["nbgrader"]["grade"])
    assert "points(" in tests
    for secret in secrets:
        assert secret not in tests, secret
    with pytest.raises(InputError, match="give the sheet as a file"):
        nbgrader_notebook(read_sheet({"title": "Week 5", "questions": questions}))


@pytest.mark.parametrize("is_moved", [False, True])
def test_graded_notebook_cells_return_the_points(
    is_moved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_sheet(tmp_path, SHEET)
    notebook = nbgrader_notebook(read_sheet(path))
    if is_moved:
        (tmp_path / "grader").mkdir()
        path.rename(tmp_path / "grader" / path.name)
        monkeypatch.setenv("LEMMA_SHEETS", str(tmp_path / "grader"))
    for settings, expected in zip(STUDENTS[:2], POINTS[:2], strict=True):
        space: dict[str, Any] = {VARIABLES[id]: answer for id, answer in settings.items()}
        result = []
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code" and cell["metadata"]["nbgrader"]["grade"]:
                *body, last = ast.parse("".join(cell["source"])).body
                assert isinstance(last, ast.Expr)  # nbgrader reads the value of the last line
                exec(compile(ast.Module(body, []), "cell", "exec"), space)
                result.append(eval(compile(ast.Expression(last.value), "cell", "eval"), space))
        assert result == expected


def test_invalid_sheet_format_calls_are_refused(tmp_path: Path) -> None:
    answers = tmp_path / "ada.toml"
    answers.write_text(f"student = 'Ada'\n[answers]\nQ1 = '{LORA_FORMULA}'", encoding="utf-8")

    def write(*args: Any, **kwargs: Any) -> Path:
        return lemma.check.write_sheet(SHEET, *args, **kwargs)

    assert json.loads(write(answers, format="gradescope", out=tmp_path / "results.json").read_text())["score"] == 2
    assert json.loads(write(answers, format="lti", out=tmp_path / "scores.json").read_text())[0]["userId"] == "Ada"
    tests = write(format="otter", out=tmp_path / "tests")
    assert {path.stem for path in tests.iterdir()} == set(VARIABLES.values())
    write(format="otter", out=tests)  # writing again replaces the files
    (tests / "mine.py").write_text("")
    for args, kwargs, message in [
        ((), {"format": "otter", "out": tests}, "holds mine.py"),
        ((), {"format": "nbgrade", "out": "x.ipynb"}, "Did you mean 'nbgrader'"),
        ((), {"format": "nbgrader", "out": tmp_path / "x.json"}, ".ipynb"),
        ((), {"format": "lti", "out": "x.json"}, "needs the answers"),
        ((answers,), {"format": "otter", "out": "x"}, "collects the answers itself"),
        ((answers, answers), {"format": "gradescope", "out": tmp_path / "r.json"}, "for a class, name a folder"),
    ]:
        with pytest.raises(InputError) as refusal:
            write(*args, **kwargs)
        assert message in str(refusal.value)


@pytest.mark.parametrize("number", range(len(STUDENTS)))
def test_otter_awards_the_same_points(number: int, tmp_path: Path) -> None:
    otter: Any = pytest.importorskip("otter.test_files", reason="needs otter-grader: pip install 'lemma-lm[grading]'")
    from otter.nbmeta_config import NBMetadataConfig

    lemma.check.write_sheet(SHEET, format="otter", out=tmp_path / "tests")
    settings = {VARIABLES[id]: answer for id, answer in STUDENTS[number].items()}
    files = [otter.create_test_file(str(path), NBMetadataConfig()) for path in sorted((tmp_path / "tests").iterdir())]
    for file in files:
        file.run(settings)
    results = otter.GradingResults(files)
    assert results.possible == 7
    result = {name: item.score for name, item in results.results.items()}
    assert result == pytest.approx(dict(zip(VARIABLES.values(), POINTS[number], strict=True)))
    if number == 1:
        assert "dU right, db2 missing" in next(item for item in files if item.name == "Q3").summary()


@pytest.mark.slow
def test_nbgrader_awards_the_same_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generate the assignment, submit, execute and grade two notebooks, and read the gradebook."""
    pytest.importorskip("nbgrader", reason="needs nbgrader: pip install 'lemma-lm[grading]'")
    import nbformat
    from nbgrader.apps import NbGraderAPI
    from traitlets.config import Config

    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))  # its alembic
    source = tmp_path / "source" / "week4"
    source.mkdir(parents=True)
    sheet = save_sheet(tmp_path, SHEET)
    path = lemma.check.write_sheet(sheet, format="nbgrader", out=source / "week4.ipynb")
    nbformat.validate(json.loads(path.read_text(encoding="utf-8")))
    config = Config()
    config.CourseDirectory.root = str(tmp_path)
    api = NbGraderAPI(config=config)
    assert api.generate_assignment("week4")["success"]
    released = nbformat.read(tmp_path / "release" / "week4" / "week4.ipynb", as_version=4)
    assert "W_in" not in "".join(cell.source for cell in released.cells)
    for number in (0, 1):
        handed = tmp_path / "submitted" / f"s{number}" / "week4"
        handed.mkdir(parents=True)
        for cell, id in zip(
            [item for item in released.cells if item.metadata.nbgrader.solution], VARIABLES, strict=True
        ):
            answer = STUDENTS[number][id]
            cell.source = f"{VARIABLES[id]} = {answer!r}" if id != "Q3" or number else "raise NotImplementedError()"
        nbformat.write(released, handed / "week4.ipynb")
        assert api.autograde("week4", f"s{number}")["success"]
    assert api.generate_feedback("week4", force=True)["success"]
    pages = [page.read_text(encoding="utf-8") for page in (tmp_path / "feedback").rglob("*.html")]
    assert len(pages) == 2 and not any("credit" in page or "0.25" in page for page in pages)
    with api.gradebook as book:
        result = [[grade.auto_score for grade in _in_order(book, f"s{number}")] for number in (0, 1)]
    assert result == [[2, 1, 0, 1], POINTS[1]]  # the first never assigned Q3: an error earns no points


def _in_order(book: Any, student: str) -> list[Any]:
    notebook = book.find_submission_notebook("week4", "week4", student)
    return sorted(notebook.grades, key=lambda grade: grade.name)
