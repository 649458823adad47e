"""Worked attention matches PyTorch and explains invalid cases."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lemma
from lemma.checking.worked.attention import work_attention, work_cross_attention
from lemma.checking.worked.case import list_examples
from lemma.errors import InputError, SpecError

IDENTITY = [[1, 0], [0, 1]]
SMALL: dict[str, Any] = {
    "sentences": "the cat saw the dog",
    "vectors": {"the": [0.1, -0.2], "cat": [1, 0], "dog": [0, 2.5]},
    "other_words": [0, 0],
    "W_Q": IDENTITY,
    "W_K": IDENTITY,
    "W_V": IDENTITY,
}


def random_case(seed: int, words: int, width: int, key: int, value: int, **more: Any) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    names = [f"w{index}" for index in range(words)]
    shapes = {"W_Q": (width, key), "W_K": (width, key), "W_V": (width, value)}
    return {
        "sentences": " ".join(names),
        "vectors": {name: (3 * draw.normal(size=width)).tolist() for name in names},
        "apply": "x W",
        **{name: draw.normal(size=shape).tolist() for name, shape in shapes.items()},
        **more,
    }


def torch_attention(case: dict[str, Any], passes: int) -> torch.Tensor:
    stream = torch.tensor(list(case["vectors"].values()), dtype=torch.float64)
    maps = [torch.tensor(case[name], dtype=torch.float64) for name in ("W_Q", "W_K", "W_V")]
    for _ in range(passes):
        query, key, value = (stream @ matrix for matrix in maps)
        stream = torch.nn.functional.scaled_dot_product_attention(
            query[None],
            key[None],
            value[None],
            is_causal=case.get("mask") == "causal",
            scale=None if case.get("scaled", True) else 1.0,
        )[0]
    return stream


@given(
    seed=st.integers(0, 10**6),
    words=st.integers(1, 7),
    width=st.integers(1, 5),
    key=st.integers(1, 5),
    value=st.integers(1, 5),
    scaled=st.booleans(),
    mask=st.sampled_from(["none", "causal"]),
)
def test_single_pass_matches_torch(
    seed: int, words: int, width: int, key: int, value: int, scaled: bool, mask: str
) -> None:
    case = random_case(seed, words, width, key, value, scaled=scaled, mask=mask)
    steps = work_attention(case).sentences[0].passes[0]
    np.testing.assert_allclose(steps.outputs, torch_attention(case, 1).numpy(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(steps.weights.sum(axis=1), 1)
    np.testing.assert_allclose(
        [steps.contributions(row).sum(axis=0) for row in range(words)], steps.outputs, rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_outputs_feed_the_next_pass(mask: str) -> None:
    case = random_case(3, 6, 4, 3, 4, mask=mask, passes=5)
    passes = work_attention(case).sentences[0].passes
    assert len(passes) == 5
    np.testing.assert_allclose(passes[-1].outputs, torch_attention(case, 5).numpy(), atol=1e-9)
    assert passes[1].inputs is passes[0].outputs


def test_row_and_column_conventions_give_equal_outputs() -> None:
    case = random_case(4, 3, 2, 3, 2)
    rotated = {name: np.array(case[name]).T.tolist() for name in ("W_Q", "W_K", "W_V")}
    rows, columns = (
        work_attention(item).sentences[0].passes[0] for item in (case, {**case, **rotated, "apply": "W x"})
    )
    np.testing.assert_allclose(rows.outputs, columns.outputs)
    assert rows.case.formula("q") == "q = x W_Q"
    assert columns.case.formula("q") == "q = W_Q x"


def test_large_scores_are_shifted_and_stay_finite() -> None:
    worked = work_attention({**SMALL, "vectors": {"cat": [900, 0]}, "other_words": [-900, 1]})
    assert worked.sentences[0].passes[0].is_shifted
    np.testing.assert_allclose(worked.sentences[0].passes[0].weights.sum(axis=1), 1)
    assert "exp(score − row's largest)" in str(work_attention({**SMALL, "other_words": [900, 0]}, full=True))


def test_repeated_words_are_numbered_and_can_be_focused() -> None:
    assert work_attention(SMALL).sentences[0].words == ("the#1", "cat", "saw", "the#2", "dog")
    assert work_attention(SMALL, words=["the"]).sentences[0].focus == (0, 3)
    assert work_attention(SMALL, words=["the#2", "dog"]).sentences[0].focus == (3, 4)


def test_labels_that_look_like_words_lose_no_rows() -> None:
    steps = work_attention({**SMALL, "sentences": "the the the#1 the#2"}).sentences[0].passes[0]
    assert steps.inputs.tolist() == [[0.1, -0.2], [0.1, -0.2], [0, 0], [0, 0]]


def test_keyword_settings_override_the_case() -> None:
    worked = work_attention("e1", passes=3, scaled=True, mask="causal", words=["Ajax"])
    assert [len(sentence.passes) for sentence in worked.sentences] == [3, 3]
    steps = worked.sentences[0].passes[0]
    assert steps.divisor == pytest.approx(3**0.5)
    assert np.triu(steps.weights, 1).max() == 0
    assert worked.sentences[1].focus == (3,)
    assert "they attends" not in str(worked)


def test_short_output_shows_only_the_focus() -> None:
    short, full = str(work_attention("e1")), str(work_attention("e1", full=True))
    assert "output(they)" in short
    assert "output(Ajax)" not in short
    for heading in ("encodings x", "queries q = W_Q x", "keys", "values", "q·k", "exp(score)", "weights α", "outputs"):
        assert heading in full
        assert heading == "q·k" or heading in ("keys", "values") or f"\n  {heading}" not in short
    assert "output(Ajax)" in full
    assert "weights α" in str(work_attention(SMALL))
    assert "\x1b" not in full


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key": ({"W_O": IDENTITY}, "unknown setting 'W_O'. Did you mean"),
    "no query map": ({"W_Q": None}, "the case: W_Q is missing. Give a matrix, as in W_Q = [[1, 0], [0, 1]]."),
    "an empty matrix": ({"W_Q": []}, "the case: W_Q is empty. Give a matrix, as in W_Q = [[1, 0], [0, 1]]."),
    "an empty row": ({"W_Q": [[1, 0], []]}, "the case: W_Q: row 2 is empty."),
    "a word for a matrix": ({"W_Q": "one"}, "the case: W_Q = 'one': expected a matrix, as in"),
    "text in a matrix": ({"W_Q": [[1, 0], [0, "b"]]}, "the case: W_Q: row 2, number 2 = 'b': give a finite number."),
    "too many rows": ({"W_Q": [[1, 0]] * 101}, "W_Q is too long for work by hand: 101, at most 100"),
    "a vector for all vectors": ({"vectors": [1, 0]}, "vectors = [1, 0]: expected named vectors"),
    "a setting inside a table": (
        {"vectors": {"cat": [1, 0], "mask": "causal"}},
        "the case: mask is inside the table [vectors]; move it above the tables.",
    ),
    "an empty sentence": ({"sentences": ["  "]}, "0 words"),
    "no sentence": (
        {"sentences": []},
        'sentences is empty. Give one sentence or several, as in sentences = ["the cat sat"].',
    ),
    "too long a sentence": ({"sentences": "a " * 101}, "101 words"),
    "no vector": ({"other_words": None}, "unknown word 'saw'"),
    "a short vector": ({"vectors": {"cat": [1]}}, "'cat' has 1 number,"),
    "an empty vector": ({"vectors": {"cat": []}}, "vectors.cat"),
    "no number": ({"vectors": {"cat": [1, float("nan")]}}, "finite"),
    "an infinite number": ({"W_V": [[1, float("inf")], [0, 1]]}, "finite"),
    "text for a number": ({"vectors": {"cat": ["1", 2]}}, "vectors.cat: number 1 = '1'"),
    "true for a number": ({"vectors": {"cat": [True, 2]}}, "vectors.cat: number 1 = True"),
    "a ragged matrix": ({"W_K": [[1, 0], [0]]}, "W_K: row 2 has 1 number, row 1 has 2;"),
    "a vector for a matrix": ({"W_K": [1, 0]}, "the case: W_K = [1, 0]: expected a matrix"),
    "too many columns": ({"W_V": [[1, 0, 0]]}, "W_V is 1×3"),
    "the transposed matrix": ({"W_Q": [[1, 0, 0], [0, 1, 0]]}, 'It would fit with apply = "x W"'),
    "keys and queries of two lengths": ({"W_Q": [[1, 0]]}, "W_Q makes vectors of length 1, W_K of length 2"),
    "values that cannot go round": ({"W_V": [[1, 0]], "passes": 2}, "Set passes = 1"),
    "no pass": ({"passes": 0}, "passes = 0"),
    "half a pass": ({"passes": 1.5}, "passes"),
    "a wrong mask": ({"mask": "casual"}, "'casual'"),
    "a wrong way": ({"apply": "Wx"}, "apply"),
    "a wrong focus": ({"focus": "cats"}, "Did you mean 'cat'"),
    "numbers past all bounds": ({"vectors": {"cat": [1e200, 0]}}, "too large"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_cases_are_explained(case: str) -> None:
    change, message = WRONG[case]
    settings = {name: value for name, value in {**SMALL, **change}.items() if value is not None}
    with pytest.raises(InputError) as caught:
        work_attention(settings)
    assert message in str(caught.value)


def test_settings_below_a_table_heading_are_explained(tmp_path: Path) -> None:
    rows = "W_Q = [[1]]\nW_K = [[1]]\nW_V = [[1]]\n"
    path = tmp_path / "late.toml"
    path.write_text(f'sentences = "mask it"\n[vectors]\nmask = [1]\nit = [2]\n{rows}', encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        work_attention(path)
    assert str(caught.value).splitlines() == [
        f"{path}: {name} is inside the table [vectors]; move it above the tables." for name in ("W_Q", "W_K", "W_V")
    ]
    path.write_text(f'sentences = "mask it"\n{rows}[vectors]\nmask = [1]\nit = [2]\n', encoding="utf-8")
    assert work_attention(path).sentences[0].words == ("mask", "it")  # a word may have the name of a setting


def test_each_case_error_is_reported_once_and_briefly() -> None:
    with pytest.raises(SpecError) as caught:
        work_attention({**SMALL, "W_K": [1, 0], "title": 5, "vectors": {f"w{n}": [n] for n in range(60)}})
    first, second = str(caught.value).splitlines()
    assert first.startswith("the case: title = 5: ") and second.startswith("the case: W_K = [1, 0]: expected a matrix")


def test_long_sentence_is_shortened_with_a_hint() -> None:
    hint = "--full prints q, k, v and scores; --word WORD the arithmetic of one row"
    short = str(work_attention(SMALL))
    assert short == str(work_attention(SMALL, full=True)) and hint not in short
    long = {**SMALL, "sentences": "the cat saw the dog and ran"}
    assert str(work_attention(long)).endswith(f"\n\n{hint}") and "queries q" not in str(work_attention(long))
    for text in (str(work_attention(long, full=True)), str(work_attention(long, words=["cat"]))):
        assert hint not in text
    assert hint not in work_attention(long)._repr_html_()


def test_files_that_are_not_cases_are_refused(tmp_path: Path) -> None:
    invalid, large = tmp_path / "broken.toml", tmp_path / "large.toml"
    invalid.write_text("sentences = [", encoding="utf-8")
    large.write_bytes(b"#" * (1 << 21))
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'title = "caf\xe9"')
    for labelled, message in {
        invalid: "not valid TOML",
        large: "too many for a case by hand",
        latin: "text file",
        tmp_path: "cannot be read",
        tmp_path / "none.toml": "no such file",
        "e2": "Did you mean 'e1'",
        "e8": "lemma look cross e8",
    }.items():
        with pytest.raises(SpecError, match=message):
            work_attention(labelled)
    with pytest.raises(SpecError, match="lemma look attention e1"):
        work_cross_attention("e1")


def test_unused_vectors_are_noted() -> None:
    assert "In no sentence, so not used: bird" in str(
        work_attention({**SMALL, "vectors": {**SMALL["vectors"], "bird": [1, 1]}})
    )


def test_saved_example_can_be_edited_and_loaded(tmp_path: Path) -> None:
    copy = tmp_path / "mine.toml"
    assert work_attention("e1").save(str(copy)) == copy
    copy.write_text(copy.read_text(encoding="utf-8").replace("passes = 2", "passes = 1"), encoding="utf-8")
    assert [len(sentence.passes) for sentence in work_attention(copy).sentences] == [1, 1]
    work_attention(SMALL).save(copy)
    assert work_attention(str(copy)).sentences[0].words == work_attention(SMALL).sentences[0].words


def test_attention_examples_are_listed() -> None:
    assert list(list_examples("attention").titles) == ["e1"]
    assert list(list_examples("cross").titles) == ["e8"]
    assert "lemma look attention e1" in str(lemma.look.attention())
    assert lemma.look.attention().to_dict() == list_examples("attention").to_dict()


HOSTILE = {**SMALL, "title": "<script>&", "sentences": 'the <b>&" 猫 | `x` \x07 the', "mask": "causal", "focus": "the"}


def test_saved_files_are_complete_and_escape_markup(tmp_path: Path) -> None:
    worked = work_attention(HOSTILE)
    for name in ("a.svg", "a.html", "a.md", "a.txt", "a.json"):
        worked.save(tmp_path / name)
    svg, page = ((tmp_path / name).read_text(encoding="utf-8") for name in ("a.svg", "a.html"))
    root = ElementTree.fromstring(svg)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert '<b>&"' in texts
    assert "−∞" in texts
    assert len([text for text in texts if text == "weights α"]) == 1
    assert "<script" not in page
    assert "<b>&" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "href" not in page
    assert r"\|" in (tmp_path / "a.md").read_text(encoding="utf-8")


def test_to_dict_is_complete_json(tmp_path: Path) -> None:
    worked = work_attention(HOSTILE)
    worked.save(tmp_path / "a.json")
    base = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert base == json.loads(json.dumps(worked.to_dict(), allow_nan=False))
    (item,) = base["sentences"][0]["passes"]
    assert item["scores"][0][1] is None
    np.testing.assert_allclose(item["weights"], worked.sentences[0].passes[0].weights)
    assert set(item["contributions"]) == {"the#1", "the#2"}


def test_notebook_html_has_no_page_frame() -> None:
    html = work_attention(SMALL)._repr_html_()
    assert html.count("<svg") == 9  # x, q, k, v, q·k, scores, exponentials, weights and outputs
    assert "<html" not in html
