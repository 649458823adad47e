"""On one GPU: a training step with penalties on attention, decoding GPT-2, and a decoder on Shakespeare.

`python -m benchmarks gpu` prints all; `python -m benchmarks.gpu penalties|decoding|shakespeare` one of them.
"""

import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lemma
from benchmarks.compare import Comparison, compare
from lemma.generation.decode import Sampling, generate
from lemma.models.build import build
from lemma.spec.models import Decoder
from lemma.spec.recipe import Recipe
from lemma.tasks.language import LanguageTask

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


PENALTIES = {1024: (16, 1.3), 4096: (4, 1.4), 8192: (2, 1.5)}
"""By length: the batch, and how many times as long a step with both penalties may take."""
MEMORY = 1.1


def step(loss: Any, tokens: Tensor) -> None:
    """Forward and backward in bfloat16, to its end."""
    with torch.autocast("cuda", torch.bfloat16):
        total = loss(tokens, tokens, None)[0]
    total.backward()
    loss.zero_grad(set_to_none=True)
    torch.cuda.synchronize()


def penalties() -> int:
    """A compiled step with both penalties and the same step without, in turns; the peak memory of each."""
    missed = 0
    for length, (batch, slowest) in PENALTIES.items():
        torch.manual_seed(0)
        model = build(Decoder(vocabulary=256, width=512, depth=4, heads=8, context=length)).cuda()
        tokens = torch.randint(256, (batch, length), device="cuda")
        recipes = {"with both penalties": Recipe(entropy_penalty=0.01, distance_penalty=0.001), "without": Recipe()}
        peers, peaks = {}, {}
        for name, recipe in recipes.items():
            loss = torch.compile(LanguageTask().loss(model, recipe), dynamic=False)
            step(loss, tokens)
            torch.cuda.reset_peak_memory_stats()
            step(loss, tokens)
            peers[name], peaks[name] = partial(step, loss, tokens), torch.cuda.max_memory_allocated()
        title = f"a training step, 4 layers, width 512, 8 heads, bfloat16, T = {length}, batch {batch}"
        found: Comparison = compare(title, peers, work=batch * length, unit="tokens/s", target={"without": 1 / slowest})
        memory = peaks["with both penalties"] / peaks["without"]
        ratio = 1 / found.ratios["without"][1]
        print(
            f"{found}\n  {ratio:.2f} × the time (target ≤ {slowest}), {memory:.2f} × the memory (target ≤ {MEMORY})\n"
        )
        missed += not found.met or memory > MEMORY
    return int(missed > 0)


DECODED = 256
RATES = {1: 3000, 32: 60_000}
"""Tokens per second that are aimed at, by batch."""


def decoding() -> int:
    """GPT-2 of 124 M parameters, greedy, against transformers' generate with its own and with a static cache."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = build(Decoder(vocabulary=50_257, width=768, depth=12, heads=12, context=1024)).cuda().eval()
    peer: Any = GPT2LMHeadModel(GPT2Config())
    peer = peer.cuda().bfloat16().eval()
    settings = Sampling(tokens=DECODED, temperature=0.0, stop_at_eos=False)
    missed = 0
    for batch, wanted in RATES.items():
        prompts = torch.randint(50_257, (batch, 16), device="cuda")

        def ours(prompts: Tensor = prompts) -> None:
            generate(model, prompts.tolist(), settings)

        def theirs(prompts: Tensor = prompts, **settings: Any) -> None:
            with torch.inference_mode():
                tokens = {"max_new_tokens": DECODED, "min_new_tokens": DECODED, "do_sample": False, "pad_token_id": 0}
                peer.generate(prompts, attention_mask=torch.ones_like(prompts), **tokens, **settings)

        peers = {"Lemma": ours, "transformers": theirs}
        peers["transformers, static cache"] = partial(theirs, cache_implementation="static")
        title = f"GPT-2 124 M, bfloat16, greedy, {DECODED} tokens, batch {batch}"
        found = compare(title, peers, work=batch * DECODED, unit="tokens/s", rounds=5)
        print(f"{found}\n  target: {wanted:,} tokens/s\n", flush=True)
        missed += found.rates["Lemma"] < wanted
    return int(missed > 0)


def shakespeare() -> int:
    """How long until a decoder reaches a validation loss of 1.47 on the characters of Shakespeare; 1 if it does not."""
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


def main(names: tuple[str, ...] = ()) -> int:
    """Run those named, or all; without a GPU there is nothing to measure."""
    if not torch.cuda.is_available():
        print("The rows of a GPU need a CUDA device.")
        return 0
    every = {"penalties": penalties, "decoding": decoding, "shakespeare": shakespeare}
    return max(every[name]() for name in names or every)


if __name__ == "__main__":
    raise SystemExit(main(tuple(sys.argv[1:])))
