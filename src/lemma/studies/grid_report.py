"""The report of a grid study: its table, conclusion, curves and samples."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from shlex import quote
from statistics import fmean, median
from typing import Any, Literal

from lemma.report.curves import Curve, Plot
from lemma.report.result import Block, Card, Cards, Heading, Items, Pre, Table, Text, plot_blocks, to_plain
from lemma.report.statistics import MIN_SEEDS, Estimate, PairedTest
from lemma.spec.studies import GridStudy, StudyBudget
from lemma.studies.cells import (
    CellOutcome,
    compare_rows,
    correct_tests,
    describe_seeds,
    format_settings,
    format_value,
    group_rows,
)
from lemma.studies.claims import ClaimVerdict, join_names, judge_claims
from lemma.studies.measures import (
    TEMPERATURE,
    VALIDATION_TOKENS,
    VIEWS,
    CurvePoint,
    LanguageMeasures,
    MeasureView,
    Row,
    TextSample,
)
from lemma.studies.result import NO_VALUE, NOTHING_FINISHED, NOTHING_TO_COMPARE, StudyResult, StudyTable
from lemma.studies.timing import quartiles, time_ratio

Seconds = Mapping[str, Sequence[float]]
"""Seconds per token of training steps, taken in turns, by the titles of rows."""
NOT_TIMED: Seconds = {}


@dataclass(frozen=True)
class ChosenRate:
    """The learning rate chosen for a row, and the results of its trials."""

    rate: float
    perplexities: Mapping[float, float | None]  # by the rates tried; None where a trial failed
    tokens: int  # read by all trials of the row


def report_grid(
    spec: GridStudy,
    outcomes: Sequence[CellOutcome[LanguageMeasures]],
    data: Mapping[str, str],
    hardware: Mapping[str, str],
    out: Path,
    interrupted: bool = False,
    token_seconds: Seconds = NOT_TIMED,
    chosen_rates: Mapping[str, ChosenRate] | None = None,
) -> StudyResult:
    """Build the result of a grid study from the outcomes of its cells.

    `data` and `hardware` are descriptions by topic; `token_seconds` (of each timed training step) and `chosen_rates`
    are by row title; `out` is the study's folder.
    """
    chosen_rates = chosen_rates or {}
    rows = tuple(group_rows(outcomes))
    claims = judge_claims(spec.claims, rows) if spec.claims else ()
    views = {name: VIEWS[name](rows) for name in spec.measures}
    trials = trial_blocks(chosen_rates, spec.tune.share) if spec.tune else []
    answers = views["steps"].sentences if "steps" in views else ()  # what such a study is about comes first
    other_sentences = [sentence for name, view in views.items() if name != "steps" for sentence in view.sentences]
    return StudyResult(
        title=spec.name,
        question=spec.question,
        spec=spec,
        out=out,
        data={**data, "budget": describe_budget(spec.budget), "seeds": ", ".join(map(str, spec.seeds))},
        hardware=hardware,
        protocol=describe_protocol(rows),
        table=make_table(rows, token_seconds),
        conclusion=(*answers, *conclude(rows, claims, token_seconds), *other_sentences),
        claims=claims,
        runs=tuple(outcomes),
        rows=rows,
        terminal_blocks=(*trials, *(block for view in views.values() for block in view.terminal_blocks())),
        page_blocks=tuple(build_page(rows, list(views.values()), claims, spec.budget, trials, token_seconds)),
        extra={
            **({"learning_rates": to_plain(chosen_rates)} if chosen_rates else {}),
            "measures": {name: view.values for name, view in views.items()},
            "claims": [claim.to_dict() for claim in claims],
        },
        interrupted=interrupted,
        next_command=next_command(rows, outcomes, out),
    )


def describe_protocol(rows: Sequence[Row]) -> dict[str, str]:
    """Describe how perplexity was measured, by topic."""
    reading, skipped = [], {}
    for row in rows:
        if row.first:
            protocol = row.first.protocol
            skipped |= dict.fromkeys(protocol.get("left_out", ()))
            if protocol.get("context"):
                reading.append(f"{row.title} in a context of {protocol['context']}, stride {protocol.get('stride')}")
            else:
                reading.append(f"{row.title} through its state, in {protocol.get('streams')} streams")
    first = f"its first {VALIDATION_TOKENS:,} tokens, or of all if fewer"
    protocol = {
        "validation": "a full pass over the validation text: each token but the first is predicted once",
        "on the way": f"curves, the best step and trials are of {first}",
        "read": "; ".join(reading),
        "left out": "; ".join(skipped),
    }
    return {name: value for name, value in protocol.items() if value}


def next_command(rows: Sequence[Row], outcomes: Sequence[CellOutcome[LanguageMeasures]], out: Path) -> str:
    """Return the shell command that generates text with the best run; "" if no run finished."""
    best = best_row(rows)
    if best is None:
        return ""
    key = (best.condition, format_settings(best.point))
    cells = (outcome.cell for outcome in outcomes if outcome.measures)
    cell = next(cell for cell in cells if (cell.condition, cell.point_text) == key)
    return f"lemma generate {quote(str(out / 'runs' / cell.name))} --tokens 300 --temperature 0.7"


def best_row(rows: Sequence[Row]) -> Row | None:
    """Return the row with the lowest mean perplexity; None if no run finished."""
    ranked = [(score.mean, index) for index, row in enumerate(rows) if (score := row.estimate("perplexity"))]
    return rows[min(ranked)[1]] if ranked else None


def make_table(rows: Sequence[Row], token_seconds: Seconds = NOT_TIMED) -> StudyTable:
    """Build a table with a line per model and grid point, means over seeds; the lowest perplexity is marked.

    `token_seconds` maps row titles to the seconds per token of each timed training step.
    """
    best = best_row(rows)
    tokens = [count and count.mean for count in (row.estimate("tokens") for row in rows)]
    tokens_differ = len({count for count in tokens if count}) > 1
    cells, records = [], []
    for row, count in zip(rows, tokens, strict=True):
        scores = {name: row.estimate(name) for name in ("perplexity", "bits_per_byte")}
        trained, parameters = row.estimate("seconds"), row.count("parameters")
        times = token_seconds.get(row.title)
        speed = quartiles([1 / time for time in times]) if times else None
        record: dict[str, Any] = {"model": row.condition, **row.point, "seeds": len(row.measures)}
        for name, score in scores.items():
            record |= {name: score and score.mean, f"{name}_margin": score and score.margin}
        records.append(
            {
                **record,
                "parameters": parameters,
                "tokens": count and round(count),
                "tokens_per_second": speed and speed.median,
                "tokens_per_second_low": speed and speed.low,
                "tokens_per_second_high": speed and speed.high,
                "seconds": trained and trained.mean,
                "best": row is best,
                "notes": "; ".join(row.missing_seeds),
            }
        )
        counts = (parameters, count) if tokens_differ else (parameters,)
        speed_text = NO_VALUE
        if speed:
            speed_text = (
                f"{format_thousands(speed.median)} ({format_thousands(speed.low)}–{format_thousands(speed.high)})"
            )
        cells.append(
            [
                row.condition,
                *map(format_value, row.point.values()),
                *(str(score or NO_VALUE) for score in scores.values()),
                *(NO_VALUE if number is None else f"{number:,.0f}" for number in counts),
                speed_text,
            ]
        )
    figures = ["perplexity", "bits/byte", "parameters", *(["tokens"] if tokens_differ else []), "1,000 tokens/s"]
    timed = " Speed: training steps timed in turns, apart from the runs; median and quartiles." if token_seconds else ""
    caption = f"Perplexity and bits per byte: full validation pass.{describe_seeds(rows)}{timed}"
    return StudyTable(
        header=["model", *rows[0].point, *figures],
        rows=cells,
        records=records,
        caption=caption if best else NOTHING_FINISHED,
        notes=[note for row in rows for note in row.notes],
        best_row=rows.index(best) if best else None,
        mark_meaning="* marks the lowest perplexity.",
    )


def format_thousands(speed: float) -> str:
    """Write a speed in thousands, with three digits or without decimals.

    >>> format_thousands(21_340), format_thousands(1_291_700)
    ('21.3', '1,292')
    """
    return f"{speed / 1e3:,.0f}" if speed >= 1e6 else f"{speed / 1e3:.3g}"


# The conclusion: what the numbers say, in sentences made from them.


NOTABLE_SPEEDUP = 1.05  # a ratio of speeds worth a sentence
FALLING_PERCENT = 1.0  # of perplexity between the last two validations: the curve is still falling


def conclude(rows: Sequence[Row], claims: Sequence[ClaimVerdict] = (), token_seconds: Seconds = NOT_TIMED) -> list[str]:
    """Return sentences on the best row, rows that differ from it, trends, speed, missing runs and the claims.

    `token_seconds` maps row titles to the seconds per token of each timed training step.
    """
    missing = []
    failed, pending = sum(len(row.failures) for row in rows), sum(len(row.pending) for row in rows)
    runs = failed + pending + sum(len(row.measures) for row in rows)
    if failed:
        reasons = "its reason is" if failed == 1 else "their reasons are"
        missing.append(f"{failed} of {runs} runs failed; {reasons} below the table.")
    if pending:
        missing.append(f"{pending} of {runs} runs {'is' if pending == 1 else 'are'} still to be run.")
    scored = [row for row in rows if row.measures]
    if not scored:
        return [NOTHING_TO_COMPARE, *missing]
    findings = [*_best_sentences(scored), *_trend_sentence(scored), *_speed_sentence(scored, token_seconds)]
    return [*findings, *missing, *(claim.sentence for claim in claims)]


def _best_sentences(rows: Sequence[Row]) -> Iterator[str]:
    """Yield sentences on the best row and how others differ, paired by seed, with p-values corrected for all pairs.

    The best row is selected by the same figures, so that every pair of rows counts as a comparison.
    """

    def log_mean(row: Row) -> float:
        """Return the mean log perplexity of a row over its seeds."""
        return fmean(map(math.log, row.values("perplexity").values()))

    best, *other_rows = sorted(rows, key=log_mean)
    yield f"{best.title} has the lowest validation perplexity at this budget: {best.estimate('perplexity')}."
    if not other_rows:
        return
    corrected = correct_tests(
        {(row.title, other.title): compare_rows(row, other, "perplexity") for row, other in combinations(rows, 2)}
    )
    tests: dict[str, PairedTest] = {}
    for row in other_rows:
        if test := corrected.get((row.title, best.title)):
            tests[row.title] = test
        elif test := corrected.get((best.title, row.title)):
            tests[row.title] = replace(test, differences=tuple(-difference for difference in test.differences))
    next_best = f"{other_rows[0].title} with {other_rows[0].estimate('perplexity')}"
    if all(test.p is None for test in tests.values()):
        counts = {len(test.differences) for test in tests.values()}
        is_always_ahead = (
            counts == {2}
            and all(min(test.differences) > 0 for test in tests.values())
            and len(tests) == len(other_rows)
        )
        ahead = "Next"
        if is_always_ahead:
            ahead = f"It is ahead of {'the other' if len(other_rows) == 1 else 'every other'} in both seeds; next"
        few = "Two seeds are" if counts == {2} else "One seed is" if counts == {1} else "These seeds are"
        yield f"{ahead} is {next_best}. {few} no test: with seeds={MIN_SEEDS} or more differences get p-values."
        return
    higher = {title: test for title, test in tests.items() if test.is_significant}
    similar = {title: test for title, test in tests.items() if not test.is_significant}
    if higher:
        yield f"Significantly higher: {'; '.join(f'{title} by {test}' for title, test in higher.items())}."
    if similar:
        figures = [f"{title} {test}" if len(similar) > 1 else str(test) for title, test in similar.items()]
        do = "does" if len(similar) == 1 else "do"
        yield f"{join_names(list(similar))} {do} not differ significantly from it: {'; '.join(figures)}."
    if len(corrected) > 1:
        pairs = f"p-values are corrected for all {len(corrected)} pairs (Holm)"
        yield f"{pairs}: the best was chosen from the same figures."


def _trend_sentence(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence on how much perplexity still fell between the last two validations; none for short curves."""
    falls, last_part = {}, 0.0
    for row in rows:
        curve = mean_curve([run.curve for run in row.measures.values()])
        if len(curve) < 3:
            return
        falls[row.title] = -100 * math.expm1(curve[-1].loss - curve[-2].loss)
        last_part = 100 * (1 - curve[-2].tokens / curve[-1].tokens)
    ranked = sorted(falls, key=falls.__getitem__, reverse=True)
    each = ", ".join(f"{title} {falls[title]:.1f} %" for title in ranked)
    fall = f"over the last {last_part:.0f} % of the training perplexity fell by: {each}"
    if falls[ranked[0]] > FALLING_PERCENT:
        yield f"The curves are still falling; {fall}. What holds at this budget need not hold at a larger one."
    else:
        yield f"The curves are flat; {fall}."


