"""Reading formulas that people write, exactly and safely."""

from lemma.ledger.formula.division import quotient
from lemma.ledger.formula.parser import read_formula
from lemma.ledger.formula.rational import Rational

__all__ = ["Rational", "quotient", "read_formula"]
