"""Fixtures of a tiny study that runs."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lemma.spec.data import Characters, DataSpec
from lemma.spec.studies import ComparedModel, GridStudy
from small_runs import small_text


@pytest.fixture(autouse=True)
def _no_drawing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave plots out of reports, as drawing takes longer than the studies; `draws` marks tests that need them."""
    if request.node.get_closest_marker("draws") is None:
        for name, module in list(sys.modules.items()):
            if name.startswith("lemma.") and hasattr(module, "can_draw"):
                monkeypatch.setattr(module, "can_draw", lambda: False)


@pytest.fixture
def study_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))
    (tmp_path / "text.txt").write_text(small_text())
    return tmp_path


@pytest.fixture
def tiny_study(study_home: Path) -> Callable[..., GridStudy]:
    """Return a function that makes a study of tiny models on a tiny text, with changed settings."""

    def make(**changes: Any) -> GridStudy:
        words: dict[str, Any] = {
            "name": "tiny",
            "data": DataSpec(text=(str(study_home / "text.txt"),), tokenizer=Characters()),
            "models": (
                ComparedModel(model="feed-forward", settings={"width": 4, "hidden": 8}),
                ComparedModel(model="rnn"),
            ),
            "settings": {
                "steps": 6,
                "batch": 4,
                "sequence_length": 8,
                "device": "cpu",
                "warm_up": 2,
                "evaluate_every": 2,
            },
            "sample_tokens": 30,
        }
        return GridStudy(**{**words, **changes})

    return make