def _speed_sentence(rows: Sequence[Row], token_seconds: Seconds) -> Iterator[str]:
    """Yield a sentence on the model that trains fastest, if the difference exceeds the spread of the times."""
    timed: dict[tuple[float, ...], list[Row]] = {}
    for row in rows:
        if row.title in token_seconds:
            timed.setdefault(tuple(token_seconds[row.title]), []).append(row)
    conditions = [{row.condition for row in group} for group in timed.values()]
    times_by_name = {}
    for times, group in timed.items():  # a model by its own name, where no setting that matters has several values
        condition = group[0].condition
        is_unique = sum(condition in names for names in conditions) == 1
        times_by_name[condition if is_unique else group[0].title] = times
    ranked = sorted(times_by_name, key=lambda name: median(times_by_name[name]))
    if len(ranked) < 2:
        return
    ratio = time_ratio(times_by_name[ranked[-1]], times_by_name[ranked[0]])
    if ratio.low > NOTABLE_SPEEDUP:
        yield (
            f"{ranked[0]} trains fastest, {ratio.median:.1f} × the tokens/s of {ranked[-1]}, the slowest (quartiles "
            f"{ratio.low:.1f} to {ratio.high:.1f}; timed in turns, apart from the runs)."
        )


# The page: intervals, what else was measured, learning curves, claims, samples and models.


