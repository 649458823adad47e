"""Language models on one text, at every place of a grid, with equal budgets: how they are run, and what they show.

First the report (the table, the verdicts on claims, the conclusion, curves and samples), then the cells and the
experiment.
"""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from statistics import fmean, median
from typing import Any, Literal, NamedTuple

from lemma.data.store import prepare_text
from lemma.errors import RunError, SpecError, describe_unknown
from lemma.report.curves import COLOURS, Curve, Plot, can_draw, to_svg
from lemma.report.progress import Observer, reading_progress
from lemma.report.result import Block, Card, Cards, Figure, Heading, Items, Legend, Pre, Table, Text, plot_blocks
from lemma.report.statistics import MIN_SEEDS, Estimate, PairedTest, holm_correct, import_optional
from lemma.runs.load import Run
from lemma.spec.base import Spec, distribute
from lemma.spec.choose import Choice, choose, read_model
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import Recipe
from lemma.spec.studies import GridStudy, StudyBudget, StudyClaim, TuneStudy
from lemma.studies.budget import (
    TIME_NEUTRAL_SETTINGS,
    describe_hardware,
    device_of,
    fit_parameters,
    fit_schedule,
    fit_steps,
    measure_speed,
    quartiles,
    time_ratio,
    time_steps,
    tokens_per_step,
)
from lemma.studies.experiment import (
    CellOutcome,
    RunPlan,
    StudyCell,
    TitledObserver,
    TrainingExperiment,
    compare_rows,
    describe_seeds,
    format_settings,
    format_value,
    group_rows,
    hold_lock,
    read_json,
    write_json,
)
from lemma.studies.measures import (
    SPLIT,
    TEMPERATURE,
    VALIDATION_TOKENS,
    VIEWS,
    CurvePoint,
    LanguageMeasures,
    MeasureView,
    Row,
    Scorer,
    TextSample,
    measure_run,
)
from lemma.studies.result import NO_VALUE, StudyResult, StudyTable


def report_grid(
    spec: GridStudy,
    outcomes: Sequence[CellOutcome[LanguageMeasures]],
    data: Mapping[str, str],
    hardware: Mapping[str, str],
    out: Path,
    interrupted: bool = False,
    seconds: Mapping[str, Sequence[float]] | None = None,
    chosen_rates: Mapping[str, "ChosenRate"] | None = None,
) -> StudyResult:
    """Put the findings together.

    By the titles of rows: `seconds` per token of training steps, taken in turns, and learning rates that were `chosen`.
    """
    rows = tuple(group_rows(outcomes))
    claims = judge_claims(spec.claims, rows)
    views = {name: VIEWS[name](rows) for name in spec.measures}
    trials = trial_blocks(chosen_rates or {}, spec.tune.share) if spec.tune else []
    answers = views["steps"].sentences if "steps" in views else ()  # what such a study is about comes first
    others = [said for name, view in views.items() if name != "steps" for said in view.sentences]
    protocols = [(row.title, row.first.protocol) for row in rows if row.first]
    read = [
        f"{title} in a context of {one['context']}, stride {one.get('stride')}"
        if one.get("context")
        else f"{title} through its state, in {one.get('streams')} streams"
        for title, one in protocols
    ]
    protocol = {
        "validation": "a full pass over the validation text: each token but the first is predicted once",
        "on the way": f"curves, the best step and trials are of its first {VALIDATION_TOKENS:,} tokens, or of all if fewer",
        "read": "; ".join(read),
        "left out": "; ".join(dict.fromkeys(text for _, one in protocols for text in one.get("left_out", ()))),
    }
    return StudyResult(
        title=spec.name,
        question=spec.question,
        spec=spec,
        out=out,
        data={**data, "budget": describe_budget(spec.budget), "seeds": ", ".join(map(str, spec.seeds))},
        hardware=hardware,
        protocol={name: value for name, value in protocol.items() if value},
        table=make_table(rows, seconds),
        conclusion=(*answers, *conclude(rows, claims, seconds), *others),
        claims=claims,
        runs=tuple(outcomes),
        rows=rows,
        terminal_blocks=(*trials, *(block for view in views.values() for block in view.terminal_blocks())),
        page_blocks=tuple(build_page(rows, list(views.values()), claims, spec.budget, trials, seconds)),
        extra={
            **({"learning_rates": {title: asdict(one) for title, one in chosen_rates.items()}} if chosen_rates else {}),
            "measures": {name: view.values for name, view in views.items()},
            "claims": [claim.to_dict() for claim in claims],
        },
        interrupted=interrupted,
        next_command=next_command(rows, outcomes, out),
    )


def next_command(rows: Sequence[Row], outcomes: Sequence[CellOutcome[LanguageMeasures]], out: Path) -> str:
    """Let the best run write something; nothing if no run has come to its end."""
    best = best_row(rows)
    if best is None:
        return ""
    place = (best.condition, format_settings(best.point))
    cells = [one.cell for one in outcomes if one.measures and (one.cell.condition, one.cell.point_text) == place]
    return f"lemma generate {quote(str(out / 'runs' / cells[0].name))} --tokens 300 --temperature 0.7"


def best_row(rows: Sequence[Row]) -> Row | None:
    """The row with the lowest mean perplexity."""
    ranked = [(one.mean, place) for place, row in enumerate(rows) if (one := row.estimate("perplexity"))]
    return rows[min(ranked)[1]] if ranked else None


