"""Marks of a class: equal to those of each student alone; broken submissions are isolated; answers are checked once."""

import csv
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from lemma.checking import question_kinds
from lemma.checking.grading import ClassMarks, check_sheet, mark_class
from lemma.checking.marking import mark_answers
from lemma.checking.question_kinds import ModelFormula
from lemma.cli.main import main
from lemma.errors import InputError

SHEET = """
title = "Week 4"
[[questions]]
id = "Q1"
points = 2
kind = "parameters"
model = "lora"
credit = { "W_in*W_out" = 0.5 }
[[questions]]
id = "Q2"
kind = "number"
value = "16*Q1"
[[questions]]
id = "Q3"
points = 3
kind = "gradient"
cell = "rnn"
lines = ["dU", "db2", "dz2"]
partial = true
"""
LORA_FORMULA = "R*(W_in + W_out) + W_in*W_out"
GRADIENTS = "dz2 = y_hat - y\ndU = h.T @ dz2\ndb2 = dz2"
ANSWERS = {
    "Ada": {"Q1": LORA_FORMULA, "Q2": "180,000", "Q3": GRADIENTS},
    "Bo": {"Q1": "W_out*W_in", "Q2": "160000", "Q3": "dz2 = y - y_hat\ndU = h.T @ dz2"},
    "Cy": {"Q1": "R*(W_in + W_out)", "Q2": "20,000", "Q3": "dU = h @ dz2"},
    "Di": {"Q1": "W_in*R + R*W_out", "Q3": "dU ="},
    "Eve, née Ö": {},
}
POINTS = {"Ada": (2, 1, 3), "Bo": (1, 1, 1), "Cy": (0, 1, 0), "Di": (0, 0, 0), "Eve, née Ö": (0, 0, 0)}


@pytest.fixture(scope="module")
def sheet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sheet") / "sheet.toml"
    path.write_text(SHEET, encoding="utf-8")
    return path


def write_table(path: Path, answers: dict[str, dict[str, str]], separator: str = ",") -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(["Timestamp", "Name", "q1", "Q2", "Q3"])
        for name, settings in answers.items():
            writer.writerow(["12:00", name, *(settings.get(id, "") for id in ("Q1", "Q2", "Q3"))])
    return path


def write_file(path: Path, student: str, answers: dict[str, str]) -> Path:
    lines = [f"student = {json.dumps(student)}" if student else "", "[answers]"]
    lines += [f"{name} = {json.dumps(text)}" for name, text in answers.items()]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def points(marks: ClassMarks) -> dict[str, tuple[float, ...]]:
    return {student.student: tuple(each.points for each in student.marks) for student in marks.students}


@pytest.fixture(scope="module")
def marks(sheet: Path, tmp_path_factory: pytest.TempPathFactory) -> ClassMarks:
    return mark_class(sheet, [write_table(tmp_path_factory.mktemp("table") / "class.csv", ANSWERS)])


def test_table_is_marked_by_student_and_question(marks: ClassMarks, sheet: Path) -> None:
    assert points(marks) == POINTS and marks.of == 6
    for student, settings in ANSWERS.items():
        assert marks[student].marks == mark_answers(sheet, settings).marks
    assert [marks[name]["Q2"].verdict for name in ("Ada", "Bo", "Cy")] == ["right", "follow-through", "follow-through"]
    assert [mark.verdict for mark in marks["Di"].marks] == ["wrong", "not answered", "unreadable"]
    assert len(marks.left_out) == 1 and marks.left_out[0].endswith("no question is called Timestamp.")
    assert "Di: Q3 cannot be read. Look at it." in marks.notes


def test_files_folders_and_tables_give_equal_marks(marks: ClassMarks, sheet: Path, tmp_path: Path) -> None:
    folder = tmp_path / "answers"
    (folder / "Cy").mkdir(parents=True)
    files = [write_file(folder / f"{number}.toml", name, ANSWERS[name]) for number, name in enumerate(("Ada", "Bo"))]
    files.append(write_file(folder / "Cy" / "answers.toml", "", ANSWERS["Cy"]))  # named by the folder
    sections = "\n".join(f"## {name}\n```\n{text}\n```" for name, text in ANSWERS["Di"].items())
    (folder / "Di.md").write_text(sections, encoding="utf-8")
    (folder / ".hidden.toml").write_text("", encoding="utf-8")
    (folder / "sheet.toml").symlink_to(sheet)
    (folder / "notes.docx").write_bytes(b"PK")
    result = mark_class(sheet, [folder])
    assert points(result) == {name: POINTS[name] for name in ("Ada", "Bo", "Cy", "Di")}
    assert [note for note in result.left_out if "notes.docx" in note] == list(result.left_out)
    two = check_sheet(sheet, files[:2])
    assert isinstance(two, ClassMarks) and points(two) == {name: POINTS[name] for name in ("Ada", "Bo")}
    assert check_sheet(sheet, files[:1])["Q1"].points == 2  # one file is one student
    long = tmp_path / "long.tsv"
    rows = [f"{name}\t{id}\t{json.dumps(text)}" for name, settings in ANSWERS.items() for id, text in settings.items()]
    rows = [row.replace("\\n", "\n") for row in rows]
    long.write_text("student\tquestion\tanswer\n" + "\n".join(rows) + "\n", encoding="utf-8")
    assert points(mark_class(sheet, [long])) == {name: POINTS[name] for name in ("Ada", "Bo", "Cy", "Di")}
    assert points(mark_class(sheet, [write_table(tmp_path / "class.csv", ANSWERS, ";")])) == POINTS
    assert marks.students[0].source.endswith("class.csv, line 2")


