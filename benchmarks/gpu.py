"""On one GPU: a training step with penalties on attention, decoding and training GPT-2, and a decoder on Shakespeare.

`python -m benchmarks gpu` prints all; `python -m benchmarks.gpu penalties|decoding|training|shakespeare` one of them.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.compare import Comparison, check_names, compare, verdict
from lemma.data.corpora import CORPORA, fetch_corpus
from lemma.generation.engine import generate
from lemma.generation.sampling import Sampling
from lemma.models.build import build
from lemma.spec.models import Decoder
from lemma.spec.recipe import Recipe
from lemma.tasks.language import LanguageTask
from lemma.training.devices import Distributed, matmul_precision
from lemma.training.session import Session

DEVICE = torch.device("cuda", 0)

PENALTIES = {1024: (16, 1.3), 4096: (4, 1.4), 8192: (2, 1.5)}
"""By length: the batch, and how many times as long a step with both penalties may take."""
MAX_MEMORY_RATIO = 1.1


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
        comparison: Comparison = compare(
            title, peers, work=batch * length, unit="tokens/s", target={"without": 1 / slowest}
        )
        memory_ratio = peaks["with both penalties"] / peaks["without"]
        ratio = 1 / comparison.ratios["without"].median
        print(f"{comparison}\n  that is {ratio:.2f} × the time (target ≤ {slowest})")
        met = verdict(memory_ratio <= MAX_MEMORY_RATIO)
        print(f"  {memory_ratio:.2f} × the memory (target ≤ {MAX_MEMORY_RATIO}): {met}\n", flush=True)
        missed += not comparison.met or memory_ratio > MAX_MEMORY_RATIO
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
    for batch, target_rate in RATES.items():
        prompts = torch.randint(50_257, (batch, 16), device="cuda")

        def ours(prompts: Tensor = prompts) -> None:
            generate(model, prompts.tolist(), settings)

        def run_transformers(prompts: Tensor = prompts, **settings: Any) -> None:
            with torch.inference_mode():
                tokens = {"max_new_tokens": DECODED, "min_new_tokens": DECODED, "do_sample": False, "pad_token_id": 0}
                peer.generate(prompts, attention_mask=torch.ones_like(prompts), **tokens, **settings)

        peers = {"Lemma": ours, "transformers": run_transformers}
        peers["transformers, static cache"] = partial(run_transformers, cache_implementation="static")
        title = f"GPT-2 124 M, bfloat16, greedy, {DECODED} tokens, batch {batch}"
        comparison = compare(title, peers, work=batch * DECODED, unit="tokens/s", rounds=5)
        met = comparison.rates["Lemma"] >= target_rate
        print(f"{comparison}\n  target ≥ {target_rate:,} tokens/s: {verdict(met)}\n", flush=True)
        missed += not met
    return int(missed > 0)


class LeanBlock(nn.Module):
    """A layer of GPT-2 as one would write it by hand."""

    def __init__(self, width: int, heads: int, gelu: str = "tanh") -> None:
        super().__init__()
        self.heads, self.gelu = heads, gelu
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, stream: Tensor) -> Tensor:
        parts = self.qkv(self.norms[0](stream)).split(stream.shape[-1], dim=-1)
        queries, keys, values = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        stream = stream + self.output(mixed.transpose(1, 2).flatten(2))
        return stream + self.narrow(functional.gelu(self.widen(self.norms[1](stream)), approximate=self.gelu))


class LeanDecoder(nn.Module):
    """GPT-2 and its loss, with tied embeddings: the reference that a training step is compared with."""

    def __init__(self, vocabulary: int, width: int, depth: int, heads: int, context: int) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(LeanBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        stream = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            stream = block(stream)
        logits = functional.linear(self.norm(stream), self.embedding.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


TRAINED: Any = {"vocabulary": 50_257, "width": 768, "depth": 12, "heads": 12, "context": 1024}
STEP_BATCH, STEP_TARGET = 32, 620 / 514  # times the compiled reference: 620 k against 514 k tokens/s


def training() -> int:
    """A step of GPT-2 124 M with its optimizer, against a lean loop in plain PyTorch, both compiled."""
    length, batch = TRAINED["context"], STEP_BATCH
    text = np.random.default_rng(0).integers(0, TRAINED["vocabulary"], 2_000_000).astype(np.uint16)
    with matmul_precision("high"):
        session = Session(Decoder(**TRAINED), Recipe(steps=10**6, batch=batch), text, Distributed(DEVICE), print)
        reference = LeanDecoder(**TRAINED).to(DEVICE)
        optimizer = torch.optim.AdamW(reference.parameters(), 1e-4, betas=(0.9, 0.95), fused=True)
        fast: Any = torch.compile(reference)
        tokens = torch.from_numpy(text[: batch * (length + 1)].astype(np.int64)).view(batch, -1).to(DEVICE)

        def lean() -> None:
            for _ in range(5):
                with torch.autocast("cuda", torch.bfloat16):
                    loss = fast(tokens[:, :-1], tokens[:, 1:])
                loss.backward()
                nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            torch.cuda.synchronize()

        def ours() -> None:
            for _ in range(5):
                session.step()
            torch.cuda.synchronize()

        title = f"training GPT-2 124 M, bfloat16, T = {length}, batch {batch}, with the optimizer"
        peers = {"Lemma": ours, "lean loop, compiled": lean}
        target = {"lean loop, compiled": STEP_TARGET}
        comparison = compare(title, peers, work=5 * batch * length, unit="tokens/s", target=target)
        print(comparison, flush=True)
        if not comparison.met:
            explain(ours, 5)
    return int(not comparison.met)


def explain(run: Callable[[], object], steps: int) -> None:
    """Print where the time of a step goes: the kernels that take longest, and the power and the clock meanwhile."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
    times: Counter[str] = Counter()
    for event in profile.events() or ():
        times[event.name] += event.device_time / steps / 1000
    print(f"  a step, by kernels: {times.total():.1f} ms")
    for name, microseconds in times.most_common(20):
        print(f"  {microseconds:8.2f} ms  {name[:100]}")
    fields = "power.draw,power.limit,clocks.sm,clocks.max.sm"
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={fields}", "--format=csv,noheader"]
    if shutil.which(command[0]):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as monitor:
            while monitor.poll() is None:
                run()
            print(
                f"  {fields.replace(',', ', ')}: {monitor.stdout.read().strip() if monitor.stdout else ''}\n",
                flush=True,
            )


