"""Times measured in turns, and the hardware in words."""

import time

import pytest

from lemma.studies.budget import Spread, describe_hardware, race, ratio, spread
from lemma.studies.costs import verdict_on


def test_a_race_finds_the_slower_one_and_runs_in_turns() -> None:
    calls: list[str] = []

    def runner(name: str, seconds: float):
        def run() -> None:
            calls.append(name)
            time.sleep(seconds)

        return run

    seconds = race({"quick": runner("quick", 0.003), "slow": runner("slow", 0.009)}, 3)
    assert [len(times) for times in seconds.values()] == [3, 3]
    assert ratio(seconds["slow"], seconds["quick"]).low > 1.5
    assert calls[4:] == ["quick", "slow", "slow", "quick", "quick", "slow"], "each round begins with another one"


def test_what_is_quick_is_called_many_times_within_a_measurement() -> None:
    calls = []
    race({"a": lambda: calls.append(1)}, 1)
    assert len(calls) > 100


def test_a_spread_is_the_quartiles() -> None:
    assert spread([4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(3.0, 2.0, 4.0)
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0)
    assert ratio([2.0, 8.0], [1.0, 4.0]) == Spread(2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("times", "said"),
    [((1.2, 1.1, 1.3), "slower"), ((0.8, 0.7, 0.9), "faster"), ((1.1, 0.9, 1.3), "no difference beyond the spread")],
)
def test_a_ratio_is_judged_by_its_quartiles(times: tuple[float, float, float], said: str) -> None:
    assert verdict_on(Spread(*times)) == said


@pytest.mark.parametrize(("threads", "said"), [(1, ", 1 thread"), (2, ", 2 threads"), (16, ", 16 threads")])
def test_one_thread_is_no_threads(threads: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    assert describe_hardware()["processor"].endswith(said)
