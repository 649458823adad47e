"""The bytes that plans of several devices state are those that real gloo collectives move, to the byte.

`collectives.py` counts what enters each collective; a ring of n devices sends 2·(n−1)/n of an all-reduce, (n−1)/n of a
gather or of a reduce-scatter, and all that is sent from one to one. gloo implements some of these in other ways, so it
is the tensors that are counted, not packets.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from collectives import MICRO_BATCHES, MODELS

from lemma.counting.devices import get_device
from lemma.counting.parallelism import ParallelModel, TransferList
from lemma.counting.plan import PlanSettings
from lemma.counting.subject import resolve_subject

PROGRAM = Path(__file__).parent / "collectives.py"
RING = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}
TWO = ["data:decoder", "data:gpt2", "shards:decoder", "shards:llama", "pipeline:decoder"]
TWO += [f"tensor:{name}" for name in MODELS] + ["torch-tensor:llama"]
FOUR = ["data:llama", "shards:decoder", "both:decoder", "tensor:decoder", "tensor:gpt2", "pipeline:decoder"]
EIGHT = ["data:decoder", "shards:decoder", "both:decoder", "tensor:decoder"]


def count_bytes(processes: int, cases: list[str]) -> dict[str, list[dict[str, int]]]:
    """Run cases in several processes; return the bytes of each process, by collective and case."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(PROGRAM), str(processes), *cases]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def plan_transfers(case: str, processes: int) -> TransferList:
    """Return the planned transfers of a case, which runs in float32."""
    kind, _, name = case.partition(":")
    degrees = {
        "data": {"data": processes},
        "shards": {"shards": processes, "accumulate": MICRO_BATCHES},
        "both": {"data": 2, "shards": processes // 2},
        "tensor": {"tensor": processes},
        "torch-tensor": {"tensor": processes},
        "pipeline": {"pipeline": processes, "accumulate": MICRO_BATCHES},
    }[kind]
    model, sizes = MODELS[name]
    rows = sizes["B"]
    batch = rows * degrees.get("data", 1) * degrees.get("shards", 1) * degrees.get("accumulate", 1)
    settings = PlanSettings(get_device(None, memory=1e9), batch=batch, precision="float32", **degrees)
    subject = resolve_subject(model, dict(sizes))
    parallel = ParallelModel(subject, {**subject.sizes(True), "B": settings.rows})
    assert parallel.find_obstacle(settings.tensor, settings.pipeline) == "" and settings.rows == rows
    return TransferList(parallel, settings)


@pytest.mark.parametrize(("processes", "cases"), [(2, TWO), (4, FOUR), (8, EIGHT)])
def test_planned_bytes_are_those_of_real_collectives(processes: int, cases: list[str]) -> None:
    counted = count_bytes(processes, cases)
    for case in cases:
        planned = plan_transfers(case, processes)
        expected: Counter[str] = Counter()
        for transfer in planned.transfers:
            expected[transfer.collective] += transfer.sent
        actual: Counter[str] = Counter()
        kind = case.partition(":")[0]
        for collective in expected:
            moved = max(process.get(collective, 0) for process in counted[case])
            ring = processes
            if kind == "both":  # replicas are the two halves
                ring = 2 if collective == "all-reduce" else processes // 2
            elif kind == "pipeline":  # tied weights, between both ends
                ring = 2
            actual[collective] = (
                round(moved * Fraction(RING.get(collective, 1) * (ring - 1), ring)) if (collective in RING) else moved
            )
        assert actual == expected, (case, counted[case][0], planned.definitions)
        assert {*expected} == {collective for process in counted[case] for collective in process}, case
        assert all("=" in text for text in planned.definitions.values()), case  # each has a formula
