"""Metrics of the server in the text format of Prometheus."""

import json
import time
from collections import defaultdict
from collections.abc import Callable
from threading import Lock

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, "+Inf")  # seconds, upper bounds
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


class ServerMetrics:
    """Metrics of a server: counters, histograms of seconds, and gauges, which are evaluated when they are read.

    >>> metrics = ServerMetrics()
    >>> metrics.count("lemma_requests_total", route="/health", status="200")
    >>> print(metrics.text().splitlines()[-1])
    lemma_requests_total{route="/health",status="200"} 1
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._samples: dict[str, dict[str, float]] = {name: defaultdict(float) for name in METRICS}  # by line
        self._gauges: list[tuple[str, str, Callable[[], float]]] = []
        started = time.time()
        self.gauge("lemma_start_time_seconds", lambda: started)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add `amount` to the counter with this name and these labels."""
        with self._lock:
            self._samples[name][_format_series(name, labels)] += amount

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Add a duration in seconds to the histogram with this name and these labels."""
        with self._lock:
            samples = self._samples[name]
            for bound in BUCKETS:
                samples[_format_series(f"{name}_bucket", {**labels, "le": str(bound)})] += seconds <= float(bound)
            samples[_format_series(f"{name}_sum", labels)] += seconds
            samples[_format_series(f"{name}_count", labels)] += 1

    def gauge(self, name: str, value: Callable[[], float], **labels: str) -> None:
        """Register a function `value`, whose result is reported under `name` whenever the metrics are read."""
        self._gauges.append((name, _format_series(name, labels), value))

    def text(self) -> str:
        """Return all metrics that have a value, in the text format of Prometheus."""
        with self._lock:
            for name, series, value in self._gauges:
                self._samples[name][series] = value()
            lines: list[str] = []
            for name, samples in self._samples.items():
                if samples:
                    kind, description = METRICS[name]
                    lines += [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
                    lines += [
                        f"{series} {int(value) if value == int(value) else value}" for series, value in samples.items()
                    ]
        return "".join(f"{line}\n" for line in lines)


def _format_series(name: str, labels: dict[str, str]) -> str:
    """Return a metric's name with its labels in the format of Prometheus: name{label="…"}, quoted as in JSON."""
    pairs = ",".join(f"{key}={json.dumps(text, ensure_ascii=False)}" for key, text in labels.items())
    return f"{name}{{{pairs}}}" if pairs else name
