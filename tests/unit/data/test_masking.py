"""Masked tokens and next segments: shapes, fractions, and batches as functions of seed and step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lemma.data.batches import MaskedWindows
from lemma.errors import DataError

V = 53  # 50 tokens and three special tokens
START, END, MASK = 50, 51, 52
TEXT = np.random.default_rng(0).integers(0, 50, size=4000).astype(np.uint16)


def windows(
    objective: str = "masked", context: int = 42, batch: int = 64, rate: float = 0.15, seed: int = 1
) -> MaskedWindows:
    return MaskedWindows(len(TEXT), context, batch, seed, rate, objective, V)  # pyright: ignore[reportArgumentType]


def original(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the rows before masking."""
    full = np.where(targets >= 0, targets, inputs)
    full[:, 0] = inputs[:, 0]
    return full


def stands_in_text(sequence_length: np.ndarray) -> list[int]:
    result = np.lib.stride_tricks.sliding_window_view(TEXT, len(sequence_length))
    return np.flatnonzero((result == sequence_length).all(1)).tolist()


@settings(max_examples=40, deadline=None)
@given(
    objective=st.sampled_from(["masked", "next-sentence", "both"]),
    context=st.integers(5, 60),
    rate=st.floats(0.01, 0.99),
    step=st.integers(0, 10**6),
)
def test_masked_rows_are_text_spans_with_original_targets(objective: str, context: int, rate: float, step: int) -> None:
    order = windows(objective, context, batch=6, rate=rate)
    inputs, targets = order.batch(TEXT, step)
    assert inputs.shape == targets.shape == (6, context) and inputs.dtype == targets.dtype == np.int64
    full = original(inputs, targets)
    assert (full[:, 0] == START).all() and (full[:, -1] == END).all()
    assert ((full[:, 1:-1] == END).sum(1) == (objective != "masked")).all() and (full != MASK).all()
    hidden = (targets[:, 1:] >= 0).sum(1)
    assert (hidden == order.num_predicted).all() and order.num_predicted == (
        0 if objective == "next-sentence" else max(1, round(rate * order.num_text_tokens))
    )
    changed = inputs != full
    assert not (changed & (targets < 0)).any() and not changed[:, 0].any()
    if objective == "masked":
        assert (targets[:, 0] == -1).all() and all(stands_in_text(row[1:-1]) for row in full)


def test_masking_uses_80_10_10_proportions() -> None:
    order = windows(batch=2000, rate=0.25)
    inputs, targets = order.batch(TEXT, 7)
    choice = targets >= 0
    assert choice.mean() == pytest.approx(0.25 * 40 / 42)
    read, target = inputs[choice], targets[choice]
    fractions = [(read == MASK).mean(), ((read != MASK) & (read != target)).mean(), (read == target).mean()]
    for fraction, expected in zip(fractions, [0.8, 0.1, 0.1], strict=True):
        assert abs(fraction - expected) < 4 * np.sqrt(expected * (1 - expected) / choice.sum())
    exchanged = read[(read != MASK) & (read != target)]
    counts = np.bincount(exchanged, minlength=V)
    assert counts[50:].sum() == 0 and counts[:50].min() > 0


def test_masked_positions_are_uniform_outside_special_tokens() -> None:
    targets = np.concatenate([windows("both", batch=500).batch(TEXT, step)[1] for step in range(20)])
    choice = (targets >= 0).mean(0)
    marks = [21, 41]  # after A and after B
    assert choice[marks].tolist() == [0, 0] and choice[0] == 1
    rate = windows("both").num_predicted / windows("both").num_text_tokens
    remaining = np.delete(choice, [0, *marks])
    assert np.abs(remaining - rate).max() < 5 * np.sqrt(rate * (1 - rate) / len(targets))


@pytest.mark.parametrize("objective", ["next-sentence", "both"])
def test_half_of_the_second_segments_follow_the_first(objective: str) -> None:
    order = windows(objective, context=44, batch=64)
    for step in range(4):
        inputs, targets = order.batch(TEXT, step)
        assert targets[:, 0].sum() == 32 and set(targets[:, 0]) == {0, 1}
        full = original(inputs, targets)
        first, second = full[:, 1 : 1 + order.first_segment_length], full[:, 2 + order.first_segment_length : -1]
        for a, b, follows in zip(first, second, targets[:, 0], strict=True):
            assert (stands_in_text(np.concatenate([a, b])) != []) == bool(follows)
            assert stands_in_text(b)


