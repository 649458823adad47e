"""Problem B4: under perfect optimization a shaping term can only increase the loss."""

from math import log

import pytest
import torch

from lemma.layers.attention import Attention
from lemma.layers.penalties import row_statistics
from lemma.layers.recording import AttentionRecord
from lemma.models.base import LanguageModel
from lemma.models.build import build
from lemma.spec.models import Decoder
from lemma.spec.recipe import Recipe
from lemma.spec.studies import read_study
from lemma.tasks.language import LanguageTask

WEIGHTS = [0.0, 0.1, 1.0]
SIZES = [size / 4 for size in range(-16, 17)]


def small_decoder() -> LanguageModel:
    """Build a decoder with weights so large that attention affects its predictions."""
    torch.manual_seed(3)
    model = build(Decoder(V=7, d=8, L=2, h=2, T=12)).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    return model


@pytest.fixture(scope="module", params=["entropy_penalty", "distance_penalty"])
def scan_scales(request: pytest.FixtureRequest) -> list[tuple[list[float], float, float]]:
    """Return loss and term for scaled queries of a decoder."""
    model, result = small_decoder(), []
    tokens, first = torch.randint(7, (2, 13)), {name: value.clone() for name, value in model.state_dict().items()}
    recipes = [Recipe(distance_max=30.0).replace(**{request.param: weight}) for weight in WEIGHTS]
    for size in SIZES:
        model.load_state_dict(first)
        for part in model.modules():
            if isinstance(part, Attention):
                part.get_parameter("query_key_value.weight").data[:8] *= size
        with torch.no_grad():
            output = [LanguageTask().loss(model, recipe)(tokens[:, :-1], tokens[:, 1:], None) for recipe in recipes]
        loss, focus, nearby = (item.item() for item in output[-1][1])
        result.append(
            ([item[0].item() for item in output], loss, focus if request.param == "entropy_penalty" else nearby)
        )
    return result


def test_b4_shaping_cannot_lower_the_minimal_loss(
    scan_scales: list[tuple[list[float], float, float]],
) -> None:
    best = [min(scan_scales, key=lambda row: row[0][index]) for index in range(len(WEIGHTS))]
    losses, terms = [row[1] for row in best], [row[2] for row in best]
    assert losses[0] == min(row[1] for row in scan_scales)
    assert losses == sorted(losses) and losses[-1] > losses[0]
    assert terms == sorted(terms, reverse=True) and terms[-1] < terms[0] - 0.01
    for weight, loss, term in zip(WEIGHTS, losses, terms, strict=True):
        assert weight * (terms[0] - term) >= loss - losses[0] - 1e-9


def test_b4_gallery_coin_matches_hand_calculation() -> None:
    """Two positions predict heads with 0.9 and 0.2, the coin is fair: α = 3/7 and log 2; a focus term moves both."""
    rows = [mixture(log(3 / 4)), *(mixture(score / 100) for score in range(-200, 200))]
    base, focused = (min(rows, key=lambda row: row[0] + weight * row[1]) for weight in (0, 0.3))
    assert (base[0], base[2]) == (pytest.approx(log(2)), pytest.approx(3 / 7))
    assert base[1] == pytest.approx(-(3 / 7) * log(3 / 7) - (4 / 7) * log(4 / 7))
    assert (focused[0], focused[1], focused[2]) == pytest.approx((0.7076, 0.6174, 0.308), abs=2e-3)


def mixture(score: float) -> tuple[float, float, float]:
    """Return loss, focus and α where attention mixes two predictions."""
    queries, keys = torch.full((1, 1, 1, 1), score), torch.tensor([1.0, 0.0]).view(1, 1, 2, 1)
    row = AttentionRecord(queries.double(), keys.double(), None, 1.0)
    fraction = row.weights()[0, 0, 0, 0].item()
    heads = 0.9 * fraction + 0.2 * (1 - fraction)
    return -(log(heads) + log(1 - heads)) / 2, row_statistics([row], 1.0).entropy.item(), fraction


def test_b4_study_compares_each_term_with_its_baseline() -> None:
    study = read_study("penalties")
    words = {model.title: model.settings for model in study.models}
    assert words["plain"] == {} and words["both"] == {**words["entropy"], **words["distance"]}
    assert {model.model for model in study.models} == {"decoder"} and len(study.seeds) >= 3
