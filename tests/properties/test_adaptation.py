"""Adaptation in every family, rank and scale: merged = unmerged, a frozen base, gradients of the explicit matrix."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from lemma.adaptation.adapt import adapt_model, merge_lora, trainable_parameters
from lemma.models.build import build
from lemma.spec.models import BiLstm, Classifier, Encoder, EncoderDecoder, ModelSpec, Parser
from lemma.spec.recipe import Adapters, Frozen, Full, Lora

from families import SMALL

TINY: dict[str, Any] = {"vocabulary": 11, "width": 8, "heads": 2, "feed_forward": 6, "context": 9}
FAMILIES: dict[str, ModelSpec] = {
    **SMALL,
    "encoder": Encoder(**TINY, depth=2, objective="both"),
    "encoder-post": Encoder(**TINY, depth=1, norm_place="post", tied=False),
    "encoder-decoder": EncoderDecoder(**TINY, encoder_depth=1, decoder_depth=2),
    "parser": Parser(
        vocabulary=11, buckets=7, width=4, relations=3, hidden=5, head_width=2, shared_width=2, encoder=BiLstm(hidden=3)
    ),
    "classified-lstm": Classifier(body=SMALL["lstm"], classes=3),
    "classified-encoder": Classifier(body=Encoder(**TINY, depth=1), classes=3),
    "classified-attentive": Classifier(body=SMALL["attentive"], classes=3),
}
TOKENS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 1, 2]])


def model_of(name: str) -> nn.Module:
    return build(FAMILIES[name]).double().eval()


def output(model: nn.Module) -> Tensor:
    """Return the output of a model for fixed tokens."""
    options = (
        model(TOKENS, TOKENS) if "decoder." in "".join(name for name, _ in model.named_parameters()) else model(TOKENS)
    )
    return options[0] if isinstance(options, tuple) else options


def output_without_grad(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return output(model)


def randomize_trainable(model: nn.Module) -> None:
    """Set trainable parameters to random values, as after some training."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=3, deadline=None)
@given(rank=st.integers(1, 3), alpha=st.floats(0.1, 50), seed=st.integers(0, 99))
def test_merged_equals_unmerged(name: str, rank: int, alpha: float, seed: int) -> None:
    torch.manual_seed(seed)
    model = model_of(name)
    base, unwrapped = adapt_model(copy.deepcopy(model), Frozen()).model, list(model.state_dict())
    adapt_model(model, Lora(rank=rank, alpha=alpha))
    assert torch.equal(output_without_grad(model), output_without_grad(base))
    randomize_trainable(model)
    message = output_without_grad(model)
    assert list(merge_lora(model).state_dict()) == unwrapped
    torch.testing.assert_close(output_without_grad(model), message, rtol=1e-11, atol=1e-12)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("method", [Frozen(), Full(), Adapters(bottleneck=2), Lora(rank=2)], ids=lambda it: it.kind)
@pytest.mark.parametrize("name", FAMILIES)
def test_only_trainable_parameters_change(name: str, method: Any) -> None:
    torch.manual_seed(1)
    model = model_of(name).train()
    custom = dict(model.named_parameters())
    learn = [] if method.kind == "full" else [next(iter(custom))]  # the embedding is not a target by default
    before = {path: parameter.detach().clone() for path, parameter in custom.items()}
    adapt_model(model, method, learn)
    trained = {path for path, _ in trainable_parameters(model)}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        output(model).square().mean().backward()
        optimizer.step()
    for path, parameter in model.named_parameters():
        assert (parameter.grad is not None) <= (path in trained), path
    changed = {path for path, value in before.items() if not torch.equal(custom[path], value)}
    marked = {path for path, parameter in custom.items() if parameter.requires_grad}
    assert changed <= marked
    assert changed


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(5, 7)), lambda module: module(torch.ones(3, 5).cumsum(0))),
    "embedding": (lambda: nn.Sequential(nn.Embedding(11, 6)), lambda module: module(TOKENS)),
    "lstm": (
        lambda: nn.LSTM(5, 7, 2, bidirectional=True, proj_size=3, batch_first=True),
        lambda module: module(torch.ones(2, 4, 5).cumsum(1))[0],
    ),
    "gru": (lambda: nn.GRU(5, 7, batch_first=True), lambda module: module(torch.ones(2, 4, 5).cumsum(1))[0]),
    "rnn": (lambda: nn.RNN(5, 7, 2, bias=False), lambda module: module(torch.ones(2, 4, 5).cumsum(1))[0]),
    "cell": (lambda: nn.LSTMCell(5, 7), lambda module: module(torch.ones(2, 5).cumsum(0))[0]),
    "attention": (
        lambda: nn.MultiheadAttention(6, 2, batch_first=True),
        lambda module: module(*[torch.ones(2, 3, 6).cumsum(1)] * 3)[0],
    ),
    "attention-three": (
        lambda: nn.MultiheadAttention(6, 2, kdim=4, vdim=4),
        lambda module: module(torch.ones(2, 3, 6).cumsum(1), *[torch.ones(5, 3, 4).cumsum(0)] * 2)[0],
    ),
}


@pytest.mark.parametrize("name", MODULES)
@settings(max_examples=3, deadline=None)
@given(rank=st.integers(1, 3), scale=st.floats(0.1, 4), seed=st.integers(0, 99))
def test_gradients_match_the_explicit_matrix(name: str, rank: int, scale: float, seed: int) -> None:
    """Compare with the module called with the explicit weights W + sBA, differentiated by autograd."""
    torch.manual_seed(seed)
    make, call = MODULES[name]
    base = make().double()
    torch.set_default_dtype(torch.float64)
    try:
        adapted = adapt_model(copy.deepcopy(base), Lora(rank=rank, alpha=scale * rank, targets=("*",))).model
        randomize_trainable(adapted)
        pairs = {key: adapted.get_parameter(key) for key, _ in trainable_parameters(adapted)}
        explicit = {key: value.detach() for key, value in base.named_parameters()}
        for key, A in pairs.items():
            if key.endswith(".A"):
                path = key.removesuffix(".A").replace("base.", "").replace("updates.", "").replace("update", "weight")
                explicit[path] = explicit[path] + scale * pairs[f"{key.removesuffix('A')}B"] @ A
        expected = call(lambda *given: functional_call(base, explicit, given))  # pyright: ignore[reportArgumentType]
        result = call(adapted)
        torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)
        target = torch.autograd.grad(expected.square().sum(), list(pairs.values()))
        for key, gradient, want in zip(
            pairs, torch.autograd.grad(result.square().sum(), list(pairs.values())), target, strict=True
        ):
            torch.testing.assert_close(gradient, want, rtol=1e-9, atol=1e-11, msg=key)
    finally:
        torch.set_default_dtype(torch.float32)
