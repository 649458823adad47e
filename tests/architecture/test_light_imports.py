"""Help and lists do not import torch."""

import json
import os
import subprocess
import sys
import time

import pytest

TORCHLESS = [
    ["--help"],
    ["train", "--help"],
    ["data"],
    ["data", "--json"],
    ["count", "--help"],
    ["check", "--help"],
    ["adapt", "--help"],
    ["serve", "--help"],
    ["train", "lstm", "--settings"],
    ["--version"],
]


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("words", TORCHLESS, ids=" ".join)
def test_light_commands_do_not_import_torch(words: list[str]) -> None:
    code = (
        "import sys\nfrom lemma.cli.main import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit as exit:\n    assert not exit.code, exit.code\n"
        "print([name for name in ('torch', 'fastapi', 'uvicorn') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert done.stdout.strip()


def test_importing_lemma_loads_no_heavy_libraries() -> None:
    code = "import sys, lemma; print([name in sys.modules for name in ('torch', 'pydantic', 'numpy', 'rich')])"
    assert run_python(code).strip() == "[False, False, False, False]"


def test_help_takes_under_300_milliseconds() -> None:
    """Take the minimum processor time of several runs, to exclude other load."""
    seconds = []
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-m", "lemma", "--help"], stdout=subprocess.DEVNULL, check=True)
        after = os.times()
        seconds.append(after.children_user - before.children_user + after.children_system - before.children_system)
        if seconds[-1] < 0.3:
            break
        time.sleep(0.2)
    assert min(seconds) < 0.3


def test_all_exported_names_resolve() -> None:
    names = json.loads(
        run_python("import json, lemma; print(json.dumps([n for n in lemma.__all__ if getattr(lemma, n)]))")
    )
    assert set(names) == {
        "adapt",
        "check",
        "count",
        "datasets",
        "evaluate",
        "export",
        "generate",
        "look",
        "search",
        "serve",
        "study",
        "train",
        "verify",
    }


def test_importing_submodules_does_not_shadow_verbs() -> None:
    """A subpackage with the name of a verb would replace it in `lemma` on its first import."""
    code = (
        "import importlib, pkgutil, lemma\n"
        "for module in pkgutil.iter_modules(lemma.__path__, 'lemma.'):\n"
        "    module.name.endswith('__main__') or importlib.import_module(module.name)\n"
        "print([name for name in lemma.__all__ if not callable(getattr(lemma, name))])"
    )
    assert run_python(code).strip() == "[]"
