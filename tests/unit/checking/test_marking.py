"""Marks of wrong answers: partial credit, follow-through, copies of earlier mistakes, kinds of exercises, units."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import lemma.checking.exercises
from lemma.checking.exercises.base import ValueExercise
from lemma.checking.expected_values import ExpectedValue, expect_numbers, expect_words
from lemma.checking.marking import StudentMarks, mark_answers
from lemma.checking.sheet_kinds import FIELD_CLASSES, question_kinds
from lemma.checking.sheets import SheetQuestion, read_sheet
from lemma.errors import InputError
from lemma.spec.exercises import KINDS, KindEntry

LORA = {"kind": "parameters", "model": "lora"}
F = "R*(W_in + W_out) + W_in*W_out"


class TinyExercise(ValueExercise):
    """Counts that are added."""

    kind: ClassVar[str] = "tiny"

    a: int = 2
    """First count."""
    points: int = 5
    """Number with the name of a field of grading."""

    def expected_values(self) -> list[ExpectedValue]:
        total = self.a + self.points
        return [
            expect_numbers("twice", 2 * self.a, mistakes={"the count is squared": self.a**2 + 0.0}),
            expect_numbers("total sum", total, mistakes={"the counts are multiplied": self.a * self.points}),
            expect_numbers("ratio", self.a / total, mistakes={"the ratio is the other way round": total / self.a}),
            expect_words("parity", "even" if total % 2 == 0 else "odd"),
        ]

    def main_names(self) -> tuple[str, ...]:
        return ("total",)


@pytest.fixture(autouse=True)
def _tiny_kind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import sys
    from types import ModuleType

    module = ModuleType("lemma.checking.exercises.tiny_for_tests")
    module.TinyExercise = TinyExercise  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(lemma.checking.exercises, "tiny_for_tests", module, raising=False)
    monkeypatch.setitem(KINDS, "tiny", KindEntry("tiny_for_tests:TinyExercise", "Check counts.", "a=2"))
    yield


def mark(questions: list[dict[str, Any]], **answers: object) -> StudentMarks:
    return mark_answers({"questions": questions}, answers)


TINY = {"id": "T", "kind": "tiny", "a": 3, "asks": ["twice", "total", "ratio", "parity"], "exercise": {"points": 7}}
PART = {**TINY, "partial": True, "points": 4}
PE = {"id": "T", "kind": "position", "width": 4, "position": 3, "asks": ["angles", "PE"], "partial": True, "points": 3}
GRADIENTS = {"id": "T", "kind": "gradient", "cell": "rnn", "lines": ["dz2", "dU", "db2"], "partial": True, "points": 3}
WORKED = {"id": "T", "kind": "worked", "case": "e9", "asks": ["c_t", "h_t"], "partial": True, "points": 2}
SHAPES = {"id": "T", "kind": "shape", "model": "self-attention", "asks": ["Q", "scores"], "partial": True, "points": 2}
NUMBER = {"id": "T", "kind": "number", "model": "lora", "credit": {"9000": 0.25}, "points": 4}
BYTES = {"id": "T", "kind": "number", "value": 2000, "unit": "bytes"}
PERCENT = {"id": "T", "kind": "number", "value": "100*3/8", "unit": "%"}
FREE = {"id": "T", "kind": "formula", "value": "n(n+1)/2", "credit": {"n^2/2": 0.5}, "points": 2}
ROUNDED = {"id": "T", "kind": "number", "value": "0.333"}

WRONG: list[tuple[dict[str, Any], str, str, float]] = [
    (TINY, "twice = 6\ntotal = 10\nratio = 0.3\nparity = odd", "wrong", 0),
    (TINY, "twice = 6\ntotal = 10\nratio = 0.3", "wrong", 0),
    (TINY, "total = 10", "wrong", 0),
    (PART, "twice = 6\ntotal = 10\nratio = 0.3\nparity = odd", "partly right", 3),
    (PART, "twice = 9\ntotal = 10\nratio = 0.3\nparity = even", "partly right", 3),
    (PART, "twice = 6\ntotal = 21", "partly right", 1),
    (PART, "total = 10; ratio = 0.3", "partly right", 2),
    (PART, "sum = 10, ratio = 3.333", "partly right", 1),
    (PART, "twice = 7", "wrong", 0),
    (PART, "twice = 6\ntwice = 7", "wrong", 0),
    (PART, "ratio = 30 %\nparity = odd", "partly right", 1),
    (PART, "ratio = 3 %", "wrong", 0),
    (PART, "ratio = 3/11", "wrong", 0),
    (PART, "total > 9", "wrong", 0),
    (PE, "PE = [0.141, -0.990, 0.030, 1.000]", "partly right", 1.5),
    (PE, "PE = [0.141, 0.990, 0.030, 1.000]\nangles = [3, 0.03]", "partly right", 1.5),
    (PE, "PE[1] = 0.141\nPE[2] = -0.990\nangles = [3, 0.03]", "partly right", 1.5),
    (PE, "PE[1] = 0.141\nPE[2] = 0.990\nPE[3] = 0.030\nPE[4] = 1.000", "wrong", 0),
    (PE, "angles = [3, 3]", "wrong", 0),
    (PE, "frequencies = [1, 0.01]", "wrong", 0),
    (GRADIENTS, "dz2 = y - y_hat\ndU = h.T @ dz2\ndb2 = dz2", "partly right", 2),
    (GRADIENTS, "dz2 = y_hat - y\ndU = dz2.T @ h\ndb2 = dz2", "partly right", 2),
    (GRADIENTS, "dz2 = y_hat - y", "partly right", 1),
    (GRADIENTS, "dU = h @ dz2", "wrong", 0),
    (GRADIENTS, "dz2 = y_hat + y", "wrong", 0),
    (GRADIENTS, "dz2 = y_hat - y\ndU = h.T @ dz2\ndU = h.T @ y", "partly right", 1),
    (WORKED, "c_t = [0.52, -0.34]", "partly right", 1),
    (WORKED, "c_t = [0.52, -0.34]\nh_t = [0.364, -0.272]", "partly right", 1),
    (WORKED, "c_t = [0.52, 0.34]", "wrong", 0),
    (WORKED, "kept = [0.1, -0.36]", "wrong", 0),
    (SHAPES, "Q = H×S×M_QK", "partly right", 1),
    (SHAPES, "Q = S×M_QK\nscores = H×S×S", "partly right", 1),
    (SHAPES, "Q = H×M_QK×S\nscores = S×S", "wrong", 0),
    (NUMBER, "9000", "partly right", 1),
    (NUMBER, "9,000 parameters", "partly right", 1),
    (NUMBER, "75*120", "partly right", 1),
    (NUMBER, "2250", "wrong", 0),
    (NUMBER, "11.2", "wrong", 0),
    (NUMBER, "11.25 million", "wrong", 0),
    (NUMBER, "11249.9", "wrong", 0),
    (BYTES, "2 KiB", "wrong", 0),
    (BYTES, "2000 bits", "wrong", 0),
    (BYTES, "2", "wrong", 0),
    (BYTES, "2 MB", "wrong", 0),
    (BYTES, "16000", "wrong", 0),
    (PERCENT, "37", "wrong", 0),
    (PERCENT, "62.5 %", "wrong", 0),
    (PERCENT, "3.75 %", "wrong", 0),
    (PERCENT, "38.5", "wrong", 0),
    (FREE, "n*n/2", "partly right", 1),
    (FREE, "n(n-1)/2", "wrong", 0),
    (FREE, "n(n+1)", "wrong", 0),
    (FREE, "n^2 + n", "wrong", 0),
    (FREE, "3", "wrong", 0),
    (ROUNDED, "0.3", "wrong", 0),
    (ROUNDED, "0.33", "right", 1),
    (ROUNDED, "1/3", "right", 1),
    (ROUNDED, "0.3333", "right", 1),
    (ROUNDED, "0.34", "wrong", 0),
    (ROUNDED, "0.332", "wrong", 0),
    (ROUNDED, "33.3", "wrong", 0),
    ({"id": "T", "kind": "trainable", "model": "lora"}, F, "wrong", 0),
    ({"id": "T", "kind": "trainable", "model": "lora"}, "R*W_in", "wrong", 0),
    ({"id": "T", "kind": "identity", "identity": "d4"}, "true", "wrong", 0),
    ({"id": "T", "kind": "derivation", "start": "(x-1)(x+1)", "value": "x^2 - 1"}, "= x^2 + 1", "wrong", 0),
    ({"id": "T", "kind": "derivation", "start": "(x-1)(x+1)", "value": "x^2 - 1"}, "= x^2 - x\n= x^2 - 1", "wrong", 0),
]


def test_there_are_enough_wrong_answers() -> None:
    assert sum(verdict != "right" for *_, verdict, _ in WRONG) >= 60


@pytest.mark.parametrize(("question", "answer", "verdict", "points"), WRONG)
def test_wrong_answers_earn_only_their_part(question: dict[str, Any], answer: str, verdict: str, points: float) -> None:
    result = mark([question], T=answer)["T"]
    assert (result.verdict, result.points) == (verdict, points), result.reason


def test_missing_values_and_mistakes_are_named() -> None:
    result = mark([PART], T="twice = 9\ntotal = 10\nratio = 0.3")["T"]
    assert result.reason == "twice wrong, total right, ratio right, parity missing."
    assert result.mistakes == ("parity is missing", "twice: The count is squared") or "squared" in result.mistakes[1]
    shown = mark([{**PART, "show_answer": True, "hint": "Count again."}], T="twice = 9")["T"]
    assert shown.right_answer == "twice = 6; total = 10; ratio = 0.3; parity = even" and "Count again." in shown.reason


def test_every_kind_of_exercise_can_be_a_question() -> None:
    assert {"parameters", "worked", "identity", "derivation", "shape", "trainable", "position"} <= {*question_kinds()}
    for kind in ("position", "tiny"):
        (question,) = read_sheet({"questions": [{"id": "Q", "kind": kind}]}).questions
        assert question.fields.kind == kind and question.statement == ""


def test_fields_of_a_kind_may_clash_with_those_of_grading() -> None:
    (question,) = read_sheet({"questions": [PART]}).questions
    assert (question.points, question.fields.points) == (4, 7)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"kind": "tiny", "ask": ["twice"]}, "question Q: unknown setting 'ask'. Did you mean 'asks'"),
        ({"kind": "tiny", "point": 3}, "question Q: unknown setting 'point'. Did you mean 'points'"),
        ({"kind": "tinny"}, "unknown kind 'tinny'. Did you mean 'tiny'"),
        ({"kind": "tiny", "asks": ["twices"]}, "Did you mean 'twice'"),
        ({"kind": "tiny", "a": "many"}, "question Q: tiny.a = 'many'"),
        ({"kind": "tiny", "credit": {"3": 0.5}}, "credit: is for formulas and numbers"),
        ({"kind": "tiny", "a": 2, "exercise": {"a": 2}}, "a: is given twice"),
        (
            {"kind": "parameters", "model": "lora", "partial": True},
            "partial: a question of kind parameters has no parts",
        ),
        ({"exercise": "no-such"}, "unknown exercise 'no-such'"),
        ({"kind": "gradient", "cell": "mine.toml", "lines": ["dW"]}, "mine.toml: there is no such file"),
        ({"kind": "gradient", "cell": "os:system", "lines": ["dW"]}, "unknown cell 'os:system'"),
        ({"kind": "shape", "model": "os:system", "asks": ["Q"]}, "must not do"),
        ({"kind": "derivation", "start": "x", "value": "y"}, "is not equal to x"),
        ({"kind": "worked", "case": "e99", "asks": ["c"]}, "unknown case 'e99'"),
        ({"kind": "identity", "identity": "z9"}, "unknown identity 'z9'"),
        ({"kind": "number", "value": "1/0"}, "question Q: value: "),
        ({"kind": "formula", "value": "log(n)"}, "function; formulas here are rational"),
    ],
)
def test_wrong_questions_are_refused(question: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        mark([{"id": "Q", **question}], Q="1")
    assert message in str(refusal.value)


TWICE = [
    {"id": "A", "kind": "tiny", "a": 3, "asks": ["total"], "exercise": {"points": 7}},
    {"id": "B", "kind": "tiny", "a": 4, "asks": ["total"], "exercise": {"points": 9}, "builds_on": ["A"]}
    | {"follow_through": 0.5, "points": 2},
]


@pytest.mark.parametrize(
    ("first", "second", "verdict", "points"),
    [
        ("21", "36", "follow-through", 1),  # multiplied both times
        ("10", "36", "wrong", 0),  # a new mistake
        ("10", "13", "right", 2),
        ("21", "13", "right", 2),
        ("21", "21", "wrong", 0),  # copied
        ("11", "14", "wrong", 0),  # neither has an explanation
        ("", "36", "wrong", 0),
    ],
)
def test_a_mistake_that_recurs_counts_once(first: str, second: str, verdict: str, points: float) -> None:
    result = mark(TWICE, A=first, B=second)["B"]
    assert (result.verdict, result.points) == (verdict, points), result.reason


def test_a_mistake_in_two_formulas_counts_once() -> None:
    second = {"id": "Q2", **LORA, "settings": {"R": 4}, "builds_on": ["Q1"], "follow_through": 0.5}
    questions = [{"id": "Q1", **LORA}, second]
    marks = mark(questions, Q1="R*(W_in + W_out)", Q2="4*(W_in + W_out)")
    assert [each.verdict for each in marks.marks] == ["wrong", "follow-through"]
    assert "The mistake of Q1 again" in marks["Q2"].reason
    copied = mark(questions, Q1="R*(W_in + W_out)", Q2="R*(W_in + W_out)")
    assert [each.verdict for each in copied.marks] == ["wrong", "wrong"]
    assert mark(questions, Q1="R*(W_in + W_out)", Q2="W_in*W_out")["Q2"].verdict == "wrong"


STEPS = [
    {"id": "A", "kind": "gradient", "cell": "rnn", "lines": ["dz2"]},
    {"id": "B", "kind": "gradient", "cell": "rnn", "lines": ["dz1"], "builds_on": ["A"]},
]


def test_a_copied_line_is_not_follow_through() -> None:
    typo = "dz1 = dz2 @ U.T"
    assert mark(STEPS, A=f"dz2 = y_hat - y\n{typo}", B=typo)["B"].verdict == "wrong"
    again = [STEPS[0], {**STEPS[1], "lines": ["dz2"]}]
    assert mark(again, A="dz2 = y - y_hat", B="dz2 = y - y_hat")["B"].verdict == "wrong"
    right = "dz1 = ((y - y_hat) @ U.T) * h * (1 - h)"
    assert mark(STEPS, A="dz2 = y - y_hat", B=right)["B"].verdict == "follow-through"


def test_functions_of_the_teacher_are_read_next_to_the_sheet(tmp_path: Any) -> None:
    function = 'forward = "S = X^2 / 2"\nloss = "sum(dS * S)"\nanswers = "dX = dS * X"\n'
    function += '[sizes]\nn = "rows"\nd = "width"\n[inputs]\nX = "n d"\ndS = "n d incoming"\n'
    (tmp_path / "mine.toml").write_text(function)
    (tmp_path / "week.toml").write_text(
        '[[questions]]\nid = "Q1"\nkind = "gradient"\ncell = "mine.toml"\nlines = ["dX"]\n'
        '[[questions]]\nid = "Q2"\nexercise = "own.toml"\npoints = 2\n'
    )
    (tmp_path / "own.toml").write_text('kind = "tiny"\ntext = "Add 3 and 7."\na = 3\npoints = 7\nasks = ["total"]\n')
    sheet = read_sheet(tmp_path / "week.toml")
    assert sheet.questions[1].statement == "Add 3 and 7."
    marks = mark_answers(tmp_path / "week.toml", {"Q1": "dX = dS * X", "Q2": "10"})
    assert [each.verdict for each in marks.marks] == ["right", "right"] and marks.points == 3
    assert mark_answers(tmp_path / "week.toml", {"Q1": "dX = dS"})["Q1"].verdict == "wrong"


@pytest.mark.parametrize(
    "text", ["(" * 5000, "9" * 1500, "1e999999", "=" * 1000, "a, " * 600, "\\boxed{" * 200, "[[[[[["]
)
def test_hostile_answers_are_marked_quickly(text: str) -> None:
    marks = mark([PART, {"id": "N", "kind": "number", "value": 3}, {**FREE, "id": "E"}], T=text, N=text, E=text)
    assert marks.points == 0


def test_the_page_lists_every_field_with_its_meaning() -> None:
    page = (Path(__file__).parents[3] / "docs" / "grading.md").read_text(encoding="utf-8")
    rows = {tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in page.splitlines() if line.startswith("|")}
    for name, field in SheetQuestion.model_fields.items():
        assert (f"`{name}`", field.description) in rows, name
    for kind, fields in FIELD_CLASSES.items():
        names = {*fields.model_fields} - {"title", "text", "hint"}
        inherited = {*FIELD_CLASSES["parameters"].model_fields} if kind == "number" else set()
        for name in names - inherited:
            description = fields.model_fields[name].description
            assert any(f"`{kind}`" in row[0] and row[1:] == (f"`{name}`", description) for row in rows if len(row) == 3)
