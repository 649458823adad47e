"""Start child Python processes that import nothing from the current folder.

`python -m` and `python -c` put the current folder first on `sys.path`, so a `pip.py` or `torch.py` lying there would be
executed. Every child that Lemma starts uses these two functions.
"""

import os
import sys
from pathlib import Path


def python_command(*arguments: str) -> list[str]:
    """Return the command line of a child Python that does not import from the current folder.

    >>> python_command("-m", "pip")[1:]
    ['-P', '-m', 'pip']
    """
    return [sys.executable, "-P", *arguments]


def child_environment(**overrides: str) -> dict[str, str]:
    """Return an environment in which a child imports what this process imports, but nothing from the current folder.

    The current folder stays on the path only if the user put it on PYTHONPATH by its absolute path.
    """
    requested = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if Path(entry).is_absolute()]
    inherited = [entry for entry in sys.path if Path(entry).is_absolute() and not _is_current_folder(entry)]
    package = str(
        Path(__file__).resolve().parents[1]
    )  # where Lemma was imported from, even if that is the current folder
    paths = dict.fromkeys([*requested, *inherited, package])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1", **overrides}


def _is_current_folder(path: str) -> bool:
    """Return whether a path leads to the current folder, which may have been removed meanwhile."""
    try:
        return Path(path).samefile(os.curdir)
    except OSError:
        return False
