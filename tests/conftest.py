"""What all tests share."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from lemma.spec.models import NEW_FAMILIES
from lemma.spec.positions import POSITIONS
from lemma.spec.recipe import OBJECTIVES

torch.set_num_threads(1)  # the tests' models are small: threads would only wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")  # and so in the processes that tests start
sys.path.insert(0, str(Path(__file__).parent))

# Every run tries the same examples; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _nothing_registered() -> Iterator[None]:
    """What a test, or an example of a page, registers is known to it alone."""
    yield
    for group in (NEW_FAMILIES, POSITIONS, OBJECTIVES):
        group.registered.clear()
