"""Does the plan say what a training takes? Peak memory of the trainer's own steps on a GPU, next to what was planned.

Run: python -m benchmarks.plan [--quick] on a machine with a CUDA GPU; without one it says so and does nothing. Steps
are not compiled, as in the plan. About two minutes.
"""

import argparse
import gc
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from lemma.counting.devices import get_device
from lemma.counting.plan import PlanSettings, plan
from lemma.counting.subject import resolve_subject
from lemma.counting.training_step import find_layers
from lemma.hub.architectures import spec_from_config
from lemma.spec.choose import choose
from lemma.spec.models import EncoderDecoder, ModelSpec
from lemma.spec.recipe import Recipe
from lemma.tasks.registry import task_for
from lemma.training.devices import choose_arithmetic, matmul_precision
from lemma.training.optimizer import build_optimizer, clip_gradients

LIMIT = 0.05
"""How far the planned peak may be from the measured one: the claim."""
LLAMA = {"model_type": "llama", "vocab_size": 32_000, "hidden_size": 768, "num_hidden_layers": 12}
LLAMA |= {"num_attention_heads": 12, "num_key_value_heads": 4, "intermediate_size": 2048}
LLAMA |= {"max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}


@dataclass(frozen=True)
class Planned:
    """Planned and measured bytes and seconds of one training."""

    name: str
    batch: int
    recompute: str
    planned: int
    measured: int
    planned_seconds: float
    seconds: float

    @property
    def error(self) -> float:
        """Return the error of the plan as a fraction of the measured value."""
        return self.planned / self.measured - 1

    def __str__(self) -> str:
        verdict = "holds" if abs(self.error) <= LIMIT else "FAILS"
        return (
            f"{self.name:<16} batch {self.batch:>3}  recompute {self.recompute:<6}  "
            f"planned {self.planned / 2**30:7.2f} GiB  measured {self.measured / 2**30:7.2f} GiB  "
            f"{self.error:+.1%}  within {LIMIT:.0%}: {verdict}   "
            f"step {self.planned_seconds * 1e3:6.1f} ms planned, {self.seconds * 1e3:6.1f} ms measured"
        )


def models() -> dict[str, ModelSpec]:
    """Return the models to train: a decoder of 124 M parameters, an LSTM, an encoder–decoder, a Llama."""
    sizes = {"width": 768, "depth": 12, "heads": 12, "context": 1024, "vocabulary": 50_257, "tied": True}
    pair = {"width": 512, "heads": 8, "encoder_depth": 6, "decoder_depth": 6, "context": 256, "vocabulary": 32_000}
    both = choose("encoder-decoder").model.replace(**pair)
    lstm = choose("lstm").model.replace(width=512, hidden=1024, depth=2, vocabulary=32_000)
    return {
        "decoder 124 M": choose("decoder").model.replace(**sizes),
        "lstm": lstm,
        "encoder-decoder": both,
        "llama": spec_from_config(LLAMA),
    }


def cases(quick: bool) -> Iterator[tuple[str, int, str]]:
    """Names, batches and whether layers are recomputed."""
    for recompute in ("none", "layers"):
        for batch in (8,) if quick else (8, 16, 32):
            yield "decoder 124 M", batch, recompute
        yield "encoder-decoder", 64, recompute
        yield "llama", 16, recompute
    yield "lstm", 128, "none"


def measure(name: str, spec: ModelSpec, batch: int, recompute: str) -> Planned:
    """Plan a training, take four steps of it, and compare."""
    settings = PlanSettings(get_device(None), batch=batch, recompute=recompute)  # pyright: ignore[reportArgumentType]
    words = {"T": 256} if name == "lstm" else {}
    subject = resolve_subject(spec, words)
    planned = plan(subject, settings)
    values, device = planned.symbols, torch.device("cuda")
    recipe = Recipe(batch=batch, steps=10, device="cuda", compile=False)
    gc.collect()
    torch.cuda.empty_cache()
    model: Any = subject.make_module(subject.sizes(True)).to(device).train()
    loss = task_for(spec).loss(model, recipe)
    if recompute == "layers":
        for _, layer in find_layers(model):
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    optimizer, arithmetic = build_optimizer(model, recipe), choose_arithmetic(recipe, device, False)
    length = values["T"] + (1 if isinstance(spec, EncoderDecoder) else 0)
    random = np.random.default_rng(1)

    def tokens(columns: int) -> torch.Tensor:
        return torch.from_numpy(random.integers(4, spec.sizes()["V"], (batch, columns))).to(device)

    inputs, targets = tokens(values.get("S", values["T"])), tokens(length)
    seconds = 0.0
    with matmul_precision("high"):
        for step in range(4):
            if step == 2:  # the optimizer's state is there, and kernels are chosen
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                seconds = time.perf_counter()
            with arithmetic.autocast():
                objective, _, _ = loss(inputs, targets, None)
            objective.backward()
            clip_gradients(model, recipe.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            del objective
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - seconds) / 2
    peak = torch.cuda.max_memory_allocated()
    return Planned(name, batch, recompute, planned.peak, peak, planned.seconds or 0.0, seconds)


def main(arguments: Sequence[str] = ()) -> int:
    """Print what was planned and measured; return 1 if a plan is off by more than the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one batch size of the decoder instead of three")
    args = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("plan: there is no CUDA GPU here, so nothing is measured.")
        return 0
    print(f"plan: peak memory of a step; {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    missed, every = 0, models()
    for name, batch, recompute in cases(args.quick):
        result = measure(name, every[name], batch, recompute)
        missed += abs(result.error) > LIMIT
        print(result, flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
