"""A training loop of your own, on Lemma's data and models: the result is a run like any other.

python examples/own_loop.py mybook.txt runs/mine
"""

import math
import sys

import torch
from torch.nn import functional

import lemma
from lemma.data.batches import RandomWindows
from lemma.data.store import prepare_text
from lemma.models.build import build
from lemma.spec.data import BytePairs, DataSpec
from lemma.spec.models import Decoder
from lemma.tasks.language import split_perplexity


def main(text: str, out: str, steps: int = 300, batch: int = 16, rate: float = 2e-3, width: int = 64) -> float:
    """Train a small decoder on a text file; return its loss on the validation split."""
    torch.manual_seed(1)
    data = prepare_text(DataSpec(text=(text,), tokenizer=BytePairs(vocabulary=512)))
    spec = Decoder(vocabulary=data.tokenizer.vocabulary, width=width, depth=2, heads=4, context=64)
    model = build(spec, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1)
    tokens = data.item("train")
    order = RandomWindows(len(tokens), spec.context, batch, seed=1)  # a pure function of the step
    offsets = torch.arange(spec.context + 1)

    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
        windows = tokens[order.offsets(step)[:, None] + offsets.numpy()]
        rows = torch.from_numpy(windows.astype("int64"))
        logits, _ = model(rows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}")

    lemma.runs.save(model, data.tokenizer, out, overwrite=True)
    print(lemma.generate(out, prompt="The", tokens=40))
    score = split_perplexity(model, data, "validation")
    print(score)
    return float(score.loss)


if __name__ == "__main__":
    main(*sys.argv[1:3])
