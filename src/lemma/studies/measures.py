"""What is measured of a trained language model (score, samples, loss by position, heads), and how a report shows it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
from lemma.generation.engine import generate_text
from lemma.generation.sampling import Sampling
from lemma.generation.sequences import Generation
from lemma.layers.recording import AttentionRecord, record_attention
from lemma.models.base import LanguageModel, evaluating
from lemma.models.build import build_uninitialized
from lemma.report.curves import Curve, Plot
from lemma.report.result import Block, Heading, Table, Text, plot_blocks, to_plain
from lemma.report.statistics import Estimate, PairedTest, estimate
from lemma.runs.load import Run
from lemma.spec.models import Decoder
from lemma.spec.studies import GridStudy
from lemma.studies.cells import StudyRow, compare_rows, correct_tests
from lemma.studies.experiment import RunPlan, validation_rows
from lemma.studies.result import NO_VALUE
from lemma.tasks.language import PerplexityScore, Protocol, perplexity, training_length

SPLIT = "validation"
TEMPERATURE = 0.6
# Tokens that a validation during training reads: enough for a curve, the best step or the choice of a learning rate,
# each of which compares scores of the same tokens.
VALIDATION_TOKENS = 16_384


class CurvePoint(NamedTuple):
    """A validation during training: its loss, and after how many training tokens and seconds."""

    tokens: int
    seconds: float
    loss: float


@dataclass(frozen=True)
class SampleLoop:
    """The loop that a greedy generation falls into, and where its first round is in the text."""

    onset: int  # in generated tokens, as is the period
    period: int
    proved: bool
    state: str  # which repeats or does not
    begin: int  # of the first round in the text
    end: int


@dataclass(frozen=True)
class TextSample:
    """A text generated after a prompt, and the loop it ends in, if any; loops are sought at temperature 0 only."""

    prompt: str
    text: str
    loop: SampleLoop | None = None


@dataclass(frozen=True)
class LanguageMeasures:
    """Model, recipe, costs, scores, learning curve and samples of a trained language model."""

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
    trial_speed: float | None = None  # tokens/s from which a budget of seconds was turned into steps
    more: Mapping[str, Any] = field(default_factory=dict)  # plain values by the names of the study's `measures`


Row = StudyRow[LanguageMeasures]


class Scorer:
    """Callable that scores a model on the validation text and remembers the scores.

    While a model is trained, at most `max_tokens` of the text are read. A finished run is scored on all of them, unless
    it is judged by those alone, as a trial is: `full_pass` is then False.
    """

    def __init__(self, dataset: Splits[TokenArray], max_tokens: int | None = None, full_pass: bool = True) -> None:
        is_shorter = max_tokens and max_tokens < len(dataset.item(SPLIT))
        self.dataset, self.full_pass = dataset, full_pass
        self.max_tokens = max_tokens if is_shorter else None
        self.scores_by_loss: dict[float, PerplexityScore] = {}

    def __call__(self, model: LanguageModel) -> PerplexityScore:
        score = self._score(model, self.max_tokens)
        self.scores_by_loss[score.loss] = score
        return score

    def score_run(self, run: Run) -> PerplexityScore:
        """Return the score of a finished run: that of its last or best validation if remembered, else of a new pass."""
        if self.max_tokens and self.full_pass:
            return self._score(run.model, None)
        summary = run.summary or {}
        final_loss = summary["best_loss"] if run.recipe.keep == "best" else summary["validation_loss"]
        return self.scores_by_loss.get(final_loss) or self(run.model)

    def _score(self, model: LanguageModel, max_tokens: int | None) -> PerplexityScore:
        """Return the score of a model on the first `max_tokens` validation tokens, or on all of them for None."""
        tokens = self.dataset.item(SPLIT)
        source = Protocol(self.dataset.tokenizer.description, self.dataset.hash, SPLIT)
        return perplexity(model, tokens[:max_tokens], bytes=None if max_tokens else tokens.bytes, source=source)


def measure_run(run: Run, plan: RunPlan, study: GridStudy, scorer: Scorer) -> LanguageMeasures:
    """Measure everything that the study reports on a finished run."""
    score = scorer.score_run(run)
    if not math.isfinite(score.perplexity):
        raise TrainingError(f"{plan.path}: the validation loss is {score.loss}, so that there is no perplexity.")
    summary: Mapping[str, Any] = run.summary or {}
    length, tokens = training_length(plan.model, plan.recipe), scorer.dataset.item(SPLIT)
    return LanguageMeasures(
        model=plan.model.to_dict(),
        recipe=plan.recipe.to_dict(),
        **{name: summary[name] for name in ("parameters", "tokens", "seconds", "tokens_per_second")},
        **{name: getattr(score, name) for name in ("loss", "perplexity", "bits_per_byte")},
        protocol=to_plain(score.protocol),  # as it is read from JSON
        curve=tuple(CurvePoint(row["tokens"], row["seconds"], row["validation_loss"]) for row in validation_rows(run)),
        sample=generate_sample(run.model, run.tokenizer, study, TEMPERATURE),
        greedy=generate_sample(run.model, run.tokenizer, study, 0.0),
        trial_speed=plan.trial_speed,
        more={name: MEASURES[name](run, tokens, length, study.beyond) for name in study.measures},
    )


def generate_sample(model: LanguageModel, tokenizer: Tokenizer, study: GridStudy, temperature: float) -> TextSample:
    """Return a model's continuation of the study's prompt; an `<eos>` does not end it, since loops may contain it."""
    settings = Sampling(tokens=study.sample_tokens, temperature=temperature, stop_at_eos=False)
    [generation] = generate_text(model, tokenizer, [study.prompt], settings)
    return TextSample(generation.prompt, generation.text, locate_loop(generation, tokenizer))


def locate_loop(generation: Generation, tokenizer: Tokenizer) -> SampleLoop | None:
    """Return the loop of a generation, with the span of characters of its first round; None without a loop.

    A token may be a part of a character, or bring a space with it only after another: so the text of the first tokens
    is compared with the text of all tokens, up to the first character that differs.
    """
    loop = generation.loop
    if loop is None:
        return None
    last_prompt_token = tokenizer.encode(generation.prompt).tolist()[-1:]
    prefix = len(tokenizer.decode(last_prompt_token))

    def text_length(count: int) -> int:
        """Return the number of characters of the text that the first `count` generated tokens make up."""
        text = tokenizer.decode([*last_prompt_token, *generation.tokens[:count]])[prefix:]
        pairs = enumerate(zip(generation.text, text, strict=False))
        return next((index for index, (a, b) in pairs if a != b), min(len(generation.text), len(text)))

    ends = text_length(loop.onset), text_length(loop.onset + loop.period)
    return SampleLoop(loop.onset, loop.period, loop.proved, loop.state, *ends)


# Windows of the validation text, all of one length.


BATCH_TOKENS = 8192


def sample_windows(tokens: np.ndarray, length: int, max_windows: int) -> Int[Tensor, "windows length"]:
    """Return up to `max_windows` windows of `length` tokens, spread evenly over the text without overlap.

    >>> sample_windows(np.arange(10), 3, 2).tolist()
    [[0, 1, 2], [6, 7, 8]]
    """
    count = len(tokens) // length
    indices = np.unique(np.linspace(0, count - 1, min(count, max_windows)).round().astype(int))
    windows = [np.asarray(tokens[index * length : (index + 1) * length], dtype=np.int64) for index in indices]
    return torch.from_numpy(np.stack(windows))


def split_batches(windows: Int[Tensor, "windows length"]) -> tuple[Int[Tensor, "batch length"], ...]:
    """Split windows into batches of at most `BATCH_TOKENS` tokens, but at least one window."""
    return windows.split(max(1, BATCH_TOKENS // windows.shape[1]))


# Attention: how widely and how far each head looks.


ATTENTION_WINDOWS = 32


def measure_attention(run: Run, tokens: np.ndarray, length: int, beyond: int) -> dict[str, Any]:
    """Measure mean entropy (nats) and mean distance (tokens) of every attention head of a run.

    Returns:
        "pieces", the number of windows of `length` tokens that were read, and "layers", a list of name, entropies and
            distances by head; it is empty for a model without attention. `beyond` is not used.
    """
    device = next(run.model.parameters()).device
    windows = sample_windows(tokens, min(length, len(tokens)), ATTENTION_WINDOWS)
    sums: dict[str, Float[Tensor, "two heads"]] = {}
    with torch.inference_mode(), evaluating(run.model):
        for batch in split_batches(windows):
            with record_attention(run.model) as records:
                run.model(batch.to(device))
            for index, record in enumerate(records):
                key = f"{index}: {record.name}"
                sums[key] = sums.get(key, torch.zeros(())) + len(batch) * entropy_and_distance(record)
    layers = []
    for key, total in sums.items():
        entropy, distance = (total / len(windows)).tolist()
        layers.append({"name": key.partition(": ")[2], "entropy": entropy, "distance": distance})
    return {"pieces": len(windows), "layers": layers}


def entropy_and_distance(record: AttentionRecord) -> Float[Tensor, "two heads"]:
    """Return the mean entropy −Σ α ln α and mean distance Σ α |t₁ − t₂| of each head over all rows of a record."""
    weights = record.weights().double()
    entropy = torch.special.entr(weights).sum(-1)
    distance = (weights * record.distances().abs()).sum(-1)
    is_token = record.unmasked_rows()
    rows = (weights.sum(-1) > 0) & (True if is_token is None else is_token)
    count = rows.sum((0, 2)).clamp(min=1)
    return torch.stack([(values * rows).sum((0, 2)) / count for values in (entropy, distance)]).cpu()


# Positions: the loss against position, up to several times the length a model was trained at.


POSITION_WINDOWS = 256
BINS_PER_LENGTH = 16  # points of the curve for each trained length


def measure_positions(run: Run, tokens: np.ndarray, length: int, beyond: int) -> dict[str, Any]:
    """Measure a run's mean loss at each position of validation windows `beyond` times the trained `length`.

    Position p has p tokens before it in the window; all of them are read, whatever the trained length. Neighbouring
    positions are averaged, sixteen groups for each trained length.
    """
    asked = min(beyond * length, len(tokens) - 1)
    if asked < 1:
        raise RunError(f"measures.positions: the validation text has {len(tokens)} tokens; at least 2 are needed.")
    windows = sample_windows(tokens, asked + 1, POSITION_WINDOWS)
    model, readable = extend_context(run.model, asked)
    losses = losses_by_position(model, windows[:, : readable + 1])
    starts = list(range(0, readable, max(1, length // BINS_PER_LENGTH)))
    bins = list(zip(starts, [*starts[1:], readable], strict=True))
    return {
        "trained": length,
        "beyond": beyond,
        "readable": readable,
        "asked": asked,
        "pieces": len(windows),
        "positions": [(start + 1 + end) / 2 for start, end in bins],
        "losses": [float(losses[start:end].mean()) for start, end in bins],
    }


def extend_context(model: LanguageModel, length: int) -> tuple[LanguageModel, int]:
    """Return (model with the same weights and a longer context, number of tokens, at most `length`, that it can read).

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
    """Return the loss of the second, third, … token of the windows, averaged over the windows."""
    device = next(model.parameters()).device
    sums = torch.zeros(windows.shape[1] - 1, dtype=torch.float64)
    with torch.inference_mode(), evaluating(model):
        for batch in split_batches(windows):
            tokens = batch.to(device)
            logits = model(tokens[:, :-1])[0]
            losses = functional.cross_entropy(logits.transpose(1, 2).float(), tokens[:, 1:], reduction="none")
            sums += losses.double().sum(0).cpu()
    return sums / len(windows)


