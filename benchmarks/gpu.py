"""On one GPU: how long until a decoder reaches a validation loss of 1.47 on the characters of Shakespeare."""

import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import lemma
from benchmarks.compare import machine

TARGET = 1.47
WORDS = {
    "tokenizer": "characters",
    "depth": 6,
    "width": 384,
    "heads": 6,
    "context": 256,
    "batch": 64,
    "dropout": 0.2,
    "learning_rate": 1e-3,
    "warm_up": 100,
    "steps": 2000,
    "evaluate_every": 250,
}


def main(arguments: list[str]) -> int:
    """Train it and print the loss and the seconds; exits with 1 if the loss stays above the target."""
    if not torch.cuda.is_available():
        print("This benchmark needs a CUDA device.")
        return 0
    print(machine(), flush=True)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = lemma.train("decoder", text="shakespeare", out=Path(folder) / "run", **WORDS)
        whole = time.perf_counter() - begin
        score: Any = lemma.evaluate(Path(folder) / "run")
    print(result)
    print(
        f"{whole:.1f} s in all: {result.seconds:.1f} of training, {result.setup_seconds:.1f} of set-up, rest validation"
    )
    print(f"validation loss {score.loss:.4f} by a full pass {score.protocol} (target ≤ {TARGET})")
    return int(score.loss > TARGET)


if __name__ == "__main__":
    raise SystemExit(main([]))
