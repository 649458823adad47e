"""A small text, small models and a quick validation for the tests of training; also a program that trains with them.

    python small_runs.py '{"out": "runs/a", "family": "lstm", "recipe": {"steps": 20}}' …

trains there, or goes on if "resume" is true, with the text kept in $LEMMA_HOME. With "stop_at" it gets a SIGTERM
after that step. {"command": ["train", …]} is run as the command line of Lemma.
"""

import json
import random
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import image_runs
from lemma.cli.main import main as command_line
from lemma.data.splits import Splits
from lemma.data.store import TokenArray, prepare_text
from lemma.files import data_home
from lemma.models.base import LanguageModel
from lemma.report.progress import LineObserver
from lemma.spec.data import Characters, DataSpec
from lemma.spec.models import Decoder, FeedForward, Lstm, ModelSpec
from lemma.spec.recipe import Recipe
from lemma.tasks.language import causal_loss
from lemma.training.loop import TrainingResult, resume, train

MODELS: dict[str, ModelSpec] = {
    "decoder": Decoder(width=16, depth=2, heads=2, context=12),
    "lstm": Lstm(width=8, hidden=12, depth=2),
    "lstm-tied": Lstm(width=8, hidden=8, tied=True),
    "feed-forward": FeedForward(width=6, hidden=9, context=4),
}
QUICK: dict[str, Any] = {"steps": 20, "batch": 8, "sequence_length": 12, "warm_up": 4, "device": "cpu"}


@dataclass(frozen=True)
class QuickScore:
    """A loss and its perplexity."""

    loss: float
    perplexity: float


def small_text() -> str:
    """Return about 6000 characters of words with a learnable order."""
    source = random.Random(7)
    words = ["".join(source.choices("abcdefgh", k=source.randint(2, 5))) for _ in range(40)]
    return "\n".join(" ".join(source.choices(words, k=6)) for _ in range(250))


def small_data(folder: Path) -> tuple[DataSpec, Splits[TokenArray]]:
    """Prepare the text as characters in `folder`; set LEMMA_HOME before."""
    path = folder / "text.txt"
    if not path.exists():
        path.write_text(small_text())
    spec = DataSpec(text=(str(path),), tokenizer=Characters())
    return spec, prepare_text(spec)


def quick_evaluation(dataset: Splits[TokenArray]):
    """Return an independent validation on 400 tokens in rows of ten."""
    tokens = torch.from_numpy(dataset.item("validation")[:401].astype("int64"))
    inputs, targets = tokens[:-1].view(-1, 10), tokens[1:].view(-1, 10)

    def evaluate(model: LanguageModel) -> QuickScore:
        device = next(model.parameters()).device
        loss = causal_loss(model(inputs.to(device))[0], targets.to(device))
        return QuickScore(loss.item(), loss.exp().item())

    return evaluate


def nothing_to_say(model: LanguageModel) -> list[str]:
    """Return no samples."""
    return []


def train_small(out: Path, family: str = "decoder", spec_and_data=None, **words: Any) -> TrainingResult:
    """Train a small model; arguments that are not recipe settings go to `train`."""
    data_spec, dataset = spec_and_data
    kwargs = {name: words.pop(name) for name in ("evaluate", "sample", "observer", "overwrite") if name in words}
    kwargs = {"evaluate": quick_evaluation(dataset), "sample": nothing_to_say, **kwargs}
    return train(MODELS[family], Recipe(**{**QUICK, **words}), data_spec, dataset, out, **kwargs)


def resume_small(out: Path, dataset: Splits[TokenArray], **options: Any) -> TrainingResult:
    """Resume a small run."""
    options = {"evaluate": quick_evaluation(dataset), "sample": nothing_to_say, **options}
    return resume(out, dataset, **options)


class Watcher(LineObserver):
    """An observer with plain lines that sends SIGTERM to this process after a step."""

    def __init__(self, stop_at: int | None) -> None:
        super().__init__(sys.stderr)
        self.stop_at = stop_at

    def advance(self, done: int) -> None:
        """Send the signal when it is time."""
        if done == self.stop_at:
            signal.raise_signal(signal.SIGTERM)


def main(order: dict[str, Any]) -> None:
    """Train, resume or run a command according to an argument of the program."""
    torch.set_num_threads(1)
    if "command" in order:
        return command_line(order["command"])
    if order.get("family") == "dual-encoder":
        image_runs.train_shapes(Path(order["out"]), **order["recipe"])
        return None
    spec_and_data = small_data(data_home())
    out, observer = Path(order["out"]), Watcher(order.get("stop_at"))
    if order.get("resume"):
        resume_small(out, spec_and_data[1], observer=observer)
    else:
        train_small(out, order["family"], spec_and_data, observer=observer, **order["recipe"])
    return None


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(json.loads(argument))
