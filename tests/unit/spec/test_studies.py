import tomllib
from pathlib import Path
from typing import Any

import pytest

from lemma.errors import SpecError
from lemma.models.build import count_spec_parameters
from lemma.spec.base import to_toml
from lemma.spec.studies import STUDIES, read_study
from lemma.studies.grid import expand_grid

FAMILIES: Any = STUDIES["families"]


@pytest.mark.parametrize("name", STUDIES)
def test_study_round_trips_through_a_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(to_toml(STUDIES[name].to_dict()))
    assert read_study(file) == STUDIES[name]
    assert type(STUDIES[name]).model_validate(tomllib.loads(file.read_text())) == STUDIES[name]


def test_families_study_has_six_families_and_two_seeds() -> None:
    cells = expand_grid(read_study("families"))
    assert {cell.model.family for cell in cells} == {"feed-forward", "attentive", "rnn", "lstm", "gru", "decoder"}
    assert len(cells) == 12


def test_table_a5_study_has_the_published_counts() -> None:
    counts = {
        cell.model.to_dict()["depth"]: count_spec_parameters(cell.model) for cell in expand_grid(read_study("table-a5"))
    }
    assert counts == {2: 9_721_596, 4: 14_980_860}


def test_settings_override_a_built_in_study() -> None:
    words: dict[str, Any] = {
        "seeds": [1, 2, 3],
        "budget.tokens": 5000,
        "data.text": "book.txt",
        "data.tokenizer": "words",
        "settings.batch": 3,
        "grid.learning_rate": [0.1, 0.2],
    }
    study = read_study("families", words)
    assert study.seeds == (1, 2, 3)
    assert (study.budget.tokens, study.budget.parameters) == (5000, FAMILIES.budget.parameters)
    assert (study.data.text, study.data.tokenizer.kind) == (("book.txt",), "words")
    assert study.settings == {**FAMILIES.settings, "batch": 3}
    assert study.grid == {"learning_rate": (0.1, 0.2)}
    assert FAMILIES.seeds == (1, 2), "the built-in one stays what it is"


def test_token_and_time_budgets_replace_each_other() -> None:
    budget = read_study("families", {"budget.seconds": 20}).budget
    assert (budget.tokens, budget.seconds) == (None, 20)
    with pytest.raises(SpecError, match="tokens or seconds, not both"):
        read_study("families", {"budget": {"tokens": 10, "seconds": 20}})


def test_custom_study_is_named_after_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('data = { text = ["a.txt"] }\ncontenders = [{ model = "rnn" }]\n')
    assert read_study(file).name == "mine"


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("familes", {}, "Did you mean 'families'? Choices: families, table-a5"),
        ("none.toml", {}, "there is no such file"),
        ("families", {"budget.tokenz": 3}, "Did you mean 'budget.tokens'"),
        ("families", {"batch": 3}, "is a setting of the runs. Type settings.batch=3"),
        ("families", {"seeds.first": 3}, "holds no settings"),
        ("families", {"seeds": []}, "at least one seed is needed"),
        ("families", {"seeds": [1, 1]}, "none twice"),
        ("families", {"models": [{"model": "rnn"}, {"model": "rnn"}]}, "'rnn' is there twice"),
    ],
)
def test_invalid_studies_are_explained(name: str, words: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as mistake:
        read_study(name, words)
    assert message in str(mistake.value)
