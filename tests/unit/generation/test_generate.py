"""Cached decoding against full-sequence logits and against each row alone."""

import math

import pytest
import torch

from lemma.errors import InputError
from lemma.generation.engine import generate
from lemma.generation.sampling import Sampling, probabilities
from lemma.models.base import LanguageModel
from lemma.models.build import build
from lemma.report.result import to_plain
from stand_ins import Script, Table

from families import SMALL

PROMPTS = [[1, 2, 3], [4], [5, 6, 7], [1, 2, 3], [8, 9, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]


def peaked_model(name: str) -> LanguageModel:
    """Return a float64 model with sharply peaked distributions."""
    model = build(SMALL[name], dropout=0.5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.8)
    return model.double()


def logits_after(model: LanguageModel, tokens: list[int]) -> torch.Tensor:
    """Return the logits after all of these tokens, read in one call."""
    with torch.no_grad():
        return model.eval()(torch.tensor([tokens]))[0][:, -1]


@pytest.mark.parametrize("name", SMALL)
def test_greedy_equals_argmax_of_uncached_logits(name: str) -> None:
    model = peaked_model(name)
    for result in generate(model, PROMPTS, Sampling(tokens=15, temperature=0)):
        text = list(result.prompt_tokens)
        for token in result.tokens:
            assert token == logits_after(model, text).argmax().item()
            text.append(token)
        assert len(result.tokens) == 15


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("temperature", [0, 0.9])
def test_row_does_not_depend_on_the_batch(name: str, temperature: float) -> None:
    model = peaked_model(name)
    together = generate(model, PROMPTS, Sampling(tokens=15, temperature=temperature, seed=7))
    for row, prompt in enumerate(PROMPTS):
        [single] = generate(model, [prompt], Sampling(tokens=15, temperature=temperature, seed=7 + row))
        assert together[row].tokens == single.tokens


@pytest.mark.parametrize("name", SMALL)
def test_rows_finishing_early_do_not_affect_others(name: str) -> None:
    model, prompts = peaked_model(name), [[token, 1] for token in range(11)]
    together = generate(model, prompts, Sampling(tokens=12, temperature=9.0, seed=7), eos=3)
    assert len({len(result.tokens) for result in together}) > 3
    for row, prompt in enumerate(prompts):
        [single] = generate(model, [prompt], Sampling(tokens=12, temperature=9.0, seed=7 + row), eos=3)
        assert (together[row].tokens, together[row].stopped) == (single.tokens, single.stopped)


def test_seed_determines_text_and_rows_have_separate_seeds() -> None:
    model = peaked_model("lstm")
    first, again, other = (
        [result.tokens for result in generate(model, [[1]] * 3, Sampling(tokens=20, temperature=2.0, seed=seed))]
        for seed in (3, 3, 30)
    )
    assert first == again and first != other
    assert len(set(first)) == 3


def test_sampled_frequencies_match_model_probabilities() -> None:
    model, rows = peaked_model("feed-forward"), 4000
    expected = rows * probabilities(logits_after(model, [1, 2, 3]), 0.9, top_k=5, top_p=0.95)[0]
    settings = Sampling(tokens=1, temperature=0.9, top_k=5, top_p=0.95)
    counts = torch.tensor([result.tokens[0] for result in generate(model, [[1, 2, 3]] * rows, settings)])
    counts, possible = counts.bincount(minlength=11), expected > 0
    assert counts[~possible].sum() == 0 and possible.sum() >= 3
    chi_square = ((counts - expected)[possible] ** 2 / expected[possible]).sum().item()
    assert chi_square < 18.5  # exceeded once in a thousand by chance with four degrees of freedom


@pytest.mark.parametrize("name", SMALL)
def test_prompt_is_prefilled_once_then_decoded_token_by_token(name: str) -> None:
    model, sizes = peaked_model(name), []
    model.register_forward_pre_hook(lambda module, settings: sizes.append(settings[0].shape[1]))
    generate(model, [PROMPTS[-1]], Sampling(tokens=6))
    assert sizes == [min(13, model.receptive_field or 13), 1, 1, 1, 1, 1]


def test_long_prompt_is_prefilled_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, settings = peaked_model("lstm"), Sampling(tokens=9)
    full = generate(model, PROMPTS, settings)
    monkeypatch.setattr("lemma.generation.engine.MAX_PROMPT_LOGITS", 2 * 2 * 11)
    assert [result.tokens for result in generate(model, PROMPTS, settings)] == [result.tokens for result in full]


def test_eos_ends_only_its_row() -> None:
    follow = {0: 1, 1: 2, 2: 3, 3: 0}
    model = Table(4, 1, lambda window: follow[window[-1]])
    settings = Sampling(tokens=6, temperature=0)
    results = generate(model, [[0], [2], [1, 1]], settings, eos=3)
    assert [result.tokens for result in results] == [(1, 2), (), (2,)]
    assert {result.stopped for result in results} == {"eos"}
    [on] = generate(model, [[0]], Sampling(tokens=6, temperature=0, stop_at_eos=False), eos=3)
    assert (on.tokens, on.stopped) == ((1, 2, 3, 0, 1, 2), "length")
    mixed = generate(model, [[0], [3]], Sampling(tokens=3, temperature=0), eos=3)
    assert [(result.tokens, result.stopped) for result in mixed] == [((1, 2), "eos"), ((0, 1, 2), "length")]


def test_tokens_are_emitted_immediately() -> None:
    received: list[tuple[int, int]] = []
    results = generate(
        peaked_model("gru"), PROMPTS, Sampling(tokens=5), on_token=lambda row, token: received.append((row, token))
    )
    for row, result in enumerate(results):
        assert tuple(token for number, token in received if number == row) == result.tokens
    same_length = [row for row, _ in received if row in (0, 2, 3)]
    assert same_length == [0, 2, 3] * 5  # rows are decoded together


def test_generation_disables_dropout_and_restores_the_mode() -> None:
    model = peaked_model("decoder").train()
    first, second = (generate(model, [[1]], Sampling(tokens=20))[0].tokens for _ in range(2))
    assert first == second and model.training
    with pytest.raises(InputError):
        generate(model, [[99]], Sampling())
    assert model.training


def test_generation_result_has_plain_complete_fields() -> None:
    [result] = generate(Script(3, [0, 1, 1, 1]), [[2]], Sampling(tokens=4, temperature=0))
    base = to_plain(result)
    assert list(base) == ["prompt_tokens", "tokens", "loop", "stopped", "seconds", "logprobs"]
    assert base["tokens"] == [0, 1, 1, 1] and base["prompt_tokens"] == [2]
    assert base["loop"] == {"onset": 1, "period": 1, "proved": False, "state": "the number of tokens"}
    assert 0 < result.seconds < 10


def test_empty_prompt_list_gives_no_texts() -> None:
    assert generate(peaked_model("rnn"), [], Sampling()) == []


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "prompt 1 has no tokens"), ([0, 11], "prompt 1: token 11 is outside"), ([-1], "token -1 is outside")],
)
def test_invalid_prompt_is_rejected(prompt: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        generate(peaked_model("rnn"), [[1], prompt], Sampling())


def test_damaged_weights_are_named() -> None:
    model = peaked_model("rnn")
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(InputError, match="NaN"):
        generate(model, [[1]], Sampling())
