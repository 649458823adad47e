"""A sample of `make faults`: each kind of fault tried at least once."""

from itertools import islice
from pathlib import Path

import pytest

from faults.disks import disks
from faults.hostile import hostile
from faults.kills import kills, replacements


@pytest.mark.parametrize(
    ("campaign", "rows", "fraction"),
    [(kills, 2, 0.01), (replacements, 17, 0.02), (disks, 4, 0.01), (hostile, 12, 0.0003)],
    ids=["kills", "replacements", "disks", "hostile"],
)
def test_sampled_fault_campaign_has_no_failures(campaign, rows: int, fraction: float, tmp_path: Path) -> None:
    results = list(islice(campaign(tmp_path, fraction, 7), rows))
    assert len(results) == rows and all(row.trials for row in results)
    assert not [failure for row in results for failure in row.failures]
