"""Is my derivation right? Formulas and numbers judged against the model, with the difference explained."""

from lemma.ledger.judging.judge import judge_formula
from lemma.ledger.judging.numbers import judge_number
from lemma.ledger.judging.shapes import ShapeReport, judge_shapes
from lemma.ledger.judging.verdict import Verdict

__all__ = ["ShapeReport", "Verdict", "judge_formula", "judge_number", "judge_shapes"]
