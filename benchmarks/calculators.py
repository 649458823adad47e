"""Lemma's figures next to those of other calculators, with the reason of each difference found by `--against`.

Run: python -m benchmarks.calculators [FILE.md], which writes the table of docs/calculators.md. It needs transformers,
torchinfo, fvcore, calflops and accelerate, and no network. About half a minute.
"""

import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lemma.counting.against import TOOLS, ToolComparison, compare_tools
from lemma.counting.subject import Subject, resolve_subject
from lemma.counting.transformers_models import quiet

PACKAGES = ("transformers", *TOOLS)
SMALL = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 500, "T": 32}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 24, "intermediate_size": 256}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
T5_SIZES = {"d_model": 96, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "d_kv": 24, "d_ff": 256}


def vit(d: int = 96, L: int = 2, h: int = 4, P: int = 8, I: int = 32) -> nn.Module:  # noqa: E741
    """Build transformers' ViT for images of I × I pixels in patches of P × P."""
    from transformers import ViTConfig, ViTModel

    sizes: dict[str, Any] = {
        "hidden_size": d,
        "num_hidden_layers": L,
        "num_attention_heads": h,
        "intermediate_size": 4 * d,
    }
    return ViTModel(ViTConfig(patch_size=P, image_size=I, **sizes))


vit.inputs = lambda I, B=1: {"pixel_values": torch.zeros(B, 3, I, I)}  # noqa: E741  # pyright: ignore
MODELS: dict[str, tuple[Any, Mapping[str, Any]]] = {
    "GPT-2": ("gpt2", {"d": 96, "L": 2, "h": 4, "V": 500, "T": 32}),
    "Llama": ("llama", {"d": 96, "L": 2, "h": 4, "h_kv": 2, "d_h": 24, "d_ff": 256, "V": 500, "T": 32}),
    "Qwen3-MoE": ("qwen3_moe", {**GROUPED, **EXPERTS}),
    "Gemma 3": ("gemma3_text", {**GROUPED, "sliding_window": 8}),
    "Mamba": ("mamba", {"hidden_size": 96, "num_hidden_layers": 2, "vocab_size": 500, "T": 32}),
    "BERT": ("bert", {**SMALL, "intermediate_size": 384}),
    "T5": ("t5", {**T5_SIZES, "vocab_size": 500, "T": 32, "S": 32}),
    "ViT": (vit, {}),
    "LSTM": ("torch-lstm", {}),
    "nanoGPT-style decoder": ("decoder", {"d": 96, "L": 2, "h": 4, "V": 500, "T": 32}),
}


def resolve(name: str) -> Subject:
    """Return the subject of a row of the table."""
    model, settings = MODELS[name]
    return resolve_subject(model, settings)


def write_table(comparisons: Mapping[str, ToolComparison]) -> Iterator[str]:
    """Yield the lines of the table and of the reasons, in Markdown."""
    tools = list(TOOLS)
    yield f"| model | parameters | forward FLOPs | {' | '.join(tools)} |"
    yield f"|---|--:|--:|{'--:|' * len(tools)}"
    for name, comparison in comparisons.items():
        ratios = ["failed" if row.flops_ratio is None else f"{row.flops_ratio:.3f}" for row in comparison.rows]
        yield f"| {name} | {comparison.parameters:,} | {comparison.flops:,} | {' | '.join(ratios)} |"
    for name, comparison in comparisons.items():
        reasons = [f"- {row.tool}: {reason}" for row in comparison.rows for reason in row.reasons]
        yield from ("", f"**{name}**", "", *(reasons or ["All tools agree."]))


def main(arguments: list[str]) -> int:
    """Compare the calculators on all models; print the table, or write it into a page after its marker."""
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        print(f"The calculators are not compared: {', '.join(missing)} not installed.")
        return 0
    comparisons: dict[str, ToolComparison] = {}
    for name in MODELS:
        with warnings.catch_warnings(), quiet():
            warnings.simplefilter("ignore")
            comparisons[name] = compare_tools(resolve(name))
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    text = "\n".join([f"Made by `python -m benchmarks calculators` with {versions}.", "", *write_table(comparisons)])
    if not arguments:
        print(text)
        return 0
    page = Path(arguments[0])
    before, marker, _ = page.read_text(encoding="utf-8").partition("<!-- table -->\n")
    page.write_text(f"{before}{marker}\n{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
