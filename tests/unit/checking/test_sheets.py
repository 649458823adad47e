"""Teacher mode: reading sheets, marking answers, and hiding what the sheet does not show."""

import json
import re
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lemma
from lemma.checking.cells import find_cell
from lemma.checking.marking import Mark, StudentMarks, mark_answers
from lemma.checking.question_kinds import follow_through_samples
from lemma.checking.sheets import read_answers, read_sheet
from lemma.errors import InputError

RIGHT = "|V|(d + d_h) + ((N-1)d + 1) d_h"  # problem A1
FORGOT_BIAS = "V(d + d_h) + (N-1) d d_h"
SHEET = """
title = "Week 3"
show_answer = {show}

[[questions]]
id = "Q1"
text = "How many parameters has Bengio's model?"
points = 2
kind = "parameters"
model = "feed-forward"

[[questions]]
id = "Q2"
points = 4
kind = "gradient"
cell = "rnn"
lines = ["dU", "db2", "dI", "dH"]
partial = true

[[questions]]
id = "Q3"
kind = "number"
model = "table-a5"
change = "from 2 to 4 layers"

[[questions]]
id = "Q4"
kind = "number"
model = "table-a5"
settings = {{ L = 4 }}
"""
GRADIENTS = """
d2 = y_hat - y
dU = h.T @ d2
db2 = d2
d1 = (d2 @ U.T) * h * (1 - h)
dI = x.T @ d1
dH = h_prev.T @ d1
"""


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path_factory.getbasetemp() / "ledger-home"))


def mark_submission(
    folder: Path, answers: str, show: bool = False, sheet: str = SHEET, suffix: str = ".toml"
) -> StudentMarks:
    (folder / "sheet.toml").write_text(sheet.format(show=str(show).lower()), encoding="utf-8")
    (folder / f"answers{suffix}").write_text(answers, encoding="utf-8")
    return mark_answers(folder / "sheet.toml", folder / f"answers{suffix}")


def write_answers(**answers: str) -> str:
    return "student = 'Ada'\n[answers]\n" + "\n".join(f"{name} = {json.dumps(text)}" for name, text in answers.items())


def mark_single(folder: Path, name: str, answer: str, show: bool = False) -> Mark:
    return next(
        mark for mark in mark_submission(folder, write_answers(**{name: answer}), show).marks if mark.id == name
    )


def test_right_answers_earn_all_points(tmp_path: Path) -> None:
    result = mark_submission(tmp_path, write_answers(Q1=RIGHT, Q2=GRADIENTS, Q3="54.1 %", Q4="14,980,860"))
    assert [(mark.verdict, mark.points) for mark in result.marks] == [
        ("right", 2),
        ("right", 4),
        ("right", 1),
        ("right", 1),
    ]
    assert (result.points, result.of, result.student, result.notes) == (8, 8, "Ada", ())


def test_missing_or_unreadable_answers_earn_zero_points(tmp_path: Path) -> None:
    result = mark_submission(tmp_path, write_answers(Q1="V*(d+", Q4="fourteen million", Q33="54.1 %"))
    assert [mark.verdict for mark in result.marks] == ["unreadable", "not answered", "not answered", "unreadable"]
    assert result.points == 0
    assert "character 6" in result.marks[0].reason
    assert result.notes == ("unknown question 'Q33'. Did you mean 'Q3'? Choices: Q1, Q2, Q3, Q4.",)


def test_each_right_gradient_earns_partial_credit(tmp_path: Path) -> None:
    wrong = GRADIENTS.replace("dU = h.T @ d2", "dU = d2.T @ h")
    result = mark_single(tmp_path, "Q2", wrong)
    assert (result.verdict, result.points) == ("partly right", 3)
    result = mark_single(tmp_path, "Q2", wrong.replace("dH = h_prev.T @ d1", ""))
    assert (result.points, result.reason) == (2, "dU wrong, db2 right, dI right, dH missing.")


def test_no_partial_credit_requires_all_lines_right(tmp_path: Path) -> None:
    result = mark_submission(
        tmp_path, write_answers(Q2="dz2 = y_hat - y\ndb2 = dz2"), sheet=SHEET.replace("partial = true", "")
    )
    assert (result.marks[1].verdict, result.marks[1].points) == ("wrong", 0)