MEASURES: dict[str, Callable[[Run, Any, int, int], dict[str, Any]]] = {
    "positions": measure_positions,
    "attention": measure_attention,
    "steps": lambda run, tokens, length, beyond: {},  # the loss is enough
}
"""What a study's `measures` ask for, by their names."""


# How the report shows them.


@dataclass(frozen=True)
class MeasureView:
    """The part of a report on one extra measure: table, plots, sentences, and the figures as plain values."""

    heading: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    plots: Sequence[Plot]
    notes: Sequence[str]  # below the table of the page
    sentences: Sequence[str]  # in the conclusion
    values: Mapping[str, Any]
    title: str = ""  # of the table in the terminal

    def terminal_blocks(self) -> list[Block]:
        """Return the table for the terminal; empty if no row was measured."""
        return [Table(self.header, self.rows, title=self.title, left=())] if self.rows else []

    def page_blocks(self) -> list[Block]:
        """Return the section of the HTML page; empty if no row was measured."""
        notes = [Text(note, "note") for note in self.notes]
        table = Table(self.header, self.rows)
        return [Heading(self.heading), *plot_blocks(self.plots), table, *notes] if self.rows else []


def collect_results(row: Row, name: str) -> list[Mapping[str, Any]]:
    """Return the stored results of the extra measure `name`, "attention" or "positions", of the seeds of a row.

    Seeds without such a result are left out.
    """
    results = [measures.more.get(name, {}) for measures in row.measures.values()]
    return [result for result in results if result.get("layers", result.get("positions"))]


