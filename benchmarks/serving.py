"""Load on `lemma serve`: many clients at once against one at a time, the first token, and memory over many requests.

Run: python -m benchmarks.serving [--clients 200] [--seconds 20] [--requests 10000] [--gpu]
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.compare import compare, machine

FASTER = 5.0
"""How many times the throughput of one text at a time: the claim."""
GROWTH = 1.05
"""How much more memory may be taken after all requests than after the first tenth of them: the claim."""
TOKENS, BATCH = 64, 128


def small_run(folder: Path) -> Path:
    """A decoder of the size of the demo's, with the characters of Shakespeare; its weights are drawn."""
    from lemma.data.tokenizers import train_tokenizer
    from lemma.models.build import build
    from lemma.runs.checkpoint import named_weights
    from lemma.runs.folder import RunFolder
    from lemma.spec.data import Characters, DataSpec
    from lemma.spec.models import Decoder
    from lemma.spec.recipe import Recipe

    tokenizer = train_tokenizer(Characters(), ["\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"])
    spec = Decoder(vocabulary=tokenizer.vocabulary, width=64, depth=4, heads=4, context=128)
    torch.manual_seed(0)
    run = RunFolder(folder / "small", spec, Recipe(), DataSpec(text=("shakespeare",)), "0").create(tokenizer)
    run.finish(named_weights(build(spec), include_frozen=True), {})
    return folder / "small"


@contextmanager
def served(run: str | Path, *options: str) -> Iterator[tuple[int, int]]:
    """`lemma serve` in a process of its own; its port and its process id."""
    words = [sys.executable, "-m", "lemma", "serve", str(run), "--port", "0", "--json", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        printed = ""
        while not printed.endswith("}\n"):
            line = server.stdout.readline()
            assert line, "the server has ended"
            printed += line
        yield int(json.loads(printed)["address"].rpartition(":")[2]), server.pid
        server.terminate()


async def ask(port: int, tokens: int, seed: int, prompt: str | list[int]) -> tuple[int, float]:
    """Send one streaming request and read all of it; the tokens that came, and the seconds until the first."""
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "seed": seed, **streaming}).encode()
    start, first, read = time.perf_counter(), 0.0, bytearray()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    writer.write(f"{head}content-type: application/json\r\nconnection: close\r\n\r\n".encode() + body)
    while part := await reader.read(65536):
        read += part
        if not first and b"data:" in read:
            first = time.perf_counter() - start
    writer.close()
    assert read.startswith(b"HTTP/1.1 200") and b"[DONE]" in read, bytes(read[:300])
    return int(read.rpartition(b'"completion_tokens": ')[2].partition(b",")[0]), first


async def load(port: int, clients: int, tokens: int, *, seconds: float = 0.0, requests: int = 0) -> dict[str, float]:
    """Clients that ask again and again, for a time or a number of requests in all: tokens per second, first tokens."""
    chance, firsts, total, num_requests = random.Random(1), list[float](), 0, 0
    start = time.perf_counter()

    async def client() -> None:
        nonlocal total, num_requests
        while num_requests < requests if requests else time.perf_counter() - start < seconds:
            num_requests += 1
            prompt = "".join(chance.choices("abcdefghijklmnop ", k=chance.randint(4, 40)))
            num_tokens, first = await ask(port, tokens, num_requests, prompt)
            total += num_tokens
            firsts.append(first)

    await asyncio.gather(*(client() for _ in range(clients)))
    firsts.sort()
    spent = time.perf_counter() - start
    return {
        "tokens/s": total / spent,
        "requests": len(firsts),
        "first token, median": statistics.median(firsts),
        "first token, p95": firsts[int(0.95 * (len(firsts) - 1))],
    }


def resident(process: int) -> float:
    """The memory of a process, in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def processor_seconds(process: int) -> float:
    """The processor time that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def show(name: str, measured: dict[str, float]) -> None:
    times = ", ".join(f"{key} {1000 * measured[key]:.0f} ms" for key in measured if key.startswith("first"))
    print(
        f"  {name:<40}{measured['tokens/s']:>9,.0f} tokens/s  ({measured['requests']:,.0f} requests; {times})",
        flush=True,
    )


