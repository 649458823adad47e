"""Memory stays flat: the benchmark of the 1 GB claim at a smaller size."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_preparing_20_mb_of_text_uses_bounded_memory() -> None:
    program = "from benchmarks.memory import measure_all; print([measured.peak for measured in measure_all(20)])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    characters, words, byte_pairs = map(float, done.stdout.strip("[]\n").split(","))
    # The text takes 20 MB and its tokens as Python integers 160 to 700 MB; vocabularies and buffers need the rest.
    assert 0 < characters < 20
    assert 0 < words < 150
    assert 0 < byte_pairs < 150