AXES: dict[Literal["tokens", "seconds"], str] = {"tokens": "training tokens", "seconds": "training seconds"}
LISTED_SETTINGS = ("learning_rate", "batch", "sequence_length", "steps", "dropout")


def build_page(
    rows: Sequence[Row],
    views: Sequence[MeasureView],
    claims: Sequence[ClaimVerdict],
    budget: StudyBudget,
    trials: Sequence[Block] = (),
    token_seconds: Seconds = NOT_TIMED,
) -> Iterator[Block]:
    """Yield the blocks of the HTML page below the table; `trials` are those on the learning rates that were tried."""
    has_scores = best_row(rows) is not None
    if has_scores:
        yield from plot_blocks([plot_intervals(rows)], "narrow")
    yield from plot_blocks(plot_sweeps(rows))
    yield from trials
    for view in views:
        yield from view.page_blocks()
    if has_scores:
        yield from _curve_blocks(rows, token_seconds)
    if claims:
        yield from _claim_blocks(claims)
    if any(row.first for row in rows):
        yield from _sample_blocks(rows)
        yield from _model_blocks(rows, budget)


def _curve_blocks(rows: Sequence[Row], token_seconds: Seconds) -> Iterator[Block]:
    """Yield the section on learning curves."""
    yield Heading("Learning curves")
    if not any(len(measures.curve) > 1 for row in rows for measures in row.measures.values()):
        yield Text("There are none: each run was validated once, at its end. More points: validations=5.")
        return
    yield from plot_blocks(plot_learning_curves(rows, axis, token_seconds) for axis in AXES)
    loss = f"The loss is that of up to {VALIDATION_TOKENS:,} validation tokens."
    lines = "Each seed is a thin line, the mean of the seeds a thick one."
    timed = "Seconds are those of the timed steps" if token_seconds else "Seconds are those of the runs"
    yield Text(f"{loss} {lines} {timed}; validations are not counted.", "note")


