"""Recorded attention: weights recomputed from queries and keys equal those of the model, for any library."""

import threading

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lemma.layers.recording import LISTENERS, AttentionRecord, record_attention
from lemma.models.build import build
from lemma.models.feed_forward import WindowHead
from lemma.spec.models import Attentive

from families import SMALL

ATTENDING = [name for name in SMALL if name.startswith(("decoder", "table"))]


@pytest.mark.parametrize("name", ATTENDING)
def test_recorded_weights_times_values_equal_kernel_output(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = build(SMALL[name]).double().eval(), torch.randint(11, (2, 8))
    settings: list[Tensor] = []
    kernel = functional.scaled_dot_product_attention

    def kept(*args: object, **kwargs: object) -> Tensor:
        settings.append(kernel(*args, **kwargs))  # pyright: ignore[reportArgumentType]
        return settings[-1]

    monkeypatch.setattr(functional, "scaled_dot_product_attention", kept)
    base = model(tokens)[0]
    settings.clear()
    with record_attention(model) as records:
        tapped = model(tokens)[0]
    assert torch.equal(base, tapped) and len(records) == len(settings) > 0 and not LISTENERS.active
    for record, out in zip(records, settings, strict=True):
        assert record.name.startswith("layers.") and record.values is not None
        expected = record.weights() @ record.values
        torch.testing.assert_close(out[..., : expected.shape[-1]], expected, rtol=0, atol=1e-9)


def test_recording_includes_cached_decoding_calls() -> None:
    model, tokens = build(SMALL["decoder-alibi"]).double().eval(), torch.randint(11, (1, 8))
    with record_attention(model) as full:
        model(tokens)
    _, state = model(tokens[:, :5])
    with record_attention(model) as tail:
        model(tokens[:, 5:], state)
    for item, other in zip(full, tail, strict=True):
        torch.testing.assert_close(item.weights()[:, :, 5:], other.weights(), rtol=0, atol=1e-12)


def test_position_bias_of_distant_keys_is_exact_in_bfloat16() -> None:
    new = 515  # bfloat16 rounds 511 and 513 to 512
    queries = torch.zeros(1, 1, new, 2, dtype=torch.bfloat16)
    line = torch.arange(1 - new, new)[None].float()  # adds the distance itself
    scores = AttentionRecord(queries, queries, None, 1.0, causal=True, position_bias=line).scores()
    assert torch.equal(scores[0, 0, -1], torch.arange(new - 1, -1, -1).float())
    assert scores[0, 0, 511, :3].tolist() == [511, 510, 509] and scores[0, 0, 0, 1] == -torch.inf


def test_window_head_is_recorded_as_one_head() -> None:
    model = build(Attentive(vocabulary=11, width=6, key_width=5, value_width=4, hidden=7, context=4)).double()
    tokens = torch.randint(11, (2, 7))
    with torch.no_grad(), record_attention(model) as [*records]:
        pass
    with torch.no_grad(), record_attention(model) as records:
        model(tokens)
        head = model.get_submodule("head")
        assert isinstance(head, WindowHead)
        mixed = head(model.get_submodule("embedding")(tokens), 7, 3)
    weights = records[0].weights()
    assert weights.shape == (2, 1, 7, 7) and records[0].name == "head"
    assert torch.equal(weights > 0, torch.ones(7, 7, dtype=torch.bool).tril().triu(-2).expand(2, 1, 7, 7))
    torch.testing.assert_close((weights @ records[0].values)[:, 0], mixed)


def hugging_face(kind: str, implementation: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 17, "hidden_size": 16, "intermediate_size": 20, "num_attention_heads": 4}
    extra = {"num_key_value_heads": 2} if kind == "Llama" else {}
    ends = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    config = getattr(transformers, f"{kind}Config")(num_hidden_layers=2, **sizes, **extra, **ends)
    config._attn_implementation = implementation
    torch.manual_seed(1)
    return getattr(transformers, f"{kind}Model")(config).eval()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["GPT2", "Llama", "Bert"])