def make_table(rows: Sequence[Row], seconds: Mapping[str, Sequence[float]] | None = None) -> StudyTable:
    """One row for each model at each place of the grid, means over seeds; the lowest perplexity is marked.

    `seconds` per token were taken in turns, by the titles of rows.
    """
    best = best_row(rows)
    tokens = [one and one.mean for one in (row.estimate("tokens") for row in rows)]
    differ = len({count for count in tokens if count}) > 1
    cells, records = [], []
    for row, count in zip(rows, tokens, strict=True):
        scores = {name: row.estimate(name) for name in ("perplexity", "bits_per_byte")}
        trained, parameters = row.estimate("seconds"), row.count("parameters")
        taken = (seconds or {}).get(row.title)
        speed = quartiles([1 / one for one in taken]) if taken else None
        record: dict[str, Any] = {"model": row.condition, **row.point, "seeds": len(row.measures)}
        for name, one in scores.items():
            record |= {name: one and one.mean, f"{name}_margin": one and one.margin}
        record |= {"parameters": parameters, "tokens": count and round(count)}
        ends = {f"tokens_per_second_{end}": speed and getattr(speed, end) for end in ("low", "high")}
        record |= {"tokens_per_second": speed and speed.median, **ends, "seconds": trained and trained.mean}
        records.append({**record, "best": row is best, "notes": "; ".join(row.missing_seeds)})
        cells.append(
            [
                row.condition,
                *map(format_value, row.point.values()),
                *(NO_VALUE if one is None else str(one) for one in scores.values()),
                *(NO_VALUE if one is None else f"{one:,.0f}" for one in (parameters, *([count] if differ else []))),
                NO_VALUE
                if speed is None
                else "{} ({}–{})".format(*map(in_thousands, (speed.median, speed.low, speed.high))),
            ]
        )
    figures = ["perplexity", "bits/byte", "parameters", *(["tokens"] if differ else []), "1,000 tokens/s"]
    timed = " Speed: training steps timed in turns, apart from the runs; median and quartiles." if seconds else ""
    return StudyTable(
        header=["model", *rows[0].point, *figures],
        rows=cells,
        records=records,
        caption=f"Perplexity and bits per byte: full validation pass.{describe_seeds(rows)}{timed}"
        if best
        else "No run has come to its end.",
        notes=[note for row in rows for note in row.notes],
        best_row=rows.index(best) if best else None,
        mark_meaning="* marks the lowest perplexity.",
    )


def in_thousands(speed: float) -> str:
    """Thousands, to three places or to the unit.

    >>> in_thousands(21_340), in_thousands(1_291_700)
    ('21.3', '1,292')
    """
    return f"{speed / 1e3:,.0f}" if speed >= 1e6 else f"{speed / 1e3:.3g}"


# Claims judged from the numbers: held, not held, or not decided.


Verdict = Literal["held", "not held", "not decided", "too few seeds", "not measured"]
SEVERITY: tuple[Verdict, ...] = ("not held", "not measured", "too few seeds", "not decided", "held")


