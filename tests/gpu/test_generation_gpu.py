"""Generation on a GPU: tokens equal those of the CPU, and CUDA graphs those of the KV cache."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from lemma.errors import InputError
from lemma.generation import cuda_graphs
from lemma.generation.cuda_graphs import FusedDecoder
from lemma.generation.engine import generate
from lemma.generation.sampling import Sampling
from lemma.kernels.cuda_graphs import warmup_stream
from lemma.models.build import build
from lemma.models.decoder import DecoderCache, DecoderSlotCache
from lemma.spec.models import Decoder

from families import SMALL

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.3, "logit_bias": {3: 0.5}},
    {"temperature": 1.5, "no_repeat_ngram": 2, "frequency_penalty": 0.3, "presence_penalty": 0.2, "logprobs": 2},
    {"temperature": 1.5, "top_k": 8, "top_p": 0.9, "min_p": 0.05, "samples": 3, "stop_tokens": [5]},
]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("words", SETTINGS, ids=str)
def test_gpu_tokens_equal_cpu_tokens(name: str, words: dict[str, Any]) -> None:
    model = build(SMALL[name]).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    result = [
        generate(model.to(device), [[1, 2, 3], [4], [7, 8, 9]], Sampling(tokens=15, **words))
        for device in ("cpu", "cuda")
    ]
    assert [item.tokens for item in result[0]] == [item.tokens for item in result[1]]


SHAPES: dict[str, dict[str, Any]] = {
    "learned": {},
    "rotary": {"positions": "rotary", "key_value_heads": 2},
    "alibi": {"positions": "alibi"},
    "window": {"positions": "rotary", "window": 9, "query_key_norm": True},
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_cuda_graph_steps_equal_kv_cache_tokens(name: str, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = build(Decoder(vocabulary=31, width=64, depth=3, heads=4, context=64, **SHAPES[name])).cuda()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    settings = Sampling(tokens=80, temperature=temperature, precision="float32", stop_at_eos=True)
    fast = generate(model, prompts, settings, eos=7)  # 80 tokens exceed the context of 64, and rows end at token 7
    monkeypatch.setattr(cuda_graphs, "make_graph_step", lambda model, state, *_: (None, state))
    slow = generate(model, prompts, settings, eos=7)
    assert [row.tokens for row in fast] == [row.tokens for row in slow]
    assert [row.stopped for row in fast] == [row.stopped for row in slow]
    assert [row.loop for row in fast] == [row.loop for row in slow]


def test_default_bfloat16_generation_does_not_modify_the_model() -> None:
    torch.manual_seed(0)
    model = build(Decoder(vocabulary=31, width=64, depth=2, heads=4, context=128, positions="rotary")).cuda()
    before = {name: item.clone() for name, item in model.state_dict().items()}
    [row] = generate(model, [[1, 2, 3]], Sampling(tokens=60, temperature=0.0, stop_at_eos=False))
    assert len(row.tokens) == 60
    for name, item in model.state_dict().items():
        assert item.dtype == before[name].dtype and torch.equal(item, before[name])


FUSED: dict[str, dict[str, Any]] = SHAPES | {
    "llama": {
        "positions": {"kind": "rotary", "layout": "halves"},
        "key_value_heads": 2,
        "gated": True,
        "activation": "silu",
        "norm": "rms",
        "bias": False,
    },
    "parallel": {"positions": {"kind": "rotary", "share": 0.5}, "residual": "parallel", "logit_cap": 3.0},
    "wide heads": {"positions": "rotary", "attention_width": 1024, "key_value_heads": 1},
}


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("name", FUSED)
def test_fused_decoder_step_matches_the_model(name: str, rows: int) -> None:
    torch.manual_seed(0)
    spec = Decoder(vocabulary=1000, width=192, depth=2, heads=4, context=1024, **FUSED[name])
    exact = build(spec).cuda().eval()
    for parameter in exact.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    low = cuda_graphs.cast_copy(exact, torch.bfloat16).model
    assert FusedDecoder.supports(low, rows) and cuda_graphs.cast_copy(exact, torch.bfloat16).model is low
    with torch.inference_mode():
        _, cache = exact(torch.randint(1000, (rows, 300), device="cuda"))
        layers = tuple(tuple(item.bfloat16() for item in layer) for layer in cache.layers)
        lowest = DecoderCache(cache.tokens, cache.window, layers)
        slots = [DecoderSlotCache(item, 1024) for item in (cache, lowest, lowest)]
        fused = FusedDecoder(low, slots[0].capacity)
        for _ in range(3):
            tokens = torch.randint(1000, (rows, 1), device="cuda")
            expected, base = exact.step(tokens, slots[0]), low.step(tokens, slots[1])
            result = fused.step(tokens, slots[2])
            # no further from float32 than the plain step in bfloat16
            assert (result - expected).norm() <= 1.2 * (base - expected).norm() + 1e-6
            assert (result - expected).norm() <= 0.05 * expected.norm()
    with torch.no_grad():
        next(exact.parameters()).add_(1.0)
    assert cuda_graphs.cast_copy(exact, torch.bfloat16).model is not low


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_reused_cuda_graph_starts_from_a_clean_cache(temperature: float) -> None:
    torch.manual_seed(0)
    spec = Decoder(vocabulary=300, width=64, depth=2, heads=4, context=512, positions="rotary", tied=False)
    model = build(spec)
    for parameter in model.parameters():  # makes greedy texts depend on their prompts
        torch.nn.init.normal_(parameter, std=0.5)
    model.cuda()
    settings = Sampling(tokens=150, temperature=temperature, samples=2, stop_at_eos=True)
    first, other, again = (generate(model, [prompt], settings, eos=7) for prompt in ([1, 2, 3], [4, 5, 6], [1, 2, 3]))
    assert [row.tokens for row in first] == [row.tokens for row in again] != [row.tokens for row in other]
    assert cuda_graphs.cast_copy(model, torch.bfloat16).step is not None


@pytest.mark.parametrize("prompts", [[[1, 2, 3]], [[1, 2, 3], [4]]], ids=["alone", "of two lengths"])
def test_hooks_run_for_every_token_instead_of_fused_steps(prompts: list[list[int]]) -> None:
    model, seen = build(Decoder(vocabulary=11, width=32, depth=2, heads=2, context=256)).cuda(), []
    model.layers[1].register_forward_hook(lambda *given: seen.append(1))
    generate(model, prompts, Sampling(tokens=120, temperature=0, stop_at_eos=False))
    assert len(seen) >= 120


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_nonfinite_gpu_logits_are_an_error(temperature: float, precision: Any) -> None:
    model = build(Decoder(vocabulary=31, width=64, depth=2, heads=4, context=128)).cuda()
    with torch.no_grad():
        model.positions.weight[40] = torch.nan
    settings = Sampling(tokens=100, temperature=temperature, precision=precision)
    with pytest.raises(InputError, match="not numbers"):
        generate(model, [[1, 2, 3], [4, 5, 6]], settings)
    assert len(generate(model, [[1, 2, 3]], replace(settings, tokens=30))[0].tokens) == 30


def test_capturing_many_graphs_allocates_one_workspace() -> None:
    matrix = torch.randn(64, 64, device="cuda")
    with warmup_stream():
        _ = matrix @ matrix
    before = torch.cuda.memory_allocated()
    for _ in range(8):
        with warmup_stream():
            _ = matrix @ matrix
    assert torch.cuda.memory_allocated() - before < 1 << 20, "cuBLAS keeps 32 MiB for each stream that it has seen"
