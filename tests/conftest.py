"""Shared setup of all tests."""

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

if "PYTEST_XDIST_WORKER" not in os.environ and not any(
    "gpu" in argument and argument[0] != "-" for argument in sys.argv
):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # only tests/gpu, called by its path, uses a GPU
torch.set_num_threads(1)  # threads do not speed up the small models of the tests
os.environ.setdefault("OMP_NUM_THREADS", "1")  # also in processes started by tests
sys.path.insert(0, str(Path(__file__).parent))

# Every run uses the same examples; HYPOTHESIS_PROFILE=explore searches for new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run modules with slow tests first, so that two worker processes finish together."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Freeze imported and collected objects, so that the garbage collector skips them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(scope="session")
def account_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data home for counting, which all worker processes share: the formulas of a module are read off once."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "account-home"


@pytest.fixture(scope="module")
def account_cache(account_home: Path) -> Iterator[None]:
    """Keep and find the formulas of modules in the shared data home during a module of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEMMA_HOME", str(account_home))
        yield


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _reset_registrations() -> Iterator[None]:
    """Undo registrations after each test or page example."""
    yield
    for group in (PLUGIN_FAMILIES, PLUGIN_POSITIONS, PLUGIN_OBJECTIVES):
        group.registered.clear()
