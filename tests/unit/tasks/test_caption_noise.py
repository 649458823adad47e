"""Captions reworded: what may change does, what must stay stays."""

import numpy as np

from lemma.data.batches import TokenRows
from lemma.data.images import normalise_caption
from lemma.tasks.augmentation import inner_tokens, insert_noise

CAPTIONS = np.array([[90, 1, 2, 3, 91, -1, -1], [90, 4, 91, -1, -1, -1, -1], [90, 5, 6, 7, 8, 9, 91]])
STRAYS = np.array([50, 51])


def said(row: np.ndarray) -> list[int]:
    return [int(token) for token in row if token >= 0]


def many(strength: float) -> list[list[list[int]]]:
    return [[said(row) for row in insert_noise(CAPTIONS, STRAYS, 1, step, strength)] for step in range(400)]


def test_the_ends_stay_and_padding_stays_at_the_right() -> None:
    for step in range(400):
        for row in insert_noise(CAPTIONS, STRAYS, 1, step, 1.0):
            words = said(row)
            assert (words[0], words[-1]) == (90, 91) and len(words) >= 3
            assert row.tolist() == words + [-1] * (7 - len(words))


def test_without_the_stray_a_caption_is_what_it_was() -> None:
    for rows in many(1.0):
        for row, custom in zip(rows, CAPTIONS, strict=True):
            assert len(row) <= len(said(custom)) + 1
            assert [token for token in row if token not in (50, 51)] == said(custom)


def test_strays_are_let_in_as_often_as_said_and_anywhere_between_the_ends() -> None:
    rows = [row for rows in many(1.0) for row in rows[:1]]
    strayed = np.mean([bool({50, 51} & set(row)) for row in rows])
    assert abs(strayed - 0.3) < 0.08
    positions = [row.index(token) for row in rows for token in (50, 51) if token in row]
    assert set(positions) == {1, 2, 3, 4}  # before the first word, and behind the last


def test_where_there_is_no_room_nothing_strays_in() -> None:
    assert all(rows[2] == said(CAPTIONS[2]) for rows in many(1.0))


def test_it_is_a_function_of_seed_and_step_and_of_no_strength_nothing_happens() -> None:
    assert np.array_equal(insert_noise(CAPTIONS, STRAYS, 3, 4, 1.0), insert_noise(CAPTIONS, STRAYS, 3, 4, 1.0))
    assert any(
        not np.array_equal(insert_noise(CAPTIONS, STRAYS, 3, s, 1.0), insert_noise(CAPTIONS, STRAYS, 3, 4, 1.0))
        for s in range(9)
    )
    assert np.array_equal(insert_noise(CAPTIONS, STRAYS, 3, 4, 0.0), CAPTIONS)
    none = insert_noise(CAPTIONS, np.zeros(0, dtype=np.int64), 3, 4, 1.0)
    assert not {50, 51} & set(none.ravel().tolist())


def test_what_may_stray_is_what_stands_between_the_ends() -> None:
    rows = TokenRows(np.array([90, 1, 2, 91, 90, 91, 90, 3, 91]), np.array([0, 4, 6, 9]))
    assert inner_tokens(rows).tolist() == [1, 2, 3]


def test_capitals_and_blanks_make_no_other_caption() -> None:
    assert normalise_caption("  Red\tHeart ") == normalise_caption("red heart") == " red heart"
    assert normalise_caption("") == ""
