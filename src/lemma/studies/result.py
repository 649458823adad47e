"""The table of a study: one row for each contender at each place of the grid, means over seeds."""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from lemma.report.curves import COLOURS, FONT, can_draw
from lemma.report.page import (
    card,
    cards,
    csv_text,
    escape_cell,
    facts,
    grid,
    html_paragraph,
    json_text,
    markdown_table,
    page,
    section,
    write_files,
)
from lemma.report.statistics import Estimate, difference
from lemma.report.text import fit, paragraph, table
from lemma.spec.studies import Budget, Claim, Comparison, StudySpec
from lemma.studies.cells import CurvePoint, Measures, Outcome, Row, Talk, gather, plain
from lemma.studies.measures import sections, sentences, summary, texts

MARK = "*"
MARKED = f" {MARK} marks the lowest perplexity."
NONE = "–"


@dataclass(frozen=True)
class Table:
    """The rows of a study, ready for the terminal, Markdown, CSV and JSON."""

    rows: tuple[Row, ...]

    @property
    def header(self) -> list[str]:
        """The names of the columns, as a person reads them."""
        figures = ["perplexity", "bits/byte", "parameters", "tokens", "tokens/s", "seconds"]
        return ["model", *self.rows[0].point, *figures]

    @property
    def caption(self) -> str:
        """What the figures are and what the marks mean."""
        counts = {len(row.measured) for row in self.rows if row.measured}
        words = "Perplexity and bits per byte: full validation pass."
        if not counts:
            return "No run has come to its end."
        words += MARKED
        if max(counts) > 1:
            seeds = f"{max(counts)} seeds" if len(counts) == 1 else f"up to {max(counts)} seeds"
            words += f" Mean ± half the 95 % interval over {seeds} (Student's t)."
        if min(counts) == 1:
            words += " A figure without ± comes from one seed, which has no interval."
        return words

    def cells(self, row: Row) -> list[str]:
        """One row as a person reads it, the best one marked."""
        values = row.to_dict()
        mark = f" {MARK}" if row.best else ""
        return [
            row.contender + mark,
            *(plain(value) for value in row.point.values()),
            NONE if row.perplexity is None else str(row.perplexity),
            NONE if row.bits_per_byte is None else str(row.bits_per_byte),
            *(_count(values[word]) for word in ("parameters", "tokens", "tokens_per_second")),
            NONE if values["seconds"] is None else f"{values['seconds']:,.1f}",
        ]

    def notes(self) -> list[str]:
        """One line for each seed that is missing, with its reason."""
        return [f"{row.title}, {note}" for row in self.rows for note in row.notes]

    def __str__(self) -> str:
        lines = table([self.header, *map(self.cells, self.rows)], rule=True)
        return "\n".join([*lines, "", *map(paragraph, (self.caption, *self.notes()))])

    def to_markdown(self) -> str:
        """Write the table as Markdown."""
        table = markdown_table(self.header, [self.cells(row) for row in self.rows])
        notes = "".join(f"- {escape_cell(note)}\n" for note in self.notes())
        return f"{table}\n\n{escape_cell(self.caption)}\n" + (f"\n{notes}" if notes else "")

    def to_csv(self) -> str:
        """Write the table as CSV, figures unrounded."""
        return csv_text(self.to_dict()["rows"])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"caption": self.caption, "rows": [row.to_dict() for row in self.rows]}


def make_table(outcomes: Iterable[Outcome]) -> Table:
    """Gather the outcomes of each contender at each place, and mark the row of the lowest mean perplexity."""
    rows = gather(outcomes)
    ranked = [row for row in rows if row.perplexity]
    best = min(ranked, key=lambda row: row.perplexity.mean if row.perplexity else 0.0, default=None)
    return Table(tuple(replace(row, best=row is best) for row in rows))


def _count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


# Claims judged from the numbers: held, not held, or within the noise of the seeds.


Verdict = Literal["held", "not held", "within noise", "one seed only", "not measured"]
GRAVITY: tuple[Verdict, ...] = ("not held", "not measured", "one seed only", "within noise", "held")


