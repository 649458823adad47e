"""The report of a study: one HTML page with the answer first, then all that it rests on."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from lemma.spec import Budget
from lemma.studies.claims import Judgement
from lemma.studies.figures import curves, intervals
from lemma.studies.findings import Findings
from lemma.studies.more_shown import sections
from lemma.studies.outcome import Measures
from lemma.studies.page import card, cards, facts, grid, page, paragraph, section
from lemma.studies.row import Row
from lemma.studies.table import MARKED
from lemma.studies.voices import loops, samples

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
    parts += [_claims(findings.judgements), samples(rows), loops(rows)]
    parts += [_models(rows, findings.spec.budget), _protocol(findings), f"<footer>{escape(FOOTER)}</footer>"]
    return page(f"{findings.spec.name}: a study", filter(None, parts))


def _head(findings: Findings) -> str:
    spec = findings.spec
    question = paragraph(spec.question, "question") if spec.question else ""
    conclusion = "".join(map(paragraph, findings.conclusion))
    seeds = ", ".join(map(str, spec.seeds))
    about = {**findings.data, "budget": budget_in_words(spec.budget), "seeds": seeds}
    return (
        f"<header>{paragraph('A study by Lemma', 'kicker')}<h1>{escape(spec.name)}</h1>{question}</header>\n"
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
    caption = paragraph(table.caption.replace(MARKED, ""), "note")  # here a badge marks the best row
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes())
    missing = f"<h3>Runs that are missing</h3><ul>{notes}</ul>" if notes else ""
    return section("Result", grid(table.header, rows), caption, missing, intervals(table.rows))


def _claims(judgements: Sequence[Judgement]) -> str:
    if not judgements:
        return ""
    judged = [card(one.says, _verdict(one)) for one in judgements]
    return section("Claims", cards(judged), paragraph(WELCH, "note"))


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
    return [title, _words(sizes), *gap, _words({**recipe, **trial})]


def _words(words: Mapping[str, Any]) -> str:
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
