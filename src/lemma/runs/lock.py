"""One writer a run: two processes that train in the same folder would undo each other's work."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lemma.errors import RunError

try:
    import fcntl
except ImportError:  # Windows has no such lock; there the person has to take care
    fcntl = None


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold a folder while it is written; the system lets go of it even if the process is killed."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise RunError(f"{folder} is being trained by another process. Wait for it, or stop it first.") from None
    except OSError:  # a file system without locks
        pass
    try:
        yield
    finally:
        os.close(handle)
