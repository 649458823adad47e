"""What all tests share."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from lemma.spec.models import PLUGIN_FAMILIES
from lemma.spec.positions import PLUGIN_POSITIONS
from lemma.spec.recipe import PLUGIN_OBJECTIVES

torch.set_num_threads(1)  # the tests' models are small: threads would only wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")  # and so in the processes that tests start
sys.path.insert(0, str(Path(__file__).parent))

# Every run tries the same examples; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with slow tests come first: with two processes, the one that has nothing left waits for a quick test."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Return what was imported and collected stays: the garbage collector shall not look through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _nothing_registered() -> Iterator[None]:
    """Return what a test, or an example of a page, registers is known to it alone."""
    yield
    for group in (PLUGIN_FAMILIES, PLUGIN_POSITIONS, PLUGIN_OBJECTIVES):
        group.registered.clear()
