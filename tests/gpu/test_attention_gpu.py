"""Attention, its tap and its shaping on a GPU: the numbers of the CPU."""

import pytest
import torch

from lemma.layers.recording import record_attention
from lemma.models.build import build
from lemma.models.merging import merge
from lemma.spec.models import Decoder
from lemma.spec.recipe import Recipe
from lemma.tasks.language import LanguageTask
from lemma.tasks.penalties import row_statistics

from families import SMALL

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
ATTENDING = [name for name in SMALL if name.startswith(("decoder", "attentive", "table"))]


@pytest.mark.parametrize("name", ATTENDING)
def test_logits_weights_and_shaping_are_those_of_the_cpu(name: str) -> None:
    model, tokens = build(SMALL[name]).double().eval(), torch.randint(11, (2, 30))
    found = []
    for device in ("cpu", "cuda"):
        model.to(device)
        with record_attention() as records:
            logits = model(tokens.to(device))[0]
        shape = row_statistics(records, 9.0, getattr(model.spec, "depth", 1))
        tensors = (logits, records[0].weights(), shape.entropy, shape.distance)
        found.append([tensor.detach().cpu() for tensor in tensors])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_shaped_step_gives_the_gradients_of_the_cpu(positions: str, precision: torch.dtype) -> None:
    spec = Decoder(vocabulary=11, width=32, depth=2, heads=4, context=64, positions=positions)
    torch.manual_seed(0)
    model, tokens = build(spec), torch.randint(11, (2, 64))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    gradients = []
    for device in ("cpu", "cuda"):
        model.to(device)
        criterion = LanguageTask().loss(model, Recipe(entropy_penalty=1.0, distance_penalty=0.1))
        half = device == "cuda" and precision == torch.bfloat16
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            total = criterion(tokens.to(device), tokens.to(device), None)[0]
        total.backward()
        gradients.append({name: one.grad.detach().cpu().clone() for name, one in model.named_parameters()})
        model.zero_grad()
    for name, expected in gradients[0].items():
        error = (gradients[1][name] - expected).norm() / expected.norm().clamp(min=1e-3)
        assert error < (0.1 if precision == torch.bfloat16 else 1e-3), name


def test_merged_equals_separate_there_too() -> None:
    model = build(Decoder(vocabulary=11, width=16, depth=2, heads=2, positions="alibi")).double().cuda()
    tokens = torch.randint(11, (2, 40), device="cuda")
    torch.testing.assert_close(merge(model)(tokens)[0], model(tokens)[0], rtol=0, atol=1e-6)


def test_long_texts_are_shaped_in_little_memory() -> None:
    time = 8192
    model = build(Decoder(vocabulary=64, width=64, depth=4, heads=4, context=time)).cuda()
    criterion, tokens = (
        LanguageTask().loss(model, Recipe(entropy_penalty=0.01, distance_penalty=0.001)),
        torch.randint(64, (1, time), device="cuda"),
    )
    criterion(tokens, tokens, None)[0].backward()
    assert torch.cuda.max_memory_allocated() < 4 * 4 * time**2  # less than one layer's weights
