"""Memory stays flat: the benchmark of the 1 GB claim at a size that a test can afford."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_twenty_megabytes_are_prepared_in_little_memory() -> None:
    program = "from benchmarks.memory import measure_all; print([measured.peak for measured in measure_all(20)])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    characters, words, byte_pairs = map(float, done.stdout.strip("[]\n").split(","))
    # The text would take 20 MB, its tokens as Python numbers 160 to 700 MB; what is left is vocabularies and buffers.
    assert 0 < characters < 20
    assert 0 < words < 150
    assert 0 < byte_pairs < 150
