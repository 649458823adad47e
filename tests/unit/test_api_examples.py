"""Doctests of the verbs, with `lemma` imported."""

import doctest

import pytest

import lemma
from lemma import api


def test_docstring_examples_of_the_verbs_pass(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path_factory.mktemp("home")))
    done = doctest.testmod(api, extraglobs={"lemma": lemma})
    assert done.attempted >= 10 and not done.failed