def _claim_blocks(claims: Sequence[ClaimVerdict]) -> Iterator[Block]:
    """Yield the section on claims."""
    kinds: dict[str, Any] = {"held": "good", "not held": "bad"}
    yield Heading("Claims")
    cards = []
    for claim in claims:
        verdict = Text(claim.verdict, kinds.get(claim.verdict, "strong"))
        cards.append(Card(claim.claim, [verdict, Items(list(map(str, claim.comparisons)), "note")]))
    yield Cards(cards)
    yield Text(
        "Judged by the paired t-test of log perplexity over the seeds; p-values are corrected for the number of "
        "comparisons (Holm), d is Cohen's effect size of pairs.",
        "note",
    )


def _sample_blocks(rows: Sequence[Row]) -> Iterator[Block]:
    """Yield the sections on generated samples and their loops."""
    measured = [(row.title, row.first) for row in rows if row.first]
    note = f"One sample of each model, of its first seed, at temperature {TEMPERATURE}; the prompt is grey."
    yield from (Heading("Samples"), Text(note, "note"))
    yield Cards([Card(title, [Pre(_sample_parts(first.sample))]) for title, first in measured])
    yield Heading("The loop each falls into")
    yield Text(
        "At temperature 0 a model always takes the most likely token, and sooner or later repeats itself. The first "
        "round of the loop is dark, its repetitions are light. A loop is proved where the model's whole state came "
        "back, for then all that follows must come back too.",
        "note",
    )
    greedy = ((title, first.greedy) for title, first in measured)
    yield Cards([Card(title, [Pre(_sample_parts(sample))], describe_loop(sample)) for title, sample in greedy])


