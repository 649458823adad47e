"""Problem C9: the five kinds of positions, element by element."""

import math

import pytest
import torch

from lemma.layers.positions import RotaryEmbedding, alibi_slopes, build_positions, rotate, sinusoids
from lemma.layers.recording import record_attention
from lemma.models.build import build
from lemma.spec.models import Decoder
from lemma.spec.positions import Alibi, Learned, NoPositions, Sinusoidal

THETA = (1.0, 1 / 100)  # the angles of width 4 with base 10,000


@pytest.mark.parametrize("first", [0, 1])  # 1 gives the table of the source, which counts from 1
def test_sinusoidal_adds_sines_and_cosines(first: int) -> None:
    part = build_positions(Sinusoidal(first=first), 6, 4)
    vectors = torch.randn(1, 6, 4)
    added = part(vectors) - vectors
    for row in range(6):
        p = row + first
        expected = [math.sin(p * THETA[0]), math.cos(p * THETA[0]), math.sin(p * THETA[1]), math.cos(p * THETA[1])]
        assert added[0, row].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("first", [0, 1])
def test_rotary_rotates_adjacent_pairs(first: int) -> None:
    part = RotaryEmbedding(3, 4, first=first)
    vectors = torch.randn(6, 4)
    rotated = part(vectors)  # also beyond its table of 3 rows
    for row, (a, b, c, d) in enumerate(vectors.tolist()):
        item, two = (row + first) * THETA[0], (row + first) * THETA[1]
        expected = [
            a * math.cos(item) - b * math.sin(item),
            a * math.sin(item) + b * math.cos(item),
            c * math.cos(two) - d * math.sin(two),
            c * math.sin(two) + d * math.cos(two),
        ]
        assert rotated[row].tolist() == pytest.approx(expected, abs=1e-6)


def test_rotary_scores_depend_only_on_distance() -> None:
    query, key = torch.randn(2, 8, dtype=torch.float64)
    table = sinusoids(40, 8, 10_000.0).double().unflatten(1, (-1, 2))
    rotated = [rotate(vector.expand(40, 8), table) for vector in (query, key)]
    scores = rotated[0] @ rotated[1].T
    for distance in range(-5, 6):
        line = scores.diagonal(distance)
        assert line.std() < 1e-6 and not math.isclose(float(line[0]), float(scores.diagonal(distance + 1)[0]))
    added = [vector + sinusoids(40, 8, 10_000.0).double() for vector in (query, key)]
    assert (added[0] @ added[1].T).diagonal(3).std() > 1e-2


def test_alibi_subtracts_slope_times_distance() -> None:
    slopes = alibi_slopes(8)
    ratios = slopes[1:] / slopes[:-1]
    assert torch.allclose(ratios, ratios[0].expand(7)) and slopes[0] == 0.5  # geometric
    model = build(Decoder(vocabulary=5, width=16, heads=8, depth=1, context=4, positions=Alibi()))
    with torch.no_grad(), record_attention() as records:
        model(torch.randint(5, (1, 9)))  # beyond the trained length
    record = records[0]
    penalties = record.queries @ record.keys.mT * record.scale - record.scores()
    for i in range(9):
        for j in range(i + 1):
            assert penalties[0, :, i, j].tolist() == pytest.approx((slopes * (i - j)).tolist(), abs=1e-5)


def test_learned_positions_add_vectors_and_none_adds_nothing() -> None:
    trained, none = build_positions(Learned(), 5, 4), build_positions(NoPositions(), 5, 4)
    torch.nn.init.normal_(trained.weight)
    vectors = torch.randn(1, 3, 4)
    assert torch.equal(trained(vectors, start=2), vectors + trained.weight[2:5])
    assert torch.equal(none(vectors), vectors)


@pytest.mark.parametrize("kind", ["rotary", "alibi"])
def test_only_relative_positions_extend_a_full_cache(kind: str) -> None:
    relative, absolute = (
        build(Decoder(vocabulary=5, width=8, heads=2, depth=2, context=4, positions=which))
        for which in (kind, "learned")
    )
    tokens = torch.randint(5, (1, 9))
    _, state = relative(tokens)
    saved = state.layers[0][0].clone()
    _, after = relative(tokens[:, :1], state)
    assert after.layers[0][0].shape[-2] == 10 and torch.equal(after.layers[0][0][..., :9, :], saved)
    assert absolute(tokens)[1].layers == ()  # a full window has no cache: every position moves