@dataclass(frozen=True)
class Judged:
    """One comparison of two rows: what was found, and what that says of the claim."""

    finding: str
    verdict: Verdict


@dataclass(frozen=True)
class Judgement:
    """A claim and what the numbers say of it; it holds if each of its comparisons does."""

    says: str
    comparisons: tuple[Judged, ...]

    @property
    def verdict(self) -> Verdict:
        """The gravest verdict among the comparisons."""
        found = {judged.verdict for judged in self.comparisons}
        return next(verdict for verdict in GRAVITY if verdict in found)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.says.rstrip('.')}: {self.verdict}",
                *(f"  {one.finding}: {one.verdict}" for one in self.comparisons),
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        comparisons = [{"finding": judged.finding, "verdict": judged.verdict} for judged in self.comparisons]
        return {"claim": self.says, "verdict": self.verdict, "comparisons": comparisons}


def judge(claim: Claim, rows: Sequence[Row]) -> Judgement:
    """Judge a claim by the difference of mean perplexities and its 95 % interval (Welch)."""
    judged = [
        _judge(comparison, row, _find(rows, {**_place(row), **comparison.against}), rows)
        for comparison in claim.comparisons
        for row in rows
        if _place(row).items() >= comparison.at.items()
    ]
    return Judgement(claim.says, tuple(judged))


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


def _judge(comparison: Comparison, row: Row, other: Row, rows: Sequence[Row]) -> Judged:
    where = f"{_words(comparison.at)} against {_words(comparison.against)}{_elsewhere(comparison, row, rows)}"
    if row.perplexity is None or other.perplexity is None:
        return Judged(f"{where}: a run is missing", "not measured")
    ones, others = ([measures.perplexity for measures in one.measured] for one in (row, other))
    gap = difference(ones, others)
    expected = "below 0" if comparison.expects == "lower" else "not below 0"
    found = f"{row.perplexity} against {other.perplexity}, difference {str(gap).replace('-', '−')}, expected {expected}"
    return Judged(f"{where}: {found}", verdict_on(gap, comparison.expects))


def _elsewhere(comparison: Comparison, row: Row, rows: Sequence[Row]) -> str:
    """The place's words that the comparison leaves open, as far as they tell rows apart."""
    place = {word: value for word, value in _place(row).items() if word not in comparison.at}
    telling = {word: value for word, value in place.items() if any(_place(one)[word] != value for one in rows)}
    return f" ({_words(telling)})" if telling else ""


def _words(place: Mapping[str, Any]) -> str:
    return ", ".join(f"{word}={plain(value)}" for word, value in place.items())


def _place(row: Row) -> dict[str, Any]:
    return {"contender": row.contender, **row.point}


def _find(rows: Sequence[Row], place: Mapping[str, Any]) -> Row:
    return next(row for row in rows if _place(row) == place)


# What the numbers say, in sentences made from them.


NOTABLE = 1.05  # a ratio of speeds worth a sentence


def conclude(table: Table, judgements: Sequence[Judgement] = ()) -> tuple[str, ...]:
    """Say which row is best, which cannot be told from it, which was fastest, what failed and which claims held."""
    ranked = sorted(_scored(table.rows), key=lambda pair: pair[1].mean)
    if not ranked:
        return ("No run came to its end, so that there is nothing to compare.", *_missing(table))
    return tuple(chain(_best(ranked), _speed(table.rows), _missing(table), _claims(judgements)))


def _scored(rows: Sequence[Row]) -> list[tuple[Row, Estimate]]:
    return [(row, row.perplexity) for row in rows if row.perplexity]


def _best(ranked: Sequence[tuple[Row, Estimate]]) -> Iterator[str]:
    (best, score), *others = ranked
    yield f"{best.title} has the lowest validation perplexity: {score}."
    if not others:
        return
    if any(estimate.margin is None for _, estimate in ranked):
        yield f"Next is {others[0][0].title} with {others[0][1]}. One seed has no interval, so the noise is unknown."
        return
    near = [f"{row.title} ({estimate})" for row, estimate in others if estimate.low <= score.high]
    if near:
        overlap = f"interval of {near[0]} overlaps" if len(near) == 1 else f"intervals of {_and(near)} overlap"
        yield f"The 95 % {overlap} with it: this study does not tell them apart.{_wide(score)}"
    else:
        yield f"No other interval overlaps with it; next is {others[0][0].title} with {others[0][1]}."
    above = [row.title for row, estimate in others if estimate.low > score.high]
    if near and above:
        yield f"Clearly above it {'lies' if len(above) == 1 else 'lie'} {_and(above)}."


