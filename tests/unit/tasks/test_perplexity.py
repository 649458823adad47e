"""Perplexity against loops with a separate context per token, and against a single pass."""

import numpy as np
import pytest
import torch

from lemma.errors import DataError, InputError
from lemma.models.base import LanguageModel
from lemma.models.build import build
from lemma.spec.models import Attentive, Decoder, FeedForward, Gru, Lstm, ModelSpec, Rnn, TableA5
from lemma.tasks.language import WARM_UP_TOKENS, PerplexityScore, Protocol, perplexity

V = 11
FEED_FORWARD = FeedForward(V=V, d=4, d_h=8, N=4)
ATTENTIVE = Attentive(V=V, d=4, d_k=4, d_v=4, d_h=8, N=4)
TABLE = TableA5(V=V, d_e=4, d=8, L=1, h=2, d_ff=8, N=4)
DECODER = Decoder(V=V, d=8, L=2, h=2, T=6)
LSTM = Lstm(V=V, d=4, D=8)
WINDOWED = [FEED_FORWARD, ATTENTIVE, TABLE, DECODER]
RECURRENT = [Rnn(V=V, d=4, D=8), LSTM, Gru(V=V, d=4, D=8, depth=2)]


def family(spec: ModelSpec) -> str:
    return spec.family


def exact_model(spec: ModelSpec) -> LanguageModel:
    """Return a float64 model with predictions far from uniform, which depend on the context."""
    torch.manual_seed(3)
    model = build(spec, dropout=0.5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7)
    return model.double()


