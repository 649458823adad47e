"""Plain text set to a width: lines wrapped, tables folded; 80 columns unless a terminal has more or fewer."""

from lemma.typeset.lines import fit, label, paragraph, wrap
from lemma.typeset.measure import across, columns, set_to, together, width_of
from lemma.typeset.tables import table

__all__ = [
    "across",
    "columns",
    "fit",
    "label",
    "paragraph",
    "set_to",
    "table",
    "together",
    "width_of",
    "wrap",
]
