"""Attention patterns compared with loops over rows and keys, and on handmade heads."""

import random

import numpy as np
import pytest

from lemma.inspection.patterns import (
    MIN_GAIN,
    PatternMatch,
    best_pattern,
    match_pattern,
    measure_weights,
    pattern_masks,
    pattern_name,
)
from lemma.report.numbers import make_visible, number_tokens

TEXT = list("abracadabra!")


def expected_positions(pattern: str, tokens: list[str], i: int) -> set[int]:
    """Return the positions of each pattern by its definition, one key at a time."""
    earlier = [j for j in range(i) if tokens[j] == tokens[i]]
    return {
        "previous": {i - 1},
        "next": {i + 1},
        "itself": {i},
        "first": {0} if i else set(),
        "same word": {j for j in range(len(tokens)) if tokens[j] == tokens[i] and j != i},
        "induction": {j + 1 for j in earlier},
    }[pattern] & set(range(len(tokens)))


def reference_score(
    pattern: str, tokens: list[str], weights: np.ndarray, allowed: np.ndarray
) -> tuple[float, float, int]:
    scores, uniforms = [], []
    for i in range(len(tokens)):
        seen = {j for j in range(len(tokens)) if allowed[i, j]}
        positions = expected_positions(pattern, tokens, i) & seen
        if positions and positions != seen:
            scores.append(sum(weights[i, j] for j in positions))
            uniforms.append(len(positions) / len(seen))
    return (sum(scores) / len(scores), sum(uniforms) / len(scores), len(scores)) if scores else (0.0, 0.0, 0)


def random_attention(size: int, causal: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    allowed = np.tri(size, dtype=bool) if causal else np.ones((size, size), dtype=bool)
    weights = np.random.default_rng(seed).gamma(0.5, size=(size, size)) * allowed
    return weights / weights.sum(1, keepdims=True), allowed


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("pattern", ["previous", "next", "itself", "first", "same word", "induction"])
def test_pattern_score_is_mean_attention_on_its_positions(pattern: str, causal: bool) -> None:
    for seed in range(5):
        tokens = random.Random(seed).choices("abcd", k=seed * 3 + 1)
        weights, allowed = random_attention(len(tokens), causal, seed)
        words = number_tokens(tokens)
        result = match_pattern(pattern, weights, allowed, pattern_masks(words, words, cross=False)[pattern])
        score, uniform, rows = reference_score(pattern, tokens, weights, allowed)
        assert result.rows == rows
        assert result.score == pytest.approx(score) and result.uniform == pytest.approx(uniform)


@pytest.mark.parametrize("pattern", ["previous", "itself", "first", "same word", "induction"])
def test_handmade_pattern_head_gets_its_name(pattern: str) -> None:
    words, size = number_tokens(TEXT), len(TEXT)
    allowed = np.tri(size, dtype=bool)
    weights = np.where(allowed, 1.0, 0.0)
    for i in range(size):
        positions = [j for j in expected_positions(pattern, TEXT, i) if j <= i]
        weights[i] += 1000 * np.isin(np.arange(size), positions)
    weights /= weights.sum(1, keepdims=True)
    matches = [
        match_pattern(name, weights, allowed, location)
        for name, location in pattern_masks(words, words, cross=False).items()
    ]
    result = best_pattern(matches)
    assert result and result.pattern == pattern and result.score > 0.97
    assert pattern_name(result, 0.0) == pattern


def test_uniform_attention_has_no_gain_and_is_broad() -> None:
    words, allowed = number_tokens(TEXT), np.tri(len(TEXT), dtype=bool)
    weights = allowed / allowed.sum(1, keepdims=True)
    matches = [
        match_pattern(name, weights, allowed, location)
        for name, location in pattern_masks(words, words, cross=False).items()
    ]
    assert all(match.gain == pytest.approx(0, abs=1e-12) for match in matches)
    breadth = measure_weights(weights, allowed, None).breadth
    assert breadth == pytest.approx(1) and pattern_name(best_pattern(matches), breadth) == "broad"


def test_causal_head_has_no_future_positions() -> None:
    words = number_tokens(TEXT)
    weights, allowed = random_attention(len(TEXT), True, 0)
    assert match_pattern("next", weights, allowed, pattern_masks(words, words, cross=False)["next"]).rows == 0


def test_pattern_with_enough_rows_beats_a_single_row() -> None:
    lucky, steady = PatternMatch("induction", 1.0, 0.1, 1), PatternMatch("previous", 0.5, 0.1, 9)
    assert best_pattern([lucky, steady]) == steady
    assert best_pattern([lucky]) == lucky
    assert best_pattern([PatternMatch("next", 0.0, 0.0, 0)]) is None


def test_weak_match_has_no_pattern_name() -> None:
    weak = PatternMatch("previous", 0.1 + 0.9 * MIN_GAIN * 0.9, 0.1, 20)
    assert pattern_name(weak, 0.5) == "none" and pattern_name(weak, 0.9) == "broad"


def test_cross_attention_same_word_matches_every_position() -> None:
    asking, names = number_tokens(["b", "a"]), number_tokens(["a", "b", "a"])
    positions = pattern_masks(asking, names, cross=True)
    assert set(positions) == {"first", "same word"}
    assert positions["same word"].tolist() == [[False, True, False], [True, False, True]]
    assert positions["first"].tolist() == [[True, False, False]] * 2


def test_windows_use_positions_of_the_full_text() -> None:
    words = number_tokens(TEXT)
    full = pattern_masks(words, words, cross=False)
    last = pattern_masks(words[-3:], words, cross=False)
    assert all((last[name] == full[name][-3:]).all() for name in full)


def test_head_statistics_match_explicit_sums() -> None:
    weights, allowed = random_attention(7, True, 3)
    distances = np.abs(np.subtract.outer(np.arange(7), np.arange(7)))
    result = measure_weights(weights, allowed, distances)
    cells = [(i, j) for i in range(7) for j in range(i + 1)]
    entropy = -sum(weights[i, j] * np.log(weights[i, j]) for i, j in cells if weights[i, j] > 0) / 7
    assert result.entropy == pytest.approx(entropy)
    assert result.distance == pytest.approx(sum(weights[i, j] * (i - j) for i, j in cells) / 7)
    assert result.first == pytest.approx(sum(weights[i, 0] for i in range(7)) / 7)
    assert result.uniform_entropy == pytest.approx(sum(np.log(range(1, 8))) / 7)


def test_fully_masked_row_is_ignored() -> None:
    allowed = np.array([[False, False], [True, True]])
    weights = np.array([[0.0, 0.0], [0.5, 0.5]])
    result = measure_weights(weights, allowed, np.ones((2, 2)))
    assert result.entropy == pytest.approx(np.log(2)) and result.first == 0.5 and result.distance == 1.0
    assert measure_weights(weights[:1], allowed[:1], None).entropy == 0.0


@pytest.mark.parametrize("hostile", ["\x1b[31m", "\u202e", "\x00", "\u2028", "\ufeff", "\ue000"])
def test_invisible_characters_of_tokens_are_made_visible(hostile: str) -> None:
    assert make_visible(hostile + "x").isprintable() and hostile not in make_visible(hostile + "x")


def test_letters_of_all_scripts_and_joined_emoji_are_unchanged() -> None:
    for text in ("שלום", "日本", "👩‍💻", "<script>", "é"):
        assert make_visible(text) == text
