"""`python -m benchmarks [NAME…]`: measure the claims; exits with 1 if one is missed."""

import sys

from benchmarks import ledger, memory
from benchmarks.compare import machine
from benchmarks.speed import ALL


def main(names: list[str]) -> int:
    """Run the benchmarks named, or all of them."""
    print(machine(), flush=True)
    missed = 0
    for name in names or [*ALL, "ledger", "memory"]:
        if name in ("ledger", "memory"):
            print(flush=True)
            missed += ledger.main() if name == "ledger" else memory.main([])
            continue
        result = ALL[name]()
        print(f"\n{result}", flush=True)
        missed += not result.met
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
