"""What is measured of a trained language model: its score, samples, loss against position, and what its heads do."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from lemma.data.splits import Splits
from lemma.data.store import TokenArray
from lemma.data.tokenizers import Tokenizer
from lemma.errors import RunError, TrainingError
from lemma.generation.decode import Generation, Sampling, generate_text
from lemma.layers.recording import AttentionRecord, record_attention
from lemma.models.base import LanguageModel, evaluating
from lemma.models.build import build_uninitialized
from lemma.report.curves import Curve, Plot
from lemma.report.result import Block, Heading, Table, Text, plot_blocks
from lemma.report.statistics import Estimate, PairedTest, estimate, holm_correct
from lemma.runs.load import Run
from lemma.spec.models import Decoder
from lemma.spec.studies import GridStudy
from lemma.studies.experiment import RunPlan, StudyRow, compare_rows, validation_rows
from lemma.studies.result import NO_VALUE
from lemma.tasks.language import PerplexityScore, TextSource, perplexity, training_length

SPLIT = "validation"
TEMPERATURE = 0.6


class CurvePoint(NamedTuple):
    """One validation: how many tokens had been read, in how many seconds, and the loss."""

    tokens: int
    seconds: float
    loss: float


@dataclass(frozen=True)
class SampleLoop:
    """The loop a greedy generation falls into, counted in generated tokens; `begin` and `end` cut its text."""

    onset: int
    period: int
    proved: bool
    state: str
    begin: int
    end: int


@dataclass(frozen=True)
class TextSample:
    """What a model generates after a prompt; at temperature 0 with the loop it ends in, if it does."""

    prompt: str
    text: str
    loop: SampleLoop | None = None


@dataclass(frozen=True)
class LanguageMeasures:
    """All that was measured of a trained language model, and what it was."""

    model: Mapping[str, Any]
    recipe: Mapping[str, Any]
    parameters: int
    tokens: int
    seconds: float
    tokens_per_second: float
    loss: float
    perplexity: float
    bits_per_byte: float | None
    protocol: Mapping[str, Any]
    curve: tuple[CurvePoint, ...]
    sample: TextSample
    greedy: TextSample
    trial_speed: float | None = None
    """Tokens/s in the trial from which a budget of seconds was turned into steps."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What the study's `measures` asked for, by their names, as plain values."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "curve": [list(point) for point in self.curve]}


Row = StudyRow[LanguageMeasures]


VALIDATION_TOKENS = 16_384
"""Tokens of the validation text that a validation on the way reads: enough for a curve, the best step or the choice
of a learning rate, each of which compares scores of the same tokens."""


class Scorer:
    """Gives a model its score on the validation text, and remembers the scores that it gave.

    While a model is trained, at most `most` tokens of the text are read. A run has its score from all of them once it
    is finished, unless it is to be judged by those alone, as a trial is: `whole` is then False.
    """

    def __init__(self, dataset: Splits[TokenArray], max_tokens: int | None = None, full_pass: bool = True) -> None:
        tokens = dataset.item(SPLIT)
        self.dataset, self.max_tokens, self.full_pass = (
            dataset,
            max_tokens if max_tokens and max_tokens < len(tokens) else None,
            full_pass,
        )
        self.scores_by_loss: dict[float, PerplexityScore] = {}

    def __call__(self, model: LanguageModel) -> PerplexityScore:
        """Read the validation text as far as a validation on the way does."""
        score = self._score(model, self.max_tokens)
        self.scores_by_loss[score.loss] = score
        return score

    def score_run(self, run: Run) -> PerplexityScore:
        """The score of a finished run: the one that training ended with, if it was given here, or else a new pass."""
        if self.max_tokens and self.full_pass:
            return self._score(run.model, None)
        summary = run.summary or {}
        ended_with = summary["best_loss"] if run.recipe.keep == "best" else summary["validation_loss"]
        return self.scores_by_loss.get(ended_with) or self(run.model)

    def _score(self, model: LanguageModel, max_tokens: int | None) -> PerplexityScore:
        tokens = self.dataset.item(SPLIT)
        source = TextSource(self.dataset.tokenizer.description, self.dataset.hash, SPLIT)
        return perplexity(model, tokens[:max_tokens], bytes=None if max_tokens else tokens.bytes, source=source)


