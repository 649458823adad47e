"""What all tests share."""

import os
import sys
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # the tests' models are small: threads would only wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")  # and so in the processes that tests start
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)
