import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from lemma.training.loop import steady_heap

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.zeros(1 << 20).add_(1)
        [torch.zeros(1 << 18) for _ in range(20)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

usual = faults()
with steady_heap(torch.device("cpu")):
    faults()
    kept = faults()
print(usual, kept, faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's setting")
def test_a_steady_heap_asks_the_system_for_no_new_pages() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    usual, kept, after = map(int, done.stdout.split())
    assert kept < usual / 10
    assert kept < after / 10  # the setting is put back