# Attention, and whether shaping it helped (problem B4).


STATISTICS = {"entropy": "mean entropy (nats)", "distance": "mean distance (tokens)"}
ROW_OFFSET = 0.08  # of the distance from one head to the next
PENALTIES = ("entropy_penalty", "distance_penalty")
IGNORED_SETTINGS = {*PENALTIES, "distance_max", "seed"}
IGNORED_SETTINGS |= {"steps", "evaluate_every", "checkpoint_every"}  # under a budget of seconds they differ
NEGLIGIBLE = 0.001  # of the plain perplexity: a smaller difference does not matter, however sure it is


def estimate_heads(row: Row, statistic: str) -> list[tuple[int, int, Estimate]]:
    """Return (layer, head, estimate over seeds) of a statistic, "entropy" or "distance", for every head."""
    seeds = [[layer[statistic] for layer in result["layers"]] for result in collect_results(row, "attention")]
    return [
        (layer, head, estimate([values[layer][head] for values in seeds]))
        for layer in range(len(seeds[0]))
        for head in range(len(seeds[0][layer]))
    ]


def mean_over_heads(row: Row, statistic: str) -> Estimate:
    """Return the mean of a statistic, "entropy" or "distance", over all heads, with its interval over the seeds."""
    results = collect_results(row, "attention")
    return estimate([fmean(value for layer in result["layers"] for value in layer[statistic]) for result in results])


