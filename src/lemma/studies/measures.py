"""A text cut into pieces of one length, a few of which are read at once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from lemma.data.conllu import Sentence
from lemma.data.splits import Splits
from lemma.data.store import TokenArray
from lemma.errors import InputError, RunError
from lemma.inspection.trees import WordAttention, attention_tree, most_attended, shuffled, word_attention
from lemma.layers.recording import AttentionRecord, record_attention
from lemma.models.base import LanguageModel, evaluating
from lemma.models.build import build
from lemma.report.curves import NO_PLOT, Curve, Plot, can_draw
from lemma.report.page import figure, figures, grid, html_paragraph, section
from lemma.report.progress import Observer, Silent
from lemma.report.statistics import Estimate, estimate
from lemma.report.text import table
from lemma.runs.load import Run
from lemma.spec.models import Decoder
from lemma.spec.studies import StudySpec
from lemma.studies.cells import Measures, Plan, Row
from lemma.tasks.language import stretch_of
from lemma.tasks.parsing import ParsingScore, relation_findings, score_trees, with_baselines

AT_ONCE = 8192  # tokens read in one go


def pieces_of(tokens: np.ndarray, length: int, most: int) -> Int[Tensor, "pieces length"]:
    """Up to `most` pieces that do not overlap, spread evenly over the text.

    >>> pieces_of(np.arange(10), 3, 2).tolist()
    [[0, 1, 2], [6, 7, 8]]
    """
    count = len(tokens) // length
    chosen = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))
    rows = [np.asarray(tokens[place * length : (place + 1) * length], dtype=np.int64) for place in chosen]
    return torch.from_numpy(np.stack(rows))


def in_batches(pieces: Int[Tensor, "pieces length"]) -> Iterator[Int[Tensor, "batch length"]]:
    """The pieces, as many at a time as can be read in one go."""
    return iter(pieces.split(max(1, AT_ONCE // pieces.shape[1])))


# What the heads of a trained model do on held-out text: how widely and how far each looks.


PIECES = 32


def measure_attention(run: Run, tokens: np.ndarray, trained: int, beyond: int) -> dict[str, Any]:
    """The mean entropy (nats) and mean distance (tokens) of every head, over all rows of its attention.

    Read in pieces of the trained length. A model without attention has no layers here.
    """
    device = next(run.model.parameters()).device
    pieces = pieces_of(tokens, min(trained, len(tokens)), PIECES)
    sums: dict[str, Float[Tensor, "two heads"]] = {}
    with torch.inference_mode(), evaluating(run.model):
        for batch in in_batches(pieces):
            with record_attention(run.model) as records:
                run.model(batch.to(device))
            for place, record in enumerate(records):
                name = f"{place}: {record.name}"
                sums[name] = sums.get(name, torch.zeros(())) + len(batch) * habits(record)
    layers = [(name.partition(": ")[2], total / len(pieces)) for name, total in sums.items()]
    return {
        "pieces": len(pieces),
        "layers": [
            {"name": name, "entropy": means[0].tolist(), "distance": means[1].tolist()} for name, means in layers
        ],
    }


def habits(record: AttentionRecord) -> Float[Tensor, "two heads"]:
    """Mean entropy −Σ α ln α and mean distance Σ α |t₁ − t₂| of each head, over the rows of one call."""
    weights = record.weights().double()
    entropy = torch.special.entr(weights).sum(-1)
    distance = (weights * record.distances().abs()).sum(-1)
    real = record.counted()
    rows = (weights.sum(-1) > 0) & (True if real is None else real)
    return torch.stack(
        [(habit * rows).sum((0, 2)) / rows.sum((0, 2)).clamp(min=1) for habit in (entropy, distance)]
    ).cpu()


# Loss against position, up to several times the length a model was trained at.


EXTRAPOLATION_PIECES = 256
BINS = 16  # points of the curve for each trained length


def measure_positions(run: Run, tokens: np.ndarray, trained: int, beyond: int) -> dict[str, Any]:
    """The mean loss at each position of pieces of held-out text, `beyond` times as long as what was trained.

    Position p has p tokens before it in the piece; all of them are seen, whatever the trained length. Neighbouring
    positions are put together, sixteen groups for each trained length.
    """
    asked = min(beyond * trained, len(tokens) - 1)
    if asked < 1:
        raise RunError(f"measures.positions: the validation text has {len(tokens)} tokens; at least 2 are needed.")
    pieces = pieces_of(tokens, asked + 1, EXTRAPOLATION_PIECES)
    model, readable = stretched(run.model, asked)
    losses = losses_by_position(model, pieces[:, : readable + 1])
    edges = list(range(0, readable, max(1, trained // BINS)))
    bins = [(begin, min(end, readable)) for begin, end in zip(edges, [*edges[1:], readable], strict=True)]
    return {
        "trained": trained,
        "beyond": beyond,
        "readable": readable,
        "asked": asked,
        "pieces": len(pieces),
        "positions": [(begin + 1 + end) / 2 for begin, end in bins],
        "losses": [float(losses[begin:end].mean()) for begin, end in bins],
    }


def stretched(model: LanguageModel, length: int) -> tuple[LanguageModel, int]:
    """The same weights with a context of at least `length`, and how much of it the model can read.

    Without position vectors of its own a Transformer is rebuilt longer; learned vectors end where the context does.
    """
    spec = model.spec
    if not isinstance(spec, Decoder) or spec.context >= length:
        return model, length
    if spec.positions.tabled:
        return model, spec.context
    device = next(model.parameters()).device
    longer = build(spec.replace(context=length)).to(device)
    longer.load_state_dict(model.state_dict())
    assert isinstance(longer, LanguageModel)
    return longer, length


def losses_by_position(model: LanguageModel, pieces: Int[Tensor, "pieces length"]) -> Float[Tensor, "positions"]:
    """The mean loss of the second, third, … token of the pieces, each read from its beginning."""
    device = next(model.parameters()).device
    sums = torch.zeros(pieces.shape[1] - 1, dtype=torch.float64)
    with torch.inference_mode(), evaluating(model):
        for batch in in_batches(pieces):
            rows = batch.to(device)
            logits = model(rows[:, :-1])[0]
            losses = functional.cross_entropy(logits.transpose(1, 2).float(), rows[:, 1:], reduction="none")
            sums += losses.double().sum(0).cpu()
    return sums / len(pieces)


# What a study's `measures` ask of each trained model beside its score: one function a name, plain values back.


SPLIT = "validation"
Measure = Callable[[Run, Any, int, int], dict[str, Any]]
MEASURES: dict[str, Measure] = {"positions": measure_positions, "attention": measure_attention}


def measure_more(run: Run, plan: Plan, study: StudySpec, dataset: Splits[TokenArray]) -> dict[str, Any]:
    """Measure what the study asks for, on the validation text; `trained` is the length the model was trained at."""
    trained = stretch_of(plan.model, plan.recipe)
    tokens = dataset.tokens(SPLIT)
    return {name: MEASURES[name](run, tokens, trained, study.beyond) for name in study.measures}


def has_all(more: Mapping[str, Any], study: StudySpec) -> bool:
    """Whether all that the study asks for was measured, and as far as it asks."""
    return all(name in more and more[name].get("beyond", study.beyond) == study.beyond for name in study.measures)


# Whether shaping losses helped (problem B4): the same model with and without them, seed by seed.


TERMS = ("focus", "near")
OWN = {*TERMS, "near_max", "seed", "steps", "evaluate_every", "checkpoint_every"}  # under a clock steps differ
MATTERS = 0.001  # of the plain perplexity: below it nobody would care, however sure it is


@dataclass(frozen=True)
class Help:
    """The perplexity of a shaped model less that of the plain one, over the seeds both have."""

    title: str
    gap: Estimate
    plain: float
    """The mean perplexity of the plain model."""

    @property
    def share(self) -> float:
        """The gap as a share of the plain model's perplexity."""
        return self.gap.mean / self.plain

    @property
    def verdict(self) -> str:
        """Helped, hurt, or neither as far as these seeds tell; a gap too small to matter is neither."""
        if self.gap.margin is None:
            return "one seed only, so that the noise is unknown"
        noisy = self.gap.low <= 0 <= self.gap.high
        if abs(self.share) < MATTERS and (not noisy or self.gap.margin < MATTERS * self.plain):
            return f"no difference that matters (below {MATTERS:.1%})".replace("%", " %")
        if noisy:
            return "within noise"
        return "helped" if self.gap.high < 0 else "hurt"

    def __str__(self) -> str:
        sign = "+" if self.gap.mean > 0 else ""
        gap = f"{sign}{self.gap} ({self.share:+.2%})".replace("-", "−").replace("%", " %")
        return f"{self.title}: perplexity {gap} against the model without it, seed by seed: {self.verdict}."

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        gap = {"gap": self.gap.mean, "margin": self.gap.margin, "share": self.share}
        return {"row": self.title, **gap, "verdict": self.verdict}


