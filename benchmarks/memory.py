"""Does tokenising stay flat in memory? A generated text through `prepare`, a fresh process for every kind.

Run: python -m benchmarks.memory [--size MEGABYTES]
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from lemma.data.store import prepare_text
from lemma.spec.data import DataSpec

KINDS = ("characters", "words", "byte-pairs")
LIMIT = 500
"""Megabytes above the interpreter: the claim."""
WORDS = 50_000
BLOCK = 100_000


@dataclass(frozen=True)
class Measured:
    """Peak memory and time of `prepare` with one tokenizer: checking, training it, tokenizing."""

    kind: str
    megabytes: float
    peak: float
    seconds: float

    def __str__(self) -> str:
        speed = self.megabytes / self.seconds
        verdict = "holds" if self.peak < LIMIT else "FAILS"
        return f"{self.kind:<11} peak {self.peak:6.0f} MB   {speed:6.1f} MB/s   under {LIMIT} MB: {verdict}"


def generate_text(path: Path, size: int, seed: int = 1) -> None:
    """Write `size` bytes of made-up text in a stream: 50,000 words of Zipf-like frequency, signs and lines."""
    with path.open("w", encoding="utf-8", newline="") as file:
        for text in _texts(np.random.default_rng(seed)):
            file.write(text[:size])
            size -= min(size, len(text))
            if not size:
                return


def _texts(random: np.random.Generator) -> Iterator[str]:
    letters = np.array(list("etaoinshrdlcumwfgypbvkjxqz"))
    lengths = random.integers(2, 12, size=WORDS)
    words = np.array(["".join(random.choice(letters, size=length)) for length in lengths], dtype=object)
    frequency = np.cumsum(1 / (np.arange(WORDS) + 2.7))
    endings, frequencies = np.array([" ", ", ", "; ", ".\n"], dtype=object), [0.84, 0.08, 0.01, 0.07]
    while True:
        word_ids = np.searchsorted(frequency, random.random(BLOCK) * frequency[-1])
        yield "".join(words[word_ids] + random.choice(endings, size=BLOCK, p=frequencies))


def peak_megabytes() -> float:
    """The largest resident memory of this process so far, in megabytes.

    From the kernel where it tells, since getrusage still counts the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def measure(kind: str, path: Path) -> Measured:
    """Prepare the file in this process and measure what that adds to the memory held after the imports."""
    before, started = peak_megabytes(), time.perf_counter()
    prepare_text(DataSpec.model_validate({"text": (str(path),), "tokenizer": kind}))
    seconds = time.perf_counter() - started
    return Measured(kind, path.stat().st_size / 1e6, peak_megabytes() - before, seconds)


def measure_all(megabytes: int) -> Iterator[Measured]:
    """Measure every kind in a process of its own, on the same generated file."""
    with TemporaryDirectory(prefix="lemma-memory-") as folder:
        path = Path(folder) / "text.txt"
        generate_text(path, megabytes * 1_000_000)
        for kind in KINDS:
            command = [sys.executable, "-m", "benchmarks.memory", "--measure", kind, str(path)]
            environment = {**os.environ, "LEMMA_HOME": str(Path(folder) / "home")}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            yield Measured(**json.loads(done.stdout))


def main(arguments: Sequence[str] = ()) -> int:
    """Print the peak memory and the speed of each kind of tokenizer; return 1 if one is over the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--size", type=int, default=1000, help="megabytes of text (default 1000)")
    parser.add_argument("--measure", nargs=2, metavar=("KIND", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.measure:
        print(json.dumps(vars(measure(args.measure[0], Path(args.measure[1])))))
        return 0
    print(f"prepare, {args.size} MB of text; {platform.machine()}, {os.cpu_count()} cores, {date.today()}")
    worst = 0.0
    for measured in measure_all(args.size):
        print(measured, flush=True)
        worst = max(worst, measured.peak)
    return int(worst >= LIMIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