def _model_blocks(rows: Sequence[Row], budget: StudyBudget) -> Iterator[Block]:
    """Yield the section on sizes and recipes of the models; a parameter budget adds each model's excess over it."""

    def write_values(values: Mapping[str, Any]) -> str:
        """Write settings with their values, such as "hidden 128, depth 2"."""
        return ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in values.items())

    lines = []
    for row in rows:
        if not row.first:
            continue
        first = row.first
        sizes = {name: value for name, value in first.model.items() if type(value) is int}
        recipe = {name: first.recipe[name] for name in LISTED_SETTINGS if first.recipe.get(name)}
        if first.trial_speed:
            recipe["trial tokens/s"] = round(first.trial_speed)
        line = [row.title, write_values(sizes), write_values(recipe)]
        if budget.parameters:
            excess = f"{100 * (first.parameters / budget.parameters - 1):+.2f} %".replace("-", "−")
            line.insert(2, excess)
        lines.append(line)
    against = ["against the budget"] if budget.parameters else []
    yield from (Heading("Models and recipes"), Table(["model", "sizes", *against, "recipe"], lines, is_text=True))


def plot_sweeps(rows: Sequence[Row]) -> list[Plot]:
    """Plot perplexity against each grid setting that has at least three numeric values."""
    plots = []
    for setting in rows[0].point:
        scored = [(row, score) for row in rows if (score := row.estimate("perplexity"))]
        values = {row.point[setting] for row, _ in scored}
        if len(values) < 3 or any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in values):
            continue
        groups: dict[str, list[tuple[float, Estimate]]] = {}  # a curve for all else that differs
        for row, score in scored:
            other_settings = format_settings({name: value for name, value in row.point.items() if name != setting})
            title = (
                ", ".join(filter(None, [row.condition, other_settings])) if len(rows[0].point) < 3 else row.condition
            )
            groups.setdefault(title, []).append((float(row.point[setting]), score))
        curves = []
        for title, points in groups.items():
            points = sorted(points, key=lambda point: point[0])
            low, mean, high = (tuple(getattr(score, end) for _, score in points) for end in ("low", "mean", "high"))
            curves.append(Curve(title, tuple(x for x, _ in points), mean, low, high, dots=True))
        axis = setting.replace("_", " ")
        caption = f"Validation perplexity against {axis}: means over the seeds, 95 % intervals."
        log_x = min(values) > 0 and max(values) >= 8 * min(values)
        plots.append(Plot(axis, "validation perplexity", tuple(curves), log_x=log_x, bars=True, caption=caption))
    return plots


