"""The page of exercises is the one that the library gives; each exercise is answered by its own solution."""

import re
from pathlib import Path

import pytest

from lemma.checking.exercises.base import ValueExercise
from lemma.checking.exercises.registry import LIBRARY, list_library, read_exercise
from pages.practice import format_practice

DOCS = Path(__file__).parents[2] / "docs"


def test_page_of_exercises_is_up_to_date() -> None:
    assert (DOCS / "practice.md").read_text(encoding="utf-8") == format_practice(), (
        "python -m pages practice docs/practice.md"
    )


@pytest.mark.parametrize("name", list_library())
def test_exercises_state_what_they_ask_in_few_lines(name: str) -> None:
    lines = (LIBRARY / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    exercise = read_exercise(name)
    assert len(lines) <= 15 and exercise.title and exercise.text
    assert exercise.help_with("hint").lines and exercise.help_with("solution").lines


@pytest.mark.parametrize("name", list_library())
def test_solutions_answer_their_own_exercise(name: str) -> None:
    exercise = read_exercise(name)
    if not isinstance(exercise, ValueExercise):
        pytest.skip("its answer is not a list of values")
    asked = [value.name for value in exercise.select_targets()]
    lines = [line for line in exercise.help_with("solution").lines if re.match(r"\S", line)]
    answers = [line for line in lines if line.partition(" = ")[0] in asked]
    assert len(answers) >= len(asked)
    report = exercise.check(answers)
    assert report, str(report)
