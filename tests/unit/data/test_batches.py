import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lemma.data.batches import ContiguousStreams, RandomWindows
from lemma.errors import DataError

sizes = st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 200)).map(
    lambda size: (size[0] * size[1] + size[2], size[0], size[1])
)


@settings(deadline=None)
@given(sizes, st.integers(0, 2**32), st.integers(0, 10**9))
def test_windows_stay_within_the_text(size: tuple[int, int, int], seed: int, step: int) -> None:
    for kind in (RandomWindows, ContiguousStreams):
        length, sequence_length, batch = size
        offsets = kind(length, sequence_length, batch, seed).offsets(step)
        assert offsets.shape == (batch,)
        assert offsets.dtype == np.int64
        assert offsets.min() >= 0
        assert offsets.max() + sequence_length <= length - 1


def test_window_order_is_determined_by_seed_and_step() -> None:
    for kind in (RandomWindows, ContiguousStreams):
        steps = [kind(10_000, 16, 4, seed=3).offsets(step).tolist() for step in range(400)]
        backwards = [kind(10_000, 16, 4, seed=3).offsets(step).tolist() for step in reversed(range(400))]
        assert steps == backwards[::-1]
        assert kind(10_000, 16, 4, seed=4).offsets(0).tolist() != steps[0]


def test_random_windows_start_uniformly() -> None:
    windows = RandomWindows(length=14, sequence_length=4, batch=1000, seed=1)
    counts = np.bincount(np.concatenate([windows.offsets(step) for step in range(20)]), minlength=10)
    assert len(counts) == 10  # starts 0 to 9: the last window is tokens 9 to 13
    assert abs(counts / 2000 - 1).max() < 0.1
    assert not np.array_equal(windows.offsets(0), windows.offsets(1))


@settings(deadline=None)
@given(sizes, st.integers(0, 99))
def test_streams_are_contiguous_and_cover_an_epoch_once(size: tuple[int, int, int], seed: int) -> None:
    length, sequence_length, batch = size
    streams = ContiguousStreams(length, sequence_length, batch, seed)
    fresh = [step for step in range(60) if streams.starts_epoch(step)]
    assert fresh[0] == 0
    epoch = fresh[1] if len(fresh) > 1 else 60
    assert fresh == list(range(0, 60, epoch))
    seen = np.concatenate([np.arange(o, o + sequence_length) for step in range(epoch) for o in streams.offsets(step)])
    assert len(np.unique(seen)) == len(seen)
    for step in range(1, 60):
        if not streams.starts_epoch(step):
            assert (streams.offsets(step) == streams.offsets(step - 1) + sequence_length).all()
    if len(fresh) > 1:
        assert len(seen) > length - 1 - sequence_length * (batch + 1)  # less than one step and a phase are omitted


def test_epochs_shift_their_phase_to_cover_the_text() -> None:
    streams = ContiguousStreams(length=1001, sequence_length=10, batch=4, seed=1)
    starts = {int(streams.offsets(epoch * streams.steps)[0]) for epoch in range(200)}
    assert len(starts) > 20
    last = {int(streams.offsets(epoch * streams.steps + streams.steps - 1)[-1]) + 10 for epoch in range(200)}
    assert min(starts) == 0
    assert max(last) == 1000


def test_short_text_error_states_sizes_that_fit() -> None:
    with pytest.raises(
        DataError,
        match=r"has 40 tokens; sequence_length 64 needs at least 65\. Give more text or set sequence_length=39\.",
    ):
        RandomWindows(40, 64, 32, 1)
    expected = (
        r"has 400 tokens; sequence_length 64 with batch 32 needs at least 2,049\. .*set sequence_length=12 or batch=6\."
    )
    with pytest.raises(DataError, match=expected):
        ContiguousStreams(400, 64, 32, 1)
    ContiguousStreams(400, 12, 32, 1), ContiguousStreams(400, 64, 6, 1), RandomWindows(40, 39, 32, 1)
    with pytest.raises(DataError, match=r"needs at least 65\. Give more text\."):
        RandomWindows(1, 64, 32, 1)