def mean_curve(curves: Iterable[Sequence[CurvePoint]]) -> list[CurvePoint]:
    """Return the average of the learning curves of several seeds point by point, as long as the shortest."""
    columns = (tuple(zip(*points, strict=True)) for points in zip(*curves, strict=False))
    return [CurvePoint(round(fmean(tokens)), fmean(seconds), fmean(loss)) for tokens, seconds, loss in columns]


def plot_learning_curves(
    rows: Sequence[Row], axis: Literal["tokens", "seconds"], token_seconds: Seconds = NOT_TIMED
) -> Plot:
    """Plot validation loss against tokens or seconds: seeds as thin lines, the mean of each row thick.

    With the `token_seconds` of a row, its time is tokens × their median, so that other processes on the machine do not
    distort a curve.
    """

    def make_curve(row: Row, points: Sequence[CurvePoint], thin: bool = False) -> Curve:
        """Return the loss curve of a row; on the time axis, timed steps replace the seconds of its runs."""
        times = token_seconds.get(row.title) if axis == "seconds" else None
        x = tuple(point.tokens * median(times) if times else getattr(point, axis) for point in points)
        return Curve(row.title, x, tuple(point.loss for point in points), thin=thin)

    seeds = [make_curve(row, run.curve, thin=True) for row in rows for run in row.measures.values()]
    means = [make_curve(row, mean_curve([run.curve for run in row.measures.values()])) for row in rows if row.measures]
    caption = f"Validation loss against {AXES[axis]}."
    return Plot(AXES[axis], "validation loss (nats/token)", (*seeds, *means), caption=caption)


def plot_intervals(rows: Sequence[Row]) -> Plot:
    """Plot the mean perplexity of each row with its interval, and every seed as a small dot."""
    scored = [(row, score) for row in rows if (score := row.estimate("perplexity"))]
    curves = []
    for index, (row, score) in enumerate(scored):
        seeds = tuple(row.values("perplexity").values())
        low = max(1.0, score.low)  # no perplexity is lower, however wide the interval of a few seeds may be
        curves.append(Curve(row.title, (index,), (score.mean,), (low,), (score.high,), dots=True))
        curves.append(Curve(row.title, (index,) * len(seeds), seeds, dots=True, thin=True))
    interval = ", its 95 % interval (line)," if any(len(row.measures) >= MIN_SEEDS for row in rows) else ""
    caption = f"Validation perplexity: mean (dot){interval} and each seed (small dot). Lower is better."
    ticks = tuple(row.title for row, _ in scored)
    return Plot("", "validation perplexity", tuple(curves), caption=caption, bars=True, ticks=ticks, joined=False)


