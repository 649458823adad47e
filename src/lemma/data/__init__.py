"""Text as tokens: tokenizers, corpora, splits, the token store and the order of batches. No torch in this room."""

from lemma.data.batches import RandomWindows, Streams
from lemma.data.corpora import CORPORA, Corpus
from lemma.data.dataset import Dataset, prepare, read_tokens
from lemma.data.home import data_home
from lemma.data.learn import learn_tokenizer
from lemma.data.library import CorpusRow, corpora_table
from lemma.data.progress import Progress
from lemma.data.reading import read_pieces
from lemma.data.sections import Section
from lemma.data.store import TokenStore
from lemma.data.tokenizer import Tokenizer

__all__ = [
    "CORPORA",
    "Corpus",
    "CorpusRow",
    "Dataset",
    "Progress",
    "RandomWindows",
    "Section",
    "Streams",
    "TokenStore",
    "Tokenizer",
    "corpora_table",
    "data_home",
    "learn_tokenizer",
    "prepare",
    "read_pieces",
    "read_tokens",
]
