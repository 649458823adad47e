"""Which run of a study is under way, said to whoever watches."""

from collections.abc import Mapping

from lemma.training import Observer


class Announcing:
    """Passes all on to an observer, with the run's name before each phase: "run 3 of 12: lstm, seed 1"."""

    def __init__(self, watcher: Observer, title: str) -> None:
        self.watcher, self.title = watcher, title

    def begin(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """A phase of the run begins."""
        self.watcher.begin(self.title if phase == "training" else f"{self.title}, {phase}", total, unit, done)

    def advance(self, done: int) -> None:
        """So much of the phase is done by now."""
        self.watcher.advance(done)

    def report(self, row: Mapping[str, float]) -> None:
        """A row of metrics has been written."""
        self.watcher.report(row)

    def say(self, message: str) -> None:
        """Something worth reading has happened in this run."""
        self.watcher.say(f"{self.title}: {message}")

    def end(self) -> None:
        """The phase is over."""
        self.watcher.end()
