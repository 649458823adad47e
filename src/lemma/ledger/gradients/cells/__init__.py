"""The five cells whose gradients can be derived by hand."""

from lemma.ledger.gradients.cells.attention import ATTENTION
from lemma.ledger.gradients.cells.gru import GRU
from lemma.ledger.gradients.cells.lstm import LSTM
from lemma.ledger.gradients.cells.rnn import RNN
from lemma.ledger.gradients.cells.softmax import SOFTMAX_CROSS_ENTROPY

CELLS = {cell.name: cell for cell in (LSTM, GRU, RNN, ATTENTION, SOFTMAX_CROSS_ENTROPY)}
"""The cells by name."""
