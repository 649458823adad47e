"""A person's hand computation, judged line by line against a worked case."""

from lemma.looking.worked.judging.judge import describe_worked, judge_worked
from lemma.looking.worked.judging.report import JudgedClaim, WorkedReport

__all__ = ["JudgedClaim", "WorkedReport", "describe_worked", "judge_worked"]
