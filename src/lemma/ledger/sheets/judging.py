"""One answer judged: how much of it is right, what may be said of it, and what may always be said."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from lemma.errors import InputError
from lemma.ledger.counting import Conventions
from lemma.ledger.gradients import GradientReport, judge_gradients
from lemma.ledger.gradients.judge import find_cell
from lemma.ledger.judging import Verdict, judge_formula, judge_number
from lemma.ledger.judging.claims import Change, read_claim
from lemma.ledger.judging.verdict import shown
from lemma.ledger.sheets.sheet import Question


@dataclass(frozen=True)
class Judgement:
    """The part that is right, the reason in full, a hint that gives nothing away, and the right answer if known."""

    share: float
    reason: str
    hint: str
    right: str | None = None


def judge(question: Question, answer: str) -> Judgement:
    """Judge an answer to a question; an `InputError` says why it cannot be read."""
    return JUDGES[question.kind](question, answer)


def _formula(question: Question, answer: str) -> Judgement:
    asked = question.kind if question.kind == "flops" else "parameters"
    verdict = judge_formula(question.model, asked, answer, question.words, _conventions(question))
    right = (
        verdict.right if verdict.right == shown(verdict.right_at) else f"{verdict.right} = {shown(verdict.right_at)}"
    )
    return Judgement(float(verdict.equal), _words(verdict), _direction(verdict, "the model's sizes"), right)


def _number(question: Question, answer: str) -> Judgement:
    verdict = judge_number(
        question.model, question.quantity, _claim(question, answer), question.words, _conventions(question)
    )
    exact = Fraction(verdict.right_at)
    near = verdict.yours_at is not None and abs(verdict.yours_at - exact) <= Fraction(question.tolerance) * abs(exact)
    if verdict.equal and not near:
        coarse = f"Not right: {answer} is rounded too far."
        return Judgement(0.0, coarse, coarse, verdict.right)
    return Judgement(float(verdict.equal), _words(verdict), _direction(verdict, ""), verdict.right)


def _claim(question: Question, answer: str) -> str:
    """The number as it is asked for: a student's own sizes do not count."""
    if question.change:
        number = answer.lower().partition("from")[0].strip()
        return f"{number}{'' if '%' in number or 'cent' in number else ' %'} {question.change}"
    if isinstance(read_claim(answer), Change):
        raise InputError("a plain number is asked for, not a change in per cent.")
    return answer


def _direction(verdict: Verdict, where: str) -> str:
    """Whether it is too large or too small, and nothing else."""
    if verdict.equal:
        return "Right."
    if verdict.yours_at is None or verdict.yours_at == verdict.right_at:
        return "Not right."
    how = "too large" if verdict.yours_at > verdict.right_at else "too small"
    return f"Not right: {how}" + (f" at {where}." if where else ".")


def _gradients(question: Question, answer: str) -> Judgement:
    report = judge_gradients(question.cell, answer.splitlines())
    cell = find_cell(question.cell)
    wanted = {name: _outcome(report, cell.canonical(name)) for name in question.lines}
    right = sum(outcome == "right" for outcome in wanted.values())
    share = right / len(wanted) if question.partial else float(right == len(wanted))
    taken = sorted({name for verdict in report.judged for name in verdict.taken})
    hint = ", ".join(f"{name} {outcome}" for name, outcome in wanted.items()) + "."
    hint += f" Taken as given: {', '.join(taken)}." if taken else ""
    said = [f"{one.name}: {'; '.join(one.remarks)}" for one in report.judged if one.remarks]
    return Judgement(share, "\n".join([hint, *said]), hint)


def _outcome(report: GradientReport, name: str) -> str:
    outcomes = {verdict.outcome for verdict in report.judged if verdict.name == name}
    return "missing" if not outcomes else "right" if outcomes == {"right"} else "wrong"


def _conventions(question: Question) -> Conventions:
    return Conventions(question.multiply_add, question.causal)


JUDGES: dict[str, Callable[[Question, str], Judgement]] = {
    "parameters": _formula,
    "flops": _formula,
    "number": _number,
    "gradient": _gradients,
}


def _words(verdict: Verdict) -> str:
    """What a verdict says, in one line: the sheet wraps it where it stands."""
    return " ".join([verdict.headline, *verdict.diagnosis])