def on_cpu(clients: int, seconds: float, requests: int) -> int:
    """The small decoder on this machine's cores; how many claims are missed."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    print(f"Serving a decoder of 4 layers, width 64: texts of {TOKENS} tokens, {clients} streaming clients", flush=True)
    missed = 0
    with TemporaryDirectory() as folder:
        run = small_run(Path(folder))
        rates: dict[str, list[float]] = {"one": [], "many": []}
        options = ("--device", "cpu", "--max-waiting", str(clients))
        with (
            served(run, *options, "--max-batch", "1") as (single_port, first),
            served(run, *options, "--max-batch", str(BATCH)) as (port, process),
        ):
            num_requests, single, batched = {first: 0.0, process: 0.0}, {}, {}
            for _ in range(3):  # in turns
                single = asyncio.run(load(single_port, clients, TOKENS, seconds=seconds / 3))
                batched = asyncio.run(load(port, clients, TOKENS, seconds=seconds / 3))
                rates["one"].append(single["tokens/s"])
                rates["many"].append(batched["tokens/s"])
                num_requests[first] += single["requests"]
                num_requests[process] += batched["requests"]
            show("one text at a time (--max-batch 1)", single)
            show(f"--max-batch {BATCH}", batched)
            for name, server in (("one text at a time", first), (f"--max-batch {BATCH}", process)):
                microseconds_per_token = 1e6 * processor_seconds(server) / (TOKENS * num_requests[server])
                print(f"  processor time, {name:<24}{microseconds_per_token:>9,.0f} µs/token, start-up included")
            ratio = statistics.median(b / a for a, b in zip(rates["one"], rates["many"], strict=True))
            missed += ratio < FASTER
            print(f"  times the throughput: {ratio:.1f} (target ≥ {FASTER:g}){' MISSED' if ratio < FASTER else ''}")
            if requests:
                sizes: list[float] = []
                for tenth in range(1, 11):
                    short = asyncio.run(load(port, 20, 4, requests=requests // 10))
                    sizes.append(resident(process))
                    if tenth in (1, 10):
                        show(f"short requests, {tenth * requests // 10:,} by now", short)
                missed += sizes[-1] > GROWTH * sizes[0]
                verdict = " MISSED" if sizes[-1] > GROWTH * sizes[0] else ""
                listed_sizes = ", ".join(f"{size:.0f}" for size in sizes)
                print(f"  memory after each tenth of {requests:,} requests: {listed_sizes} MB{verdict}")
    return missed


SMOLLM2: dict[str, Any] = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rope_theta": 100_000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
"""A Llama of 134.5 M parameters: SmolLM2's sizes. Its weights are drawn, since no figure depends on them."""


def create_random_run(folder: Path, config: dict[str, Any]) -> Path:
    """A run of a Llama of these sizes, whose tokens are the first characters of a large alphabet."""
    from lemma.data.tokenizers import train_tokenizer
    from lemma.hub.architectures import spec_from_config
    from lemma.models.build import build
    from lemma.runs.checkpoint import named_weights
    from lemma.runs.folder import RunFolder
    from lemma.spec.data import Characters, DataSpec
    from lemma.spec.recipe import Recipe

    spec = spec_from_config({**config, "model_type": "llama", "hidden_act": "silu"})
    tokenizer = train_tokenizer(
        Characters(), ["".join(chr(0x20000 + number) for number in range(config["vocab_size"]))]
    )
    torch.manual_seed(0)
    run = RunFolder(folder / "drawn", spec, Recipe(), DataSpec(text=("shakespeare",)), "0").create(tokenizer)
    run.finish(named_weights(build(spec), include_frozen=True), {})
    return folder / "drawn"


