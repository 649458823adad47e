"""Marks changed by hand, the queue of answers to look at, and the report of what changed."""

import csv
import json
from pathlib import Path

import pytest

import lemma
from lemma.checking.grading import ClassMarks
from lemma.checking.teacher_files import quote_toml, read_queue
from lemma.cli.main import main
from lemma.errors import InputError
from lemma.spec.base import parse_toml

SHEET = """
title = "Week 4"
[[questions]]
id = "Q1"
points = 2
kind = "parameters"
model = "lora"
[[questions]]
id = "Q2"
kind = "number"
value = "16*Q1"
"""
F = "R*(W_in + W_out) + W_in*W_out"
ODD = "W_in times W_out; plus\n\tR times (W_in + W_out) ~ 'both' \"sides\""
CLASS = {
    "Ada": {"Q1": F, "Q2": "180000"},
    "Bo": {"Q1": ODD, "Q2": "180000"},
    "Cy": {"Q1": ODD, "Q2": "17"},
    "Di": {"Q1": "see page 3", "Q2": "1;2"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "week4.toml").write_text(SHEET, encoding="utf-8")
    with (tmp_path / "class.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["student", "user id", "Q1", "Q2"])
        writer.writerows([name, name.lower(), answers["Q1"], answers["Q2"]] for name, answers in CLASS.items())
    return tmp_path


def grade(folder: Path, **files: object) -> ClassMarks:
    marks = lemma.check.sheet(folder / "week4.toml", folder / "class.csv", **files)  # pyright: ignore[reportArgumentType]
    assert isinstance(marks, ClassMarks)
    return marks


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_queue_holds_each_unreadable_answer_once(folder: Path) -> None:
    queue = folder / "queue.toml"
    grade(folder, queue=queue)
    tables = parse_toml(queue.read_text(encoding="utf-8"))["answers"]
    assert [(table["question"], table["answer"], table["students"]) for table in tables] == [
        ("Q1", ODD, ["Bo", "Cy"]),
        ("Q1", "see page 3", ["Di"]),
        ("Q2", "1;2", ["Di"]),
    ]
    assert all("Cannot be read" in table["why"] and "points" not in table for table in tables)
    grade(folder, queue=queue, undiagnosed=True)
    tables = parse_toml(queue.read_text(encoding="utf-8"))["answers"]
    assert [table["answer"] for table in tables] == [ODD, "see page 3", "1;2", "17"]


def test_decisions_apply_to_all_equal_answers_and_are_kept(folder: Path) -> None:
    queue = folder / "queue.toml"
    grade(folder, queue=queue)
    text = queue.read_text(encoding="utf-8")
    decided = text.replace("# points = ", "read_as = 'W_in*W_out + R*(W_in + W_out)'", 1)
    decided = decided.replace("# points = ", "points = 0.5\ncomment = 'page 3 has half of it'", 1)
    write(queue, f"# my note\n{decided}")
    marks = grade(folder, queue=queue)
    assert [marks[name]["Q1"].points for name in CLASS] == [2, 2, 2, 0.5]
    assert marks["Bo"]["Q1"].answer == ODD and "Read by hand as" in " ".join(marks["Bo"]["Q1"].remarks)
    assert (marks["Di"]["Q1"].verdict, marks["Di"]["Q1"].comment) == ("partly right", "page 3 has half of it")
    assert "Decided by hand: page 3 has half of it." in " ".join(marks["Di"]["Q1"].remarks)
    # a new student's answer is added behind; decisions stay, in order, also of answers that are gone
    (folder / "class.csv").write_text("student,Q1,Q2\nAda,??,180000\nEd,see page 3,\n", encoding="utf-8")
    again = grade(folder, queue=queue)
    assert again["Ed"]["Q1"].points == 0.5
    entries = read_queue(queue, {"Q1": 2, "Q2": 1})
    assert [entry.answer for entry in entries] == [ODD, "see page 3", "??"]
    assert entries[0].decision.read_as and entries[1].decision.points == 0.5 and entries[1].students == ("Ed",)
    before = queue.read_text(encoding="utf-8")
    grade(folder, queue=queue)
    assert queue.read_text(encoding="utf-8") == before


def test_reading_by_hand_that_cannot_be_read_stays_in_the_queue(folder: Path) -> None:
    queue = folder / "queue.toml"
    grade(folder, queue=queue)
    write(queue, queue.read_text(encoding="utf-8").replace("# points = ", "read_as = 'W_in*('", 1))
    marks = grade(folder, queue=queue)
    assert marks["Bo"]["Q1"].verdict == "unreadable"
    entries = read_queue(queue, {"Q1": 2, "Q2": 1})
    assert entries[0].decision.read_as == "W_in*(" and "Cannot be read" in entries[0].why


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[answers]]\nquestion = 'Q9'\nanswer = 'x'", "answer 1: unknown question 'Q9'"),
        ("[[answers]]\nquestion = 'Q1'\nanswer = 'x'\npoints = 3", "answer 1: points = 3: a number from 0 to 2"),
        ("[[answers]]\nquestion = 'Q1'\nanswer = 'x'\npoints = 'all'", "points = all: a number"),
        ("[[answers]]\nquestion = 'Q1'\nanswer = 'x'\npoints = 1\nread_as = 'R'", "points and read_as"),
        ("[[answers]]\nquestion = 'Q1'\nanswer = 'x'\npoint = 1", "Did you mean 'points'"),
        ("[[answers]]\nquestion = 'Q1'\nanswer = 'x'\n" * 2, "listed twice"),
        ("[[answer]]\nquestion = 'Q1'", "Did you mean 'answers'"),
        ("[[answers]", "not valid TOML"),
    ],
)
def test_wrong_queues_are_refused_and_left_as_they_are(folder: Path, text: str, message: str) -> None:
    queue = write(folder / "queue.toml", text)
    with pytest.raises(InputError) as refusal:
        grade(folder, queue=queue)
    assert message in str(refusal.value) and "queue.toml" in str(refusal.value)
    assert queue.read_text(encoding="utf-8") == text


