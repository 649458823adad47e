"""What a study ran on, in words."""

import pytest

from lemma.studies.cells import describe_hardware


@pytest.mark.parametrize(("threads", "said"), [(1, ", 1 thread"), (2, ", 2 threads"), (16, ", 16 threads")])
def test_one_thread_is_no_threads(threads: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    assert describe_hardware()["processor"].endswith(said)
