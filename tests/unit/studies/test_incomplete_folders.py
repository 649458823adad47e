"""Studies resume after a kill at any stage of the creation of a run folder."""

import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lemma.data.store import prepare_text
from lemma.errors import RunError
from lemma.runs.folder import RunFolder, is_started
from lemma.spec.studies import ComparedModel, GridStudy, read_study
from lemma.studies.experiment import run_study
from lemma.studies.result import StudyResult

MakeStudy = Callable[..., GridStudy]
UNUSED_PID = 2**22 + 1  # larger than any process id
TOUCHES = ((os, "mkdir"), (os, "rename"), (os, "replace"), (os, "fsync"), (os, "unlink"), (io, "open"))
SEED = (7,)


class ProcessKilled(BaseException):
    """Stands for SIGKILL: nothing may catch it or clean up."""


@contextmanager
def kill_after(after: int) -> Iterator[list[str]]:
    """Raise ProcessKilled at file operation number `after` below `runs`, without cleanup, as after SIGKILL."""
    touched: list[str] = []

    def killing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def touch(path: Any, *args: Any, **kwargs: Any) -> Any:
            if name == "fsync" or "/runs" in str(path):
                if len(touched) >= after:
                    raise ProcessKilled
                touched.append(name)
            return real(path, *args, **kwargs)

        return touch

    def rmtree_before_kill(path: Any, *args: Any, **kwargs: Any) -> None:
        if len(touched) >= after:
            raise ProcessKilled
        real_rmtree(path, *args, **kwargs)

    real_rmtree = shutil.rmtree
    with pytest.MonkeyPatch.context() as patch:
        for module, name in TOUCHES:
            patch.setattr(module, name, killing(name, getattr(module, name)))
        patch.setattr(shutil, "rmtree", rmtree_before_kill)
        patch.setattr(os, "getpid", lambda: UNUSED_PID)
        yield touched


def single_run_study(tiny_study: MakeStudy) -> GridStudy:
    return tiny_study(models=(ComparedModel(model="feed-forward", settings={"width": 4, "hidden": 8}),), seeds=SEED)


def score(result: StudyResult) -> float:
    (run,) = result.runs
    assert run.measures, run.reason
    return run.measures.perplexity


def test_study_resumes_after_kill_at_every_stage_of_folder_creation(tiny_study: MakeStudy, tmp_path: Path) -> None:
    spec = single_run_study(tiny_study)
    expected = score(run_study(spec, tmp_path / "whole"))
    (built,) = (tmp_path / "whole" / "runs").glob("*/")
    full, tokenizer = RunFolder.open(built), prepare_text(spec.data).tokenizer
    left: set[str] = set()
    seen: set[tuple[str, ...]] = set()
    for stage in range(100):
        out = tmp_path / f"stage-{stage}"
        path = out / "runs" / built.name
        folder = RunFolder(path, full.spec, full.recipe, full.data, full.data_hash)
        try:
            with kill_after(stage):
                folder.create(tokenizer)
        except ProcessKilled:
            left.add("nothing" if not path.exists() else "a run" if (path / "recipe.toml").exists() else "a folder")
            present = tuple(sorted(f"{item.relative_to(out)} {item.stat().st_size}" for item in out.rglob("*")))
            if present not in seen:  # many kills leave the same files
                seen.add(present)
                assert score(run_study(spec, out)) == expected
                assert not list(out.rglob("*.partial"))
        else:
            break
    assert left == {"nothing", "a run"} and stage > 10, "the kills came at other stages than expected"


@pytest.mark.parametrize(
    "names",
    [
        [],
        [".recipe.toml.4194305.partial"],
        ["tokenizer.json"],
        ["tokenizer.json", "spec.toml"],
        ["adaptation.toml", "labels.json", ".spec.toml.4194305.partial"],
    ],
    ids=str,
)
def test_folder_without_recipe_counts_as_not_started(tiny_study: MakeStudy, tmp_path: Path, names: list[str]) -> None:
    path = tmp_path / "out" / "runs" / "feed-forward-seed-7"
    path.mkdir(parents=True)
    for name in names:
        (path / name).write_text("")
    assert not is_started(path)
    assert score(run_study(single_run_study(tiny_study), tmp_path / "out")) > 1
    assert sorted(entry.name for entry in path.iterdir() if entry.name in names) == [
        name for name in sorted(names) if name in ("tokenizer.json", "spec.toml")
    ]


@pytest.mark.parametrize("names", [["notes.txt"], ["notes.txt", "tokenizer.json"], ["model.safetensors"]], ids=str)
def test_folder_with_foreign_files_is_refused_and_unchanged(
    tiny_study: MakeStudy, tmp_path: Path, names: list[str]
) -> None:
    path = tmp_path / "out" / "runs" / "feed-forward-seed-7"
    path.mkdir(parents=True)
    for name in names:
        (path / name).write_text("mine")
    with pytest.raises(RunError, match=rf"is not a run.*it holds {names[0]}.*Move that away, or choose another --out"):
        run_study(single_run_study(tiny_study), tmp_path / "out")
    assert {entry.name: entry.read_text() for entry in path.iterdir()} == dict.fromkeys(names, "mine")


def test_graph_study_resumes_in_an_empty_folder(tmp_path: Path) -> None:
    spec = read_study("graph", {"graph": "karate", "seeds": [1], "settings": {"steps": 5, "device": "cpu"}})
    full = run_study(spec, tmp_path / "whole")
    for run in (tmp_path / "whole" / "runs").glob("*/"):
        (tmp_path / "cut" / "runs" / run.name).mkdir(parents=True)
    cut = run_study(spec, tmp_path / "cut")
    assert [run.measures and run.measures.accuracy for run in cut.runs] == [
        run.measures and run.measures.accuracy for run in full.runs
    ]
    assert all(run.measures for run in cut.runs)