def _wide(score: Estimate) -> str:
    return " Two seeds make wide intervals (t = 12.7); more would narrow them." if score.count == 2 else ""


def _speed(rows: Sequence[Row]) -> Iterator[str]:
    speeds = sorted((row.to_dict()["tokens_per_second"], row.title) for row in rows if row.measured)
    if not speeds:
        return
    (slow, slowest), (fast, fastest) = speeds[0], speeds[-1]
    if fast > NOTABLE * slow:
        yield f"{fastest} trained fastest, {fast / slow:.1f} × the speed of {slowest}, the slowest."


def _missing(table: Table) -> Iterator[str]:
    failed, waiting = (sum(len(seeds) for seeds in some) for some in zip(*map(_absent, table.rows), strict=True))
    runs = failed + waiting + sum(len(row.measured) for row in table.rows)
    if failed:
        reasons = "its reason stands" if failed == 1 else "their reasons stand"
        yield f"{failed} of {runs} runs failed; {reasons} with the table."
    if waiting:
        yield f"{waiting} of {runs} runs {'is' if waiting == 1 else 'are'} still to be run."


def _absent(row: Row) -> tuple[tuple[object, ...], tuple[object, ...]]:
    return row.failed, row.waiting


def _claims(judgements: Sequence[Judgement]) -> Iterator[str]:
    for judgement in judgements:
        yield f"“{judgement.says.rstrip('.')}”: {_SAID[judgement.verdict]}."


_SAID = {
    "held": "held in every comparison",
    "not held": "did not hold",
    "within noise": "not decided, since a difference lies within the noise of the seeds",
    "one seed only": "not decided, since one seed gives no interval",
    "not measured": "not decided, since a run is missing",
}


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# The runs of a study and what follows from them: the table, the verdicts on its claims, the conclusion.


