"""The speed claims on a CPU, each against its peer."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.compare import Comparison, compare
from lemma.generation.decode import Sampling
from lemma.generation.decode import generate as decode
from lemma.models.base import LanguageModel
from lemma.models.build import build
from lemma.spec.models import Decoder, FeedForward, LanguageSpec, Lstm
from lemma.spec.recipe import Recipe
from lemma.training.distributed import Distributed
from lemma.training.loop import steady_heap
from lemma.training.session import Session

SMALL = Decoder(vocabulary=65, width=128, depth=4, heads=4, context=64)
STEPS = 10
Work = Callable[[], object]


def session(spec: LanguageSpec, **words: int | float) -> Session:
    tokens = np.random.default_rng(0).integers(0, spec.vocabulary, 100_000).astype(np.uint16)
    recipe = Recipe(device="cpu", **words)  # pyright: ignore[reportArgumentType]
    return Session(spec, recipe, tokens, Distributed(torch.device("cpu")), lambda message: None)


def trained_by_lemma(spec: LanguageSpec, batch: int, sequence_length: int) -> Work:
    """Real steps of Lemma's own loop with all it does: batches, loss, backward, clipping, AdamW, a steady heap."""
    learner = session(spec, batch=batch, sequence_length=sequence_length)

    def work() -> None:
        with steady_heap(learner.processes.device):
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


def decoder_training() -> Comparison:
    theirs = gpt2().train()
    peers = {
        "Lemma": trained_by_lemma(SMALL, 12, 64),
        "transformers GPT2LMHeadModel": trained_by_hand(
            theirs, lambda x, y: cross_entropy(theirs(x, use_cache=False).logits, y), 12, 64
        ),
    }
    title = "Training a decoder: 4 layers, width 128, 4 heads, context 64, batch 12, V 65"
    return compare(title, peers, work=STEPS * 12 * 64, unit="tokens/s", target={"transformers GPT2LMHeadModel": 1.5})


def decoding() -> Comparison:
    ours, theirs = build(SMALL).eval(), gpt2().eval()
    prompt = torch.randint(65, (1, 4))
    settings = Sampling(tokens=60, temperature=0.0)

    def by_transformers() -> None:
        with torch.inference_mode():
            theirs.generate(prompt, max_new_tokens=60, do_sample=False, pad_token_id=0)  # pyright: ignore

    peers = {
        "Lemma": lambda: decode(ours, [prompt[0].tolist()], settings, eos=None),
        "transformers generate": by_transformers,
    }
    title = "Decoding the same decoder at batch 1, 60 tokens, greedy"
    return compare(title, peers, work=60, unit="tokens/s", target={"transformers generate": 3.0})


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


ALL = {"decoder": decoder_training, "decoding": decoding, "lstm": lstm_training, "feed-forward": feed_forward}
