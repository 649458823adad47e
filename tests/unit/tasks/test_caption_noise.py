"""Noise tokens in captions: rate, positions, preserved tokens."""

import numpy as np

from lemma.data.batches import TokenRows
from lemma.data.images import normalise_caption
from lemma.tasks.augmentation import inner_tokens, insert_noise

CAPTIONS = np.array([[90, 1, 2, 3, 91, -1, -1], [90, 4, 91, -1, -1, -1, -1], [90, 5, 6, 7, 8, 9, 91]])
STRAYS = np.array([50, 51])


def caption_tokens(row: np.ndarray) -> list[int]:
    return [int(token) for token in row if token >= 0]


def noisy_captions(strength: float) -> list[list[list[int]]]:
    return [[caption_tokens(row) for row in insert_noise(CAPTIONS, STRAYS, 1, step, strength)] for step in range(400)]


def test_caption_noise_preserves_end_tokens_and_right_padding() -> None:
    for step in range(400):
        for row in insert_noise(CAPTIONS, STRAYS, 1, step, 1.0):
            words = caption_tokens(row)
            assert (words[0], words[-1]) == (90, 91) and len(words) >= 3
            assert row.tolist() == words + [-1] * (7 - len(words))


def test_caption_noise_only_inserts_tokens() -> None:
    for rows in noisy_captions(1.0):
        for row, custom in zip(rows, CAPTIONS, strict=True):
            assert len(row) <= len(caption_tokens(custom)) + 1
            assert [token for token in row if token not in (50, 51)] == caption_tokens(custom)


def test_noise_tokens_have_the_documented_rate_and_positions() -> None:
    rows = [row for rows in noisy_captions(1.0) for row in rows[:1]]
    strayed = np.mean([bool({50, 51} & set(row)) for row in rows])
    assert abs(strayed - 0.3) < 0.08
    positions = [row.index(token) for row in rows for token in (50, 51) if token in row]
    assert set(positions) == {1, 2, 3, 4}  # before the first word and after the last


def test_full_length_captions_get_no_noise() -> None:
    assert all(rows[2] == caption_tokens(CAPTIONS[2]) for rows in noisy_captions(1.0))


def test_caption_noise_is_determined_by_seed_and_step() -> None:
    assert np.array_equal(insert_noise(CAPTIONS, STRAYS, 3, 4, 1.0), insert_noise(CAPTIONS, STRAYS, 3, 4, 1.0))
    assert any(
        not np.array_equal(insert_noise(CAPTIONS, STRAYS, 3, s, 1.0), insert_noise(CAPTIONS, STRAYS, 3, 4, 1.0))
        for s in range(9)
    )
    assert np.array_equal(insert_noise(CAPTIONS, STRAYS, 3, 4, 0.0), CAPTIONS)
    none = insert_noise(CAPTIONS, np.zeros(0, dtype=np.int64), 3, 4, 1.0)
    assert not {50, 51} & set(none.ravel().tolist())


def test_noise_tokens_come_from_inside_captions() -> None:
    rows = TokenRows(np.array([90, 1, 2, 91, 90, 91, 90, 3, 91]), np.array([0, 4, 6, 9]))
    assert inner_tokens(rows).tolist() == [1, 2, 3]


def test_caption_normalisation_ignores_case_and_whitespace() -> None:
    assert normalise_caption("  Red\tHeart ") == normalise_caption("red heart") == " red heart"
    assert normalise_caption("") == ""
