"""The page of a model's heads: one file, no network, readable without its script and on paper.

Its script is given scores, masks and vectors as compact numbers, within a budget. Scores are kept in single precision
for the cells that may be seen, with each row's greatest score and row sum over all keys: from them the script computes
every weight as the model does. Queries, keys and values are kept in single precision where all of them fit, otherwise
rounded to 16 bits, layer by layer until the budget is spent.
"""

import base64
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from lemma.inspection.drawing import COLOURS, colour_index, draw_head, png_url, render_template
from lemma.inspection.patterns import MEANINGS, MIN_GAIN, softmax_sums
from lemma.report.numbers import pluralize

if TYPE_CHECKING:
    from lemma.inspection.heads import Head, Heads

MAX_CHARACTERS = 3_000_000  # characters of numbers in a page
MAX_SCORE_CHARACTERS = MAX_CHARACTERS // 2  # of these for scores; the rest is for vectors
MAX_TOKENS = 80
MANY_HEADS, MAX_NAMED_HEADS = 16, 5  # heads from which on the best of each pattern are named, and how many
BASE64_RATIO = 4 / 3  # of base64
LEGEND_WEIGHTS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)


def render_page(heads: "Heads") -> str:
    """Render the interactive HTML page of a model's attention heads."""
    packed = build_payload(heads)
    counts = {"layer": len(heads.heads_by_layer()), "head": len(heads.heads), "token": len(heads.tokens)}
    assets = files("lemma.inspection") / "assets"
    return render_template(
        "look.html",
        heads=heads,
        title=f"Attention of {heads.model}",
        facts=", ".join(pluralize(count, noun) for noun, count in counts.items()),
        packed=packed,
        legend=[(weight, COLOURS[colour_index(weight)]) for weight in LEGEND_WEIGHTS],
        image=png_url,
        first=draw_head(heads.clearest_head()),
        counted=pluralize,
        found=heads.heads_by_pattern() if len(heads.heads) > MANY_HEADS else {},
        most_named=MAX_NAMED_HEADS,
        meanings=MEANINGS,
        enough=f"{MIN_GAIN:.0%}",
        style=(assets / "look.css").read_text(encoding="utf-8"),
        script=(assets / "look.js").read_text(encoding="utf-8"),
    )


@dataclass(frozen=True)
class Payload:
    """Tokens and packed attention weights that the page's script reads as JSON."""

    values: dict[str, Any]
    num_tokens: int  # shown
    notes: tuple[str, ...]  # on what had to be left out


def build_payload(heads: "Heads") -> Payload:
    """Pack tokens and attention weights for the page's script, cut to as many tokens as fit into its size limit."""
    numbers: dict[str, int] = {}  # of arrays in base64, each kept only once
    spent = 0

    def store(array: np.ndarray) -> int:
        nonlocal spent
        text = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        spent += 0 if text in numbers else len(text)
        return numbers.setdefault(text, len(numbers))

    longest = max(max(head.weights.shape) for head in heads.heads)
    num_shown_tokens = min(MAX_TOKENS, longest)
    while num_shown_tokens > 2:  # as many as fit: scores, with biases and two more numbers per row
        shown = slice(num_shown_tokens)
        seen = [int(head.allowed[shown, shown].sum()) * (1 if head.bias is None else 2) for head in heads.heads]
        if sum(seen, 2 * num_shown_tokens * len(seen)) * 4 * BASE64_RATIO <= MAX_SCORE_CHARACTERS:
            break
        num_shown_tokens -= 1
    shown = slice(num_shown_tokens)
    texts = list(dict.fromkeys(words for head in heads.heads for words in (head.query_tokens, head.key_tokens)))
    packed: list[dict[str, Any]] = []
    for head in heads.heads:
        allowed = head.allowed[shown, shown]
        sums = softmax_sums(head.scores, head.sink)  # over all keys, shown or not
        bias = None if head.bias is None else store(head.bias[shown, shown][allowed].astype("<f4"))
        packed.append(
            {
                "layer": head.layer,
                "head": head.head,
                "about": _describe_head(head),
                "rows": texts.index(head.query_tokens),
                "columns": texts.index(head.key_tokens),
                "size": list(allowed.shape),
                "all": len(head.key_tokens),
                "scale": head.scale,
                "sink": head.sink,
                "mask": store(np.packbits(allowed)),
                "scores": store(head.scores[shown, shown][allowed].astype("<f4")),
                "sums": store(sums[shown].astype("<f4")),
                "bias": bias,
                "vectors": None,
            }
        )
    vectors = [[p[shown] for p in (head.queries, head.keys, head.values) if p is not None] for head in heads.heads]
    sizes = [sum(part.size for part in parts) for parts in vectors]
    fits_unrounded = spent + sum(sizes) * 4 * BASE64_RATIO <= MAX_CHARACTERS
    width = 4 if fits_unrounded else 2  # bytes of a number
    bare = len(packed)
    for entry, parts, size in zip(packed, vectors, sizes, strict=True):  # as long as there is room
        if spent + size * width * BASE64_RATIO > MAX_CHARACTERS:
            break
        entry["vectors"] = []
        for part in parts:
            unit = 1 if fits_unrounded else float(np.abs(part).max(initial=0.0)) / 32767 or 1.0
            array = store(part.astype("<f4") if fits_unrounded else np.rint(part / unit).astype("<i2"))
            entry["vectors"].append({"width": part.shape[1], "unit": unit, "bytes": width, "array": array})
        bare -= 1
    values = {
        "colours": COLOURS,
        "first": heads.heads.index(heads.clearest_head()),
        "texts": [{"start": words[0].index, "words": [word.visible_text for word in words[shown]]} for words in texts],
        "heads": packed,
        "arrays": list(numbers),
    }
    notes = list(heads.notes)
    if num_shown_tokens < longest:
        notes.append(f"Images show the first {num_shown_tokens} of {longest} tokens; the table is about all {longest}.")
    if bare:
        notes.append(
            f"Queries, keys and values of the last {bare} of {len(heads.heads)} heads are left out to keep the page "
            "small; their arithmetic starts at the product q·k. A page of one layer (--layer) includes them."
        )
    return Payload(values, num_shown_tokens, tuple(notes))


def _describe_head(head: "Head") -> str:
    """Return a paragraph on a head: pattern, entropy, distance, attention to the first token."""
    numbers, nearest = head.statistics, head.nearest
    comparison = (
        f" {nearest.score:.3f} of its attention where uniform attention has {nearest.uniform:.3f}" if nearest else ""
    )
    match = f"Best match: {head.pattern}, {MEANINGS[head.pattern]}:{comparison}."
    if not head.matched_pattern:
        broad = f"; it is broad, with {MEANINGS['broad']}" if head.pattern == "broad" else ""
        match = f"No pattern matches{broad}." + (f" The nearest is {nearest.pattern}:{comparison}." if nearest else "")
    distance = "" if numbers.distance is None else f" Mean distance {numbers.distance:.2f} tokens."
    entropy = f"Entropy {numbers.entropy:.3f} of at most {numbers.uniform_entropy:.3f} nats."
    sink = "" if head.sink_fraction is None else f", {head.sink_fraction:.3f} to the sink"
    return f"{match} {entropy}{distance} {numbers.first:.3f} of its attention goes to the first token{sink}."
