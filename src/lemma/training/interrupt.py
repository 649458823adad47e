"""Ctrl-C and SIGTERM: ask training to stop after the step at hand."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ECHO = 2.0  # seconds in which torchrun may pass on to a team a Ctrl-C that the terminal has sent already


class Stop:
    """Whether someone has asked to stop."""

    def __init__(self, echo: float) -> None:
        self.asked = False
        self._echo, self._when = echo, 0.0

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Note the first signal; a second Ctrl-C ends the program at once."""
        if self.asked and number == signal.SIGINT and time.monotonic() - self._when >= self._echo:
            raise KeyboardInterrupt
        if not self.asked:
            self.asked, self._when = True, time.monotonic()


@contextmanager
def stoppable(team: bool = False) -> Iterator[Stop]:
    """Listen to Ctrl-C and SIGTERM for a while; signals can only be heard in the main thread."""
    stop = Stop(ECHO if team else 0.0)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.ask) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
