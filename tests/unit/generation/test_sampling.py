"""Logit adjustments against definitions in plain Python and against transformers' processors."""

import math
import random
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from lemma.errors import InputError, SpecError
from lemma.generation.engine import generate
from lemma.generation.sampling import Sampling, adjust_logits, probabilities, sample_tokens, token_logprobs
from lemma.models.build import build

from families import SMALL


def reference_probabilities(
    logits: list[float], temperature: float, top_k: int | None = None, top_p: float | None = None
) -> list[float]:
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[: top_k or len(logits)]
    weights = {token: math.exp((logits[token] - max(logits)) / temperature) for token in order}
    total, saved, reached = sum(weights.values()), {}, 0.0
    for token in order:
        if reached / total < (top_p or 1):
            saved[token] = weights[token]
        reached += weights[token]
    return [saved.get(token, 0.0) / sum(saved.values()) for token in range(len(logits))]


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("top_k", [None, 1, 2, 4, 9, 50])
@pytest.mark.parametrize("top_p", [None, 0.01, 0.5, 0.9, 1.0])
def test_sampling_probabilities_match_their_definition(
    temperature: float, top_k: int | None, top_p: float | None
) -> None:
    chance = random.Random(5)
    rows = [[chance.choice([-2.0, 0.0, 0.5, 1.0, 2.5]) for _ in range(9)] for _ in range(20)]  # with many ties
    result = probabilities(torch.tensor(rows), temperature, top_k, top_p)
    expected = torch.tensor(
        [reference_probabilities(row, temperature, top_k, top_p) for row in rows], dtype=torch.float64
    )
    assert torch.equal(result > 0, expected > 0)
    assert torch.allclose(result, expected, atol=1e-12)


def test_top_p_includes_the_token_that_reaches_the_threshold() -> None:
    logits = torch.tensor([[4.0, 2.0, 1.0, 1.0]]).log2() * math.log(2)
    assert (probabilities(logits, 1.0, top_p=0.5) > 0).tolist() == [[True, False, False, False]]
    assert (probabilities(logits, 1.0, top_p=0.51) > 0).tolist() == [[True, True, False, False]]


def test_temperature_zero_breaks_ties_by_lowest_id() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 5.0, 5.0, 5.0], [-9.0, -8.0, -7.0, -6.0]])
    assert sample_tokens(logits, Sampling(temperature=0), ()).tolist() == [1, 0, 3]
    assert probabilities(logits, 0).argmax(-1).tolist() == [1, 0, 3]
    assert probabilities(logits, 0).sum(-1).tolist() == [1, 1, 1]


@pytest.mark.parametrize("temperature", [1e-3, 1e-40, 5e-324])
def test_temperature_near_zero_does_not_overflow(temperature: float) -> None:
    assert probabilities(torch.tensor([[3e4, 1.0, -3e4]]), temperature).tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("words", [{}, {"top_k": 3}, {"top_p": 0.7}, {"top_k": 4, "top_p": 0.8}])
def test_token_frequency_over_uniform_draws_equals_probability(words: dict) -> None:
    torch.manual_seed(4)
    logits, size = torch.randn(1, 7), 20_000
    settings = Sampling(temperature=0.9, **words)
    positions = [(number + 0.5) / size for number in range(size)]
    counts = sample_tokens(logits.expand(size, -1), settings, positions).bincount(minlength=7)
    expected = size * probabilities(logits, 0.9, settings.top_k, settings.top_p)[0]
    assert (counts - expected).abs().max() <= 1
    assert (counts[expected == 0] == 0).all()