def test_marks_changed_by_hand_survive_grading_again(folder: Path) -> None:
    overrides = write(
        folder / "overrides.toml",
        '[[overrides]]\nstudent = "bo"\nquestion = "q1"\npoints = 1.5\ncomment = "right on paper"\n'
        '[[overrides]]\nstudent = "Ada"\nquestion = "Q2"\npoints = 0\n',
    )
    for _ in range(2):
        marks = grade(folder, overrides=overrides)
        assert (marks["Bo"]["Q1"].points, marks["Ada"]["Q2"].points, marks["Bo"].points) == (1.5, 0, 2.5)
    assert "Changed by hand: right on paper." in marks["Bo"]["Q1"].remarks
    assert marks["Ada"]["Q2"].verdict == "wrong" and not any("Bo: Q1 cannot" in note for note in marks.notes)
    rows = {row["student"]: row for row in marks.records()}
    assert "Changed by hand" in rows["Bo"]["Q1 remarks"] and rows["Bo"]["Q1"] == 1.5
    assert marks.to_dict()["students"][1]["marks"][0]["changed"] == "Changed by hand."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("student = 'Eve'\nquestion = 'Q1'\npoints = 1", "override 1: unknown student 'Eve'. Choices: "),
        ("student = 'Ada'\nquestion = 'Q7'\npoints = 1", "override 1: unknown question 'Q7'"),
        ("student = 'Ada'\nquestion = 'Q1'\npoints = 7", "a number from 0 to 2 is expected"),
        ("student = 'Ada'\nquestion = 'Q1'\npoints = -1", "a number of at least 0"),
        ("student = 'Ada'\nquestion = 'Q1'", "points = None"),
        ("question = 'Q1'\npoints = 1", "student and question are needed"),
        ("student = 'Ada'\nquestion = 'Q1'\npoints = nan", "points = nan"),
        ("student = 'Ada'\nquestion = 'Q1'\npoints = 1\nreason = 'x'", "unknown setting 'reason'"),
    ],
)
def test_wrong_overrides_are_refused_by_name(folder: Path, text: str, message: str) -> None:
    path = write(folder / "overrides.toml", f"[[overrides]]\n{text}\n")
    with pytest.raises(InputError) as refusal:
        grade(folder, overrides=path)
    assert message in str(refusal.value) and "overrides.toml" in str(refusal.value)
    with pytest.raises(InputError, match="there is no such file"):
        grade(folder, overrides=folder / "none.toml")


def test_marks_that_changed_are_reported_with_the_reason(folder: Path) -> None:
    grade(folder).save(folder / "marks.json")
    unchanged = grade(folder, previous=folder / "marks.json")
    assert unchanged.changes == () and "Marks that changed" in str(unchanged) and "None." in str(unchanged)
    overrides = write(
        folder / "overrides.toml",
        '[[overrides]]\nstudent = "Di"\nquestion = "Q1"\npoints = 1\ncomment = "oral"\n',
    )
    text = (folder / "class.csv").read_text(encoding="utf-8").replace("Cy,cy", "Cyn,cy").replace(",17", ",180000")
    (folder / "class.csv").write_text(text, encoding="utf-8")
    (folder / "week4.toml").write_text(
        SHEET.replace('value = "16*Q1"', 'value = "16*Q1"\npoints = 3'), encoding="utf-8"
    )
    marks = grade(folder, previous=folder / "marks.json", overrides=overrides)
    changes = {(each.student, each.question): each for each in marks.changes or ()}
    assert changes["Di", "Q1"].why.startswith("Changed by hand: oral.")
    assert (changes["Di", "Q1"].before, changes["Di", "Q1"].after) == (0, 1)
    assert "has 3 points, had 1" in changes["Ada", "Q2"].why
    assert changes["Cyn", "Q1"].before is None and changes["Cy", "Q1"].after is None
    assert marks.to_dict()["changes"][0]["question"]
    for text in ("{", "{}", "[1]", '{"students": [{"student": "A", "marks": [{"id": "Q1"}]}]}'):
        with pytest.raises(InputError, match=r"old\.json"):
            grade(folder, previous=write(folder / "old.json", text))


