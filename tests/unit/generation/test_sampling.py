"""Temperature, top-k and top-p against their definitions in plain Python."""

import math
import random

import pytest
import torch

from lemma.errors import InputError
from lemma.generation.decode import Sampling, choose, probabilities


def by_definition(
    logits: list[float], temperature: float, top_k: int | None = None, top_p: float | None = None
) -> list[float]:
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[: top_k or len(logits)]
    weights = {token: math.exp((logits[token] - max(logits)) / temperature) for token in order}
    total, kept, reached = sum(weights.values()), {}, 0.0
    for token in order:
        if reached / total < (top_p or 1):
            kept[token] = weights[token]
        reached += weights[token]
    return [kept.get(token, 0.0) / sum(kept.values()) for token in range(len(logits))]


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("top_k", [None, 1, 2, 4, 9, 50])
@pytest.mark.parametrize("top_p", [None, 0.01, 0.5, 0.9, 1.0])
def test_probabilities_are_those_of_the_definition(temperature: float, top_k: int | None, top_p: float | None) -> None:
    chance = random.Random(5)
    rows = [[chance.choice([-2.0, 0.0, 0.5, 1.0, 2.5]) for _ in range(9)] for _ in range(20)]  # with many ties
    found = probabilities(torch.tensor(rows), temperature, top_k, top_p)
    expected = torch.tensor([by_definition(row, temperature, top_k, top_p) for row in rows], dtype=torch.float64)
    assert torch.equal(found > 0, expected > 0)
    assert torch.allclose(found, expected, atol=1e-12)


def test_top_p_keeps_the_token_that_reaches_the_share_exactly() -> None:
    logits = torch.tensor([[4.0, 2.0, 1.0, 1.0]]).log2() * math.log(2)
    assert (probabilities(logits, 1.0, top_p=0.5) > 0).tolist() == [[True, False, False, False]]
    assert (probabilities(logits, 1.0, top_p=0.51) > 0).tolist() == [[True, True, False, False]]


def test_temperature_zero_takes_the_most_likely_and_of_equals_the_lowest_id() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 5.0, 5.0, 5.0], [-9.0, -8.0, -7.0, -6.0]])
    assert choose(logits, Sampling(temperature=0), ()).tolist() == [1, 0, 3]
    assert probabilities(logits, 0).argmax(-1).tolist() == [1, 0, 3]
    assert probabilities(logits, 0).sum(-1).tolist() == [1, 1, 1]


@pytest.mark.parametrize("temperature", [1e-3, 1e-40, 5e-324])
def test_a_temperature_near_zero_does_not_overflow(temperature: float) -> None:
    assert probabilities(torch.tensor([[3e4, 1.0, -3e4]]), temperature).tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("words", [{}, {"top_k": 3}, {"top_p": 0.7}, {"top_k": 4, "top_p": 0.8}])
def test_each_token_is_chosen_by_exactly_its_share_of_all_numbers_of_chance(words: dict) -> None:
    torch.manual_seed(4)
    logits, size = torch.randn(1, 7), 20_000
    settings = Sampling(temperature=0.9, **words)
    places = [(number + 0.5) / size for number in range(size)]
    counts = choose(logits.expand(size, -1), settings, places).bincount(minlength=7)
    expected = size * probabilities(logits, 0.9, settings.top_k, settings.top_p)[0]
    assert (counts - expected).abs().max() <= 1
    assert (counts[expected == 0] == 0).all()


def test_the_ends_of_chance_never_choose_what_is_impossible() -> None:
    logits = torch.tensor([[-math.inf, 0.0, 0.1, -math.inf]])
    almost_one = math.nextafter(1.0, 0.0)
    assert choose(logits, Sampling(temperature=1.0), [0.0]).tolist() == [1]
    assert choose(logits, Sampling(temperature=1.0), [almost_one]).tolist() == [2]
    for number in range(1, 200):
        wide = torch.zeros(1, number)
        assert choose(wide, Sampling(temperature=1.0), [almost_one]).tolist() == [number - 1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"temperature": -0.1}, "temperature = -0.1 is not"),
        ({"temperature": math.nan}, "temperature = nan is not"),
        ({"temperature": math.inf}, "temperature = inf is not"),
        ({"top_k": 0}, "top_k = 0 is less than 1"),
        ({"top_p": 0.0}, "top_p = 0.0 is not"),
        ({"top_p": 1.1}, "top_p = 1.1 is not"),
        ({"tokens": 0}, "tokens = 0 is less than 1"),
        ({"stop_at_loop": True}, "stop_at_loop needs temperature 0, got 0.8"),
    ],
)
def test_settings_out_of_bounds_are_refused(words: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sampling(**words)
