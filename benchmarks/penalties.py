"""What do the losses that shape attention cost? A training step with and without them, and their memory as T grows.

Time: the blocks of rows against all weights held at once, and against no penalty, in turns in one process. Memory: a
fresh process for every length and way, the peak above what the interpreter and the model take.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.compare import compare
from benchmarks.memory import peak_megabytes
from lemma.layers.penalties import row_statistics
from lemma.layers.recording import AttentionRecord, record_attention
from lemma.models.base import LanguageModel
from lemma.models.build import build
from lemma.spec.models import Decoder
from lemma.tasks.language import causal_loss

LENGTHS = (1024, 2048, 4096)
MAX_DISTANCE = 100.0
LIMIT = 24_000
"""Megabytes of the machine at which T = 4096 must train."""
Penalty = Callable[[list[AttentionRecord]], Tensor]


def blocks(records: list[AttentionRecord]) -> Tensor:
    """Both losses as Lemma has them."""
    shape = row_statistics(records, MAX_DISTANCE)
    return 0.01 * shape.entropy + 0.001 * shape.distance


def penalty_from_weights(records: list[AttentionRecord]) -> Tensor:
    """Both losses from all weights at once."""
    weights = [record.weights() for record in records]
    focus = torch.stack([-(alpha * alpha.clamp(min=1e-30).log()).sum(-1).mean() for alpha in weights]).mean()
    squares = records[0].distances().square()
    distance = torch.stack([(alpha * squares).sum(-1).clamp(max=MAX_DISTANCE).mean() for alpha in weights[:-1]]).mean()
    return 0.01 * focus + 0.001 * distance


PENALTIES: dict[str, Penalty | None] = {
    "in blocks": blocks,
    "all weights at once": penalty_from_weights,
    "no penalty": None,
}


def model_of(time: int) -> LanguageModel:
    """A decoder of 4 layers, width 128, 4 heads."""
    return build(Decoder(vocabulary=65, width=128, depth=4, heads=4, context=time))


def step(model: LanguageModel, tokens: Tensor, penalty: Penalty | None) -> None:
    """Forward and backward."""
    with record_attention() as records:
        logits, _ = model(tokens)
    loss = causal_loss(logits, tokens)
    (loss if penalty is None else loss + penalty(records)).backward()
    model.zero_grad(set_to_none=True)


def measure(way: str, time: int) -> float:
    """The megabytes that one step adds, in this process."""
    model, tokens = model_of(time), torch.randint(65, (1, time))
    before = peak_megabytes()
    step(model, tokens, PENALTIES[way])
    return peak_megabytes() - before


def measure_megabytes(way: str, time: int) -> float:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.penalties", way, str(time)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main() -> int:
    """Print both; return 1 if the longest text does not train in the memory there is."""
    for time, batch in ((64, 12), (1024, 1)):
        model, tokens = model_of(time), torch.randint(65, (batch, time))
        peers = {way: partial(step, model, tokens, penalty) for way, penalty in PENALTIES.items()}
        title = f"a training step with focus and near, T = {time}, batch {batch}"
        print(f"{compare(title, peers, work=batch * time, unit='tokens/s', rounds=9)}\n", flush=True)
    print(f"{'memory of a step, batch 1':<28}" + "".join(f"T = {time:<8}" for time in LENGTHS))
    peaks = {way: [measure_megabytes(way, time) for time in LENGTHS] for way in PENALTIES}
    for way, megabytes in peaks.items():
        print(f"  {way:<26}" + "".join(f"{peak:>7,.0f} MB  " for peak in megabytes), flush=True)
    return int(peaks["in blocks"][-1] > LIMIT)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
