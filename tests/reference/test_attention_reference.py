"""Attention, rotary and ALiBi against torch.nn and transformers."""

import pytest
import torch
from torch import Tensor, nn

from lemma.layers.attention import Attention, AttentionShape
from lemma.layers.positions import alibi_slopes, rotate, sinusoids
from lemma.models.build import build
from lemma.spec.models import Decoder
from lemma.spec.positions import Alibi, Rotary


def assert_near(one: Tensor, other: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=atol)


def test_self_attention_equals_torch() -> None:
    reference = nn.MultiheadAttention(12, 3, batch_first=True).double()
    ours = Attention(AttentionShape(12, 3, causal=False)).double()
    ours.query_key_value.load_state_dict({"weight": reference.in_proj_weight, "bias": reference.in_proj_bias})
    ours.output.load_state_dict(reference.out_proj.state_dict())
    stream = torch.randn(2, 7, 12, dtype=torch.float64)
    padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    assert_near(ours(stream)[0], reference(stream, stream, stream)[0])
    masked = ours(stream, mask=~padding[:, None, None])[0]
    assert_near(masked, reference(stream, stream, stream, key_padding_mask=padding)[0])


def test_cross_attention_equals_torch_and_caches_its_source() -> None:
    reference = nn.MultiheadAttention(12, 3, batch_first=True, kdim=8, vdim=8).double()
    ours = Attention(AttentionShape(12, 3, causal=False, source_width=8)).double()
    query, key, value = reference.in_proj_bias.chunk(3)
    maps = {"query": (reference.q_proj_weight, query)}
    maps["key_value"] = (torch.cat([reference.k_proj_weight, reference.v_proj_weight]), torch.cat([key, value]))
    for name, (weight, bias) in maps.items():
        ours.get_submodule(name).load_state_dict({"weight": weight, "bias": bias})
    ours.output.load_state_dict(reference.out_proj.state_dict())
    stream, source = torch.randn(2, 4, 12, dtype=torch.float64), torch.randn(2, 7, 8, dtype=torch.float64)
    mixed, cache = ours(stream, source=source)
    assert_near(mixed, reference(stream, source, source)[0])
    assert_near(ours(stream[:, 2:], cache=cache)[0], mixed[:, 2:])


def test_rotary_equals_transformers_gptj() -> None:
    gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    reference = gptj.create_sinusoidal_positions(10, 8)  # sines, then cosines
    sine, cosine = reference.chunk(2, dim=-1)
    vectors = torch.randn(2, 10, 3, 8)  # batch time heads width
    rotated = gptj.apply_rotary_pos_emb(vectors, sine[None], cosine[None])
    table = sinusoids(10, 8, 10_000.0).unflatten(1, (-1, 2))
    assert_near(rotate(vectors.transpose(1, 2), table), rotated.transpose(1, 2), 1e-6)


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16])
def test_alibi_slopes_equal_bloom(heads: int) -> None:
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    reference = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)  # heads 1 time: slope · position
    assert_near(alibi_slopes(heads), reference[:, 0, 1], 1e-7)


def llama(depth: int, heads: int, groups: int) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    shape = transformers.LlamaConfig(
        vocab_size=13,
        hidden_size=16,
        intermediate_size=20,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        max_position_embeddings=8,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(3)
    return transformers.LlamaModel(shape).double().eval()


def paired(weight: Tensor, heads: int) -> Tensor:
    """Reorder rows: Llama rotates the two halves of a vector, Lemma neighbouring pairs."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


@pytest.mark.parametrize("groups", [4, 2, 1])
def test_grouped_rotary_attention_equals_llama_past_the_context(groups: int) -> None:
    reference = llama(1, 4, groups)
    attention = reference.layers[0].self_attn
    ours = Attention(AttentionShape(16, 4, key_value_heads=groups, bias=False, positions=Rotary(), context=8)).double()
    queries, keys = paired(attention.q_proj.weight, 4), paired(attention.k_proj.weight, groups)
    ours.query_key_value.load_state_dict({"weight": torch.cat([queries, keys, attention.v_proj.weight])})
    ours.output.load_state_dict(attention.o_proj.state_dict())
    stream = torch.randn(2, 30, 16, dtype=torch.float64)
    positions = torch.arange(30)[None]
    rotated = reference.rotary_emb(stream, positions)
    causal = torch.full((30, 30), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    expected = attention(stream, position_embeddings=rotated, attention_mask=causal)[0]
    assert_near(ours(stream)[0], expected, 1e-6)  # transformers computes its table of angles in float32


@pytest.mark.parametrize("positions", [Rotary(), Alibi()])
def test_model_past_its_context_equals_a_longer_context_model(positions: Rotary | Alibi) -> None:
    spec = Decoder(vocabulary=13, width=16, depth=2, heads=4, context=6, positions=positions)
    short, long = build(spec).double().eval(), build(spec.replace(context=40)).double().eval()
    long.load_state_dict(short.state_dict())
    tokens = torch.randint(13, (2, 30))
    assert_near(short(tokens)[0], long(tokens)[0])
    assert short.receptive_field is None
