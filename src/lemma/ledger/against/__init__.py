"""What other tools count, beside the exact figures."""

from lemma.ledger.against.compare import against
from lemma.ledger.against.comparison import Comparison, Row
from lemma.ledger.against.tools import TOOLS, Reading

__all__ = ["TOOLS", "Comparison", "Reading", "Row", "against"]
