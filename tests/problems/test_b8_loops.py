"""Problem B8: at temperature 0 a model with finitely many states returns to a state and then loops indefinitely."""

from itertools import pairwise

import pytest
import torch

from lemma.generation.engine import generate
from lemma.generation.sampling import Sampling
from lemma.generation.sequences import GeneratedTokens, TextLoop
from lemma.models.base import LanguageModel
from lemma.models.build import build
from lemma.spec.models import Attentive, Decoder, FeedForward, Gru, Lstm, ModelSpec, Rnn, TableA5


def random_model(spec: ModelSpec, seed: int) -> LanguageModel:
    """Build a model with random weights large enough that text varies before it loops."""
    torch.manual_seed(seed)
    model = build(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=1.0)
    return model


def greedy(
    model: LanguageModel, tokens: int, prompt: tuple[int, ...] = (0, 1), stop_at_loop: bool = False
) -> GeneratedTokens:
    [result] = generate(model, [list(prompt)], Sampling(tokens=tokens, temperature=0, stop_at_loop=stop_at_loop))
    return result


def proved_loop(result: GeneratedTokens) -> TextLoop:
    assert result.loop is not None and result.loop.proved, result.loop
    return result.loop


def check_ten_more_periods(model: LanguageModel, result: GeneratedTokens) -> None:
    """Generate ten more periods and check that the loop continues."""
    loop = proved_loop(result)
    tokens = greedy(model, len(result.tokens) + 10 * loop.period, result.prompt_tokens).tokens
    assert tokens[: len(result.tokens)] == result.tokens
    for index in range(loop.onset, len(tokens) - loop.period):
        assert tokens[index] == tokens[index + loop.period]
    if loop.onset:
        assert tokens[loop.onset - 1] != tokens[loop.onset - 1 + loop.period]


@pytest.mark.parametrize("vocabulary", [2, 3, 5, 8, 12])
@pytest.mark.parametrize("seed", range(6))
def test_trigram_model_loops_within_the_number_of_bigrams(vocabulary: int, seed: int) -> None:
    model = random_model(FeedForward(V=vocabulary, d=6, d_h=12, N=3), seed)
    result = greedy(model, vocabulary**2 + 2)
    loop = proved_loop(result)
    assert loop.state == "the last 2 tokens"
    assert 1 <= loop.period <= vocabulary**2
    check_ten_more_periods(model, result)


def test_some_loops_are_nontrivial() -> None:
    """Some loops of random models start late and are long; otherwise the tests above would be trivial."""
    loops = [proved_loop(greedy(random_model(FeedForward(V=12, d=6, d_h=12, N=3), seed), 146)) for seed in range(10)]
    assert max(loop.onset for loop in loops) >= 3 and max(loop.period for loop in loops) >= 3


def test_repeated_bigram_proves_a_loop() -> None:
    result = greedy(random_model(FeedForward(V=8, d=6, d_h=12, N=3), 1), 66, stop_at_loop=True)
    text = [*result.prompt_tokens, *result.tokens]
    bigrams = list(pairwise(text))
    assert result.stopped == "loop"
    assert bigrams[-1] in bigrams[:-1] and len(set(bigrams[:-1])) == len(bigrams) - 1


@pytest.mark.parametrize(
    ("spec", "state"),
    [
        (FeedForward(V=6, d=4, d_h=8, N=2), "the last token"),
        (FeedForward(V=3, d=4, d_h=8, N=5), "the last 4 tokens"),
        (Attentive(V=6, d=4, d_k=4, d_v=4, d_h=8, N=3), "the last 2 tokens"),
        (TableA5(V=6, d_e=4, d=8, L=1, h=2, d_ff=8, N=3), "the last 2 tokens"),
        (Decoder(V=4, d=8, L=2, h=2, T=3), "the window of the last 3 tokens"),
    ],
    ids=lambda value: getattr(value, "family", value),
)
@pytest.mark.parametrize("seed", range(3))
def test_finite_context_models_always_loop(spec: ModelSpec, state: str, seed: int) -> None:
    model = random_model(spec, seed)
    result = greedy(model, spec.vocabulary ** (model.receptive_field or 0) + (model.receptive_field or 0) + 2)
    assert proved_loop(result).state == state
    check_ten_more_periods(model, result)


def test_loop_in_a_partial_window_is_not_proved() -> None:
    model = random_model(Decoder(V=4, d=8, L=1, h=2, T=40, positions="none"), 0)
    seen = greedy(model, 30).loop
    assert seen is not None and not seen.proved
    assert proved_loop(greedy(model, 90)).period == seen.period


@pytest.mark.parametrize("spec", [Rnn(V=7, d=4, D=8), Lstm(V=7, d=4, D=8), Gru(V=7, d=4, D=8)], ids=lambda s: s.family)
@pytest.mark.parametrize("seed", range(3))
def test_recurrent_loop_is_proved_by_repeated_hidden_states(spec: ModelSpec, seed: int) -> None:
    torch.manual_seed(seed)
    model = build(spec)
    result = greedy(model, 3000, stop_at_loop=True)
    check_ten_more_periods(model, result)
    *before, last = hidden_states(model, result)
    assert sum(all(map(torch.equal, last, earlier)) for earlier in before) == 1


def hidden_states(model: LanguageModel, result: GeneratedTokens) -> list[tuple[torch.Tensor, ...]]:
    """Return the hidden states before each generated token and after the last."""
    with torch.inference_mode():
        logits, state = model(torch.tensor([result.prompt_tokens]))
        results = [state.vectors]
        for token in result.tokens:
            assert logits[0, -1].argmax().item() == token
            logits, state = model(torch.tensor([[token]]), state)
            results.append(state.vectors)
    return results


def test_no_loop_is_reported_before_it_repeats() -> None:
    model = random_model(FeedForward(V=12, d=6, d_h=12, N=3), 0)
    needed = len(greedy(model, 146, stop_at_loop=True).tokens)
    assert needed > 4
    for tokens in (1, 2, needed // 2, needed):
        loop = greedy(model, tokens).loop
        assert loop is None or not loop.proved
    assert greedy(model, 2).loop is None
    assert proved_loop(greedy(model, needed + 1))
