"""LoRA on every kind of matrix: targets, tied weights and wrapped modules."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lemma.adaptation.adapt import adapt_model, merge_lora, trainable_parameters
from lemma.adaptation.lora import LoraMatrices
from lemma.errors import SpecError
from lemma.generation.engine import generate
from lemma.generation.sampling import Sampling
from lemma.models.build import build
from lemma.spec.models import Decoder, FeedForward, Gru, Lstm, Parser
from lemma.spec.recipe import Frozen, Lora

DECODER = Decoder(vocabulary=13, width=8, depth=2, heads=2, context=9)
TOKENS = torch.arange(12).view(2, 6)


def randomize_trainable(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    return model


def adapted(model: nn.Module, *targets: str, **words: Any) -> nn.Module:
    return randomize_trainable(adapt_model(model, Lora(rank=words.pop("rank", 2), targets=targets, **words)).model)


def logits_of(model: nn.Module, *given: Any) -> Tensor:
    with torch.no_grad():
        built = model(*given)
    built = built[0] if isinstance(built, tuple) else built
    return getattr(built, "logits", built)


def test_lora_defaults_to_all_body_matrices() -> None:
    paths = adapt_model(build(DECODER), Lora(rank=2)).paths
    inner = ("attention.query_key_value", "attention.output", "feed_forward.widen", "feed_forward.narrow")
    assert set(paths) == {f"layers.{layer}.{name}.weight" for layer in (0, 1) for name in inner}
    recurrent = adapt_model(build(Lstm(vocabulary=13, width=6, hidden=7, depth=2)), Lora(rank=2)).paths
    assert set(recurrent) == {f"layers.weight_{kind}_l{layer}" for kind in ("ih", "hh") for layer in (0, 1)}


def test_lora_default_excludes_heads_of_hugging_face_models() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 9}
    config = transformers.GPT2Config(vocab_size=13, bos_token_id=None, eos_token_id=None, **sizes)
    inner = {f"transformer.h.0.{name}.weight" for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")}
    for kind in (transformers.GPT2LMHeadModel, transformers.GPT2ForSequenceClassification):
        assert set(adapt_model(kind(config), Lora(rank=2)).paths) == inner
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    roberta = transformers.RobertaForSequenceClassification(transformers.RobertaConfig(vocab_size=13, **sizes))
    assert all(".layer.0." in path for path in adapt_model(roberta, Lora(rank=2)).paths)


def test_lora_targets_match_module_and_parameter_paths() -> None:
    assert adapt_model(build(DECODER), Lora(rank=2, targets=("*.query_key_value",))).paths == (
        "layers.0.attention.query_key_value.weight",
        "layers.1.attention.query_key_value.weight",
    )
    lstm = build(Lstm(vocabulary=13, width=6, hidden=7))
    assert adapt_model(lstm, Lora(rank=2, targets=("layers.weight_hh_l0",))).paths == ("layers.weight_hh_l0",)
    everything = adapt_model(build(DECODER), Lora(rank=2, targets=("*",))).paths
    assert "embedding.weight" in everything
    assert "positions.weight" in everything
    assert not any("norm" in path for path in everything)


@pytest.mark.parametrize(
    ("pattern", "guess"),
    [
        ("layers.*.attention", "layers.*.attention.*"),
        ("query_key_value", "*.query_key_value"),
        ("layers.*.atention.output", "layers.*.attention.output"),
    ],
)
def test_unmatched_lora_target_suggests_a_pattern_and_lists_matrices(pattern: str, guess: str) -> None:
    with pytest.raises(SpecError) as error:
        adapt_model(build(DECODER), Lora(targets=(pattern,)))
    assert f"targets = '{pattern}' matches nothing here" in str(error.value)
    assert f"Did you mean '{guess}" in str(error.value)
    assert "layers.*.feed_forward.narrow" in str(error.value)
    assert "norm" not in str(error.value).partition("There are")[2]


def test_excessive_lora_rank_is_rejected_without_changing_the_model() -> None:
    model = build(FeedForward(vocabulary=13, width=3, hidden=5, context=3))
    with pytest.raises(SpecError, match=r"rank = 6 is more than hidden\.weight of 5 × 6 can have. Take rank=5"):
        adapt_model(model, Lora(rank=6))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert adapt_model(model, Lora(rank=5)).num_trainable == 5 * (6 + 5)


def test_fully_trained_parameters_get_no_lora_update() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    adaptation = adapt_model(model, Lora(rank=2, targets=("*",)), learn=("1.*",))
    assert adaptation.paths == ("0.weight",)
    assert {path for path, _ in trainable_parameters(model)} == {"0.update.A", "0.update.B", "1.weight", "1.bias"}
    with pytest.raises(SpecError, match="matches nothing"):
        adapt_model(nn.Sequential(nn.Linear(4, 5)), Lora(rank=2, targets=("0",)), learn=("0.weight",))


def test_adapting_an_adapted_model_is_rejected() -> None:
    model = adapted(build(DECODER))
    with pytest.raises(SpecError, match="adapted already"):
        adapt_model(model, Frozen())
    assert adapt_model(merge_lora(model), Lora(rank=1)).num_trainable > 0


def test_tied_matrices_share_one_update_and_stay_tied() -> None:
    tied: Any = adapted(build(DECODER), "output")
    assert len(trainable_parameters(tied)) == 2
    assert tied.embedding.update is tied.output.update
    folded = logits_of(tied, TOKENS)
    base: Any = merge_lora(tied)
    assert base.output.weight is base.embedding.weight
    torch.testing.assert_close(logits_of(base, TOKENS), folded)


def test_shared_module_is_wrapped_once() -> None:
    layer = nn.Linear(4, 4)
    model: Any = adapted(nn.Sequential(layer, nn.ReLU(), layer))
    assert model[0] is model[2]
    assert len(trainable_parameters(model)) == 2
    before = logits_of(model, torch.ones(2, 4))
    assert merge_lora(model)[0] is layer is model[2]
    torch.testing.assert_close(logits_of(model, torch.ones(2, 4)), before)


def test_direct_access_to_a_weight_includes_the_update() -> None:
    parser: Any = build(Parser(vocabulary=11, buckets=7, width=4, relations=3, hidden=5, head_width=2, shared_width=2))
    rows = torch.randint(4, 7, (2, 5, 3))
    adapted(parser.eval(), "pieces")  # the parser passes this weight to embedding_bag directly
    before = logits_of(parser, rows)
    torch.testing.assert_close(logits_of(merge_lora(parser), rows), before, rtol=1e-4, atol=1e-5)


def test_torch_encoder_fast_path_uses_lora_updates() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    adapted(model)
    vectors, missing = torch.randn(3, 5, 8), torch.arange(5) >= torch.tensor([[5], [3], [4]])
    fast = logits_of(model, vectors, None, missing)
    slow = model(vectors, None, missing).detach()  # the fast path is disabled when gradients are needed
    torch.testing.assert_close(fast[~missing], slow[~missing], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits_of(merge_lora(model), vectors, None, missing)[~missing], fast[~missing])


def test_recurrent_lora_supports_packed_sequences_and_zero_biases() -> None:
    layers: Any = build(Gru(vocabulary=13, width=6, hidden=7, biases=1)).layers
    custom = copy.deepcopy(layers)
    model: Any = adapted(layers)
    assert isinstance(model, LoraMatrices)
    assert model.hidden_size == 7
    rows = torch.randn(2, 5, 6)
    packed = pack_padded_sequence(rows, torch.tensor([5, 3]), batch_first=True)
    unpacked, _ = pad_packed_sequence(model(packed)[0], batch_first=True)
    torch.testing.assert_close(unpacked[0], model(rows)[0][0])
    before = logits_of(model, rows)
    torch.testing.assert_close(
        logits_of(layers, rows), logits_of(custom, rows)
    )  # the forward pass restores the base weights
    base = merge_lora(model)
    assert base is layers
    torch.testing.assert_close(logits_of(base, rows), before)


def test_lora_dropout_acts_on_update_inputs_only_in_training() -> None:
    torch.manual_seed(3)
    model: Any = adapted(nn.Sequential(nn.Linear(400, 3, bias=False)), lora_dropout=0.25).train()
    inputs = torch.eye(400)
    update = (logits_of(model, inputs) - logits_of(model[0].base, inputs)) / model[0].update.delta().T
    saved = update[:, 0].round(decimals=3).unique().tolist()
    assert saved == pytest.approx([0.0, 4 / 3], abs=1e-3)
    assert (update[:, 0].abs() < 1e-3).float().mean().item() == pytest.approx(0.25, abs=0.08)
    assert torch.equal(logits_of(model.eval(), inputs), logits_of(model, inputs))


def test_lora_dropout_of_recurrent_matrix_drops_columns() -> None:
    model: Any = adapted(nn.RNN(50, 4), "weight_ih_l0", lora_dropout=0.5).train()
    dropped = (model.weight_ih_l0 - model.base.weight_ih_l0).detach() / model.updates["weight_ih_l0"].delta().detach()
    assert torch.equal(dropped[0].round(decimals=2), dropped[3].round(decimals=2))
    assert set(dropped[0].round().tolist()) == {0.0, 2.0}
    model.eval()
    torch.testing.assert_close(model.weight_ih_l0 - model.base.weight_ih_l0, model.updates["weight_ih_l0"].delta())


def test_padding_row_of_embedding_gets_no_update() -> None:
    model: Any = adapt_model(nn.Sequential(nn.Embedding(5, 4, padding_idx=2)), Lora(rank=2, targets=("0",))).model
    model(torch.arange(5)).sum().backward()
    gradient = model[0].update.B.grad
    assert not gradient[2].any()
    assert gradient[[0, 1, 3, 4]].all()


def test_lora_on_embedding_with_max_norm_is_rejected() -> None:
    with pytest.raises(SpecError, match=r"0 has max_norm = 1\.0"):
        adapt_model(nn.Sequential(nn.Embedding(5, 4, max_norm=1.0)), Lora(rank=2, targets=("0",)))


@pytest.mark.parametrize("spec", [DECODER, Gru(vocabulary=13, width=6, hidden=7)], ids=lambda spec: spec.family)
def test_lora_parameters_stay_float32_under_half_precision_and_autocast(spec: Any) -> None:
    model = adapted(build(spec).to(torch.bfloat16).eval())
    assert {parameter.dtype for parameter in model.parameters() if parameter.requires_grad} == {torch.float32}
    before = logits_of(model, TOKENS)
    assert before.dtype == torch.bfloat16
    torch.testing.assert_close(logits_of(merge_lora(model), TOKENS), before, rtol=0.05, atol=0.05)
    full = adapted(build(spec).eval())
    with torch.autocast("cpu", torch.bfloat16):
        half = logits_of(full, TOKENS)
    torch.testing.assert_close(half.float(), logits_of(full, TOKENS), rtol=0.1, atol=0.1)


def test_wrapped_models_support_copy_save_modes_and_compilation() -> None:
    model = adapted(build(DECODER).eval(), lora_dropout=0.1)
    assert not any(part.training for part in model.modules())
    twin = adapt_model(build(DECODER).eval(), Lora(rank=2)).model
    twin.load_state_dict(model.state_dict())
    assert torch.equal(logits_of(twin, TOKENS), logits_of(model, TOKENS))
    clone = copy.deepcopy(model)
    randomize_trainable(clone)
    assert not torch.allclose(logits_of(clone, TOKENS), logits_of(model, TOKENS))
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)
    assert torch.equal(logits_of(compiled, TOKENS), logits_of(model, TOKENS))
    recurrent = adapted(build(Lstm(vocabulary=13, width=6, hidden=7)).eval())
    compiled = torch.compile(recurrent, backend="eager", dynamic=False)
    torch.testing.assert_close(logits_of(compiled, TOKENS), logits_of(recurrent, TOKENS))
    assert model.to(torch.float64)(TOKENS)[0].dtype == torch.float64


@pytest.mark.parametrize(
    "spec",
    [DECODER, Lstm(vocabulary=13, width=6, hidden=7, depth=2), FeedForward(vocabulary=13)],
    ids=lambda s: s.family,
)
def test_wrapped_model_decodes_like_merged_model(spec: Any) -> None:
    model: Any = adapted(build(spec).double().eval(), "*")
    settings = Sampling(tokens=20, temperature=0.0)
    wrapped = generate(model, [[1, 2, 3]], settings)[0].tokens
    assert generate(merge_lora(model), [[1, 2, 3]], settings)[0].tokens == wrapped


def test_merging_without_updates_returns_a_trainable_plain_model() -> None:
    model = adapt_model(build(DECODER), Frozen()).model
    assert merge_lora(model) is model
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_adapting_torch_modules_emits_no_warnings() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = adapted(build(Lstm(vocabulary=13, width=6, hidden=7)))
        model(TOKENS)[0].sum().backward()
        merge_lora(model)(TOKENS)
    assert not caught
