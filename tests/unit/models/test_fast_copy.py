"""Fast copies are bitwise equal to their models and keep hooks, wrappers and patches."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from lemma.generation import cuda_graphs
from lemma.generation.engine import generate
from lemma.generation.sampling import Sampling
from lemma.models.base import LanguageModel, fast_copy, has_hooks
from lemma.models.build import build
from lemma.spec.models import Decoder

from families import SMALL

TOKENS = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(1))
GREEDY = Sampling(tokens=5, temperature=0)


def small() -> LanguageModel:
    return build(Decoder(vocabulary=11, width=8, depth=2, heads=2, context=16)).eval()


@pytest.mark.parametrize("name", SMALL)
@torch.inference_mode()
def test_fast_copy_is_bitwise_equal_token_by_token(name: str) -> None:
    model = build(SMALL[name]).eval()
    same, states = fast_copy(model), (None, None)
    assert not isinstance(same, nn.Module)
    for token in TOKENS.split(1, dim=1):
        (logits, first), (bare_logits, second) = model(token, states[0]), same(token, states[1])
        assert torch.equal(bare_logits, logits)
        states = first, second


def test_forward_hooks_run_for_every_token() -> None:
    model, seen = small(), []
    model.layers[1].attention.output.register_forward_hook(lambda *given: seen.append(1))  # pyright: ignore
    generate(model, [[1, 2]], GREEDY)
    assert len(seen) == 5


def test_models_with_hooks_get_no_cuda_graph() -> None:
    model = build(
        Decoder(vocabulary=11, width=8, depth=2, heads=2, context=64)
    ).eval()  # enough tokens for a graph to pay off
    with torch.inference_mode():
        _, cache = model(TOKENS)
    handle = model.layers[1].register_forward_hook(lambda *given: None)  # pyright: ignore
    assert cuda_graphs.make_graph_step(model, cache, model, Sampling(tokens=100), torch.bfloat16) == (None, cache)
    handle.remove()
    assert not has_hooks(model)
    model.layers[0].forward = model.layers[0].forward  # pyright: ignore
    assert has_hooks(model)


def test_global_forward_hooks_run() -> None:
    model, seen = small(), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *given: seen.append(type(module).__name__))
    try:
        generate(model, [[1, 2]], GREEDY)
    finally:
        handle.remove()
    assert seen.count("DecoderModel") == 5 and seen.count("LayerNorm") == 25


class Zero(nn.Linear):
    """A wrapped layer, like an adapter's."""

    def forward(self, input: Tensor) -> Tensor:
        return 0 * super().forward(input)


def replace(model: LanguageModel) -> None:
    model.output = Zero(8, 11)


def patch(model: LanguageModel) -> None:
    model.output.forward = lambda stream: 0 * stream.sum(-1, keepdim=True).expand(*stream.shape[:-1], 11)


@pytest.mark.parametrize("change", [replace, patch])
@torch.inference_mode()
def test_replaced_or_patched_layers_are_used(change: Callable[[LanguageModel], None]) -> None:
    model = small()
    change(model)
    assert not fast_copy(model)(TOKENS)[0].any()


class Half(nn.LayerNorm):
    """A layer in Lemma's namespace that overrides forward."""

    __module__ = "lemma.somewhere"

    def forward(self, input: Tensor) -> Tensor:
        return input / 2


def test_lemma_layer_subclass_keeps_its_forward() -> None:
    assert torch.equal(fast_copy(Half(8))(torch.ones(8)), torch.full((8,), 0.5))


class Twice(nn.LayerNorm):
    """A layer in Lemma's namespace whose forward calls super, which requires a module."""

    __module__ = "lemma.somewhere"

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


@torch.inference_mode()
def test_forward_calling_super_stays_a_module() -> None:
    model = small()
    model.norm = Twice(8)
    assert isinstance(fast_copy(model).norm, nn.Module)
    assert torch.equal(fast_copy(model)(TOKENS)[0], model(TOKENS)[0])


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("by_columns", [True, False])
@torch.inference_mode()
def test_threaded_linear_matches_float64_reference(by_columns: bool, threads: int) -> None:
    layer, default = nn.Linear(513, 514), torch.get_num_threads()
    if by_columns:
        layer.weight.data = layer.weight.data.t().contiguous().t()
    try:
        torch.set_num_threads(threads)
        for shape in ((513,), (1, 1, 513), (2, 1, 513)):
            vectors = torch.randn(shape, generator=torch.Generator().manual_seed(1))
            exact = vectors.double() @ layer.weight.double().T + layer.bias.double()
            torch.testing.assert_close(fast_copy(layer)(vectors), exact.float(), atol=1e-5, rtol=1e-5)
    finally:
        torch.set_num_threads(default)


def test_only_large_contiguous_linears_are_threaded() -> None:
    odd = nn.Linear(512, 1024)
    odd.weight.data = torch.zeros(1024, 1024)[:, ::2]  # every other column of a wider matrix
    divided = [isinstance(fast_copy(layer), partial) for layer in (nn.Linear(512, 512), nn.Linear(512, 511), odd)]
    assert divided == [True, False, False]


def test_embedding_max_norm_is_preserved() -> None:
    embedding = nn.Embedding(11, 8, max_norm=0.5)
    assert bool((fast_copy(embedding)(TOKENS).norm(dim=-1) < 0.51).all())


def test_generation_restores_training_mode_per_module() -> None:
    model = small().train()
    model.norm.eval()
    generate(model, [[1, 2]], GREEDY)
    assert model.training and model.layers[0].training and not model.norm.training