def test_extreme_uniform_draws_never_sample_zero_probability() -> None:
    logits = torch.tensor([[-math.inf, 0.0, 0.1, -math.inf]])
    almost_one = math.nextafter(1.0, 0.0)
    assert sample_tokens(logits, Sampling(temperature=1.0), [0.0]).tolist() == [1]
    assert sample_tokens(logits, Sampling(temperature=1.0), [almost_one]).tolist() == [2]
    for number in range(1, 200):
        width = torch.zeros(1, number)
        assert sample_tokens(width, Sampling(temperature=1.0), [almost_one]).tolist() == [number - 1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"temperature": -0.1}, "temperature = -0.1 is not"),
        ({"temperature": math.nan}, "temperature = nan is not"),
        ({"temperature": math.inf}, "temperature = inf is not"),
        ({"top_k": 0}, "top_k = 0 is less than 1"),
        ({"top_p": 0.0}, "top_p = 0.0 is not"),
        ({"top_p": 1.1}, "top_p = 1.1 is not"),
        ({"min_p": 1.5}, "min_p = 1.5 is not"),
        ({"min_p": -0.1}, "min_p = -0.1 is not"),
        ({"repetition_penalty": 0.0}, "repetition_penalty = 0.0 is not above 0"),
        ({"frequency_penalty": math.nan}, "frequency_penalty = nan is not"),
        ({"presence_penalty": math.inf}, "presence_penalty = inf is not"),
        ({"no_repeat_ngram": 0}, "no_repeat_ngram = 0 is less than 1"),
        ({"logit_bias": {3: math.inf}}, r"logit_bias\[3\] = inf is not"),
        ({"logit_bias": {3: math.nan}}, r"logit_bias\[3\] = nan is not"),
        ({"stop": ["a", ""]}, "empty stop string"),
        ({"logprobs": -1}, "logprobs = -1 is less than 0"),
        ({"samples": 0}, "samples = 0 is less than 1"),
        ({"tokens": 0}, "tokens = 0 is less than 1"),
        ({"stop_at_loop": True}, "stop_at_loop needs temperature 0, got 0.8"),
        ({"stop_at_loop": True, "temperature": 0, "no_repeat_ngram": 3}, "stop_at_loop: with no_repeat_ngram"),
        ({"stop_at_loop": True, "temperature": 0, "frequency_penalty": 0.1}, "stop_at_loop: with frequency_penalty"),
    ],
)
def test_out_of_range_sampling_settings_are_rejected(words: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sampling(**words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"stop": 5}, "stop = 5 .int. is not a text or a list of texts"),
        ({"stop": ["a", 5]}, "stop = 5 .int. is not a text"),
        ({"stop_tokens": 5}, "stop_tokens = 5 .int. is not a list of token ids"),
        ({"stop_tokens": ["a"]}, "token = 'a' .str. is not the id of a token"),
        ({"logit_bias": [1]}, "logit_bias = .* is not a mapping"),
        ({"logit_bias": {"a": 1.0}}, "token = 'a' .str. is not the id of a token"),
        ({"logit_bias": {1: "a"}}, "logit_bias.1. = 'a' .str. is not a number"),
        ({"min_p": "a"}, "min_p = 'a' .str. is not a number"),
        ({"no_repeat_ngram": 2.5}, "no_repeat_ngram = 2.5 .float. is not a whole number"),
    ],
)
def test_sampling_settings_of_wrong_type_are_rejected(words: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Sampling(**words)


VOCABULARY = 40


def transformers_scores(settings: Sampling, read: Tensor, logits: Tensor) -> Tensor:
    """Return the logits after transformers' processors, in the order of its `generate`."""
    pytest.importorskip("transformers")
    from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

    config = GenerationConfig(
        do_sample=not settings.is_greedy,
        temperature=settings.temperature or None,
        top_k=settings.top_k or 0,
        top_p=settings.top_p or 1.0,
        min_p=settings.min_p,
        repetition_penalty=settings.repetition_penalty,
        no_repeat_ngram_size=settings.no_repeat_ngram or 0,
        sequence_bias=[[[token], value] for token, value in settings.logit_bias.items()] or None,
    )
    tiny = GPT2LMHeadModel(GPT2Config(vocab_size=logits.shape[1], n_embd=2, n_layer=1, n_head=1))
    processors = tiny._get_logits_processor(config, input_ids_seq_length=read.shape[1], logits_processor=[])
    names = ("logit_bias", "no_repeat_ngram", "top_k", "top_p", "min_p")
    expected = sum(bool(getattr(settings, name)) for name in names) + (settings.repetition_penalty != 1)
    assert len(processors) == expected + (settings.temperature not in (0, 1))
    return processors(read, logits)


PROCESSED: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"no_repeat_ngram": 1},
    {"no_repeat_ngram": 2},
    {"no_repeat_ngram": 3},
    {"logit_bias": {3: 2.5, 7: -1.5, 0: -10.0}},
    {"min_p": 0.2, "temperature": 0.7},
    {"min_p": 1.0, "temperature": 0.7},
    {"top_k": 5, "temperature": 1.0},
    {"top_p": 0.6, "temperature": 1.3},
    {"top_k": 9, "top_p": 0.8, "min_p": 0.15, "temperature": 0.6},
    {"logit_bias": {3: 4.0}, "repetition_penalty": 1.7, "no_repeat_ngram": 2, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
]