def test_random_second_segment_is_never_the_next_one() -> None:
    text = np.arange(20)  # every span identifies its position
    order = MaskedWindows(20, 13, 400, 1, 0.15, "next-sentence", 23)
    inputs, targets = order.batch(text, 0)
    separate = inputs[:, 2 + order.first_segment_length] - inputs[:, 1]
    np.testing.assert_array_equal(separate == order.first_segment_length, targets[:, 0] == 1)
    assert set(inputs[targets[:, 0] == 0, 2 + order.first_segment_length]) == set(
        range(20 - order.num_text_tokens + order.first_segment_length + 1)
    )


def test_replacement_token_differs_from_the_original() -> None:
    text = np.random.default_rng(0).integers(0, 2, size=500)
    inputs, targets = MaskedWindows(500, 42, 500, 1, 0.5, "masked", 5).batch(text, 0)
    choice = targets >= 0
    left = (inputs[choice] == targets[choice]).mean()
    assert abs(left - 0.1) < 4 * np.sqrt(0.09 / choice.sum())


def test_odd_batches_balance_next_and_random_segments() -> None:
    counts = [windows("both", batch=5).batch(TEXT, step)[1][:, 0].sum() for step in range(400)]
    assert set(counts) == {2, 3} and 140 < sum(count == 3 for count in counts) < 260


def test_masked_batch_is_determined_by_seed_and_step() -> None:
    item, again, other = windows(), windows(), windows(seed=2)
    np.testing.assert_array_equal(item.batch(TEXT, 3), again.batch(TEXT, 3))
    assert (item.batch(TEXT, 3)[0] != item.batch(TEXT, 4)[0]).any()
    assert (item.batch(TEXT, 3)[0] != other.batch(TEXT, 3)[0]).any()


@pytest.mark.parametrize("objective", ["masked", "both"])
def test_masked_evaluation_reads_each_window_once_with_fixed_masks(objective: str) -> None:
    order = windows(objective, batch=1)
    rows = [original(*part) for part in order.evaluation_batches(TEXT)]
    firsts = np.concatenate(rows)[:, 1 : 1 + order.first_segment_length]
    starts = np.arange(0, len(TEXT) - order.num_text_tokens + 1, order.num_text_tokens)
    np.testing.assert_array_equal(firsts, [TEXT[start : start + order.first_segment_length] for start in starts])
    for item, again in zip(order.evaluation_batches(TEXT), order.evaluation_batches(TEXT), strict=True):
        np.testing.assert_array_equal(item, again)


def test_masking_enforces_minimal_text_and_context_lengths() -> None:
    least = MaskedWindows(2, 5, 2, 1, 0.5, "both", V)
    inputs, targets = least.batch(TEXT[:2], 0)
    assert inputs.shape == (2, 5) and sorted(targets[:, 0]) == [0, 1]
    with pytest.raises(DataError, match=r"context = 4 leaves no token next to the special tokens. Set context=5"):
        MaskedWindows(100, 4, 2, 1, 0.5, "both", V)
    with pytest.raises(DataError, match="the text has 3 tokens; context 10 needs at least 8"):
        MaskedWindows(3, 10, 2, 1, 0.5, "masked", V)


@pytest.mark.parametrize("objective", ["masked", "both"])
def test_special_tokens_may_have_any_ids(objective: str) -> None:
    text, marks = np.arange(200) % 7 + 3, (0, 1, 2)
    windows = MaskedWindows(200, 20, 50, 1, 0.5, objective, 10, marks)  # pyright: ignore[reportArgumentType]
    inputs, targets = windows.batch(text, 0)
    default, _ = MaskedWindows(200, 20, 50, 1, 0.5, objective, 13).batch(text, 0)  # pyright: ignore[reportArgumentType]
    assert (inputs[:, 0] == 0).all() and (inputs[:, -1] == 1).all()
    assert (inputs[default == 12] == 2).all() and (default == 12).any()
    assert (targets[:, 1:].max(), inputs.max()) == (9, 9)