@dataclass(frozen=True)
class Findings:
    """All runs of a study, finished, failed or waiting, in the order of its grid."""

    spec: StudySpec
    runs: tuple[Outcome, ...]
    data: Mapping[str, str]
    """What the text is, in words: name, tokenizer, split, hash."""
    hardware: Mapping[str, str]

    @cached_property
    def table(self) -> Table:
        """The rows of the study with their means and intervals."""
        return make_table(self.runs)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of the table."""
        return self.table.rows

    @cached_property
    def judgements(self) -> tuple[Judgement, ...]:
        """What the numbers say of the study's claims."""
        return tuple(judge(claim, self.rows) for claim in self.spec.claims)

    @cached_property
    def conclusion(self) -> tuple[str, ...]:
        """What the numbers say, in sentences."""
        return (*conclude(self.table, self.judgements), *sentences(self.spec, self.rows))

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The runs that failed, each with its reason."""
        return tuple(run for run in self.runs if run.reason)


# Learning curves and intervals as SVG that stands in the page itself.


DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3))
HOW_TO_INSTALL = "The plots were left out, since altair and vl-convert are not installed: pip install 'lemma[plots]'."
AXES = {"tokens": "training tokens", "seconds": "training seconds"}


@dataclass(frozen=True)
class Look:
    """How a row is drawn: more rows than colours are told apart by their dashes."""

    title: str
    colour: str
    dash: tuple[int, ...]


def looks(rows: Sequence[Row]) -> list[Look]:
    """Give each row its colour and dash, in the order of the table."""
    count = len(COLOURS)
    return [
        Look(row.title, COLOURS[place % count], DASHES[place // count % len(DASHES)]) for place, row in enumerate(rows)
    ]


def mean_curve(curves: Sequence[Sequence[CurvePoint]]) -> list[CurvePoint]:
    """Average the validations of several seeds one by one, as far as all of them go."""
    validations = zip(*curves, strict=False)
    columns = (tuple(zip(*points, strict=True)) for points in validations)
    return [CurvePoint(round(fmean(tokens)), fmean(seconds), fmean(loss)) for tokens, seconds, loss in columns]


def draw_curves(rows: Sequence[Row], axis: Literal["tokens", "seconds"]) -> str:
    """Draw validation loss against tokens or seconds: each seed thin, the mean of each row thick."""
    import altair

    room = altair.Axis(minExtent=34, tickCount=6)
    base = altair.Chart().encode(
        x=altair.X("x:Q", title=AXES[axis], axis=altair.Axis(format="~s", tickCount=5)),
        y=altair.Y("loss:Q", title="validation loss (nats a token)", scale=altair.Scale(zero=False), axis=room),
        **_marks(rows),
    )
    seeds = (
        base.mark_line(strokeWidth=1, opacity=0.35).encode(detail="seed:N").properties(data=_data(_seeds(rows, axis)))
    )
    means = base.mark_line(strokeWidth=2.5).properties(data=_data(_means(rows, axis)))
    return _svg(altair.layer(seeds, means).properties(width=400, height=260))


def draw_intervals(rows: Sequence[Row]) -> str:
    """Draw the mean perplexity of each row with its interval, and every seed as a small tick."""
    import altair

    titles = [row.title for row in rows if row.measured]
    room = altair.Axis(labelLimit=240, minExtent=7 * max(map(len, titles)))  # for whatever font the reader has
    marks = {"y": altair.Y("row:N", sort=titles, title=None, axis=room), "color": _colour(rows)}
    ticks = altair.Axis(tickCount=6)
    axis = altair.X("value:Q", title="validation perplexity", scale=altair.Scale(zero=False), axis=ticks)
    means, seeds = altair.Chart(_data(_ends(rows))), altair.Chart(_data(_values(rows)))
    chart = altair.layer(
        means.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q", **marks),
        means.mark_circle(size=90, opacity=1).encode(x=axis, **marks),
        seeds.mark_tick(thickness=1.5, size=14, opacity=0.6).encode(x=axis, **marks),
    )
    return _svg(chart.properties(width=300, height=altair.Step(26)))


def _ends(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The intervals; no perplexity is below 1, however wide the interval of a few seeds may be."""
    scored = [(row.title, row.perplexity) for row in rows if row.perplexity]
    return [{"row": title, "value": one.mean, "low": max(1.0, one.low), "high": one.high} for title, one in scored]


