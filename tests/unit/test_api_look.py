"""The verb `look`: arguments and errors."""

import pytest

import lemma
from lemma.errors import SpecError


def test_misspelt_subject_gets_a_suggestion() -> None:
    with pytest.raises(SpecError, match="Did you mean 'attention'"):
        lemma.look("atention", "e1")


@pytest.mark.parametrize("what", [("bpe", "a b"), ("attention", "e1"), ("cross", "e8")])
def test_unknown_look_setting_is_named(what: tuple[str, str]) -> None:
    with pytest.raises(SpecError, match=r"look: .*foo"):
        lemma.look(*what, foo=1)


def test_parse_requires_a_run_and_a_text() -> None:
    with pytest.raises(SpecError, match="give a run and a text"):
        lemma.look("parse")


def test_identities_are_listed_from_python() -> None:
    assert "c6" in str(lemma.check("identity"))
    with pytest.raises(SpecError, match="a model is expected"):
        lemma.check("parameters")
