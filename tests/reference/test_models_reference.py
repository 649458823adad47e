"""The families against independent implementations: torch.nn, transformers and plain loops."""

import pytest
import torch
from torch import Tensor, nn

from lemma.models.build import build
from lemma.spec.models import Attentive, Decoder, FeedForward, Gru, Lstm, Rnn, TableA5


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(13, (2, 10))


@pytest.mark.parametrize("tied", [True, False])
def test_decoder_equals_transformers_gpt2(tokens: Tensor, tied: bool) -> None:
    transformers = pytest.importorskip("transformers")
    shape = transformers.GPT2Config(
        vocab_size=13, n_positions=16, n_embd=12, n_layer=3, n_head=3, n_inner=20, tie_word_embeddings=tied
    )
    reference = transformers.GPT2LMHeadModel(shape).double().eval()
    spec = Decoder(vocabulary=13, context=16, width=12, depth=3, heads=3, feed_forward=20, tied=tied)
    ours = build(spec).double().eval()
    ours.load_state_dict(_from_gpt2(reference.state_dict(), depth=3))
    torch.testing.assert_close(ours(tokens)[0], reference(tokens).logits, rtol=0, atol=1e-10)


def _from_gpt2(weights: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
    names = {"embedding.weight": "transformer.wte.weight", "positions.weight": "transformer.wpe.weight"}
    labelled = {ours: weights[reference] for ours, reference in names.items()} | {
        "output.weight": weights["lm_head.weight"]
    }
    parts = {
        "attention_norm": "ln_1",
        "attention.query_key_value": "attn.c_attn",
        "attention.output": "attn.c_proj",
        "feed_forward_norm": "ln_2",
        "feed_forward.widen": "mlp.c_fc",
        "feed_forward.narrow": "mlp.c_proj",
    }
    for kind in ("weight", "bias"):
        labelled[f"norm.{kind}"] = weights[f"transformer.ln_f.{kind}"]
        for layer in range(depth):
            for ours, reference in parts.items():
                tensor = weights[f"transformer.h.{layer}.{reference}.{kind}"]
                labelled[f"layers.{layer}.{ours}.{kind}"] = tensor.T if tensor.dim() == 2 else tensor
    return labelled


@pytest.mark.parametrize(
    ("spec", "cell"), [(Rnn(biases=2), nn.RNN), (Lstm(biases=2, depth=2), nn.LSTM), (Gru(biases=2), nn.GRU)]
)
def test_recurrent_layers_equal_torch(spec: Rnn | Lstm | Gru, cell: type[nn.RNNBase], tokens: Tensor) -> None:
    ours = build(spec).eval()
    layers = cell(spec.width, spec.hidden, spec.depth, batch_first=True)
    layers.load_state_dict(ours.layers.state_dict())
    torch.testing.assert_close(ours(tokens)[0], ours.output(layers(ours.embedding(tokens))[0]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("spec", [Rnn(hidden=5), Lstm(hidden=5), Gru(hidden=5)])
def test_single_bias_equals_two_biases_with_one_zero(spec: Rnn | Lstm | Gru, tokens: Tensor) -> None:
    item, two = build(spec), build(spec.replace(biases=2))
    weights = {**item.state_dict(), "layers.bias_hh_l0": torch.zeros_like(two.layers.bias_hh_l0)}
    two.load_state_dict(weights)
    torch.testing.assert_close(item(tokens)[0], two(tokens)[0])


def test_c1_lstm_equals_its_formula(tokens: Tensor) -> None:
    """c = Γ_f∗c + Γ_u∗c̃, a = Γ_o∗tanh(c): PyTorch stacks the gates as update, forget, candidate, output."""
    model = build(Lstm(vocabulary=13, width=4, hidden=5)).double()
    lstm, embedded = model.layers, model.embedding(tokens)
    a, c = torch.zeros(2, 5).double(), torch.zeros(2, 5).double()
    for t in range(tokens.shape[1]):
        stacked = embedded[:, t] @ lstm.weight_ih_l0.T + a @ lstm.weight_hh_l0.T + lstm.bias_ih_l0
        update, forget, candidate, output = stacked.chunk(4, dim=1)
        c = forget.sigmoid() * c + update.sigmoid() * candidate.tanh()
        a = output.sigmoid() * c.tanh()
    torch.testing.assert_close(model(tokens)[0][:, -1], a @ model.output.weight.T + model.output.bias)


def test_a1_feed_forward_equals_a_loop_over_windows(tokens: Tensor) -> None:
    model = build(FeedForward(vocabulary=13, width=4, hidden=5, context=4)).double()
    expected = torch.zeros(2, 10, 13).double()
    for row in range(2):
        for t in range(10):
            window = [model.embedding.weight[tokens[row, i]] if i >= 0 else torch.zeros(4) for i in range(t - 2, t + 1)]
            hidden = torch.tanh(model.hidden.weight @ torch.cat(window).double() + model.hidden.bias)
            expected[row, t] = model.output.weight @ hidden
    torch.testing.assert_close(model(tokens)[0], expected)


def test_a2_attention_queries_only_with_the_last_word(tokens: Tensor) -> None:
    model = build(Attentive(vocabulary=13, width=4, key_width=3, value_width=6, hidden=5, context=4)).double()
    head, expected = model.head, torch.zeros(2, 10, 13).double()
    for row in range(2):
        for t in range(10):
            words = [model.embedding.weight[i] for i in tokens[row, max(0, t - 2) : t + 1]]
            query = head.query.weight @ words[-1]
            alpha = torch.stack([query @ (head.key.weight @ e) / 3**0.5 for e in words]).softmax(0)
            attended = sum(weight * (head.value.weight @ e) for weight, e in zip(alpha, words, strict=True))
            expected[row, t] = model.output.weight @ torch.tanh(model.hidden.weight @ attended + model.hidden.bias)
    torch.testing.assert_close(model(tokens)[0], expected)


def test_a5_full_window_equals_torch_decoder_layers(tokens: Tensor) -> None:
    spec = TableA5(vocabulary=13, embedding=3, width=8, heads=2, feed_forward=8, context=5)
    model = build(spec).double().eval()
    positions, angles = torch.arange(4.0).double()[:, None], 10_000.0 ** (-torch.arange(0, 8, 2).double() / 8)
    table = torch.zeros(4, 8).double()
    table[:, 0::2], table[:, 1::2] = (positions * angles).sin(), (positions * angles).cos()
    cache = model.projection(model.embedding(tokens[:, 3:7])) + table
    stream = cache
    for layer in model.layers:
        stream = layer(stream, cache)
    torch.testing.assert_close(model(tokens)[0][:, 6], model.output(stream[:, -1]), rtol=1e-6, atol=1e-6)
