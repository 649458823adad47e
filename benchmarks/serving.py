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
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.compare import machine

FASTER = 5.0
"""How many times the throughput of one text at a time: the claim."""
GROWTH = 1.05
"""How much more memory may be taken after all requests than after the first tenth of them: the claim."""
TOKENS, BATCH = 64, 128


def small_run(folder: Path) -> Path:
    """A decoder of the size of the demo's, with the characters of Shakespeare; its weights are drawn."""
    from lemma.data.tokenizers import train_tokenizer
    from lemma.models.build import build
    from lemma.runs.checkpoint import weights_of
    from lemma.runs.folder import RunFolder
    from lemma.spec.data import Characters, DataSpec
    from lemma.spec.models import Decoder
    from lemma.spec.recipe import Recipe

    tokenizer = train_tokenizer(Characters(), ["\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"])
    spec = Decoder(vocabulary=tokenizer.vocabulary, width=64, depth=4, heads=4, context=128)
    torch.manual_seed(0)
    run = RunFolder(folder / "small", spec, Recipe(), DataSpec(text=("shakespeare",)), "0").create(tokenizer)
    run.finish(weights_of(build(spec), frozen=True), {})
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


async def ask(port: int, tokens: int, seed: int, prompt: str) -> tuple[int, float]:
    """Send one streaming request and read all of it; the tokens that came, and the seconds until the first."""
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "seed": seed, "stream": True}).encode()
    begun, first, read = time.perf_counter(), 0.0, bytearray()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    writer.write(f"{head}content-type: application/json\r\nconnection: close\r\n\r\n".encode() + body)
    while part := await reader.read(65536):
        read += part
        if not first and b"data:" in read:
            first = time.perf_counter() - begun
    writer.close()
    assert read.startswith(b"HTTP/1.1 200") and b"[DONE]" in read, bytes(read[:300])
    return read.count(b"data: {") - 1, first  # the last says why it ended


async def load(port: int, clients: int, tokens: int, *, seconds: float = 0.0, requests: int = 0) -> dict[str, float]:
    """Clients that ask again and again, for a time or a number of requests in all: tokens per second, first tokens."""
    chance, firsts, total, asked = random.Random(1), list[float](), 0, 0
    begun = time.perf_counter()

    async def client() -> None:
        nonlocal total, asked
        while asked < requests if requests else time.perf_counter() - begun < seconds:
            asked += 1
            prompt = "".join(chance.choices("abcdefghijklmnop ", k=chance.randint(4, 40)))
            written, first = await ask(port, tokens, asked, prompt)
            total += written
            firsts.append(first)

    await asyncio.gather(*(client() for _ in range(clients)))
    firsts.sort()
    spent = time.perf_counter() - begun
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


def show(name: str, found: dict[str, float]) -> None:
    times = ", ".join(f"{key} {1000 * found[key]:.0f} ms" for key in found if key.startswith("first"))
    print(f"  {name:<40}{found['tokens/s']:>9,.0f} tokens/s  ({found['requests']:,.0f} requests; {times})", flush=True)


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
            served(run, *options, "--max-batch", "1") as (alone, first),
            served(run, *options, "--max-batch", str(BATCH)) as (port, process),
        ):
            asked, one, many = {first: 0.0, process: 0.0}, {}, {}
            for _ in range(3):  # in turns
                one = asyncio.run(load(alone, clients, TOKENS, seconds=seconds / 3))
                many = asyncio.run(load(port, clients, TOKENS, seconds=seconds / 3))
                rates["one"].append(one["tokens/s"])
                rates["many"].append(many["tokens/s"])
                asked[first] += one["requests"]
                asked[process] += many["requests"]
            show("one text at a time (--max-batch 1)", one)
            show(f"--max-batch {BATCH}", many)
            for name, one_of in (("one text at a time", first), (f"--max-batch {BATCH}", process)):
                share = 1e6 * processor_seconds(one_of) / (TOKENS * asked[one_of])
                print(f"  processor time, {name:<24}{share:>9,.0f} µs/token, start-up included")
            ratio = statistics.median(b / a for a, b in zip(rates["one"], rates["many"], strict=True))
            missed += ratio < FASTER
            print(f"  times the throughput: {ratio:.1f} (target ≥ {FASTER:g}){' MISSED' if ratio < FASTER else ''}")
            if requests:
                asyncio.run(load(port, 20, 4, requests=requests // 10))
                before = resident(process)
                short = asyncio.run(load(port, 20, 4, requests=requests - requests // 10))
                after = resident(process)
                show(f"{requests:,} short requests", short)
                missed += after > GROWTH * before
                said = " MISSED" if after > GROWTH * before else ""
                print(f"  memory after a tenth of them {before:.0f} MB, after all {after:.0f} MB{said}")
    return missed


def on_gpu(model: str, batch: int = 32, tokens: int = 256) -> int:
    """A pretrained model through the server on a GPU, against transformers' generate of a batch of equal prompts."""
    from transformers import AutoModelForCausalLM

    print(f"Serving {model} on a GPU in bfloat16: {batch} texts of {tokens} tokens at once", flush=True)
    prompt = "Once upon a time there was"
    with served(model, "--device", "cuda", "--max-batch", str(batch)) as (port, _):

        async def all_at_once() -> float:
            begun = time.perf_counter()
            found = await asyncio.gather(*(ask(port, tokens, seed, prompt) for seed in range(batch)))
            return sum(written for written, _ in found) / (time.perf_counter() - begun)

        asyncio.run(all_at_once())
        ours = [asyncio.run(all_at_once()) for _ in range(3)]
    import lemma

    loaded = lemma.load(model, "cpu")
    with TemporaryDirectory() as folder:
        lemma.export(model, to="huggingface", out=folder)
        theirs: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        theirs = theirs.to("cuda").eval()
    ids = torch.tensor([loaded.tokenizer.encode(prompt).tolist()] * batch, device="cuda")
    rates = []
    for _ in range(4):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        with torch.inference_mode():
            theirs.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=True, top_k=0, pad_token_id=0)
        torch.cuda.synchronize()
        rates.append(batch * tokens / (time.perf_counter() - begun))
    print(f"  lemma serve, streaming over HTTP        {statistics.median(ours):>9,.0f} tokens/s")
    print(f"  transformers generate, one batch        {statistics.median(rates[1:]):>9,.0f} tokens/s")
    return 0


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0, help="of load, for either server")
    parser.add_argument("--requests", type=int, default=10_000, help="short ones, for the memory; 0 leaves it out")
    parser.add_argument("--gpu", action="store_true", help="a model of 135 M parameters on a GPU instead")
    parser.add_argument("--model", default="smollm2-135m", help="which one")
    given = parser.parse_args(words)
    return on_gpu(given.model) if given.gpu else on_cpu(given.clients, given.seconds, given.requests)


if __name__ == "__main__":
    print(machine())
    sys.exit(main(sys.argv[1:]) > 0)
