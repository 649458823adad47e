"""Pretrained models against transformers: loading, each time in a fresh process, and decoding, in turns in one process.

Run: python -m benchmarks.pretrained
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.compare import Comparison, compare
from benchmarks.memory import peak_megabytes

MODEL, PROMPT, TOKENS, ROUNDS = "smollm2-135m", "The capital of France is", 64, 5
LIMIT = 1.2
"""How many times the size of the weights loading may take, in float32: the claim."""
FASTER = 1.5
"""How many times faster decoding is: the claim."""


def load_by_lemma(path: str) -> int:
    """Load a model and its tokenizer and read a prompt, since weights may be mapped; return their bytes."""
    from lemma.runs.load import load

    run = load(path)
    with torch.inference_mode():
        run.model(torch.tensor([run.tokenizer.encode(PROMPT).tolist()]))
    return sum(weight.numel() * weight.element_size() for weight in run.module.parameters())


def load_by_transformers(path: str) -> int:
    """Load a model and its tokenizer and read a prompt, since weights may be mapped; return their bytes."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        model(**AutoTokenizer.from_pretrained(path)(PROMPT, return_tensors="pt"))
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


LOADERS = {"Lemma": load_by_lemma, "transformers": load_by_transformers}


def measure(loader: str, path: str) -> dict[str, float]:
    """Load once in this process: seconds, and the peak of memory above the bare imports, both in units of 1."""
    if loader == "Lemma":
        import lemma.hub.huggingface
        import lemma.runs.load  # noqa: F401
    else:
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM  # noqa: F401
    gc.collect()
    before, started = peak_megabytes(), time.perf_counter()
    size = LOADERS[loader](path)
    return {"seconds": time.perf_counter() - started, "peak": (peak_megabytes() - before) * 2**20, "size": size}


def loading(folder: Path, rounds: int = ROUNDS) -> int:
    """Print how the same weights are loaded, by name and from a folder; return 1 if ours take too much memory."""
    kinds = {
        f"Lemma, {MODEL} by name (GGUF, 4 bits)": ("Lemma", MODEL),
        "Lemma, the folder": ("Lemma", str(folder)),
        "transformers, the folder": ("transformers", str(folder)),
    }
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, (loader, path) in kinds.items():
            command = [sys.executable, "-m", "benchmarks.pretrained", "--load", loader, path]
            done = subprocess.run(command, env=os.environ, stdout=subprocess.PIPE, text=True, check=True)
            measured[name].append(json.loads(done.stdout.splitlines()[-1]))
    print(
        f"Loading {MODEL} in float32 and reading a prompt, in a fresh process, after the imports; medians of {rounds}"
    )
    worst = 0.0
    for name, each in measured.items():
        seconds = statistics.median(row["seconds"] for row in each)
        peak, size = statistics.median(row["peak"] for row in each), each[0]["size"]
        print(f"  {name:<42}{seconds:6.2f} s   peak {peak / 1e6:6.0f} MB, {peak / size:.2f} × the weights")
        worst = max(worst, peak / size) if kinds[name][0] == "Lemma" else worst
    print(f"  peak of Lemma ≤ {LIMIT} × the weights: {'holds' if worst <= LIMIT else 'FAILS'}", flush=True)
    return int(worst > LIMIT)


def decoding(folder: Path) -> Comparison:
    """Continue a prompt greedily; all tokens must be equal."""
    from transformers import AutoModelForCausalLM

    from lemma.generation.engine import generate
    from lemma.generation.sampling import Sampling
    from lemma.runs.load import load

    run, reference = load(folder), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    reference.generation_config.eos_token_id = None  # nobody stops early
    prompt = run.tokenizer.encode(PROMPT).tolist()
    settings = Sampling(tokens=TOKENS, temperature=0.0, stop_at_eos=False)

    def by_lemma() -> list[int]:
        return list(generate(run.model, [prompt], settings)[0].tokens)

    def by_transformers() -> list[int]:
        with torch.inference_mode():
            options = {"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
            output: Any = reference.generate(torch.tensor([prompt]), **options)  # pyright: ignore
        return output[0, len(prompt) :].tolist()

    if by_lemma() != by_transformers():
        raise SystemExit("the two do not generate the same tokens")
    title = f"Decoding {MODEL} in float32 at batch 1, greedy, {TOKENS} tokens, {torch.get_num_threads()} threads"
    peers = {"Lemma": by_lemma, "transformers generate": by_transformers}
    return compare(title, peers, work=TOKENS, unit="tokens/s", rounds=9, target={"transformers generate": FASTER})


def main(arguments: Sequence[str] = ()) -> int:
    """Print both comparisons; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretrained", description=__doc__)
    parser.add_argument("--load", nargs=2, metavar=("BY", "MODEL"), help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.load:
        print(json.dumps(measure(*args.load)))
        return 0
    import lemma

    with TemporaryDirectory(prefix="lemma-pretrained-") as root:
        folder = Path(root) / MODEL
        lemma.export(MODEL, to="huggingface", out=folder)
        missed = loading(folder)
        result = decoding(folder)
    print(f"\n{result}", flush=True)
    return int(missed or not result.met)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