class ComparisonVerdict(NamedTuple):
    """One comparison of two rows: what was found, and what that says of the claim."""

    finding: str
    verdict: Verdict
    p: float | None = None

    def __str__(self) -> str:
        return f"{self.finding}: {self.verdict}"


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim and what the numbers say of it; it holds if each of its comparisons does."""

    claim: str
    comparisons: tuple[ComparisonVerdict, ...]

    @property
    def verdict(self) -> Verdict:
        """The gravest verdict among the comparisons."""
        found = {one.verdict for one in self.comparisons}
        return next(verdict for verdict in SEVERITY if verdict in found)

    def __str__(self) -> str:
        return "\n".join([f"{self.claim.rstrip('.')}: {self.verdict}", *(f"  {one}" for one in self.comparisons)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        comparisons = [one._asdict() for one in self.comparisons]
        return {"claim": self.claim, "verdict": self.verdict, "comparisons": comparisons}


def judge_claims(claims: Sequence[StudyClaim], rows: Sequence[Row]) -> tuple[ClaimVerdict, ...]:
    """Judge claims by paired differences of log perplexity over the seeds, p-values corrected for all comparisons."""
    places = [{"model": row.condition, **row.point} for row in rows]
    compared: list[tuple[int, str, str, PairedTest | None]] = []  # the claim, where, what is expected, the test
    for number, claim in enumerate(claims):
        for comparison in claim.comparisons:
            for row, place in zip(rows, places, strict=True):
                if not place.items() >= comparison.at.items():
                    continue
                other = rows[places.index({**place, **comparison.against})]
                elsewhere = {  # the settings that the comparison leaves open, as far as they distinguish rows
                    word: value
                    for word, value in place.items()
                    if word not in comparison.at and any(one[word] != value for one in places)
                }
                where = f"{format_settings(comparison.at)} against {format_settings(comparison.against)}"
                where += f" ({format_settings(elsewhere)})" if elsewhere else ""
                both = f"{row.estimate('perplexity')} against {other.estimate('perplexity')}"
                compared.append(
                    (number, f"{where}: {both}", comparison.expects, compare_rows(row, other, "perplexity"))
                )
    corrected = iter(holm_correct([test for *_, test in compared if test]))
    judged: list[list[ComparisonVerdict]] = [[] for _ in claims]
    for number, where, expects, test in compared:
        if test is None:
            judged[number].append(ComparisonVerdict(f"{where.partition(': ')[0]}: a run is missing", "not measured"))
            continue
        test = next(corrected)
        expected = "below 0" if expects == "lower" else "not below 0"
        finding = f"{where}, {test}, expected {expected}"
        judged[number].append(ComparisonVerdict(finding, judge_difference(test, expects), test.p))
    return tuple(ClaimVerdict(claim.says, tuple(some)) for claim, some in zip(claims, judged, strict=True))


def judge_difference(test: PairedTest, expects: str) -> Verdict:
    """Say what a difference of perplexities means for the claim that it is below zero ("lower"), or is not.

    >>> from lemma.report.statistics import paired_test
    >>> judge_difference(paired_test([6.0, 6.1, 6.2], [7.0, 7.1, 7.3]), "lower")
    'held'
    """
    if test.p is None:
        return "too few seeds"
    if not test.is_significant:
        return "not decided"
    return "held" if (test.mean < 0) == (expects == "lower") else "not held"


# The conclusion: what the numbers say, in sentences made from them.


NOTABLE_SPEEDUP = 1.05  # a ratio of speeds worth a sentence
VERDICT_SENTENCES = {
    "held": "held in every comparison",
    "not held": "did not hold",
    "not decided": "not decided, since a difference is not significant",
    "too few seeds": f"not decided, since fewer than {MIN_SEEDS} seeds give no test",
    "not measured": "not decided, since a run is missing",
}


def conclude(
    rows: Sequence[Row], claims: Sequence[ClaimVerdict] = (), seconds: Mapping[str, Sequence[float]] | None = None
) -> tuple[str, ...]:
    """Say which row is best, which differ from it, where the curves are heading, what is fast, and which claims held.

    `seconds` per token were taken in turns, by the titles of rows.
    """
    missing = []
    failed, waiting = sum(len(row.failures) for row in rows), sum(len(row.pending) for row in rows)
    runs = failed + waiting + sum(len(row.measures) for row in rows)
    if failed:
        reasons = "its reason is" if failed == 1 else "their reasons are"
        missing.append(f"{failed} of {runs} runs failed; {reasons} below the table.")
    if waiting:
        missing.append(f"{waiting} of {runs} runs {'is' if waiting == 1 else 'are'} still to be run.")
    scored = [row for row in rows if row.measures]
    if not scored:
        return ("No run came to its end, so that there is nothing to compare.", *missing)
    said = [*_best_sentences(scored), *_trend_sentence(scored), *_speed_sentence(scored, seconds or {})]
    return (*said, *missing, *(f"“{claim.claim.rstrip('.')}”: {VERDICT_SENTENCES[claim.verdict]}." for claim in claims))


def _join_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _best_sentences(rows: Sequence[Row]) -> Iterator[str]:
    """Which row is best, and which differ from it: paired by seed, corrected for all pairs.

    Which of the rows is best is chosen from the same figures, so that every pair of rows is one of the comparisons.
    """

    def log_mean(row: Row) -> float:
        return fmean(map(math.log, row.values("perplexity").values()))

    best, *others = sorted(rows, key=log_mean)
    yield f"{best.title} has the lowest validation perplexity at this budget: {best.estimate('perplexity')}."
    if not others:
        return
    pairs = [(one, other) for place, one in enumerate(rows) for other in rows[place + 1 :]]
    known = {(one.title, other.title): test for one, other in pairs if (test := compare_rows(one, other, "perplexity"))}
    corrected = dict(zip(known, holm_correct(list(known.values())), strict=True))

    def against_best(row: Row) -> PairedTest | None:
        found = corrected.get((row.title, best.title))
        turned = corrected.get((best.title, row.title))
        return found or (turned and replace(turned, differences=tuple(-one for one in turned.differences)))

    tests = {row.title: test for row in others if (test := against_best(row))}
    following = f"{others[0].title} with {others[0].estimate('perplexity')}"
    if all(test.p is None for test in tests.values()):
        counts = {len(test.differences) for test in tests.values()}
        always = (
            counts == {2} and all(min(test.differences) > 0 for test in tests.values()) and len(tests) == len(others)
        )
        ahead = (
            f"It is ahead of {'the other' if len(others) == 1 else 'every other'} in both seeds; next"
            if always
            else "Next"
        )
        few = "Two seeds are" if counts == {2} else "One seed is" if counts == {1} else "These seeds are"
        yield f"{ahead} is {following}. {few} no test: with seeds={MIN_SEEDS} or more differences get p-values."
        return
    higher = {title: test for title, test in tests.items() if test.is_significant}
    near = {title: test for title, test in tests.items() if not test.is_significant}
    if higher:
        yield f"Significantly higher: {'; '.join(f'{title} by {test}' for title, test in higher.items())}."
    if near:
        differs = "does" if len(near) == 1 else "do"
        yield (
            f"{_join_names(list(near))} {differs} not differ significantly from it: "
            f"{'; '.join(f'{title} {test}' if len(near) > 1 else str(test) for title, test in near.items())}."
        )
    if len(known) > 1:
        yield f"p-values are corrected for all {len(known)} pairs (Holm): the best was chosen from the same figures."


def _trend_sentence(rows: Sequence[Row]) -> Iterator[str]:
    """Where the curves are heading: how much perplexity still fell between the last two validations."""
    falls, share = {}, 0.0
    for row in rows:
        curve = mean_curve([run.curve for run in row.measures.values()])
        if len(curve) < 3:
            return
        falls[row.title] = -100 * math.expm1(curve[-1].loss - curve[-2].loss)
        share = 100 * (1 - curve[-2].tokens / curve[-1].tokens)
    ranked = sorted(falls, key=falls.__getitem__, reverse=True)
    each = ", ".join(f"{title} {falls[title]:.1f} %" for title in ranked)
    last = f"over the last {share:.0f} % of the training perplexity fell by: {each}"
    if falls[ranked[0]] > FALLING_PERCENT:
        yield f"The curves are still falling; {last}. What holds at this budget need not hold at a larger one."
    else:
        yield f"The curves are flat; {last}."


FALLING_PERCENT = 1.0  # per cent of perplexity between the last two validations


def _speed_sentence(rows: Sequence[Row], seconds: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Which model trains fastest, if that is more than the spread of the times."""
    timed: dict[tuple[float, ...], list[Row]] = {}
    for row in rows:
        if row.title in seconds:
            timed.setdefault(tuple(seconds[row.title]), []).append(row)
    conditions = [{row.condition for row in some} for some in timed.values()]
    named = {  # a model by its own name, where no setting that matters has more than one value
        some[0].condition if sum(some[0].condition in names for names in conditions) == 1 else some[0].title: taken
        for taken, some in timed.items()
    }
    ranked = sorted(named, key=lambda title: median(named[title]))
    if len(ranked) < 2:
        return
    times = time_ratio(named[ranked[-1]], named[ranked[0]])
    if times.low > NOTABLE_SPEEDUP:
        yield (
            f"{ranked[0]} trains fastest, {times.median:.1f} × the tokens/s of {ranked[-1]}, the slowest (quartiles "
            f"{times.low:.1f} to {times.high:.1f}; timed in turns, apart from the runs)."
        )


# The page: intervals, what else was measured, learning curves, claims, samples and models.


DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3))
AXES: dict[Literal["tokens", "seconds"], str] = {"tokens": "training tokens", "seconds": "training seconds"}
LISTED_SETTINGS = ("learning_rate", "batch", "sequence_length", "steps", "dropout")


