"""Worked cross-modal search: custom cases, their errors, and saved files."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lemma.checking.worked.matching import work_matching
from lemma.errors import InputError, SpecError

CASE: dict[str, Any] = {
    "I": [[1, 2], [0, 1]],
    "T": [[1, 0, 1], [0, 2, 0]],
    "W_i": [[1, 0], [0, 1]],
    "W_t": [[1, 0], [0, 1], [1, 1]],
}


def changed(**words: Any) -> dict[str, Any]:
    return {**CASE, **words}


def test_scores_of_random_matrices_match_numpy() -> None:
    random = np.random.default_rng(3)
    settings = {
        name: random.normal(size=size)
        for name, size in {"I": (5, 4), "T": (7, 3), "W_i": (4, 6), "W_t": (3, 6)}.items()
    }
    worked = work_matching({name: values.tolist() for name, values in settings.items()})
    expected = np.einsum("ia,ak,tb,bk->it", settings["I"], settings["W_i"], settings["T"], settings["W_t"])
    np.testing.assert_allclose(worked.steps.scores, expected, atol=1e-12)
    assert [of_image.by_product for of_image in worked.of_images] == [
        (f"sentence {best + 1}",) for best in expected.argmax(1)
    ]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (changed(W_i=[[1, 0, 2], [0, 1, 2]]), "W_i has 3 columns, W_t has 2"),
        (
            changed(W_t=[[1, 0, 1], [0, 1, 1]]),
            "W_t is 2×3; for T·W_t and rows of T of length 3 it needs 3 rows. Its tr",
        ),
        (changed(W_i=[[1, 0]]), "W_i is 1×2; for I·W_i and rows of I of length 2 it needs 2 rows. Its transpose"),
        (changed(I=[[1, 2], [3]]), "I: row 2 has 1 number, row 1 has 2"),
        (changed(I=[[1, "x"]]), "I: row 1, number 2 = 'x': give a finite number"),
        (changed(image_names=["a"]), "image_names has 1 name for 2 images"),
        (changed(image_names=["a", "a"]), "image_names has a name twice"),
        (changed(focus=["c"]), "unknown focus 'c'"),
        ({word: value for word, value in CASE.items() if word != "T"}, "T is missing. Give a matrix, as in T ="),
        (changed(colour="red"), "unknown setting 'colour'"),
        (changed(w_i=[[1]]), "Did you mean 'W_i'"),
    ],
)
def test_error_messages_use_the_names_of_the_file(case: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        work_matching(case)


def test_focus_shows_arithmetic_of_one_image_only() -> None:
    worked = work_matching(changed(image_names=["heart", "star"], sentence_names=["red", "gold"], focus="star"))
    printed = str(worked)
    assert "p(star)₁" in printed and "p(heart)₁" not in printed and "1 image not in focus" in printed
    assert worked.of_images[0].name == "heart" and worked.of_sentences[1].name == "gold"


def test_zero_vector_has_no_cosine_and_ties_are_listed() -> None:
    worked = work_matching(changed(I=[[0, 0], [1, 1]], T=[[0, 1, 0], [1, 0, 0]]))
    assert worked.of_images[0].cosine is None and worked.of_images[0].by_product == ("sentence 1", "sentence 2")
    assert worked.to_dict()["steps"]["cosines"][0] == [None, None]
    assert worked.of_images[1].by_cosine == ("sentence 1", "sentence 2")


def test_overflowing_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="too large to work with"):
        work_matching(changed(I=[[1e90, 0], [0, 1]], W_i=[[1e90, 0], [0, 1]]))


def test_case_of_another_kind_suggests_its_command() -> None:
    with pytest.raises(SpecError, match="so it is a case for: lemma look cross e8"):
        work_matching("e8")
    from lemma.checking.worked.attention import work_cross_attention

    with pytest.raises(SpecError, match="so it is a case for: lemma search --matrices e7"):
        work_cross_attention("e7")


@pytest.mark.parametrize("suffix", [".html", ".svg", ".md", ".txt", ".json", ".toml"])
def test_matching_is_saved_in_every_format_and_reloaded(tmp_path: Path, suffix: str) -> None:
    worked = work_matching(changed(title="<script>alert(1)</script>"))
    path = worked.save(tmp_path / f"e7{suffix}")
    text = path.read_text(encoding="utf-8")
    assert "<script>" not in text or suffix in (".toml", ".json", ".txt")
    if suffix == ".json":
        assert json.loads(text)["steps"]["scores"] == worked.steps.scores.tolist()
    if suffix == ".toml":
        assert work_matching(path).to_dict() == worked.to_dict()


def test_lines_fit_80_columns() -> None:
    assert max(map(len, str(work_matching("e7", full=True)).splitlines())) <= 80