def test_crashing_checker_does_not_stop_the_marking(tmp_path: Path, monkeypatch) -> None:
    def failing(*args, **kwargs):
        raise RecursionError("too deep")

    monkeypatch.setattr("lemma.checking.question_kinds.ModelFormula.check", failing)
    result = mark_submission(tmp_path, write_answers(Q1="V", Q4="14980860"))
    assert [mark.verdict for mark in result.marks] == ["unreadable", "not answered", "not answered", "right"]


def test_underived_gradients_are_reported_as_taken(tmp_path: Path) -> None:
    result = mark_single(tmp_path, "Q2", "db2 = dz2")
    assert result.reason == "dU missing, db2 right, dI missing, dH missing. Taken as given: dz2."


def test_claimed_65_percent_is_wrong(tmp_path: Path) -> None:
    assert mark_single(tmp_path, "Q3", "65 %").verdict == "wrong"
    for right in ("54", "54.1 %", "54.1 percent", "54.1 % increase from 2 to 4 layers"):
        assert mark_single(tmp_path, "Q3", right).verdict == "right", right


@pytest.mark.parametrize("answer", ["0 % increase from 2 to 2 layers", "0 % from L=3 to L=3"])
def test_student_answers_cannot_set_sizes(tmp_path: Path, answer: str) -> None:
    assert mark_single(tmp_path, "Q3", answer).points == 0
    assert mark_single(tmp_path, "Q4", answer).verdict == "unreadable"


@pytest.mark.parametrize("answer", ["0e30", "1e7", "20 million"])
def test_number_rounded_to_zero_is_wrong(tmp_path: Path, answer: str) -> None:
    assert mark_single(tmp_path, "Q4", answer).points == 0


def test_rounded_number_is_right(tmp_path: Path) -> None:
    assert mark_single(tmp_path, "Q4", "15.0 million").verdict == "right"


def test_right_answer_is_shown_only_if_allowed(tmp_path: Path) -> None:
    wrong = write_answers(Q1=FORGOT_BIAS, Q2="d2 = y_hat - y\ndU = d2.T @ h", Q3="65 %", Q4="14,980,861")
    rendered, hidden = mark_submission(tmp_path, wrong, show=True), mark_submission(tmp_path, wrong)
    assert "The model has a bias of d_h in 'hidden' that your formula leaves out." in " ".join(str(rendered).split())
    assert "The right answer: V*(d + d_h) + d_h*((N-1)*d + 1)" in str(rendered)
    assert "54.1" in str(rendered) and "14,980,860" in str(rendered) and "repaired: dU = " in str(rendered)
    page = re.sub("<style>.*?</style>", "", hidden._repr_html_(), flags=re.DOTALL)
    for layout in (str(hidden), json.dumps(hidden.to_dict()), page):
        for secret in (
            "bias",
            "hidden",
            "(N-1)*d",
            "− model",
            "-d_h",
            "54.1",
            "14,980,860",
            "14980860",
            "h.T @",
            "repair",
        ):
            assert secret not in layout, secret
    assert [mark.right_answer for mark in hidden.marks] == [None] * 4
    assert hidden.marks[0].reason == "Not right: too small at the model's sizes."
    assert hidden.marks[3].reason == "Not right: too large."


def test_question_settings_override_sheet_settings(tmp_path: Path) -> None:
    sheet = SHEET.replace('kind = "parameters"', 'kind = "parameters"\nshow_answer = true')
    result = mark_submission(tmp_path, write_answers(Q1="V", Q4="3"), sheet=sheet)
    assert result.marks[0].right_answer and not result.marks[3].right_answer


MARKDOWN_SHEET = """
# Week 3
show_answer: true

## Q1 (2 points)
How many parameters has Bengio's model? Remember: biases count.

kind: parameters
model: feed-forward
settings: N=5 d=8

## Q2: The gradients (1.5 points)
```toml
kind = "gradient"
cell = "softmax-cross-entropy"
lines = ["dz"]
```
"""
MARKDOWN_ANSWERS = """
# Ada
## Q1
$|V|(d + d_h) + ((N-1)d + 1) d_h$

## q2:
I think that
```
dz = ŷ - y
```
"""