def build_page(
    rows: Sequence[Row],
    views: Sequence[MeasureView],
    claims: Sequence[ClaimVerdict],
    budget: StudyBudget,
    trials: Sequence[Block] = (),
    seconds: Mapping[str, Sequence[float]] | None = None,
) -> Iterator[Block]:
    """All that the page shows below the table."""
    drawn, best = can_draw(), best_row(rows)
    if drawn and best:
        interval = ", its 95 % interval (line)," if any(len(row.measures) >= MIN_SEEDS for row in rows) else ""
        caption = f"Validation perplexity: mean (dot){interval} and each seed (tick). Lower is better."
        yield Figure(draw_intervals(rows), caption, "narrow")
    yield from plot_blocks(plot_sweeps(rows))
    yield from trials
    for view in views:
        yield from view.page_blocks()
    if best:
        yield Heading("Learning curves")
        if not any(len(one.curve) > 1 for row in rows for one in row.measures.values()):
            yield Text("There are none: each run was validated once, at its end. More points: validations=5.")
        elif not drawn:
            missing = "since altair and vl-convert are not installed: pip install 'lemma-lm[plots]'."
            yield Text(f"The plots were left out, {missing}")
        else:
            yield Legend(line_styles(rows))
            yield from (
                Figure(draw_curves(rows, axis, seconds), f"Validation loss against {AXES[axis]}.") for axis in AXES
            )
            means = "Each seed is a thin line, the mean of the seeds a thick one."
            timed = "Seconds are those of the timed steps" if seconds else "Seconds are those of the runs"
            read = f"The loss is that of up to {VALIDATION_TOKENS:,} validation tokens."
            yield Text(f"{read} {means} {timed}; validations are not counted.", "note")
    if claims:
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
    firsts = [(row.title, row.first) for row in rows if row.first]
    if not firsts:
        return
    sampled = f"One sample of each model, of its first seed, at temperature {TEMPERATURE}; the prompt is grey."
    yield from (Heading("Samples"), Text(sampled, "note"))
    yield Cards([Card(title, [Pre(_sample_parts(one.sample))]) for title, one in firsts])
    yield Heading("The loop each falls into")
    yield Text(
        "At temperature 0 a model always takes the most likely token, and sooner or later repeats itself. The first "
        "round of the loop is dark, its repetitions are light. A loop is proved where the model's whole state came "
        "back, for then all that follows must come back too.",
        "note",
    )
    yield Cards([Card(title, [Pre(_sample_parts(one.greedy))], describe_loop(one.greedy)) for title, one in firsts])

    def words(some: Mapping[str, Any]) -> str:
        return ", ".join(f"{word.replace('_', ' ')} {value:,}" for word, value in some.items())

    lines = []
    for title, one in firsts:
        sizes = {word: value for word, value in one.model.items() if type(value) is int}
        recipe = {word: one.recipe[word] for word in LISTED_SETTINGS if one.recipe.get(word)}
        trial = {"trial tokens/s": round(one.trial_speed)} if one.trial_speed else {}
        gap = f"{100 * (one.parameters / budget.parameters - 1):+.2f} %".replace("-", "−") if budget.parameters else ""
        lines.append([title, words(sizes), *([gap] if gap else []), words({**recipe, **trial})])
    against = ["against the budget"] if budget.parameters else []
    yield from (Heading("Models and recipes"), Table(["model", "sizes", *against, "recipe"], lines, is_text=True))


def plot_sweeps(rows: Sequence[Row]) -> list[Plot]:
    """Perplexity against each setting of the grid that has three numbers or more, a curve for all else that differs."""
    drawn = []
    for word in rows[0].point:
        scored = [(row, one) for row in rows if (one := row.estimate("perplexity"))]
        values = {row.point[word] for row, _ in scored}
        if len(values) < 3 or any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in values):
            continue
        groups: dict[str, list[tuple[float, Estimate]]] = {}
        for row, one in scored:
            rest = format_settings({other: value for other, value in row.point.items() if other != word})
            name = ", ".join(filter(None, [row.condition, rest])) if len(rows[0].point) < 3 else row.condition
            groups.setdefault(name, []).append((float(row.point[word]), one))
        curves = []
        for name, points in groups.items():
            points = sorted(points, key=lambda point: point[0])
            ends = [[getattr(one, end) for _, one in points] for end in ("low", "mean", "high")]
            low, mean, high = map(tuple, ends)
            curves.append(Curve(name, tuple(x for x, _ in points), mean, low, high, dots=True))
        log = min(values) > 0 and max(values) >= 8 * min(values)
        caption = f"Validation perplexity against {word.replace('_', ' ')}: means over the seeds, 95 % intervals."
        drawn.append(
            Plot(word.replace("_", " "), "validation perplexity", tuple(curves), log_x=log, bars=True, caption=caption)
        )
    return drawn