def plot_heads(rows: Sequence[Row], statistic: str) -> Plot:
    """Plot a statistic, "entropy" or "distance", of every head as one curve per row."""
    ticks = sorted({(layer, head) for row in rows for layer, head, _ in estimate_heads(row, statistic)})
    curves = []
    for number, row in enumerate(rows):
        heads = estimate_heads(row, statistic)
        shift = ROW_OFFSET * (number - (len(rows) - 1) / 2)
        x = tuple(ticks.index((layer, head)) + shift for layer, head, _ in heads)
        means = [mean for _, _, mean in heads]
        intervals = means if len(collect_results(row, "attention")) > 1 else []
        low, high = tuple(max(0.0, mean.low) for mean in intervals), tuple(mean.high for mean in intervals)
        curves.append(Curve(row.title, x, tuple(mean.mean for mean in means), low, high, dots=True))
    title = STATISTICS[statistic]
    caption = (
        f"The {title} of each head; layers and heads are counted from 0. The bars are the 95 % intervals "
        "over the seeds. The models are a little apart so that all bars can be seen."
    )
    names = tuple(f"{layer}.{head}" for layer, head in ticks)
    return Plot("layer.head", title, tuple(curves), caption=caption, bars=True, ticks=names)


@dataclass(frozen=True)
class ShapingEffect:
    """The test of the perplexity of a model with an attention penalty against that of the same model without one."""

    title: str
    test: PairedTest

    @property
    def verdict(self) -> str:
        """Return "helped", "hurt" or why neither: too few seeds, not significant, or a negligible difference."""
        difference = self.test.difference
        if difference.margin is None:
            return "too few seeds for a test"
        if abs(difference.mean) < NEGLIGIBLE and (self.test.is_significant or difference.margin < NEGLIGIBLE):
            return f"no difference that matters (below {NEGLIGIBLE:.1%})".replace("%", " %")
        if not self.test.is_significant:
            return "not significant"
        return "helped" if difference.mean < 0 else "hurt"

    def __str__(self) -> str:
        return f"{self.title}: perplexity {self.test} against the model without it: {self.verdict}."

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of row, test and verdict."""
        return {"row": self.title, **self.test.to_dict(), "verdict": self.verdict}


def shaping_effects(rows: Sequence[Row]) -> list[ShapingEffect]:
    """Compare the perplexity of every row that has an attention penalty with that of the same row without it."""

    def is_shaped(row: Row) -> bool:
        """Return whether a row was trained with an attention penalty."""
        return row.first is not None and any(row.first.recipe.get(penalty) for penalty in PENALTIES)

    def other_settings(row: Row) -> Any:
        """Return the model and the settings of the recipe that must be equal for a comparison; None without a run."""
        if row.first is None:
            return None
        recipe = {name: value for name, value in row.first.recipe.items() if name not in IGNORED_SETTINGS}
        return row.first.model, recipe

    plain_rows = [row for row in rows if row.first and not is_shaped(row)]
    tests: dict[str, PairedTest] = {}
    for row in filter(is_shaped, rows):
        baseline = next((plain for plain in plain_rows if other_settings(plain) == other_settings(row)), None)
        if baseline and (test := compare_rows(row, baseline, "perplexity")):
            tests[row.title] = test
    return list(map(ShapingEffect, tests, correct_tests(tests).values()))


def view_attention(rows: Sequence[Row]) -> MeasureView:
    """Build the report section on entropy and distance of each head, and on the effect of attention penalties."""
    shown, effects = [row for row in rows if collect_results(row, "attention")], shaping_effects(rows)
    cells, sentences, values = [], [], {}
    for row in shown:
        entropies, distances = (estimate_heads(row, statistic) for statistic in STATISTICS)
        for (layer, head, entropy), (_, _, distance) in zip(entropies, distances, strict=True):
            cells.append([row.title, str(layer), str(head), str(entropy), str(distance)])
        entropy, distance = (mean_over_heads(row, statistic) for statistic in STATISTICS)
        sentences.append(f"{row.title}: heads have a mean entropy of {entropy} nats and look {distance} tokens back.")
        values[row.title] = {
            statistic: [
                {"layer": layer, "head": head, "mean": mean.mean, "margin": mean.margin} for layer, head, mean in heads
            ]
            for statistic, heads in zip(STATISTICS, (entropies, distances), strict=True)
        }
    return MeasureView(
        heading="What the heads do",
        header=["model", "layer", "head", *STATISTICS.values()],
        rows=cells,
        plots=[plot_heads(shown, statistic) for statistic in STATISTICS] if shown else [],
        notes=[
            "Over all rows of attention on the validation text, in windows of the trained length. Entropy −Σ α ln α, "
            "distance Σ α |t₁ − t₂|."
        ],
        sentences=[*sentences, *map(str, effects)],
        values={"rows": values, "helped": [effect.to_dict() for effect in effects]},
    )


def loss_by_length(row: Row) -> list[Estimate | None]:
    """Return a row's mean loss within the first, second, … multiple of the trained length.

    None stands for lengths beyond the model's context.
    """
    seeds = collect_results(row, "positions")
    length, asked = seeds[0]["trained"], seeds[0]["asked"]
    means: list[Estimate | None] = []
    for start in range(0, math.ceil(asked / length) * length, length):
        losses = []
        for seed in seeds:
            points = zip(seed["positions"], seed["losses"], strict=True)
            if inside := [loss for position, loss in points if start < position <= start + length]:
                losses.append(sum(inside) / len(inside))
        means.append(estimate(losses) if losses else None)
    return means


def position_curve(row: Row) -> Curve:
    """Return the curve of a row's mean loss against position, with its interval over the seeds."""
    seeds = collect_results(row, "positions")
    points = [estimate(losses) for losses in zip(*(seed["losses"] for seed in seeds), strict=True)]
    intervals = points if len(seeds) > 1 else []
    low, high = tuple(point.low for point in intervals), tuple(point.high for point in intervals)
    return Curve(row.title, tuple(seeds[0]["positions"]), tuple(point.mean for point in points), low, high)


