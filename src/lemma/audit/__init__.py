"""The claims of the sources, each judged by the checker that a person would call: `lemma check sources`."""

from collections.abc import Callable, Sequence

from lemma.audit.claim import Claim, all_claims, choose_claims
from lemma.audit.report import Audit, Judged

__all__ = ["Audit", "Claim", "Judged", "all_claims", "choose_claims", "judge_claim", "judge_sources"]


def judge_sources(rows: Sequence[str] = (), watch: Callable[[int, int], None] | None = None) -> Audit:
    """Judge the claims of these rows, or of all.

    >>> print(judge_sources(["D2"]).summary)
    1 claim: 1 right, 0 wrong, 0 to measure.
    """
    claims = choose_claims(rows)
    judged: list[Judged] = []
    for number, claim in enumerate(claims):
        if watch is not None:
            watch(number, len(claims))
        judged.append(judge_claim(claim))
    if watch is not None:
        watch(len(claims), len(claims))
    return Audit(tuple(judged))


def judge_claim(claim: Claim) -> Judged:
    """Call the checker of one claim; what needs training is left to be measured."""
    if claim.measure:
        return Judged(claim)
    from lemma.audit.checkers import run_checker
    from lemma.audit.outcome import outcome_of

    return Judged(claim, outcome_of(run_checker(claim.check, claim.of, claim.answers, dict(claim.sizes))))
