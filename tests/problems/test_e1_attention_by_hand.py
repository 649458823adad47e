"""Problem E1: attention twice by hand; `they` means Ajax where the strong won, Juventus where the weak lost."""

import math

import pytest

from lemma.checking.worked.attention import WorkedAttention, work_attention

JUVENTUS, AJAX, THEY, LAST = 0, 3, 5, 8


@pytest.fixture(scope="module")
def worked() -> WorkedAttention:
    return work_attention("e1")


def test_sentences_match_the_problem(worked: WorkedAttention) -> None:
    strong, weak = worked.sentences
    assert " ".join(strong.words) == "Juventus lost from Ajax because they were too strong"
    assert weak.words == (*strong.words[:-1], "weak")
    assert not worked.case.scaled


def test_first_pass_weights_of_they_match_the_problem(worked: WorkedAttention) -> None:
    total = 7 + 2 * math.e  # seven scores are 0, two are 1
    for sentence in worked.sentences:
        row = sentence.passes[0].weights[THEY]
        assert row[THEY] == row[LAST] == pytest.approx(math.e / total)
        assert [f"{weight:.3f}" for weight in row] == ["0.080"] * 5 + ["0.219"] + ["0.080"] * 2 + ["0.219"]


def test_second_pass_resolves_they_to_the_right_team(worked: WorkedAttention) -> None:
    strong, weak = (sentence.passes[1].weights[THEY] for sentence in worked.sentences)
    assert (f"{strong[AJAX]:.3f}", f"{strong[JUVENTUS]:.3f}") == ("0.119", "0.096")
    assert (f"{weak[AJAX]:.3f}", f"{weak[JUVENTUS]:.3f}") == ("0.096", "0.119")


def test_weights_are_printed(worked: WorkedAttention) -> None:
    lines = [line.split() for line in str(worked).splitlines()]
    weighed = [line for line in lines if line and line[0] in ("Juventus", "Ajax", "they") and "(" in line[1]]
    second = [line for line in weighed if "0.119" in line or "0.096" in line]
    assert {(line[0], "0.119" in line) for line in second[:3]} == {("Juventus", False), ("Ajax", True), ("they", True)}
    assert "0.219" in str(worked)
    assert "0.080" in str(worked)


def test_encodings_are_printed_with_zeros() -> None:
    lines = str(work_attention("e1", full=True)).splitlines()
    start = lines.index("  encodings x")
    assert [line.split() for line in lines[start + 1 : start + 5]] == [
        ["1", "2"],
        ["Juventus", "1", "0"],
        ["lost", "0", "0"],
        ["from", "0", "0"],
    ]
