"""Language models on one text, at every place of a grid, with equal budgets: how they are run, and what they show.

First the report (the table, the verdicts on claims, the conclusion, curves and samples), then the cells and the
experiment.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from lemma.data.store import prepare
from lemma.errors import SpecError, unknown
from lemma.report.curves import COLOURS, can_draw, to_svg
from lemma.report.progress import Observer, watched_reading
from lemma.report.result import Block, Card, Cards, Figure, Heading, Items, Legend, Pre, Table, Text
from lemma.report.statistics import Estimate, difference
from lemma.runs.load import Run
from lemma.spec.base import Spec, distribute
from lemma.spec.choose import Choice, choose
from lemma.spec.recipe import Recipe
from lemma.spec.studies import GridStudy, StudyBudget, StudyClaim
from lemma.studies.budget import (
    describe_hardware,
    device_of,
    fit_parameters,
    fit_steps,
    measure_speed,
    spread_validations,
)
from lemma.studies.experiment import (
    CellOutcome,
    RunPlan,
    StudyCell,
    TrainingExperiment,
    gather,
    in_words,
    plain,
    read_json,
    seeds_in_words,
    write_json,
)
from lemma.studies.measures import (
    SPLIT,
    VIEWS,
    CurvePoint,
    LanguageMeasures,
    MeasureView,
    Row,
    Scorer,
    TextSample,
    measure,
)
from lemma.studies.result import NONE, StudyResult, StudyTable


def report_grid(
    spec: GridStudy,
    outcomes: Sequence[CellOutcome[LanguageMeasures]],
    data: Mapping[str, str],
    hardware: Mapping[str, str],
    out: Path,
    interrupted: bool = False,
) -> StudyResult:
    """Put the findings together."""
    rows = tuple(gather(outcomes))
    claims = tuple(judge(claim, rows) for claim in spec.claims)
    views = {name: VIEWS[name](rows) for name in spec.measures}
    protocols = [(row.title, row.first.protocol) for row in rows if row.first]
    read = [
        f"{title} in a context of {one['context']}, stride {one.get('stride')}"
        if one.get("context")
        else f"{title} through its state, in {one.get('streams')} streams"
        for title, one in protocols
    ]
    protocol = {
        "validation": "a full pass over the validation text: each token but the first is predicted once",
        "read": "; ".join(read),
        "left out": "; ".join(dict.fromkeys(text for _, one in protocols for text in one.get("left_out", ()))),
    }
    return StudyResult(
        title=spec.name,
        question=spec.question,
        spec=spec,
        out=out,
        data={**data, "budget": budget_in_words(spec.budget), "seeds": ", ".join(map(str, spec.seeds))},
        hardware=hardware,
        protocol={name: value for name, value in protocol.items() if value},
        table=make_table(rows),
        conclusion=(*conclude(rows, claims), *(said for view in views.values() for said in view.sentences)),
        claims=claims,
        runs=tuple(outcomes),
        rows=rows,
        printed=tuple(block for view in views.values() for block in view.printed()),
        sections=tuple(show_sections(rows, list(views.values()), claims, spec.budget)),
        more={
            "measures": {name: view.plain for name, view in views.items()},
            "claims": [claim.to_dict() for claim in claims],
        },
        interrupted=interrupted,
    )


def best_of(rows: Sequence[Row]) -> Row | None:
    """The row with the lowest mean perplexity."""
    ranked = [(one.mean, place) for place, row in enumerate(rows) if (one := row.estimate("perplexity"))]
    return rows[min(ranked)[1]] if ranked else None


def make_table(rows: Sequence[Row]) -> StudyTable:
    """One row for each model at each place of the grid, means over seeds; the lowest perplexity is marked."""
    best = best_of(rows)
    cells, records = [], []
    for row in rows:
        scores = {name: row.estimate(name) for name in ("perplexity", "bits_per_byte")}
        tokens, speed, seconds = (
            one and one.mean for one in map(row.estimate, ("tokens", "tokens_per_second", "seconds"))
        )
        parameters = row.count("parameters")
        record: dict[str, Any] = {"model": row.condition, **row.point, "seeds": len(row.measured)}
        for name, one in scores.items():
            record |= {name: one and one.mean, f"{name}_margin": one and one.margin}
        record |= {"parameters": parameters, "tokens": tokens and round(tokens), "tokens_per_second": speed}
        records.append({**record, "seconds": seconds, "best": row is best, "notes": "; ".join(row.missing)})
        cells.append(
            [
                row.condition,
                *map(plain, row.point.values()),
                *(NONE if one is None else str(one) for one in scores.values()),
                *(NONE if count is None else f"{count:,.0f}" for count in (parameters, tokens, speed)),
                NONE if seconds is None else f"{seconds:,.1f}",
            ]
        )
    figures = ["perplexity", "bits/byte", "parameters", "tokens", "tokens/s", "seconds"]
    return StudyTable(
        header=["model", *rows[0].point, *figures],
        rows=cells,
        records=records,
        caption=f"Perplexity and bits per byte: full validation pass.{seeds_in_words(rows)}"
        if best
        else "No run has come to its end.",
        notes=[note for row in rows for note in row.notes],
        best=rows.index(best) if best else None,
        mark="* marks the lowest perplexity.",
    )


# Claims judged from the numbers: held, not held, or within the noise of the seeds.


Verdict = Literal["held", "not held", "within noise", "one seed only", "not measured"]
GRAVITY: tuple[Verdict, ...] = ("not held", "not measured", "one seed only", "within noise", "held")


class ComparisonVerdict(NamedTuple):
    """One comparison of two rows: what was found, and what that says of the claim."""

    finding: str
    verdict: Verdict

    def __str__(self) -> str:
        return f"{self.finding}: {self.verdict}"


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim and what the numbers say of it; it holds if each of its comparisons does."""

    says: str
    comparisons: tuple[ComparisonVerdict, ...]

    @property
    def verdict(self) -> Verdict:
        """The gravest verdict among the comparisons."""
        found = {one.verdict for one in self.comparisons}
        return next(verdict for verdict in GRAVITY if verdict in found)

    def __str__(self) -> str:
        return "\n".join([f"{self.says.rstrip('.')}: {self.verdict}", *(f"  {one}" for one in self.comparisons)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        comparisons = [one._asdict() for one in self.comparisons]
        return {"claim": self.says, "verdict": self.verdict, "comparisons": comparisons}


def judge(claim: StudyClaim, rows: Sequence[Row]) -> ClaimVerdict:
    """Judge a claim by the difference of mean perplexities and its 95 % interval (Welch)."""
    places = [{"model": row.condition, **row.point} for row in rows]
    judged = []
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
            where = f"{in_words(comparison.at)} against {in_words(comparison.against)}"
            where += f" ({in_words(elsewhere)})" if elsewhere else ""
            ones, others = (list(one.values("perplexity").values()) for one in (row, other))
            if not ones or not others:
                judged.append(ComparisonVerdict(f"{where}: a run is missing", "not measured"))
                continue
            gap = difference(ones, others)
            expected = "below 0" if comparison.expects == "lower" else "not below 0"
            both = f"{row.estimate('perplexity')} against {other.estimate('perplexity')}"
            found = f"{both}, difference {str(gap).replace('-', '−')}, expected {expected}"
            judged.append(ComparisonVerdict(f"{where}: {found}", verdict_on(gap, comparison.expects)))
    return ClaimVerdict(claim.says, tuple(judged))


def verdict_on(gap: Estimate, expects: Literal["lower", "not lower"]) -> Verdict:
    """Say what a difference of perplexities means for the claim that it is below zero, or is not.

    >>> verdict_on(Estimate(-2.0, 1.5, 2), "lower"), verdict_on(Estimate(-2.0, 3.0, 2), "lower")
    ('held', 'within noise')
    """
    if gap.margin is None:
        return "one seed only"
    if gap.low <= 0 <= gap.high:
        return "within noise"
    return "held" if (gap.high < 0) == (expects == "lower") else "not held"


# The conclusion: what the numbers say, in sentences made from them.


NOTABLE = 1.05  # a ratio of speeds worth a sentence
DECIDED = {
    "held": "held in every comparison",
    "not held": "did not hold",
    "within noise": "not decided, since a difference lies within the noise of the seeds",
    "one seed only": "not decided, since one seed gives no interval",
    "not measured": "not decided, since a run is missing",
}


def conclude(rows: Sequence[Row], claims: Sequence[ClaimVerdict] = ()) -> tuple[str, ...]:
    """Say which row is best, which do not differ from it, which was fastest, what failed and which claims held."""
    missing = []
    failed, waiting = sum(len(row.failed) for row in rows), sum(len(row.waiting) for row in rows)
    runs = failed + waiting + sum(len(row.measured) for row in rows)
    if failed:
        reasons = "its reason is" if failed == 1 else "their reasons are"
        missing.append(f"{failed} of {runs} runs failed; {reasons} below the table.")
    if waiting:
        missing.append(f"{waiting} of {runs} runs {'is' if waiting == 1 else 'are'} still to be run.")
    scored = [(row, score) for row in rows if (score := row.estimate("perplexity"))]
    if not scored:
        return ("No run came to its end, so that there is nothing to compare.", *missing)
    said = list(_best(sorted(scored, key=lambda pair: pair[1].mean)))
    speeds = sorted((one.mean, row.title) for row in rows if (one := row.estimate("tokens_per_second")))
    if speeds and speeds[-1][0] > NOTABLE * speeds[0][0]:
        (slow, slowest), (fast, fastest) = speeds[0], speeds[-1]
        said.append(f"{fastest} trained fastest, {fast / slow:.1f} × the speed of {slowest}, the slowest.")
    return (*said, *missing, *(f"“{claim.says.rstrip('.')}”: {DECIDED[claim.verdict]}." for claim in claims))


def _best(ranked: Sequence[tuple[Row, Estimate]]) -> Iterator[str]:
    def listed(names: Sequence[str]) -> str:
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

    (best, score), *others = ranked
    yield f"{best.title} has the lowest validation perplexity: {score}."
    if not others:
        return
    following = f"{others[0][0].title} with {others[0][1]}"
    if any(one.margin is None for _, one in ranked):
        yield f"Next is {following}. One seed has no interval, so the noise is unknown."
        return
    near = [f"{row.title} ({one})" for row, one in others if one.low <= score.high]
    above = [row.title for row, one in others if one.low > score.high]
    if not near:
        yield f"No other interval overlaps with it; next is {following}."
        return
    overlap = f"interval of {near[0]} overlaps" if len(near) == 1 else f"intervals of {listed(near)} overlap"
    wide = " Two seeds make wide intervals (t = 12.7); more would narrow them." if score.count == 2 else ""
    yield f"The 95 % {overlap} with it: this study cannot distinguish them.{wide}"
    if above:
        yield f"Clearly above it {'lies' if len(above) == 1 else 'lie'} {listed(above)}."


# The page: intervals, what else was measured, learning curves, claims, samples and models.


DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3))
AXES: dict[Literal["tokens", "seconds"], str] = {"tokens": "training tokens", "seconds": "training seconds"}
SHOWN = ("learning_rate", "batch", "sequence_length", "steps", "dropout")