MAX_ROUNDS, MAX_CHARACTERS, MAX_LINES = 2, 60, 6  # of the repetitions of a loop that are shown
VISIBLE_SPACES = {ord(" "): "␣", ord("\n"): "↵", ord("\t"): "⇥"}  # how a loop of white space alone is shown
Part = tuple[str, Literal["", "prompt", "loop", "again"]]


def describe_loop(sample: TextSample) -> str:
    """Describe the loop of a sample in sentences: its onset, its period, and which state proves it, if one does."""
    loop = sample.loop
    if loop is None:
        return "No loop as far as this goes."
    every = "every token" if loop.period == 1 else f"every {loop.period} tokens"
    proof = f"Proved: {loop.state} came back." if loop.proved else f"Not proved: {loop.state} did not come back."
    return f"Onset {loop.onset}, period {loop.period}: from token {loop.onset} on it repeats {every}. {proof}"


def _sample_parts(sample: TextSample) -> list[Part]:
    """Split a sample into styled parts: prompt, text, first round of its loop, and some repetitions."""
    start, end = (sample.loop.begin, sample.loop.end) if sample.loop else (len(sample.text),) * 2
    before, loop, repetitions = sample.text[:start], sample.text[start:end], sample.text[end:]
    again = "".join(repetitions[: max(MAX_ROUNDS * len(loop), MAX_CHARACTERS)].splitlines(keepends=True)[:MAX_LINES])
    ellipsis = " …" if again and len(again) < len(repetitions) else ""
    if not loop.strip():
        loop, again = loop.translate(VISIBLE_SPACES), again.translate(VISIBLE_SPACES)
    parts: list[Part] = [(sample.prompt, "prompt"), (before, ""), (loop, "loop"), (again, "again"), (ellipsis, "")]
    return [part for part in parts if part[0]]


def describe_budget(budget: StudyBudget) -> str:
    """Describe the budget of each model.

    >>> describe_budget(StudyBudget(parameters=1000, tokens=5000))
    '1,000 parameters and 5,000 training tokens for each model'
    """
    parts = [
        f"{budget.parameters:,} parameters" if budget.parameters else "",
        f"{budget.tokens:,} training tokens" if budget.tokens else "",
        f"{budget.seconds:g} seconds of training" if budget.seconds else "",
    ]
    return " and ".join(filter(None, parts)) + " for each model" if any(parts) else "none"


def trial_blocks(chosen_rates: Mapping[str, ChosenRate], fraction: float) -> list[Block]:
    """Return the blocks with the perplexity of each row at each learning rate tried; the chosen rate is marked.

    `chosen_rates` are by row title; `fraction` is the length of a trial relative to a run.
    """
    if not chosen_rates:
        return []
    rates = list(next(iter(chosen_rates.values())).perplexities)
    lines = []
    for title, rate_choice in chosen_rates.items():
        cells = []
        for rate in rates:
            perplexity = rate_choice.perplexities[rate]
            cell = NO_VALUE if perplexity is None else f"{perplexity:,.2f}"
            cells.append(f"{cell} *" if rate == rate_choice.rate else cell)
        lines.append([title, *cells, f"{rate_choice.tokens:,}"])
    header = ["model", *(f"{rate:g}" for rate in rates), "tokens"]
    note = (
        f"Perplexity of up to {VALIDATION_TOKENS:,} validation tokens after {100 * fraction:.3g} % of the steps, with "
        "one more seed; * marks the rate chosen. These tokens come on top of the budget."
    )
    for end, rate in (("lowest", min(rates)), ("highest", max(rates))):
        if at_end := [title for title, choice in chosen_rates.items() if choice.rate == rate and len(rates) > 1]:
            note += f" Best at the {end} rate tried, so that a {end[:-3]}er one may be better: {'; '.join(at_end)}."
    return [Table(header, lines, title="Learning rates tried"), Text(note, "note")]
