"""The verb `look`: what it takes, and what it says to slips."""

import pytest

import lemma
from lemma.errors import SpecError


def test_a_wrong_word_gets_the_known_ones() -> None:
    with pytest.raises(SpecError, match="Did you mean 'attention'"):
        lemma.look("atention", "e1")


@pytest.mark.parametrize("what", [("bpe", "a b"), ("attention", "e1"), ("cross", "e8")])
def test_a_strange_setting_is_said_plainly(what: tuple[str, str]) -> None:
    with pytest.raises(SpecError, match=r"look: .*foo"):
        lemma.look(*what, foo=1)


def test_a_tree_needs_a_run() -> None:
    with pytest.raises(SpecError, match="give a run and a text"):
        lemma.look("parse")


def test_identities_are_listed_from_python_too() -> None:
    assert "c6" in str(lemma.check("identity"))
    with pytest.raises(SpecError, match="a model is expected"):
        lemma.check("parameters")