def test_recorded_hugging_face_attention_matches_output_attentions(kind: str, implementation: str) -> None:
    model, tokens = hugging_face(kind, implementation), torch.randint(17, (2, 6))
    present = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    with torch.no_grad(), record_attention(model) as records:
        model(tokens, attention_mask=present)
    assert model.config._attn_implementation == implementation
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        expected = model(tokens, attention_mask=present, output_attentions=True).attentions
    assert len(records) == len(expected) == 2
    for record, weights in zip(records, expected, strict=True):
        torch.testing.assert_close(record.weights()[0], weights[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(record.weights()[1, :, :4], weights[1, :, :4], rtol=0, atol=1e-5)


def test_torch_encoder_layers_are_recorded_despite_fast_path() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    stream = torch.randn(2, 5, 8)
    with torch.no_grad(), record_attention(layer) as records:
        layer(stream)
    with torch.no_grad():
        _, expected = layer.self_attn(stream, stream, stream, average_attn_weights=False)
    assert len(records) == 1 and records[0].name == "self_attn"
    torch.testing.assert_close(records[0].weights(), expected)


def test_failed_forward_removes_recording_hooks() -> None:
    model = build(SMALL["decoder"])
    kernel = functional.scaled_dot_product_attention
    with pytest.raises(IndexError), record_attention(model):
        model(torch.tensor([[99]]))
    assert not LISTENERS.active and functional.scaled_dot_product_attention is kernel
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in model.modules())


def test_nested_recordings_capture_the_same_attention() -> None:
    model, tokens = build(SMALL["table-a5"]), torch.randint(11, (1, 5))
    with torch.no_grad(), record_attention() as outer, record_attention(model) as inner:
        model(tokens)
    assert len(outer) == len(inner) == 4
    assert all(torch.equal(item.weights(), other.weights()) for item, other in zip(outer, inner, strict=True))


def test_recording_is_thread_local_and_cleans_up() -> None:
    kernel = functional.scaled_dot_product_attention
    model, tokens = build(SMALL["decoder"]).eval(), torch.randint(11, (1, 5))
    begun, over = threading.Event(), threading.Event()

    def other() -> None:
        with torch.no_grad(), record_attention(build(SMALL["table-a5"])):
            begun.set()
            over.wait(10)

    thread = threading.Thread(target=other)
    with torch.no_grad(), record_attention(model) as records:
        thread.start()
        assert begun.wait(10)
        model(tokens)
    over.set()  # the other recording starts and ends later
    thread.join()
    assert len(records) == 2 and functional.scaled_dot_product_attention is kernel


def test_recorded_causal_mask_is_aligned_to_the_first_key() -> None:
    queries, keys = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    with record_attention() as records:
        mixed = functional.scaled_dot_product_attention(queries, keys, keys, is_causal=True)
    torch.testing.assert_close(records[0].weights() @ keys, mixed)


def test_nan_scores_give_nan_weights() -> None:
    queries = torch.tensor([[[[float("nan")], [1.0]]]])
    weights = AttentionRecord(queries, torch.ones(1, 1, 2, 1), None, 1.0).weights()
    assert weights[0, 0, 0].isnan().all() and weights[0, 0, 1].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("causal", [False, True])
def test_torch_attention_returning_weights_is_recorded(causal: bool) -> None:
    layer, stream = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True), torch.randn(2, 5, 8)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    torch.manual_seed(0)
    base, _ = layer(stream, stream, stream, attn_mask=mask)
    torch.manual_seed(0)
    with record_attention(layer) as records:
        tapped, _ = layer(stream, stream, stream, attn_mask=mask)
    _, expected = layer.eval()(stream, stream, stream, attn_mask=mask, average_attn_weights=False)
    assert torch.equal(base, tapped) and len(records) == 1
    torch.testing.assert_close(records[0].weights(), expected)