def _values(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [{"row": row.title, "value": measures.perplexity} for row in rows for measures in row.measured]


def _marks(rows: Sequence[Row]) -> dict[str, Any]:
    import altair

    styles = looks(rows)
    dash = altair.Scale(domain=[look.title for look in styles], range=[list(look.dash) for look in styles])
    return {"color": _colour(rows), "strokeDash": altair.StrokeDash("row:N", scale=dash, legend=None)}


def _colour(rows: Sequence[Row]) -> Any:
    import altair

    styles = looks(rows)
    scale = altair.Scale(domain=[look.title for look in styles], range=[look.colour for look in styles])
    return altair.Color("row:N", scale=scale, legend=None)


def _seeds(rows: Sequence[Row], axis: str) -> list[dict[str, Any]]:
    return [
        {"row": row.title, "seed": place, "x": getattr(point, axis), "loss": point.loss}
        for row in rows
        for place, measures in enumerate(row.measured)
        for point in measures.curve
    ]


def _means(rows: Sequence[Row], axis: str) -> list[dict[str, Any]]:
    return [
        {"row": row.title, "x": getattr(point, axis), "loss": point.loss}
        for row in rows
        for point in mean_curve([measures.curve for measures in row.measured])
    ]


def _data(values: list[dict[str, Any]]) -> Any:
    import altair

    return altair.InlineData(values=values)


def _svg(chart: Any) -> str:
    """Render without a browser or the network."""
    text = io.StringIO()
    plain = chart.configure(background="transparent", font=FONT).configure_view(stroke=None)
    plain.configure_axis(labelFontSize=12, titleFontSize=12, titleFontWeight="normal").save(text, format="svg")
    return text.getvalue()


# The plots of a report with their captions and one legend, or a word on how to get them.


INTERVALS = "Mean validation perplexity (dot) with its 95 % interval (line), and each seed (tick). Lower is better."
TOKENS = "Validation loss against training tokens: what a model makes of its text."
SECONDS = "Validation loss against training seconds: what it makes of your time."
ONE_POINT = "There are none: each run was validated once, at its end. More points: validations=5."
NOTE = "Each seed is a thin line, the mean of the seeds a thick one. The time of validations is not counted."


def intervals(rows: Sequence[Row]) -> str:
    """The mean of each row with its interval; nothing if there is none, or nothing to draw it with."""
    return _figure(draw_intervals(rows), INTERVALS, "narrow") if can_draw() and _measured(rows) else ""


def curves(rows: Sequence[Row]) -> str:
    """The section of learning curves."""
    if not _measured(rows):
        return ""
    if not any(len(measures.curve) > 1 for row in rows for measures in row.measured):
        return section("Learning curves", html_paragraph(ONE_POINT))
    if not can_draw():
        return section("Learning curves", html_paragraph(HOW_TO_INSTALL))
    figures = _figure(draw_curves(rows, "tokens"), TOKENS) + _figure(draw_curves(rows, "seconds"), SECONDS)
    return section(
        "Learning curves", _legend(rows), f'<div class="plots">{figures}</div>', html_paragraph(NOTE, "note")
    )


def _legend(rows: Sequence[Row]) -> str:
    items = "".join(f"<li>{_swatch(look)}{escape(look.title)}</li>" for look in looks(rows))
    return f'<ul class="legend">{items}</ul>'


def _swatch(look: Look) -> str:
    dash = "" if look.dash == (1, 0) else f' stroke-dasharray="{" ".join(map(str, look.dash))}"'
    line = f'<line x1="0" y1="5" x2="24" y2="5" stroke="{look.colour}" stroke-width="3"{dash}/>'
    return f'<svg class="swatch" viewBox="0 0 24 10" aria-hidden="true">{line}</svg>'


def _figure(svg: str, caption: str, kind: str = "wide") -> str:
    return f'<figure class="{kind}">{svg}<figcaption>{escape(caption)}</figcaption></figure>'


def _measured(rows: Sequence[Row]) -> bool:
    return any(row.measured for row in rows)


# What the models of a study say: samples, and the loop each falls into at temperature 0.


SAMPLES = "One sample of each model, of its first seed, at temperature 0.8; what stands in grey is the prompt."
LOOPS = (
    "At temperature 0 a model always takes the likeliest token, and sooner or later repeats itself. The first round of "
    "the loop is dark, its repetitions are light. A loop is proved where the model's whole state came back, for then "
    "all that follows must come back too."
)
ROUNDS, CHARACTERS, LINES = 2, 60, 6  # of the repetitions so many rounds or characters are shown, in so many lines
VISIBLE = {ord(" "): "␣", ord("\n"): "↵", ord("\t"): "⇥"}  # how a loop of white space alone is shown


def samples(rows: Sequence[Row]) -> str:
    """A sample of each row."""
    spoken = [card(row.title, _text(row.measured[0].sample)) for row in rows if row.measured]
    return section("Samples", html_paragraph(SAMPLES, "note"), cards(spoken)) if spoken else ""


def loops(rows: Sequence[Row]) -> str:
    """The greedy generation of each row, its loop marked."""
    greedy = [(row.title, row.measured[0].greedy) for row in rows if row.measured]
    spoken = [card(title, _looping(talk), loop_in_words(talk)) for title, talk in greedy]
    return section("The loop each falls into", html_paragraph(LOOPS, "note"), cards(spoken)) if spoken else ""


def loop_in_words(talk: Talk) -> str:
    """Say where a loop begins, how long it is, and whether and by which state it is proved."""
    loop = talk.loop
    if loop is None:
        return "No loop as far as this goes."
    every = "every token" if loop.period == 1 else f"every {loop.period} tokens"
    proof = f"Proved: {loop.state} came back." if loop.proved else f"Not proved: {loop.state} did not come back."
    return f"Onset {loop.onset}, period {loop.period}: from token {loop.onset} on it repeats {every}. {proof}"


def _text(talk: Talk) -> str:
    return f"<pre>{_prompt(talk.prompt)}{escape(talk.text)}</pre>"


def _prompt(prompt: str) -> str:
    return f'<span class="prompt">{escape(prompt)}</span>' if prompt else ""


def _looping(talk: Talk) -> str:
    if talk.loop is None:
        return _text(talk)
    begin, end = talk.loop.begin, talk.loop.end
    before, once, again = talk.text[:begin], talk.text[begin:end], talk.text[end:]
    shown = "".join(again[: max(ROUNDS * len(once), CHARACTERS)].splitlines(keepends=True)[:LINES])
    rest = " …" if len(shown) < len(again) else ""
    if not once.strip():
        once, shown = (part.translate(VISIBLE) for part in (once, shown))
    repeated = f'<mark class="again">{escape(shown)}</mark>{rest}' if shown else ""
    return f"<pre>{_prompt(talk.prompt)}{escape(before)}<mark>{escape(once)}</mark>{repeated}</pre>"


# The report of a study: one HTML page with the answer first, then all that it rests on.


WELCH = (
    "A difference is judged by its 95 % interval over the seeds (Welch): where that holds 0, it is within the noise."
)
VALIDATION = "a full pass over the validation text: each token but the first is predicted once"
FOOTER = "Made by Lemma. This page needs no network and no script. The figures stand unrounded in results.json."
VERDICTS = {"held": "held", "not held": "not-held"}
SHOWN = ("learning_rate", "batch", "stretch", "steps", "dropout")


def write_report(findings: Findings) -> str:
    """Write the whole report."""
    rows = findings.rows
    parts = [_head(findings), _result(findings), *sections(findings.spec, rows), curves(rows)]
    parts += [_report_claims(findings.judgements), samples(rows), loops(rows)]
    parts += [_models(rows, findings.spec.budget), _protocol(findings), f"<footer>{escape(FOOTER)}</footer>"]
    return page(f"{findings.spec.name}: a study", filter(None, parts))


def _head(findings: Findings) -> str:
    spec = findings.spec
    question = html_paragraph(spec.question, "question") if spec.question else ""
    conclusion = "".join(map(html_paragraph, findings.conclusion))
    seeds = ", ".join(map(str, spec.seeds))
    about = {**findings.data, "budget": budget_in_words(spec.budget), "seeds": seeds}
    return (
        f"<header>{html_paragraph('A study by Lemma', 'kicker')}<h1>{escape(spec.name)}</h1>{question}</header>\n"
        f'<div class="finding">{conclusion}</div>\n{facts(about)}'
    )


def budget_in_words(budget: Budget) -> str:
    """Say what each model gets.

    >>> budget_in_words(Budget(parameters=1000, tokens=5000))
    '1,000 parameters and 5,000 training tokens for each model'
    """
    parts = [
        f"{budget.parameters:,} parameters" if budget.parameters else "",
        f"{budget.tokens:,} training tokens" if budget.tokens else "",
        f"{budget.seconds:g} seconds of training" if budget.seconds else "",
    ]
    return " and ".join(filter(None, parts)) + " for each model" if any(parts) else "none"


def _result(findings: Findings) -> str:
    table = findings.table
    rows = [("best" if row.best else "", [row.contender, *table.cells(row)[1:]]) for row in table.rows]
    caption = html_paragraph(table.caption.replace(MARKED, ""), "note")  # here a badge marks the best row
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes())
    missing = f"<h3>Runs that are missing</h3><ul>{notes}</ul>" if notes else ""
    return section("Result", grid(table.header, rows), caption, missing, intervals(table.rows))


