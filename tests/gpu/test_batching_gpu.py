"""Continuous batching on a GPU: in float32 every sequence equals separate generation."""

from dataclasses import replace

import pytest
import torch

from lemma.data.tokenizers import train_tokenizer
from lemma.generation.engine import BatchEngine, generate_text
from lemma.generation.sampling import Sampling
from lemma.generation.sequences import TextRequest
from lemma.models.build import build
from lemma.spec.data import Characters
from lemma.spec.models import Decoder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_batched_gpu_generation_equals_separate_generation(positions: str) -> None:
    tokenizer = train_tokenizer(Characters(), ["abcdefghij"])
    spec = Decoder(vocabulary=10, width=32, depth=2, heads=2, context=48, positions=positions)  # pyright: ignore
    torch.manual_seed(1)
    model = build(spec).cuda().eval()
    engine, query = BatchEngine(model, tokenizer, rows=4, chunk=16), []
    for number in range(9):
        settings = Sampling(tokens=20 + 9 * number, temperature=0.0 if number % 2 else 0.9, seed=number)
        prompt = "abcdefghij"[: 1 + number] * (1 + number % 3)
        single = generate_text(model, tokenizer, [prompt], replace(settings, precision="float32"))[0]
        query.append((TextRequest(tuple(tokenizer.encode(prompt).tolist()), settings, owner=number), single.tokens))
        engine.add(query[-1][0])
    result = {}
    while engine.is_busy:
        result |= {event.request: event.result.tokens for event in engine.step() if event.result}
    assert [result[request] for request, _ in query] == [tokens for _, tokens in query]
