"""The fused output layer and loss against PyTorch in float64."""

import pytest
import torch
from torch.nn import functional

from lemma.kernels.output_loss import output_loss

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize(("rows", "classes"), [(9000, 1003), (70, 50_257)])
def test_fused_output_loss_matches_float64_loss_and_gradients(rows: int, classes: int) -> None:
    torch.manual_seed(0)
    vectors = torch.randn(rows, 64, device="cuda").bfloat16().requires_grad_()
    weight = (torch.randn(classes, 64, device="cuda") * 0.3).requires_grad_()
    targets = torch.randint(classes, (rows,), device="cuda")
    loss = 3 * output_loss(vectors, weight, targets)
    loss.backward()
    exact = [tensor.detach().double().requires_grad_() for tensor in (vectors, weight.bfloat16())]
    expected = 3 * functional.cross_entropy(exact[0] @ exact[1].T, targets)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=2e-3)
    for result, true in zip((vectors, weight), exact, strict=True):
        assert result.grad is not None and true.grad is not None
        assert (result.grad - true.grad).norm() <= 0.01 * true.grad.norm()