def show_sections(
    rows: Sequence[Row], views: Sequence[MeasureView], claims: Sequence[ClaimVerdict], budget: StudyBudget
) -> Iterator[Block]:
    """All that the page shows below the table."""
    drawn, best = can_draw(), best_of(rows)
    if drawn and best:
        caption = "Validation perplexity: mean (dot), its 95 % interval (line), and each seed (tick). Lower is better."
        yield Figure(draw_intervals(rows), caption, "narrow")
    for view in views:
        yield from view.section()
    if best:
        yield Heading("Learning curves")
        if not any(len(one.curve) > 1 for row in rows for one in row.measured.values()):
            yield Text("There are none: each run was validated once, at its end. More points: validations=5.")
        elif not drawn:
            missing = "since altair and vl-convert are not installed: pip install 'lemma-lm[plots]'."
            yield Text(f"The plots were left out, {missing}")
        else:
            yield Legend(styles(rows))
            yield from (Figure(draw_curves(rows, axis), f"Validation loss against {AXES[axis]}.") for axis in AXES)
            means = "Each seed is a thin line, the mean of the seeds a thick one."
            yield Text(f"{means} The time of validations is not counted.", "note")
    if claims:
        kinds: dict[str, Any] = {"held": "good", "not held": "bad"}
        yield Heading("Claims")
        cards = []
        for claim in claims:
            verdict = Text(claim.verdict, kinds.get(claim.verdict, "strong"))
            cards.append(Card(claim.says, [verdict, Items(list(map(str, claim.comparisons)), "note")]))
        yield Cards(cards)
        yield Text(
            "A difference is judged by its 95 % interval over the seeds (Welch): where that holds 0, it is within the "
            "noise.",
            "note",
        )
    firsts = [(row.title, row.first) for row in rows if row.first]
    if not firsts:
        return
    sampled = "One sample of each model, of its first seed, at temperature 0.8; the prompt is grey."
    yield from (Heading("Samples"), Text(sampled, "note"))
    yield Cards([Card(title, [Pre(_parts(one.sample))]) for title, one in firsts])
    yield Heading("The loop each falls into")
    yield Text(
        "At temperature 0 a model always takes the most likely token, and sooner or later repeats itself. The first "
        "round of the loop is dark, its repetitions are light. A loop is proved where the model's whole state came "
        "back, for then all that follows must come back too.",
        "note",
    )
    yield Cards([Card(title, [Pre(_parts(one.greedy))], loop_in_words(one.greedy)) for title, one in firsts])

    def words(some: Mapping[str, Any]) -> str:
        return ", ".join(f"{word.replace('_', ' ')} {value:,}" for word, value in some.items())

    lines = []
    for title, one in firsts:
        sizes = {word: value for word, value in one.model.items() if type(value) is int}
        recipe = {word: one.recipe[word] for word in SHOWN if one.recipe.get(word)}
        trial = {"trial tokens/s": round(one.trial_speed)} if one.trial_speed else {}
        gap = f"{100 * (one.parameters / budget.parameters - 1):+.2f} %".replace("-", "−") if budget.parameters else ""
        lines.append([title, words(sizes), *([gap] if gap else []), words({**recipe, **trial})])
    against = ["against the budget"] if budget.parameters else []
    yield from (Heading("Models and recipes"), Table(["model", "sizes", *against, "recipe"], lines, plain=True))