@pytest.mark.parametrize("words", PROCESSED, ids=str)
@pytest.mark.parametrize("length", [1, 2, 30])
def test_probabilities_match_transformers_logits_processors(words: dict[str, Any], length: int) -> None:
    torch.manual_seed(3)
    logits = 3 * torch.randn(50, VOCABULARY, dtype=torch.float64)
    read = torch.randint(8, (50, length)) if "no_repeat_ngram" in words else torch.randint(VOCABULARY, (50, length))
    settings = Sampling(**words)
    reference = transformers_scores(settings, read, logits.clone()).softmax(-1)
    choice = settings.temperature, settings.top_k, settings.top_p, settings.min_p
    ours = probabilities(adjust_logits(logits, settings, read, num_generated=length // 2), *choice)
    assert torch.equal(ours > 0, reference > 0)
    torch.testing.assert_close(ours, reference, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "words", [{"repetition_penalty": 1.3}, {"no_repeat_ngram": 2}, {"logit_bias": {3: 2.5}}], ids=str
)
def test_greedy_token_matches_transformers_scores(words: dict[str, Any]) -> None:
    torch.manual_seed(4)
    logits, read = torch.randn(50, VOCABULARY, dtype=torch.float64), torch.randint(6, (50, 20))
    settings = Sampling(temperature=0, **words)
    reference = transformers_scores(settings, read, logits.clone()).argmax(-1)
    assert torch.equal(sample_tokens(adjust_logits(logits, settings, read, 3), settings, ()), reference)


def test_frequency_and_presence_penalties_match_openai() -> None:
    torch.manual_seed(5)
    logits, read, generated = torch.randn(9, 6, dtype=torch.float64), torch.randint(6, (9, 12)), 7
    result = adjust_logits(logits, Sampling(frequency_penalty=0.3, presence_penalty=-0.8), read, generated)
    for row in range(9):
        for token in range(6):
            count = read[row, -generated:].tolist().count(token)
            expected = logits[row, token].item() - 0.3 * count - (-0.8) * (count > 0)
            assert result[row, token].item() == pytest.approx(expected, abs=1e-12)
    assert torch.equal(
        adjust_logits(logits, Sampling(frequency_penalty=0.3), read, 0), logits
    )  # the prompt does not count


def test_default_settings_leave_logits_unchanged() -> None:
    logits = torch.randn(2, 5)
    assert adjust_logits(logits, Sampling(), torch.zeros(2, 3, dtype=torch.long), 1) is logits
    before = logits.double()
    adjust_logits(before, Sampling(logit_bias={0: 5.0}, repetition_penalty=2.0), torch.zeros(2, 3, dtype=torch.long), 1)
    assert torch.equal(before, logits.double())  # a new tensor is returned


def test_forbidding_every_token_names_the_setting() -> None:
    model = build(SMALL["lstm"])
    with pytest.raises(InputError, match="after 10 generated ones: no_repeat_ngram forbid all 11"):
        generate(model, [[1]], Sampling(tokens=20, no_repeat_ngram=1))
    never = dict.fromkeys(range(11), -math.inf)
    with pytest.raises(InputError, match="after 0 generated ones: logit_bias forbid all 11"):
        generate(model, [[1]], Sampling(tokens=20, logit_bias=never))


@pytest.mark.parametrize("name", ["lstm", "decoder", "feed-forward", "decoder-rotary"])
def test_penalties_apply_to_prompt_and_generated_tokens(name: str) -> None:
    """Compare cached decoding with transformers' processors on the logits of the full sequence."""
    torch.manual_seed(6)
    model = build(SMALL[name]).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.8)
    words: dict[str, Any] = {"repetition_penalty": 1.4, "no_repeat_ngram": 2, "logit_bias": {4: 1.0}}
    settings = Sampling(tokens=25, temperature=0, **words)
    for result in generate(model, [[1, 2, 3], [4], [1, 2, 3]], settings):
        read = list(result.prompt_tokens)
        for token in result.tokens:
            with torch.no_grad():
                logits = model.eval()(torch.tensor([read]))[0][:, -1]
            assert token == transformers_scores(settings, torch.tensor([read]), logits).argmax().item()
            read.append(token)
        assert len(result.tokens) == 25 and len(set(pairwise(read))) == len(read) - 1


@pytest.mark.parametrize("name", ["lstm", "decoder"])
def test_logprobs_are_unaffected_by_sampling_settings(name: str) -> None:
    model = build(SMALL[name]).double()
    settings = Sampling(tokens=12, temperature=3.0, repetition_penalty=1.5, top_k=9, logprobs=3)
    results = generate(model, [[1, 2], [3, 4]], settings, eos=5)
    for result in results:
        assert result.logprobs is not None and [logprob.token for logprob in result.logprobs] == list(result.tokens)
        with torch.no_grad():
            logits, _ = model.eval()(torch.tensor([[*result.prompt_tokens, *result.tokens]]))
        logs = logits[0].log_softmax(-1)
        for index, logprob in enumerate(result.logprobs, len(result.prompt_tokens) - 1):
            assert logprob.logprob == pytest.approx(logs[index, logprob.token].item(), abs=1e-9)
            values, ids = logs[index].topk(3)
            assert [other.token for other in logprob.top] == ids.tolist()
            assert [other.logprob for other in logprob.top] == pytest.approx(values.tolist(), abs=1e-9)
    [base] = generate(model, [[1, 2]], Sampling(tokens=3))
    assert base.logprobs is None


def test_top_logprob_ties_are_ordered_by_id() -> None:
    [result] = token_logprobs(torch.zeros(1, 6), torch.tensor([4]), 3)
    assert result.token == 4 and [item.token for item in result.top] == [0, 1, 2]
    assert token_logprobs(torch.zeros(1, 6), torch.tensor([4]), 0)[0].top == ()
    torch.manual_seed(0)
    logits = torch.cat([torch.randn(20, 9), torch.randint(3, (20, 9)).float()])  # without and with ties
    for rows in (logits, *logits[:, None]):
        for count in (1, 4, 9, 12):
            result = [[item.token for item in row.top] for row in token_logprobs(rows, rows.argmin(1), count)]
            assert result == [sorted(range(9), key=lambda token: -row[token])[:count] for row in rows.tolist()]