def _report_claims(judgements: Sequence[Judgement]) -> str:
    if not judgements:
        return ""
    judged = [card(one.says, _verdict(one)) for one in judgements]
    return section("Claims", cards(judged), html_paragraph(WELCH, "note"))


def _verdict(judgement: Judgement) -> str:
    items = "".join(f"<li>{escape(one.finding)}: <b>{one.verdict}</b></li>" for one in judgement.comparisons)
    kind = VERDICTS.get(judgement.verdict, "verdict")
    return f'<p class="{kind}">{judgement.verdict}</p><ul class="note">{items}</ul>'


def _models(rows: Sequence[Row], budget: Budget) -> str:
    finished = [(row.title, row.measured[0]) for row in rows if row.measured]
    against = ["against the budget"] if budget.parameters else []
    cells = [("", _model_cells(title, one, budget.parameters)) for title, one in finished]
    return section("Models and recipes", grid(["model", "sizes", *against, "recipe"], cells, "plain")) if cells else ""


def _model_cells(title: str, one: Measures, budget: int | None) -> list[str]:
    gap = [f"{100 * (one.parameters / budget - 1):+.2f} %".replace("-", "−")] if budget else []
    sizes = {word: value for word, value in one.model.items() if type(value) is int}
    recipe = {word: one.recipe[word] for word in SHOWN if one.recipe.get(word)}
    trial = {"trial tokens/s": round(one.trial_speed)} if one.trial_speed else {}
    return [title, _report_words(sizes), *gap, _report_words({**recipe, **trial})]


