"""The speed claims on a CPU, each against its peer.

Run: python -m benchmarks decoder decoder-bfloat16 decoding start lstm feed-forward
"""

import os
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.compare import Comparison, compare
from benchmarks.gpu import LeanBlock
from lemma.generation.engine import generate as decode
from lemma.generation.sampling import Sampling
from lemma.models.base import LanguageModel, fast_copy
from lemma.models.build import build
from lemma.models.decoder import DecoderModel, DecoderSlotCache
from lemma.models.decoder_numpy import step_in_numpy
from lemma.spec.models import Decoder, FeedForward, LanguageSpec, Lstm
from lemma.spec.recipe import Recipe
from lemma.training.devices import Distributed
from lemma.training.session import Session

SMALL = Decoder(vocabulary=65, width=128, depth=4, heads=4, context=64)
STEPS = 10
Work = Callable[[], object]


def session(spec: LanguageSpec, **words: int | float | str) -> Session:
    tokens = np.random.default_rng(0).integers(0, spec.vocabulary, 100_000).astype(np.uint16)
    recipe = Recipe(device="cpu", **words)  # pyright: ignore[reportArgumentType]
    return Session(spec, recipe, tokens, Distributed(torch.device("cpu")), lambda message: None)


def trained_by_lemma(spec: LanguageSpec, batch: int, sequence_length: int, precision: str = "auto") -> Work:
    """Real steps of Lemma's own loop with all it does: batches, loss, backward, clipping, AdamW."""
    learner = session(spec, batch=batch, sequence_length=sequence_length, precision=precision)

    def work() -> None:
        for _ in range(STEPS):
            learner.step()

    return work


def trained_by_hand(
    model: nn.Module, loss_of: Callable[[Tensor, Tensor], Tensor], batch: int, sequence_length: int
) -> Work:
    """The same step written out: random batches, loss, backward, clipping, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    tokens = torch.randint(65, (100_000,))

    def step() -> None:
        starts = torch.randint(len(tokens) - sequence_length - 1, (batch, 1))
        windows = tokens[starts + torch.arange(sequence_length + 1)]
        loss_of(windows[:, :-1], windows[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return lambda: [step() for _ in range(STEPS)]


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 65, "n_positions": 64, "n_embd": 128, "n_layer": 4, "n_head": 4}
    nothing = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}
    return GPT2LMHeadModel(GPT2Config(**sizes, **nothing))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class LeanGpt(nn.Module):
    """The design of nanoGPT: `SMALL` in plain PyTorch, which writes a text by reading all of it for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SMALL.vocabulary, SMALL.width)
        self.positions = nn.Embedding(SMALL.context, SMALL.width)
        self.layers = nn.Sequential(*(LeanBlock(SMALL.width, SMALL.heads, "none") for _ in range(SMALL.depth)))
        self.norm = nn.LayerNorm(SMALL.width)

    def forward(self, tokens: Tensor, last: bool = False) -> Tensor:
        stream = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        stream = self.norm(self.layers(stream))
        return functional.linear(stream[:, -1:] if last else stream, self.embedding.weight)

    @torch.inference_mode()
    def generate(self, tokens: Tensor, count: int) -> Tensor:
        for _ in range(count):
            chances = self(tokens[:, -SMALL.context :], last=True)[:, -1].softmax(-1)
            tokens = torch.cat([tokens, chances.argmax(-1, keepdim=True)], dim=1)
        return tokens


LEAN = "a lean GPT as nanoGPT's"


def decoder_training() -> Comparison:
    lean, reference = LeanGpt().train(), gpt2().train()
    peers = {
        "Lemma": trained_by_lemma(SMALL, 12, 64),
        LEAN: trained_by_hand(lean, lambda x, y: cross_entropy(lean(x), y), 12, 64),
        "transformers GPT2LMHeadModel": trained_by_hand(
            reference, lambda x, y: cross_entropy(reference(x, use_cache=False).logits, y), 12, 64
        ),
    }
    title = "Training a decoder: 4 layers, width 128, 4 heads, context 64, batch 12, V 65"
    target = {LEAN: 1.3, "transformers GPT2LMHeadModel": 1.5}
    return compare(title, peers, work=STEPS * 12 * 64, unit="tokens/s", target=target)


def decoder_training_in_bfloat16() -> Comparison:
    """Pays where the processor has AVX-512 BF16 or AMX; elsewhere it is slower."""
    lean = LeanGpt().train()
    peers = {
        "Lemma, precision=bfloat16": trained_by_lemma(SMALL, 12, 64, "bfloat16"),
        "Lemma": trained_by_lemma(SMALL, 12, 64),
        LEAN: trained_by_hand(lean, lambda x, y: cross_entropy(lean(x), y), 12, 64),
    }
    title = "Training the same decoder with matrix products in bfloat16"
    return compare(title, peers, work=STEPS * 12 * 64, unit="tokens/s", target={LEAN: 1.3})


def decoding() -> Comparison:
    ours, lean, reference = build(SMALL).eval(), LeanGpt().eval(), gpt2().eval()
    prompt = torch.randint(65, (1, 4))
    settings = Sampling(tokens=60, temperature=0.0)

    def by_transformers() -> None:
        with torch.inference_mode():
            reference.generate(prompt, max_new_tokens=60, do_sample=False, pad_token_id=0)  # pyright: ignore

    peers = {
        "Lemma": lambda: decode(ours, [prompt[0].tolist()], settings, eos=None),
        LEAN: lambda: lean.generate(prompt, 60),
        "transformers generate": by_transformers,
    }
    title = "Decoding the same decoder at batch 1, 60 tokens, greedy"
    target = {LEAN: 5.0, "transformers generate": 3.0}
    comparison = compare(title, peers, work=60, unit="tokens/s", target=target)
    return comparison if comparison.met else replace(comparison, title=f"{title}\n  {token_times(ours)}")