def test_broken_submission_does_not_stop_the_class(sheet: Path, tmp_path: Path) -> None:
    invalid = {
        "empty.toml": b"",
        "latin.toml": "student = 'É'".encode("latin-1"),
        "nested.toml": b"answers = " + b"[" * 100_000,
        "digits.toml": b"[answers]\nQ1 = " + b"9" * 5000,
        "zeros.md": bytes(100_000),
        "syntax.toml": b"[answers",
        "huge.md": b"## Q1\n" + b"x" * 2**20,
        "other.toml": b"[answers]\nQ9 = '1'",
        "long.md": b"## Q1\n" + b"(" * 50_000 + b"\n## Q2\n" + b"9" * 5000 + b"\n## Q3\n" + b"a = b\n" * 5000,
        "code.toml": b"[answers]\nQ1 = \"__import__('os').system('touch x')\"\nQ2 = 'os:system'\nQ3 = 'dU = eval(1)'",
        "twice.md": f"## Q1\n{LORA_FORMULA}\n## q1\n{LORA_FORMULA}\n".encode(),
        "table.toml": b"[answers]\nQ1 = { a = 1 }\nQ2 = 0x" + b"f" * 9000 + b"\nQ3 = [[1]]",
    }
    for name, content in invalid.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")  # reading it would wait forever
    (tmp_path / "lost.toml").symlink_to(tmp_path / "nowhere")
    write_file(tmp_path / "good.toml", "Good", ANSWERS["Ada"])
    result = mark_class(sheet, [tmp_path])
    assert result["Good"].points == 6
    assert {student.student for student in result.students} == {"Good", "pipe", "lost"} | {
        Path(name).stem for name in invalid
    }
    assert {student.points for student in result.students if student.student != "Good"} == {0}
    for name in ("latin", "nested", "syntax", "huge", "pipe", "lost"):
        assert any(note.startswith(f"{name}: Cannot be read") for note in result.notes), name
    assert [each.verdict for each in result["twice"].marks] == ["unreadable", "not answered", "not answered"]
    assert any("unknown question 'Q9'" in note for note in result.notes)


def test_broken_row_does_not_affect_other_rows(sheet: Path, tmp_path: Path) -> None:
    path = tmp_path / "class.csv"
    big = "9" * 200_000  # longer than the csv module takes by itself
    rows = ["student,Q1,Q2", f'"Ada","{LORA_FORMULA}",180000', "Short", f"Long,R,1,2,3\nBig,{big},1", ',"R",7']
    path.write_bytes("\n".join(rows).encode() + b"\nLatin,\xe9*R,144000\n")
    result = mark_class(sheet, [path])
    assert [student.student for student in result.students] == ["Ada", "Short", "Long", "Big", "line 6", "Latin"]
    assert [student.points for student in result.students] == [3, 0, 0, 0, 0, 0]
    assert [each.verdict for each in result["Latin"].marks] == ["unreadable", "wrong", "not answered"]
    assert "\ufffd" in result["Latin"]["Q1"].reason
    assert "5 cells where the header has 3" in result["Long"]["Q1"].reason
    assert result["Short"]["Q2"].verdict == "not answered"