def test_markdown_sheet_equals_toml_sheet(tmp_path: Path) -> None:
    (tmp_path / "sheet.md").write_text(MARKDOWN_SHEET, encoding="utf-8")
    (tmp_path / "answers.md").write_text(MARKDOWN_ANSWERS, encoding="utf-8")
    first, second = read_sheet(tmp_path / "sheet.md").questions
    assert first.text == "How many parameters has Bengio's model? Remember: biases count."
    assert (first.points, first.fields.settings, first.show_answer) == (2, {"N": 5, "d": 8}, True)
    assert (second.text, second.points, second.fields.asks) == ("The gradients", 1.5, ("dz",))
    result = mark_answers(tmp_path / "sheet.md", tmp_path / "answers.md")
    assert (result.points, result.student, result.title, result.notes) == (3.5, "Ada", "Week 3", ())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "parameters"', 'kind = "parameter"', "question Q1: unknown kind 'parameter'. Did you mean"),
        (
            'kind = "parameters"',
            "",
            "question Q1: kind: is missing. Say what is asked for: parameters, flops, trainable, number,",
        ),
        ("points = 2", "points = -2", r"question Q1.points = -2"),
        ("points = 2", "point = 2", "question Q1: unknown setting 'point'. Did you mean 'points'"),
        ('model = "feed-forward"', 'model = "feed-foward"', "question Q1: unknown model .*Did you mean 'feed-forward'"),
        ('model = "feed-forward"', "", "question Q1: model: .*needs one"),
        ('cell = "rnn"', 'cell = "rnm"', "question Q2: unknown cell 'rnm'. Did you mean 'rnn'"),
        ('"db2"', '"db3"', "question Q2: unknown lines 'db3'. Did you mean 'db"),
        ('lines = ["dU", "db2", "dI", "dH"]', "", "question Q2: lines: name the gradients"),
        ('change = "from 2 to 4 layers"', 'change = "from here to there"', "question Q3: change: "),
        ('change = "from 2 to 4 layers"', 'quantity = "weight"', "question Q3: unknown quantity 'weight'"),
        ("settings = {{ L = 4 }}", "settings = {{ l = 4 }}", "question Q4: unknown setting 'l'"),
        ('id = "Q4"', 'id = "q3"', "question .3: id: there are two"),
        ('title = "Week 3"', 'titel = "Week 3"', "unknown setting 'titel'. Did you mean 'title'"),
        ('title = "Week 3"', 'title = "Week 3', "not valid TOML"),
    ],
)
def test_sheet_errors_name_file_question_and_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SHEET
    with pytest.raises(InputError, match=message) as refusal:
        mark_submission(tmp_path, write_answers(), sheet=SHEET.replace(old, new))
    assert str(tmp_path / "sheet.toml") in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("sheet.md", "# Only a title\n", "the sheet has none"),
        ("sheet.md", "## Q1\nkinds: flops\n", "question Q1: unknown setting 'kinds'. Did you mean 'kind'"),
        ("sheet.md", "## Q1\n```toml\nkind =\n```\n", "question Q1: the block is not valid TOML"),
        ("sheet.md", "## \nkind: flops\n", "the heading has no name"),
        ("sheet.txt", "", "expected a file that ends in"),
        ("sheet.toml", "\udcff", "cannot be read"),
        ("sheet.md", "x" * (2**20 + 1), "more than 1,048,576 bytes"),
    ],
)
def test_invalid_sheet_files_are_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=message):
        read_sheet(tmp_path / name)


def test_empty_setting_name_is_refused() -> None:
    with pytest.raises(InputError, match="the sheet: unknown setting"):
        read_sheet({"": 1, "title": "Week 3", "questions": [{"kind": "parameters", "model": "feed-forward"}]})


def test_invalid_answers_do_not_affect_other_answers(tmp_path: Path) -> None:
    result = mark_submission(tmp_path, f"[answers]\nQ1 = {{ a = 1 }}\nQ2 = true\nQ3 = 54.1\nQ4 = '''{RIGHT}'''")
    assert [mark.verdict for mark in result.marks] == ["unreadable", "unreadable", "right", "unreadable"]


