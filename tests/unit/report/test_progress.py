"""Progress: a bar for a terminal, a few lines for a log, bounded output."""

import io
import re
import time
from pathlib import Path

import pytest

from lemma.report.progress import (
    BarObserver,
    DelayedObserver,
    LineObserver,
    SilentObserver,
    describe_metrics,
    make_observer,
    reading_progress,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report_run(watcher, steps: int = 5000) -> None:
    watcher.start("training", steps, "steps")
    for step in range(1, steps + 1):
        watcher.advance(step)
        if step % 50 == 0:
            watcher.report({"step": step, "loss": 1.5, "tokens_per_second": 21000.0})
        if step % 500 == 0:
            figures = {"loss": 1.25, "validation_loss": 1.504, "perplexity": 4.5, "tokens_per_second": 21000.0}
            watcher.report({"step": step, **figures})
    watcher.log("Nothing [is] learned")
    watcher.finish()


def test_observer_type_depends_on_the_stream() -> None:
    assert isinstance(make_observer(Terminal()), BarObserver) and isinstance(make_observer(io.StringIO()), LineObserver)


def test_log_has_one_plain_line_per_validation() -> None:
    log = io.StringIO()
    report_run(LineObserver(log))
    lines = log.getvalue().splitlines()
    assert len(lines) == 12 and "\r" not in log.getvalue() and "\x1b" not in log.getvalue()
    assert lines[0] == "training: 5,000 steps" and lines[-1] == "Nothing [is] learned"
    assert lines[1] == "step 500 of 5,000: loss 1.250 · validation perplexity 4.50 · 21,000 tokens/s"


def test_validation_loss_is_shown_without_perplexity() -> None:
    log = io.StringIO()
    LineObserver(log).report({"step": 5, "loss": 0.5, "validation_loss": 0.7})
    assert log.getvalue() == "step 5 of 0: loss 0.500 · validation loss 0.700\n"


def test_parser_loss_is_shown_in_nats_per_word() -> None:
    log = io.StringIO()
    LineObserver(log).report(
        {"step": 5, "loss": 0.5, "validation_loss": 0.7, "perplexity": 2.01, "uas": 81.5, "las": 77.25}
    )
    assert log.getvalue() == "step 5 of 0: loss 0.500 nats/word · UAS 81.50 · LAS 77.25\n"


def test_terminal_bar_shows_all_figures_and_redraws_rarely() -> None:
    terminal = Terminal()
    bar = BarObserver(terminal)
    bar.console.width = 160
    report_run(bar)
    rendered = terminal.getvalue()
    for word in (
        "training",
        "5,000/5,000 steps",
        "loss 1.250",
        "validation perplexity 4.50",
        "21,000 tokens/s",
        "0:00:00",
    ):
        assert word in rendered
    assert "Nothing [is] learned" in rendered and rendered.count("training") < 50


def test_advancing_the_bar_has_negligible_cost() -> None:
    bar = BarObserver(Terminal())
    bar.start("training", 10**6, "steps")
    start = time.perf_counter()
    for step in range(20_000):
        bar.advance(step)
    assert time.perf_counter() - start < 1.0  # 50 µs per step would be noticeable; measured: below 1 µs
    bar.finish()


def test_reading_progress_is_shown_in_bytes() -> None:
    log = io.StringIO()
    progress = reading_progress(LineObserver(log))
    for done in (0, 10, 20):
        progress("checking the files", done, 20)
    progress("tokenising", 0, 30)
    assert log.getvalue().splitlines() == ["checking the files: 20 bytes", "tokenising: 30 bytes"]


@pytest.mark.parametrize("watcher", [SilentObserver(), LineObserver(io.StringIO()), BarObserver(Terminal())])
def test_finish_is_idempotent_and_safe_before_start(watcher) -> None:
    watcher.finish()
    watcher.start("training", 3, "steps", done=1)
    watcher.finish()
    assert watcher.finish() is None


def test_finished_bar_shows_the_final_count() -> None:
    stream = io.StringIO()
    bar = BarObserver(stream)
    bar.start("judging", 17, "claims")
    for done in range(18):
        bar.advance(done)
    bar.finish()
    assert "17/17 claims" in stream.getvalue()


def test_every_reported_loss_term_is_shown() -> None:
    from lemma.tasks import image_text, language, masked, parsing

    reported: set[str] = set()
    for module in (language, masked, parsing, image_text):
        lines = Path(str(module.__file__)).read_text(encoding="utf-8").splitlines()
        reported |= {
            term
            for line in lines
            if re.match(r" +(self\.)?terms\b.*= \(", line)
            for term in re.findall(r'"(\w+)"', line)
        }
    assert {"entropy", "distance", "objective", "attention", "next_sentence"} <= reported
    reported -= {"both"}  # the objective on the same line
    assert [term for term in reported if not describe_metrics({term: 1.0})] == []
    assert describe_metrics({"loss": 1.0, "entropy": 0.5, "distance": 3.25}) == (
        "loss 1.000 · attention entropy 0.500 · attention distance 3.25"
    )


def test_delayed_phases_are_shown_only_if_they_take_long() -> None:
    for seconds, lines in ((60, []), (-1, ["counting: 3 quantities, from 1 on"])):
        stream = io.StringIO()
        observer = DelayedObserver(LineObserver(stream), seconds)
        observer.start("counting", 3, "quantities")
        for done in (1, 2):
            observer.advance(done)
        observer.finish()
        assert stream.getvalue().splitlines() == lines
