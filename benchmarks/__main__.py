"""`python -m benchmarks [NAME…]`: measure the claims, all of them if none is named; exits with 1 if one is missed."""

import sys

from benchmarks import (
    calculators,
    counting,
    gpu,
    graph,
    memory,
    penalties,
    penn,
    plan,
    pretrained,
    searching,
    serving,
    threads,
    tokenizing,
    transformers_types,
)
from benchmarks.compare import check_names, machine
from benchmarks.speed import ALL, start

SEPARATE_PROGRAMS = {
    "start": start,
    "counting": counting.main,
    "transformers": lambda: transformers_types.main([]),
    "penalties": penalties.main,
    "memory": lambda: memory.main([]),
    "tokenizing": lambda: tokenizing.main([]),
    "pretrained": lambda: pretrained.main([]),
    "search": searching.main,
    "serving": lambda: serving.main([]),
    "graph": graph.main,
    "gpu": gpu.main,
    "threads": threads.main,
    "plan": lambda: plan.main([]),
    "calculators": lambda: calculators.main([]),
    "penn": lambda: penn.main([]),
}


def main(names: list[str]) -> int:
    """Run the benchmarks named, or all of them."""
    check_names(names, [*ALL, *SEPARATE_PROGRAMS], str(__doc__))
    print(machine(), flush=True)
    missed = 0
    for name in names or [*ALL, *SEPARATE_PROGRAMS]:
        if name in SEPARATE_PROGRAMS:
            print(flush=True)
            missed += SEPARATE_PROGRAMS[name]()
            continue
        result = ALL[name]()
        print(f"\n{result}", flush=True)
        missed += not result.met
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