def test_identical_answers_are_read_and_marked_once(
    sheet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[tuple[str, bool]] = Counter()
    reads: Counter[str] = Counter()
    read = question_kinds.compare_answer
    compare = ModelFormula.check

    def count_reads(account, quantity, text, *rest):
        reads[text] += 1
        return read(account, quantity, text, *rest)

    def count_comparisons(self, answer, diagnose):
        calls[str(answer.answer), diagnose] += 1
        return compare(self, answer, diagnose)

    monkeypatch.setattr(question_kinds, "compare_answer", count_reads)
    monkeypatch.setattr(ModelFormula, "check", count_comparisons)
    students = {f"S{number}": {"Q1": (LORA_FORMULA, "R", "W_in")[number % 3]} for number in range(60)}
    result = mark_class(sheet, [write_table(tmp_path / "class.csv", students)])
    assert Counter(student.points for student in result.students) == {2: 20, 0: 40}
    assert reads == {"W_in*W_out": 1, LORA_FORMULA: 1, "R": 1, "W_in": 1}  # the first earns partial credit
    assert sorted(diagnose for _, diagnose in calls.elements()) == [False] * 3 + [True] * 2  # no right one is diagnosed


def test_marks_are_complete_when_diagnosis_time_runs_out(marks: ClassMarks, sheet: Path, tmp_path: Path) -> None:
    hasty = mark_class(sheet, [write_table(tmp_path / "class.csv", ANSWERS)], seconds=-1)
    assert points(hasty) == points(marks)
    assert hasty.undiagnosed and not marks.undiagnosed
    assert any("not diagnosed" in note for note in hasty.notes)
    assert not any(mistake.text == "not diagnosed" for mistake in hasty.mistakes)


def test_mistakes_are_sorted_by_frequency_with_students(marks: ClassMarks) -> None:
    first = marks.mistakes[0]
    assert (first.question, first.students) == ("Q1", ("Cy", "Di"))  # the same mistake, written differently
    assert "W_in*W_out" in first.text and "base" in first.text
    assert ("Q3", "db2 is missing", ("Bo", "Cy")) in [
        (item.question, item.text, item.students) for item in marks.mistakes
    ]
    assert not any("Ada" in mistake.students for mistake in marks.mistakes)


def test_class_marks_are_saved_as_csv_json_and_html(marks: ClassMarks, tmp_path: Path) -> None:
    for ending in ("csv", "json", "html", "md", "txt"):
        marks.save(tmp_path / f"marks.{ending}")
    with (tmp_path / "marks.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert {name: tuple(float(row[id]) for id in ("Q1", "Q2", "Q3")) for name, row in rows.items()} == POINTS
    assert (rows["Bo"]["points"], rows["Bo"]["Q2 verdict"]) == ("3.0", "follow-through")
    base = json.loads((tmp_path / "marks.json").read_text(encoding="utf-8"))
    assert base == marks.to_dict()
    assert [item["points"] for item in base["students"]] == [sum(row) for row in POINTS.values()]
    assert base["mistakes"][0]["students"] == ["Cy", "Di"] and base["mistakes"][0]["count"] == 2
    page = (tmp_path / "marks.html").read_text(encoding="utf-8")
    assert "The most frequent mistakes" in page and "http" not in page and "<script" not in page


def test_student_text_is_escaped_in_html_and_csv(sheet: Path, tmp_path: Path) -> None:
    answers = {"=HYPERLINK(1)": {"Q1": "<script>alert(1)</script>"}, "<b>Bo</b>\x1b[31m": {"Q2": "=1+1", "Q1": "@R"}}
    result = mark_class(sheet, [write_table(tmp_path / "class.csv", answers)])
    page = result._repr_html_()
    assert "<script" not in page and "<b>Bo" not in page and "&lt;b&gt;Bo" in page
    assert "\x1b" not in str(result)
    assert [row["student"] for row in result.records()] == ["'=HYPERLINK(1)", "<b>Bo</b>\ufffd[31m"]


def test_students_with_equal_names_are_distinguished(sheet: Path, tmp_path: Path) -> None:
    files = [write_file(tmp_path / f"{name}.toml", "Ada", ANSWERS[name]) for name in ("Ada", "Bo")]
    assert [student.student for student in mark_class(sheet, files).students] == [f"Ada ({file})" for file in files]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("student,A\nAda,1\n", "no column of student, A is a question of the sheet: Q1, Q2, Q3"),
        ("student,Q1,q1\nAda,1,2\n", "two columns are called 'q1'"),
        ("", "is empty"),
        ("student,Q1\n", "nothing to mark"),
        ('student,Q1\nAda,"R\n', "Is there a quote that is not closed?"),
    ],
)
def test_invalid_class_table_is_refused(sheet: Path, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "class.csv").write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as refusal:
        mark_class(sheet, [tmp_path / "class.csv"])
    assert message in str(refusal.value) and str(tmp_path / "class.csv") in str(refusal.value)


def test_empty_submissions_are_refused(sheet: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to mark"):
        mark_class(sheet, [tmp_path])
    with pytest.raises(InputError, match="no such file or folder"):
        mark_class(sheet, [tmp_path / "nowhere", tmp_path])
    with pytest.raises(InputError, match="ANSWERS expected"):
        check_sheet(sheet, [])
    with pytest.raises(InputError, match="mapping is one student"):
        check_sheet(sheet, [{"Q1": "R"}, {"Q1": "R"}])


def test_command_marks_a_class_and_writes_every_format(
    sheet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_table(tmp_path / "class.csv", ANSWERS)
    expected = [tmp_path / f"marks.{ending}" for ending in ("csv", "json", "html")]
    text = [word for path in expected for word in ("--out", str(path))]
    with pytest.raises(SystemExit) as done:
        main(["check", "sheet", str(sheet), str(table), *text])
    output = capsys.readouterr().out
    assert done.value.code in (0, None) and all(path.is_file() for path in expected)
    assert "Week 4: 5 students, 6 points" in output and "The most frequent mistakes" in output
    with pytest.raises(SystemExit) as done:
        main(["check", "sheet", str(sheet), str(table), "--out", str(tmp_path / "marks.xls")])
    assert done.value.code == 2 and "marks.xls" in capsys.readouterr().err
