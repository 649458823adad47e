"""How long should a thread spin before it sleeps? Training and decoding with several waits, idle and busy.

Two OpenMP threads that spin for each other lose most of their time as soon as other programs want the cores; threads
that sleep at once lose time to waking up on an idle machine. Lemma lets them spin for a short while, and for a shorter
one where others want all cores (`GOMP_SPINCOUNT`, set by the command line unless the environment says otherwise). Every
wait is measured in a process of its own, one after the other and over again, so that what else happens on the machine
meets all of them.

Run: python -m benchmarks.threads [--rounds N] [--seconds S] [--busy PROCESSES]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from lemma.cli.main import SPIN_BUSY, SPIN_IDLE, set_spin_count

OURS = "Lemma's choice"
WAITS = {
    OURS: {},
    "libgomp's own": {"GOMP_SPINCOUNT": "300000"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    **{f"spin {count:,}": {"GOMP_SPINCOUNT": str(count)} for count in (SPIN_BUSY, 3_000, SPIN_IDLE)},
}
IDLE, BUSY = 0.95, 2 / 3
"""The claim: at least this share of the best wait's speed."""
BURN = "while True: pass"


def work(seconds: float) -> dict[str, float]:
    """Tokens per second of training a small LSTM and a small decoder, and of decoding, in this process."""
    set_spin_count()
    import torch

    from lemma.models.build import build
    from lemma.spec.models import Decoder, Lstm

    torch.manual_seed(1)
    tokens = torch.randint(0, 1024, (16, 65))
    model: Any = None
    speeds: dict[str, float] = {}
    for name, spec in {"lstm": Lstm(vocabulary=1024), "decoder": Decoder(vocabulary=1024)}.items():
        model = build(spec)
        optimizer = torch.optim.AdamW(model.parameters())
        done, start = 0, time.perf_counter()
        while (passed := time.perf_counter() - start) < seconds or done < 2:
            logits, _ = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            done += 1
        speeds[f"training {name}"] = done * 16 * 64 / passed
    with torch.inference_mode():
        logits, state = model.eval()(tokens[:1, :8])
        done, start = 0, time.perf_counter()
        while (passed := time.perf_counter() - start) < seconds or done < 2:
            if done % 40 == 0:
                logits, state = model(tokens[:1, :8])
            logits, state = model(logits[:, -1:].argmax(-1), state)
            done += 1
        speeds["decoding decoder"] = done / passed
    return speeds


@contextmanager
def busy_processes(count: int):
    """Keep `count` processes busy, one core each."""
    with ExitStack() as stack:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", BURN])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def measure(rounds: int, seconds: float, busy: int) -> dict[str, dict[str, float]]:
    """The median speed of each kind of work for each wait."""
    speeds: dict[str, dict[str, list[float]]] = {wait: {} for wait in WAITS}
    with busy_processes(busy):
        for _ in range(rounds):
            for wait, settings in WAITS.items():
                environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
                command = [sys.executable, "-m", "benchmarks.threads", "--work", str(seconds)]
                done = subprocess.run(
                    command, env={**environment, **settings}, capture_output=True, text=True, check=True
                )
                for name, speed in json.loads(done.stdout).items():
                    speeds[wait].setdefault(name, []).append(speed)
    return {wait: {name: median(values) for name, values in by_name.items()} for wait, by_name in speeds.items()}


def main(words: Sequence[str] = ()) -> int:
    """Print a table for an idle machine and one for a busy one; return how many claims were missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--busy", type=int, default=2 * (os.cpu_count() or 1), help="processes next to it when busy")
    parser.add_argument("--work", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.work:
        print(json.dumps(work(args.work)))
        return 0
    missed = 0
    for title, busy, claim in (("idle", 0, IDLE), (f"busy: {args.busy} other processes", args.busy, BUSY)):
        speeds = measure(args.rounds, args.seconds, busy)
        print(f"\n{title} (load {os.getloadavg()[0]:.1f}), tokens per second", flush=True)
        names = list(speeds[OURS])
        print(f"{'':<16}" + "".join(f"{name:>20}" for name in names))
        for wait, by_name in speeds.items():
            print(f"{wait:<16}" + "".join(f"{by_name[name]:>20,.0f}" for name in names), flush=True)
        for name in names:
            fraction = speeds[OURS][name] / max(by_name[name] for by_name in speeds.values())
            missed += fraction < claim
            verdict = "holds" if fraction >= claim else "MISSED"
            print(f"{name}: {OURS} has {fraction:.0%} of the best; at least {claim:.0%}: {verdict}")
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
