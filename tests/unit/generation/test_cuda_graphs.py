"""A decoder's step over a preallocated cache has the logits of the growing cache."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from lemma.errors import InputError
from lemma.generation import cuda_graphs
from lemma.generation.engine import generate
from lemma.generation.sampling import Sampling
from lemma.models.build import build
from lemma.models.decoder import DecoderCache, DecoderModel, DecoderSlotCache
from lemma.spec.models import Decoder

SHAPES: dict[str, dict[str, Any]] = {
    "learned": {},
    "none": {"positions": "none"},
    "sinusoidal": {"positions": "sinusoidal"},
    "rotary": {"positions": "rotary"},
    "alibi": {"positions": "alibi"},
    "halves, in part": {"positions": {"kind": "rotary", "layout": "halves", "share": 0.5}},
    "groups": {"key_value_heads": 2, "positions": "rotary"},
    "one group": {"key_value_heads": 1},
    "norms": {"query_key_norm": True, "norm": "rms", "positions": "rotary"},
    "window": {"window": 5, "positions": "rotary"},
    "parallel, gated": {"residual": "parallel", "gated": True, "activation": "silu"},
    "values": {"value_width": 24},
    "merged": {"key_query": "merged", "value_output": "merged"},
    "capped": {"logit_cap": 3.0, "scaled_embedding": True},
}


@pytest.mark.parametrize("name", SHAPES)
def test_slot_cache_steps_equal_kv_cache_logits(name: str) -> None:
    torch.manual_seed(0)
    spec = Decoder(vocabulary=11, width=16, depth=2, heads=4, context=24, **SHAPES[name])
    model = build(spec).double().eval()
    assert isinstance(model, DecoderModel) and model.supports_slots()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    prompt, tokens = torch.randint(11, (3, 7)), torch.randint(11, (3, 12))
    with torch.no_grad():
        _, cache = model(prompt)
        slots = DecoderSlotCache(cache, max_length=20)
        result = []
        for token in tokens.split(1, dim=1):
            result.append(model.step(token, slots))
            slots.length += 1
        expected, _ = model(tokens, cache)
    torch.testing.assert_close(torch.cat(result, 1), expected, rtol=0, atol=1e-5 if "rotary" in str(spec) else 1e-9)


def test_slot_rows_decode_separately_with_token_signatures() -> None:
    torch.manual_seed(0)
    model = build(Decoder(vocabulary=11, width=16, depth=2, heads=4, context=24, positions="rotary")).eval()
    with torch.no_grad():
        _, cache = model(torch.randint(11, (3, 7)))
        slots, token = DecoderSlotCache(cache, max_length=20), torch.tensor([[1], [2], [3]])
        part = slots.select_rows(torch.tensor([2]))
        single = model.step(token[2:], part)
        together = model.step(token, slots)
    part.length += 1
    torch.testing.assert_close(single[0], together[2])
    assert isinstance(cache, DecoderCache)
    assert part.signature() == DecoderCache(torch.cat([cache.tokens[2:], token[2:]], 1), None).signature()


def test_bfloat16_is_rejected_on_unsupported_devices() -> None:
    model = build(Decoder(vocabulary=11, width=16, depth=1, heads=2))
    with pytest.raises(InputError, match="only a decoder on a GPU"):
        generate(model, [[1, 2]], Sampling(tokens=3, precision="bfloat16"))


def test_slot_cache_uses_at_most_half_of_gpu_memory(monkeypatch) -> None:
    model = build(Decoder(vocabulary=11, width=16, depth=2, heads=4, context=24, positions="rotary")).eval()
    with torch.no_grad():
        _, cache = model(torch.randint(11, (3, 7)))
    bytes_of_a_token = 3 * 2 * 2 * 16 * 2  # sequences, layers, keys and values, width, bytes of a bfloat16

    class Recorded(Exception):
        """Raised in place of capturing a graph."""

    def record(*given: Any) -> None:
        raise Recorded

    monkeypatch.setattr(cuda_graphs, "CudaGraphStep", record)
    for total, falls_back in ((2 * 1007 * bytes_of_a_token - 1, True), (2 * 1007 * bytes_of_a_token, False)):
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda device, total=total: (0, total))
        with nullcontext() if falls_back else pytest.raises(Recorded):
            result = cuda_graphs.make_graph_step(model, cache, model, Sampling(tokens=1000), torch.bfloat16)
            assert falls_back and result == (None, cache)
