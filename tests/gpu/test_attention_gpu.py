"""Attention, recording and attention penalties on a GPU against the CPU."""

import pytest
import torch

from lemma.kernels.row_statistics import attend_with_row_statistics
from lemma.layers.penalties import row_statistics
from lemma.layers.recording import record_attention
from lemma.models.build import build
from lemma.models.merging import merge
from lemma.spec.models import Decoder
from lemma.spec.recipe import Recipe
from lemma.tasks.language import LanguageTask

from families import SMALL

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
ATTENDING = [name for name in SMALL if name.startswith(("decoder", "attentive", "table"))]
ATTENDING.remove("decoder-parallel")  # its trainable position biases cannot be penalized


@pytest.mark.parametrize("name", ATTENDING)
def test_gpu_logits_attention_and_statistics_match_cpu(name: str) -> None:
    model, tokens = build(SMALL[name]).double().eval(), torch.randint(11, (2, 30))
    result = []
    for device in ("cpu", "cuda"):
        model.to(device)
        with record_attention() as records:
            logits = model(tokens.to(device))[0]
        shape = row_statistics(records, 9.0, getattr(model.spec, "depth", 1))
        tensors = (logits, records[0].weights(), shape.entropy, shape.distance)
        result.append([tensor.detach().cpu() for tensor in tensors])
    for item, other in zip(*result, strict=True):
        torch.testing.assert_close(item, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_penalized_gpu_gradients_match_cpu(positions: str, precision: torch.dtype) -> None:
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
        gradients.append({name: item.grad.detach().cpu().clone() for name, item in model.named_parameters()})
        model.zero_grad()
    for name, expected in gradients[0].items():
        error = (gradients[1][name] - expected).norm() / expected.norm().clamp(min=1e-3)
        assert error < (0.1 if precision == torch.bfloat16 else 1e-3), name


def test_merged_attention_equals_separate_on_gpu() -> None:
    model = build(Decoder(vocabulary=11, width=16, depth=2, heads=2, positions="alibi")).double().cuda()
    tokens = torch.randint(11, (2, 40), device="cuda")
    torch.testing.assert_close(merge(model)(tokens)[0], model(tokens)[0], rtol=0, atol=1e-6)


def test_attention_penalties_use_bounded_memory_for_long_texts() -> None:
    time = 8192
    model = build(Decoder(vocabulary=64, width=64, depth=4, heads=4, context=time)).cuda()
    criterion, tokens = (
        LanguageTask().loss(model, Recipe(entropy_penalty=0.01, distance_penalty=0.001)),
        torch.randint(64, (1, time), device="cuda"),
    )
    criterion(tokens, tokens, None)[0].backward()
    assert torch.cuda.max_memory_allocated() < 4 * 4 * time**2  # less than one layer's weights


def exact_rows(queries, keys, values, scale, causal, slopes, lengths):
    """Compute attention and both row statistics in float64 from the full weight matrix."""
    queries, keys, values = (tensor.double() for tensor in (queries, keys, values))
    keys, values = (tensor.repeat_interleave(queries.shape[1] // keys.shape[1], 1) for tensor in (keys, values))
    positions = torch.arange(queries.shape[2], device=queries.device)
    separate = (positions[:, None] - positions).double()
    scores = queries @ keys.mT * scale
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * separate.abs()
    hidden = (separate < 0) & torch.tensor(causal, device=queries.device)
    if lengths is not None:
        hidden = hidden | (positions >= lengths[:, None, None, None])
    logs = scores.masked_fill(hidden, -1e30).log_softmax(-1)
    weights = logs.exp()
    return weights @ values, -(weights * logs.clamp(min=-1e9)).sum(-1), (weights * separate**2).sum(-1)


CASES = [  # heads, groups, time, width, causal, alibi, padding, size of the queries
    (4, 4, 200, 64, True, False, False, 1.0),
    (4, 4, 1000, 64, True, False, False, 6.0),  # sharp heads: scores up to 40
    (6, 2, 130, 32, True, True, False, 1.0),
    (4, 4, 77, 80, False, False, True, 1.0),
    (2, 1, 256, 128, True, False, True, 1.0),
    (2, 2, 64, 48, False, True, True, 2.0),
]


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "groups", "time", "width", "causal", "alibi", "padding", "size"), CASES)
def test_fused_statistics_kernel_matches_float64_rows_and_gradients(
    heads: int, groups: int, time: int, width: int, causal: bool, alibi: bool, padding: bool, size: float, precision
) -> None:
    torch.manual_seed(0)
    shapes = ((2, heads, time, width), (2, groups, time, width), (2, groups, time, width))
    settings = [torch.randn(shape, device="cuda").to(precision) for shape in shapes]
    settings[0] = settings[0] * size
    slopes = torch.rand(heads, device="cuda") * 0.3 if alibi else None
    lengths = torch.tensor([time, time - 13], device="cuda", dtype=torch.int32) if padding else None
    result, errors = [], []
    for attend, kind in ((exact_rows, torch.float64), (attend_with_row_statistics, precision)):
        inputs = [tensor.detach().to(kind).requires_grad_() for tensor in settings]
        outputs = attend(*inputs, width**-0.5, causal, slopes, lengths)
        torch.manual_seed(1)
        sizes = (1, 0.5, 10 / time**2)
        pushes = [torch.randn(item.shape, device="cuda") * scale for item, scale in zip(outputs, sizes, strict=True)]
        gradients = torch.autograd.grad(
            outputs, inputs, [push.to(item) for push, item in zip(pushes, outputs, strict=True)]
        )
        result.append([*outputs, *gradients])
    for expected, actual in zip(*result, strict=True):
        errors.append(((actual.double() - expected).norm() / expected.norm()).item())
    assert max(errors) < (1e-5 if precision == torch.float32 else 0.01), errors


@pytest.mark.parametrize(("batch", "time"), [(1, 1), (3, 1), (9000, 8)])
def test_fused_kernel_handles_single_tokens_and_huge_batches(batch: int, time: int) -> None:
    torch.manual_seed(0)
    settings = [torch.randn(batch, 8, time, 16, device="cuda") for _ in range(3)]  # 9,000 × 8 heads are over 65,535
    for causal in (True, False):
        inputs = [[tensor.detach().to(kind).requires_grad_() for tensor in settings] for kind in (None, torch.float64)]
        result, expected = (
            attend_with_row_statistics(*inputs[0], 0.25, causal),
            exact_rows(*inputs[1], 0.25, causal, None, None),
        )
        for outputs in (result, expected):
            sum(output.square().sum() for output in outputs).backward()
        actual, target = (
            [*subset, *(t.grad for t in read)] for subset, read in zip((result, expected), inputs, strict=True)
        )
        for output, other in zip(actual, target, strict=True):  # some are zeros for one token
            assert (output - other).norm() < 1e-5 * (other.norm() + other.numel() ** 0.5)


@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi"])
def test_compiled_penalized_step_has_equal_gradients(positions: str) -> None:
    spec = Decoder(vocabulary=11, width=64, depth=2, heads=2, context=128, positions=positions)
    torch.manual_seed(0)
    model, tokens = build(spec).cuda(), torch.randint(11, (2, 128), device="cuda")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    loss = LanguageTask().loss(model, Recipe(entropy_penalty=1.0, distance_penalty=0.1))
    assert loss.compilable
    gradients = []
    for step in (loss, torch.compile(loss, fullgraph=True)):
        step(tokens, tokens, None)[0].backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        model.zero_grad()
    for item, other in zip(*gradients, strict=True):
        torch.testing.assert_close(item, other, rtol=1e-3, atol=1e-5)
