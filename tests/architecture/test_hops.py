"""Number of modules and functions that real calls execute, counted by tracing."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

TRACED = """
import json, pathlib, sys, threading
import lemma
root = str(pathlib.Path(lemma.__file__).parent)
executed = set()
def trace(frame, event, argument):
    path = frame.f_code.co_filename
    if path in executed or not path.startswith(root):
        return
    outer = frame
    while outer is not None and outer.f_code.co_name != "<module>":
        outer = outer.f_back
    module = outer.f_code.co_filename if outer is not None else ""
    if not module.startswith(root):  # not code that runs because a module of ours is being imported
        executed.add(path)
call = json.loads(sys.argv[1])
verb = getattr(lemma, call.pop("verb"))
sys.settrace(trace)  # told of each call of a Python function and of nothing else, since `trace` returns None
threading.settrace(trace)
verb(**call)
sys.settrace(None)
loaded = [name for name in sys.modules if name == "lemma" or name.startswith("lemma.")]
print(json.dumps([sorted(path[len(root) + 1 :] for path in executed), sorted(loaded)]))
"""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be, that is the question\n" * 300, encoding="utf-8")
    return path


def traced(tmp_path: Path, **call: Any) -> tuple[list[str], list[str]]:
    """Return the modules of the package that a call of the Python API executes, and those that it loads."""
    environment = {**os.environ, "LEMMA_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", TRACED, json.dumps(call)], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    executed, loaded = json.loads(done.stdout.splitlines()[-1])
    return executed, loaded


def test_training_an_lstm_executes_and_loads_few_modules(tmp_path: Path, text: Path) -> None:
    small = {"steps": 4, "width": 8, "hidden": 8, "batch": 4}
    executed, loaded = traced(tmp_path, verb="train", model="lstm", text=str(text), out="run", **small)
    assert "models/recurrent.py" in executed and "training/loop.py" in executed
    assert len(executed) <= 30, executed
    assert len(loaded) <= 83, loaded


def test_counting_a_decoder_executes_few_modules(tmp_path: Path) -> None:
    executed, _ = traced(tmp_path, verb="count", model="decoder")
    assert "models/decoder.py" in executed and "counting/fit.py" in executed
    assert len(executed) <= 24, executed  # contractions and linear equations have a module each


def test_study_of_families_executes_few_modules(tmp_path: Path, text: Path) -> None:
    study = f"""
name = "small"
models = ["feed-forward", "lstm", "decoder"]
seeds = [1]
settings = {{ batch = 4, steps = 4 }}

[data]
text = ["{text}"]
"""
    (tmp_path / "small.toml").write_text(study, encoding="utf-8")
    executed, _ = traced(tmp_path, verb="study", name="small.toml", out="out")
    assert "models/recurrent.py" in executed and "training/loop.py" in executed
    modules = [path for path in executed if path.endswith(".py")]  # the others are templates
    assert len(modules) <= 65, modules  # 135 by reading in version 0.1


HOPS = """
import json, pathlib, sys
import lemma
root = str(pathlib.Path(lemma.__file__).parent)
calls, path = [], None
def name(frame):
    return frame.f_code.co_filename[len(root) + 1 :] + ":" + frame.f_code.co_qualname
def stack(frame):
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return [frame for frame in frames if frame.f_code.co_filename.startswith(root)]
def trace(frame, event, argument):
    global path
    if path is not None or not frame.f_code.co_filename.startswith(root) or "<" in frame.f_code.co_name:
        return
    frames = stack(frame)
    if any(outer.f_code.co_name == "<module>" for outer in frames):  # an import
        return
    callers = [outer for outer in frames[1:] if "<" not in outer.f_code.co_name]
    if callers:
        calls.append((name(callers[0]), name(frame)))
    if frame.f_code.co_qualname.endswith("AdamW.step"):
        path = [name(outer) for outer in reversed(frames) if "<" not in outer.f_code.co_name]
sys.settrace(trace)
lemma.train(**json.loads(sys.argv[1]))
sys.settrace(None)
print(json.dumps([path, calls]))
"""


def test_few_hops_lead_to_the_first_weight_update(tmp_path: Path, text: Path) -> None:
    """The path is the chain of Lemma's functions on the stack at the first step of the optimizer.

    A hop is a distinct call, in the order of execution, from a function of the path to a function in another module of
    Lemma: another file that a reader of the path opens. Imports, lambdas and comprehensions do not count. A hop changes
    packages if the called function is in another package than the one of the hop before.
    """
    arguments = {"model": "lstm", "text": str(text), "out": "run", "steps": 4, "width": 8, "hidden": 8, "batch": 4}
    environment = {**os.environ, "LEMMA_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", HOPS, json.dumps(arguments)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    path, calls = json.loads(done.stdout.splitlines()[-1])
    assert path[0] == "api.py:train" and path[-1].startswith("training/optimizer.py"), path
    on_path = [call for call in calls if call[0] in path and call[0].partition(":")[0] != call[1].partition(":")[0]]
    hops = list(dict.fromkeys(map(tuple, on_path)))
    packages = [callee.partition("/")[0] for _, callee in hops]
    assert len(path) <= 6, path
    assert len(hops) <= 25, hops
    assert sum(first != second for first, second in pairwise(packages)) <= 12, packages
    called = [callee for _, callee in calls]
    assert called.count("tasks/registry.py:task_for") == 1  # the task is chosen once and passed on
    assert called.count("spec/choose.py:choose") == 1
