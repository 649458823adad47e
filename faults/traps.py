"""A current folder full of modules with the names of libraries: no verb executes one of them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from faults import SIZES, STEPS, STUDY, Row, small_run

MODULES = "pip re json os io abc enum random string struct types typing copy csv glob site runpy queue signal shlex"
MODULES += " subprocess threading tempfile shutil platform pathlib hashlib logging warnings socket ssl select"
MODULES += " sitecustomize usercustomize lemma numpy torch tokenizers safetensors pydantic typer rich click filelock"
MODULES += " jinja2 scipy PIL yaml tomllib fastapi uvicorn starlette altair requests urllib3 transformers triton faults"
PACKAGES = "setuptools encodings importlib concurrent multiprocessing asyncio email urllib xml collections"
SECONDS = 300  # for one command
PROCESSES = """
import os, sys
os.sched_getaffinity = lambda process: {0, 1}
import lemma.data.store
lemma.data.store.PARALLEL_BYTES = 1
from lemma.cli.main import main
main(sys.argv[1:])
"""


def set_traps(folder: Path, executed: Path) -> Path:
    """Fill a folder with modules that write their names to the file `executed` when they are imported."""
    for name in (*MODULES.split(), *PACKAGES.split()):
        trap = folder / name / "__init__.py" if name in PACKAGES.split() else folder / f"{name}.py"
        trap.parent.mkdir(parents=True, exist_ok=True)
        trap.write_text(f"with open({str(executed)!r}, 'a') as file:\n    file.write(__name__ + ' ')\n")
    return folder


def traps(folder: Path, fraction: float, seed: int = 1) -> Iterator[Row]:
    """Run every verb once by its console script in such a folder."""
    run, executed = small_run(folder, "run"), folder / "executed"
    trap_folder, out, book = set_traps(folder / "traps", executed), folder / "out", folder / "book.txt"
    (folder / "study.toml").write_text(STUDY.format(seeds=[1, 2], text=book), encoding="utf-8")
    script = [str(Path(sys.executable).with_name("lemma"))]
    settings = [f"{name}={value}" for name, value in {**SIZES, **STEPS}.items()]
    train = ["train", "lstm", "--text", str(book), *settings]
    retokenize = [word.replace("vocabulary=280", "vocabulary=290") for word in train]  # not cached by the verb before
    adapt = ["adapt", str(run), "--method", "lora", "--text", str(book), "steps=2"]
    bigrams = "V*d + D*(d + D) + D + V*D + V"
    commands: dict[str, tuple[list[str], int]] = {
        "help": ([*script, "--help"], 0),
        "count": ([*script, "count", "lstm"], 0),
        "check": ([*script, "check", "parameters", "rnn", bigrams, "L=1"], 0),
        "train": ([*script, *train, "--out", str(out / "a")], 0),
        "train, tokenising in processes": (
            [sys.executable, "-P", "-c", PROCESSES, *retokenize, "--out", str(out / "b")],
            0,
        ),
        "train on data by name": ([*script, "train", "lstm", "--text", "shakespeare", "--out", str(out / "c")], 2),
        "evaluate": ([*script, "evaluate", str(run)], 0),
        "generate": ([*script, "generate", str(run), "--prompt", "the", "--tokens", "5"], 0),
        "look": ([*script, "look", "lstm"], 0),
        "adapt": ([*script, *adapt, "--out", str(out / "d")], 0),
        "export": ([*script, "export", str(out / "d"), "--to", "merged", "--out", str(out / "e")], 0),
        "search": ([*script, "search", str(run), "--images", str(trap_folder), "--query", "a cat"], 2),
        "study": ([*script, "study", str(folder / "study.toml"), "--out", str(out / "f"), "--jobs", "2"], 0),
        "data": ([*script, "data"], 0),
        "verify": ([*script, "verify", str(run)], 0),
        "serve": ([*script, "serve", str(run), "--port", "0", "--json"], 0),
    }
    for verb, (command, expected) in commands.items():
        row = Row("traps", verb)
        executed.unlink(missing_ok=True)
        status, printed = call(command, trap_folder, folder / "home", serves=verb == "serve")
        names = executed.read_text() if executed.exists() else ""
        wrong = f"{verb} executed {names}" if names else f"{verb} ended with {status}: {printed[-200:]!r}"
        row.add(wrong if names or status != expected or "Traceback" in printed else None)
        yield row


def call(command: Sequence[str], cwd: Path, home: Path, serves: bool = False) -> tuple[int | None, str]:
    """Run a command without a package index; stop a server by Ctrl-C once it has printed where it is."""
    environment = {**os.environ, "LEMMA_HOME": str(home), "PIP_NO_INDEX": "1", "PYTHONUNBUFFERED": "1"}
    environment.pop("PYTHONPATH", None)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=cwd, env=environment, text=True, **pipes) as child:
        printed = ""
        if serves and child.stdout:
            for line in child.stdout:
                printed += line
                if line == "}\n":
                    break
            child.send_signal(signal.SIGINT)
        try:
            printed += child.communicate(timeout=SECONDS)[0]
        except subprocess.TimeoutExpired:
            child.kill()
            return None, f"no end after {SECONDS} s"
    return child.returncode, printed
