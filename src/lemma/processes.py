"""Child Python processes that import nothing from the current folder, and the messages to them.

`python -m` and `python -c` put the current folder first on `sys.path`, so a `pip.py` or `torch.py` in it would be
executed. Every child that Lemma starts uses `python_command` and `child_environment`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any


def python_command(*arguments: str) -> list[str]:
    """Return the command line of a Python process that imports nothing from the current folder.

    >>> python_command("-m", "pip")[1:]
    ['-P', '-m', 'pip']
    """
    return [sys.executable, "-P", *arguments]


def child_environment(**overrides: str) -> dict[str, str]:
    """Return environment variables for a child process with this one's import path, updated with `overrides`.

    The current folder stays on the path only if the user put it on PYTHONPATH by its absolute path.
    """
    requested = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if Path(entry).is_absolute()]
    inherited = [entry for entry in sys.path if Path(entry).is_absolute() and not _is_current_folder(entry)]
    package = str(Path(__file__).resolve().parents[1])  # of Lemma, even if that is the current folder
    paths = dict.fromkeys([*requested, *inherited, package])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1", **overrides}


def _is_current_folder(path: str) -> bool:
    """Return whether a path leads to the current folder; False if that was removed meanwhile."""
    try:
        return Path(path).samefile(os.curdir)
    except OSError:
        return False


def start_child(module: str, stderr: int | None = None, **environment: str) -> subprocess.Popen[bytes]:
    """Run a Python module in a child process with pipes as stdin and stdout; Ctrl-C reaches only the parent.

    `stderr` is passed to `Popen`; `environment` holds additional environment variables.
    """
    return subprocess.Popen(
        python_command("-m", module),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=child_environment(**environment),
        start_new_session=True,
    )


def write_message(stream: IO[bytes], value: Any, payload: bytes = b"") -> None:
    """Write a JSON value to a stream, preceded by its length in 8 bytes and followed by `payload`."""
    content = json.dumps(value).encode()
    stream.write(len(content).to_bytes(8) + content + payload)
    stream.flush()


def read_message(stream: IO[bytes]) -> Any:
    """Read the JSON value of a message, without its payload; None at the end of the stream, even within a message."""
    head = stream.read(8)
    content = stream.read(int.from_bytes(head)) if len(head) == 8 else b""
    return json.loads(content) if content and len(content) == int.from_bytes(head) else None