def test_question_answered_twice_is_unreadable(tmp_path: Path) -> None:
    result = mark_submission(tmp_path, "## Q1\nV\n## Q1\nV*d\n", suffix=".md")
    assert (result.marks[0].verdict, result.marks[0].points) == ("unreadable", 0)
    assert "more than once" in result.marks[0].reason


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=300))
def test_arbitrary_text_does_not_stop_the_marking(tmp_path: Path, text: str) -> None:
    content = "\n".join(f"## Q{number}\n{text}\n" for number in range(1, 5))
    (tmp_path / "sheet.toml").write_text(SHEET.format(show="false"), encoding="utf-8")
    (tmp_path / "answers.md").write_bytes(content.encode("utf-8", "replace"))
    assert mark_answers(tmp_path / "sheet.toml", tmp_path / "answers.md").of == 8


def test_answers_file_without_answers_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "answers.toml").write_text("student = 'Ada'", encoding="utf-8")
    with pytest.raises(InputError, match=r"no table \[answers\]"):
        read_answers(tmp_path / "answers.toml")


def test_marks_are_saved_and_escaped_in_every_format(tmp_path: Path) -> None:
    result = mark_submission(tmp_path, write_answers(Q1="<script>alert(1)</script>", Q4="```\n# no heading"))
    for suffix in ("html", "md", "json"):
        result.save(tmp_path / f"marks.{suffix}")
    page = (tmp_path / "marks.html").read_text(encoding="utf-8")
    assert page.lstrip().startswith("<!DOCTYPE html>") and "<script" not in page and "&lt;script&gt;" in page
    assert "http" not in page
    assert json.loads((tmp_path / "marks.json").read_text(encoding="utf-8")) == result.to_dict()
    assert "````\n```\n# no heading\n````" in (tmp_path / "marks.md").read_text(encoding="utf-8")
    with pytest.raises(InputError, match=r"marks.pdf.*Choices: .*.html, .md"):
        result.save(tmp_path / "marks.pdf")


def test_terminal_report_matches_expected_text(tmp_path: Path) -> None:
    assert str(mark_submission(tmp_path, write_answers(Q1=RIGHT, Q4="9"))).splitlines() == [
        "Week 3: Ada",
        "Q1  right             2 of 2",
        "    Right.",
        "Q2  not answered      0 of 4",
        "Q3  not answered      0 of 1",
        "Q4  wrong             0 of 1",
        "    Not right: too small.",
        "2 of 8 points",
    ]


LORA = {"kind": "parameters", "model": "lora"}
LORA_FORMULA = "R*(W_in + W_out) + W_in*W_out"  # 11,250 at the model's sizes


def marks(questions: list[dict], **answers: object) -> StudentMarks:
    return mark_answers({"questions": questions}, answers)


@pytest.mark.parametrize("answer", ["11,250", "11250", "11250 + 0*R", "11250*R/R"])
def test_bare_number_does_not_answer_a_formula_question(answer: str) -> None:
    result = marks([{"id": "Q1", **LORA}], Q1=answer)["Q1"]
    assert (result.verdict, result.points) == ("wrong", 0)
    assert "formula is asked for" in result.reason or "Cannot be read" in result.reason
    assert marks([{"id": "Q1", **LORA}], Q1=LORA_FORMULA)["Q1"]


def test_numbers_replace_symbols_only_if_question_sets_sizes() -> None:
    sizes = lemma.count("lora", quantities=["parameters"]).symbols
    fixed = LORA_FORMULA.replace("W_in", str(sizes["W_in"])).replace("W_out", str(sizes["W_out"]))
    assert marks([{"id": "Q1", **LORA}], Q1=fixed)["Q1"].verdict == "wrong"
    settings = {"W_in": sizes["W_in"], "W_out": sizes["W_out"]}
    assert marks([{"id": "Q1", **LORA, "settings": settings}], Q1=fixed)["Q1"]


def test_wrong_number_after_a_right_formula_is_reported() -> None:
    questions = [{"id": "Q1", **LORA}, {"id": "Q2", "kind": "formula", "value": "16*Q1"}]
    result = marks(questions, Q1=f"{LORA_FORMULA} = 11,250", Q2=f"16({LORA_FORMULA}) = 180,000")
    assert [mark.verdict for mark in result.marks] == ["right", "right"]
    rendered = [{**question, "show_answer": True} for question in questions]
    result = marks(rendered, Q1=f"{LORA_FORMULA} = 11,251", Q2=f"16({LORA_FORMULA}) = 180,001")
    assert [mark.verdict for mark in result.marks] == ["wrong", "wrong"]
    assert all("The formula is right, but not the number after it" in mark.reason for mark in result.marks)