def _report_words(words: Mapping[str, Any]) -> str:
    return ", ".join(f"{word.replace('_', ' ')} {value:,}" for word, value in words.items())


def _protocol(findings: Findings) -> str:
    measured = [(row.title, one) for row in findings.rows for one in row.measured[:1]]
    left = "; ".join(dict.fromkeys(text for _, one in measured for text in one.protocol.get("left_out", ())))
    lines = {
        "validation": VALIDATION,
        "read": "; ".join(f"{title} {_reading(one.protocol)}" for title, one in measured),
        "left out": left,
        **findings.hardware,
    }
    return section("Protocol and hardware", facts({name: value for name, value in lines.items() if value}))


def _reading(protocol: Mapping[str, Any]) -> str:
    context, stride = protocol.get("context"), protocol.get("stride")
    if context:
        return f"in a context of {context}, stride {stride}"
    return f"through its state, in {protocol.get('streams')} streams"


# What `run_study` gives: the findings and the files they are saved in.


REPORT = "report.html"


@dataclass(frozen=True)
class StudyResult(Findings):
    """The findings of a study in the folder `out`, whole or, if it was interrupted, as far as they go."""

    out: Path
    interrupted: bool = False

    @property
    def report(self) -> Path:
        """Where the report is."""
        return self.out / REPORT

    def __str__(self) -> str:
        claims = "".join(f"\n\n{fit(str(judgement))}" for judgement in self.judgements)
        again = "\nInterrupted: the same command goes on where it stopped." if self.interrupted else ""
        conclusion = "\n".join(map(paragraph, self.conclusion))
        more = "".join(f"\n\n{text}" for text in texts(self.spec, self.rows))
        return f"{self.spec.name}\n\n{self.table}{more}\n\n{conclusion}{claims}\n{again}\nReport: {self.report}"

    def _repr_html_(self) -> str:
        rows = [("", self.table.cells(row)) for row in self.rows]
        sentences = [self.table.caption, *self.table.notes(), *self.conclusion]
        return grid(self.table.header, rows) + "".join(map(html_paragraph, sentences))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "study": self.spec.to_dict(),
            "data": dict(self.data),
            "hardware": dict(self.hardware),
            "interrupted": self.interrupted,
            "table": self.table.to_dict(),
            "measures": {name: summary(name, self.rows) for name in self.spec.measures},
            "conclusion": list(self.conclusion),
            "claims": [judgement.to_dict() for judgement in self.judgements],
            "runs": [run.to_dict() for run in self.runs],
            "report": str(self.report),
        }

    def save(self, folder: Path | None = None) -> Path:
        """Write the table (Markdown, CSV), everything (JSON) and the report into a folder; return the report's path."""
        place = folder or self.out
        files = {
            "table.md": self.table.to_markdown(),
            "table.csv": self.table.to_csv(),
            "results.json": json_text(self.to_dict()),
            REPORT: write_report(self),
        }
        write_files(place, files)
        return place / REPORT
