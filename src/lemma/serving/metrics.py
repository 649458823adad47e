"""Metrics of the server in the text format of Prometheus."""

import time
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from threading import Lock

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds, upper bounds
METRICS = {  # name: (type, description)
    "lemma_start_time_seconds": ("gauge", "When the server began, in seconds since 1970."),
    "lemma_requests_total": ("counter", "Requests answered."),
    "lemma_requests": ("gauge", "Requests that wait or are being answered."),
    "lemma_texts": ("gauge", "Texts that are being written."),
    "lemma_generated_tokens_total": ("counter", "Tokens written."),
    "lemma_prompt_tokens_total": ("counter", "Tokens of prompts read."),
    "lemma_first_token_seconds": ("histogram", "Seconds from a request to its first token."),
    "lemma_request_seconds": ("histogram", "Seconds from a request to the end of its answer."),
}
Labels = tuple[tuple[str, str], ...]


class ServerMetrics:
    """Counters, histograms of seconds, and gauges that are evaluated when they are read.

    >>> metrics = ServerMetrics()
    >>> metrics.count("lemma_requests_total", route="/health", status="200")
    >>> print(metrics.text().splitlines()[-1])
    lemma_requests_total{route="/health",status="200"} 1
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._counters: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, tuple[list[int], float]]] = {}
        self._gauges: dict[str, dict[Labels, Callable[[], float]]] = {}
        started = time.time()
        self.gauge("lemma_start_time_seconds", lambda: started)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add `amount` to the counter with this name and these labels."""
        with self._lock:
            counts, key = self._counters.setdefault(name, {}), tuple(labels.items())
            counts[key] = counts.get(key, 0) + amount

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Add a duration in seconds to the histogram with this name and these labels."""
        with self._lock:
            series, key = self._histograms.setdefault(name, {}), tuple(labels.items())
            counts, total = series.get(key) or ([0] * (len(BUCKETS) + 1), 0.0)
            counts[bisect_left(BUCKETS, seconds)] += 1
            series[key] = (counts, total + seconds)

    def gauge(self, name: str, value: Callable[[], float], **labels: str) -> None:
        """Register a function whose value is reported under a name whenever the metrics are read."""
        self._gauges.setdefault(name, {})[tuple(labels.items())] = value

    def text(self) -> str:
        """Return all metrics that have a value, in the text format of Prometheus."""
        lines: list[str] = []
        with self._lock:
            for name, (kind, description) in METRICS.items():
                samples = self._samples(name)
                if samples:
                    lines += [f"# HELP {name} {description}", f"# TYPE {name} {kind}", *samples]
        return "".join(f"{line}\n" for line in lines)

    def _samples(self, name: str) -> list[str]:
        """Return the lines of all series of the metric with this name."""
        lines = [_format_line(name, labels, value()) for labels, value in self._gauges.get(name, {}).items()]
        lines += [_format_line(name, labels, value) for labels, value in self._counters.get(name, {}).items()]
        for labels, (counts, total) in self._histograms.get(name, {}).items():
            for bound, number in zip((*map(str, BUCKETS), "+Inf"), accumulate(counts), strict=True):
                lines.append(_format_line(f"{name}_bucket", (*labels, ("le", bound)), number))
            lines.append(_format_line(f"{name}_sum", labels, total))
            lines.append(_format_line(f"{name}_count", labels, sum(counts)))
        return lines


def _format_line(name: str, labels: Labels, value: float) -> str:
    """Return one line of the Prometheus format: name{label="…"} value."""

    def escape(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    pairs = ",".join(f'{key}="{escape(text)}"' for key, text in labels)
    number = int(value) if value == int(value) else value
    return f"{name}{{{pairs}}} {number}" if pairs else f"{name} {number}"