SHAKESPEARE = (
    "train decoder --text shakespeare tokenizer=characters depth=6 width=384 heads=6 context=256 batch=32 "
    "positions=rotary dropout=0.1 optimizer=muon optimizer.learning_rate=0.03 learning_rate=0.002 schedule=linear "
    "final_rate=0.02 warm_up=50 steps=620 evaluate_every=620"
)
SHAKESPEARE_LOSS, SHAKESPEARE_SECONDS = 1.47, {"first": 16, "again": 10}


def shakespeare() -> int:
    """The whole command, each time in a process of its own: with nothing but the text in its data folder, and again."""
    missed, text = 0, fetch_corpus(CORPORA["shakespeare"])[0].parent
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(text, Path(folder) / "home" / "corpora" / text.name)
        surroundings = {**os.environ, "LEMMA_HOME": str(Path(folder) / "home")}
        surroundings.pop("TORCHINDUCTOR_CACHE_DIR", None)
        print(f"lemma {SHAKESPEARE}")
        for when, longest in SHAKESPEARE_SECONDS.items():
            command = [sys.executable, "-m", "lemma", *SHAKESPEARE.split(), "--out", f"{folder}/{when}", "--json"]
            start = time.perf_counter()
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=surroundings)
            total_seconds, result = time.perf_counter() - start, json.loads(done.stdout)
            met = result["validation_loss"] <= SHAKESPEARE_LOSS and total_seconds <= longest
            missed += not met
            print(
                f"  {when}: {total_seconds:.1f} s (target ≤ {longest}): {result['setup_seconds']:.1f} of set-up, "
                f"{result['seconds']:.1f} of training, the rest imports, reading, validation and writing\n"
                f"    validation loss {result['validation_loss']:.4f} by a full pass in float32 (target ≤ "
                f"{SHAKESPEARE_LOSS}): {verdict(met)}",
                flush=True,
            )
    print()
    return int(missed > 0)


def main(names: tuple[str, ...] = ()) -> int:
    """Run those named, or all; without a GPU there is nothing to measure."""
    every = {"penalties": penalties, "decoding": decoding, "training": training, "shakespeare": shakespeare}
    check_names(names, every, str(__doc__).rstrip())
    if not torch.cuda.is_available():
        print("The rows of a GPU need a CUDA device.")
        return 0
    return max(every[name]() for name in names or every)


if __name__ == "__main__":
    raise SystemExit(main(tuple(sys.argv[1:])))