@torch.inference_mode()
def token_times(model: LanguageModel) -> str:
    """Print the time of a token by part: the step in NumPy, its matrix–vector products, the same step in PyTorch."""
    assert isinstance(model, DecoderModel)
    token, (_, state) = torch.tensor([[1]]), model(torch.ones(1, 30, dtype=torch.long))
    matrices = [part.weight.numpy() for part in model.modules() if isinstance(part, nn.Linear)]
    vectors = {matrix.shape[1]: np.ones(matrix.shape[1], dtype=np.float32) for matrix in matrices}
    _, slots = step_in_numpy(model, model, token, state)
    assert isinstance(slots, DecoderSlotCache) and slots.numpy_decoder
    steppers = {
        "the step in NumPy": partial(slots.numpy_decoder.step, 1, 30),
        "its matrix–vector products": lambda: [matrix.dot(vectors[matrix.shape[1]]) for matrix in matrices],
        "the step in PyTorch": partial(fast_copy(model), token, state),
    }
    return "; ".join(
        f"{name} {1e6 * min(timeit.repeat(way, number=100)) / 100:.0f} µs" for name, way in steppers.items()
    )


FIRST_STEP, STARTS = 2.0, 5
"""The claim: seconds from typing `lemma train` to the end of its first step; and how often that is measured."""


def start() -> int:
    """Print the seconds until a small text's first step is in the metrics; return 1 if that takes too long."""

    def first_step(run: Path, text: Path) -> float:
        words = ["decoder", "--text", str(text), "--out", str(run), "device=cpu", "steps=100"]  # a row for every step
        started = time.perf_counter()
        training = subprocess.Popen(
            [sys.executable, "-m", "lemma", "train", *words], env=os.environ, stderr=subprocess.DEVNULL
        )
        metrics = run / "metrics.jsonl"
        while training.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.002)
        passed = time.perf_counter() - started
        training.kill()
        if training.wait() > 0:
            raise SystemExit("the training failed")
        return passed

    def importing() -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        return time.perf_counter() - started

    ours, import_torch = "lemma train, to its first step", "python -c 'import torch'"
    measured: dict[str, list[float]] = {ours: [], import_torch: []}
    with TemporaryDirectory(prefix="lemma-start-") as folder:
        text = Path(folder, "text.txt")
        text.write_text("All work and no play makes a dull text.\n" * 2000, encoding="utf-8")
        for number in range(STARTS):
            measured[ours].append(first_step(Path(folder, f"run-{number}"), text))
            measured[import_torch].append(importing())
    print("Start-up: from typing the command to the end of the first training step")
    for name, seconds in measured.items():
        print(f"  {name:<34}{statistics.median(seconds):6.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")
    met = statistics.median(measured[ours]) <= FIRST_STEP
    print(f"  target ≤ {FIRST_STEP} s {'met' if met else 'MISSED'}", flush=True)
    return int(not met)


class BareLstm(nn.Module):
    """The shortest LSTM language model one could write."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layers, self.output = (
            nn.Embedding(65, 256),
            nn.LSTM(256, 256, 2, batch_first=True),
            nn.Linear(256, 65),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.layers(self.embedding(tokens))[0])


def lstm_training() -> Comparison:
    bare = BareLstm()
    spec = Lstm(vocabulary=65, width=256, hidden=256, depth=2)
    peers = {
        "Lemma": trained_by_lemma(spec, 32, 64),
        "a bare nn.LSTM loop": trained_by_hand(bare, lambda x, y: cross_entropy(bare(x), y), 32, 64),
    }
    title = "Training an LSTM: 2 layers of 256, batch 32, sequence_length 64"
    return compare(title, peers, work=STEPS * 32 * 64, unit="tokens/s", target={"a bare nn.LSTM loop": 1.0})


def feed_forward() -> Comparison:
    model = build(FeedForward(vocabulary=65, width=64, hidden=256, context=8))
    tokens = torch.randint(65, (4, 64))
    peers = {
        "all windows at once": lambda: backward(model, tokens),
        "a loop over windows": lambda: loop(model, tokens),
    }
    title = "The feed-forward model's gradient over a sequence_length: N 8, width 64, hidden 256, batch 4 × 64"
    return compare(title, peers, work=4 * 64, unit="tokens/s", target={"a loop over windows": 20.0})


def backward(model: LanguageModel, tokens: Tensor) -> None:
    cross_entropy(model(tokens[:, :-1])[0], tokens[:, 1:]).backward()


def loop(model: LanguageModel, tokens: Tensor) -> None:
    losses = [
        functional.cross_entropy(model(row[None, max(0, end - 7) : end])[0][:, -1], row[end : end + 1])
        for row in tokens
        for end in range(1, tokens.shape[1])
    ]
    torch.stack(losses).mean().backward()


ALL = {
    "decoder": decoder_training,
    "decoder-bfloat16": decoder_training_in_bfloat16,
    "decoding": decoding,
    "lstm": lstm_training,
    "feed-forward": feed_forward,
}