def test_alternative_formula_earns_its_listed_credit() -> None:
    question = {"id": "Q1", "points": 3, **LORA, "credit": {"R*(W_in + W_out)": 0.5, "W_in*W_out": 0.25}}
    assert [
        marks([question], Q1=text)["Q1"].points for text in ("W_out*R + R*W_in", "W_out W_in", "R", LORA_FORMULA)
    ] == [
        1.5,
        0.75,
        0,
        3,
    ]
    number = {"id": "Q1", "kind": "number", "model": "lora", "credit": {"2,250": 0.5}}
    assert [marks([number], Q1=text)["Q1"].points for text in ("2250", "11250", "2251")] == [0.5, 1, 0]
    with pytest.raises(InputError, match="question Q1: credit: "):
        marks([{"id": "Q1", **LORA, "credit": {"R*(": 0.5}}], Q1="R")


CHAIN = [
    {"id": "Q1", **LORA},
    {"id": "Q2", "kind": "number", "model": "lora", "builds_on": ["Q1"], "follow_through": 0.5},
    {"id": "Q3", "kind": "number", "value": "16*Q2"},
    {"id": "Q4", "kind": "number", "value": "100*Q2/(Q3 - Q2)", "points": 2},
]


def verdicts(questions: list[dict], **answers: object) -> list[str]:
    return [mark.verdict for mark in marks(questions, **answers).marks]


def test_later_numbers_follow_through_from_earlier_answers() -> None:
    sizes = lemma.count("lora", quantities=["parameters"]).symbols
    wrong = sizes["R"] * (sizes["W_in"] + sizes["W_out"])  # without the frozen matrix
    assert verdicts(CHAIN, Q1=LORA_FORMULA, Q2="11250", Q3="180,000", Q4="6.67 %") == ["right"] * 4
    custom = marks(CHAIN, Q1="R*(W_in + W_out)", Q2=str(wrong), Q3=str(16 * wrong), Q4="6.67")
    assert [mark.verdict for mark in custom.marks] == ["wrong", "follow-through", "follow-through", "right"]
    assert [mark.points for mark in custom.marks] == [0, 0.5, 1, 2]
    assert "your own answer to Q1" in custom["Q2"].reason
    assert verdicts(CHAIN, Q1="R*(W_in + W_out)", Q2=str(wrong + 1), Q3=str(16 * wrong)) == [
        "wrong",
        "wrong",
        "wrong",
        "not answered",
    ]
    assert verdicts(CHAIN, Q2="7", Q3="112")[2] == "follow-through"  # a number may follow from a number
    assert verdicts(CHAIN, Q3="112")[2] == "wrong"  # nothing follows from no answer


FORMULAS = [
    {"id": "Q1", **LORA, "credit": {"R*(W_in + W_out)": 0.5}},
    {"id": "R", "kind": "formula", "value": "16*Q1", "follow_through": 0.5, "points": 2, "credit": {"12*W_in": 0.25}},
    {"id": "Q3", "kind": "formula", "value": "R/Q1 + W_in"},
    {"id": "Q4", "kind": "number", "value": "2*R"},
]
LORA_FORMULA = "W_in*W_out + R*(W_in + W_out)"


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"Q1": LORA_FORMULA, "R": f"16*({LORA_FORMULA})", "Q3": "16 + W_in", "Q4": "360000"}, ["right"] * 4),
        ({"Q1": "W_in*W_out", "R": "16*W_in*W_out"}, ["wrong", "follow-through", "not answered", "not answered"]),
        ({"Q1": "R*W_in + R*W_out", "R": "16*R*(W_in + W_out)"}, ["partly right", "follow-through"]),
        ({"Q1": "W_in*W_out", "R": "8*W_in*W_out", "Q3": "8 + W_in"}, ["wrong", "wrong", "follow-through"]),
        (
            {"Q1": "W_in*W_out", "R": "8*W_in", "Q3": "8/W_out + W_in", "Q4": "3200"},
            ["wrong"] * 2 + ["follow-through"] * 2,
        ),
        ({"Q1": "W_in*W_out", "R": f"16*({LORA_FORMULA})"}, ["wrong", "right"]),
        ({"Q1": "W_in*W_out", "R": "12*W_in"}, ["wrong", "partly right"]),
        ({"Q1": LORA_FORMULA, "R": "180000"}, ["right", "wrong"]),
        ({"Q1": "W_in*(", "R": "16*W_in"}, ["unreadable", "wrong"]),
        ({"R": "16*W_in*W_out"}, ["not answered", "wrong"]),
        ({"Q1": "11250", "R": "16*11250"}, ["wrong", "wrong"]),
        ({"Q1": "W_in - W_in", "R": "0", "Q3": "W_in"}, ["wrong", "wrong", "wrong"]),
    ],
)
def test_later_formulas_follow_through_from_earlier_formulas(answers: dict[str, str], expected: list[str]) -> None:
    custom = verdicts(FORMULAS, **answers)
    assert custom[: len(expected)] == expected
    points = marks(FORMULAS, **answers)["R"].points
    assert points == {"right": 2, "follow-through": 1, "partly right": 0.5}.get(expected[1], 0)