def line_styles(rows: Sequence[Row]) -> list[tuple[str, tuple[int, ...], str]]:
    """Colour, dashes and title of each row, in the order of the table: dashes differ where colours run out."""
    count = len(COLOURS)
    return [(COLOURS[place % count], DASHES[place // count % len(DASHES)], row.title) for place, row in enumerate(rows)]


def mean_curve(curves: Iterable[Sequence[CurvePoint]]) -> list[CurvePoint]:
    """Average the validations of several seeds one by one, as far as all of them go."""
    columns = (tuple(zip(*points, strict=True)) for points in zip(*curves, strict=False))
    return [CurvePoint(round(fmean(tokens)), fmean(seconds), fmean(loss)) for tokens, seconds, loss in columns]


def draw_curves(
    rows: Sequence[Row], axis: Literal["tokens", "seconds"], seconds: Mapping[str, Sequence[float]] | None = None
) -> str:
    """Draw validation loss against tokens or seconds: each seed thin, the mean of each row thick.

    Seconds are those of the tokens at the speed that was timed, where it was: what else ran next to a training run does
    not move its curve.
    """
    import altair

    def points(row: Row, curve: Iterable[CurvePoint], seed: int = 0) -> list[dict[str, Any]]:
        taken = (seconds or {}).get(row.title) if axis == "seconds" else None
        return [
            {
                "row": row.title,
                "seed": seed,
                "x": point.tokens * median(taken) if taken else getattr(point, axis),
                "loss": point.loss,
            }
            for point in curve
        ]

    seeds = [one for row in rows for seed, run in row.measures.items() for one in points(row, run.curve, seed)]
    means = [one for row in rows for one in points(row, mean_curve([run.curve for run in row.measures.values()]))]
    dash = altair.Scale(
        domain=[title for _, _, title in line_styles(rows)], range=[list(one) for _, one, _ in line_styles(rows)]
    )
    base = altair.Chart().encode(
        x=altair.X("x:Q", title=AXES[axis], axis=altair.Axis(format="~s", tickCount=5)),
        y=altair.Y(
            "loss:Q",
            title="validation loss (nats/token)",
            scale=altair.Scale(zero=False),
            axis=altair.Axis(minExtent=34, tickCount=6),
        ),
        color=_colour(rows),
        strokeDash=altair.StrokeDash("row:N", scale=dash, legend=None),
    )
    thin = base.mark_line(strokeWidth=1, opacity=0.35).encode(detail="seed:N")
    thick = base.mark_line(strokeWidth=2.5)
    layers = [
        mark.properties(data=altair.InlineData(values=values)) for mark, values in ((thin, seeds), (thick, means))
    ]
    return to_svg(altair.layer(*layers).properties(width=400, height=260))


def draw_intervals(rows: Sequence[Row]) -> str:
    """Draw the mean perplexity of each row with its interval, and every seed as a small tick."""
    import altair

    scored = [(row, one) for row in rows if (one := row.estimate("perplexity"))]
    ends = [  # no perplexity is below 1, however wide the interval of a few seeds may be
        {"row": row.title, "value": one.mean, "low": max(1.0, one.low), "high": one.high} for row, one in scored
    ]
    values = [{"row": row.title, "value": value} for row, _ in scored for value in row.values("perplexity").values()]
    titles = [row.title for row, _ in scored]
    room = altair.Axis(labelLimit=240, minExtent=7 * max(map(len, titles)))  # for whatever font the reader has
    marks = {"y": altair.Y("row:N", sort=titles, title=None, axis=room), "color": _colour(rows)}
    axis = altair.X(
        "value:Q", title="validation perplexity", scale=altair.Scale(zero=False), axis=altair.Axis(tickCount=6)
    )
    means, seeds = (altair.Chart(altair.InlineData(values=some)) for some in (ends, values))
    chart = altair.layer(
        means.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q", **marks),
        means.mark_circle(size=90, opacity=1).encode(x=axis, **marks),
        seeds.mark_tick(thickness=1.5, size=14, opacity=0.6).encode(x=axis, **marks),
    )
    return to_svg(chart.properties(width=300, height=altair.Step(26)))


def _colour(rows: Sequence[Row]) -> Any:
    import altair

    scale = altair.Scale(
        domain=[title for *_, title in line_styles(rows)], range=[colour for colour, *_ in line_styles(rows)]
    )
    return altair.Color("row:N", scale=scale, legend=None)


MAX_ROUNDS, MAX_CHARACTERS, MAX_LINES = (
    2,
    60,
    6,
)  # at most that many rounds or characters of the repetitions are shown, in lines
VISIBLE_SPACES = {ord(" "): "␣", ord("\n"): "↵", ord("\t"): "⇥"}  # how a loop of white space alone is shown


def describe_loop(sample: TextSample) -> str:
    """Say where a loop begins, how long it is, and whether and by which state it is proved."""
    loop = sample.loop
    if loop is None:
        return "No loop as far as this goes."
    every = "every token" if loop.period == 1 else f"every {loop.period} tokens"
    proof = f"Proved: {loop.state} came back." if loop.proved else f"Not proved: {loop.state} did not come back."
    return f"Onset {loop.onset}, period {loop.period}: from token {loop.onset} on it repeats {every}. {proof}"


Part = tuple[str, Literal["", "prompt", "loop", "again"]]


def _sample_parts(sample: TextSample) -> list[Part]:
    """A sample in parts: the prompt, the text, the first round of its loop, and some of the repetitions."""
    begin, end = (sample.loop.begin, sample.loop.end) if sample.loop else (len(sample.text),) * 2
    before, once, again = sample.text[:begin], sample.text[begin:end], sample.text[end:]
    shown = "".join(again[: max(MAX_ROUNDS * len(once), MAX_CHARACTERS)].splitlines(keepends=True)[:MAX_LINES])
    rest = " …" if shown and len(shown) < len(again) else ""
    if not once.strip():
        once, shown = (part.translate(VISIBLE_SPACES) for part in (once, shown))
    parts: list[Part] = [(sample.prompt, "prompt"), (before, ""), (once, "loop"), (shown, "again"), (rest, "")]
    return [part for part in parts if part[0]]


def describe_budget(budget: StudyBudget) -> str:
    """Say what each model gets.

    >>> describe_budget(StudyBudget(parameters=1000, tokens=5000))
    '1,000 parameters and 5,000 training tokens for each model'
    """
    parts = [
        f"{budget.parameters:,} parameters" if budget.parameters else "",
        f"{budget.tokens:,} training tokens" if budget.tokens else "",
        f"{budget.seconds:g} seconds of training" if budget.seconds else "",
    ]
    return " and ".join(filter(None, parts)) + " for each model" if any(parts) else "none"


# The cells: models × grid × seeds; and the experiment.


FROM_TOKENIZER = "It comes from the tokenizer, the same for every run: set data.tokenizer.vocabulary."
RESERVED_SETTINGS = {
    "vocabulary": FROM_TOKENIZER,
    "V": FROM_TOKENIZER,
    "seed": "Give the study `seeds`, as in seeds=[1,2,3].",
    "family": "Name another model, as in model = 'lstm'.",
}


def expand_grid(study: GridStudy) -> tuple[StudyCell, ...]:
    """The cells of a study: seeds run fastest, models slowest.

    >>> from lemma.spec.studies import read_study
    >>> [cell.name for cell in expand_grid(read_study("table-a5", {"seeds": [1], "grid.context": [3], "claims": []}))]
    ['table-a5-depth-2-context-3-seed-1', 'table-a5-depth-4-context-3-seed-1']
    """
    bases = {model.title: choose(model.model) for model in study.models}
    _check_settings(study, bases)
    cells: dict[str, StudyCell] = {}
    for model in study.models:
        base = bases[model.title]
        kinds: dict[str, type[Spec]] = {"model": type(base.model), "recipe": Recipe}
        shared = {word: value for word, value in study.settings.items() if has_setting(kinds, word)}
        for values in itertools.product(*study.grid.values()):
            point = dict(zip(study.grid, values, strict=True))
            of_model: dict[str, Any] = {}
            of_recipe: dict[str, Any] = {}
            for words in (shared, model.settings, point):
                shares = distribute(words, kinds)
                of_model |= shares["model"]
                of_recipe |= shares["recipe"]
            sized, fixed = base.model.replace(**of_model), frozenset(of_model)
            for seed in study.seeds:
                recipe = base.recipe.replace(**of_recipe, seed=seed)
                cell = StudyCell(model.title, point, seed, sized, recipe, fixed, frozenset(of_recipe))
                if other := cells.get(cell.name.lower()):
                    raise SpecError(
                        f"study: '{other}' and '{cell}' would both run in the folder {cell.name}. "
                        "Give the models or the values names that differ in letters or digits."
                    )
                cells[cell.name.lower()] = cell
    return tuple(cells.values())


def has_setting(specs: Mapping[str, type[Spec]], setting: str) -> bool:
    """Whether one of these specs has a setting of that name."""
    return any(setting.partition(".")[0] in kind.setting_names() for kind in specs.values())


def check_reserved(settings: Sequence[str], reserved: Mapping[str, str]) -> None:
    """Refuse a setting that the study sets itself, and say where it comes from."""
    for word in settings:
        if word in reserved:
            raise SpecError(f"study: '{word}' is not a setting of single runs. {reserved[word]}")


def _check_settings(study: GridStudy, bases: Mapping[str, Choice]) -> None:
    """Refuse settings that no model has, that a model does not have, or that are not the study's to set."""
    kinds = {title: {"model": type(base.model), "recipe": Recipe} for title, base in bases.items()}
    known = {
        title: [word for kind in some.values() for word in kind.setting_names() if word not in RESERVED_SETTINGS]
        for title, some in kinds.items()
    }
    for word in study.settings:
        if not any(has_setting(some, word) for some in kinds.values()):
            everything = dict.fromkeys(itertools.chain(*known.values()))
            raise SpecError(describe_unknown("study.settings: the setting", word, everything))
    for model in study.models:
        own = kinds[model.title]
        for where, words in (("study.grid", study.grid), ("study.models", model.settings)):
            for word in words:
                if not has_setting(own, word):
                    raise SpecError(
                        describe_unknown(f"{where}: for {model.title}, the setting", word, known[model.title])
                    )
        ours, theirs = (distribute(words, own) for words in (study.grid, model.settings))
        for owner, words in ours.items():
            if both := sorted(words.keys() & theirs[owner].keys()):
                raise SpecError(f"study: {model.title} sets {both[0]}, which the grid sets too. Take one away.")
    of_models = [word for model in study.models for word in model.settings]
    if study.tune and "learning_rate" in (*study.settings, *study.grid, *of_models):
        raise SpecError(
            "study: tune chooses learning_rate, which the settings or the grid set too. Take that away, or set "
            "tune=false."
        )
    check_reserved([*study.settings, *study.grid, *of_models], RESERVED_SETTINGS)


@dataclass(frozen=True)
class ChosenRate:
    """The learning rate of a row, and what its trials came to."""

    rate: float
    perplexities: Mapping[float, float | None]
    """By the rates tried; None where a trial failed."""
    tokens: int
    """Read by all trials of the row."""


def trial_blocks(chosen: Mapping[str, ChosenRate], fraction: float) -> list[Block]:
    """The learning rates tried for each row, in a table of perplexities; the chosen one is marked."""
    if not chosen:
        return []
    rates = list(next(iter(chosen.values())).perplexities)
    lines = []
    for title, one in chosen.items():
        found = [NO_VALUE if (value := one.perplexities[rate]) is None else f"{value:,.2f}" for rate in rates]
        marked = [f"{text} *" if rate == one.rate else text for rate, text in zip(rates, found, strict=True)]
        lines.append([title, *marked, f"{one.tokens:,}"])
    header = ["model", *(f"{rate:g}" for rate in rates), "tokens"]
    note = (
        f"Perplexity of up to {VALIDATION_TOKENS:,} validation tokens after {100 * fraction:.3g} % of the steps, with one more "
        "seed; * marks the rate chosen. These tokens come on top of the budget."
    )
    for end, rate in (("lowest", min(rates)), ("highest", max(rates))):
        if at_end := [title for title, one in chosen.items() if one.rate == rate and len(rates) > 1]:
            note += f" Best at the {end} rate tried, so that a {end[:-3]}er one may be better: {'; '.join(at_end)}."
    return [Table(header, lines, title="Learning rates tried"), Text(note, "note")]


class GridExperiment(TrainingExperiment[LanguageMeasures]):
    """Train every model at every place of the grid with every seed, on one text and one budget."""

    spec: GridStudy
    measures_type = LanguageMeasures
    keeps_checkpoints = True

    def __init__(self, spec: GridStudy, out: Path, observer: Observer) -> None:
        self.spec, self.out, self.observer = spec, out, observer
        self.dataset = prepare_text(spec.data, progress=reading_progress(observer))
        self.dataset.tokenizer.encode(spec.prompt)  # a prompt that cannot be read is an error now, not after an hour
        self.all_cells: list[StudyCell] = []
        self.adjustments: dict[str, None] = {}
        """What of the settings did not fit into the steps, and what was done instead."""
        self.all_cells += self.fit_cells(spec)

    def fit_cells(self, study: GridStudy) -> Iterator[StudyCell]:
        """The cells of a study, models with the sizes that the tokenizer and the budget give them."""
        for cell in expand_grid(study):
            assert cell.model is not None
            model = cell.model.replace(vocabulary=self.dataset.tokenizer.vocabulary)
            if study.budget.parameters:
                model = fit_parameters(model, study.budget.parameters, cell.fixed_sizes).model
            yield replace(cell, model=model)

    def cells(self) -> list[StudyCell]:
        """Models × grid × seeds."""
        return self.all_cells

    def trials(self, cells: Sequence[StudyCell]) -> list[StudyCell]:
        """Each learning rate that is tried for these rows, with a seed that no run has."""
        if self.spec.tune is None:
            return []
        rows = {cell.row_name: cell for cell in cells}
        seed = max(self.spec.seeds) + 1
        return [
            replace(cell, point={**cell.point, "learning_rate": rate}, seed=seed, is_trial=True)
            for cell in rows.values()
            for rate in self.spec.tune.learning_rate
        ]

    def choose_rate(self, cell: StudyCell) -> ChosenRate | None:
        """The learning rate whose trial has the lowest perplexity; None until all trials are over."""
        outcomes = [self.load_outcome(trial) for trial in self.trials([cell])]
        found = {one.cell.point["learning_rate"]: one.measures.perplexity if one.measures else None for one in outcomes}
        measured = {rate: value for rate, value in found.items() if value is not None}
        if not measured or any(one.measures is None and one.reason is None for one in outcomes):
            return None
        tokens = sum(one.measures.tokens for one in outcomes if one.measures)
        return ChosenRate(min(measured, key=measured.__getitem__), found, tokens)

    def plan(self, cell: StudyCell) -> RunPlan | None:
        """Model, recipe and steps; None if speed or learning rate are not known yet."""
        assert cell.model is not None
        budget, tune, speed = self.spec.budget, self.spec.tune, None
        if budget.seconds:
            path, of = self._speed_key(cell)
            kept = read_json(path) or {}
            if kept.get("of") != of:
                return None
            speed = float(kept["tokens_per_second"])
        recipe, validations = fit_steps(cell.model, cell.recipe, budget, speed), self.spec.validations
        if tune and cell.is_trial:
            steps = max(1, round(tune.share * recipe.steps))
            changes = {"steps": steps, "learning_rate": cell.point["learning_rate"], "seed": cell.seed}
            recipe, validations = recipe.replace(**changes, evaluate_every=None), 1
        elif tune:
            chosen = self.choose_rate(cell)
            if chosen is None:
                return None
            recipe = recipe.replace(learning_rate=chosen.rate)
        tokens, validation = tokens_per_step(cell.model, recipe), min(VALIDATION_TOKENS, len(self.dataset.item(SPLIT)))
        recipe, said = fit_schedule(recipe, cell.recipe_settings, validations, tokens, validation)
        if not cell.is_trial:
            self.adjustments |= dict.fromkeys(said)
        once = (recipe.evaluate_every or 1) >= recipe.steps  # at its end, where all of the text is read anyway
        scorer = Scorer(
            self.dataset, None if once and not cell.is_trial else VALIDATION_TOKENS, full_pass=not cell.is_trial
        )
        return RunPlan(self.path(cell), cell.model, recipe, self.spec.data, self.dataset, scorer, trial_speed=speed)

    def prepare(self, cells: Sequence[StudyCell]) -> None:
        """Say what did not fit into the steps; turn a budget of seconds into steps, by a speed trial of each row.

        The speed of a row is measured once: all its seeds, and a study that goes on later, take the same steps.
        """
        for cell in {cell.row_name: cell for cell in reversed(cells)}.values():
            with suppress(Exception):  # the cell will say what is wrong with it
                self._measure_speed(cell)
        for said in self.adjustments:
            self.observer.log(said)

    def run(self, cell: StudyCell, observer: Observer) -> LanguageMeasures:
        """Train and measure, with the steps and the learning rate that were settled before."""
        self._measure_speed(cell)
        if self.plan(cell) is None:
            reasons = [one.reason for one in map(self.load_outcome, self.trials([cell])) if one.reason]
            raise RunError(f"no learning rate of tune came to its end: {reasons[0] if reasons else 'none was tried'}")
        return super().run(cell, observer)

    def _measure_speed(self, cell: StudyCell) -> None:
        path, of = self._speed_key(cell)
        if self.spec.budget.seconds and (read_json(path) or {}).get("of") != of:
            assert cell.model is not None
            speed = measure_speed(cell.model, cell.recipe, self.spec.data, self.dataset)
            write_json(path, {"of": of, "tokens_per_second": speed})

    def _speed_key(self, cell: StudyCell) -> tuple[Path, dict[str, Any]]:
        """Where the speed of a cell is kept, and what it depends on: everything of a run but its seed and its rate."""
        if cell.is_trial:
            cell = replace(cell, point={word: cell.point[word] for word in self.spec.grid})
        model, recipe = cell.model, cell.recipe.replace(seed=0).to_dict()
        assert model is not None
        of = {"model": model.to_dict(), "recipe": recipe, "data": self.dataset.hash}
        return self.out / "speeds" / f"{cell.row_name}.json", of

    def measure(self, run: Run, plan: RunPlan) -> LanguageMeasures:
        """Score, samples, loops and what else the study asks for; of a trial the score is all that counts."""
        assert isinstance(plan.evaluate, Scorer)
        trial = plan.path.parent != self.out / "runs"
        study = self.spec.replace(sample_tokens=1, measures=()) if trial else self.spec
        return measure_run(run, plan, study, plan.evaluate)

    def is_complete(self, cell: StudyCell, measures: LanguageMeasures) -> bool:
        """Whether all that the study asks for by now was measured, and as far; if not, the run is measured again."""
        more, beyond = measures.more, self.spec.beyond
        asked = () if cell.is_trial else self.spec.measures
        return all(name in more and more[name].get("beyond", beyond) == beyond for name in asked)

    def step_seconds(self, rows: Sequence[Row], hardware: Mapping[str, str], may_time: bool) -> dict[str, list[float]]:
        """Seconds per token of a training step of each row, by its title; rows that cannot differ share one timing.

        Timed in turns, apart from the runs, and kept for the next call.
        """
        models: dict[str, tuple[ModelSpec, Recipe]] = {}
        keys: dict[str, str] = {}
        for row in rows:
            if row.first:
                recipe = {word: value for word, value in row.first.recipe.items() if word not in TIME_NEUTRAL_SETTINGS}
                keys[row.title] = json.dumps([row.first.model, recipe], sort_keys=True)
                models[keys[row.title]] = read_model(row.first.model, "study"), Recipe.read(row.first.recipe, "study")
        of = {"models": sorted(models), "hardware": dict(hardware), "data": self.dataset.hash}
        with hold_lock(self.out / "runs" / ".speed.lock", self.observer):  # another call here would disturb the times
            kept = read_json(self.out / "speed.json") or {}
            if kept.get("of") != of:
                if not models or not may_time:
                    return {}
                self.observer.log("timing a training step of each model, in turns")
                kept = {"of": of, "seconds": time_steps(models, self.dataset.item("train"))}
                write_json(self.out / "speed.json", kept)
        return {title: kept["seconds"][key] for title, key in keys.items() if key in kept["seconds"]}

    def report(self, outcomes: tuple[CellOutcome[LanguageMeasures], ...], interrupted: bool) -> StudyResult:
        """Table, claims, conclusion, curves and samples."""
        train, validation = (
            f"{len(tokens):,} tokens, {tokens.bytes:,} bytes" for tokens in map(self.dataset.item, ("train", SPLIT))
        )
        data = {
            "text": self.dataset.description,
            "tokenizer": self.dataset.tokenizer.description,
            "training text": train,
            "validation text": validation,
            "SHA-256": self.dataset.hash,
            **({"overlap": "; ".join(self.dataset.overlaps)} if self.dataset.overlaps else {}),
            **({"adapted": "; ".join(self.adjustments)} if self.adjustments else {}),
        }
        hardware = describe_hardware(device_of(self.all_cells[0].recipe))
        rows = group_rows(outcomes)
        seconds = self.step_seconds(rows, hardware, not interrupted)
        chosen = {}
        if self.spec.tune:
            by_row = {(cell.condition, cell.point_text): cell for cell in self.all_cells}
            cells = {row.title: by_row[row.condition, format_settings(row.point)] for row in rows}
            chosen = {title: one for title, cell in cells.items() if (one := self.choose_rate(cell))}
        return report_grid(self.spec, outcomes, data, hardware, self.out, interrupted, seconds, chosen)


class TuneExperiment(GridExperiment):
    """Search the settings of one model by Optuna: trial by trial, seed by seed, each a row of the table.

    Optuna's own order is fixed by a seed, so that a search that was stopped asks for the same trials again, and finds
    what is kept of them.
    """

    spec: TuneStudy  # pyright: ignore[reportIncompatibleVariableOverride]
    serial_reason = "each trial depends on those before it"

    def __init__(self, spec: TuneStudy, out: Path, observer: Observer) -> None:
        self.optuna = import_optional("optuna", "optuna", "study tune")
        super().__init__(spec, out, observer)
        self.all_cells.clear()
        for values in (0, -1):  # a setting that does not exist, or no value of it, is an error now
            self._trial_cells({word: some[values] for word, some in spec.space.items()})

    def _trial_cells(self, point: Mapping[str, Any]) -> list[StudyCell]:
        """The runs of one combination of settings, one per seed."""
        model = self.spec.models[0]
        given = {name: getattr(self.spec, name) for name in GridStudy.model_fields}
        study = GridStudy(**{**given, "models": (model.replace(settings={**model.settings, **point}),)})
        return [replace(cell, point=dict(point)) for cell in self.fit_cells(study)]

    def cells(self) -> list[StudyCell]:
        """The runs of all trials that were asked for until now."""
        return self.all_cells

    def prepare(self, cells: Sequence[StudyCell]) -> None:
        """Ask Optuna for settings, train them, and tell it the loss; give up what is worse than the best by pairs."""
        self.optuna.logging.set_verbosity(self.optuna.logging.WARNING)
        search = self.optuna.create_study(sampler=self.optuna.samplers.TPESampler(seed=1))
        states, best = self.optuna.trial.TrialState, {}
        for number in range(1, self.spec.trials + 1):
            trial, losses = search.ask(), {}
            point = {word: suggest_value(trial, word, values) for word, values in self.spec.space.items()}
            for cell in self._trial_cells(point):
                if cell.name not in {one.name for one in self.all_cells}:
                    self.all_cells.append(cell)
                observer = TitledObserver(self.observer, f"trial {number} of {self.spec.trials}: {cell}")
                outcome = self.final_outcome(cell, {cell.name: self.failure_time(cell)}) or self.run_cell(
                    cell, observer
                )
                if outcome.measures is None:
                    break
                losses[cell.seed] = outcome.measures.loss
                gaps = [losses[seed] - best[seed] for seed in losses if seed in best]
                if gaps and min(gaps) > 0 and fmean(gaps) > self.spec.prune:
                    break
            whole = len(losses) == len(self.spec.seeds)
            if not whole:
                search.tell(trial, state=states.PRUNED if losses else states.FAIL)
                continue
            search.tell(trial, fmean(losses.values()))
            if not best or fmean(losses.values()) < fmean(best.values()):
                best = losses

    def report(self, outcomes: tuple[CellOutcome[LanguageMeasures], ...], interrupted: bool) -> StudyResult:
        """The report of a grid, and how many trials were given up."""
        result = super().report(outcomes, interrupted)
        few = sum(0 < len(row.measures) < len(self.spec.seeds) for row in result.rows)
        said = (
            f"Optuna's TPE, {len(result.rows)} of {self.spec.trials} trials; {few} were given up before their last seed"
        )
        return replace(result, data={**result.data, "search": said})


def suggest_value(trial: Any, setting: str, values: Sequence[Any]) -> Any:
    """A value of a setting: from a range between two numbers, else one of the choices."""
    numbers = [type(value) for value in values]
    if len(values) != 2 or not set(numbers) <= {int, float} or values[0] >= values[1]:
        return trial.suggest_categorical(setting, list(values))
    log = values[0] > 0 and values[1] >= 10 * values[0]
    if set(numbers) == {int}:
        return trial.suggest_int(setting, *values, log=log)
    return float(f"{trial.suggest_float(setting, *map(float, values), log=log):.3g}")