def text(length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(0, V, length).astype(np.uint16)


def reference_loss(model: LanguageModel, tokens: np.ndarray, first_seen: list[int]) -> float:
    """Return the mean of −log p(token t | tokens first_seen[t] … t−1), one call per token."""
    model.eval()
    losses = []
    for index, first in zip(range(1, len(tokens)), first_seen, strict=True):
        with torch.no_grad():
            logits, _ = model(torch.from_numpy(tokens[first:index].astype(np.int64))[None])
        losses.append(-logits[0, -1].log_softmax(-1)[int(tokens[index])].item())
    return float(np.mean(losses))


@pytest.mark.parametrize("spec", WINDOWED, ids=family)
@pytest.mark.parametrize("shorter", [0, 1, 2])
def test_stride_one_scores_tokens_with_full_context(spec: ModelSpec, shorter: int) -> None:
    model, tokens = exact_model(spec), text(23)
    context = (model.receptive_field or 0) - shorter
    expected = reference_loss(model, tokens, [max(0, index - context) for index in range(1, len(tokens))])
    assert perplexity(model, tokens, context=context, stride=1).loss == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("spec", [*WINDOWED, *RECURRENT], ids=family)
@pytest.mark.parametrize(("context", "stride"), [(3, 2), (3, 3), (2, 1)])
@pytest.mark.parametrize("length", [2, 3, 4, 5, 22, 23])
def test_strided_windows_score_only_their_new_tokens(spec: ModelSpec, context: int, stride: int, length: int) -> None:
    model, tokens = exact_model(spec), text(length)
    windows_before = [max(0, -(-(index - context) // stride)) for index in range(1, length)]
    expected = reference_loss(model, tokens, [stride * before for before in windows_before])
    score = perplexity(model, tokens, context=context, stride=stride, batch=7)
    assert (score.loss, score.tokens) == (pytest.approx(expected, abs=1e-12), length - 1)


@pytest.mark.parametrize("spec", [FEED_FORWARD, ATTENTIVE, TABLE], ids=family)
def test_window_models_are_scored_with_full_context_by_default(spec: ModelSpec) -> None:
    model, tokens = exact_model(spec), text(40)
    score = perplexity(model, tokens)
    assert score == perplexity(model, tokens, context=model.receptive_field, stride=1)
    assert (score.protocol.context, score.protocol.stride, score.protocol.streams) == (model.receptive_field, 1, 1)


def test_decoder_stride_defaults_to_half_the_context() -> None:
    model, tokens = exact_model(DECODER), text(40)
    score = perplexity(model, tokens)
    assert score == perplexity(model, tokens, context=6, stride=3)
    assert score.protocol.streams is None and score.protocol.warm_up == 3


@pytest.mark.parametrize("spec", WINDOWED, ids=family)
@pytest.mark.parametrize("streams", [2, 5, 7])
def test_parallel_streams_of_bounded_models_equal_single_pass(spec: ModelSpec, streams: int) -> None:
    model, tokens = exact_model(spec), text(61)
    single = perplexity(model, tokens, context=model.receptive_field, stride=1)
    side_by_side = perplexity(model, tokens, context=model.receptive_field, stride=1, streams=streams, batch=20)
    assert side_by_side.loss == pytest.approx(single.loss, abs=1e-12)
    assert side_by_side.protocol.streams == streams and side_by_side.protocol.warm_up == model.receptive_field


@pytest.mark.parametrize("spec", RECURRENT, ids=family)
def test_single_recurrent_stream_is_exact_for_any_chunking(spec: ModelSpec) -> None:
    model, tokens = exact_model(spec), text(50)
    expected = reference_loss(model, tokens, [0] * 49)
    for batch in (1, 7, None):
        assert perplexity(model, tokens, streams=1, batch=batch).loss == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("spec", RECURRENT, ids=family)
def test_recurrent_streams_warm_up_on_preceding_tokens(spec: ModelSpec) -> None:
    model, tokens, scored = exact_model(spec), text(WARM_UP_TOKENS + 31), 10
    positions = [index - 1 for index in range(1, len(tokens))]
    first_seen = [max(0, (index - WARM_UP_TOKENS) // scored) * scored for index in positions]
    score = perplexity(model, tokens, streams=3, batch=50)
    assert score.loss == pytest.approx(reference_loss(model, tokens, first_seen), abs=1e-12)
    assert (score.protocol.streams, score.protocol.warm_up) == (3, WARM_UP_TOKENS)


def test_default_streams_score_each_token_once() -> None:
    model = build(LSTM)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    for length in (2, 130, 1025, 2049, 5000):
        score = perplexity(model, text(length), bytes=length)
        assert score.tokens == length - 1
        assert score.loss == pytest.approx(np.log(V), abs=1e-6)  # every token exactly once, each ln V


def test_many_streams_approximate_the_single_pass() -> None:
    model, tokens = build(LSTM), text(9000)
    fast, exact = perplexity(model, tokens), perplexity(model, tokens, streams=1)
    assert fast.protocol.streams == 8 and exact.protocol.streams == 1
    assert fast.loss == pytest.approx(exact.loss, abs=1e-6)


def test_logits_memory_is_bounded_for_large_vocabularies() -> None:
    width = 100_000
    for spec in (Decoder(V=width, d=4, L=1, h=1, T=256), Lstm(V=width, d=4, D=4), FeedForward(V=width, d=4, d_h=4)):
        model, sizes = build(spec), []
        model.register_forward_hook(lambda module, settings, out, sizes=sizes: sizes.append(out[0].numel()))
        perplexity(model, text(400))
        assert max(sizes) * 4 <= 64 * 2**20


def test_perplexity_disables_dropout_and_restores_the_mode() -> None:
    model, tokens = exact_model(DECODER), text(30)
    model.train()
    assert perplexity(model, tokens) == perplexity(model, tokens)
    assert model.training
    model.eval()
    perplexity(model, tokens)
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_perplexity_accepts_tensors_and_arrays() -> None:
    model, tokens = exact_model(FEED_FORWARD), text(30)
    assert perplexity(model, torch.from_numpy(tokens.astype(np.int64))) == perplexity(model, tokens)


def test_bfloat16_perplexity_is_close_and_in_the_protocol() -> None:
    model, tokens = build(DECODER), text(60)
    base = perplexity(model, tokens)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = perplexity(model, tokens)
    assert rounded.loss != base.loss and rounded.loss == pytest.approx(base.loss, abs=0.02)
    assert (rounded.protocol.precision, base.protocol.precision) == ("bfloat16", "float32")


@pytest.mark.parametrize("length", [0, 1])
def test_too_short_text_is_rejected(length: int) -> None:
    with pytest.raises(DataError, match="at least 2 tokens"):
        perplexity(build(LSTM), text(length))


def test_out_of_vocabulary_tokens_are_rejected() -> None:
    with pytest.raises(InputError, match="token 11 is outside the model's vocabulary of 11"):
        perplexity(build(LSTM), np.array([1, 2, V]))
    with pytest.raises(InputError, match="token -1 is outside"):
        perplexity(build(LSTM), np.array([1, -1, 2]))


@pytest.mark.parametrize(
    ("spec", "words", "message"),
    [
        (DECODER, {"context": 7}, "context = 7 is not between 1 and 6"),
        (DECODER, {"context": 0}, "context = 0 is not between 1 and 6"),
        (LSTM, {"context": 0}, "context = 0 is not at least 1"),
        (DECODER, {"stride": 7}, "stride = 7 is not between 1 and the context 6"),
        (DECODER, {"stride": 0}, "stride = 0 is not"),
        (LSTM, {"stride": 2}, "stride = 2 needs a context"),
        (DECODER, {"streams": 2}, "streams = 2 needs a carried state"),
        (LSTM, {"streams": 0}, "streams = 0 is less than 1"),
    ],
)
def test_invalid_perplexity_settings_are_rejected(spec: ModelSpec, words: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        perplexity(build(spec), text(20), **words)


def test_nan_loss_is_reported_as_nan() -> None:
    model = exact_model(FEED_FORWARD)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    score = perplexity(model, text(9), bytes=9)
    assert np.isnan(score.loss) and np.isnan(score.perplexity)
    assert score.to_dict()["loss"] is None and score.to_dict()["perplexity"] is None


def test_perplexity_protocol_includes_the_text_source() -> None:
    source = Protocol(tokenizer="characters, V = 11", data_hash="abc123", split="validation")
    score: PerplexityScore = perplexity(build(DECODER), text(30), bytes=30, source=source)
    protocol = score.to_dict()["protocol"]
    assert {name: protocol[name] for name in ("tokenizer", "data_hash", "split")} == {
        "tokenizer": "characters, V = 11",
        "data_hash": "abc123",
        "split": "validation",
    }
    assert protocol["left_out"][0].startswith("the first token, which has nothing before it")
    assert "sees 4 to 6 tokens" in protocol["left_out"][1]


def test_protocol_lists_unscored_text_per_reading_method() -> None:
    def left_out(spec: ModelSpec, length: int, source: Protocol | None = None) -> tuple[str, ...]:
        return perplexity(build(spec), text(length), source=source).protocol.left_out[1:]

    assert left_out(FEED_FORWARD, 40) == left_out(LSTM, 40) == left_out(DECODER, 7) == ()
    assert left_out(LSTM, 2100) == (
        "what lies further back than the 128 tokens that warm each stream but the first up",
    )
    unknown = Protocol(left_out=("1,234 characters that are not in the tokenizer's alphabet",))
    assert left_out(LSTM, 40, unknown) == unknown.left_out