def generate_sample(model: LanguageModel, tokenizer: Tokenizer, study: GridStudy, temperature: float) -> TextSample:
    """Let a model go on from the study's prompt; an `<eos>` does not end it, since loops may lead through it."""
    settings = Sampling(tokens=study.sample_tokens, temperature=temperature, stop_at_eos=False)
    [said] = generate_text(model, tokenizer, [study.prompt], settings)
    return TextSample(said.prompt, said.text, locate_loop(said, tokenizer))


def locate_loop(generation: Generation, tokenizer: Tokenizer) -> SampleLoop | None:
    """Find where in the text the first round of a loop begins and ends.

    A token may be a part of a character, or bring a space with it only after another: so the places are where the
    text of the first tokens parts from the text of them all.
    """
    if generation.loop is None:
        return None
    last = tokenizer.encode(generation.prompt).tolist()[-1:]
    lead = len(tokenizer.decode(last))

    def end_of(count: int) -> int:
        text = tokenizer.decode([*last, *generation.tokens[:count]])[lead:]
        pairs = enumerate(zip(generation.text, text, strict=False))
        return next((place for place, (a, b) in pairs if a != b), min(len(generation.text), len(text)))

    loop = generation.loop
    ends = end_of(loop.onset), end_of(loop.onset + loop.period)
    return SampleLoop(loop.onset, loop.period, loop.proved, loop.state, *ends)


def measure_run(run: Run, plan: RunPlan, study: GridStudy, scorer: Scorer) -> LanguageMeasures:
    """Measure all that the report shows of a finished run."""
    score = scorer.score_run(run)
    if not math.isfinite(score.perplexity):
        raise TrainingError(f"{plan.path}: the validation loss is {score.loss}, so that there is no perplexity.")
    summary: Mapping[str, Any] = run.summary or {}
    trained, tokens = training_length(plan.model, plan.recipe), scorer.dataset.item(SPLIT)
    return LanguageMeasures(
        model=plan.model.to_dict(),
        recipe=plan.recipe.to_dict(),
        **{name: summary[name] for name in ("parameters", "tokens", "seconds", "tokens_per_second")},
        **{name: getattr(score, name) for name in ("loss", "perplexity", "bits_per_byte")},
        protocol=score.protocol.to_dict(),
        curve=tuple(CurvePoint(row["tokens"], row["seconds"], row["validation_loss"]) for row in validation_rows(run)),
        sample=generate_sample(run.model, run.tokenizer, study, TEMPERATURE),
        greedy=generate_sample(run.model, run.tokenizer, study, 0.0),
        trial_speed=plan.trial_speed,
        more={name: MEASURES[name](run, tokens, trained, study.beyond) for name in study.measures},
    )


@dataclass(frozen=True)
class MeasureView:
    """What a measure shows in the report of a study: a table, plots and sentences, and the same as plain values."""

    heading: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    plots: Sequence[Plot]
    notes: Sequence[str]
    """Said below the table of the page."""
    sentences: Sequence[str]
    """Said in the conclusion."""
    values: Mapping[str, Any]
    title: str = ""

    def terminal_blocks(self) -> list[Block]:
        """The table, for the terminal; nothing if no row was measured."""
        return [Table(self.header, self.rows, title=self.title, left=())] if self.rows else []

    def page_blocks(self) -> list[Block]:
        """The section of the page; nothing if no row was measured."""
        notes = [Text(note, "note") for note in self.notes]
        table = Table(self.header, self.rows)
        return [Heading(self.heading), *plot_blocks(self.plots), table, *notes] if self.rows else []