def against_transformers(
    config: dict[str, Any], device: str, batch: int = 32, tokens: int = 256, rounds: int = 5
) -> int:
    """The engine of the server, and the server where its packages are, against transformers' generate of one batch.

    Every text has as many tokens, and transformers' prompts one length, which is its best case: it pads others.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    import lemma
    from lemma.generation.engine import BatchEngine
    from lemma.generation.sampling import Sampling
    from lemma.generation.sequences import TextRequest

    half = device == "cuda"
    title = f"{batch} texts of {tokens} tokens at once, sampled, {'bfloat16' if half else 'float32'}"
    chance, vocabulary = random.Random(1), config["vocab_size"]
    equal = [[chance.randrange(vocabulary) for _ in range(16)] for _ in range(batch)]
    mixed = [[chance.randrange(vocabulary) for _ in range(chance.randint(4, 100))] for _ in range(batch)]
    settings = Sampling(tokens=tokens, temperature=1.0, stop_at_eos=False)
    wait = torch.cuda.synchronize if half else lambda: None
    peers: dict[str, Any] = {}
    with TemporaryDirectory() as folder, ExitStack() as servers:
        path = create_random_run(Path(folder), config)
        run = lemma.load(path, device)
        engine = BatchEngine(run.model, run.tokenizer, batch, dtype=settings.dtype(torch.device(device)))

        def generate_with_engine(prompts: list[list[int]]) -> None:
            for number, prompt in enumerate(prompts):
                engine.add(TextRequest(tuple(prompt), settings, first_row=number, owner=number))
            done = 0
            while engine.is_busy:
                done += sum(len(event.result.tokens) for event in engine.step() if event.result)
            assert done == batch * tokens

        peers["BatchEngine, prompts of 16 tokens"] = partial(generate_with_engine, equal)
        peers["BatchEngine, prompts of 4 to 100 tokens"] = partial(generate_with_engine, mixed)
        missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
        if missing:
            print(
                f"The engine alone: {' and '.join(missing)} are missing here, so nothing is served over HTTP",
                flush=True,
            )
        else:
            port, _ = servers.enter_context(served(path, "--device", device, "--max-batch", str(batch)))

            async def send_all() -> None:
                comparison = await asyncio.gather(
                    *(ask(port, tokens, seed, prompt) for seed, prompt in enumerate(equal))
                )
                assert sum(generate_with_engine for generate_with_engine, _ in comparison) == batch * tokens

            peers["lemma serve, streaming over HTTP"] = lambda: asyncio.run(send_all())
        reference: Any = LlamaForCausalLM(LlamaConfig(**config, bos_token_id=0, eos_token_id=None, pad_token_id=0))
        reference = reference.to(device=device, dtype=torch.bfloat16 if half else torch.float32).eval()
        ids = torch.tensor(equal, device=device)

        def generated(**more: Any) -> None:
            with torch.inference_mode():
                length = {"max_new_tokens": tokens, "min_new_tokens": tokens}
                options = {"attention_mask": torch.ones_like(ids), "do_sample": True, "top_k": 0, **length, **more}
                comparison = reference.generate(ids, **options)
            wait()
            assert comparison.shape[1] == 16 + tokens

        peers["transformers generate, one batch"] = generated
        if half:  # which compiles its step
            peers["transformers, static cache"] = partial(generated, cache_implementation="static")
        comparison = compare(title, peers, work=batch * tokens, unit="tokens/s", rounds=rounds)
    print(comparison, flush=True)
    return 0


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0, help="of load, for either server")
    parser.add_argument("--requests", type=int, default=10_000, help="short ones, for the memory; 0 leaves it out")
    parser.add_argument("--gpu", action="store_true", help="a model of 135 M parameters on a GPU instead")
    args = parser.parse_args(words)
    if args.gpu and not torch.cuda.is_available():
        print("--gpu needs a CUDA device.")
        return 0
    return against_transformers(SMOLLM2, "cuda") if args.gpu else on_cpu(args.clients, args.seconds, args.requests)


if __name__ == "__main__":
    print(machine())
    sys.exit(main(sys.argv[1:]) > 0)
