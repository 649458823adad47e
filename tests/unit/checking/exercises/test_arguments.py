"""Answers on the command line: negative numbers, names that are fields too, and answers without a name."""

import pytest
from typer.testing import CliRunner

import lemma
from lemma.checking.exercises.registry import describe_fields
from lemma.cli.main import app
from lemma.errors import InputError


@pytest.mark.parametrize("answer", ["-0.416", "-cos(3 - 1 + pi)*(-1)", "score = -0.416"])
def test_negative_numbers_are_no_options(answer: str) -> None:
    fields = ["scheme=rotary", "width=2", "position=3", "key_position=1", "vector=1 0", "key=1 0"]
    result = CliRunner().invoke(app, ["check", "position", *fields, answer])
    assert "score" in result.output, result.output


@pytest.mark.parametrize("answer", ["lr = 0.0007", "learning_rate = 7e-4", "0.0007"])
def test_a_name_that_is_a_field_too_may_be_the_answer(answer: str) -> None:
    fields = ["schedule=noam", "width=512", "warmup=4000", "step=4000"]
    assert lemma.check.exercise("optimizer", *fields, answer)


def test_an_answer_without_a_name_that_could_be_two_quantities_is_not_judged() -> None:
    fields = ["parameters=7B", "layers=32", "heads=32", "width=4096", "context=4096"]
    with pytest.raises(InputError, match="which quantity is it"):
        lemma.check.exercise("memory", *fields, "0.524 MB")
    assert lemma.check.exercise("memory", *fields, "kv_per_token = 0.524 MB")


def test_the_table_of_fields_lists_choices() -> None:
    assert "label-smoothing" in describe_fields("numerics")
    assert "Undefined" not in describe_fields("ratio")