def view_positions(rows: Sequence[Row]) -> MeasureView:
    """Build the report section on the loss against position."""
    shown = {row.title: row for row in rows if collect_results(row, "positions")}
    firsts = {title: collect_results(row, "positions")[0] for title, row in shown.items()}
    means_by_row = {title: loss_by_length(row) for title, row in shown.items()}
    curves = tuple(map(position_curve, shown.values()))
    length = next((first["trained"] for first in firsts.values()), 0)
    columns = max(map(len, means_by_row.values()), default=0)
    far = []
    for title, means in means_by_row.items():
        if len(means) > 1 and means[0] and means[-1]:
            far.append((title, means[0], means[-1]))
    sentences = []
    for title, near, last in sorted(far, key=lambda ends: ends[2].mean):  # the best at the far end first
        change = f"{last.mean - near.mean:+.2f}".replace("-", "−")
        sentences.append(f"{title}: loss {near} up to the trained length, {last} in the last part ({change}).")
    limited = [
        f"{title} ends at position {first['readable']}: it has no vectors for later ones."
        for title, first in firsts.items()
        if first["readable"] < first["asked"]
    ]
    protocol = (
        "Each window of the validation text is read from its beginning; position p has p tokens before it, and all are "
        "seen. Mean over the windows, with the 95 % interval over the seeds."
    )
    caption = f"Validation loss against position. The dotted line is the trained length, {length}."
    return MeasureView(
        heading="Loss against position",
        title=f"Loss by position, T = {length} the trained length",
        header=["model", *(f"{number}T to {number + 1}T" if number else "up to T" for number in range(columns))],
        rows=[
            [title, *(str(mean or NO_VALUE) for mean in means), *[NO_VALUE] * (columns - len(means))]
            for title, means in means_by_row.items()
        ],
        plots=[Plot("position", "loss (nats/token)", curves, rule=float(length), caption=caption)],
        notes=[protocol, *limited],
        sentences=[*sentences, *limited],
        values={
            curve.title: {
                "trained": firsts[curve.title]["trained"],
                "positions": curve.x,
                "losses": curve.y,
                "spans": [mean and {"loss": mean.mean, "margin": mean.margin} for mean in means_by_row[curve.title]],
            }
            for curve in curves
        },
    )


