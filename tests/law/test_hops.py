"""How many modules of the package a reader passes through: counted by tracing real calls, imports left out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TRACED = """
import json, pathlib, sys, threading
import lemma
from lemma.cli.main import main
root = str(pathlib.Path(lemma.__file__).parent)
executed = set()
def trace(frame, event, argument):
    path = frame.f_code.co_filename
    if event == "call" and path.startswith(root) and path not in executed:
        outer = frame
        while outer is not None and outer.f_code.co_name != "<module>":
            outer = outer.f_back
        module = outer.f_code.co_filename if outer is not None else ""
        if not module.startswith(root):  # not code that runs because a module of ours is being imported
            executed.add(path)
sys.setprofile(trace)
threading.setprofile(trace)
try:
    main(sys.argv[1:])
except SystemExit as exit:
    assert not exit.code, exit.code
sys.setprofile(None)
loaded = [name for name in sys.modules if name == "lemma" or name.startswith("lemma.")]
print(json.dumps([sorted(path[len(root) + 1 :] for path in executed), sorted(loaded)]))
"""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be, that is the question\n" * 300, encoding="utf-8")
    return path


def traced(tmp_path: Path, *words: str) -> tuple[list[str], list[str]]:
    environment = {**os.environ, "LEMMA_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", TRACED, *words], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    executed, loaded = json.loads(done.stdout.splitlines()[-1])
    return executed, loaded


def test_training_an_lstm_executes_few_modules_and_loads_few(tmp_path: Path, text: Path) -> None:
    words = ["train", "lstm", "--text", str(text), "--out", "run", "steps=4", "width=8", "hidden=8", "batch=4"]
    executed, loaded = traced(tmp_path, *words)
    assert "models/recurrent.py" in executed and "training/loop.py" in executed
    assert len(executed) <= 35, executed
    assert len(loaded) <= 110, loaded


def test_counting_a_decoder_executes_few_modules(tmp_path: Path) -> None:
    executed, _ = traced(tmp_path, "count", "decoder")
    assert "models/decoder.py" in executed and "counting/probe.py" in executed
    assert len(executed) <= 25, executed


def test_a_study_of_families_executes_few_modules(tmp_path: Path, text: Path) -> None:
    study = f"""
name = "small"
models = ["feed-forward", "lstm", "decoder"]
seeds = [1]

[data]
text = ["{text}"]

[recipe]
batch = 4
steps = 4
"""
    (tmp_path / "small.toml").write_text(study, encoding="utf-8")
    executed, _ = traced(tmp_path, "study", "small.toml", "--out", "out")
    assert "models/recurrent.py" in executed and "training/loop.py" in executed
    assert len(executed) <= 50, executed