def helped(rows: Sequence[Row]) -> Iterator[Help]:
    """Compare every row that shapes attention with the row that is the same but for that."""
    plain = [row for row in rows if row.measured and not _shapes(row.measured[0].recipe)]
    for row in rows:
        base = next((other for other in plain if row.measured and _same_but_shaped(row, other)), None)
        if base is None or not _shapes(row.measured[0].recipe):
            continue
        mine, theirs = _by_seed(row.measured), _by_seed(base.measured)
        if both := sorted(mine.keys() & theirs.keys()):
            gap = estimate([mine[seed] - theirs[seed] for seed in both])
            yield Help(row.title, gap, fmean(theirs[seed] for seed in both))


def _shapes(recipe: Mapping[str, Any]) -> bool:
    return any(recipe.get(term) for term in TERMS)


def _same_but_shaped(row: Row, other: Row) -> bool:
    one, two = row.measured[0], other.measured[0]
    return one.model == two.model and _rest(one.recipe) == _rest(two.recipe)


def _rest(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {word: value for word, value in recipe.items() if word not in OWN}


def _by_seed(measured: Sequence[Measures]) -> dict[int, float]:
    return {one.recipe["seed"]: one.perplexity for one in measured}


# Entropy and distance of each head, as plots, a table and sentences; and whether shaping them helped.


NAME = "attention"
KINDS = {"entropy": "mean entropy (nats)", "distance": "mean distance (tokens)"}
SHIFT = 0.08  # of the way from one head to the next
NOTE = (
    "Over all rows of attention on held-out text, in pieces of the trained length. Entropy −Σ α ln α, "
    "distance Σ α |t₁ − t₂|."
)


def section_of(rows: Sequence[Row]) -> str:
    """The heads of all rows: two plots and a table."""
    measured = [row for row in rows if _found(row)]
    if not measured:
        return ""
    drawn = figures([plot_of(measured, kind) for kind in KINDS])
    header, *lines = _table(measured)
    return section(
        "What the heads do", drawn, grid(header, [("", line) for line in lines]), html_paragraph(NOTE, "note")
    )


def plot_of(rows: Sequence[Row], kind: str) -> Plot:
    """One curve a row over all its heads, in order."""
    places = sorted({(layer, head) for row in rows for layer, head, _ in heads_of(row, kind)})
    shifts = [SHIFT * (number - (len(rows) - 1) / 2) for number in range(len(rows))]
    curves = tuple(_curve(row, kind, places, shift) for row, shift in zip(rows, shifts, strict=True))
    caption = (
        f"The {KINDS[kind]} of each head; layers and heads are counted from 0. The bars are the 95 % intervals "
        "over the seeds. The models stand a little beside each other so that all bars are seen."
    )
    ticks = tuple(f"{layer}.{head}" for layer, head in places)
    return Plot("layer.head", KINDS[kind], curves, caption=caption, bars=True, ticks=ticks)


def _curve(row: Row, kind: str, order: Sequence[tuple[int, int]], shift: float) -> Curve:
    found = heads_of(row, kind)
    points = [one for _, _, one in found]
    several = len(_found(row)) > 1
    low, high = (tuple(max(0.0, one.low) for one in points), tuple(one.high for one in points)) if several else ((), ())
    places = tuple(order.index((layer, head)) + shift for layer, head, _ in found)
    return Curve(row.title, places, tuple(one.mean for one in points), low, high, dots=True)


def heads_of(row: Row, kind: str) -> list[tuple[int, int, Estimate]]:
    """Layer, head and the mean over the seeds, of every head."""
    found = _found(row)
    values = [[layer[kind] for layer in one["layers"]] for one in found]
    return [
        (layer, head, estimate([seed[layer][head] for seed in values]))
        for layer in range(len(values[0]))
        for head in range(len(values[0][layer]))
    ]


def _table(rows: Sequence[Row]) -> list[list[str]]:
    lines = [["model", "layer", "head", *KINDS.values()]]
    for row in rows:
        both = zip(heads_of(row, "entropy"), heads_of(row, "distance"), strict=True)
        lines += [
            [row.title, str(layer), str(head), str(one), str(other)] for (layer, head, one), (_, _, other) in both
        ]
    return lines


def text_of(rows: Sequence[Row]) -> str:
    """One line a row: the means over all heads, and each head's."""
    measured = [row for row in rows if _found(row)]
    if not measured:
        return ""
    lines = _table(measured)
    return "\n".join(table(lines, left=()))


def sentences_of(rows: Sequence[Row]) -> Iterator[str]:
    """Say what heads do on average, and whether shaping helped."""
    for row in rows:
        if _found(row):
            entropy, distance = (over_heads(row, kind) for kind in KINDS)
            yield f"{row.title}: heads have a mean entropy of {entropy} nats and look {distance} tokens back."
    yield from map(str, helped(rows))


def over_heads(row: Row, kind: str) -> Estimate:
    """The mean over all heads, with its interval over the seeds."""
    return estimate([fmean(value for layer in one["layers"] for value in layer[kind]) for one in _found(row)])


def summary_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Every head's means and margins by row, and whether shaping helped."""
    heads = {row.title: {kind: _plain(row, kind) for kind in KINDS} for row in rows if _found(row)}
    return {"rows": heads, "helped": [one.to_dict() for one in helped(rows)]}


def _plain(row: Row, kind: str) -> list[dict[str, Any]]:
    return [
        {"layer": layer, "head": head, "mean": one.mean, "margin": one.margin}
        for layer, head, one in heads_of(row, kind)
    ]


def _found(row: Row) -> list[Mapping[str, Any]]:
    return [one.more[NAME] for one in row.measured if one.more.get(NAME, {}).get("layers")]


# Loss against position, as a plot, a table and sentences.


POSITIONS_NAME, NONE = "positions", "–"
POSITIONS_NOTE = (
    "Each piece of held-out text is read from its beginning; position p has p tokens before it, and all are seen. "
    "Mean over the pieces, with the 95 % interval over the seeds."
)


def section_of_positions_shown(rows: Sequence[Row]) -> str:
    """The plot and the table of losses by stretch of the text."""
    measured = [row for row in rows if _positions_shown_found(row)]
    if not measured:
        return ""
    drawn = figure(plot_of_positions_shown(measured), "narrow") if can_draw() else html_paragraph(NO_PLOT)
    header, *lines = _positions_shown_table(measured)
    table = grid(header, [("", line) for line in lines])
    notes = "".join(html_paragraph(sentence, "note") for sentence in _ends(measured))
    return section("Loss against position", drawn, table, html_paragraph(POSITIONS_NOTE, "note"), notes)


def plot_of_positions_shown(rows: Sequence[Row]) -> Plot:
    """One curve a row, a band for its seeds, and a line at the trained length."""
    trained = _positions_shown_found(rows[0])[0]["trained"]
    caption = f"Validation loss against position. The dotted line is the trained length, {trained}."
    return Plot(
        "position",
        "loss (nats a token)",
        tuple(map(_positions_shown_curve, rows)),
        rule=float(trained),
        caption=caption,
    )


def _positions_shown_curve(row: Row) -> Curve:
    found = _positions_shown_found(row)
    points = [estimate(losses) for losses in zip(*(one["losses"] for one in found), strict=True)]
    low, high = (tuple(p.low for p in points), tuple(p.high for p in points)) if len(found) > 1 else ((), ())
    return Curve(row.title, tuple(found[0]["positions"]), tuple(point.mean for point in points), low, high)


def stretches(row: Row) -> list[Estimate | None]:
    """The mean loss within the trained length, within the second of that length, and so on; None where it cannot go."""
    found = _positions_shown_found(row)
    trained, count = found[0]["trained"], -(-found[0]["asked"] // found[0]["trained"])
    return [_between(found, place * trained, (place + 1) * trained) for place in range(count)]


def _between(found: Sequence[Mapping[str, Any]], begin: int, end: int) -> Estimate | None:
    means = []
    for one in found:
        inside = [loss for at, loss in zip(one["positions"], one["losses"], strict=True) if begin < at <= end]
        means += [sum(inside) / len(inside)] if inside else []
    return estimate(means) if means else None


def _positions_shown_table(rows: Sequence[Row]) -> list[list[str]]:
    columns = max(len(stretches(row)) for row in rows)
    header = ["model", *(f"{place}T to {place + 1}T" if place else "up to T" for place in range(columns))]
    lines = [[row.title, *(NONE if one is None else str(one) for one in stretches(row))] for row in rows]
    return [header, *(line + [NONE] * (columns + 1 - len(line)) for line in lines)]


def text_of_positions_shown(rows: Sequence[Row]) -> str:
    """The table of losses by stretch of the text."""
    measured = [row for row in rows if _positions_shown_found(row)]
    if not measured:
        return ""
    lines = _positions_shown_table(measured)
    trained = _positions_shown_found(measured[0])[0]["trained"]
    return "\n".join([f"Loss by position, T = {trained} the trained length", *table(lines, left=())])


def sentences_of_positions_shown(rows: Sequence[Row]) -> Iterator[str]:
    """Say how each row fares past the trained length, and which is best at the far end."""
    measured = [row for row in rows if _positions_shown_found(row)]
    far = [(row, ends) for row in measured if (ends := stretches(row))[-1] is not None and len(ends) > 1]
    for row, ends in sorted(far, key=lambda pair: pair[1][-1].mean if pair[1][-1] else 0.0):
        near, last = ends[0], ends[-1]
        if near and last:
            gap = f"{last.mean - near.mean:+.2f}".replace("-", "−")
            yield f"{row.title}: loss {near} up to the trained length, {last} in the last stretch ({gap})."
    yield from _ends(measured)


def _ends(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        one = _positions_shown_found(row)[0]
        if one["readable"] < one["asked"]:
            yield f"{row.title} ends at position {one['readable']}: it has no vectors for later positions."


def summary_of_positions_shown(rows: Sequence[Row]) -> dict[str, Any]:
    """Means and margins by row: along the curve, and by stretch."""
    return {row.title: _positions_shown_plain(row) for row in rows if _positions_shown_found(row)}


def _positions_shown_plain(row: Row) -> dict[str, Any]:
    curve = _positions_shown_curve(row)
    means = [one and {"loss": one.mean, "margin": one.margin} for one in stretches(row)]
    return {
        "trained": _positions_shown_found(row)[0]["trained"],
        "positions": curve.x,
        "losses": curve.y,
        "stretches": means,
    }


def _positions_shown_found(row: Row) -> list[Mapping[str, Any]]:
    return [one.more[POSITIONS_NAME] for one in row.measured if POSITIONS_NAME in one.more]


# How what a study's `measures` found is shown: sections of the report, sentences, tables for the terminal.


@dataclass(frozen=True)
class Shown:
    """How what one measure found is shown."""

    section_of: Callable[[Sequence[Row]], str]
    """A section of the report, or nothing."""
    sentences_of: Callable[[Sequence[Row]], Iterator[str]]
    """What the numbers say."""
    text_of: Callable[[Sequence[Row]], str]
    """A table for the terminal, or nothing."""
    summary_of: Callable[[Sequence[Row]], dict[str, Any]]
    """Means over the seeds, as plain values."""


SHOWN: dict[str, Shown] = {
    "positions": Shown(
        section_of_positions_shown, sentences_of_positions_shown, text_of_positions_shown, summary_of_positions_shown
    ),
    "attention": Shown(section_of, sentences_of, text_of, summary_of),
}


def sections(spec: StudySpec, rows: Sequence[Row]) -> list[str]:
    """The sections of the report that the study's measures make."""
    return [SHOWN[name].section_of(rows) for name in spec.measures]


def sentences(spec: StudySpec, rows: Sequence[Row]) -> list[str]:
    """What the study's measures say."""
    return [sentence for name in spec.measures for sentence in SHOWN[name].sentences_of(rows)]


def texts(spec: StudySpec, rows: Sequence[Row]) -> list[str]:
    """The tables of the study's measures, for the terminal."""
    return [text for name in spec.measures if (text := SHOWN[name].text_of(rows))]


def summary(name: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The means of one measure over the seeds, as plain values."""
    return SHOWN[name].summary_of(rows)


# What a language model's attention knows of trees: its spanning trees and its heads, beside what knows nothing.


HOW = "maximum spanning tree of A + Aᵀ between words, hung from the word attended to most on average; no labels"
CAUSAL = "causal: a word sees only those before it, so that a governor further on can be found from itself alone"


def score_attention(
    run: Run,
    gold: Sequence[Sentence],
    protocol: Mapping[str, Any] | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    limit: int | None = None,
    seed: int = 1,
    watcher: Observer | None = None,
) -> ParsingScore:
    """Score the trees of one head, or of the mean of all, and for each relation the head that finds it best.

    Beside them: chains, the trees of shuffled attention, and a model of the same spec with random weights.
    """
    chosen, left = _readable(run, gold[:limit])
    untrained = _untrained(run, seed)
    trained, random = (
        _attention(model, run, chosen, watcher or Silent(), f"reading with {what} weights")
        for model, what in ((run.model, "trained"), (untrained, "random"))
    )
    dealt = [shuffled(one.weights, seed + place) for place, one in enumerate(trained)]
    how = {"decoded": HOW, "attention": CAUSAL, **(protocol or {}), **left}
    score = score_trees(chosen, _trees(chosen, trained, layer, head), how)
    mixed = [replace(one, weights=weights) for one, weights in zip(trained, dealt, strict=True)]
    beside = {"untrained": random, "shuffled": mixed}
    uas = {f"{name} attention": score_trees(chosen, _trees(chosen, t, layer, head)).uas for name, t in beside.items()}
    guesses = {name: [most_attended(one.weights) for one in t] for name, t in beside.items()}
    found = relation_findings(trained[0].names, chosen, [most_attended(one.weights) for one in trained], guesses)
    return replace(with_baselines(score, uas), findings=tuple(found))


def _readable(run: Run, gold: Sequence[Sentence]) -> tuple[list[Sentence], dict[str, Any]]:
    """The sentences that the model can read at once, and how many it cannot."""
    from lemma.inspection.trees import align

    most = run.model.receptive_field
    sizes = [len(align(sentence.words, run.tokenizer).ids) for sentence in gold]
    chosen = [s for s, size in zip(gold, sizes, strict=True) if size and (most is None or size <= most)]
    if not chosen:
        raise InputError(f"no sentence fits into the model's context of {most} tokens; {len(gold):,} read.")
    left = len(gold) - len(chosen)
    said = f"{left:,} of {len(gold):,} sentences, longer than the context of {most} tokens" if left else None
    return chosen, {"left out": said}


def _untrained(run: Run, seed: int) -> LanguageModel:
    device = next(run.model.parameters()).device
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return build(run.model.spec).to(device).eval()


def _attention(
    model: LanguageModel, run: Run, gold: Sequence[Sentence], watcher: Observer, what: str
) -> list[WordAttention]:
    found = []
    watcher.begin(what, len(gold), "sentences" if len(gold) != 1 else "sentence")
    for number, sentence in enumerate(gold, start=1):
        found.append(word_attention(model, run.tokenizer, sentence.words))
        watcher.advance(number)
    watcher.end()
    return found


def _trees(
    gold: Sequence[Sentence], attention: Sequence[WordAttention], layer: int | None, head: int | None
) -> list[Sentence]:
    return [
        Sentence(sentence.words, attention_tree(one.chosen(layer, head)), ("_",) * len(sentence.words))
        for sentence, one in zip(gold, attention, strict=True)
    ]
