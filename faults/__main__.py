"""`python -m faults [NAME…] [--fraction S] [--seed N]`: try faults, print what was tried and what failed."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from faults import Row
from faults.damage import damage
from faults.disks import disks
from faults.expensive_answers import expensive_answers
from faults.foreign import foreign
from faults.hostile import hostile
from faults.kills import kills
from faults.servers import servers
from faults.traps import traps

CAMPAIGNS: dict[str, Callable[[Path, float, int], Iterator[Row]]] = {
    "kills": kills,
    "damage": damage,
    "disks": disks,
    "foreign": foreign,
    "hostile": hostile,
    "answers": expensive_answers,
    "traps": traps,
    "servers": servers,
}


def main(words: list[str]) -> int:
    """Run the campaigns named, or all of them; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CAMPAIGNS))
    parser.add_argument("--fraction", type=float, default=1.0, help="of the trials; 0.1 is a tenth")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(words)
    for name in args.names:
        if name not in CAMPAIGNS:
            parser.error(f"'{name}' is not a campaign. Choices: {', '.join(CAMPAIGNS)}.")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)  # a process with several threads cannot be forked
    trials = failed = 0
    print(f"{'campaign':<10}{'tried':>8}{'failed':>8}  what", flush=True)
    for name in args.names or CAMPAIGNS:
        start = time.monotonic()
        with TemporaryDirectory(prefix="lemma-faults-") as folder:
            for row in CAMPAIGNS[name](Path(folder), args.fraction, args.seed):
                trials, failed = trials + row.trials, failed + len(row.failures)
                print(f"{row.campaign:<10}{row.trials:>8,}{len(row.failures):>8,}  {row.description}", flush=True)
                for failure in dict.fromkeys(row.failures[:5]):
                    print(f"{'':<28}{failure}", flush=True)
        print(f"{'':<26}  ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{'all':<10}{trials:>8,}{failed:>8,}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
