"""The ledger: formulas read off the real module, proved against it, and a judge of people's own derivations."""

from lemma.ledger.account import Account
from lemma.ledger.counting import QUANTITIES, Conventions, count
from lemma.ledger.quantity import Figure, Part, Quantity
from lemma.ledger.sources import imported, subject_of
from lemma.ledger.subject import Inputs, Subject

__all__ = [
    "QUANTITIES",
    "Account",
    "Conventions",
    "Figure",
    "Inputs",
    "Part",
    "Quantity",
    "Subject",
    "count",
    "imported",
    "subject_of",
]