def styles(rows: Sequence[Row]) -> list[tuple[str, tuple[int, ...], str]]:
    """Colour, dashes and title of each row, in the order of the table: dashes differ where colours run out."""
    count = len(COLOURS)
    return [(COLOURS[place % count], DASHES[place // count % len(DASHES)], row.title) for place, row in enumerate(rows)]


def mean_curve(curves: Iterable[Sequence[CurvePoint]]) -> list[CurvePoint]:
    """Average the validations of several seeds one by one, as far as all of them go."""
    columns = (tuple(zip(*points, strict=True)) for points in zip(*curves, strict=False))
    return [CurvePoint(round(fmean(tokens)), fmean(seconds), fmean(loss)) for tokens, seconds, loss in columns]


def draw_curves(rows: Sequence[Row], axis: Literal["tokens", "seconds"]) -> str:
    """Draw validation loss against tokens or seconds: each seed thin, the mean of each row thick."""
    import altair

    def points(row: Row, curve: Iterable[CurvePoint], seed: int = 0) -> list[dict[str, Any]]:
        return [{"row": row.title, "seed": seed, "x": getattr(point, axis), "loss": point.loss} for point in curve]

    seeds = [one for row in rows for seed, run in row.measured.items() for one in points(row, run.curve, seed)]
    means = [one for row in rows for one in points(row, mean_curve([run.curve for run in row.measured.values()]))]
    dash = altair.Scale(domain=[title for _, _, title in styles(rows)], range=[list(one) for _, one, _ in styles(rows)])
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

    scale = altair.Scale(domain=[title for *_, title in styles(rows)], range=[colour for colour, *_ in styles(rows)])
    return altair.Color("row:N", scale=scale, legend=None)


ROUNDS, CHARACTERS, LINES = 2, 60, 6  # at most that many rounds or characters of the repetitions are shown, in lines
VISIBLE = {ord(" "): "␣", ord("\n"): "↵", ord("\t"): "⇥"}  # how a loop of white space alone is shown


def loop_in_words(sample: TextSample) -> str:
    """Say where a loop begins, how long it is, and whether and by which state it is proved."""
    loop = sample.loop
    if loop is None:
        return "No loop as far as this goes."
    every = "every token" if loop.period == 1 else f"every {loop.period} tokens"
    proof = f"Proved: {loop.state} came back." if loop.proved else f"Not proved: {loop.state} did not come back."
    return f"Onset {loop.onset}, period {loop.period}: from token {loop.onset} on it repeats {every}. {proof}"


Part = tuple[str, Literal["", "prompt", "loop", "again"]]


def _parts(sample: TextSample) -> list[Part]:
    """A sample in parts: the prompt, the text, the first round of its loop, and some of the repetitions."""
    begin, end = (sample.loop.begin, sample.loop.end) if sample.loop else (len(sample.text),) * 2
    before, once, again = sample.text[:begin], sample.text[begin:end], sample.text[end:]
    shown = "".join(again[: max(ROUNDS * len(once), CHARACTERS)].splitlines(keepends=True)[:LINES])
    rest = " …" if shown and len(shown) < len(again) else ""
    if not once.strip():
        once, shown = (part.translate(VISIBLE) for part in (once, shown))
    parts: list[Part] = [(sample.prompt, "prompt"), (before, ""), (once, "loop"), (shown, "again"), (rest, "")]
    return [part for part in parts if part[0]]


def budget_in_words(budget: StudyBudget) -> str:
    """Say what each model gets.

    >>> budget_in_words(StudyBudget(parameters=1000, tokens=5000))
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
RESERVED = {
    "vocabulary": FROM_TOKENIZER,
    "V": FROM_TOKENIZER,
    "seed": "Give the study `seeds`, as in seeds=[1,2,3].",
    "family": "Name another model, as in model = 'lstm'.",
}


def open_grid(study: GridStudy) -> tuple[StudyCell, ...]:
    """The cells of a study: seeds run fastest, models slowest.

    >>> from lemma.spec.studies import read_study
    >>> [cell.name for cell in open_grid(read_study("table-a5", {"seeds": [1], "grid.context": [3], "claims": []}))]
    ['table-a5-depth-2-context-3-seed-1', 'table-a5-depth-4-context-3-seed-1']
    """
    bases = {model.title: choose(model.model) for model in study.models}
    _refuse_foreign_settings(study, bases)
    cells: dict[str, StudyCell] = {}
    for model in study.models:
        base = bases[model.title]
        kinds: dict[str, type[Spec]] = {"model": type(base.model), "recipe": Recipe}
        shared = {word: value for word, value in study.settings.items() if knows(kinds, word)}
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
                cell = StudyCell(model.title, point, seed, sized, base.recipe.replace(**of_recipe, seed=seed), fixed)
                if other := cells.get(cell.name.lower()):
                    raise SpecError(
                        f"study: '{other}' and '{cell}' would both run in the folder {cell.name}. "
                        "Give the models or the values names that differ in letters or digits."
                    )
                cells[cell.name.lower()] = cell
    return tuple(cells.values())


def knows(kinds: Mapping[str, type[Spec]], word: str) -> bool:
    """Whether one of these specs has a setting of that name."""
    return any(word.partition(".")[0] in kind.known_words() for kind in kinds.values())


def refuse_reserved(words: Sequence[str], reserved: Mapping[str, str]) -> None:
    """Refuse a setting that the study sets itself, and say where it comes from."""
    for word in words:
        if word in reserved:
            raise SpecError(f"study: '{word}' is not a setting of single runs. {reserved[word]}")


def _refuse_foreign_settings(study: GridStudy, bases: Mapping[str, Choice]) -> None:
    """Refuse settings that no model has, that a model does not have, or that are not the study's to set."""
    kinds = {title: {"model": type(base.model), "recipe": Recipe} for title, base in bases.items()}
    known = {
        title: [word for kind in some.values() for word in kind.known_words() if word not in RESERVED]
        for title, some in kinds.items()
    }
    for word in study.settings:
        if not any(knows(some, word) for some in kinds.values()):
            everything = dict.fromkeys(itertools.chain(*known.values()))
            raise SpecError(unknown("study.settings: the setting", word, everything))
    for model in study.models:
        own = kinds[model.title]
        for where, words in (("study.grid", study.grid), ("study.models", model.settings)):
            for word in words:
                if not knows(own, word):
                    raise SpecError(unknown(f"{where}: for {model.title}, the setting", word, known[model.title]))
        ours, theirs = (distribute(words, own) for words in (study.grid, model.settings))
        for owner, words in ours.items():
            if both := sorted(words.keys() & theirs[owner].keys()):
                raise SpecError(f"study: {model.title} sets {both[0]}, which the grid sets too. Take one away.")
    of_models = [word for model in study.models for word in model.settings]
    refuse_reserved([*study.settings, *study.grid, *of_models], RESERVED)


class GridExperiment(TrainingExperiment[LanguageMeasures]):
    """Train every model at every place of the grid with every seed, on one text and one budget."""

    spec: GridStudy
    measures = LanguageMeasures
    keeps_checkpoints = True

    def __init__(self, spec: GridStudy, out: Path, observer: Observer) -> None:
        self.spec, self.out, self.observer = spec, out, observer
        self.dataset = prepare(spec.data, progress=watched_reading(observer))
        self.dataset.tokenizer.encode(spec.prompt)  # a prompt that cannot be read is an error now, not after an hour
        self.sized: list[StudyCell] = []
        for cell in open_grid(spec):
            assert cell.model is not None
            model = cell.model.replace(vocabulary=self.dataset.tokenizer.vocabulary)
            if spec.budget.parameters:
                model = fit_parameters(model, spec.budget.parameters, cell.fixed).model
            self.sized.append(replace(cell, model=model))

    def cells(self) -> list[StudyCell]:
        """Models × grid × seeds."""
        return self.sized

    def plan(self, cell: StudyCell) -> RunPlan | None:
        """Model, recipe and steps; None if there is a budget of seconds and the speed is not known yet."""
        assert cell.model is not None
        budget, speed = self.spec.budget, None
        if budget.seconds:
            path, of = self._speed(cell)
            kept = read_json(path) or {}
            if kept.get("of") != of:
                return None
            speed = float(kept["tokens_per_second"])
        recipe = spread_validations(fit_steps(cell.model, cell.recipe, budget, speed), self.spec.validations)
        scorer = Scorer(self.dataset)
        return RunPlan(self.path(cell), cell.model, recipe, self.spec.data, self.dataset, scorer, trial_speed=speed)

    def run(self, cell: StudyCell, observer: Observer) -> LanguageMeasures:
        """Settle the number of steps, if need be by a speed trial, then train and measure.

        The speed of a row is measured once: all its seeds, and a study that goes on later, take the same steps.
        """
        if self.plan(cell) is None:
            assert cell.model is not None
            speed = measure_speed(cell.model, cell.recipe, self.spec.data, self.dataset)
            path, of = self._speed(cell)
            write_json(path, {"of": of, "tokens_per_second": speed})
        return super().run(cell, observer)

    def _speed(self, cell: StudyCell) -> tuple[Path, dict[str, Any]]:
        """Where the speed of a cell is kept, and what it depends on: everything of a run but its seed."""
        assert cell.model is not None
        recipe = cell.recipe.replace(seed=0).to_dict()
        of = {"model": cell.model.to_dict(), "recipe": recipe, "data": self.dataset.hash}
        return self.out / "speeds" / f"{cell.row_name}.json", of

    def measure(self, run: Run, plan: RunPlan) -> LanguageMeasures:
        """Score, samples, loops and what else the study asks for."""
        assert isinstance(plan.evaluate, Scorer)
        return measure(run, plan, self.spec, plan.evaluate)

    def is_complete(self, measures: LanguageMeasures) -> bool:
        """Whether all that the study asks for by now was measured, and as far; if not, the run is measured again."""
        more, beyond = measures.more, self.spec.beyond
        return all(name in more and more[name].get("beyond", beyond) == beyond for name in self.spec.measures)

    def report(self, outcomes: tuple[CellOutcome[LanguageMeasures], ...], interrupted: bool) -> StudyResult:
        """Table, claims, conclusion, curves and samples."""
        train, validation = (
            f"{len(tokens):,} tokens, {tokens.bytes:,} bytes" for tokens in map(self.dataset.tokens, ("train", SPLIT))
        )
        data = {
            "text": self.dataset.about,
            "tokenizer": self.dataset.tokenizer.about,
            "training text": train,
            "validation text": validation,
            "SHA-256": self.dataset.hash,
            **({"overlap": "; ".join(self.dataset.overlaps)} if self.dataset.overlaps else {}),
        }
        hardware = describe_hardware(device_of(self.sized[0].recipe))
        return report_grid(self.spec, outcomes, data, hardware, self.out, interrupted)
