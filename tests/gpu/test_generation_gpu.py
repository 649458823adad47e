"""Generation on a GPU: the tokens of the CPU, whatever is done to the logits."""

from typing import Any

import pytest
import torch

from lemma.generation.decode import Sampling, generate
from lemma.models.build import build

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
def test_tokens_are_those_of_the_cpu(name: str, words: dict[str, Any]) -> None:
    model = build(SMALL[name]).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    found = [
        generate(model.to(device), [[1, 2, 3], [4], [7, 8, 9]], Sampling(tokens=15, **words))
        for device in ("cpu", "cuda")
    ]
    assert [one.tokens for one in found[0]] == [one.tokens for one in found[1]]
