"""Small cases worked by hand, every step shown: attention, byte-pair encoding, a graph, an LSTM step."""

from lemma.looking.worked.attention import attention_by_hand
from lemma.looking.worked.byte_pairs import trace_byte_pairs
from lemma.looking.worked.cross import WorkedCross, cross_by_hand
from lemma.looking.worked.graph import graph_by_hand
from lemma.looking.worked.graph_result import WorkedGraph
from lemma.looking.worked.lstm import lstm_by_hand
from lemma.looking.worked.lstm_result import WorkedLstm
from lemma.looking.worked.matching import WorkedMatching, matching_by_hand
from lemma.looking.worked.reading import Examples, list_examples
from lemma.looking.worked.trace import BytePairTrace
from lemma.looking.worked.worked_attention import WorkedAttention

__all__ = [
    "BytePairTrace",
    "Examples",
    "WorkedAttention",
    "WorkedCross",
    "WorkedGraph",
    "WorkedLstm",
    "WorkedMatching",
    "attention_by_hand",
    "cross_by_hand",
    "graph_by_hand",
    "list_examples",
    "lstm_by_hand",
    "matching_by_hand",
    "trace_byte_pairs",
]
