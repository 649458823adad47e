"""The registry of tasks: families and data arguments."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from lemma.errors import SpecError
from lemma.spec.models import FAMILIES
from lemma.tasks.base import Task
from lemma.tasks.registry import DATA_SETTINGS, TASKS_BY_OPTION, data_args, task_for, task_info


def test_tasks_have_at_most_seven_methods() -> None:
    public = [name for name, _ in inspect.getmembers(Task, inspect.isfunction) if not name.startswith("_")]
    assert sorted(public) == ["batches", "load", "loss", "samples", "score", "steps_per_epoch", "validate"]


@pytest.mark.parametrize("family", FAMILIES)
def test_family_task_option_is_a_data_spec_field(family: str) -> None:
    task = task_for(FAMILIES[family])
    info = task.info
    assert task.info is task_info(FAMILIES[family])
    assert info.option in info.data_spec.model_fields
    assert TASKS_BY_OPTION[info.option].data_spec is info.data_spec


def test_data_arguments_are_parsed_without_torch() -> None:
    code = "import sys; from lemma.tasks.registry import data_args; data_args({}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_families_map_to_their_tasks() -> None:
    options = {family: task_for(spec).info.option for family, spec in FAMILIES.items()}
    assert {family: option for family, option in options.items() if option != "text"} == {
        "parser": "treebank",
        "encoder-decoder": "pairs",
        "classifier": "labels",
        "tree": "labels",
        "dual-encoder": "images",
        "cross-attention": "images",
        "graph": "graph",
    }


def test_data_arguments_become_settings_with_absolute_paths(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text("text,label\n")
    settings = data_args({"labels": "mine.csv", "text_column": "t", "limit": 5, "images": None})
    assert settings.option == "labels" and settings.name == str(tmp_path / "mine.csv")
    assert settings.settings == {"text": "t", "limit": 5}
    assert data_args({"text": ["shakespeare", "mine.csv"]}).name == ["shakespeare", str(tmp_path / "mine.csv")]
    assert data_args({"graph": "blocks", "nodes": 50}).settings == {"nodes": 50}
    assert data_args({}).option is None


def test_data_settings_are_distinguished_from_evaluation_settings() -> None:
    assert {"source_column", "captions", "nodes", "parser", "dev"} < DATA_SETTINGS
    assert not DATA_SETTINGS & {"limit", "beam", "context", "stride", "layer", "head"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"text": "a", "labels": "b"}, "text and labels are given. One kind of data at a time"),
        ({"text": "a", "source_column": "s"}, "source_column = 's' belongs to pairs, which is not given"),
        ({"dev": "a.conllu"}, "belongs to treebank"),
    ],
)
def test_conflicting_data_arguments_are_rejected(given: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        data_args(given)