def test_one_student_may_be_graded_with_these_files(folder: Path) -> None:
    answers = write(folder / "ada.toml", f"student = 'Ada'\n[answers]\nQ1 = '{F}'\nQ2 = '?'\n")
    overrides = write(folder / "o.toml", "[[overrides]]\nstudent = 'Ada'\nquestion = 'Q2'\npoints = 1\n")
    marks = lemma.check.sheet(folder / "week4.toml", answers)
    marks.save(folder / "old.json")
    again = lemma.check.sheet(
        folder / "week4.toml", answers, overrides=overrides, previous=folder / "old.json", queue=folder / "q.toml"
    )
    assert again.points == 3 and again.changes and again.changes[0].question == "Q2"  # pyright: ignore
    assert "Ada" in (folder / "q.toml").read_text(encoding="utf-8")


def test_answers_are_shown_as_they_were_written(folder: Path) -> None:
    marks = grade(folder)
    marks.save(folder / "marks.html")
    marks.save(folder / "marks.json")
    marks.save(folder / "marks.csv")
    page = (folder / "marks.html").read_text(encoding="utf-8")
    assert "W_in times W_out; plus\n\tR times (W_in + W_out) ~ &#39;both&#39; &#34;sides&#34;" in page
    document = json.loads((folder / "marks.json").read_text(encoding="utf-8"))
    assert document["students"][1]["marks"][0]["answer"] == ODD
    with (folder / "marks.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert rows["Bo"]["Q1 answer"] == ODD and rows["Di"]["Q2 answer"] == "1;2"
    assert "3: Bo, Cy, Di" in str(marks)


@pytest.mark.parametrize(
    "text", ["", "a", "it's", 'say "x"', "a\nb", "a'\nb", "tab\there", "\x1b[31m", "\\frac{1}{2}", "'''\n"]
)
def test_texts_survive_toml(text: str) -> None:
    assert parse_toml(f"x = {quote_toml(text)}")["x"] == text


def test_gradescope_writes_a_class_in_a_call(folder: Path) -> None:
    answers = folder / "submissions"
    for number, (name, texts) in enumerate(CLASS.items()):
        (answers / f"submission_{number}").mkdir(parents=True)
        lines = [f"{id} = {quote_toml(text)}" for id, text in texts.items()]
        write(
            answers / f"submission_{number}" / "answers.toml", "\n".join([f"student = '{name}'", "[answers]", *lines])
        )
    out = folder / "results"
    with pytest.raises(SystemExit) as done:
        main(["check", "sheet", str(folder / "week4.toml"), str(answers), "--as", "gradescope", "--out", str(out)])
    assert done.value.code in (0, None)
    assert sorted(path.name for path in out.iterdir()) == [f"submission_{number}" for number in range(4)]
    scores = [json.loads((path / "results.json").read_text())["score"] for path in sorted(out.iterdir())]
    assert scores == [3, 1, 0, 0]
    lemma.check.write_sheet(folder / "week4.toml", folder / "class.csv", format="gradescope", out=folder / "table")
    assert sorted(path.name for path in (folder / "table").iterdir()) == ["ada", "bo", "cy", "di"]


def test_names_of_submissions_stay_inside_the_folder(folder: Path) -> None:
    (folder / "class.csv").write_text("student,Q1\n../../evil,R\n..,R\nA/B,R\na_b,R\nA_B,R\n", encoding="utf-8")
    out = folder / "results"
    lemma.check.write_sheet(folder / "week4.toml", folder / "class.csv", format="gradescope", out=out)
    assert len(list(out.iterdir())) == 5 and not (folder.parent / "evil").exists()
    assert all((path / "results.json").is_file() for path in out.iterdir())


def test_command_reports_wrong_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["check", "sheet", str(folder / "week4.toml"), str(folder / "class.csv"), "--undiagnosed"])
    assert done.value.code == 2 and "--queue" in capsys.readouterr().err