# Windows of the validation text, all of one length.


BATCH_TOKENS = 8192  # tokens read in one batch


def sample_windows(tokens: np.ndarray, length: int, max_windows: int) -> Int[Tensor, "windows length"]:
    """Up to `most` windows that do not overlap, spread evenly over the text.

    >>> sample_windows(np.arange(10), 3, 2).tolist()
    [[0, 1, 2], [6, 7, 8]]
    """
    count = len(tokens) // length
    chosen = np.unique(np.linspace(0, count - 1, min(count, max_windows)).round().astype(int))
    rows = [np.asarray(tokens[place * length : (place + 1) * length], dtype=np.int64) for place in chosen]
    return torch.from_numpy(np.stack(rows))


def split_batches(windows: Int[Tensor, "windows length"]) -> tuple[Int[Tensor, "batch length"], ...]:
    """The windows, as many at a time as fit into one batch."""
    return windows.split(max(1, BATCH_TOKENS // windows.shape[1]))


# Attention: how widely and how far each head looks, and whether shaping that helped (problem B4).


ATTENTION_WINDOWS = 32
STATISTICS = {"entropy": "mean entropy (nats)", "distance": "mean distance (tokens)"}
ROW_OFFSET = 0.08  # of the distance from one head to the next
PENALTIES = ("entropy_penalty", "distance_penalty")
IGNORED_SETTINGS = {
    *PENALTIES,
    "distance_max",
    "seed",
    "steps",
    "evaluate_every",
    "checkpoint_every",
}  # under a clock steps differ
NEGLIGIBLE = 0.001  # of the plain perplexity: a smaller difference does not matter, however sure it is


def measure_attention(run: Run, tokens: np.ndarray, trained: int, beyond: int) -> dict[str, Any]:
    """The mean entropy (nats) and mean distance (tokens) of every head, over all rows of its attention.

    Read in windows of the trained length. A model without attention has no layers here.
    """
    device = next(run.model.parameters()).device
    windows = sample_windows(tokens, min(trained, len(tokens)), ATTENTION_WINDOWS)
    sums: dict[str, Float[Tensor, "two heads"]] = {}
    with torch.inference_mode(), evaluating(run.model):
        for batch in split_batches(windows):
            with record_attention(run.model) as records:
                run.model(batch.to(device))
            for place, record in enumerate(records):
                name = f"{place}: {record.name}"
                sums[name] = sums.get(name, torch.zeros(())) + len(batch) * entropy_and_distance(record)
    layers = [(name.partition(": ")[2], total / len(windows)) for name, total in sums.items()]
    return {
        "pieces": len(windows),
        "layers": [
            {"name": name, "entropy": means[0].tolist(), "distance": means[1].tolist()} for name, means in layers
        ],
    }


def entropy_and_distance(record: AttentionRecord) -> Float[Tensor, "two heads"]:
    """Mean entropy −Σ α ln α and mean distance Σ α |t₁ − t₂| of each head, over the rows of one call."""
    weights = record.weights().double()
    entropy = torch.special.entr(weights).sum(-1)
    distance = (weights * record.distances().abs()).sum(-1)
    real = record.unmasked_rows()
    rows = (weights.sum(-1) > 0) & (True if real is None else real)
    return torch.stack(
        [(habit * rows).sum((0, 2)) / rows.sum((0, 2)).clamp(min=1) for habit in (entropy, distance)]
    ).cpu()


def results_by_seed(row: Row, name: str) -> list[Mapping[str, Any]]:
    """What a measure found, per seed; nothing of models without attention."""
    measured = [one.more.get(name, {}) for one in row.measures.values()]
    return [one for one in measured if one.get("layers", one.get("positions"))]


def estimate_heads(row: Row, statistic: str) -> list[tuple[int, int, Estimate]]:
    """Layer, head and the mean over the seeds, of every head."""
    values = [[layer[statistic] for layer in one["layers"]] for one in results_by_seed(row, "attention")]
    return [
        (layer, head, estimate([seed[layer][head] for seed in values]))
        for layer in range(len(values[0]))
        for head in range(len(values[0][layer]))
    ]


def mean_over_heads(row: Row, statistic: str) -> Estimate:
    """The mean over all heads, with its interval over the seeds."""
    means = [
        fmean(value for layer in one["layers"] for value in layer[statistic])
        for one in results_by_seed(row, "attention")
    ]
    return estimate(means)


def plot_heads(rows: Sequence[Row], statistic: str) -> Plot:
    """One curve per row over all its heads, in order."""
    places = sorted({(layer, head) for row in rows for layer, head, _ in estimate_heads(row, statistic)})
    curves = []
    for number, row in enumerate(rows):
        heads = estimate_heads(row, statistic)
        x = tuple(places.index((layer, head)) + ROW_OFFSET * (number - (len(rows) - 1) / 2) for layer, head, _ in heads)
        means = [one for _, _, one in heads]
        several = means if len(results_by_seed(row, "attention")) > 1 else []
        low, high = tuple(max(0.0, one.low) for one in several), tuple(one.high for one in several)
        curves.append(Curve(row.title, x, tuple(one.mean for one in means), low, high, dots=True))
    caption = (
        f"The {STATISTICS[statistic]} of each head; layers and heads are counted from 0. The bars are the 95 % intervals "
        "over the seeds. The models are a little apart so that all bars can be seen."
    )
    ticks = tuple(f"{layer}.{head}" for layer, head in places)
    return Plot("layer.head", STATISTICS[statistic], tuple(curves), caption=caption, bars=True, ticks=ticks)


@dataclass(frozen=True)
class ShapingEffect:
    """The perplexity of a shaped model against that of the plain one, over the seeds both have."""

    title: str
    test: PairedTest

    @property
    def verdict(self) -> str:
        """Helped, hurt, or neither as far as these seeds tell; a gap too small to matter is neither."""
        gap = self.test.difference
        if gap.margin is None:
            return "too few seeds for a test"
        if abs(gap.mean) < NEGLIGIBLE and (self.test.is_significant or gap.margin < NEGLIGIBLE):
            return f"no difference that matters (below {NEGLIGIBLE:.1%})".replace("%", " %")
        if not self.test.is_significant:
            return "not significant"
        return "helped" if gap.mean < 0 else "hurt"

    def __str__(self) -> str:
        return f"{self.title}: perplexity {self.test} against the model without it: {self.verdict}."

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"row": self.title, **self.test.to_dict(), "verdict": self.verdict}


def shaping_effects(rows: Sequence[Row]) -> list[ShapingEffect]:
    """Compare every row that shapes attention with the row that is the same but for that."""
    found: dict[str, PairedTest] = {}

    def shapes(row: Row) -> bool:
        return any(row.first.recipe.get(term) for term in PENALTIES) if row.first else False

    def rest(row: Row) -> Any:
        recipe = (
            {word: value for word, value in row.first.recipe.items() if word not in IGNORED_SETTINGS}
            if row.first
            else {}
        )
        return row.first and (row.first.model, recipe)

    for row in rows:
        base = next((one for one in rows if one.first and not shapes(one) and rest(one) == rest(row)), None)
        if base is None or not shapes(row):
            continue
        if test := compare_rows(row, base, "perplexity"):
            found[row.title] = test
    return list(map(ShapingEffect, found, holm_correct(list(found.values()))))


def view_attention(rows: Sequence[Row]) -> MeasureView:
    """Entropy and distance of each head, and whether shaping them helped."""
    shown, effects = [row for row in rows if results_by_seed(row, "attention")], shaping_effects(rows)
    heads = {row.title: {kind: estimate_heads(row, kind) for kind in STATISTICS} for row in shown}
    habits_said = []
    for row in shown:
        entropy, distance = (mean_over_heads(row, kind) for kind in STATISTICS)
        habits_said.append(f"{row.title}: heads have a mean entropy of {entropy} nats and look {distance} tokens back.")
    plain = {
        title: {
            kind: [{"layer": layer, "head": head, "mean": one.mean, "margin": one.margin} for layer, head, one in some]
            for kind, some in by_kind.items()
        }
        for title, by_kind in heads.items()
    }
    return MeasureView(
        heading="What the heads do",
        header=["model", "layer", "head", *STATISTICS.values()],
        rows=[
            [title, str(layer), str(head), str(entropy), str(distance)]
            for title, by_kind in heads.items()
            for (layer, head, entropy), (_, _, distance) in zip(*by_kind.values(), strict=True)
        ],
        plots=[plot_heads(shown, kind) for kind in STATISTICS] if shown else [],
        notes=[
            "Over all rows of attention on the validation text, in windows of the trained length. Entropy −Σ α ln α, "
            "distance Σ α |t₁ − t₂|."
        ],
        sentences=[*habits_said, *map(str, effects)],
        values={"rows": plain, "helped": [one.to_dict() for one in effects]},
    )


# Positions: the loss against position, up to several times the length a model was trained at.


POSITION_WINDOWS = 256
BINS_PER_LENGTH = 16  # points of the curve for each trained length


def measure_positions(run: Run, tokens: np.ndarray, trained: int, beyond: int) -> dict[str, Any]:
    """The mean loss at each position of windows of the validation text, `beyond` times the trained length.

    Position p has p tokens before it in the window; all of them are seen, whatever the trained length. Neighbouring
    positions are put together, sixteen groups for each trained length.
    """
    asked = min(beyond * trained, len(tokens) - 1)
    if asked < 1:
        raise RunError(f"measures.positions: the validation text has {len(tokens)} tokens; at least 2 are needed.")
    windows = sample_windows(tokens, asked + 1, POSITION_WINDOWS)
    model, readable = extend_context(run.model, asked)
    losses = losses_by_position(model, windows[:, : readable + 1])
    edges = list(range(0, readable, max(1, trained // BINS_PER_LENGTH)))
    bins = [(begin, min(end, readable)) for begin, end in zip(edges, [*edges[1:], readable], strict=True)]
    return {
        "trained": trained,
        "beyond": beyond,
        "readable": readable,
        "asked": asked,
        "pieces": len(windows),
        "positions": [(begin + 1 + end) / 2 for begin, end in bins],
        "losses": [float(losses[begin:end].mean()) for begin, end in bins],
    }


def extend_context(model: LanguageModel, length: int) -> tuple[LanguageModel, int]:
    """The same weights with a context of at least `length`, and how much of it the model can read.

    A Transformer without learned position vectors is rebuilt longer; learned vectors end where the context does.
    """
    spec = model.spec
    if not isinstance(spec, Decoder) or spec.context >= length:
        return model, length
    if spec.positions.tabled:
        return model, spec.context
    device = next(model.parameters()).device
    longer = build_uninitialized(spec.replace(context=length)).to(device)
    longer.load_state_dict(model.state_dict())
    assert isinstance(longer, LanguageModel)
    return longer, length


def losses_by_position(model: LanguageModel, windows: Int[Tensor, "windows length"]) -> Float[Tensor, " positions"]:
    """The mean loss of the second, third, … token of the windows, each read from its beginning."""
    device = next(model.parameters()).device
    sums = torch.zeros(windows.shape[1] - 1, dtype=torch.float64)
    with torch.inference_mode(), evaluating(model):
        for batch in split_batches(windows):
            rows = batch.to(device)
            logits = model(rows[:, :-1])[0]
            losses = functional.cross_entropy(logits.transpose(1, 2).float(), rows[:, 1:], reduction="none")
            sums += losses.double().sum(0).cpu()
    return sums / len(windows)


def loss_by_length(row: Row) -> list[Estimate | None]:
    """The mean loss within the trained length, within the second of that length, and so on; None where it cannot go."""
    seeds = results_by_seed(row, "positions")
    trained, count = seeds[0]["trained"], -(-seeds[0]["asked"] // seeds[0]["trained"])
    means: list[Estimate | None] = []
    for begin in range(0, count * trained, trained):
        inside = [
            [loss for at, loss in zip(one["positions"], one["losses"], strict=True) if begin < at <= begin + trained]
            for one in seeds
        ]
        means.append(estimate([sum(some) / len(some) for some in inside if some]) if any(inside) else None)
    return means


def position_curve(row: Row) -> Curve:
    """The loss against position, with the interval over the seeds."""
    seeds = results_by_seed(row, "positions")
    points = [estimate(losses) for losses in zip(*(one["losses"] for one in seeds), strict=True)]
    several = points if len(seeds) > 1 else []
    low, high = tuple(point.low for point in several), tuple(point.high for point in several)
    return Curve(row.title, tuple(seeds[0]["positions"]), tuple(point.mean for point in points), low, high)


def view_positions(rows: Sequence[Row]) -> MeasureView:
    """Loss against position: by trained length, and along the curve."""
    shown = {row.title: row for row in rows if results_by_seed(row, "positions")}
    firsts = {title: results_by_seed(row, "positions")[0] for title, row in shown.items()}
    lengths, curves = (
        {title: loss_by_length(row) for title, row in shown.items()},
        list(map(position_curve, shown.values())),
    )
    trained = next((one["trained"] for one in firsts.values()), 0)
    columns = max(map(len, lengths.values()), default=0)
    ends = [(title, means[0], means[-1]) for title, means in lengths.items() if len(means) > 1]
    far = [(title, near, last) for title, near, last in ends if near and last]
    sentences = []
    for title, near, last in sorted(far, key=lambda one: one[2].mean):  # the best at the far end first
        gap = f"{last.mean - near.mean:+.2f}".replace("-", "−")
        sentences.append(f"{title}: loss {near} up to the trained length, {last} in the last part ({gap}).")
    early = [
        f"{title} ends at position {one['readable']}: it has no vectors for later ones."
        for title, one in firsts.items()
        if one["readable"] < one["asked"]
    ]
    how = (
        "Each window of the validation text is read from its beginning; position p has p tokens before it, and all are "
        "seen. Mean over the windows, with the 95 % interval over the seeds."
    )
    caption = f"Validation loss against position. The dotted line is the trained length, {trained}."
    return MeasureView(
        heading="Loss against position",
        title=f"Loss by position, T = {trained} the trained length",
        header=["model", *(f"{place}T to {place + 1}T" if place else "up to T" for place in range(columns))],
        rows=[
            [title, *(NO_VALUE if one is None else str(one) for one in means), *[NO_VALUE] * (columns - len(means))]
            for title, means in lengths.items()
        ],
        plots=[Plot("position", "loss (nats/token)", tuple(curves), rule=float(trained), caption=caption)],
        notes=[how, *early],
        sentences=[*sentences, *early],
        values={
            curve.title: {
                "trained": firsts[curve.title]["trained"],
                "positions": curve.x,
                "losses": curve.y,
                "spans": [one and {"loss": one.mean, "margin": one.margin} for one in lengths[curve.title]],
            }
            for curve in curves
        },
    )


# Steps to the same loss: how soon a model is where the first one ends.


def steps_to(curve: Sequence[tuple[int, float]], target: float) -> tuple[float, str]:
    """After how many steps a loss is reached, read off runs of several lengths, and how that is bounded.

    Between two lengths the loss is taken to fall in proportion to the logarithm of the steps.

    >>> round(steps_to([(100, 2.0), (200, 1.5)], 1.75)[0], 3)
    141.421
    >>> steps_to([(100, 2.0), (200, 1.5)], 2.5), steps_to([(9, 2.0)], 1.0)
    ((100, 'at most '), (9, 'more than '))
    """
    points = sorted(curve)
    if points[0][1] <= target:
        return points[0][0], "" if points[0][1] == target else "at most "
    for (fewer, before), (more, after) in pairwise(points):
        if after <= target:
            part = (before - target) / (before - after)
            return math.exp(math.log(fewer) + part * math.log(more / fewer)), ""
    return points[-1][0], "more than "


def view_steps(rows: Sequence[Row]) -> MeasureView:
    """How many steps each model needs for the loss that the first one ends with, seed by seed."""
    runs: dict[str, dict[int, list[tuple[int, float]]]] = {}
    for row in rows:
        for seed, one in row.measures.items():
            runs.setdefault(row.condition, {}).setdefault(seed, []).append((int(one.recipe["steps"]), one.loss))
    first, *others = runs or [""]
    ends = {seed: max(curve) for seed, curve in runs.get(first, {}).items()}
    found: dict[str, tuple[dict[int, float], list[str], PairedTest]] = {}
    for name in others:
        both = sorted(runs[name].keys() & ends.keys())
        reached = {seed: steps_to(runs[name][seed], ends[seed][1]) for seed in both}
        if reached:
            shares = [reached[seed][0] / ends[seed][0] for seed in both]
            test = PairedTest(tuple(map(math.log, shares)))
            found[name] = {seed: reached[seed][0] for seed in both}, [bound for _, bound in reached.values()], test
    # bounds vary less than the steps themselves: a test of them would find too much
    exact = [name for name, (_, bounds, _) in found.items() if not any(bounds)]
    tests = dict(zip(exact, holm_correct([found[name][-1] for name in exact]), strict=True))
    lines, sentences = [], []
    for name, (steps, bounds, test) in found.items():
        bound = next((one for one in ("more than ", "at most ") if one in bounds), "")
        share, shown, verdict = math.exp(test.mean), "no test", ""
        if name in tests:
            shown, verdict = str(tests[name]), f": {tests[name].verdict}"
        lines.append([name, f"{bound}{fmean(steps.values()):,.0f}", f"{bound}{100 * share:.0f} %", shown])
        if bound:
            why = "longest run does not reach it: add longer ones"
            why = "shortest run is already below it: add shorter ones" if bound == "at most " else why
            shown += f", since in {bounds.count(bound)} of {len(bounds)} seeds the {why} to grid.steps"
        both = f"{bound}{fmean(steps.values()):,.0f} against {fmean(end for end, _ in ends.values()):,.0f}"
        part = f"{bound}{100 * share:.0f} % of the steps of {first}"
        sentences.append(f"{name} needs {part} for the same loss ({both}; {shown}){verdict}.")
    target = fmean(loss for _, loss in ends.values()) if ends else math.nan
    return MeasureView(
        heading="Steps to the same loss",
        title=f"Steps to the loss that {first} ends with, {target:.3f} nats/token on average",
        header=["model", "steps", f"share of {first}", "difference"],
        rows=lines,
        plots=[],
        notes=["Read off the runs of several lengths, seed by seed; the test is of the logarithm of the share."],
        sentences=sentences,
        values={
            name: {"steps": steps, "bounds": bounds, "share": math.exp(test.mean)}
            | (tests[name].to_dict() if name in tests else {"p": None})
            for name, (steps, bounds, test) in found.items()
        },
    )


MEASURES: dict[str, Callable[[Run, Any, int, int], dict[str, Any]]] = {
    "positions": measure_positions,
    "attention": measure_attention,
    "steps": lambda run, tokens, trained, beyond: {},  # the loss is enough
}
"""What a study's `measures` ask for, by their names."""
VIEWS = {"positions": view_positions, "attention": view_attention, "steps": view_steps}
