"""The heads as plain values: a dictionary, JSON, and a table of comma-separated values."""

import csv
import io
import json
from typing import Any

from lemma.looking.head import Head, Seen
from lemma.looking.words import Word

MOST_NUMBERS = 200_000  # weights in a dictionary; beyond it they are left out, and it says so


def as_dict(seen: Seen) -> dict[str, Any]:
    """Return everything but the vectors; weights only where they are few enough to be read by anyone."""
    with_weights = sum(head.weights.size for head in seen.heads) <= MOST_NUMBERS
    notes = [*seen.notes] if with_weights else [*seen.notes, "Weights are left out: choose a layer and a head."]
    return {
        "model": seen.model,
        "tokens": [_token(word) for word in seen.tokens],
        "source": [_token(word) for word in seen.source],
        "notes": notes,
        "heads": [_head(head) | {"weights": head.weights.tolist() if with_weights else None} for head in seen.heads],
    }


def as_json(seen: Seen) -> str:
    """The same, as JSON."""
    return json.dumps(as_dict(seen), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def as_csv(seen: Seen) -> str:
    """The table, one row a head."""
    rows = [row(head) for head in seen.heads]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def row(head: Head) -> dict[str, Any]:
    """The numbers of one head under the names they have everywhere."""
    nearest = head.nearest
    return {
        "layer": head.layer,
        "head": head.head,
        "name": head.name,
        "entropy": head.statistics.entropy,
        "uniform_entropy": head.statistics.uniform_entropy,
        "distance": head.statistics.distance,
        "first": head.statistics.first,
        "pattern": head.pattern,
        "nearest": nearest.pattern if nearest else None,
        "score": nearest.score if nearest else None,
        "uniform": nearest.uniform if nearest else None,
        "rows": nearest.rows if nearest else None,
    }


def _token(word: Word) -> dict[str, Any]:
    return {"index": word.index, "text": word.text}


def _head(head: Head) -> dict[str, Any]:
    patterns = {one.pattern: {"score": one.score, "uniform": one.uniform, "rows": one.rows} for one in head.matches}
    return row(head) | {
        "cross": head.cross,
        "masked": not head.allowed.all(),
        "scale": head.scale,
        "patterns": patterns,
    }
