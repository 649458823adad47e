"""Every right answer is accepted, every wrong one rejected, and the mistake behind it named."""

from typing import Any

import pytest

import lemma
from tests.unit.checking.exercises.wrong_answers import load_exercises

EXERCISES = load_exercises()
RIGHT = [(table, answer) for table in EXERCISES for answer in table["right"]]
WRONG = [(table, wrong) for table in EXERCISES for wrong in table["wrong"]]


def as_lines(answer: Any) -> list[str]:
    """Return an answer as a list of lines."""
    return [answer] if isinstance(answer, str) else list(answer)


@pytest.mark.parametrize(("table", "answer"), RIGHT, ids=range(len(RIGHT)))
def test_right_answers_are_accepted(table: dict[str, Any], answer: Any) -> None:
    report = lemma.check.exercise(table["kind"], table["fields"], *as_lines(answer))
    assert report, str(report)


@pytest.mark.parametrize(("table", "wrong"), WRONG, ids=range(len(WRONG)))
def test_mistakes_of_wrong_answers_are_named(table: dict[str, Any], wrong: dict[str, Any]) -> None:
    report = lemma.check.exercise(table["kind"], table["fields"], *as_lines(wrong["answer"]))
    assert not report
    says = wrong["says"] if isinstance(wrong["says"], list) else [wrong["says"]]
    text = " ".join(str(report).split()).casefold()
    for words in says:
        assert words.casefold() in text, str(report)
