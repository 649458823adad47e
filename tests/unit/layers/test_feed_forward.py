import torch
from torch.nn import functional

from lemma.layers.feed_forward import gelu


def test_both_gelu_forms_match_torch_in_value_and_gradient() -> None:
    values = torch.linspace(-40, 40, 801, dtype=torch.float64, requires_grad=True)
    twin = values.detach().clone().requires_grad_()
    weights = torch.randn(801, dtype=torch.float64)
    ours, reference = gelu(values), functional.gelu(twin, approximate="tanh")
    torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12)
    (ours * weights).sum().backward()
    (reference * weights).sum().backward()
    torch.testing.assert_close(values.grad, twin.grad, rtol=0, atol=1e-12)
    assert torch.equal(gelu(values.detach()), reference.detach())
    assert torch.autograd.gradcheck(gelu, torch.randn(9, dtype=torch.float64, requires_grad=True))
