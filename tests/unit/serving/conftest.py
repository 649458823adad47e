"""Runs served by a real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from served_runs import KINDS, running, untrained


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("served")
    return {kind: untrained(folder, kind) for kind in KINDS}


@pytest.fixture(scope="session")
def address(runs: dict[str, Path]) -> Iterator[str]:
    pytest.importorskip("fastapi", reason="needs FastAPI")
    with running(*runs.values()) as address:
        yield address
