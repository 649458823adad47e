"""Small bases of every family and a small table of labels, for the tests of adaptation."""

import random
import signal
from pathlib import Path
from typing import Any

import torch

import lemma
from lemma.report.progress import SilentObserver
from lemma.runs.checkpoint import read_tensors
from small_runs import small_text

SMALL: dict[str, dict[str, Any]] = {
    "decoder": {"width": 16, "depth": 2, "heads": 2, "context": 24},
    "lstm": {"width": 8, "hidden": 12},
    "gru": {"width": 8, "hidden": 12},
    "rnn": {"width": 8, "hidden": 12},
    "feed-forward": {"width": 6, "hidden": 9, "context": 4},
    "attentive": {"width": 6, "hidden": 9, "context": 4, "key_width": 4, "value_width": 6},
    "encoder": {"width": 16, "depth": 2, "heads": 2, "context": 24},
    "table-a5": {"embedding": 4, "width": 8, "heads": 2, "feed_forward": 8, "context": 4},
}
QUICK = {"steps": 6, "batch": 8, "warm_up": 2, "device": "cpu", "tokenizer": "characters"}


def small_base(folder: Path, family: str = "decoder", **words: Any) -> Path:
    """Train a small base on a small text; return its run folder."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_text(small_text())
    out = folder / f"base-{family}"
    if out.exists() and not words:
        return out
    lemma.train(family, text=text, out=out, progress=False, **{**SMALL[family], **QUICK, **words})
    return out


def small_table(folder: Path, texts: int = 120, name: str = "labels.csv") -> Path:
    """Write a table of texts dominated by the letter a or h, labelled with that letter."""
    source = random.Random(3)
    rows = [("many a", "aaaabcd"), ("many h", "hhhhefg")]
    lines = [f"{''.join(source.choices(rows[i % 2][1], k=12))},{rows[i % 2][0]}" for i in range(texts)]
    path = folder / name
    path.write_text("\n".join(["text,label", *lines]) + "\n")
    return path


class StopAt(SilentObserver):
    """An observer that sends SIGTERM to this process after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def advance(self, done: int) -> None:
        """Send the signal when it is time."""
        if done == self.step:
            signal.raise_signal(signal.SIGTERM)


def same_bits(first: Path, second: Path) -> bool:
    """Return whether two runs hold the same tensors, to the last bit."""
    tensors, other_tensors = (read_tensors(run / "model.safetensors")[0] for run in (first, second))
    return tensors.keys() == other_tensors.keys() and all(
        torch.equal(tensors[name], other_tensors[name]) for name in tensors
    )