def test_answer_derived_from_a_rounded_answer_is_right() -> None:
    chain = [{"id": "A", "kind": "number", "model": "lora"}, {"id": "B", "kind": "number", "value": "16 A"}]
    assert verdicts(chain, A="11.2 thousand", B="179,200") == ["right", "right"]


def test_undefined_follow_through_is_wrong_without_error() -> None:
    chain = [CHAIN[0], {"id": "Q2", "kind": "number", "value": "1/Q1"}]
    assert verdicts(chain, Q1="0*R", Q2="5") == ["wrong", "wrong"]


def test_size_changes_follow_through_from_the_students_formula() -> None:
    questions = [
        {"id": "F", "kind": "parameters", "model": "feed-forward"},
        {"id": "C", "kind": "number", "model": "feed-forward", "change": "from d=8 to d=16", "builds_on": ["F"]},
    ]
    assert verdicts(questions, F="V*d", C="100 %") == ["wrong", "follow-through"]
    assert verdicts(questions, F="V*d + 1", C="50 %") == ["wrong", "wrong"]


GRADIENT = {"kind": "gradient", "cell": "rnn"}
STEPS = [{"id": "A", **GRADIENT, "lines": ["dz2"]}, {"id": "B", **GRADIENT, "lines": ["dU", "dz1"], "builds_on": ["A"]}]


def test_gradients_follow_through_from_earlier_gradients() -> None:
    custom = "dU = h.T @ (2*(y - y_hat))\ndz1 = ((2*(y - y_hat)) @ U.T) * h * (1 - h)"
    assert verdicts(STEPS, A="dz2 = 2*(y - y_hat)", B=custom) == ["wrong", "follow-through"]
    # Twice the gradient does not follow from the derived value.
    assert verdicts(STEPS, A="dz2 = y - y_hat", B=custom) == ["wrong", "wrong"]
    assert verdicts(STEPS, B=custom) == ["not answered", "wrong"]
    partly = [STEPS[0], {**STEPS[1], "partial": True, "follow_through": 0.5}]
    result = marks(partly, A="dz2 = 2*(y - y_hat)", B=custom.replace("h * (1 - h)", "(1 - h)"))["B"]
    assert (result.verdict, result.points, result.reason[:24]) == ("partly right", 0.25, "dU follows, dz1 wrong. T")
    right = "dU = h.T @ dz2\ndz1 = (dz2 @ U.T) * h * (1 - h)"
    assert verdicts(STEPS, A="dz2 = 2*(y - y_hat)", B=right) == ["wrong", "right"]


def test_gradient_that_uses_a_later_one_earns_nothing() -> None:
    sheet = [
        {"id": "A", "kind": "gradient", "cell": "rnn", "lines": ["db1"]},
        {"id": "B", "kind": "gradient", "cell": "rnn", "lines": ["dz1"], "builds_on": ["A"]},
    ]
    right = "db1 = (dz2 @ U.T) * h * (1 - h)"
    assert verdicts(sheet, A="", B="dz1 = db1") == ["not answered", "wrong"]
    assert verdicts(sheet, A="db1 = h", B="dz1 = db1") == ["wrong", "wrong"]
    assert verdicts(sheet, A=right, B="dz1 = db1") == ["right", "right"]
    result = marks([{**sheet[1], "builds_on": []}], B="dz1 = db1")["B"]
    assert result.points == 0 and "db1 is not known here" in result.mistakes[0]


