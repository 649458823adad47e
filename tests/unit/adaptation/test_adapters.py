"""Placement, cost and identity initialization of adapters."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from lemma.adaptation.adapt import adapt_model, merge_lora
from lemma.adaptation.adapters import Adapter
from lemma.errors import InputError, SpecError
from lemma.generation.engine import generate
from lemma.generation.sampling import Sampling
from lemma.layers.feed_forward import gelu
from lemma.models.build import build
from lemma.spec.models import Encoder, EncoderDecoder
from lemma.spec.recipe import Adapters

from families import SMALL

TOKENS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 1, 2]])


def randomize_trainable(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    return model


def logits_of(model: nn.Module, *given: Any) -> Any:
    with torch.no_grad():
        built = model(*given)
    built = built[0] if isinstance(built, tuple) else built
    return getattr(built, "logits", built)


def test_adapter_computes_x_plus_up_gelu_down() -> None:
    adapter = randomize_trainable(Adapter(6, 2))
    vectors = torch.randn(3, 4, 6)
    down, up = (adapter.get_submodule(name) for name in ("down", "up"))
    torch.testing.assert_close(adapter(vectors), vectors + up(gelu(down(vectors))))
    assert sum(parameter.numel() for parameter in adapter.parameters()) == 2 * 6 * 2 + 2 + 6


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("feed-forward", ("hidden",)),
        ("attentive", ("hidden",)),
        ("lstm", ("layers",)),
        (
            "decoder",
            tuple(f"layers.{layer}.{part}" for layer in (0, 1) for part in ("attention.output", "feed_forward")),
        ),
        (
            "table-a5",
            tuple(f"layers.{layer}.{part}" for layer in (0, 1) for part in ("self_attn", "multihead_attn", "linear2")),
        ),
    ],
)
def test_each_family_places_adapters_at_its_output_projections(name: str, places: tuple[str, ...]) -> None:
    model = build(SMALL[name]).eval()
    state, before = set(model.state_dict()), logits_of(copy.deepcopy(model).requires_grad_(False), TOKENS)
    adaptation = adapt_model(model, Adapters(bottleneck=3))
    assert adaptation.paths == places
    assert torch.equal(logits_of(model, TOKENS), before)
    assert state < set(model.state_dict())
    assert not torch.allclose(logits_of(randomize_trainable(model), TOKENS), before)


def test_cross_attention_gets_separate_adapters() -> None:
    spec = EncoderDecoder(vocabulary=11, width=8, heads=2, context=9, encoder_depth=1, decoder_depth=1)
    positions = adapt_model(build(spec), Adapters()).paths
    assert [path for path in positions if path.startswith("decoder")] == [
        "decoder.layers.0.attention.output",
        "decoder.layers.0.source_attention.output",
        "decoder.layers.0.feed_forward",
    ]
    number = adapt_model(build(Encoder(width=8, heads=2, depth=3)), Adapters(bottleneck=5)).num_trainable
    assert number == 3 * 2 * (2 * 8 * 5 + 5 + 8)


def test_third_party_modules_require_explicit_placement() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=13, n_embd=8, n_layer=2, n_head=2, n_positions=9, bos_token_id=None)
    model = transformers.GPT2LMHeadModel(config).eval()
    with pytest.raises(SpecError, match=r"Name them, as in placement.*transformer\.h\.\*\.mlp"):
        adapt_model(model, Adapters())
    before = logits_of(model, TOKENS)
    adaptation = adapt_model(model, Adapters(bottleneck=2, placement=("*.mlp", "*.attn")))
    assert adaptation.num_trainable == 4 * (2 * 8 * 2 + 2 + 8)
    assert torch.equal(logits_of(model, TOKENS), before)
    assert not torch.allclose(logits_of(randomize_trainable(model), TOKENS), before)


@pytest.mark.parametrize(
    ("module", "given"),
    [
        (nn.Sequential(nn.Linear(4, 6), nn.ReLU()), torch.randn(2, 4)),
        (nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 6))), torch.randn(2, 4)),
        (nn.LSTM(4, 3, bidirectional=True), torch.randn(5, 2, 4)),
        (nn.LSTMCell(4, 6), torch.randn(2, 4)),
        (nn.LSTM(4, 3), nn.utils.rnn.pack_sequence([torch.randn(3, 4), torch.randn(2, 4)])),
    ],
    ids=["sequence", "nested", "both-ways", "cell", "packed"],
)
def test_adapter_changes_only_the_first_output_of_a_module(module: nn.Module, given: Any) -> None:
    unwrapped = copy.deepcopy(module)
    adapt_model(module, Adapters(bottleneck=2, placement=("",)))
    randomize_trainable(module)
    adapter: Any = module.get_submodule("adapter")
    with torch.no_grad():
        built, base = module(given), unwrapped(given)
    first, original = (built[0], base[0]) if isinstance(built, tuple) else (built, base)
    first, original = (first.data, original.data) if hasattr(first, "batch_sizes") else (first, original)
    torch.testing.assert_close(first, adapter(original).detach())
    if isinstance(built, tuple):
        torch.testing.assert_close(built[1], base[1])


def test_torch_encoder_fast_path_runs_adapters() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    adapt_model(model, Adapters(bottleneck=2))
    randomize_trainable(model)
    vectors, missing = torch.randn(3, 5, 8), torch.arange(5) >= torch.tensor([[5], [3], [4]])
    slow = model(vectors, None, missing).detach()
    torch.testing.assert_close(logits_of(model, vectors, None, missing)[~missing], slow[~missing])


def test_adapters_on_uncalled_modules_are_rejected() -> None:
    attention = nn.ModuleDict({"attention": nn.MultiheadAttention(8, 2)})
    with pytest.raises(SpecError, match=r"attention\.out_proj is never called.*after attention"):
        adapt_model(attention, Adapters(placement=("attention.out_proj",)))
    with pytest.raises(SpecError, match="layers is never called"):
        adapt_model(build(SMALL["decoder"]), Adapters(placement=("layers",)))
    with pytest.raises(SpecError, match="has no known output width"):
        adapt_model(nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), Adapters(placement=("0",)))
    with pytest.raises(SpecError, match=r"Did you mean '\*\.narrow'"):
        adapt_model(build(SMALL["decoder"]), Adapters(placement=("narrow",)))


def test_adapter_width_mismatch_is_reported_in_forward() -> None:
    class Doubles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(3, 4)

        def forward(self, vectors: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.map(vectors)] * 2, dim=-1)

    model = adapt_model(nn.Sequential(Doubles()), Adapters(placement=("0",))).model
    with pytest.raises(InputError, match="an adapter of width 4 comes after a module that returns vectors of 8"):
        model(torch.ones(2, 3))


def test_merging_adapters_is_rejected_with_the_reason() -> None:
    model = adapt_model(build(SMALL["decoder"]), Adapters()).model
    with pytest.raises(SpecError, match="σ is between W_down and W_up"):
        merge_lora(model)


@pytest.mark.parametrize("name", ["decoder", "lstm", "feed-forward"])
def test_adapted_model_decodes_like_full_forward_and_copies_independently(name: str) -> None:
    model: Any = randomize_trainable(adapt_model(build(SMALL[name]).double().eval(), Adapters(bottleneck=2)).model)
    result = generate(model, [[1, 2, 3]], Sampling(tokens=4, temperature=0.0))[0].tokens
    tokens = [1, 2, 3]
    for _ in range(4):
        tokens.append(int(logits_of(model, torch.tensor([tokens]))[0, -1].argmax()))
    assert [*result][-4:] == tokens[3:]
    twin = copy.deepcopy(model)
    assert torch.equal(logits_of(twin, TOKENS), logits_of(model, TOKENS))
    assert not torch.allclose(logits_of(randomize_trainable(twin), TOKENS), logits_of(model, TOKENS))


def test_adapters_support_bfloat16_and_compilation() -> None:
    model = randomize_trainable(
        adapt_model(build(SMALL["decoder"]).to(torch.bfloat16).eval(), Adapters(bottleneck=2)).model
    )
    assert logits_of(model, TOKENS).dtype == torch.bfloat16
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)
    assert torch.equal(logits_of(compiled, TOKENS), logits_of(model, TOKENS))