# Steps to the same loss: how soon a model is where the first one ends.


def interpolate_steps(curve: Sequence[tuple[int, float]], target: float) -> tuple[float, str]:
    """Return (steps at which the loss reaches `target`, "at most " or "more than " if that is only a bound, else "").

    Between two points of `curve`, (steps, loss) of runs of different lengths, the loss is interpolated linearly in the
    logarithm of the steps.

    >>> round(interpolate_steps([(100, 2.0), (200, 1.5)], 1.75)[0], 3)
    141.421
    >>> interpolate_steps([(100, 2.0), (200, 1.5)], 2.5), interpolate_steps([(9, 2.0)], 1.0)
    ((100, 'at most '), (9, 'more than '))
    """
    points = sorted(curve)
    if points[0][1] <= target:
        return points[0][0], "" if points[0][1] == target else "at most "
    for (fewer, before), (more, after) in pairwise(points):
        if after <= target:
            fraction = (before - target) / (before - after)
            return math.exp(math.log(fewer) + fraction * math.log(more / fewer)), ""
    return points[-1][0], "more than "


@dataclass(frozen=True)
class StepsNeeded:
    """The steps in which a model reaches the loss that the study's first model ends with, seed by seed."""

    steps: Mapping[int, float]  # by seed
    bounds: Sequence[str]  # of each seed: "", "at most " or "more than "
    test: PairedTest  # of the logarithm of the fraction of the first model's steps

    @property
    def bound(self) -> str:
        """Return "more than " or "at most " if the steps of some seed are only bounded so; else ""."""
        return next((bound for bound in ("more than ", "at most ") if bound in self.bounds), "")

    @property
    def fraction(self) -> float:
        """Return the steps as a fraction of the first model's: the geometric mean over the seeds."""
        return math.exp(self.test.mean)


