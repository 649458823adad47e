"""Does learning a graph stay linear in its edges? Generated graphs, a fresh process for every size.

Run: python -m benchmarks graph
"""

import json
import subprocess
import sys
import time
from dataclasses import dataclass

from benchmarks.memory import peak_megabytes

SIZES = (100_000, 300_000, 1_000_000)
A_NODE = 5
"""Edges for every node."""
STEPS = 5
SLACK = 1.5
"""How much more than in proportion the memory may grow from the smallest to the largest."""


@dataclass(frozen=True)
class Measured:
    """Measure a graph of this many edges: seconds per step, and megabytes above the interpreter with torch."""

    edges: int
    seconds: float
    peak: float

    def __str__(self) -> str:
        bytes_an_edge = 1e6 * self.peak / self.edges
        return (
            f"{self.edges:>9,} edges   {self.seconds:7.3f} s a step   {self.peak:6.0f} MB   {bytes_an_edge:5.0f} B/edge"
        )


def measure(edges: int) -> Measured:
    """Make a graph, lay it out, and learn a few steps of it; the fastest step counts."""
    import torch

    from lemma.data.graphs import prepare_graph
    from lemma.spec.choose import choose
    from lemma.spec.data import GraphSpec
    from lemma.spec.models import Graph
    from lemma.spec.recipe import Recipe
    from lemma.training.devices import Distributed
    from lemma.training.session import Session

    before = peak_megabytes()
    graph = prepare_graph(GraphSpec(graph="blocks", nodes=edges // A_NODE, edges=edges), seed=1)
    choice = choose("graph", {"steps": STEPS})
    assert isinstance(choice.model, Graph) and isinstance(choice.recipe, Recipe)
    session = Session(
        choice.model.with_data_sizes(graph.sizes()),
        choice.recipe,
        graph.item("train"),
        Distributed(torch.device("cpu")),
        print,
    )
    spent = []
    for _ in range(STEPS):
        start = time.perf_counter()
        session.step()
        spent.append(time.perf_counter() - start)
    return Measured(edges, min(spent), peak_megabytes() - before)


def measured(edges: int) -> Measured:
    """The same in a process of its own, so that its memory is its own."""
    command = [sys.executable, "-m", "benchmarks.graph", str(edges)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    """Measure all sizes; return 1 if the memory grows faster than the edges."""
    print("graph: two layers of 64 over generated graphs, forward, backward and AdamW", flush=True)
    rows = []
    for edges in SIZES:
        rows.append(measured(edges))
        print(rows[-1], flush=True)
    first, last = rows[0], rows[-1]
    growth = (last.peak / first.peak) / (last.edges / first.edges)
    verdict = "linear in the edges" if growth <= SLACK else "MORE than linear"
    print(f"memory from {first.edges:,} to {last.edges:,} edges: {growth:.2f} × in proportion: {verdict}")
    return int(growth > SLACK)


if __name__ == "__main__":
    result = measure(int(sys.argv[1]))
    print(json.dumps({"edges": result.edges, "seconds": result.seconds, "peak": result.peak}))
