"""What a checker found, of whatever kind, in the same few words: right or wrong, and what is right instead."""

from dataclasses import dataclass
from typing import Any

from lemma.ledger.gradients import GradientReport
from lemma.ledger.identities import IdentityReport
from lemma.ledger.judging import ShapeReport, Verdict
from lemma.looking.worked.judging import WorkedReport


@dataclass(frozen=True)
class Outcome:
    """A claim judged: what was claimed in the checker's words, and the correction that the checker found."""

    right: bool
    claimed: str = ""
    correction: str = ""


def outcome_of(found: Any) -> Outcome:
    """Read the outcome off what a checker returned."""
    match found:
        case Verdict():
            return _of_verdict(found)
        case GradientReport():
            return _of_gradient(found)
        case IdentityReport():
            return Outcome(found.holds, found.claim, "" if found.holds else found.correction or found.verdict)
        case WorkedReport():
            return _of_lines([(one.right, one.claim, one.reasons()) for one in found.lines])
        case ShapeReport():
            lines = [(one.equal, f"{one.name} = {one.yours}", [one.right, one.reason]) for one in found.lines]
            return _of_lines(lines)
    raise TypeError(f"no outcome can be read off {type(found).__name__}")


def _of_verdict(found: Verdict) -> Outcome:
    if found.equal:
        return Outcome(True, found.yours)
    return Outcome(False, found.yours, " ".join([f"{found.right}.", *found.diagnosis]))


def _of_gradient(found: GradientReport) -> Outcome:
    lines = [
        (one.outcome == "right", one.text, [f"{one.repair}." if one.repair else "", _sentence(one.reason)])
        for one in found.judged
    ]
    return _of_lines(lines) if lines else Outcome(False, found.summary, "no line derives anything of the cell.")


def _of_lines(lines: list[tuple[bool, str, list[str]]]) -> Outcome:
    """All lines are right, or the first that is wrong says why."""
    wrong = next((line for line in lines if not line[0]), None)
    if wrong is None:
        return Outcome(True, "; ".join(text for _, text, _ in lines))
    return Outcome(False, wrong[1], " ".join(reason for reason in wrong[2] if reason))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
