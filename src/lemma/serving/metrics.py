"""What the server measures of itself, in the text form that Prometheus reads."""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from threading import Lock

BUCKET_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper ends of the intervals in which times are counted."""
Labels = tuple[tuple[str, str], ...]


class ServerMetrics:
    """Counters that only grow, histograms of seconds, and gauges that are read when they are asked for.

    >>> metrics = ServerMetrics()
    >>> metrics.count("lemma_requests_total", "Requests answered.", route="/health", status="200")
    >>> print(metrics.text().splitlines()[-1])
    lemma_requests_total{route="/health",status="200"} 1
    """

    def __init__(self) -> None:
        self._lock, self._started = Lock(), time.time()
        self._descriptions: dict[str, tuple[str, str]] = {}
        self._counts: dict[str, dict[Labels, float]] = {}
        self._seconds: dict[str, dict[Labels, tuple[list[int], float]]] = {}
        self._gauges: list[tuple[str, Labels, Callable[[], float]]] = []
        self.gauge("lemma_start_time_seconds", "When the server began, in seconds since 1970.", lambda: self._started)

    def count(self, name: str, description: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            self._descriptions[name] = ("counter", description)
            counts, key = self._counts.setdefault(name, {}), tuple(labels.items())
            counts[key] = counts.get(key, 0) + amount

    def observe(self, name: str, description: str, seconds: float, **labels: str) -> None:
        """Add a time to a histogram."""
        with self._lock:
            self._descriptions[name] = ("histogram", description)
            kept, key = self._seconds.setdefault(name, {}), tuple(labels.items())
            counts, total = kept.get(key) or ([0] * (len(BUCKET_SECONDS) + 1), 0.0)
            counts[bisect_left(BUCKET_SECONDS, seconds)] += 1
            kept[key] = (counts, total + seconds)

    def gauge(self, name: str, description: str, value: Callable[[], float], **labels: str) -> None:
        """Name a number that is read whenever the metrics are."""
        self._descriptions[name] = ("gauge", description)
        self._gauges.append((name, tuple(labels.items()), value))

    def text(self) -> str:
        """All of them, one per line."""
        with self._lock:
            lines: dict[str, list[str]] = {name: [] for name in self._descriptions}
            for name, labels, value in self._gauges:
                lines[name].append(_format_line(name, labels, value()))
            for name, counts in self._counts.items():
                lines[name] += [_format_line(name, labels, number) for labels, number in counts.items()]
            for name, kept in self._seconds.items():
                for labels, (counts, total) in kept.items():
                    sums = [sum(counts[: place + 1]) for place in range(len(counts))]
                    for end, number in zip((*map(str, BUCKET_SECONDS), "+Inf"), sums, strict=True):
                        lines[name].append(_format_line(f"{name}_bucket", (*labels, ("le", end)), number))
                    lines[name].append(_format_line(f"{name}_sum", labels, total))
                    lines[name].append(_format_line(f"{name}_count", labels, sums[-1]))
            return "".join(self._block(name, block) for name, block in lines.items())

    def _block(self, name: str, lines: Iterable[str]) -> str:
        kind, about = self._descriptions[name]
        return "\n".join([f"# HELP {name} {about}", f"# TYPE {name} {kind}", *lines, ""])


def _format_line(name: str, labels: Labels, value: float) -> str:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    inside = ",".join(f'{key}="{escaped(text)}"' for key, text in labels)
    number = int(value) if value == int(value) else value
    return f"{name}{{{inside}}} {number}" if inside else f"{name} {number}"