def view_steps(rows: Sequence[Row]) -> MeasureView:
    """Build the report section on the steps that each model needs for the final loss of the first, by seed."""
    runs: dict[str, dict[int, list[tuple[int, float]]]] = {}  # by condition and seed: steps and loss
    for row in rows:
        for seed, measures in row.measures.items():
            point = int(measures.recipe["steps"]), measures.loss
            runs.setdefault(row.condition, {}).setdefault(seed, []).append(point)
    first, *others = runs or [""]
    ends = {seed: max(curve) for seed, curve in runs.get(first, {}).items()}
    results: dict[str, StepsNeeded] = {}
    for name in others:
        seeds = sorted(runs[name].keys() & ends.keys())
        reached = {seed: interpolate_steps(runs[name][seed], ends[seed][1]) for seed in seeds}
        if reached:
            fractions = [reached[seed][0] / ends[seed][0] for seed in seeds]
            steps, bounds = {seed: reached[seed][0] for seed in seeds}, [bound for _, bound in reached.values()]
            results[name] = StepsNeeded(steps, bounds, PairedTest(tuple(map(math.log, fractions))))
    # bounds vary less than the steps themselves: a test of them would find too much
    tests = correct_tests({name: result.test for name, result in results.items() if not any(result.bounds)})
    cells, sentences = [], []
    for name, result in results.items():
        difference, verdict = "no test", ""
        if name in tests:
            difference, verdict = str(tests[name]), f": {tests[name].verdict}"
        mean = f"{result.bound}{fmean(result.steps.values()):,.0f}"
        percent = f"{result.bound}{100 * result.fraction:.0f} %"
        cells.append([name, mean, percent, difference])
        if result.bound:
            reason = "longest run does not reach it: add longer ones"
            if result.bound == "at most ":
                reason = "shortest run is already below it: add shorter ones"
            count = f"{result.bounds.count(result.bound)} of {len(result.bounds)} seeds"
            difference += f", since in {count} the {reason} to grid.steps"
        figures = f"{mean} against {fmean(end for end, _ in ends.values()):,.0f}"
        steps = f"{percent} of the steps of {first}"
        sentences.append(f"{name} needs {steps} for the same loss ({figures}; {difference}){verdict}.")
    target = fmean(loss for _, loss in ends.values()) if ends else math.nan
    return MeasureView(
        heading="Steps to the same loss",
        title=f"Steps to the loss that {first} ends with, {target:.3f} nats/token on average",
        header=["model", "steps", f"share of {first}", "difference"],
        rows=cells,
        plots=[],
        notes=["Read off the runs of several lengths, seed by seed; the test is of the logarithm of the share."],
        sentences=sentences,
        values={
            name: {"steps": result.steps, "bounds": result.bounds, "share": result.fraction}
            | (tests[name].to_dict() if name in tests else {"p": None})
            for name, result in results.items()
        },
    )


VIEWS: dict[str, Callable[[Sequence[Row]], MeasureView]] = {
    "positions": view_positions,
    "attention": view_attention,
    "steps": view_steps,
}
