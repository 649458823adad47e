"""Text wrapping: linear time for text without spaces, display width, grapheme clusters."""

from itertools import pairwise

import pytest

from lemma.report import text as lines
from lemma.report.text import display_width, wrap

MIXED = "xy語e\u0301z" * 300


def test_wrapping_long_words_takes_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def counted(text: str) -> int:
        measured.append(len(text))
        return display_width(text)

    monkeypatch.setattr(lines, "display_width", counted)
    assert "".join(wrap(MIXED, 80)) == MIXED
    assert sum(measured) < 6 * len(MIXED)


@pytest.mark.parametrize("room", [1, 2, 7, 80])
def test_wrapped_lines_are_full_and_keep_combining_marks(room: int) -> None:
    parts = wrap(MIXED, room)
    assert "".join(parts) == MIXED and not any(part.startswith("\u0301") for part in parts)
    assert all(display_width(part) <= max(room, 2) for part in parts)
    assert all(display_width(part + after[:1]) > room for part, after in pairwise(parts))


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("👩‍👩‍👧‍👦", 2),
        ("👩🏽‍🚀", 2),
        ("🏳️‍🌈", 2),
        ("❤️", 2),
        ("👍🏽", 2),
        ("🇩🇪", 2),
        ("1️⃣", 2),
        ("क्‍ष", 2),
        ("a\u200bb", 2),
    ],
)
def test_grapheme_clusters_have_the_width_of_one_character(text: str, columns: int) -> None:
    assert display_width(text) == columns and display_width(f"x{text}語") == columns + 3


def test_joined_emoji_are_not_split() -> None:
    family = "👩‍👩‍👧‍👦"
    assert wrap(family * 4, 5, break_anywhere=True) == [family * 2, family * 2]