def test_backpropagation_continues_from_the_students_gradient() -> None:
    """Compare with the explicit chain rule on a cell where two paths meet."""
    for truth, custom in zip(
        find_cell("lstm").samples,
        follow_through_samples(find_cell("lstm"), ["da = 3 * da_next", "dz = y"]),
        strict=True,
    ):
        v = truth.values
        assert torch.equal(custom.values["da"], 3 * v["da_next"]) and torch.equal(custom.values["dz"], v["y"])
        dc = v["dc_next"] + custom.values["da"] * v["G_o"] * (1 - torch.tanh(v["c"]) ** 2)
        torch.testing.assert_close(custom.values["dc"], dc)
        torch.testing.assert_close(custom.values["dW_y"], v["y"] @ v["a"].T)
        torch.testing.assert_close(custom.values["dpre_c"], dc * v["G_u"] * (1 - v["c_tilde"] ** 2))
    assert follow_through_samples(find_cell("lstm"), ["dz = y_hat - y"]) == ()  # right lines change nothing


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"points": 1}, "question Q2: kind: is missing. Say what is asked for"),
        ({"kind": "number", "value": "16*Q9"}, "question Q2: "),
        ({"kind": "number", "value": "16*q1"}, "question Q2: value: unknown question 'q1'. Did you mean 'Q1'"),
        ({"kind": "number", "value": "2*x"}, "question Q2: value: unknown question 'x'"),
        ({"kind": "number", "value": "Q1", "model": "lora"}, "question Q2: value: says what is right"),
        ({"kind": "parameters", "model": "lora", "value": "Q1"}, "question Q2: unknown setting 'value'. Choices: text"),
        ({"kind": "formula"}, "question Q2: value: a question of kind formula needs one, as in value = '16*Q1'"),
        ({"kind": "formula", "value": "16*q1"}, "question Q2: value: unknown question 'q1'. Did you mean 'Q1'"),
        ({"kind": "formula", "value": "16*Q1*z"}, "question Q2: value: "),
        ({"kind": "number", "model": "lora", "builds_on": ["Q3"]}, "question Q2: builds_on: there is no question Q3"),
        ({"kind": "number", "model": "rnn", "builds_on": ["Q1"]}, "question Q2: builds_on: Q1 does not fit: expected"),
        ({**GRADIENT, "lines": ["dU"], "builds_on": ["Q1"]}, "question Q2: builds_on: Q1 does not fit"),
        ({**GRADIENT, "lines": ["dU"], "credit": {"dU = h": 0.5}}, "question Q2: credit: is for formulas"),
        ({**LORA, "credit": {"R": 1.5}}, "question Q2.credit.R"),
    ],
)
def test_invalid_builds_on_is_refused(question: dict, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        marks([{"id": "Q1", **LORA}, {"id": "Q2", **question}], Q1="R")
    assert message in str(refusal.value)


def test_question_without_id_is_refused_by_number() -> None:
    with pytest.raises(InputError, match=r"question 1: id: is missing. Name question 1"):
        marks([LORA])


@pytest.mark.parametrize(
    ("what", "model", "answers"),
    [
        ("parameters", "lora", ["R"]),
        ("number", "lora", ["parameters", "3"]),
        ("gradient", "rnn", ["db2 = y"]),
        ("shape", "self-attention", ["Q = S"]),
        ("worked", "e9", ["c_t[1] = 0.7"]),
        ("identity", "d4", []),
        ("sources", "D4", []),
        ("sheet", {"questions": [{"id": "Q1", **LORA}]}, [{"Q1": "R"}]),
    ],
)
def test_check_of_a_wrong_answer_is_falsy(what: str, model: object, answers: list) -> None:
    assert bool(lemma.check(what, model, *answers)) is False


def test_control_characters_in_names_are_replaced(tmp_path: Path) -> None:
    result = mark_submission(tmp_path, 'student = "Ada\\u001b[31m\\n"\n[answers]\n"Q\\u001b[2J" = "1"')
    assert "\x1b" not in str(result) and result.student == "Ada\ufffd[31m"


def test_excess_answers_to_unknown_questions_are_counted(tmp_path: Path) -> None:
    result = mark_submission(tmp_path, "[answers]\n" + "\n".join(f"x{number} = 1" for number in range(1000)))
    assert len(result.notes) == 11 and result.notes[-1].startswith("990 more answers")
